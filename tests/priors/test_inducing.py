"""Inducing inputs against explicit matrices, the dense prior, and what a sparse variational posterior is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.problem import problem_of
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.plots.latents import plot_latent, plot_probability_map
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import InducingPoints
from pgmodels.priors.inducing import Inducing, inducing_at
from pgmodels.results import gaussian as gaussian_module
from tests.forms import MEAN, ROUNDING, SquaredExponential, some_sites
from tests.registry import CASES

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(2)
N = 24
X, X_NEW = RNG.uniform(-2.0, 2.0, (N, 2)), RNG.uniform(-2.0, 2.0, (5, 2))
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(1.5 * X[:, 0])))).astype(float)
PAIRS = np.column_stack([LABELS, RNG.normal(0.5, 1.0, N)])
KERNEL = SquaredExponential(np.asarray(1.7), np.asarray([0.8, 1.9]))


def bernoulli(form):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, [0.5, 0.9]), mean=0.4, form=form))


def varying(form):
    """Two latents that every datum combines, with means and lengthscales of their own."""
    gps = [pgm.GP(pgm.RBF(1.7, [0.5, 0.9]), 0.4, form=form), pgm.GP(pgm.RBF(0.8, 1.3), -0.3, form=form)]
    return pgm.Model(CASES["varying"].likelihood(), gps)


@pytest.fixture(scope="module")
def sparse():
    return pgm.cavi(bernoulli(pgm.Inducing(9)), X, LABELS)


def test_latents_factorised_together_are_those_factorised_by_themselves():
    prior = PriorCollection(
        (pgm.Inducing(X[:7]).bind(KERNEL, MEAN, X, 1), pgm.Inducing(X[3:8]).bind(KERNEL, -0.4, X, 1))
    )
    h, w = some_sites(N)
    f = jnp.asarray(RNG.normal(size=(N, 2)))

    @partial(jax.jit, static_argnums=1)
    def figures(prior, together):
        if together:
            posterior = condition_blocks(prior, Sites(h, w).as_coupled(), ((0, 1),))
        else:
            posterior = prior.condition(Sites(h, w))
        scalars = posterior.log_normalizer(), posterior.log_factor(f)
        return *posterior.moments(), *posterior.predict(jnp.asarray(X_NEW)), *scalars

    for ours, theirs in zip(figures(prior, True), figures(prior, False), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=ROUNDING)


def test_the_bound_is_that_of_an_explicit_posterior():
    rows, Z = X[:6], np.array([[-0.9, 0.2], [0.3, -1.1], [1.2, 0.8]])
    result = pgm.cavi(bernoulli(pgm.Inducing(Z)), rows, LABELS[:6], tolerance=1e-14)
    kernel = pgm.RBF(1.7, [0.5, 0.9])
    K_Z, K_ZX = np.asarray(kernel(Z, Z)), np.asarray(kernel(Z, rows))
    weights = np.linalg.solve(K_Z, K_ZX)
    h, w = (np.asarray(part)[:, 0] for part in result.sites)
    # q(u) ~ N(u; mean, K_Z) exp(h f - w f^2 / 2) with f = E[f | u].
    S = np.linalg.inv(np.linalg.inv(K_Z) + weights @ np.diag(w) @ weights.T)
    centre = 0.4 + S @ weights @ (h - 0.4 * w)
    m = 0.4 + weights.T @ (centre - 0.4)
    v = 1.7 - np.sum(K_ZX * weights, axis=0) + np.sum(weights * (S @ weights), axis=0)
    np.testing.assert_allclose(result.mean[:, 0], m, atol=ROUNDING)
    np.testing.assert_allclose(result.variance[:, 0], v, atol=ROUNDING)
    away = centre - 0.4
    divergence = 0.5 * (
        np.trace(np.linalg.solve(K_Z, S))
        - 3
        + away @ np.linalg.solve(K_Z, away)
        + np.linalg.slogdet(K_Z)[1]
        - np.linalg.slogdet(S)[1]
    )
    bound = partial(CASES["bernoulli"].bound, y=jnp.asarray(LABELS[:6]))
    np.testing.assert_allclose(result.elbo, np.sum(bound(m[:, None], v[:, None])) - divergence, atol=ROUNDING)
    # The sites of the optimum are the gradient in the moments E f and E f^2.
    in_moments = jax.grad(lambda m, s: jnp.sum(bound(m[:, None], (s - m**2)[:, None])), argnums=(0, 1))
    by_mean, by_second = in_moments(jnp.asarray(m), jnp.asarray(v + m**2))
    # To the root of the ELBO's tolerance.
    np.testing.assert_allclose(h, by_mean, atol=1e-6)
    np.testing.assert_allclose(w, -2.0 * by_second, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "y"), [(bernoulli, LABELS), (varying, PAIRS)], ids=["separate", "combined"])
def test_every_row_an_inducing_input_is_the_dense_prior(model, y):
    # They go different ways to the same end.
    one, other = (pgm.cavi(model(form), X, y, tolerance=1e-14) for form in (pgm.Inducing(X[::-1]), pgm.Dense()))
    assert one.elbo == pytest.approx(other.elbo, abs=1e-9)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-8)
    np.testing.assert_allclose(one.variance, other.variance, atol=1e-8)
    for method in ("linear_response", "perturbative"):
        pair = [pgm.correct(result, method=method) for result in (one, other)]
        np.testing.assert_allclose(pair[0].variance, pair[1].variance, atol=1e-7)
        # With the covariances of new latents with those at the data.
        for ours, theirs in zip(*(result.predict_latent(X_NEW) for result in pair), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-7)


@pytest.mark.slow
def test_every_row_an_inducing_input_is_the_dense_variational_gaussian():
    one, other = (pgm.gaussian_vi(varying(form), X, PAIRS) for form in (pgm.Inducing(X), pgm.Dense()))
    assert one.elbo == pytest.approx(other.elbo, abs=1e-8)
    np.testing.assert_allclose(one.variance, other.variance, atol=1e-6)


@pytest.mark.slow
def test_the_bound_grows_with_nested_inducing_inputs():
    dense = pgm.cavi(varying(pgm.Dense()), X, PAIRS).elbo
    bounds = [pgm.cavi(varying(pgm.Inducing(X[:count])), X, PAIRS).elbo for count in (3, 10, 16)]
    assert sorted(bounds) == bounds
    assert bounds[0] < dense - 1.0
    # The joint posterior's is the sum over explicit parts, as that of latents by themselves is.
    assert bounds[-1] < dense


@pytest.mark.slow
def test_linear_response_is_how_the_optimum_moves(sparse):
    problem = problem_of(sparse.model, Data(X, LABELS))

    @jax.jit
    def step(sites, tilt):
        mean, variance, *_ = problem.moments(sites)
        h, w = problem.sites(mean, variance)
        return Sites(h + tilt, w), mean[:, 0]

    def optimum(tilt):
        sites = sparse.sites
        for _ in range(150):
            sites, mean = step(sites, tilt)
        return mean

    corrected = pgm.correct(sparse)
    V = np.asarray(sparse.posterior.covariance())[0]
    A = np.asarray(sparse.prior.factors()[0])
    expected = V + A.T @ corrected.response @ A
    for row in (0, 13):
        tilt = jnp.zeros((N, 1)).at[row].set(1e-4)
        # Central differences: 1e-8 times third derivatives of order 1.
        np.testing.assert_allclose((optimum(tilt) - optimum(-tilt)) / 2e-4, expected[:, row], atol=1e-6)
    residual = np.asarray(sparse.prior.residual_variances())
    np.testing.assert_allclose(corrected.variance, np.diagonal(expected)[:, None] + residual, atol=1e-9)
    assert residual.max() > 0.05


@pytest.mark.slow
def test_corrections_do_not_jump_between_data_and_new_inputs(sparse):
    for method in ("linear_response", "perturbative"):
        corrected = pgm.correct(sparse, method=method)
        for at_data, at_new in zip((corrected.mean, corrected.variance), corrected.predict_latent(X), strict=True):
            np.testing.assert_allclose(at_new, at_data, atol=1e-9)


@pytest.mark.slow
def test_the_perturbative_correction_is_of_what_the_data_move(sparse):
    corrected = pgm.correct(sparse, method="perturbative")
    C = np.asarray(sparse.posterior.covariance())[0]
    m, v, total = sparse.mean[:, 0], np.diagonal(C), sparse.variance[:, 0]
    # Of one Pólya-Gamma latent (math: section 5), whose variable sees the whole second moment of f.
    c = np.sqrt(m**2 + total)
    spread = (np.tanh(c / 2.0) / c - 0.5 / np.cosh(c / 2.0) ** 2) / (2.0 * c**2)
    mean = m + C @ (v * m * spread)
    variance = total + m**2 - mean**2 + 2.0 * m * (C @ (m * v * spread)) + C**2 @ ((m**2 + v) * spread)
    np.testing.assert_allclose(corrected.mean[:, 0], mean, atol=1e-9)
    np.testing.assert_allclose(corrected.variance[:, 0], variance, atol=1e-9)


def test_gradients_of_the_bound():
    span, sites = InducingPoints(jnp.asarray(X[:5]), jnp.ones(5), jnp.asarray(1e-12)), some_sites(N)

    @jax.jit
    def bound(kernel):
        return inducing_at(kernel, jnp.asarray(MEAN), jnp.asarray(X), span, 2).moments(sites)[2]

    gradient = jax.jit(jax.grad(bound))(KERNEL)
    for name in ("variance", "lengthscale"):
        value, slope = getattr(KERNEL, name), np.asarray(getattr(gradient, name))
        for index in np.ndindex(value.shape):
            ends = []
            for move in (1e-5, -1e-5):
                moved = value.copy()
                moved[index] += move
                ends.append(float(bound(SquaredExponential(**(vars(KERNEL) | {name: moved})))))
            # Central differences: 1e-10 times a third derivative of order 100, and rounding 1e-14 / 1e-5.
            np.testing.assert_allclose(slope[index], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_inducing_inputs_that_say_nothing_new():
    X_flat = np.column_stack([X[:, 0], np.full(N, 0.3)])
    once = pgm.cavi(bernoulli(pgm.Inducing(X_flat[:6])), X_flat, LABELS)
    # Equal ones, and one so near another that its variance given that is rounding.
    again = np.concatenate([X_flat[:6], X_flat[2:4], X_flat[:1] + 1e-9])
    twice = pgm.cavi(bernoulli(pgm.Inducing(again)), X_flat, LABELS)
    assert twice.elbo == pytest.approx(once.elbo, abs=1e-8)
    # No more inducing inputs than there are distinct rows.
    few = np.repeat(X_flat[:3], 8, axis=0)
    for select in ("kmeans", "uniform", "variance"):
        assert len(pgm.Inducing(20, select).choose(KERNEL, few)) == 3
    # More inputs than rows are given all the same.
    result = pgm.cavi(bernoulli(pgm.Inducing(X)), X[:6], LABELS[:6])
    assert result.elbo == pytest.approx(pgm.cavi(bernoulli(pgm.Dense()), X[:6], LABELS[:6]).elbo, abs=1e-8)


def test_draws_have_the_marginals(sparse):
    f, _ = sparse.draw_at_data(4000, seed=3)
    deviation = np.sqrt(sparse.variance)
    # 24 means at five standard errors, and variances: sqrt(2 / 4000).
    assert np.all(np.abs(f.mean(axis=0) - sparse.mean) < 5 * deviation / np.sqrt(4000))
    np.testing.assert_allclose(f.var(axis=0) / sparse.variance, 1.0, atol=5 * np.sqrt(2 / 4000))


def test_importance_weights_are_those_of_the_model_that_gibbs_samples(sparse):
    from pgmodels.diagnostics.compare import importance_estimate

    estimate = importance_estimate(sparse, 4000, seed=1)
    # log p(y) of the sparse model, with 2^14 draws of the prior.
    f = np.asarray(jax.vmap(lambda key: sparse.prior.draw(key)[0])(jax.random.split(jax.random.key(0), 2**14)))[..., 0]
    log_density = -np.logaddexp(0.0, np.where(LABELS > 0, -f, f)).sum(axis=1)
    weights = np.exp(log_density - log_density.max())
    evidence = np.log(weights.mean()) + log_density.max()
    error = np.hypot(weights.std() / weights.mean() / 2**7, estimate.log_evidence_error)
    assert estimate.log_evidence == pytest.approx(evidence, abs=4 * error)
    assert estimate.log_evidence > sparse.elbo


@pytest.mark.filterwarnings("ignore:the inducing inputs, [0-9]+ in all, are too few")
@pytest.mark.slow
def test_gibbs_samples_the_sparse_model():
    scale = 0.6
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1]
    gp = pgm.GP(pgm.RBF(1.7, [0.5, 0.9]), mean=0.4, form=pgm.Inducing(X[:7]))
    draws = pgm.gibbs(pgm.Model(pgm.Gaussian(pgm.Fixed(scale)), gp), X, y, num_samples=1000, num_warmup=0, num_chains=2)
    kernel = pgm.RBF(1.7, [0.5, 0.9])
    K_ZX = np.asarray(kernel(X[:7], X))
    K = K_ZX.T @ np.linalg.solve(kernel(X[:7], X[:7]), K_ZX)
    K[np.diag_indices(N)] = 1.7
    S = K - K @ np.linalg.solve(K + scale**2 * np.eye(N), K)
    mean = 0.4 + S @ (y - 0.4) / scale**2
    # Draws of this likelihood's sweep are independent: 24 means and variances at five standard errors.
    np.testing.assert_array_less(np.abs(draws.mean[:, 0] - mean), 5 * np.sqrt(np.diagonal(S) / 2000))
    np.testing.assert_allclose(draws.variance[:, 0] / np.diagonal(S), 1.0, atol=5 * np.sqrt(2 / 2000))


def test_results_are_saved(sparse, tmp_path):
    loaded = pgm.load(sparse.save(tmp_path / "sparse.npz"))
    assert loaded.model == sparse.model
    for ours, theirs in zip(loaded.predict_latent(X_NEW), sparse.predict_latent(X_NEW), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_form_says_of_itself(sparse):
    assert repr(pgm.Inducing(300)) == "Inducing(300)"
    assert repr(pgm.Inducing(300, "kmeans")) == "Inducing(300, 'kmeans')"
    assert "form=Inducing(<9 inputs>)" in repr(sparse.model)
    assert pgm.Inducing(X[:4]) == pgm.Inducing(X[[0, 1, 1, 2, 3]].tolist())
    assert pgm.Inducing(4) != pgm.Inducing(5)
    assert isinstance(hash(pgm.Inducing(X)), int)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0,), "inputs of Inducing.*whole number >= 1; got 0"),
        ((2.5,), "whole number"),
        (([[1.0, np.nan]],), "finite; row 0"),
        (([1.0, 2.0],), r"shape \(M, d\)"),
        ((3, "random"), "select must be one of 'kmeans'.*got 'random'"),
        (([[1.0, 2.0]], "kmeans"), "has no effect with given inputs"),
        (([["a"]],), "must be numbers"),
    ],
)
def test_wrong_forms_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        Inducing(*arguments)


@pytest.mark.parametrize("engine", [pgm.cavi, pgm.fit])
def test_inputs_of_another_width_are_refused(engine):
    with pytest.raises(ValueError, match=r"3 column\(s\) and X has 2"):
        engine(bernoulli(pgm.Inducing(np.zeros((2, 3)))), X, LABELS)


def test_jitter_goes_by_each_variance():
    """An inducing input far out, where the prior's variance is 1e10, takes nothing from what the others say."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(60, 1))
    y = np.sin(3.0 * inputs[:, 0]) + 1e-3 * rng.normal(size=60)
    kernel = pgm.RBF(1.0, 1.0) + pgm.Linear(1.0)

    def elbo(Z):
        return pgm.cavi(pgm.Model(pgm.Gaussian(0.01), pgm.GP(kernel, form=pgm.Inducing(Z))), inputs, y).elbo

    few = elbo(inputs[:20])
    assert elbo(np.concatenate([inputs[:20], [[1e5]]])) > few - 0.1


