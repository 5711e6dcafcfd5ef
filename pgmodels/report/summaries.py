"""Results and comparisons as text, tables and HTML."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.augmentation.explain import AugmentedGraph, explain_sections, likelihood_line
from pgmodels.diagnostics.compare import ESS_LIMITS, METRICS, RHAT_LIMITS, Comparison, convergence
from pgmodels.inference.objectives import known_objective
from pgmodels.model import Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector, with_priors
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import SparseApproximation
from pgmodels.results.result import BaseResult
from pgmodels.runtime.messages import write_constraint, write_distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# HTML elements for notebooks and reports. Text is escaped, and elements are closed.


class Html(str):
    """A string of HTML. It is not escaped; all other text is."""


def html(value: object) -> Html:
    """Return a value as HTML: escaped, unless it is already HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(values: Iterable[Any], between: str = "") -> Html:
    """Return concatenated values as HTML."""
    return Html(between.join(html(part) for part in values))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Return an element with its children; ``class_`` is the attribute ``class``, None omits an attribute."""
    present = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    opening = " ".join([tag, *(f'{name}="{escape(str(value))}"' for name, value in present.items())])
    return Html(f"<{opening}>" if tag == "img" else f"<{opening}>{join(children)}</{tag}>")


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], caption: object = None) -> Html:
    """Return a table whose first column contains row headers; cells may be complete <td> or <th> elements."""
    head = element("tr", *(_cell("th", cell, scope="col") for cell in header))
    body = [
        element(
            "tr", _cell("th", row[0], scope="row", style="text-align:left"), *(_cell("td", cell) for cell in row[1:])
        )
        for row in rows
    ]
    titled = [element("caption", caption)] if caption is not None else []
    return element(
        "div",
        element("table", *titled, *([element("thead", head)] if header else []), element("tbody", *body)),
        class_="pgm-table" if header else "pgm-table pgm-facts",
        style="overflow-x:auto",
    )


def picture(figure: Figure, alt: str) -> Html:
    """Return a figure with a fixed layout as embedded SVG, or PNG if much smaller, with ``alt`` as text."""
    from pgmodels.plots.style import image, settle

    # Without this, the layout would be computed again for each saved file.
    settle(figure).set_layout_engine("none")
    kind, drawn = "svg+xml", image(figure, format="svg", metadata={"Date": None, "Creator": None})
    if len(drawn) > 200_000:
        # The resolution is for print and high-resolution screens.
        kind, drawn = min((kind, drawn), ("png", image(figure, format="png", dpi=144)), key=lambda file: len(file[1]))
    source = f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"
    # A pixel of CSS is 1/96 of an inch.
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return element("img", src=source, alt=alt, width=width, height=height, style="max-width:100%;height:auto")


def bullets(items: Iterable[Any]) -> Html:
    """Return a list of points."""
    return element("ul", *(element("li", item) for item in items))


def _cell(tag: str, value: object, **attributes: object) -> Html:
    if isinstance(value, Html) and value.startswith(("<td", "<th")):
        return value
    return element(tag, value, **attributes)


# Text of at most 100 columns.

WIDTH = 100


def bulleted(items: Iterable[str]) -> list[str]:
    """Return points as lines of text."""
    options: dict[str, Any] = {"initial_indent": "- ", "subsequent_indent": "  ", "break_on_hyphens": False}
    return [line for item in items for line in textwrap.wrap(item, WIDTH, **options)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines, with the first column left-aligned and the other columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def number_text(value: float, digits: int = 4) -> str:
    """Return a number with some significant digits, or a dash for NaN."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.{digits}g}"


def listed(values: ArrayLike, digits: int = 6) -> str:
    """Return the entries of an array, separated by commas, with at most some significant digits."""
    return ", ".join(f"{value:.{digits}g}" for value in np.ravel(values))


# The table of a comparison, as text and HTML.


class Row(NamedTuple):
    """A metric in words, the value of each result, and which results are best: none if all print the same."""

    words: str
    texts: tuple[str, ...]
    best: tuple[bool, ...]


def metric_rows(comparison: Comparison) -> list[Row]:
    """Return the rows of a comparison's printed table: the metrics that at least one result has."""
    frame, rows = comparison.to_dataframe(), []
    for column in frame.columns:
        values = frame[column]
        if values.isna().all():
            continue
        texts = tuple(number_text(value) for value in values)
        # Values that print the same are equally good. With only one distinct value, none is marked.
        best = number_text(METRICS[column].best(values.dropna())) if len(set(texts) - {"-"}) > 1 else None
        rows.append(Row(METRICS[column].words, texts, tuple(text == best for text in texts)))
    return rows


