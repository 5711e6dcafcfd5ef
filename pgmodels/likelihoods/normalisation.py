"""Numerical check that a formula is normalised: its sum or integral over the support of y is 1."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import scipy

from pgmodels.likelihoods import density
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.pieces import LogDensity, Piece, cover, steps
from pgmodels.parameters.vector import ParameterVector, with_priors
from pgmodels.runtime.x64 import as_array, double_precision

if TYPE_CHECKING:
    from pgmodels.model import Model

# Heavy tails beyond the points contribute up to 1e-3; a missing factor changes the sum much more.
_TOLERANCE = 5e-3
# The number of discrete values that are summed (an integral covers the rest), and the number of points of an integral.
_LENGTH = 4096
_STANDARD = np.linspace(-20.0, 20.0, _LENGTH)
# The number of test points: latents, other columns of y, and parameters.
_TEST_POINTS = 3


@double_precision
def is_normalised(likelihood: Likelihood, size: int, *, for_all_parameters: bool = False) -> bool | None:
    """Whether the formula sums or integrates to 1 over its support; None if the support is not declared.

    The check is numerical, at a few asymmetric latent values, with other columns of y from the support's examples, and,
    if ``for_all_parameters``, at other parameter values too: a formula may be normalised at one value by chance.
    """
    support = likelihood.support(size)
    rng = np.random.default_rng(3)
    observed = support.examples(rng, _TEST_POINTS)
    if not support.pieces(observed):
        return None
    for step in range(_TEST_POINTS):
        tested = _shifted(likelihood, step) if for_all_parameters else likelihood
        y, f = observed[step : step + 1], rng.normal(0.2, 0.8, size)
        total = sum(_mass(tested, piece, y, f) for piece in support.pieces(y))
        if not abs(total - 1.0) < _TOLERANCE:
            return False
    return True


def _shifted(likelihood: Likelihood, step: int) -> Likelihood:
    """The likelihood with parameters shifted within their constraints, each entry by a different amount."""
    values = {}
    for name, parameter in likelihood.parameters.items():
        start = parameter.transform.inv(as_array(parameter.value))
        shares = jnp.arange(start.size).reshape(start.shape) / start.size
        values[name] = parameter.transform(start + 0.3 * step * (1.0 + shares))
    return likelihood.with_values(values)


def _mass(likelihood: Likelihood, piece: Piece, y: np.ndarray, f: np.ndarray) -> float:
    """The sum or integral over a piece of the support for one datum y, (1,) or (1, columns), at latents f."""

    def log_density(first: np.ndarray) -> np.ndarray:
        # One shape for all calls, so that the formula is compiled once.
        padded = np.pad(first, ((0, _LENGTH - len(first)), (0, 0)), mode="edge")
        log_p = density.log_density(likelihood, piece.columns(padded, y), f[None, None, :])
        return np.broadcast_to(log_p, padded.shape)[: len(first)]

    low, high = piece.ends(1)
    if not piece.is_discrete:
        return _integral(log_density, low, high, _centre(likelihood, y, f, low, high))
    points, exists = steps(low, high, _LENGTH)
    total = float(np.exp(scipy.special.logsumexp(np.where(exists, log_density(points), -np.inf))))
    beyond = points[-1] + 0.5
    return total + (_integral(log_density, beyond, high, None) if (beyond < high).all() else 0.0)


def _integral(log_density: LogDensity, low: np.ndarray, high: np.ndarray, centre: Any) -> float:
    """The integral of a density over an interval, by the trapezoid rule."""
    _, log_p, log_slope = cover(log_density, low, high, _STANDARD, centre)
    return float(np.exp(scipy.special.logsumexp(log_p + log_slope)) * (_STANDARD[1] - _STANDARD[0]))


def _centre(likelihood: Likelihood, y: np.ndarray, f: np.ndarray, low: np.ndarray, high: np.ndarray) -> Any:
    """The declared mean of y if its support is the real line, else None."""
    if np.isfinite(low).any() or np.isfinite(high).any():
        return None
    moments = likelihood.moments(as_array(y), as_array(f)[None], len(f))
    return None if moments is None else np.asarray(moments[0])


def checked_unknowns(model: "Model") -> ParameterVector:
    """The parameters with priors; raises ValueError if the formula may lack a factor that depends on one."""
    unknowns = with_priors(model)
    named = list(unknowns.of_likelihood.values())
    if named and is_normalised(model.likelihood, model.num_latents, for_all_parameters=True) is not True:
        raise ValueError(
            f"{named[0]} has a prior, but the formula of {model.likelihood.name} is not known to be a normalised "
            "density of y, and the missing factor may depend on it. Write the formula with its constants and declare "
            "its support, or fix the parameter with pgm.Fixed."
        )
    return unknowns
