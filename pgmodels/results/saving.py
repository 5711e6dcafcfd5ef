"""Saving a result to one npz file of arrays and a JSON document, without pickles or code."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from pgmodels.data.frames import Column
from pgmodels.data.missing import Missing
from pgmodels.data.sources.rows import Scaling
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.model import Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.names import names_by_path
from pgmodels.priors.base import LatentPrior, Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import DensePrior
from pgmodels.priors.fresh import Fresh
from pgmodels.priors.hilbert.prior import HilbertPrior
from pgmodels.priors.inducing.chunked import ChunkedInducingPrior
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.inducing.representation import InducingPrior
from pgmodels.priors.linear_predictor import condition_jointly
from pgmodels.priors.low_rank import CoefficientPrior, LowRankPrior
from pgmodels.priors.markov.prior import MarkovPrior
from pgmodels.priors.padding import pad_sites
from pgmodels.priors.posterior import Posterior
from pgmodels.results import saving_sparse
from pgmodels.results.approximation import (
    BEFORE_CORRECTION,
    Approximation,
    CorrectedApproximation,
    FitReport,
    GaussianResult,
    LearnedApproximation,
    LinearResponse,
    PerturbativeApproximation,
)
from pgmodels.results.chain_response import ChainCorrection
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import NestedApproximation
from pgmodels.results.result import Result
from pgmodels.results.sparse import SparseApproximation
from pgmodels.results.stored_names import engine_of, field_of, objective_of, stored_class, stored_field
from pgmodels.results.stored_values import check_values
from pgmodels.results.uncertainty import ParameterUncertainty
from pgmodels.runtime.atomic_io import read_arrays, write_arrays
from pgmodels.runtime.formatting import shorten_text
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision

# The version of the file format, increased by each incompatible change.
_FORMAT = 3
_RESULTS: dict[str, type[Result] | type[SparseApproximation]] = {
    cls.__name__: cls
    for cls in (
        Approximation,
        LearnedApproximation,
        LinearResponse,
        NestedApproximation,
        PerturbativeApproximation,
        ChainCorrection,
        IntegratedApproximation,
        SparseApproximation,
        Draws,
    )
}
_PRIORS: dict[str, type[LatentPrior]] = {
    stored_class(cls): cls
    for cls in (
        DensePrior,
        LowRankPrior,
        CoefficientPrior,
        InducingPrior,
        ChunkedInducingPrior,
        FICPrior,
        HilbertPrior,
        MarkovPrior,
    )
}
# How engines build a prior: ``Model.prior``, ``Model.compiled_prior``, or either with ``for_sampling``.
_WAYS = ("bound", "compiled", "generative", "compiled generative")
# Fields stored elsewhere in the file or rebuilt, and what is not saved: the state of chains, and custom objectives.
_OTHER_FIELDS = ("model", "prior", "posterior", "uncorrected", "run", "weights", "custom_objective")

Arrays = dict[str, np.ndarray]
Loaded = Approximation | CorrectedApproximation | IntegratedApproximation | SparseApproximation | Draws


@double_precision
def save(result: Result | SparseApproximation, path: str | PathLike[str]) -> Path:
    """See ``Result.save``."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        fault = "is a folder" if path.is_dir() else f"is in {path.parent}, which is not a folder"
        raise ValueError(f"save: {path} {fault}. Name a file in an existing folder, as in save('fit.npz').")
    kind = type(result).__name__
    if _RESULTS.get(kind) is not type(result):
        raise ValueError(f"save writes results of type {', '.join(_RESULTS)}; got {kind}: use pickle.")
    arrays: Arrays = {}
    weights = result.weights if isinstance(result, Result) else None
    from pgmodels.results.description import describe

    document = {
        "format": _FORMAT,
        "version": version("pgmodels"),
        "kind": kind,
        "model": describe(result.model) | {"weighted": weights is not None},
        "prior": _encode_prior(result, arrays) if isinstance(result, GaussianResult | Draws) else None,
        "fields": {name: _encode(value, name, arrays) for name, value in _values(result).items()},
    }
    if isinstance(result, GaussianResult):
        arrays |= result.sites._asdict()
        document["blocks"] = result.posterior.coupled_latents()
    if isinstance(result, SparseApproximation):
        document["blocks"] = saving_sparse.encode_posterior(result.posterior, arrays)
    write_arrays(path, document, arrays)
    return path


