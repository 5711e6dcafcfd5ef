"""Likelihoods of one's own that several tables have."""

import pgmodels as pgm


@pgm.likelihood(support=pgm.Counts())
def log_poisson(y, f):
    """Counts with a log link: no augmentation."""
    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)


@pgm.likelihood(support=pgm.Classes(3))
def softmax(y, f):
    """Three classes with exponentials: no augmentation."""
    return pgm.exp(f[y]) / pgm.sum(pgm.exp(f))
