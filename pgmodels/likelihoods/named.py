"""Named likelihoods: classes and continuous targets."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, ndtr

from pgmodels.likelihoods import supports
from pgmodels.likelihoods.expression import Expression, Latents, Observation, Operand
from pgmodels.likelihoods.likelihood import Likelihood, likelihood
from pgmodels.likelihoods.operations import (
    exp,
    gamma,
    largest,
    log,
    normal_cdf,
    normal_pdf,
    positions,
    prod,
    sigmoid,
    sqrt,
    step,
    sum_,
)
from pgmodels.likelihoods.sampling import beta, negative_binomial, poisson, robust_max, stick_breaking
from pgmodels.parameters.parameter import Hyperparameter, Parameter, as_declared

# A required parameter has no default value. A formula is called with symbols instead of parameters.
POSITIVE: Any = Parameter(None, positive=True)


@likelihood(support=supports.Binary(), num_latents=1, sampler=lambda rng, y, f: rng.random(f.shape) < expit(f))
def Bernoulli(y: Expression, f: Expression) -> Expression:
    """A label y that is 1 with probability σ(f) and 0 otherwise."""
    return sigmoid(f) ** y * sigmoid(-f) ** (1 - y)


@likelihood(support=supports.Binary(), num_latents=1, sampler=lambda rng, y, f: rng.random(f.shape) < ndtr(f))
def Probit(y: Expression, f: Expression) -> Expression:
    """A label y that is 1 with probability Φ(f) and 0 otherwise."""
    return normal_cdf(f) ** y * normal_cdf(-f) ** (1 - y)


def binomial_coefficient(trials: Expression, successes: Expression) -> Expression:
    """Return the number of ways to choose ``successes`` of ``trials``."""
    return gamma(trials + 1) / (gamma(successes + 1) * gamma(trials - successes + 1))


@likelihood(
    support=supports.SuccessesOfTrials(),
    num_latents=1,
    mean=lambda y, f: y[1] * sigmoid(f),
    variance=lambda y, f: y[1] * sigmoid(f) * sigmoid(-f),
    sampler=lambda rng, y, f: rng.binomial(y[1].astype(np.int64), expit(f)),
)
def Binomial(y: Observation, f: Expression) -> Expression:
    """Successes among trials, y = (successes, trials), with probability σ(f) of a success.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> model = pgm.Model(pgm.Binomial(), pgm.GP(pgm.RBF(4.0, 1.0)))
    >>> vi = pgm.cavi(model, [[0.0], [3.0]], [[2, 10], [45, 50]])
    >>> vi.predict([[0.0], [3.0]], covariates=[10, 10]).mean.round()
    array([2., 9.])
    """
    successes, trials = y[0], y[1]
    return binomial_coefficient(trials, successes) * sigmoid(f) ** successes * sigmoid(-f) ** (trials - successes)


@likelihood(
    support=supports.Counts(),
    num_latents=1,
    mean=lambda y, f, dispersion: dispersion * exp(f),
    variance=lambda y, f, dispersion: dispersion * exp(f) * (1 + exp(f)),
    sampler=negative_binomial,
)
def NegativeBinomial(y: Expression, f: Expression, dispersion: Expression = POSITIVE) -> Expression:
    """A count y with mean dispersion · exp(f) and variance mean + mean² / dispersion.

    Parameters
    ----------
    dispersion : float, Fixed, Parameter or NumPyro distribution
        Positive; smaller values give more variance.
    """
    ways = gamma(y + dispersion) / (gamma(dispersion) * gamma(y + 1))
    return ways * sigmoid(f) ** y * sigmoid(-f) ** dispersion


@likelihood(
    support=supports.Counts(),
    num_latents=1,
    mean=lambda y, f, rate: rate * sigmoid(f),
    variance=lambda y, f, rate: rate * sigmoid(f),
    sampler=lambda rng, y, f, rate: poisson(rng, rate * expit(f)),
)
def SigmoidPoisson(y: Expression, f: Expression, rate: Expression = POSITIVE) -> Expression:
    """A Poisson count y with mean rate · σ(f).

    Parameters
    ----------
    rate : float, Fixed, Parameter or NumPyro distribution
        The largest mean, positive.
    """
    return (rate * sigmoid(f)) ** y * exp(-rate * sigmoid(f)) / gamma(y + 1)


# The class whose log σ(f) plus Gumbel noise is largest.
@likelihood(sampler=lambda rng, y, f: np.argmax(log_expit(f) + rng.gumbel(size=f.shape), axis=0))
def _logistic_softmax(y: Expression, f: Latents) -> Expression:
    return sigmoid(f[y]) / sum_(sigmoid(f))


@likelihood(sampler=stick_breaking)
def _stick_breaking(y: Expression, f: Expression) -> Expression:
    c = positions(f)
    return prod(sigmoid(f) ** (c == y) * sigmoid(-f) ** (c < y))


# The class whose latent plus Gumbel noise is largest.
@likelihood(sampler=lambda rng, y, f: np.argmax(f + rng.gumbel(size=f.shape), axis=0))
def _softmax(y: Expression, f: Latents) -> Expression:
    return exp(f[y]) / sum_(exp(f))


def with_errors(right: Expression, error: Operand, num_others: int = 1) -> Expression:
    """Return the probability of a label that may be wrong, from the probability ``right`` of the true class.

    With probability ``error``, one of the ``num_others`` other classes replaces the label.
    """
    return (1 - error) * right + error / num_others * (1 - right)


@likelihood(sampler=robust_max)
def _robust_max(y: Expression, f: Latents, error: Operand = 1e-3) -> Expression:
    return with_errors(largest(f, y), error, len(f) - 1)


@likelihood(sampler=lambda rng, y, f: np.argmax(f + rng.standard_normal(f.shape), axis=0))
def _multinomial_probit(y: Expression, f: Expression) -> Expression:
    return largest(f, y, 1.0)


def Softmax(num_classes: int) -> Likelihood:
    """Return the multinomial logit: class y has probability exp(f_y) / Σ_c exp(f_c), with one latent per class.

    It has no augmentation. ``gaussian_vi``, ``fit``, ``svi`` and ``nuts`` accept it.

    Parameters
    ----------
    num_classes : int
        Number of classes, at least 2; y is 0 to num_classes - 1.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``num_classes`` is not a whole number >= 2.
    """
    return sized(_softmax(), "Softmax", num_classes)


def RobustMax(num_classes: int, error: Hyperparameter = 1e-3) -> Likelihood:
    """Return a likelihood in which y is the class of the largest latent, with probability 1 - error.

    Each other class has probability error / (num_classes - 1); each class has one latent. The log density has jumps, so
    ``nuts`` refuses it. The q of ``gaussian_vi``, ``fit`` and ``svi`` has independent latents of each datum.

    Parameters
    ----------
    num_classes : int
        Number of classes, at least 2; y is 0 to num_classes - 1.
    error : float, Fixed, Parameter or NumPyro distribution
        Probability of a class other than the class of the largest latent, between 0 and 1. ``fit`` learns it from this
        start value.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``num_classes`` is not a whole number >= 2, or ``error`` is not between 0 and 1.

    Notes
    -----
    This is GPflow's parametrisation. Galy-Fajou et al. 2019, equation 3, write (1 - ε) [f_y is the largest] + ε / C,
    so that error = ε (C - 1) / C.

    References
    ----------
    Hernández-Lobato, Hernández-Lobato and Dupont 2011; Hensman et al. 2015.
    """
    from numpyro.distributions.constraints import unit_interval

    parameter = as_declared(error, Parameter(1e-3, constraint=unit_interval), "error of RobustMax", positive=False)
    if not np.all((parameter.value > 0) & (parameter.value < 1)):
        raise ValueError(
            f"error of RobustMax must be above 0 and below 1; got {error!r}. At 0 or 1 an observation that contradicts "
            "the largest latent has probability 0: use a small number such as 1e-3, with pgm.Fixed to keep it."
        )
    return sized(_robust_max(parameter), "RobustMax", num_classes)


def MultinomialProbit(num_classes: int) -> Likelihood:
    """Return the multinomial probit: y is the class with the largest sum of its latent and standard normal noise.

    All engines accept it. The auxiliary variables are the noisy latents, with precision 1 for every datum. CAVI's
    variances are therefore far too small, and ``fit`` has a looser bound than with ``objective="expected"``.

    Parameters
    ----------
    num_classes : int
        Number of classes, at least 2; y is 0 to num_classes - 1.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``num_classes`` is not a whole number >= 2.

    Notes
    -----
    For two classes, the probability is Φ((f_1 - f_0) / √2). Otherwise it is an integral by quadrature, which costs some
    hundred times as much as ``Softmax``. Draws of y and of the auxiliary variables need no quadrature.

    References
    ----------
    Albert and Chib 1993; Girolami and Rogers 2006.
    """
    return sized(_multinomial_probit(), "MultinomialProbit", num_classes)


def LogisticSoftmax(num_classes: int) -> Likelihood:
    """Return the logistic softmax: class y has probability σ(f_y) / Σ_c σ(f_c), with one latent per class.

    Parameters
    ----------
    num_classes : int
        Number of classes, at least 2; y is 0 to num_classes - 1.

    References
    ----------
    Galy-Fajou et al. 2019, equation 5.
    """
    return sized(_logistic_softmax(), "LogisticSoftmax", num_classes)


def StickBreaking(num_classes: int) -> Likelihood:
    """Return the stick-breaking likelihood: class y has probability σ(f_y) Π_{c<y} σ(-f_c), with C - 1 latents.

    Parameters
    ----------
    num_classes : int
        Number of classes, at least 2; y is 0 to num_classes - 1.

    References
    ----------
    Linderman, Johnson and Adams 2015.
    """
    return sized(_stick_breaking(), "StickBreaking", num_classes, fewer=1)


def sized(formula: Likelihood, name: str, num_classes: int, fewer: int = 0) -> Likelihood:
    """Return a likelihood of classes by name, with a latent for each of them but ``fewer``."""
    support = supports.Classes(num_classes)
    return replace(formula, name=name, declared_support=support, num_latents=support.num_classes - fewer)


@likelihood(
    support=supports.Real(),
    num_latents=1,
    mean=lambda y, f, df, scale: f,
    # The variance is infinite for df <= 2, and the indicator is 0 there.
    variance=lambda y, f, df, scale: scale**2 * df / (abs(df - 2) * (df > 2)),
    sampler=lambda rng, y, f, df, scale: f + scale * rng.standard_t(df),
)
def StudentT(y: Expression, f: Expression, df: Expression = POSITIVE, scale: Expression = POSITIVE) -> Expression:
    """A real number y = f + scale · noise, with noise from Student's t distribution with df degrees of freedom.

    Parameters
    ----------
    df : float, Fixed, Parameter or NumPyro distribution
        Degrees of freedom, positive.
    scale : float, Fixed, Parameter or NumPyro distribution
        Scale of the noise, in units of y, positive.
    """
    constant = gamma((df + 1) / 2) / (gamma(df / 2) * sqrt(math.pi * df) * scale)
    return constant * (1 + ((y - f) / scale) ** 2 / df) ** (-(df + 1) / 2)


@likelihood(
    support=supports.Real(),
    num_latents=1,
    mean=lambda y, f, scale: f,
    variance=lambda y, f, scale: 2 * scale**2,
    sampler=lambda rng, y, f, scale: rng.laplace(f, scale),
)
def Laplace(y: Expression, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """A real number y = f + Laplace noise.

    Parameters
    ----------
    scale : float, Fixed, Parameter or NumPyro distribution
        Scale of the noise, its mean absolute deviation, in units of y, positive.
    """
    return exp(-abs(y - f) / scale) / (2 * scale)


@likelihood(support=supports.Real(), num_latents=1, mean=lambda y, f, scale: f, variance=lambda y, f, scale: scale**2)
def Gaussian(y: Expression, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """A real number y = f + Gaussian noise.

    Parameters
    ----------
    scale : float, Fixed, Parameter or NumPyro distribution
        Standard deviation of the noise, in units of y, positive.
    """
    return normal_pdf(y, f, scale)


@likelihood(
    support=supports.Real(),
    num_latents=2,
    mean=lambda y, f, precision: f[0],
    variance=lambda y, f, precision: 1 / (precision * sigmoid(f[1])),
)
def HeteroscedasticGaussian(y: Expression, f: Latents, precision: Expression = POSITIVE) -> Expression:
    """A real number y = f[0] + Gaussian noise with precision ``precision`` · σ(f[1]).

    Parameters
    ----------
    precision : float, Fixed, Parameter or NumPyro distribution
        Largest precision of the noise, in units of 1 / y², positive.
    """
    return normal_pdf(y, f[0], 1 / sqrt(precision * sigmoid(f[1])))


@likelihood(
    support=supports.Positive(),
    num_latents=1,
    mean=lambda y, f, shape: exp(f),
    variance=lambda y, f, shape: exp(2 * f) / shape,
    sampler=lambda rng, y, f, shape: rng.standard_gamma(shape) / shape * np.exp(f),
)
def Gamma(y: Expression, f: Expression, shape: Expression = POSITIVE) -> Expression:
    """A positive number y from a gamma distribution with mean exp(f) and variance mean² / shape.

    It has no augmentation. ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.

    Parameters
    ----------
    shape : float, Fixed, Parameter or NumPyro distribution
        Positive; the value 1 gives the exponential distribution.
    """
    return exp(shape * (log(shape) + log(y) - f) - shape * y * exp(-f)) / (y * gamma(shape))


@likelihood(
    support=supports.Positive(),
    num_latents=1,
    mean=lambda y, f, scale: exp(f + scale**2 / 2),
    variance=lambda y, f, scale: exp(2 * f + 2 * scale**2) * (1 - exp(-(scale**2))),
    sampler=lambda rng, y, f, scale: np.exp(rng.normal(f, scale)),
)
def LogNormal(y: Expression, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """A positive number y with log y = f + Gaussian noise. All engines accept it.

    Parameters
    ----------
    scale : float, Fixed, Parameter or NumPyro distribution
        Standard deviation of the noise of log y, positive.
    """
    return normal_pdf(log(y), f, scale) / y


@likelihood(
    support=supports.UnitInterval(),
    num_latents=1,
    mean=lambda y, f, precision: sigmoid(f),
    variance=lambda y, f, precision: sigmoid(f) * sigmoid(-f) / (1 + precision),
    sampler=beta,
)
def Beta(y: Expression, f: Expression, precision: Expression = POSITIVE) -> Expression:
    """A number y between 0 and 1 from a beta distribution with mean σ(f).

    It has no augmentation. ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.

    Parameters
    ----------
    precision : float, Fixed, Parameter or NumPyro distribution
        Sum of the two parameters of the distribution, precision · σ(f) and precision · σ(-f). It is positive, and
        larger values give less variance.

    References
    ----------
    Ferrari and Cribari-Neto 2004.
    """
    up, down = precision * sigmoid(f), precision * sigmoid(-f)
    constant = gamma(precision) / (gamma(up) * gamma(down))
    return constant * exp(up * log(y) + down * log(1 - y)) / (y * (1 - y))


# Likelihoods of measurements with Gaussian noise: of known size, or with censored values.


@likelihood(
    support=supports.Given(supports.Real(), supports.Positive()),
    num_latents=1,
    mean=lambda y, f: f,
    variance=lambda y, f: y[1] ** 2,
)
def KnownNoise(y: Observation, f: Expression) -> Expression:
    """A measurement y = (value, noise): value = f + Gaussian noise, whose standard deviation is known for each datum.

    All engines accept it.
    """
    return normal_pdf(y[0], f, y[1])


@likelihood(
    support=supports.IntervalCensored(-np.inf),
    num_latents=1,
    mean=lambda y, f, scale: f,
    variance=lambda y, f, scale: scale**2,
    sampler=lambda rng, y, f, scale: rng.normal(f, scale),
)
def CensoredGaussian(y: Observation, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """A measurement that may be censored, y = (value, code, second value): f + Gaussian noise.

    ``IntervalCensored`` defines the codes. All engines accept it. Predictions are of the value itself, not of a record.

    Parameters
    ----------
    scale : float, Fixed, Parameter or NumPyro distribution
        Standard deviation of the noise, in units of y, positive.
    """
    above, event, below, between = ((y[1] == code) for code in range(4))
    z, end = (y[0] - f) / scale, (y[0] + between * (y[2] - y[0]) + (1 - between) - f) / scale
    beyond = normal_cdf(-z) ** above * normal_cdf(z) ** below
    return normal_pdf(y[0], f, scale) ** event * beyond * (normal_cdf(end) - normal_cdf(z)) ** between


# Likelihoods of published systems that have no public name. Saved files refer to them by the names below.

# The variance of the Gaussian noise whose distribution function is nearest to the logistic one, within 0.0095.
LOGISTIC_VARIANCE = 2.897


@likelihood(support=supports.Given(supports.Real(), supports.Positive()), num_latents=1)
def known_noise(y: Observation, f: Expression) -> Expression:
    """A number y[0] = f + Gaussian noise with variance y[1]. Source: Passerello 2021, section 3."""
    return normal_pdf(y[0], f, sqrt(y[1]))


@likelihood(support=supports.Binary(), num_latents=1)
def gpc_1_labels(y: Expression, f: Expression, error: Expression) -> Expression:
    """The sign of f as a label, with random errors. Source: Liu et al. 2019, section II."""
    return with_errors(step((2 * y - 1) * f), error)


@likelihood(support=supports.Binary(), num_latents=1)
def gpc_2_labels(y: Expression, f: Expression, error: Expression) -> Expression:
    """Like ``gpc_1_labels``, with standard normal noise added to f."""
    return with_errors(normal_cdf((2 * y - 1) * f), error)


@likelihood(support=supports.Binary(), num_latents=1)
def gpc_3_labels(y: Expression, f: Expression, error: Expression) -> Expression:
    """Like ``gpc_1_labels``, with nearly logistic noise added to f."""
    return with_errors(normal_cdf((2 * y - 1) * f / np.sqrt(LOGISTIC_VARIANCE)), error)


@likelihood
def gpc_1_classes(y: Expression, f: Latents, error: Expression) -> Expression:
    """The position of the largest latent as a class, with random errors. Source: Liu et al. 2019, section III."""
    return with_errors(largest(f, y), error, len(f) - 1)


@likelihood
def gpc_2_classes(y: Expression, f: Latents, error: Expression) -> Expression:
    """Like ``gpc_1_classes``, with standard normal noise added to the latents."""
    return with_errors(largest(f, y, 1.0), error, len(f) - 1)


@likelihood
def gpc_3_classes(y: Expression, f: Latents, error: Expression) -> Expression:
    """Like ``gpc_1_classes``, with nearly logistic noise added to the latents."""
    return with_errors(largest(f, y, LOGISTIC_VARIANCE), error, len(f) - 1)
