"""Results and comparisons as text, tables and HTML."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pgmodels.augmentation.explain import AugmentedGraph, explain_sections, likelihood_line
from pgmodels.diagnostics.compare import METRICS, Comparison, convergence
from pgmodels.inference.objectives import known_objective
from pgmodels.model import Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector, with_priors
from pgmodels.results.approximation import CorrectedApproximation, GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import NestedApproximation, SparseApproximation
from pgmodels.results.result import Result
from pgmodels.runtime.messages import write_constraint, write_distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# HTML elements for notebooks and reports; text is escaped and elements are closed.


class Html(str):
    """A string of HTML, which is not escaped; all other text is."""


# Resolution of PNG images, for print and high-resolution screens.
_DPI = 144
# SVG images above this number of bytes may be replaced by PNG.
_LARGE = 200_000
_PIXELS_PER_INCH = 96
_VOID = {"img", "meta", "br", "hr"}


def html(value: Any) -> Html:
    """A value as HTML: escaped, unless it is already HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(values: Iterable[Any], between: str = "") -> Html:
    """Values as HTML, concatenated."""
    return Html(between.join(html(part) for part in values))


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element with its children; ``class_`` is the attribute ``class``, None leaves an attribute out."""
    present = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    opening = " ".join([tag, *(f'{name}="{escape(str(value))}"' for name, value in present.items())])
    if tag in _VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(children)}</{tag}>")


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], caption: Any = None) -> Html:
    """A table whose first column contains row headers; cells may be complete <td> or <th> elements."""
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
    """A figure as embedded SVG, or PNG if SVG is large and PNG smaller, with alternative text ``alt``.

    The figure's layout is fixed afterwards.
    """
    from pgmodels.plots.style import settle

    # Otherwise the layout would be computed again for each saved file.
    settle(figure).set_layout_engine("none")
    kind, drawn = "svg+xml", _saved(figure, format="svg", metadata={"Date": None, "Creator": None})
    if len(drawn) > _LARGE:
        kind, drawn = min((kind, drawn), ("png", _saved(figure, format="png", dpi=_DPI)), key=lambda file: len(file[1]))
    source = f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"
    width, height = (round(_PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    return element("img", src=source, alt=alt, width=width, height=height, style="max-width:100%;height:auto")


def _saved(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()


def bullets(items: Iterable[Any]) -> Html:
    """A list of points."""
    return element("ul", *(element("li", item) for item in items))


def _cell(tag: str, value: Any, **attributes: Any) -> Html:
    is_cell = isinstance(value, Html) and value.startswith(("<td", "<th"))
    return value if is_cell else element(tag, value, **attributes)


# The table of a comparison as text and HTML.

WIDTH = 100
# Limits for the reference; Vehtari et al. 2021 recommend 1.01 for a single R-hat, and this is the largest of many.
_LARGEST_RHAT, _SMALLEST_ESS = 1.05, 100
# Row headers of the printed table, by column of the comparison.
_WORDS = {
    "mean_error": "mean |error| of latent means",
    "mean_error_max": "largest |error| of latent means",
    "variance_error": "mean |error| of latent variances",
    "variance_error_max": "largest |error| of latent variances",
    "wasserstein": "mean Wasserstein-1 of marginals",
    "misclassification": "test misclassification",
    "rmse": "test RMSE of predictive mean",
    "crps": "test CRPS",
    "interval_score": "test interval score (90 %)",
    "negative_log_density": "test negative log density [nats]",
    "calibration_error": "test calibration error (15 bins)",
    "elbo": "ELBO [nats]",
    "pareto_k": "Pareto k-hat",
    "ess_bulk": "smallest bulk ESS",
    "ess_tail": "smallest tail ESS",
    "rhat": "largest R-hat",
    "seconds": "seconds",
}
# Longer labels are wrapped.
_LABEL = 20


class Row(NamedTuple):
    """A metric in words, the value of each result, and which are best: none if all print the same."""

    words: str
    texts: tuple[str, ...]
    best: tuple[bool, ...]


def metric_rows(comparison: Comparison) -> list[Row]:
    """The rows of a comparison's printed table: metrics that at least one result has."""
    frame, rows = comparison.to_dataframe(), []
    for column in frame.columns:
        values = frame[column]
        if values.isna().all():
            continue
        texts = tuple(number_text(value) for value in values)
        # Values that print the same are equally good; with only one distinct value, none is marked.
        best = number_text(METRICS[column](values.dropna())) if len(set(texts) - {"-"}) > 1 else None
        rows.append(Row(_WORDS[column], texts, tuple(text == best for text in texts)))
    return rows


