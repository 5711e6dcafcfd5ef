"""The Gibbs engine as a kernel of NumPyro's MCMC."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike
from numpyro.infer.mcmc import MCMCKernel

from pgmodels.inference.adaptive_selection import select_inducing_inputs
from pgmodels.inference.mcmc.gibbs.driver import GibbsRun, Settings
from pgmodels.inference.mcmc.gibbs.iteration import State, iterate, start_chains, started_chains
from pgmodels.inference.mcmc.gibbs.schedule import zero_stats
from pgmodels.inference.mcmc.gibbs.trace import Keep
from pgmodels.inference.variational.vi import nearly_converged
from pgmodels.model import Model, require_model
from pgmodels.runtime.seeds import Seed, as_key, as_seed
from pgmodels.runtime.x64 import as_array, double_precision

# Iterations of four chains for tuning the moves, before NumPyro starts.
_TUNING_ITERATIONS = 120


class GibbsKernelState(NamedTuple):
    """``z`` holds the latents ``f`` (n, latents) and the sampled hyperparameters by name.

    ``engine`` is the state of the sampler, whose latents may have padding rows. With several chains every array,
    including the ``number`` of the iteration, has a first axis over chains, along which NumPyro splits states.
    """

    z: dict[str, Any]
    engine: State
    number: Any
    rng_key: Any


class GibbsKernel(MCMCKernel):
    """The Gibbs engine as a kernel of ``numpyro.infer.MCMC``.

    Used as ``MCMC(pgm.GibbsKernel(model, X, y), num_warmup=..., num_samples=..., num_chains=...)``; ``run(key)`` takes
    no model arguments. Chains, thinning, progress and ``get_samples`` are NumPyro's: samples are ``f`` (n, latents) and
    the hyperparameters that have priors, by the names of ``draws.hyperparameters``. ``chain_method`` may be
    "parallel", "sequential" or "vectorized".

    Parameters
    ----------
    model : Model
        The likelihood and its GPs.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    seed : int or jax.Array
        An int or a JAX key, for tuning the moves when the kernel is made; draws use the key of ``run``.

    Raises
    ------
    ValueError
        For bad data, and without 64-bit arithmetic: call ``numpyro.enable_x64()`` first.

    Warns
    -----
    MixingWarning, InducingWarning, PrecisionWarning
        As ``gibbs``.
    """

    sample_field = "z"

    @double_precision
    def __init__(self, model: Model, X: ArrayLike, y: ArrayLike, *, seed: Seed = 0):
        model, data = require_model(model).prepare(X, y)
        settings = Settings(_TUNING_ITERATIONS, 4, as_key(seed), Keep("moments"))
        self._run = GibbsRun(
            select_inducing_inputs(model.resolve(data.X, as_seed(seed)), data, nearly_converged), data, settings
        )
        self._run.advance(_TUNING_ITERATIONS, None, False)
        self._run.warn()

    def init(
        self, rng_key: Any, num_warmup: int, init_params: Any, model_args: Any, model_kwargs: Any
    ) -> GibbsKernelState:
        """The initial state of a chain, or of one chain per key, at draws of the fitted Gaussian."""
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("GibbsKernel needs 64-bit arithmetic: call numpyro.enable_x64() first.")
        if model_args or model_kwargs or init_params is not None:
            raise ValueError("GibbsKernel has its model and data: call MCMC.run(key) without further arguments.")
        run = self._run
        several = jnp.ndim(rng_key) > (0 if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else 1)
        keys = rng_key if several else rng_key[None]
        fitted = run.target.fitted
        vector = as_array(run.unknowns.start()) if fitted is None else fitted.middle
        # NumPyro starts parallel chains within a compiled program.
        start = started_chains if isinstance(keys, jax.core.Tracer) else start_chains
        engine = start(run.target, run.schedule.moves, vector, keys)
        state = self._state(engine, jnp.zeros(len(keys), int))
        return state if several else _single(state)

    def sample(self, state: GibbsKernelState, model_args: Any, model_kwargs: Any) -> GibbsKernelState:
        """One iteration."""
        single = state.z["f"].ndim == 2
        if single:
            state = jax.tree.map(lambda leaf: leaf[None], state)
        run, engine = self._run, state.engine
        engine = engine._replace(chains=engine.chains._replace(key=state.rng_key))
        stats = zero_stats(run.schedule, engine.chains)
        engine, *_ = iterate(run.target, run.schedule, engine, stats, state.number[0])
        state = self._state(engine, state.number + 1)
        return _single(state) if single else state

    def _state(self, engine: State, number: Any) -> GibbsKernelState:
        unknowns, chains = self._run.unknowns, engine.chains
        values = jax.vmap(unknowns.constrain)(chains.unknowns) if unknowns.leaf_indices else []
        # Without padding rows.
        z = {"f": chains.latents[:, : len(self._run.data.y)], **dict(zip(unknowns.names, values, strict=True))}
        return GibbsKernelState(z, engine, number, chains.key)


def _single(state: GibbsKernelState) -> GibbsKernelState:
    """The state of one chain, without the axis over chains."""
    return jax.tree.map(lambda leaf: leaf[0], state)
