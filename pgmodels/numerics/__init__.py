"""Numerical methods that know nothing of Gaussian processes."""
