"""Parameters: values, constraints and priors; their names; the unconstrained vector."""
