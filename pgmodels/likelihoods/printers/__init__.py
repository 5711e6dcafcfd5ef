"""Printers of formulas: plain text, MathML and LaTeX."""
