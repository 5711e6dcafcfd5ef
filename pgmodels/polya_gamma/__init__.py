"""The Pólya-Gamma distribution PG(b, c) (Polson, Scott and Windle 2013): moments, density and exact draws."""

from pgmodels.polya_gamma.backends import BACKENDS, draw
from pgmodels.polya_gamma.density import log_density
from pgmodels.polya_gamma.moments import mean, variance
from pgmodels.polya_gamma.numpy_sampler import sample

__all__ = ["BACKENDS", "draw", "log_density", "mean", "sample", "variance"]
