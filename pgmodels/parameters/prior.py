"""Priors that NumPyro does not have: priors restricted to a constraint, and priors of standard deviations."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Cauchy, Distribution, Laplace, Logistic, Normal, StudentT
from numpyro.distributions.constraints import Constraint, greater_than, interval, positive, real
from scipy.special import stdtrit

from pgmodels.runtime.messages import write_distribution
from pgmodels.runtime.seeds import is_distribution

_SYMMETRIC = (Cauchy, Laplace, Logistic, Normal, StudentT)


class Within(Distribution):
    """A distribution restricted to a constraint, with an unnormalised density."""

    pytree_data_fields = ("base", "constraint")

    def __init__(self, base: Distribution, constraint: Constraint):
        self.base, self.constraint = base, constraint
        super().__init__(event_shape=base.shape())

    @property
    def support(self) -> Constraint:
        """The constraint of the values."""
        return self.constraint

    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log density of the base distribution."""
        return jnp.sum(self.base.log_prob(value), axis=tuple(range(-len(self.base.batch_shape), 0)))


class sd(Distribution):  # noqa: N801  as users type it
    """The prior of a variance, stated as the prior of its root, a standard deviation.

    Parameters
    ----------
    prior : numpyro.distributions.Distribution
        The prior of the standard deviation. It is on the positive numbers, such as ``HalfNormal(2.5)``,
        ``Exponential(1.0)`` or ``Uniform(0.0, 10.0)``. A Normal, StudentT, Cauchy, Laplace or Logistic about 0 stands
        for its positive half.

    Raises
    ------
    ValueError
        If the prior is of another kind.

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> import pgmodels as pgm
    >>> kernel = pgm.RBF(variance=pgm.sd(dist.HalfCauchy(2.0)), lengthscale=1.0)
    >>> kernel
    RBF(variance=sd(HalfCauchy(2.0)), lengthscale=1.0)

    The start value is the median:

    >>> float(kernel.variance.value.round(6))
    4.0
    """

    pytree_data_fields = ("prior",)

    def __init__(self, prior: Distribution):
        if not is_distribution(prior):
            raise ValueError(
                "sd: the prior of a standard deviation must be a NumPyro distribution such as "
                f"numpyro.distributions.HalfNormal(2.5); got {prior!r}."
            )
        self.prior = prior
        is_positive = bool(np.all(np.asarray(getattr(prior.support, "lower_bound", -1.0)) >= 0.0))
        is_half = isinstance(prior, _SYMMETRIC) and bool(np.all(np.asarray(prior.loc) == 0.0))
        if not is_half and (prior.event_shape or prior.support.is_discrete or not is_positive):
            remedy = (
                "give it the location 0, or truncate it, as in dist.TruncatedNormal(1.0, 2.0, low=0.0)"
                if isinstance(prior, _SYMMETRIC)
                else "use HalfNormal, HalfCauchy, Exponential, Gamma, LogNormal or Uniform, or a StudentT or Normal "
                "about 0"
            )
            raise ValueError(
                f"sd: a standard deviation is positive, and {type(prior).__name__} is on {prior.support}: {remedy}."
            )
        super().__init__(prior.batch_shape)

    @property
    def support(self) -> Constraint:
        """The squares of the values in the support of the standard deviation."""
        bounds = self.prior.support
        if bounds is real or not (hasattr(bounds, "upper_bound") or np.any(np.asarray(bounds.lower_bound) > 0.0)):
            return positive
        low = bounds.lower_bound**2
        return interval(low, bounds.upper_bound**2) if hasattr(bounds, "upper_bound") else greater_than(low)

    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log density of the variance."""
        deviation = jnp.sqrt(value)
        # Half of a symmetric density has twice the density.
        return self.prior.log_prob(deviation) - jnp.log(deviation if self.prior.support is real else 2.0 * deviation)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Return draws of the variance."""
        return jnp.square(self.prior.sample(key, sample_shape))

    def icdf(self, q: ArrayLike) -> Array:
        """Return quantiles of the variance."""
        prior = self.prior
        level = 0.5 + 0.5 * q if prior.support is real else q
        if isinstance(prior, StudentT):
            return jnp.square(prior.scale * stdtrit(prior.df, level))
        return jnp.square(prior.icdf(level))

    @property
    def mean(self) -> Array:
        """The mean of the variance."""
        return jnp.square(self.prior.mean) + self.prior.variance

    def __repr__(self) -> str:
        return write_distribution(self)
