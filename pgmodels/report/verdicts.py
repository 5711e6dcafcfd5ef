"""Verdicts on comparisons, and diagnoses as text."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import scipy

from pgmodels.data.arrays import in_units_of
from pgmodels.diagnostics import compare
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.diagnostics.vsbc import LEVELS, Calibration
from pgmodels.inference.objectives import objective_of_result
from pgmodels.report.summaries import Html, aligned, bulleted, bullets, join, listed, number_text, table
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result, same_hyperparameters

# The levels of verdicts, from the best, with their meanings.
RATINGS = {"trust": "reliable", "care": "use with care", "distrust": "not reliable"}
# Limits on the error of a posterior mean, in posterior standard deviations, and on the factor of a standard deviation.
# Within the first limits, 95 % intervals keep 92 % or more of their mass. A mean that is off by 0.5 leaves 92 %, and a
# halved variance 83 %.
_SHIFT, _RATIO = (0.1, 0.5), (1.1, 1.35)


@dataclass(frozen=True, eq=False)
class Verdict:
    """A verdict on one result. ``level`` is "trust", "care" or "distrust".

    ``sentences`` are the reasons. ``latents`` (k, 2) are the row and index of each unreliable latent, the worst first.
    """

    level: str
    sentences: tuple[str, ...]
    latents: np.ndarray = field(repr=False)

    def __str__(self) -> str:
        return " ".join((f"{RATINGS[self.level].capitalize()}.", *self.sentences))


def verdicts(comparison: compare.Comparison) -> dict[str, Verdict]:
    """Return a verdict for each result of a comparison, by label.

    Draws are rated by R-hat, by effective sample sizes, and by their differences from the reference in joint standard
    errors. Approximations are rated by Pareto k-hat and by the errors of their marginals. These errors are in posterior
    standard deviations of the reference, beyond its Monte-Carlo error.
    """
    reference = _judge_chains(compare.require_comparison(comparison).draws)
    by_label = {}
    for label, result in comparison.results.items():
        findings = reference
        if label != comparison.reference:
            if result.draws is None:
                findings = _judge_approximation(label, result, comparison)
            else:
                findings = _judge_draws(result, comparison, reference.rank < 2)
            if reference.rank == 2:
                findings.rank = max(1, findings.rank)
                doubt = f"The reference, {comparison.reference}, is not reliable, so these figures are provisional."
                findings.sentences.insert(0, doubt)
        by_label[label] = Verdict([*RATINGS][findings.rank], tuple(findings.sentences), findings.latents)
    return by_label


class _Findings:
    def __init__(self) -> None:
        self.rank = 0
        self.sentences: list[str] = []
        self.latents = np.zeros((0, 2), dtype=int)

    def add(self, rank: int, sentence: str) -> None:
        self.rank = max(self.rank, rank)
        self.sentences.append(sentence)


def _judge_chains(draws: Draws) -> _Findings:
    findings = _Findings()
    bulk, tail, rhat = compare.of_draws(compare.convergence_by_latent, draws)
    size = np.minimum(bulk, tail)
    if np.isnan(size).all():
        findings.add(2, f"{draws.num_samples} draws per chain are too few to assess convergence.")
        return findings
    least = _largest(-size)
    rank = _rank(-size[least], (-compare.ESS_LIMITS[0], -compare.ESS_LIMITS[1]))
    words = ("sufficient", "low, so means are imprecise and tails more so", "too low to use the draws")[rank]
    findings.add(rank, f"The smallest effective sample size is {size[least]:.0f} at {_place(draws, *least)}: {words}.")
    if np.isnan(rhat).all():
        findings.add(1, "Convergence cannot be assessed from one chain: run four.")
    else:
        worst = _largest(rhat)
        rank = _rank(rhat[worst], compare.RHAT_LIMITS)
        words = ("the chains agree", "the chains have not fully converged", "the chains disagree: draw more")[rank]
        findings.add(rank, f"The largest R-hat is {rhat[worst]:.3f} at {_place(draws, *worst)}: {words}.")
    findings.latents = _ordered((size < compare.ESS_LIMITS[1]) | (rhat > compare.RHAT_LIMITS[1]), -size)
    return findings


def _judge_draws(draws: Draws, comparison: compare.Comparison, is_reference_reliable: bool) -> _Findings:
    findings, reference = _judge_chains(draws), comparison.draws
    mean_error, variance_error = compare.of_draws(compare.standard_errors, draws)
    limit = _limit(draws.mean.size)
    scores = np.maximum(
        np.abs(draws.mean - reference.mean) / np.hypot(mean_error, comparison.mcse_mean),
        np.abs(draws.variance - reference.variance) / np.hypot(variance_error, comparison.mcse_variance),
    )
    if np.isnan(scores).all():
        findings.add(
            2, f"It cannot be compared with {comparison.reference}: one has too few draws for standard errors."
        )
        return findings
    worst = _largest(scores)
    figure = f"{scores[worst]:.1f} joint standard errors at {_place(draws, *worst)}"
    if not same_hyperparameters(draws, reference):
        findings.add(1, f"Its hyperparameters differ from {comparison.reference}'s, and it differs by up to {figure}.")
    elif scores[worst] > limit:
        findings.add(
            2 if is_reference_reliable else 1,
            f"It differs from {comparison.reference} by up to {figure}, more than chance explains ({limit:.1f}): "
            "one of the two has not converged, or is wrong.",
        )
        findings.latents = _ordered(scores > limit, scores)
    else:
        findings.add(
            0, f"It agrees with {comparison.reference} within Monte-Carlo error: means and variances differ by "
            f"at most {figure}."
        )  # fmt: skip
    return findings


def _judge_approximation(label: str, result: Any, comparison: compare.Comparison) -> _Findings:
    findings = _Findings()
    if not result.converged:
        findings.add(1, "Its iterations stopped before convergence.")
    if result.is_corrected and result.num_nonpositive:
        findings.add(
            2, f"{result.num_nonpositive} of its variances are not positive: the correction is not valid there."
        )
    if result.is_corrected and not result.is_positive:
        findings.add(2, "Its covariance is not positive definite: linear response is not valid.")
    _judge_marginals(findings, result, comparison)
    if not result.is_corrected:
        _judge_khat(findings, float(comparison.to_dataframe().loc[label, "pareto_k"]))
    _compare_predictions(findings, label, comparison)
    if not same_hyperparameters(result, comparison.draws):
        findings.add(1, f"Its hyperparameters differ from {comparison.reference}'s, which causes part of the error.")
    return findings


def _judge_marginals(findings: _Findings, result: Result, comparison: compare.Comparison, num_listed: int = 5) -> None:
    """Rate errors of means and standard deviations compared with the reference, beyond its Monte-Carlo error."""
    limit, reference = _limit(result.mean.size), comparison.draws
    off, ratio = compare.moment_errors(result, reference.mean, reference.variance)
    gap, noise_of_mean = np.abs(result.mean - reference.mean), limit * comparison.mcse_mean
    shift = in_units_of(np.sqrt(reference.variance), np.maximum(gap - noise_of_mean, 0.0))
    noise = limit * comparison.mcse_variance
    variance = np.maximum(result.variance, 0.0)
    # Errors are measured from the nearest variance within the reference's Monte-Carlo error.
    nearest = np.clip(variance, np.maximum(reference.variance - noise, 0.0), reference.variance + noise)
    variances_off = nearest != variance
    with np.errstate(divide="ignore"):
        spread = np.exp(0.5 * np.abs(np.log(variance) - np.log(np.maximum(nearest, 1e-300))))
    # Two variances of 0 are equal.
    spread = np.where(variances_off, spread, 1.0)
    findings.add(
        _rank_share(shift, _SHIFT),
        f"Posterior means are off by {np.mean(off):.2f} posterior standard deviations on average and "
        f"{np.max(off):.2f} at most; {_count(gap > noise_of_mean)} off beyond Monte-Carlo error.",
    )
    rank, width = _rank_share(spread, _RATIO), "too narrow" if np.median(ratio) < 1 else "too wide"
    findings.add(
        rank,
        f"Posterior standard deviations are {np.median(ratio):.2f} times the reference's in the median, "
        f"{np.min(ratio):.2f} to {np.max(ratio):.2f}{f': {width}' if rank else ''}; {_count(variances_off)} off "
        "beyond Monte-Carlo error.",
    )
    unreliable = (shift > _SHIFT[1]) | (spread > _RATIO[1])
    severity = np.maximum(shift / _SHIFT[1], np.log(spread) / np.log(_RATIO[1]))
    findings.latents = _ordered(unreliable, severity)
    if len(findings.latents):
        places = [
            f"{_place(result, row, latent)} (mean off by {off[row, latent]:.2f} sd, sd {ratio[row, latent]:.2f} times "
            "the reference's)"
            for row, latent in findings.latents[:num_listed]
        ]
        more = f", and {len(findings.latents) - num_listed} more" if len(findings.latents) > num_listed else ""
        findings.add(1, f"It is least reliable at {'; '.join(places)}{more}.")


def _judge_khat(findings: _Findings, khat: float) -> None:
    if np.isnan(khat):
        return
    if khat == -np.inf:
        findings.add(0, "It equals the posterior: all importance weights are equal.")
    elif khat <= 0.5:
        findings.add(0, f"Pareto k-hat is {khat:.2f}: the joint distribution is close to the posterior.")
    elif khat <= 0.7:
        findings.add(0, f"Pareto k-hat is {khat:.2f}: the joint distribution is close enough for importance sampling.")
    else:
        findings.add(1, f"Pareto k-hat is {khat:.2f}, above 0.7: the joint distribution is far from the posterior.")


def _compare_predictions(findings: _Findings, label: str, comparison: compare.Comparison) -> None:
    frame = comparison.to_dataframe()
    if "negative_log_density" not in frame:
        return
    loss = frame["negative_log_density"]
    difference = loss[label] - loss[comparison.reference]
    if np.isnan(difference):
        findings.add(0, "It makes no predictions for the test data.")
        return
    words = "the same as"
    if abs(difference) >= 5e-4:
        words = f"{abs(difference):.3f} nats per row {'worse' if difference > 0 else 'better'} than"
    findings.add(0, f"On test data its log density is {words} for {comparison.reference}.")


def _limit(count: int) -> float:
    """Return standard errors, at least 4, that any of ``count`` normal errors exceeds with probability 1 % or less."""
    return max(4.0, float(-scipy.special.ndtri(0.005 / count)))


def _rank(value: float, limits: tuple[float, float]) -> int:
    return int(value > limits[0]) + int(value > limits[1])


def _rank_share(values: np.ndarray, limits: tuple[float, float], share: float = 0.05) -> int:
    """Return 2 if more than a share exceeds the second limit, 1 if more exceeds the first or any the second, else 0."""
    beyond = [float(np.mean(values > limit)) for limit in limits]
    if beyond[1] > share:
        return 2
    return 1 if beyond[0] > share or beyond[1] > 0 else 0


def _count(mask: np.ndarray) -> str:
    count, total = int(mask.sum()), mask.size
    if count == 0:
        return f"none of {total} is"
    return f"{'all' if count == total else count} of {total} {'is' if count == 1 else 'are'}"


def _largest(values: np.ndarray) -> tuple[int, int]:
    """Return the row and the latent of the largest value (n, latents) that is not NaN."""
    row, latent = np.unravel_index(np.nanargmax(values), values.shape)
    return int(row), int(latent)


def _ordered(mask: np.ndarray, severity: np.ndarray) -> np.ndarray:
    """Return the indices at which ``mask`` is true, (k, 2), the most severe first."""
    return np.argwhere(mask)[np.argsort(-severity[mask], kind="stable")]


def _place(result: Result, row: int, latent: int) -> str:
    """Return a latent in words: its row, its index if there are several, and up to three inputs."""
    number = f", latent {latent}" if result.model.num_latents > 1 else ""
    at = f" (x = {listed(result.X[row], 3)})" if result.X.shape[1] <= 3 else ""
    return f"row {row}{number}{at}"


# A diagnosis as text and HTML: a table of figures, and sentences that interpret them.

_VSBC_HEADER = ("simulated data", "mean of z", "rms of z", "in 50 %", "in 90 %", "symmetry p")


def as_text(diagnosis: Diagnosis) -> str:
    """Return the tables and the sentences, in 100 columns."""
    figures = _figures(diagnosis)
    width = max(len(name) for name, _ in figures)
    lines = [_title(diagnosis), *(f"  {name.ljust(width)}  {value}" for name, value in figures)]
    if diagnosis.vsbc is not None:
        lines += ["", *(f"  {line}" for line in aligned([_VSBC_HEADER, *_vsbc_rows(diagnosis.vsbc)]))]
    lines += ["", *bulleted([*sentences(diagnosis), *diagnosis.notes])]
    return "\n".join(line.rstrip() for line in lines)


def as_html(diagnosis: Diagnosis) -> Html:
    """Return the tables and the sentences as HTML."""
    elements: list[Any] = [table(["figure", "value"], _figures(diagnosis), caption=_title(diagnosis))]
    if diagnosis.vsbc is not None:
        elements.append(table(_VSBC_HEADER, _vsbc_rows(diagnosis.vsbc)))
    return join([*elements, bullets([*sentences(diagnosis), *diagnosis.notes])])


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Return the interpretation of each figure."""
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
        row, latent = np.unravel_index(place, values.shape)
        position = f"row {row}" if values.shape[1] == 1 else f"row {row}, latent {latent}"
        return f"{_with_error(values.flat[place], errors.flat[place])}, {position}"

    return [
        ("largest |mean - weighted mean| / sd", at(shift, mean_error, furthest)),
        ("sd of q / weighted sd, median", _number(float(np.median(ratio)))),
        ("sd of q / weighted sd, furthest from 1", at(ratio, ratio_error, extreme)),
    ]


