"""The likelihoods that every engine is tested on.

``log_density`` and ``bound`` are written a second time here, by other means than the package's, so that they can
referee it: densities with numpyro's and JAX's distributions, bounds as they are printed in the papers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import stats
from jax.scipy.special import expit, gammaln

from pgmodels.kernels.stationary import RBF
from pgmodels.language.functions import gamma, normal_cdf, normal_pdf, sigmoid, sqrt, sum_
from pgmodels.language.likelihood import Likelihood, likelihood
from pgmodels.language.likelihoods import (
    Bernoulli,
    Binomial,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    LogisticSoftmax,
    NegativeBinomial,
    Probit,
    SigmoidPoisson,
    StickBreaking,
    StudentT,
)
from pgmodels.language.supports import Binary, Classes, Counts, Given, Real
from pgmodels.model import GP, Model
from pgmodels.parameters import Parameter


class Case(NamedTuple):
    """A likelihood and, independently of it, its log density, its local bound and a generator of observations.

    ``log_density(y, f)`` and ``bound(m, v, y)`` map (n, ...) and (n, latents) to (n,); ``generate(rng, f)`` gives y.
    Where factors combine latents, ``design(y)`` is Φ (n, predictors, latents), and the bound takes the predictors.
    ``limits`` hold the latent ``limited`` of the truth to where Gibbs meets no counts in the thousands: as data they
    make it costly, as auxiliaries slow to mix.
    """

    name: str
    likelihood: Callable[[], Likelihood]
    num_latents: int
    log_density: Callable[[Any, Any], Any]
    bound: Callable[[Any, Any, Any], Any]
    generate: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    limits: tuple[float, float] = (-np.inf, np.inf)
    limited: int = -1
    design: Callable[[Any], Any] | None = None

    def model(self, variance: float = 2.0, lengthscale: float = 1.2, mean: float = 0.3) -> Model:
        """The likelihood over GPs that share an RBF kernel."""
        return Model(self.likelihood(), GP(RBF(variance, lengthscale), mean=mean, size=self.num_latents))

    def data(self, n: int, seed: int, scale: float = 1.5, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
        """X (n, 2) and y from smooth latents between shift - scale and shift + scale, every class seen."""
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2.0, 2.0, (n, 2))
        directions = rng.normal(size=(2, self.num_latents))
        f = shift + scale * np.sin(1.3 * X @ directions + rng.uniform(0.0, 6.0, self.num_latents))
        f[:, self.limited] = np.clip(f[:, self.limited], *self.limits)
        y = self.generate(rng, f)
        for label in range(getattr(self.likelihood().declared_support, "num_classes", 0) or self.num_classes):
            if not (y == label).any():
                y[label] = label
        return X, y

    def matrix(self, y: Any) -> Any:
        """Φ (n, predictors, latents): the identity where no factor combines latents."""
        identity = np.broadcast_to(np.eye(self.num_latents), (len(y), self.num_latents, self.num_latents))
        return identity if self.design is None else self.design(y)

    @property
    def num_classes(self) -> int:
        """The number of classes of a formula that reads f[y]."""
        return self.num_latents if self.name == "own_softmax" else 0


@likelihood
def own_softmax(y, f):
    return sigmoid(f[y]) / sum_(sigmoid(f))


@likelihood
def affine(y, f):
    return sigmoid(2 * f - 1) ** y * sigmoid(1 - 2 * f) ** (1 - y)


@likelihood
def offset(y, f):
    return sigmoid(f + y[1]) ** y[0] * sigmoid(-f - y[1]) ** (1 - y[0])


FIRST, GAPS = -1.0, (0.8, 1.3)


def between(distribution, y, f, first, gaps):
    """P(y) for the category that f + noise falls into, by the cutpoints: the first, and positive gaps to the others."""
    cuts = [first]
    for gap in gaps:
        cuts.append(cuts[-1] + gap)
    below = [0, *(distribution(cut - f) for cut in cuts), 1]
    return sum_((below[k + 1] - below[k]) * (y == k) for k in range(len(cuts) + 1))


@likelihood(support=Classes(4))
def ordered_logit(
    y, f, first=Parameter(FIRST, positive=False), gap=Parameter(GAPS[0], positive=True), other=Parameter(GAPS[1], True)
):
    return between(sigmoid, y, f, first, (gap, other))


@likelihood(support=Classes(4))
def ordered_probit(
    y, f, first=Parameter(FIRST, positive=False), gap=Parameter(GAPS[0], positive=True), other=Parameter(GAPS[1], True)
):
    return between(normal_cdf, y, f, first, (gap, other))


@likelihood(support=Counts())
def zero_inflated(y, f, dispersion=Parameter(2.5, positive=True)):
    ways = gamma(y + dispersion) / (gamma(dispersion) * gamma(y + 1))
    counts = ways * sigmoid(f[0]) ** y * sigmoid(-f[0]) ** dispersion
    return sigmoid(-f[1]) * (y == 0) + sigmoid(f[1]) * counts


@likelihood(support=Binary())
def label_noise(y, f, flipped=Parameter(0.1, positive=True)):
    return flipped + (1 - 2 * flipped) * sigmoid(f) ** y * sigmoid(-f) ** (1 - y)


@likelihood(support=Real())
def additive(y, f, precision=Parameter(4.0, positive=True)):
    return normal_pdf(y, f[0] + f[2], 1 / sqrt(precision * sigmoid(f[1])))


@likelihood(support=Given(Binary(), Real()))
def varying(y, f, slope=Parameter(0.7, positive=True)):
    z = f[0] + slope * y[1] * f[1] - 0.3
    return sigmoid(z) ** y[0] * sigmoid(-z) ** (1 - y[0])


@likelihood
def shared(y, f):
    z = f[0] + f[1]
    return sigmoid(z) ** y[0] * sigmoid(-z) ** (1 - y[0]) * normal_pdf(y[1], f[1], 0.8)


def sigma(f):
    return 1.0 / (1.0 + np.exp(-f))


def log_tilde(mean, second):
    """log σ̃+ as printed: E z / 2 - log 2cosh(√(E z²) / 2)."""
    c = jnp.sqrt(second)
    return mean / 2 - jnp.log(2 * jnp.cosh(c / 2))


def up(m, v):
    return log_tilde(m, m**2 + v)


def down(m, v):
    return log_tilde(-m, m**2 + v)


def rbf(X, variance=2.0, lengthscale=1.2):
    """The RBF covariance, by itself."""
    return variance * np.exp(-0.5 * np.sum((X[:, None] - X[None]) ** 2, axis=-1) / lengthscale**2)


def labels(rng, probability):
    return (rng.random(probability.shape) < probability).astype(float)


def draw_class(rng, p):
    """An index drawn with the probabilities in each row of p."""
    cumulated = np.cumsum(p, axis=1) / p.sum(axis=1, keepdims=True)
    return np.minimum((rng.random(len(p))[:, None] > cumulated).sum(axis=1), p.shape[1] - 1).astype(float)


def pick(values, y):
    return jnp.take_along_axis(values, y.astype(int)[:, None], axis=1)[:, 0]


def softmax_log_density(y, f):
    return jnp.log(pick(expit(f), y) / expit(f).sum(axis=1))


def softmax_bound(m, v, y):
    return pick(up(m, v), y) - jnp.log(jnp.sum(1 - jnp.exp(down(m, v)), axis=1))


def softmax_generate(rng, f):
    return draw_class(rng, sigma(f))


def stick_probabilities(f):
    pieces, rest = [], 1.0
    for c in range(f.shape[1]):
        pieces.append(rest * expit(f[:, c]))
        rest = rest * expit(-f[:, c])
    return jnp.stack([*pieces, rest], axis=1)


def stick_bound(m, v, y):
    total = 0.0
    for c in range(m.shape[1]):
        total = total + (y == c) * up(m[:, c], v[:, c]) + (y > c) * down(m[:, c], v[:, c])
    return total


def binomial_bound(m, v, y):
    k, n = y[:, 0], y[:, 1]
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return ways + k * up(m[:, 0], v[:, 0]) + (n - k) * down(m[:, 0], v[:, 0])


def binomial_generate(rng, f):
    trials = rng.integers(1, 7, len(f))
    return np.column_stack([rng.binomial(trials, sigma(f[:, 0])), trials]).astype(float)


def negative_binomial_bound(m, v, y, r=2.5):
    ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
    return ways + y * up(m[:, 0], v[:, 0]) + r * down(m[:, 0], v[:, 0])


def sigmoid_poisson_bound(m, v, y, rate=6.0):
    return y * up(m[:, 0], v[:, 0]) - rate * (1 - jnp.exp(down(m[:, 0], v[:, 0]))) + y * jnp.log(rate) - gammaln(y + 1)


def expected_square(m, v, y):
    return (y - m[:, 0]) ** 2 + v[:, 0]


def student_bound(m, v, y, df=4.0, scale=0.5):
    at_mode = stats.t.logpdf(0.0, df, 0.0, scale)
    return at_mode - (df + 1) / 2 * jnp.log1p(expected_square(m, v, y) / (df * scale**2))


def heteroscedastic_bound(m, v, y, precision=4.0):
    constant = 0.5 * jnp.log(precision / (2 * jnp.pi)) + 0.5 * up(m[:, 1], v[:, 1])
    return constant - 0.5 * precision * expected_square(m, v, y) * (1 - jnp.exp(down(m[:, 1], v[:, 1])))


def offset_generate(rng, f):
    offsets = rng.normal(size=len(f))
    return np.column_stack([labels(rng, sigma(f[:, 0] + offsets)), offsets])


ENDS = np.concatenate([[-np.inf], FIRST + np.cumsum([0.0, *GAPS]), [np.inf]])


def ends(y):
    """The limits between which category y lies."""
    return jnp.asarray(ENDS)[jnp.asarray(y).astype(int)], jnp.asarray(ENDS)[jnp.asarray(y).astype(int) + 1]


def ordered_logit_bound(m, v, y):
    low, high = ends(y)
    below = jnp.where(jnp.isfinite(high), up(jnp.where(jnp.isfinite(high), high, 0.0) - m[:, 0], v[:, 0]), 0.0)
    above = jnp.where(jnp.isfinite(low), down(jnp.where(jnp.isfinite(low), low, 0.0) - m[:, 0], v[:, 0]), 0.0)
    return below + above + jnp.log(1 - jnp.exp(low - high))


def interval_log_mass(y, f):
    """log P of category y of an ordered probit, by the tail that the interval is in."""
    low, high = (end - f for end in ends(y))
    right = low + high > 0
    return jnp.log(stats.norm.cdf(jnp.where(right, -low, high)) - stats.norm.cdf(jnp.where(right, -high, low)))


def ordered_generate(noise):
    return lambda rng, f: (f[:, 0] + noise(rng, len(f)) > ENDS[1:-1, None]).sum(axis=0).astype(float)


def zero_inflated_bound(m, v, y):
    counts = up(m[:, 1], v[:, 1]) + negative_binomial_bound(m, v, y)
    return jnp.logaddexp(counts, jnp.where(y == 0, down(m[:, 1], v[:, 1]), -jnp.inf))


def zero_inflated_log_density(y, f):
    log_p = stats.nbinom.logpmf(y, 2.5, expit(-f[:, 0]))
    return jnp.log(expit(-f[:, 1]) * (y == 0) + expit(f[:, 1]) * jnp.exp(log_p))


def varying_generate(rng, f, slope=0.7):
    column = rng.normal(0.5, 1.0, len(f))
    return np.column_stack([labels(rng, sigma(f[:, 0] + slope * column * f[:, 1] - 0.3)), column])


def varying_log_density(y, f):
    return dist.Bernoulli(logits=f[:, 0] + 0.7 * y[:, 1] * f[:, 1] - 0.3).log_prob(y[:, 0])


def shared_log_density(y, f):
    label = dist.Bernoulli(logits=f[:, 0] + f[:, 1]).log_prob(y[:, 0])
    return label + stats.norm.logpdf(y[:, 1], f[:, 1], 0.8)


def shared_bound(m, v, y):
    measured = stats.norm.logpdf(y[:, 1], m[:, 1], 0.8) - v[:, 1] / (2 * 0.8**2)
    return y[:, 0] * up(m[:, 0], v[:, 0]) + (1 - y[:, 0]) * down(m[:, 0], v[:, 0]) + measured


def shared_generate(rng, f):
    return np.column_stack([labels(rng, sigma(f[:, 0] + f[:, 1])), f[:, 1] + 0.8 * rng.normal(size=len(f))])


CASES = {
    # One program each: compiled operation by operation they cost ten times more.
    case.name: case._replace(log_density=jax.jit(case.log_density), bound=jax.jit(case.bound))
    for case in (
        Case(
            "bernoulli",
            Bernoulli,
            1,
            lambda y, f: dist.Bernoulli(logits=f[:, 0]).log_prob(y),
            lambda m, v, y: y * up(m[:, 0], v[:, 0]) + (1 - y) * down(m[:, 0], v[:, 0]),
            lambda rng, f: labels(rng, sigma(f[:, 0])),
        ),
        Case(
            "probit",
            Probit,
            1,
            lambda y, f: stats.norm.logcdf((2 * y - 1) * f[:, 0]),
            lambda m, v, y: stats.norm.logcdf((2 * y - 1) * m[:, 0]) - v[:, 0] / 2,
            lambda rng, f: (f[:, 0] + rng.normal(size=len(f)) > 0).astype(float),
        ),
        Case(
            "binomial",
            Binomial,
            1,
            lambda y, f: dist.Binomial(y[:, 1].astype(int), logits=f[:, 0]).log_prob(y[:, 0]),
            binomial_bound,
            binomial_generate,
        ),
        Case(
            "negative_binomial",
            lambda: NegativeBinomial(2.5),
            1,
            lambda y, f: stats.nbinom.logpmf(y, 2.5, expit(-f[:, 0])),
            negative_binomial_bound,
            lambda rng, f: rng.negative_binomial(2.5, sigma(-f[:, 0])).astype(float),
            limits=(-np.inf, 2.5),
        ),
        Case(
            "sigmoid_poisson",
            lambda: SigmoidPoisson(6.0),
            1,
            lambda y, f: stats.poisson.logpmf(y, 6.0 * expit(f[:, 0])),
            sigmoid_poisson_bound,
            lambda rng, f: rng.poisson(6.0 * sigma(f[:, 0])).astype(float),
        ),
        Case(
            "logistic_softmax",
            lambda: LogisticSoftmax(3),
            3,
            softmax_log_density,
            softmax_bound,
            softmax_generate,
        ),
        Case(
            "stick_breaking",
            lambda: StickBreaking(4),
            3,
            lambda y, f: jnp.log(pick(stick_probabilities(f), y)),
            stick_bound,
            lambda rng, f: draw_class(rng, np.asarray(jax.jit(stick_probabilities)(f))),
        ),
        Case(
            "student_t",
            lambda: StudentT(4.0, 0.5),
            1,
            lambda y, f: stats.t.logpdf(y, 4.0, f[:, 0], 0.5),
            student_bound,
            lambda rng, f: f[:, 0] + 0.5 * rng.standard_t(4, len(f)),
        ),
        Case(
            "laplace",
            lambda: Laplace(0.5),
            1,
            lambda y, f: stats.laplace.logpdf(y, f[:, 0], 0.5),
            lambda m, v, y: -jnp.sqrt(expected_square(m, v, y)) / 0.5 - jnp.log(2 * 0.5),
            lambda rng, f: f[:, 0] + rng.laplace(scale=0.5, size=len(f)),
        ),
        Case(
            "gaussian",
            lambda: Gaussian(0.5),
            1,
            lambda y, f: stats.norm.logpdf(y, f[:, 0], 0.5),
            lambda m, v, y: stats.norm.logpdf(y, m[:, 0], 0.5) - v[:, 0] / (2 * 0.5**2),
            lambda rng, f: f[:, 0] + 0.5 * rng.normal(size=len(f)),
        ),
        Case(
            "heteroscedastic",
            lambda: HeteroscedasticGaussian(4.0),
            2,
            lambda y, f: stats.norm.logpdf(y, f[:, 0], 1 / jnp.sqrt(4.0 * expit(f[:, 1]))),
            heteroscedastic_bound,
            lambda rng, f: f[:, 0] + rng.normal(size=len(f)) / np.sqrt(4.0 * sigma(f[:, 1])),
            limits=(-2.0, np.inf),
        ),
        Case("own_softmax", own_softmax, 3, softmax_log_density, softmax_bound, softmax_generate),
        Case(
            "affine",
            affine,
            1,
            lambda y, f: dist.Bernoulli(logits=2 * f[:, 0] - 1).log_prob(y),
            lambda m, v, y: y * up(2 * m[:, 0] - 1, 4 * v[:, 0]) + (1 - y) * down(2 * m[:, 0] - 1, 4 * v[:, 0]),
            lambda rng, f: labels(rng, sigma(2 * f[:, 0] - 1)),
        ),
        Case(
            "offset",
            offset,
            1,
            lambda y, f: dist.Bernoulli(logits=f[:, 0] + y[:, 1]).log_prob(y[:, 0]),
            lambda m, v, y: y[:, 0] * up(m[:, 0] + y[:, 1], v[:, 0]) + (1 - y[:, 0]) * down(m[:, 0] + y[:, 1], v[:, 0]),
            offset_generate,
        ),
        Case(
            "ordered_logit",
            ordered_logit,
            1,
            lambda y, f: jnp.log(expit(ends(y)[1] - f[:, 0]) - expit(ends(y)[0] - f[:, 0])),
            ordered_logit_bound,
            ordered_generate(lambda rng, n: rng.logistic(size=n)),
        ),
        Case(
            "ordered_probit",
            ordered_probit,
            1,
            lambda y, f: interval_log_mass(y, f[:, 0]),
            lambda m, v, y: interval_log_mass(y, m[:, 0]) - v[:, 0] / 2,
            ordered_generate(lambda rng, n: rng.normal(size=n)),
        ),
        Case(
            "zero_inflated",
            zero_inflated,
            2,
            zero_inflated_log_density,
            zero_inflated_bound,
            lambda rng, f: rng.negative_binomial(2.5, sigma(-f[:, 0])) * labels(rng, sigma(f[:, 1])),
            limits=(-np.inf, 2.5),
        ),
        Case(
            "label_noise",
            label_noise,
            1,
            lambda y, f: jnp.log(0.1 + 0.8 * expit((2 * y - 1) * f[:, 0])),
            lambda m, v, y: jnp.log(0.1 + 0.8 * jnp.exp(up((2 * y - 1) * m[:, 0], v[:, 0]))),
            lambda rng, f: labels(rng, 0.1 + 0.8 * sigma(f[:, 0])),
        ),
        Case(
            "additive",
            additive,
            3,
            lambda y, f: stats.norm.logpdf(y, f[:, 0] + f[:, 2], 1 / jnp.sqrt(4.0 * expit(f[:, 1]))),
            # The predictors in the order in which the formula has them: that of the noise first.
            lambda m, v, y: heteroscedastic_bound(m[:, ::-1], v[:, ::-1], y),
            lambda rng, f: f[:, 0] + f[:, 2] + rng.normal(size=len(f)) / np.sqrt(4.0 * sigma(f[:, 1])),
            limits=(-2.0, np.inf),
            limited=1,
            # Those that are added are no neighbours.
            design=lambda y: np.broadcast_to(np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), (len(y), 2, 3)),
        ),
        Case(
            "varying",
            varying,
            2,
            varying_log_density,
            lambda m, v, y: y[:, 0] * up(m[:, 0] - 0.3, v[:, 0]) + (1 - y[:, 0]) * down(m[:, 0] - 0.3, v[:, 0]),
            varying_generate,
            design=lambda y: np.stack([np.ones(len(y)), 0.7 * y[:, 1]], axis=1)[:, None],
        ),
        Case(
            "shared",
            shared,
            2,
            shared_log_density,
            shared_bound,
            shared_generate,
            design=lambda y: np.broadcast_to(np.array([[1.0, 1.0], [0.0, 1.0]]), (len(y), 2, 2)),
        ),
    )
}
NAMES = tuple(CASES)
# No factor of these combines latents.
SEPARATE = tuple(name for name in NAMES if CASES[name].design is None)
