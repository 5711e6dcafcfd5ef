"""Printers of formulas: plain text and LaTeX."""
