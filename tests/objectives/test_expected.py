"""Expected log densities by quadrature, against integrals by other means, and their derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.objectives.expected import _CHUNK, batched_cholesky
from tests.covering import some
from tests.registry import CASES, SEPARATE

# Asymmetric marginals: wide and narrow, near and far.
MEAN = np.array([-1.7, 0.4, 2.3, 0.9, -6.0, 12.0])
VARIANCE = np.array([0.8, 3.5, 0.05, 16.0, 1.0, 0.3])
ONE = [name for name in SEPARATE if CASES[name].num_latents == 1]


@partial(jax.jit, static_argnums=0)
def bound(objective, *arguments):
    return objective.local_bound(*arguments)


@partial(jax.jit, static_argnums=0)
def sites(objective, *arguments):
    return objective.local_sites(*arguments)


def value(model, m, v, y, function=bound):
    with jax.enable_x64(True):
        values = function(expected_objective(model), *map(jnp.asarray, (m, v, y)), model.parameters)
        return jax.tree.map(np.asarray, values)


@pytest.mark.parametrize("name", some(ONE, "bernoulli", "laplace", "ordered_logit", "negative_binomial"))
def test_one_latent_against_adaptive_quadrature(name):
    case = CASES[name]
    _, y = case.data(6, seed=2)
    got = value(case.model(), MEAN[:, None], VARIANCE[:, None], y)
    # Eight nodes in each half of a deviation: kinks lie in one of the pieces.
    nodes, weights = np.polynomial.legendre.leggauss(8)
    z = (np.arange(-9.0, 9.0, 0.5)[:, None] + 0.25 * (1.0 + nodes)).ravel()
    weights = np.tile(0.25 * weights, 36) * stats.norm.pdf(z)
    for i, (m, v) in enumerate(zip(MEAN, VARIANCE, strict=True)):
        rows = np.repeat(y[i : i + 1], len(z), axis=0)
        with jax.enable_x64(True):
            expected = weights @ np.asarray(case.log_density(rows, m + np.sqrt(v) * z[:, None]))
        if name == "ordered_probit" and not np.isfinite(expected):
            continue  # the referee's own differences of normal distributions underflow there
        # Eight nodes on the piece with a kink: 1e-3 of its slope, squared; spikes of log densities are polynomial.
        kinked = name == "laplace"
        np.testing.assert_allclose(got[i], expected, rtol=2e-3 if kinked else 1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 0.6, 30.0])
def test_a_kink_is_integrated_to_rounding(scale):
    y = np.array([0.3, -1.0, 2.0, 4.0, -6.2, 12.5])
    model = pgm.Model(pgm.Laplace(scale), pgm.GP(pgm.RBF(1.0, 1.0)))
    m, s = MEAN - y, np.sqrt(VARIANCE)
    # E|f - y| of a Gaussian in closed form.
    folded = s * np.sqrt(2 / np.pi) * np.exp(-0.5 * (m / s) ** 2) + m * (1 - 2 * stats.norm.cdf(-m / s))
    expected = -folded / scale - np.log(2 * scale)
    np.testing.assert_allclose(value(model, MEAN[:, None], VARIANCE[:, None], y), expected, rtol=1e-11)


def test_its_derivatives_see_the_kink():
    """E log p of a Laplace density: -2 ∂B/∂v is the density of f at y, twice over the scale."""
    y, scale = np.array([0.3, -1.0, 2.0, 4.0, -6.2, 12.5]), 0.4
    model = pgm.Model(pgm.Laplace(scale), pgm.GP(pgm.RBF(1.0, 1.0)))
    h, w = value(model, MEAN[:, None], VARIANCE[:, None], y, sites)
    expected = 2.0 / scale * stats.norm.pdf(y, MEAN, np.sqrt(VARIANCE))
    np.testing.assert_allclose(w[:, 0], expected, rtol=1e-9, atol=1e-12)
    slope = (1.0 - 2.0 * stats.norm.cdf(MEAN, y, np.sqrt(VARIANCE))) / scale
    np.testing.assert_allclose(h[:, 0], slope + expected * MEAN, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["heteroscedastic", "logistic_softmax", "stick_breaking", "zero_inflated"])
def test_several_latents_against_simulation(name):
    """Dependent latents: 80,000 antithetic draws, within five standard errors."""
    case = CASES[name]
    size = case.num_latents
    _, y = case.data(5, seed=2)
    rng = np.random.default_rng(3)
    m = rng.normal(0.4, 1.0, (5, size))
    A = rng.normal(size=(5, size, size))
    V = 0.4 * A @ np.swapaxes(A, 1, 2) + 0.1 * np.eye(size)
    got = value(case.model(), m, V, y)
    z = rng.normal(size=(40_000, size))
    for i in range(5):
        f = m[i] + np.concatenate([z, -z]) @ np.linalg.cholesky(V[i]).T
        with jax.enable_x64(True):
            density = np.asarray(case.log_density(jnp.asarray(np.repeat(y[i : i + 1], len(f), axis=0)), jnp.asarray(f)))
        pairs = 0.5 * (density[:40_000] + density[40_000:])
        assert abs(got[i] - pairs.mean()) < 5.0 * pairs.std() / np.sqrt(40_000)


def test_without_dependence_both_forms_are_one():
    case = CASES["logistic_softmax"]
    _, y = case.data(5, seed=2)
    rng = np.random.default_rng(3)
    m, v = rng.normal(0.4, 1.0, (5, 3)), rng.gamma(2.0, 0.6, (5, 3))
    np.testing.assert_allclose(
        value(case.model(), m, v, y), value(case.model(), m, np.stack([np.diag(row) for row in v]), y), rtol=1e-10
    )


@pytest.mark.parametrize("name", ["heteroscedastic", "logistic_softmax"])
def test_sites_of_dependent_latents_are_derivatives(name):
    case = CASES[name]
    size = case.num_latents
    _, y = case.data(3, seed=2)
    rng = np.random.default_rng(5)
    m, A = rng.normal(0.4, 1.0, (3, size)), rng.normal(size=(3, size, size))
    V = 0.4 * A @ np.swapaxes(A, 1, 2) + 0.2 * np.eye(size)
    model = case.model()
    h, W = value(model, m, V, y, sites)
    gradient = h - np.einsum("ipq,iq->ip", W, m)
    step = 1e-4
    for p in range(size):
        one = step * np.eye(size)[p]
        by_mean = (value(model, m + one, V, y) - value(model, m - one, V, y)) / (2 * step)
        np.testing.assert_allclose(gradient[:, p], by_mean, atol=1e-6)
        for q in range(p + 1):
            E = np.zeros((size, size))
            E[p, q] = E[q, p] = step
            by_entry = (value(model, m, V + E, y) - value(model, m, V - E, y)) / (2 * step)
            np.testing.assert_allclose(-W[:, p, q] * (1.0 if p != q else 0.5), by_entry, atol=1e-6)


def test_a_formula_that_underflows_far_out_is_integrated_where_it_does_not():
    @pgm.likelihood(support=pgm.Binary())
    def cancelling(y, f):
        p = 1 - pgm.sigmoid(-f)
        return p**y * (1 - p) ** (1 - y)

    model = pgm.Model(cancelling(), pgm.GP(pgm.RBF(1.0, 1.0)))
    m, v, y = np.array([[-30.0], [2.0]]), np.array([[9.0], [400.0]]), np.array([0.0, 1.0])
    got = value(model, m, v, y)
    assert np.isfinite(got).all()
    assert all(np.isfinite(part).all() for part in value(model, m, v, y, sites))


def test_small_roots_are_roots():
    A = np.random.default_rng(1).normal(size=(6, 4, 4))
    V = A @ np.swapaxes(A, 1, 2)
    with jax.enable_x64(True):
        roots = np.asarray(batched_cholesky(jnp.asarray(V)))
    np.testing.assert_allclose(roots @ np.swapaxes(roots, 1, 2), V, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(roots, np.linalg.cholesky(V), rtol=1e-7, atol=1e-9)


def test_many_rows_have_half_the_nodes():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF()))
    m, v, y = (
        np.tile(MEAN[:4, None], (6000, 1)),
        np.tile(VARIANCE[:4, None], (6000, 1)),
        np.tile([0.0, 1.0, 1.0, 0.0], 6000),
    )
    many, few = value(model, m, v, y), value(model, m[:4], v[:4], y[:4])
    # They differ, so that they are different rules, by what the nodes leave open at deviations of up to 4.
    assert 0.0 < np.max(abs(many.reshape(-1, 4) - few)) < 1e-8


def many_rows(name):
    """More rows than are computed at a time, the last chunk not full, one row without variance."""
    case, rng, n = CASES[name], np.random.default_rng(7), _CHUNK + 300
    y = case.data(n, seed=3)[1]
    variance = rng.gamma(2.0, 0.5, (n, 1))
    variance[5] = 0.0
    return case.model(), rng.normal(size=(n, 1)), variance, y


def by_autodiff(objective, m, v, y, parameters):
    """Value, derivatives in (m, v) and Hessian of the sum over nodes, row by row."""
    rule = objective._rule(len(m))

    def one(point, y):
        return objective._bound(rule, point[:1][None], point[1:][None], y[None], parameters)[0]

    points = jnp.concatenate([m, v], axis=1)
    return jax.vmap(lambda point, y: (one(point, y), jax.grad(one)(point, y), jax.hessian(one)(point, y)))(points, y)


@pytest.mark.parametrize("name", some(ONE, "student_t", "negative_binomial", "laplace"))
def test_terms_sites_and_second_derivatives_of_many_rows_are_those_of_each(name):
    model, m, v, y = many_rows(name)

    @partial(jax.jit, static_argnums=0)
    def both(objective, m, v, y, parameters):
        terms = objective.local_bound_and_sites(m, v, y, parameters)
        rest = objective.local_bound(m, v, y, parameters), objective.second_derivatives(m, v, y, parameters)
        return by_autodiff(objective, m, v, y, parameters), terms, rest

    (values, slopes, H), (bounds, h, w), (again, (by_variance, second)) = value(model, m, v, y, both)
    # Their log densities of some rows are large.
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    close(bounds, values)
    close(again, values)
    close(w, -2.0 * slopes[:, 1:])
    close(h, slopes[:, :1] + w * m)
    close(by_variance, slopes[:, 1:])
    close(second, H)
    assert np.all(w[5] == 0.0)
