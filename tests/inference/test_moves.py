"""Each move of the Gibbs engine keeps the joint law of hyperparameters, latents and data; with an error it does not.

A newcomer is a row of KERNELS (tests/statistical/geweke.py), and its planted errors rows here. This is a short version
of tests/statistical/test_geweke.py, which takes every likelihood. Were the engine exact, 1 run of this
file in 500 would fail by chance.
"""

import re
import warnings
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

import pgmodels as pgm
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import SCHEMES, Keep, Scheme
from pgmodels.inference.moves import DataAugmentation, Move, MoveRequirement, Step
from pgmodels.model import Data
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import PriorCollection
from tests.covering import some
from tests.registry import CASES
from tests.statistical import planted
from tests.statistical.geweke import KERNELS, Geweke, Kernel, inputs
from tests.statistical.joint import JointLaw
from tests.statistical.planted import GIVEN_SITES, HAMILTONIAN, OF_LIKELIHOOD, SLICE, WITHOUT_SLICES
from tests.statistical.reference import effective_sizes

pytestmark = pytest.mark.usefixtures("double_precision")

REPLICAS, STEPS, FALSE_ALARMS = 2_000, 3, 0.001 / 3


def test_every_move_has_a_row():
    moves = {type(move) for scheme in SCHEMES.values() for move in scheme.moves}
    assert {type(row.move) for row in KERNELS} >= moves


def test_every_error_can_be_planted():
    for error in planted.ERRORS:
        with pytest.MonkeyPatch.context() as patch:
            error.plant(patch)


# Fewer inducing inputs than data, and none of them a datum.
Z = np.array([[-0.9, 0.4], [0.8, -0.7]])
# Hyperparameters sampled or not, with dense priors; sampled, with inducing inputs.
HELD, SAMPLED, SPARSE = (False,), (True,), (True, Z)


def broken(name, law, kernel):
    """What of a joint law a kernel does not keep."""
    geweke = Geweke(JointLaw(name, inputs(), *law), seed=1)
    return geweke.scores(geweke.kernels()[kernel], REPLICAS, STEPS).broken(FALSE_ALARMS)


@pytest.mark.parametrize(
    ("name", "law", "kernel"),
    [
        ("heteroscedastic", HELD, "overrelaxed sweep"),
        pytest.param("stick_breaking", HELD, "iterations", marks=pytest.mark.slow),
        ("gaussian", SAMPLED, SLICE),
        ("gaussian", SAMPLED, HAMILTONIAN),
        ("bernoulli", SAMPLED, GIVEN_SITES),
        ("gaussian", SAMPLED, OF_LIKELIHOOD),
        pytest.param("gaussian", SAMPLED, WITHOUT_SLICES, marks=pytest.mark.slow),
        ("logistic_softmax", HELD, "iterations of four blocks"),
        ("softmax", HELD, "one versus rest"),
        pytest.param("gaussian", SPARSE, SLICE, marks=pytest.mark.slow),
        pytest.param("varying", SPARSE, "overrelaxed sweep", marks=pytest.mark.slow),
        ("bernoulli", SPARSE, "slice of latents"),
        pytest.param("heteroscedastic", SPARSE, "iterations", marks=pytest.mark.slow),
    ],
)
def test_keeps_the_joint_law(name, law, kernel):
    assert broken(name, law, kernel) == ""


@pytest.mark.parametrize(
    ("plant", "name", "law", "kernel"),
    some(
        [
            (planted.poisson_at_the_wrong_sign, "sigmoid_poisson", HELD, "sweep"),
            (planted.overrelaxation_with_the_plain_deviation, "gaussian", HELD, "overrelaxed sweep"),
            (planted.overrelaxation_without_noise, "gaussian", HELD, "overrelaxed sweep"),
            (planted.no_jacobian, "gaussian", SAMPLED, SLICE),
            (planted.no_jacobian, "bernoulli", SAMPLED, GIVEN_SITES),
            (planted.no_jacobian, "gaussian", SAMPLED, OF_LIKELIHOOD),
            (planted.stretched_coordinates, "gaussian", SAMPLED, HAMILTONIAN),
            (planted.prior_left_behind, "gaussian", SAMPLED, WITHOUT_SLICES),
            (planted.no_lengths, "gaussian", SAMPLED, HAMILTONIAN),
            (planted.no_normalizer, "gaussian", SAMPLED, SLICE),
            (planted.no_factors, "bernoulli", HELD, "slice of latents"),
            (planted.one_unit_more, "bernoulli", HELD, "sweep"),
            (planted.latents_without_their_coordinates, "bernoulli", HELD, "slice of latents"),
            (planted.rate_without_counts, "logistic_softmax", HELD, "four blocks"),
            (planted.rest_without_its_pull, "softmax", HELD, "one versus rest"),
            (planted.no_determinant, "gaussian", SPARSE, SLICE),
            (planted.residuals_by_themselves, "gaussian", SPARSE, SLICE),
            (planted.no_factors, "bernoulli", SPARSE, "slice of latents"),
        ],
        (planted.poisson_at_the_wrong_sign, "sigmoid_poisson", HELD, "sweep"),
    ),
)
def test_a_planted_error_is_found(plant, name, law, kernel, planting):
    # Before the likelihood's rules are derived.
    plant(planting)
    assert broken(name, law, kernel)


