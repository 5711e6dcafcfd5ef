"""Learning hyperparameters by maximising a bound on the evidence."""
