"""Diagnostics and comparisons of results: errors of approximations and their size."""
