"""A rule from outside the package: hyperbolic secants, 1 / (exp(z) + exp(-z))^b, by a Pólya-Gamma variable."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import minimize

import pgmodels as pgm
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.laws import PolyaGamma, Root, Tilde
from pgmodels.augmentation.predictors import Auxiliary, Predictor, SiteTerm, over_latents
from pgmodels.augmentation.rules import RULES, Rule, register
from pgmodels.likelihoods.expression import Constant
from pgmodels.likelihoods.operations import Call, Sum
from pgmodels.likelihoods.printing import density, factors, integral, inverse_power, line

ZERO = Constant(0.0)


class SecantRule(Rule):
    """(exp(z) + exp(-z))^-b with ω ~ PG(b, 2 z), since cosh(z)^-b = E exp(-2 ω z^2) over ω ~ PG(b, 0)."""

    title = "Secant"
    rank = 5

    def __init__(self, name, z, b, factor, parent):
        self.z, self.b, self.factor, self.parent = z, b, factor, parent
        self.twice = Predictor(z.latent, 2 * z.scale, 2 * z.shift)
        self.positions = z.positions
        self.auxiliary = Auxiliary(name, z.is_vector or b.is_vector)
        self.law = PolyaGamma(b, self.twice.expression)

    @classmethod
    def match(cls, factor, deriver):
        terms = factor.base.children if isinstance(factor.base, Sum) else ()
        if len(terms) != 2 or not all(isinstance(term, Call) and term.name == "exp" for term in terms):
            return None
        z, other = (deriver.predictor(term.argument, factor.expression) for term in terms)
        if z.negated().key != other.key or factor.exponent.sign != -1:
            return None
        deriver.rules.append(cls(deriver.name("ω"), z, -factor.exponent, factor.base**factor.exponent, factor.parent))
        return ()

    def share(self):
        # -b log(2 cosh(sqrt(E z^2)))
        return over_latents(0.5 * self.b * (Tilde(self.twice, 1, True) + Tilde(self.twice, -1, True)))

    def log_joint(self, env):
        z, omega, b = self.z.expression.evaluate(env), self.auxiliary.evaluate(env), self.b.evaluate(env)
        return PolyaGamma(self.b, ZERO).log_density(omega, env) - 2 * omega * z**2 - b * jnp.log(2.0)

    def identity(self):
        return line(self.factor, "=", integral(self.augmented(), self.auxiliary))

    def augmented(self):
        z, name = self.z.expression, self.auxiliary
        return factors(inverse_power(2, self.b), pgm.exp(-2 * name * z**2), density("PG", name, self.b, 0))

    def prior(self):
        return (self.b,)

    def sites(self):
        return (SiteTerm(self.z, ZERO, 4 * self.auxiliary),)

    def averaged(self):
        return PolyaGamma(self.b, Root("ζ", self.twice))


@pgm.likelihood(support=pgm.Real())
def secant(y, f, scale=pgm.Parameter(0.7, positive=True)):
    return 2 / (np.pi * scale) / (pgm.exp((y - f) / scale) + pgm.exp((f - y) / scale))


@pytest.fixture
def model():
    register(SecantRule)
    yield pgm.Model(secant(), pgm.GP(pgm.RBF(1.5, 1.0), mean=0.4))
    RULES.remove(SecantRule)


def test_it_is_derived_proved_and_drawn(model):
    derivation = pgm.derive(model)
    assert len(derivation.verify(seed=0).checks) == 9
    text = re.sub(r"\s+", " ", str(derivation))
    assert "1. Secant" in text
    assert "exp((f - y) / scale)) = ∫ 2^-1 exp(-2 ω (y / scale - f / scale)^2) PG(ω; 1, 0) dω" in text
    assert "ω | f, y ~ PG(1, 2 (y / scale - f / scale))" in text
    assert [node.label for node in derivation.graph.nodes if node.kind == "auxiliary"] == ["ω"]


def minus_elbo(x):
    """-log cosh(sqrt(E z^2)) less KL(N(m, v) ‖ N(0.4, 1.5)), z = (y - f) / 0.7, at m = x[0] and v = exp(x[1])."""
    m, v = x[0], np.exp(x[1])
    bound = -np.log(np.cosh(np.sqrt((2.3 - m) ** 2 + v) / 0.7))
    return -bound + 0.5 * ((v + (m - 0.4) ** 2) / 1.5 - 1 - np.log(v / 1.5))


@pytest.mark.slow
def test_it_has_engines(model):
    X, y = np.zeros((1, 1)), np.array([2.3])
    grid = np.linspace(-8.0, 10.0, 4001)
    density = np.exp(-((grid - 0.4) ** 2) / 3.0) / np.cosh((2.3 - grid) / 0.7)
    exact = trapezoid(grid * density, grid) / trapezoid(density, grid)
    vi = pgm.cavi(model, X, y, tolerance=1e-13)
    assert np.all(np.diff(vi.elbo_trace) > -1e-12)
    best = minimize(minus_elbo, [0.0, 0.0], tol=1e-12).x
    # Where the slope of the ELBO is below 1e-6.
    np.testing.assert_allclose([vi.mean[0, 0], np.log(vi.variance[0, 0])], best, atol=1e-5)
    draws = pgm.gibbs(model, X, y, num_samples=2000, num_warmup=100, num_chains=2)
    # Four standard errors of 4,000 nearly independent draws of standard deviation 0.7.
    assert abs(draws.mean[0, 0] - exact) < 0.05


def test_without_it_there_is_none():
    with pytest.raises(pgm.NoAugmentationError, match=r"pgm\.nuts"):
        derive_formula(secant().formula(1), 1)
    with pytest.raises(TypeError, match="subclass of"):
        register(object)
