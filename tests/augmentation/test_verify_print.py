"""The printed form of derivations: of nested rules it is what is computed, and an error in it is found."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.stats import truncnorm

from pgmodels.augmentation import explain, laws
from pgmodels.augmentation import laws as argmax_law
from pgmodels.augmentation import laws as averages
from pgmodels.augmentation import laws as interval_law
from pgmodels.augmentation import verify_cases as verify_case
from pgmodels.augmentation.augmentation import expectations
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.laws import VARIANCE, Expected
from pgmodels.augmentation.predictors import VerificationError
from pgmodels.augmentation.rules import mixtures as mixture
from pgmodels.augmentation.rules import mixtures as polya_gamma
from pgmodels.augmentation.rules import rule
from pgmodels.augmentation.rules.gaussian import IntervalGaussianRule
from pgmodels.augmentation.rules.mixtures import InverseGaussianMixtureRule, LogMixture, MixtureRule, Responsibility
from pgmodels.augmentation.verify import PrintedForm
from pgmodels.augmentation.verify_cases import ROWS, Case
from pgmodels.likelihoods import infix
from pgmodels.likelihoods.expression import Environment, Latents, ParameterSymbol
from pgmodels.likelihoods.operations import exp, largest, multiply, normal_cdf, normal_pdf, sigmoid, sqrt, sum_
from pgmodels.likelihoods.printing import call, line, tree, words
from pgmodels.likelihoods.supports import Binary
from tests.covering import some
from tests.rules import FORMULAS, PARAMETERS, F, R, Y


def form(formula, size, y, parameters=PARAMETERS):
    """The printed form of a formula at random points, compared."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        case = Case(derive_formula(formula, size), parameters, y, rng.normal(0.4, 1.5, (ROWS, size)), rng)
        printed = PrintedForm(case)
        printed.check()
    return printed


LATENTS = Latents(3)
INNER, OTHER, REST = LATENTS[0], sigmoid(LATENTS[1]), sigmoid(LATENTS[2])
# A factor of each rule, on which the others are nested.
FACTORS = {
    "Pólya-Gamma": sigmoid(2 * INNER - 1) ** Y * sigmoid(1 - 2 * INNER) ** (1 - Y),
    "Gaussian": normal_pdf(Y, INNER, R),
    "inverse Gaussian": exp(-abs(Y - INNER) / R),
    "Gamma mixture": (1 + (Y - INNER) ** 2 / 3) ** -2,
    "Gamma": 1 / (1 + sigmoid(INNER)),
    "Poisson": exp(-R * sigmoid(INNER)),
    "coupled Poisson": normal_pdf(Y, INNER, (R * REST) ** -0.5),
    "truncated Gaussian": normal_cdf(INNER) ** Y * normal_cdf(-INNER) ** (1 - Y),
    "interval": normal_cdf(INNER + R) - normal_cdf(INNER - 0.3),
    "intervals": normal_cdf(INNER) * (Y == 0) + (normal_cdf(INNER + R) - normal_cdf(INNER)) * (Y == 1),
    "difference": sigmoid(INNER + R) - sigmoid(INNER),
    "argmax": largest(LATENTS, Y, R),
    "vector": sigmoid(LATENTS[Y]) / sum_(sigmoid(LATENTS)),
    "mixture": 0.2 + 0.7 * sigmoid(INNER),
    "selection": sigmoid(INNER) * (Y == 0) + sigmoid(-INNER) * (Y == 1),
}
NESTINGS = {
    "selection": lambda p: p * (Y == 1) + (1 - OTHER) * (Y == 0),
    "mixture": lambda p: 0.3 * p + 0.7 * OTHER,
    "mixture in a selection": lambda p: (0.3 * p + 0.2 * OTHER) * (Y == 1) + (1 - OTHER) * (Y == 0),
    "mixture in a mixture": lambda p: 0.4 * OTHER + 0.6 * (0.3 * p + 0.1 * normal_cdf(LATENTS[1])),
    "selection in a mixture": lambda p: 0.4 * OTHER + 0.6 * (p * (Y == 1) + (1 - OTHER) * (Y == 0)),
    "two mixtures": lambda p: (0.1 + 0.8 * p) * (0.2 + 0.3 * normal_cdf(LATENTS[1])),
}
# A number times a difference is two terms of a mixture, one of them negative.
DIFFERENCES, MIXTURES = {"interval", "difference"}, set(NESTINGS) - {"selection", "selection in a mixture"}
NESTED = {
    f"{factor} in {nesting}": (factor, nesting)
    for nesting in NESTINGS
    for factor in FACTORS
    if not (factor in DIFFERENCES and nesting in MIXTURES)
}


