"""Markov chain Monte Carlo: the Gibbs sampler and NUTS."""
