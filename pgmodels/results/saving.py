"""Saving a result to one npz file of arrays and a JSON document, without pickles or code."""

from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from pgmodels.data.sources.rows import Scaling
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.model import Model
from pgmodels.parameters.names import names_by_path
from pgmodels.priors.base import LatentPrior, Sites
from pgmodels.priors.block_posterior import BlockPosterior, condition_blocks
from pgmodels.priors.collection import IndependentPosterior, PriorCollection, resized_sites
from pgmodels.priors.dense import DensePrior
from pgmodels.priors.fresh import Fresh
from pgmodels.priors.inducing.chunked import ChunkedInducingPrior
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.inducing.representation import InducingPrior
from pgmodels.priors.low_rank import LowRankPrior
from pgmodels.results import saving_sparse
from pgmodels.results.approximation import Approximation, FitReport, LinearResponse, PerturbativeApproximation
from pgmodels.results.description import build, describe
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.result import Result
from pgmodels.results.sparse import SparseApproximation
from pgmodels.results.stored_names import field_of, objective_of, stored_class, stored_field
from pgmodels.runtime import hooks
from pgmodels.runtime.atomic_io import read_arrays, write_arrays
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision

# The version of the file format, increased by each incompatible change.
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
    stored_class(cls): cls for cls in (DensePrior, LowRankPrior, InducingPrior, ChunkedInducingPrior, FICPrior)
}
# How engines build a prior: ``Model.prior``, ``Model.compiled_prior``, or either with ``for_sampling``.
_WAYS = ("bound", "compiled", "generative", "compiled generative")
# Fields stored elsewhere in the file or rebuilt, and the state of Gibbs chains, which is not saved.
_OTHER_FIELDS = ("model", "prior", "posterior", "run")

Arrays = dict[str, np.ndarray]
Loaded = Approximation | IntegratedApproximation | SparseApproximation | Draws


@hooks.save.register(SparseApproximation)
@hooks.save.register(Result)
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
    document = {
        "format": _FORMAT,
        "version": version("pgmodels"),
        "kind": kind,
        "model": describe(result.model),
        "prior": _encode_prior(result, arrays) if isinstance(result, Approximation | Draws) else None,
        "fields": {
            field.name: _encode(getattr(result, field.name), field.name, arrays)
            for field in fields(result)
            if field.name not in _OTHER_FIELDS
        },
    }
    if isinstance(result, Approximation):
        document["blocks"] = _encode_posterior(result.posterior, arrays)
    if isinstance(result, SparseApproximation):
        document["blocks"] = saving_sparse.encode_posterior(result.posterior, arrays)
    write_arrays(path, document, arrays)
    return path


@double_precision
def load(path: str | PathLike[str], likelihood: Likelihood | LikelihoodFamily | None = None) -> Loaded:
    """Load a result from a file written by ``save``, with the same predictions.

    Parameters
    ----------
    path : str or path
        The file.
    likelihood : Likelihood or its family, optional
        Needed for a custom formula, since files hold no code.

    Returns
    -------
    Approximation, IntegratedApproximation, SparseApproximation or Draws
        The result. The prior and its factorisations are not in the file and are computed again.

    Raises
    ------
    ValueError
        For a file that is not a saved result, is damaged or has another format, and for a likelihood that differs from
        the saved one.
    """
    path = Path(path)
    document, arrays = _read(path)
    try:
        return _built(document, arrays, likelihood)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: its contents are not a valid {document['kind']} ({type(error).__name__}: {error}). "
            "Pass an unchanged file written by save, or save the result again if you still have it."
        ) from error


def _built(document: dict[str, Any], arrays: Arrays, likelihood: Likelihood | LikelihoodFamily | None) -> Loaded:
    model = build(document["model"], likelihood)
    stored = {name: _decode(value, arrays) for name, value in document["fields"].items()}
    stored = _renamed(stored, model)
    cls: Any = _RESULTS[document["kind"]]
    if cls is IntegratedApproximation:
        return cls(model=model, **stored)
    if cls is SparseApproximation:
        stored["scaling"] = Scaling(*stored["scaling"])
        posterior = saving_sparse.decode_posterior(document["blocks"], model, arrays)
        return cls(model=model, posterior=posterior, **stored)
    prior = _decode_prior(document["prior"], model, stored["X"], arrays)
    _check_ranks(prior, stored)
    if issubclass(cls, Draws):
        return cls(model=model, prior=prior, **stored)
    return cls(model=model, posterior=_decode_posterior(document["blocks"], prior, arrays), **stored)