# The sampler on the sparse model behind inducing inputs, hyperparameters sampled, against grids and explicit sums.


RNG = np.random.default_rng(6)
N, VARIANCE = 14, 1.2
X = RNG.uniform(-2.0, 2.0, (N, 1))
Y = 0.7 + np.sin(2.5 * X[:, 0]) + 0.3 * RNG.normal(size=N)
X_NEW = np.array([[-1.4], [0.2], [2.6]])
INDUCING = np.array([[-1.7], [-0.8], [0.3], [1.1]])
MEAN, SCALE, LENGTHSCALE = (0.4, 0.5), (-1.0, 0.5), (-0.3, 0.5)


def model(Z):
    kernel = pgm.RBF(VARIANCE, dist.LogNormal(*LENGTHSCALE))
    gp = pgm.GP(kernel, mean=dist.Normal(*MEAN), form=pgm.Inducing(Z))
    return pgm.Model(pgm.Gaussian(dist.LogNormal(*SCALE)), gp)


def sample(Z, num_samples=1000, **options):
    return pgm.gibbs(model(Z), X, Y, num_samples=num_samples, num_chains=2, seed=3, **options)


@pytest.fixture(scope="module")
def draws():
    return sample(INDUCING)


def rbf(one, other, lengthscale):
    return VARIANCE * np.exp(-0.5 * (one - other.T) ** 2 / lengthscale**2)


def span(rows, lengthscale):
    """A at rows, (M, m)."""
    root = np.linalg.cholesky(rbf(INDUCING, INDUCING, lengthscale) + 1e-8 * VARIANCE * np.eye(len(INDUCING)))
    return np.linalg.solve(root, rbf(INDUCING, rows, lengthscale))


def sparse(rows, others, lengthscale):
    """What inducing inputs span of the covariance between rows and others."""
    return span(rows, lengthscale).T @ span(others, lengthscale)


def exact(between):
    """Weights of a grid of (lengthscale, scale), and mean and variance of f at X_NEW, the mean integrated out."""
    logs, points, means, variances = [], [], [], []
    for lengthscale in np.exp(np.linspace(-2.3, 1.2, 41)):
        for scale in np.exp(np.linspace(-2.8, 0.8, 41)):
            K = between(X, X, lengthscale) + MEAN[1] ** 2
            K[np.diag_indices(N)] = VARIANCE + MEAN[1] ** 2 + scale**2
            cross = between(X, X_NEW, lengthscale) + MEAN[1] ** 2
            solved = np.linalg.solve(K, cross)
            # Densities of the logarithms, in which the grid is uniform.
            prior = stats.norm(*LENGTHSCALE).logpdf(np.log(lengthscale)) + stats.norm(*SCALE).logpdf(np.log(scale))
            logs.append(stats.multivariate_normal(np.full(N, MEAN[0]), K).logpdf(Y) + prior)
            points.append((lengthscale, scale))
            means.append(MEAN[0] + solved.T @ (Y - MEAN[0]))
            variances.append(VARIANCE + MEAN[1] ** 2 - np.sum(cross * solved, axis=0))
    return np.exp(np.array(logs) - logsumexp(logs)), *map(np.array, (points, means, variances))


