"""Draws of Pólya-Gamma variables against their exact laws, and the moments and densities of the law."""

import itertools
import sys
from decimal import Decimal, localcontext
from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from polyagamma import random_polyagamma
from scipy.integrate import simpson

from pgmodels import polya_gamma
from pgmodels.polya_gamma import laws, samplers
from tests.covering import some
from tests.polya_gamma_laws import SHAPES, TILTS, check_law, draw_all, transform_cdf

pytestmark = pytest.mark.usefixtures("double_precision")

OURS = ("c", "jax")
SIZE = 10_000


# Two backends and 48 laws: one seed in some 400 raises a false alarm (``check_law``).
@pytest.mark.parametrize(
    ("backend", "size", "seed"),
    [
        *some([(backend, SIZE, 3) for backend in OURS], ("c", SIZE, 3)),
        *(pytest.param(backend, 200_000, 4, marks=pytest.mark.slow) for backend in OURS),
    ],
)
def test_draws_have_the_law(backend, size, seed):
    draws = draw_all(backend, size, seed)
    for b, c in itertools.product(SHAPES, TILTS):
        check_law(draws[b, c], b, c)
    # A missing tilt is caught.
    for b, c in ((1.0, 0.8), (0.3, -3.0), (400.0, 0.8)):
        with pytest.raises(AssertionError, match="standard errors"):
            check_law(draws[b, 0.0], b, c)


@pytest.mark.parametrize("backend", some(OURS, "c"))
def test_draws_at_the_borders_of_methods(backend):
    # Next to every change of method; where a law is a sum of pieces; the largest tilt.
    cases = [(0.999, 0.2), (1.001, 0.2), (60.0, 0.0), (104.0, 0.0), (150.5, 0.5), (300.25, 0.3), (1e5, 9.0), (1, 700.0)]
    b, c = (np.repeat(np.array(values, float)[:, None], SIZE, 1) for values in zip(*cases, strict=True))
    for drawn, case in zip(np.asarray(polya_gamma.draw(jax.random.key(5), b, c, backend)), cases, strict=True):
        check_law(drawn, *case)


def no_series(x, h):
    return jnp.ones_like(x), jnp.zeros_like(x)


def two_terms(x, h):
    exact, slope = ALTERNATING_SERIES(x, h)
    return jnp.where(x > 0.8 * h, 1 - (h + 2) * jnp.exp(-2 * (h + 1) / x), exact), slope


def low_hat(points, heights, slopes):
    return TANGENT_HAT(points, heights, slopes)._replace(heights=heights - 0.2)


def few_nodes(h, z, bounds):
    law = TRANSFORM_LAW(h, z, bounds)
    return law._replace(real=law.real.at[4:].set(0), imaginary=law.imaginary.at[4:].set(0))


def one_piece(key, lanes, h, z):
    return samplers.draw_by_series(key, lanes, h, z, jnp.ones_like(h))


ALTERNATING_SERIES, TANGENT_HAT, TRANSFORM_LAW = laws.alternating_series, laws.tangent_hat, laws.transform_law


@pytest.mark.parametrize(
    ("module", "name", "error", "sampler", "b", "c"),
    [
        (samplers, "alternating_series", no_series, samplers.draw_fractions, 0.9, 0.0),
        (laws, "alternating_series", no_series, one_piece, 1.0, 0.8),
        (laws, "alternating_series", two_terms, one_piece, 2.0, 0.0),
        (laws, "tangent_hat", low_hat, one_piece, 1.0, 0.0),
        (samplers, "transform_law", few_nodes, samplers.draw_by_transform, 400.0, 0.8),
    ],
)
def test_planted_errors_are_caught(monkeypatch, module, name, error, sampler, b, c):
    arguments = jax.random.key(6), jnp.ones(SIZE, bool), jnp.full(SIZE, b), jnp.full(SIZE, c / 2)
    monkeypatch.setattr(module, name, error)
    # A new function, so that it is compiled with the error.
    draws = np.asarray(jax.jit(lambda *arguments: sampler(*arguments))(*arguments)) / 4
    with pytest.raises(AssertionError, match=r"standard errors|Kolmogorov"):
        check_law(draws, b, c)


def series_law(h, z, bounds):
    return laws.SeriesLaw(h, z, bounds.mean)


@partial(jax.jit, static_argnums=0)
def law_and_hat(law_of, h, z, y):
    bounds = laws.window(h, z)
    law = law_of(h, z, bounds)
    return law.evaluate(y), *laws.hat_of(law, bounds)


