"""The Pólya-Gamma distribution PG(b, c) (Polson, Scott and Windle 2013): moments, density and exact draws."""

from pgmodels.polya_gamma.laws import log_density, mean, variance
from pgmodels.polya_gamma.samplers import BACKENDS, draw, sample

__all__ = ["BACKENDS", "draw", "log_density", "mean", "sample", "variance"]