def _values(result: Any) -> dict[str, Any]:
    """The values that are stored by themselves, without rows of padding; for corrections, of what they correct too."""
    known = (*fields(Approximation), *fields(result)) if isinstance(result, CorrectedApproximation) else fields(result)
    values = {field.name: getattr(result, field.name) for field in known if field.name not in _OTHER_FIELDS}
    # Results without these are as in older files.
    optional = ("labels", "missing", "uncertainty")
    values = {name: value for name, value in values.items() if value is not None or name not in optional}
    if isinstance(result, Result) and result.weights is not None:
        # Files have weights as the last column of y.
        values["y"] = np.column_stack([result.y, result.weights])
    if isinstance(result, LinearResponse):
        values |= _coordinates(values, result.posterior.prior, result.prior)
    return values


def _coordinates(values: dict[str, Any], prior: PriorCollection, other: PriorCollection) -> dict[str, Any]:
    """Shift and response of a linear response, in the coordinates of the same prior with another number of rows."""
    return {name: _resized_coordinates(values[name], prior.ranks, other.ranks) for name in ("shift", "response")}


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
        The custom objective that the result is the optimum of, needed for corrections and diagnostics.

    Returns
    -------
    Approximation, IntegratedApproximation, SparseApproximation or Draws
        The result. The prior and its factorisations are not in the file and are computed again.

    Raises
    ------
    ValueError
        For a file that is not a saved result, is damaged or has another format; for a pipe or a device, and a file
        larger than the available memory; and for a likelihood or an objective that differs from the saved one.

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
    from pgmodels.results.description import build_gps, build_likelihood

    with faults_of(path):
        stored = {name: _decode(value, arrays) for name, value in document["fields"].items()}
        sizes = _check_latents(document, stored, arrays)
        gps = build_gps(document["model"])
    # A custom likelihood is not in the file.
    with faults_of(path, unsuitable=ValueError):
        model = Model(build_likelihood(document["model"], likelihood, sizes["l"]), gps)
    with faults_of(path):
        result = _built(document, arrays, model, stored, sizes)
    if result is None:
        raise ValueError(
            f"{path} stores one latent per row, and rows with equal inputs now share one: load it with the version of "
            "pgmodels that saved it, or run the engine again."
        )
    return result if objective is None else _with_objective(result, objective)


@contextmanager
def faults_of(path: Path, unsuitable: type[ValueError] | tuple[()] = ()) -> Iterator[None]:
    """Within the context, errors about what a file holds become one ValueError that names it.

    ``unsuitable`` are those of files that are not damaged.
    """
    try:
        yield
    except unsuitable as error:
        raise ValueError(f"{path}: {error}") from error
    # What a file claims may be anything, and is read by most of the package.
    except Exception as error:
        shown = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} is damaged: {shorten_text(shown.rstrip('.'))}. Pass an unchanged file written by save, or save "
            "the result again if you still have it."
        ) from error


def _with_objective(result: Loaded, objective: Objective) -> Loaded:
    """The result with its custom objective. Raises ValueError if it is the optimum of another one."""
    name = getattr(result, "objective", "none")
    if name != objective.name:
        raise ValueError(
            f"objective is {objective.name!r}, and that of the result in the file is {name!r}: leave it out."
        )
    match result:
        case CorrectedApproximation():
            return replace(result, uncorrected=replace(result.uncorrected, custom_objective=objective))
        case Approximation() | SparseApproximation():
            return replace(result, custom_objective=objective)
    return result


