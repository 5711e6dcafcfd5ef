"""Fits of the surrogate in a run: first at the start values, in warm-up at the mean of recent hyperparameters."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.inference.mcmc.gibbs.ellipse import ellipse_of
from pgmodels.inference.mcmc.gibbs.surrogate_fit import Fit, first_sites, fit_surrogate, fitting_problem
from pgmodels.inference.mcmc.gibbs.surrogate_path import SurrogatePath, linear_path
from pgmodels.inference.mcmc.gibbs.target import Target
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime.x64 import as_array


def first_fit(target: Target, prior: PriorCollection) -> Fit:
    """The Gaussian fitted at the model's values."""
    masked = target.family.model, prior, target.family.y, target.family.row_weights
    return fit_surrogate(fitting_problem(*masked), first_sites(*masked))


def fit_again(target: Target, vectors: np.ndarray, preconditioned: bool) -> tuple[SurrogatePath | None, str]:
    """The Gaussian fitted at the mean of hyperparameters (draws, d), with its dependence on them.

    None if it cannot be fitted. Also returns a description of the fault, if any.
    """
    ellipse = ellipse_of(vectors)
    middle, scale = np.asarray(ellipse.middle), np.asarray(ellipse.scale)
    fit = _fit(target, middle, None)
    if not _is_finite(fit):
        return None, "moves keep using the Gaussian fitted before"
    neighbours = [(_fit(target, middle + step, fit.sites), _fit(target, middle - step, fit.sites)) for step in scale.T]
    bad = [not (_is_finite(up) and _is_finite(down)) for up, down in neighbours]
    fault = ""
    if any(bad):
        where = f"{sum(bad)} of {len(bad)} directions of the hyperparameters"
        fault = f"{where}: the Gaussian is constant along them"
    neighbours = [(fit, fit) if no else pair for no, pair in zip(bad, neighbours, strict=True)]
    return linear_path(fit, ellipse.middle, ellipse.scale, neighbours, preconditioned), fault


def _fit(target: Target, vector: Any, start: Sites | None) -> Fit:
    """The fitted Gaussian at given hyperparameters."""
    drawn = target.drawn(as_array(vector))
    prior = drawn.compiled_prior_at(target.family.inputs, target.family.fixed_groups).for_sampling()
    masked = drawn, prior, target.family.y, target.family.row_weights
    return fit_surrogate(fitting_problem(*masked), first_sites(*masked) if start is None else start)


def _is_finite(fit: Fit) -> bool:
    leaves = (fit.elbo, fit.surrogate.centre, *fit.surrogate.roots, *fit.marginals)
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
