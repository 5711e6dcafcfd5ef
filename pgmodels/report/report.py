"""Reports in HTML."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pgmodels.augmentation.explain import explain_sections
from pgmodels.data.arrays import first_column
from pgmodels.derivation import derive
from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.plots.chains import plot_auxiliaries, plot_convergence, plot_elbo
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
    listed,
    model_html,
    picture,
    result_facts,
    table,
)
from pgmodels.report.summaries import as_html as table_html
from pgmodels.report.verdicts import RATINGS, Verdict, verdicts
from pgmodels.report.verdicts import as_html as diagnosis_html
from pgmodels.results.approximation import FitReport
from pgmodels.runtime.io import atomic_write
from pgmodels.runtime.messages import shorten

# The tables of a report: observations, classes, and unreliable latents.


def check_class_names(comparison: Comparison, class_names: Sequence[str] | None) -> list[str] | None:
    """Return class names as text, or None without names. Raise ValueError unless each class has one name."""
    if class_names is None:
        return None
    values = comparison.draws.model.support.values()
    if values is None:
        name = comparison.draws.likelihood.name
        raise ValueError(f"class_names need classes, but y of {name} is not a class: leave them out.")
    if isinstance(class_names, str) or len(class_names) != len(values):
        raise ValueError(
            f"class_names must be {len(values)} names, in the order of the classes; got {shorten(class_names)}."
        )
    return [str(name) for name in class_names]


def observation_table(comparison: Comparison) -> Html:
    """Return a table of the number of rows and columns, and the range and median of y."""
    draws, test = comparison.draws, comparison.test
    rows = []
    for name, data in (("training", draws.data), ("test", test)):
        if data is not None:
            y = first_column(data.y)
            figures = (np.min(y), np.median(y), np.max(y))
            rows.append([name, str(len(data.X)), str(data.X.shape[1]), *(f"{figure:.5g}" for figure in figures)])
    return table(["", "rows", "columns of X", "y: smallest", "median", "largest"], rows)


def class_table(comparison: Comparison, names: Sequence[str] | None) -> Html:
    """Return a table of each class's rows and each result's accuracy on its test rows; empty without classes."""
    values, test = comparison.draws.model.support.values(), comparison.test
    if values is None:
        return Html("")
    header = ["class", *(["name"] if names else []), "training rows"]
    predictions = {} if test is None else test.predictions
    if test is not None:
        header += ["test rows", *(f"accuracy: {label}" for label in predictions)]
    rows, trained = [], first_column(comparison.draws.y)
    for place, value in enumerate(values):
        row = [f"{value:g}", *([names[place]] if names else []), str(np.sum(trained == value))]
        if test is not None:
            of_class = first_column(test.y) == value
            row.append(str(of_class.sum()))
            correct = [p.argmax(axis=1)[of_class] == place for p in predictions.values()]
            row += [f"{one.mean():.3f}" if one.size else "-" for one in correct]
        rows.append(row)
    return table(header, rows, caption="Classes, and the accuracy of the most probable class on test rows")


def worst_latents(
    comparison: Comparison, label: str, verdict: Verdict, names: Sequence[str] | None, num_listed: int = 10
) -> Html:
    """Return the least reliable latents with posterior moments and the reference's moments; empty if there are none."""
    count, reference = len(verdict.latents), comparison.draws
    if not count:
        return Html("")
    several = reference.model.num_latents > 1
    # Each class may have a separate latent.
    known = names if names is not None and len(names) == reference.model.num_latents else None
    shown = {label: comparison.results[label], comparison.reference: reference}
    of_label, *of_reference = (f"of {name}" for name in shown)
    header = ["row", *(["latent"] if several else []), "y", f"mean ± sd {of_label}", *of_reference]
    rows = []
    for row, latent in verdict.latents[:num_listed]:
        cells = [str(row)]
        if several:
            cells.append(f"{latent}" if known is None else f"{latent} ({known[latent]})")
        cells.append(listed(reference.y[row], 4))
        for result in shown.values():
            variance = result.variance[row, latent]
            spread = f"{np.sqrt(variance):.3g}" if variance > 0 else "no variance"
            cells.append(f"{result.mean[row, latent]:.3g} ± {spread}")
        rows.append(cells)
    number = f"the worst {num_listed} of {count}" if count > num_listed else str(count)
    return table(header, rows, caption=element("span", f"Unreliable latents: {number}"))


# The figures of a report, with their captions.


def illustrate(name: str, figure: Figure, words: Mapping[str, str], above: Html | None = None) -> Html:
    """Return a figure with its heading, the caption that explains it, and its alternative text.

    ``words`` are inserted into the entry of captions.toml. ``above`` stands between heading and figure.
    """
    captions = tomllib.loads((files("pgmodels.report") / "captions.toml").read_text(encoding="utf-8"))
    title, caption, alt = (captions[name][part].format(**words) for part in ("title", "caption", "alt"))
    drawn = element("figure", picture(figure, alt), element("figcaption", caption))
    return join([element("h3", title), above or "", drawn])


