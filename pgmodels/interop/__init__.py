"""Export to ArviZ and NumPyro."""
