"""The Gibbs engine as a pair of functions, init and step, as samplers of BlackJAX."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from numpy.typing import ArrayLike

from pgmodels.inference.mcmc.gibbs.numpyro_kernel import GibbsKernel, GibbsKernelState
from pgmodels.model import Model
from pgmodels.runtime.seeds import Seed


class GibbsInfo(NamedTuple):
    """Information on a step: whether the latents are finite."""

    is_finite: Any


class GibbsSteps(NamedTuple):
    """``init(rng_key)`` gives a state, and ``step(rng_key, state)`` the next one and its info.

    Both are functions in JAX; ``state.z`` has the latents ``f`` (n, latents) and the sampled hyperparameters by name.
    """

    init: Any
    step: Any


def gibbs_steps(model: Model, X: ArrayLike, y: ArrayLike, *, seed: Seed = 0) -> GibbsSteps:
    """The Gibbs engine as ``init`` and ``step`` functions, as samplers of BlackJAX, for one's own loops.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations.
    seed : int or jax.Array
        An int or a JAX key, for tuning the moves when this is called; draws use the keys of ``init`` and ``step``.

    Returns
    -------
    GibbsSteps
        ``init`` and ``step``, to compile, loop over with ``jax.lax.scan``, or batch with ``jax.vmap``.

    Raises
    ------
    ValueError
        For bad data, and without 64-bit arithmetic.

    Warns
    -----
    MixingWarning, InducingWarning, PrecisionWarning
        As ``gibbs``.
    """
    kernel = GibbsKernel(model, X, y, seed=seed)

    def init(rng_key: Any) -> GibbsKernelState:
        return kernel.init(rng_key, 0, None, (), {})

    def step(rng_key: Any, state: GibbsKernelState) -> tuple[GibbsKernelState, GibbsInfo]:
        state = kernel.sample(state._replace(rng_key=rng_key), (), {})
        return state, GibbsInfo(jnp.isfinite(state.z["f"]).all())

    return GibbsSteps(init, step)