@pytest.mark.parametrize(("h", "z"), [(1.0, 0.0), (1.3, 0.4), (5.17, 0.0), (40.0, 2.5), (1e5, 8.0), (1.0, 350.0)])
def test_the_series_law_is_the_density_and_its_hat_dominates(h, z):
    h, z = np.full(500, h), np.full(500, z)
    bounds = laws.window(h, z)
    y = np.linspace(np.maximum(-4 * bounds.deviation[0], -0.9 * bounds.mean[0]), 4 * bounds.deviation[0], 500)
    values, hat, reference = law_and_hat(series_law, h, z, y)
    # J*(h, z) = 4 PG(h, 2z). The terms h² / 2x and z² x / 2 of ``log_density`` are about h z and cancel.
    expected = polya_gamma.log_density((bounds.mean + y) / 4, h, 2 * z) - np.log(4)
    rounding = 1e-12 + 1e-14 * h[0] * z[0]
    np.testing.assert_allclose(values.scale + np.log(values.factor), expected, rtol=1e-12, atol=rounding)
    check_hat(hat, reference, bounds, y, values)


@pytest.mark.parametrize(("h", "z"), [(105.0, 0.0), (2000.0, 1.5), (1e6, 0.3), (1e6, 5.0)])
def test_the_transform_law_is_the_density_and_its_hat_dominates(h, z):
    omega, cdf = transform_cdf(h, 2 * z)
    h, z = np.full(500, h), np.full(500, z)
    bounds = laws.window(h, z)
    y = np.linspace(-7 * bounds.deviation[0], 9 * bounds.deviation[0], 500)
    values, hat, reference = law_and_hat(laws.transform_law, h, z, y)
    density = np.exp(values.scale) * values.factor
    # The trapezoidal rule is exact for what falls smoothly to 1e-14 at both ends.
    assert np.sum(density) * (y[1] - y[0]) == pytest.approx(1, abs=1e-9)
    assert np.sum(density * y) * (y[1] - y[0]) == pytest.approx(0, abs=1e-9 * bounds.deviation[0])
    # Differences over 0.01 standard deviations err by 4e-6 of the mode, interpolation between 500 points by 1.3e-4.
    exact = np.diff(cdf) / np.diff(omega) / 4
    ours = np.interp(2 * (omega[1:] + omega[:-1]) - bounds.mean[0], y, density)
    np.testing.assert_allclose(ours, exact, atol=2e-4 * float(density.max()))
    on_host = laws.transform_law(h, z, bounds).evaluate(y)
    np.testing.assert_allclose(np.exp(on_host.scale) * on_host.factor, density, atol=1e-12 * float(density.max()))
    near = np.abs(y) < 4 * bounds.deviation
    check_hat(hat, reference, bounds, y[near], laws.Density(*(a[near] for a in values)))


def check_hat(hat, reference, bounds, y, values):
    """The slope is the derivative of the log density; the hat is above it and holds less than 1/0.88 of mass."""
    log_density = np.asarray(values.scale + jnp.log(values.factor))
    slope = np.asarray(values.scale_slope + values.factor_slope / values.factor)
    # The log density between two points, by the trapezoidal rule on its slope.
    rises = (slope[1:] + slope[:-1]) / 2 * np.diff(y)
    np.testing.assert_allclose(rises, np.diff(log_density), rtol=1e-2, atol=2e-4)
    points, heights, slopes = (np.asarray(a)[:, :1] for a in (hat.points, hat.heights, hat.slopes))

    def lowest(x):
        return np.min(heights + slopes * (x - points), 0)

    assert 1 < float(hat.masses.sum(0)[0] * jnp.exp(reference[0])) < 1 / 0.88
    assert np.all(lowest(y) + reference[0] > log_density - 1e-9)
    # Every proposal lies in the piece of the lowest tangent; the first, of the uniform 0, is the farthest.
    proposals, log_hat = hat.propose(jnp.linspace(0, 1, hat.points.shape[1], endpoint=False))
    np.testing.assert_allclose(log_hat[1:], lowest(np.asarray(proposals))[1:], atol=1e-9)
    assert np.all(np.diff(proposals[1:]) > 0)
    assert bounds.lower[0] < proposals[5] < proposals[-5] < bounds.upper[0]


@pytest.mark.parametrize("backend", OURS)
def test_the_tilt_has_no_sign(backend):
    key, b = jax.random.key(0), jnp.array([1.0, 2.0, 0.5, 3e4, 0.0, 5.0, 60.0, 1.0])
    np.testing.assert_array_equal(polya_gamma.draw(key, b, 1.5, backend), polya_gamma.draw(key, b, -1.5, backend))


