"""Independent densities, bounds and generators of the registry's likelihoods.

Densities use NumPyro's and JAX's distributions, bounds the formulas printed in the papers. They map (n, ...) and
(n, latents) to (n,).
"""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import stats
from jax.scipy.special import expit, gammaln
from scipy.interpolate import PchipInterpolator

from tests.own_likelihoods import FIRST, GAPS


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


def rbf(X, variance=2.0, lengthscale=1.2, others=None):
    """The RBF covariance matrix of rows, with others or themselves, independent of the package."""
    others = X if others is None else others
    return variance * np.exp(-0.5 * np.sum((X[:, None] - others) ** 2, axis=-1) / lengthscale**2)


def log_normal(r, C):
    """log N(r; 0, C)."""
    return -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2.0 * np.pi * C)[1])


def hermite_grid(count, size):
    """Nodes (count^size, size) of independent standard normals by Gauss and Hermite, and weights that sum to 1."""
    line, weight = np.polynomial.hermite_e.hermegauss(count)
    nodes = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    return nodes, reduce(np.multiply.outer, [weight / weight.sum()] * size).ravel()


def labels(rng, probability):
    return (rng.random(probability.shape) < probability).astype(float)


def draw_class(rng, p):
    """An index drawn with the probabilities in each row of p."""
    cumulated = np.cumsum(p, axis=1) / p.sum(axis=1, keepdims=True)
    return np.minimum((rng.random(len(p))[:, None] > cumulated).sum(axis=1), p.shape[1] - 1).astype(float)


def pick(values, y):
    """The value of each row's class."""
    return jnp.take_along_axis(values, y.astype(int)[:, None], axis=1)[:, 0]


def softmax_log_density(y, f):
    return jnp.log(pick(expit(f), y) / expit(f).sum(axis=1))


def softmax_bound(m, v, y):
    return pick(up(m, v), y) - jnp.log(jnp.sum(1 - jnp.exp(down(m, v)), axis=1))


def softmax_generate(rng, f):
    return draw_class(rng, sigma(f))


def multinomial_probit_log_density(y, f):
    """The integral over the largest value, by the trapezoid rule from below all latents to above."""
    low, high = f.min(axis=1, keepdims=True) - 10.0, f.max(axis=1, keepdims=True) + 10.0
    label = jnp.arange(f.shape[1]) == y.astype(int)[:, None]

    def add(total, share):
        z = low + share * (high - low) - f
        log_integrand = jnp.where(label, stats.norm.logpdf(z), stats.norm.logcdf(z)).sum(axis=1)
        return jnp.logaddexp(total, log_integrand), None

    # A node at a time, since referees evaluate it at many latents. The integrand is next to nothing at its ends.
    total, _ = jax.lax.scan(add, jnp.full(len(f), -jnp.inf), jnp.arange(1, 128) / 128)
    return total + jnp.log((high - low)[:, 0] / 128)


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
    """log P of category y of an ordered probit, by the nearer tail."""
    low, high = (end - f for end in ends(y))
    reflected = low + high > 0
    return jnp.log(stats.norm.cdf(jnp.where(reflected, -low, high)) - stats.norm.cdf(jnp.where(reflected, -high, low)))


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


# The data of gp_regr, a benchmark of Stan's.
GP_REGRESSION = (
    np.arange(-10.0, 11.0, 2.0),
    np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136]),
)


def gp_regression(lengthscale, amplitude, noise):
    """The log posterior of logarithms of an RBF's lengthscale and standard deviation and of the noise's variance.

    Up to a constant, for gp_regr, with its priors: Gamma(25, 4), half-normal of scale 2 and half-normal. ``amplitude``
    and ``noise`` may be arrays.
    """
    x, y = GP_REGRESSION
    eigenvalues, vectors = np.linalg.eigh(rbf(x[:, None], 1.0, np.exp(lengthscale)))
    variance = np.exp(2.0 * np.asarray(amplitude))[..., None] * eigenvalues + np.exp(noise)[..., None]
    log_p = -0.5 * np.sum(np.log(variance) + (vectors.T @ y) ** 2 / variance, axis=-1)
    log_prior = 25.0 * lengthscale - 4.0 * np.exp(lengthscale)
    log_prior = log_prior + amplitude - np.exp(2.0 * amplitude) / 8.0
    return log_p + log_prior + noise - 0.5 * np.exp(2.0 * noise)


def gp_regression_marginals():
    """For each of ``gp_regression``'s logarithms 61 evenly spaced values and their posterior shares, by quadrature."""
    ends = ((2.0, 16.0), (0.05, 9.0), (0.1, 6.0))
    lengthscales, amplitudes, noises = (np.linspace(*np.log(end), 61) for end in ends)
    log_p = np.array([gp_regression(length, amplitudes[:, None], noises) for length in lengthscales])
    shares = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    grids = lengthscales, amplitudes, noises
    return [(values, shares.sum(axis=tuple({0, 1, 2} - {axis}))) for axis, values in enumerate(grids)]


def cdf_of(values, shares):
    """The distribution function of evenly spaced values with shares."""
    step = values[1] - values[0]
    return PchipInterpolator(np.append(values - 0.5 * step, values[-1] + 0.5 * step), np.append(0.0, shares.cumsum()))