def as_text(comparison: Comparison) -> str:
    """Return the table in 100 columns, split into blocks if it is wider, with notes below."""
    rows = metric_rows(comparison)
    names = [row.words for row in rows]
    first = max(map(len, names))
    blocks: list[list[tuple[list[str], list[str]]]] = []
    room = 0
    for index, label in enumerate(comparison.results):
        # Labels of more than 20 characters are wrapped.
        head = textwrap.wrap(f"{label} (ref.)" if label == comparison.reference else label, 20) or [""]
        cells = [row.texts[index] + ("*" if row.best[index] else " ") for row in rows]
        width = 2 + max(map(len, head + cells))
        if width > room:
            blocks.append([])
            room = WIDTH - first
        blocks[-1].append((head, cells))
        room -= width
    lines = []
    for block in blocks:
        height = max(len(head) for head, _ in block)
        columns = [[""] * (height - len(head)) + head + cells for head, cells in block]
        lines += [*aligned(list(zip([""] * height + names, *columns, strict=True))), ""]
    # The notes follow the last block without a gap.
    lines.pop()
    for note in _notes(comparison):
        indent = "" if note.startswith(("* ", "! ")) else "  "
        lines += textwrap.wrap(note, WIDTH, break_on_hyphens=False, initial_indent=indent, subsequent_indent="  ")
    return "\n".join(lines)


def as_html(comparison: Comparison) -> Html:
    """Return the table with the best value of each row marked, and notes below."""
    heads = (f"{label} (reference)" if label == comparison.reference else label for label in comparison.results)
    header = ["", *(element("th", head, scope="col", style="text-align:right") for head in heads)]
    rows = []
    for row in metric_rows(comparison):
        cells = [element("th", row.words, scope="row", style="text-align:left;min-width:9em")]
        for text, best in zip(row.texts, row.best, strict=True):
            # The star marks the best value for readers without colours or bold type.
            inside = element("b", f"{text} *") if best else text
            style = "text-align:right;white-space:nowrap"
            cells.append(element("td", inside, class_="best" if best else None, style=style))
        rows.append(cells)
    return join([table(header, rows), bullets(_notes(comparison))])


def _notes(comparison: Comparison) -> list[str]:
    means, variances = number_text(comparison.mcse_mean.mean()), number_text(comparison.mcse_variance.mean())
    row = comparison.to_dataframe().loc[comparison.reference]
    rhat, ess = row["rhat"], min(row["ess_bulk"], row["ess_tail"])
    caution = (
        f"! These errors are not reliable: {comparison.reference} has R-hat {number_text(rhat)} and bulk or tail "
        f"ESS {number_text(ess)} at worst (required: below {RHAT_LIMITS[1]}, above {ESS_LIMITS[1]}). Draw more."
    )
    return [
        f"* best of the row. Errors are differences from {comparison.reference}, whose Monte-Carlo standard errors are "
        f"{means} (means) and {variances} (variances) on average over the latents: smaller errors are noise.",
        *([caution] if rhat > RHAT_LIMITS[1] or ess < ESS_LIMITS[1] else []),
        *comparison.notes,
    ]


# Display of results, models and graphs: a paragraph in a terminal, a table in a notebook.

_METHODS = {
    "linear_response": "Linear-response correction",
    "perturbative": "Second-order correction",
    "nested": "Nested variational marginals",
    "gibbs": "Gibbs sampling",
    "nuts": "NUTS",
    "integrate": "Hyperparameters integrated out",
}
# Text before the name of a method with auxiliary variables, and text after the name of another method.
_STOCHASTIC = {"svi": ("Stochastic ", " by stochastic steps")}
_CORRECTED = {
    "linear_response": ", corrected by linear response",
    "perturbative": ", corrected to second order",
    "nested": ", corrected by nested variational marginals",
}


def result_text(result: BaseResult) -> str:
    """Return a result in one paragraph of at most 100 columns."""
    facts = [f"{name} {value}" for name, value in result_facts(result)[2:]]
    return textwrap.fill(f"{_heading(result)}, {_size(result)}: {'; '.join(facts)}.", WIDTH, break_on_hyphens=False)


