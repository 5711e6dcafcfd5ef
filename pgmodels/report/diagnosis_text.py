"""A diagnosis as text and HTML: a table of figures, and sentences that interpret them."""

import textwrap
from typing import Any

import numpy as np
import scipy

from pgmodels.data.arrays import in_units_of
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.diagnostics.vsbc import LEVELS, Calibration
from pgmodels.inference.objectives import objective_of_result
from pgmodels.report.html import Html, bullets, join, table
from pgmodels.report.table import aligned
from pgmodels.results.nested import NestedApproximation

WIDTH = 100
# Significance level of the tests on simulated data, divided by the number of latents.
_SIGNIFICANT = 0.01
_VSBC_HEADER = ("simulated data", "mean of z", "rms of z", "in 50 %", "in 90 %", "symmetry p")


def as_text(diagnosis: Diagnosis) -> str:
    """The tables and the sentences, in 100 columns."""
    figures = _figures(diagnosis)
    width = max(len(name) for name, _ in figures)
    lines = [_title(diagnosis), *(f"  {name.ljust(width)}  {value}" for name, value in figures)]
    if diagnosis.vsbc is not None:
        lines += ["", *(f"  {line}" for line in aligned([_VSBC_HEADER, *_vsbc_rows(diagnosis.vsbc)]))]
    lines.append("")
    for sentence in (*sentences(diagnosis), *diagnosis.notes):
        lines += textwrap.wrap(sentence, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(line.rstrip() for line in lines)


def as_html(diagnosis: Diagnosis) -> Html:
    """The tables and the sentences."""
    elements: list[Any] = [table(["figure", "value"], _figures(diagnosis), caption=_title(diagnosis))]
    if diagnosis.vsbc is not None:
        elements.append(table(_VSBC_HEADER, _vsbc_rows(diagnosis.vsbc)))
    return join([*elements, bullets([*sentences(diagnosis), *diagnosis.notes])])


def sentences(diagnosis: Diagnosis) -> list[str]:
    """The interpretation of each figure."""
    return [_of_gap(diagnosis), *_of_importance(diagnosis), *_of_vsbc(diagnosis)]


def _title(diagnosis: Diagnosis) -> str:
    n, latents = diagnosis.result.mean.shape
    return f"Diagnosis of q by {diagnosis.result.method}: {n} data, {latents} latent{'s' if latents > 1 else ''}"


def _figures(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    importance, gap = diagnosis.importance, diagnosis.gap
    figures = [
        ("augmentation gap, all data [nats]", _with_error(gap.sum(), diagnosis.gap_error.sum())),
        ("largest gap of a datum [nats]", f"{_number(gap.max())}, row {int(np.argmax(gap))}"),
        ("Pareto k-hat of q", _number(importance.pareto_k)),
    ]
    if np.isfinite(importance.effective_size):
        figures += [
            ("Pareto k-hat of the weights used", f"{_number(importance.proposal_k)} (at most {importance.limit:.2f})"),
            ("effective sample size of the weights", f"{importance.effective_size:.0f} of {importance.num_draws}"),
        ]
    if importance.reason is None:
        missing = importance.log_evidence - diagnosis.result.elbo
        figures += [
            ("log p(y) - ELBO [nats]", _with_error(missing, importance.log_evidence_error)),
            ("KL(q(f) || p(f | y)) [nats]", _with_error(importance.divergence, importance.divergence_error)),
            *_moments(diagnosis),
        ]
    return figures


def _moments(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    importance = diagnosis.importance
    shift, ratio = _differences(diagnosis)
    mean_error = in_units_of(np.sqrt(importance.variance), importance.mean_error)
    ratio_error = ratio * in_units_of(2.0 * importance.variance, importance.variance_error)
    furthest, extreme = int(shift.argmax()), int(np.abs(np.log(ratio)).argmax())

    def at(values: np.ndarray, errors: np.ndarray, place: int) -> str:
        return f"{_with_error(values.flat[place], errors.flat[place])}, {_place(diagnosis, place)}"

    return [
        ("largest |mean - weighted mean| / sd", at(shift, mean_error, furthest)),
        ("sd of q / weighted sd, median", _number(float(np.median(ratio)))),
        ("sd of q / weighted sd, furthest from 1", at(ratio, ratio_error, extreme)),
    ]


def _differences(diagnosis: Diagnosis) -> tuple[np.ndarray, np.ndarray]:
    """Differences of q's means from the weighted ones, in posterior deviations, and ratios of deviations."""
    importance, result = diagnosis.importance, diagnosis.result
    deviation = np.sqrt(importance.variance)
    shift = in_units_of(deviation, np.abs(result.mean - importance.mean))
    return shift, in_units_of(deviation, np.sqrt(result.variance), known=1.0)


def _place(diagnosis: Diagnosis, flat: int) -> str:
    row, latent = np.unravel_index(flat, diagnosis.result.mean.shape)
    return f"row {row}" if diagnosis.result.mean.shape[1] == 1 else f"row {row}, latent {latent}"


def _vsbc_rows(vsbc: Calibration) -> list[tuple[str, ...]]:
    (bias, bias_error), (rms, rms_error), (coverage, coverage_error) = vsbc.bias, vsbc.dispersion, vsbc.coverage
    rows: list[tuple[str, ...]] = [("exact q", "0", "1", "50 %", "90 %", "any")]
    for i in range(len(bias)):
        shares = (f"{100 * coverage[k, i]:.1f} ± {100 * coverage_error[k, i]:.1f} %" for k in range(2))
        rows.append(
            (
                f"latent {i}",
                f"{bias[i]:.3f} ± {bias_error[i]:.3f}",
                f"{rms[i]:.3f} ± {rms_error[i]:.3f}",
                *shares,
                f"{vsbc.symmetry_corrected[i]:.2g}",
            )
        )
    return rows


def _of_gap(diagnosis: Diagnosis) -> str:
    gap = diagnosis.gap
    objective = objective_of_result(diagnosis.result)
    if objective.is_exact and not objective.has_auxiliaries:
        return "Gap: none; the ELBO uses expected log densities, without auxiliary variables."
    if gap.max() < 1e-8 * (1.0 + abs(diagnosis.result.elbo)):
        return "Gap: none; the likelihood is Gaussian in f and needs no augmentation."
    q = "the uncorrected q" if _is_corrected(diagnosis) else "this q"
    return (
        f"Gap: for {q}, the ELBO is {_number(gap.sum())} nats below the bound without auxiliary variables, "
        f"{_number(gap.mean())} per datum."
    )


def _is_corrected(diagnosis: Diagnosis) -> bool:
    """Whether the ELBO refers to the uncorrected q."""
    return diagnosis.result.is_corrected


def _of_importance(diagnosis: Diagnosis) -> list[str]:
    importance = diagnosis.importance
    k = importance.pareto_k
    if k == -np.inf:
        return ["Importance sampling: all weights are equal; q is the exact posterior given the hyperparameters."]
    near = "far from the posterior"
    if k <= importance.limit:
        near = "close to the posterior" if k <= 0.5 else "not far from the posterior"
    first = f"Importance sampling: Pareto k-hat is {_number(k)}; the joint distribution q is {near}."
    if importance.reason is not None:
        return [first, f"{importance.reason} Moments and log p(y) are therefore omitted."]
    shift, ratio = _differences(diagnosis)
    missing = importance.log_evidence - diagnosis.result.elbo
    median = float(np.median(ratio))
    width = "narrower than" if median < 0.97 else ("wider than" if median > 1.03 else "about as wide as")
    draws = "draws of q"
    if importance.widening != 1.0:
        draws = f"draws of a widened q (precisions of sites times {importance.widening:g})"
    caution = " Their k-hat is above 0.5: double the standard errors." if importance.proposal_k > 0.5 else ""
    divergence = (
        f"The ELBO is {_number(missing)} nats below log p(y): the gap is {_number(diagnosis.gap.sum())}, and the "
        f"divergence of q from the posterior {_number(importance.divergence)}."
    )
    if _is_corrected(diagnosis):
        divergence = f"Its divergence from the posterior is {_number(importance.divergence)} nats."
    if isinstance(diagnosis.result, NestedApproximation):
        most = float(np.max(importance.log_evidence - diagnosis.result.log_evidence_bounds))
        divergence += (
            " The divergence of a latent's density from its exact marginal is at most log p(y) less its lower bound: "
            f"{_number(most)} nats for the largest (standard error {_number(importance.log_evidence_error)})."
        )
    return [
        f"{first} {divergence}",
        f"Means of weighted {draws} differ from q's by {_number(shift.mean())} posterior standard deviations on "
        f"average and {_number(shift.max())} at most; q's marginals are {width} the weighted ones (median ratio of sd "
        f"{_number(median)}).{caution}",
    ]


def _of_vsbc(diagnosis: Diagnosis) -> list[str]:
    vsbc = diagnosis.vsbc
    if vsbc is None:
        return []
    level = _SIGNIFICANT / len(vsbc.bias_p)
    # Where both intervals are significant, the wider one decides.
    significant = vsbc.coverage_p < level / 2.0
    excess = vsbc.coverage[0] - np.array(LEVELS)[:, None]
    excess = np.where(significant[1], excess[1], np.where(significant[0], excess[0], 0.0))
    spread = _where(
        {"q is too narrow": excess < 0.0, "q is too wide": excess > 0.0},
        "the coverage of q's intervals is correct within Monte-Carlo error",
    )
    detectable = scipy.special.stdtrit(vsbc.num_replicates - 1, 1.0 - 0.5 * level) * vsbc.bias[1].max()
    biased = vsbc.bias_p < level
    bias = _where(
        {
            "q's means are too low": biased & (vsbc.bias[0] > 0),
            "q's means are too high": biased & (vsbc.bias[0] < 0),
            "q's means are biased at some of the data": ~biased & (vsbc.symmetry_corrected < level),
        },
        f"no bias of q's means above the {detectable:.2f} sd that {vsbc.num_replicates} sets can detect",
    )
    return [
        f"Simulated data ({vsbc.num_replicates} sets from the prior and the likelihood, z = (f - m) / sd): {bias}; "
        f"{spread}. This is an average over data sets simulated from the model, not specific to the observed data.",
    ]


def _where(findings: dict[str, np.ndarray], otherwise: str) -> str:
    """The findings that apply, and to which latents if there are several."""
    phrases = []
    for words, mask in findings.items():
        if mask.any() and len(mask) > 1:
            named = ", ".join(str(i) for i in np.flatnonzero(mask))
            words += " for all latents" if mask.all() else f" for latent {named}"
        phrases += [words] if mask.any() else []
    return "; ".join(phrases) or otherwise


def _with_error(value: float, error: float) -> str:
    return f"{_number(value)} ± {error:.1g}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 or np.isinf(value) else f"{value:#.3g}"
