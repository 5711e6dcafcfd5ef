"""Models as NumPyro models, guides and log densities."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.infer.util import log_density as density_of_sites

from pgmodels.data.arrays import as_inputs
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.sampling import checked_unknowns
from pgmodels.model import (
    GP,
    Data,
    Model,
    check_length,
    check_memory,
    check_new_inputs,
    fixed_groups,
    numbered_inputs,
    require_model,
    with_powers,
)
from pgmodels.parameters.vector import have_fixed_kernels
from pgmodels.priors.base import LatentPrior
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.rows import DistinctInputs
from pgmodels.results.approximation import Approximation, GaussianResult
from pgmodels.results.nested import require_result
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array, double_precision

# Prefix of the sites of whitened coordinates: whitened_0, whitened_1, ...
WHITENED = "whitened_"


class FormulaDistribution(dist.Distribution):
    """p(y | f) by a formula for a batch of n data, with latents f (n, L) and parameter values."""

    def __init__(self, formula: Expression, f: Array, values: dict[str, Array], num_columns: int):
        self.formula, self.f, self.values = formula, f, values
        event_shape = () if num_columns == 1 else (num_columns,)
        super().__init__(batch_shape=f.shape[:1], event_shape=event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The real numbers: observations have already been checked against the likelihood's support."""
        return constraints.real_vector if self.event_shape else constraints.real

    def log_prob(self, value: Any) -> Any:
        """Return log p(y | f) of each datum, (n,)."""
        return self.formula.log_evaluate(Environment(value, self.f, self.values))[..., 0]


@double_precision
def to_numpyro(
    model: Model, X: ArrayLike, y: ArrayLike | None = None, *, name: str = ""
) -> Callable[..., Float[Array, "n latents"]]:
    """Convert a model, without augmentation, to a NumPyro model, or to a term of a larger program.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs, each with its ``form``.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns), optional
        Observations, in the units of the likelihood. Without y the likelihood and its parameters are not used.
    name : str
        A prefix of the names of all sites, such as ``"trend_"``, for programs with several GPs.

    Returns
    -------
    callable
        A function ``process(X=None, y=None)`` to run, or to call in a larger program. It returns the latents ``f``
        (n, latents). X (m, d) and y (m,) or (m, columns) of a call replace the X and y given here. They may be traced,
        such as X that is sampled. Run it with 64-bit arithmetic (``numpyro.enable_x64()``).

    Raises
    ------
    ValueError
        For invalid data, and if a likelihood parameter has a prior but the formula may omit a factor that depends on
        it.

    Notes
    -----
    Sites:

    - each parameter with a prior, such as ``lengthscale``, ``mean`` or ``scale``. The prefix is ``f[1].`` if the model
      has several GPs, see ``pgmodels.parameters.vector``. All other parameters are fixed at their values;
    - ``whitened_0``, ``whitened_1``, ... (r, size), standard normal, one for each GP;
    - ``f`` (n, latents), deterministic, and ``y``, observed, whose log density is the formula's.

    The GP's form determines the prior of f. By default and with ``pgm.Dense()``, f = mean + A^T v at the distinct
    inputs, copied to the rows. If no parameter of the kernel has a prior, A^T A is K to double precision, and r its
    rank. Otherwise A^T A is K + j I with the jitter of ``pgmodels.priors.dense.exact_root``. Then r is the number of
    distinct inputs, or fewer if the kernel is a sum of functions with few levels. With ``pgm.Inducing``, v are of the
    inducing inputs, chosen for the kernel alone, and of each row for the residual variance. With ``pgm.Hilbert``, whose
    ``domain`` must contain sampled inputs, v are of the functions; with ``pgm.Markov()``, of the steps in time. Each
    row of X of a call has its own latent value; equal rows agree up to the jitter.
    """
    if not isinstance(name, str):
        raise ValueError(f"name must be a str, a prefix of the names of sites; got {shorten(name)}. Use name='gp_'.")
    program = _program(model, X, y)

    def process(X: ArrayLike | None = None, y: ArrayLike | None = None) -> Array:
        require_x64()
        with numpyro.handlers.scope(prefix=name, divider=""):
            return program(X, y)

    return process


