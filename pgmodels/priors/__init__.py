"""Latent Gaussian processes at the data: their prior, and the Gaussian posterior that sites (h, w) make of it."""
