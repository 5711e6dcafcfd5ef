"""Terms of a formula as Gaussian processes, with their default priors."""

import ast
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from numpyro.distributions import constraints

from pgmodels.kernels.columns import On
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.line import Line
from pgmodels.kernels.others import Linear, Periodic, White
from pgmodels.kernels.sphere import Sphere
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52
from pgmodels.model import GP
from pgmodels.parameters.parameter import Fixed, Parameter, middle_of
from pgmodels.parameters.restricted import sd
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.priors.markov.representation import Markov
from pgmodels.priors.representation import Auto, Dense
from pgmodels.regression.columns import Columns, Design, Levels, Numbers, moments, require_columns
from pgmodels.regression.expressions import quoted
from pgmodels.regression.foreign import COVARIANCES, OPTIONS
from pgmodels.regression.grammar import By, Call, Group, written
from pgmodels.runtime.x64 import double_precision

_COVARIANCES: dict[str, Any] = {
    "rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52, "periodic": Periodic
}  # fmt: skip
_OPTIONS: dict[str, tuple[str, ...]] = {
    "gp": ("by", "cov", "iso", "period", "k", "sphere", "markov"), "s": ("by", "k", "markov"),
    "ar1": ("by", "markov"), "offset": ()
}  # fmt: skip
# Kernels of one column that are Markov processes, and the number of values from which a term is one by default: with
# as many a dense sweep takes minutes, and gibbs and integrate, which need a factor, hours.
_CHAINS, _MANY = (Matern12, Matern32, Matern52), 5000
# Prior deviations of coefficients, in deviations of y over those of x, as in rstanarm and bambi, and that of an
# intercept, in those of a coefficient.
SPREAD, _OF_INTERCEPT = 2.5, 2.5
# A flat prior is normal with as many default deviations: rounding errors of a proper posterior are as large.
_FLAT = 1e8
# Scales whose squares, times those of a prior, are far from the largest number.
_LARGEST = 1e150
# A smooth bends as often as the ten basis functions that mgcv has by default.
_BENDS = 0.1
# Normal quantile of 99 %: lengthscales have 98 % of their prior between two distances.
_QUANTILE = 2.326


class Given(NamedTuple):
    """A prior that a user gives to a coefficient: Student-t, normal if freedom is infinite, flat if scale is."""

    mean: float
    scale: float
    freedom: float = np.inf


class Coefficients(NamedTuple):
    """What the prior of linear terms is besides the kernel, which reads the columns of the design less ``centre``.

    Coefficients where ``is_constant``, of the intercept or of levels in its place, have the constant mean of the
    latent. ``means`` are the prior means of all beyond that; their line is an offset of the predictor. ``priors`` are
    those of the user, by name.
    """

    centre: np.ndarray
    is_constant: np.ndarray
    means: np.ndarray
    priors: dict[str, Given]


class Term(NamedTuple):
    """A term: its text, its columns, and the kernel of these; ``mean`` is the constant prior mean of its latent.

    ``predictor`` is the number of the likelihood's latent that it is a part of; linear terms have ``coefficients``.
    ``names`` are those that summaries have for hyperparameters of the kernel, standard deviations for variances.
    """

    text: str
    columns: tuple[Columns, ...]
    kernel: Kernel
    names: dict[str, str]
    form: Any = Auto()
    mean: float = 0.0
    predictor: int = 0
    coefficients: Coefficients | None = None

    @property
    def name(self) -> str:
        """The text by which results and priors name the term."""
        return self.prefix + ("linear" if self.is_linear else self.text)

    @property
    def prefix(self) -> str:
        """What names of a further latent of the likelihood begin with."""
        return f"f[{self.predictor}]: " if self.predictor else ""

    @property
    def is_linear(self) -> bool:
        """Whether these are the linear terms of a predictor."""
        return self.coefficients is not None

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        """Its columns of X (n, k)."""
        X = np.concatenate([part.read(frame, name) for part in self.columns], axis=1)
        return X if self.coefficients is None else X - self.coefficients.centre

    def gp(self, block: range, size: int) -> GP:
        """The GP of ``size`` latents of a block of columns of X."""
        return GP(On(self.kernel, block), mean=Fixed(self.mean), size=size, form=self.form)


