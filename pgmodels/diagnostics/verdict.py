"""What a comparison says of each result, in words: whether to trust it, why, and where not."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from pgmodels.data.arrays import in_units_of
from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.convergence import convergence_by_latent, of_draws, standard_errors
from pgmodels.results.approximation import Approximation, CorrectedApproximation, LinearResponse
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result, same_hyperparameters

LEVELS = ("trust", "care", "distrust")
# Vehtari et al. 2021 ask for R-hat below 1.01 and an effective size above 400; at the second pair nothing is readable.
_RHAT, _ESS = (1.01, 1.05), (400, 100)
# A posterior mean off by so many posterior standard deviations, and a standard deviation off by such a factor: within
# the first, 95 % intervals keep 92 % or more of their mass; a mean off by 0.5 leaves 92 %, a halved variance 83 %.
_SHIFT, _RATIO = (0.1, 0.5), (1.1, 1.35)
# The share of latents that may be beyond a limit before the whole result is judged by it.
_SHARE = 0.05
_NAMED = 5


@dataclass(frozen=True, eq=False)
class Verdict:
    """A judgement of one result. ``level`` is "trust", "care" or "distrust".

    ``sentences`` give the reasons. ``latents`` (k, 2) holds the rows of X and the latents to distrust, worst first.
    """

    level: str
    sentences: tuple[str, ...]
    latents: np.ndarray = field(repr=False)

    def __str__(self) -> str:
        return " ".join((f"{_HEADS[self.level]}", *self.sentences))


_HEADS = {"trust": "To be trusted.", "care": "To be used with care.", "distrust": "Not to be trusted."}


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    """A verdict for each result of a comparison, by label.

    Draws are judged by R-hat and effective sample sizes, and against the reference in joint standard errors;
    approximations by how far their marginals are from the reference's, in posterior standard deviations, beyond what
    Monte-Carlo error explains, and by Pareto k-hat.
    """
    if not isinstance(comparison, Comparison):
        raise ValueError(f"comparison must be what compare returns; got {type(comparison).__name__}.")
    reference = comparison.results[comparison.reference]
    own = _judge_chains(reference)
    found = {}
    for label, result in comparison.results.items():
        if label == comparison.reference:
            found[label] = own.verdict()
        elif isinstance(result, Draws):
            found[label] = _judge_draws(result, comparison, own).verdict()
        else:
            found[label] = _judge_approximation(label, result, comparison, own).verdict()
    return found


class _Findings:
    """Sentences and the worst level among them."""

    def __init__(self) -> None:
        self.rank = 0
        self.sentences: list[str] = []
        self.latents = np.zeros((0, 2), dtype=int)

    def add(self, rank: int, sentence: str) -> None:
        self.rank = max(self.rank, rank)
        self.sentences.append(sentence)

    def verdict(self) -> Verdict:
        return Verdict(LEVELS[self.rank], tuple(self.sentences), self.latents)


def _judge_chains(draws: Draws) -> _Findings:
    """A sampler by its own diagnostics."""
    found = _Findings()
    bulk, tail, rhat = of_draws(convergence_by_latent, draws)
    size = np.minimum(bulk, tail)
    if np.isnan(size).all():
        found.add(2, f"{draws.num_samples} draws a chain are too few to say whether it has mixed.")
        return found
    least = tuple(int(i) for i in np.unravel_index(np.nanargmin(size), size.shape))
    rank = _rank(-size[least], (-_ESS[0], -_ESS[1]))
    words = ("enough", "few: means are rough, tails rougher", "too few to read anything from")[rank]
    found.add(rank, f"The smallest effective sample size is {size[least]:.0f} at {_place(draws, *least)}: {words}.")
    if np.isnan(rhat).all():
        found.add(1, "One chain cannot show that it has reached the posterior: run four.")
        bad = size < _ESS[1]
    else:
        worst = tuple(int(i) for i in np.unravel_index(np.nanargmax(rhat), rhat.shape))
        rank = _rank(rhat[worst], _RHAT)
        words = ("the chains agree", "the chains do not quite agree yet", "the chains disagree: draw more")[rank]
        found.add(rank, f"The largest R-hat is {rhat[worst]:.3f} at {_place(draws, *worst)}: {words}.")
        bad = (size < _ESS[1]) | (rhat > _RHAT[1])
    found.latents = _ordered(bad, -size)
    return found


def _judge_draws(draws: Draws, comparison: Comparison, own: _Findings) -> _Findings:
    """Another sampler: by its own diagnostics, and against the reference."""
    found = _judge_chains(draws)
    reference = comparison.results[comparison.reference]
    mean_error, variance_error = of_draws(standard_errors, draws)
    limit = _limit(draws.mean.size)
    scores = np.maximum(
        np.abs(draws.mean - reference.mean) / np.hypot(mean_error, comparison.mcse_mean),
        np.abs(draws.variance - reference.variance) / np.hypot(variance_error, comparison.mcse_variance),
    )
    if np.isnan(scores).all():
        found.add(2, f"It and {comparison.reference} cannot be compared: one has too few draws for standard errors.")
        return found
    worst = tuple(int(i) for i in np.unravel_index(np.nanargmax(scores), scores.shape))
    figure = f"{scores[worst]:.1f} joint standard errors at {_place(draws, *worst)}"
    if not same_hyperparameters(draws, reference):
        found.add(1, f"It does not have the hyperparameters of {comparison.reference}: it differs by up to {figure}.")
    elif scores[worst] > limit:
        found.add(
            2 if own.rank < 2 else 1,
            f"It differs from {comparison.reference} by up to {figure}, beyond {limit:.1f}, which chance allows: one "
            "of the two has not converged, or is wrong.",
        )
        found.latents = _ordered(scores > limit, scores)
    else:
        found.add(
            0, f"It agrees with {comparison.reference} within Monte-Carlo error: means and variances differ by "
            f"at most {figure}."
        )  # fmt: skip
    _doubt_reference(found, comparison, own)
    return found


def _judge_approximation(label: str, result: Any, comparison: Comparison, own: _Findings) -> _Findings:
    found = _Findings()
    reference = comparison.results[comparison.reference]
    if not result.converged:
        found.add(1, "Its iterations stopped before they had converged.")
    if isinstance(result, CorrectedApproximation) and result.num_nonpositive:
        found.add(
            2, f"{result.num_nonpositive} of its variances are not positive: the correction does not reach there."
        )
    if isinstance(result, LinearResponse) and not result.is_positive:
        found.add(2, "Its covariance is not positive definite: linear response does not reach there.")
    _judge_marginals(found, result, reference, comparison)
    if not isinstance(result, CorrectedApproximation) and isinstance(result, Approximation):
        _judge_khat(found, float(comparison.to_dataframe().loc[label, "pareto_k"]))
    _compare_predictions(found, label, comparison)
    if not same_hyperparameters(result, reference):
        found.add(1, f"It does not have the hyperparameters of {comparison.reference}: part of the error is theirs.")
    _doubt_reference(found, comparison, own)
    return found


def _judge_marginals(found: _Findings, result: Any, reference: Draws, comparison: Comparison) -> None:
    """Means and deviations against the reference's, less what its Monte-Carlo error explains."""
    limit = _limit(result.mean.size)
    deviation = np.sqrt(reference.variance)
    gap = np.abs(result.mean - reference.mean)
    shift = in_units_of(deviation, np.maximum(gap - limit * comparison.mcse_mean, 0.0))
    noise = limit * comparison.mcse_variance
    variance = np.maximum(result.variance, 0.0)
    # Towards the nearest variance that Monte-Carlo error allows the reference to have.
    nearest = np.clip(variance, np.maximum(reference.variance - noise, 0.0), reference.variance + noise)
    variances_off = nearest != variance
    with np.errstate(divide="ignore"):
        spread = np.exp(0.5 * np.abs(np.log(variance) - np.log(np.maximum(nearest, 1e-300))))
    # Of two variances of 0 too.
    spread = np.where(variances_off, spread, 1.0)
    means_off = gap > limit * comparison.mcse_mean
    total = result.mean.size
    ratio, off = np.sqrt(in_units_of(reference.variance, variance, known=1.0)), in_units_of(deviation, gap)
    found.add(
        _rank_share(shift, _SHIFT),
        f"Posterior means are off by {np.mean(off):.2f} posterior standard deviations on average and "
        f"{np.max(off):.2f} at most; {_count(means_off, total)} beyond Monte-Carlo error.",
    )
    width = "too narrow" if np.median(ratio) < 1 else "too wide"
    rank = _rank_share(spread, _RATIO)
    words = f": {width}" if rank else ""
    found.add(
        rank,
        f"Posterior standard deviations are {np.median(ratio):.2f} of the reference's in the median, "
        f"{np.min(ratio):.2f} to {np.max(ratio):.2f}{words}; {_count(variances_off, total)} beyond Monte-Carlo error.",
    )
    bad = (shift > _SHIFT[1]) | (spread > _RATIO[1])
    badness = np.maximum(shift / _SHIFT[1], np.log(spread) / np.log(_RATIO[1]))
    found.latents = _ordered(bad, badness)
    if len(found.latents):
        places = [
            f"{_place(result, row, latent)} (mean off by {off[row, latent]:.2f} deviations, "
            f"deviation {ratio[row, latent]:.2f} of the reference's)"
            for row, latent in found.latents[:_NAMED]
        ]
        more = f", and {len(found.latents) - _NAMED} more" if len(found.latents) > _NAMED else ""
        found.add(1, f"Distrust it most at {'; '.join(places)}{more}.")


