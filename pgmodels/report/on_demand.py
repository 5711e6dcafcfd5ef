"""Figures and reports of comparisons and diagnoses, which import matplotlib only when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgmodels.diagnostics.compare import Comparison
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.runtime import hooks
from pgmodels.runtime.provenance import environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@hooks.figure.register(Comparison)
def comparison_figure(comparison: Comparison) -> Figure:
    """Each result's marginals against the reference's."""
    from pgmodels.plots.marginals import plot_marginals

    return plot_marginals(comparison)


@hooks.figure.register(Diagnosis)
def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Calibration on simulated data, gaps, and q's moments against importance sampling."""
    from pgmodels.plots.diagnosis import plot_diagnosis

    return plot_diagnosis(diagnosis)


@hooks.report.register(Comparison)
def comparison_report(
    comparison: Comparison,
    path: str | PathLike[str],
    *,
    title: str,
    settings: Mapping[str, Any],
    class_names: Sequence[str] | None,
) -> Path:
    """See ``Comparison.report``."""
    from pgmodels.report.report import write_report

    recorded = {**settings, **environment()}
    return write_report(path, comparison, title=title, settings=recorded, class_names=class_names)
