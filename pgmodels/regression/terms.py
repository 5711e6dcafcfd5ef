"""Terms of a formula, and their columns."""

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import equinox as eqx
import narwhals.stable.v2 as nw
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from numpyro.distributions import constraints

from pgmodels.data import arrays
from pgmodels.kernels.columns import On, Sphere, Structured, adjacency, icar_covariance, walk_covariance
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.others import ByLevel, Centred, Linear, Periodic, White
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52
from pgmodels.likelihoods.supports import first_row
from pgmodels.model import GP
from pgmodels.parameters.parameter import Fixed, Parameter, is_parameter, middle_of
from pgmodels.parameters.prior import sd
from pgmodels.priors.inducing import Inducing
from pgmodels.priors.markov import Markov
from pgmodels.priors.representation import Auto, Dense
from pgmodels.regression.expressions import COVARIANCES, OPTIONS, Computed, FormulaExpression, quoted
from pgmodels.regression.grammar import By, Group, TermCall, written
from pgmodels.runtime.precision import double_precision


class TrainingData(NamedTuple):
    """The data of a formula, the values of its context by name, and how often each row counts."""

    frame: pd.DataFrame
    context: Mapping[str, Any]
    counts: np.ndarray

    def moments(self, columns: "TermColumns") -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of columns."""
        return moments(columns.read(self.frame), self.counts)


class TermColumns(ABC):
    """Numbers (n, k) of a data frame."""

    names: tuple[str, ...]

    @abstractmethod
    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        """Return the columns of a frame; ValueError, with its ``name``, for missing columns and entries."""


class DesignMatrix(TermColumns):
    """The design matrix of linear terms, by formulaic, and the columns of ``lines``, of smooths."""

    def __init__(
        self, products: Sequence[tuple[FormulaExpression, ...]], data: TrainingData, has_intercept: bool,
        lines: Sequence["Lines"] = (),
    ):  # fmt: skip
        try:
            import formulaic
            from formulaic.parser import types
        except ImportError as error:
            raise ImportError(
                "pgm.formula needs the package formulaic: python -m pip install 'pgmodels[formula]'"
            ) from error
        frame = data.frame
        factors = dict.fromkeys(factor for product in products for factor in product)
        self.formula = " + ".join(":".join(product) or "1" for product in products)
        names = [name for factor in factors for name in factor.names]
        self.reads = list(dict.fromkeys(name for name in names if name in frame.columns))
        frame = _with_used_levels(frame)
        data = data._replace(frame=frame)
        # Columns of levels, by factor.
        self.compared = {
            name: name for name in self.reads if arrays.kind_of_column(frame[name]) in (arrays.LEVEL, arrays.ORDERED)
        }
        for factor in factors:
            match factor.node:
                case ast.Call(ast.Name("C"), [ast.Name(), *arguments], options):
                    self.compared[factor] = factor.names[0]
                    levels = arguments[1:2] + [option.value for option in options if option.arg == "levels"]
                    if levels and factor.names[0] in frame.columns:
                        text = FormulaExpression(ast.unparse(levels[0]), levels[0])
                        chosen = Computed(text, data.context).values(frame)
                        self._require_levels(frame[factor.names[0]], chosen, factor, "data")
        self.computed = [_learned(factor, data) for factor in factors if factor not in self.reads]
        numbers = [name for name in self.reads if name in factors and name.isdecimal()]
        if numbers:
            raise ValueError(f"formula: the name of column {numbers[0]!r} is a number: rename it in data.")
        self.kinds = {name: arrays.kind_of_column(frame[name]) for name in self.reads if name in factors}
        # Dates by themselves are days since the first; formulaic has no linear term of them.
        dates = [name for name, kind in self.kinds.items() if kind in (arrays.DATE, arrays.ZONED)]
        firsts = {name: frame[name].min() for name in dates}
        self.origins = {
            name: str(first if first.tz is None else first.tz_convert(None)) for name, first in firsts.items()
        }
        terms = [
            types.Term(
                [types.Factor(str(factor), eval_method="lookup") for factor in product]
                or [types.Factor("1", eval_method="literal")]
            )
            for product in products
        ]
        parsed = formulaic.Formula(terms, _ordering="none")
        columns, values = self._looked_up(frame, "data"), self._values(frame, "data")
        matrix = _evaluated(lambda: parsed.get_model_matrix(columns, context=values, na_action="raise"), self.formula)
        self.spec = matrix.model_spec
        # Without an intercept factors are coded as if there were one.
        self.kept = [number for number, name in enumerate(matrix.columns) if has_intercept or name != "Intercept"]
        self.names = tuple(matrix.columns[self.kept])
        self.lines = [line for line in lines if not set(line.names) <= set(self.names)]
        self.reads += [name for line in self.lines for name in line.reads]
        self.names += tuple(name for line in self.lines for name in line.names)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        if not self.names:
            return np.empty((len(frame), 0))
        require_values(frame, self.reads, name, self.formula)
        frame = _with_used_levels(frame)
        data, computed = self._looked_up(frame, name), self._values(frame, name)
        for factor, (_, state) in self.spec.encoder_state.items():
            if "categories" in state:
                encoded = computed[factor] if factor in computed else data[factor]
                levels = pd.Series(getattr(encoded, "__wrapped__", encoded))
                self._require_levels(levels, state["categories"], factor, name)
        matrix = _evaluated(lambda: self.spec.get_model_matrix(data, context=computed), self.formula)
        values = np.asarray(matrix, dtype=np.float64)[:, self.kept]
        arrays.check_finite(values, f"{name}, {self.formula}")
        return np.concatenate([values, *(line.read(frame, name) for line in self.lines)], axis=1)

    def _values(self, frame: pd.DataFrame, name: str) -> dict[str, Any]:
        computed = {}
        for one in self.computed:
            values = one.values(frame)
            if isinstance(values, str | int | float | np.generic):
                values = pd.Series([values] * len(frame))
            if getattr(values, "dtype", None) == np.float64:
                arrays.check_finite(np.asarray(values), f"{name}, {one.text}")
            computed[str(one.text)] = values
        return computed

    def constant(self, X: np.ndarray) -> np.ndarray:
        """Which coefficients are the line's constant: the intercept, or without one the levels of a factor."""
        if "Intercept" in self.names:
            return np.array([name == "Intercept" for name in self.names])
        for indices in self.spec.term_indices.values():
            columns = np.pad(np.isin(self.kept, indices), (0, X.shape[1] - len(self.kept)))
            if np.isin(X[:, columns], (0.0, 1.0)).all() and (X[:, columns].sum(axis=1) == 1.0).all():
                return columns
        return np.zeros(len(self.names), dtype=bool)

    def _looked_up(self, frame: pd.DataFrame, name: str) -> pd.DataFrame:
        columns = {}
        for column, kind in self.kinds.items():
            values, place = frame[column], f"{name}, column {column!r},"
            is_level = arrays.kind_of_column(values) in (arrays.LEVEL, arrays.ORDERED)
            if kind in (arrays.LEVEL, arrays.ORDERED):
                columns[column] = values if is_level else values.astype(object)
            elif kind in (arrays.DATE, arrays.ZONED, arrays.DURATION):
                columns[column] = pd.Series(arrays.days_in(values, self.origins.get(column, "")), frame.index)
            elif is_level or (kind == arrays.BOOLEAN and not values.isin([0, 1]).all()):
                raise ValueError(
                    f"{place} must have {arrays.PLURALS[kind]}, as in the training data; got {values.iloc[0]!r} in "
                    "row 0."
                )
            else:
                columns[column] = pd.Series(arrays.floats_in(values, place), frame.index)
        return pd.DataFrame(columns, index=frame.index)

    def _require_levels(self, values: pd.Series, levels: Sequence[Any], factor: str, name: str) -> None:
        if (row := first_row(~values.isin(levels))) is not None:
            column = self.compared.get(factor)
            place = factor if column is None else f"column {column!r}"
            raise ValueError(
                f"{name} has {arrays.as_python(values.iloc[row])!r} in row {row}, {place}, which is not a level "
                f"of this fixed effect in the training data ({arrays.listed(levels)}). A group effect, "
                f"(1|{column or 'group'}), accepts new levels."
            )


