"""Priors with the eigenfunctions of the Laplacian on a box as basis functions (Hilbert space GPs)."""