def linear_term(
    design: Design, frame: pd.DataFrame, scale: float, level: float, priors: dict[str, Any], counts: np.ndarray
) -> Term:
    """Coefficients with independent priors: one latent, linear in the columns of the design.

    Those with a Student-t prior are normal given their variances, of which each has an inverse gamma prior.

    The default prior of an intercept, or of levels in its place, is of the line at the means of the other columns: at
    their origin, which may be far away, the line is less certain. A prior that is given is of the line at the origin.
    """
    X, names = design.read(frame), design.names
    middle, deviations = moments(X, counts)
    # Deviations of a column of one value are rounding errors.
    deviations = np.where(np.ptp(X[counts > 0.0], axis=0) > 0.0, deviations, 1.0)
    with np.errstate(over="ignore", divide="ignore"):
        spread, means = SPREAD * scale / deviations, np.zeros(len(names))
    of_user = {name: _read_prior(name, priors.pop(name)) for name in names if name in priors}
    is_flat = np.array([name in of_user and of_user[name].scale == np.inf for name in names])
    is_constant, is_given = design.constant(X), np.array([name in of_user for name in names]) & ~is_flat
    centre = np.where(is_constant, 0.0, middle) * is_constant.any()
    spread[is_constant] *= _OF_INTERCEPT
    if (is_constant & is_given).any():
        spread[is_constant] *= np.sqrt(1.0 + np.sum((centre / deviations) ** 2))
        centre = np.zeros_like(centre)
    mean = level if is_constant.any() else 0.0
    for number in np.flatnonzero(is_given):
        location, spread[number], _ = of_user[names[number]]
        if is_constant.sum() == is_constant[number] == 1:
            mean = location
        means[number] = location - mean * is_constant[number]
    spread[is_flat] *= _FLAT
    with np.errstate(over="ignore"):
        variances = spread**2
    if not np.isfinite(variances).all():
        name = names[int(np.argmax(spread))]
        raise ValueError(
            f"data: the prior of {name} has a standard deviation of {spread.max():.3g}, so that its variance overflows "
            "double precision. Change the units of the response or of the columns, or give this coefficient a prior."
        )
    coefficients = Coefficients(centre, is_constant, means, of_user)
    freedom = np.array([of_user[name].freedom if name in of_user else np.inf for name in names])
    kernel = _linear(variances, freedom)
    shown = {"variance": "prior sd"} if np.isfinite(freedom).any() else {}
    return Term(design.formula, (design,), kernel, shown, mean=mean, coefficients=coefficients)


def _linear(variances: np.ndarray, freedom: np.ndarray) -> Kernel:
    """The kernel of coefficients with squared scales ``variances``, and the degrees of freedom of Student-t priors."""
    student = np.isfinite(freedom)
    if not student.any():
        return Linear(Fixed(variances))
    half = 0.5 * freedom[student]
    kernel: Kernel = On(Linear(dist.InverseGamma(half, half * variances[student])), np.flatnonzero(student).tolist())
    if student.all():
        return kernel
    return On(Linear(Fixed(variances[~student])), np.flatnonzero(~student).tolist()) + kernel


def _read_prior(name: str, prior: Any) -> Given:
    """The prior of a coefficient that a user gives."""
    any_number = dist.ImproperUniform(constraints.real, (), ())
    if isinstance(prior, dist.ImproperUniform) and (prior.support, prior.shape()) == (any_number.support, ()):
        prior = "flat"
    if isinstance(prior, str) and prior == "flat":
        return Given(0.0, np.inf)
    if not isinstance(prior, dist.Normal | dist.StudentT | dist.Cauchy) or prior.shape():
        raise ValueError(
            f"priors: that of the coefficient {name} must be dist.Normal(mean, sd), dist.StudentT(df, mean, scale) or "
            f"'flat'; got {prior!r}."
        )
    freedom = getattr(prior, "df", 1.0 if isinstance(prior, dist.Cauchy) else np.inf)
    stated = Given(float(prior.loc), float(prior.scale), float(freedom))
    if not (np.isfinite(stated.mean) and 0.0 < stated.scale < np.inf and stated.freedom > 0.0):
        raise ValueError(
            f"priors: that of the coefficient {name} must have a finite mean, a finite sd or scale > 0 and df > 0; got "
            f"{type(prior).__name__} with mean {stated.mean} and scale {stated.scale}."
        )
    return stated


