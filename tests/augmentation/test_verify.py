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
from pgmodels.augmentation.verify_cases import ROWS, Case, Check
from pgmodels.likelihoods import infix
from pgmodels.likelihoods.expression import Environment, Latents, ParameterSymbol
from pgmodels.likelihoods.operations import exp, largest, log, multiply, normal_cdf, normal_pdf, sigmoid, sqrt, sum_
from pgmodels.likelihoods.printing import call, line, tree, words
from pgmodels.likelihoods.supports import Binary, Counts, Real, Undeclared
from tests.covering import some
from tests.rules import F3, FORMULAS, PARAMETERS, F, R, Y

PLANTED = {}


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
    assert check("offset", y=y).figures[verify_cases.TIGHT] <= verify_cases.ROUNDING


# Symbols of auxiliaries, and formulas with a parameter that is read after the auxiliary of that symbol is drawn.
AUXILIARIES = {
    "j": lambda p: (0.1 + 0.3 * sigmoid(F)) * sigmoid(-F) ** p,
    "λ": lambda p: sigmoid(F) ** p / (1 + sigmoid(F)),
    "k": lambda p: sigmoid(F) ** p * exp(-2 * sigmoid(F)),
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


def planted(name, formula, expected):
    """Register a change that plants an error, the formula that shows it and the check that must name it."""

    def register(change):
        PLANTED[name] = (change, formula, expected)
        return change

    return register


def patch_result(monkeypatch, owner, method, change):
    """Replace a method by a change of its result."""
    original = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *args: change(self, original(self, *args), *args))


@planted("Poisson auxiliary at σ(z), throughout", "sigmoid poisson", verify_cases.JOINT)
def poisson_sign(monkeypatch):
    with_another_law(monkeypatch, PoissonRule, lambda law, rule: Poisson(rule.rate.expression * rule.up))


@planted("Poisson auxiliary drawn at σ(z)", "logistic softmax", verify_cases.DRAWN)
def poisson_draw_sign(monkeypatch):
    class Wrong(Poisson):
        def draw(self, key, env):
            return Poisson(self.wrong).draw(key, env)

    def wrong(law, rule):
        law = Wrong(law.rate)
        object.__setattr__(law, "wrong", rule.rate.expression * rule.up)
        return law

    with_another_law(monkeypatch, PoissonRule, wrong)


def with_another_law(monkeypatch, owner, change):
    """Replace the law of a rule's auxiliary."""
    original = owner.__init__

    def init(self, *args):
        original(self, *args)
        self.law = change(self.law, self)

    monkeypatch.setattr(owner, "__init__", init)


@planted("a doubled precision", "bernoulli", verify_cases.SITE)
def doubled_precision(monkeypatch):
    def change(self, sites):
        return tuple(replace(site, precision=2 * site.precision) for site in sites)

    patch_result(monkeypatch, PolyaGammaRule, "sites", change)


@planted("a doubled precision of the bound's site", "student t", verify_cases.GRADIENT)
def doubled_variational_precision(monkeypatch):
    patch_result(monkeypatch, Augmentation, "local_sites", lambda self, site, *args: (site[0], 2 * site[1]))


@planted("a missing log 2 in the joint", "negative binomial", verify_cases.INTEGRATES)
def missing_log_two(monkeypatch):
    def change(self, log_joint, env):
        return log_joint + self.total.evaluate(env) * jnp.log(2.0)

    patch_result(monkeypatch, PolyaGammaRule, "log_joint", change)


@planted("a missing log 2 in the bound", "bernoulli", verify_cases.TIGHT)
def missing_log_two_in_the_bound(monkeypatch):
    original = laws.log_sigmoid_tilde
    monkeypatch.setattr(laws, "log_sigmoid_tilde", lambda mean, variance: original(mean, variance) + jnp.log(2.0))


@planted("an offset dropped from the site", "offset", verify_cases.SITE)
def offset_dropped_from_site(monkeypatch):
    def site(self, h, w, env):
        scale = self.scale.evaluate(env)
        return self._scatter(scale * h), self._scatter(scale**2 * w)

    monkeypatch.setattr(Predictor, "site", site)


@planted("an offset dropped from the moments", "offset", verify_cases.TIGHT)
def offset_dropped_from_moments(monkeypatch):
    original = laws.mean_of
    monkeypatch.setattr(laws, "mean_of", lambda predictor: original(predictor) - predictor.shift)


@planted("an offset dropped from the value", "offset", verify_cases.INTEGRATES)
def offset_dropped_from_value(monkeypatch):
    def change(self, log_factor, env, known=()):
        z = self.predictor.expression
        without = Environment(env.y, env.f - self.predictor.shift.evaluate(env), env.parameters)
        a, b = self.a.evaluate(env), self.b.evaluate(env)
        return a * sigmoid(z).log_evaluate(without) + b * sigmoid(-z).log_evaluate(without)

    patch_result(monkeypatch, PolyaGammaRule, "log_factor", change)


