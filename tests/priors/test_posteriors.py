"""The conditionally Gaussian core at its borders: extreme precisions, kernels that are none, one form for another."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.priors import linalg as algebra
from pgmodels.priors.base import Sites
from pgmodels.priors.dense import DensePrior
from pgmodels.priors.representation import Auto
from tests.forms import FORMS, MEAN, inputs, kernel
from tests.programs import run

pytestmark = pytest.mark.usefixtures("double_precision")


class Table(eqx.Module):
    """A kernel given by its matrix: what a mistaken user kernel returns."""

    matrix: jax.Array

    def __call__(self, X, Z):
        return self.matrix

    def diagonal(self, X):
        return jnp.diagonal(self.matrix)


def bind(covariance, X, size=2, mean=MEAN, form=Auto()):
    return form.bind(covariance, mean, X, size)


def draw(posterior, key):
    """A draw of the latents of a group and its coordinates."""
    mean, deviation = run(posterior.mean_and_deviation, key)
    return run(posterior.prior.latents, mean + deviation), mean + deviation


def test_low_rank_represents_the_kernel():
    covariance, X = FORMS["smooth"].kernel, FORMS["smooth"].X
    prior = bind(covariance, X)
    K = np.asarray(covariance(X, X))
    assert prior.rank % 16 == 0
    assert 0 <= float(prior.truncation_error) <= 1e-10 * 1.7
    # The neglected part is positive semi-definite: its diagonal bounds it, up to the rounding of K.
    np.testing.assert_allclose(prior.A.T @ prior.A, K, rtol=0, atol=float(prior.truncation_error) + 1e-14)
    rank = int(prior.active.sum())
    np.testing.assert_array_equal(prior.A[rank:], 0)
    # A at the training inputs by the pivots: rounding of K over the smallest pivot, 1e-16 / sqrt(1e-10), a few times.
    np.testing.assert_allclose(run(prior.factor_at, prior.X)[0], prior.A, rtol=0, atol=1e-9)


def test_the_jitter_of_a_dense_prior_is_kept():
    case = FORMS["smooth, dense"]
    prior, K = case.prior(), case.kernel(case.X, case.X)
    assert float(prior.jitter) > 0
    np.testing.assert_allclose(prior.K, K + float(prior.jitter) * np.eye(len(K)), rtol=0, atol=1e-15)


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


def test_variances_of_more_rows_than_lapack_inverts_at_once():
    n = algebra._LEAF + 45
    rng = np.random.default_rng(6)
    K = np.asarray(kernel()(inputs(n, seed=6), inputs(n, seed=6))) + 1e-6 * np.eye(n)
    w = rng.choice([0.0, 1e-12, 1e-3, 0.7, 30.0, 1e6], n)
    variance = lambda K, w: algebra.dense_variance(K, algebra.dense_factor(K, w))  # noqa: E731
    covariance = lambda K, w: jnp.diagonal(algebra.dense_covariance(K, algebra.dense_factor(K, w)))  # noqa: E731
    # Along a direction in which all moves but precisions that are zero, where a square root has no slope.
    way = K, np.where(w > 0, w, 0.0) * rng.normal(size=n)
    value, slope = jax.jit(lambda: jax.jvp(variance, (K, w), way))()
    np.testing.assert_allclose(value, jax.jit(covariance)(K, w), rtol=0, atol=1e-11)
    # Sigma' = (I - Sigma W) K' (I - W Sigma) - Sigma W' Sigma.
    Sigma = K - K @ np.linalg.solve(np.eye(n) + w[:, None] * K, w[:, None] * K)
    I_minus_SW = np.eye(n) - Sigma * w
    exact = np.einsum("ij,jk,ik->i", I_minus_SW, way[0], I_minus_SW) - np.einsum("ij,j,ij->i", Sigma, way[1], Sigma)
    np.testing.assert_allclose(slope, exact, rtol=0, atol=1e-7)


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


@pytest.mark.parametrize("entry", [(3, 40), (290, 5), (130, 299)])
def test_a_single_entry_without_its_mirror_image_is_found(entry):
    matrix = np.eye(300)
    matrix[entry] = 0.5
    names = rf"entry \({entry[0]}, {entry[1]}\)|entry \({entry[1]}, {entry[0]}\)"
    with pytest.raises(ValueError, match=f"not symmetric: ({names})"):
        bind(Table(jnp.asarray(matrix)), inputs(300))


def test_an_indefinite_kernel_of_low_rank_is_rejected():
    direction = np.random.default_rng(0).normal(size=(100, 2))
    matrix = np.outer(direction[:, 0], direction[:, 0]) - 0.01 * np.outer(direction[:, 1], direction[:, 1])
    np.fill_diagonal(matrix, np.abs(np.diagonal(matrix)))
    with pytest.raises(ValueError, match="smallest eigenvalue"):
        bind(Table(jnp.asarray(matrix)), inputs(100))
