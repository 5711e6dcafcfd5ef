"""Bounds and Gibbs kernels for users' own NumPyro programs and loops."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpy.typing import ArrayLike
from numpyro.infer.mcmc import MCMCKernel

from pgmodels.inference.bound import ProblemFamily, collapsed_bound
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import Keep, State, iterate, start_chains, started_chains, zero_stats
from pgmodels.inference.loop import MANY, run_block
from pgmodels.inference.objectives import Choice, check_objective, objective_of, require_maximised
from pgmodels.inference.prepare import engine_of, nearly_converged, resolved, select_inducing_inputs
from pgmodels.interop.numpyro import checked_unknowns, require_x64
from pgmodels.model import Model, coefficient_groups, padded_data, require_model
from pgmodels.priors.base import RandomKey
from pgmodels.priors.representation import Auto
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_key, as_seed


@double_precision
def numpyro_bound(
    model: Model, X: ArrayLike, y: ArrayLike, *, objective: Choice = "augmented"
) -> Callable[[], dict[str, Any]]:
    """A NumPyro model of the hyperparameters alone, whose factor is the derived bound on log p(y | hyperparameters).

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Parameters with priors are sampled, all others are fixed.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations.
    objective : str
        As in ``vi``.

    Returns
    -------
    callable
        A model function without arguments: a site for each parameter with a prior, and the factor ``bound``, the ELBO
        with q(f) at its optimum. Further sites may be added in a program that calls it; it returns the values of its
        sites. Run it with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For invalid data, and without a parameter that has a prior.

    Notes
    -----
    O(n^3) a step of the inner loop, which every evaluation runs to its end; gradients are by the envelope theorem.
    """
    check_objective(objective)
    model, data = require_model(model).prepare(X, y)
    model = resolved(model.with_form(Auto()), data)
    unknowns = checked_unknowns(model)
    if not unknowns.names:
        raise ValueError(
            "numpyro_bound samples hyperparameters, and none has a prior: give one a NumPyro distribution, as in "
            "pgm.RBF(numpyro.distributions.LogNormal(0, 1))."
        )
    terms = objective_of(model, objective)
    require_maximised("numpyro_bound", terms)
    inputs, padded, row_weights = padded_data(model, data)
    inputs = replace(inputs, spanning=(None,) * len(model.gps))
    family = ProblemFamily(
        terms, unknowns, model.bare(), inputs, padded, row_weights, coefficient_groups(model, data.X)
    )
    points, engine = (None,) * len(model.gps), engine_of(terms)

    def bound(vector: Array) -> Array:
        problem = family.problem(jax.lax.stop_gradient(vector), points)
        # The gradient is exact only at the optimum of q(f): the inner loop must be near it.
        tolerance = 1e-10
        state = run_block(engine.step, problem, engine.init(problem), tolerance, MANY, MANY).state
        slope = collapsed_bound(family.problem(vector, points), state)
        return jax.lax.stop_gradient(state.elbo - slope) + slope

    def numpyro_model() -> dict[str, Any]:
        require_x64()
        pairs = zip(unknowns.names, unknowns.parameters, strict=True)
        values = {name: numpyro.sample(name, parameter.prior) for name, parameter in pairs}
        free = [jnp.ravel(p.transform.inv(v)) for p, v in zip(unknowns.parameters, values.values(), strict=True)]
        numpyro.factor("bound", bound(jnp.concatenate(free)))
        return values

    return numpyro_model


class GibbsKernelState(NamedTuple):
    """``z`` holds the latents ``f`` (n, latents) and the sampled hyperparameters by name.

    ``engine`` is the state of the sampler, whose latents may have padding rows. With several chains every array,
    including the ``number`` of the iteration, has a first axis over chains, along which NumPyro splits states.
    """

    z: dict[str, Array]
    engine: State
    number: Array
    rng_key: RandomKey


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
        # Iterations of four chains for tuning the moves, before NumPyro starts.
        num_iterations = 120
        settings = Settings(num_iterations, 4, as_key(seed), Keep("moments"))
        self._run = GibbsRun(
            select_inducing_inputs(resolved(model, data, as_seed(seed)), data, nearly_converged), data, settings
        )
        self._run.advance(num_iterations, None, False)
        self._run.warn()

    def init(
        self,
        rng_key: RandomKey,
        num_warmup: int,
        init_params: object,
        model_args: tuple[object, ...],
        model_kwargs: dict[str, object],
    ) -> GibbsKernelState:
        """The initial state of a chain, or of one chain per key, at draws of the fitted Gaussian."""
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("GibbsKernel needs 64-bit arithmetic: call numpyro.enable_x64() first.")
        if model_args or model_kwargs or init_params is not None:
            raise ValueError("GibbsKernel has its model and data: call MCMC.run(key) without further arguments.")
        run = self._run
        several = jnp.ndim(rng_key) > (0 if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else 1)
        keys = rng_key if several else rng_key[None]
        vector = run.target.ellipse.middle if run.is_sampled else as_array(run.unknowns.start())
        # NumPyro starts parallel chains within a compiled program.
        start = started_chains if isinstance(keys, jax.core.Tracer) else start_chains
        engine = start(run.target, run.schedule.moves, vector, keys)
        state = self._state(engine, jnp.zeros(len(keys), int))
        return state if several else _single(state)

    def sample(
        self, state: GibbsKernelState, model_args: tuple[object, ...], model_kwargs: dict[str, object]
    ) -> GibbsKernelState:
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

    def _state(self, engine: State, number: Array) -> GibbsKernelState:
        unknowns, chains = self._run.unknowns, engine.chains
        values = jax.vmap(unknowns.constrain)(chains.unknowns) if unknowns.leaf_indices else []
        # Without padding rows.
        z = {"f": chains.latents[:, : len(self._run.data.y)], **dict(zip(unknowns.names, values, strict=True))}
        return GibbsKernelState(z, engine, number, chains.key)


def _single(state: GibbsKernelState) -> GibbsKernelState:
    return jax.tree.map(lambda leaf: leaf[0], state)


class GibbsInfo(NamedTuple):
    """Information on a step: whether the latents are finite."""

    is_finite: Array


class GibbsSteps(NamedTuple):
    """Functions in JAX, ``init(rng_key)`` for a state and ``step(rng_key, state)`` for the next one and its info."""

    init: Callable[[RandomKey], GibbsKernelState]
    step: Callable[[RandomKey, GibbsKernelState], tuple[GibbsKernelState, GibbsInfo]]


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

    def init(rng_key: RandomKey) -> GibbsKernelState:
        return kernel.init(rng_key, 0, None, (), {})

    def step(rng_key: RandomKey, state: GibbsKernelState) -> tuple[GibbsKernelState, GibbsInfo]:
        state = kernel.sample(state._replace(rng_key=rng_key), (), {})
        return state, GibbsInfo(jnp.isfinite(state.z["f"]).all())

    return GibbsSteps(init, step)
