"""Mixtures: of Gaussian marginals, and of predictive distributions."""

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.data.arrays import in_units_of
from pgmodels.data.options import check_whole_number
from pgmodels.results.grid_density import check_levels
from pgmodels.results.predictive import Predictive
from pgmodels.runtime.seeds import Seed, as_generator

_HALVINGS = 60


def mixed_moments(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (...) of mixtures of components with these means and variances, (components, ...)."""
    mean = np.tensordot(weights, means, axes=1)
    return mean, np.tensordot(weights, variances + (means - mean) ** 2, axes=1)


def mixed_quantiles(levels: ArrayLike, weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Quantiles (levels, ...) of mixtures of normal distributions, (components, ...), by bisection."""
    probabilities, scales = check_levels(levels), np.sqrt(variances)
    reach = 10.0 * scales
    shape = (len(probabilities), *means.shape[1:])
    low, high = (np.broadcast_to(end, shape).copy() for end in ((means - reach).min(0), (means + reach).max(0)))
    target = probabilities.reshape(-1, *[1] * (means.ndim - 1))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        scores = in_units_of(scales[:, None], middle[None] - means[:, None])
        below = np.tensordot(weights, scipy.special.ndtr(scores), axes=1) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


class MixedPredictive(Predictive):
    """A mixture of predictive distributions, each with its parameters; ``weights`` sum to 1."""

    def __init__(self, weights: np.ndarray, components: Sequence[Predictive]):
        self.weights, self.components = weights, tuple(components)
        first = components[0]
        self.likelihood, self.support, self.covariates = first.likelihood, first.support, first.covariates
        self.labels = first.labels

    @property
    def mean(self) -> np.ndarray:
        """See Predictive."""
        return self._mix([part.mean for part in self.components])

    @property
    def variance(self) -> np.ndarray:
        """See Predictive."""
        means, variances = (
            np.stack([getattr(part, name) for part in self.components]) for name in ("mean", "variance")
        )
        return mixed_moments(self.weights, means, variances)[1]

    @property
    def probabilities(self) -> np.ndarray:
        """See Predictive."""
        return self._mix([part.probabilities for part in self.components])

    def log_density_at(self, y_new: np.ndarray) -> np.ndarray:
        """See Predictive."""
        return scipy.special.logsumexp(
            np.stack([part.log_density_at(y_new) for part in self.components]), axis=0, b=self.weights[:, None]
        )

    def survival(self, times: ArrayLike) -> np.ndarray:
        """See Predictive."""
        return self._mix([part.survival(times) for part in self.components])

    def probabilities_of(self, values: ArrayLike) -> np.ndarray:
        """See Predictive."""
        return self._mix([part.probabilities_of(values) for part in self.components])

    def draw(self, num_draws: int = 1000, seed: Seed = 0) -> np.ndarray:
        """See Predictive: draws of each component in proportion to its weight, in a random order."""
        check_whole_number(num_draws, "num_draws", 1)
        rng = as_generator(seed)
        counts = rng.multinomial(num_draws, self.weights)
        seeds = rng.integers(1 << 31, size=len(counts))
        chosen = [
            (part, int(count), int(component_seed))
            for part, count, component_seed in zip(self.components, counts, seeds, strict=True)
        ]
        drawn = np.concatenate([part.draw(count, component_seed) for part, count, component_seed in chosen if count])
        return rng.permutation(drawn)

    def _mix(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.tensordot(self.weights, np.stack(values), axes=1)
