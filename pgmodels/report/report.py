"""Reports as HTML."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pgmodels.augmentation.explain import explain_sections
from pgmodels.data.arrays import first_column
from pgmodels.derivation import derive
from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.plots.chains import plot_auxiliaries, plot_convergence, plot_elbo, plot_rank, plot_trace
from pgmodels.plots.latents import plot_latent, plot_probability_map
from pgmodels.plots.marginals import plot_densities, plot_marginals, plot_reliability
from pgmodels.report.summaries import (
    Html,
    bullets,
    element,
    graph_html,
    html,
    join,
    likelihood_text,
    model_html,
    picture,
    result_facts,
    table,
)
from pgmodels.report.summaries import as_html as table_html
from pgmodels.report.verdicts import Verdict, verdicts
from pgmodels.report.verdicts import as_html as diagnosis_html
from pgmodels.results.approximation import FitReport, GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result
from pgmodels.runtime.io import atomic_write
from pgmodels.runtime.messages import shorten

# Tables of a report: observations, classes, and unreliable latents.

# Maximum number of unreliable latents listed for each result.
_LISTED = 10


def check_class_names(comparison: Comparison, class_names: Sequence[str] | None) -> list[str] | None:
    """Class names as text, None without names; raises ValueError unless there is one for each class."""
    if class_names is None:
        return None
    values = class_values(comparison)
    if values is None:
        likelihood = _reference(comparison).likelihood
        raise ValueError(f"class_names need classes, but y of {likelihood.name} is not a class: leave them out.")
    if isinstance(class_names, str) or len(class_names) != len(values):
        raise ValueError(
            f"class_names must be {len(values)} names, in the order of the classes; got {shorten(class_names)}."
        )
    return [str(name) for name in class_names]


def class_values(comparison: Comparison) -> np.ndarray | None:
    """The values of y if it is a class, else None."""
    model = _reference(comparison).model
    return model.likelihood.support(model.num_latents).values()


def observation_table(comparison: Comparison) -> Html:
    """The number of rows and columns, and the range and median of y."""
    result, test = _reference(comparison), comparison.test
    header = ["", "rows", "columns of X", "y: smallest", "median", "largest"]
    rows = [["training", *_described(result.X, result.y)]]
    if test is not None:
        rows.append(["test", *_described(test.X, test.y)])
    return table(header, rows)


def _described(X: np.ndarray, y: np.ndarray) -> list[str]:
    first = first_column(y)
    figures = (np.min(first), np.median(first), np.max(first))
    return [str(len(X)), str(X.shape[1]), *(f"{figure:.5g}" for figure in figures)]


def class_table(comparison: Comparison, names: Sequence[str] | None) -> Html | None:
    """The number of rows of each class and each result's accuracy on its test rows; None without classes."""
    values, test = class_values(comparison), comparison.test
    if values is None:
        return None
    header: list[Any] = ["class", *(["name"] if names else []), "training rows"]
    predictions = {} if test is None else test.predictions
    if test is not None:
        header += ["test rows", *(f"accuracy: {label}" for label in predictions)]
    rows, trained = [], first_column(_reference(comparison).y)
    for place, value in enumerate(values):
        row = [f"{value:g}", *([names[place]] if names else []), str(np.sum(trained == value))]
        if test is not None:
            of_class = first_column(test.y) == value
            row.append(str(of_class.sum()))
            row += [_share(p.argmax(axis=1)[of_class] == place) for p in predictions.values()]
        rows.append(row)
    return table(header, rows, caption="Classes, and the accuracy of the most probable class on test rows")


def _share(correct: np.ndarray) -> str:
    return f"{correct.mean():.3f}" if correct.size else "-"


def worst_latents(comparison: Comparison, label: str, verdict: Verdict, names: Sequence[str] | None) -> Html:
    """The least reliable latents, with their posterior moments and the reference's; empty if there are none."""
    if not len(verdict.latents):
        return Html("")
    result, reference = comparison.results[label], _reference(comparison)
    other = result is not reference
    several = reference.model.num_latents > 1
    header = [
        "row",
        *(["latent"] if several else []),
        "y",
        f"mean ± sd of {label}",
        *([f"of {comparison.reference}"] if other else []),
    ]
    rows = []
    for row, latent in verdict.latents[:_LISTED]:
        y = np.atleast_1d(reference.y[row])
        moments = [_moments(one, row, latent) for one in (result, *([reference] if other else []))]
        place = [str(row), *([_latent(reference, latent, names)] if several else [])]
        rows.append([*place, ", ".join(f"{v:.4g}" for v in y), *moments])
    count = len(verdict.latents)
    shown = f"the worst {_LISTED} of {count}" if count > _LISTED else str(count)
    return table(header, rows, caption=element("span", f"Unreliable latents: {shown}"))


def _moments(result: Any, row: int, latent: int) -> str:
    variance = result.variance[row, latent]
    spread = f"{np.sqrt(variance):.3g}" if variance > 0 else "no variance"
    return f"{result.mean[row, latent]:.3g} ± {spread}"


def _latent(result: Result, latent: int, names: Sequence[str] | None) -> str:
    """The latent's index, with the name of its class if each class has its own latent."""
    if names is not None and len(names) == result.model.num_latents:
        return f"{latent} ({names[latent]})"
    return str(latent)


def _reference(comparison: Comparison) -> Any:
    return comparison.results[comparison.reference]


# The figures of a report with their captions.

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


_LEVELS = {"trust": "reliable", "care": "use with care", "distrust": "not reliable"}


