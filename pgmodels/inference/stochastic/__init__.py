"""Stochastic variational inference, by minibatches of rows."""
