"""Checks of the local bound: its value, its gradient, and that CAVI increases the ELBO."""

import numpy as np

from pgmodels.augmentation.verify_case import (
    BELOW,
    DIFFERENCES,
    EXPECTATION,
    GRADIENT,
    RISES,
    ROUNDING,
    ROWS,
    STANDARD_ERRORS,
    TIGHT,
    Case,
    Check,
    relative,
)
from pgmodels.numerics.quadrature import trapezoid_normal


def bound_is_tight(case: Case) -> Check:
    """B(m, 0) = log p(y | m), for moderate and large |m|."""
    f = case.points(1.5)
    f[1] = np.where(case.rng.uniform(size=f[1].shape) < 0.5, -40.0, 40.0)
    f[2] = -f[1]
    expected, error = case.log_density(f)
    bound = case.local_bound(f, np.zeros_like(f))
    return case.check(TIGHT, relative(bound, expected, error), ROUNDING, f, None, ~np.isnan(expected))


def bound_is_below(case: Case) -> Check:
    """B(m, v) <= E log p(y | f), by the trapezoid rule for up to two latents and by simulation for more."""
    size = case.augmentation.size
    m, v = np.clip(case.f, -3.0, 3.0), case.rng.uniform(0.2, 1.6, case.f.shape)
    if size > 2:
        half = case.rng.normal(size=(2048, *m.shape))
        nodes, weights = np.concatenate([half, -half]), np.full(4096, 1 / 4096)
    else:
        points, weights = trapezoid_normal(size, 401 if size == 1 else 65)
        nodes = points[:, None, :]
    log_density = case.log_density_alone(m + np.sqrt(v) * nodes)
    # Points at which the formula underflows are omitted, which overestimates the expectation.
    log_density = np.where(np.isfinite(log_density), log_density, 0.0)
    expected = weights @ log_density
    slack = EXPECTATION * (1.0 + weights @ np.abs(log_density))
    if size > 2:
        pairs = 0.5 * (log_density[:2048] + log_density[2048:])
        slack = slack + STANDARD_ERRORS * pairs.std(axis=0) / 2048**0.5
    bound = case.local_bound(m, v)
    excess = np.maximum(bound - expected - slack, 0.0)
    return case.check(BELOW, np.where(np.isnan(excess), np.inf, excess), EXPECTATION, m)


def site_is_gradient(case: Case) -> Check:
    """h = ∂B/∂m and w = -2 ∂B/∂s by finite differences, and w >= 0."""
    size = case.augmentation.size
    m, v = case.f, case.rng.uniform(0.2, 1.6, case.f.shape)
    h, w = case.local_sites(m, v)
    step = 1e-3
    offset = np.array([-1.0, -0.5, 0.5, 1.0])[:, None, None] * step
    by_m, by_s, largest = np.zeros_like(h), np.zeros_like(w), np.zeros((ROWS, 1))
    for latent in range(size):
        one = offset * np.eye(size)[latent]
        # In m at fixed s, where v = s - m^2 falls by 2 m δ + δ^2; then in s.
        means = np.concatenate([m + one, np.broadcast_to(m, (4, *m.shape))])
        variances = np.concatenate([v - 2 * m * one - one**2, v + one])
        bound = case.local_bound(means, variances)
        far, half = bound[[3, 7]] - bound[[0, 4]], bound[[2, 6]] - bound[[1, 5]]
        by_m[:, latent], by_s[:, latent] = (8.0 * half - far) / (6.0 * step)
        largest = np.maximum(largest, np.abs(bound).max(axis=0)[:, None])
    scale = 1.0 + np.abs(h) + np.abs(w) + largest
    discrepancy = np.maximum(np.abs(by_m - h), np.abs(-2.0 * by_s - w)) / scale
    # Precisions may be negative only by rounding.
    negative = np.where(w < -ROUNDING * scale, np.inf, 0.0)
    return case.check(GRADIENT, np.max(discrepancy + negative, axis=-1), DIFFERENCES, m)


def elbo_rises(case: Case) -> Check:
    """The ELBO never decreases over ten block-wise CAVI sweeps under a Gaussian prior with nonzero mean."""
    size, distance = case.augmentation.size, np.abs(np.subtract.outer(np.arange(ROWS), np.arange(ROWS)))
    prior = 1.7 * np.exp(-0.4 * distance)
    mean = 0.5 + 0.7 * np.cos(np.arange(ROWS)[:, None] + np.arange(size))
    m, covariance = mean.copy(), np.stack([prior] * size)

    def elbo() -> float:
        bound = case.local_bound(m, _variances(covariance))
        shift = (m - mean).T
        distance = sum(s @ np.linalg.solve(prior, s) for s in shift)
        distance += sum(np.trace(np.linalg.solve(prior, block)) for block in covariance)
        logdets = size * np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1].sum()
        return float(np.sum(bound)) - 0.5 * float(distance - size * ROWS + logdets)

    trace = [elbo()]
    for _ in range(10):
        for block in case.augmentation.blocks:
            h, w = case.local_sites(m, _variances(covariance))
            for latent in block:
                # (K^-1 + W)^-1 = K - K W^1/2 (I + W^1/2 K W^1/2)^-1 W^1/2 K; w < 0 is rounding, checked above.
                h_l, w_l = h[:, latent], np.maximum(w[:, latent], 0.0)
                scaled = np.sqrt(w_l)[:, None] * prior
                covariance[latent] = prior - scaled.T @ np.linalg.solve(np.eye(ROWS) + scaled * np.sqrt(w_l), scaled)
                m[:, latent] = mean[:, latent] + covariance[latent] @ (h_l - w_l * mean[:, latent])
            trace.append(elbo())
    fall = max(0.0, float(np.max(-np.diff(trace)))) / (1.0 + float(np.max(np.abs(trace))))
    return case.check(RISES, np.full(ROWS, fall), ROUNDING, m)


def _variances(covariance: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.diagonal(covariance, axis1=1, axis2=2).T)
