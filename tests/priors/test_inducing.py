"""Inducing inputs against explicit matrices, the dense prior, and what a sparse variational posterior is."""

import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound, Selection, choose_again
from pgmodels.inference.cavi import CoordinateAscent
from pgmodels.inference.prepare import TURNS
from pgmodels.inference.problem import problem_of
from pgmodels.kernels.kernel import CallableKernel
from pgmodels.model import Data
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.parameters.vector import trainable
from pgmodels.plots.style import inducing_inputs
from pgmodels.priors import linalg
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import InducingPoints
from pgmodels.priors.inducing import (
    SELECTIONS,
    ChunkedInducingPrior,
    FICPrior,
    InducingPrior,
    chunked_prior_at,
    greedy,
    inducing_at,
    inducing_points_at,
    sufficient,
)
from pgmodels.priors.linalg import HELD
from pgmodels.results import gaussian as gaussian_module
from pgmodels.runtime.precision import as_array
from tests.covering import some
from tests.forms import MEAN, ROUNDING, SquaredExponential, some_sites
from tests.referees import log_normal
from tests.registry import CASES

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(2)
N = 24
X, X_NEW = RNG.uniform(-2.0, 2.0, (N, 2)), RNG.uniform(-2.0, 2.0, (5, 2))
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(1.5 * X[:, 0])))).astype(float)
PAIRS = np.column_stack([LABELS, RNG.normal(0.5, 1.0, N)])
KERNEL = SquaredExponential(np.asarray(1.7), np.asarray([0.8, 1.9]))


def bernoulli(form, lengthscale=(0.5, 0.9)):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, np.array(lengthscale)), mean=0.4, form=form))


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
    np.testing.assert_allclose((one.mean, one.variance), (other.mean, other.variance), atol=1e-8)
    for method in ("linear_response", "perturbative"):
        pair = [pgm.correct(result, method=method) for result in (one, other)]
        np.testing.assert_allclose(pair[0].variance, pair[1].variance, atol=1e-7)
        # With the covariances of new latents with those at the data.
        np.testing.assert_allclose(*(result.predict_latent(X_NEW) for result in pair), atol=1e-7)


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
        np.testing.assert_allclose(corrected.predict_latent(X), (corrected.mean, corrected.variance), atol=1e-9)


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
    np.testing.assert_allclose((corrected.mean[:, 0], corrected.variance[:, 0]), (mean, variance), atol=1e-9)


def test_gradients_of_the_bound():
    span, sites = InducingPoints(jnp.asarray(X[:5]), jnp.ones(5), jnp.asarray(1e-12)), some_sites(N)

    @jax.jit
    def bound(kernel):
        return inducing_at(kernel, jnp.asarray(MEAN), jnp.asarray(X), span, 2, HELD).moments(sites)[2]

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


def test_what_a_form_says_of_itself(sparse):
    for text in ("300", "300, 'kmeans'", "30, 'HGV'", "'auto'", "500, 'auto'"):
        assert repr(eval(f"pgm.Inducing({text})")) == f"Inducing({text})"
    assert "form=Inducing(<9 inputs>)" in repr(sparse.model)
    assert pgm.Inducing(X[:4]) == pgm.Inducing(X[[0, 1, 1, 2, 3]].tolist())
    assert pgm.Inducing(4) != pgm.Inducing(5)
    assert pgm.Inducing("auto") == pgm.Inducing(1000, "auto")
    assert isinstance(hash(pgm.Inducing(X)), int)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0,), "inputs of Inducing.*whole number >= 1; got 0"),
        ((2.5,), "whole number"),
        (("kmeans",), "whole number"),
        (([[1.0, np.nan]],), "finite; row 0"),
        (([1.0, 2.0],), r"shape \(M, d\)"),
        ((3, "random"), "select must be one of 'kmeans'.*'GV', 'HGV'.*got 'random'"),
        (([[1.0, 2.0]], "kmeans"), "has no effect with given inputs"),
        (([["a"]],), "must be numbers"),
    ],
)
def test_wrong_forms_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        pgm.Inducing(*arguments)


