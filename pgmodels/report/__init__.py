"""Display of results as text, tables and HTML, and reports."""

from pgmodels.report import diagnosis_text, on_demand, summaries, table

# Importing these modules registers their functions with ``pgmodels.runtime.hooks``.
__all__ = ["diagnosis_text", "on_demand", "summaries", "table"]
