"""Gaussian process models from the formula of their likelihood."""