@pytest.mark.parametrize("engine", [pgm.cavi, pgm.fit])
def test_inputs_of_another_width_are_refused(engine):
    with pytest.raises(ValueError, match=r"3 column\(s\) but X has 2"):
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
@pytest.mark.parametrize("in_chunks", [False, True])
def test_what_is_learned_with_every_row_is_that_of_the_dense_prior(in_chunks, request):
    # Sixteen distinct rows: with five inducing inputs they share a program.
    rows, labels, form = np.concatenate([X[:16], X[4:12]]), LABELS, pgm.Inducing(20)
    if in_chunks:
        # Of another size than with a factor in other tests, whose programs would be taken.
        request.getfixturevalue("without_factor")
        rows, labels, form = np.concatenate([X, X[:8]]), np.concatenate([LABELS, LABELS[:8]]), pgm.Inducing(X)
    one, other = (MarginalBound.of(trainable(one_scale(each)), Data(rows, labels)) for each in (form, pgm.Dense()))
    ours, dense = (bound.at(bound.learnable.start() + 0.3) for bound in (one, other))
    assert ours.value == pytest.approx(dense.value, abs=1e-7)
    np.testing.assert_allclose(ours.slope, dense.slope, atol=1e-6)


@pytest.mark.slow
def test_learning_ends_at_the_inducing_inputs_of_its_model():
    result = pgm.fit(one_scale(pgm.Inducing(5)), X, LABELS, objective="augmented")
    assert len(result.model.gps[0].form.inputs) == 5
    assert pgm.cavi(result.model, X, LABELS).elbo == pytest.approx(result.elbo, abs=1e-6)


@pytest.mark.slow
def test_figures_show_the_inducing_inputs(sparse):
    for result in (sparse, pgm.gibbs(sparse.model, X, LABELS, num_samples=4, num_warmup=0, num_chains=1)):
        (crosses,) = (line for line in pgm.plot_probability_map(result).axes[0].lines if line.get_marker() == "x")
        assert sorted(map(tuple, np.transpose(crosses.get_data()))) == sorted(sparse.model.gps[0].form.inputs)
    line = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 0.5), form=pgm.Inducing(9))), X[:, :1], LABELS)
    figure = pgm.plot_latent(line)
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


# How inducing inputs are chosen: by the prior, by chance, and by what the data say.


def test_greedy_selection_takes_the_largest_variance_that_is_left():
    weights = np.random.default_rng(7).gamma(1.0, 1.0, N)
    weights[:4] = 0.0
    for w in (np.ones(N), weights):
        chosen = greedy(KERNEL, X, 6, w)
        for count, z in enumerate(chosen):
            Z = chosen[:count]
            residual = np.asarray(KERNEL.diagonal(X))
            if count:
                residual = residual - np.sum(
                    np.asarray(KERNEL(Z, X)) * np.linalg.solve(KERNEL(Z, Z), KERNEL(Z, X)), axis=0
                )
            np.testing.assert_array_equal(z, X[np.argmax(w * residual)])
        assert count == 5
    # Rows that nothing is said of are never taken.
    assert not (greedy(KERNEL, X, N, weights)[:, None] == X[:4]).all(axis=2).any()


def test_where_no_row_is_worth_it_one_is_taken():
    """As of a latent that noise leaves without variance, whose form still needs an input."""
    np.testing.assert_array_equal(greedy(KERNEL, X, 6, np.full(N, 1e-6), enough=0.05), X[:1])


@pytest.mark.parametrize("trace", [0.3, 2.0])
def test_inducing_with_a_trace_selects_the_fewest_rows_below_it(trace):
    kernel, x = pgm.RBF(1.7, 0.8), np.random.default_rng(4).normal(size=(50, 2))
    weights = np.random.default_rng(5).uniform(0.1, 3.0, 50)
    chosen = pgm.Inducing(50, "HGV", trace=trace).choose(kernel, x, weights)
    for Z, is_below in ((chosen, True), (chosen[:-1], False)):
        K = 1.7 * np.exp(-0.5 * np.sum((x[:, None] - Z) ** 2, axis=2) / 0.64)
        root = np.linalg.cholesky(1.7 * np.exp(-0.5 * np.sum((Z[:, None] - Z) ** 2, axis=2) / 0.64))
        left = weights @ (1.7 - np.sum(np.linalg.solve(root, K.T) ** 2, axis=0))
        assert (left <= trace) == is_below
    with pytest.raises(ValueError, match=r"trace must be >= 0, and 0 unless select is .* got 1.0, 'kmeans'"):
        pgm.Inducing(50, "kmeans", trace=1.0)


def test_a_greedy_choice_among_more_rows_than_fit_into_memory_is_of_a_sample():
    rows, weights = np.random.default_rng(5).uniform(-2.0, 2.0, (600, 2)), np.full(600, 3.0)
    of_all_rows = greedy(KERNEL, rows, 40, weights, enough=30.0)
    some = greedy(KERNEL, rows, 40, weights, enough=30.0, held=40 * 200)
    assert (some[:, None] == rows).all(axis=2).any(axis=1).all()
    assert not np.array_equal(some, of_all_rows)
    # What a third of the rows leaves stands for what all of them leave, to about a row.
    assert abs(len(some) - len(of_all_rows)) <= 2 < len(of_all_rows) < 40


