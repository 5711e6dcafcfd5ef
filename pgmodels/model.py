"""Models: a likelihood over latent GPs, and the checks of X and y."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.predictors import NoAugmentationError, Predictors, rewrite_if_fewer
from pgmodels.data.arrays import (
    EXACT,
    IDENTIFIER,
    Columns,
    Labels,
    Missing,
    MissingChoice,
    as_array_code,
    as_frame,
    as_identifiers,
    as_inputs,
    as_numbers,
    check_covariates_of,
    check_finite,
    check_missing,
    coded,
    labels_of,
    name_rows,
    read_inputs,
    with_new_levels,
    without_value,
)
from pgmodels.kernels.columns import check_lookups, has_names, numbered
from pgmodels.kernels.kernel import Kernel, Use, as_kernel, check_traced, covering
from pgmodels.likelihoods.likelihood import (
    Likelihood,
    LikelihoodFamily,
    Symbols,
    check_weights,
    entries_out_of_range,
    log_density,
    to_power,
    trace,
    undefined_coefficients,
)
from pgmodels.likelihoods.supports import Classes, Support
from pgmodels.parameters.parameter import Fixed, Hyperparameter, Parameter, as_parameter, bare, is_parameter
from pgmodels.priors.base import LatentPrior, pad_rows, pad_zeros, padded_size
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import InducingPoints
from pgmodels.priors.representation import Auto, Binding, Representation
from pgmodels.priors.rows import DistinctInputs, Sharing, find_distinct_inputs
from pgmodels.runtime.jit import compiled, is_traced, require_memory
from pgmodels.runtime.messages import PgmodelsWarning, shorten, warn, write_value
from pgmodels.runtime.precision import DoublePrecision, Module, as_array, double_precision

_REMEDY = "Drop or impute these rows."
# One entry per group of latents: a prior, the inducing points of a prior, or None.
Groups = tuple[LatentPrior | None, ...]
Points = tuple[InducingPoints | None, ...]


class DataWarning(PgmodelsWarning):
    """A warning that data are valid, but possibly not as intended."""


class GP(Module):
    """Independent latent GPs with one kernel and one constant mean.

    Parameters
    ----------
    kernel : Kernel or callable
        A kernel of pgmodels, or a function (X, Z) -> matrix (n, m) in JAX.
    mean : float, Fixed, Parameter or NumPyro distribution
        The constant mean, in units of the latents. 0 and fixed by default; a number is a start value for ``fit``.
    size : int
        Number of latents.
    form : Dense, Hilbert, Inducing or Markov, optional
        The representation of the prior at the data: ``pgm.Dense()`` or inducing inputs, as ``pgm.Inducing(300)``. Basis
        functions, as ``pgm.Hilbert(30)``, are for kernels of few columns, and ``pgm.Markov()`` is for Markov processes
        of one column. The default is the cheaper of dense and an exact low-rank factor. For ``cavi``,
        ``gaussian_vi``, ``vi`` and ``fit`` with more than 2,000 distinct times it may be a Markov process.

    Raises
    ------
    ValueError
        For arguments of other types or values.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> gp = pgm.GP(pgm.RBF() + pgm.White(), mean=0.0, size=3, form=pgm.Inducing(20))
    >>> pgm.Model(pgm.Softmax(3), gp).num_latents
    3
    """

    kernel: Kernel
    mean: Parameter
    size: int = eqx.field(static=True)
    form: Representation = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel | Callable[[Array, Array], Array],
        mean: Hyperparameter = Fixed(0.0),  # noqa: B008
        size: int = 1,
        form: Representation = Auto(),  # noqa: B008
    ):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"size of a GP must be a whole number >= 1; got {shorten(size)}.")
        self.kernel = as_kernel(kernel)
        self.mean = as_parameter(mean, "mean of a GP", positive=False)
        if np.ndim(self.mean.value):
            raise ValueError(
                f"mean of a GP must be one number; got an array of shape {np.shape(self.mean.value)}. Give GPs of "
                "different means as a list."
            )
        self.size = int(size)
        if not isinstance(form, Representation):
            raise ValueError(f"form of a GP must be a pgmodels form such as pgm.Dense(); got {shorten(form)}.")
        self.form = form

    def __repr__(self) -> str:
        mean = "" if self.mean.fixed and np.all(np.asarray(self.mean.value) == 0) else f", mean={self.mean!r}"
        size = f", size={self.size}" if self.size > 1 else ""
        form = "" if self.form == Auto() else f", form={self.form!r}"
        return f"GP({self.kernel!r}{mean}{size}{form})"


class Data(NamedTuple):
    """Checked float64 inputs (n, d), observations (n,) or (n, columns), and the conversion of a data frame's columns.

    ``weights`` (n,) are positive powers of the rows' likelihoods; None if all are 1. ``labels`` are the labels of y in
    the order of their codes; None if y was numbers. ``missing`` are rows without y that are kept for predictions.
    """

    X: np.ndarray
    y: np.ndarray
    columns: Columns | None = None
    weights: np.ndarray | None = None
    labels: Labels | None = None
    missing: Missing | None = None

    @property
    def row_weights(self) -> np.ndarray:
        """The weight of each row, (n,)."""
        return np.ones(len(self.y)) if self.weights is None else self.weights

    def at(self, rows: np.ndarray) -> "Data":
        """Return the data restricted to some rows."""
        weights = None if self.weights is None else self.weights[rows]
        return self._replace(X=self.X[rows], y=self.y[rows], weights=weights)

    def padded(self, size: int) -> tuple[Array, Array]:
        """Return y and the row weights, padded to ``size`` rows: see pgmodels.priors.base."""
        return as_array(pad_rows(self.y, size)), as_array(pad_zeros(self.row_weights, size))


class Model(DoublePrecision, Module):
    """A likelihood over latent GPs.

    Parameters
    ----------
    likelihood : Likelihood
        A named likelihood such as ``pgm.Bernoulli()``, or a call of a likelihood made by ``pgm.likelihood``.
    gps : GP or sequence of GP
        The latent GPs; the latents are numbered in their order.

    Raises
    ------
    ValueError
        If the number of latents does not match the formula, or the formula does not depend on the latents.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> model = pgm.Model(pgm.StudentT(3.0, pgm.Parameter(1.0)), pgm.GP(pgm.RBF(), mean=0.0))
    >>> model.num_latents
    1
    """

    likelihood: Likelihood
    gps: tuple[GP, ...]

    def __init__(self, likelihood: Likelihood, gps: GP | Sequence[GP]):
        if isinstance(likelihood, LikelihoodFamily):
            raise ValueError(f"likelihood is the family {likelihood.__name__}: call it, as in {likelihood.__name__}().")
        if not isinstance(likelihood, Likelihood):
            raise ValueError(
                f"likelihood must be a pgmodels likelihood such as pgm.Bernoulli(); got {shorten(likelihood)}."
            )
        groups = (gps,) if isinstance(gps, GP) else tuple(gps) if isinstance(gps, Iterable) else (gps,)
        if not groups:
            raise ValueError("gps is an empty list: give a GP, as in pgm.GP(pgm.RBF()), or several.")
        for gp in groups:
            if not isinstance(gp, GP):
                raise ValueError(
                    f"gps must be a GP or a list of GPs; got {shorten(gp)}. Wrap a kernel as pgm.GP(kernel)."
                )
        self.likelihood = likelihood
        self.gps = groups
        required = likelihood.num_latents
        if required is not None and required != self.num_latents:
            raise ValueError(
                f"{likelihood.name} needs {required} latent GP{'s' if required > 1 else ''}; got {self.num_latents}. "
                f"Use pgm.GP(kernel, size={required}) or a list of {required} GPs."
            )
        if likelihood.formula(self.num_latents).latent_free:
            raise ValueError(
                f"the formula of {likelihood.name} does not depend on f, its second argument: write the probability of "
                "y given f, as in def name(y, f): return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)."
            )

    @property
    def num_latents(self) -> int:
        """The number of latent GPs."""
        return sum(gp.size for gp in self.gps)

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the likelihood. Raises NoAugmentationError if there is none."""
        return _derive(self.likelihood.function, self.num_latents, self.likelihood.symbols)

    @property
    def predictors(self) -> Predictors | None:
        """The linear combinations of latents in the formula's factors; None if each factor uses single latents."""
        if self.is_augmentable:
            return self.augmentation.predictors
        return rewrite_if_fewer(self.likelihood.formula(self.num_latents), self.num_latents)[1]

    @property
    def is_augmentable(self) -> bool:
        """Whether the likelihood has an augmentation; ``nuts`` and ``to_numpyro`` work without one."""
        try:
            return bool(self.augmentation)
        except NoAugmentationError:
            return False

    def check_inputs(
        self, X: ArrayLike, name: str = "X", num_columns: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        """Return X as a float64 array (n, d). Raise ValueError for other inputs, or unless d is ``num_columns``."""
        X = as_inputs(X, name, num_columns, columns)
        for gp in self.gps:
            gp.kernel.check(X.shape[1])
            gp.kernel.check_values(X, name)
            gp.form.check_values(X, name)
        # Kernels may only compare numbers; above 2^53, float64 may have merged some of these.
        read = {column for gp in self.gps for column in gp.kernel.reads(X.shape[1])}
        large = np.flatnonzero(np.any(np.abs(X) > EXACT, axis=0))
        compared = [column for column in large if column in read - _valued(self, X.shape[1])]
        if compared:
            value = X[np.argmax(np.abs(X[:, compared[0]])), compared[0]]
            raise ValueError(
                f"{name} has {value:.0f} in column {compared[0]}, which kernels only compare: float64 merges "
                "neighbours above 2^53. Pass an array of integers, or a data frame with integers in this column."
            )
        return X

    @property
    def support(self) -> Support:
        """The support of y."""
        return self.likelihood.support(self.num_latents)

    def check_observations(self, y: ArrayLike, num_rows: int, name: str = "y", remedy: str = _REMEDY) -> np.ndarray:
        """Return y as a float64 array (n,) or (n, columns). Raise ValueError outside of the likelihood's support.

        ``remedy`` is the remedy for missing entries in messages.
        """
        array = as_array_code(y, name)
        y = as_numbers(y, name)
        check_length(self, y, num_rows, name, array)
        check_finite(y, name, remedy=remedy)
        self.support.check(y)
        check_allowed(self.likelihood, self.num_latents, y, name)
        return y

    def prepare(
        self, X: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None, missing: MissingChoice | None = None
    ) -> tuple["Model", Data]:
        """Return the model and the checked data to fit. Raise ValueError with the fault and its remedy.

        Rows of weight 0 are left out before the checks, and rows without y too unless ``missing`` is "raise" or None.
        X and y are not checked there, and may be NaN. ``missing="predict"`` reads X and covariates of rows without y.
        DataWarning is emitted if rows without y are dropped, or if a class has no observation.
        """
        if missing is not None:
            check_missing(missing)
        inputs, columns = read_inputs(X, "X")
        count = len(inputs) if inputs.ndim else 0
        powers = None if weights is None else check_weights(weights, count)
        has_weight = np.ones(count, dtype=bool) if powers is None else powers > 0
        support = self.support
        codes = support.values() if support.num_columns == 1 else None
        # Text is read as labels if the support is classes 0, 1, ...
        num_labels = len(codes) if codes is not None and np.array_equal(codes, np.arange(len(codes))) else 0
        labels = labels_of(y, "y", num_labels, has_weight) if num_labels else None
        values = as_numbers(y, "y") if labels is None else coded(y, labels, "y", has_weight)
        absent = without_value(values, support.num_covariates, count) & has_weight
        is_used = has_weight & ~absent if missing in ("drop", "predict") else has_weight
        if count and not is_used.any():
            raise ValueError(f"y has no value in {name_rows(np.flatnonzero(absent))}, so no row is left to fit.")
        is_read = has_weight if missing == "predict" else is_used
        model, every = with_numbered_columns(self, columns), is_used.all()
        # Messages about an array's shape show code that mends it.
        X = (X if columns is None else inputs) if is_read.all() else _replaced(inputs, is_read)
        X = model.check_inputs(X, columns=columns)
        y = (y if labels is None else values) if every else _replaced(values, is_used)
        remedy = _REMEDY
        if missing == "raise" and absent.any():
            remedy = (
                f"There is no y in {name_rows(np.flatnonzero(absent))}: leave rows without y out with missing='drop', "
                "keep them for predictions with missing='predict', or impute them."
            )
        _check_kernels(model, X, columns)
        y = model.check_observations(y, len(X), remedy=remedy)
        warn_unseen(model, unseen_classes(model, y[is_used]), labels)
        data = Data(X, y, columns, weights=powers, labels=labels)
        if missing == "drop" and absent.any():
            warn(f"y has no value in {absent.sum()} of {count} rows, which are left out.", DataWarning)
        if missing == "predict" and absent.any():
            rows = np.flatnonzero(absent)
            if support.num_covariates:
                check_covariates_of(rows, values, support.num_covariates)
            data = data._replace(missing=Missing(rows, X[rows], support.covariate_columns(values[rows])))
            # Limits from the data include all rows of X, for predictions; all else is from the rows that are fitted.
            gps = []
            for gp in model.gps:
                kernel = covering(gp.kernel, X)
                gps.append(GP(kernel, gp.mean, gp.size, gp.form.resolve(kernel.resolve(X[is_used]), X)))
            model = Model(model.likelihood, gps)
        return model, data if every else data.at(is_used)

    def check(self, X: ArrayLike, y: ArrayLike) -> Data:
        """Return the checked data without weights: see ``prepare``."""
        return self.prepare(X, y)[1]

    def resolve(self, X: np.ndarray, seed: int = 0) -> "Model":
        """Return the model with start values of hyperparameters that are None, and domains of forms, from the data.

        ``seed`` determines random choices of inducing inputs.
        """
        gps = []
        for gp in self.gps:
            kernel = gp.kernel.resolve(X)
            gps.append(GP(kernel, gp.mean, gp.size, gp.form.with_seed(seed).resolve(kernel, X)))
        return Model(self.likelihood, gps)

    def with_form(self, form: Representation) -> "Model":
        """Return the model with another representation of its GPs."""
        return Model(self.likelihood, [GP(gp.kernel, gp.mean, gp.size, form) for gp in self.gps])

    def fixed(self) -> "Model":
        """Return the model with every hyperparameter fixed at its value: none is fitted or sampled."""
        return jax.tree.map(lambda p: p.as_fixed() if is_parameter(p) else p, self, is_leaf=is_parameter)

    def prior(
        self,
        X: ArrayLike | DistinctInputs,
        max_error: float = np.inf,
        *,
        traced: bool = False,
        known: Groups = (),
        points: Points = (),
        for_moments: bool = False,
    ) -> PriorCollection:
        """Return the prior of the latent GPs at inputs, group by group.

        Parameters
        ----------
        X : array_like, shape (n, d), or DistinctInputs
            The inputs; the result for an array is not padded.
        max_error : float
            Jitter and truncation stay below this variance if rounding allows it.
        traced : bool
            Whether the structure is independent of the hyperparameters' values, so that the prior can be differentiated
            and used under ``jit``. Outside ``jit`` it is compiled. The options below are for traced priors.
        known : tuple of LatentPrior or None
            The priors of groups with fixed kernels, whose means may vary; None for each other group.
        points : tuple of InducingPoints or None
            The inducing points of groups that have them; None for each other group.
        for_moments : bool
            Whether the prior may lack factors.
        """
        if not isinstance(X, DistinctInputs):
            X = np.asarray(X)
            inputs = self.inputs(X, padded=traced)
            prior = self.prior(inputs, max_error, traced=traced, known=known, points=points, for_moments=for_moments)
            return prior.resized(len(X))
        if not traced:
            groups = (_bound(gp, X, index, max_error) for index, gp in enumerate(self.gps))
            return PriorCollection(tuple(groups), X.copies)
        if is_traced():
            return _traced_prior(self, X, known, points, for_moments)
        pairs = zip(known, X.X, strict=True) if known else ()
        padded = tuple(group.resized(len(Z)) if group and len(group.X) < len(Z) else group for group, Z in pairs)
        return _compiled_prior(self.bare(), X, padded, points, for_moments)

    def inputs(self, X: np.ndarray, *, padded: bool = False, never_padded: bool = False) -> DistinctInputs:
        """Return the distinct inputs of each group; ``padded`` to one of a few sizes if every form supports it.

        If rows are equal, their distinct inputs are always padded, unless ``never_padded``.
        """
        size, d = num_padded(self, len(X)) if padded else len(X), X.shape[1]
        groups = []
        for gp in self.gps:
            terms = gp.kernel.terms(d) if gp.form.spans else ()
            # A smooth function by level has no coefficients.
            levels = gp.kernel.level_columns(d) if gp.form.is_exact(gp.kernel, X) else ()
            can_pad = gp.form.can_pad and not never_padded
            groups.append(Sharing(gp.kernel.reads(d), terms, levels, gp.form.shares, can_pad))
        return find_distinct_inputs(X, groups, size)

    def bare(self) -> "Model":
        """Return a copy with only parameter values, as arrays: compiled code is then reused for another prior."""
        return jax.tree.map(as_array, bare(self))

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of the likelihood's parameters as JAX arrays."""
        return {name: as_array(value) for name, value in self.likelihood.values.items()}

    @property
    def signature(self) -> str:
        """A fingerprint of formula, values, priors, kernels and forms, the same in every process."""
        from pgmodels.runtime.io import digest

        return digest((self.likelihood.formula(self.num_latents).key, self.likelihood.parameters, self.gps))

    def __repr__(self) -> str:
        gps = repr(self.gps[0]) if len(self.gps) == 1 else repr(list(self.gps))
        return f"Model({self.likelihood!r}, {gps})"

    def _repr_html_(self) -> str:
        from pgmodels.report.summaries import model_html

        return model_html(self)


def _valued(model: Model, num_columns: int) -> set[int]:
    """Return the columns whose values matter, and not only their equality."""
    uses: tuple[Use, ...] = "values", "levels"
    return set().union(*(gp.kernel.reads(num_columns, use) for gp in model.gps for use in uses))


def _may_be_new(model: Model, num_columns: int, columns: Columns | None) -> list[str]:
    """Return the names of columns that may have new levels: no kernel reads distances or entries in them."""
    valued = _valued(model, num_columns)
    return [column.name for number, column in enumerate(columns or ()) if number not in valued]


def check_new_inputs(
    model: Model, X_new: ArrayLike, name: str, num_columns: int, columns: Columns | None
) -> np.ndarray:
    """Return new inputs as a float64 array (m, d), read like the training X. Raise ValueError for invalid inputs."""
    inputs, of_frame = read_inputs(X_new, name, columns, _may_be_new(model, num_columns, columns), is_new=True)
    return model.check_inputs(X_new if of_frame is None else inputs, name, num_columns, columns)


def columns_with_new_levels(
    model: Model, columns: Columns | None, X_new: ArrayLike, num_columns: int
) -> Columns | None:
    """Return the columns of X, extended by the levels of new rows that will join the data."""
    if columns is None:
        return None
    frame = as_frame(X_new)
    frame = as_identifiers(X_new, columns) if frame is None else frame
    if frame is None:
        return columns
    return with_new_levels(columns, frame, _may_be_new(model, num_columns, columns))


def with_numbered_columns(model: Model, columns: Columns | None) -> Model:
    """Return the model with kernels that read columns by number instead of by name."""
    if not any(has_names(gp.kernel) for gp in model.gps):
        return model
    names = None if columns is None else tuple(column.name for column in columns)
    return Model(model.likelihood, [GP(numbered(gp.kernel, names), gp.mean, gp.size, gp.form) for gp in model.gps])


def numbered_inputs(model: Model, X: ArrayLike) -> tuple[Model, np.ndarray, Columns | None]:
    """Return the model with columns by number, X as a float64 array (n, d) as in ``Model.prepare``, and columns."""
    inputs, columns = read_inputs(X, "X")
    model = with_numbered_columns(model, columns)
    # Messages about an array's shape show code that mends it.
    inputs = model.check_inputs(X if columns is None else inputs, columns=columns)
    _check_kernels(model, inputs, columns)
    return model, inputs, columns


def _check_kernels(model: Model, X: np.ndarray, columns: Columns | None) -> None:
    """Raise ValueError for kernels and forms that do not suit these inputs."""
    _check_levels(model, columns or ())
    for gp in model.gps:
        check_traced(gp.kernel, X.shape[1])
        gp.form.check(gp.kernel, X.shape[1])
        check_lookups(gp.kernel, X, "X", None if columns is None else tuple(column.name for column in columns))


def _check_levels(model: Model, columns: Columns) -> None:
    for number in _valued(model, len(columns)) if columns else ():
        if columns[number].kind == IDENTIFIER:
            raise ValueError(
                f"X has whole numbers above 2^53 in column {columns[number].name!r}, which float64 does not hold "
                "exactly, and a kernel measures distances in it. Subtract a constant from this column."
            )
    for gp in model.gps:
        for number in gp.kernel.reads(len(columns), "values") if columns else ():
            column = columns[number]
            if column.kind == "level" and len(column.levels) > 2:
                raise ValueError(
                    f"{gp.kernel!r} measures distances in column {column.name!r}, which has {len(column.levels)} "
                    f"levels without an order. Use pgm.On(pgm.White(), [{column.name!r}]) for an effect of each "
                    "level and pgm.On(kernel, [...]) for the other columns, an ordered categorical, or numbers."
                )


def unseen_classes(model: Model, y: np.ndarray) -> list[int]:
    """Return the classes without an observation in y; empty for other supports."""
    support = model.support
    return support.unseen(y) if isinstance(support, Classes) else []


def warn_unseen(model: Model, unseen: list[int], labels: Labels | None = None) -> None:
    """Warn with DataWarning of classes without an observation, if there are any."""
    support = model.support
    if unseen and isinstance(support, Classes):
        names = [str(code) if labels is None else f"{code} ({labels[code]!r})" for code in unseen]
        free = [name for name, p in model.likelihood.parameters.items() if p.learned and p.prior is None]
        consequence = "That is fine in a fold of cross-validation."
        if free:
            consequence = f"fit may move {', '.join(free)} to extreme values: give such parameters a prior."
        warn(
            f"y has no observation of class {', '.join(names)} out of {support.num_classes}. The "
            f"posterior is proper, but the probability of that class depends on the prior. {consequence} Otherwise "
            "drop the class and recode the labels, or add data for it.",
            DataWarning,
        )


# The priors of a model's groups, and what their forms support.


@double_precision
def fixed_groups(model: Model, X: ArrayLike, are_fixed: Sequence[bool]) -> Groups:
    """Return the prior of each group with a fixed kernel, to double precision, for draws; None for each other group."""
    inputs, pairs = model.inputs(np.asarray(X)), enumerate(are_fixed)
    return tuple(_bound(model.gps[i], inputs, i, 0.0).for_sampling() if fixed else None for i, fixed in pairs)


@double_precision
def coefficient_groups(model: Model, X: ArrayLike) -> Groups:
    """Return the prior of each group of coefficients or levels with fixed variances; None for each other group."""
    inputs = model.inputs(np.asarray(X), padded=True)
    pairs = enumerate(have_known_coefficients(model, inputs))
    return tuple(_bound(model.gps[i], inputs, i, 0.0) if known else None for i, known in pairs)


@double_precision
def have_known_coefficients(model: Model, inputs: DistinctInputs) -> tuple[bool, ...]:
    """Return whether each group has an exact prior, of coefficients or levels, whose variances are not learned."""
    known = []
    for gp, Z in zip(model.gps, inputs.X, strict=True):
        leaves = jax.tree.leaves(gp.kernel, is_leaf=is_parameter)
        is_learned = any(is_parameter(leaf) and leaf.learned for leaf in leaves)
        known.append(gp.form.is_exact(gp.kernel, Z) and not is_learned)
    return tuple(known)


def _bound(gp: GP, inputs: DistinctInputs, index: int, max_error: float) -> LatentPrior:
    X, count = inputs.X[index], inputs.counts[index]
    bound = gp.form.bind(gp.kernel, gp.mean.value, np.asarray(X)[:count], gp.size, Binding(max_error=max_error))
    return bound if len(X) == count else bound.resized(len(X))


def _traced_prior(
    model: Model, inputs: DistinctInputs, known: Groups, points: Points, for_moments: bool
) -> PriorCollection:
    none = (None,) * len(model.gps)
    bindings = zip(inputs.row_mask, inputs.spanning, inputs.levels, points or none, strict=True)
    groups: list[LatentPrior] = []
    for gp, X, group, parts in zip(model.gps, inputs.X, known or none, bindings, strict=True):
        mean = as_array(gp.mean.value)
        if group is not None:
            groups.append(group.replaced(mean=mean))
            continue
        groups.append(gp.form.bind(gp.kernel, mean, X, gp.size, Binding(True, np.inf, *parts, for_moments)))
    return PriorCollection(tuple(groups), inputs.copies)


_compiled_prior = compiled(_traced_prior, "for_moments")


def has_factors(model: Model) -> bool:
    """Return whether the forms of all GPs have a factor matrix."""
    return all(gp.form.has_factor for gp in model.gps)


def require_factored_forms(model: Model, call: str) -> None:
    """Raise ValueError, in the name of a call, if the form of a GP has no factor matrix."""
    for gp in model.gps:
        if not gp.form.has_factor:
            raise ValueError(
                f"{call} needs GPs with a factor matrix, and form={gp.form!r} has none: use cavi, gaussian_vi or "
                "fit, in linear time, or another form, such as pgm.Dense() or pgm.Inducing(300)."
            )


@double_precision
def check_memory(model: Model, X: np.ndarray) -> None:
    """Raise MemoryError if the priors at the inputs need more memory than is available."""
    inputs = model.inputs(X)
    needed = max(gp.form.memory(gp.kernel, Z) for gp, Z in zip(model.gps, inputs.masked(), strict=True))
    require_memory(
        needed,
        f"the latents' covariances at {max(inputs.counts):,} distinct inputs",
        "Use inducing inputs, as in pgm.GP(kernel, form=pgm.Inducing(300)), form=pgm.Markov() for a Matern kernel "
        "of one column, or batches with pgm.svi; rows with equal inputs count once.",
    )


def forms_can_pad(model: Model) -> bool:
    """Return whether the data can be padded with rows: see pgmodels.priors.base."""
    return all(gp.form.can_pad for gp in model.gps)


def num_padded(model: Model, count: int) -> int:
    """Return the number of rows that ``count`` rows are padded to: one of a few sizes if every form supports it."""
    return padded_size(count) if forms_can_pad(model) else count


@double_precision
def padded_data(model: Model, data: Data) -> tuple[DistinctInputs, Array, Array]:
    """Return the distinct inputs, y and the row weights, padded to one of a few sizes if every form supports it."""
    return model.inputs(data.X, padded=True), *data.padded(num_padded(model, len(data.y)))


# Checks of y against the formula.


def check_length(model: Model, y: np.ndarray | Array, num_rows: int, name: str = "y", array: str = "y") -> None:
    """Raise ValueError if observations (possibly traced) have another shape; ``array`` is code for them as an array."""
    columns = model.support.num_columns
    if columns == 1 and y.ndim != 1:
        hint = f" Use {array}[:, 0] or {array}.ravel()." if y.ndim == 2 and y.shape[1] == 1 else ""
        raise ValueError(f"{name} must have shape (n,); got shape {y.shape}.{hint}")
    if columns > 1 and (y.ndim != 2 or y.shape[1] != columns):
        raise ValueError(
            f"{name} must have shape (n, {columns}), since the formula reads {name}[0] to {name}[{columns - 1}]; "
            f"got shape {y.shape}. Use np.column_stack."
        )
    if y.shape[0] != num_rows:
        raise ValueError(
            f"X and {name} must have the same length; got {num_rows} rows of X and {y.shape[0]} of {name}."
        )


def check_allowed(likelihood: Likelihood, num_latents: int, y: np.ndarray, name: str) -> None:
    """Raise ValueError if observations violate the derivation's requirements, or have no finite log density."""
    _check_allowed(likelihood, num_latents, y, name)
    for parameter_name, parameter in likelihood.parameters.items():
        if parameter.fixed or parameter.positive or parameter.constraint is not None:
            continue
        try:
            negative = likelihood.with_values({parameter_name: -np.abs(parameter.value)})
            _check_allowed(negative, num_latents, y, name)
        except ValueError as error:
            raise ValueError(
                f"{parameter_name} of {likelihood.name} is declared as a real number, but the formula is invalid below "
                f"0: declare {parameter_name}=pgm.Parameter({write_value(parameter.value)}, positive=True), or give it "
                f"a prior on positive numbers. At -{parameter_name}, {error}"
            ) from error


@np.errstate(all="ignore")
def _check_allowed(likelihood: Likelihood, num_latents: int, y: np.ndarray, name: str) -> None:
    f = np.zeros((len(y), num_latents))
    formula = likelihood.formula(num_latents)
    env = likelihood.at(y, f)
    for symbol, rows in entries_out_of_range(formula, env):
        raise ValueError(
            f"{name} is outside what the formula allows: {symbol.text()} is an index of the {symbol.length} entries "
            f"of {symbol.name}, 0 to {symbol.length - 1}, and is out of range in row {np.flatnonzero(rows)[0]}."
        )
    try:
        augmentation = _derive(likelihood.function, num_latents, likelihood.symbols)
    except NoAugmentationError:
        _check_log(log_density(likelihood, y, f), f"its density {formula.text()} at f = 0", name)
        return
    for requirement in augmentation.requirements:
        values = np.asarray(requirement.expression.evaluate(env))
        bad = np.argwhere(~np.broadcast_to(requirement.holds(values), values.shape))
        if bad.size:
            got = values[tuple(bad[0])]
            raise ValueError(
                f"{name} is outside what the formula allows: {requirement.reason}, "
                f"{requirement.expression.text()}, must be {requirement.wording}, but is {got:g} in row "
                f"{bad[0][0]}."
            )
    _check_log(augmentation.base.log_evaluate(env), f"its factor {augmentation.base.text()}", name)
    for coefficient, undefined in undefined_coefficients(augmentation.formula, env):
        raise ValueError(
            f"{name} is outside what the formula allows: {coefficient.text()}, the coefficient of a latent, has no "
            f"finite value in row {np.flatnonzero(undefined)[0]}."
        )


def require_model(model: object) -> Model:
    """Return the model. Raise ValueError if it is not a Model."""
    if isinstance(model, Model):
        return model
    remedy = "Make a model of a likelihood and GPs: pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF()))."
    if isinstance(model, (Likelihood, LikelihoodFamily)):
        remedy = "Wrap the likelihood as pgm.Model(likelihood, pgm.GP(pgm.RBF()))."
    if isinstance(getattr(model, "model", None), Model):
        remedy = "Give its .model."
    raise ValueError(f"model must be a pgm.Model; got {type(model).__name__}. {remedy}")


def with_powers(model: Model, data: Data) -> tuple[Model, Data]:
    """Return the model with the likelihood to the power of the weight, y's last column; unchanged without weights."""
    if data.weights is None:
        return model, data
    powers = Model(to_power(model.likelihood, model.num_latents), model.gps)
    return powers, Data(data.X, np.column_stack([data.y, data.weights]), data.columns)


def _replaced(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return values in which one row of ``rows``, finite if possible, replaces each other row."""
    if values.ndim not in (1, 2) or len(values) != len(rows):
        return values
    finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    chosen = np.flatnonzero(rows & finite) if (rows & finite).any() else np.flatnonzero(rows)
    replaced = values.copy()
    replaced[~rows] = values[chosen[0]]
    return replaced


def _check_log(values: Array | np.ndarray, what: str, name: str) -> None:
    bad = np.argwhere(~np.isfinite(np.asarray(values)))
    if bad.size:
        raise ValueError(
            f"{name} is outside what the formula allows: {what} has no finite logarithm in row {bad[0][0]}."
        )


@lru_cache(maxsize=512)
def _derive(function: Callable[..., object], size: int, symbols: Symbols) -> Augmentation:
    return derive_formula(trace(function, size, symbols), size)
