"""What warm-up chooses."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import pgmodels as pgm
from pgmodels.diagnostics.compare import convergence_by_latent
from pgmodels.inference import slice_moves as hamiltonian
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import MOVES, Keep, default_schedule, first_schedule, pilot_schedule, tune
from pgmodels.inference.moves import DataAugmentation, DataAugmentationInfo, MoveStats
from pgmodels.inference.slice_moves import Hamiltonian, SliceLatents, SurrogateSlice, choose_step
from tests.registry import CASES

pytestmark = pytest.mark.usefixtures("double_precision")


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


def repeats(schedule, kind):
    """How many steps of a kind of move an iteration has, None where the run has no such move."""
    turn = schedule.of(kind)
    return None if turn is None else int(turn.repeats)


WITHOUT_GRADIENT = tuple(move for move in MOVES if not isinstance(move, Hamiltonian))


def has(schedule, kind):
    """Whether iterations make moves of a kind."""
    return bool(repeats(schedule, kind))


@pytest.mark.parametrize(("cost", "tried"), [(0.5, True), (2.0, False)])
def test_hamiltonian_steps_are_tried_where_they_cost_no_more(cost, tried, monkeypatch):
    prior, slices = prior_of(1, 100), first_schedule(MOVES).of(SurrogateSlice)
    in_their_place = int(slices.repeats) * SurrogateSlice().cost(prior, slices, None)
    monkeypatch.setattr(Hamiltonian, "cost", lambda self, prior, schedule, stats: cost * in_their_place)
    default = default_schedule(MOVES, prior)
    first = pilot_schedule(default, 0)
    second = pilot_schedule(first, 1)
    # Until the first pilot has found how long steps are, and then together with what they are compared to.
    active = [(has(schedule, Hamiltonian), has(schedule, SurrogateSlice)) for schedule in (default, first, second)]
    assert active == ([(False, True), (True, False), (True, True)] if tried else [(False, True)] * 3)
    assert all(has(schedule, DataAugmentation) for schedule in (default, first, second))
    assert repeats(default_schedule(WITHOUT_GRADIENT, prior), Hamiltonian) is None


def stats_of(schedule, acceptance, jumps):
    """A pilot of ten iterations of four chains: each Hamiltonian step this probable, squared jumps this large."""
    ones, none = jnp.ones((4, 100, 3)), jnp.zeros((4, 2))
    infos = {
        Hamiltonian: (40.0, 10.0 * acceptance * jnp.ones(4), 10.0 * jnp.asarray(jumps[0])),
        SurrogateSlice: (40.0, (), 10.0 * jnp.asarray(jumps[1])),
        DataAugmentation: (40.0, DataAugmentationInfo(ones, ones, 2.0 * ones, 1.5 * ones), none),
        SliceLatents: (40.0, 15.0 * jnp.ones(4), none),
    }
    entries = [infos.get(type(move), (40.0, (), none)) for move in schedule.moves]
    return [MoveStats(jnp.asarray(40.0), jnp.asarray(steps), info, jnp.ones((4, 1)) * j) for steps, info, j in entries]


@pytest.mark.parametrize("chosen", [True, False])
def test_the_move_whose_slowest_coordinate_goes_furthest_for_its_cost_is_kept(chosen, monkeypatch):
    monkeypatch.setattr(Hamiltonian, "cost", lambda self, prior, schedule, stats: 3.0)
    monkeypatch.setattr(SurrogateSlice, "cost", lambda self, prior, schedule, stats: 2.0)
    prior = prior_of(3, 100)
    default = default_schedule(MOVES, prior)
    pilot = pilot_schedule(pilot_schedule(default, 0), 1)
    # A fifth further for its cost, or less far; however far the other hyperparameter goes.
    slowest = 0.1 * 3.0 / 2.0 * (1.2 if chosen else 0.8)
    jumps = [[3.0, slowest], [0.1, 0.7]]
    schedule = tune(prior, True, stats_of(pilot, 0.8, jumps), pilot)
    assert (has(schedule, Hamiltonian), has(schedule, SurrogateSlice)) == (chosen, not chosen)
    # Slice steps of the latents are beside those of the hyperparameters alone, and sweeps beside either.
    assert has(schedule, SliceLatents) == (not chosen)
    assert 1 <= int(schedule.of(DataAugmentation).every) < 50
    # The step is that which is accepted as often as wanted.
    settings = schedule.of(Hamiltonian).settings
    assert float(settings.step) == pytest.approx(choose_step(float(pilot.of(Hamiltonian).settings.step), 0.8))
    # The last pilot has the chosen kind, and changes it no more.
    last = tune(prior, True, stats_of(schedule, 0.8, jumps), pilot_schedule(schedule, 2))
    assert (has(last, Hamiltonian), has(last, SurrogateSlice)) == (chosen, not chosen)


def test_where_hamiltonian_steps_alone_fail_slice_steps_come_back():
    prior = prior_of(3, 100)
    alone = pilot_schedule(default_schedule(MOVES, prior), 0)
    jumps = [[3.0, 0.9], [0.8, 0.7]]
    rare, often = (tune(prior, True, stats_of(alone, acceptance, jumps), alone) for acceptance in (0.025, 0.8))
    assert [has(rare, kind) for kind in (Hamiltonian, SurrogateSlice, SliceLatents)] == [True, True, True]
    assert [has(often, kind) for kind in (Hamiltonian, SurrogateSlice, SliceLatents)] == [True, False, False]
    assert int(rare.of(DataAugmentation).every) == 1


@pytest.mark.slow
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
    assert "hamiltonian" not in draws.tuning
    assert draws.tuning["slice_unknowns"]["repeats"] == 2
    assert np.isfinite(draws.latents).all()


def held_at_first(model, X, y, num_warmup):
    """How many Hamiltonian steps and slice steps on hyperparameters a run begins with."""
    settings = Settings(num_warmup, 2, jax.random.key(0), Keep("all"))
    schedule = GibbsRun(model.resolve(X), model.check(X, y), settings).schedule
    return repeats(schedule, Hamiltonian), repeats(schedule, SurrogateSlice)


@pytest.mark.slow
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
    assert draws.tuning["hamiltonian"]["repeats"] > 0
    monkeypatch.setattr(hamiltonian, "_GRADIENT", np.inf)
    without, draws = effective()
    assert "hamiltonian" not in draws.tuning
    print(f"ESS {with_steps:.0f} against {without:.0f}")
    assert with_steps > 1.3 * without
