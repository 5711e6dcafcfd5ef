"""Files of results: classes by public names, fields as JSON, arrays in binary form, without pickles or code."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from pgmodels.data.arrays import Column, Missing
from pgmodels.data.sources import Scaling
from pgmodels.kernels.columns import Coregion, Difference, On, Sphere, Structured
from pgmodels.kernels.kernel import Product, Sum
from pgmodels.kernels.others import ByLevel, Centred, Constant, Cosine, Linear, Periodic, RandomWalk, White
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from pgmodels.likelihoods import counts, named
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, trace
from pgmodels.model import GP, Model, check_memory
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import Hashable, Parameter
from pgmodels.parameters.prior import Within, sd
from pgmodels.priors.base import LatentPrior, Sites, pad_sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.chain_posterior import condition_jointly
from pgmodels.priors.collection import IndependentPosterior, NewLeaves, Posterior, PriorCollection, padded_prior
from pgmodels.priors.dense import CoefficientPrior, DensePrior, FactoredPrior, LevelsPrior, LowRankPrior
from pgmodels.priors.hilbert import Hilbert, HilbertPrior
from pgmodels.priors.inducing import ChunkedInducingPrior, FICPrior, Inducing, InducingPrior, posterior_of_moments
from pgmodels.priors.markov import Markov
from pgmodels.priors.representation import Auto, Dense
from pgmodels.results.approximation import (
    Approximation,
    CorrectedApproximation,
    FitReport,
    JointResponse,
    LearnedApproximation,
    LinearResponse,
    PerturbativeApproximation,
)
from pgmodels.results.draws import Draws
from pgmodels.results.gaussian import ParameterUncertainty
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import ChainCorrection, NestedApproximation, SparseApproximation
from pgmodels.results.result import BaseResult
from pgmodels.runtime.io import Arrays, decode, encode, read_arrays, write_arrays
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten, shorten_text
from pgmodels.runtime.precision import as_array, double_precision

Loaded = Approximation | CorrectedApproximation | IntegratedApproximation | SparseApproximation | Draws
# The latents of each block that sites couple; None if all latents are independent.
Blocks = tuple[tuple[int, ...], ...] | None
# For each group: None if its prior is the one that the model binds, or the class and its arrays.
StoredGroups = tuple[tuple[type[LatentPrior], dict[str, Any]] | None, ...]

# The version of the file format, increased by each incompatible change.
_FORMAT = 4
# The classes that a file may hold, by public name. A class is rebuilt by its constructor from its fields.
_RESULTS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        Approximation, LearnedApproximation, LinearResponse, NestedApproximation, PerturbativeApproximation,
        ChainCorrection, IntegratedApproximation, SparseApproximation, Draws,
    )
}  # fmt: skip
_CLASSES: dict[str, Any] = _RESULTS | {
    cls.__name__: cls
    for cls in (
        RBF, Matern12, Matern32, Matern52, RationalQuadratic, Periodic, Cosine, RandomWalk, Linear, Constant, White,
        On, Sphere, Difference, Coregion, Structured, Centred, ByLevel, Sum, Product, Auto, Dense, Hilbert,
        Inducing, Markov, GP, Column, Missing, Scaling, Sites, FitReport, ParameterUncertainty, DensePrior,
        LowRankPrior, CoefficientPrior, LevelsPrior, InducingPrior, ChunkedInducingPrior, FICPrior, HilbertPrior,
    )
}  # fmt: skip
# Likelihood families of the package, and functions of the number of classes or other options.
_LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    maker.__name__: maker
    for module in (named, counts)
    for maker in vars(module).values()
    if isinstance(maker, LikelihoodFamily)
} | {
    maker.__name__: maker
    for maker in (
        named.Softmax, named.RobustMax, named.MultinomialProbit, named.LogisticSoftmax, named.StickBreaking,
        counts.Ordinal, counts.Weibull, counts.LogLogistic,
    )
}  # fmt: skip
# The constraints with bounds in numpyro.distributions.constraints.
_BOUNDED = ("interval", "greater_than", "less_than")
# Fields in which infinities and NaN are valid (not converged, or no value): only types and shapes are checked.
_MAY_BE_INFINITE = (
    "elbo_trace", "elbos", "k_hats", "log_densities", "log_density", "log_evidence", "log_likelihood_trace",
    "start_elbos", "statistics", "tuning",
)  # fmt: skip
# Fields that are rebuilt, stored once for the file, or not saved: the state of chains, custom objectives.
_OTHER_FIELDS = ("model", "posterior", "prior", "run", "custom_objective")


@double_precision
def save_result(result: BaseResult, path: str | PathLike[str], **more: object) -> Path:
    """Write a result, and ``more`` entries of plain values and arrays, to one file in an existing folder."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        fault = "is a folder" if path.is_dir() else f"is in {path.parent}, which is not a folder"
        raise ValueError(f"save: {path} {fault}. Name a file in an existing folder, as in save('fit.npz').")
    kind = type(result).__name__
    if _RESULTS.get(kind) is not type(result):
        raise ValueError(f"save writes results of type {', '.join(_RESULTS)}; got {kind}: use pickle.")
    arrays: Arrays = {}
    document = {
        "format": _FORMAT,
        "version": version("pgmodels"),
        "kind": kind,
        "model": encode(result.model, arrays, "model", _stored_fields),
        "result": encode(result, arrays, "", _stored_fields),
        **{name: encode(value, arrays, name) for name, value in more.items()},
    }
    write_arrays(path, document, arrays)
    return path


