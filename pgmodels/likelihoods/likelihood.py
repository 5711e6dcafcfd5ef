"""Likelihoods: a formula of y and latents, its density and powers, and Gaussian moments."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypedDict, TypeVar, Unpack, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from scipy.special import logsumexp

from pgmodels.data.arrays import as_array_code, as_numbers
from pgmodels.likelihoods.expression import (
    Constant,
    Environment,
    Expression,
    Latent,
    Latents,
    Observation,
    ParameterSymbol,
    Selected,
    VectorSymbol,
)
from pgmodels.likelihoods.operations import Call, Largest, Power, Product, Sum, as_expression
from pgmodels.likelihoods.supports import AnyNumber, Classes, Given, Positive, Real, Support, Undeclared, first_row
from pgmodels.numerics.elementary import RealArray
from pgmodels.parameters.parameter import Parameter, as_declared
from pgmodels.runtime import precision
from pgmodels.runtime.jit import compiled


def is_gaussian(formula: Expression) -> bool:
    """Return whether a formula is exp of a quadratic in y[0], times factors that do not depend on y."""
    return _degree_of_log(formula) == 2


def _degree_of_log(formula: Expression) -> int | None:
    """Return the degree of log p as a polynomial in y, or None if it is not a polynomial."""
    if not _reads_y(formula):
        return 0
    if isinstance(formula, Product):
        return _largest([_degree_of_log(factor) for factor in formula.children])
    if isinstance(formula, Call) and formula.name == "exp":
        return _degree(formula.argument)
    if isinstance(formula, Power) and not _reads_y(formula.exponent):
        return _degree_of_log(formula.base)
    return None


def _degree(expression: Expression) -> int | None:
    if not _reads_y(expression):
        return 0
    if isinstance(expression, Observation):
        return 1
    degrees = [_degree(child) for child in expression.children]
    if isinstance(expression, Sum):
        return _largest(degrees)
    if isinstance(expression, Product):
        return None if None in degrees else sum(degree or 0 for degree in degrees)
    if isinstance(expression, Power) and isinstance(expression.exponent, Constant) and degrees[0] is not None:
        power = expression.exponent.value
        return degrees[0] * int(power) if power > 0 and power == int(power) else None
    return None


def _largest(degrees: list[int | None]) -> int | None:
    return None if None in degrees else max(degree or 0 for degree in degrees)


def _reads_y(expression: Expression) -> bool:
    """Return whether an expression reads y, or its first column if y has several."""
    if isinstance(expression, Observation):
        return expression.column in (None, 0)
    return any(map(_reads_y, expression.children))


R = TypeVar("R")
Formula = Callable[..., Expression]
Sampler = Callable[..., np.ndarray]
Symbols = tuple[tuple[str, bool, int | None], ...]
Values = Mapping[str, ArrayLike]


class Likelihood(precision.DoublePrecision, precision.Module):
    """The density p(y | f) of one datum as a formula.

    ``parameters`` has a Parameter for each argument of the formula after ``y`` and ``f``. ``num_latents`` is the number
    of latent GPs, if the likelihood fixes it. ``conditional_mean`` and ``conditional_variance`` are formulas of
    E[y | f] and Var[y | f]; they are needed unless the support is a short list of values. ``sampler`` draws y with
    NumPy. ``options`` are the arguments of the function ``name`` that are not parameters, by name.
    """

    parameters: dict[str, Parameter]
    name: str = eqx.field(static=True)
    function: Formula = eqx.field(static=True)
    declared_support: Support | None = eqx.field(static=True, default=None)
    conditional_mean: Formula | None = eqx.field(static=True, default=None)
    conditional_variance: Formula | None = eqx.field(static=True, default=None)
    num_latents: int | None = eqx.field(static=True, default=None)
    sampler: Sampler | None = eqx.field(static=True, default=None)
    options: tuple[tuple[str, Any], ...] = eqx.field(static=True, default=())

    def __getstate__(self) -> dict[str, Any]:
        functions = pack_functions(self.function, self.conditional_mean, self.conditional_variance, self.sampler)
        names = ("function", "conditional_mean", "conditional_variance", "sampler")
        return super().__getstate__() | dict(zip(names, functions, strict=True))

    def formula(self, size: int) -> Expression:
        """Return the formula over ``size`` latents as an expression."""
        return trace(self.function, size, self.symbols)

    def support(self, size: int) -> Support:
        """Return the declared support of y, or else infer it from the formula.

        A formula that reads f[y] or largest(f, y) has class indices; a formula that is Gaussian in y has real numbers.
        """
        if self.declared_support is not None:
            return self.declared_support
        formula = self.formula(size)
        selected = (node.index for node in _nodes(formula) if isinstance(node, Selected | Largest))
        if any(isinstance(index, Observation) and index.column is None for index in selected):
            return Classes(size)
        columns = max(columns_of(formula), default=0)
        if is_gaussian(formula):
            return Given(Real(), *[AnyNumber()] * columns) if columns else Real()
        return Undeclared(columns + 1)

    def moments(self, y: ArrayLike, f: np.ndarray, size: int) -> tuple[RealArray, RealArray] | None:
        """Return E[y | f] and Var[y | f], shapes (..., n), or None if they are unknown.

        They are known from formulas, or if the density is Gaussian in y.
        """
        mean, variance = self.conditional_mean, self.conditional_variance
        if mean is not None and variance is not None:
            return _run(_values, self, y, f, mean, variance)  # type: ignore[return-value]
        return self.gaussian_moments(y, f) if self.is_gaussian(size) else None

    def gaussian_moments(self, y: ArrayLike, f: Array | np.ndarray) -> tuple[Array, Array]:
        """Return the mean and variance (..., n) of y for a formula that is Gaussian in y."""
        return _gaussian_moments(self.function, f.shape[-1], self.symbols, y, f, self.values)

    def is_gaussian(self, size: int) -> bool:
        """Return whether y is a real number that is Gaussian given the latents."""
        return is_gaussian(self.formula(size)) and self.support(size).is_whole_line

    def draws_exactly(self, size: int) -> bool:
        """Return whether y can be drawn without numerical inversion of its distribution function."""
        return self.sampler is not None or self.is_gaussian(size)

    def draw(self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """Draw the first column of y for each datum by the sampler, from y (n,) or (n, columns) and latents (n, L).

        Raises ValueError if the sampler does not return one number per datum.
        """
        assert self.sampler is not None
        n, size = f.shape
        values = {
            name: np.broadcast_to(np.ravel(self.values[name]), n)
            if length is None
            else np.broadcast_to(self.values[name], (n, length)).T
            for name, _, length in self.symbols
        }
        drawn = np.asarray(self.sampler(rng, y.T, f[:, 0] if size == 1 else f.T, **values))
        if drawn.shape != (n,):
            raise ValueError(
                f"the sampler of {self.name} must return one number per datum, shape ({n},); got {drawn.shape}."
            )
        return drawn.astype(np.float64)

    def columns(self, size: int, *formulas: Formula | None) -> set[int]:
        """Return the columns of y that the formulas read."""
        read = [columns_of(trace(formula, size, self.symbols)) for formula in formulas if formula is not None]
        return set().union(*read)

    @property
    def values(self) -> dict[str, Any]:
        """The current values of the parameters."""
        return {name: parameter.value for name, parameter in self.parameters.items()}

    def at(self, y: ArrayLike, f: ArrayLike) -> Environment:
        """Return the values of the formula's symbols as NumPy arrays."""
        values = {name: np.asarray(value) for name, value in self.values.items()}
        return Environment(np.asarray(y), np.asarray(f), values)

    def with_values(self, values: Values) -> "Likelihood":
        """Return a copy with other values of some parameters; arrays broadcast against latents (..., n, L)."""
        if not values:
            return self
        parameters = {name: p.with_value(values.get(name, p.value)) for name, p in self.parameters.items()}
        return replace(self, parameters=parameters)

    @property
    def symbols(self) -> Symbols:
        """The name, positivity and length of each parameter; the length of a scalar is None."""
        return tuple((name, bool(p.positive), p.length) for name, p in self.parameters.items())

    def __repr__(self) -> str:
        arguments = [f"{name}={value!r}" for name, value in self.options]
        arguments += [f"{name}={p.written(with_sign=True)}" for name, p in self.parameters.items()]
        if not self.options and isinstance(self.declared_support, Classes) and self.function.__name__ != self.name:
            # The likelihood was made by a function of the number of classes, such as LogisticSoftmax.
            arguments.insert(0, str(self.declared_support.num_classes))
        return f"{self.name}({', '.join(arguments)})"


