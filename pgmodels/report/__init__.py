"""Display of results as text, tables and HTML, and reports."""