def illustrations(comparison: Comparison) -> Iterator[Html]:
    """Yield the figures of a comparison, one by one."""
    draws, test = comparison.draws, comparison.test
    words = {"reference": comparison.reference, "others": ", ".join(comparison.others)}
    if comparison.others:
        yield illustrate("marginals", plot_marginals(comparison), words)
        yield illustrate("densities", plot_densities(comparison), words)
    if test is not None and test.is_class and test.predictions:
        yield illustrate("reliability", plot_reliability(comparison), words)
    if draws.X.shape[1] == 1:
        yield illustrate("latents", plot_latent(comparison), words)
    if draws.X.shape[1] == 2:
        yield illustrate("map", plot_probability_map(draws), words)
    if draws.model.is_augmentable and any(rule.auxiliary is not None for rule in draws.model.augmentation.rules):
        yield illustrate("auxiliaries", plot_auxiliaries(comparison), words)
    bounds = [result for result in comparison.results.values() if result.has_elbo and result.num_iterations > 1]
    # CAVI that starts from an optimum leaves the bound unchanged.
    if any(np.ptp(result.elbo_trace) > 1e-6 * abs(result.elbo) for result in bounds):
        yield illustrate("elbo", plot_elbo(comparison), words)
    for label, result in comparison.results.items():
        # Fewer than four draws have no effective sample size.
        if result.draws is not None and result.num_samples >= 4:
            yield illustrate("convergence", plot_convergence(result), {"label": label})


def write_report(
    path: str | PathLike[str],
    comparison: Comparison,
    *,
    title: str,
    settings: Mapping[str, Any],
    summary: Sequence[str] = (),
    notes: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    diagnoses: Mapping[str, Diagnosis] | None = None,
) -> Path:
    """Write a self-contained HTML report of a comparison, and return its path.

    ``settings`` are the options of the run by name. ``command``, if present, is the command that reproduces it.
    ``summary`` are findings in words, and ``notes`` are warnings of the run. ``class_names`` are names of the classes
    in order. ``diagnoses`` are results of ``diagnose`` by label. Raises ValueError if class_names do not match the
    classes.
    """
    names = check_class_names(comparison, class_names)
    judged = verdicts(comparison)
    sections = {
        "Summary": bullets(summary) if summary else Html(""),
        "Verdict": _verdicts(comparison, judged, names),
        "Comparison": table_html(comparison),
        "Figures": join(illustrations(comparison)),
        "Diagnosis without draws": join(
            illustrate("diagnosis", diagnosis.plot(), {"label": label}, diagnosis_html(diagnosis))
            for label, diagnosis in (diagnoses or {}).items()
        ),
        "Data, model and results": _run(comparison, names, notes),
        "Derivation": _derivation(comparison),
        "Reproducing this report": _reproduction(settings),
    }
    path, draws, test = Path(path), comparison.draws, comparison.test
    nonempty = {name: body for name, body in sections.items() if body}
    compared = " with ".join(filter(None, [" and ".join(comparison.others), comparison.reference]))
    rows = f"{len(draws.X)} training rows" + (f" and {len(test.X)} test rows" if test is not None else "")
    lead = f"This report compares {compared} on {rows}; the likelihood is {draws.likelihood!r}."
    with atomic_write(path) as temporary:
        temporary.write_text(_page(title, lead, nonempty), encoding="utf-8")
    return path


def _page(title: str, lead: str, sections: Mapping[str, Html]) -> str:
    style = (files("pgmodels.report") / "report.css").read_text(encoding="utf-8")
    index = [element("a", name, href=f"#s{i}") for i, name in enumerate(sections)]
    bodies = [
        element("section", element("h2", name), body, id=f"s{i}") for i, (name, body) in enumerate(sections.items())
    ]
    return f"""<!DOCTYPE html>
<html lang="en"><head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html(title)}</title>
<style>{style}</style>
</head><body><main>
<h1>{html(title)}</h1>
<p>{html(lead)}</p>
<nav aria-label="Contents">{bullets(index)}</nav>
{join(bodies)}
</main></body></html>
"""


def _verdicts(comparison: Comparison, by_label: Mapping[str, Verdict], names: Sequence[str] | None) -> Html:
    elements = []
    for label, verdict in by_label.items():
        heading = element("h3", label, " ", element("span", RATINGS[verdict.level], class_="pgm-level"))
        worst = worst_latents(comparison, label, verdict, names)
        kind = f"pgm-verdict pgm-{verdict.level}"
        elements.append(element("div", heading, bullets(verdict.sentences), worst, class_=kind))
    return join(elements)


def _run(comparison: Comparison, names: Sequence[str] | None, notes: Sequence[str]) -> Html:
    elements = [element("h3", "Data"), observation_table(comparison), class_table(comparison, names)]
    elements += [element("h3", "Model"), model_html(comparison.draws.model)]
    fits = {label: result.fit for label, result in comparison.results.items() if result.has_elbo}
    label = next((label for label, fit in fits.items() if fit is not None), None)
    if label is not None:
        elements += [element("h3", f"Hyperparameters learned by {label}"), _learned(fits[label])]
    elements.append(element("h3", "Results"))
    for label, result in comparison.results.items():
        elements.append(table([], result_facts(result)[1:], caption=element("b", label)))
    if notes:
        elements += [element("h3", "Warnings"), bullets(notes)]
    return join(elements)


def _learned(fit: FitReport) -> Html:
    rows = [(name, listed(value)) for name, value in fit.values.items()]
    starts = ", ".join(f"{name} ({elbo:.4f})" for name, elbo in fit.start_elbos.items())
    state = "converged" if fit.converged else "did not converge"
    text = (
        f"The search {state} after {fit.num_steps} steps and {fit.num_evaluations} evaluations: {fit.message}. "
        f"It started from {fit.start}; starts and the ELBO at each: {starts}."
    )
    return join([table(["hyperparameter", "value"], rows), element("p", text)])


def _derivation(comparison: Comparison) -> Html:
    model = comparison.draws.model
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
    def text_of(value: object) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {entry}" for name, entry in value.items())
        return value if isinstance(value, str) else json.dumps(value, default=str)

    rows = table([], [(name, text_of(value)) for name, value in settings.items() if name != "command"])
    if "command" not in settings:
        return rows
    text = "This command reproduces the figures except times, given the same data and versions:"
    return join([element("p", text), element("pre", element("code", settings["command"])), rows])