class LikelihoodFamily:
    """The result of ``pgm.likelihood``; a call with parameter values returns a Likelihood."""

    def __init__(
        self,
        function: Formula,
        support: Support | None,
        mean: Formula | None,
        variance: Formula | None,
        num_latents: int | None,
        sampler: Sampler | None,
    ):
        arguments = _read_arguments(function, "the formula")[2:]
        names = [argument.name for argument in arguments]
        if (mean is None) != (variance is None):
            declared, missing = ("mean", "variance") if variance is None else ("variance", "mean")
            raise ValueError(
                f"the likelihood {function.__name__} declares {declared}= without {missing}=: give the formulas of "
                "E[y | f] and Var[y | f] together, or neither."
            )
        for name, formula in (("mean", mean), ("variance", variance)):
            if formula is None:
                continue
            others = [argument.name for argument in _read_arguments(formula, f"{name}=")[2:]]
            if sorted(others) != sorted(names):
                raise ValueError(
                    f"{name}= of the likelihood {function.__name__} must accept y, f and the formula's parameters "
                    f"({', '.join(names) or 'none'}); got ({', '.join(others) or 'none'}) after the first two."
                )
        if sampler is not None:
            accepted = list(inspect.signature(sampler).parameters) if callable(sampler) else []
            if sorted(accepted[3:]) != sorted(names) or len(accepted) < 3:
                raise ValueError(
                    f"sampler of the likelihood {function.__name__} must be a function "
                    f"({', '.join(['rng', 'y', 'f', *names])}) that draws y with a NumPy generator; got {sampler!r}."
                )
        if support is not None and not isinstance(support, Support):
            raise ValueError(
                f"support of the likelihood {function.__name__} must be a support such as pgm.Counts(); got "
                f"{support!r}."
            )
        self.function, self.support, self.mean, self.variance = function, support, mean, variance
        self.num_latents, self.sampler, self.arguments = num_latents, sampler, arguments
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __reduce__(self) -> tuple[Any, ...]:
        reference = precision.pack_function(self)
        if isinstance(reference, precision.PickledByName):
            return reference.__reduce__()
        function, mean, variance, sampler = pack_functions(self.function, self.mean, self.variance, self.sampler)
        return LikelihoodFamily, (function, self.support, mean, variance, self.num_latents, sampler)

    def __copy__(self) -> "LikelihoodFamily":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Likelihood:
        """Return the likelihood with these parameter values; numbers are start values for ``fit``."""
        names = [argument.name for argument in self.arguments]
        if len(args) > len(names):
            raise ValueError(f"{self.__name__} has {len(names)} parameters ({', '.join(names)}); got {len(args)}.")
        values = dict(zip(names, args, strict=False)) | kwargs
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise ValueError(f"{self.__name__} has no parameter {unknown[0]!r}; it has {', '.join(names) or 'none'}.")
        parameters = {argument.name: self._parameter(argument, values) for argument in self.arguments}
        moments = self.mean, self.variance
        return Likelihood(
            parameters, self.__name__, self.function, self.support, *moments, self.num_latents, self.sampler
        )

    def _parameter(self, argument: inspect.Parameter, values: dict[str, Any]) -> Parameter:
        default = argument.default
        declared = default if isinstance(default, Parameter) else Parameter(None)
        if not isinstance(default, Parameter) and default is not inspect.Parameter.empty:
            declared = as_declared(default, None, argument.name, positive=False)
        value = values.get(argument.name, declared)
        if value is None or (isinstance(value, Parameter) and value.value is None):
            raise ValueError(
                f"{self.__name__} needs a value for {argument.name}: {self.__name__}({argument.name}=...)."
            )
        parameter = as_declared(value, declared, f"{argument.name} of {self.__name__}", positive=False)
        if np.ndim(parameter.value) > 1 or np.size(parameter.value) == 0:
            raise ValueError(
                f"{argument.name} of {self.__name__} must be one number or a list of numbers; got an array of shape "
                f"{np.shape(parameter.value)}. Declare a matrix as one parameter per row; put values that differ "
                "between data into columns of y, or index the entries by a column of y, as in "
                f"{argument.name}[y[1]]."
            )
        return parameter

    def __repr__(self) -> str:
        return f"<likelihood {self.__name__}>"


