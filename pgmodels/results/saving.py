"""Results in one file: arrays and a JSON document in NumPy's npz format, without pickles and without code."""

from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from pgmodels import generic
from pgmodels.batches.rows import Scaling
from pgmodels.compiled import compiled
from pgmodels.language.likelihood import Likelihood, LikelihoodFamily
from pgmodels.latent.coupled import CoupledPosterior, condition_coupled
from pgmodels.latent.dense import DensePrior
from pgmodels.latent.fresh import Fresh
from pgmodels.latent.inducing import InducingPrior
from pgmodels.latent.joint import JointPosterior, JointPrior, resized_sites
from pgmodels.latent.low_rank import LowRankPrior
from pgmodels.latent.protocol import LatentPrior, Sites
from pgmodels.latent.sparse import SparsePrior
from pgmodels.latent.streamed import StreamedPrior
from pgmodels.model import Model
from pgmodels.naming import names_by_path
from pgmodels.precision import as_array, double_precision
from pgmodels.results import saving_sparse
from pgmodels.results.approximation import Approximation, FitReport, LinearResponse, PerturbativeApproximation
from pgmodels.results.description import build, describe
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.result import Result
from pgmodels.results.sparse import SparseApproximation
from pgmodels.storage import read_arrays, write_arrays

# Of a file: one more for every change of what it holds.
_FORMAT = 3
_RESULTS: dict[str, type[Result] | type[SparseApproximation]] = {
    cls.__name__: cls
    for cls in (
        Approximation,
        LinearResponse,
        PerturbativeApproximation,
        IntegratedApproximation,
        SparseApproximation,
        Draws,
    )
}
_PRIORS: dict[str, type[LatentPrior]] = {
    cls.__name__: cls for cls in (DensePrior, LowRankPrior, InducingPrior, StreamedPrior, SparsePrior)
}
# How engines make a prior: as the model binds it, as compiled code does, or as what is sampled from.
_WAYS = ("bound", "compiled", "generative", "compiled generative")
# What is rebuilt, and what cannot be saved: the chains themselves.
_REBUILT = ("model", "prior", "posterior", "run")

Arrays = dict[str, np.ndarray]
Loaded = Approximation | IntegratedApproximation | SparseApproximation | Draws