@pytest.mark.slow
@pytest.mark.parametrize(
    "everywhere",
    [
        pytest.param(False, id="fewer inputs than data"),
        pytest.param(True, id="an input a datum", marks=pytest.mark.slow),
    ],
)
def test_hyperparameters_and_predictions_are_those_of_a_grid(everywhere, request):
    # With an inducing input at every datum the sparse model is the dense one.
    result = sample(X) if everywhere else request.getfixturevalue("draws")
    weights, points, means, variances = exact(rbf if everywhere else sparse)
    for column, name in enumerate(("lengthscale", "scale")):
        values = result.hyperparameters[name]
        middle = weights @ points[:, column]
        deviation = np.sqrt(weights @ (points[:, column] - middle) ** 2)
        # Nearly as many effective draws as there are; four standard errors.
        assert effective_sizes(values) > 400
        assert abs(values.mean() - middle) < 4.0 * deviation / np.sqrt(effective_sizes(values))
        np.testing.assert_allclose(values.std(), deviation, rtol=0.2)
    mean, variance = result.predict_latent(X_NEW)
    exact_mean = weights @ means
    exact_variance = weights @ (variances + (means - exact_mean) ** 2)
    # Five standard errors of 400 draws.
    assert np.all(np.abs(mean[:, 0] - exact_mean) < 5.0 * np.sqrt(exact_variance / 400))
    np.testing.assert_allclose(variance[:, 0], exact_variance, rtol=5.0 * np.sqrt(2 / 400))


@pytest.mark.slow
def test_predictions_use_the_hyperparameters_of_each_draw(draws):
    values = zip(*(draws.hyperparameters[name].ravel() for name in ("lengthscale", "mean")), strict=True)
    coordinates = draws.whitened[0].reshape(-1, len(INDUCING) + N)
    centres, residuals, latents = [], [], []
    for (lengthscale, mean), v in zip(values, coordinates, strict=True):
        A, A_new = span(X, lengthscale), span(X_NEW, lengthscale)
        spread = np.sqrt(VARIANCE - np.sum(A**2, axis=0))
        latents.append(mean + A.T @ v[: len(INDUCING)] + spread * v[len(INDUCING) :])
        centres.append(mean + A_new.T @ v[: len(INDUCING)])
        residuals.append(VARIANCE - np.sum(A_new**2, axis=0))
    np.testing.assert_allclose(draws.latents.reshape(-1, N), latents, atol=1e-6)
    mean, variance = draws.predict_latent(X_NEW)
    np.testing.assert_allclose(mean[:, 0], np.mean(centres, axis=0), rtol=1e-6)
    np.testing.assert_allclose(variance[:, 0], np.var(centres, axis=0) + np.mean(residuals, axis=0), rtol=1e-5)
    f = draws.draw_latents(X_NEW, num_draws=2000)[..., 0]
    assert np.all(np.abs(f.mean(axis=0) - mean[:, 0]) < 5.0 * np.sqrt(variance[:, 0] / 2000))


@pytest.mark.slow
def test_draws_are_exported_and_saved(draws, tmp_path):
    tree = draws.to_arviz(num_draws=10)
    scale, lengthscale, mean = (draws.hyperparameters[name] for name in ("scale", "lengthscale", "mean"))
    expected = stats.norm(draws.latents[..., 0], scale[..., None]).logpdf(Y).sum(axis=-1)
    expected -= 0.5 * (draws.whitened[0] ** 2).sum(axis=(-2, -1))
    expected += stats.lognorm(SCALE[1], scale=np.exp(SCALE[0])).logpdf(scale) + stats.norm(*MEAN).logpdf(mean)
    expected += stats.lognorm(LENGTHSCALE[1], scale=np.exp(LENGTHSCALE[0])).logpdf(lengthscale)
    np.testing.assert_allclose(tree["sample_stats"]["lp"], expected, rtol=1e-8)
    loaded = pgm.load(draws.save(tmp_path / "draws.npz"))
    assert loaded.prior == draws.prior
    np.testing.assert_array_equal(loaded.predict_latent(X_NEW), draws.predict_latent(X_NEW))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_runs_go_on(draws, tmp_path):
    first = sample(INDUCING, 30, checkpoint=tmp_path)
    resumed = sample(INDUCING, 70, checkpoint=tmp_path)
    for other in (first.extend(40), resumed):
        np.testing.assert_array_equal(other.latents, draws.latents[:, :70])
        np.testing.assert_array_equal(
            other.hyperparameters["lengthscale"], draws.hyperparameters["lengthscale"][:, :70]
        )


