from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from pgmodels.augmentation import laws, verify
from pgmodels.augmentation import laws as argmax_law
from pgmodels.augmentation import laws as averages
from pgmodels.augmentation import laws as interval_law
from pgmodels.augmentation import verify_cases as verify_bound
from pgmodels.augmentation import verify_cases as verify_case
from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.laws import Gamma, Poisson, inverse_gaussian
from pgmodels.augmentation.predictors import Predictor, VerificationError
from pgmodels.augmentation.rules import RULES
from pgmodels.augmentation.rules.gaussian import ArgmaxRule, TruncatedGaussianRule
from pgmodels.augmentation.rules.mixtures import (
    InverseGaussianMixtureRule,
    LogMixture,
    MixtureRule,
    PoissonRule,
    PolyaGammaRule,
)
from pgmodels.augmentation.rules.rule import quadratic_sites
from pgmodels.augmentation.verify import verify_augmentation
from pgmodels.likelihoods.expression import Environment, ParameterSymbol
from pgmodels.likelihoods.operations import exp, largest, log, normal_cdf, sigmoid
from pgmodels.likelihoods.supports import Counts, Real, Undeclared
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
    assert check("offset", y=y).figures[verify_case.TIGHT] <= verify_case.ROUNDING


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
def test_chooses_no_observations_at_which_the_formula_has_no_value(formula, column):
    augmentation = derive_formula(formula, 1)
    for seed in range(4):
        y = verify._observations(augmentation, PARAMETERS, Undeclared(2), np.random.default_rng(seed), None)
        # The logarithm of 0 times nothing is nothing in the density, and not a number in a site.
        assert (y[:, column] > 0).all()
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


@planted("Poisson auxiliary at σ(z), throughout", "sigmoid poisson", verify_case.JOINT)
def poisson_sign(monkeypatch):
    with_another_law(monkeypatch, PoissonRule, lambda law, rule: Poisson(rule.rate.expression * rule.up))


@planted("Poisson auxiliary drawn at σ(z)", "logistic softmax", verify_case.DRAWN)
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


@planted("a doubled precision", "bernoulli", verify_case.SITE)
def doubled_precision(monkeypatch):
    def change(self, sites):
        return tuple(replace(site, precision=2 * site.precision) for site in sites)

    patch_result(monkeypatch, PolyaGammaRule, "sites", change)


@planted("a doubled precision of the bound's site", "student t", verify_case.GRADIENT)
def doubled_variational_precision(monkeypatch):
    patch_result(monkeypatch, Augmentation, "local_sites", lambda self, site, *args: (site[0], 2 * site[1]))


@planted("a missing log 2 in the joint", "negative binomial", verify_case.INTEGRATES)
def missing_log_two(monkeypatch):
    def change(self, log_joint, env):
        return log_joint + self.total.evaluate(env) * jnp.log(2.0)

    patch_result(monkeypatch, PolyaGammaRule, "log_joint", change)


@planted("a missing log 2 in the bound", "bernoulli", verify_case.TIGHT)
def missing_log_two_in_the_bound(monkeypatch):
    original = averages.log_sigmoid_tilde
    monkeypatch.setattr(averages, "log_sigmoid_tilde", lambda mean, variance: original(mean, variance) + jnp.log(2.0))


@planted("an offset dropped from the site", "offset", verify_case.SITE)
def offset_dropped_from_site(monkeypatch):
    def site(self, h, w, env):
        scale = self.scale.evaluate(env)
        return self._scatter(scale * h), self._scatter(scale**2 * w)

    monkeypatch.setattr(Predictor, "site", site)


@planted("an offset dropped from the moments", "offset", verify_case.TIGHT)
def offset_dropped_from_moments(monkeypatch):
    original = averages.mean_of
    monkeypatch.setattr(averages, "mean_of", lambda predictor: original(predictor) - predictor.shift)


@planted("an offset dropped from the value", "offset", verify_case.INTEGRATES)
def offset_dropped_from_value(monkeypatch):
    def change(self, log_factor, env, known=()):
        z = self.predictor.expression
        without = Environment(env.y, env.f - self.predictor.shift.evaluate(env), env.parameters)
        a, b = self.a.evaluate(env), self.b.evaluate(env)
        return a * sigmoid(z).log_evaluate(without) + b * sigmoid(-z).log_evaluate(without)

    patch_result(monkeypatch, PolyaGammaRule, "log_factor", change)