# Argument names that reveal swapped arguments.
_LATENT_NAMES = ("f", "latent", "latents")
_OBSERVED_NAMES = ("y", "observation", "observed")


def _read_arguments(function: Formula, what: str) -> list[inspect.Parameter]:
    """Return the arguments of a formula. Raise ValueError unless the first two can be y and f and all have names."""
    if not callable(function):
        raise ValueError(f"{what} of a likelihood must be a function of y and f; got {function!r}.")
    name = getattr(function, "__name__", type(function).__name__)
    arguments = list(inspect.signature(function).parameters.values())
    listed = ", ".join(str(argument) for argument in arguments)
    kinds = {argument.kind for argument in arguments[2:]}
    if kinds - {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        raise ValueError(f"{what} {name} must name its parameters, without *args, **options and /; got ({listed}).")
    if len(arguments) < 2:
        raise ValueError(f"{what} {name} must accept y and f first, as in def {name}(y, f); got ({listed}).")
    if arguments[0].name in _LATENT_NAMES or arguments[1].name in _OBSERVED_NAMES:
        raise ValueError(
            f"{what} {name} has the arguments ({listed}), but the observation comes first and the latent second: write "
            f"def {name}(y, f)."
        )
    return arguments


class _Options(TypedDict, total=False):
    support: Support | None
    mean: Formula | None
    variance: Formula | None
    num_latents: int | None
    sampler: Sampler | None


@overload
def likelihood(function: Formula, **options: Unpack[_Options]) -> LikelihoodFamily: ...


@overload
def likelihood(function: None = None, **options: Unpack[_Options]) -> Callable[[Formula], LikelihoodFamily]: ...


def likelihood(
    function: Formula | None = None,
    *,
    support: Support | None = None,
    mean: Formula | None = None,
    variance: Formula | None = None,
    num_latents: int | None = None,
    sampler: Sampler | None = None,
) -> LikelihoodFamily | Callable[[Formula], LikelihoodFamily]:
    """Turn a formula into a likelihood; a decorator, with or without options.

    Its parameters follow, e.g. ``def name(y, f, slope=pgm.Parameter(2.0))``. It is called once, with symbols, and uses
    arithmetic, comparisons, ``pgm.sigmoid``, ``pgm.sum`` and so on. Factors that do not depend on f may be omitted.

    Parameters
    ----------
    function : callable
        The formula of p(y | f): a function of the observation ``y`` (``y[0]``, ``y[1]`` if it has columns), the latent
        value or vector of latents ``f``, and parameters. A parameter is a real number unless its default has
        ``positive=True`` or a ``constraint``.
    support : Support, optional
        The support of y (``pgm.Binary()``, ``pgm.Counts()``, ...), for checks and predictions.
    mean, variance : callable, optional
        Formulas of E[y | f] and Var[y | f], with the arguments of ``function``; both or neither.
    num_latents : int, optional
        The number of latents, if the formula fixes it.
    sampler : callable, optional
        ``sampler(rng, y, f, parameter)`` draws y (n,) with a NumPy generator. It replaces numerical inversion of the
        formula's distribution function. ``f`` is (n,) or (latents, n), and ``y`` is (n,) or (columns, n).

    Returns
    -------
    LikelihoodFamily
        A call with parameter values returns a Likelihood. With options alone, the result is the decorator.

    Raises
    ------
    ValueError
        If the arguments of the functions do not match, or ``support`` is not a support.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> @pgm.likelihood(support=pgm.Binary())
    ... def noisy(y, f, share=pgm.Parameter(0.1, positive=True)):
    ...     return (1 - share) * pgm.sigmoid((2 * y - 1) * f) + share / 2
    >>> model = pgm.Model(noisy(), pgm.GP(pgm.RBF()))
    >>> len(pgm.derive(model).augmentation.rules)
    2
    >>> bool(pgm.cavi(model, [[0.0], [1.0], [2.0]], [0, 1, 1]).predict([[2.0]]).probabilities[0, 1] > 0.5)
    True
    """
    if function is None:
        return lambda function: LikelihoodFamily(function, support, mean, variance, num_latents, sampler)
    return LikelihoodFamily(function, support, mean, variance, num_latents, sampler)


def pack_functions(
    function: Formula, mean: Formula | None, variance: Formula | None, sampler: Sampler | None
) -> list[precision.PickledByName | precision.PickledByValue | None]:
    """Return the functions of a likelihood for pickling; functions of a module are stored by name."""
    roles = {"function": function, "mean": mean, "variance": variance, "sampler": sampler}
    family = getattr(function, "__qualname__", "")
    return [f and precision.pack_function(f, f"{family}.{role}") for role, f in roles.items()]


# Up to this number of latents, NumPy evaluates a formula faster than a program is compiled.
_FEW = 2_000_000


@np.errstate(all="ignore")
def _run(program: compiled[..., R], likelihood: Likelihood, y: ArrayLike, f: ArrayLike, *formulas: Formula) -> R:
    """Evaluate a program at latents f (..., n, L): by NumPy if they are few, else compiled."""
    traced = formulas, np.shape(f)[-1], likelihood.symbols
    if np.size(f) > _FEW:
        return program(*traced, precision.as_array(y), precision.as_array(f), likelihood.values)
    env = likelihood.at(y, f)
    return program.__wrapped__(*traced, env.y, env.f, env.parameters)


@partial(compiled, static_argnames=("formulas", "size", "symbols"))
def _values(
    formulas: tuple[Formula, ...], size: int, symbols: Symbols, y: RealArray, f: RealArray, values: Values
) -> tuple[RealArray, ...]:
    env = Environment(y, f, values)
    each = (trace(formula, size, symbols).evaluate(env)[..., 0] for formula in formulas)
    return tuple(env.xp.broadcast_to(value, f.shape[:-1]) for value in each)


@partial(
    compiled, static_argnames=("function", "size", "symbols"), optimise=lambda *args: np.size(args[-2]) > 1_000_000
)
def _gaussian_moments(
    function: Formula, size: int, symbols: Symbols, y: ArrayLike, f: Array | np.ndarray, values: Values
) -> tuple[Array, Array]:
    """Return the mean m and variance s² (..., n) of y: at y = 0, log p has slope m/s² and curvature -1/s²."""
    formula, y = trace(function, size, symbols), jnp.asarray(y, dtype=f.dtype)
    first = jnp.zeros(y.shape) if y.ndim == 1 else y.at[..., 0].set(0.0)
    direction = jnp.ones(y.shape) if y.ndim == 1 else jnp.zeros(y.shape).at[..., 0].set(1.0)

    def log_density(y: Array) -> Array:
        return jnp.broadcast_to(formula.log_evaluate(Environment(y, jnp.asarray(f), values))[..., 0], f.shape[:-1])

    def slope(y: Array) -> Array:
        return jax.jvp(log_density, (y,), (direction,))[1]

    potential, curvature = jax.jvp(slope, (first,), (direction,))
    return -potential / curvature, -1.0 / curvature


@lru_cache(maxsize=512)
def trace(function: Formula, size: int, symbols: Symbols) -> Expression:
    """Call a formula with symbols and return an expression over ``size`` latents."""
    f = Latent(0, 1) if size == 1 else Latents(size)
    parameters = {
        name: ParameterSymbol(name, positive) if length is None else VectorSymbol(name, positive, length)
        for name, positive, length in symbols
    }
    try:
        return as_expression(function(Observation(), f, **parameters))
    except TypeError as error:
        # Errors of JAX and other libraries name the type of the symbol but no remedy.
        if "pgmodels.likelihoods" not in str(error):
            raise
        raise TypeError(
            f"the formula {function.__name__} calls a function that does not accept its symbols ({error}): use "
            "arithmetic and the functions pgm.exp, pgm.log, pgm.sqrt, pgm.sum and so on."
        ) from error


def _nodes(expression: Expression) -> list[Expression]:
    return [expression] + [node for child in expression.children for node in _nodes(child)]


def columns_of(formula: Expression) -> list[int]:
    """Return the columns of y that an expression reads."""
    return [node.column for node in _nodes(formula) if isinstance(node, Observation) and node.column is not None]


@precision.double_precision
def log_density(likelihood: Likelihood, y: ArrayLike, f: ArrayLike) -> np.ndarray:
    """Return log p(y | f) of each datum, shape (..., n), for f (..., n, latents).

    ``y`` is (..., n), or (..., n, columns) if the formula reads columns; its leading axes broadcast against f's.
    """
    return np.asarray(_run(_log_density, likelihood, y, f, likelihood.function))


def log_integral(likelihood: Likelihood, y: ArrayLike, f: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """Return log Σ_k w_k p(y | f_k) of each datum, (..., n), for f (nodes, n, latents) and log weights (nodes,).

    ``y`` is (n,), or (..., 1, n) for several values at the same nodes. Columns of y are an additional last axis.
    """
    return logsumexp(log_density(likelihood, y, f) + log_weights[:, None], axis=-2)


def entries_out_of_range(formula: Expression, env: Environment) -> Iterator[tuple[ParameterSymbol, np.ndarray]]:
    """Return parameter entries whose index, computed from y, is out of range, and a mask (n,) of the rows."""
    if isinstance(formula, ParameterSymbol) and formula.children:
        index = np.asarray(formula.children[0].evaluate(env))[..., 0]
        invalid = ~np.isin(index, np.arange(formula.length))
        if invalid.any():
            yield formula, np.broadcast_to(invalid, np.shape(env.f)[:-1])
    for child in formula.children:
        yield from entries_out_of_range(child, env)


def undefined_coefficients(formula: Expression, env: Environment) -> Iterator[tuple[Expression, np.ndarray]]:
    """Return coefficients of latents that are not finite in some rows, and a mask (n,) of the rows."""
    for coefficient in coefficients(formula):
        log = coefficient.nonnegative
        values = np.asarray(coefficient.log_evaluate(env) if log else coefficient.evaluate(env))
        # A logarithm of -inf is allowed, since indicators may be 0.
        undefined = (np.isnan(values) | (np.isinf(values) & ~(log & (values < 0))))[..., 0]
        if undefined.any():
            yield coefficient, np.broadcast_to(undefined, np.shape(env.f)[:-1])


def coefficients(formula: Expression, inside: bool = False) -> Iterator[Expression]:
    """Return the terms added to latents, which must be finite, such as log(y) in f + log(y).

    Factors ``inside`` the argument of a function must be finite too. Other factors are used only by their logarithms.
    """
    if formula.latent_free:
        return
    within = inside or isinstance(formula, Call)
    for child in formula.children:
        yield from coefficients(child, within)
        if child.latent_free and (isinstance(formula, Sum) or (inside and isinstance(formula, Product))):
            yield child


@partial(compiled, static_argnames=("formulas", "size", "symbols"))
def _log_density(
    formulas: tuple[Formula, ...], size: int, symbols: Symbols, y: RealArray, f: RealArray, values: Values
) -> RealArray:
    return trace(formulas[0], size, symbols).log_evaluate(Environment(y, f, values))[..., 0]


@dataclass(frozen=True)
class OfFormula:
    """A formula that is made from another formula and has its name."""

    formula: Formula

    @property
    def __name__(self) -> str:
        return self.formula.__name__


@dataclass(frozen=True)
class Weighted(OfFormula):
    """A formula to the power of a weight, the column of y after the formula's ``num_columns``."""

    num_columns: int

    def __call__(self, y: Observation, f: Latent | Latents, **parameters: ParameterSymbol | VectorSymbol) -> Expression:
        observation = y[0] if self.num_columns == 1 else y
        return self.formula(observation, f, **parameters) ** y[self.num_columns]


def to_power(likelihood: Likelihood, size: int) -> Likelihood:
    """Return the likelihood over ``size`` latents to the power of a weight, which is one more column of y."""
    support = likelihood.support(size)
    formula = Weighted(likelihood.function, support.num_columns)
    return replace(likelihood, function=formula, declared_support=Given(support, Positive()))


def check_weights(value: Any, num_rows: int) -> np.ndarray:
    """Return weights as a float64 array (n,). Raise ValueError unless each is >= 0 and one is positive."""
    weights = as_numbers(value, "weights")
    if weights.shape != (num_rows,):
        hint = f" Use {as_array_code(value, 'weights')}.ravel()." if weights.shape == (num_rows, 1) else ""
        raise ValueError(
            f"weights must have shape ({num_rows},), one for each row of X; got shape {weights.shape}.{hint}"
        )
    if (row := first_row(~(np.isfinite(weights) & (weights >= 0)))) is not None:
        raise ValueError(
            f"weights must be finite and >= 0; got {weights[row]:g} in row {row}. A weight is the number of times "
            "that a row counts; a row of weight 0 is ignored."
        )
    if not weights.any():
        raise ValueError("weights are all 0, and so every row is ignored: give at least one row a weight above 0.")
    return weights