def check_call(call: Call) -> None:
    """Raise ValueError for options that a term does not have, and for several columns where it takes one."""
    unknown = sorted(set(call.options) - set(_OPTIONS[call.name]))
    if unknown:
        taken = f"{call.name} takes {', '.join(_OPTIONS[call.name]) or 'none'}"
        remedy = OPTIONS.get(unknown[0], "")
        raise ValueError(f"formula: {call.text} has no option {unknown[0]!r}; {taken}. {remedy}".rstrip())
    for name, value in call.options.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in ("iso", "sphere", "markov") and not isinstance(value, bool):
            raise ValueError(f"formula: in {call.text}, {name} must be True or False; got {value!r}.")
        if name == "k" and not (is_number and value >= 1 and value == int(value)):
            raise ValueError(
                f"formula: in {call.text}, k must be a whole number of inducing inputs, 1 or more; got {value!r}."
            )
        if name == "period" and not (is_number and 0.0 < value < np.inf):
            raise ValueError(
                f"formula: in {call.text}, period must be a positive number in units of the column; got {value!r}."
            )
    node = call.arguments[0].node if call.arguments else None
    if "by" in _OPTIONS[call.name] and isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        column, group = ast.unparse(node.left), ast.unparse(node.right)
        raise ValueError(
            f"formula: {call.text}: a function of {column} for each level of {group} is written "
            f"{call.name}({column}, by={group})."
        )
    if call.name != "gp" and len(call.arguments) != 1:
        remedy = f" For a function of each level of a factor g write {call.name}(x, by=g)." * (
            "by" in _OPTIONS[call.name]
        )
        raise ValueError(f"formula: {call.text} must have one column; {call.name} takes no more.{remedy}")


def call_term(
    call: Call, frame: pd.DataFrame, scale: float, context: dict[str, Any], priors: dict[str, Any], counts: np.ndarray
) -> Term:
    """The GP of ``gp``, ``s`` or ``ar1``."""
    numbers = Numbers(call.arguments, frame, context, call.text, counts)
    X = numbers.read(frame)
    is_sphere = bool(call.options.get("sphere", False))
    if is_sphere and X.shape[1] != 2:
        raise ValueError(f"formula: {call.text} must have a longitude and a latitude.")
    chosen = _covariance(call, context, priors)
    places = Sphere(RBF()).inputs(X) if is_sphere else X
    is_isotropic = is_sphere or bool(call.options.get("iso", True))
    lengthscale = _lengthscales(places[counts > 0.0], is_isotropic, _BENDS if call.name == "s" else 0.0)
    by = call.options.get("by")
    columns: tuple[Columns, ...] = (numbers,)
    if by is not None:
        other, part = _by(by, frame, context, call.text)
        columns = (numbers, other)
        if isinstance(other, Numbers):
            # The process is a slope.
            scale /= _spread(other, frame, counts)
    values: dict[str, Any] = {"variance": _variance(scale), "lengthscale": lengthscale}
    if chosen is Periodic:
        # Its lengthscale is relative to the period.
        values |= {"lengthscale": dist.LogNormal(0.0, 0.5), "period": Fixed(float(call.options.get("period", 1.0)))}
    kernel = _with_priors(chosen, values, call.text, priors) if isinstance(chosen, type) else chosen
    kernel = Sphere(kernel) if is_sphere else kernel
    if by is not None:
        width = X.shape[1]
        kernel = On(kernel, range(width)) * On(part, [width])
    names = {"variance": f"sd({call.text})"} if isinstance(chosen, type) else {}
    return Term(call.text, columns, kernel, names, _form(call))


