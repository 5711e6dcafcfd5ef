"""The table of a comparison as text and HTML."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pgmodels.diagnostics.compare import METRICS, Comparison
from pgmodels.report.html import Html, bullets, element, join, table

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
    rows = [[_head(row.words), *(_cell(text, best) for text, best in zip(row.texts, row.best, strict=True))]
            for row in metric_rows(comparison)]  # fmt: skip
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
    """A warning where the reference has not converged."""
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


def _head(words: str) -> Html:
    return element("th", words, scope="row", style="text-align:left;min-width:9em")


def _cell(text: str, best: bool) -> Html:
    # The star marks the best value for readers without colours or bold type.
    inside = element("b", f"{text} *") if best else text
    return element("td", inside, class_="best" if best else None, style="text-align:right;white-space:nowrap")


def _blocks(columns: Sequence[list], first: int) -> list[list[list]]:
    """Columns in groups that fit next to the first column, at least one in each."""
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
    """The lines of a note, at most 100 columns wide, indented by two."""
    marked = note.startswith(("* ", "! "))
    return textwrap.wrap(
        note, WIDTH, break_on_hyphens=False, initial_indent="" if marked else "  ", subsequent_indent="  "
    )
