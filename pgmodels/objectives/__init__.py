"""Local objectives: what variational inference maximises of each datum."""