def one_scale(form):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.Fixed(3.0), 0.5), mean=0.4, form=form))


@pytest.mark.slow
def test_what_is_learned_with_every_row_is_that_of_the_dense_prior():
    # Sixteen distinct rows: with five inducing inputs they share a program.
    rows = np.concatenate([X[:16], X[4:12]])
    one, other = (
        MarginalBound(trainable(one_scale(form)), Data(rows, LABELS)) for form in (pgm.Inducing(20), pgm.Dense())
    )
    (value, slope), (dense_value, dense_slope) = (bound(bound.learnable.start() + 0.3) for bound in (one, other))
    assert value == pytest.approx(dense_value, abs=1e-7)
    np.testing.assert_allclose(slope, dense_slope, atol=1e-6)


@pytest.mark.slow
def test_learning_ends_at_the_inducing_inputs_of_its_model():
    result = pgm.fit(one_scale(pgm.Inducing(5)), X, LABELS, objective="augmented")
    assert len(result.model.gps[0].form.inputs) == 5
    assert pgm.cavi(result.model, X, LABELS).elbo == pytest.approx(result.elbo, abs=1e-6)


@pytest.mark.slow
def test_figures_show_the_inducing_inputs(sparse):
    for result in (sparse, pgm.gibbs(sparse.model, X, LABELS, num_samples=4, num_warmup=0, num_chains=1)):
        (crosses,) = (line for line in plot_probability_map(result).axes[0].lines if line.get_marker() == "x")
        assert sorted(map(tuple, np.transpose(crosses.get_data()))) == sorted(sparse.model.gps[0].form.inputs)
    line = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 0.5), form=pgm.Inducing(9))), X[:, :1], LABELS)
    figure = plot_latent(line)
    (ticks,) = (drawn for drawn in figure.axes[0].lines if drawn.get_marker() == "|")
    np.testing.assert_array_equal(ticks.get_xdata(), np.sort(np.ravel(line.model.gps[0].form.inputs)))