@pytest.mark.parametrize("select", ["kmeans", "uniform", "variance"])
def test_selections_cover_inputs_that_they_have_not_seen(select):
    rng = np.random.default_rng(4)
    rows, new_rows = rng.normal(size=(400, 2)), rng.normal(size=(50, 2))
    Z = pgm.Inducing(40, select).choose(KERNEL, rows)
    assert Z.shape == (40, 2)
    prior = pgm.Inducing(Z).bind(KERNEL, 0.0, rows, 1)
    # Forty inputs span 3 x 2 lengthscales with little left; a tenth of the variance, where 400 rows have 1.7.
    assert np.mean(np.asarray(prior.factor_at(jnp.asarray(new_rows))[1])) < 0.17
    np.testing.assert_array_equal(Z, pgm.Inducing(40, select).choose(KERNEL, rows))


@pytest.mark.slow
def test_another_choice_of_inducing_inputs_never_lowers_the_bound(monkeypatch):
    bound = MarginalBound.of(trainable(one_scale(pgm.Inducing(5))), Data(X, LABELS))
    first = bound.at(bound.learnable.start(), inputs=(X[:2],))
    best, selection, has_changed = choose_again(bound, first, Selection())
    assert has_changed
    assert len(best.inputs[0]) == 5
    assert best.value < first.value
    monkeypatch.setattr(pgm.Inducing, "choose", lambda *arguments: X[:1])
    again, _, has_changed = choose_again(bound, best, selection)
    assert not has_changed
    assert again is best
    assert bound.at(best.vector, best).value == pytest.approx(best.value, abs=1e-8)


def test_selection_by_what_the_data_say_is_no_worse_than_by_variance():
    by_variance, by_data = (
        pgm.cavi(bernoulli(pgm.Inducing(5, how)), X, LABELS) for how in ("variance", "heteroscedastic")
    )
    assert by_data.elbo >= by_variance.elbo
    assert by_data.model != by_variance.model


# The data are two dozen nearly unrelated values at this lengthscale.
rough = partial(bernoulli, lengthscale=0.25)


def count(model):
    return len(model.gps[0].form.inputs)


@pytest.mark.slow
def test_as_many_inducing_inputs_as_the_data_gain_by(monkeypatch):
    monkeypatch.setitem(SELECTIONS, "auto", partial(sufficient, first=3))
    for of in (bernoulli, rough):
        enough, dense = (pgm.cavi(of(form), X, LABELS) for form in (pgm.Inducing("auto"), pgm.Dense()))
        # More of them gained less than 0.05 nats.
        assert dense.elbo - 0.1 < enough.elbo < dense.elbo + 1e-9
        fewer = pgm.cavi(of(pgm.Inducing(count(enough.model) // 2, "variance")), X, LABELS)
        assert fewer.elbo < enough.elbo - 0.05
    smooth = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 3.0), form=pgm.Inducing("auto"))), X, LABELS)
    assert count(smooth.model) < 15 < count(enough.model) <= N


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fit", "svi", "svi with weights", "gibbs"])
def test_every_engine_finds_how_many_inducing_inputs_are_enough(monkeypatch, engine):
    monkeypatch.setitem(SELECTIONS, "auto", partial(sufficient, first=3))
    model, fixed = one_scale(pgm.Inducing("auto")), bernoulli(pgm.Inducing("auto"))
    if engine == "fit":
        sparse, dense = (pgm.fit(model, X, LABELS), pgm.fit(one_scale(pgm.Dense()), X, LABELS))
        assert dense.elbo - 0.1 < sparse.elbo < dense.elbo + 1e-6
    elif engine == "gibbs":
        sparse = pgm.gibbs(fixed, X, LABELS, num_samples=2, num_warmup=0, num_chains=1)
    else:
        dense = pgm.fit(one_scale(pgm.Dense()), X, LABELS, objective="augmented")
        weights = np.ones(N) if "weights" in engine else None
        sparse = pgm.svi(model, X, LABELS, weights=weights, batch_size=N, train_hyperparameters=True)
        assert dense.elbo - 0.2 < sparse.elbo < dense.elbo + 1e-6
    assert 3 < count(sparse.model) <= N