def _judge_khat(found: _Findings, khat: float) -> None:
    if np.isnan(khat):
        return
    if khat == -np.inf:
        found.add(0, "It is the exact posterior: all importance weights are equal.")
    elif khat <= 0.5:
        found.add(0, f"Pareto k-hat is {khat:.2f}: jointly it is close to the posterior.")
    elif khat <= 0.7:
        found.add(0, f"Pareto k-hat is {khat:.2f}: jointly it is near enough for importance weights to mend it.")
    else:
        found.add(1, f"Pareto k-hat is {khat:.2f}, above 0.7: jointly it is far from the posterior.")


def _compare_predictions(found: _Findings, label: str, comparison: Comparison) -> None:
    frame = comparison.to_dataframe()
    if "negative_log_density" not in frame:
        return
    loss = frame["negative_log_density"]
    difference = loss[label] - loss[comparison.reference]
    if np.isnan(difference):
        found.add(0, "It makes no predictions for the test data.")
        return
    words = "the same as" if abs(difference) < 5e-4 else ("worse than" if difference > 0 else "better than")
    by = "" if abs(difference) < 5e-4 else f"{abs(difference):.3f} nats a row "
    found.add(0, f"On test data its log density is {by}{words} that of {comparison.reference}.")


def _doubt_reference(found: _Findings, comparison: Comparison, own: _Findings) -> None:
    if own.rank == 2:
        found.rank = max(1, found.rank)
        found.sentences.insert(
            0, f"{comparison.reference} itself is not to be trusted, so these figures are provisional."
        )


