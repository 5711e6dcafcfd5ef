"""Marginals of linear functionals of the latents: contrasts, means of groups, effects of additive terms."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers, check_finite
from pgmodels.inference.corrections.nested import Pinning, variational_gaussian
from pgmodels.inference.objectives import objective_of_result, require_maximised
from pgmodels.results.approximation import CorrectedApproximation, GaussianResult
from pgmodels.results.grid_density import GridDensity
from pgmodels.results.sparse import name_type
from pgmodels.runtime.x64 import double_precision

# Inputs of a functional, at most: the covariance of their latents given the data has the square of their number.
_MOST = 10_000


@double_precision
def marginals(
    result: GaussianResult,
    functional: ArrayLike,
    *,
    X_new: ArrayLike | None = None,
    progress: bool | None = None,
) -> GridDensity:
    """The marginal posterior densities of linear functionals of the latents, skewed or heavy-tailed as they are.

    A functional is a sum of latents times coefficients: a difference between two inputs, the mean of a group of rows,
    the effect of an additive term.

    Parameters
    ----------
    result : Approximation or CorrectedApproximation
        The result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct``, with hyperparameters fixed at its values.
    functional : array_like, shape (m,) or (k, m), or (m, latents) or (k, m, latents)
        The coefficients of the latents at m inputs, of one functional or k; with an axis of latents if the model has
        several.
    X_new : array_like, shape (m, d), optional
        The inputs; those of the data by default.
    progress : bool, optional
        Whether to show a progress bar, as in ``correct``.

    Returns
    -------
    GridDensity
        The densities, of shape () or (k,): ``mean``, ``variance``, ``skewness``, ``pdf`` and ``quantiles``.

    Raises
    ------
    ValueError
        For draws, for coefficients of another shape or that are not finite, and for more than 10,000 inputs.

    Warns
    -----
    CorrectionWarning
        If a density is cut off at the grid that it is computed on.

    Notes
    -----
    Bounds of log p(y, u = x) for a functional u, normalised over x (math: section 5c), as by
    ``correct(method="nested")``. A result of another objective is replaced by the variational Gaussian with its
    hyperparameters.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 4.0, 9)[:, None]
    >>> y = np.array([0, 0, 1, 0, 1, 1, 1, 1, 1])
    >>> vi = pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), X, y)
    >>> difference = pgm.marginals(vi, [1, -1], X_new=[[4.0], [0.0]])
    >>> bool(difference.mean > 0)
    True
    """
    if not isinstance(result, GaussianResult):
        raise ValueError(
            f"result must be the result of cavi, gaussian_vi, fit or correct; got {name_type(result)}. Draws have "
            "functionals themselves, such as draws.latents[:, :, 0] - draws.latents[:, :, 1]."
        )
    approximation = result.uncorrected
    require_maximised("marginals", objective_of_result(approximation))
    inputs = approximation.X if X_new is None else approximation.check_inputs(X_new)
    approximation.posterior.prior.check_new_inputs(inputs, jointly=True)
    coefficients = _checked(functional, len(inputs), approximation.model.num_latents)
    several = coefficients.reshape(-1, *coefficients.shape[-2:])
    # The covariance of latents is computed for the rows that count.
    rows = np.flatnonzero(np.any(several != 0.0, axis=(0, 2)))
    rows = rows if len(rows) else np.arange(1)
    if len(rows) > _MOST:
        raise ValueError(
            f"functional has coefficients at {len(rows):,} inputs, of at most {_MOST:,}: take a sample of the rows."
        )
    pinning = Pinning(variational_gaussian(approximation))
    densities = pinning.functionals(inputs[rows], several[:, rows], progress)
    if isinstance(result, CorrectedApproximation) and result.uncertainty is not None:
        moved = np.einsum("fnl,knl->kf", several[:, rows], result.shifts_at(inputs[rows]))
        densities = densities.widened(np.sum(moved**2, axis=0))
    return densities if coefficients.ndim == 3 else densities[0]


def _checked(functional: Any, num_inputs: int, num_latents: int) -> np.ndarray:
    """Coefficients (m, latents) or (k, m, latents)."""
    coefficients = as_numbers(functional, "functional")
    check_finite(coefficients, "functional")
    expected = (num_inputs,) if num_latents == 1 else (num_inputs, num_latents)
    size = len(expected)
    if coefficients.ndim not in (size, size + 1) or coefficients.shape[-size:] != expected or not coefficients.size:
        one, several = ", ".join(map(str, expected)), ", ".join(map(str, ("k", *expected)))
        raise ValueError(
            f"functional must have shape ({one}{',' if size == 1 else ''}) or ({several}), a coefficient for each "
            f"{'input' if num_latents == 1 else 'input and latent'}; got shape {coefficients.shape}."
        )
    return coefficients[..., None] if num_latents == 1 else coefficients