@pytest.mark.slow
def test_what_little_variance_is_left_for_may_still_gain_a_lot():
    """Sharp edges that a smooth kernel leaves hardly any variance for, and precise data that want them."""
    inputs = np.linspace(-3.0, 3.0, 120)[:, None]
    y = np.sign(np.sin(4.0 * inputs[:, 0])) + 0.02 * np.random.default_rng(3).normal(size=120)

    def wave(form):
        return pgm.Model(pgm.Gaussian(pgm.Fixed(0.05)), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(0.3)), form=form))

    dense = pgm.cavi(wave(pgm.Dense()), inputs, y)
    for engine in (pgm.cavi, pgm.fit):
        enough = engine(wave(pgm.Inducing("auto")), inputs, y)
        assert dense.elbo - 0.1 < enough.elbo < dense.elbo + 1e-6


@pytest.mark.slow
def test_a_kernel_so_smooth_that_no_sharper_choice_is_another_ends_the_search(monkeypatch):
    """Rounding leaves no variance for more than a few rows: the bound is asked of a handful of choices."""
    line = np.linspace(-2.0, 2.0, 60)[:, None]
    labels = (np.arange(60) % 7 < 3).astype(float)
    smooth = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 30.0), mean=0.1, form=pgm.Inducing("auto")))
    bound = MarginalBound.of(trainable(smooth), Data(line, labels))
    evaluations, evaluate = [], MarginalBound.at

    def counted(*arguments, **options):
        evaluations.append(options)
        return evaluate(*arguments, **options)

    monkeypatch.setattr(MarginalBound, "at", counted)
    first = best = bound.at(bound.learnable.start())
    selection = Selection()
    for _ in range(3):
        best, selection, _ = choose_again(bound, best, selection)
    assert len(evaluations) < 15
    assert best.value <= first.value
    assert bound.at(best.vector, best).value == pytest.approx(best.value, abs=1e-9)
    assert count(pgm.cavi(smooth, line, labels).model) <= 60


@pytest.mark.slow
def test_more_inducing_inputs_than_are_allowed_are_asked_for():
    with pytest.warns(
        pgm.InducingWarning, match=r"Inducing\(5, 'auto'\) took its maximum of 5 .*Inducing\(10, 'auto'\)"
    ):
        result = pgm.cavi(rough(pgm.Inducing(5, "auto")), X, LABELS)
    assert count(result.model) == 5
    with pytest.warns(pgm.InducingWarning):
        pgm.fit(rough(pgm.Inducing(4, "auto")), X, LABELS, max_iterations=30)
    # Where there are no more than are taken, there are none to ask for.
    few = np.repeat(X[:6], 4, axis=0)
    exact = pgm.cavi(rough(pgm.Inducing(6, "auto")), few, LABELS)
    assert exact.elbo == pytest.approx(pgm.cavi(rough(pgm.Dense()), few, LABELS).elbo, abs=1e-6)


WIDE = np.array([1.0, 1000.0])


def test_centres_are_the_same_places_in_other_units():
    X = np.random.default_rng(0).normal(size=(300, 2))
    form = pgm.Inducing(12, "kmeans")
    Z = form.choose(pgm.RBF(4.0, [0.8, 800.0]), WIDE * X)
    np.testing.assert_allclose(Z, WIDE * form.choose(pgm.RBF(4.0, [0.8, 0.8]), X), rtol=1e-6)
    assert len(np.unique(Z[:, 0])) == 12


def test_centres_go_by_the_columns_that_the_kernel_reads():
    """Of rows of a second column a thousand times as wide they would be means of the first, a deviation from most."""
    X = np.random.default_rng(0).normal(size=(300, 2))
    for kernel in (pgm.On(pgm.RBF(4.0, 0.7), [0]), pgm.On(pgm.Matern12(4.0, 0.7), [0]) + pgm.White(0.1)):
        Z = pgm.Inducing(12, "kmeans").choose(kernel, WIDE * X)
        assert np.abs(X[:, :1] - Z[:, 0]).min(axis=1).mean() < 0.1


GROUPS = np.column_stack([np.random.default_rng(3).uniform(0.0, 3.0, 120), np.arange(120) % 4])
INTERCEPTS = pgm.On(pgm.RBF(1.0, 0.5), [0]) + pgm.On(pgm.White(4.0), [1])
# Covariances of three outputs, looked up by an index.
OUTPUTS = jnp.array([[1.0, 0.6, -0.4], [0.6, 1.5, 0.1], [-0.4, 0.1, 0.8]])


def looked_up(A, B):
    here, there = (part[:, 1].astype(int) % 3 for part in (A, B))
    return OUTPUTS[here[:, None], there] * jnp.exp(-0.5 * ((A[:, :1] - B[:, 0]) / 0.7) ** 2)