@planted("a wrong shape of the Gamma auxiliary", "logistic softmax", verify_case.DRAWN)
def gamma_shape(monkeypatch):
    # Shape 2 for shape 1.
    monkeypatch.setattr(Gamma, "draw", lambda self, key, env: double_gamma(key, self.rate.evaluate(env)))


def double_gamma(key, rate):
    return jax.random.gamma(key, jnp.full(rate.shape, 2.0)) / rate


@planted("a wrong scale of the mixing Gamma", "student t", verify_case.DRAWN)
def mixing_shape(monkeypatch):
    patch_result(monkeypatch, Gamma, "draw", lambda self, drawn, *args: 1.25 * drawn)


@planted("a wrong shape of the inverse Gaussian", "laplace", verify_case.DRAWN)
def inverse_gaussian_shape(monkeypatch):
    monkeypatch.setattr(laws, "inverse_gaussian", lambda key, mean, shape: inverse_gaussian(key, mean, 2 * shape))


@planted("a wrong mixing law", "laplace", verify_case.INTEGRATES)
def mixing_law(monkeypatch):
    def change(self, log_joint, env):
        return log_joint + 0.5 * jnp.log(self.auxiliary.evaluate(env))

    patch_result(monkeypatch, InverseGaussianMixtureRule, "log_joint", change)


@planted("a truncated Gaussian that is not truncated", "probit", verify_case.DRAWN)
def no_truncation(monkeypatch):
    monkeypatch.setattr(laws, "truncated_normal", lambda key, mean: mean + jax.random.normal(key, mean.shape))


@planted("an interval that is not an interval", "ordered probit", verify_case.DRAWN)
def no_interval(monkeypatch):
    monkeypatch.setattr(interval_law, "interval_normal", lambda key, low, high: jax.random.normal(key, low.shape))


@planted("the largest not larger", "multinomial probit", verify_case.DRAWN)
def not_the_largest(monkeypatch):
    def normals(key, mean, chosen):
        return mean + jax.random.normal(key, mean.shape)

    monkeypatch.setattr(argmax_law, "normals_of_largest", normals)


@planted("the largest alone in the joint", "multinomial probit", verify_case.INTEGRATES)
def largest_alone(monkeypatch):
    def change(self, log_joint, env):
        value, z = self.auxiliary.evaluate(env), self.predictor.expression.evaluate(env)
        return jnp.sum(jnp.where(self.node.chosen(env), norm.logpdf(value, z), 0.0), axis=-1, keepdims=True)

    patch_result(monkeypatch, ArgmaxRule, "log_joint", change)


@planted("an allocation that ignores the weights", "label noise", verify_case.DRAWN)
def uniform_allocation(monkeypatch):
    def change(self, drawn, key, env):
        other = 1.0 + jax.random.randint(key, drawn.shape, 0, len(self.weights))
        return jnp.where(drawn > 0, other, 0.0)

    patch_result(monkeypatch, laws.Categorical, "draw", change)


@planted("a bound without the weight of a component", "zero inflated", verify_case.TIGHT)
def unweighted_component(monkeypatch):
    monkeypatch.setattr(MixtureRule, "share", lambda self: LogMixture(tuple(share - 0.1 for share in self.shares)))


@planted("a bound without its variance", "probit", verify_case.BELOW)
def bound_without_variance(monkeypatch):
    def change(self, share):
        return share + 0.5 * self.exponent * averages.variance_of(self.predictor)

    patch_result(monkeypatch, TruncatedGaussianRule, "share", change)


@planted("an exponent forgotten", "binomial", verify_case.INTEGRATES)
def forgotten_exponent(monkeypatch):
    monkeypatch.setattr(PolyaGammaRule, "log_factor", lambda self, env, known=(): jnp.zeros((1, 1)))


@planted("the coupling's site at σ(-g)", "heteroscedastic", verify_case.SITE)
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
    monkeypatch.setattr(verify, "CHECKS", (verify_bound.elbo_rises,))
    with pytest.raises(VerificationError, match=verify_case.RISES):
        check("bernoulli")
