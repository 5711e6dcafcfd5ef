"""The figures of a report, each with what to look for in it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.plots.auxiliaries import plot_auxiliaries
from pgmodels.plots.calibration import plot_reliability
from pgmodels.plots.chains import plot_rank, plot_trace
from pgmodels.plots.convergence import plot_convergence
from pgmodels.plots.elbo import plot_elbo
from pgmodels.plots.latents import plot_latent
from pgmodels.plots.maps import plot_probability_map
from pgmodels.plots.marginals import plot_densities, plot_marginals
from pgmodels.report.html import Html, element, picture
from pgmodels.results.approximation import Approximation
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result

# The fewest draws of a chain that its figures are made of.
_FEWEST_DRAWS = 4


@dataclass(frozen=True, eq=False)
class Illustration:
    """A figure with its title, a caption that says what to look for, and what stands for it where it is not seen."""

    title: str
    caption: str
    alt: str
    figure: Figure

    def html(self) -> Html:
        """The figure and its caption."""
        return element("figure", picture(self.figure, self.alt), element("figcaption", self.caption))


def illustrations(comparison: Comparison) -> Iterator[Illustration]:
    """The figures that a comparison has data for, made one after the other."""
    if len(comparison.results) > 1:
        yield from _agreement(comparison)
    if comparison.test is not None and comparison.test.is_class and comparison.test.predictions:
        yield Illustration(
            "Reliability",
            "The share of right classes against the predicted probability. Below the diagonal the predictions are "
            "overconfident, above it timid; bins with few rows scatter by chance.",
            "Reliability diagram of each result on the test data, with a histogram of confidences.",
            plot_reliability(comparison),
        )
    yield from _functions(comparison)
    yield from _inside(comparison)
    for label, result in comparison.results.items():
        if isinstance(result, Draws) and result.num_samples >= _FEWEST_DRAWS:
            yield from _chains(label, result)


def illustrate_diagnosis(label: str, diagnosis: Diagnosis) -> Illustration:
    """The figure of a diagnosis."""
    return Illustration(
        f"Diagnosis of {label}",
        "On simulated data, histograms should be flat: a hump in the middle is a q too wide, raised ends are a q too "
        "narrow, a slope is a biased mean. Weighted means should lie about 0 and weighted deviations about 1; a row "
        "with a large gap is one whose bound the augmentation costs much.",
        f"Calibration of {label} on simulated data, its gap by datum, and its moments against importance sampling's.",
        diagnosis.plot(),
    )


def _agreement(comparison: Comparison) -> Iterator[Illustration]:
    """The results' marginals beside the reference's."""
    reference = comparison.reference
    others = ", ".join(label for label in comparison.results if label != reference)
    yield Illustration(
        "Marginals",
        f"Each point is a latent. Points on the diagonal agree with {reference}; where they leave it for more than the "
        "grey bars, its Monte-Carlo error, the approximation is off. Variances below it are intervals that are too "
        "narrow.",
        f"Scatter plots of posterior means and variances of {others} against those of {reference}.",
        plot_marginals(comparison),
    )
    yield Illustration(
        "Where they differ most",
        f"Densities of the latents at which an approximation is farthest from {reference}: this is the worst to expect "
        "at a training row. Look for a shifted peak, a narrow curve, and skewness that a Gaussian misses.",
        f"Marginal densities of the latents at which {others} differ most from {reference}.",
        plot_densities(comparison),
    )


def _functions(comparison: Comparison) -> Iterator[Illustration]:
    """The latent functions of one input, or the predictions over two."""
    draws, reference = comparison.results[comparison.reference], comparison.reference
    if draws.X.shape[1] == 1:
        yield Illustration(
            "Latent functions",
            "Bands hold 50 % and 90 % of the posterior of each latent function. Bands of an approximation that lie "
            f"inside those of {reference} are too narrow; all of them widen away from the data.",
            "Posterior mean and bands of each latent function over the input, and the data.",
            plot_latent(comparison),
        )
    if draws.X.shape[1] == 2:
        yield Illustration(
            "Predictions over the inputs",
            f"What {reference} predicts over the plane of both inputs, with the training data. Predictions should "
            "follow the data where they are dense and grow uncertain where they are not.",
            f"Maps of what {reference} predicts over the two inputs, with the training data.",
            plot_probability_map(draws),
        )


def _inside(comparison: Comparison) -> Iterator[Illustration]:
    """The bound and the auxiliary variables."""
    model = comparison.results[comparison.reference].model
    if model.is_augmentable and any(rule.auxiliary is not None for rule in model.augmentation.rules):
        yield Illustration(
            "Auxiliary variables",
            f"Posterior means of the auxiliaries, data in the order of {comparison.reference}'s. The curves of other "
            "results should lie on it; a datum with an extreme auxiliary is one that the model finds surprising.",
            "Posterior means of the auxiliary variables of each result, by datum.",
            plot_auxiliaries(comparison),
        )
    if any(_rises(result) for result in comparison.results.values()):
        yield Illustration(
            "Evidence lower bound",
            "The bound must never fall, and the gap to its last value should shrink steadily: a curve that is still "
            "rising at its end has not converged.",
            "The evidence lower bound of each variational result by iteration, and its gap to the last value.",
            plot_elbo(comparison),
        )


def _rises(result: Result) -> bool:
    """Whether there is something to see of a bound; where CAVI starts from an optimum there is not."""
    if not isinstance(result, Approximation) or result.corrects_another:
        return False
    return result.num_iterations > 1 and bool(np.ptp(result.elbo_trace) > 1e-6 * abs(result.elbo))


def _chains(label: str, draws: Draws) -> Iterator[Illustration]:
    """How a sampler has mixed."""
    yield Illustration(
        f"Convergence of {label}",
        "Effective sample sizes and R-hat of all latents. All of them should lie on the good side of the dashed lines; "
        "beyond the dotted ones nothing is to be read from the draws.",
        f"Histograms of effective sample sizes and R-hat of the latents of {label}.",
        plot_convergence(draws),
    )
    yield Illustration(
        f"Traces of {label}",
        "The log likelihood and the latents that mix worst. Chains should look alike and like noise about a level: a "
        "drift, a step, or chains at different levels mean that more draws are needed.",
        f"Traces and densities by chain of the log likelihood and of four latents of {label}.",
        plot_trace(draws),
    )
    yield Illustration(
        f"Ranks of {label}",
        "Ranks of each chain's draws among all draws. Histograms should be flat about the dashed line: a slope or a "
        "hump is a chain that stays in a part of the posterior.",
        f"Rank histograms by chain of the log likelihood and of four latents of {label}.",
        plot_rank(draws),
    )
