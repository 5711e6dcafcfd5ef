"""Bounds of the loss due to inducing inputs, from their residual variances and the sites."""

from typing import Any, NamedTuple

import numpy as np
import scipy

from pgmodels.priors.base import Sites
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.sparse import name_type
from pgmodels.runtime.x64 import double_precision


class InducingGap(NamedTuple):
    """Two upper bounds of log Z with the exact prior minus log Z with inducing inputs: see ``pgm.inducing_gap``."""

    by_trace: float
    by_weighted_trace: float

    @property
    def upper(self) -> float:
        """The smaller of the two."""
        return min(self)


@double_precision
def inducing_gap(result: GaussianResult) -> InducingGap:
    """Bound what is lost by the inducing inputs of a result: a certificate for their number.

    Parameters
    ----------
    result : Approximation
        A result of ``cavi``, ``gaussian_vi``, ``vi`` or ``fit`` with inducing inputs.

    Returns
    -------
    InducingGap
        Upper bounds of log Z(exact prior) - log Z(inducing inputs) in nats, where Z normalises the prior times the
        sites of the result: ``by_trace``, as published, ``by_weighted_trace``, and ``upper``, the smaller one. The
        difference is at least 0.

    Raises
    ------
    ValueError
        For other results, no inducing inputs, a likelihood whose factors combine latents, and sites that couple the
        latents of a datum or have negative precisions.

    Notes
    -----
    For a Gaussian likelihood, also with a known noise variance of each row, the sites are exact, and
    ELBO <= log p(y) <= ELBO + ``upper`` at the result's hyperparameters. For others the sites are fixed: the difference
    bounded is the gain of the collapsed bound by the exact prior, before sites are optimised anew.

    With K the exact prior covariance, Q that of the inducing inputs, W the precisions and z = h / w - mean,

    log Z(K) - log Z(Q) <= tr(W (K - Q)) / 2 + z^T [(Q + 1/W)^-1 - (Q + 1/W + C)^-1] z / 2,

    for any C >= K - Q. ``by_trace`` has C = tr(K - Q) I, ``by_weighted_trace`` C = tr(W (K - Q)) / W. For y drawn from
    the model, the expected loss is between one half and all of tr(W (K - Q)).

    References
    ----------
    Titsias 2014; Burt, Rasmussen and van der Wilk 2020; Passerello 2021, equation 3.4; math, section 7.
    """
    if not isinstance(result, GaussianResult):
        raise ValueError(
            f"result must be what cavi, gaussian_vi, vi or fit return; got {name_type(result)}. For its inducing "
            "inputs use pgm.inducing_gap(pgm.vi(result.model, X, y))."
        )
    result = result.uncorrected
    prior = result.prior
    if prior.residual_variances() is None:
        raise ValueError(
            "result has no inducing inputs: its prior is exact. Give a form, as in pgm.GP(kernel, "
            "form=pgm.Inducing(100))."
        )
    sites = result.sites
    if result.mixing is not None or sites.coupled:
        raise ValueError(
            "inducing_gap needs one site for each latent of a datum; the sites of the result couple its latents. Use "
            "objective='augmented' and a likelihood whose factors read single latents, or compare the ELBO with that "
            "of twice as many inducing inputs."
        )
    if np.any(np.asarray(sites.precision) < 0.0):
        raise ValueError(
            "inducing_gap needs sites with precisions >= 0; some of the result are negative. Use "
            "objective='augmented', or compare the ELBO with that of twice as many inducing inputs."
        )
    totals = np.zeros(2)
    # Groups with a residual variance have a factor.
    groups: tuple[Any, ...] = prior.groups
    for group, group_sites in zip(groups, prior.sites_by_group(sites), strict=True):
        residual = group.residual_variance()
        if residual is not None:
            totals += _of_group(np.asarray(group.factor), np.asarray(residual), float(group.mean), group_sites)
    return InducingGap(*map(float, totals))


def _of_group(A: np.ndarray, residual: np.ndarray, mean: float, sites: Sites) -> Any:
    """The two upper bounds, summed over the latents of a group with factor A (M, n) and residual variances (n,)."""
    potential, precision = (np.asarray(part).T for part in sites)
    return sum(_upper_bounds(A, residual, h - w * mean, w) for h, w in zip(potential, precision, strict=True))


def _upper_bounds(A: np.ndarray, residual: np.ndarray, h: np.ndarray, w: np.ndarray) -> np.ndarray:
    """``by_trace`` and ``by_weighted_trace`` of one latent with mean zero, from its sites h = w z and w (n,)."""
    trace, weighted_trace = float(np.sum(residual[w > 0.0])), float(w @ residual)
    # The diagonal part of z^T [.] z, h^2 / w (1 - 1 / (1 + w c)), is infinite where a gradient has no precision.
    ratio = np.divide(h**2, w, out=np.where(h == 0.0, 0.0, np.inf), where=w > 0.0)
    diagonal = np.sum(h**2 * trace / (1.0 + w * trace)), np.sum(ratio) * weighted_trace / (1.0 + weighted_trace)
    shrinkage = 1.0 / (1.0 + w * trace), np.full_like(w, 1.0 / (1.0 + weighted_trace))
    explained = [_explained(A, h, w)] + [_explained(A, share * h, share * w) for share in shrinkage]
    return 0.5 * (weighted_trace + np.array(diagonal) - explained[0] + np.array(explained[1:]))


def _explained(A: np.ndarray, h: np.ndarray, w: np.ndarray) -> float:
    """h^T A^T (I + A W A^T)^-1 A h, what the factor explains of z^T W z."""
    root = scipy.linalg.cholesky(np.eye(len(A)) + (A * w) @ A.T, lower=True)
    return float(np.sum(scipy.linalg.solve_triangular(root, A @ h, lower=True) ** 2))
