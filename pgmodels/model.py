"""Models: a likelihood over latent GPs, and the one place where X and y are checked."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from pgmodels import generic
from pgmodels.arrays import as_numbers, check_finite, column_names
from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.predictors import Predictors, fewest
from pgmodels.compiled import compiled
from pgmodels.encoding import as_array_code
from pgmodels.identity import digest
from pgmodels.kernels.kernel import Kernel, as_kernel, check_lookups, check_traced
from pgmodels.language.density import coefficients, entries_out_of_range, is_undefined, log_density, log_or_value
from pgmodels.language.expression import Environment
from pgmodels.language.likelihood import Likelihood, LikelihoodFamily, Symbols, trace
from pgmodels.language.supports import Classes
from pgmodels.language.weights import check_weights
from pgmodels.latent.form import Cheapest, Form
from pgmodels.latent.inputs import DistinctInputs, Sharing, told_apart
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.protocol import LatentPrior
from pgmodels.latent.rows import filled_size, live_rows, resize_rows
from pgmodels.memory import require_memory
from pgmodels.parameters import Fixed, Parameter, as_parameter, bare, is_parameter
from pgmodels.portable import Module
from pgmodels.precision import as_array
from pgmodels.warning import warn
from pgmodels.writing import write_value

# A prior for each group of latents, or none.
Groups = tuple[LatentPrior | None, ...]


class DataWarning(UserWarning):
    """Data that can be learned from, but may not be what is meant."""


class GP(Module):
    """``size`` independent latent GPs with one kernel and one constant mean.

    ``kernel`` is a kernel of pgmodels.kernels or any callable (X, Z) -> matrix. ``mean`` is fixed at 0 unless given; a
    number is a start value for ``fit``. ``form`` says how the prior is held at the data: by what costs less of
    ``pgm.Dense()`` and an exact low-rank factor where it is left out, or by inducing inputs, ``pgm.Inducing(300)``.
    """

    kernel: Kernel
    mean: Parameter
    size: int = eqx.field(static=True)
    form: Form = eqx.field(static=True)

    def __init__(self, kernel: Any, mean: Any = Fixed(0.0), size: int = 1, form: Form = Cheapest()):  # noqa: B008
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"size of a GP must be a whole number >= 1; got {size!r}.")
        self.kernel = as_kernel(kernel)
        self.mean = as_parameter(mean, "mean of a GP", positive=False)
        if np.ndim(self.mean.value):
            raise ValueError(
                f"mean of a GP must be one number; got an array of shape {np.shape(self.mean.value)}. Give GPs of "
                "different means as a list."
            )
        self.size = int(size)
        if not isinstance(form, Form):
            raise ValueError(f"form of a GP must be a pgmodels form such as pgm.Dense(); got {form!r}.")
        self.form = form

    def __repr__(self) -> str:
        mean = "" if self.mean.fixed and np.all(np.asarray(self.mean.value) == 0) else f", mean={self.mean!r}"
        size = f", size={self.size}" if self.size > 1 else ""
        form = "" if self.form == Cheapest() else f", form={self.form!r}"
        return f"GP({self.kernel!r}{mean}{size}{form})"


class Data(NamedTuple):
    """Checked inputs (n, d) and observations (n,) or (n, columns), both float64; the inputs' names if they have any."""

    X: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...] | None = None