@pytest.mark.parametrize("name", some(NESTED, "selection in selection"))
def test_the_printed_form_of_nested_rules_is_what_is_computed(name):
    factor, nesting = NESTED[name]
    y = Binary().examples(np.random.default_rng(0), ROWS)
    # All of it was read.
    assert form(NESTINGS[nesting](FACTORS[factor]) * sqrt(REST), 3, y).unread == []


PLANTED = {}


def planted(name, formula):
    """Register a change that plants an error in the printed form, and the formula that shows it."""

    def register(change):
        PLANTED[name] = (change, formula)
        return change

    return register


def patch_result(monkeypatch, owner, method, change):
    """Replace a method by a change of its result."""
    original = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *args: change(self, original(self, *args), *args))


@planted("another likelihood", "probit")
def printed_likelihood(monkeypatch):
    monkeypatch.setitem(infix._FUNCTIONS, "normal_cdf", "σ")


@planted("an identity without its factor", "bernoulli")
def printed_identity(monkeypatch):
    monkeypatch.setattr(polya_gamma, "inverse_power", lambda base, exponent: tree(1))


@planted("an identity that holds for some data only", "noisy or")
def printed_condition_of_identity(monkeypatch):
    monkeypatch.setattr(mixture, "where", lambda switch: ())


@planted("a joint of another mixing law", "laplace")
def printed_joint(monkeypatch):
    patch_result(monkeypatch, InverseGaussianMixtureRule, "augmented", lambda self, augmented: tree(1))


@planted("a joint without the interval", "ordered probit")
def printed_joint_of_interval(monkeypatch):
    monkeypatch.setattr(IntervalGaussianRule, "augmented", lambda self: self._density())


# For each law: a formula, and its notation with an error.
NOTATIONS = {
    "PolyaGamma": ("binomial", lambda law, variable: call("PG", law.tilt, law.shape)),
    "Poisson": ("sigmoid poisson", lambda law, variable: call("Poisson", multiply(2.0, law.rate))),
    "Gamma": ("student t", lambda law, variable: call("Gamma", law.rate, law.shape)),
    "InverseGaussian": ("laplace", lambda law, variable: call("InverseGaussian", law.shape, law.mean())),
    "TruncatedNormal": ("probit", lambda law, variable: line(call("N", law.location, 1), *laws.where(law.switch))),
    "Categorical": ("label noise", lambda law, variable: call("Categorical", *law.weights)),
    "IntervalNormal": (
        "ordered probit",
        lambda law, variable: line(call("N", law.location, 1), words("truncated to"), variable, ">", 0),
    ),
    "ArgmaxNormal": (
        "multinomial probit",
        lambda law, variable: line(call("N", law.location, 1), words(", the largest at"), "c", "=", 0),
    ),
}


def test_a_printed_difference_that_cancels_in_the_tails_is_no_error():
    # The smallest 19 f is -7.7: the mean of u has a difference of 1e-14 of two numbers that round to 1e-16.
    assert form(normal_cdf(19 * F) - normal_cdf(19 * F - 0.7), 1, np.zeros(ROWS)).unread == []


@pytest.mark.parametrize("name", ["m", "v", "c"])
def test_a_parameter_with_the_name_of_a_printed_symbol_is_printed_with_another(name):
    formula = normal_pdf(Y, F, ParameterSymbol(name, positive=True))
    assert form(formula, 1, np.random.default_rng(0).normal(size=ROWS), {name: 1.7}).unread == []
    text = explain.explain(derive_formula(formula, 1), "Gaussian")
    assert f"= exp(-(y - f)^2 / (2 {name}_p^2)) / (sqrt(2 π) {name}_p)" in text
    assert f"where {name}_p is the parameter {name}\n" in text