def write_report(
    path: Any,
    comparison: Comparison,
    *,
    title: str,
    settings: Mapping[str, Any],
    summary: Sequence[str] = (),
    notes: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    diagnoses: Mapping[str, Diagnosis] | None = None,
) -> Path:
    """Write a self-contained HTML report of a comparison; returns its path.

    ``settings`` are the options of the run by name; ``command``, if present, is the command that reproduces it.
    ``summary`` are findings in words, and ``notes`` warnings issued during the run. ``class_names`` are names of the
    classes in order; ``diagnoses`` are results of ``diagnose`` by label. Raises ValueError if class_names do not match
    the classes.
    """
    names = check_class_names(comparison, class_names)
    judged = verdicts(comparison)
    sections = {
        "Summary": bullets(summary) if summary else Html(""),
        "Verdict": _verdicts(comparison, judged, names),
        "Comparison": table_html(comparison),
        "Figures": join(_figures(comparison)),
        "Diagnosis without draws": join(_diagnosed(label, one) for label, one in (diagnoses or {}).items()),
        "Data, model and results": _run(comparison, names, notes),
        "Derivation": _derivation(comparison),
        "Reproducing this report": _reproduction(settings),
    }
    path = Path(path)
    nonempty = {name: body for name, body in sections.items() if body}
    with atomic_write(path) as temporary:
        temporary.write_text(_page(title, _lead(comparison), nonempty), encoding="utf-8")
    return path


def _page(title: str, lead: str, sections: Mapping[str, Html]) -> str:
    style = (files("pgmodels.report") / "report.css").read_text(encoding="utf-8")
    index = [element("a", name, href=f"#s{i}") for i, name in enumerate(sections)]
    elements = [
        element("section", element("h2", name), body, id=f"s{i}") for i, (name, body) in enumerate(sections.items())
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(style)),
    )
    contents = element("nav", bullets(index), aria_label="Contents")
    body = element("body", element("main", element("h1", title), element("p", lead), contents, *elements))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _lead(comparison: Comparison) -> str:
    draws = comparison.results[comparison.reference]
    others = [label for label in comparison.results if label != comparison.reference]
    compared = f"{' and '.join(others)} with {comparison.reference}" if others else comparison.reference
    rows = f"{len(draws.X)} training rows"
    if comparison.test is not None:
        rows += f" and {len(comparison.test.X)} test rows"
    return f"This report compares {compared} on {rows}; the likelihood is {draws.likelihood!r}."


def _verdicts(comparison: Comparison, by_label: Mapping[str, Verdict], names: Sequence[str] | None) -> Html:
    elements = []
    for label, verdict in by_label.items():
        level = element("span", _LEVELS[verdict.level], class_="pgm-level")
        worst = worst_latents(comparison, label, verdict, names)
        elements.append(
            element(
                "div",
                element("h3", label, " ", level),
                bullets(verdict.sentences),
                worst,
                class_=f"pgm-verdict pgm-{verdict.level}",
            )
        )
    return join(elements)


def _diagnosed(label: str, diagnosis: Diagnosis) -> Html:
    illustration = illustrate_diagnosis(label, diagnosis)
    return join([element("h3", illustration.title), diagnosis_html(diagnosis), illustration.html()])


def _figures(comparison: Comparison) -> Iterator[Html]:
    for illustration in illustrations(comparison):
        yield join([element("h3", illustration.title), illustration.html()])


def _run(comparison: Comparison, names: Sequence[str] | None, notes: Sequence[str]) -> Html:
    elements = [element("h3", "Data"), observation_table(comparison)]
    classes = class_table(comparison, names)
    if classes is not None:
        elements.append(classes)
    elements += [element("h3", "Model"), model_html(comparison.results[comparison.reference].model)]
    for label, result in comparison.results.items():
        if isinstance(result, GaussianResult) and result.fit is not None:
            elements += [element("h3", f"Hyperparameters learned by {label}"), _learned(result.fit)]
            break
    elements.append(element("h3", "Results"))
    for label, result in comparison.results.items():
        elements.append(table([], result_facts(result)[1:], caption=element("b", label)))
    if notes:
        elements += [element("h3", "Warnings"), bullets(notes)]
    return join(elements)


def _learned(fit: FitReport) -> Html:
    rows = [(name, ", ".join(f"{v:.6g}" for v in np.ravel(value))) for name, value in fit.values.items()]
    starts = ", ".join(f"{name} ({elbo:.4f})" for name, elbo in fit.start_elbos.items())
    state = "converged" if fit.converged else "did not converge"
    said = f"The search {state} after {fit.num_steps} steps and {fit.num_evaluations} evaluations: {fit.message}."
    chosen = f"It started from {fit.start}; starts and the ELBO at each: {starts}."
    return join([table(["hyperparameter", "value"], rows), element("p", f"{said} {chosen}")])


def _derivation(comparison: Comparison) -> Html:
    model = comparison.results[comparison.reference].model
    if not model.is_augmentable:
        return element("pre", likelihood_text(model))
    derivation = derive(model)
    sections = [
        element("section", element("h3", section.title), element("pre", section.body()))
        for section in explain_sections(derivation.augmentation, model.likelihood.name)
    ]
    source = element("details", element("summary", "The derivation in LaTeX"), element("pre", derivation.to_latex()))
    return join([graph_html(derivation.graph), *sections, source])


def _reproduction(settings: Mapping[str, Any]) -> Html:
    elements = []
    if "command" in settings:
        elements += [
            element("p", "This command reproduces the figures except times, given the same data and versions:")
        ]
        elements += [element("pre", element("code", settings["command"]))]
    rows = [(name, _setting(value)) for name, value in settings.items() if name != "command"]
    return join([*elements, table([], rows)])


def _setting(value: Any) -> Html:
    if isinstance(value, Mapping):
        return join((f"{name} {entry}" for name, entry in value.items()), ", ")
    return html(value if isinstance(value, str) else json.dumps(value, default=str))