class Model(Module):
    """A likelihood over latent GPs.

    ``gps`` is one GP or a list of GPs; the latents are numbered in their order.
    Raises ValueError where the number of latents does not fit the formula.
    """

    likelihood: Likelihood
    gps: tuple[GP, ...]

    def __init__(self, likelihood: Likelihood, gps: GP | Sequence[GP]):
        if isinstance(likelihood, LikelihoodFamily):
            raise ValueError(f"likelihood is the family {likelihood.__name__}: call it, as in {likelihood.__name__}().")
        if not isinstance(likelihood, Likelihood):
            raise ValueError(f"likelihood must be a pgmodels likelihood such as pgm.Bernoulli(); got {likelihood!r}.")
        listed = (gps,) if isinstance(gps, GP) else tuple(gps) if isinstance(gps, Iterable) else (gps,)
        if not listed:
            raise ValueError("gps is an empty list: give a GP, as in pgm.GP(pgm.RBF()), or several.")
        for gp in listed:
            if not isinstance(gp, GP):
                raise ValueError(f"gps must be a GP or a list of GPs; got {gp!r}. Wrap a kernel as pgm.GP(kernel).")
        self.likelihood = likelihood
        self.gps = listed
        wanted = likelihood.num_latents
        if wanted is not None and wanted != self.num_latents:
            raise ValueError(
                f"{likelihood.name} needs {wanted} latent GP{'s' if wanted > 1 else ''}; got {self.num_latents}. "
                f"Use pgm.GP(kernel, size={wanted}) or a list of {wanted} GPs."
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
        """The augmentation of the likelihood; NoAugmentationError where there is none."""
        return _derive(self.likelihood.function, self.num_latents, self.likelihood.symbols)

    @property
    def predictors(self) -> Predictors | None:
        """The combinations of latents that the formula's factors see; None where each sees latents themselves."""
        if self.is_augmentable:
            return self.augmentation.predictors
        return fewest(self.likelihood.formula(self.num_latents), self.num_latents)[1]

    @property
    def is_augmentable(self) -> bool:
        """Whether there is an augmentation, which ``nuts`` and ``to_numpyro`` do without."""
        try:
            return bool(self.augmentation)
        except NoAugmentationError:
            return False

    def check_inputs(self, X: Any, name: str = "X", num_columns: int | None = None) -> np.ndarray:
        """X as a float64 array (n, d), with ``num_columns`` columns where that is given, or ValueError."""
        array = as_array_code(X, name)
        X = as_numbers(X, name, as_column=True, is_new=num_columns is not None)
        if X.ndim != 2:
            hint = f"{array}.reshape(len({name}), -1)"
            if X.ndim < 2:
                one_row = X.ndim == 0 or (num_columns not in (None, 1) and X.shape == (num_columns,))
                hint = f"numpy.reshape({array}, (1, -1)) for one row" if one_row else f"{array}[:, None]"
            raise ValueError(f"{name} must have shape (n, d), a row a datum; got shape {X.shape}. Use {hint}.")
        if X.shape[0] == 0 or X.shape[1] == 0:
            raise ValueError(f"{name} is empty: got shape {X.shape}, expected at least one row and one column.")
        if num_columns is not None and X.shape[1] != num_columns:
            raise ValueError(
                f"{name} must have the {num_columns} column(s) of the X that the result was learned from; got shape "
                f"{X.shape}."
            )
        check_finite(X, name)
        for gp in self.gps:
            gp.kernel.check(X.shape[1])
        return X

    def check_observations(self, y: Any, num_rows: int, name: str = "y", is_new: bool = False) -> np.ndarray:
        """y as a float64 array (n,) or (n, columns) in the likelihood's support, or ValueError."""
        support = self.likelihood.support(self.num_latents)
        array = as_array_code(y, name)
        y = as_numbers(y, name, is_new=is_new)
        columns = support.num_columns
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
        check_finite(y, name)
        support.check(y)
        check_allowed(self.likelihood, self.num_latents, y, name)
        return y

    def given(self, X: Any, y: Any, weights: Any = None) -> tuple["Model", Data]:
        """The model and checked data to learn from, or ValueError saying what is wrong and how to mend it.

        With ``weights`` (n,), the model of rows with weights, which are the last column of the data's y; rows of weight
        0 are left out before anything is looked at, so that X and y may hold any number there, NaN too. Warns with
        DataWarning where a class has no observation at all.
        """
        if weights is None:
            data = self.unweighted.check(X, y)
            if self.is_weighted:
                raise ValueError(
                    "model is that of a result with weights: give weights= as they were, or use model.unweighted."
                )
            return self, data
        columns = column_names(X)
        X, y = as_numbers(X, "X", as_column=True), as_numbers(y, "y")
        weights = check_weights(weights, len(X) if X.ndim else 0)
        rows = weights > 0
        data = self.unweighted.check(_filled_in(X, rows), _filled_in(y, rows))
        return self.weighted, Data(data.X[rows], np.column_stack([data.y, weights])[rows], columns)

    @property
    def is_weighted(self) -> bool:
        """Whether the last column of y is a weight, a power of the likelihood."""
        return self.likelihood is not self.likelihood.unweighted

    @property
    def weighted(self) -> "Model":
        """The model of rows that have weights, one more column of y."""
        return Model(self.likelihood.weighted(self.num_latents), self.gps)

    @property
    def unweighted(self) -> "Model":
        """The model of a row by itself, whatever its weight."""
        return Model(self.likelihood.unweighted, self.gps) if self.is_weighted else self

    def check(self, X: Any, y: Any) -> Data:
        """Checked data of rows without weights: see ``given``."""
        columns = column_names(X)
        X = self.check_inputs(X)
        for gp in self.gps:
            check_traced(gp.kernel, X.shape[1])
            check_lookups(gp.kernel, X, "X")
        y = self.check_observations(y, len(X))
        self.warn_unseen(self.unseen(y))
        return Data(X, y, columns)

    def unseen(self, y: np.ndarray) -> list[int]:
        """The classes of which y has no observation, where it is of classes."""
        support = self.likelihood.support(self.num_latents)
        return support.unseen(y) if isinstance(support, Classes) else []

    def warn_unseen(self, unseen: list[int]) -> None:
        """A DataWarning of classes without an observation, where there are any."""
        support = self.likelihood.support(self.num_latents)
        if unseen and isinstance(support, Classes):
            free = [name for name, p in self.likelihood.parameters.items() if p.learned and p.prior is None]
            says = "That is fine in a fold of cross-validation."
            if free:
                says = f"fit may take {', '.join(free)} to extreme values: give such parameters a prior."
            warn(
                f"y has no observation of class {', '.join(map(str, unseen))} out of {support.num_classes}. The "
                f"posterior is proper, but how improbable that class is rests on the prior. {says} Otherwise drop the "
                "class and recode the labels, or add data of it.",
                DataWarning,
            )

    def resolve(self, X: np.ndarray) -> "Model":
        """The model with every hyperparameter that comes from the data set."""
        gps = tuple(GP(gp.kernel.resolve(X), gp.mean, gp.size, gp.form) for gp in self.gps)
        return Model(self.likelihood, gps)

    def held_as(self, form: Form) -> "Model":
        """The model with every group of latents in a form."""
        return Model(self.likelihood, [GP(gp.kernel, gp.mean, gp.size, form) for gp in self.gps])

    def fixed(self) -> "Model":
        """The model with every hyperparameter held at its value: nothing of it is learned or sampled any more."""

        def hold(node: Any) -> Any:
            return node.held() if is_parameter(node) else node

        return jax.tree.map(hold, self, is_leaf=is_parameter)

    def prior(self, X: Any, neglected: float = np.inf) -> JointPrior:
        """The latent GPs bound to inputs, each group in its form; see ``Form.bind`` for what it may neglect."""
        inputs = self.inputs(np.asarray(X))
        groups = (self._bound(index, inputs, neglected) for index in range(len(self.gps)))
        return JointPrior(tuple(groups), inputs.copies)

    def held_groups(self, X: Any, held: Sequence[bool]) -> Groups:
        """The prior of each group that is held, to the last digit that it can have, to draw from; None of others."""
        inputs = self.inputs(np.asarray(X))
        return tuple(self._bound(index, inputs, 0.0).generative() if own else None for index, own in enumerate(held))

    def _bound(self, index: int, inputs: DistinctInputs, neglected: float) -> LatentPrior:
        gp, X, count = self.gps[index], inputs.X[index], inputs.counts[index]
        bound = gp.form.bind(gp.kernel, gp.mean.value, np.asarray(X)[:count], gp.size, neglected)
        return bound if len(X) == count else bound.resized(len(X))

    def check_memory(self, X: np.ndarray) -> None:
        """Raise MemoryError where the priors at inputs take more than there is."""
        inputs = self.inputs(X)
        needed = max(gp.form.memory(count) for gp, count in zip(self.gps, inputs.counts, strict=True))
        require_memory(
            needed,
            f"the latents' covariances at {max(inputs.counts):,} distinct inputs",
            "Give the GP few inducing inputs, as in pgm.GP(kernel, form=pgm.Inducing(300)), or learn by batches with "
            "pgm.svi; rows with equal inputs count once.",
        )

    def inputs(self, X: np.ndarray, *, filled: bool = False) -> DistinctInputs:
        """The distinct inputs of each group; rows are ``filled`` up to one of few sizes where every form can do it."""
        size = filled_size(len(X)) if filled and self.fills else len(X)
        groups = [Sharing(gp.kernel.reads(X.shape[1]), gp.form.shares, gp.form.fills) for gp in self.gps]
        return told_apart(X, groups, size)

    def traced_prior(self, inputs: DistinctInputs, held: Groups = ()) -> JointPrior:
        """The latent GPs bound to inputs in the form that they have at every value of the hyperparameters.

        ``held`` has the groups that are there already, but for their means, and None in the place of others.
        """
        groups, held = [], held or (None,) * len(self.gps)
        for gp, X, live, own in zip(self.gps, inputs.X, inputs.live, held, strict=True):
            rows, mean = {} if live is None else {"live": live}, as_array(gp.mean.value)
            groups.append(own.with_mean(mean) if own else gp.form.traced(gp.kernel, mean, X, gp.size, **rows))
        return JointPrior(tuple(groups), inputs.copies)

    def compiled_prior(self, X: Any, held: Groups = ()) -> JointPrior:
        """``traced_prior``, compiled, at the data alone."""
        return self.compiled_prior_at(self.inputs(np.asarray(X), filled=True), held).resized(len(X))

    def compiled_prior_at(self, inputs: DistinctInputs, held: Groups = ()) -> JointPrior:
        """``traced_prior``, compiled; what is held is filled up to as many rows as inputs have."""
        pairs = zip(held, inputs.X, strict=True) if held else ()
        held = tuple(own.resized(len(X)) if own and len(own.X) < len(X) else own for own, X in pairs)
        return _compiled_prior(self.bare(), inputs, held)

    @property
    def fills(self) -> bool:
        """Whether rows can fill up the data: see pgmodels.latent.rows."""
        return all(gp.form.fills for gp in self.gps)

    def filled(self, X: np.ndarray) -> tuple[DistinctInputs, Array | None]:
        """Inputs of rows filled up to one of few sizes, and which rows are data; as they are and None elsewhere."""
        if not self.fills:
            return self.inputs(X), None
        return self.inputs(X, filled=True), as_array(live_rows(len(X), filled_size(len(X))))

    def bare(self) -> "Model":
        """A copy with values alone, as arrays: what compiled code takes, so that priors never cause a recompilation."""
        return jax.tree.map(as_array, bare(self))

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of the likelihood's parameters, as compiled code takes them."""
        return {name: as_array(value) for name, value in self.likelihood.values.items()}

    @property
    def signature(self) -> str:
        """The same for models of the same formula, values, priors, kernels and forms, in every process."""
        formula = self.likelihood.formula(self.num_latents).key
        return digest((formula, self.likelihood.parameters, self.gps))

    def __repr__(self) -> str:
        gps = repr(self.gps[0]) if len(self.gps) == 1 else repr(list(self.gps))
        return f"Model({self.likelihood!r}, {gps})"

    def _repr_html_(self) -> str:
        return generic.html(self)


def check_allowed(likelihood: Likelihood, num_latents: int, y: np.ndarray, name: str) -> None:
    """ValueError where the formula does not allow observations, by what its rules need or by its density.

    Also where it does not allow a real parameter below 0.
    """
    _check_allowed(likelihood, num_latents, y, name)
    for own, parameter in likelihood.parameters.items():
        if parameter.fixed or parameter.positive or parameter.constraint is not None:
            continue
        try:
            _check_allowed(likelihood.with_values({own: -np.abs(parameter.value)}), num_latents, y, name)
        except ValueError as error:
            raise ValueError(
                f"{own} of {likelihood.name} is a real number as it is declared, and the formula takes none below 0: "
                f"declare {own}=pgm.Parameter({write_value(parameter.value)}, positive=True), or give it a prior on "
                f"positive numbers. At -{own}, {error}"
            ) from error


def _check_allowed(likelihood: Likelihood, num_latents: int, y: np.ndarray, name: str) -> None:
    # Rows that fill up are the first again, and no fault is found in them before it is found there.
    y = resize_rows(y, filled_size(len(y)))
    f = np.zeros((len(y), num_latents))
    formula = likelihood.formula(num_latents)
    for symbol, rows in entries_out_of_range(formula, Environment(y, as_array(f), likelihood.values)):
        raise ValueError(
            f"{name} is outside what the formula allows: {symbol.text()} chooses among the {symbol.length} entries "
            f"of {symbol.name}, 0 to {symbol.length - 1}, and none in row {np.flatnonzero(rows)[0]}."
        )
    try:
        augmentation = _derive(likelihood.function, num_latents, likelihood.symbols)
    except NoAugmentationError:
        _check_log(log_density(likelihood, y, f), f"its density {formula.text()} at f = 0", name)
        return
    required, log_base, beside = _required(augmentation, y, f, likelihood.values)
    for requirement, values in zip(augmentation.requirements, map(np.asarray, required), strict=True):
        bad = np.argwhere(~np.broadcast_to(requirement.holds(values), values.shape))
        if bad.size:
            got = values[tuple(bad[0])]
            raise ValueError(
                f"{name} is outside what the formula allows: {requirement.reason}, "
                f"{requirement.expression.text()}, must be {requirement.wording}, but is {got:g} in row "
                f"{bad[0][0]}."
            )
    _check_log(log_base, f"its factor {augmentation.base.text()}", name)
    for coefficient, found in zip(coefficients(augmentation.formula), beside, strict=True):
        rows = np.flatnonzero(is_undefined(coefficient, np.asarray(found)))
        if rows.size:
            raise ValueError(
                f"{name} is outside what the formula allows: {coefficient.text()}, beside a latent, has no finite "
                f"value in row {rows[0]}."
            )


def require_model(model: Any) -> Model:
    """A Model, or ValueError."""
    if isinstance(model, Model):
        return model
    remedy = "Make one of a likelihood and GPs: pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF()))."
    if isinstance(model, (Likelihood, LikelihoodFamily)):
        remedy = "Wrap the likelihood as pgm.Model(likelihood, pgm.GP(pgm.RBF()))."
    if isinstance(getattr(model, "model", None), Model):
        remedy = "Give its .model."
    raise ValueError(f"model must be a pgm.Model; got {type(model).__name__}. {remedy}")


def _filled_in(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Values with one of the rows that are there, a finite one if there is any, in the place of all others."""
    if values.ndim not in (1, 2) or len(values) != len(rows):
        return values
    finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    chosen = np.flatnonzero(rows & finite) if (rows & finite).any() else np.flatnonzero(rows)
    filled = values.copy()
    filled[~rows] = values[chosen[0]]
    return filled


def _check_log(values: Any, what: str, name: str) -> None:
    """ValueError where a logarithm of the likelihood is not finite."""
    bad = np.argwhere(~np.isfinite(np.asarray(values)))
    if bad.size:
        raise ValueError(
            f"{name} is outside what the formula allows: {what} has no finite logarithm in row {bad[0][0]}."
        )


@lru_cache(maxsize=512)
def _derive(function: Any, size: int, symbols: Symbols) -> Augmentation:
    return derive_formula(trace(function, size, symbols), size)


@partial(compiled, static_argnames="augmentation")
def _required(
    augmentation: Augmentation, y: Array, f: Array, values: Mapping[str, Any]
) -> tuple[list[Array], Array, list[Array]]:
    """What the rules need something of, the log of the factor without latents, and the coefficients beside latents."""
    env = Environment(y, f, values)
    found = [requirement.expression.evaluate(env) for requirement in augmentation.requirements]
    beside = [log_or_value(coefficient, env) for coefficient in coefficients(augmentation.formula)]
    return found, augmentation.base.log_evaluate(env), beside


@compiled
def _compiled_prior(model: Model, inputs: DistinctInputs, held: Groups) -> JointPrior:
    return model.traced_prior(inputs, held)
