"""Expected log densities by quadrature, against integrals by other means, and their derivatives."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.objectives.base import Gumbel
from pgmodels.objectives.expected import batched_cholesky
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.referees import rbf
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


def test_derivatives_at_a_kink_are_exact():
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
    """More rows than the 2,000 that are computed at a time, the last chunk not full, one row without variance."""
    case, rng, n = CASES[name], np.random.default_rng(7), 2_300
    y = case.data(n, seed=3)[1]
    variance = rng.gamma(2.0, 0.5, (n, 1))
    variance[5] = 0.0
    return case.model(), rng.normal(size=(n, 1)), variance, y


def by_autodiff(objective, m, v, y, parameters):
    """Value, derivatives in (m, v) and Hessian of the sum over nodes, row by row."""

    def one(point, y):
        return objective.local_bound(point[:1][None], point[1:][None], y[None], parameters)[0]

    points = jnp.concatenate([m, v], axis=1)
    return jax.vmap(lambda point, y: (one(point, y), jax.grad(one)(point, y), jax.hessian(one)(point, y)))(points, y)


@pytest.mark.parametrize("name", some(ONE, "student_t", "negative_binomial", "laplace"))
def test_terms_sites_and_second_derivatives_equal_autodiff_row_by_row(name):
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


# The Gumbel bound of a softmax: moments in closed form, published sites, one optimum, and every call.


M = np.array([[0.7, -1.3, 2.1], [-0.4, 3.0, 0.2], [40.0, -40.0, 0.0]])
V = np.array([[0.5, 2.0, 0.1], [1.7, 0.0, 9.0], [0.3, 0.2, 1.0]])
Y = np.array([2.0, 0.0, 1.0])
BOUND = Gumbel(3)


def model(**form):
    return pgm.Model(pgm.Softmax(3), pgm.GP(pgm.RBF(2.0, np.array([0.7, 1.9])), mean=0.3, size=3, **form))


def data(n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    # Imbalanced: the last class is rare.
    return X, np.where(X[:, 0] > 0, 1.0, np.where(X[:, 1] < -0.6, 2.0, 0.0))


@double_precision
def test_it_bounds_the_expected_log_density_by_its_expectations():
    rng = np.random.default_rng(0)
    bound = BOUND.local_bound(M[:2], jnp.asarray(V[:2]), Y[:2], {})
    for m, v, y, value in zip(M, V, Y.astype(int), bound, strict=False):
        f = m + np.sqrt(v) * rng.normal(size=(400_000, 3))
        ratios = np.exp(f - f[:, [y]])
        total = ratios.sum(axis=1)
        error = total.std() / total.mean() / np.sqrt(len(f))
        # Lognormal tails: the mean of the ratios, in five standard errors.
        assert abs(np.log(total.mean()) + value) < 5 * error
        assert value < np.mean(f[:, y] - logsumexp(f, axis=1))


def negative_bound(vector, K, y, mean):
    """Minus equation 25, with a full covariance for each class and the latents of different classes independent."""
    n, count = len(y), np.max(y) + 1
    total, m, v = 0.0, [], []
    for row in vector.reshape(count, -1):
        half = np.zeros((n, n))
        half[np.tril_indices(n)] = row[n:]
        half[np.diag_indices(n)] = np.exp(np.diag(half))
        S, shift = half @ half.T, row[:n] - mean
        log_ratio = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        total += 0.5 * (np.trace(np.linalg.solve(K, S)) + shift @ np.linalg.solve(K, shift) - n + log_ratio)
        m.append(row[:n])
        v.append(np.diag(S))
    for i, c in enumerate(y):
        total += np.log1p(sum(np.exp(m[k][i] - m[c][i] + (v[k][i] + v[c][i]) / 2) for k in range(count) if k != c))
    return total


def test_vi_and_svi_reach_the_published_optimum_of_independent_classes():
    X, y = np.array([[0.0], [0.7], [1.1]]), np.array([1, 0, 2])
    K = 2.0 * np.exp(-0.5 * (X - X.T) ** 2) + 1e-10 * np.eye(3)
    # Means and triangles of three classes: 3 (3 + 6) numbers.
    published = -minimize(negative_bound, np.zeros(27), args=(K, y, 0.3)).fun

    def model(**form):
        return pgm.Model(pgm.Softmax(3), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.3, size=3, **form))

    result = pgm.vi(model(), X, y, objective="gumbel", tolerance=1e-12)
    assert result.elbo == pytest.approx(published, abs=1e-6)
    assert not result.posterior.is_coupled
    stochastic = pgm.svi(model(form=pgm.Inducing(X)), X, y, objective="gumbel", seed=0)
    assert stochastic.elbo == pytest.approx(published, abs=1e-4)


@double_precision
def test_published_sites():
    bound, h, w = BOUND.local_bound_and_sites(jnp.asarray(M), jnp.asarray(V), Y, {})
    for m, v, y, value, potential, precision in zip(M, V, Y.astype(int), bound, h, w, strict=True):
        R = np.exp(m - m[y] + 0.5 * (v + v[y]))
        R[y] = 0.0
        # Equation 24, with the largest exponents of f = ±40 kept finite.
        assert value == pytest.approx(-np.log1p(R.sum()), rel=1e-12)
        p = R / (1.0 + R.sum())
        gradient, p[y] = -p, p.sum()
        gradient[y] = p[y]
        np.testing.assert_allclose(precision, p, rtol=1e-10, atol=1e-30)
        np.testing.assert_allclose(potential, gradient + p * m, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [slice(3), slice(1), slice(2, 3)])
@double_precision
def test_its_tangent_is_equation_24(rows):
    tangent, m, v, y = BOUND.tangent(), jnp.asarray(M[rows]), jnp.asarray(V[rows]), Y[rows]
    exact, potential, precision = BOUND.local_bound_and_sites(m, v, y, {})
    latents = np.arange(3)
    logs = tangent.log_sums(m, v, y, {}, latents)
    log_sum = logsumexp(logs, axis=1)

    def bound(m, v, log_scale):
        return jnp.sum(tangent.terms(m, v, y, {}, latents, log_scale), axis=1) + tangent.rest(y, {}, log_scale)

    np.testing.assert_allclose(bound(m, v, log_sum), exact, rtol=1e-12)
    h, w = tangent.sites(m, v, y, {}, latents, log_sum)
    # 1 - S_y / S0 is the sum of the others' shares of S up to rounding of 1.
    np.testing.assert_allclose(w, precision, atol=1e-13)
    np.testing.assert_allclose(h, potential, atol=1e-11)
    log_own, place = np.asarray(logs)[np.arange(len(y)), y.astype(int)], y.astype(int)
    for excess in (-2.0, -0.3, 0.4, 3.0, 60.0):
        log_scale = log_sum + excess
        np.testing.assert_allclose(bound(m, v, log_scale), exact + 1.0 - np.exp(-excess) - excess, rtol=1e-12)
        log_theta = log_scale - log_own
        equation_24 = -np.exp(-exact - log_theta) - log_theta + 1.0
        np.testing.assert_allclose(bound(m, v, log_scale), equation_24, rtol=1e-12)
        h, w = tangent.sites(m, v, y, {}, latents, log_scale)
        shares = np.exp(np.asarray(logs) - log_scale[:, None])
        expected, gradient = shares.copy(), -shares
        expected[np.arange(len(y)), place] = gradient[np.arange(len(y)), place] = 1.0 - np.exp(-log_theta)
        np.testing.assert_allclose(w, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(h, gradient + expected * m, rtol=1e-12, atol=1e-11)
        assert np.min(np.asarray(w)[np.asarray(log_scale) >= log_own], initial=0.0) >= 0.0


@double_precision
def test_the_bound_is_concave():
    def bound(vector):
        return BOUND.local_bound(vector[None, :3], vector[None, 3:], np.array([1.0]), {})[0]

    for m, v in zip(M[:2], V[:2], strict=True):
        values = np.linalg.eigvalsh(jax.hessian(bound)(jnp.concatenate([m, v])))
        assert values.max() < 1e-12
        assert values.min() < -1e-4


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.filterwarnings("ignore::pgmodels.DataWarning")
def test_it_is_below_the_expected_log_density_and_the_evidence(n):
    X, y = data(n)
    looser, tighter = (pgm.vi(model(), X, y, objective=name) for name in ("gumbel", "expected"))
    evidence = pgm.log_evidence(tighter, num_draws=4000, seed=0)
    assert looser.elbo < tighter.elbo < evidence.value + 4 * evidence.standard_error


@pytest.mark.slow
def test_all_calls_accept_the_gumbel_bound(tmp_path):
    X, y = data(30)
    result = pgm.fit(model(), X, y, objective="gumbel", correct=False)
    again = pgm.vi(result.model, X, y, objective="gumbel", tolerance=1e-10)
    assert result.elbo == pytest.approx(again.elbo, abs=1e-3)
    sparse = model(form=pgm.Inducing(8))
    stochastic = pgm.svi(sparse, X, y, objective="gumbel", batch_size=10, seed=0)
    assert stochastic.elbo <= pgm.vi(sparse, X, y, objective="gumbel").elbo + 1e-6
    corrected = pgm.correct(again, method="linear_response")
    assert np.all(np.isfinite(corrected.variance))
    loaded = pgm.load(again.save(tmp_path / "result.npz"))
    assert loaded.objective == "gumbel"
    np.testing.assert_array_equal(loaded.predict(X[:3]).probabilities, again.predict(X[:3]).probabilities)
    assert "Variational inference with Gumbel noise" in str(again)


def test_other_likelihoods_are_refused():
    X, y = data(5)
    with pytest.raises(ValueError, match=r"objective='gumbel' expects .*; got LogisticSoftmax"):
        pgm.vi(pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(), size=3)), X, y, objective="gumbel")


# Kinks of log densities however they are written, and corrected variances that no data can give.


X = np.linspace(0.0, 3.0, 7)[:, None]
KINKS_Y = np.sin(2.0 * X[:, 0]) + 0.1 * np.array([0.3, -1.2, 0.4, 2.0, -0.1, -0.7, 0.9])
SCALE = 0.05


def laplace(root):
    return pgm.likelihood(support=pgm.Real())(lambda y, f, scale: pgm.exp(-root(y, f) / scale) / (2 * scale))


# The same absolute value: by the algebra of powers, and as the root of a square that is not written as one.
ROOTS = {
    "square": lambda y, f: pgm.sqrt((y - f) ** 2),
    "scaled": lambda y, f: pgm.sqrt((y - f) ** 2 / 4) * 2,
    "fourth": lambda y, f: ((y - f) ** 4) ** 0.25,
    "product": lambda y, f: pgm.sqrt(4 * (y - f) * (y - f)) / 2,
    "expanded": lambda y, f: pgm.sqrt(y**2 - 2 * y * f + f**2),
}


def kinks_model(likelihood):
    return pgm.Model(likelihood(scale=pgm.Fixed(SCALE)), pgm.GP(pgm.RBF(1.0, 0.7)))


@cache
def with_abs():
    return pgm.correct(pgm.gaussian_vi(kinks_model(laplace(lambda y, f: abs(y - f))), X, KINKS_Y))


@cache
def exact_variance():
    """By elliptical slice sampling (Murray, Adams and MacKay 2010), and its standard error."""
    rng, root = np.random.default_rng(0), np.linalg.cholesky(rbf(X, 1.0, 0.7) + 1e-10 * np.eye(len(X)))
    chains, draws = 400, []
    f = KINKS_Y + 0.05 * rng.standard_normal((chains, len(X)))

    def log_likelihood(f):
        return -np.abs(KINKS_Y - f).sum(axis=1) / SCALE

    for sweep in range(3000):
        other, height = rng.standard_normal(f.shape) @ root.T, log_likelihood(f) + np.log(rng.random(chains))
        angle = rng.uniform(0.0, 2.0 * np.pi, chains)
        low, high, moved, going = angle - 2.0 * np.pi, angle.copy(), f.copy(), np.ones(chains, bool)
        while going.any():
            trial = np.cos(angle)[:, None] * f + np.sin(angle)[:, None] * other
            done = going & (log_likelihood(trial) > height)
            moved[done] = trial[done]
            going &= ~done
            low, high = np.where(angle < 0, angle, low), np.where(angle > 0, angle, high)
            angle = rng.uniform(low, high)
        f = moved
        if sweep >= 500 and sweep % 5 == 0:
            draws.append(f)
    each = np.var(np.array(draws), axis=0)
    return each.mean(axis=0), each.std(axis=0) / np.sqrt(chains)


@pytest.mark.parametrize("name", ROOTS)
def test_an_even_root_is_an_absolute_value(name):
    """The same formula, or the same places of its kinks; 100 times too wide before."""
    formula = laplace(ROOTS[name])(scale=pgm.Fixed(SCALE)).formula(1)
    written = laplace(lambda y, f: abs(y - f))(scale=pgm.Fixed(SCALE)).formula(1)
    if name in ("square", "scaled", "fourth"):
        assert formula.key == written.key
    objective = expected_objective(kinks_model(laplace(ROOTS[name])))
    assert len(objective.kinks) == 1


def test_powers_of_even_powers():
    """Identities of real numbers, at numbers of either sign."""
    from pgmodels.likelihoods.expression import Environment, Latent

    z = Latent(0, 1)
    values = np.array([-1.7, -0.2, 0.4, 2.5])[:, None]
    for inner in (2, 4, -2):
        for outer in (0.5, 0.25, 1.5, -0.5, 3):
            got = ((z**inner) ** outer).evaluate(Environment(np.zeros(4), values, {}))
            np.testing.assert_allclose(got, (values**inner) ** outer, rtol=1e-5)
    assert ((z**2) ** 0.5).text() == abs(z).text()


@double_precision
def test_a_variance_above_the_priors_is_an_error_where_the_likelihood_is_log_concave():
    """A rule that did not know of a kink gave 100 times the variance, without a word."""
    from pgmodels.inference.correct import check_against_prior

    prior = np.ones((len(X), 1))
    wide = np.where(np.arange(len(X)) == 4, 1.3, 0.01)[:, None]
    marginals = KINKS_Y[:, None] + 0.02, np.full((len(X), 1), 0.01)
    concave = kinks_model(laplace(lambda y, f: abs(y - f)))
    rounded = np.where(wide > 1.0, 1.0 + 1e-6, wide)
    check_against_prior("correct", concave, KINKS_Y, prior, rounded, lambda: marginals)
    with pytest.raises(
        ValueError, match=r"correct: 1 of 7 corrected variances .* \(first in row 4, 1\.3, with a prior variance of 1\)"
    ):
        check_against_prior("correct", concave, KINKS_Y, prior, wide, lambda: marginals)
    heavy = pgm.Model(pgm.StudentT(3.0, SCALE), pgm.GP(pgm.RBF(1.0, 0.7)))
    far = marginals[0] + 3.0, marginals[1]
    with pytest.warns(pgm.CorrectionWarning, match="not log-concave"):
        check_against_prior("correct", heavy, KINKS_Y, prior, wide, lambda: far)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "columns", "concave"),
    [
        (pgm.Bernoulli(), 1, True),
        (pgm.Laplace(0.3), 1, True),
        (pgm.StudentT(3.0, 0.5), 1, False),
        (pgm.likelihood(lambda y, f: pgm.exp(abs(f) - f**2))(), 1, False),
        (pgm.likelihood(lambda y, f: pgm.exp(f[y]) / pgm.sum(pgm.exp(f)))(), 3, True),
        (pgm.HeteroscedasticGaussian(1.0), 2, False),
    ],
    ids=["logit", "laplace", "student", "kink_upwards", "softmax", "heteroscedastic"],
)
def test_which_log_densities_are_concave(likelihood, columns, concave):
    import jax
    import jax.numpy as jnp

    objective = expected_objective(pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 1.0), size=columns)))
    m = np.linspace(-1.3, 0.9, 4 * columns).reshape(4, columns)
    with jax.enable_x64(True):
        arguments = map(jnp.asarray, (m, 0.6 * np.ones_like(m), np.array([1.0, 0.0, 1.0, 1.0])))
        parameters = {name: value.value for name, value in likelihood.parameters.items()}
        assert bool(np.all(objective.is_concave(*arguments, parameters))) == concave


@pytest.mark.slow
@pytest.mark.parametrize("name", ROOTS)
def test_corrected_variances_with_an_even_root_equal_absolute_value(name):
    corrected = pgm.correct(pgm.gaussian_vi(kinks_model(laplace(ROOTS[name])), X, KINKS_Y))
    np.testing.assert_allclose(corrected.variance, with_abs().variance, rtol=1e-6)
    exact, error = exact_variance()
    assert (error < 0.05 * exact).all()
    np.testing.assert_allclose(corrected.variance[:, 0], exact, rtol=0.35)


@pytest.mark.slow
def test_integrate_with_an_even_root_equals_absolute_value():
    results = []
    for root in (ROOTS["square"], ROOTS["expanded"], lambda y, f: abs(y - f)):
        kernel = pgm.RBF(1.0, dist.LogNormal(-0.3, 0.3))
        made = pgm.Model(laplace(root)(scale=pgm.Fixed(SCALE)), pgm.GP(kernel))
        result = pgm.integrate(made, X, KINKS_Y, progress=False)
        results.append((result.log_evidence, *result.variance[:, 0]))
    np.testing.assert_allclose(results[0], results[2], rtol=1e-6)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-3)


def test_correct_itself_refuses(monkeypatch):
    """A correction that gives one datum more variance than the prior has."""
    from pgmodels.inference import correct as correction

    corrected = with_abs()
    variance = corrected.variance.copy()
    variance[3] = 1.2
    monkeypatch.setitem(correction._METHODS, "linear_response", lambda *_: replace(corrected, variance=variance))
    with pytest.raises(
        ValueError, match=r"1 of \d+ .*above the prior's \(first in row 3.*log-concave likelihood allows"
    ):
        pgm.correct(corrected.uncorrected)


# The expansion about q's mean: Laplace's approximation, against scikit-learn, Newton's method and dense algebra.


RNG = np.random.default_rng(0)
TAYLOR_X = RNG.normal(size=(40, 2))
TAYLOR_Y = (TAYLOR_X[:, 0] + 0.5 * RNG.normal(size=40) > -0.7).astype(float)
LENGTHSCALES = np.array([0.7, 1.9])


def kernel():
    return pgm.RBF(variance=3.0, lengthscale=LENGTHSCALES)


def covariance(X=TAYLOR_X):
    scaled = X / LENGTHSCALES
    return 3.0 * np.exp(-0.5 * np.sum((scaled[:, None] - scaled[None]) ** 2, axis=2)) + 1e-10 * np.eye(len(X))


def taylor_laplace(log_density, K, mean, size):
    """The mode of the stacked latents, their posterior covariance and Laplace's evidence, in dense algebra."""
    with jax.enable_x64(True):
        gradient, hessian = jax.grad(log_density), jax.hessian(log_density)
        precision, f = np.linalg.inv(K), jnp.full(size, mean)

        def log_joint(f):
            return log_density(f) - 0.5 * (f - mean) @ precision @ (f - mean)

        for _ in range(60):
            step = np.linalg.solve(precision - hessian(f), gradient(f) - precision @ (f - mean))
            lengths = 0.5 ** np.arange(30)
            f = max((f + length * step for length in lengths), key=log_joint)
        curvature = precision - hessian(f)
        evidence = log_joint(f) - 0.5 * np.linalg.slogdet(K)[1] - 0.5 * np.linalg.slogdet(curvature)[1]
        return np.asarray(f), np.linalg.inv(curvature), float(evidence)


