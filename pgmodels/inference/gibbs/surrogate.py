"""The fitted Gaussian of a run: first at the values given, in warm-up at the middle of the hyperparameters so far."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.inference.gibbs.fitting import Fit, first_sites, fit_surrogate, fitting_problem
from pgmodels.inference.gibbs.response import Response, linear_response
from pgmodels.inference.gibbs.target import Target
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.protocol import Sites
from pgmodels.precision import as_array


def first_fit(target: Target, prior: JointPrior) -> Fit:
    """The fitted Gaussian of the model's own values, at its prior."""
    of_data = target.model, prior, target.y, target.live
    return fit_surrogate(fitting_problem(*of_data), first_sites(*of_data))


def fit_again(target: Target, vectors: np.ndarray, framed: bool) -> tuple[Response | None, str]:
    """The Gaussian fitted at the middle of hyperparameters (draws, d), and how it follows them.

    None where it cannot be fitted; also in words what could not.
    """
    recent = vectors[len(vectors) // 2 :]
    middle: Any = recent.mean(axis=0)
    covariance = np.atleast_2d(np.cov(recent.T))
    # Few and dependent draws: correlations are drawn towards 0, and no direction is given up.
    covariance = 0.9 * covariance + 0.1 * np.diag(np.diag(covariance)) + 1e-4 * np.eye(len(covariance))
    scale: Any = np.linalg.cholesky(covariance)
    fit = _fit(target, middle, None)
    if not _is_finite(fit):
        return None, "moves go on about the Gaussian fitted before"
    neighbours = [(_fit(target, middle + step, fit.sites), _fit(target, middle - step, fit.sites)) for step in scale.T]
    bad = [not (_is_finite(up) and _is_finite(down)) for up, down in neighbours]
    fault = ""
    if any(bad):
        where = f"{sum(bad)} of {len(bad)} directions of the hyperparameters"
        fault = f"{where}: the Gaussian is held as it is along them"
    neighbours = [(fit, fit) if no else pair for no, pair in zip(bad, neighbours, strict=True)]
    return linear_response(fit, as_array(middle), as_array(scale), neighbours, framed), fault


def _fit(target: Target, vector: Any, start: Sites | None) -> Fit:
    """The fitted Gaussian at given hyperparameters."""
    drawn = target.drawn(as_array(vector))
    prior = drawn.compiled_prior_at(target.inputs, target.groups).generative()
    of_data = drawn, prior, target.y, target.live
    return fit_surrogate(fitting_problem(*of_data), first_sites(*of_data) if start is None else start)


def _is_finite(fit: Fit) -> bool:
    leaves = (fit.elbo, fit.surrogate.centre, *fit.surrogate.roots, *fit.marginals)
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
