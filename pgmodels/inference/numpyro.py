"""Bounds and Gibbs kernels for users' own NumPyro programs and loops."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
from pgmodels.interop.numpyro import checked_rows, require_x64
from pgmodels.likelihoods.sampling import checked_unknowns
from pgmodels.model import Data, Model, coefficient_groups, padded_data, require_model
from pgmodels.priors.base import RandomKey
from pgmodels.priors.representation import Auto
from pgmodels.priors.rows import DistinctInputs
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_key, as_seed


@double_precision
def numpyro_bound(
    model: Model, X: ArrayLike | None = None, y: ArrayLike | None = None, *, objective: Choice = "augmented"
) -> Callable[..., dict[str, Any]]:
    """A NumPyro model of the hyperparameters alone, whose factor is the derived bound on log p(y | hyperparameters).

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Parameters with priors are sampled, all others are fixed.
    X : array_like, shape (n, d), optional
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns), optional
        Observations.
    objective : str
        As in ``vi``.

    Returns
    -------
    callable
        A model function ``(X=None, y=None)``: a site for each parameter with a prior, and the factor ``bound``, the
        ELBO with q(f) at its optimum. X and y of a call, as in ``MCMC.run(key, X, y)``, take the place of those given
        here, and may then be traced. Further sites may be added in a program that calls it; it returns the values of
        its sites. Run it with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For invalid data, and without a parameter that has a prior.

    Notes
    -----
    O(n^3) a step of the inner loop, which every evaluation runs to its end; gradients are by the envelope theorem.
    """
    check_objective(objective)
    model = require_model(model)
    own = None if X is None and y is None else _family(model, X, y, objective)

    def numpyro_model(X: ArrayLike | None = None, y: ArrayLike | None = None) -> dict[str, Any]:
        require_x64()
        # Under ``jit`` known values are read at once.
        with jax.ensure_compile_time_eval():
            family, data = own or _family(model, X, y, objective)
        unknowns = family.parameters
        if own is not None and (X is not None or y is not None):
            inputs, observed = checked_rows(unknowns.model, data, data.y, X, y)
            inputs = as_array(data.X) if inputs is None else inputs
            rows = DistinctInputs.each_row(inputs, len(model.gps))
            family = replace(family, inputs=rows, y=observed, row_weights=jnp.ones(len(inputs)), fixed_groups=())
        pairs = zip(unknowns.names, unknowns.parameters, strict=True)
        values = {name: numpyro.sample(name, parameter.prior) for name, parameter in pairs}
        free = [jnp.ravel(p.transform.inv(v)) for p, v in zip(unknowns.parameters, values.values(), strict=True)]
        numpyro.factor("bound", _bound(family, jnp.concatenate(free)))
        return values

    return numpyro_model


def _family(model: Model, X: ArrayLike | None, y: ArrayLike | None, objective: Choice) -> tuple[ProblemFamily, Data]:
    """The problem at each value of the hyperparameters, for unchecked data, and the checked data."""
    if X is None or y is None or any(isinstance(part, jax.core.Tracer) for part in (X, y)):
        raise ValueError(
            f"numpyro_bound needs arrays X and y; got X={shorten(X)}, y={shorten(y)}. Give them in "
            "MCMC.run(key, X, y), or as in pgm.numpyro_bound(model, X, y), whose calls accept traced arrays."
        )
    model, data = model.prepare(X, y)
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
    known = coefficient_groups(model, data.X)
    return ProblemFamily(terms, unknowns, model.bare(), inputs, padded, row_weights, known), data


def _bound(family: ProblemFamily, vector: Array) -> Array:
    """The bound at an unconstrained vector, with a gradient in it and in the data."""
    points, engine = (None,) * len(family.model.gps), engine_of(family.objective)
    inputs, y, fixed = jax.lax.stop_gradient((family.inputs, family.y, vector))
    problem = replace(family, inputs=inputs, y=y).problem(fixed, points)
    # The gradient is exact only at the optimum of q(f): the inner loop must be near it.
    tolerance = 1e-10
    state = run_block(engine.step, problem, engine.init(problem), tolerance, MANY, MANY).state
    slope = collapsed_bound(family.problem(vector, points), state)
    return jax.lax.stop_gradient(state.elbo - slope) + slope


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

    Used as ``MCMC(pgm.GibbsKernel(model), num_warmup=..., num_samples=..., num_chains=...)``. The data are of
    ``run(key, X, y)``, or else given here. Chains, thinning, progress and ``get_samples`` are NumPyro's: samples are
    ``f`` (n, latents) and the hyperparameters that have priors, by the names of ``draws.hyperparameters``.
    ``chain_method`` may be "parallel", "sequential" or "vectorized".

    Parameters
    ----------
    model : Model
        The likelihood and its GPs.
    X : array_like, shape (n, d), optional
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns), optional
        Observations, in the units of the likelihood.
    seed : int or jax.Array
        An int or a JAX key, for tuning the moves once the data are given; draws use the key of ``run``.

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
    def __init__(self, model: Model, X: ArrayLike | None = None, y: ArrayLike | None = None, *, seed: Seed = 0):
        self._model, self._key, self._seed = require_model(model), as_key(seed), as_seed(seed)
        self._run: Any = None
        self._own: Any = None if X is None and y is None else self._tuned(X, y)

    @double_precision
    def _tuned(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> GibbsRun:
        """The sampler of data, with tuned moves: the last one if its data are the same."""
        if X is None or y is None:
            raise ValueError(
                f"GibbsKernel needs arrays X and y; got X={shorten(X)}, y={shorten(y)}. Give them in "
                "MCMC.run(key, X, y), or as in pgm.GibbsKernel(model, X, y)."
            )
        model, data = self._model.prepare(X, y)
        if self._run and all(map(np.array_equal, self._run.data[:2], data[:2])):
            return self._run
        # Iterations of four chains for tuning the moves, before NumPyro starts.
        num_iterations = 120
        model = select_inducing_inputs(resolved(model, data, self._seed), data, nearly_converged)
        run = GibbsRun(model, data, Settings(num_iterations, 4, self._key, Keep("moments")))
        run.advance(num_iterations, None, False)
        run.warn()
        return run

    def init(
        self,
        rng_key: RandomKey,
        num_warmup: int,
        init_params: object,
        model_args: tuple[ArrayLike, ...],
        model_kwargs: dict[str, ArrayLike],
    ) -> GibbsKernelState:
        """Return the initial state of a chain, or of one chain per key, at draws of the fitted Gaussian."""
        require_x64()
        if init_params is not None:
            raise ValueError(f"init_params must be None, since chains start by themselves; got {shorten(init_params)}.")
        # NumPyro starts parallel chains within a compiled program.
        is_compiled, has_arguments = isinstance(rng_key, jax.core.Tracer), bool(model_args or model_kwargs)
        if is_compiled and has_arguments:
            raise ValueError(
                "X and y of GibbsKernel must be given as pgm.GibbsKernel(model, X, y) for parallel chains on several "
                "devices; got them in MCMC.run, where the moves cannot be tuned for them."
            )
        run = self._own if self._own and not has_arguments else self._tuned(*model_args, **model_kwargs)
        self._run = run
        several = jnp.ndim(rng_key) > (0 if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else 1)
        keys = rng_key if several else rng_key[None]
        vector = run.target.ellipse.middle if run.is_sampled else as_array(run.unknowns.start())
        start = started_chains if is_compiled else start_chains
        state = self._state(start(run.target, run.schedule.moves, vector, keys), jnp.zeros(len(keys), int))
        return state if several else _single(state)

    def sample(
        self, state: GibbsKernelState, model_args: tuple[ArrayLike, ...], model_kwargs: dict[str, ArrayLike]
    ) -> GibbsKernelState:
        """One iteration."""
        if any(isinstance(part, jax.core.Tracer) for part in jax.tree.leaves((model_args, model_kwargs))):
            raise ValueError(
                "X and y of GibbsKernel must be arrays, for which its moves are tuned; got traced ones. Do "
                "not let MCMC compile for its arguments."
            )
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
    """Return the Gibbs engine as ``init`` and ``step`` functions, as samplers of BlackJAX, for one's own loops.

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