class Numbers(TermColumns):
    """Columns of numbers or dates by name, and functions of columns."""

    def __init__(self, expressions: Sequence[FormulaExpression], data: TrainingData, term: str):
        frame, self.names, self.term = data.frame, tuple(expressions), term
        self.reads = [str(name) for one in expressions for name in one.names]
        self.readers: list[Any] = []
        for one in expressions:
            if one.is_name and one not in data.context:
                require_columns(frame, [one], "data", term)
            if one in frame.columns:
                known = arrays.columns_of(nw.from_native(frame[[str(one)]], eager_only=True), "data")
                if known[0].kind == arrays.IDENTIFIER:
                    # Raises.
                    arrays.floats_in(frame[one], f"formula: in {term}, {one}")
                if known[0].kind == "level":
                    raise ValueError(
                        f"formula: {term} needs numbers, dates or ordered categories; {one} has levels without "
                        "an order. Use (1|...) for an effect of each level, or by= for a function of each."
                    )
                self.readers.append(known)
            else:
                computed = _learned(one, data)
                computed.column(frame)
                self.readers.append((computed, [name for name in one.names if name in frame.columns]))

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        columns = []
        for one, reader in zip(self.names, self.readers, strict=True):
            if isinstance(reader[0], Computed):
                computed, names = reader
                require_values(frame, names, name, self.term)
                columns.append(computed.column(frame)[:, None])
                arrays.check_finite(columns[-1], f"{name}, {one} in {self.term}")
                continue
            require_columns(frame, [one], name, self.term)
            values, _ = arrays.read_inputs(frame[[str(one)]], name, reader, is_new=True)
            arrays.check_finite(values, name, reader)
            columns.append(values)
        return np.concatenate(columns, axis=1)


class Levels(TermColumns):
    """The code of the level of a factor, or of the combination of levels of several; new levels have new codes."""

    def __init__(self, factors: Sequence[str], frame: pd.DataFrame, term: str):
        self.factors, self.names, self.term = [str(factor) for factor in factors], (":".join(factors),), term
        keys, _ = self._keys(frame, "data")
        self.codes = {key: code for code, key in enumerate(sorted(keys, key=str))}

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        keys, places = self._keys(frame, name)
        unknown = sorted(set(keys) - set(self.codes), key=str)
        for number, factor in enumerate(self.factors):
            levels = {key[number] for key in self.codes}
            others = [key[number] for key in unknown if key[number] not in levels]
            arrays.check_types_of_levels(others, levels, f"{name}, column {factor!r},")
        codes = self.codes | {key: len(self.codes) + number for number, key in enumerate(unknown)}
        return np.array([float(codes[key]) for key in keys])[places][:, None]

    def _keys(self, frame: pd.DataFrame, name: str) -> tuple[list[tuple[Any, ...]], np.ndarray]:
        require_values(frame, self.factors, name, self.term)
        for factor in self.factors:
            if frame[factor].dtype == np.float64 and not arrays.are_exact(frame[factor]):
                raise ValueError(
                    f"{name}, column {factor!r}, has floats beyond 2^53, where float64 merges neighbours; {self.term} "
                    "needs levels. Give integers or text."
                )
        places = frame.groupby(self.factors, sort=False, observed=True).ngroup().to_numpy()
        firsts = frame.loc[~pd.Series(places).duplicated().to_numpy(), self.factors]
        return list(zip(*(firsts[factor].tolist() for factor in self.factors), strict=True)), places