@pytest.mark.parametrize("backend", OURS)
def test_shape_zero_and_arguments_outside_the_domain(backend):
    b = jnp.array([0.0, -1.0, 1.0, jnp.nan, jnp.inf, 1.0, 1e-300, 1e15])
    c = jnp.array([2.0, 0.0, jnp.inf, 0, 1.0, 1e21, 0.0, 3.0])
    draws = np.asarray(polya_gamma.draw(jax.random.key(0), b, c, backend))
    assert draws[0] == 0
    assert np.isnan(draws[1:6]).all()
    assert draws[6] == 0
    assert draws[7] == pytest.approx(float(polya_gamma.mean(1e15, 3.0)), rel=1e-6)
    np.testing.assert_array_equal(polya_gamma.draw(jax.random.key(0), jnp.zeros(8), 1.0, backend), 0)


def test_counts_beyond_the_exact_laws_are_normal():
    """On the host: a factor σ(-40)^-1 leaves counts of 1e17, and a chain that meets them must go on."""
    for c in (0.0, 2.1e-3, -3.0, 40.0):
        draws = polya_gamma.sample(np.random.default_rng(0), np.full(20_000, 4e16), np.full(20_000, c))
        with jax.enable_x64(True):
            mean, variance = float(polya_gamma.mean(4e16, c)), float(polya_gamma.variance(4e16, c))
        assert abs(draws.mean() - mean) < 4 * np.sqrt(variance / 20_000)
        assert abs(draws.var() / variance - 1) < 4 * np.sqrt(2 / 20_000)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_arrays(shape):
    key, b = jax.random.key(0), jnp.ones(shape)
    assert polya_gamma.draw(key, b, 0.5, "c").shape == shape
    assert jax.eval_shape(lambda key: polya_gamma.draw(key, b, 0.5, "jax"), key).shape == shape


@pytest.mark.parametrize("backend", OURS)
def test_draws_depend_on_the_key_alone(backend):
    b, c = jnp.ones((2, 4)), jnp.array([0.0, 1.0, 2.0, 9.0])
    first, again = (polya_gamma.draw(jax.random.key(1), b, c, backend) for _ in range(2))
    jitted = jax.jit(polya_gamma.draw, static_argnums=3)(jax.random.key(1), b, c, backend)
    other = polya_gamma.draw(jax.random.key(2), b, c, backend)
    assert first.shape == (2, 4)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, jitted)
    assert not np.any(first == other)


@pytest.mark.slow
def test_under_vmap_each_key_gives_the_draws_that_it_gives_alone():
    keys, b = jax.random.split(jax.random.key(9), 4), jnp.array([0.4, 1.0, 9.0, 70.0, 5e3, 0.0, 2.0, 1e5])
    tilts = jnp.array([0.0, 0.3, 2.0, 30.0])
    together = jax.vmap(lambda key, c: polya_gamma.draw(key, b, c, "jax"))(keys, tilts)
    alone = jnp.stack([polya_gamma.draw(key, b, c, "jax") for key, c in zip(keys, tilts, strict=True)])
    # Up to the order in which compiled code rounds.
    np.testing.assert_allclose(together, alone, rtol=1e-10)


@pytest.mark.parametrize("backend", OURS)
def test_draws_inside_jit_vmap_and_scan(backend):
    def chain(key, c):
        def step(_, key):
            omega = polya_gamma.draw(key, jnp.array([1.0, 0.5, 3.0, 0.0]), c, backend)
            return omega, omega

        return jax.lax.scan(step, jnp.zeros(4), jax.random.split(key, 5))[1]

    keys, tilts = jax.random.split(jax.random.key(7), 3), jnp.array([0.0, 1.0, 30.0])
    chains = jax.jit(jax.vmap(chain))
    draws = np.asarray(chains(keys, tilts))
    assert draws.shape == (3, 5, 4)
    assert draws.dtype == np.float64
    assert np.all(draws[..., 3] == 0)
    assert np.unique(draws[..., :3]).size == 45
    # In double precision: single precision would leave no digits beyond its own.
    assert np.any(draws[..., :3] != draws[..., :3].astype(np.float32))
    np.testing.assert_array_equal(draws, chains(keys, tilts))