def _program(model: Model, X: ArrayLike, y: ArrayLike | None) -> "Program":
    """The program of unchecked data."""
    if y is None:
        model, inputs, columns = numbered_inputs(require_model(model), X)
        data = Data(inputs, np.full(len(inputs), np.nan), columns)
    else:
        model, data = require_model(model).prepare(X, y)
    model = model.resolve(data.X)
    points = [(gp, gp.form.choose(gp.kernel, data.X)) for gp in model.gps]
    gps = [gp if Z is None else GP(gp.kernel, gp.mean, gp.size, gp.form.with_inputs(Z)) for gp, Z in points]
    program = Program(Model(model.likelihood, gps), data, observed=y is not None)
    prior = jax.eval_shape(lambda: program.prior(program.unknowns.model)).prior
    for gp, group in zip(gps, prior.groups, strict=True):
        if type(group).draw is not LatentPrior.draw:
            raise ValueError(
                f"form of a GP must draw by standard normals in NumPyro; got {gp.form!r}, which overrides draw. "
                f"Implement {type(group).__name__}.coloured instead, or give another form, such as pgm.Dense()."
            )
    return program


def require_x64() -> None:
    """Raise ValueError without 64-bit arithmetic."""
    if not jax.config.read("jax_enable_x64"):
        raise ValueError("the model needs 64-bit arithmetic: call numpyro.enable_x64() before you run it.")