def result_status(result: Any) -> str:
    """Return the engine with its objective, convergence, bound or log evidence, and correction."""
    if result.draws is not None:
        (_, chains), *mixing = _facts(result)
        return f"{_METHODS[result.method]}: " + "; ".join([chains, *map(" ".join, mixing[:3])])
    if not (result.has_elbo or result.is_corrected):
        return "integrate: " + "; ".join(map(" ".join, _facts(result)[:2]))
    name, value = _facts(result.uncorrected)[0]
    correction = "none" if result.fit is None else result.fit.correction
    if not result.has_elbo:
        correction = _CORRECTED[result.method].removeprefix(", corrected ")
    engine = f"{result.uncorrected.method} on {_objective(result).title}"
    lines = [f"{engine}: {name} {value}, {_state(result)}", f"correction: {correction}"]
    if result.fit is not None and result.fit.intervals:
        lines.append(f"uncertainty of parameters: {result.fit.intervals}")
    return "\n".join(lines)


def result_line(result: BaseResult) -> str:
    """Return a result in one line, without computed diagnostics."""
    return f"<{type(result).__name__} {_heading(result)}, {_size(result)}, {result.seconds:.3g} s>"


def result_html(result: BaseResult) -> Html:
    """Return a result as a table of facts."""
    return table([], result_facts(result), caption=_heading(result))


def result_facts(result: BaseResult) -> list[tuple[str, str]]:
    """Return the main facts of a result, by name."""
    facts = [("model", repr(result.model)), ("size", _size(result))]
    if result.weights is not None:
        facts.append(("weights of rows", f"{result.weights.sum():.6g} in total"))
    return [*facts, *_facts(result), ("time", f"{result.seconds:.3g} s")]


def _heading(result: Any) -> str:
    name = _METHODS.get(result.method, result.method)
    if result.has_elbo:
        objective, (before, after) = _objective(result), _STOCHASTIC.get(result.method, ("", ""))
        name = before + objective.method if objective.has_auxiliaries else objective.method + after
        if result.fit is not None:
            name += f" at learned hyperparameters{_CORRECTED.get(result.method, '')}"
    return f"{name} of {result.likelihood!r}"


def _size(result: BaseResult) -> str:
    latents = result.model.num_latents
    return f"{result.num_rows} rows, {latents} latent{'s' if latents > 1 else ''}"


def _objective(result: GaussianResult | SparseApproximation) -> Objective | type[Objective]:
    """Return the objective of a result, or the defaults for a loaded result of a user's objective."""
    return known_objective(result) or Objective


def _is_bound(result: GaussianResult | SparseApproximation) -> bool:
    objective = known_objective(result)
    return objective is None or objective.is_bound


def _state(result: GaussianResult | SparseApproximation) -> str:
    return "converged" if result.converged else "not converged"


# Quantile levels of the median and the central 90 % interval.
_MEDIAN_AND_ENDS = (0.05, 0.5, 0.95)


def _ranges(quantiles: np.ndarray) -> str:
    """Return medians with central 90 % intervals from the 5 %, 50 % and 95 % quantiles (3, ...) of each entry."""
    return ", ".join(f"{m:.4g} (90 %: {a:.3g} to {b:.3g})" for a, m, b in quantiles.reshape(3, -1).T)


@singledispatch
def _facts(result: BaseResult) -> list[tuple[str, str]]:
    """Return the facts that describe one kind of result."""
    raise TypeError(type(result).__name__)


@_facts.register(Draws)
def _facts_of_draws(draws: Draws) -> list[tuple[str, str]]:
    chains = "one chain" if draws.num_chains == 1 else f"each of {draws.num_chains} chains"
    facts = [("draws", f"{draws.num_samples} in {chains}, after {draws.num_warmup} of warm-up")]
    if draws.whitened is None and draws.stored_latents is None:
        facts.append(("R-hat and ESS", "unknown: the draws of the latents were not stored"))
    else:
        figures = convergence(draws)
        rhat, *sizes = figures["rhat"], figures["ess_bulk"], figures["ess_tail"]
        facts.append(("largest R-hat", "not defined for one chain" if np.isnan(rhat) else f"{rhat:.3f}"))
        for part, size in zip(("bulk", "tail"), sizes, strict=True):
            facts.append((f"smallest {part} ESS", "not defined" if np.isnan(size) else f"{size:.0f}"))
    for name, values in draws.hyperparameters.items():
        facts.append((f"sampled {name}", _ranges(np.quantile(values, _MEDIAN_AND_ENDS, axis=(0, 1)))))
    return facts