def as_text(comparison: Comparison) -> str:
    """The table in 100 columns, split into blocks if it is wider, with notes below."""
    rows = metric_rows(comparison)
    first = max(len(row.words) for row in rows)
    columns = []
    for index, label in enumerate(comparison.results):
        head = textwrap.wrap(f"{label} (ref.)" if label == comparison.reference else label, _LABEL) or [""]
        columns.append([head, [row.texts[index] + ("*" if row.best[index] else " ") for row in rows]])
    lines = []
    for block in _blocks(columns, first):
        height = max(len(head) for head, _ in block)
        names = [""] * height + [row.words for row in rows]
        shown = ([""] * (height - len(head)) + head + cells for head, cells in block)
        lines += [*aligned(list(zip(names, *shown, strict=True))), ""]
    return "\n".join([*lines[:-1], *(part for note in _notes(comparison) for part in _note(note))])


def as_html(comparison: Comparison) -> Html:
    """The table with the best of each row marked, and notes below."""
    heads = (f"{label} (reference)" if label == comparison.reference else label for label in comparison.results)
    header = ["", *(element("th", head, scope="col", style="text-align:right") for head in heads)]
    rows = []
    for row in metric_rows(comparison):
        cells = (_score_cell(text, best) for text, best in zip(row.texts, row.best, strict=True))
        rows.append([element("th", row.words, scope="row", style="text-align:left;min-width:9em"), *cells])
    return join([table(header, rows), bullets(_notes(comparison))])


def _notes(comparison: Comparison) -> list[str]:
    means, variances = number_text(comparison.mcse_mean.mean()), number_text(comparison.mcse_variance.mean())
    return [
        f"* best of the row. Errors are differences from {comparison.reference}, whose Monte-Carlo standard errors are "
        f"{means} (means) and {variances} (variances) on average over the latents: smaller errors are noise.",
        *_caution(comparison),
        *comparison.notes,
    ]


def _caution(comparison: Comparison) -> list[str]:
    row = comparison.to_dataframe().loc[comparison.reference]
    rhat, ess = row["rhat"], min(row["ess_bulk"], row["ess_tail"])
    if rhat > _LARGEST_RHAT or ess < _SMALLEST_ESS:
        return [
            f"! These errors are not reliable: {comparison.reference} has R-hat {number_text(rhat)} and bulk or tail "
            f"ESS {number_text(ess)} at worst (required: below {_LARGEST_RHAT}, above {_SMALLEST_ESS}). Draw more."
        ]
    return []