class WhitenedPrior(NamedTuple):
    """The latents' prior, and for each group its coordinates with any influence, None for all."""

    prior: PriorCollection
    active: Sequence[np.ndarray | None]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shape (r, size) of the whitened coordinates of each group."""
        pairs = zip(self.prior.groups, self.active, strict=True)
        return [(group.rank if active is None else len(active), group.size) for group, active in pairs]

    def latents(self, whitened: Sequence[Array]) -> Array:
        """Return the latents (n, latents) of whitened coordinates by group."""
        coordinates = []
        for group, active, v in zip(self.prior.groups, self.active, whitened, strict=True):
            every = as_array(v) if active is None else jnp.zeros((group.rank, group.size)).at[active].set(v)
            coordinates.append(group.coloured(every))
        return self.prior.latents(coordinates)


class Program:
    """The sites of ``to_numpyro`` for a resolved model with given inducing inputs, and checked data.

    ``fixed_groups`` are the priors of groups whose kernels have no sampled parameter, None for all other groups. Priors
    with a factor are exact to double precision, in the coordinates with any influence.
    """

    def __init__(self, model: Model, data: Data, *, observed: bool = True):
        self.unknowns, self.data, X = checked_unknowns(model), data, data.X
        check_memory(model, X)
        self.powers, rows = with_powers(model, data)
        self.y: Any = as_array(rows.y) if observed else None
        self.formula = self.powers.likelihood.formula(model.num_latents)
        self.inputs = model.inputs(X, never_padded=True)
        # Factors that do not depend on sampled parameters are computed once.
        pairs = zip(fixed_groups(model, X, have_fixed_kernels(model)), self.inputs.X, strict=True)
        self.fixed_groups = tuple(
            group.resized(len(Z)) if group and len(group.X) > len(Z) else group for group, Z in pairs
        )
        masks = [getattr(group, "active", None) for group in self.fixed_groups]
        self.active = [None if mask is None else np.flatnonzero(np.asarray(mask)) for mask in masks]

    def prior(self, model: Model, X: Array | None = None) -> WhitenedPrior:
        """Return the prior of the latents at the program's inputs, or at the rows of X."""
        inputs, known, active = self.inputs, self.fixed_groups, self.active
        if X is not None:
            none = (None,) * len(model.gps)
            inputs, known, active = DistinctInputs.each_row(X, len(model.gps)), none, list(none)
        return WhitenedPrior(model.prior(inputs, traced=True, known=known).for_sampling(), active)

    def __call__(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Any:
        inputs, observed = checked_rows(self.unknowns.model, self.data, self.y, X, y)
        values, unknowns = [], self.unknowns
        for name, parameter, gp in zip(unknowns.names, unknowns.parameters, unknowns.gp_indices, strict=True):
            is_used = gp >= 0 or observed is not None
            values.append(numpyro.sample(name, parameter.prior) if is_used else parameter.value)
        model = self.unknowns.with_values(values)
        prior = self.prior(model, inputs)
        f = numpyro.deterministic("f", prior.latents(self.whitened(prior)))
        if observed is not None:
            num_columns = 1 if observed.ndim == 1 else observed.shape[1]
            numpyro.sample("y", FormulaDistribution(self.formula, f, model.parameters, num_columns), obs=observed)
        return f

    def whitened(self, prior: WhitenedPrior) -> list[Any]:
        """Return the sites of the whitened coordinates (r, size) of each group."""
        standard = dist.Normal(0.0, 1.0)
        return [
            numpyro.sample(f"{WHITENED}{index}", standard.expand(shape).to_event(2))
            for index, shape in enumerate(prior.shapes)
        ]


def checked_rows(
    model: Model, own: Data, y_own: ArrayLike | None, X: ArrayLike | None, y: ArrayLike | None
) -> tuple[Any, Any]:
    """Return X and y of a call, which replace the model's own, or raise ValueError.

    Of traced arrays only the shapes are checked. X is None for the model's own, and y if there is none.
    """
    if X is None and y is None:
        return None, y_own
    # Under ``jit`` known values are read at once.
    with jax.ensure_compile_time_eval():
        if isinstance(X, jax.core.Tracer):
            as_inputs(np.zeros(X.shape), "X", own.X.shape[1])
            X = jnp.asarray(X, float)
        elif X is not None:
            X = as_array(check_new_inputs(model, X, "X", own.X.shape[1], own.columns))
        num_rows, y = len(own.X if X is None else X), y_own if y is None else y
        if isinstance(y, jax.core.Tracer):
            check_length(model, y, num_rows)
            y = jnp.asarray(y, float)
        elif y is not None:
            y = as_array(model.check_observations(y, num_rows))
    return X, y


Position: TypeAlias = Mapping[str, ArrayLike]


class LogDensity:
    """The log density of a position: a dict of unconstrained hyperparameters by name, and whitened latents.

    ``start`` is a position: the hyperparameters' values, and latents at their prior mean. ``constrain(position)``
    returns the constrained hyperparameters, and the latents at the data, ``f`` (n, latents).
    """

    def __init__(self, program: Program):
        self._program = program
        self._parameters = dict(zip(program.unknowns.names, program.unknowns.parameters, strict=True))
        start = {name: np.asarray(p.transform.inv(p.value)) for name, p in self._parameters.items()}
        prior = jax.eval_shape(lambda: program.prior(program.unknowns.model))
        whitened = {f"{WHITENED}{i}": np.zeros(shape) for i, shape in enumerate(prior.shapes)}
        self.start: dict[str, np.ndarray] = start | whitened

    def __call__(self, position: Position) -> Array:
        """Return log p(y | f) + log p(v) + log prior of the hyperparameters, with their transforms' Jacobian."""
        require_x64()
        values = self._values(position)
        total = density_of_sites(self._program, (), {}, values)[0]
        for name, parameter in self._parameters.items():
            total = total + jnp.sum(parameter.transform.log_abs_det_jacobian(position[name], values[name]))
        return total

    def constrain(self, position: Position) -> dict[str, Any]:
        """Return the hyperparameters by name and the latents ``f`` (n, latents) of a position."""
        values = self._values(position)
        sites = density_of_sites(self._program, (), {}, values)[1]
        return {name: values[name] for name in self._parameters} | {"f": sites["f"]["value"]}

    def _values(self, position: Position) -> dict[str, Any]:
        values = {name: parameter.transform(position[name]) for name, parameter in self._parameters.items()}
        return {name: jnp.asarray(value) for name, value in position.items()} | values


@double_precision
def log_density(model: Model, X: ArrayLike, y: ArrayLike) -> LogDensity:
    """Return the log joint density of a model and data, a pure JAX function for any sampler or optimiser.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Parameters with priors are unknown, all other parameters are fixed.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations.

    Returns
    -------
    LogDensity
        A function of a position, a dict of arrays; ``start`` is a position, and ``constrain`` translates one. JAX can
        differentiate, compile and batch it, with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For invalid data, and if a likelihood parameter has a prior but the formula may omit a factor that depends on
        it.

    Notes
    -----
    The coordinates are the sites of ``to_numpyro``: ``whitened_0``, ... are standard normal a priori. Factors that the
    formula omits are missing from the density too.
    """
    return LogDensity(_program(model, X, y))


@double_precision
def numpyro_guide(result: Approximation) -> Callable[[], dict[str, Any]]:
    """Convert the Gaussian q of a result to a guide for ``to_numpyro`` with fixed hyperparameters, to use or to train.

    Parameters
    ----------
    result : Approximation
        A result of ``cavi``, ``gaussian_vi`` or ``fit``, uncorrected.

    Returns
    -------
    callable
        A guide without arguments for ``pgm.to_numpyro(result.model.fixed(), X, y)``. Like an automatic guide, it serves
        ``SVI``, ``Trace_ELBO``, ``Predictive`` and importance sampling. It returns a draw of ``f`` (n, latents) and of
        the sites ``whitened_0``, .... Run it with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For other results, such as corrected ones.

    Notes
    -----
    q is the prior N(v; 0, I) of all whitened coordinates times the result's Gaussian factors of f = m + B v. It costs
    O(D^3) for D coordinates. The parameters ``guide_mean`` (D,) and ``guide_factor`` (D, D), the lower Cholesky factor
    of the covariance, start there. They stay there unless ``SVI`` trains them.
    """
    expected = "result must be a result of cavi, gaussian_vi or vi, or .uncorrected of a corrected result"
    gaussian = require_result(result, expected, kind=GaussianResult)
    result = require_result(gaussian if gaussian.is_corrected else gaussian.uncorrected, expected, kind=Approximation)
    model = result.model.fixed()
    prior = Program(model, result.data).prior(model)
    shapes = prior.shapes
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def split(flat: Array) -> list[Array]:
        return [part.reshape(shape) for part, shape in zip(jnp.split(flat, ends[:-1]), shapes, strict=True)]

    def latents(flat: Array) -> Array:
        return prior.latents(split(flat))

    origin = jnp.zeros(int(ends[-1]))
    mean, B = latents(origin), jax.jacobian(latents)(origin)
    h, W = map(as_array, result.sites)
    W = W if W.ndim == 3 else jax.vmap(jnp.diag)(W)
    precision = jnp.eye(len(origin)) + jnp.einsum("nld,nlk,nke->de", B, W, B)
    potential = jnp.einsum("nld,nl->d", B, h - jnp.einsum("nlk,nk->nl", W, mean))
    q = dist.MultivariateNormal(jnp.linalg.solve(precision, potential), precision_matrix=precision)
    start, factor_start = q.loc, q.scale_tril

    def guide() -> dict[str, Any]:
        require_x64()
        mean = numpyro.param("guide_mean", start)
        factor = numpyro.param("guide_factor", factor_start, constraint=constraints.lower_cholesky)
        q = dist.MultivariateNormal(mean, scale_tril=factor)
        flat: Any = numpyro.sample("_whitened", q, infer={"is_auxiliary": True})
        sites = {f"{WHITENED}{i}": v for i, v in enumerate(split(flat))}
        for name, v in sites.items():
            numpyro.sample(name, dist.Delta(v, event_dim=2))
        return sites | {"f": latents(flat)}

    return guide