@pytest.mark.slow
@pytest.mark.parametrize("backend", OURS)
def test_new_values_are_not_traced_again(backend):
    traces = []

    @jax.jit
    def compiled(key, b, c):
        traces.append(b.shape)
        return polya_gamma.draw(key, b, c, backend)

    for i in range(3):
        compiled(jax.random.key(i), jnp.full(4, 10.0**i), jnp.full(4, float(i)))
    assert traces == [(4,)]
    if backend == "jax":
        before = samplers.draw_by_jax.cache_size()
        for i in range(3):
            polya_gamma.draw(jax.random.key(i), jnp.full(8, 10.0**i), float(i), backend)
        assert samplers.draw_by_jax.cache_size() <= before + 1


@pytest.mark.parametrize("backend", OURS)
def test_single_precision_arguments_give_the_same_draws_and_broadcast(backend):
    b, c = np.array([[1.0], [0.5]]), np.array([0.25, 2.0, 0.0, -3.5])
    wide = polya_gamma.draw(jax.random.key(0), b, c, backend)
    narrow = polya_gamma.draw(jax.random.key(0), b.astype(np.float32), c.astype(np.float32), backend)
    assert wide.shape == (2, 4)
    assert narrow.dtype == jnp.float64
    np.testing.assert_array_equal(wide, narrow)


def test_the_backend_is_named_or_follows_the_platform(monkeypatch):
    with pytest.raises(ValueError, match=r"backend must be None or one of 'c', 'jax', 'pypolyagamma'; got 'devroye'"):
        polya_gamma.draw(jax.random.key(0), 1.0, 0.0, "devroye")
    key, b = jax.random.key(0), jnp.ones(8)
    for platform, backend in (("cpu", "c"), ("gpu", "jax"), ("tpu", "jax")):
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        assert samplers.default_backend() == backend
        np.testing.assert_array_equal(polya_gamma.draw(key, b, 0.5), polya_gamma.draw(key, b, 0.5, backend))


def test_single_precision_is_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"jax\.enable_x64\(True\)"):
        polya_gamma.draw(jax.random.key(0), 1.0, 0.0)


class PyPolyaGamma:
    """A stand-in with the interface of the package's class, exact where the package is exact."""

    def __init__(self, seed, trunc=40):
        self.generator = np.random.default_rng(seed)

    def pgdrawv(self, ns, zs, pgs):
        # As a Cython memoryview double[::1] demands.
        assert all(a.dtype == np.float64 and a.flags.c_contiguous and a.ndim == 1 for a in (ns, zs, pgs))
        assert set(ns) <= {1.0, 2.0}, "the package draws by Devroye's method at b = 1 and 2 alone"
        pgs[:] = random_polyagamma(ns, zs, method="devroye", random_state=self.generator)


@pytest.fixture(params=["stand-in", "installed"])
def pypolyagamma(request, monkeypatch, tmp_path):
    """The package itself, or one whose own imports fail, as those of version 1.2.3 do beside SciPy 1.14."""
    if request.param == "stand-in":
        folder = tmp_path / "pypolyagamma"
        folder.mkdir()
        (folder / "__init__.py").write_text("from scipy.integrate import simps\n")
        (folder / "pypolyagamma.py").write_text("from tests.polya_gamma.test_polya_gamma_draws import PyPolyaGamma\n")
        monkeypatch.syspath_prepend(tmp_path)
    elif find_spec("pypolyagamma") is None:
        pytest.skip("pypolyagamma is not installed")
    samplers.package.cache_clear()
    yield
    samplers.package.cache_clear()


@pytest.mark.usefixtures("pypolyagamma")
def test_pypolyagamma_draws_where_it_is_exact():
    cases = [(1.0, 0.8), (2.0, 0.0), (5.0, 2.0), (2.5, 1.0), (30.0, 0.5)]
    b, c = (np.repeat(np.array(values)[:, None], 4000, 1) for values in zip(*cases, strict=True))
    drawn = polya_gamma.draw(jax.random.key(8), b, c, "pypolyagamma")
    for row, case in zip(np.asarray(drawn), cases, strict=True):
        check_law(row, *case)
    np.testing.assert_array_equal(drawn, polya_gamma.draw(jax.random.key(8), b, c, "pypolyagamma"))
    batch = jax.vmap(lambda key: polya_gamma.draw(key, jnp.array([3.0, 0.0, -1.0]), 1.0, "pypolyagamma"))
    draws = np.asarray(batch(jax.random.split(jax.random.key(1), 2)))
    assert np.unique(draws[:, 0]).size == 2
    assert np.all(draws[:, 1] == 0)
    assert np.isnan(draws[:, 2]).all()


def test_pypolyagamma_not_installed(monkeypatch):
    samplers.package.cache_clear()
    monkeypatch.setitem(sys.modules, "pypolyagamma", None)
    with pytest.raises(ValueError, match=r'not installed: install pgmodels\[pypolyagamma\], or pass "c" or "jax"'):
        polya_gamma.draw(jax.random.key(0), 1.0, 0.0, "pypolyagamma")