def test_latents_that_a_datum_couples_are_those_of_one_large_gaussian():
    rows, (short, long) = X[:6], (pgm.RBF(1.7, 0.5), pgm.Matern32(0.8, 1.3))
    groups = pgm.Inducing(INDUCING).bind(short, 0.4, rows, 1), pgm.Dense().bind(long, -0.3, rows, 1)
    prior = PriorCollection((*groups, pgm.Inducing(rows[:2]).bind(long, 0.2, rows, 1))).for_sampling()
    roots = RNG.normal(size=(6, 3, 3))
    h, W, f = RNG.normal(size=(6, 3)), roots @ np.swapaxes(roots, 1, 2), RNG.normal(size=(6, 3))

    @jax.jit
    def figures(prior, h, W, f, units):
        posterior = condition_blocks(prior, Sites(h, W), ((0, 1, 2),))
        marginals = posterior.marginals()
        scalars = posterior.log_normalizer(), posterior.log_factor(f), posterior.divergence(marginals[1])
        latents = jax.vmap(lambda flat: prior.latents(prior.unflatten(flat)))
        deviations = jax.lax.map(posterior.deviation, units)
        back = posterior.standardise(posterior.centre + deviations[0] + 2.0 * deviations[-1])
        return posterior.centre, scalars, marginals, deviations.T, back, latents(units)

    size = sum(prior.ranks)
    at_zero = np.repeat([[0.4, -0.3, 0.2]], 6, axis=0).ravel()
    arguments = map(jnp.asarray, (h, W, f, np.eye(size)))
    centre, scalars, (mean, V), deviations, back, coloured = jax.tree.map(np.asarray, figures(prior, *arguments))
    # f = at_zero + B v for all latents and data at once.
    B = coloured.reshape(size, -1).T - at_zero[:, None]
    big = np.zeros((6, 3, 6, 3))
    big[np.arange(6), :, np.arange(6), :] = W
    big = big.reshape(18, 18)
    P, right = np.eye(size) + B.T @ big @ B, B.T @ (h.ravel() - big @ at_zero)
    middle = np.linalg.solve(P, right)
    log_normalizer = h.ravel() @ at_zero - 0.5 * at_zero @ big @ at_zero
    log_normalizer += 0.5 * right @ middle - 0.5 * np.linalg.slogdet(P)[1]
    covariance = (B @ np.linalg.inv(P) @ B.T).reshape(6, 3, 6, 3)
    # Sums of some hundred terms of size 1 to 10.
    np.testing.assert_allclose(centre, middle, atol=1e-10)
    log_factor = h.ravel() @ f.ravel() - 0.5 * f.ravel() @ big @ f.ravel()
    spread = np.trace(np.linalg.inv(P)) - size + np.linalg.slogdet(P)[1]
    np.testing.assert_allclose(scalars, (log_normalizer, log_factor, 0.5 * (spread + middle @ middle)))
    np.testing.assert_allclose(deviations @ deviations.T, np.linalg.inv(P), atol=1e-10)
    np.testing.assert_allclose(back, np.eye(size)[0] + 2.0 * np.eye(size)[-1], atol=1e-10)
    np.testing.assert_allclose(mean.ravel(), at_zero + B @ middle, atol=1e-10)
    np.testing.assert_allclose(V, covariance[np.arange(6), :, np.arange(6), :], atol=1e-10)


ROWS = np.arange(120.0)[:, None]
NOISE = np.random.default_rng(8).standard_normal((2, 120))
SMOOTH = np.linalg.cholesky(0.5 * np.exp(-0.5 * ((ROWS - ROWS.T) / 3.0) ** 2) + 1e-9 * np.eye(120)) @ NOISE[0]
NOISY = SMOOTH + 0.5 * NOISE[1]


def first_of_gibbs(model):
    run = GibbsRun(model.resolve(ROWS), Data(ROWS, NOISY), Settings(0, 2, jax.random.key(0), Keep("all")))
    run.warn()
    # What the Gaussian of the moves has of the prior is no copy.
    assert run.target.fixed_reference.prior.groups[0].span.A is run.prior.groups[0].span.A
    return run


def drawn(model):
    return pgm.gibbs(model, ROWS, NOISY, num_samples=30, num_warmup=0, num_chains=2)


def integrated(model):
    return pgm.integrate(model, ROWS, NOISY)


