"""Printers of formulas: plain text and MathML."""