def number_text(value: float) -> str:
    """A number with four significant digits, a dash for NaN."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.4g}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _score_cell(text: str, best: bool) -> Html:
    # The star marks the best value for readers without colours or bold type.
    inside = element("b", f"{text} *") if best else text
    return element("td", inside, class_="best" if best else None, style="text-align:right;white-space:nowrap")


def _blocks(columns: Sequence[list], first: int) -> list[list[list]]:
    blocks: list[list[list]] = []
    room = 0
    for column in columns:
        width = 2 + max(map(len, column[0] + column[1]))
        if width > room:
            blocks.append([])
            room = WIDTH - first
        blocks[-1].append(column)
        room -= width
    return blocks


def _note(note: str) -> list[str]:
    marked = note.startswith(("* ", "! "))
    return textwrap.wrap(
        note, WIDTH, break_on_hyphens=False, initial_indent="" if marked else "  ", subsequent_indent="  "
    )


# Display of results, models and graphs: a paragraph in a terminal, a table in a notebook.

AnyResult: TypeAlias = Result | SparseApproximation

_METHODS = {
    "linear_response": "Linear-response correction",
    "perturbative": "Second-order correction",
    "nested": "Nested variational marginals",
    "gibbs": "Gibbs sampling",
    "nuts": "NUTS",
    "integrate": "Hyperparameters integrated out",
}
# Before the name of a method with auxiliary variables, and after that of another.
_STOCHASTIC = {"svi": ("Stochastic ", " by stochastic steps")}
_CORRECTED = {
    "linear_response": ", corrected by linear response",
    "perturbative": ", corrected to second order",
    "nested": ", corrected by nested variational marginals",
}


def result_text(result: AnyResult) -> str:
    """A result in one paragraph of at most 100 columns."""
    facts = [f"{name} {value}" for name, value in result_facts(result)[2:]]
    text = f"{_heading(result)}, {_size(result)}: {'; '.join(facts)}."
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def result_status(result: Result) -> str:
    """The engine with its objective, convergence, bound or log evidence, and how the result is corrected."""
    if isinstance(result, Draws):
        return f"{_METHODS[result.method]}: " + "; ".join([_chains(result), *map(" ".join, _mixing(result)[:3])])
    if isinstance(result, IntegratedApproximation):
        return "integrate: " + "; ".join(map(" ".join, _points(result)[:2]))
    assert isinstance(result, GaussianResult)
    objective = known_objective(result)
    title = (Objective if objective is None else objective).title
    name, value = _iterations(result.uncorrected)[0]
    state = "converged" if result.converged else "not converged"
    correction = "none" if result.fit is None else result.fit.correction
    if result.corrects_another:
        correction = _CORRECTED[result.method].removeprefix(", corrected ")
    lines = [f"{result.uncorrected.method} on {title}: {name} {value}, {state}", f"correction: {correction}"]
    if result.fit is not None and result.fit.intervals:
        lines.append(f"uncertainty of parameters: {result.fit.intervals}")
    return "\n".join(lines)


def result_line(result: AnyResult) -> str:
    """A result in one line, without computed diagnostics."""
    return f"<{type(result).__name__} {_heading(result)}, {_size(result)}, {result.seconds:.3g} s>"


def result_html(result: AnyResult) -> Html:
    """A result as a table of facts."""
    return table([], result_facts(result), caption=_heading(result))


def result_facts(result: AnyResult) -> list[tuple[str, str]]:
    """The main facts of a result, by name."""
    facts = [("model", repr(result.model)), ("size", _size(result))]
    if result.weights is not None:
        facts.append(("weights of rows", f"{result.weights.sum():.6g} in total"))
    if isinstance(result, Draws):
        facts += [("draws", _chains(result)), *_mixing(result)]
    elif isinstance(result, GaussianResult):
        facts += _iterations(result)
    elif isinstance(result, IntegratedApproximation):
        facts += _points(result)
    elif isinstance(result, SparseApproximation):
        state = "converged" if result.converged else "not converged"
        facts.append(("ELBO", f"{result.elbo:.4f} nats"))
        facts.append(("windows of steps and passes", f"{len(result.elbo_trace)}, {state}"))
        facts += [] if result.fit is None else [("hyperparameters", _learned(result))]
    return [*facts, ("time", f"{result.seconds:.3g} s")]


def _heading(result: AnyResult) -> str:
    name = _METHODS.get(result.method, result.method)
    if isinstance(result, (GaussianResult, SparseApproximation)):
        is_learned = result.fit is not None
        if is_learned or not isinstance(result, CorrectedApproximation):
            name = _variational_method(result)
        if is_learned:
            name += f" at learned hyperparameters{_CORRECTED.get(result.method, '')}"
    return f"{name} of {result.likelihood!r}"


def _variational_method(result: GaussianResult | SparseApproximation) -> str:
    objective = known_objective(result)
    name = Objective.method if objective is None else objective.method
    before, after = _STOCHASTIC.get(result.method, ("", ""))
    return before + name if objective is not None and objective.has_auxiliaries else name + after


def _size(result: AnyResult) -> str:
    latents = result.model.num_latents
    return f"{result.num_rows} rows, {latents} latent{'s' if latents > 1 else ''}"


def _chains(draws: Draws) -> str:
    chains = "one chain" if draws.num_chains == 1 else f"each of {draws.num_chains} chains"
    return f"{draws.num_samples} in {chains}, after {draws.num_warmup} of warm-up"


def _mixing(draws: Draws) -> list[tuple[str, str]]:
    sampled = [(f"sampled {name}", _spread(values)) for name, values in draws.hyperparameters.items()]
    if draws.whitened is None and draws.stored_latents is None:
        return [("R-hat and ESS", "unknown: the draws of the latents were not stored"), *sampled]
    diagnostics = convergence(draws)
    facts = [("largest R-hat", _figure(diagnostics["rhat"], ".3f", "not defined for one chain"))]
    facts += [
        (f"smallest {part} ESS", _figure(diagnostics[f"ess_{part}"], ".0f", "not defined")) for part in ("bulk", "tail")
    ]
    return [*facts, *sampled]


def _figure(value: float, form: str, otherwise: str) -> str:
    return otherwise if np.isnan(value) else f"{value:{form}}"


def _spread(values: np.ndarray) -> str:
    """The median and the central 90 % interval of draws, for each entry."""
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    return _ranges(*np.quantile(flat, (0.05, 0.5, 0.95), axis=0))


def _ranges(low: np.ndarray, middle: np.ndarray, high: np.ndarray) -> str:
    """Medians with central 90 % intervals from the 5 %, 50 % and 95 % quantiles."""
    return ", ".join(f"{m:.4g} (90 %: {a:.3g} to {b:.3g})" for a, m, b in zip(low, middle, high, strict=True))


def _iterations(result: GaussianResult) -> list[tuple[str, str]]:
    state = "converged" if result.converged else "not converged"
    objective = known_objective(result)
    name = "ELBO" if objective is None or objective.is_bound else "approximate log evidence"
    facts = [(name, f"{result.elbo:.4f} nats"), ("iterations", f"{result.num_iterations}, {state}")]
    if isinstance(result, CorrectedApproximation) and result.is_corrected:
        facts[0] = ("ELBO before the correction", facts[0][1])
        facts.append(("variances that are not positive", f"{result.num_nonpositive} of {result.variance.size}"))
    if isinstance(result, NestedApproximation):
        facts.append(("largest lower bound of log p(y)", f"{result.log_evidence_bounds.max():.4f} nats"))
        facts.append(("largest skewness", f"{result.skewness.flat[np.argmax(abs(result.skewness))]:.2f}"))
    if result.fit is not None:
        facts.append(("hyperparameters", _learned(result)))
        if not result.is_corrected or result.fit.exceptions:
            facts.append(("correction", result.fit.correction))
        if result.uncertainty is not None:
            for path, values in result.uncertainty.nodes(result.model).items():
                facts.append((path, _ranges(*np.quantile(values.reshape(len(values), -1), (0.05, 0.5, 0.95), axis=0))))
        elif result.fit.intervals:
            facts.append(("uncertainty of hyperparameters", result.fit.intervals))
    return facts


def _learned(result: GaussianResult | SparseApproximation) -> str:
    if not result.fit.converged:
        return f"not optimal: {result.fit.message}"
    with_prior = bool(with_priors(result.model).leaf_indices)
    mode = ", with priors: the mode of the unconstrained parameters, such as log(variance)" if with_prior else ""
    objective = known_objective(result)
    if objective is None:
        return f"learned on {Objective.title}{mode}"
    return f"learned on {objective.title}{'' if objective.is_bound else ', which is no bound'}{mode}"


def _points(result: IntegratedApproximation) -> list[tuple[str, str]]:
    state = "which cover the posterior" if result.holds_mass else "which do not cover all of the posterior"
    points = f"{len(result.shares)}, {state}" + (f", and {result.num_failed} that failed" * bool(result.num_failed))
    facts = [("points", points), ("log evidence", f"{result.log_evidence:.4f} nats")]
    for name, marginal in result.hyperparameters.items():
        facts.append((name, _ranges(*map(np.ravel, marginal.quantiles([0.05, 0.5, 0.95])))))
    if result.unreliable:
        facts.append(("mass at points with a Pareto k-hat above its limit", f"{result.unreliable:.0%}"))
    return facts


def model_html(model: Model) -> Html:
    """A model: its formula, its GPs and its hyperparameters."""
    gps = ", ".join(f"{gp.size} × {gp!r}" if gp.size > 1 else repr(gp) for gp in model.gps)
    title = element("p", element("b", repr(model.likelihood)), f" over {gps}")
    return join([title, element("p", element("code", likelihood_text(model))), hyperparameter_table(model)])


def likelihood_text(model: Model) -> str:
    """The line that states the likelihood, as in the derivation if there is one."""
    if model.is_augmentable:
        return explain_sections(model.augmentation, model.likelihood.name)[0].lines[0].text()
    return likelihood_line(model.likelihood.formula(model.num_latents)).text()


def hyperparameter_table(model: Model) -> Html:
    """Every hyperparameter, mean and likelihood parameter of a model."""
    every = ParameterVector(model, lambda parameter: True)
    rows = []
    for name, parameter in zip(every.names, every.parameters, strict=True):
        note = write_constraint(parameter.support)
        if parameter.prior is not None:
            note = f"prior {write_distribution(parameter.declared_prior)}"
        value = "from the data" if parameter.value is None else _array(parameter.value)
        rows.append((name, value, "fixed" if parameter.fixed else f"trainable, {note}"))
    return table(["hyperparameter", "value", ""], rows)


def _array(value: Any) -> str:
    return ", ".join(f"{entry:.6g}" for entry in np.ravel(np.asarray(value)))


def graph_html(graph: AugmentedGraph) -> Html:
    """A drawing of an augmented graph, and a table of its variables and their parents."""
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