@planted("a wrong shape of the Gamma auxiliary", "logistic softmax", verify_cases.DRAWN)
def gamma_shape(monkeypatch):
    # Shape 2 for shape 1.
    monkeypatch.setattr(Gamma, "draw", lambda self, key, env: double_gamma(key, self.rate.evaluate(env)))


def double_gamma(key, rate):
    return jax.random.gamma(key, jnp.full(rate.shape, 2.0)) / rate


@planted("a wrong scale of the mixing Gamma", "student t", verify_cases.DRAWN)
def mixing_shape(monkeypatch):
    patch_result(monkeypatch, Gamma, "draw", lambda self, drawn, *args: 1.25 * drawn)


@planted("a wrong shape of the inverse Gaussian", "laplace", verify_cases.DRAWN)
def inverse_gaussian_shape(monkeypatch):
    monkeypatch.setattr(laws, "inverse_gaussian", lambda key, mean, shape: inverse_gaussian(key, mean, 2 * shape))


@planted("a wrong mixing law", "laplace", verify_cases.INTEGRATES)
def mixing_law(monkeypatch):
    def change(self, log_joint, env):
        return log_joint + 0.5 * jnp.log(self.auxiliary.evaluate(env))

    patch_result(monkeypatch, InverseGaussianMixtureRule, "log_joint", change)


@planted("a truncated Gaussian that is not truncated", "probit", verify_cases.DRAWN)
def no_truncation(monkeypatch):
    monkeypatch.setattr(laws, "truncated_normal", lambda key, mean: mean + jax.random.normal(key, mean.shape))


@planted("an interval that is not an interval", "ordered probit", verify_cases.DRAWN)
def no_interval(monkeypatch):
    monkeypatch.setattr(laws, "interval_normal", lambda key, low, high: jax.random.normal(key, low.shape))


@planted("the largest not larger", "multinomial probit", verify_cases.DRAWN)
def not_the_largest(monkeypatch):
    def normals(key, mean, chosen):
        return mean + jax.random.normal(key, mean.shape)

    monkeypatch.setattr(laws, "normals_of_largest", normals)


@planted("the largest alone in the joint", "multinomial probit", verify_cases.INTEGRATES)
def largest_alone(monkeypatch):
    def change(self, log_joint, env):
        value, z = self.auxiliary.evaluate(env), self.predictor.expression.evaluate(env)
        return jnp.sum(jnp.where(self.node.chosen(env), norm.logpdf(value, z), 0.0), axis=-1, keepdims=True)

    patch_result(monkeypatch, ArgmaxRule, "log_joint", change)


@planted("an allocation that ignores the weights", "label noise", verify_cases.DRAWN)
def uniform_allocation(monkeypatch):
    def change(self, drawn, key, env):
        other = 1.0 + jax.random.randint(key, drawn.shape, 0, len(self.weights))
        return jnp.where(drawn > 0, other, 0.0)

    patch_result(monkeypatch, laws.Categorical, "draw", change)


@planted("a bound without the weight of a component", "zero inflated", verify_cases.TIGHT)
def unweighted_component(monkeypatch):
    monkeypatch.setattr(MixtureRule, "share", lambda self: LogMixture(tuple(share - 0.1 for share in self.shares)))


@planted("a bound without its variance", "probit", verify_cases.BELOW)
def bound_without_variance(monkeypatch):
    def change(self, share):
        return share + 0.5 * self.exponent * laws.variance_of(self.predictor)

    patch_result(monkeypatch, TruncatedGaussianRule, "share", change)


@planted("an exponent forgotten", "binomial", verify_cases.INTEGRATES)
def forgotten_exponent(monkeypatch):
    monkeypatch.setattr(PolyaGammaRule, "log_factor", lambda self, env, known=(): jnp.zeros((1, 1)))


@planted("the coupling's site at σ(-g)", "heteroscedastic", verify_cases.SITE)
def coupling_sign(monkeypatch):
    def coupled_sites(self, averaged=False):
        return quadratic_sites(self.rate, self.down)

    monkeypatch.setattr(PoissonRule, "coupled_sites", coupled_sites)


@pytest.mark.parametrize(
    "error", some(PLANTED, "Poisson auxiliary drawn at σ(z)", "a doubled precision", "an exponent forgotten")
)
def test_catches(error, monkeypatch):
    change, formula, expected = PLANTED[error]
    change(monkeypatch)
    with pytest.raises(VerificationError) as raised:
        check(formula)
    message = str(raised.value)
    assert message.startswith(f"{expected}: failed by ")
    assert f"likelihood: {FORMULAS[formula].formula.text()}" in message
    assert "worst at y = " in message


