"""The augmentation gap against the divergence that it is defined as, integrated directly."""

from dataclasses import replace
from itertools import pairwise, product

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import roots_hermitenorm

from pgmodels import polya_gamma
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.inference.vi import cavi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Binomial, Gaussian, Laplace, StudentT
from pgmodels.model import GP, Model
from tests.covering import some
from tests.registry import CASES, SEPARATE

# Marginals of q at which the gaps are compared: wide and narrow, on either side of 0.
MEAN = np.array([[-1.7], [0.4], [2.3], [0.9]])
VARIANCE = np.array([[0.8], [3.5], [0.05], [1.6]])


def at_marginals(likelihood, y, mean=MEAN, variance=VARIANCE):
    """An approximation of some data with other marginals."""
    X = np.linspace(-1.0, 1.0, len(mean))[:, None]
    result = cavi(Model(likelihood, GP(RBF(1.0, 0.7), size=mean.shape[1])), X, y)
    return replace(result, mean=mean, variance=variance)


def expected_divergence(log_q, log_p, low, high, f_nodes=60):
    """E KL(q ‖ p(. | f)) for each datum by quadrature over f ~ N(m, v), and over ω between bounds.

    ``log_q(i, ω)`` and ``log_p(i, ω, f)`` are log densities; breaks at quantiles of log ω resolve the peaks.
    """
    z, weights = roots_hermitenorm(f_nodes)
    weights = weights / weights.sum()
    total = []
    for i, (m, v) in enumerate(zip(MEAN[:, 0], VARIANCE[:, 0], strict=True)):
        f = m + np.sqrt(v) * z

        def integrand(t, i=i, f=f):
            omega = np.exp(t)
            log_density = log_q(i, omega)
            if not np.isfinite(log_density) or log_density < -600:
                return 0.0
            return np.exp(log_density + t) * (log_density - weights @ log_p(i, omega, f))

        points = np.linspace(np.log(low), np.log(high), 12)
        total.append(sum(quad(integrand, a, b, epsabs=1e-10)[0] for a, b in pairwise(points)))
    return np.array(total)


@pytest.mark.parametrize("trials", [None, np.array([2.0, 3.0, 1.0, 4.0])], ids=["bernoulli", "binomial"])
def test_of_polya_gamma_it_is_the_divergence_of_densities(trials):
    successes = np.array([1.0, 0.0, 0.0, 1.0])
    b = np.ones(4) if trials is None else trials
    y = successes if trials is None else np.column_stack([successes, trials])
    c = np.sqrt(MEAN**2 + VARIANCE)[:, 0]
    expected = expected_divergence(
        lambda i, omega: float(polya_gamma.log_density(omega, b[i], c[i])),
        lambda i, omega, f: polya_gamma.log_density(omega, b[i], f),
        1e-4,
        4.4,
    )
    gap = augmentation_gap(at_marginals(Bernoulli() if trials is None else Binomial(), y))
    # Mass of PG beyond 4.4 is below exp(-4.4 pi^2 / 2) = 4e-10 times its power of ω, for b = 4 still 1e-6.
    np.testing.assert_allclose(gap.value, expected, rtol=1e-6, atol=2e-7)
    assert (gap.value > 1e-5).all()
    assert (gap.error < 1e-9).all()


def test_of_student_t_it_is_the_divergence_of_gammas():
    y, df, scale = np.array([0.3, -1.0, 2.0, 4.0]), 3.5, 0.7
    shape = (df + 1) / 2
    second = ((y - MEAN[:, 0]) ** 2 + VARIANCE[:, 0]) / (df * scale**2)
    expected = expected_divergence(
        lambda i, omega: stats.gamma.logpdf(omega, shape, scale=1 / (1 + second[i])),
        lambda i, omega, f: stats.gamma.logpdf(omega, shape, scale=1 / (1 + (y[i] - f) ** 2 / (df * scale**2))),
        1e-9,
        60.0,
        f_nodes=400,
    )
    gap = augmentation_gap(at_marginals(StudentT(df, scale), y))
    # 400 Gauss-Hermite nodes of the log1p, whose poles are within 1 deviation of the axis: 1e-6.
    np.testing.assert_allclose(gap.value, expected, rtol=2e-6)
    assert (gap.error < 1e-9).all()


