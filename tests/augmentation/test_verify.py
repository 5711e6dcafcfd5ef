"""Verification of augmentations: what is right passes, and planted errors are found, in the print too."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy.stats import truncnorm

from pgmodels.augmentation import explain, laws, verify, verify_cases
from pgmodels.augmentation.augmentation import Augmentation, expectations
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.laws import VARIANCE, Expected, Gamma, Poisson, inverse_gaussian
from pgmodels.augmentation.predictors import Predictor, VerificationError
from pgmodels.augmentation.rules import RULES, mixtures, rule
from pgmodels.augmentation.rules.gaussian import ArgmaxRule, IntervalGaussianRule, TruncatedGaussianRule
from pgmodels.augmentation.rules.mixtures import (
    InverseGaussianMixtureRule,
    LogMixture,
    MixtureRule,
    PoissonRule,
    PolyaGammaRule,
    Responsibility,
)
from pgmodels.augmentation.rules.rule import quadratic_sites
from pgmodels.augmentation.verify import PrintedForm, verify_augmentation
from pgmodels.augmentation.verify_cases import (
    BELOW,
    DRAWN,
    GRADIENT,
    INTEGRATES,
    JOINT,
    PRINTED,
    RISES,
    ROWS,
    SITE,
    TIGHT,
    Case,
    Check,
)
from pgmodels.likelihoods import infix
from pgmodels.likelihoods.expression import Environment, Latents, ParameterSymbol
from pgmodels.likelihoods.operations import exp, largest, log, multiply, normal_cdf, normal_pdf, sigmoid, sqrt, sum_
from pgmodels.likelihoods.printing import call, line, tree, words
from pgmodels.likelihoods.supports import Binary, Counts, Real, Undeclared
from tests.covering import some
from tests.rules import F3, FORMULAS, PARAMETERS, F, R, Y


def check(name, seed=0, y=None):
    case = FORMULAS[name]
    with jax.enable_x64(True):
        augmentation = derive_formula(case.formula, case.size)
        return verify_augmentation(augmentation, PARAMETERS, case.support, seed, y)


def test_every_rule_has_a_row():
    used = {type(rule) for case in FORMULAS.values() for rule in derive_formula(case.formula, case.size).rules}
    assert used >= set(RULES)


# By default as few as there are with every rule.
FEW = (
    "gaussian",
    "guessing in multinomial probit",
    "guessing in probit",
    "interval censored",
    "noisy or",
    "Laplace or Student t",
    "ordered logit",
    "presence",
    "undeclared classes",
)


@pytest.mark.parametrize("name", some(FORMULAS, *FEW))
def test_passes(name):
    verification = check(name)
    assert len(verification.checks) == 9
    assert all(check.figure <= check.tolerance for check in verification.checks)


def test_prints_a_table_of_figures():
    verification = check("bernoulli")
    lines = str(verification).splitlines()
    assert lines[0].split() == ["check", "figure", "tolerance"]
    assert [line.split("  ")[0] for line in lines[1:]] == list(verification.figures)


@pytest.mark.slow
def test_a_seed_repeats():
    assert check("bernoulli", seed=3) == check("bernoulli", seed=3)
    assert check("bernoulli", seed=3) != check("bernoulli", seed=4)


def test_changes_no_global_state():
    before = jax.config.jax_enable_x64
    verify_augmentation(derive_formula(FORMULAS["gaussian"].formula, 1), PARAMETERS, Real())
    assert jax.config.jax_enable_x64 == before


def test_takes_observations():
    y = np.array([[3.0, 0.4], [0.0, -1.2], [1.0, 2.5]])
    assert check("offset", y=y).figures[TIGHT] <= verify_cases.ROUNDING


# Symbols of auxiliaries, and formulas with a parameter that is read after the auxiliary of that symbol is drawn.
AUXILIARIES = {
    "j": lambda p: (0.1 + 0.3 * sigmoid(F)) * sigmoid(-F) ** p,
    "λ": lambda p: sigmoid(F) ** p / (1 + sigmoid(F)),
    "k": lambda p: sigmoid(F) ** p * exp(-2 * sigmoid(F)),
    "n": lambda p: sigmoid(F) ** p * (1 - exp(-2 * sigmoid(F))),
    "u": lambda p: normal_cdf(F - 0.3) * normal_cdf(p * F),
    "g": lambda p: largest(F3, Y, p),
    "ω": lambda p: sigmoid(F - 0.3) * sigmoid(F) ** p,
}


@pytest.mark.parametrize("symbol", AUXILIARIES)
def test_a_parameter_with_the_name_of_an_auxiliary_changes_no_draw(symbol):
    y, sites = np.array([0.0, 2.0, 1.0]), []
    with jax.enable_x64(True):
        for name in (symbol, "rate"):
            formula = AUXILIARIES[symbol](ParameterSymbol(name, positive=True))
            augmentation = derive_formula(formula, 3 if symbol == "g" else 1)
            f = jnp.asarray(np.random.default_rng(1).normal(size=(3, augmentation.size)))
            sites.append(augmentation.draw_auxiliaries(jax.random.key(0), f, y, {name: 1.7}))
    np.testing.assert_array_equal(sites[0], sites[1])


SURVIVAL = (R / Y[0] * sigmoid(R * (log(Y[0]) - F))) ** Y[1] * sigmoid(R * (F - log(Y[0])))
EXPOSED = sigmoid(F + log(Y[1])) ** Y[0] * sigmoid(-F - log(Y[1])) ** R


@pytest.mark.parametrize(("formula", "column"), [(SURVIVAL, 0), (EXPOSED, 1)])
def test_observations_are_chosen_where_the_formula_has_a_value(formula, column, monkeypatch):
    def is_defined(case):
        # The logarithm of 0 times 0 is 0 in the density, and nan in a site.
        assert (case.y[:, column] > 0).all()
        return Check("defined", 0.0, 0.0)

    monkeypatch.setattr(verify, "CHECKS", (is_defined,))
    augmentation = derive_formula(formula, 1)
    for seed in range(4):
        assert verify_augmentation(augmentation, PARAMETERS, Undeclared(2), seed).checks
    with pytest.raises(ValueError, match="the rows of y are not observations"):
        verify_augmentation(augmentation, PARAMETERS, Undeclared(2), y=[[0.0, 0.0]])


def test_asks_for_observations_where_none_are_found():
    with pytest.raises(ValueError, match="pass y="):
        check("binomial", y=np.array([[3.0, 2.0]]))
    with jax.enable_x64(True):
        augmentation = derive_formula(normal_cdf(F) ** (Y - 1000), 1)
        with pytest.raises(ValueError, match="the exponent of Φ"):
            verify_augmentation(augmentation, {}, Counts())


def result_of(owner, method, change):
    """A method that is replaced by a change of its result."""
    original = getattr(owner, method)
    return owner, method, lambda self, *args: change(self, original(self, *args), *args)


def with_law(owner, change):
    """A rule with another law of its auxiliary."""
    original = owner.__init__

    def init(self, *args):
        original(self, *args)
        self.law = change(self.law, self)

    return owner, "__init__", init


class DrawnElsewhere(Poisson):
    def draw(self, key, env):
        return Poisson(self.wrong).draw(key, env)


def drawn_elsewhere(law, rule):
    law = DrawnElsewhere(law.rate)
    object.__setattr__(law, "wrong", rule.rate.expression * rule.up)
    return law


def site_without_offset(self, h, w, env):
    scale = self.scale.evaluate(env)
    return self._scatter(scale * h), self._scatter(scale**2 * w)


def factor_without_offset(self, log_factor, env, known=()):
    z = self.predictor.expression
    without = Environment(env.y, env.f - self.predictor.shift.evaluate(env), env.parameters)
    a, b = self.a.evaluate(env), self.b.evaluate(env)
    return a * sigmoid(z).log_evaluate(without) + b * sigmoid(-z).log_evaluate(without)


def doubled_precisions(self, sites, *args):
    return tuple(replace(site, precision=2 * site.precision) for site in sites)


def other_mixing_law(self, log_joint, env):
    return log_joint + 0.5 * jnp.log(self.auxiliary.evaluate(env))


def double_gamma(key, rate):
    return jax.random.gamma(key, jnp.full(rate.shape, 2.0)) / rate


def largest_alone(self, log_joint, env):
    value, z = self.auxiliary.evaluate(env), self.predictor.expression.evaluate(env)
    return jnp.sum(jnp.where(self.node.chosen(env), norm.logpdf(value, z), 0.0), axis=-1, keepdims=True)


def uniform_allocation(self, drawn, key, env):
    other = 1.0 + jax.random.randint(key, drawn.shape, 0, len(self.weights))
    return jnp.where(drawn > 0, other, 0.0)


log_sigmoid_tilde, mean_of = laws.log_sigmoid_tilde, laws.mean_of
# Errors: the formula that shows one, the check that must name it, what is replaced, and by what.
PLANTED = {
    "Poisson auxiliary at σ(z), throughout": (
        *("sigmoid poisson", JOINT),
        *with_law(PoissonRule, lambda law, rule: Poisson(rule.rate.expression * rule.up)),
    ),
    "Poisson auxiliary drawn at σ(z)": ("logistic softmax", DRAWN, *with_law(PoissonRule, drawn_elsewhere)),
    "a doubled precision": ("bernoulli", SITE, *result_of(PolyaGammaRule, "sites", doubled_precisions)),
    "a doubled precision of the bound's site": (
        *("student t", GRADIENT),
        *result_of(Augmentation, "local_sites", lambda self, site, *args: (site[0], 2 * site[1])),
    ),
    "a missing log 2 in the joint": (
        *("negative binomial", INTEGRATES),
        *result_of(PolyaGammaRule, "log_joint", lambda self, p, env: p + self.total.evaluate(env) * jnp.log(2.0)),
    ),
    "a missing log 2 in the bound": (
        *("bernoulli", TIGHT, laws, "log_sigmoid_tilde"),
        lambda mean, variance: log_sigmoid_tilde(mean, variance) + jnp.log(2.0),
    ),
    "an offset dropped from the site": ("offset", SITE, Predictor, "site", site_without_offset),
    "an offset dropped from the moments": (
        "offset",
        TIGHT,
        laws,
        "mean_of",
        lambda predictor: mean_of(predictor) - predictor.shift,
    ),
    "an offset dropped from the value": (
        "offset",
        INTEGRATES,
        *result_of(PolyaGammaRule, "log_factor", factor_without_offset),
    ),
    "a wrong shape of the Gamma auxiliary": (
        *("logistic softmax", DRAWN, Gamma, "draw"),
        # Shape 2 for shape 1.
        lambda self, key, env: double_gamma(key, self.rate.evaluate(env)),
    ),
    "a wrong scale of the mixing Gamma": (
        "student t",
        DRAWN,
        *result_of(Gamma, "draw", lambda self, drawn, *args: 1.25 * drawn),
    ),
    "a wrong shape of the inverse Gaussian": (
        *("laplace", DRAWN, laws, "inverse_gaussian"),
        lambda key, mean, shape: inverse_gaussian(key, mean, 2 * shape),
    ),
    "a wrong mixing law": (
        *("laplace", INTEGRATES),
        *result_of(InverseGaussianMixtureRule, "log_joint", other_mixing_law),
    ),
    "a truncated Gaussian that is not truncated": (
        *("probit", DRAWN, laws, "truncated_normal"),
        lambda key, mean: mean + jax.random.normal(key, mean.shape),
    ),
    "an interval that is not an interval": (
        *("ordered probit", DRAWN, laws, "interval_normal"),
        lambda key, low, high: jax.random.normal(key, low.shape),
    ),
    "the largest not larger": (
        *("multinomial probit", DRAWN, laws, "normals_of_largest"),
        lambda key, mean, chosen: mean + jax.random.normal(key, mean.shape),
    ),
    "the largest alone in the joint": (
        "multinomial probit",
        INTEGRATES,
        *result_of(ArgmaxRule, "log_joint", largest_alone),
    ),
    "an allocation that ignores the weights": (
        "label noise",
        DRAWN,
        *result_of(laws.Categorical, "draw", uniform_allocation),
    ),
    "a bound without the weight of a component": (
        *("zero inflated", TIGHT, MixtureRule, "share"),
        lambda self: LogMixture(tuple(share - 0.1 for share in self.shares)),
    ),
    "a bound without its variance": (
        *("probit", BELOW),
        *result_of(
            TruncatedGaussianRule,
            "share",
            lambda self, share: share + 0.5 * self.exponent * laws.variance_of(self.predictor),
        ),
    ),
    "an exponent forgotten": (
        *("binomial", INTEGRATES, PolyaGammaRule, "log_factor"),
        lambda self, env, known=(): jnp.zeros((1, 1)),
    ),
    "the coupling's site at σ(-g)": (
        *("heteroscedastic", SITE, PoissonRule, "coupled_sites"),
        lambda self, averaged=False: quadratic_sites(self.rate, self.down),
    ),
}


@pytest.mark.parametrize(
    "error", some(PLANTED, "Poisson auxiliary drawn at σ(z)", "a doubled precision", "an exponent forgotten")
)
def test_catches(error, monkeypatch):
    formula, expected, *replaced = PLANTED[error]
    monkeypatch.setattr(*replaced)
    with pytest.raises(VerificationError) as raised:
        check(formula)
    message = str(raised.value)
    assert message.startswith(f"{expected}: failed by ")
    assert f"likelihood: {FORMULAS[formula].formula.text()}" in message
    assert "worst at y = " in message


def test_catches_an_elbo_that_falls(monkeypatch):
    # A wrong site is not the gradient either, which would be found first.
    wrong = result_of(Augmentation, "local_sites", lambda self, site, *args: (3 * site[0], site[1]))
    monkeypatch.setattr(*wrong)
    monkeypatch.setattr(verify, "CHECKS", (verify_cases.elbo_rises,))
    with pytest.raises(VerificationError, match=RISES):
        check("bernoulli")


# The printed form of derivations: of nested rules it is what is computed, and an error in it is found.


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
# A number times a difference is two terms of a mixtures, one of them negative.
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


def other_potential(averaged):
    original = explain.conditional_sites

    def sites(augmentation, block=0, of=False):
        sites = original(augmentation, block, of)
        return tuple(replace(s, potential=-s.potential) for s in sites) if of == averaged else sites

    return explain, "conditional_sites", sites


def every_responsibility(self):
    return tuple((Expected(part), Responsibility(self.shares, k)) for k, part in enumerate(self.allocated))


# Errors in print: the formula that shows one, what is replaced, and by what.
PLANTED_IN_PRINT = {
    "another likelihood": ("probit", infix, "_FUNCTIONS", infix._FUNCTIONS | {"normal_cdf": "σ"}),
    "an identity without its factor": ("bernoulli", mixtures, "inverse_power", lambda base, exponent: tree(1)),
    "an identity that holds for some data only": ("noisy or", mixtures, "where", lambda switch: ()),
    "a joint of another mixing law": ("laplace", InverseGaussianMixtureRule, "augmented", lambda self: tree(1)),
    "a joint without the interval": ("ordered probit", IntervalGaussianRule, "augmented", lambda self: self.density()),
    **{f"the law {name}": (shown, getattr(laws, name), "notation", text) for name, (shown, text) in NOTATIONS.items()},
    "an allocation where none is drawn": ("noisy or", laws.Categorical, "notation", NOTATIONS["Categorical"][1]),
    "a condition of a truncated Gaussian": ("probit", laws, "where", lambda switch: ()),
    "a law that is not conditioned on what it reads": (
        "sigmoid poisson",
        rule,
        "auxiliaries_of",
        lambda expression: [],
    ),
    "a site given the auxiliaries": ("bernoulli", *other_potential(averaged=False)),
    "a site of CAVI": ("bernoulli", *other_potential(averaged=True)),
    # Also that of the diagnostics, which the draws show.
    "an expectation": ("bernoulli", *result_of(laws.PolyaGamma, "mean", lambda self, mean: multiply(2.0, mean))),
    "a probability of an allocation where none is drawn": (
        "noisy or",
        MixtureRule,
        "expectations",
        every_responsibility,
    ),
    "a symbol without a definition": ("bernoulli", explain, "subexpressions", lambda expression: []),
    "another mean of an interval": (
        *("interval censored", laws.IntervalMean, "notation"),
        lambda self, precedence=0: self.law.location.notation(),
    ),
    "another bound": (
        *("zero inflated", LogMixture, "notation"),
        lambda self, precedence=0: self.children[0].notation(precedence),
    ),
    "definitions with the signs exchanged": (
        *("bernoulli", laws.Tilde, "notation"),
        lambda self, precedence=0: call("σ̃₊", self.predictor.expression),
    ),
}


# Each formula of the table is read as it is in test_verify.py.
@pytest.mark.parametrize(
    "error",
    some(
        PLANTED_IN_PRINT,
        "an allocation where none is drawn",
        "a condition of a truncated Gaussian",
        "a site of CAVI",
        "an expectation",
        "definitions with the signs exchanged",
    ),
)
def test_an_error_in_the_printed_form_is_found(error, monkeypatch):
    name, *replaced = PLANTED_IN_PRINT[error]
    case = FORMULAS[name]
    y = case.support.examples(np.random.default_rng(0), ROWS)
    monkeypatch.setattr(*replaced)
    with pytest.raises(VerificationError, match=f"^{PRINTED}: .*\n.*\n.*\n  printed: "):
        form(case.formula, case.size, y)
