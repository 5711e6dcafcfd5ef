"""The figures of a report with their captions."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.plots.auxiliaries import plot_auxiliaries
from pgmodels.plots.calibration import plot_reliability
from pgmodels.plots.chains import plot_convergence, plot_rank, plot_trace
from pgmodels.plots.elbo import plot_elbo
from pgmodels.plots.latents import plot_latent
from pgmodels.plots.maps import plot_probability_map
from pgmodels.plots.marginals import plot_densities, plot_marginals
from pgmodels.report.html import Html, element, picture
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result

# Minimum number of draws per chain for figures of the chains.
_FEWEST_DRAWS = 4


@dataclass(frozen=True, eq=False)
class Illustration:
    """A figure with its title, a caption that explains how to read it, and its alternative text."""

    title: str
    caption: str
    alt: str
    figure: Figure

    def html(self) -> Html:
        """The figure and its caption."""
        return element("figure", picture(self.figure, self.alt), element("figcaption", self.caption))


def illustrations(comparison: Comparison) -> Iterator[Illustration]:
    """The figures of a comparison, created one by one."""
    if len(comparison.results) > 1:
        yield from _agreement(comparison)
    if comparison.test is not None and comparison.test.is_class and comparison.test.predictions:
        yield Illustration(
            "Reliability",
            "Accuracy against the predicted probability. Below the diagonal predictions are overconfident, above it "
            "underconfident; bins with few rows scatter by chance.",
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
        "On simulated data, histograms should be flat: a peak in the middle means that q is too wide, raised ends that "
        "q is too narrow, a slope that its mean is biased. Differences of weighted means should be near 0 and ratios "
        "of standard deviations near 1; a large gap means that the augmentation loosens the bound of that row.",
        f"Calibration of {label} on simulated data, its gap by datum, and its moments against importance sampling.",
        diagnosis.plot(),
    )


def _agreement(comparison: Comparison) -> Iterator[Illustration]:
    """The results' marginals against the reference's."""
    reference = comparison.reference
    others = ", ".join(label for label in comparison.results if label != reference)
    yield Illustration(
        "Marginals",
        f"Each point is a latent. Points on the diagonal agree with {reference}; beyond the grey bars, its Monte-Carlo "
        "error, the approximation is off. Variances below the diagonal mean intervals that are too narrow.",
        f"Scatter plots of posterior means and variances of {others} against those of {reference}.",
        plot_marginals(comparison),
    )
    yield Illustration(
        "Where they differ most",
        f"Densities of the latents at which an approximation differs most from {reference}, the worst case among the "
        "training rows. Look for a shifted peak, a narrow curve, or skewness that a Gaussian cannot represent.",
        f"Marginal densities of the latents at which {others} differ most from {reference}.",
        plot_densities(comparison),
    )


def _functions(comparison: Comparison) -> Iterator[Illustration]:
    """The latent functions of one input, or the predictions over two."""
    draws, reference = comparison.results[comparison.reference], comparison.reference
    if draws.X.shape[1] == 1:
        yield Illustration(
            "Latent functions",
            "Bands contain 50 % and 90 % of the posterior of each latent function. Bands of an approximation that lie "
            f"inside those of {reference} are too narrow; all should widen away from the data.",
            "Posterior mean and bands of each latent function over the input, and the data.",
            plot_latent(comparison),
        )
    if draws.X.shape[1] == 2:
        yield Illustration(
            "Predictions over the inputs",
            f"Predictions of {reference} over the two inputs, with the training data. Predictions should follow the "
            "data where they are dense and be uncertain where they are not.",
            f"Maps of the predictions of {reference} over the two inputs, with the training data.",
            plot_probability_map(draws),
        )


def _inside(comparison: Comparison) -> Iterator[Illustration]:
    """The auxiliary variables and the bound."""
    model = comparison.results[comparison.reference].model
    if model.is_augmentable and any(rule.auxiliary is not None for rule in model.augmentation.rules):
        yield Illustration(
            "Auxiliary variables",
            f"Posterior means of the auxiliary variables, data in the order of {comparison.reference}'s. The other "
            "results should coincide with it; a datum with an extreme auxiliary is surprising under the model.",
            "Posterior means of the auxiliary variables of each result, by datum.",
            plot_auxiliaries(comparison),
        )
    if any(_rises(result) for result in comparison.results.values()):
        yield Illustration(
            "Evidence lower bound",
            "The bound must never decrease, and the difference from its last value should shrink steadily: a curve "
            "that still rises at its end has not converged.",
            "The evidence lower bound of each variational result by iteration, and its difference from the last value.",
            plot_elbo(comparison),
        )


def _rises(result: Result) -> bool:
    """Whether the bound changes over the iterations, which it does not if CAVI starts from an optimum."""
    if not isinstance(result, GaussianResult) or result.corrects_another:
        return False
    return result.num_iterations > 1 and bool(np.ptp(result.elbo_trace) > 1e-6 * abs(result.elbo))


def _chains(label: str, draws: Draws) -> Iterator[Illustration]:
    """Convergence of a sampler."""
    yield Illustration(
        f"Convergence of {label}",
        "Effective sample sizes (should be above) and R-hat (should be below the dashed line) of all latents. Beyond "
        "the dotted lines the draws are unusable.",
        f"Histograms of effective sample sizes and R-hat of the latents of {label}.",
        plot_convergence(draws),
    )
    yield Illustration(
        f"Traces of {label}",
        "The log likelihood and the latents that mix worst. Chains should look like noise around a common level: a "
        "drift, a step, or chains at different levels mean that more draws are needed.",
        f"Traces and densities by chain of the log likelihood and of four latents of {label}.",
        plot_trace(draws),
    )
    yield Illustration(
        f"Ranks of {label}",
        "Ranks of each chain's draws among all draws. Histograms should be flat around the dashed line: a slope or a "
        "peak means that a chain stays in one region of the posterior.",
        f"Rank histograms by chain of the log likelihood and of four latents of {label}.",
        plot_rank(draws),
    )