class Lines(TermColumns):
    """The lines of a smooth: centred columns, for each level of ``by``; of a number, it and its products with them."""

    def __init__(self, numbers: Numbers, by: "Numbers | Levels | None", data: TrainingData):
        self.numbers, self.by, names = numbers, by, list(map(str, numbers.names))
        self.reads = numbers.reads + ([] if by is None else by.reads if isinstance(by, Numbers) else by.factors)
        # Of all rows, as in mgcv: levels are compared at the same mean.
        self.means = np.average(numbers.read(data.frame), axis=0, weights=data.counts)
        if isinstance(by, Numbers):
            names = [str(by.names[0]), *(f"{name}:{by.names[0]}" for name in names)]
        elif by is not None:
            names = [f"{name}:{by.names[0]}[{key}]" for (key,) in by.codes for name in names]
        self.names = tuple(names)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        X = self.numbers.read(frame, name)
        # What multiplies the columns: ones, the numbers of ``by``, or indicators of its levels.
        members = np.ones((len(frame), 1)) if self.by is None else self.by.read(frame, name)
        if isinstance(self.by, Levels):
            members = (members == np.arange(len(self.by.codes))).astype(float)
        columns = members[:, :, None] * (X[:, None, :] - self.means)
        columns = columns.reshape(len(X), -1)
        return np.concatenate([members, columns], axis=1) if isinstance(self.by, Numbers) else columns


class KnownLevels(Levels):
    """The number of the level of a factor, of ``size`` known ones, labelled or else sorted; others are refused."""

    def __init__(self, factor: str, frame: pd.DataFrame, term: str, size: int, labels: Sequence[Any] | None):
        super().__init__([factor], frame, term)
        if labels is None:
            column = frame[factor]
            labels = list(column.cat.categories) if hasattr(column, "cat") else sorted(column.unique())
            if len(labels) != size:
                raise ValueError(
                    f"data, column {factor!r}, has {len(labels)} levels, and the matrix of {term} {size} rows without "
                    "labels. Give a data frame with labels on both axes, or a categorical column with all levels."
                )
        self.codes = {(label,): code for code, label in enumerate(labels)}
        self.read(frame)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        codes = super().read(frame, name)
        if (row := first_row(codes[:, 0] >= len(self.codes))) is not None:
            (factor,), levels = self.factors, [label for (label,) in self.codes]
            raise ValueError(
                f"{name} has {arrays.as_python(frame[factor].iloc[row])!r} in row {row}, column {factor!r}, which "
                f"is not a level of {self.term}; there are {arrays.listed(levels)}."
            )
        return codes


class Places(TermColumns):
    """The number of each place of a random walk, in increasing order."""

    def __init__(self, numbers: Numbers, frame: pd.DataFrame):
        self.numbers, self.names = numbers, numbers.names
        self.reads = numbers.reads
        self.places = np.unique(numbers.read(frame))

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        values = self.numbers.read(frame, name)
        if (row := first_row(~np.isin(values, self.places))) is not None:
            raise ValueError(
                f"{name} has {values[row, 0]:g} in row {row}, {self.numbers.term}, a value without a row in "
                "the data. Add one without a response, with missing='predict', or write s(x), a smooth function."
            )
        return np.searchsorted(self.places, values).astype(np.float64)


def read_frame(data: object, name: str, used: Collection[str]) -> pd.DataFrame:
    """Return a data frame of any library with columns as ``read_column`` has them, and rows numbered from 0.

    Raises ValueError for columns ``used`` without such a type; others are kept as objects.
    """
    frame = arrays.as_frame(data)
    if frame is None:
        labels = list(getattr(data, "columns", ())) if hasattr(data, "iloc") else []
        if labels:
            other = next((label for label in labels if not isinstance(label, str)), labels[0])
            raise ValueError(
                f"{name}: names of columns must be text, as in {name}.columns = ['y', 'x1', 'x2']; got {other!r}."
            )
        raise ValueError(f"{name} must be a data frame of pandas, polars or pyarrow; got {type(data).__name__}.")
    columns = {}
    for label in frame.columns:
        column = arrays.read_column(frame[label])
        if column is None and label in used:
            raise ValueError(f"{name}, column {label!r}, {_unreadable(frame[label].to_list())}")
        columns[label] = pd.Series(frame[label].to_list(), dtype=object) if column is None else column
    return pd.DataFrame(columns)


def _unreadable(entries: Sequence[Any]) -> str:
    """What is wrong with entries of which ``read_column`` makes no column, and the remedy."""
    kinds: dict[str, int] = {}
    for row, entry in enumerate(entries):
        if not arrays.is_missing(entry):
            kind = arrays.kind_of(type(entry))
            is_zoned = kind == "date" and getattr(entry, "tzinfo", None) is not None
            kinds.setdefault(arrays.ZONED if is_zoned else kind, row)
    (kind, row), *others = kinds.items()
    first = f"{entries[row]!r} of type {type(entries[row]).__name__} in row {row}"
    if others:
        return f"has {first} and {entries[others[0][1]]!r} in row {others[0][1]}: give entries of one kind."
    if kind == "number":
        return "has whole numbers beyond 64 bits: convert them to text."
    remedy = "hours, as numbers" if kind == "time" else "numbers, booleans, text, categories, dates or durations"
    return f"has {first}: give {remedy}."


def check_kinds(frame: pd.DataFrame, kinds: Mapping[str, str], name: str) -> None:
    """Raise ValueError for columns of times or durations where the data had none, and the reverse.

    Terms themselves check numbers and levels, of which groups may have others.
    """
    for column, kind in kinds.items():
        got = arrays.kind_of_column(frame[column]) if column in frame.columns else kind
        if got != kind and not {got, kind} <= {arrays.NUMBER, arrays.BOOLEAN, arrays.LEVEL, arrays.ORDERED}:
            raise ValueError(
                f"{name} has {arrays.PLURALS[got]} in column {column!r}, and the training data have "
                f"{arrays.PLURALS[kind]}: convert them."
            )