@pytest.mark.parametrize(
    ("kernel", "count", "most"), [(INTERCEPTS, 24, 0.02), (CallableKernel(looked_up), 12, 0.1)], ids=["groups", "index"]
)
def test_inducing_inputs_by_kmeans_have_levels_that_rows_have(kernel, count, most):
    Z = pgm.Inducing(count, "kmeans").choose(kernel, GROUPS)
    assert (Z[:, None] == GROUPS).all(axis=2).any(axis=1).all()
    K, across = (np.asarray(kernel(as_array(Z), as_array(to))) for to in (Z, GROUPS))
    explained = np.sum(across * np.linalg.solve(K + 1e-9 * np.eye(len(Z)), across), axis=0)
    variances = np.diagonal(np.asarray(kernel(as_array(GROUPS), as_array(GROUPS))))
    # Centres left 0.43 of the variance in both.
    assert np.sum(variances - explained) < most * np.sum(variances)


def test_inducing_inputs_by_kmeans_are_centres_where_these_tell_as_much():
    rows = np.random.default_rng(4).normal(size=(300, 2))
    for kernel in (KERNEL, pgm.Matern12(1.0, 0.5), pgm.RBF(1.0, 0.05)):
        Z = pgm.Inducing(40, "kmeans").choose(kernel, rows)
        # That of a single row is the row itself.
        assert (Z[:, None] == rows).all(axis=2).any(axis=1).mean() < 0.5


@pytest.mark.slow
def test_steps_on_batches_know_groups():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0.0, 3.0, 200), rng.integers(0, 4, 200)])
    y = np.sin(3.0 * X[:, 0]) + np.array([2.0, -1.0, 0.5, -2.0])[X[:, 1].astype(int)] + 0.3 * rng.standard_normal(200)
    smooth = np.exp(-0.5 * ((X[:, :1] - X[:, 0]) / 0.5) ** 2)
    C = smooth + 4.0 * (X[:, 1:] == X[:, 1]) + 0.09 * np.eye(200)
    exact = log_normal(y, C)
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), pgm.GP(INTERCEPTS, mean=0.0, form=pgm.Inducing(30)))
    for result in (pgm.svi(model, X, y), pgm.svi(model, pgm.ArrayRows(X, y))):
        assert exact - 0.2 < result.elbo < exact + 1e-3


@pytest.mark.slow
def test_too_few_inducing_inputs_are_said_with_what_they_cost():
    rng = np.random.default_rng(8)
    # Off the grid, on which rounding decides between rows that leave the same.
    X = (np.arange(300.0) + rng.uniform(-0.3, 0.3, 300))[:, None]
    K = 0.5 * np.exp(-0.5 * ((X - X.T) / 3.0) ** 2)
    y = np.linalg.cholesky(K + 1e-9 * np.eye(300)) @ rng.standard_normal(300) + 0.5 * rng.standard_normal(300)
    C = K + 0.25 * np.eye(300)
    exact = log_normal(y, C)

    def at(Z):
        return pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(0.5, 3.0), mean=0.0, form=pgm.Inducing(Z)))

    def model(count):
        return at(X[:: 300 // count])

    def streamed(model, X, y):
        return pgm.svi(model, pgm.ArrayRows(X, y), batch_size=300)

    found_enough = None
    for engine in (pgm.cavi, pgm.gaussian_vi, streamed):
        with pytest.warns(pgm.InducingWarning, match=r"50 in all, are too few") as warnings:
            result = engine(model(50), X, y)
        (nats,) = (float(re.search(r"about (\d+) nats", str(each.message))[1]) for each in warnings)
        # The term that is known beside what the other terms make of it.
        assert nats == pytest.approx(exact - result.elbo, rel=0.5)
        number = re.search(r"About (\d+) greedily|More than 50 are needed", str(warnings[0].message))[1]
        assert (number is None) == (engine is streamed)
        found_enough = number or found_enough
    # With as many rows as are said to do nothing is said, and with far fewer of them it is.
    enough = greedy(pgm.RBF(0.5, 3.0), X, int(found_enough))
    assert 64 < len(enough) < 100
    assert exact - 12.0 < pgm.cavi(at(enough), X, y).elbo
    with pytest.warns(pgm.InducingWarning):
        pgm.cavi(at(enough[:64]), X, y)
    with pytest.warns(pgm.InducingWarning, match="Even 64 inputs lose more than 10 nats"):
        pgm.cavi(at(X[::9][:32]), X, y)
    # Spaced by two thirds of a lengthscale they leave next to nothing, and nothing is said.
    assert exact - 1.0 < pgm.cavi(model(150), X, y).elbo < exact


def test_values_that_few_inducing_inputs_pull_are_named_by_how_far():
    rng = np.random.default_rng(3)
    X = np.arange(150.0)[:, None]

    def log_density(log_lengthscale):
        C = 0.5 * np.exp(-0.5 * ((X - X.T) / np.exp(log_lengthscale)) ** 2) + 0.25 * np.eye(150)
        return log_normal(y, C)

    y = np.linalg.cholesky(0.5 * np.exp(-0.5 * ((X - X.T) / 4.0) ** 2) + 0.25 * np.eye(150)) @ rng.standard_normal(150)
    grid = np.linspace(0.5, 3.5, 301)
    exact = grid[np.argmax([log_density(each) for each in grid])]
    deviation = (0.02**2 / (2.0 * log_density(exact) - log_density(exact - 0.02) - log_density(exact + 0.02))) ** 0.5

    gp = pgm.GP(pgm.RBF(pgm.Fixed(0.5), 4.0), mean=pgm.Fixed(0.0), form=pgm.Inducing(X[::6]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.5)), gp), X, y)
    (message,) = (str(each.message) for each in caught if "to learn the hyperparameters" in str(each.message))
    off = (np.log(fitted.fit.values["lengthscale"]) - exact) / deviation
    named = float(re.search(r"25 in all.*at least: lengthscale by ([\d.]+)\. ", message)[1])
    assert off > 1.0
    assert 0.3 * off < named < off