@_facts.register(GaussianResult)
def _facts_of_gaussian(result: GaussianResult) -> list[tuple[str, str]]:
    name = "ELBO" if _is_bound(result) else "approximate log evidence"
    facts = [(name, f"{result.elbo:.4f} nats"), ("iterations", f"{result.num_iterations}, {_state(result)}")]
    if result.is_corrected:
        facts[0] = ("ELBO before the correction", facts[0][1])
        facts.append(("variances that are not positive", f"{result.num_nonpositive} of {result.variance.size}"))
    if result.log_evidence_bounds is not None:
        facts.append(("largest lower bound of log p(y)", f"{result.log_evidence_bounds.max():.4f} nats"))
        skewness = result.marginals.skewness
        facts.append(("largest skewness", f"{skewness.flat[np.argmax(abs(skewness))]:.2f}"))
    if result.fit is not None:
        facts.append(("hyperparameters", _learned(result)))
        if not result.is_corrected or result.fit.exceptions:
            facts.append(("correction", result.fit.correction))
        if result.uncertainty is not None:
            for path, values in result.uncertainty.nodes(result.model).items():
                facts.append((path, _ranges(np.quantile(values, _MEDIAN_AND_ENDS, axis=0))))
        elif result.fit.intervals:
            facts.append(("uncertainty of hyperparameters", result.fit.intervals))
    return facts


@_facts.register(IntegratedApproximation)
def _facts_of_points(result: IntegratedApproximation) -> list[tuple[str, str]]:
    state = "which cover the posterior" if result.holds_mass else "which do not cover all of the posterior"
    points = f"{len(result.shares)}, {state}" + (f", and {result.num_failed} that failed" * bool(result.num_failed))
    facts = [("points", points), ("log evidence", f"{result.log_evidence:.4f} nats")]
    for name, marginal in result.hyperparameters.items():
        facts.append((name, _ranges(marginal.quantiles(_MEDIAN_AND_ENDS))))
    if result.unreliable:
        facts.append(("mass at points with a Pareto k-hat above its limit", f"{result.unreliable:.0%}"))
    return facts


@_facts.register(SparseApproximation)
def _facts_of_minibatches(result: SparseApproximation) -> list[tuple[str, str]]:
    facts = [("ELBO", f"{result.elbo:.4f} nats")]
    facts.append(("windows of steps and passes", f"{len(result.elbo_trace)}, {_state(result)}"))
    return facts if result.fit is None else [*facts, ("hyperparameters", _learned(result))]


def _learned(result: GaussianResult | SparseApproximation) -> str:
    if not result.fit.converged:
        return f"not optimal: {result.fit.message}"
    with_prior = bool(with_priors(result.model).leaf_indices)
    mode = ", with priors: the mode of the unconstrained parameters, such as log(variance)" if with_prior else ""
    return f"learned on {_objective(result).title}{'' if _is_bound(result) else ', which is no bound'}{mode}"


def model_html(model: Model) -> Html:
    """Return a model: its formula, its GPs and its hyperparameters."""
    gps = ", ".join(f"{gp.size} × {gp!r}" if gp.size > 1 else repr(gp) for gp in model.gps)
    title = element("p", element("b", repr(model.likelihood)), f" over {gps}")
    return join([title, element("p", element("code", likelihood_text(model))), hyperparameter_table(model)])


def likelihood_text(model: Model) -> str:
    """Return the line that states the likelihood, in the derivation's notation if there is one."""
    if model.is_augmentable:
        return explain_sections(model.augmentation, model.likelihood.name)[0].lines[0].text()
    return likelihood_line(model.likelihood.formula(model.num_latents)).text()


def hyperparameter_table(model: Model) -> Html:
    """Return a table of every hyperparameter, mean and likelihood parameter of a model."""
    every = ParameterVector(model, lambda parameter: True)
    rows = []
    for name, parameter in zip(every.names, every.parameters, strict=True):
        note = write_constraint(parameter.support)
        if parameter.prior is not None:
            note = f"prior {write_distribution(parameter.declared_prior)}"
        value = "from the data" if parameter.value is None else listed(parameter.value)
        rows.append((name, value, "fixed" if parameter.fixed else f"trainable, {note}"))
    return table(["hyperparameter", "value", ""], rows)


def graph_html(graph: AugmentedGraph) -> Html:
    """Return a drawing of an augmented graph, and a table of its variables and their parents."""
    from pgmodels.plots.graph import plot_graph

    alt = f"Augmented graph of {graph.name}; the table below lists its variables and edges."
    rows = []
    for node in graph.nodes:
        plates = " and ".join(plate.label for plate in graph.plates_of(node))
        parents = [graph.labels[edge.source] for edge in graph.edges if edge.target == node.id]
        rows.append((node.label, node.kind, plates, ", ".join(parents)))
    listed = table(["variable", "kind", "for each", "parents"], rows, caption=f"Augmented graph of {graph.name}")
    caption = element("figcaption", "Arrows lead from parents to children; the nodes of a plate are repeated.")
    return join([element("figure", picture(plot_graph(graph), alt), caption), listed])