def _built(
    document: dict[str, Any], arrays: Arrays, model: Model, stored: dict[str, Any], sizes: dict[str, int]
) -> Loaded | None:
    """The result of the parts of a file; None if it has more coordinates than the prior."""
    stored = _renamed(stored, model)
    if document["model"].get("weighted", False) and "y" in stored:
        y, stored["weights"] = stored["y"][:, :-1], stored["y"][:, -1]
        stored["y"] = y[:, 0] if y.shape[1] == 1 else y
    cls: Any = _RESULTS[document["kind"]]
    if cls is SparseApproximation:
        stored["scaling"] = Scaling(*stored["scaling"])
        _check_fields(cls, stored, sizes)
        posterior = saving_sparse.decode_posterior(document["blocks"], model, arrays)
        return cls(model=model, posterior=posterior, **stored)
    _check_fields(cls, stored, sizes)
    model.check_inputs(stored["X"])
    if cls is IntegratedApproximation:
        return cls(model=model, **stored)
    model.check_memory(stored["X"])
    prior = _decode_prior(document["prior"], model, stored["X"], arrays)
    if not _fits_ranks(prior, stored):
        return None
    if issubclass(cls, Draws):
        return cls(model=model, prior=prior, **stored)
    check_values(Sites, arrays, sizes)
    posterior = _decode_posterior(document["blocks"], prior, arrays)
    if cls is Approximation:
        return cls(model=model, posterior=posterior, **stored)
    if issubclass(cls, LinearResponse):
        stored |= _coordinates(stored, prior, posterior.prior)
    return cls(uncorrected=_uncorrected(model, posterior, stored), **_select(stored, cls))


def _check_latents(document: dict[str, Any], stored: dict[str, Any], arrays: Arrays) -> dict[str, int]:
    """The number of latents, ``{"l": number}``; ValueError if the model's GPs are not those of the file's arrays.

    Before the model is built, since a file may claim any number of GPs.
    """
    sizes = [gp["size"] for gp in document["model"]["gps"]]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError("sizes of GPs should be whole numbers >= 1")
    match document["kind"], stored:
        case "Draws", {"whitened": tuple(whitened)}:
            counted = [part.shape[-1] for part in whitened]
        case "Draws", {"moments": (mean, _)}:
            counted = [mean.shape[-1]]
        case "SparseApproximation", _:
            saving_sparse.check_sizes(document["blocks"], sizes, arrays)
            return {"l": sum(sizes)}
        case "IntegratedApproximation", {"means": means}:
            counted = [means.shape[-1]]
        case _, {"mean": mean}:
            counted = [mean.shape[-1]]
    if counted not in (sizes, [sum(sizes)]):
        raise ValueError(f"it holds {sum(counted)} latents, and a model of {sum(sizes)} in {len(sizes)} GPs")
    return {"l": sum(sizes)}


def _check_fields(cls: Any, stored: dict[str, Any], sizes: dict[str, int]) -> None:
    """Raise ValueError if the fields of a result do not fit each other."""
    if issubclass(cls, CorrectedApproximation):
        check_values(Approximation, stored, sizes)
    check_values(cls, stored, sizes)
    if stored.get("fit") is not None:
        check_values(FitReport, vars(stored["fit"]), {})
    if stored.get("uncertainty") is not None:
        check_values(ParameterUncertainty, vars(stored["uncertainty"]), sizes)
    if stored.get("missing") is not None:
        check_values(Missing, stored["missing"]._asdict(), {"d": sizes["d"]})
    if "scaling" in stored:
        check_values(Scaling, stored["scaling"]._asdict(), sizes)
    columns = stored.get("columns")
    for column in columns or ():
        check_values(Column, column._asdict(), {})
    if columns is not None and len(columns) != sizes["d"]:
        raise ValueError(f"X has {sizes['d']} columns, and {len(columns)} have names")
    num_rows, rows = sizes.get("n", 0), stored.get("rows")
    wrong = {
        "elbo_trace has no entry": np.size(stored.get("elbo_trace", 0)) == 0,
        "X has no row": num_rows == 0 and "X" in stored,
        "stored_latents do not have the rows of X": rows is None and sizes.get("stored", num_rows) != num_rows,
        "rows are not those of X": rows is not None and not np.isin(rows, np.arange(num_rows)).all(),
        "shares are not probabilities": not _are_probabilities(stored.get("shares")),
        "mass has entries that are not probabilities": not _are_probabilities(stored.get("mass")),
        "owners are not points": not np.isin(stored.get("owners", 0), np.arange(sizes.get("points", 1))).all(),
        "scaling has a scale that is not positive": "scaling" in stored and not (stored["scaling"].scale > 0.0).all(),
    }
    for fault, holds in wrong.items():
        if holds:
            raise ValueError(fault)


def _are_probabilities(values: np.ndarray | None) -> bool:
    return values is None or bool((values >= 0.0).all() and np.isclose(values.sum(), 1.0))


