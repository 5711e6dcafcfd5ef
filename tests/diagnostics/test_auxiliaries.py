"""Means of the auxiliaries against closed forms, sampled conditionals and quadrature."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from pgmodels.diagnostics.vsbc import auxiliary_means
from pgmodels.priors.base import Sites
from pgmodels.results.approximation import Approximation, PerturbativeApproximation
from pgmodels.results.draws import Draws
from tests.covering import some
from tests.programs import conditioned
from tests.registry import CASES


@cache
def data(name):
    case = CASES[name]
    X, y = case.data(12, seed=3)
    with jax.enable_x64(True):
        model = case.model()
        return {"model": model, "X": X, "y": y, "prior": model.prior(X), "seconds": 0.0}


def approximation(name):
    """Any Gaussian marginals: the auxiliaries' optimal q is defined for all."""
    arguments, rng = data(name), np.random.default_rng(7)
    shape = (12, arguments["model"].num_latents)
    with jax.enable_x64(True):
        posterior = conditioned(arguments["prior"], Sites(jnp.zeros(shape), jnp.zeros(shape)))[0]
    moments = {"mean": rng.normal(0.4, 1.2, shape), "variance": rng.gamma(2.0, 0.4, shape)}
    rest = {"elbo_trace": np.zeros(2), "converged": True, "tolerance": 1e-6}
    arguments = {name: value for name, value in arguments.items() if name != "prior"}
    return Approximation(**arguments, **moments, posterior=posterior, **rest, method="cavi")


def draws(name):
    """Draws of the prior: the average of E[a | f, y] is over whatever the draws are."""
    arguments, rng = data(name), np.random.default_rng(8)
    whitened = tuple(
        rng.normal(size=(2, 30, group.rank, size))
        for group, size in zip(arguments["prior"].groups, arguments["prior"].sizes, strict=True)
    )
    trace = np.zeros((2, 30))
    return Draws(**arguments, whitened=whitened, log_likelihood_trace=trace, num_warmup=0, method="gibbs")


def tilted_mean(c):
    """E of PG(1, c): tanh(c / 2) / (2 c)."""
    return np.tanh(c / 2) / (2 * c)


def thinned(m, v):
    """σ̃₋(f), the share of a Poisson's points that remain."""
    return np.exp(-m / 2) / (2 * np.cosh(np.sqrt(m**2 + v) / 2))


def test_bernoulli_is_the_tilted_polya_gamma():
    vi = approximation("bernoulli")
    m, v = vi.mean[:, 0], vi.variance[:, 0]
    means = auxiliary_means(vi)
    assert list(means) == ["ω"]
    # E_q of PG(1, c) by its series: the sum of gammas of Polson, Scott and Windle 2013, equation 1.
    k = np.arange(1, 200_001)[:, None]
    series = np.sum(1.0 / (2 * np.pi**2 * (k - 0.5) ** 2 + 0.5 * (m**2 + v)), axis=0)
    # What is left of the series is below 1 / (2 pi^2 200,000).
    np.testing.assert_allclose(means["ω"], series, atol=3e-7)


def test_negative_binomial_counts_its_dispersion():
    vi = approximation("negative_binomial")
    c = np.sqrt(vi.mean[:, 0] ** 2 + vi.variance[:, 0])
    np.testing.assert_allclose(auxiliary_means(vi)["ω"], (vi.y + 2.5) * tilted_mean(c), rtol=1e-10)


def test_logistic_softmax_chain():
    vi = approximation("logistic_softmax")
    m, v = vi.mean, vi.variance
    means = auxiliary_means(vi)
    rate = 1.0 / np.sum(1.0 - thinned(m, v), axis=1)
    counts = rate[:, None] * thinned(m, v)
    is_label = np.arange(3) == vi.y[:, None]
    np.testing.assert_allclose(means["λ"], rate, rtol=1e-10)
    np.testing.assert_allclose(means["k"], counts, rtol=1e-10)
    np.testing.assert_allclose(means["ω"], (is_label + counts) * tilted_mean(np.sqrt(m**2 + v)), rtol=1e-10)


def test_two_blocks():
    vi = approximation("heteroscedastic")
    (m, g), (v, h) = vi.mean.T, vi.variance.T
    counts = 0.5 * 4.0 * ((vi.y - m) ** 2 + v) * thinned(g, h)
    means = auxiliary_means(vi)
    np.testing.assert_allclose(means["k"], counts, rtol=1e-10)
    np.testing.assert_allclose(means["ω"], (0.5 + counts) * tilted_mean(np.sqrt(g**2 + h)), rtol=1e-10)


