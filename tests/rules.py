"""Formulas matched by the rules, singly and nested: add a row to FORMULAS for a new rule.

Each row passes all checks of ``verify`` (test_verify.py), which detect planted errors in rules.
"""

from typing import NamedTuple

from pgmodels.likelihoods.expression import Expression, Latent, Latents, Observation, ParameterSymbol
from pgmodels.likelihoods.operations import (
    exp,
    gamma,
    largest,
    normal_cdf,
    normal_pdf,
    positions,
    prod,
    sigmoid,
    sqrt,
    sum_,
)
from pgmodels.likelihoods.supports import Binary, Classes, Counts, Real, SuccessesOfTrials, Support, Undeclared

Y, F, R = Observation(), Latent(0, 1), ParameterSymbol("r", positive=True)
F2, F3 = Latents(2), Latents(3)
CLASS_SCALE = 1 + 0.5 * positions(F3)
PARAMETERS = {"r": 1.7}


def between(distribution):
    """An ordered category, with cutpoints -0.7, -0.7 + r and 1.5 + r."""
    below = [0, *(distribution(cut - F) for cut in (-0.7, R - 0.7, R + 1.5)), 1]
    return sum_((below[k + 1] - below[k]) * (k == Y) for k in range(4))


def negative_binomial(f):
    return gamma(Y + R) / (gamma(Y + 1) * gamma(R)) * sigmoid(f) ** Y * sigmoid(-f) ** R


class RuleCase(NamedTuple):
    """A formula, the support of y, and the number of latents."""

    formula: Expression
    support: Support
    size: int = 1


FORMULAS = {
    "bernoulli": RuleCase(sigmoid(F) ** Y * sigmoid(-F) ** (1 - Y), Binary()),
    "binomial": RuleCase(sigmoid(F) ** Y[0] * sigmoid(-F) ** (Y[1] - Y[0]), SuccessesOfTrials()),
    "negative binomial": RuleCase(
        gamma(Y + R) / (gamma(Y + 1) * gamma(R)) * sigmoid(F) ** Y * sigmoid(-F) ** R, Counts()
    ),
    "sigmoid poisson": RuleCase((R * sigmoid(F)) ** Y * exp(-R * sigmoid(F)) / gamma(Y + 1), Counts()),
    "presence": RuleCase((1 - exp(-R * sigmoid(F + 0.3))) ** Y * exp(-R * sigmoid(F + 0.3)) ** (1 - Y), Binary()),
    "presence or neither": RuleCase(
        (0.8 * (1 - exp(-R * sigmoid(F))) + 0.1) * (Y == 1) + (0.8 * exp(-R * sigmoid(F)) + 0.1) * (Y == 0), Binary()
    ),
    "Student t of unequal noise": RuleCase(
        sqrt(sigmoid(F2[1])) * (1 + 0.7 * sigmoid(F2[1]) * (Y - F2[0]) ** 2) ** (-(R + 1) / 2), Real(), 2
    ),
    "logistic softmax": RuleCase(sigmoid(F3[Y]) / sum_(sigmoid(F3)), Classes(3), 3),
    "stick breaking": RuleCase(
        prod(sigmoid(F2) ** (positions(F2) == Y) * sigmoid(-F2) ** (positions(F2) < Y)), Classes(3), 2
    ),
    "student t": RuleCase((1 + (Y - F) ** 2 / (4 * R**2)) ** -2.5, Real()),
    "laplace": RuleCase(exp(-abs(Y - F) / R) / (2 * R), Real()),
    "gaussian": RuleCase(normal_pdf(Y, F, R), Real()),
    "heteroscedastic": RuleCase(normal_pdf(Y, F2[0], (R * sigmoid(F2[1])) ** -0.5), Real(), 2),
    "heteroscedastic with more on the precision": RuleCase(
        sqrt(sigmoid(F2[1])) * exp(-0.5 * (Y - F2[0]) ** 2 * sigmoid(F2[1])) / (1 + 0.7 * sigmoid(F2[1])), Real(), 2
    ),
    "probit": RuleCase(normal_cdf(F) ** Y * normal_cdf(-F) ** (1 - Y), Binary()),
    "multinomial probit": RuleCase(largest(F3, Y, R), Classes(3), 3),
    "guessing in multinomial probit": RuleCase(0.1 / 3 + 0.9 * largest(F3, Y, R), Classes(3), 3),
    "affine argument": RuleCase(sigmoid(2 * F - 1) ** Y * (1 - sigmoid(2 * F - 1)) ** (1 - Y), Binary()),
    "offset": RuleCase(sigmoid(F + Y[1]) ** Y[0] * sigmoid(-F - Y[1]) ** R, Undeclared(2)),
    "scale of the class": RuleCase(prod(sigmoid(CLASS_SCALE * F3)) / sum_(sigmoid(CLASS_SCALE * F3)), Classes(3), 3),
    "ordered logit": RuleCase(between(sigmoid), Classes(4)),
    "ordered probit": RuleCase(between(normal_cdf), Classes(4)),
    "zero inflated": RuleCase(sigmoid(-F2[1]) * (Y == 0) + sigmoid(F2[1]) * negative_binomial(F2[0]), Counts(), 2),
    "label noise": RuleCase((0.1 + 0.8 * sigmoid(F)) ** Y * (1 - (0.1 + 0.8 * sigmoid(F))) ** (1 - Y), Binary()),
    "undeclared classes": RuleCase(sigmoid(F3[Y]) / sum_(sigmoid(F3)), Undeclared(), 3),
    "interval censored": RuleCase((normal_cdf((Y + 1 - F) / R) - normal_cdf((Y - F) / R)), Real()),
    "guessing in probit": RuleCase((0.2 + 0.8 * normal_cdf(F)) ** Y * (0.8 * normal_cdf(-F)) ** (1 - Y), Binary()),
    "contaminated Gaussian": RuleCase(0.9 * normal_pdf(Y, F, R) + 0.1 * normal_pdf(Y, F, 10 * R), Real()),
    "Laplace or Student t": RuleCase(0.8 * exp(-abs(Y - F) / R) / R + 0.2 * (1 + (Y - F) ** 2 / 3) ** -2, Real()),
    "heteroscedastic or neither": RuleCase(
        0.9 * normal_pdf(Y, F2[0], (R * sigmoid(F2[1])) ** -0.5) + 0.1 * normal_pdf(Y, 0.0, 3.0), Real(), 2
    ),
    "zero inflated sigmoid poisson": RuleCase(
        sigmoid(-F2[1]) * (Y == 0)
        + sigmoid(F2[1]) * (3 * sigmoid(F2[0])) ** Y * exp(-3 * sigmoid(F2[0])) / gamma(Y + 1),
        Counts(),
        2,
    ),
    "noisy or": RuleCase(
        (sigmoid(F2[0]) + sigmoid(-F2[0]) * sigmoid(F2[1])) * (Y == 1) + sigmoid(-F2[0]) * sigmoid(-F2[1]) * (Y == 0),
        Binary(),
        2,
    ),
    "noisy softmax": RuleCase(0.1 / 3 + 0.9 * sigmoid(F3[Y]) / sum_(sigmoid(F3)), Classes(3), 3),
    "a mixture in a mixture": RuleCase(
        sigmoid(-F2[1]) * (Y == 0) + sigmoid(F2[1]) * (0.1 + 0.8 * sigmoid(F2[0]) ** Y * sigmoid(-F2[0]) ** (1 - Y)),
        Binary(),
        2,
    ),
}
