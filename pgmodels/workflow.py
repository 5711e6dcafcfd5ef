"""The whole workflow on one data set, and the demonstration of the command line."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from rich.console import Console

from pgmodels.data.arrays import check_whole_number, first_column
from pgmodels.diagnostics.compare import Comparison, compare, loo
from pgmodels.diagnostics.diagnose import Diagnosis, diagnose
from pgmodels.inference.correct import correct
from pgmodels.inference.fit import fit
from pgmodels.inference.gibbs import check_sizes, gibbs
from pgmodels.inference.nuts import nuts
from pgmodels.inference.prior_predictive import prior_predictive
from pgmodels.inference.vi import gaussian_vi
from pgmodels.kernels.kernel import Kernel
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.named import Bernoulli, LogisticSoftmax
from pgmodels.model import GP, Model, require_model
from pgmodels.parameters.parameter import Fixed
from pgmodels.parameters.vector import trainable, with_priors
from pgmodels.report.summaries import bulleted
from pgmodels.report.verdicts import sentences, verdicts
from pgmodels.results.draws import Draws, PriorPredictive
from pgmodels.runtime.io import atomic_write, make_folder, remove_temporary
from pgmodels.runtime.messages import environment
from pgmodels.runtime.seeds import Seed, as_seed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Check:
    """The results of ``check``.

    ``prior`` are draws by ``prior_predictive``, None if y cannot be drawn. ``results`` are the corrected variational
    result, "vi", and draws at its hyperparameters, "gibbs" or "nuts"; ``comparison`` compares them. ``diagnosis`` is
    the result of ``diagnose`` for "vi"; if it is None, ``notes`` has the reason. ``loo`` has leave-one-out by label.
    ``sampled`` are draws of latents and hyperparameters. ``sensitivity`` is their sensitivity to powers of prior and
    likelihood (``az.psense_summary``). Both are None if no hyperparameter has a prior. ``verdict`` are the findings in
    words; the last one is the next step.
    """

    prior: PriorPredictive | None = field(repr=False)
    results: dict[str, Any]
    comparison: Comparison = field(repr=False)
    diagnosis: Diagnosis | None = field(repr=False)
    loo: dict[str, Any] = field(repr=False)
    sampled: Draws | None = field(repr=False)
    sensitivity: pd.DataFrame | None = field(repr=False)
    verdict: tuple[str, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(bulleted([*self.verdict[:-1], *self.notes, self.verdict[-1]]))

    def report(self, path: str | PathLike[str], *, title: str = "Check of a model") -> Path:
        """Write a self-contained HTML report of verdict, comparison and diagnosis, and return its path."""
        # Imported here, since the report imports matplotlib.
        from pgmodels.report.report import write_report

        vi = self.results["vi"]
        has_classes = vi.model.support.values() is not None
        return write_report(
            path,
            self.comparison,
            title=title,
            settings={**self.settings, **environment()},
            summary=self.verdict,
            notes=self.notes,
            class_names=vi.labels if has_classes else None,
            diagnoses={} if self.diagnosis is None else {"vi": self.diagnosis},
        )


def check(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    num_samples: int = 500,
    num_warmup: int = 100,
    num_chains: int = 4,
    num_replicates: int = 40,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Check:
    """Check a model on data in one call: the prior, the approximation, and the next step.

    The steps: draw from the prior, learn hyperparameters (``fit``), and correct the variational Gaussian (``correct``).
    Draw at these hyperparameters (``gibbs``, or ``nuts`` without an augmentation), and ``compare``. Diagnose on
    simulated data (``diagnose``), and leave each row out (``loo``). Draw hyperparameters that have priors, to measure
    their sensitivity to the priors.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs.
    X : array_like, shape (n, d)
        Inputs, an array or a data frame. Exact draws cost O(n^3): if there are many rows, pass a few thousand.
    y : array_like, shape (n,) or (n, columns)
        Observations.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    num_samples, num_warmup, num_chains : int
        Numbers of draws, of warm-up steps and of chains.
    num_replicates : int
        Number of simulated data sets for the diagnosis; 0 omits it.
    seed : int or jax.Array
        An int or a JAX key, for all draws.
    progress : bool, optional
        Whether each step shows a progress bar.

    Returns
    -------
    Check
        Printed, it shows its verdict; ``report(path)`` writes the verdict with tables and figures.

    Raises
    ------
    ValueError
        For invalid data or options, as in the engines.

    References
    ----------
    Gelman et al. 2020; Kallioinen et al. 2024 for the sensitivity; Vehtari, Gelman and Gabry 2017.
    """
    check_sizes(num_samples, num_warmup, num_chains)
    check_whole_number(num_replicates, "num_replicates", 0)
    seed = as_seed(seed)
    numbered, data = require_model(model).prepare(X, y, weights)
    notes: list[str] = []
    prior = None
    try:
        prior = prior_predictive(numbered, data.X, numbered.support.covariate_columns(data.y), seed=seed)
    except ValueError as error:
        notes.append(f"No prior predictive check: {error}")
    common: dict[str, Any] = {"weights": weights, "progress": progress}
    if trainable(numbered).names:
        learned = fit(model, X, y, correct=False, seed=seed, **common)
    else:
        learned = gaussian_vi(model, X, y, **common)
    vi = correct(learned)
    method = "gibbs" if numbered.is_augmentable else "nuts"
    sampler: Any = gibbs if method == "gibbs" else nuts
    sizes = {"num_samples": num_samples, "num_warmup": num_warmup, "num_chains": num_chains, "seed": seed}
    results = {"vi": vi, method: sampler(learned.model.fixed(), X, y, **sizes, **common)}
    comparison = compare(seed=seed, **results)
    diagnosis = None
    try:
        gaussian = vi if vi.has_density else learned
        diagnosis = diagnose(gaussian, num_replicates=num_replicates, seed=seed, progress=progress)
    except ValueError as error:
        notes.append(f"No diagnosis: {error}")
    joint = results | ({} if vi.has_density else {"vi": learned})
    left_out = {label: loo(result, seed=seed) for label, result in joint.items()}
    sampled, sensitivity = None, None
    names = with_priors(numbered).names
    if names:
        sampled = sampler(model, X, y, **sizes, **common)
        from arviz_stats import psense_summary

        options: dict[str, Any] = {"var_names": list(names), "prior_var_names": list(names), "threshold": np.inf}
        sensitivity = psense_summary(sampled.to_arviz(), **options)[["prior", "likelihood"]]
    judged = verdicts(comparison)
    about_prior, excluded = ([], []) if prior is None else _of_prior(prior, first_column(data.y))
    about_sensitivity, sensitive = ([], []) if sensitivity is None else _of_sensitivity(sensitivity)
    verdict = [*about_prior, *(f"{label}: {one}" for label, one in judged.items())]
    if diagnosis is not None:
        verdict.append(f"On simulated data: {sentences(diagnosis)[-1]}")
    verdict += [_of_loo(left_out), *about_sensitivity]
    levels = {label: one.level for label, one in judged.items()}
    verdict.append(next_step(levels, excluded, sensitive, left_out))
    return Check(
        prior=prior,
        results=results,
        comparison=comparison,
        diagnosis=diagnosis,
        loo=left_out,
        sampled=sampled,
        sensitivity=sensitivity,
        verdict=tuple(verdict),
        notes=tuple(notes),
        settings={**sizes, "num_replicates": num_replicates, "model": repr(vi.model)},
    )


def _of_prior(prior: PriorPredictive, y: np.ndarray, rare: float = 0.005) -> tuple[list[str], list[str]]:
    """Return a sentence on the prior predictive check, and the figures of y in a tail of less than ``rare``."""
    shares = prior.shares_below(y)
    excluded = [name for name, share in shares.items() if min(share, 1.0 - share) < rare]
    figures = ", ".join(f"its {name} above {share:.1%} of them" for name, share in shares.items())
    words = f"the prior all but excludes the {' and the '.join(excluded)} of y" if excluded else "y is plausible"
    return [f"Prior: {words}; of draws before data, y has {figures}."], excluded


def _of_loo(left_out: Mapping[str, Any]) -> str:
    texts = []
    for label, elpd in left_out.items():
        bad = int(np.sum(elpd.pareto_k.values > elpd.good_k))
        few = f"; Pareto k-hat of {bad} rows is above {elpd.good_k:.2f}, so that it is not reliable" if bad else ""
        texts.append(f"{label} {elpd.elpd:.2f} (standard error {elpd.se:.2f}{few})")
    return f"Expected log predictive density, leaving each row out, in nats: {', '.join(texts)}."


def _of_sensitivity(sensitivity: pd.DataFrame, limit: float = 0.05) -> tuple[list[str], list[str]]:
    """Return a sentence on prior sensitivity, and the hyperparameters above the limit of Kallioinen et al. 2024."""
    sensitive = {str(name): value for name, value in sensitivity["prior"].items() if value > limit}
    if not sensitive:
        return ["Hyperparameters: their posteriors hardly depend on powers of their priors."], []
    listed = ", ".join(f"{name} ({value:.2f})" for name, value in sensitive.items())
    text = f"Hyperparameters: the posterior depends on the prior of {listed}; above {limit} is sensitive."
    return [text], list(sensitive)


def next_step(
    levels: Mapping[str, str], excluded: Sequence[str], sensitive: Sequence[str], left_out: Mapping[str, Any]
) -> str:
    """Return the next step in words, from the level of each verdict; the verdict on the draws is last."""
    vi, draws = levels
    if excluded:
        return "Next: change the priors or the mean of the GP so that data like y are plausible before they are seen."
    if levels[draws] == "distrust":
        return f"Next: draw longer, with a larger num_samples; the draws of {draws} are too few for a verdict."
    text = f"Next: predict with results[{draws!r}], since the approximation differs from the draws."
    if levels[vi] == "trust":
        text = f"Next: predict with results[{vi!r}], which agrees with the draws and is the cheapest."
    if any((elpd.pareto_k.values > 1.0).any() for elpd in left_out.values()):
        text += " Look at the rows with a large Pareto k-hat (loo): they are improbable under the model."
    return text + (f" Report results under other priors of {', '.join(sensitive)} too." if sensitive else "")


# The results of a study, and the names of its files.
_RESULTS = ("cavi", "gaussian")
_WRITTEN = ("report.html", "comparison.csv", "settings.json", "gibbs.nc", *(f"{name}.npz" for name in _RESULTS))


class Study(NamedTuple):
    """A data set, its likelihood (a function of the number of classes; None chooses by y), and its columns.

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
    kernel: Callable[..., Kernel],
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
    most_diagnosed: int = 2000,
) -> Comparison:
    """Run one study, print its comparison, and write the table, the draws and the settings to a folder of ``output``.

    More than ``most_diagnosed`` latent values are not diagnosed: the diagnosis repeats CAVI on each simulated data set.

    Files: report.html, comparison.csv, settings.json, the draws for ArviZ in single precision (gibbs.nc), and the
    approximations for ``pgmodels.load`` (cavi.npz, gaussian.npz). Each file is written when it is ready, to the folder
    ``NAME.unfinished``. All files are moved at the end, so that an interrupted run does not replace an earlier run.
    Raises ValueError, before any work, if the folder is not writable.
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
    # Remove the files of an interrupted run.
    _remove_results(unfinished)
    console.rule(f"{data.name}: {likelihood.name}, {len(rows.X)} training and {len(rows.X_test)} test rows")
    # Warnings are printed below the results, and are in the report.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        approximation = fit(model, rows.X, rows.y, objective="augmented", correct=False, seed=seed, progress=progress)
        console.print(f"learned {approximation.model!r}", markup=False, highlight=False)
        if any(isinstance(start, dist.Distribution) for start in variances):
            console.print("dimensionless kernel variances have a LogNormal(0, 1) prior", markup=False, highlight=False)
        fitted = approximation.model.fixed()
        results: dict[str, Any] = {}
        sizes: dict[str, Any] = {"num_samples": num_samples, "num_warmup": num_warmup, "num_chains": num_chains}
        # Ordered by cost.
        engines: dict[str, Callable[[], Any]] = {
            "cavi": lambda: approximation,
            "corrected": lambda: correct(approximation),
            "gaussian": lambda: gaussian_vi(fitted, rows.X, rows.y, progress=progress),
            "corrected_gaussian": lambda: correct(results["gaussian"]),
            "gibbs": lambda: gibbs(fitted, rows.X, rows.y, **sizes, seed=seed, progress=progress),
        }
        for name, engine in engines.items():
            result = results[name] = engine()
            if name in _RESULTS:
                result.save(unfinished / f"{name}.npz")
            if name != "gibbs":
                continue
            tree = result.to_arviz(seed=seed)
            groups = {path: node.data_vars for path, node in tree.subtree_with_keys if path != "."}
            # Single precision suffices, since draws have only a few significant digits.
            half = {"dtype": "float32", "zlib": True}
            encoding = {f"/{path}": {str(one): half for one in each} for path, each in groups.items()}
            with atomic_write(unfinished / "gibbs.nc") as temporary:
                tree.to_netcdf(temporary, engine="h5netcdf", encoding=encoding)
        table = compare(X=rows.X_test, y=rows.y_test, seed=seed, **results)
        table.save(unfinished)
        diagnoses = {}
        if approximation.mean.size <= most_diagnosed:
            # 40 data sets suffice for coverage, in a third of the default's time.
            diagnoses["cavi"] = diagnose(approximation, num_replicates=40, seed=seed, progress=progress)
        else:
            text = f"not diagnosed: more than {most_diagnosed} latent values; use pgmodels.diagnose"
            console.print(text, markup=False)
    print(table, file=console.file)
    warned = list(dict.fromkeys(str(warning.message) for warning in caught))
    for message in warned:
        console.print(f"warning: {message}", markup=False, highlight=False)
    settings = {
        "command": command, **environment(), "seed": seed, "data": study.data,
        "columns": None if study.columns is None else list(study.columns), "target": study.target,
        "train_rows": len(rows.X), "test_rows": len(rows.X_test), "model": repr(approximation.model), **sizes,
    }  # fmt: skip
    values = likelihood.support(likelihood.num_latents or 1).values()
    write_report(
        unfinished / "report.html",
        table,
        title=f"{data.name}: {likelihood.name}",
        settings=settings,
        notes=warned,
        class_names=data.class_names if values is not None and len(values) == len(data.class_names or ()) else None,
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


def _remove_results(folder: Path) -> None:
    for name in _WRITTEN:
        (folder / name).unlink(missing_ok=True)
    remove_temporary(folder, "|".join(map(re.escape, _WRITTEN)))


def _variances(likelihood: Likelihood, y: np.ndarray) -> list[Any]:
    """Return kernel variances to fit: one for all latents, or one for each if the first has the units of y."""
    # The prior keeps samplers mixing: without it, well separated classes drive the variance, by either bound, to values
    # at which samplers of reasonable length do not mix. Held-out predictions are better on average without the prior:
    # see docs/explanation/engines.md.
    unitless = dist.LogNormal(0.0, 1.0)
    size = likelihood.num_latents or 1
    if likelihood.support(size).is_discrete:
        return [unitless]
    return [float(np.var(y)) or 1.0] + [unitless] * (size - 1)


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