def test_the_mean_of_an_interval_in_a_mixture_is_that_given_its_component():
    formula = 0.4 * sigmoid(LATENTS[1]) + 0.6 * (normal_cdf(INNER + R) - normal_cdf(INNER)) * (Y == 1)
    augmentation = derive_formula(formula * sqrt(REST), 3)
    m, v, y = np.array([[0.3, -0.8, 0.2], [1.4, 0.1, -0.7]]), np.full((2, 3), 0.5), np.ones(2)
    with jax.enable_x64(True):
        values = PARAMETERS | {VARIANCE: v}
        for symbol, value in expectations(augmentation):
            values[symbol.name] = np.asarray(value.evaluate(Environment(y, m, values)))
    expected = truncnorm(-1.7 - m[:, :1], -m[:, :1]).mean() + m[:, :1]
    np.testing.assert_allclose(values["E[u]"], expected, rtol=1e-12)


def notation_of(name):
    formula, notation = NOTATIONS[name]
    module = {"IntervalNormal": interval_law, "ArgmaxNormal": argmax_law}.get(name, laws)

    @planted(f"the law {name}", formula)
    def change(monkeypatch):
        monkeypatch.setattr(getattr(module, name), "notation", notation)


for law_name in NOTATIONS:
    notation_of(law_name)


@planted("an allocation where none is drawn", "noisy or")
def printed_allocation(monkeypatch):
    change = NOTATIONS["Categorical"][1]
    monkeypatch.setattr(laws.Categorical, "notation", change)


@planted("a condition of a truncated Gaussian", "probit")
def printed_condition(monkeypatch):
    monkeypatch.setattr(laws, "where", lambda switch: ())


@planted("a law that is not conditioned on what it reads", "sigmoid poisson")
def printed_conditioning(monkeypatch):
    monkeypatch.setattr(rule, "auxiliaries_of", lambda expression: [])


@planted("a site given the auxiliaries", "bernoulli")
def printed_site(monkeypatch):
    with_another_potential(monkeypatch, averaged=False)


@planted("a site of CAVI", "bernoulli")
def printed_update(monkeypatch):
    with_another_potential(monkeypatch, averaged=True)


def with_another_potential(monkeypatch, averaged):
    original = explain.conditional_sites

    def sites(augmentation, block=0, of=False):
        sites = original(augmentation, block, of)
        return tuple(replace(s, potential=-s.potential) for s in sites) if of == averaged else sites

    monkeypatch.setattr(explain, "conditional_sites", sites)


@planted("an expectation", "bernoulli")
def printed_expectation(monkeypatch):
    # Also that of the diagnostics, which the draws show.
    patch_result(monkeypatch, laws.PolyaGamma, "mean", lambda self, mean: multiply(2.0, mean))


@planted("a probability of an allocation where none is drawn", "noisy or")
def printed_responsibility(monkeypatch):
    def expectations(self):
        return tuple((Expected(part), Responsibility(self.shares, k)) for k, part in enumerate(self.allocated))

    monkeypatch.setattr(MixtureRule, "expectations", expectations)


@planted("a symbol without a definition", "bernoulli")
def printed_symbol(monkeypatch):
    monkeypatch.setattr(explain, "_roots", lambda expression: [])


@planted("another mean of an interval", "interval censored")
def printed_mean(monkeypatch):
    monkeypatch.setattr(interval_law.IntervalMean, "notation", lambda self, precedence=0: self.law.location.notation())


@planted("another bound", "zero inflated")
def printed_bound(monkeypatch):
    monkeypatch.setattr(LogMixture, "notation", lambda self, precedence=0: self.children[0].notation(precedence))


@planted("definitions with the signs exchanged", "bernoulli")
def printed_definition(monkeypatch):
    monkeypatch.setattr(averages.Tilde, "notation", lambda self, precedence=0: call("σ̃₊", self.predictor.expression))


# Each formula of the table is read as it is in test_verify.py.
@pytest.mark.parametrize(
    "error",
    some(
        PLANTED,
        "an allocation where none is drawn",
        "a condition of a truncated Gaussian",
        "a site of CAVI",
        "an expectation",
        "definitions with the signs exchanged",
    ),
)
def test_an_error_in_the_printed_form_is_found(error, monkeypatch):
    change, name = PLANTED[error]
    case = FORMULAS[name]
    y = case.support.examples(np.random.default_rng(0), ROWS)
    change(monkeypatch)
    with pytest.raises(VerificationError, match=f"^{verify_case.PRINTED}: .*\n.*\n.*\n  printed: "):
        form(case.formula, case.size, y)
