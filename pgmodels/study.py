"""The study of ``pgmodels validate``: fit, approximate, correct, sample exactly and compare, on one data set."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from rich.console import Console

from pgmodels.diagnostics.compare import Comparison, compare
from pgmodels.diagnostics.diagnose import diagnose
from pgmodels.inference.corrections.correct import correct
from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.inference.mcmc.gibbs.sampler import check_sizes, gibbs
from pgmodels.inference.variational.vi import gaussian_vi
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.named import Bernoulli, LogisticSoftmax
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import Fixed
from pgmodels.results.correction import is_invalid
from pgmodels.runtime.atomic_io import atomic_write, make_folder, remove_temporary
from pgmodels.runtime.provenance import environment

if TYPE_CHECKING:
    from pgmodels.datasets import Dataset

# The maximum number of latent values for the diagnosis, which repeats CAVI on each simulated data set.
_DIAGNOSED = 2000

# The number of simulated data sets of the diagnosis: enough for coverage, at a third of the default's time.
_REPLICATES = 40

# The results, and the names of all files of a study.
_RESULTS = ("cavi", "corrected", "gaussian", "corrected_gaussian", "gibbs")
_WRITTEN = ("report.html", "comparison.csv", "settings.json", *(f"{name}.nc" for name in _RESULTS))


class Study(NamedTuple):
    """A data set, the likelihood for it (a function of the number of classes; None chooses by y), and its columns.

    ``columns`` are the columns of X and ``target`` is the column of y, as in ``pgmodels.datasets.load``.
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

    Files: report.html, comparison.csv, an ArviZ DataTree per result (gibbs.nc, cavi.nc, ...) and settings.json. Each is
    written when it is ready, to the folder ``NAME.unfinished``, and all are moved at the end: an interrupted run does
    not look complete, and does not replace the files of an earlier one. Raises ValueError, before any work, if the
    folder is not writable.
    """
    # Imported here, since other commands do not need tables and figures.
    from pgmodels.datasets import load, split
    from pgmodels.report.report import write_report

    check_sizes(num_samples, num_warmup, num_chains)
    data = load(study.data, study.columns, study.target)
    rows = split(data, train_size, seed)
    likelihood = _likelihood(study, data.y)
    scale = None if lengthscale is None else Fixed(lengthscale)
    variances = [Fixed(variance)] if variance is not None else _variances(likelihood, rows.y)
    size = likelihood.num_latents or 1
    gps = [GP(kernel(start, scale), size=size if len(variances) == 1 else 1) for start in variances]
    model = Model(likelihood, gps)
    folder, unfinished = output / data.name, output / f"{data.name}.unfinished"
    for path in (folder, unfinished):
        make_folder(path, "--output")
    # Files of an interrupted run.
    _remove_results(unfinished)
    console.rule(f"{data.name}: {likelihood.name}, {len(rows.X)} training and {len(rows.X_test)} test rows")
    # Warnings are printed below the results, and are in the report.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        approximation = fit(model, rows.X, rows.y, objective="augmented", correct=False, seed=seed, progress=progress)
        console.print(f"learned {approximation.model!r}", markup=False, highlight=False)
        if any(isinstance(start, dist.Distribution) for start in variances):
            console.print("dimensionless kernel variances have a LogNormal(0, 1) prior", markup=False, highlight=False)
        results: dict[str, Any] = {}

        def keep(name: str, result: Any) -> Any:
            results[name] = result
            _write_result(unfinished / f"{name}.nc", result, seed)
            return result

        # Ordered by cost.
        keep("cavi", approximation)
        keep("corrected", correct(approximation))
        fitted = approximation.model.fixed()
        gaussian = keep("gaussian", gaussian_vi(fitted, rows.X, rows.y, progress=progress))
        keep("corrected_gaussian", correct(gaussian))
        draws = gibbs(
            fitted,
            rows.X,
            rows.y,
            num_samples=num_samples,
            num_warmup=num_warmup,
            num_chains=num_chains,
            seed=seed,
            progress=progress,
        )
        keep("gibbs", draws)
        table = compare(X=rows.X_test, y=rows.y_test, seed=seed, **results)
        table.save(unfinished)
        diagnoses = {}
        if approximation.mean.size <= _DIAGNOSED:
            diagnoses["cavi"] = diagnose(approximation, num_replicates=_REPLICATES, seed=seed, progress=progress)
        else:
            console.print(f"not diagnosed: more than {_DIAGNOSED} latent values; use pgmodels.diagnose", markup=False)
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
        "train_rows": len(rows.X),
        "test_rows": len(rows.X_test),
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
    with atomic_write(unfinished / "settings.json") as path:
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
    """Write a result as a DataTree, unless it has no draws because a corrected variance is not positive."""
    if not np.any(is_invalid(result.variance)):
        with atomic_write(path) as temporary:
            result.to_arviz(seed=seed).to_netcdf(temporary, engine="h5netcdf")


def _remove_results(folder: Path) -> None:
    """Remove the files of an earlier run, and no other files."""
    for name in _WRITTEN:
        (folder / name).unlink(missing_ok=True)
    remove_temporary(folder, "|".join(map(re.escape, _WRITTEN)))


def _variances(likelihood: Likelihood, y: np.ndarray) -> list[Any]:
    """Kernel variances to fit: one for all latents, or one for each if the first has the units of y."""
    # Without a prior, well separated classes drive the variance, by either bound, to values at which samplers of
    # reasonable length do not mix. Held-out predictions would be better without it on average: see
    # docs/explanation/engines.md.
    unitless = dist.LogNormal(0.0, 1.0)
    size = likelihood.num_latents or 1
    if likelihood.support(size).is_discrete:
        return [unitless]
    return [float(np.var(y)) or 1.0] + [unitless] * (size - 1)


def _class_names(data: Dataset, likelihood: Likelihood) -> tuple[str, ...] | None:
    """The data's class names if they are the classes of the likelihood, else None."""
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
        "likelihood: y is neither 0 and 1 nor class indices 0 to C - 1; choose a likelihood with --likelihood."
    )