@generic.save.register(SparseApproximation)
@generic.save.register(Result)
@double_precision
def save(result: Result | SparseApproximation, path: Any) -> Path:
    """See ``Result.save``."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        fault = "is a folder" if path.is_dir() else f"is to be in {path.parent}, which is no folder"
        raise ValueError(f"save: {path} {fault}. Name a file in a folder that there is, as in save('fit.npz').")
    kind = type(result).__name__
    if _RESULTS.get(kind) is not type(result):
        raise ValueError(f"save knows results of {', '.join(_RESULTS)}; got a {kind}: use pickle.")
    arrays: Arrays = {}
    document = {
        "format": _FORMAT,
        "version": version("pgmodels"),
        "kind": kind,
        "model": describe(result.model),
        "prior": _encode_prior(result, arrays) if isinstance(result, Approximation | Draws) else None,
        "fields": {
            field.name: _encode(getattr(result, field.name), field.name, arrays)
            for field in fields(result)
            if field.name not in _REBUILT
        },
    }
    if isinstance(result, Approximation):
        document["blocks"] = _encode_posterior(result.posterior, arrays)
    if isinstance(result, SparseApproximation):
        document["blocks"] = saving_sparse.encode_posterior(result.posterior, arrays)
    write_arrays(path, document, arrays)
    return path


@double_precision
def load(path: Any, likelihood: Likelihood | LikelihoodFamily | None = None) -> Loaded:
    """The result in a file that ``save`` wrote, with the same predictions.

    ``likelihood`` is the likelihood, or its family, where the formula is one's own: a file holds no code. What is not
    in the file, the prior and its factorisations, is computed again. Raises ValueError for a file that is no result, is
    damaged or of a later format, and for another likelihood than the one saved.
    """
    path = Path(path)
    document, arrays = _read(path)
    try:
        return _built(document, arrays, likelihood)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: what it holds makes no {document['kind']} ({type(error).__name__}: {error}). Give a "
            "file as save wrote it, and save the result again where it is still there."
        ) from error


def _built(document: dict[str, Any], arrays: Arrays, likelihood: Likelihood | LikelihoodFamily | None) -> Loaded:
    model = build(document["model"], likelihood)
    parts = {name: _decode(value, arrays) for name, value in document["fields"].items()}
    parts = _renamed(parts, model)
    cls: Any = _RESULTS[document["kind"]]
    if cls is IntegratedApproximation:
        return cls(model=model, **parts)
    if cls is SparseApproximation:
        parts["scaling"] = Scaling(*parts["scaling"])
        posterior = saving_sparse.decode_posterior(document["blocks"], model, arrays)
        return cls(model=model, posterior=posterior, **parts)
    prior = _decode_prior(document["prior"], model, parts["X"], arrays)
    _check_ranks(prior, parts)
    if issubclass(cls, Draws):
        return cls(model=model, prior=prior, **parts)
    return cls(model=model, posterior=_decode_posterior(document["blocks"], prior, arrays), **parts)


def _renamed(parts: dict[str, Any], model: Model) -> dict[str, Any]:
    """Fields with the names that the model's parameters have; older files have their paths."""
    names = names_by_path(model)

    def rename(values: dict[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in values.items()}

    if parts.get("hyperparameters"):
        parts = parts | {"hyperparameters": rename(parts["hyperparameters"])}
    if parts.get("fit") is not None:
        parts = parts | {"fit": replace(parts["fit"], values=rename(parts["fit"].values))}
    return parts


def _encode(value: Any, name: str, arrays: Arrays) -> Any:
    """A field as JSON; its arrays are added to ``arrays`` under their places."""
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
        return {"fit": _encode(dict(vars(value)), name, arrays)}
    if isinstance(value, dict):
        return {"dict": {key: _encode(part, f"{name}.{key}", arrays) for key, part in value.items()}}
    raise ValueError(f"save: {name} is a {type(value).__name__}, which a file of arrays does not hold: use pickle.")


def _decode(value: Any, arrays: Arrays) -> Any:
    match value:
        case {"array": name}:
            return arrays[name]
        case {"tuple": parts}:
            return tuple(_decode(part, arrays) for part in parts)
        case {"fit": report}:
            return FitReport(**_decode(report, arrays))
        case {"dict": parts}:
            return {key: _decode(part, arrays) for key, part in parts.items()}
    return value


def _encode_prior(result: Result, arrays: Arrays) -> Any:
    """How the prior is made again: each group as the model binds it, as compiled code does, or by its arrays.

    Engines may have asked for more digits than the model's own form has: what comes out otherwise is kept.
    """
    held = result.prior.groups
    unknown = [type(group).__name__ for group in held if _PRIORS.get(type(group).__name__) is not type(group)]
    if unknown:
        raise ValueError(f"save knows no prior of class {unknown[0]}: use pickle.")
    for way in _WAYS:
        groups = _priors(result.model, result.X, way).groups
        same = [_same(*pair) for pair in zip(held, groups, strict=True)]
        if all(same):
            return {"way": way, "groups": [None] * len(held)}
    groups = _priors(result.model, result.X, "bound").groups
    kept = []
    for i, (group, own) in enumerate(zip(held, groups, strict=True)):
        names = [] if _same(group, own) else _array_fields(group)
        arrays |= {f"prior.{i}.{name}": np.asarray(getattr(group, name)) for name in names}
        kept.append({"class": type(group).__name__, "arrays": names} if names else None)
    return {"way": "bound", "groups": kept}


def _decode_prior(document: Any, model: Model, X: np.ndarray, arrays: Arrays) -> JointPrior:
    prior = _priors(model, X, document["way"])
    groups: list[Any] = list(prior.groups)
    for i, kept in enumerate(document["groups"]):
        if kept is not None:
            own = groups[i]
            stored = {name: as_array(arrays[f"prior.{i}.{name}"]) for name in kept["arrays"]}
            cls: Any = _PRIORS[kept["class"]]
            if cls is DensePrior:
                stored.setdefault("live", as_array(np.ones(len(own.X))))
            groups[i] = cls(kernel=own.kernel, mean=own.mean, X=own.X, size=own.size, **stored)
    return JointPrior(tuple(groups), prior.copies)


def _check_ranks(prior: JointPrior, parts: dict[str, Any]) -> None:
    """ValueError where what is held of coordinates is of more than the prior has."""
    whitened, response = parts.get("whitened"), parts.get("response")
    more = response is not None and len(response) != sum(prior.ranks)
    if whitened is not None:
        pairs = zip(whitened, prior.groups, strict=True)
        more = more or any(v.shape[-2] > group.rank for v, group in pairs)
    if more:
        raise ValueError(
            "the file holds a latent for each of several rows with equal inputs, which have one since: load it with "
            "the version of pgmodels that saved it, or run the engine again."
        )


def _priors(model: Model, X: np.ndarray, way: str) -> JointPrior:
    prior = model.compiled_prior(X) if way.startswith("compiled") else model.prior(X)
    return prior.generative() if way.endswith("generative") else prior


def _same(one: LatentPrior, other: LatentPrior) -> bool:
    """Whether two priors are of one class and hold the same arrays."""
    names = _array_fields(one)
    return type(one) is type(other) and all(eqx.tree_equal(getattr(one, n), getattr(other, n)) for n in names)


def _array_fields(group: LatentPrior) -> list[str]:
    return [field.name for field in fields(group) if field.name not in ("kernel", "mean", "X", "size")]


def _encode_posterior(posterior: JointPosterior | CoupledPosterior, arrays: Arrays) -> list[list[int]] | None:
    """The Gaussian factors of the data, as arrays; which latents they couple, None where they couple none."""
    sites = posterior if isinstance(posterior, CoupledPosterior) else posterior.sites
    arrays["potential"], arrays["precision"] = np.asarray(sites.potential), np.asarray(sites.precision)
    return [list(block) for block in posterior.blocks] if isinstance(posterior, CoupledPosterior) else None


def _decode_posterior(blocks: Any, prior: JointPrior, arrays: Arrays) -> JointPosterior | CoupledPosterior:
    potential, precision = as_array(arrays["potential"]), as_array(arrays["precision"])
    # By the program that the engines ran.
    filled = prior.filled()
    sites = resized_sites(Sites(potential, precision), filled.num_rows)
    if blocks is None:
        posterior = _condition(filled, sites).completed(filled)
    else:
        posterior = _condition_coupled(filled, *sites, tuple(tuple(block) for block in blocks)).completed(filled)
    return posterior.resized(prior.num_rows)


# Engines compute the factors of latents that predictors couple in one program with the posterior, and here they are
# read: sums are taken in another order, and that posterior agrees to rounding. All else is the same bit for bit.
@partial(compiled, lightly=True)
def _condition(prior: JointPrior, sites: Sites) -> Fresh:
    return Fresh.beside(prior, prior.condition(sites))


@partial(compiled, static_argnames="blocks", lightly=True)
def _condition_coupled(prior: JointPrior, potential: Any, precision: Any, blocks: Any) -> Fresh:
    return Fresh.beside(prior, condition_coupled(prior, potential, precision, blocks))


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of a result, or ValueError."""
    try:
        document, arrays = read_arrays(path)
    except ValueError as error:
        raise ValueError(
            f"{error}: it is no result that pgmodels saved. Give a file that result.save(path) wrote, and save the "
            "result again where it is still there."
        ) from error
    kind = document.get("kind")
    if kind not in _RESULTS:
        raise ValueError(
            f"{path} is no result that pgmodels saved, but {kind or 'something else'}: give a file that "
            "result.save(path) wrote."
        )
    if document.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {document.get('format')}, of pgmodels {document.get('version')}; this is pgmodels "
            f"{version('pgmodels')}, which reads format {_FORMAT}: load it with that version."
        )
    return document, arrays
