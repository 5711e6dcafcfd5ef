"""Figures of results, comparisons and derivations; every function returns a matplotlib Figure."""