def test_the_laplace_classifier_of_scikit_learn():
    result = pgm.vi(
        pgm.Model(pgm.Bernoulli(), pgm.GP(kernel())), TAYLOR_X, TAYLOR_Y, objective="taylor", tolerance=1e-12
    )
    peer = (
        GaussianProcessClassifier(ConstantKernel(3.0) * RBF(LENGTHSCALES), optimizer=None)
        .fit(TAYLOR_X, TAYLOR_Y)
        .base_estimator_
    )
    assert result.elbo == pytest.approx(peer.log_marginal_likelihood_value_, abs=1e-6)
    np.testing.assert_allclose(result.mean[:, 0], peer.f_cached, atol=1e-6)
    assert "Laplace's approximation of Bernoulli()" in " ".join(str(result).split())
    assert "ELBO" not in str(result)


@pytest.mark.slow
def test_counts_with_a_mean_and_weights():
    counts = np.random.default_rng(1).poisson(np.exp(1.0 + TAYLOR_X[:, 0])).astype(float)
    weights = np.where(np.arange(40) % 3 == 0, 2.0, 0.5)

    @pgm.likelihood(support=pgm.Counts(), num_latents=1)
    def poisson(y, f):
        return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)

    model = pgm.Model(poisson(), pgm.GP(kernel(), mean=-0.6))
    result = pgm.vi(model, TAYLOR_X, counts, objective="taylor", weights=weights, tolerance=1e-12)

    def log_density(f):
        return jnp.sum(weights * (counts * f - jnp.exp(f) - jax.scipy.special.gammaln(counts + 1)))

    mode, posterior, evidence = taylor_laplace(log_density, covariance(), -0.6, 40)
    np.testing.assert_allclose(result.mean[:, 0], mode, atol=1e-6)
    np.testing.assert_allclose(result.variance[:, 0], np.diagonal(posterior), rtol=1e-6)
    assert result.elbo == pytest.approx(evidence, abs=1e-6)


