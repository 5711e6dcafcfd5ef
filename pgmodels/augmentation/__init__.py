"""Augmentations, derived from a likelihood's formula, that make it conditionally Gaussian."""
