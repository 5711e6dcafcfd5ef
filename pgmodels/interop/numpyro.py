"""Models as NumPyro models, guides and log densities."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpy.typing import ArrayLike
from numpyro.distributions import constraints

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.sampling import checked_unknowns
from pgmodels.model import GP, Data, Model, check_memory, fixed_groups, require_model, with_powers
from pgmodels.parameters.parameter import bare
from pgmodels.parameters.vector import have_fixed_kernels
from pgmodels.priors.representation import Auto, Binding
from pgmodels.priors.rows import Copies, Levels
from pgmodels.results.approximation import Approximation, GaussianResult
from pgmodels.results.nested import require_result
from pgmodels.runtime.precision import as_array, double_precision

_REPRESENTATION = Auto()
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
        """log p(y | f) of each datum, (n,)."""
        return self.formula.log_evaluate(Environment(value, self.f, self.values))[..., 0]


@double_precision
def to_numpyro(model: Model, X: ArrayLike, y: ArrayLike) -> Callable[[], Any]:
    """Convert a model, without augmentation, to a NumPyro model function conditioned on data.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.

    Returns
    -------
    callable
        A model function without arguments, which returns the latents ``f`` (n, latents), so that a larger program can
        call it and use them. Run it with 64-bit arithmetic (``numpyro.enable_x64()``).

    Raises
    ------
    ValueError
        For invalid data, and if a likelihood parameter has a prior but the formula may omit a factor that depends on
        it.

    Notes
    -----
    Sites:

    - each parameter with a prior, under names such as ``lengthscale``, ``mean`` and ``scale`` (with prefix ``f[1].`` if
      the model has several GPs, see ``pgmodels.parameters.vector``); all others are fixed at their values;
    - ``whitened_0``, ``whitened_1``, ... (r, size), standard normal, one for each GP;
    - ``f`` (n, latents), deterministic: mean + A^T v at the distinct inputs, copied to the rows. If no parameter of the
      kernel has a prior, A^T A is K to double precision, and r its rank; otherwise it is K + j I with the jitter of
      ``pgmodels.priors.dense.exact_root``, and r the number of distinct inputs, or fewer if the kernel is a sum of
      functions with few levels;
    - ``y``, observed, whose log density is the formula's.
    """
    model, data = require_model(model).prepare(X, y)
    program = Program(model.with_form(_REPRESENTATION).resolve(data.X), data)

    def numpyro_model() -> Any:
        require_x64()
        return program()

    return numpyro_model


def require_x64() -> None:
    """Raise ValueError without 64-bit arithmetic."""
    if not jax.config.read("jax_enable_x64"):
        raise ValueError("the model needs 64-bit arithmetic: call numpyro.enable_x64() before running it.")


class Program:
    """The sites of ``to_numpyro`` for checked data and a resolved model whose GPs all have the default form.

    ``fixed_groups`` are the priors of groups whose kernels have no sampled parameter, None for the others; they are
    exact to double precision, in the coordinates that have any influence.
    """

    def __init__(self, model: Model, data: Data):
        self.unknowns = checked_unknowns(model)
        check_memory(model, data.X)
        self.powers, rows = with_powers(model, data)
        self.formula, self.y = self.powers.likelihood.formula(model.num_latents), as_array(rows.y)
        inputs = model.inputs(data.X)
        self.spanning, rows_of = inputs.spanning, inputs.copies.rows
        # Without padding.
        count = None if rows_of is None else 1 + int(np.max(rows_of))
        self.copies = Copies(
            rows_of, tuple(places if places is None else places[:count] for places in inputs.copies.places)
        )
        self.levels = [
            levels and Levels(levels.level[:count], levels.keys[: 1 + int(np.max(levels.level))])
            for levels, count in zip(inputs.levels, inputs.counts, strict=True)
        ]
        self.inputs = [X[:count] for X, count in zip(inputs.X, inputs.counts, strict=True)]
        # Factors that do not depend on sampled parameters are computed once.
        self.fixed_groups = fixed_groups(model, data.X, have_fixed_kernels(model))
        self.factors: list[Array | None] = []
        for group, X in zip(self.fixed_groups, self.inputs, strict=True):
            A: Any = group
            if group is not None:
                # Without padding, and coordinates that have no influence.
                A = as_array(np.asarray(A.factor)[np.asarray(A.active) > 0, : len(X)])
            self.factors.append(A)

    @property
    def whitened_shapes(self) -> list[tuple[int, int]]:
        """The shape (r, size) of the whitened coordinates of each group."""
        groups = zip(self.unknowns.model.gps, self.factors, self.inputs, self.spanning, self.levels, strict=True)
        return [(_bound(gp, *at).rank if A is None else len(A), gp.size) for gp, A, *at in groups]

    def __call__(self) -> Any:
        pairs = zip(self.unknowns.names, self.unknowns.parameters, strict=True)
        model = self.unknowns.with_values([numpyro.sample(name, parameter.prior) for name, parameter in pairs])
        f = numpyro.deterministic("f", self.latents(model, self.whitened()))
        num_columns = 1 if self.y.ndim == 1 else self.y.shape[1]
        likelihood = FormulaDistribution(self.formula, f, model.parameters, num_columns)
        numpyro.sample("y", likelihood, obs=self.y)
        return f

    def whitened(self) -> list[Any]:
        """The sites of the whitened coordinates (r, size) of each group."""
        standard = dist.Normal(0.0, 1.0)
        return [
            numpyro.sample(f"{WHITENED}{index}", standard.expand(shape).to_event(2))
            for index, shape in enumerate(self.whitened_shapes)
        ]

    def latents(self, model: Model, whitened: Sequence[Array]) -> Array:
        """The latents f = mean + A^T v (n, latents) of whitened coordinates v by group."""
        latents = []
        groups = zip(whitened, model.gps, self.factors, self.inputs, self.spanning, self.levels, strict=True)
        for v, gp, A, *at in groups:
            latents.append(_bound(gp, *at).latents(v) if A is None else as_array(gp.mean.value) + A.T @ v)
        return self.copies.side_by_side(latents)


def _bound(gp: GP, X: Any, rows: Any, levels: Any) -> Any:
    """The prior of a group at its distinct inputs."""
    how = Binding(traced=True, spanning=rows, levels=levels)
    return _REPRESENTATION.bind(bare(gp.kernel), as_array(gp.mean.value), X, gp.size, how)


Position: TypeAlias = Mapping[str, ArrayLike]


class LogDensity:
    """The log density of a position: a dict of unconstrained hyperparameters by name, and whitened latents.

    ``start`` is a position: the hyperparameters' values and latents at their prior mean. ``constrain(position)`` has
    the hyperparameters, constrained, and the latents at the data, ``f`` (n, latents).
    """

    def __init__(self, program: Program):
        self._program = program
        self._parameters = dict(zip(program.unknowns.names, program.unknowns.parameters, strict=True))
        start = {name: np.asarray(p.transform.inv(p.value)) for name, p in self._parameters.items()}
        whitened = {f"{WHITENED}{i}": np.zeros(shape) for i, shape in enumerate(program.whitened_shapes)}
        self.start: dict[str, np.ndarray] = start | whitened

    def __call__(self, position: Position) -> Array:
        """log p(y | f) + log p(v) + log prior of the hyperparameters, with the Jacobian of their transforms."""
        require_x64()
        model, whitened = self._model(position), self._whitened(position)
        f = self._program.latents(model, whitened)
        total = jnp.sum(self._program.formula.log_evaluate(Environment(self._program.y, f, model.parameters))[..., 0])
        for v in whitened:
            total = total - 0.5 * jnp.sum(v**2) - 0.5 * np.log(2.0 * np.pi) * v.size
        for name, parameter in self._parameters.items():
            x = position[name]
            value = parameter.transform(x)
            total = total + jnp.sum(parameter.prior.log_prob(value))
            total = total + jnp.sum(parameter.transform.log_abs_det_jacobian(x, value))
        return total

    def constrain(self, position: Position) -> dict[str, Any]:
        """The hyperparameters by name and the latents ``f`` (n, latents) of a position."""
        values = {name: parameter.transform(position[name]) for name, parameter in self._parameters.items()}
        return values | {"f": self._program.latents(self._model(position), self._whitened(position))}

    def _model(self, position: Position) -> Model:
        values = [parameter.transform(position[name]) for name, parameter in self._parameters.items()]
        return self._program.unknowns.with_values(values)

    def _whitened(self, position: Position) -> list[Array]:
        return [jnp.asarray(position[f"{WHITENED}{i}"]) for i in range(len(self._program.whitened_shapes))]


@double_precision
def log_density(model: Model, X: ArrayLike, y: ArrayLike) -> LogDensity:
    """The log joint density of a model and data, a pure function in JAX for any sampler or optimiser.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Parameters with priors are unknown, all others are fixed.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations.

    Returns
    -------
    LogDensity
        A function of a position, a dict of arrays; ``start`` is a position, and ``constrain`` translates one. It can
        be differentiated, compiled and batched, with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For invalid data, and if a likelihood parameter has a prior but the formula may omit a factor that depends on
        it.

    Notes
    -----
    The coordinates are those of the sites of ``to_numpyro``: ``whitened_0``, ... are standard normal a priori. Factors
    that the formula omits are omitted.
    """
    model, data = require_model(model).prepare(X, y)
    return LogDensity(Program(model.with_form(Auto()).resolve(data.X), data))


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
    expected = "result must be what cavi, gaussian_vi or vi return, or result.uncorrected of a corrected one"
    gaussian = require_result(result, expected, kind=GaussianResult)
    result = require_result(gaussian if gaussian.is_corrected else gaussian.uncorrected, expected, kind=Approximation)
    model = result.model.fixed().with_form(Auto())
    program = Program(model, result.data)
    shapes = program.whitened_shapes
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def split(flat: Array) -> list[Array]:
        return [part.reshape(shape) for part, shape in zip(jnp.split(flat, ends[:-1]), shapes, strict=True)]

    def latents(flat: Array) -> Array:
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
        flat: Any = numpyro.sample("_whitened", q, infer={"is_auxiliary": True})
        sites = {f"{WHITENED}{i}": v for i, v in enumerate(split(flat))}
        for name, v in sites.items():
            numpyro.sample(name, dist.Delta(v, event_dim=2))
        return sites | {"f": latents(flat)}

    return guide