def group_term(
    group: Group, frame: pd.DataFrame, scale: float, context: dict[str, Any], priors: dict[str, Any],
    counts: np.ndarray,
) -> Term:  # fmt: skip
    """An effect of each level of a factor, or a slope of each."""
    levels = Levels(group.columns, frame, group.text)
    factor = levels.names[0]
    intercept, slope = f"sd(Intercept | {factor})", f"sd({group.slope} | {factor})"
    if group.slope is None:
        kernel = _with_priors(White, {"variance": _variance(scale)}, group.text, priors)
        return Term(group.text, (levels,), kernel, {"variance": intercept})
    numbers = Numbers([group.slope], frame, context, group.text, counts)
    spread = _spread(numbers, frame, counts)
    if group.is_correlated:
        values = {
            "variance": _variance(scale),
            "slope_variance": _variance(scale / spread),
            "correlation": dist.Uniform(-1.0, 1.0),
        }
        line = _with_priors(Line, values, group.text, priors)
        kernel = On(White(Fixed(1.0)), [0]) * On(line, [1])
        correlation = f"cor(Intercept, {group.slope} | {factor})"
        names = {"variance": intercept, "slope_variance": slope, "correlation": correlation}
        return Term(group.text, (levels, numbers), kernel, names)
    white = _with_priors(White, {"variance": _variance(scale / spread)}, group.text, priors)
    kernel = On(white, [0]) * On(Linear(Fixed(1.0)), [1])
    return Term(group.text, (levels, numbers), kernel, {"variance": slope})


def _form(call: Call) -> Any:
    k, is_chain = call.options.get("k"), call.options.get("markov")
    if k is not None:
        if is_chain:
            raise ValueError(f"formula: {call.text} has k, for inducing inputs, and markov, without: leave one out.")
        return Inducing(int(k))
    return Auto() if is_chain is None else Markov() if is_chain else Dense()


def with_chain(terms: list[Term], frame: pd.DataFrame) -> list[Term]:
    """The terms, of which that of the most values is a Markov process if it can be, has many, and no other is one."""
    places = [
        place
        for place, term in enumerate(terms)
        if isinstance(term.kernel, _CHAINS) and term.form == Auto() and len(term.columns) == 1
    ]
    counts = [len(np.unique(terms[place].read(frame))) for place in places]
    if any(term.form == Markov() for term in terms) or max(counts, default=0) < _MANY:
        return terms
    chosen = places[int(np.argmax(counts))]
    return [term._replace(form=Markov()) if place == chosen else term for place, term in enumerate(terms)]


def _covariance(call: Call, context: dict[str, Any], priors: dict[str, Any]) -> Any:
    if call.name != "gp":
        return Matern12 if call.name == "ar1" else Matern52
    name = call.options.get("cov", "periodic" if "period" in call.options else "matern52")
    chosen = _COVARIANCES.get(name, context.get(name))
    if chosen is None or not (isinstance(chosen, Kernel) or chosen in _COVARIANCES.values()):
        raise ValueError(
            f"formula: in {call.text}, cov must be one of {', '.join(map(repr, _COVARIANCES))}, or the name of a "
            f"kernel in context; got {name!r}." + (f" Write cov={COVARIANCES[name]!r}." if name in COVARIANCES else "")
        )
    columns = ", ".join(map(written, call.arguments))
    if "period" in call.options and chosen is not Periodic:
        raise ValueError(
            f"formula: {call.text} has a period, which cov={name!r} has not. Write gp({columns}, period=...) + "
            f"gp({columns}, cov={name!r}) for a sum, and for a product pass a kernel, as in context={{'product': "
            f"pgm.Periodic(1.0, 1.0, period) * pgm.RBF(1.0, 1.0)}} with gp({columns}, cov='product')."
        )
    prior = priors.get(call.text, {})
    if chosen is Periodic and "period" not in call.options and not (isinstance(prior, dict) and "period" in prior):
        raise ValueError(
            f"formula: {call.text} needs a period in units of the column, as in gp({columns}, period=12), or a prior "
            f"of it, as in priors={{{call.text!r}: {{'period': ...}}}}."
        )
    return chosen


