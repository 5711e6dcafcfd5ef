"""The figures of a report, each with what to look for in it."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pgmodels.diagnostics.compare import Comparison
from pgmodels.html import Html, element
from pgmodels.plots.calibration import plot_reliability
from pgmodels.plots.chains import plot_rank, plot_trace
from pgmodels.plots.convergence import plot_convergence
from pgmodels.plots.elbo import plot_elbo
from pgmodels.plots.marginals import plot_densities, plot_marginals
from pgmodels.results import Approximation, CorrectedApproximation, Draws, Result

# Of pictures on paper and on screens of high resolution.
_DPI = 144
_PIXELS_PER_INCH = 96
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
        """The figure within the document, as SVG or as PNG, whichever is smaller."""
        width, height = (round(_PIXELS_PER_INCH * inches) for inches in self.figure.get_size_inches())
        picture = element("img", src=_data(self.figure), alt=self.alt, width=width, height=height)
        return element("figure", picture, element("figcaption", self.caption))


def illustrations(comparison: Comparison) -> Iterator[Illustration]:
    """The figures that a comparison has data for, made one after the other."""
    results, reference = comparison.results, comparison.reference
    others = ", ".join(label for label in results if label != reference)
    if others:
        yield Illustration(
            "Marginals",
            f"Each point is a latent. Points on the diagonal agree with {reference}; where they leave it for more than "
            "the grey bars, its Monte-Carlo error, the approximation is off. Variances below it are intervals that are "
            "too narrow.",
            f"Scatter plots of posterior means and variances of {others} against those of {reference}.",
            plot_marginals(comparison),
        )
        yield Illustration(
            "Where they differ most",
            f"Densities of the latents at which an approximation is farthest from {reference}: this is the worst to "
            "expect at a training row. Look for a shifted peak, a narrow curve, and skewness that a Gaussian misses.",
            f"Marginal densities of the latents at which {others} differ most from {reference}.",
            plot_densities(comparison),
        )
    if comparison.test is not None and comparison.test.is_class and comparison.test.predictions:
        yield Illustration(
            "Reliability",
            "The share of right classes against the predicted probability. Below the diagonal the predictions are "
            "overconfident, above it timid; bins with few rows scatter by chance.",
            "Reliability diagram of each result on the test data, with a histogram of confidences.",
            plot_reliability(comparison),
        )
    if any(_rises(result) for result in results.values()):
        yield Illustration(
            "Evidence lower bound",
            "The bound must never fall, and the gap to its last value should shrink steadily: a curve that is still "
            "rising at its end has not converged.",
            "The evidence lower bound of each variational result by iteration, and its gap to the last value.",
            plot_elbo(comparison),
        )
    for label, result in results.items():
        if isinstance(result, Draws) and result.num_samples >= _FEWEST_DRAWS:
            yield from _chains(label, result)


def _rises(result: Result) -> bool:
    """Whether there is something to see of a bound; where CAVI starts from an optimum there is not."""
    if not isinstance(result, Approximation) or isinstance(result, CorrectedApproximation):
        return False
    return result.num_iterations > 1 and bool(np.ptp(result.elbo_trace) > 1e-6 * abs(result.elbo))


def _chains(label: str, draws: Draws) -> Iterator[Illustration]:
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


def _data(figure: Figure) -> str:
    """A figure as a URI that holds it."""
    files = {"svg+xml": io.BytesIO(), "png": io.BytesIO()}
    figure.savefig(files["svg+xml"], format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(files["png"], format="png", dpi=_DPI)
    kind = min(files, key=lambda name: files[name].tell())
    return f"data:image/{kind};base64,{base64.b64encode(files[kind].getvalue()).decode()}"