@pytest.mark.parametrize(
    "engine", [first_of_gibbs, *(pytest.param(f, marks=pytest.mark.slow) for f in (drawn, integrated))]
)
def test_too_few_inducing_inputs_are_said(engine):
    scale = 0.5 if engine is first_of_gibbs else dist.LogNormal(-0.7, 0.2)

    def said(Z):
        gp = pgm.GP(pgm.RBF(pgm.Fixed(0.5), pgm.Fixed(3.0)), mean=pgm.Fixed(0.0), form=pgm.Inducing(Z))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = engine(pgm.Model(pgm.Gaussian(scale), gp))
        messages = [str(each.message) for each in told if each.category is pgm.InducingWarning]
        scales = (
            np.exp(result.vectors[np.argmax(result.shares)])
            if engine is integrated
            else result.model.parameters["scale"]
        )
        return messages, float(np.squeeze(scales))

    (message,), at = said(ROWS[::8])
    assert ("nats below" if engine is integrated else "independent for each row") in message
    share, enough = (int(number) for number in re.search(r"too few: (\d+)%.*About (\d+) greedily", message).groups())
    # Of the variational posterior by explicit matrices, at the values of the result; a chain is somewhere about them.
    Z = ROWS[::8]
    cross = 0.5 * np.exp(-0.5 * ((Z - ROWS.T) / 3.0) ** 2)
    Q = cross.T @ np.linalg.solve(0.5 * np.exp(-0.5 * ((Z - Z.T) / 3.0) ** 2), cross)
    residual = 0.5 - np.diag(Q)
    variance = residual + np.diag(Q - Q @ np.linalg.solve(Q + at**2 * np.eye(120), Q))
    assert share == pytest.approx(100.0 * np.mean(residual / variance), abs=4.0 if engine is drawn else 1.0)
    assert 15 < enough < 40
    assert engine is first_of_gibbs or said(ROWS[::2])[0] == []


# A move of the sampler from outside the package.


@dataclass(frozen=True)
class CrankNicolson(Move):
    """A Metropolis step v' = sqrt(1 - length^2) v + length noise, which leaves the prior as it is (Cotter et al. 2013).

    Its state counts the steps that were accepted, and that were made.
    """

    length: float = 0.5
    # The error to plant.
    accepts_all: bool = False
    name: ClassVar[str] = "crank_nicolson"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset({MoveRequirement.FACTOR})

    def init(self, target, chain):
        return jnp.zeros(2)

    def step(self, target, settings, chain, state):
        key, noise_key, accept_key = jax.random.split(chain.key, 3)
        noise = jax.random.normal(noise_key, chain.coordinates.shape)
        coordinates = jnp.sqrt(1.0 - self.length**2) * chain.coordinates + self.length * noise
        latents = target.latents(chain.unknowns, coordinates)
        gain = target.log_likelihood(latents, chain.unknowns) - target.log_likelihood(chain.latents, chain.unknowns)
        accepted = (jnp.log(jax.random.uniform(accept_key)) < gain) | self.accepts_all
        latents, coordinates = (
            jnp.where(accepted, new, old) for new, old in ((latents, chain.latents), (coordinates, chain.coordinates))
        )
        moved = chain._replace(key=key, latents=latents, coordinates=coordinates)
        return Step(moved, state + jnp.array([accepted, 1.0]))

    def cost(self, prior, schedule, stats):
        return float(sum(factor.size for factor in prior.factors()))


@pytest.mark.parametrize("wrong", [False, True])
def test_it_takes_part_in_the_battery_by_a_row(wrong):
    geweke = Geweke(JointLaw("bernoulli", inputs(), False), seed=1)
    kernel = geweke.kernels(Kernel("Metropolis", CrankNicolson(0.6, wrong)))["Metropolis"]
    assert bool(geweke.scores(kernel, REPLICAS, STEPS).broken(FALSE_ALARMS)) == wrong


def test_it_takes_part_in_a_run():
    X, y = CASES["gaussian"].data(6, seed=3)
    model = CASES["gaussian"].model()
    settings = Settings(25, 2, jax.random.key(0), Keep("all"))
    run = GibbsRun(model.resolve(X), model.check(X, y), settings, Scheme("own", (CrankNicolson(), DataAugmentation())))
    run.advance(525, None, False)
    accepted, made = np.asarray(run.state.move_states[0]).T
    assert made.tolist() == [525.0, 525.0]
    assert np.all((accepted > 25) & (accepted < 500))
    draws = run.draws(500, 0.0)
    assert list(draws.tuning) == ["crank_nicolson", "sweep"]
    # As much work for sweeps as for the other move, which costs next to nothing.
    assert draws.tuning["sweep"]["every"] == 10
    exact = pgm.cavi(model, X, y)
    # Nothing is augmented here, so that a sweep draws independently and CAVI is exact: 12 comparisons, with 100 sweeps
    # alone.
    assert np.all(np.abs(draws.mean - exact.mean) < 4 * np.sqrt(exact.variance / 100))
    assert np.all(np.abs(draws.variance / exact.variance - 1) < 4 * np.sqrt(2 / 100))