def _uncorrected(model: Model, posterior: Posterior, stored: dict[str, Any]) -> Approximation:
    """The result that was corrected, of which a file holds all but the moments, the method and the time."""
    mean, variance = (np.asarray(part)[: len(stored["y"])] for part in _moments(posterior))
    method, report = engine_of(stored["objective"]), stored["fit"]
    if report is not None:
        method, report = "fit", replace(report, correction=BEFORE_CORRECTION)
    values = {"mean": mean, "variance": variance, "method": method, "fit": report}
    return Approximation(model=model, posterior=posterior, **_select(stored, Approximation) | values)


def _select(stored: dict[str, Any], cls: Any) -> dict[str, Any]:
    """The stored values that are fields of a class."""
    return {field.name: stored[field.name] for field in fields(cls) if field.name in stored}


def _renamed(stored: dict[str, Any], model: Model) -> dict[str, Any]:
    """Fields with hyperparameters and columns by name; older files have pytree paths, and names of columns alone."""
    names = names_by_path(model)

    def rename(values: dict[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in values.items()}

    if "objective" in stored:
        stored = stored | {"objective": objective_of(stored["objective"])}
    if stored.get("columns") is not None:
        columns = (Column(part) if isinstance(part, str) else Column(*part) for part in stored["columns"])
        stored = stored | {"columns": tuple(columns)}
    if stored.get("missing") is not None:
        stored = stored | {"missing": Missing(*stored["missing"])}
    if stored.get("hyperparameters"):
        stored = stored | {"hyperparameters": rename(stored["hyperparameters"])}
    if stored.get("fit") is not None:
        stored = stored | {"fit": replace(stored["fit"], values=rename(stored["fit"].values))}
    return stored


def _encode(value: Any, name: str, arrays: Arrays) -> Any:
    """A field as JSON; its arrays are added to ``arrays`` under their paths."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.ndarray, jax.Array)):
        arrays[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, tuple):
        return {"tuple": [_encode(part, f"{name}.{i}", arrays) for i, part in enumerate(value)]}
    if isinstance(value, FitReport):
        # Empty notes are left out, as in older files.
        fields = {key: part for key, part in vars(value).items() if part != ""}
        return {"fit": _encode(fields, name, arrays)}
    if isinstance(value, ParameterUncertainty):
        return {"uncertainty": _encode(vars(value), name, arrays)}
    if isinstance(value, dict):
        return {"dict": {key: _encode(part, f"{name}.{key}", arrays) for key, part in value.items()}}
    raise ValueError(f"save: {name} is a {type(value).__name__}, which cannot be saved as arrays: use pickle.")


def _decode(value: Any, arrays: Arrays) -> Any:
    match value:
        case {"array": name}:
            return arrays[name]
        case {"tuple": entries}:
            return tuple(_decode(part, arrays) for part in entries)
        case {"fit": report}:
            return FitReport(**_decode(report, arrays))
        case {"uncertainty": values}:
            return ParameterUncertainty(**_decode(values, arrays))
        case {"dict": entries}:
            return {key: _decode(part, arrays) for key, part in entries.items()}
    return value


def _encode_prior(result: Result, arrays: Arrays) -> Any:
    """How to rebuild the prior: the first of ``_WAYS`` that reproduces every group.

    If none does, "bound", with the arrays of the groups that it does not reproduce: engines may have used a more
    accurate prior than ``Model.prior`` returns by default.
    """
    priors = result.prior.groups
    unknown = [type(group).__name__ for group in priors if _PRIORS.get(stored_class(type(group))) is not type(group)]
    if unknown:
        raise ValueError(f"save cannot write a prior of class {unknown[0]}: use pickle.")
    for way in _WAYS:
        groups = _priors(result.model, result.X, way).groups
        same = [_same(*pair) for pair in zip(priors, groups, strict=True)]
        if all(same):
            return {"way": way, "groups": [None] * len(priors)}
    groups = _priors(result.model, result.X, "bound").groups
    saved = []
    for i, (group, bound) in enumerate(zip(priors, groups, strict=True)):
        values = {} if _same(group, bound) else {stored_field(n): getattr(group, n) for n in _array_fields(group)}
        arrays |= {f"prior.{i}.{name}": np.asarray(value) for name, value in values.items()}
        saved.append({"class": stored_class(type(group)), "arrays": list(values)} if values else None)
    return {"way": "bound", "groups": saved}


def _decode_prior(document: Any, model: Model, X: np.ndarray, arrays: Arrays) -> PriorCollection:
    prior = _priors(model, X, document["way"])
    groups: list[Any] = list(prior.groups)
    for i, saved in enumerate(document["groups"]):
        if saved is not None:
            group = groups[i]
            stored = {field_of(name): arrays[f"prior.{i}.{name}"] for name in saved["arrays"]}
            cls: Any = _PRIORS[saved["class"]]
            check_values(cls, stored, {"n": len(group.X), "d": group.X.shape[1]})
            # Older files have no mask.
            if cls is DensePrior:
                stored.setdefault("row_mask", np.ones(len(group.X)))
            values = {name: as_array(value) for name, value in stored.items()}
            groups[i] = cls(kernel=group.kernel, mean=group.mean, X=group.X, size=group.size, **values)
    return PriorCollection(tuple(groups), prior.copies)


def _fits_ranks(prior: PriorCollection, stored: dict[str, Any]) -> bool:
    """Whether there are no more stored coordinates than the prior's rank; ValueError if there are fewer."""
    whitened, response = stored.get("whitened"), stored.get("response")
    more = response is not None and len(response) != sum(prior.ranks)
    if whitened is not None:
        pairs = [(v.shape[-2:], (group.rank, group.size)) for v, group in zip(whitened, prior.groups, strict=True)]
        more = more or any(shape[0] > expected[0] for shape, expected in pairs)
        if not more and any(shape != expected for shape, expected in pairs):
            raise ValueError(f"whitened coordinates have other shapes than the prior's, {pairs}")
    return not more


def _priors(model: Model, X: np.ndarray, way: str) -> PriorCollection:
    prior = model.compiled_prior(X) if way.startswith("compiled") else model.prior(X)
    return prior.for_sampling() if way.endswith("generative") else prior


def _same(one: LatentPrior, other: LatentPrior) -> bool:
    """Whether two priors have the same class and the same arrays."""
    names = _array_fields(one)
    return type(one) is type(other) and all(eqx.tree_equal(getattr(one, n), getattr(other, n)) for n in names)


def _array_fields(group: LatentPrior) -> list[str]:
    return [field.name for field in fields(group) if field.name not in ("kernel", "mean", "X", "size")]


def _decode_posterior(blocks: Any, prior: PriorCollection, arrays: Arrays) -> Posterior:
    # Padded, as in the engines, so that the result is the same to the last bit.
    padded = prior.padded()
    sites = pad_sites(Sites(as_array(arrays["potential"]), as_array(arrays["precision"])), padded.num_rows)
    if blocks is None:
        return _condition(padded, sites).completed(padded)
    return _condition_coupled(padded, sites, tuple(tuple(block) for block in blocks)).completed(padded)


def _resized_coordinates(array: np.ndarray, ranks: tuple[int, ...], new_ranks: tuple[int, ...]) -> np.ndarray:
    """A vector or matrix over the coordinates of all latents, of which each then has a new number: padded with zeros.

    The leading coordinates of a latent are those of the data.
    """
    pairs = list(zip(ranks, new_ranks, strict=True))
    starts = np.cumsum([(0, 0), *pairs], axis=0)[:-1]
    kept = [start + np.arange(min(pair))[:, None] for start, pair in zip(starts, pairs, strict=True)]
    before, after = np.concatenate(kept).T
    resized = np.zeros((sum(new_ranks),) * array.ndim)
    resized[np.ix_(*[after] * array.ndim)] = array[np.ix_(*[before] * array.ndim)]
    return resized


# Engines compute the sites of coupled latents and the posterior in one program; here the sites are read from the file.
# The order of sums differs, so coupled posteriors agree to rounding. All others are the same to the last bit.
@partial(compiled, optimise=False)
def _condition(prior: PriorCollection, sites: Sites) -> Fresh:
    return Fresh.beside(prior, prior.condition(sites))


@partial(compiled, static_argnames="blocks", optimise=False)
def _condition_coupled(prior: PriorCollection, sites: Sites, blocks: Any) -> Fresh:
    return Fresh.beside(prior, condition_jointly(prior, sites, blocks))


@compiled
def _moments(posterior: Posterior) -> Any:
    return posterior.moments()


def read_file(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of a file; raises ValueError unless it is a result of this format."""
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
