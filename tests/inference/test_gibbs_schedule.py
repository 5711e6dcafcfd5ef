"""What warm-up chooses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import pgmodels as pgm
from pgmodels.diagnostics.compare import convergence_by_latent
from pgmodels.inference import moves
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import MOVES, Keep, Schedule, default_schedule, pilot_schedule, tune
from pgmodels.inference.moves import DataAugmentation, DataAugmentationInfo, MoveStats
from pgmodels.inference.slice_moves import Hamiltonian, SliceLatents, SurrogateSlice, choose_step
from pgmodels.inference.surrogates import (
    Ellipse,
    Fit,
    constant_path,
    constant_preconditioner,
    fit_surrogate,
    linear_path,
    log_lengths,
)
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import choose_blocks
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
    prior, slices = prior_of(1, 100), Schedule.first(MOVES).of(SurrogateSlice)
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
    monkeypatch.setattr(Hamiltonian, "cost", lambda *_: np.inf)
    without, draws = effective()
    assert "hamiltonian" not in draws.tuning
    print(f"ESS {with_steps:.0f} against {without:.0f}")
    assert with_steps > 1.3 * without


# The Gaussian that the sampler expects at other hyperparameters.


MIDDLE = np.array([0.4, -1.0])
SCALE = np.array([[0.5, 0.0], [0.2, 0.3]])


@pytest.fixture
def ellipse():
    return Ellipse(jnp.asarray(MIDDLE), jnp.asarray(SCALE))


def gaussian(centre, marginals):
    """A fit with a given centre of whitened coordinates and given marginals."""
    prior = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.5, 0.7), mean=0.4)).prior(np.array([[0.0], [0.3], [1.1]]))
    W = np.array([0.5, 2.0, 1.0])[:, None, None]
    built = condition_blocks(prior, Sites(jnp.array([[0.3], [-1.0], [0.2]]), jnp.asarray(W)), choose_blocks(prior))
    return Fit(replace(built, centre=jnp.asarray(centre)), marginals, built.sites, jnp.zeros(()))


@pytest.mark.slow
def test_linear_means_and_log_deviations_are_reproduced_within_three_deviations(ellipse):
    rng = np.random.default_rng(0)
    a, slope = rng.normal(size=(3, 2)), rng.normal(size=(2, 3, 2))
    root, log_slope = rng.normal(size=(3, 2, 2)), 0.3 * rng.normal(size=(2, 3, 2))
    centre_slope = rng.normal(size=(2, 3))

    def fit(z):
        return gaussian(np.array([0.1, -0.2, 0.9]) + z @ centre_slope, marginals(z))

    def marginals(z):
        D = np.exp(np.einsum("d,dil->il", z, log_slope))
        covariance = root @ root.swapaxes(1, 2)
        return jnp.asarray(a + np.einsum("d,dil->il", z, slope)), jnp.asarray(D[:, :, None] * covariance * D[:, None])

    axes = np.eye(2)
    response = linear_path(fit(np.zeros(2)), ellipse, [(fit(e), fit(-e)) for e in axes], True)
    np.testing.assert_allclose(response.preconditioner.slope, centre_slope, rtol=1e-12)
    for z, clipped in (([0.7, -1.9], [0.7, -1.9]), ([5.0, 0.3], [3.0, 0.3]), ([0.0, -9.0], [0.0, -3.0])):
        result = response.at(MIDDLE + SCALE @ jnp.array(z))
        for one, other in zip(result, marginals(np.array(clipped)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def fits_that_widen(rng):
    """A fit, and neighbours with other centres, whose precisions are multiples of its own."""
    one = (jnp.ones((3, 1)), jnp.ones((3, 1, 1)))

    def fit(centre, log_width):
        narrow = gaussian(centre, one)
        wider = replace(narrow.surrogate, roots=(jnp.exp(-log_width) * narrow.surrogate.roots[0],))
        return narrow._replace(surrogate=wider)

    neighbours = [
        (fit(rng.normal(size=3), up), fit(rng.normal(size=3), down)) for up, down in ((0.4, -0.2), (0.0, 0.0))
    ]
    return fit([0.1, -0.2, 0.9], 0.0), neighbours


def test_standard_coordinates_follow_the_centre_and_the_width(ellipse):
    fit, neighbours = fits_that_widen(np.random.default_rng(2))
    response = linear_path(fit, ellipse, neighbours, True)
    frame, P = response.preconditioner, fit[0].roots[0] @ fit[0].roots[0].T
    # At the middle and its centre is the origin; one deviation of a hyperparameter on, the centre has moved.
    np.testing.assert_allclose(response.standardise(jnp.asarray(MIDDLE), frame.centre), 0.0, atol=1e-14)
    moved = response.place(jnp.array([0.0, 1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(moved[0], MIDDLE + SCALE[:, 1])
    expected = 0.5 * (neighbours[1][0][0].centre - neighbours[1][1][0].centre)
    np.testing.assert_allclose(moved[1] - frame.centre, expected)
    # At z_0 the whitened coordinates have the covariance P^-1, exp(2 0.3 z_0) times as large, up to z_0 = 3.
    for z, width in ((0.0, 1.0), (2.0, np.exp(0.6)), (-1.0, np.exp(-0.3)), (7.0, np.exp(0.9))):
        spread = jax.jacobian(lambda u, z=z: frame.place(jnp.array([z, 0.4]), u))(jnp.zeros(3))
        np.testing.assert_allclose(spread @ spread.T, width**2 * np.linalg.inv(P), rtol=1e-11)


def test_standard_coordinates_are_undone_and_know_their_jacobian(ellipse):
    rng = np.random.default_rng(2)
    fit, neighbours = fits_that_widen(rng)
    response = linear_path(fit, ellipse, neighbours, True)
    for standard in rng.normal(size=(3, 5)):
        np.testing.assert_allclose(response.standardise(*response.place(jnp.asarray(standard))), standard, atol=1e-12)
        jacobian = jax.jacobian(lambda x: jnp.concatenate(response.place(x)))(jnp.asarray(standard))
        # Up to a constant.
        expected = response.log_jacobian(jnp.asarray(standard)) + np.log(np.diag(SCALE)).sum()
        np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], expected, rtol=1e-12)


def test_lengths_are_those_along_an_axis_with_the_others_held():
    one = (jnp.ones((3, 1)), jnp.ones((3, 1, 1)))
    turned = gaussian([0.0, 0.0, 0.0], one).surrogate
    precision = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, -0.5], [0.0, -0.5, 1.5]])
    turned = replace(turned, roots=(jnp.asarray(np.linalg.cholesky(precision)),))
    axes = constant_preconditioner(gaussian([0.0, 0.0, 0.0], one)[0], 1).axes
    expected = [(axis @ precision @ axis) ** -0.5 for axis in np.asarray(axes[0]).T]
    np.testing.assert_allclose(np.exp(log_lengths(turned, axes)), expected, rtol=1e-12)


def two_directions():
    X, y = CASES["bernoulli"].data(8, seed=3)
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.5, 1.0), dist.LogNormal(0.0, 0.5)))), X, y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "message"),
    [((1, 2), "iteration 30: moves keep using"), ((3, 8), "iteration 30, 1 of 2 directions of the hyperparameters")],
)
def test_a_gaussian_that_cannot_be_fitted_is_reported_and_gives_no_slope(failing, message, monkeypatch, tmp_path):
    fits, sizes = [], {"num_samples": 5, "num_warmup": 120, "num_chains": 2, "seed": 0}

    def fit(*args):
        result = fit_surrogate(*args)
        fits.append(1)
        return result._replace(elbo=-jnp.inf) if len(fits) - 1 in failing else result

    monkeypatch.setattr(moves, "fit_surrogate", fit)
    with pytest.warns(pgm.MixingWarning, match=message) as caught:
        draws = pgm.gibbs(*two_directions(), **sizes, checkpoint=tmp_path)
    assert [str(warning.filename) for warning in caught] == [__file__]
    assert np.isfinite(draws.latents).all()
    follows = np.abs(draws.run.target.path.preconditioner.slope).max(axis=1) > 0
    assert follows.tolist() == ([False, False] if 1 in failing else [False, True])
    # Nor is it forgotten by a run that is taken up again.
    with pytest.warns(pgm.MixingWarning, match=message):
        pgm.gibbs(*two_directions(), **sizes, checkpoint=tmp_path)


@pytest.mark.slow
def test_it_foresees_the_gaussian_fitted_at_another_dispersion():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(9, 1)), rng.negative_binomial(4.0, 0.4, 9).astype(float)

    def fitted(log_dispersion, start=None):
        model = pgm.Model(pgm.NegativeBinomial(float(np.exp(log_dispersion))), pgm.GP(pgm.RBF(1.0, 1.0)))
        return fit_surrogate(model, model.prior(X), jnp.asarray(y), None, start)

    fit = fitted(1.0)
    around = Ellipse(jnp.array([1.0]), jnp.array([[0.4]]))
    response = linear_path(fit, around, [(fitted(1.4, fit.sites), fitted(0.6, fit.sites))], False)
    constant = constant_path(fit, around.middle, False)
    target = fitted(1.25)[1]
    for i, transform in enumerate((lambda x: x, np.log)):
        error = np.abs(transform(response.at(jnp.array([1.25]))[i]) - transform(target[i])).max()
        without = np.abs(transform(constant.at(around.middle)[i]) - transform(target[i])).max()
        assert without > 0.02
        assert error < 0.2 * without


@pytest.mark.slow
def test_a_dispersion_mixes_better_where_the_factors_follow_it(monkeypatch):
    rng = np.random.default_rng(2)
    X = np.linspace(-1.7, 1.7, 60)[:, None]
    y = rng.poisson(np.exp(0.3 - X[:, 0])).astype(float)
    kernel = pgm.Matern52(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.7))
    model = pgm.Model(pgm.NegativeBinomial(dist.LogNormal(1.5, 0.7)), pgm.GP(kernel, mean=-1.0))

    def effective():
        draws = pgm.gibbs(model, X, y, num_samples=1000, num_warmup=200, seed=0)
        logs = np.log(draws.hyperparameters["dispersion"])
        return float(convergence_by_latent(logs[..., None, None])[0].min())

    following = effective()
    monkeypatch.setattr(moves, "linear_path", lambda fit, ellipse, *_: constant_path(fit, ellipse.middle, False))
    constant = effective()
    print(f"ESS {following:.0f} against {constant:.0f}")
    assert following > 1.5 * constant
    assert following > 800