# Greedy variance (GV) and heteroscedastic greedy variance (HGV) as published, against a dense greedy choice.


def dense_greedy(kernel, rows, count, weights):
    """Rows one at a time, by conditional variances from the dense covariance."""
    K = np.asarray(bare_arrays(kernel)(rows, rows))
    chosen = []
    for _ in range(count):
        explained = np.zeros(len(rows))
        if chosen:
            explained = np.sum(K[chosen] * np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen]), axis=0)
        chosen.append(int(np.argmax(weights * (np.diagonal(K) - explained))))
    return rows[chosen]


@pytest.fixture
def choices(monkeypatch):
    """The kernel, the site precisions and the chosen inputs of each selection."""
    made = []
    choose = pgm.Inducing.choose

    def recorded(form, kernel, rows, weights=None):
        Z = choose(form, kernel, rows, weights)
        if isinstance(form.inputs, int) and form.select in ("GV", "HGV"):
            made.append((kernel, weights, Z))
        return Z

    monkeypatch.setattr(pgm.Inducing, "choose", recorded)
    return made


@pytest.mark.parametrize("select", ["GV", "HGV"])
def test_inputs_at_fixed_hyperparameters_are_the_greedy_choice_at_the_last_sites(choices, select):
    result = pgm.cavi(bernoulli(pgm.Inducing(6, select)), X, LABELS)
    assert (len(choices) == 1) == (select == "GV")
    assert len(choices) <= 1 + TURNS
    for number, (kernel, weights, Z) in enumerate(choices):
        assert (weights is None) == (number == 0)
        np.testing.assert_array_equal(Z, dense_greedy(kernel, X, 6, np.ones(len(X)) if weights is None else weights))
    np.testing.assert_array_equal(np.asarray(result.model.gps[0].form.inputs), choices[-1][2])
    if select == "HGV":
        # The sites are those at the optimum for the inputs chosen before, to the tolerance of that optimum.
        before = pgm.cavi(bernoulli(pgm.Inducing(choices[-2][2])), X, LABELS)
        np.testing.assert_allclose(np.asarray(before.sites.precision)[:, 0], choices[-1][1], rtol=1e-2)


@pytest.mark.parametrize("objective", ["augmented", pytest.param("expected", marks=pytest.mark.slow)])
def test_fit_alternates_with_the_greedy_choice_of_its_hyperparameters_and_sites(choices, objective):
    fitted = pgm.fit(one_scale(pgm.Inducing(5, "HGV")), X, LABELS, objective=objective, correct=False)
    assert fitted.converged
    again = [(kernel, weights, Z) for kernel, weights, Z in choices if weights is not None]
    assert 1 <= len(again) <= 1 + TURNS
    for kernel, weights, Z in again:
        np.testing.assert_array_equal(Z, dense_greedy(kernel, X, 5, weights))
    last = np.asarray(fitted.model.gps[0].form.inputs)
    assert any(np.array_equal(last, Z) for *_, Z in choices)