def _by(by: By, frame: pd.DataFrame, context: dict[str, Any], text: str) -> tuple[Columns, Kernel]:
    """The column of ``by``, and the kernel of it that multiplies the term's."""
    require_columns(frame, [by.column], "data", text)
    column = frame[by.column]
    is_number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if is_number and by.marker is None and not column.is_unique and (column == np.floor(column)).all():
        raise ValueError(
            f"formula: in {text}, {by.column} has whole numbers that repeat. Write by=C({quoted(by.column)}) for a "
            f"function of each level, or by=num({quoted(by.column)}) for a coefficient of the number."
        )
    if by.marker == "num" or (is_number and by.marker is None):
        return Numbers([by.column], frame, context, text), Linear(Fixed(1.0))
    return Levels([by.column], frame, text), White(Fixed(1.0))


def _spread(column: Numbers, frame: pd.DataFrame, counts: np.ndarray) -> float:
    """The standard deviation of a column, 1 for a constant."""
    return float(moments(column.read(frame), counts)[1][0]) or 1.0


@double_precision
def half_student(scale: float) -> dist.StudentT:
    """The default prior of standard deviations of a scale, of which the positive half is meant: wide, as in brms."""
    return dist.StudentT(3.0, 0.0, SPREAD * scale)


def _variance(scale: float) -> Parameter:
    """Of a latent, which starts at a deviation of 0.6 times the scale."""
    if scale > _LARGEST:
        raise ValueError(
            f"data: effects have a scale of {scale:.3g}, that of the response over that of a column, so that their "
            "variance overflows double precision. Change the units of the response or of the columns."
        )
    return Parameter(np.exp(2.0 * np.log(scale) - 1.0), prior=sd(half_student(scale)))


def _lengthscales(X: np.ndarray, iso: bool, share: float) -> dist.LogNormal:
    """With 98 % between the distance of near rows, or a share of the range if that is more, and the range."""
    columns = [X] if iso else [X[:, [j]] for j in range(X.shape[1])]
    distances = np.array([_distances(part) for part in columns])
    distances[:, 0] = np.maximum(distances[:, 0], share * distances[:, 1])
    ends = np.log(distances)
    middle, width = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / (2.0 * _QUANTILE)
    return dist.LogNormal(middle[0], width[0]) if iso else dist.LogNormal(middle, width)


def _distances(X: np.ndarray) -> tuple[float, float]:
    """The 2 % quantile of the distances between distinct rows, and the largest, at least twice as large."""
    from scipy.spatial.distance import pdist

    rows = np.unique(X, axis=0)
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), 1000)).astype(int)]
    distances = pdist(rows)
    if not len(distances):
        return 0.5, 2.0
    low, high = float(np.quantile(distances, 0.02)), float(distances.max())
    return low, max(high, 2.0 * low)


def _with_priors(cls: Any, values: dict[str, Any], text: str, priors: dict[str, Any]) -> Kernel:
    """A kernel with default priors, or those of ``priors`` for the term.

    A prior without a median or a mean starts at the default's start value, in the units of the data.
    """
    chosen = priors.pop(text, {})
    if not isinstance(chosen, dict) or set(chosen) - set(values):
        raise ValueError(
            f"priors: that of {text} must be a dict with some of {', '.join(map(repr, values))}; got {chosen!r}. The "
            "prior of a standard deviation is one of the variance, as in {'variance': pgm.sd(dist.HalfNormal(2.5))}."
        )
    for name, prior in chosen.items():
        start = getattr(values[name], "value", None)
        is_weak = start is not None and isinstance(prior, dist.Distribution) and middle_of(prior) is None
        values[name] = Parameter(start, prior=prior) if is_weak and np.all(prior.support(start)) else prior
    return cls(**values)