def with_plain_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with nullable numbers and booleans as plain ones; float64 with NaN where entries are missing."""
    changed = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.api.extensions.ExtensionDtype) and column.dtype.kind in "iub":
            plain = not column.isna().any()
            if plain or not arrays.inexact(column):
                changed[name] = (
                    column.astype(column.dtype.numpy_dtype) if plain else pd.Series(arrays.floats_in(column, ""))
                )
    return frame.assign(**{name: column.set_axis(frame.index) for name, column in changed.items()})


def moments(X: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of columns, of rows that count as often as they have weight.

    Raises ValueError if variances overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(X, axis=0, weights=counts)
        deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=counts))
    if not np.isfinite(deviation).all():
        raise ValueError(
            f"data: numbers of the formula are up to {np.abs(X).max():.3g}, so that their variance overflows double "
            "precision. Change the units of these columns."
        )
    return mean, deviation


def require_columns(frame: pd.DataFrame, names: Sequence[str], name: str, term: str) -> None:
    """Raise ValueError if a frame lacks columns of a term."""
    missing = [column for column in names if column not in frame.columns]
    if missing:
        raise ValueError(f"{name} has no column {missing[0]!r}, which {term} reads; it has {list(frame.columns)}.")


def require_values(frame: pd.DataFrame, names: Sequence[str], name: str, term: str) -> None:
    """Raise ValueError if a frame lacks columns of a term, or entries of these."""
    require_columns(frame, names, name, term)
    for column in names:
        if (row := first_row(frame[column].isna())) is not None:
            raise ValueError(f"{name} has no value in row {row}, column {column!r}, which {term} reads.")


def _with_used_levels(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose categoricals have the levels that occur: others have no coefficient."""
    categories = [name for name in frame.columns if hasattr(frame[name], "cat")]
    return frame.assign(**{name: frame[name].cat.remove_unused_categories() for name in categories})


def _learned(expression: FormulaExpression, data: TrainingData) -> Computed:
    """An expression whose transforms learned from rows that occur as often as they have weight, if that is whole."""
    # With other weights, and with more rows, each counts once, as one that has none does.
    frame, times, most_rows = data.frame, np.where(data.counts > 0.0, data.counts, 1.0), 10_000_000
    computed = Computed(expression, data.context)
    computed.values(frame)
    if computed.states and (times != 1.0).any() and (times == np.floor(times)).all() and times.sum() <= most_rows:
        computed = Computed(expression, data.context)
        computed.values(frame.loc[frame.index.repeat(times.astype(int))].reset_index(drop=True))
    return computed


def _evaluated(call: Callable[[], Any], formula: str) -> Any:
    try:
        return call()
    # Transforms and contrasts raise errors of all kinds for columns that they cannot have.
    except Exception as error:
        raise ValueError(f"formula: {formula} cannot be evaluated: {error}") from error


# Terms of a formula as Gaussian processes, with their default priors.

_COVARIANCES: dict[str, type[Kernel]] = {
    "rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52, "periodic": Periodic
}  # fmt: skip
_OPTIONS: dict[str, tuple[str, ...]] = {
    "gp": ("by", "cov", "iso", "period", "k", "sphere", "markov"), "s": ("by", "k", "markov", "bs", "period"),
    "te": ("k",), "ar1": ("by", "markov"),
    **dict.fromkeys(("ti", "rw1", "rw2", "car", "icar", "bym2", "offset"), ()),
}  # fmt: skip
# Prior deviations of coefficients, in deviations of y over those of x, as in rstanarm and bambi.
SPREAD = 2.5


class LocationScale(NamedTuple):
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
    priors: dict[str, LocationScale]


