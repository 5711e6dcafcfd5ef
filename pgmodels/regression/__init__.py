"""Regression by a formula of terms: its grammar, its terms as GPs, and results by term."""

from pgmodels.regression import formula as _saving  # noqa: F401  registers the saving of results
