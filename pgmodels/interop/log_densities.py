"""Log densities of draws: of each datum, and of the prior."""

import numpy as np

from pgmodels.likelihoods.density import log_density
from pgmodels.numerics.quadrature import CHUNK_VALUES, slices
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result
from pgmodels.runtime.x64 import as_array, double_precision


@double_precision
def pointwise_log_likelihood(result: Result, f: np.ndarray) -> np.ndarray:
    """log p(y_i | f_i), times the row's weight, for latents f (..., n, latents) at the data, (..., n)."""
    flat, n = f.reshape(-1, *f.shape[-2:]), f.shape[-2]
    # Rows are padded to few sizes, so that the formula is compiled few times.
    y, _ = result.data.padded(padded_size(n))
    values = {name: v.reshape(-1, 1, v.shape[-1]) for name, v in likelihood_values(result).items()}
    chunks = []
    for rows in slices(len(flat), f.shape[-2] * f.shape[-1], CHUNK_VALUES // 2):
        likelihood = result.model.likelihood.with_values({name: v[rows] for name, v in values.items()})
        padded = np.moveaxis(pad_rows(np.moveaxis(flat[rows], -2, 0), len(y)), 0, -2)
        chunks.append(log_density(likelihood, y, padded)[..., :n])
    return result.data.row_weights * np.concatenate(chunks).reshape(f.shape[:-1])


@double_precision
def log_priors(result: Result, whitened: tuple[np.ndarray, ...] | None) -> dict[str, np.ndarray]:
    """The log prior of sampled hyperparameters by name, (chains, draws), and of "latents".

    That of latents, (chains, draws, latents), is -|v|^2 / 2 of their whitened coordinates v, if these are standard
    normal and determine them.
    """
    terms = _of_hyperparameters(result) if isinstance(result, Draws) else {}
    if whitened is None or not result.prior.whitened or result.prior.residual_variances() is not None:
        return terms
    squares = []
    for group, v in zip(result.prior.groups, whitened, strict=True):
        # Without padding, which is last; nuts has none.
        active = np.asarray(getattr(group, "active", np.ones(v.shape[-2])))[: v.shape[-2]]
        squares.append(np.einsum("...rl,r->...l", v**2, active))
    return terms | {"latents": -0.5 * np.concatenate(squares, axis=-1)}


def likelihood_values(result: Result) -> dict[str, np.ndarray]:
    """Draws of sampled likelihood parameters, (chains, draws, 1, entries)."""
    return result.likelihood_values if isinstance(result, Draws) else {}


def _of_hyperparameters(draws: Draws) -> dict[str, np.ndarray]:
    """The log prior density of each draw of each sampled hyperparameter, (chains, draws)."""
    sampled, terms = with_priors(draws.model), {}
    pairs = zip(sampled.names, sampled.parameters, strict=True) if draws.hyperparameters else ()
    for name, parameter in pairs:
        density = np.asarray(parameter.prior.log_prob(as_array(draws.hyperparameters[name])))
        terms[name] = density.reshape(*draws.log_likelihood_trace.shape, -1).sum(axis=-1)
    return terms
