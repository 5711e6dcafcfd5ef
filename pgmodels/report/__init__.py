"""What is shown of results: HTML, tables, words."""

from pgmodels.report import diagnosis_text, on_demand, summaries, table

# Importing them registers what they write with ``pgmodels.runtime.hooks``.
__all__ = ["diagnosis_text", "on_demand", "summaries", "table"]
