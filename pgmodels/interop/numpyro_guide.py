"""A variational posterior as a guide of NumPyro."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from pgmodels.interop.numpyro_model import WHITENED, Program, require_x64
from pgmodels.priors.representation import Auto
from pgmodels.results.approximation import Approximation, LearnedApproximation
from pgmodels.results.sparse import name_type
from pgmodels.runtime.x64 import as_array, double_precision


@double_precision
def numpyro_guide(result: Approximation) -> Callable[[], dict[str, Any]]:
    """Convert the Gaussian q of a result to a guide for the model of ``to_numpyro`` with its hyperparameters fixed.

    Parameters
    ----------
    result : Approximation
        A result of ``cavi``, ``gaussian_vi`` or ``fit``, uncorrected.

    Returns
    -------
    callable
        A guide without arguments for ``pgm.to_numpyro(result.model.fixed(), X, y)``, as NumPyro's automatic ones: for
        ``Trace_ELBO``, ``Predictive`` and importance sampling. It returns a draw of ``f`` (n, latents) and of the
        sites ``whitened_0``, .... Run it with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For other results, such as corrected ones.

    Notes
    -----
    q is the prior N(v; 0, I) of all whitened coordinates times the result's Gaussian factors of f = m + B v; O(D^3)
    for D coordinates.
    """
    if isinstance(result, LearnedApproximation):
        result = result.uncorrected
    if not isinstance(result, Approximation):
        raise ValueError(
            f"result must be what cavi, gaussian_vi or vi return, or result.uncorrected of a corrected one; got "
            f"{name_type(result)}."
        )
    model = result.model.fixed().with_form(Auto())
    program = Program(model, result.data)
    shapes = program.whitened_shapes
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def split(flat: Any) -> list[Any]:
        return [part.reshape(shape) for part, shape in zip(jnp.split(flat, ends[:-1]), shapes, strict=True)]

    def latents(flat: Any) -> Any:
        return program.latents(model, split(flat))

    origin = jnp.zeros(int(ends[-1]))
    mean, B = latents(origin), jax.jacobian(latents)(origin)
    h, W = map(as_array, result.sites)
    W = W if W.ndim == 3 else jax.vmap(jnp.diag)(W)
    precision = jnp.eye(len(origin)) + jnp.einsum("nld,nlk,nke->de", B, W, B)
    potential = jnp.einsum("nld,nl->d", B, h - jnp.einsum("nlk,nk->nl", W, mean))
    q = dist.MultivariateNormal(jnp.linalg.solve(precision, potential), precision_matrix=precision)

    def guide() -> dict[str, Any]:
        require_x64()
        flat = numpyro.sample("_whitened", q, infer={"is_auxiliary": True})
        sites = {f"{WHITENED}{i}": v for i, v in enumerate(split(flat))}
        for name, v in sites.items():
            numpyro.sample(name, dist.Delta(v, event_dim=2))
        return sites | {"f": latents(flat)}

    return guide