def _differences(diagnosis: Diagnosis) -> compare.MomentErrors:
    """Return the errors of q's means and deviations compared with the weighted moments."""
    return compare.moment_errors(diagnosis.result, diagnosis.importance.mean, diagnosis.importance.variance)


def _vsbc_rows(vsbc: Calibration) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("exact q", "0", "1", "50 %", "90 %", "any")]
    coverage, coverage_error = vsbc.coverage
    for i, symmetry in enumerate(vsbc.symmetry_corrected):
        figures = [f"{values[i]:.3f} ± {errors[i]:.3f}" for values, errors in (vsbc.bias, vsbc.dispersion)]
        shares = [f"{100 * coverage[k, i]:.1f} ± {100 * coverage_error[k, i]:.1f} %" for k in range(2)]
        rows.append((f"latent {i}", *figures, *shares, f"{symmetry:.2g}"))
    return rows


def _of_gap(diagnosis: Diagnosis) -> str:
    gap = diagnosis.gap
    objective = objective_of_result(diagnosis.result)
    if objective.is_exact and not objective.has_auxiliaries:
        return "Gap: none; the ELBO uses expected log densities, without auxiliary variables."
    if gap.max() < 1e-8 * (1.0 + abs(diagnosis.result.elbo)):
        return "Gap: none; the likelihood is Gaussian in f and needs no augmentation."
    q = "the uncorrected q" if diagnosis.result.is_corrected else "this q"
    return (
        f"Gap: for {q}, the ELBO is {_number(gap.sum())} nats below the bound without auxiliary variables, "
        f"{_number(gap.mean())} per datum."
    )


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
    if diagnosis.result.is_corrected:
        divergence = f"Its divergence from the posterior is {_number(importance.divergence)} nats."
    bounds = diagnosis.result.log_evidence_bounds
    if bounds is not None:
        most = float(np.max(importance.log_evidence - bounds))
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
    # The level of the tests is 1 %, divided by the number of latents.
    level = 0.01 / len(vsbc.bias_p)
    # If both intervals are significant, the wider one decides.
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
        f"{spread}. This is an average over data sets simulated from the model, not specific to the observed data."
    ]


def _where(findings: dict[str, np.ndarray], otherwise: str) -> str:
    """Return the findings that apply, and to which latents if there are several."""
    phrases = []
    for words, mask in findings.items():
        if mask.any() and len(mask) > 1:
            named = ", ".join(str(i) for i in np.flatnonzero(mask))
            words += " for all latents" if mask.all() else f" for latent {named}"
        phrases += [words] if mask.any() else []
    return "; ".join(phrases) or otherwise


def _with_error(value: float, error: float) -> str:
    return f"{_number(value)} ± {error:.1g}"


_number = partial(number_text, digits=3)