def test_of_laplace_it_is_the_divergence_of_inverse_gaussians():
    y, scale = np.array([0.3, -1.0, 2.0, 4.0]), 0.6
    kappa = 1 / scale

    def law(distance):
        # ω^(-3/2) exp(-κ²/(4ω) - ω distance²): inverse Gaussian with mean κ/(2 distance) and shape κ²/2.
        return stats.invgauss(1 / (kappa * distance), scale=kappa**2 / 2)

    root = np.sqrt((y - MEAN[:, 0]) ** 2 + VARIANCE[:, 0])
    # The kink of |y - f| is beyond Gauss-Hermite: E over f of the divergence by its own closed form at each ω.
    expected = []
    for i in range(4):
        q, grid = law(root[i]), np.exp(np.linspace(np.log(1e-3), np.log(1e4), 4001))
        log_q = q.logpdf(grid)
        f = stats.norm(MEAN[i, 0], np.sqrt(VARIANCE[i, 0]))

        def divergence(x, i=i, grid=grid, log_q=log_q, f=f):
            log_p = law(max(abs(y[i] - x), 1e-12)).logpdf(grid)
            return f.pdf(x) * np.trapezoid(np.exp(log_q) * (log_q - log_p) * grid, np.log(grid))

        m, s = MEAN[i, 0], np.sqrt(VARIANCE[i, 0])
        breaks = np.unique(np.clip([m - 9 * s, y[i], m + 9 * s], m - 9 * s, m + 9 * s))
        expected.append(sum(quad(divergence, a, b)[0] for a, b in pairwise(breaks)))
    gap = augmentation_gap(at_marginals(Laplace(scale), y))
    np.testing.assert_allclose(gap.value, expected, rtol=1e-6)
    assert (gap.error < 1e-9).all()


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_a_kink_far_narrower_than_q_is_resolved(scale):
    y = np.array([0.3, -1.0, 2.0, 4.0])
    gap = augmentation_gap(at_marginals(Laplace(scale), y))
    m, s = MEAN[:, 0] - y, np.sqrt(VARIANCE[:, 0])
    # E|f - y| of a Gaussian in closed form.
    folded = s * np.sqrt(2 / np.pi) * np.exp(-0.5 * (m / s) ** 2) + m * (1 - 2 * stats.norm.cdf(-m / s))
    expected = (np.sqrt(m**2 + s**2) - folded) / scale
    assert (np.abs(gap.value - expected) <= gap.error).all()
    assert (gap.error < 1e-9 * (1 + folded / scale)).all()


def test_of_a_gaussian_likelihood_it_is_zero():
    gap = augmentation_gap(at_marginals(Gaussian(0.2), np.array([0.3, -1.0, 2.0, 4.0])))
    np.testing.assert_allclose(gap.value, 0.0, atol=1e-11)


def tensor_rule(num_latents):
    z, weights = roots_hermitenorm({1: 200, 2: 80, 3: 36}[num_latents])
    nodes = np.array(list(product(z, repeat=num_latents)))
    weights = np.array([np.prod(w) for w in product(weights / weights.sum(), repeat=num_latents)])
    return nodes, weights


ABOVE = {"bernoulli", "binomial", "student_t", "laplace", "gaussian"}


@pytest.mark.slow
@pytest.mark.parametrize("name", some([name for name in SEPARATE if name not in ABOVE], "logistic_softmax"))
def test_other_likelihoods_against_densities_and_bounds_written_by_hand(name):
    case = CASES[name]
    X, y = case.data(6, seed=2)
    result = cavi(case.model(), X, y)
    rng = np.random.default_rng(8)
    result = replace(
        result,
        mean=result.mean + 0.3 * rng.normal(size=result.mean.shape),
        variance=rng.uniform(0.1, 1.2, result.mean.shape),
    )
    gap = augmentation_gap(result)
    nodes, weights = tensor_rule(case.num_latents)
    with jax.enable_x64(True):
        expected = -np.asarray(case.bound(result.mean, result.variance, y))
        for i in range(len(y)):
            f = result.mean[i] + np.sqrt(result.variance[i]) * nodes
            repeated = np.broadcast_to(y[i], (len(f), *y.shape[1:]))
            expected[i] += weights @ np.asarray(case.log_density(repeated, f))
    # Several latents: four standard errors, or 0.2 % where they are smaller than the tolerance that stops them.
    np.testing.assert_array_less(np.abs(gap.value - expected), 4 * gap.error + 2e-3 * expected + 1e-8)
    assert (gap.value >= -gap.error - 1e-12).all()
    assert (gap.error <= 2e-3 * gap.value + 1e-5).all()