# Moments and densities.


# Both sides of the switch between series and formula (c = 1), and beyond the range of exp.
MOMENT_TILTS = (1e-8, 1e-4, 0.3, 0.999, 1.0, 1.001, 4.0, 40.0, 700.0, 3000.0)


def exact_moments(b, c):
    """Mean and variance by their formulas in 100 digits."""
    with localcontext(prec=100):
        b, c = Decimal(b), Decimal(c)
        e = c.exp()
        tanh, sech2 = (e - 1) / (e + 1), 4 * e / (e + 1) ** 2
        return float(b * tanh / (2 * c)), float(b * (tanh / c - sech2 / 2) / (2 * c**2))


def grid_density(b, c):
    """omega on a fine geometric grid around the mean, and omega times the density there."""
    centre = float(polya_gamma.mean(b, c))
    log_omega = np.linspace(np.log(centre) - 9, np.log(centre) + 4, 20001)
    density = np.nan_to_num(np.exp(polya_gamma.log_density(np.exp(log_omega), b, c) + log_omega))
    return log_omega, density


@pytest.mark.parametrize("c", MOMENT_TILTS)
def test_moments_against_many_digits(c):
    mean, variance = exact_moments(1.7, c)
    # Rounding: the variance's formula cancels at most one digit at c = 1.
    np.testing.assert_allclose(polya_gamma.mean(1.7, c), mean, rtol=2e-15)
    np.testing.assert_allclose(polya_gamma.variance(1.7, c), variance, rtol=2e-14)
    assert polya_gamma.mean(1.7, -c) == polya_gamma.mean(1.7, c)
    assert polya_gamma.variance(1.7, -c) == polya_gamma.variance(1.7, c)


def test_moments_at_zero():
    assert polya_gamma.mean(3.0, 0.0) == pytest.approx(0.75, rel=1e-15)
    assert polya_gamma.variance(3.0, 0.0) == pytest.approx(3 / 24, rel=1e-15)
    assert jax.grad(polya_gamma.mean, 1)(3.0, 0.0) == 0.0
    assert jax.grad(jax.grad(polya_gamma.mean, 1), 1)(3.0, 0.0) == pytest.approx(-3 / 24, rel=1e-14)


@pytest.mark.parametrize("c", MOMENT_TILTS)
def test_the_variance_is_the_derivative_of_the_mean(c):
    # Cumulants of a family tilted by exp(-omega c²/2): the mean's derivative in c is -c times the variance.
    slope = jax.grad(polya_gamma.mean, 1)(1.7, c)
    np.testing.assert_allclose(slope, -c * polya_gamma.variance(1.7, c), rtol=1e-13)
    curvature = jax.grad(polya_gamma.variance, 1)(1.7, c)
    assert np.isfinite(curvature)
    assert curvature < 0


@pytest.mark.parametrize("b", [1.0, 2.0, 7.0, 2.5, 0.3])
@pytest.mark.parametrize("c", [0.0, 0.5, 4.0])
def test_laplace_transform_of_the_density(b, c):
    log_omega, density = grid_density(b, c)
    for t in (0.0, 0.7, 5.0):
        transform = simpson(density * np.exp(-t * np.exp(log_omega)), x=log_omega)
        expected = (np.cosh(c / 2) / np.cosh(np.sqrt((c**2 / 2 + t) / 2))) ** b
        # The right tail, where the series has lost half its digits, holds 2e-7 at b = 7, less elsewhere.
        assert transform == pytest.approx(expected, abs=3e-7)


def test_density_outside_its_support_and_where_its_digits_are_lost():
    assert polya_gamma.log_density(-1.0, 1.0, 0.0) == -np.inf
    assert polya_gamma.log_density(0.0, 1.0, 0.0) == -np.inf
    assert np.isnan(polya_gamma.log_density(10.0, 1.0, 0.0))
    assert polya_gamma.log_density([[0.1], [0.2]], [1.0, 2.0, 3.5], 0.5).shape == (2, 3)


def test_the_first_term_dominates_the_density():
    # What the rejection sampler rests on: the density of J*(b, 0) lies between 0 and the first term of its series.
    x = np.geomspace(1e-3, 39, 4000)
    for b in (1e-3, 0.05, 0.5, 0.999, 1.0):
        ratio, _ = laws.weighted_series(x, np.full_like(x, b))
        assert ratio.min() > -1e-14
        assert ratio.max() <= 1
