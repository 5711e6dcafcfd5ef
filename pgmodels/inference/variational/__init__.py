"""Variational inference with all rows: CAVI and the variational Gaussian."""
