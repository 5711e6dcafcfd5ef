"""Checks and comparisons of results: what an approximation gets wrong, and by how much."""