def _renamed(stored: dict[str, Any], model: Model) -> dict[str, Any]:
    """Fields with hyperparameters by name; older files have their pytree paths."""
    names = names_by_path(model)

    def rename(values: dict[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in values.items()}

    if "objective" in stored:
        stored = stored | {"objective": objective_of(stored["objective"])}
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
        return {"fit": _encode(dict(vars(value)), name, arrays)}
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
        case {"dict": entries}:
            return {key: _decode(part, arrays) for key, part in entries.items()}
    return value


def _encode_prior(result: Result, arrays: Arrays) -> Any:
    """How to rebuild the prior: one of ``_WAYS`` for all groups, and each group's arrays that it does not reproduce.

    Engines may have used a more accurate prior than ``Model.prior`` returns by default; its arrays are then saved.
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
            stored = {field_of(name): as_array(arrays[f"prior.{i}.{name}"]) for name in saved["arrays"]}
            cls: Any = _PRIORS[saved["class"]]
            # Older files have no mask.
            if cls is DensePrior:
                stored.setdefault("row_mask", as_array(np.ones(len(group.X))))
            groups[i] = cls(kernel=group.kernel, mean=group.mean, X=group.X, size=group.size, **stored)
    return PriorCollection(tuple(groups), prior.copies)


def _check_ranks(prior: PriorCollection, stored: dict[str, Any]) -> None:
    """Raise ValueError if there are more stored coordinates than the prior's rank."""
    whitened, response = stored.get("whitened"), stored.get("response")
    more = response is not None and len(response) != sum(prior.ranks)
    if whitened is not None:
        pairs = zip(whitened, prior.groups, strict=True)
        more = more or any(v.shape[-2] > group.rank for v, group in pairs)
    if more:
        raise ValueError(
            "the file stores one latent per row, and rows with equal inputs now share one: load it with the version "
            "of pgmodels that saved it, or run the engine again."
        )


def _priors(model: Model, X: np.ndarray, way: str) -> PriorCollection:
    prior = model.compiled_prior(X) if way.startswith("compiled") else model.prior(X)
    return prior.for_sampling() if way.endswith("generative") else prior


def _same(one: LatentPrior, other: LatentPrior) -> bool:
    """Whether two priors have the same class and the same arrays."""
    names = _array_fields(one)
    return type(one) is type(other) and all(eqx.tree_equal(getattr(one, n), getattr(other, n)) for n in names)


def _array_fields(group: LatentPrior) -> list[str]:
    return [field.name for field in fields(group) if field.name not in ("kernel", "mean", "X", "size")]


def _encode_posterior(posterior: IndependentPosterior | BlockPosterior, arrays: Arrays) -> list[list[int]] | None:
    """Add the sites to ``arrays``; returns the blocks of coupled latents, None if latents are independent."""
    sites = posterior if isinstance(posterior, BlockPosterior) else posterior.sites
    arrays["potential"], arrays["precision"] = np.asarray(sites.potential), np.asarray(sites.precision)
    return [list(block) for block in posterior.blocks] if isinstance(posterior, BlockPosterior) else None


def _decode_posterior(blocks: Any, prior: PriorCollection, arrays: Arrays) -> IndependentPosterior | BlockPosterior:
    potential, precision = as_array(arrays["potential"]), as_array(arrays["precision"])
    # Padded, as in the engines, so that the result is the same to the last bit.
    padded = prior.padded()
    sites = resized_sites(Sites(potential, precision), padded.num_rows)
    if blocks is None:
        posterior = _condition(padded, sites).completed(padded)
    else:
        posterior = _condition_coupled(padded, *sites, tuple(tuple(block) for block in blocks)).completed(padded)
    return posterior.resized(prior.num_rows)


# Engines compute the sites of coupled latents and the posterior in one program; here the sites are read from the file.
# The order of sums differs, so coupled posteriors agree to rounding. All others are the same to the last bit.
@partial(compiled, optimise=False)
def _condition(prior: PriorCollection, sites: Sites) -> Fresh:
    return Fresh.beside(prior, prior.condition(sites))


@partial(compiled, static_argnames="blocks", optimise=False)
def _condition_coupled(prior: PriorCollection, potential: Any, precision: Any, blocks: Any) -> Fresh:
    return Fresh.beside(prior, condition_blocks(prior, potential, precision, blocks))


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of a file; raises ValueError unless it is a result of this format."""
    try:
        document, arrays = read_arrays(path)
    except ValueError as error:
        raise ValueError(
            f"{error}: it is not a result saved by pgmodels. Pass a file written by result.save(path), or save the "
            "result again if you still have it."
        ) from error
    kind = document.get("kind")
    if kind not in _RESULTS:
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
