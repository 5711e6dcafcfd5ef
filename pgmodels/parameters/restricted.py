"""Priors restricted to a constraint."""

from typing import Any

import jax.numpy as jnp
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint


class Within(Distribution):
    """A distribution restricted to a constraint; its density is unnormalised."""

    pytree_data_fields = ("base", "constraint")

    def __init__(self, base: Distribution, constraint: Constraint):
        self.base, self.constraint = base, constraint
        super().__init__(event_shape=base.shape())

    @property
    def support(self) -> Constraint:
        """The constraint."""
        return self.constraint

    def log_prob(self, value: Any) -> Any:
        """The log density of the base."""
        return jnp.sum(self.base.log_prob(value), axis=tuple(range(-len(self.base.batch_shape), 0)))
