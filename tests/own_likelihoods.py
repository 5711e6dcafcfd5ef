"""Likelihoods that are not in the package, as a user would write them."""

from numpyro.distributions import constraints

from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.operations import exp, gamma, log, normal_cdf, normal_pdf, sigmoid, sqrt, sum_
from pgmodels.likelihoods.supports import Binary, Censored, Classes, Clipped, Counts, Given, Positive, Real
from pgmodels.parameters.parameter import Parameter


@likelihood
def own_softmax(y, f):
    return sigmoid(f[y]) / sum_(sigmoid(f))


@likelihood
def undeclared(y, f):
    return sigmoid(f) ** y * sigmoid(-f) ** (1 - y)


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


@likelihood(support=Classes(3))
def graded(y, f, cuts=Parameter([-1.0, 0.8], constraint=constraints.ordered_vector)):
    below = [0, *(sigmoid(cut - f) for cut in cuts), 1]
    return sum_((below[k + 1] - below[k]) * (y == k) for k in range(3))


@likelihood(support=Given(Counts(), Positive()), num_latents=1)
def exposed(y, f, dispersion=Parameter(2.0, positive=True)):
    z = f + log(y[1])
    ways = gamma(y[0] + dispersion) / (gamma(dispersion) * gamma(y[0] + 1))
    return ways * sigmoid(z) ** y[0] * sigmoid(-z) ** dispersion


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


@likelihood(support=Binary(), num_latents=2)
def summed(y, f):
    z = f[0] + f[1]
    return sigmoid(z) ** y * sigmoid(-z) ** (1 - y)


@likelihood(support=Given(Binary(), Real()))
def varying(y, f, slope=Parameter(0.7, positive=True)):
    z = f[0] + slope * y[1] * f[1] - 0.3
    return sigmoid(z) ** y[0] * sigmoid(-z) ** (1 - y[0])


@likelihood
def shared(y, f):
    z = f[0] + f[1]
    return sigmoid(z) ** y[0] * sigmoid(-z) ** (1 - y[0]) * normal_pdf(y[1], f[1], 0.8)


@likelihood(support=Counts())
def log_poisson(y, f):
    return exp(y * f - exp(f)) / gamma(y + 1)


@likelihood(support=Clipped(0.0), num_latents=1)
def tobit(y, f, scale=Parameter(0.7, positive=True)):
    return normal_cdf(-f / scale) ** (y == 0) * normal_pdf(y, f, scale) ** (y > 0)


@likelihood(support=Censored(), num_latents=1)
def log_logistic(y, f, shape=Parameter(1.5, positive=True)):
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * sigmoid(z)) ** y[1] * sigmoid(-z)