def test_a_new_choice_replaces_the_last_at_most_ten_times_even_if_it_is_worse(monkeypatch):
    bound = MarginalBound.of(trainable(one_scale(pgm.Inducing(5, "GV"))), Data(X, LABELS))
    first = bound.at(bound.learnable.start())
    turns = iter(range(100))
    monkeypatch.setattr(pgm.Inducing, "choose", lambda *arguments: X[: 1 + next(turns) % 2])
    best, selection, has_changed = choose_again(bound, first, Selection())
    assert has_changed
    assert best.value > first.value
    np.testing.assert_array_equal(best.inputs[0], X[:1])
    # The value belongs to the new inputs.
    assert bound.at(best.vector, best).value == pytest.approx(best.value, abs=1e-9)
    count = 0
    for _ in range(30):
        best, selection, has_changed = choose_again(bound, best, selection)
        count += has_changed
    assert count == TURNS - 1


# Inducing inputs whose factor is not held against the same with it, and what is refused.


# Sums of some ten terms of order 1 in another order, by roots whose smallest entry is of order 0.1.
ORDER = 1e-10


@pytest.fixture
def without_factor(monkeypatch):
    """No factor is held, and five rows come at a time where there are sixteen coordinates."""
    monkeypatch.setattr(linalg, "HELD", 0)
    monkeypatch.setattr(linalg, "CHUNK", 80)


def figures(prior):
    sites = some_sites(N)
    posterior = prior.condition(sites)
    coordinates = jnp.stack([posterior.mean_and_deviation(jax.random.key(seed))[1] for seed in range(2)])
    return (
        *prior.marginals(),
        *prior.moments(sites),
        *posterior.moments(),
        posterior.log_normalizer(),
        *posterior.predict(jnp.asarray(X_NEW)),
        posterior.covariance_at(jnp.asarray(X_NEW)),
        prior.latents(coordinates),
        prior.residual_variance(),
    )


@pytest.mark.parametrize("rows", some([1, 5, N], 5), ids="{} at a time".format)
@pytest.mark.parametrize("count", [7, N], ids="{} inputs".format)
def test_any_chunks_give_what_the_factor_does(monkeypatch, count, rows):
    prior, span = (pgm.Inducing(X[:count]).bind(KERNEL, MEAN, X, 2), inducing_points_at(KERNEL, X[:count]))
    assert isinstance(prior, InducingPrior)
    monkeypatch.setattr(linalg, "CHUNK", rows * prior.rank)
    expected = jax.jit(figures)(prior)

    @jax.jit
    def in_chunks(kernel):
        return figures(chunked_prior_at(kernel, prior.mean, prior.X, span, 2))

    for ours, theirs in zip(in_chunks(prior.kernel), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=ORDER)


def test_gradients_are_those_with_the_factor(without_factor):
    arguments, sites = ((jnp.asarray(X), inducing_points_at(KERNEL, X[:7]), 2), some_sites(N))

    def bound(values, at):
        kernel, mean = values
        # The variance at the data is in the marginals, and what is left of it in the loss.
        prior = at(kernel, mean, *arguments)
        m, v, log_normalizer, _ = prior.moments(sites)
        return log_normalizer + jnp.sum(sites.potential * m) - 0.3 * jnp.sum(v)

    ours, theirs = (
        jax.jit(jax.value_and_grad(lambda values, at=at: bound(values, at)))((KERNEL, jnp.asarray(MEAN)))
        for at in (chunked_prior_at, partial(inducing_at, most=HELD))
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=ORDER)


def test_neither_a_pass_nor_its_gradient_holds_a_factor(monkeypatch):
    monkeypatch.setattr(linalg, "CHUNK", 2**15)
    n, r = 40_000, 64
    shapes = [jax.ShapeDtypeStruct(shape, np.float64) for shape in ((n, 2), (r, 2), (n, 1), (n, 1))]

    def bound(kernel, X, Z, h, w):
        return chunked_prior_at(kernel, jnp.zeros(()), X, InducingPoints(Z, jnp.ones(r), jnp.zeros(())), 1).moments(
            Sites(h, w)
        )[2]

    for function in (bound, jax.grad(bound)):
        compiled = jax.jit(function).lower(KERNEL, *shapes).compile()
        # Some chunks of 0.25 MB, and rows of their own of 0.3 MB; the factor would be 20 MB.
        assert compiled.memory_analysis().temp_size_in_bytes < 8 * n * r / 2


def sweeps_alone(self, problem, state):
    """A step of CAVI that does not go to the best mean first, as it does with a factor at hand."""
    return self.sweep(problem, state, state.mean, state.sites)


