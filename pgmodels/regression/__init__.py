"""Regression by a formula of terms: its grammar, its terms as GPs, and results by term."""

from pgmodels.regression import saving as _saving  # noqa: F401  registers the saving of results
