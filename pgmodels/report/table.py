"""The table of a comparison, as text and as HTML."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from pgmodels.report.html import Html, bullets, element, join, table

WIDTH = 100
# Column, its words in the printed table, and which way is better.
METRICS = {
    "mean_error": ("mean |error| of latent means", min),
    "mean_error_max": ("largest |error| of latent means", min),
    "variance_error": ("mean |error| of latent variances", min),
    "variance_error_max": ("largest |error| of latent variances", min),
    "wasserstein": ("mean Wasserstein-1 of marginals", min),
    "misclassification": ("test misclassification", min),
    "rmse": ("test RMSE of predictive mean", min),
    "negative_log_density": ("test negative log density [nats]", min),
    "calibration_error": ("test calibration error (15 bins)", min),
    "elbo": ("ELBO [nats]", max),
    "pareto_k": ("Pareto k-hat", min),
    "ess_bulk": ("smallest bulk ESS", max),
    "ess_tail": ("smallest tail ESS", max),
    "rhat": ("largest R-hat", min),
    "seconds": ("seconds", min),
}
# Longer labels are folded over several lines.
_LABEL = 20


class Row(NamedTuple):
    """A metric in words, the figure of each result, and which of them are best; none is where all print alike."""

    words: str
    texts: tuple[str, ...]
    best: tuple[bool, ...]


def metric_rows(frame: pd.DataFrame) -> list[Row]:
    """The rows of the printed table of a comparison's data frame: metrics that at least one result has."""
    rows = []
    for column in frame.columns:
        words, better = METRICS[column]
        values = frame[column]
        if values.isna().all():
            continue
        texts = tuple(number_text(value) for value in values)
        # What prints alike is alike; where all is alike, or alone, nothing is best.
        best = number_text(better(values.dropna())) if len(set(texts) - {"-"}) > 1 else None
        rows.append(Row(words, texts, tuple(text == best for text in texts)))
    return rows


def as_text(frame: pd.DataFrame, reference: str, notes: Sequence[str]) -> str:
    """The table in 100 columns, results that do not fit beside each other in blocks, and notes beneath."""
    rows = metric_rows(frame)
    first = max(len(row.words) for row in rows)
    columns = []
    for index, label in enumerate(frame.index):
        head = textwrap.wrap(f"{label} (ref.)" if label == reference else str(label), _LABEL) or [""]
        columns.append([head, [row.texts[index] + ("*" if row.best[index] else " ") for row in rows]])
    lines = []
    for block in _blocks(columns, first):
        height = max(len(head) for head, _ in block)
        heads = [[""] * (height - len(head)) + head for head, _ in block]
        widths = [max(map(len, head + cells)) for head, (_, cells) in zip(heads, block, strict=True)]
        body = [["", *line] for line in zip(*heads, strict=True)]
        body += [
            [row.words, *line] for row, line in zip(rows, zip(*(cells for _, cells in block), strict=True), strict=True)
        ]
        for name, *line in body:
            cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("  ".join([name.ljust(first), *cells]).rstrip())
        lines.append("")
    return "\n".join([*lines[:-1], *(part for note in notes for part in _note(note))])


def as_html(frame: pd.DataFrame, reference: str, notes: Sequence[str], caption: str | None = None) -> Html:
    """The table with the best of each row marked, and notes beneath."""
    heads = (f"{label} (reference)" if label == reference else label for label in frame.index)
    header = ["", *(element("th", head, scope="col", style="text-align:right") for head in heads)]
    rows = [[_head(row.words), *(_cell(text, best) for text, best in zip(row.texts, row.best, strict=True))]
            for row in metric_rows(frame)]  # fmt: skip
    return join([table(header, rows, caption), bullets(notes)])


def number_text(value: float) -> str:
    """A figure with four significant digits, a dash where there is none."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.4g}"


def _head(words: str) -> Html:
    return element("th", words, scope="row", style="text-align:left;min-width:9em")


def _cell(text: str, best: bool) -> Html:
    # The star tells what is best where neither colour nor weight is seen.
    inside = element("b", f"{text} *") if best else text
    return element("td", inside, class_="best" if best else None, style="text-align:right;white-space:nowrap")


def _blocks(columns: Sequence[list], first: int) -> list[list[list]]:
    """Columns in groups that fit beside the first column; a single column always does."""
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
    """A note of at most 100 columns, which hangs by two."""
    marked = note.startswith(("* ", "! "))
    return textwrap.wrap(
        note, WIDTH, break_on_hyphens=False, initial_indent="" if marked else "  ", subsequent_indent="  "
    )
