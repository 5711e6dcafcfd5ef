"""What warm-up chooses."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import pgmodels as pgm
from pgmodels.diagnostics.convergence import convergence_by_latent
from pgmodels.inference.gibbs.run import GibbsRun, Keep, Settings
from pgmodels.inference.gibbs.tuning import Probe, choose_step, default_tuning, pilot_tuning, tune
from tests.registry import CASES


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def prior_of(num_latents, n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    likelihood = pgm.LogisticSoftmax(3) if num_latents == 3 else pgm.Bernoulli()
    return pgm.Model(likelihood, pgm.GP(pgm.Matern32(1.0, 0.8), size=num_latents)).prior(X)


@pytest.mark.parametrize(("curvature", "step"), [(2.0, 0.2), (2.0, 0.3), (4.0, 0.3), (5.0, 0.2)])
def test_the_step_is_accepted_as_often_as_wanted_where_its_law_holds(curvature, step):
    def probability(step):
        return 2.0 * norm.cdf(-curvature * step**2)

    assert probability(choose_step(step, probability(step))) == pytest.approx(0.95, abs=1e-12)


def test_a_step_changes_by_a_bounded_factor():
    assert choose_step(0.3, 0.0) == pytest.approx(0.12)
    assert choose_step(0.3, 1.0) == pytest.approx(0.48)


@pytest.mark.parametrize(("size", "n", "tried"), [(3, 100, True), (1, 100, False)])
def test_hamiltonian_steps_are_tried_where_they_cost_no_more(size, n, tried):
    held = default_tuning(prior_of(size, n), True)
    kinds = [
        (tuning.leapfrogs is not None and tuning.leapfrogs > 0, int(tuning.unknowns_slices))
        for tuning in (held, pilot_tuning(held, 0), pilot_tuning(pilot_tuning(held, 0), 1))
    ]
    assert kinds == ([(False, 1), (True, 0), (True, 1)] if tried else [(False, 2)] * 3)
    assert default_tuning(prior_of(size, n), False).leapfrogs is None


@pytest.mark.parametrize(("slowest", "chosen"), [(0.9, True), (0.001, False)])
def test_the_move_that_goes_furthest_for_its_cost_is_kept(slowest, chosen):
    prior = prior_of(3, 100)
    pilot = pilot_tuning(pilot_tuning(default_tuning(prior, True), 0), 1)
    ones = jnp.ones((4, 100, 3))
    probe = Probe(
        sweeps=jnp.asarray(10.0),
        slices=jnp.asarray(40.0),
        shrinks=jnp.asarray(60.0),
        before=ones,
        expected=ones,
        squares=2.0 * ones,
        products=1.5 * ones,
        moves=jnp.asarray(40.0),
        probabilities=jnp.asarray(32.0),
        # However far the other hyperparameter goes.
        jumps=40.0 * jnp.array([[3.0, slowest], [0.8, 0.7]]),
    )
    tuning = tune(prior, probe, pilot)
    assert float(tuning.step) == pytest.approx(choose_step(float(pilot.step), 0.8))
    assert (int(tuning.leapfrogs) > 0, int(tuning.unknowns_slices)) == (chosen, 0 if chosen else 2)
    assert (int(tuning.slice_steps) == 0, int(tuning.sweep_every) == 10) == (chosen, chosen)
    if chosen:
        assert 3.2 <= int(tuning.leapfrogs) * float(tuning.step) < 3.2 + float(tuning.step)
    # Where Hamiltonian steps alone fail, slice steps come back.
    rare = tune(prior, probe._replace(probabilities=jnp.asarray(1.0)), pilot_tuning(default_tuning(prior, True), 0))
    assert (int(rare.unknowns_slices), int(rare.slice_steps), int(rare.sweep_every)) == (1, 4, 1)
    # The last pilot has the chosen kind, and changes it no more.
    last = tune(prior, probe, pilot_tuning(tuning, 2))
    assert (int(last.leapfrogs) > 0, int(last.unknowns_slices)) == (chosen, 0 if chosen else 2)


def test_a_kernel_without_a_gradient_is_sampled_by_slice_steps():
    X, y = CASES["bernoulli"].data(12, seed=3)

    class Halved(pgm.RBF):
        """Half the variance, by a loop without a reverse mode."""

        def __call__(self, X, Z):
            K = super().__call__(X, Z)
            return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, 0.5 * c[1]), (0, K))[1]

    model = pgm.Model(pgm.Bernoulli(), pgm.GP(Halved(dist.LogNormal(0.5, 1.0), 1.0)))
    assert held_at_first(model, X, y, num_warmup=120) == (None, 2)
    draws = pgm.gibbs(model, X, y, num_samples=5, num_warmup=120, num_chains=2, seed=0)
    assert draws.tuning["leapfrogs"] is None
    assert draws.tuning["unknowns_slices"] == 2
    assert np.isfinite(draws.latents).all()


def held_at_first(model, X, y, num_warmup):
    """How many steps and slice steps on hyperparameters a run begins with."""
    settings = Settings(num_warmup, 2, jax.random.key(0), Keep("all"))
    tuning = GibbsRun(model.resolve(X), model.check(X, y), settings).tuning
    return None if tuning.leapfrogs is None else int(tuning.leapfrogs), int(tuning.unknowns_slices)


def test_without_warm_up_hyperparameters_take_slice_steps():
    assert held_at_first(*three_classes(9), num_warmup=200) == (0, 1)
    assert held_at_first(*three_classes(9), num_warmup=0) == (None, 2)


def three_classes(n):
    X, y = CASES["logistic_softmax"].data(n, seed=3)
    kernel = pgm.RBF(dist.LogNormal(0.5, 1.0), dist.LogNormal(0.0, 0.5))
    return pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(kernel, size=3)), X, y


@pytest.mark.slow
def test_three_classes_mix_better_by_hamiltonian_steps(monkeypatch):
    def effective():
        draws = pgm.gibbs(*three_classes(60), num_samples=1000, num_warmup=200, seed=0)
        return float(convergence_by_latent(draws.latents)[0].min()), draws

    with_steps, draws = effective()
    assert draws.tuning["leapfrogs"] > 0
    monkeypatch.setattr("pgmodels.inference.gibbs.tuning._GRADIENT", np.inf)
    without, draws = effective()
    assert draws.tuning["leapfrogs"] is None
    print(f"ESS {with_steps:.0f} against {without:.0f}")
    assert with_steps > 1.3 * without
