"""Likelihoods at few rows, with log densities that are written apart from the package's own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import gammaln, log_expit, log_ndtr, log_softmax, logsumexp

import pgmodels as pgm

X = np.array([[0.0], [0.7], [1.8]])
MEAN = 0.3
VARIANCES = (1.0, 9.0, 25.0)
CUTS = (-1.0, 1.0)


@pgm.likelihood(support=pgm.Counts())
def log_poisson(y: Any, f: Any) -> Any:
    """Counts with the rate exp(f)."""
    return pgm.exp(y * f - pgm.exp(f))


@pgm.likelihood(support=pgm.Censored(), num_latents=1)
def exponential(y: Any, f: Any) -> Any:
    """Times with the constant hazard exp(-f), censored where the second column is 0."""
    return pgm.exp(-f) ** y[1] * pgm.exp(-y[0] * pgm.exp(-f))


def _between(distribution: Callable[[Any], Any], y: Any, f: Any) -> Any:
    low, high = distribution(CUTS[0] - f), distribution(CUTS[1] - f)
    return low * (y == 0) + (high - low) * (y == 1) + (1 - high) * (y == 2)


@pgm.likelihood(support=pgm.Classes(3))
def ordered_logit(y: Any, f: Any) -> Any:
    """Three ordered classes, by a logistic error."""
    return _between(pgm.sigmoid, y, f)


@pgm.likelihood(support=pgm.Classes(3))
def ordered_probit(y: Any, f: Any) -> Any:
    """Three ordered classes, by a normal error."""
    return _between(pgm.normal_cdf, y, f)


class Case(NamedTuple):
    """A likelihood of ``num_latents`` latents a row, and observations y.

    ``log_density`` maps one row's y and latents (num_latents, ...) to log p(y | f) (...).
    """

    name: str
    likelihood: pgm.Likelihood
    log_density: Callable[[Any, np.ndarray], np.ndarray]
    y: Sequence[Any]
    num_latents: int = 1

    def model(self, variance: float) -> pgm.Model:
        """The model with an RBF kernel of unit lengthscale."""
        kernel = pgm.RBF(variance=variance, lengthscale=1.0)
        return pgm.Model(self.likelihood, pgm.GP(kernel, mean=MEAN, size=self.num_latents)).fixed()

    @property
    def inputs(self) -> np.ndarray:
        """The inputs of the rows."""
        return X[: len(self.y)]

    def covariance(self, variance: float) -> np.ndarray:
        """The prior covariance of one latent at the inputs."""
        return variance * np.exp(-0.5 * (self.inputs - self.inputs.T) ** 2)

    @property
    def observations(self) -> np.ndarray:
        """y as an array."""
        return np.array(self.y, dtype=float)


def _ordered(log_tail: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, np.ndarray], np.ndarray]:
    """The log density of ordered classes from the log distribution function of a symmetric error."""

    def log_density(y: Any, f: np.ndarray) -> np.ndarray:
        if y == 0:
            return log_tail(CUTS[0] - f[0])
        if y == 2:
            return log_tail(f[0] - CUTS[1])
        # log(1 - P(y = 0) - P(y = 2))
        return np.log1p(-np.exp(log_tail(CUTS[0] - f[0])) - np.exp(log_tail(f[0] - CUTS[1])) + 1e-300)

    return log_density


def _multinomial_probit(y: Any, f: np.ndarray) -> np.ndarray:
    total, margins = np.full(f.shape[1:], -np.inf), [f[int(y)] - f[k] for k in range(len(f)) if k != y]
    for node, weight in zip(*np.polynomial.hermite_e.hermegauss(24), strict=True):
        total = np.logaddexp(total, np.log(weight) + sum(log_ndtr(margin + node) for margin in margins))
    return total - 0.5 * np.log(2.0 * np.pi)


def _stick_breaking(y: Any, f: np.ndarray) -> np.ndarray:
    return sum(log_expit(-f[k]) for k in range(int(y))) + (log_expit(f[int(y)]) if y < len(f) else 0.0)


def _robust_max(y: Any, f: np.ndarray, error: float) -> np.ndarray:
    return np.where(f.argmax(axis=0) == y, np.log1p(-error), np.log(error / (len(f) - 1)))


CASES = [
    Case("Bernoulli", pgm.Bernoulli(), lambda y, f: log_expit((2 * y - 1) * f[0]), [1, 1, 0]),
    Case("Bernoulli", pgm.Bernoulli(), lambda y, f: log_expit((2 * y - 1) * f[0]), [1, 1, 1]),
    Case("Probit", pgm.Probit(), lambda y, f: log_ndtr((2 * y - 1) * f[0]), [1, 1, 1]),
    Case(
        "Binomial",
        pgm.Binomial(),
        lambda y, f: y[0] * log_expit(f[0]) + (y[1] - y[0]) * log_expit(-f[0]) + _log_binomial(y[1], y[0]),
        [[0, 4], [0, 4], [3, 4]],
    ),
    Case("log Poisson", log_poisson(), lambda y, f: y * f[0] - np.exp(f[0]), [0, 0, 0]),
    Case("log Poisson", log_poisson(), lambda y, f: y * f[0] - np.exp(f[0]), [0, 3, 0]),
    Case(
        "NegativeBinomial(1)", pgm.NegativeBinomial(1.0), lambda y, f: y * log_expit(f[0]) + log_expit(-f[0]), [0, 0, 4]
    ),
    Case(
        "SigmoidPoisson(6)",
        pgm.SigmoidPoisson(6.0),
        lambda y, f: y * (np.log(6.0) + log_expit(f[0])) - 6.0 * np.exp(log_expit(f[0])) - gammaln(y + 1.0),
        [0, 0, 5],
    ),
    Case("StudentT(4, 0.5)", pgm.StudentT(4.0, 0.5), lambda y, f: stats.t.logpdf(y - f[0], 4.0, 0.0, 0.5), [0, 3, 0.2]),
    Case("Laplace(0.5)", pgm.Laplace(0.5), lambda y, f: -abs(y - f[0]) / 0.5, [0, 3, 0.2]),
    Case("Gaussian(0.5)", pgm.Gaussian(0.5), lambda y, f: stats.norm.logpdf(y, f[0], 0.5), [0, 3, 0.2]),
    Case("ordered logit", ordered_logit(), _ordered(log_expit), [0, 0, 1]),
    Case("ordered probit", ordered_probit(), _ordered(log_ndtr), [2, 2, 2]),
    Case(
        "censored times",
        exponential(),
        lambda y, f: -y[1] * f[0] - y[0] * np.exp(-f[0]),
        [[0.3, 1], [5.0, 0], [2.0, 0]],
    ),
    Case("Softmax(3)", pgm.Softmax(3), lambda y, f: log_softmax(f, axis=0)[int(y)], [1], 3),
    Case(
        "LogisticSoftmax(3)",
        pgm.LogisticSoftmax(3),
        lambda y, f: log_expit(f[int(y)]) - logsumexp(log_expit(f), axis=0),
        [1],
        3,
    ),
    Case("StickBreaking(3)", pgm.StickBreaking(3), _stick_breaking, [1], 2),
    Case("MultinomialProbit(3)", pgm.MultinomialProbit(3), _multinomial_probit, [2], 3),
    Case("RobustMax(3, 0.05)", pgm.RobustMax(3, 0.05), lambda y, f: _robust_max(y, f, 0.05), [0], 3),
    Case(
        "HeteroscedasticGaussian(4)",
        pgm.HeteroscedasticGaussian(4.0),
        lambda y, f: stats.norm.logpdf(y, f[0], 0.5 * np.exp(-0.5 * log_expit(f[1]))),
        [1.5],
        2,
    ),
]
# Cases with one latent a row whose log densities have derivatives everywhere, and whose posterior is not Gaussian.
SMOOTH = [case for case in CASES if case.num_latents == 1 and not case.name.startswith(("Laplace", "Gaussian"))]


def _log_binomial(n: float, k: float) -> float:
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