def _limit(count: int) -> float:
    """Standard errors that the largest of ``count`` exact comparisons exceeds in 1 % of cases at most, or 4."""
    return max(4.0, float(-ndtri(0.005 / count)))


def _rank(value: float, limits: tuple[float, float]) -> int:
    return int(value > limits[0]) + int(value > limits[1])


def _rank_share(values: np.ndarray, limits: tuple[float, float]) -> int:
    """2 where more than a small share of values is beyond the second limit, 1 beyond the first, or any the second."""
    beyond = [float(np.mean(values > limit)) for limit in limits]
    if beyond[1] > _SHARE:
        return 2
    return 1 if beyond[0] > _SHARE or beyond[1] > 0 else 0


def _count(mask: np.ndarray, total: int) -> str:
    count = int(mask.sum())
    if count == 0:
        return f"none of {total} is"
    return f"{'all' if count == total else count} of {total} {'is' if count == 1 else 'are'}"


def _ordered(mask: np.ndarray, badness: np.ndarray) -> np.ndarray:
    places = np.argwhere(mask)
    return places[np.argsort(-badness[mask], kind="stable")]


def _place(result: Result, row: int, latent: int) -> str:
    """Where a latent is: its row, its number where there are several, and the inputs where they are few."""
    number = f", latent {latent}" if result.model.num_latents > 1 else ""
    inputs = result.X[row]
    at = f" (x = {', '.join(f'{value:.3g}' for value in inputs)})" if inputs.size <= 3 else ""
    return f"row {row}{number}{at}"