def test_predictions_go_by_so_many_rows_at_a_time(sparse, monkeypatch):
    corrected = pgm.correct(sparse)
    at_once = [result.predict_latent(X_NEW) for result in (sparse, corrected)]
    monkeypatch.setattr(gaussian_module, "chunk_length", lambda width: 2)
    in_chunks = [result.predict_latent(X_NEW) for result in (sparse, corrected)]
    # Another shape, another order of sums.
    np.testing.assert_allclose(in_chunks, at_once, atol=1e-13)


@pytest.mark.slow
def test_joint_draws_of_the_sampler_at_new_inputs(sparse):
    draws = pgm.gibbs(sparse.model, X, LABELS, num_samples=400, num_warmup=0, num_chains=1)
    places = np.concatenate([X_NEW, X_NEW[:1] + 1e-4])
    f = draws.draw_latents(places, num_draws=400)[..., 0]
    # Functions are smooth, whatever the residual is.
    assert np.abs(f[:, -1] - f[:, 0]).max() < 0.01
    mean, variance = draws.predict_latent(places)
    assert np.all(np.abs(f.mean(axis=0) - mean[:, 0]) < 5 * np.sqrt(variance[:, 0] / 400))


def test_draws_before_data(sparse):
    form = pgm.Inducing(9)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, dist.LogNormal(0.0, 0.3)), form=form))
    f = pgm.prior_predictive(model, X, num_draws=300).latents[..., 0]
    # Whatever the inducing inputs leave is in the variance: 300 draws at five standard errors.
    np.testing.assert_allclose(f.var(axis=0) / 1.7, 1.0, atol=5 * np.sqrt(2 / 300))
