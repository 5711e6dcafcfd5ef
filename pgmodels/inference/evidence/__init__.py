"""The log evidence, and integration over hyperparameters."""
