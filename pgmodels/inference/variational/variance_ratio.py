"""Estimate of how much the augmented bound underestimates variances, by one further conditioning."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.conditioning import condition
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.problem import problem_of
from pgmodels.priors.base import Sites
from pgmodels.priors.padding import pad_rows, pad_zeros, weighted
from pgmodels.results.approximation import Approximation, GaussianResult
from pgmodels.results.correction import CorrectionWarning
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.warnings import warn
from pgmodels.runtime.x64 import as_array, double_precision

# A 90 % interval with this share of the correct variance has a coverage of 75 %.
_NARROW = 0.5
# Maximum number of predictors per datum to evaluate: each costs a pass over all, and softmax predictors are similar.
_LOOKED_AT = 8
# Rows up to which all data run one program.
_ROWS = 512


@double_precision
def variance_ratio(approximation: Approximation) -> np.ndarray:
    """The ratios of a result's variances of the latents at the data to estimates of the posterior's, (n, latents).

    At the optimum of a bound with auxiliary variables, the sites' precisions are the means W of these variables. Their
    dependence on f lowers the curvature of the bound in f's mean, -B_mm at q's variances, below W. Conditioning on that
    curvature instead of W is linear response without the terms of the variances (math: section 5b): on most of 20
    models the ratios were within 2 % of the ratios of ``correct``. Predictors of a datum are treated separately: with
    several, the ratios are too large, up to five times if all rows share three latents. 1 without auxiliary variables.
    """
    model, n = approximation.model, len(approximation.y)
    ratio = np.ones_like(approximation.variance)
    objective = objective_of_result(approximation)
    if not objective.has_auxiliaries or objective.is_exact:
        return ratio
    problem = problem_of(model, approximation.data, approximation.posterior.prior)
    size, many = problem.prior.num_rows, max(problem.prior.num_rows, _ROWS)
    y, row_weights = approximation.data.padded(many)
    m, v = (as_array(pad_rows(part, many)) for part in approximation.predictor_moments())
    curvature_sites = _sites_by_curvature(model.augmentation, y, row_weights, m, v, model.parameters)
    sites = Sites(*(as_array(pad_zeros(part, size)) for part in curvature_sites))
    wider = np.asarray(condition(problem, sites)[2])[:n]
    # A ratio of 1 for latents with a prior variance of 0.
    np.divide(approximation.variance, wider, out=ratio, where=wider > 0)
    return ratio


@partial(compiled, static_argnames="augmentation", optimise=False)
def _sites_by_curvature(
    augmentation: Augmentation,
    y: Any,
    row_weights: Any,
    m: Float[Array, "n p"],
    v: Float[Array, "n p"],
    parameters: Any,
) -> tuple[Array, Array]:
    """The potential at the marginals, and -B_mm clipped to [0, W], for each predictor separately."""

    def slope(m: Array) -> tuple[Array, tuple[Array, Array]]:
        h, w = augmentation.local_sites(m, v, y, parameters)
        return h - w * m, (h, w)

    def towards(unit: Array) -> tuple[Array, tuple[Array, Array]]:
        _, moved, sites = jax.jvp(slope, (m,), (jnp.broadcast_to(unit, m.shape),), has_aux=True)
        return moved @ unit, sites

    size = m.shape[1]
    places = np.unique(np.linspace(0, size - 1, _LOOKED_AT).astype(int))
    rises, (h, W) = jax.vmap(towards, out_axes=(0, None))(jnp.eye(size)[places])
    # The variance of the auxiliary variables lowers the curvature below the precision, below zero at outliers.
    precision = W.at[:, places].set(jnp.clip(-rises.T, 0.0, W[:, places]))
    return weighted(row_weights, h), weighted(row_weights, precision)


def warn_narrow(engine: str, approximation: GaussianResult) -> None:
    """Warn, in an engine's name, if the variances of a latent are below half of the correct ones in the median row.

    Only for converged results without a correction: otherwise non-convergence has its own warning.
    """
    if not (approximation.converged and isinstance(approximation, Approximation)):
        return
    ratio = variance_ratio(approximation)
    typical = np.median(ratio, axis=0)
    latent = int(np.argmin(typical))
    if typical[latent] >= _NARROW:
        return
    row = int(np.argmin(ratio[:, latent]))
    which = f" of latent {latent}" if len(typical) > 1 else ""
    most = "at most " if approximation.model.augmentation.size > 1 else ""
    warn(
        f"{engine}: the variances{which} are estimated to be {most}{typical[latent]:.2g} times the correct ones in the "
        f"median row, and {ratio[row, latent]:.2g} times in row {row}: q treats the auxiliary variables as "
        "independent of the latents. Use pgm.correct(result), or the variational Gaussian, pgm.gaussian_vi.",
        CorrectionWarning,
    )