@pytest.mark.slow
def test_three_classes_with_a_full_hessian():
    labels = np.where(TAYLOR_X[:, 0] > 0, 1.0, np.where(TAYLOR_X[:, 1] < -0.6, 2.0, 0.0))
    model = pgm.Model(pgm.Softmax(3), pgm.GP(kernel(), mean=0.3, size=3))
    result = pgm.vi(model, TAYLOR_X, labels, objective="taylor", tolerance=1e-12)

    def log_density(f):
        return jnp.sum(jax.nn.log_softmax(f.reshape(3, 40).T, axis=1)[jnp.arange(40), labels.astype(int)])

    mode, posterior, evidence = taylor_laplace(log_density, np.kron(np.eye(3), covariance()), 0.3, 120)
    np.testing.assert_allclose(result.mean.T.ravel(), mode, atol=1e-6)
    np.testing.assert_allclose(result.variance.T.ravel(), np.diagonal(posterior), rtol=1e-6)
    assert result.elbo == pytest.approx(evidence, abs=1e-5)


def test_a_log_density_that_is_not_concave():
    y = np.sin(2 * TAYLOR_X[:, 0]) + 0.1 * np.random.default_rng(2).normal(size=40)
    y[[3, 20]] += np.array([3.0, -2.0])
    model = pgm.Model(pgm.StudentT(pgm.Fixed(4.0), pgm.Fixed(0.3)), pgm.GP(kernel(), mean=0.2))
    result = pgm.vi(model, TAYLOR_X, y, objective="taylor", tolerance=1e-12)

    # Of several modes: it is a stationary point of the log posterior density, with precisions of both signs.
    mean, K = result.mean[:, 0], covariance()
    residual, scale = y - mean, 4.0 * 0.3**2
    weights = 5.0 * (scale - residual**2) / (scale + residual**2) ** 2
    assert weights.min() < 0.0
    np.testing.assert_allclose(mean - 0.2, K @ (5.0 * residual / (scale + residual**2)), atol=1e-5)
    posterior = np.linalg.solve(np.eye(40) + K * weights, K)
    np.testing.assert_allclose(result.variance[:, 0], np.diagonal(posterior), rtol=1e-6)


