"""Parameters: values, constraints, priors, names, and the unconstrained vector."""
