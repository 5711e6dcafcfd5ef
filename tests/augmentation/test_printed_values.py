"""What is printed is read as numbers, and is what is computed."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.augmentation.augmentation import conditional_sites, expectations
from pgmodels.augmentation.explain import explain_sections
from pgmodels.augmentation.laws import VARIANCE, Root
from pgmodels.augmentation.rules.gaussian import GaussianRule
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.printing import Big, Chain, Differential, Factors, Operator, Words
from tests.augmentation.test_explain import CASES, VALUES, derived
from tests.covering import some
from tests.reading import value

pytestmark = pytest.mark.usefixtures("double_precision")

# Relative: numbers are printed with six digits where they are no short fractions.
DIGITS = 1e-5
ROWS = (1, 3)


def at_row(part, row):
    """The part of an array that belongs to one datum: a number where it is one."""
    part = np.asarray(part)
    part = part[row] if part.ndim and len(part) > 1 else part
    return part.item() if part.size == 1 else part


def numbers(env, row):
    """The values of symbols at one datum, by name."""
    values = {"y": env.y, "f": env.f, "m": env.f, "v": env.parameters.get(VARIANCE, env.f), **env.parameters}
    return {name: at_row(part, row) for name, part in values.items()}


def agree(expression, env, size):
    """An expression is read as what it is evaluated to, at each of its elements where it is a vector."""
    for row in ROWS:
        exact = np.ravel(at_row(np.broadcast_to(expression.evaluate(env), (5, env.f.shape[1])), row))
        for position, expected in enumerate(exact if expression.is_vector else exact[:1]):
            printed = value(expression.notation(), numbers(env, row) | {"c": position}, size)
            np.testing.assert_allclose(printed, expected, rtol=DIGITS, err_msg=str(expression))


@cache
def observed(name):
    """An augmentation with observations, latents and draws of all auxiliaries, shared by the tests of a likelihood."""
    augmentation, y = derived(name), jnp.asarray(CASES[name][3])
    f = jnp.asarray(np.random.default_rng(5).normal(0.6, 1.5, (5, augmentation.size)))
    auxiliaries = {}
    for block in range(len(augmentation.blocks)):
        auxiliaries |= augmentation.draw_chain(jax.random.key(block), f, y, VALUES, block)
    return augmentation, Environment(y, f, VALUES | auxiliaries), auxiliaries


@pytest.mark.parametrize("name", some(CASES, "Binomial", "StickBreaking", "StudentT", "OrderedLogit"))
def test_formulas_and_sites(name):
    augmentation, env, _ = observed(name)
    sites = [site for block in range(len(augmentation.blocks)) for site in conditional_sites(augmentation, block)]
    expressions = [part for site in sites for part in (site.potential, site.precision)]
    for expression in (augmentation.formula, *expressions, *(rule.factor for rule in augmentation.rules)):
        agree(expression, env, augmentation.size)


@pytest.mark.parametrize("name", some(CASES, "Bernoulli", "LogisticSoftmax", "Laplace", "Probit", "Robust"))
def test_updates_and_bound(name):
    augmentation, env, _ = observed(name)
    values = VALUES | {VARIANCE: jnp.full(env.f.shape, 0.7)}
    for symbol, expected in expectations(augmentation):
        values[symbol.name] = expected.evaluate(Environment(env.y, env.f, values))
        roots = {root.name: root.evaluate(Environment(env.y, env.f, values)) for root in roots_of(expected)}
        if not any(isinstance(item, Words) for item in getattr(expected.notation(), "items", ())):
            agree(expected, Environment(env.y, env.f, values | roots), augmentation.size)
    agree(augmentation.bound, Environment(env.y, env.f, values), augmentation.size)


@pytest.mark.parametrize("name", some(CASES, "SigmoidPoisson", "LogisticSoftmax", "OrderedProbit"))
def test_augmented_likelihood(name):
    augmentation, env, auxiliaries = observed(name)
    sections = {section.title: section.lines for section in explain_sections(augmentation, name)}
    _, right = sides(sections["Augmented likelihood"][0].formula)
    exact = augmentation.log_joint(auxiliaries, env.f, env.y, VALUES)
    for row in ROWS:
        integral = value(Chain(right), numbers(env, row), augmentation.size)
        np.testing.assert_allclose(np.log(integral), exact[row], rtol=DIGITS)


@pytest.mark.parametrize("name", some(CASES, "LogisticSoftmax", "StudentT", "Laplace", "Probit", "OrderedProbit"))
def test_identities(name):
    """The factor times the density of its auxiliary is what the identity integrates or sums."""
    augmentation, env, _ = observed(name)
    for rule in augmentation.rules:
        if isinstance(rule, GaussianRule):
            continue
        (lhs, rhs), size = sides(rule.identity()), augmentation.size
        log_density = np.zeros((5, env.f.shape[1]))
        if rule.law is not None:
            log_density = log_density + rule.law.log_density(rule.auxiliary.evaluate(env), env)
        for row in ROWS:
            off = False if rule.law is None else np.ravel(at_row(rule.law.off(env), row))
            for position in np.flatnonzero(~np.broadcast_to(off, size if rule.factor.is_vector else 1)):
                here = numbers(env, row) | {"c": position}
                expected = np.log(value(Chain(lhs), here, size)) + np.ravel(log_density[row])[position]
                printed = np.log(value(Chain(tuple(map(integrand, rhs))), here, size))
                np.testing.assert_allclose(printed, expected, rtol=DIGITS, atol=DIGITS, err_msg=str(rule.factor))


def sides(identity):
    """The items on the two sides of an equation, up to the first words."""
    items = identity.items
    at = next(i for i, item in enumerate(items) if isinstance(item, Operator) and item.text == "=")
    end = next((i for i, item in enumerate(items) if isinstance(item, Words)), len(items))
    return items[:at], items[at + 1 : end]


def integrand(tree):
    """A product without the first Σ or ∫ in it, and without the dω that ends it."""
    if not isinstance(tree, Factors):
        return tree
    first = next((item for item in tree.items if isinstance(item, Big)), None)
    return Factors(tuple(item for item in tree.items if item is not first and not isinstance(item, Differential)))


def roots_of(expression):
    if isinstance(expression, Root):
        return [expression]
    return [root for child in expression.children for root in roots_of(child)]
