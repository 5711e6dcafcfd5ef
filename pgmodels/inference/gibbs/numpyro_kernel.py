"""The Gibbs engine as a kernel of NumPyro's MCMC."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.mcmc import MCMCKernel

from pgmodels.inference.gibbs.moves import Chain
from pgmodels.inference.gibbs.run import GibbsRun, Keep, Settings, iterate, start_chains
from pgmodels.inference.gibbs.sampler import as_key
from pgmodels.inference.gibbs.tuning import Probe
from pgmodels.model import Model, require_model
from pgmodels.precision import double_precision

# Iterations of four chains that set how often which move is made, before NumPyro begins.
_TUNING_ITERATIONS = 120


class GibbsKernelState(NamedTuple):
    """``z`` holds the latents ``f`` (n, latents) and the sampled hyperparameters by name; ``chains`` the rest."""

    z: dict[str, Any]
    chains: Chain
    number: Any
    rng_key: Any


class GibbsKernel(MCMCKernel):
    """``numpyro.infer.MCMC(pgm.GibbsKernel(model, X, y), num_warmup=..., num_samples=..., num_chains=...)``.

    The moves are those of ``gibbs``, tuned when the kernel is made, with ``seed``; ``run(key)`` takes no model
    arguments. Chains, thinning, progress and ``get_samples`` are NumPyro's: samples are ``f`` and the hyperparameters
    that have priors, by the names of ``draws.hyperparameters``. ``chain_method`` may be "sequential" or "vectorized".
    Run it with 64-bit arithmetic (``numpyro.enable_x64()``). Raises ValueError for bad data;
    warns as ``gibbs`` does.
    """

    sample_field = "z"

    @double_precision
    def __init__(self, model: Model, X: Any, y: Any, *, seed: Any = 0):
        data = require_model(model).check(X, y)
        settings = Settings(_TUNING_ITERATIONS, 4, as_key(seed), Keep("moments"))
        self._run = GibbsRun(model.resolve(data.X), data, settings)
        self._run.advance(_TUNING_ITERATIONS, None, False)
        self._run.warn(stacklevel=3)

    def init(
        self, rng_key: Any, num_warmup: int, init_params: Any, model_args: Any, model_kwargs: Any
    ) -> GibbsKernelState:
        """A chain, or a chain for each of several keys, at draws of the fitted Gaussian."""
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("GibbsKernel needs 64-bit arithmetic: call numpyro.enable_x64() first.")
        if model_args or model_kwargs or init_params is not None:
            raise ValueError("GibbsKernel holds its model and data: call run(key) without arguments or init_params.")
        run = self._run
        several = jnp.ndim(rng_key) > (0 if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else 1)
        keys = rng_key if several else rng_key[None]
        vector = run.target.response.middle if run.unknowns.places else jnp.zeros(0)
        chains = start_chains(run.target, run.base, vector, keys, run.axes)
        state = self._state(chains, jnp.zeros((), int))
        return state if several else self._single(state)

    def sample(self, state: GibbsKernelState, model_args: Any, model_kwargs: Any) -> GibbsKernelState:
        """One iteration."""
        single = state.z["f"].ndim == 2
        if single:
            state = self._several(state)
        run, chains = self._run, state.chains._replace(key=state.rng_key)
        chains, *_ = iterate(run.target, run.tuning, chains, Probe.empty(chains), state.number, run.axes)
        state = self._state(chains, state.number + 1)
        return self._single(state) if single else state

    def _state(self, chains: Chain, number: Any) -> GibbsKernelState:
        unknowns = self._run.unknowns
        values = jax.vmap(unknowns.constrain)(chains.unknowns) if unknowns.places else []
        z = {"f": chains.latents, **dict(zip(unknowns.names, values, strict=True))}
        return GibbsKernelState(z, chains, number, chains.key)

    def _single(self, state: GibbsKernelState) -> GibbsKernelState:
        """The state of one chain, without the axis over chains."""
        return self._over_chains(lambda leaf: leaf[0], state)

    def _several(self, state: GibbsKernelState) -> GibbsKernelState:
        return self._over_chains(lambda leaf: leaf[None], state)

    def _over_chains(self, change: Any, state: GibbsKernelState) -> GibbsKernelState:
        change = partial(jax.tree.map, change)
        chains = state.chains
        own = {name: change(part) for name, part in chains._asdict().items() if name != "surrogate"}
        moved = chains._replace(**own)
        if self._run.unknowns.places:
            moved = moved._replace(surrogate=change(chains.surrogate))
        return GibbsKernelState(change(state.z), moved, state.number, change(state.rng_key))