@pytest.fixture(scope="module")
def pair():
    """One result with the factor, and one without it."""
    model = bernoulli(pgm.Inducing(X[:9]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoordinateAscent, "step", sweeps_alone)
        in_memory = pgm.cavi(model, X, LABELS)
        patch.setattr(linalg, "HELD", 0)
        patch.setattr(linalg, "CHUNK", 80)
        in_chunks = pgm.cavi(model, X, LABELS)
    assert [type(result.prior.groups[0]) for result in (in_memory, in_chunks)] == [InducingPrior, ChunkedInducingPrior]
    return in_memory, in_chunks


def assert_close(ours, theirs, atol=1e-10):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def test_results_are_those_with_the_factor(pair):
    in_memory, in_chunks = pair
    assert_close(in_chunks.elbo_trace, in_memory.elbo_trace)
    assert_close((in_chunks.mean, in_chunks.variance), (in_memory.mean, in_memory.variance))
    assert_close(in_chunks.predict_latent(X_NEW), in_memory.predict_latent(X_NEW))
    assert_close((in_chunks.draw_latents(X_NEW, 3, seed=1),), (in_memory.draw_latents(X_NEW, 3, seed=1),), 1e-7)
    # Deviations of what is left at inducing inputs: roots of rounding.
    assert_close((in_chunks.draw_at_data(3, seed=1)[0],), (in_memory.draw_at_data(3, seed=1)[0],), 1e-7)
    assert_close(inducing_inputs(in_chunks)[0], inducing_inputs(in_memory)[0])


@pytest.mark.slow
def test_corrections_take_the_factor_as_long_as_they_need_it(pair):
    ours, theirs = (pgm.correct(result) for result in pair)
    assert_close((ours.mean, ours.variance), (theirs.mean, theirs.variance), 1e-9)
    assert_close(ours.predict_latent(X_NEW), theirs.predict_latent(X_NEW), 1e-9)
    with pytest.raises(ValueError, match=r"all 24 rows do not fit into memory.*whose linear response"):
        pgm.correct(pair[1], method="perturbative")


def test_results_are_saved_chunked(pair, tmp_path, without_factor):
    loaded = pgm.load(pair[1].save(tmp_path / "streamed.npz"))
    assert isinstance(loaded.prior.groups[0], ChunkedInducingPrior)
    np.testing.assert_array_equal(loaded.predict_latent(X_NEW), pair[1].predict_latent(X_NEW))


def test_the_sampler_holds_the_factor(monkeypatch):
    in_memory = bernoulli(pgm.Inducing(X[:9])).prior(X).for_sampling().groups[0]
    monkeypatch.setattr(linalg, "HELD", 0)
    streamed = bernoulli(pgm.Inducing(X[:9])).prior(X)
    assert isinstance(streamed.groups[0], ChunkedInducingPrior)
    in_chunks = streamed.for_sampling().groups[0]
    assert isinstance(in_chunks, FICPrior)
    assert_close((in_chunks.span.A, in_chunks.residual), (in_memory.span.A, in_memory.residual), ORDER)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
def test_predictors_that_combine_latents_are_those_with_the_factor(monkeypatch, engine):
    monkeypatch.setattr(CoordinateAscent, "step", sweeps_alone)
    in_memory = engine(varying(pgm.Inducing(X[:9])), X, PAIRS)
    monkeypatch.setattr(linalg, "HELD", 0)
    monkeypatch.setattr(linalg, "CHUNK", 320)
    in_chunks = engine(varying(pgm.Inducing(X[:9])), X, PAIRS)
    assert isinstance(in_chunks.prior.groups[0], ChunkedInducingPrior)
    assert_close(in_chunks.elbo_trace, in_memory.elbo_trace, 1e-9)
    assert_close((in_chunks.mean, in_chunks.variance), (in_memory.mean, in_memory.variance), 1e-8)
    assert_close(in_chunks.predict_latent(X_NEW), in_memory.predict_latent(X_NEW), 1e-8)


def test_coupled_latents_are_passed_over_in_chunks(monkeypatch):
    monkeypatch.setattr(linalg, "CHUNK", 2**15)
    n, r = 20_000, 32
    shapes = [jax.ShapeDtypeStruct(shape, np.float64) for shape in ((n, 2), (r, 2), (n, 2), (n, 2, 2))]

    def moments(kernel, X, Z, h, W):
        prior = PriorCollection(
            (chunked_prior_at(kernel, jnp.zeros(()), X, InducingPoints(Z, jnp.ones(r), jnp.zeros(())), 2),)
        )
        posterior = condition_blocks(prior, Sites(h, W), ((0, 1),))
        return posterior.marginals(), posterior.log_normalizer()

    compiled = jax.jit(moments).lower(KERNEL, *shapes).compile()
    # Some chunks of 0.25 MB, and rows of their own of 0.6 MB; two factors would be 10 MB, and what they give as much.
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * n * r
