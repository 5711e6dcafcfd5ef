"""Formulas as text and as MathML."""
