"""Corrections of a variational posterior."""
