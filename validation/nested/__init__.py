"""Nested marginals against quadrature, long Gibbs runs, Laplace approximations and other choices of q."""