def test_catches_an_elbo_that_falls(monkeypatch):
    # A wrong site is not the gradient either, which would be found first.
    patch_result(monkeypatch, Augmentation, "local_sites", lambda self, site, *args: (3 * site[0], site[1]))
    monkeypatch.setattr(verify, "CHECKS", (verify_cases.elbo_rises,))
    with pytest.raises(VerificationError, match=verify_cases.RISES):
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


PLANTED_IN_PRINT = {}


def planted_in_print(name, formula):
    """Register a change that plants an error in the printed form, and the formula that shows it."""

    def register(change):
        PLANTED_IN_PRINT[name] = (change, formula)
        return change

    return register


@planted_in_print("another likelihood", "probit")
def printed_likelihood(monkeypatch):
    monkeypatch.setitem(infix._FUNCTIONS, "normal_cdf", "σ")


@planted_in_print("an identity without its factor", "bernoulli")
def printed_identity(monkeypatch):
    monkeypatch.setattr(mixtures, "inverse_power", lambda base, exponent: tree(1))


@planted_in_print("an identity that holds for some data only", "noisy or")
def printed_condition_of_identity(monkeypatch):
    monkeypatch.setattr(mixtures, "where", lambda switch: ())


@planted_in_print("a joint of another mixing law", "laplace")
def printed_joint(monkeypatch):
    patch_result(monkeypatch, InverseGaussianMixtureRule, "augmented", lambda self, augmented: tree(1))


@planted_in_print("a joint without the interval", "ordered probit")
def printed_joint_of_interval(monkeypatch):
    monkeypatch.setattr(IntervalGaussianRule, "augmented", lambda self: self.density())


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

    @planted_in_print(f"the law {name}", formula)
    def change(monkeypatch):
        monkeypatch.setattr(getattr(laws, name), "notation", notation)


for law_name in NOTATIONS:
    notation_of(law_name)


@planted_in_print("an allocation where none is drawn", "noisy or")
def printed_allocation(monkeypatch):
    monkeypatch.setattr(laws.Categorical, "notation", NOTATIONS["Categorical"][1])


@planted_in_print("a condition of a truncated Gaussian", "probit")
def printed_condition(monkeypatch):
    monkeypatch.setattr(laws, "where", lambda switch: ())


@planted_in_print("a law that is not conditioned on what it reads", "sigmoid poisson")
def printed_conditioning(monkeypatch):
    monkeypatch.setattr(rule, "auxiliaries_of", lambda expression: [])


@planted_in_print("a site given the auxiliaries", "bernoulli")
def printed_site(monkeypatch):
    with_another_potential(monkeypatch, averaged=False)


@planted_in_print("a site of CAVI", "bernoulli")
def printed_update(monkeypatch):
    with_another_potential(monkeypatch, averaged=True)


def with_another_potential(monkeypatch, averaged):
    original = explain.conditional_sites

    def sites(augmentation, block=0, of=False):
        sites = original(augmentation, block, of)
        return tuple(replace(s, potential=-s.potential) for s in sites) if of == averaged else sites

    monkeypatch.setattr(explain, "conditional_sites", sites)


@planted_in_print("an expectation", "bernoulli")
def printed_expectation(monkeypatch):
    # Also that of the diagnostics, which the draws show.
    patch_result(monkeypatch, laws.PolyaGamma, "mean", lambda self, mean: multiply(2.0, mean))


@planted_in_print("a probability of an allocation where none is drawn", "noisy or")
def printed_responsibility(monkeypatch):
    def expectations(self):
        return tuple((Expected(part), Responsibility(self.shares, k)) for k, part in enumerate(self.allocated))

    monkeypatch.setattr(MixtureRule, "expectations", expectations)


@planted_in_print("a symbol without a definition", "bernoulli")
def printed_symbol(monkeypatch):
    monkeypatch.setattr(explain, "subexpressions", lambda expression: [])


@planted_in_print("another mean of an interval", "interval censored")
def printed_mean(monkeypatch):
    monkeypatch.setattr(laws.IntervalMean, "notation", lambda self, precedence=0: self.law.location.notation())


@planted_in_print("another bound", "zero inflated")
def printed_bound(monkeypatch):
    monkeypatch.setattr(LogMixture, "notation", lambda self, precedence=0: self.children[0].notation(precedence))


@planted_in_print("definitions with the signs exchanged", "bernoulli")
def printed_definition(monkeypatch):
    monkeypatch.setattr(laws.Tilde, "notation", lambda self, precedence=0: call("σ̃₊", self.predictor.expression))


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
    change, name = PLANTED_IN_PRINT[error]
    case = FORMULAS[name]
    y = case.support.examples(np.random.default_rng(0), ROWS)
    change(monkeypatch)
    with pytest.raises(VerificationError, match=f"^{verify_cases.PRINTED}: .*\n.*\n.*\n  printed: "):
        form(case.formula, case.size, y)