def test_probit_datum_has_one_of_the_two():
    vi, mcmc = approximation("probit"), draws("probit")
    m = vi.mean[:, 0]
    for result in (vi, mcmc):
        means = auxiliary_means(result)
        assert np.isnan(means["u"][vi.y == 0]).all()
        assert np.isnan(means["u2"][vi.y == 1]).all()
    expected = stats.truncnorm.mean(-m, np.inf, loc=m)[vi.y == 1]
    np.testing.assert_allclose(auxiliary_means(vi)["u"][vi.y == 1], expected, rtol=1e-8)


@pytest.mark.parametrize(
    "name",
    some(
        ["heteroscedastic", "logistic_softmax", "multinomial_probit", "probit", "stick_breaking", "student_t"],
        "heteroscedastic",
        "probit",
    ),
)
def test_draws_average_what_gibbs_draws(name):
    """E[a | f, y] averaged over draws of f against auxiliaries drawn at each of them, again and again."""
    mcmc = draws(name)
    means = auxiliary_means(mcmc)
    with jax.enable_x64(True):
        augmentation, y, parameters = mcmc.model.augmentation, jnp.asarray(mcmc.y), mcmc.model.parameters
        f = jnp.asarray(mcmc.latents.reshape(-1, *mcmc.latents.shape[2:]))
        blocks = range(len(augmentation.blocks))
        keys = jax.random.split(jax.random.key(5), (len(blocks), 40))
        draws_of = [jax.jit(partial(augmentation.draw_chain, block=block)) for block in blocks]
        drawn = [
            {k: v for block in blocks for k, v in draws_of[block](keys[block, i], f, y, parameters).items()}
            for i in range(40)
        ]
    assert set(means) == set(drawn[0])
    for symbol, mean in means.items():
        values = np.stack([np.asarray(part[symbol]) for part in drawn])
        values = (values if mean.ndim == 2 else values[..., 0]).mean(axis=1)
        # 40 averages over the same latents; t with 39 degrees of freedom exceeds 6 once in two million times.
        error = values.std(axis=0, ddof=1) / np.sqrt(40)
        there = np.isfinite(mean)
        assert (np.abs(values.mean(axis=0) - mean) <= 6 * error + 1e-12)[there].all()


def test_a_laplace_posterior_mean_is_infinite():
    # E[1 / |y - f|] over a density that is positive at y.
    assert np.isposinf(auxiliary_means(draws("laplace"))["ω"]).all()
    vi = approximation("laplace")
    expected = 1.0 / (2 * 0.5 * np.sqrt((vi.y - vi.mean[:, 0]) ** 2 + vi.variance[:, 0]))
    np.testing.assert_allclose(auxiliary_means(vi)["ω"], expected, rtol=1e-10)


def test_a_gaussian_likelihood_has_none():
    vi, mcmc = approximation("gaussian"), draws("gaussian")
    assert auxiliary_means(vi) == auxiliary_means(mcmc) == {}


def test_averages_take_the_spread_of_the_latents():
    # σ(-f)-dependent means are not those at the posterior mean: the draws' own spread enters.
    mcmc = draws("sigmoid_poisson")
    expected = np.mean(6.0 * expit(-mcmc.latents[..., 0]), axis=(0, 1))
    np.testing.assert_allclose(auxiliary_means(mcmc)["k"], expected, rtol=1e-10)


def test_corrected_results_have_those_of_q_and_nothing_else_has_any():
    vi = approximation("bernoulli")
    correction = {"shift": vi.mean, "curvature": vi.mean, "num_nonpositive": 0}
    moments = {"mean": vi.mean + 1.0, "variance": vi.variance, "seconds": 1.0}
    corrected = PerturbativeApproximation(uncorrected=vi, **moments, **correction)
    # Of the Gaussian that was corrected, by its own marginals: those of the posterior, not the moments that were made.
    c = np.sqrt(corrected.uncorrected.mean**2 + corrected.uncorrected.variance)[:, 0]
    np.testing.assert_allclose(auxiliary_means(corrected)["ω"], np.tanh(0.5 * c) / (2.0 * c), rtol=1e-6)
    with pytest.raises(ValueError, match="result must be a result of cavi, fit or gibbs; got str"):
        auxiliary_means("cavi")
