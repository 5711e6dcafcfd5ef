"""Regression by a formula of terms: its grammar, its terms as GPs, and results by term."""
