"""Priors that are Markov processes of one input, at a cost that is linear in the number of rows."""
