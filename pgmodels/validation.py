"""The main job: learn hyperparameters, approximate, correct, sample exactly, and compare, on one data set."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from rich.console import Console

from pgmodels.diagnostics.compare import Comparison, compare
from pgmodels.diagnostics.diagnose import diagnose
from pgmodels.environment import environment
from pgmodels.inference.correction import correct
from pgmodels.inference.fit import fit
from pgmodels.inference.gaussian_vi import gaussian_vi
from pgmodels.inference.gibbs.sampler import check_sizes, gibbs
from pgmodels.language.likelihood import Likelihood
from pgmodels.language.likelihoods import Bernoulli, LogisticSoftmax
from pgmodels.model import GP, Model
from pgmodels.parameters import Fixed
from pgmodels.results.correction import is_out_of_reach
from pgmodels.storage import make_folder, temporary_of, written_whole

if TYPE_CHECKING:
    from pgmodels.datasets import Dataset

# Latents, over all data: calibration on simulated data repeats CAVI for each of them.
_DIAGNOSED = 2000

# Simulated data sets of the diagnosis: enough to see coverage, at a third of the time of its default.
_REPLICATES = 40

# The results, and the files that are written.
_RESULTS = ("cavi", "corrected", "gaussian", "corrected_gaussian", "gibbs")
_WRITTEN = ("report.html", "comparison.csv", "settings.json", *(f"{name}.nc" for name in _RESULTS))


class Study(NamedTuple):
    """A data set, the likelihood for it (a function of the number of classes; None chooses by y), and its columns.

    ``columns`` are those of X, and ``target`` says which is y, as in ``pgmodels.datasets.load``.
    """

    data: str
    likelihood: Callable[[int | None], Likelihood] | None = None
    columns: Sequence[int | str] | None = None
    target: str | None = None


DEFAULT_STUDIES = (Study("breast-cancer"), Study("wine"))


def validate(
    study: Study,
    *,
    kernel: Any,
    variance: float | None,
    lengthscale: float | None,
    train_size: int | float,
    num_samples: int,
    num_warmup: int,
    num_chains: int,
    seed: int,
    output: Path,
    progress: bool | None,
    command: str,
    console: Console,
) -> Comparison:
    """Run one study, print its comparison, and write the table, the draws and the settings to a folder of ``output``.

    Files: report.html, comparison.csv, an ArviZ DataTree a result (gibbs.nc, cavi.nc, ...) and settings.json. They are
    written as they come, to a folder ``NAME.unfinished``, and moved when all are there: what has ended early neither
    looks whole nor takes the place of what an earlier run left. Raises ValueError, before any work, where the folder
    cannot be written to.
    """
    # Loaded here: a process that leaves the work to others needs neither tables nor figures.
    from pgmodels.datasets import load, split
    from pgmodels.report.report import write_report

    check_sizes(num_samples, num_warmup, num_chains)
    data = load(study.data, study.columns, study.target)
    parts = split(data, train_size, seed)
    likelihood = _likelihood(study, data.y)
    scale = None if lengthscale is None else Fixed(lengthscale)
    variances = [Fixed(variance)] if variance is not None else _variances(likelihood, parts.y)
    size = likelihood.num_latents or 1
    gps = [GP(kernel(start, scale), size=size if len(variances) == 1 else 1) for start in variances]
    model = Model(likelihood, gps)
    folder, unfinished = output / data.name, output / f"{data.name}.unfinished"
    for path in (folder, unfinished):
        make_folder(path, "--output")
    # What a run that ended early has left of another.
    _remove_results(unfinished)
    console.rule(f"{data.name}: {likelihood.name}, {len(parts.X)} training and {len(parts.X_test)} test rows")
    # Divergences from what was asked are printed below, with the result that they concern.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        approximation = fit(model, parts.X, parts.y, objective="cavi", correct=False, progress=progress)
        console.print(f"learned {approximation.model!r}", markup=False, highlight=False)
        if any(isinstance(start, dist.Distribution) for start in variances):
            console.print("kernel variances without units have a LogNormal(0, 1) prior", markup=False, highlight=False)
        results: dict[str, Any] = {}

        def keep(name: str, result: Any) -> Any:
            results[name] = result
            _write_result(unfinished / f"{name}.nc", result, seed)
            return result

        # From cheap to dear.
        keep("cavi", approximation)
        keep("corrected", correct(approximation))
        held = approximation.model.fixed()
        gaussian = keep("gaussian", gaussian_vi(held, parts.X, parts.y, progress=progress))
        keep("corrected_gaussian", correct(gaussian))
        draws = gibbs(
            held,
            parts.X,
            parts.y,
            num_samples=num_samples,
            num_warmup=num_warmup,
            num_chains=num_chains,
            seed=seed,
            progress=progress,
        )
        keep("gibbs", draws)
        table = compare(X=parts.X_test, y=parts.y_test, **results)
        table.save(unfinished)
        diagnoses = {}
        if approximation.mean.size <= _DIAGNOSED:
            diagnoses["cavi"] = diagnose(approximation, num_replicates=_REPLICATES, seed=seed, progress=progress)
        else:
            console.print(f"not diagnosed: it has more than {_DIAGNOSED} latents; use pgmodels.diagnose", markup=False)
    print(table, file=console.file)
    warned = list(dict.fromkeys(str(warning.message) for warning in caught))
    for message in warned:
        console.print(f"warning: {message}", markup=False, highlight=False)
    settings = {
        "command": command,
        **environment(),
        "seed": seed,
        "data": study.data,
        "columns": None if study.columns is None else list(study.columns),
        "target": study.target,
        "train_rows": len(parts.X),
        "test_rows": len(parts.X_test),
        "model": repr(approximation.model),
        "num_samples": num_samples,
        "num_warmup": num_warmup,
        "num_chains": num_chains,
    }
    write_report(
        unfinished / "report.html",
        table,
        title=f"{data.name}: {likelihood.name}",
        settings=settings,
        notes=warned,
        class_names=_class_names(data, likelihood),
        diagnoses=diagnoses,
    )
    with written_whole(unfinished / "settings.json") as path:
        path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    _remove_results(folder)
    for name in _WRITTEN:
        if (unfinished / name).exists():
            os.replace(unfinished / name, folder / name)
    if not any(unfinished.iterdir()):
        unfinished.rmdir()
    console.print(f"written to {folder}", markup=False, highlight=False)
    return table


def _write_result(path: Path, result: Any, seed: int) -> None:
    """Write a result as a DataTree; not where a corrected variance is not positive, of which there are no draws."""
    if not np.any(is_out_of_reach(result.variance)):
        with written_whole(path) as whole:
            result.to_arviz(seed=seed).to_netcdf(whole, engine="h5netcdf")


def _remove_results(folder: Path) -> None:
    """Remove the files of an earlier run, and no others."""
    for name in _WRITTEN:
        for path in (folder / name, temporary_of(folder / name)):
            path.unlink(missing_ok=True)


def _variances(likelihood: Likelihood, y: np.ndarray) -> list[Any]:
    """Kernel variances to learn: one for all latents, or one for each where the first is in the units of y."""
    # Without a prior well separated classes pull the variance to values at which no sampler of reasonable length says
    # anything, by either bound. Held-out rows would do without it, better on average: see README, fit.
    unitless = dist.LogNormal(0.0, 1.0)
    size = likelihood.num_latents or 1
    if likelihood.support(size).is_discrete:
        return [unitless]
    return [float(np.var(y)) or 1.0] + [unitless] * (size - 1)


def _class_names(data: Dataset, likelihood: Likelihood) -> tuple[str, ...] | None:
    """The data's class names, where the likelihood is one of those classes."""
    values = likelihood.support(likelihood.num_latents or 1).values()
    return data.class_names if values is not None and len(values) == len(data.class_names or ()) else None


def _likelihood(study: Study, y: np.ndarray) -> Likelihood:
    labels = np.unique(y) if y.ndim == 1 else None
    if study.likelihood is not None:
        return study.likelihood(None if labels is None else len(labels))
    if labels is not None and np.array_equal(labels, [0.0, 1.0]):
        return Bernoulli()
    if labels is not None and np.array_equal(labels, np.arange(len(labels))):
        return LogisticSoftmax(len(labels))
    raise ValueError(
        "likelihood: y is neither 0 and 1 nor class indices 0 to C - 1; say which likelihood it has with --likelihood."
    )
