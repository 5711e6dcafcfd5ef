"""Bridges to ArviZ and NumPyro."""
