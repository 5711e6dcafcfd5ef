"""Local objectives: the likelihood terms of the variational bound."""