@double_precision
def load(
    path: str | PathLike[str],
    likelihood: Likelihood | LikelihoodFamily | None = None,
    objective: Objective | None = None,
) -> Loaded:
    """Load a result from a file written by ``save``, with the same predictions.

    Parameters
    ----------
    path : str or path
        The file.
    likelihood : Likelihood or its family, optional
        Needed for a custom formula, since files hold no code.
    objective : Objective, optional
        The custom objective that the result maximises, needed for corrections and diagnostics.

    Returns
    -------
    Approximation, IntegratedApproximation, SparseApproximation or Draws
        The result. The prior and its factorisations are not in the file and are computed again.

    Raises
    ------
    ValueError
        For a file that is not a saved result, is damaged or has another format. For a pipe, a device, or a file larger
        than the available memory. For a likelihood or an objective that differs from the saved one.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> result = pgm.cavi(model, X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = result.save(f"{folder}/result")
    ...     again = pgm.load(path)
    >>> bool((again.mean == result.mean).all())
    True
    """
    path = Path(path)
    document, arrays = read_file(path)
    with faults_of(path):
        result = _Reader(document, arrays, likelihood).result()
    if objective is None:
        return result
    name = getattr(result, "objective", "none")
    if name != objective.name:
        raise ValueError(
            f"objective is {objective.name!r}, but the result in the file has the objective {name!r}: leave it out."
        )
    uncorrected = getattr(result, "uncorrected", result)
    known = replace(uncorrected, custom_objective=objective)
    return known if uncorrected is result else replace(result, uncorrected=known)


class _UnsuitableError(ValueError):
    """An error in an argument of ``load``, which does not fit the intact file."""


@contextmanager
def faults_of(path: Path, unsuitable: type[ValueError] = _UnsuitableError) -> Iterator[None]:
    """Turn errors about a file into a ValueError that names it, as damaged except after ``unsuitable`` errors."""
    try:
        yield
    except unsuitable as error:
        raise ValueError(f"{path}: {error}") from error
    # A file may claim anything, and most of the package reads its claims: any error may occur.
    except Exception as error:
        shown = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} is damaged: {shorten_text(shown.rstrip('.'))}. Pass an unchanged file written by save, or save "
            "the result again if you still have it."
        ) from error


