"""The whole check of a model on data: prior, fit, approximation, draws, comparison and what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import first_column
from pgmodels.data.options import check_whole_number
from pgmodels.diagnostics.compare import Comparison, compare
from pgmodels.diagnostics.diagnose import Diagnosis, diagnose
from pgmodels.diagnostics.leave_one_out import loo
from pgmodels.inference.corrections.correct import correct
from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.inference.mcmc.gibbs.sampler import check_sizes, gibbs
from pgmodels.inference.mcmc.nuts import nuts
from pgmodels.inference.prior_predictive import prior_predictive
from pgmodels.inference.variational.vi import gaussian_vi
from pgmodels.model import Model, require_model
from pgmodels.parameters.vector import trainable, with_priors
from pgmodels.report.diagnosis_text import sentences
from pgmodels.report.verdicts import verdicts
from pgmodels.results.draws import Draws
from pgmodels.results.prior_predictive import PriorPredictive
from pgmodels.runtime.provenance import environment
from pgmodels.runtime.seeds import Seed, as_seed

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 100
# Shares of prior draws beyond a figure of the data below which the prior excludes them.
_RARE = 0.005
# Kallioinen et al. 2024: a sensitivity to power-scaling above this is worth a look.
_SENSITIVE = 0.05


@dataclass(frozen=True, eq=False)
class Check:
    """What ``check`` computed, each part as of the public call of its name.

    ``prior`` are draws of ``prior_predictive``, None if y cannot be drawn; ``results`` the corrected variational
    result, "vi", and draws at its hyperparameters, "gibbs" or "nuts", which ``comparison`` compares; ``diagnosis`` is
    ``diagnose`` of "vi", None with a reason among ``notes``; ``loo`` has leave-one-out by label. ``sampled`` are draws
    of latents and hyperparameters, and ``sensitivity`` that of these to powers of prior and likelihood
    (``az.psense_summary``); None if no hyperparameter has a prior. ``verdict`` are the findings in words, the last one
    the next step.
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
        lines = []
        for sentence in (*self.verdict[:-1], *self.notes, self.verdict[-1]):
            lines += textwrap.wrap(sentence, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines)

    def report(self, path: str | PathLike[str], *, title: str = "Check of a model") -> Path:
        """Write a self-contained HTML report with the verdict, the comparison and the diagnosis; returns its path."""
        # It imports matplotlib.
        from pgmodels.report.report import write_report

        vi = self.results["vi"]
        has_classes = vi.likelihood.support(vi.model.num_latents).values() is not None
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
    """Check a model on data in one call: is the prior plausible, the approximation right, and what to do next.

    Draws from the prior, learns hyperparameters and corrects the variational Gaussian (``fit``, ``correct``), draws at
    these hyperparameters (``gibbs``, or ``nuts`` without an augmentation), compares (``compare``), diagnoses on
    simulated data (``diagnose``), leaves each row out (``loo``), and draws hyperparameters that have priors to find
    their sensitivity to these.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs.
    X : array_like, shape (n, d)
        Inputs, an array or a data frame. Exact draws cost O(n^3): of many rows take some thousand.
    y : array_like, shape (n,) or (n, columns)
        Observations.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    num_samples, num_warmup, num_chains : int
        Of the draws.
    num_replicates : int
        Simulated data sets of the diagnosis; 0 omits it.
    seed : int or jax.Array
        An int or a JAX key, for everything that is drawn.
    progress : bool, optional
        Whether each step shows a progress bar.

    Returns
    -------
    Check
        Prints its verdict; ``report(path)`` writes it with tables and figures.

    Raises
    ------
    ValueError
        For bad data or options, as the engines.

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
        covariates = numbered.support.covariate_columns(data.y)
        prior = prior_predictive(numbered, data.X, covariates, seed=seed)
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
        sensitivity = _sensitivity(sampled, names)
    observed, judged = first_column(data.y), verdicts(comparison)
    verdict = [
        *_of_prior(prior, observed),
        *(f"{label}: {one}" for label, one in judged.items()),
        *([] if diagnosis is None else [f"On simulated data: {text}" for text in sentences(diagnosis)[-1:]]),
        *_of_loo(left_out),
        *_of_sensitivity(sensitivity),
    ]
    levels = {label: one.level for label, one in judged.items()}
    verdict.append(_next_step(levels, _excluded(prior, observed), _sensitive(sensitivity), left_out))
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


def _excluded(prior: PriorPredictive | None, y: np.ndarray) -> list[str]:
    """The figures of y that lie beyond nearly all prior draws."""
    shares = {} if prior is None else prior.shares_below(y)
    return [name for name, share in shares.items() if min(share, 1.0 - share) < _RARE]


def _of_prior(prior: PriorPredictive | None, y: np.ndarray) -> list[str]:
    if prior is None:
        return []
    figures = ", ".join(f"its {name} above {share:.1%} of them" for name, share in prior.shares_below(y).items())
    excluded = _excluded(prior, y)
    words = f"the prior all but excludes the {' and the '.join(excluded)} of y" if excluded else "y is plausible"
    return [f"Prior: {words}; of draws before data, y has {figures}."]


def _of_loo(left_out: Mapping[str, Any]) -> list[str]:
    texts = []
    for label, elpd in left_out.items():
        bad = int(np.sum(elpd.pareto_k.values > elpd.good_k))
        few = f"; Pareto k-hat of {bad} rows is above {elpd.good_k:.2f}, so that it is not reliable" if bad else ""
        texts.append(f"{label} {elpd.elpd:.2f} (standard error {elpd.se:.2f}{few})")
    return [f"Expected log predictive density, leaving each row out, in nats: {', '.join(texts)}."]


def _sensitivity(draws: Draws, names: Sequence[str]) -> pd.DataFrame:
    """The sensitivity of hyperparameters to powers of their priors and of the likelihood."""
    from arviz_stats import psense_summary

    return psense_summary(draws.to_arviz(), var_names=list(names), prior_var_names=list(names), threshold=np.inf)[
        ["prior", "likelihood"]
    ]


def _of_sensitivity(sensitivity: pd.DataFrame | None) -> list[str]:
    if sensitivity is None:
        return []
    sensitive = _sensitive(sensitivity)
    if not sensitive:
        return ["Hyperparameters: their posteriors hardly depend on powers of their priors."]
    listed = ", ".join(f"{name} ({sensitivity.loc[name, 'prior']:.2f})" for name in sensitive)
    return [f"Hyperparameters: the posterior depends on the prior of {listed}; above {_SENSITIVE} is sensitive."]


def _sensitive(sensitivity: pd.DataFrame | None) -> list[str]:
    """The hyperparameters whose posteriors depend on their priors."""
    return [] if sensitivity is None else list(sensitivity.index[sensitivity["prior"] > _SENSITIVE])


def _next_step(
    levels: Mapping[str, str], excluded: Sequence[str], sensitive: Sequence[str], left_out: Mapping[str, Any]
) -> str:
    """What to do, from the level of each verdict, draws last."""
    vi, draws = levels
    if excluded:
        return "Next: change the priors or the mean of the GP so that data like y are plausible before they are seen."
    if levels[draws] == "distrust":
        return f"Next: draw longer, with a larger num_samples; the draws of {draws} are too few to judge by."
    text = f"Next: predict with results[{draws!r}], since the approximation differs from the draws."
    if levels[vi] == "trust":
        text = f"Next: predict with results[{vi!r}], which agrees with the draws and is the cheapest."
    if any((elpd.pareto_k.values > 1.0).any() for elpd in left_out.values()):
        text += " Look at the rows of large Pareto k-hat (loo): the model hardly expects them."
    return text + (f" Report results under other priors of {', '.join(sensitive)} too." if sensitive else "")
