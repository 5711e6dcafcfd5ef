"""The language of likelihoods: formulas, supports, the named likelihoods."""
