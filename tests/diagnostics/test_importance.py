"""Importance sampling against posteriors in closed form and by quadrature."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from pgmodels.diagnostics.compare import importance_estimate, pareto_k
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.inference.evidence import weigh
from pgmodels.inference.vi import cavi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Gaussian, LogisticSoftmax
from pgmodels.model import GP, Model
from pgmodels.priors.base import Sites
from tests.programs import conditioned


def covariance(X, variance, lengthscale):
    return variance * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / lengthscale**2)


def with_sites(result, potential=None, precision=None):
    """A result with other sites, and what follows from them."""
    h, w = result.sites
    with jax.enable_x64(True):
        sites = Sites(*(jnp.asarray(old if new is None else new) for old, new in ((h, potential), (w, precision))))
        posterior, mean, variance = conditioned(result.prior, sites)
        mean, variance = np.asarray(mean), np.asarray(variance)
    return replace(result, posterior=posterior, mean=mean, variance=variance)


@cache
def gaussian():
    """The exact posterior of six data, its covariance, log p(y), and q: the posterior moved by a known shift."""
    X = np.array([-2.0, -1.1, 0.2, 0.9, 1.4, 2.6])[:, None]
    y = np.array([0.3, 1.2, -0.4, 0.1, 0.9, 2.0])
    exact = cavi(Model(Gaussian(0.5), GP(RBF(1.5, 0.9), mean=0.4)), X, y)
    K, noise = covariance(X, 1.5, 0.9), 0.25 * np.eye(6)
    S = K - K @ np.linalg.solve(K + noise, K)
    shift = np.array([0.2, -0.1, 0.15, 0.0, -0.25, 0.3])
    # The mean moves by S times the change of the potential.
    h = np.asarray(exact.sites.potential)
    moved = with_sites(exact, h + np.linalg.solve(S, shift)[:, None])
    log_evidence = stats.multivariate_normal(np.full(6, 0.4), K + noise).logpdf(y)
    return exact, moved, S, shift, log_evidence


@pytest.mark.slow
def test_a_shifted_gaussian_is_moved_back():
    exact, moved, S, shift, log_evidence = gaussian()
    squared = shift @ np.linalg.solve(S, shift)
    estimate = importance_estimate(moved, 20_000, seed=1)
    assert estimate.pareto_k < 0.5
    np.testing.assert_array_less(np.abs(estimate.mean - exact.mean), 4.5 * estimate.mean_error)
    np.testing.assert_array_less(np.abs(estimate.variance - exact.variance), 4.5 * estimate.variance_error)
    # The errors are smaller than the shift.
    assert estimate.mean_error.max() < 0.1 * np.abs(shift).max()
    assert abs(estimate.log_evidence - log_evidence) < 4 * estimate.log_evidence_error
    assert abs(estimate.divergence - 0.5 * squared) < 4 * estimate.divergence_error
    # Weights exp(d u - d^2 / 2) of a standard normal u, d^2 the squared shift: E w^2 = exp(d^2). Widening adds to that.
    from_q = weigh(moved, 1.0, 20_000, seed=1)
    np.testing.assert_allclose(from_q.weights.effective_size, 20_000 * np.exp(-squared), rtol=0.1)
    assert estimate.effective_size > 0.95 * from_q.weights.effective_size


def test_widening_keeps_the_mean_and_scales_the_sites():
    exact, _, _, _, _ = gaussian()
    K, noise = covariance(exact.X, 1.5, 0.9), 0.25 * np.eye(6)
    f, _, _ = exact.draw_with_density(20_000, seed=4, share=0.25)
    # A quarter of the sites' precision: four times the noise about the same mean.
    S = K - K @ np.linalg.solve(K + 4 * noise, K)
    error = np.sqrt(np.diag(S) / 20_000)
    np.testing.assert_array_less(np.abs(f[..., 0].mean(axis=0) - exact.mean[:, 0]), 4.5 * error)
    np.testing.assert_allclose(np.cov(f[..., 0].T), S, atol=4.5 * np.sqrt(2 / 20_000) * S.max())


def test_a_q_far_too_narrow_is_mended_by_widening():
    exact, _, _, _, log_evidence = gaussian()
    # The exact posterior with its sites' precisions doubled: widening by one half undoes it exactly.
    h, w = map(np.asarray, exact.sites)
    narrow = with_sites(exact, h + w * exact.mean, 2 * w)
    estimate = importance_estimate(narrow, 1000, seed=1)
    assert estimate.widening == 0.5
    assert estimate.proposal_k == -np.inf
    assert estimate.pareto_k == pareto_k(narrow, 1000, seed=1) > 0.3
    np.testing.assert_allclose(estimate.effective_size, 1000)
    np.testing.assert_allclose(estimate.log_evidence, log_evidence, rtol=1e-9)
    np.testing.assert_array_less(np.abs(estimate.variance - exact.variance), 4.5 * estimate.variance_error)
    K, noise = covariance(exact.X, 1.5, 0.9), 0.25 * np.eye(6)
    S, T = K - K @ np.linalg.solve(K + noise, K), K - K @ np.linalg.solve(K + noise / 2, K)
    product = np.linalg.solve(S, T)
    divergence = 0.5 * (np.trace(product) - 6 - np.linalg.slogdet(product)[1])
    assert abs(estimate.divergence - divergence) < 4 * estimate.divergence_error


@pytest.mark.slow
def test_standard_errors_are_what_estimates_scatter_by():
    exact, moved, S, shift, log_evidence = gaussian()
    shift = 0.6 * shift
    h, other = (np.asarray(result.sites.potential) for result in (exact, moved))
    nearer = with_sites(exact, h + 0.6 * (other - h))
    estimates = [importance_estimate(nearer, 1000, seed=seed) for seed in range(60)]
    for truth, name in (
        (exact.mean, "mean"),
        (exact.variance, "variance"),
        (log_evidence, "log_evidence"),
        (0.5 * shift @ np.linalg.solve(S, shift), "divergence"),
    ):
        scores = [(getattr(e, name) - truth) / getattr(e, f"{name}_error") for e in estimates]
        # 60 scores of unit variance: their root mean square is within 1 +- 3 / sqrt(120), and some more for its skew.
        rms = np.sqrt(np.mean(np.square(scores), axis=0))
        assert ((rms > 0.65) & (rms < 1.4)).all(), (name, rms)


def test_of_the_exact_posterior_nothing_is_left_to_mend():
    exact, _, _, _, log_evidence = gaussian()
    estimate = importance_estimate(exact, 400)
    assert estimate.pareto_k == -np.inf
    np.testing.assert_allclose(estimate.effective_size, 400)
    np.testing.assert_allclose(estimate.log_evidence, log_evidence, rtol=1e-9)
    np.testing.assert_allclose(estimate.divergence, 0.0, atol=1e-8)
    np.testing.assert_array_less(np.abs(estimate.mean - exact.mean), 4.5 * np.sqrt(exact.variance / 400))


@pytest.mark.parametrize("y", [np.array([1.0]), np.array([1.0, 0.0])], ids=["one", "two"])
def test_labels_against_quadrature(y):
    X = np.array([[0.0], [0.8]])[: len(y)]
    result = cavi(Model(Bernoulli(), GP(RBF(9.0, 1.2), mean=0.7)), X, y)
    estimate = importance_estimate(result, 20_000, seed=2)
    z, weights = np.polynomial.hermite_e.hermegauss(100)
    grid = np.stack(np.meshgrid(*[z] * len(y), indexing="ij"), axis=-1).reshape(-1, len(y))
    weight = np.prod(np.stack(np.meshgrid(*[weights] * len(y), indexing="ij"), axis=-1).reshape(-1, len(y)), axis=-1)
    f = 0.7 + grid @ np.linalg.cholesky(covariance(X, 9.0, 1.2)).T
    p = weight / weight.sum() * np.prod(np.where(y == 1, expit(f), expit(-f)), axis=-1)
    mean = p @ f / p.sum()
    variance = p @ (f - mean) ** 2 / p.sum()
    np.testing.assert_array_less(np.abs(estimate.mean[:, 0] - mean), 4 * estimate.mean_error[:, 0])
    np.testing.assert_array_less(np.abs(estimate.variance[:, 0] - variance), 4 * estimate.variance_error[:, 0])
    assert abs(estimate.log_evidence - np.log(p.sum())) < 4 * estimate.log_evidence_error
    # The error of CAVI's variance is far larger than that of the estimate.
    assert (np.abs(result.variance[:, 0] - variance) > 5 * estimate.variance_error[:, 0]).all()


@pytest.mark.slow
def test_the_elbo_lacks_the_gap_and_the_divergence():
    """log p(y) = ELBO + sum of the gaps + KL(q ‖ p(f | y)), each term computed by other means."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(12, 1))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    result = cavi(Model(LogisticSoftmax(3), GP(RBF(1.5, 1.0), mean=0.3, size=3)), X, y)
    estimate, gap = importance_estimate(result, 4000, seed=3), augmentation_gap(result)
    missing = estimate.log_evidence - result.elbo - gap.value.sum() - estimate.divergence
    # log_evidence - divergence is the plain average of log p(y, f) / q(f) over draws of q.
    assert abs(missing) < 4 * np.hypot(estimate.divergence_error + estimate.log_evidence_error, gap.error.sum())
    assert gap.value.sum() > 20 * (estimate.divergence_error + estimate.log_evidence_error)


def test_no_expectations_beyond_the_limit():
    _, moved, _, _, _ = gaussian()
    far = with_sites(moved, np.asarray(moved.sites.potential) + 40.0)
    estimate = importance_estimate(far, 1000)
    assert estimate.pareto_k == pareto_k(far, 1000) > 0.7
    assert estimate.proposal_k > estimate.limit
    assert "above 0.67" in estimate.reason
    for name in ("mean", "variance", "log_evidence", "divergence"):
        assert getattr(estimate, name) is None
        assert getattr(estimate, f"{name}_error") is None


def test_fewer_draws_are_trusted_less():
    _, moved, _, _, _ = gaussian()
    # Vehtari et al. 2024: 1 - 1 / log10(S), at most 0.7.
    assert importance_estimate(moved, 100).limit == 0.5
    assert importance_estimate(moved, 5000).limit == 0.7
