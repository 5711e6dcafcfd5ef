"""A report of a comparison as one self-contained HTML file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from pgmodels.augmentation.explain import explain_sections
from pgmodels.derivation import derive
from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.report.diagnosis_text import as_html as diagnosis_html
from pgmodels.report.html import Html, bullets, element, html, join, table
from pgmodels.report.illustrations import illustrate_diagnosis, illustrations
from pgmodels.report.report_data import check_class_names, class_table, observation_table, worst_latents
from pgmodels.report.summaries import graph_html, likelihood_text, model_html, result_facts
from pgmodels.report.table import as_html as table_html
from pgmodels.report.verdicts import Verdict, verdicts
from pgmodels.results.approximation import FitReport, GaussianResult
from pgmodels.runtime.atomic_io import atomic_write

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
    """The document: title, table of contents and sections."""
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