@pytest.mark.slow
def test_inducing_inputs_and_far_data():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel(), form=pgm.Inducing(TAYLOR_X[::4])))
    result = pgm.vi(model, TAYLOR_X, TAYLOR_Y, objective="taylor", tolerance=1e-12)
    K_uu, K_uf = covariance(TAYLOR_X[::4]), covariance()[::4]
    A = np.linalg.solve(np.linalg.cholesky(K_uu), K_uf)

    def log_density(v):
        f = v @ A
        return jnp.sum(jax.nn.log_sigmoid((2 * TAYLOR_Y - 1) * f))

    mode, _, _ = taylor_laplace(log_density, np.eye(10), 0.0, 10)
    np.testing.assert_allclose(result.mean[:, 0], A.T @ mode, atol=1e-5)


def test_results_of_one_row_and_files(tmp_path):
    result = pgm.vi(
        pgm.Model(pgm.Probit(), pgm.GP(kernel(), mean=-1.0)), TAYLOR_X[:1], TAYLOR_Y[:1], objective="taylor"
    )
    loaded = pgm.load(result.save(tmp_path / "result.npz"))
    assert loaded.objective == "taylor"
    np.testing.assert_array_equal(
        loaded.predict(TAYLOR_X[:3]).probabilities, result.predict(TAYLOR_X[:3]).probabilities
    )


def test_what_has_no_expansion_is_refused():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel()))
    with pytest.raises(ValueError, match="objective='taylor' is learned by scheme='alternating' only"):
        pgm.fit(model, TAYLOR_X, TAYLOR_Y, objective="taylor")
    with pytest.raises(ValueError, match="correct needs an objective that q maximises"):
        pgm.correct(pgm.vi(model, TAYLOR_X, TAYLOR_Y, objective="taylor"))
    with pytest.raises(ValueError, match=r"objective='taylor' expects .*; the density of Laplace has a kink"):
        pgm.vi(pgm.Model(pgm.Laplace(0.3), pgm.GP(kernel())), TAYLOR_X, TAYLOR_Y, objective="taylor")


def test_a_largest_latent_is_refused():
    model = pgm.Model(pgm.RobustMax(3), pgm.GP(pgm.RBF(), size=3))
    with pytest.raises(ValueError, match="kink or a jump"):
        pgm.vi(model, np.zeros((3, 1)), np.arange(3), objective="taylor")