class FormulaTerm(NamedTuple):
    """A term: its text, its columns, and the kernel of these; ``mean`` is the constant prior mean of its latent.

    ``predictor`` is the number of the likelihood's latent that it is a part of. ``latent`` is its name, such as "f[1]"
    or "sigma", empty for the first. Linear terms have ``coefficients``.
    ``lines`` are the columns of the design of the linear terms that are the line of a smooth.
    ``names`` are the kernel's hyperparameters in summaries: standard deviations for variances, correlations for their
    root. Several entries have a name each, "" for an entry that summaries leave out.
    """

    text: str
    columns: tuple[TermColumns, ...]
    kernel: Kernel
    names: Mapping[str, str | tuple[str, ...]]
    form: Any = Auto()
    mean: float = 0.0
    predictor: int = 0
    latent: str = ""
    coefficients: Coefficients | None = None
    lines: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The text by which results and priors name the term."""
        return self.prefix + ("linear" if self.is_linear else self.text)

    @property
    def prefix(self) -> str:
        """What names of a further latent of the likelihood begin with."""
        return f"{self.latent}: " if self.latent else ""

    @property
    def is_linear(self) -> bool:
        """Whether these are the linear terms of a predictor."""
        return self.coefficients is not None

    @property
    def is_group(self) -> bool:
        """Whether these are effects of the levels of a group."""
        first, *others = self.columns
        return isinstance(first, Levels) and all(isinstance(part, Levels | DesignMatrix) for part in others)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        """Its columns of X (n, k)."""
        X = np.concatenate([part.read(frame, name) for part in self.columns], axis=1)
        return X if self.coefficients is None else X - self.coefficients.centre

    def gp(self, block: range, size: int) -> GP:
        """Return the GP of ``size`` latents of a block of columns of X."""
        return GP(On(self.kernel, block), mean=Fixed(self.mean), size=size, form=self.form)


def linear_term(
    design: DesignMatrix, data: TrainingData, scale: float, level: float, priors: dict[str, Any]
) -> FormulaTerm:
    """Return coefficients with independent priors: one latent, linear in the columns of the design.

    Those with a Student-t prior are normal given their variances, of which each has an inverse gamma prior.

    The default prior of an intercept, or of levels instead, is of the line at the means of the other columns. At their
    origin, which may be far away, the line is less certain. A prior that is given is of the line at the origin.
    """
    X, names = design.read(data.frame), design.names
    middle, deviations = moments(X, data.counts)
    # Deviations of a column of one value are rounding errors.
    deviations = np.where(np.ptp(X[data.counts > 0.0], axis=0) > 0.0, deviations, 1.0)
    # Of an intercept, in deviations of a coefficient. A flat prior is normal with as many default deviations as keep
    # rounding errors of a proper posterior small.
    of_intercept, of_flat = 2.5, 1e8
    with np.errstate(over="ignore", divide="ignore"):
        spread, means = SPREAD * scale / deviations, np.zeros(len(names))
    of_user = {name: _read_prior(name, priors.pop(name)) for name in names if name in priors}
    is_flat = np.array([name in of_user and of_user[name].scale == np.inf for name in names])
    is_constant, is_given = design.constant(X), np.array([name in of_user for name in names]) & ~is_flat
    centre = np.where(is_constant, 0.0, middle) * is_constant.any()
    spread[is_constant] *= of_intercept
    if (is_constant & is_given).any():
        spread[is_constant] *= np.sqrt(1.0 + np.sum((centre / deviations) ** 2))
        centre = np.zeros_like(centre)
    mean = level if is_constant.any() else 0.0
    for number in np.flatnonzero(is_given):
        location, spread[number], _ = of_user[names[number]]
        if is_constant.sum() == is_constant[number] == 1:
            mean = location
        means[number] = location - mean * is_constant[number]
    spread[is_flat] *= of_flat
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
    return FormulaTerm(design.formula, (design,), kernel, shown, mean=mean, coefficients=coefficients)


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


def _read_prior(name: str, prior: object) -> LocationScale:
    if isinstance(prior, LocationScale):
        return prior
    any_number = dist.ImproperUniform(constraints.real, (), ())
    if isinstance(prior, dist.ImproperUniform) and (prior.support, prior.shape()) == (any_number.support, ()):
        prior = "flat"
    if isinstance(prior, str) and prior == "flat":
        return LocationScale(0.0, np.inf)
    if not isinstance(prior, dist.Normal | dist.StudentT | dist.Cauchy) or prior.shape():
        raise ValueError(
            f"priors: the prior of {name} must be dist.Normal(mean, sd), dist.StudentT(df, mean, scale) or 'flat'; "
            f"got {prior!r}."
        )
    freedom = getattr(prior, "df", 1.0 if isinstance(prior, dist.Cauchy) else np.inf)
    stated = LocationScale(float(prior.loc), float(prior.scale), float(freedom))
    if not (np.isfinite(stated.mean) and 0.0 < stated.scale < np.inf and stated.freedom > 0.0):
        raise ValueError(
            f"priors: the prior of {name} must have a finite mean, a finite sd or scale > 0 and df > 0; got "
            f"{type(prior).__name__} with mean {stated.mean} and scale {stated.scale}."
        )
    return stated


def check_call(call: TermCall) -> None:
    """Raise ValueError for options that a term does not have, and for several columns if it accepts one."""
    if call.name == ":":
        for part in call.options["parts"]:
            check_call(part)
        return
    unknown = sorted(set(call.options) - set(_OPTIONS[call.name]))
    if unknown:
        known, remedy = ", ".join(_OPTIONS[call.name]) or "none", OPTIONS.get(unknown[0], "")
        message = f"formula: {call.text} has no option {unknown[0]!r}; {call.name} takes {known}. {remedy}"
        raise ValueError(message.rstrip())
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
    if call.name in ("car", "icar", "bym2"):
        if len(call.arguments) != 2 or not all(one.is_name for one in call.arguments):
            raise ValueError(
                f"formula: {call.text} must be {call.name}(area, W), of a column and the name of a graph in context."
            )
    elif call.name in ("te", "ti") and len(call.arguments) < 2:
        raise ValueError(f"formula: {call.text} must have two columns or more; write s(x) for one.")
    elif call.name not in ("gp", "s", "te", "ti") and len(call.arguments) != 1:
        remedy = f" For a function of each level of a factor g write {call.name}(x, by=g)." * (
            "by" in _OPTIONS[call.name]
        )
        raise ValueError(f"formula: {call.text} must have one column; {call.name} accepts no more.{remedy}")


def call_term(call: TermCall, data: TrainingData, scale: float, priors: dict[str, Any]) -> FormulaTerm:
    """Return the GP of ``gp`` or ``ar1``."""
    numbers = Numbers(call.arguments, data, call.text)
    X = numbers.read(data.frame)
    is_sphere = bool(call.options.get("sphere", False))
    if is_sphere and X.shape[1] != 2:
        raise ValueError(f"formula: {call.text} must have a longitude and a latitude.")
    chosen = _covariance(call, data.context, priors)
    places = Sphere(RBF()).inputs(X) if is_sphere else X
    lengthscale = _lengthscales(places[data.counts > 0.0], is_sphere or bool(call.options.get("iso", True)), 0.0)
    others, of_by, spread = _by(call.options.get("by"), data, call.text)
    values: dict[str, Any] = {"variance": _variance(scale / spread), "lengthscale": lengthscale}
    if chosen is Periodic:
        # Its lengthscale is relative to the period.
        values |= {"lengthscale": dist.LogNormal(0.0, 0.5), "period": Fixed(float(call.options.get("period", 1.0)))}
    kernel = _with_priors(chosen, values, call.text, priors) if isinstance(chosen, type) else chosen
    kernel = _times(Sphere(kernel) if is_sphere else kernel, of_by, X.shape[1])
    names = {"variance": f"sd({call.text})"} if isinstance(chosen, type) else {}
    return FormulaTerm(call.text, (numbers, *others), kernel, names, _form(call))


# Bases of mgcv that are smooth functions of columns without periods.
_BASES = ("tp", "ts", "cr", "cs", "ps", "ds", "gp", "bs")


def has_line(call: TermCall) -> bool:
    """Return whether a term does not contain its lines, which are linear terms."""
    is_smooth = call.name in ("s", "te") and "period" not in call.options and call.options.get("bs", "tp") in _BASES
    return is_smooth or call.name == "rw2"


def lines_of(call: TermCall, data: TrainingData) -> list[Lines]:
    """Return the lines that a smooth does not contain."""
    if not has_line(call):
        return []
    others, *_ = _by(call.options.get("by"), data, call.text)
    return [Lines(Numbers(call.arguments, data, call.text), others[0] if others else None, data)]


def smooth_term(call: TermCall, data: TrainingData, scale: float, priors: dict[str, Any]) -> FormulaTerm:
    """Return the GP of ``s``, ``te`` or ``ti``, without the lines or the constant that are separate terms."""
    basis, by, arguments, text = call.options.get("bs", "tp"), call.options.get("by"), call.arguments, call.text
    if basis == "fs":
        if by is not None or len(arguments) != 2 or not arguments[1].is_name:
            raise ValueError(f"formula: {text} must be s(x, g, bs='fs'), of a column and a factor.")
        by, arguments = By(arguments[1], "C"), arguments[:1]
    elif basis not in (*_BASES, "cc", "cp"):
        raise ValueError(
            f"formula: {text}: bs must be one of {', '.join(map(repr, (*_BASES, 'cc', 'cp', 'fs')))}. An effect of "
            "each level is (1|g), one of areas icar(area, W), and a function on the sphere gp(lon, lat, sphere=True)."
        )
    numbers = Numbers(arguments, data, text)
    X, is_used, period = numbers.read(data.frame), data.counts > 0.0, call.options.get("period")
    used = X[is_used]
    if period is None and basis in ("cc", "cp"):
        period = float(np.ptp(used))
    if period is not None and X.shape[1] != 1:
        raise ValueError(f"formula: {text} must have one column, since it has a period.")
    others, of_by, spread = _by(by, data, text)
    scale /= spread
    # A smooth bends as often as the ten basis functions that mgcv has by default.
    lengthscale = _lengthscales(used, call.name == "s", 0.1)
    values: dict[str, Any] = {"variance": _variance(scale), "lengthscale": lengthscale}
    names: dict[str, Any] = {"variance": f"sd({text})"}
    width, is_line = X.shape[1], has_line(call)
    make: Callable[..., Kernel] = Matern52
    if period is not None:
        make = partial(Periodic, period=Fixed(float(period)))
        values["lengthscale"] = dist.LogNormal(0.0, 0.5)
    if by is None and call.name == "ti":
        # A product of functions without constants has no main effects.
        def made(variance: Any, **lengthscales: Any) -> Kernel:
            variances = [variance] + [Fixed(1.0)] * (width - 1)
            kernels = map(Matern52, variances, lengthscales.values())
            parts = [On(Centred(one, _nodes(used[:, [j]]), False), [j]) for j, one in enumerate(kernels)]
            return reduce(operator.mul, parts)

        each = zip(lengthscale.loc, lengthscale.scale, strict=True)
        of_columns = {f"lengthscale_{j}": dist.LogNormal(*parameters) for j, parameters in enumerate(each)}
        values = {"variance": values["variance"], **of_columns}
        return FormulaTerm(text, (numbers,), _with_priors(made, values, text, priors), names, _form(call))
    if others and isinstance(others[0], Levels) and is_line:
        levels = [key for (key,) in others[0].codes]
        known = KnownLevels(others[0].factors[0], data.frame, text, len(levels), levels)
        codes = known.read(data.frame)[:, 0]
        of_levels = [X[is_used & (codes == code)] for code in range(len(levels))]
        priors_of = [_lengthscales(rows if len(rows) else used, True, 0.1) for rows in of_levels]
        loc, width_of = (np.array([getattr(prior, name) for prior in priors_of]) for name in ("loc", "scale"))
        values = {"variance": _variance(np.full(len(levels), scale)), "lengthscale": dist.LogNormal(loc, width_of)}
        nodes = [np.pad(_nodes(used), ((0, 0), (0, 1)), constant_values=code) for code in range(len(levels))]
        unit = Matern52(Fixed(1.0), Fixed(1.0))
        kernel = _with_priors(lambda **given: ByLevel(unit, num_levels=len(levels), **given), values, text, priors)
        labelled = {f"sd({text})[{level}]": f"{text} lengthscale[{level}]" for level in levels}
        names = {"variance": tuple(labelled), "lengthscale": tuple(labelled.values())}
        kernel = Centred(kernel, np.concatenate(nodes), True, len(levels))
        return FormulaTerm(text, (numbers, known), kernel, names, _form(call))
    kernel = _with_priors(make, values, text, priors)
    if not (call.options.get("markov") or basis == "fs"):
        kernel = Centred(kernel, _nodes(used), is_line)
    return FormulaTerm(text, (numbers, *others), _times(kernel, of_by, width), names, _form(call))


def _nodes(X: np.ndarray, most: int = 50) -> np.ndarray:
    """Rows that stand for all, evenly spaced in their order."""
    ordered = X[np.lexsort(X.T[::-1])]
    return ordered[np.linspace(0, len(X) - 1, min(most, len(X))).round().astype(int)]


def level_term(call: TermCall, data: TrainingData, scale: float, priors: dict[str, Any]) -> FormulaTerm:
    """Return the effects of ``car``, ``icar`` and ``bym2`` of areas with neighbours, and of ``rw1`` and ``rw2``."""
    columns: TermColumns
    if call.name in ("rw1", "rw2"):
        columns = places = Places(Numbers(call.arguments, data, call.text), data.frame)
        order = int(call.name[2])
        if len(places.places) <= order:
            raise ValueError(f"formula: {call.text} needs {order + 1} or more different values.")
        known = Structured.of(walk_covariance(places.places, order))
    else:
        area, graph = call.arguments
        W, labels = adjacency(from_context(graph, data.context, call.text))
        columns = KnownLevels(area, data.frame, call.text, len(W), labels)
        is_car, is_mixture = call.name == "car", call.name == "bym2"
        mixing = Parameter(0.5) if is_mixture else Fixed(1.0)
        known = Structured.car(W) if is_car else Structured.of(icar_covariance(W, is_mixture), mixing=mixing)
    values, names = {"variance": _variance(scale / _typical(known))}, {"variance": f"sd({call.text})"}
    if call.name in ("car", "bym2"):
        values["mixing"], names["mixing"] = dist.Uniform(0.0, 1.0), f"rho({call.text})"
    kernel = _with_priors(lambda **values: known.having(**values), values, call.text, priors)
    return FormulaTerm(call.text, (columns,), kernel, names)


def separable_term(call: TermCall, data: TrainingData, scale: float, priors: dict[str, Any]) -> FormulaTerm:
    """Return the product of two processes, such as of areas and times; the first has the variance."""
    calls, given = call.options["parts"], priors.pop(call.text, {})
    chosen: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    if isinstance(given, dict) and given:
        kernel = process_term(calls[0], data, scale, {}).kernel
        for name, prior in given.items():
            # Of the first, or of the second where the first has none of that name.
            chosen[not hasattr(kernel, name)][name] = prior
    parts = [{part.text: some} if some else {} for part, some in zip(calls, chosen, strict=True)]
    first, second = (process_term(part, data, scale, some) for part, some in zip(calls, parts, strict=True))
    if not hasattr(second.kernel, "variance"):
        raise ValueError(f"formula: in {call.text}, {second.text} has no variance that could be 1: put it first.")
    unit = eqx.tree_at(lambda kernel: kernel.variance, second.kernel, Parameter(1.0, fixed=True), is_leaf=is_parameter)
    widths = [sum(len(part.names) for part in term.columns) for term in (first, second)]
    kernel = On(first.kernel, range(widths[0])) * On(unit, range(widths[0], sum(widths)))
    names = {**second.names, **first.names, "variance": f"sd({call.text})"}
    return FormulaTerm(call.text, (*first.columns, *second.columns), kernel, names)


def process_term(call: TermCall, data: TrainingData, scale: float, priors: dict[str, Any]) -> FormulaTerm:
    """Return the GP of a term that is one."""
    makers = {":": separable_term, "gp": call_term, "ar1": call_term, **dict.fromkeys(("s", "te", "ti"), smooth_term)}
    return makers.get(call.name, level_term)(call, data, scale, priors)


def _typical(known: Structured) -> float:
    """The deviation of an effect of variance 1: the prior of the sd is that of effects, as it is of slopes."""
    variances = np.asarray(known.diagonal(np.arange(len(known.basis.value))[:, None]))
    return float(np.exp(0.5 * np.mean(np.log(variances))))


def from_context(name: str, context: Mapping[str, Any], term: str) -> Any:
    """Return a matrix or graph that a term names."""
    if name not in context:
        raise ValueError(
            f"formula: {term} reads {name}, which is not in context: pass it, as in context={{{name!r}: W}}."
        )
    return context[name]


def group_term(group: Group, data: TrainingData, scale: float, priors: dict[str, Any], largest: int = 8) -> FormulaTerm:
    """Effects of each level of a factor, coded as in the linear terms, several with a covariance as in lme4 and brms.

    The standard deviation of a slope is in its units.
    """
    text = group.text
    members, of_levels, typical = _members(group, data)
    scale, places = scale / typical, list(range(len(members)))
    factor = f"mm({', '.join(group.columns)})" if group.of_members else members[0].names[0]
    if group.effects == ((),):
        kernel = _with_priors(of_levels, {"variance": _variance(scale)}, text, priors)
        return FormulaTerm(text, members, kernel, {"variance": f"sd(Intercept | {factor})"})
    kinds = arrays.LEVEL, arrays.ORDERED, arrays.BOOLEAN
    if group.by is not None and arrays.kind_of_column(data.frame[group.by]) not in kinds:
        raise ValueError(f"formula: in {text}, by must be a column of text or categories; {group.by} has numbers.")
    design = DesignMatrix(group.effects, data, True)
    names, count = design.names, len(design.names)
    if count > largest:
        raise ValueError(
            f"formula: {text} has {count} effects of each level, {', '.join(names)}, and a covariance of at most "
            f"{largest}. Write a slope of a factor as (1|{factor}:column)."
        )
    deviations = data.moments(design)[1]
    spread = np.where(deviations > 0.0, deviations, 1.0)
    values: dict[str, Any] = {"variance": _variance(scale / spread if count > 1 else scale / spread[0])}
    if group.is_correlated and count > 1:
        values["root"] = dist.LKJCholesky(count, 1.0)
    chosen = priors.get(text)
    if isinstance(chosen, dict) and "variance" in chosen and "root" in values:
        given: Any = chosen["variance"]
        shape = given.shape() if isinstance(given, dist.Distribution) else np.shape(getattr(given, "value", given))
        if shape != (count,):
            raise ValueError(
                f"priors: the variance of {text} must have {count} entries, of {', '.join(names)}; got the shape "
                f"{shape}. Write a list of numbers, or a distribution of arrays, "
                f"pgm.sd(dist.HalfNormal(np.full({count}, 1.0)))."
            )
    linear = _with_priors(Linear, values, text, priors)
    kernel = On(of_levels(Fixed(1.0)), places) * On(linear, range(len(members), len(members) + count))
    correlations = [
        f"cor({names[j]}, {names[i]} | {factor})" if j < i else "" for i in range(count) for j in range(count)
    ]
    named = tuple(f"sd({name} | {factor})" for name in names)
    shown = {"variance": named if count > 1 else named[0], "root": tuple(correlations)}
    return FormulaTerm(text, (*members, design), kernel, shown)


def _members(group: Group, data: TrainingData) -> tuple[tuple[Levels, ...], Callable[..., Kernel], float]:
    """The columns of the levels of a group, their kernel by its variance, and the sd of effects of variance 1."""
    frame, text = data.frame, group.text
    labels: list[Any] | None = None
    if group.of_members:
        labels = sorted(pd.concat([frame[column] for column in group.columns]).unique(), key=str)
        known = Structured.of(np.eye(len(labels)))
    elif group.covariance is not None:
        matrix = from_context(group.covariance, data.context, text)
        if isinstance(matrix, pd.DataFrame):
            labels = list(matrix.index)
            if set(matrix.columns) != set(labels):
                raise ValueError(
                    f"formula: {text}: the rows and columns of {group.covariance} must have the same labels."
                )
            matrix = matrix[labels]
        known = Structured.of(np.asarray(matrix, dtype=np.float64))
    else:
        return (Levels(group.columns, frame, text),), White, 1.0
    size = len(known.basis.value)
    members = tuple(KnownLevels(column, frame, text, size, labels) for column in group.columns)
    return members, lambda variance: known.having(variance=variance), _typical(known)


def _form(call: TermCall) -> Any:
    k, is_chain = call.options.get("k"), call.options.get("markov")
    if k is not None:
        if is_chain:
            raise ValueError(f"formula: {call.text} has k, for inducing inputs, and markov, without: leave one out.")
        return Inducing(int(k))
    return Auto() if is_chain is None else Markov() if is_chain else Dense()


def with_chain(terms: list[FormulaTerm], frame: pd.DataFrame, min_values: int = 5000) -> list[FormulaTerm]:
    """Return the terms; if none is a Markov process, the term with the most values becomes one, if many and possible.

    With as many as by default a dense sweep needs minutes, and gibbs and integrate, which need a factor, hours.
    """
    # Of a smooth, which is then not centred.
    kernels = [term.kernel.kernel if isinstance(term.kernel, Centred) else term.kernel for term in terms]
    places = [
        place
        for place, (term, kernel) in enumerate(zip(terms, kernels, strict=True))
        if isinstance(kernel, Matern12 | Matern32 | Matern52)
        and term.form == Auto()
        and [len(part.names) for part in term.columns] == [1]
    ]
    counts = [len(np.unique(terms[place].read(frame))) for place in places]
    if any(term.form == Markov() for term in terms) or max(counts, default=0) < min_values:
        return terms
    chosen = places[int(np.argmax(counts))]
    return [*terms[:chosen], terms[chosen]._replace(form=Markov(), kernel=kernels[chosen]), *terms[chosen + 1 :]]


def _covariance(call: TermCall, context: Mapping[str, Any], priors: dict[str, Any]) -> Any:
    if call.name != "gp":
        return Matern12
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


def _by(
    by: By | None, data: TrainingData, text: str
) -> tuple[tuple[()] | tuple[Numbers | Levels], Kernel | None, float]:
    """The column of ``by``, if there is one, its kernel, and its standard deviation, 1 for levels and constants."""
    if by is None:
        return (), None, 1.0
    require_columns(data.frame, [by.column], "data", text)
    column = data.frame[by.column]
    is_number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if is_number and by.marker is None and not column.is_unique and (column == np.floor(column)).all():
        raise ValueError(
            f"formula: in {text}, {by.column} has whole numbers that repeat. Write by=C({quoted(by.column)}) for a "
            f"function of each level, or by=num({quoted(by.column)}) for a coefficient of the number."
        )
    if by.marker == "num" or (is_number and by.marker is None):
        numbers = Numbers([by.column], data, text)
        return (numbers,), Linear(Fixed(1.0)), float(data.moments(numbers)[1][0]) or 1.0
    return (Levels([by.column], data.frame, text),), White(Fixed(1.0)), 1.0


def _times(kernel: Kernel, of_by: Kernel | None, width: int) -> Kernel:
    """The kernel of the first columns, of one for each level or slope of ``by`` in the column after them."""
    return kernel if of_by is None else On(kernel, range(width)) * On(of_by, [width])


@double_precision
def half_student(scale: float | np.ndarray) -> dist.StudentT:
    """Return the default prior of standard deviations of a scale; its positive half is used: wide, as in brms."""
    return dist.StudentT(3.0, 0.0, SPREAD * scale)


def _variance(scale: float | np.ndarray) -> Parameter:
    """Of a latent, which starts at a deviation of 0.6 times the scale."""
    # Squares of smaller ones, times those of a prior, are far from the largest number.
    if np.any(scale > 1e150):
        raise ValueError(
            f"data: effects have a scale of {np.max(scale):.3g}, the response's over a column's, whose square "
            "overflows double precision. Change the units of the response or of the columns."
        )
    return Parameter(np.exp(2.0 * np.log(scale) - 1.0), prior=sd(half_student(scale)))


def _lengthscales(X: np.ndarray, iso: bool, share: float) -> dist.LogNormal:
    """With 98 % between the distance of near rows, or a share of the range if that is more, and the range."""
    columns = [X] if iso else [X[:, [j]] for j in range(X.shape[1])]
    distances = np.array([_distances(part) for part in columns])
    distances[:, 0] = np.maximum(distances[:, 0], share * distances[:, 1])
    ends = np.log(distances)
    quantile_of_99_percent = 2.326
    middle, width = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / (2.0 * quantile_of_99_percent)
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


def _with_priors(make: Callable[..., Kernel], values: dict[str, Any], text: str, priors: dict[str, Any]) -> Kernel:
    """A kernel with default priors, or those of ``priors`` for the term."""
    chosen = priors.pop(text, {})
    if not isinstance(chosen, dict) or set(chosen) - set(values):
        raise ValueError(
            f"priors: the prior of {text} must be a dict with some of {', '.join(map(repr, values))}; got {chosen!r}. "
            "A standard deviation needs a prior of the variance, as in {'variance': pgm.sd(dist.HalfNormal(2.5))}."
        )
    for name, prior in chosen.items():
        start = getattr(values[name], "value", None)
        # In the units of the data.
        is_weak = start is not None and isinstance(prior, dist.Distribution) and middle_of(prior) is None
        values[name] = Parameter(start, prior=prior) if is_weak and np.all(prior.support(start)) else prior
    return make(**values)