def read_file(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return the document and the arrays of a file. Raise ValueError unless it is a result of this format."""
    try:
        document, arrays = read_arrays(path)
    except ValueError as error:
        raise ValueError(
            f"{error}: it is not a result saved by pgmodels. Pass a file written by result.save(path), or save the "
            "result again if you still have it."
        ) from error
    kind = document.get("kind")
    if kind not in [*_RESULTS]:
        raise ValueError(
            f"{path} is not a result saved by pgmodels; it contains {kind or 'something else'}: pass a file written by "
            "result.save(path)."
        )
    if document.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {document.get('format')}, written by pgmodels {document.get('version')}; this is "
            f"pgmodels {version('pgmodels')}, which reads format {_FORMAT}: load it with that version."
        )
    return document, arrays


# Writing: each object is stored as its public name and its fields.


def _stored_fields(value: Any, place: str) -> tuple[str, dict[str, Any]]:
    """Return the public name and the fields of an object. Raise ValueError if its class has no public name."""
    match value:
        case Model():
            return "Model", {"likelihood": _stored_likelihood(value.likelihood, value.num_latents), "gps": value.gps}
        case Parameter():
            array = None if value.value is None else np.asarray(value.value)
            return "Parameter", {
                "value": array if array is None or array.ndim else array.item(),
                "positive": value.positive,
                "fixed": value.fixed,
                "prior": value.declared_prior,
                "constraint": value.constraint,
            }
        case dist.Distribution():
            return "Distribution", _stored_distribution(value, place)
        case Constraint():
            return "Constraint", _stored_constraint(value, place)
    public = type(value).__name__
    if _CLASSES.get(public) is not type(value):
        raise _unnamed(value, place)
    names = [field.name for field in fields(value) if field.init] if is_dataclass(value) else value._fields
    stored = {name: getattr(value, name) for name in names if name not in _OTHER_FIELDS}
    if isinstance(value, Linear) and value.root is None:
        del stored["root"]
    match value:
        case Approximation():
            stored |= {"sites": value.sites, "blocks": _blocks(value.posterior), "groups": _own_groups(value, stored)}
        case Draws():
            stored["groups"] = _own_groups(value, stored)
        case SparseApproximation():
            roots, centres = value.posterior.roots_and_centres()
            stored |= {"roots": roots, "centres": centres, "blocks": _blocks(value.posterior)}
            stored["groups"] = value.prior.groups
        case LatentPrior():
            stored = {name: stored[name] for name in _array_fields(value)}
            stored = {n: np.asarray(part) if isinstance(part, np.generic) else part for n, part in stored.items()}
    return public, stored


def _blocks(posterior: Posterior) -> Blocks:
    blocks = posterior.coupled_latents()
    return None if blocks is None else tuple(map(tuple, blocks))


def _own_groups(result: Approximation | Draws, stored: Mapping[str, Any]) -> tuple[LatentPrior | None, ...]:
    """Return the groups of a result's prior; None for each group that the model binds at its data."""

    def same(one: LatentPrior, other: LatentPrior) -> bool:
        pairs = ((getattr(one, name), getattr(other, name)) for name in _array_fields(one))
        return type(one) is type(other) and all(eqx.tree_equal(*pair) for pair in pairs)

    pairs = zip(result.prior.groups, _bound_prior(result.model, stored).groups, strict=True)
    return tuple(None if same(*pair) else pair[0] for pair in pairs)


def _unnamed(value: object, place: str) -> ValueError:
    return ValueError(
        f"save stores objects by class name, but {place} is {shorten(value)}, which is not of a class of pgmodels or "
        "NumPyro: use pickle (pickle.dump), which accepts custom classes too."
    )


def _bound_prior(model: Model, values: Mapping[str, Any]) -> PriorCollection:
    """Return the prior at the data as engines bind it; files have the arrays of groups that differ from it."""
    in_program = bool(values.get("hyperparameters")) or values["method"] == "nuts"
    prior = model.prior(values["X"], traced=True) if in_program else model.prior(values["X"])
    return prior.for_sampling() if values["method"] == "gibbs" else prior


def _array_fields(group: LatentPrior) -> list[str]:
    """Return the names of a prior's fields, except the fields that come from the model and the data."""
    return [field.name for field in fields(group) if field.name not in ("kernel", "mean", "X", "size")]


def _stored_distribution(value: dist.Distribution, place: str) -> dict[str, Any]:
    """Return the name, arguments and precision of a distribution. Raise ValueError if these do not rebuild it."""
    kind = type(value)
    names = [name for name in inspect.signature(kind).parameters if name != "validate_args"]
    if (sd if kind is sd else getattr(dist, kind.__name__, None)) is kind and all(hasattr(value, n) for n in names):
        arguments = {name: getattr(value, name) for name in names}
        arguments = {n: np.asarray(part) if isinstance(part, np.generic) else part for n, part in arguments.items()}
        for double in (True, False):
            stored: dict[str, Any] = {"name": kind.__name__, "double": double, "arguments": arguments}
            if Hashable(_built_distribution(**stored)) == Hashable(value):
                return stored
    raise _unnamed(Hashable(value), place)


def _stored_constraint(constraint: Constraint, place: str) -> dict[str, Any]:
    """Return the name and the bounds of a NumPyro constraint."""
    for name, value in vars(constraints).items():
        if isinstance(value, Constraint) and type(value) is type(constraint) and value == constraint:
            return {"name": name, "bounds": {}}
    for name in _BOUNDED:
        if getattr(constraints, name) is type(constraint):
            bounds = [bound for bound in ("lower_bound", "upper_bound") if hasattr(constraint, bound)]
            return {"name": name, "bounds": {bound: float(getattr(constraint, bound)) for bound in bounds}}
    raise _unnamed(Hashable(constraint), place)


def _stored_likelihood(likelihood: Likelihood, size: int) -> dict[str, Any]:
    """Return the parameters and formulas of a likelihood, and the name of a likelihood of pgmodels."""
    name, parameters, options = likelihood.name, likelihood.parameters, dict(likelihood.options)
    return {
        "name": name,
        "named": _named_likelihood(name, parameters, options, size) == likelihood,
        "options": options,
        "parameters": parameters,
        "formulas": _formulas(likelihood, size),
    }


def _formulas(likelihood: Likelihood, size: int) -> dict[str, tuple[str, str]]:
    """Return the formulas and support of a likelihood as text, with digests, because the text rounds numbers."""
    roles = {
        "formula": likelihood.function,
        "mean": likelihood.conditional_mean,
        "variance": likelihood.conditional_variance,
    }
    traced = {role: trace(function, size, likelihood.symbols) for role, function in roles.items() if function}
    texts = {role: (one.text(), hashlib.sha256(repr(one.key).encode()).hexdigest()) for role, one in traced.items()}
    support = likelihood.declared_support
    return texts if support is None else texts | {"support": (repr(support), "")}


def _named_likelihood(
    name: str, parameters: dict[str, Parameter], options: dict[str, Any], size: int
) -> Likelihood | None:
    """Return the likelihood of pgmodels with this name, these parameters and options; None if there is none."""
    largest = 1 + max((np.size(parameter.value) for parameter in parameters.values()), default=0)
    if any(type(option) is int and option > largest for option in options.values()):
        raise ValueError(f"the options of {name}, {shorten(options)}, do not fit its parameters")
    maker = _LIKELIHOODS.get(name)
    accepted, arguments = [] if maker is None else _arguments(maker), {**options, **parameters}
    if "num_classes" in accepted and not options:
        arguments["num_classes"] = max(2, size + (name == "StickBreaking"))
    # Ordinal has an optional parameter, disc.
    fits = maker is not None and accepted == sorted({*arguments, *({"disc"} & {*accepted})})
    return maker(**arguments) if maker is not None and fits else None


def _arguments(likelihood: Likelihood | LikelihoodFamily | Callable[..., Likelihood]) -> list[str]:
    """Return the sorted names of a likelihood's or family's parameters, or of a function's arguments."""
    if isinstance(likelihood, Likelihood):
        return sorted(likelihood.parameters)
    if isinstance(likelihood, LikelihoodFamily):
        return sorted(argument.name for argument in likelihood.arguments)
    return sorted(inspect.signature(likelihood).parameters)


# Reading: objects from their public names and fields, checked before anything is computed from them.


class _Reader:
    """A reader of one file. ``sizes`` are the lengths of axes by name, which all its arrays share."""

    def __init__(self, document: dict[str, Any], arrays: Arrays, likelihood: Likelihood | LikelihoodFamily | None):
        self.document, self.arrays, self.likelihood = document, arrays, likelihood
        self.sizes: dict[str, int] = {}

    def result(self) -> Any:
        """Return the result. A damaged document raises an error of any kind."""
        result = decode(self.document["result"], self.arrays, self._build)
        if type(result) is not _CLASSES[self.document["kind"]]:
            raise ValueError(f"it holds a {type(result).__name__} named a {self.document['kind']}")
        return result

    def _build(self, public: str, values: dict[str, Any]) -> Any:
        match public:
            case "Model":
                return Model(self._likelihood(**values["likelihood"]), values["gps"])
            case "Parameter":
                return _built_parameter(**values)
            case "Distribution":
                return _built_distribution(**values)
            case "Constraint":
                return _built_constraint(**values)
            case "On":
                names = values.pop("names")
                return On(**values) if names is None else On.of_names(**values, names=names)
        cls = _CLASSES[public]
        if issubclass(cls, LatentPrior):
            return cls, values
        check_values(cls, values, self.sizes)
        return self._build_result(cls, values) if public in _RESULTS else cls(**values)

    def _build_result(self, cls: type[Any], values: dict[str, Any]) -> Any:
        _check_result(values, self.sizes)
        match values:
            case {"uncorrected": uncorrected}:
                if type(uncorrected) is not Approximation:
                    raise ValueError("it corrects no Approximation")
                num_coordinates = sum(uncorrected.posterior.prior.ranks)
                if len(values.get("shift", ())) != num_coordinates and issubclass(cls, JointResponse):
                    raise ValueError(f"shift should be of the prior's {num_coordinates} coordinates")
                return cls(**values)
            case {"roots": _}:
                stored = {name: values.pop(name) for name in ("groups", "blocks", "roots", "centres")}
                model, posterior = self._sparse_posterior(values["scaling"], **stored)
                return cls(model=model, posterior=posterior, **values)
            case {"whitened": tuple(whitened)}:
                counted = [coordinates.shape[-1] for coordinates in whitened]
            case {"moments": (mean, _)} | {"means": mean} | {"mean": mean}:
                counted = [mean.shape[-1]]
        model = self._model(counted)
        model.check_inputs(values["X"])
        if cls is IntegratedApproximation:
            return cls(model=model, **values)
        check_memory(model, values["X"])
        prior = _with_groups(_bound_prior(model, values), values.pop("groups"))
        if cls is Approximation:
            return cls(model=model, posterior=_posterior(prior, values.pop("sites"), values.pop("blocks")), **values)
        shapes = [(group.rank, group.size) for group in prior.groups]
        if values["whitened"] is not None and [v.shape[-2:] for v in values["whitened"]] != shapes:
            raise ValueError(f"whitened coordinates differ in shape from the prior's, {shapes}")
        return cls(model=model, prior=prior, **values)

    def _model(self, counted: list[int]) -> Model:
        """Return the model. Raise ValueError, before it is built, unless the arrays have its number of latents."""
        sizes = [gp["fields"]["size"] for gp in self.document["model"]["fields"]["gps"]]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError("sizes of GPs should be whole numbers >= 1")
        if counted not in (sizes, [sum(sizes)]):
            raise ValueError(f"it holds {sum(counted)} latents, but a model of {sum(sizes)} in {len(sizes)} GPs")
        self.sizes["l"] = sum(sizes)
        return decode(self.document["model"], self.arrays, self._build)

    def _sparse_posterior(
        self,
        scaling: Scaling,
        groups: StoredGroups,
        blocks: Blocks,
        roots: tuple[np.ndarray, ...],
        centres: tuple[np.ndarray, ...],
    ) -> tuple[Model, Posterior]:
        """Return the model and the posterior at inducing inputs, without rows of data."""
        latents = sorted(latent for block in blocks or () for latent in block)
        if latents != [*range(len(latents))]:
            raise ValueError("blocks do not have each latent once")
        model = self._model([len(root) for root in roots] if blocks is None else [len(latents)])
        prior = _with_groups(model.prior(np.zeros((1, len(scaling.location)))).resized(0), groups)
        if not all(group.has_points for group in prior.groups):
            raise ValueError("the priors should have inducing inputs")
        ranks, no_rows = [group.rank for group in prior.groups], jnp.zeros((0, model.num_latents))
        shapes: list[tuple[int, ...]]
        ends: list[tuple[int, ...]]
        if blocks is None:
            shapes = [(group.size, rank, rank) for group, rank in zip(prior.groups, ranks, strict=True)]
            ends = [shape[:2] for shape in shapes]
        else:
            widths = [int(np.array(prior.ranks)[[*block]].sum()) for block in blocks]
            shapes, ends = [(width, width) for width in widths], [(sum(widths),)]
        for name, stored, expected in (("roots", roots, shapes), ("centres", centres, ends)):
            if [array.shape for array in stored] != expected or not all(np.isfinite(array).all() for array in stored):
                raise ValueError(f"{name} should have finite entries and the shapes {expected}")
        factors, means = (tuple(map(as_array, stored)) for stored in (roots, centres))
        if blocks is None:
            triples = zip(cast(tuple[FactoredPrior, ...], prior.groups), factors, means, strict=True)
            posteriors = tuple(posterior_of_moments(*triple) for triple in triples)
            return model, IndependentPosterior(prior, Sites(no_rows, no_rows), posteriors)
        sites = Sites(no_rows, jnp.zeros((*no_rows.shape, model.num_latents)))
        return model, BlockPosterior(prior, sites, means[0], factors, jnp.zeros(()), blocks)

    def _likelihood(
        self,
        name: str,
        named: bool,
        options: dict[str, Any],
        parameters: dict[str, Parameter],
        formulas: dict[str, tuple[str, str]],
    ) -> Likelihood:
        """Return the likelihood. Raise _UnsuitableError if a custom formula is missing or is not the saved one."""
        size, likelihood = self.sizes["l"], self.likelihood
        if likelihood is None and named:
            likelihood = _named_likelihood(name, parameters, options, size)
        if not isinstance(likelihood, Likelihood | LikelihoodFamily):
            fault = f"got {shorten(likelihood)}" if likelihood is not None else "files hold no code"
            raise _UnsuitableError(
                f"the likelihood {name} has a custom formula, {formulas['formula'][0]}, and {fault}: pass the "
                f"likelihood or its family, as in pgm.load(path, likelihood={name})."
            )
        if _arguments(likelihood) != sorted(parameters):
            raise _UnsuitableError(
                f"likelihood has the parameters {_arguments(likelihood)}, but the saved one, {name}, has "
                f"{sorted(parameters)}: pass the likelihood as it was when the result was saved."
            )
        if isinstance(likelihood, LikelihoodFamily):
            likelihood = likelihood(**parameters)
        likelihood = replace(likelihood, parameters=parameters)
        passed = _formulas(likelihood, size)
        for role in {**formulas, **passed}:
            if formulas.get(role) != passed.get(role):
                texts = [stored[role][0] if role in stored else "none" for stored in (passed, formulas)]
                digits = ", in digits that are not shown" if texts[0] == texts[1] else ""
                raise _UnsuitableError(
                    f"the {role} of likelihood is {texts[0]}, but the saved one is {texts[1]}{digits}: pass the "
                    f"likelihood {name} as it was when the result was saved."
                )
        return likelihood


def _built_parameter(
    value: ArrayLike | None,
    positive: bool | None,
    fixed: bool,
    prior: dist.Distribution | None,
    constraint: Constraint | None,
) -> Parameter:
    shape = () if value is None else np.shape(value)
    if prior is not None and prior.shape() != shape:
        raise ValueError(f"a prior has shape {prior.shape()}, and its parameter has shape {shape}")
    if prior is not None and constraint is not None and prior.support != constraint:
        prior = Within(prior, constraint)
    array = None if value is None else np.asarray(value, dtype=np.float64)
    return Parameter(array, positive=positive, fixed=fixed, prior=prior, constraint=constraint)


def _built_distribution(name: str, double: bool, arguments: dict[str, Any]) -> dist.Distribution:
    kind: Any = sd if name == sd.__name__ else getattr(dist, name, None)
    if not (isinstance(kind, type) and issubclass(kind, dist.Distribution)):
        raise ValueError(f"{shorten(name)} is not a distribution of NumPyro or pgmodels")
    with jax.enable_x64(True):
        arrays = {key: as_array(np.asarray(v)) for key, v in arguments.items() if isinstance(v, np.ndarray | jax.Array)}
    with jax.enable_x64(double):
        return kind(**{**arguments, **arrays})


def _built_constraint(name: str, bounds: dict[str, float]) -> Constraint:
    constraint = getattr(constraints, name)
    if bounds and name in _BOUNDED:
        return constraint(**bounds)
    if not isinstance(constraint, Constraint):
        raise ValueError(f"{name} is not a constraint of NumPyro")
    return constraint


def _with_groups(prior: PriorCollection, stored: StoredGroups) -> PriorCollection:
    """Return the prior with the stored groups instead of its own; None keeps a group."""
    pairs = zip(prior.groups, stored, strict=True)
    groups = tuple(group if part is None else _group(group, *part) for group, part in pairs)
    return PriorCollection(groups, prior.copies)


def _group(bound: LatentPrior, cls: type[LatentPrior], values: dict[str, Any]) -> LatentPrior:
    """Return a prior of stored arrays, with the kernel and the inputs of a prior that the model binds."""
    check_values(cls, values, {"n": len(bound.X), "d": bound.X.shape[1]})
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = _group(getattr(bound, name), *value)
        elif value is not None:
            values[name] = as_array(value)
    if cls is not FICPrior:
        values |= {name: getattr(bound, name) for name in ("kernel", "mean", "X", "size")}
    return cls(**values)


def _posterior(prior: PriorCollection, sites: Sites, blocks: Blocks) -> Posterior:
    # Rows are padded as in the engines, so that the result is the same to the last bit.
    padded = padded_prior(prior)
    sites = pad_sites(Sites(*map(as_array, sites)), padded.num_rows)
    return _condition(padded, sites, blocks).completed(padded)


# Engines compute the sites of coupled latents and the posterior in one program; here the sites are read from the file.
# The order of sums differs, so coupled posteriors agree to rounding. Uncoupled posteriors agree to the last bit.
@partial(compiled, static_argnames="blocks", optimise=False)
def _condition(prior: PriorCollection, sites: Sites, blocks: Blocks) -> NewLeaves:
    return NewLeaves.of(prior, prior.condition(sites) if blocks is None else condition_jointly(prior, sites, blocks))


# Values are checked against the annotations of fields, and the fields of a result against each other.


def _check_result(values: dict[str, Any], sizes: dict[str, int]) -> None:
    """Raise ValueError if the fields of a result do not fit each other."""
    num_rows, rows, columns = sizes.get("n", 0), values.get("rows"), values.get("columns")
    if columns is not None and len(columns) != sizes["d"]:
        raise ValueError(f"X has {sizes['d']} columns, but {len(columns)} names")
    wrong = {
        "elbo_trace has no entry": np.size(values.get("elbo_trace", 0)) == 0,
        "X has no row": num_rows == 0 and "X" in values,
        "stored_latents do not have the rows of X": rows is None and sizes.get("stored", num_rows) != num_rows,
        "rows are not rows of X": rows is not None and not np.isin(rows, np.arange(num_rows)).all(),
        "shares are not probabilities": not _are_probabilities(values.get("shares")),
        "mass has entries that are not probabilities": not _are_probabilities(values.get("mass")),
        "owners are not points": not np.isin(values.get("owners", 0), np.arange(sizes.get("points", 1))).all(),
        "scaling has a scale that is not positive": "scaling" in values and not (values["scaling"].scale > 0.0).all(),
    }
    for fault, holds in wrong.items():
        if holds:
            raise ValueError(fault)


def _are_probabilities(values: np.ndarray | None) -> bool:
    return values is None or bool((values >= 0.0).all() and np.isclose(values.sum(), 1.0))


def check_values(owner: type, values: Mapping[str, Any], sizes: dict[str, int]) -> None:
    """Raise ValueError if values do not fit the annotations of a class's fields.

    Arrays are annotated with jaxtyping: they must be finite, with the annotated types, numbers of axes and lengths.
    ``sizes`` are the known lengths of axes by name; new axes are added. Fields of other types are skipped.
    """
    kinds = {field.name: field.type for field in fields(owner)} if is_dataclass(owner) else owner.__annotations__
    for name, kind in kinds.items():
        if name in values:
            _check(kind, values[name], name, sizes)


def _check(kind: Any, value: Any, name: str, sizes: dict[str, int]) -> None:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        options = [option for option in arguments if option is not NoneType]
        if Any in options or (value is None and NoneType in arguments):
            return
        # Precisions have numbers or matrices for each row.
        arrays = [option for option in options if hasattr(option, "dim_str")]
        fitting = [option for option in arrays if np.ndim(value) == len(option.dim_str.split())]
        if arrays or len(options) == 1:
            _check((fitting or options)[0], value, name, sizes)
    elif origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if not isinstance(value, tuple) or len(value) != len(kinds):
            raise ValueError(f"{name} should have {len(kinds)} parts")
        for place, pair in enumerate(zip(kinds, value, strict=True)):
            _check(*pair, f"{name}.{place}", sizes)
    elif origin is dict:
        for key, part in value.items():
            _check(arguments[1], part, f"{name}.{key}", sizes)
    elif hasattr(kind, "dim_str"):
        _check_array(kind, value, name, sizes)
    elif kind in (bool, int, float, str):
        is_number = kind is float and type(value) is int
        if type(value) is not kind and not is_number:
            raise ValueError(f"{name} should be of type {kind.__name__}, but is {type(value).__name__}")
        if kind is float and not _may_be_infinite(name) and not np.isfinite(value):
            raise ValueError(f"{name} should be finite, but is {value}")


def _check_array(kind: Any, value: object, name: str, sizes: dict[str, int]) -> None:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} should be an array, but is {type(value).__name__}")
    if value.dtype.name not in kind.dtypes or value.dtype == np.float32:
        raise ValueError(f"{name} has the wrong type {value.dtype}")
    axes = kind.dim_str.split()
    if axes[-1:] == ["..."]:
        axes = [*axes[:-1], *["_"] * (value.ndim - len(axes) + 1)]
    if value.ndim != len(axes):
        raise ValueError(f"{name} should have {len(axes)} axes, but has the shape {value.shape}")
    for axis, length in zip(axes, value.shape, strict=True):
        if axis != "_" and sizes.setdefault(axis, length) != length:
            raise ValueError(f"{name} has the shape {value.shape}, but {sizes[axis]} is expected for {length}")
    if not _may_be_infinite(name) and not np.isfinite(value).all():
        raise ValueError(f"{name} has entries that are not finite")


def _may_be_infinite(name: str) -> bool:
    return name.split(".", 1)[0] in _MAY_BE_INFINITE
