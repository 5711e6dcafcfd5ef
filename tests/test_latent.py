"""The conditionally Gaussian core against brute-force twins."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.latent.dense import DensePrior
from pgmodels.latent.form import Cheapest, Dense
from pgmodels.latent.low_rank import LowRankPrior
from pgmodels.latent.protocol import Sites
from tests.programs import run

MEAN = 0.7
# Sums of some hundred terms of size 1 to 10, solved with matrices of condition up to about 1e4: 1e-16 * 1e2 * 1e4.
ROUNDING = 1e-10
# A neglected variance (or a jitter) of 1e-10 of K moves a posterior by up to 1e-10 * (1 + w k)^2 * n; here w k <= 6.
REPRESENTATION = 1e-6


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


class SquaredExponential(eqx.Module):
    variance: jax.Array
    lengthscale: jax.Array

    @eqx.filter_jit
    def __call__(self, X, Z):
        difference = (X[:, None] - Z) / self.lengthscale
        return self.variance * jnp.exp(-0.5 * jnp.sum(difference**2, axis=-1))

    def diagonal(self, X):
        return self.variance * jnp.ones(len(X))


class Table(eqx.Module):
    """A kernel given by its matrix: what a mistaken user kernel returns."""

    matrix: jax.Array

    def __call__(self, X, Z):
        return self.matrix

    def diagonal(self, X):
        return jnp.diagonal(self.matrix)


def kernel(scale=1.0):
    return SquaredExponential(np.asarray(1.7), scale * np.asarray([0.8, 1.9]))


def inputs(n, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, size=(n, 2))


def bind(covariance, X, size=2, mean=MEAN, form=Cheapest()):
    return form.bind(covariance, mean, X, size)


def some_sites(n, size=2, seed=1):
    """Potentials and precisions of order 1, one in three precisions exactly zero (with a potential all the same)."""
    rng = np.random.default_rng(seed)
    h, w = rng.normal(0.3, 1.0, (n, size)), rng.gamma(1.5, 0.7, (n, size))
    w[::3] = 0
    return Sites(jnp.asarray(h), jnp.asarray(w))


CASES = {
    "one point": (kernel(), inputs(1)),
    "rough": (kernel(0.5), inputs(12)),
    "duplicated rows": (kernel(), np.concatenate([inputs(6), inputs(6)[:3]])),
    "smooth": (kernel(4.0), inputs(60)),
}


@pytest.fixture(params=CASES)
def case(request):
    covariance, X = CASES[request.param]
    return bind(covariance, X), covariance, X, some_sites(len(X))


def draw(posterior, key):
    """A draw of the latents of a group and its coordinates."""
    mean, deviation = run(posterior.mean_and_deviation, key)
    return run(posterior.prior.latents, mean + deviation), mean + deviation


def joint_twin(covariance, X, h, w):
    """Mean, covariance and log normaliser of one latent under prior times sites, by explicit inverses."""
    K = np.asarray(covariance(X, X))
    system = np.eye(len(K)) + K @ np.diag(w)
    Sigma = np.linalg.inv(system) @ K
    shifted = h - w * MEAN
    constant = np.sum(h * MEAN - 0.5 * w * MEAN**2)
    log_normalizer = -0.5 * np.linalg.slogdet(system)[1] + 0.5 * shifted @ Sigma @ shifted + constant
    return MEAN + Sigma @ shifted, Sigma, log_normalizer


def predictive_twin(covariance, X, X_new, h, w):
    """Mean and covariance of the latents at X and X_new, whose own sites are (0, 0)."""
    blank = np.zeros(len(X_new))
    return joint_twin(covariance, np.concatenate([X, X_new]), np.concatenate([h, blank]), np.concatenate([w, blank]))[
        :2
    ]


def tolerance(prior):
    return ROUNDING if isinstance(prior, DensePrior) and float(prior.jitter) == 0 else REPRESENTATION


def test_the_cheaper_representation_is_chosen():
    expected = {"one point": DensePrior, "rough": DensePrior, "duplicated rows": DensePrior, "smooth": LowRankPrior}
    for name, representation in expected.items():
        assert isinstance(bind(*CASES[name]), representation), name


def test_low_rank_represents_the_kernel():
    covariance, X = CASES["smooth"]
    prior = bind(covariance, X)
    K = np.asarray(covariance(X, X))
    assert prior.rank % 16 == 0
    assert 0 <= float(prior.truncation) <= 1e-10 * 1.7
    # The neglected part is positive semi-definite: its diagonal bounds it, up to the rounding of K.
    np.testing.assert_allclose(prior.A.T @ prior.A, K, rtol=0, atol=float(prior.truncation) + 1e-14)
    rank = int(prior.active.sum())
    np.testing.assert_array_equal(prior.A[rank:], 0)
    # A at the training inputs by the pivots: rounding of K over the smallest pivot, 1e-16 / sqrt(1e-10), a few times.
    np.testing.assert_allclose(prior.factor_at(prior.X)[0], prior.A, rtol=0, atol=1e-9)


def test_moments(case):
    prior, covariance, X, sites = case
    h, w = sites
    posterior = run(prior.condition, sites)
    mean, variance = run(posterior.moments)
    Sigma, log_normalizer = run(posterior.covariance), run(posterior.log_normalizer)
    twins = 0.0
    for latent in range(h.shape[1]):
        twin = joint_twin(covariance, X, h[:, latent], w[:, latent])
        atol = tolerance(prior)
        np.testing.assert_allclose(mean[:, latent], twin[0], rtol=0, atol=atol)
        np.testing.assert_allclose(variance[:, latent], np.diagonal(twin[1]), rtol=0, atol=atol)
        np.testing.assert_allclose(Sigma[latent], twin[1], rtol=0, atol=atol)
        twins += twin[2]
    np.testing.assert_allclose(log_normalizer, twins, rtol=0, atol=2 * atol)
    # The same without the factorisation kept.
    for ours, theirs in zip(run(prior.moments, sites), (mean, variance, log_normalizer), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_prediction(case):
    prior, covariance, X, (h, w) = case
    X_new = jnp.asarray(inputs(5, seed=9))
    posterior = run(prior.condition, Sites(h, w))
    mean, variance = run(posterior.predict, X_new)
    cross = run(posterior.cross_covariance, X_new)
    n = len(X)
    for latent in range(h.shape[1]):
        twin_mean, twin_covariance = predictive_twin(covariance, X, X_new, h[:, latent], w[:, latent])
        atol = tolerance(prior)
        np.testing.assert_allclose(mean[:, latent], twin_mean[n:], rtol=0, atol=atol)
        np.testing.assert_allclose(variance[:, latent], np.diagonal(twin_covariance)[n:], rtol=0, atol=atol)
        np.testing.assert_allclose(cross[latent], twin_covariance[n:, :n], rtol=0, atol=atol)


def test_whitened_coordinates_carry_draws_to_new_inputs(case):
    prior, covariance, X, _ = case
    X_new = jnp.asarray(inputs(5, seed=9))
    A_new, residual = run(prior.factor_at, X_new)
    A = run(prior.factor_at, prior.X)[0] if isinstance(prior, LowRankPrior) else prior.root.T
    # Covariances by the factor: rounding over the smallest pivot (1e-16 / 1e-5), or the jitter's 1e-10 of K.
    np.testing.assert_allclose(A_new.T @ A, covariance(X_new, X), rtol=0, atol=1e-8)
    assert np.all(np.asarray(residual) >= 0)
    np.testing.assert_allclose(jnp.sum(A_new**2, axis=0) + residual, covariance.diagonal(X_new), rtol=0, atol=1e-8)


def test_dense_and_low_rank_agree():
    covariance, X = CASES["smooth"]
    low_rank = bind(covariance, X)
    dense = bind(covariance, X, form=Dense())
    assert isinstance(low_rank, LowRankPrior)
    assert isinstance(dense, DensePrior)
    assert float(dense.jitter) > 0
    np.testing.assert_allclose(dense.K, covariance(X, X) + float(dense.jitter) * np.eye(60), rtol=0, atol=1e-15)
    low_rank, dense = (run(prior.condition, some_sites(60)) for prior in (low_rank, dense))
    X_new = jnp.asarray(inputs(4, seed=3))
    for ours, theirs in zip(run(low_rank.moments), run(dense.moments), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=REPRESENTATION)
    for ours, theirs in zip(run(low_rank.predict, X_new), run(dense.predict, X_new), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=REPRESENTATION)


@pytest.mark.parametrize("n", [1, 2])
def test_log_normalizer_is_the_integral(n):
    X = inputs(n, seed=4)
    h, w = jnp.asarray([[0.9], [-0.4]])[:n], jnp.asarray([[0.6], [0.0]])[:n]
    root = np.linalg.cholesky(np.asarray(kernel()(X, X)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    grid = np.stack(np.meshgrid(*[nodes] * n, indexing="ij"), axis=-1).reshape(-1, n)
    mass = np.prod(np.stack(np.meshgrid(*[weights / np.sqrt(2 * np.pi)] * n, indexing="ij"), axis=-1), axis=-1).ravel()
    f = MEAN + grid @ root.T
    integral = np.sum(mass * np.exp(f @ h[:, 0] - 0.5 * f**2 @ w[:, 0]))
    log_normalizer = run(bind(kernel(), X, size=1).moments, Sites(h, w))[2]
    # 80 Hermite nodes integrate exp(-w k x^2 / 2) with w k = 1 to about 1e-12.
    np.testing.assert_allclose(log_normalizer, np.log(integral), rtol=0, atol=1e-11)


def exact_posterior(K, mean, h, w):
    """Mean and covariance in fractions: Gauss-Jordan on (I + K W) [Sigma, mean] = [K, K (h - w mean)]."""
    n = len(K)
    K, h, w, mean = ([[Fraction(float(x)) for x in row] for row in np.atleast_2d(a)] for a in (K, h, w, mean))
    h, w, mean = h[0], w[0], mean[0][0]
    shifted = [h[j] - w[j] * mean for j in range(n)]
    table = [
        [(i == j) + K[i][j] * w[j] for j in range(n)] + K[i] + [sum(K[i][j] * shifted[j] for j in range(n))]
        for i in range(n)
    ]
    for i in range(n):
        table[i] = [x / table[i][i] for x in table[i]]
        for k in range(n):
            if k != i:
                table[k] = [x - table[k][i] * y for x, y in zip(table[k], table[i], strict=True)]
    solved = np.asarray([[float(x) for x in row[n:]] for row in table])
    return float(mean) + solved[:, -1], solved[:, :n]


def test_extreme_precisions():
    X = inputs(8, seed=5)
    w = jnp.asarray([1e10, 1e-10, 1e10, 0.0, 1.0, 1e10, 1e-10, 1e5])[:, None]
    f = jnp.asarray([0.3, 1.2, -0.8, 0.4, 2.0, 0.1, -1.5, 0.9])[:, None]
    h = jnp.where(w < 1, 0.5, w * f)
    prior = bind(kernel(), X, size=1)
    assert isinstance(prior, DensePrior)
    assert float(prior.jitter) == 0
    twin_mean, Sigma = exact_posterior(prior.K, MEAN, h[:, 0], w[:, 0])
    posterior = run(prior.condition, Sites(h, w))
    mean, variance = run(posterior.moments)
    # Relative, although the variances span ten orders: 1e-16 times the condition of K between the strong points (1e3),
    # some ten operations; the mean is of size 1, from potentials of size 1e10.
    np.testing.assert_allclose(variance[:, 0], np.diagonal(Sigma), rtol=1e-10)
    np.testing.assert_allclose(mean[:, 0], twin_mean, rtol=0, atol=1e-10)
    deviation = np.sqrt(np.diagonal(Sigma))
    np.testing.assert_allclose(
        run(posterior.covariance)[0] / np.outer(deviation, deviation), Sigma / np.outer(deviation, deviation), atol=1e-9
    )
    many = jax.jit(jax.vmap(lambda key: draw(posterior, key)[0]))
    draws = many(jax.random.split(jax.random.key(3), 2000))[:, :, 0]
    # 4.5 standard errors of a standard deviation estimated from 2,000 draws: 4.5 / sqrt(4000).
    np.testing.assert_allclose(np.std(draws, axis=0) / deviation, 1.0, rtol=0, atol=0.07)


@pytest.mark.parametrize("name", ["rough", "smooth"])
def test_draws(name):
    covariance, X = CASES[name]
    h, w = some_sites(len(X))
    prior = bind(covariance, X)
    given = run(prior.condition, Sites(h, w))
    count = 20_000
    keys = jax.random.split(jax.random.key(11), count)
    posterior, _ = jax.jit(jax.vmap(lambda key: draw(given, key)))(keys)
    unconditional, _ = jax.jit(jax.vmap(prior.draw))(keys)
    for draws, precision, potential in [(posterior, w, h), (unconditional, 0 * w, 0 * h)]:
        for latent in range(2):
            mean, Sigma, _ = joint_twin(covariance, X, potential[:, latent], precision[:, latent])
            deviation = np.sqrt(np.diagonal(Sigma))
            sample = np.asarray(draws)[:, :, latent]
            assert np.all(np.abs(sample.mean(axis=0) - mean) < 5 * deviation / np.sqrt(count))
            # Var of a sample covariance: (S_ii S_jj + S_ij^2) / N.
            error = np.sqrt((np.outer(deviation, deviation) ** 2 + Sigma**2) / count)
            assert np.all(np.abs(np.cov(sample.T) - Sigma) < 5 * error)
    # Latents of one group are independent: correlations are within 5 / sqrt(N) of zero.
    first, second = np.asarray(posterior)[:, :, 0], np.asarray(posterior)[:, :, 1]
    cross = np.corrcoef(first.T, second.T)[: len(X), len(X) :]
    assert np.all(np.abs(cross) < 5 / np.sqrt(count))


def test_a_draw_is_the_map_of_its_whitened_coordinates(case):
    prior, _, _, sites = case
    f, whitened = draw(run(prior.condition, sites), jax.random.key(2))
    np.testing.assert_array_equal(f, run(prior.latents, whitened))
    assert whitened.shape == (prior.rank, 2)
    stacked = run(prior.latents, np.stack([whitened, 2 * whitened]))
    np.testing.assert_allclose(stacked[1] - MEAN, 2 * (f - MEAN), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_log_normalizer_as_a_function_of_hyperparameters(name):
    covariance, X = CASES[name]
    h, w = some_sites(len(X))

    def objective(covariance, mean):
        return Cheapest().traced_for_moments(covariance, jnp.asarray(mean), jnp.asarray(X), 2).moments(Sites(h, w))[2]

    twin = sum(joint_twin(covariance, X, h[:, latent], w[:, latent])[2] for latent in range(2))
    value, gradient = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))(covariance, MEAN)
    np.testing.assert_allclose(value, twin, rtol=0, atol=ROUNDING)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, (covariance, MEAN)))
    evaluate = jax.jit(objective)
    for i, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            step = 1e-5
            ends = [
                float(evaluate(*jax.tree.unflatten(structure, [*leaves[:i], leaf.at[index].add(d), *leaves[i + 1 :]])))
                for d in (step, -step)
            ]
            # Central differences: step^2 times a third derivative of order 10 to 100, and rounding 1e-14 / step.
            np.testing.assert_allclose(
                jax.tree.leaves(gradient)[i][index], (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-7
            )


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], "smallest eigenvalue is -1"),
        ([[1.0, np.nan], [np.nan, 1.0]], r"entry \(0, 1\) is nan"),
        ([[1.0, 0.2], [0.1, 1.0]], "not symmetric"),
        ([[1.0, 0.0], [0.0, -1.0]], "variance at row 1 is -1"),
        ([[0.0, 0.0], [0.0, 0.0]], "variance at row 0 is 0"),
        ([1.0, 1.0], r"shape \(2,\)"),
    ],
)
def test_a_kernel_that_is_none_is_rejected(matrix, complaint):
    with pytest.raises(ValueError, match=f"kernel Table.*{complaint}.*White"):
        bind(Table(jnp.asarray(matrix)), inputs(2))


def test_an_indefinite_kernel_of_low_rank_is_rejected():
    direction = np.random.default_rng(0).normal(size=(100, 2))
    matrix = np.outer(direction[:, 0], direction[:, 0]) - 0.01 * np.outer(direction[:, 1], direction[:, 1])
    np.fill_diagonal(matrix, np.abs(np.diagonal(matrix)))
    with pytest.raises(ValueError, match="smallest eigenvalue"):
        bind(Table(jnp.asarray(matrix)), inputs(100))


@pytest.mark.parametrize("name", ["rough", "smooth"])
def test_equal_shapes_share_one_program(name):
    covariance, X = CASES[name]
    traces = []

    @jax.jit
    def update(prior, sites):
        traces.append(1)
        return prior.moments(sites)

    for factor in (1.0, 1.01, 0.99):
        changed = eqx.tree_at(lambda k: k.variance, covariance, factor * covariance.variance)
        update(bind(changed, X, mean=MEAN * factor), some_sites(len(X)))
    assert len(traces) == 1
