"""Figures of results, comparisons and derivations. Every function returns a matplotlib Figure."""
