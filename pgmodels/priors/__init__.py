"""Priors of latent Gaussian processes at the data, and their Gaussian posteriors given sites (h, w)."""
