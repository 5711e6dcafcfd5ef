"""Rows with equal inputs share their latents: what engines say of them is what explicit matrices of all rows say."""

import gc
import tracemalloc
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.data.arrays import distinct_rows
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.gibbs import warn_unmixed
from pgmodels.inference.problem import problem_of
from pgmodels.interop.numpyro import Program
from pgmodels.kernels.kernel import median_distance
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import Sites, pad_rows
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.representation import Auto
from pgmodels.runtime import machine as memory
from pgmodels.runtime.precision import as_array
from tests.programs import run

rng = np.random.default_rng(0)
# Six places and four levels: of 20 rows some are the same in both columns, and most in one of them.
X = np.column_stack([rng.choice(np.linspace(-2.0, 2.0, 6), 20), rng.integers(0, 4, 20).astype(float)])
Y = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=20)
# New in one column, a copy of a row, and new in both.
ROW = next(row for row in range(20) if np.all(X[row] == X, axis=1).sum() > 1)
NEW = np.array([[0.3, 1.0], X[ROW], [1.0, 9.0]])
MEAN, NOISE = 0.2, 0.04


def covariance(A, B, variance=1.3, lengthscale=0.8, level=0.7):
    smooth = variance * np.exp(-0.5 * (A[:, None, 0] - B[None, :, 0]) ** 2 / lengthscale**2)
    return smooth + level * (A[:, None, 1] == B[None, :, 1])


def regression(new, **values):
    """Posterior mean and variance at inputs, and log p(y), with a matrix of all rows."""
    C, k = covariance(X, X, **values) + NOISE * np.eye(20), covariance(new, X, **values)
    residual = Y - MEAN
    log_p = -0.5 * (residual @ np.linalg.solve(C, residual) + np.linalg.slogdet(2.0 * np.pi * C)[1])
    variance = np.diagonal(covariance(new, new, **values) - k @ np.linalg.solve(C, k.T))
    return MEAN + k @ np.linalg.solve(C, residual), variance, log_p


@pgm.likelihood(support=pgm.Real())
def two_parts(y, f):
    """A Gaussian about the sum of two functions."""
    return pgm.normal_pdf(y, f[0] + f[1], 0.2)


def smooth(**form):
    return pgm.GP(pgm.On(pgm.RBF(1.3, 0.8), [0]), mean=MEAN, **form)


def levels(**form):
    return pgm.GP(pgm.On(pgm.White(0.7), [1]), **form)


def together(**form):
    return pgm.Model(pgm.Gaussian(0.2), pgm.GP(smooth().kernel + levels().kernel, mean=MEAN, **form))


def apart(**form):
    return pgm.Model(two_parts(), [smooth(**form), levels(**form)])


def test_equal_rows_are_told_apart_in_their_order():
    rows = np.array([[1.0, 0.0], [0.5, 2.0], [1.0, -0.0], [0.5, 1.0], [0.5, 2.0]])
    firsts, places = distinct_rows(rows)
    np.testing.assert_array_equal(firsts, [0, 1, 3])
    np.testing.assert_array_equal(places, [0, 1, 0, 2, 1])
    for one in (distinct_rows(rows[:, :0]), distinct_rows(rows[:1])):
        np.testing.assert_array_equal(one[0], [0])


def test_kernels_say_which_columns_they_read():
    kernel = pgm.On(pgm.RBF() * pgm.On(pgm.White(), [1]), [3, 0]) + pgm.Constant(1.0)
    assert kernel.reads(5) == (0, 3)
    assert pgm.Difference(pgm.On(pgm.RBF(), [1]), [0, 1], [3, 4]).reads(5) == (1, 4)
    assert pgm.RBF().reads(2) == (0, 1)


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        pytest.param(apart(), [8, 8], id="two latents, each at its own inputs"),
        pytest.param(together(form=pgm.Dense()), [16], id="one", marks=pytest.mark.slow),
        pytest.param(together(form=pgm.Inducing(60)), [16], id="one, inducing", marks=pytest.mark.slow),
        pytest.param(apart(form=pgm.Inducing(60)), [16, 16], id="two, inducing", marks=pytest.mark.slow),
    ],
)
def test_posteriors_are_those_of_all_rows(model, ranks):
    result = pgm.cavi(model, X, Y)
    assert [group.rank for group in result.prior.groups] == ranks
    mean, variance, log_p = regression(X)
    # The default jitter of the sum of both kernels, which is singular, is 1e-10 of its variance.
    np.testing.assert_allclose(result.elbo, log_p, atol=1e-7)
    np.testing.assert_allclose(result.mean.sum(axis=1), mean, atol=1e-8)
    for corrected in (pgm.correct(result), result):
        predictive = corrected.predict(NEW)
        np.testing.assert_allclose(predictive.mean, regression(NEW)[0], atol=1e-8)
        np.testing.assert_allclose(predictive.variance, regression(NEW)[1] + NOISE, atol=1e-8)
    np.testing.assert_allclose(pgm.correct(result).covariance.sum(axis=(1, 2)), variance, atol=1e-8)
    # Rows that are copies, and a copy that is predicted, have the same marginals.
    copy = np.flatnonzero((X[ROW] == X).all(axis=1))
    np.testing.assert_array_equal(result.mean[copy], result.mean[[ROW] * len(copy)])
    np.testing.assert_allclose(result.predict_latent(NEW[1:2])[0], result.mean[[ROW]], atol=1e-8)


def test_what_variances_neglected_do_to_an_elbo_is_that_of_all_copies_together():
    """Of y far out, by the derivative of the log evidence in the covariance, with explicit matrices of all rows."""
    y, added = 1e3 * (Y + 2.0), 1e-3
    with jax.enable_x64(True):
        problem = problem_of(apart().resolve(X), Data(X, y))
        first, second = problem.prior.groups
        coarse = PriorCollection((first, replace(second, jitter=jnp.asarray(added))), problem.prior.copies)
        rows = as_array(pad_rows(y, problem.prior.num_rows))[:, None] * problem.row_weights[:, None]
        state = run(CAVI.state_of, problem, Sites(rows / NOISE, problem.row_weights[:, None] / NOISE))
        neglect = replace(problem, prior=coarse).neglect(*state[:3])
    pull = np.linalg.solve(covariance(X, X) + NOISE * np.eye(20), y - MEAN)
    # The second group's variance is added, and no other's. What is taken off the precisions is next to nothing here.
    square = pull @ np.equal.outer(X[:, 1], X[:, 1]) @ pull
    np.testing.assert_allclose(neglect, 0.5 * added * square, rtol=1e-4)


def test_the_bound_that_is_learned_on_is_that_of_all_rows():
    gp = pgm.GP(pgm.On(pgm.RBF(1.3, 0.8), [0]) + pgm.On(pgm.White(0.7), [1]), mean=pgm.Fixed(MEAN))
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(0.2)), gp)
    with jax.enable_x64(True):
        learnable = trainable(model)
        value, slope = MarginalBound(learnable, Data(X, Y))(learnable.start())
    np.testing.assert_allclose(-value, regression(X)[2], atol=1e-8)
    for place, (name, start) in enumerate({"variance": 1.3, "lengthscale": 0.8, "level": 0.7}.items()):
        ends = [regression(X, **{name: start * np.exp(step)})[2] for step in (1e-4, -1e-4)]
        np.testing.assert_allclose(-slope[place], (ends[0] - ends[1]) / 2e-4, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_draws_of_copies_are_one():
    draws = pgm.gibbs(apart(), X, Y, num_samples=400, num_warmup=25, num_chains=2, progress=False)
    mean, variance, _ = regression(X)
    total = draws.latents.sum(axis=-1)
    # Draws of a Gaussian model are nearly independent: five standard errors.
    np.testing.assert_allclose(total.mean(axis=(0, 1)), mean, atol=5 * np.sqrt(variance.max() / 400))
    np.testing.assert_allclose(total.var(axis=(0, 1)) / variance, 1.0, atol=5 * np.sqrt(2 / 400))
    copy = np.flatnonzero((X[ROW] == X).all(axis=1))
    assert len(copy) > 1
    assert np.all(draws.latents[:, :, copy] == draws.latents[:, :, [ROW]])
    np.testing.assert_allclose(draws.predict_latent(X)[0], draws.mean, atol=1e-6)


@pytest.mark.slow
def test_the_model_behind_inducing_inputs_shares_what_coordinates_leave():
    """By explicit matrices of all coordinates: v of each group, and e of each distinct row."""
    Z = X[:5]
    with jax.enable_x64(True):
        prior = apart(form=pgm.Inducing(Z)).prior(X).for_sampling()
        h = jnp.asarray(rng.normal(size=(20, 2)))
        root = rng.normal(size=(20, 2, 2))
        posterior = run(condition_blocks, prior, Sites(h, jnp.asarray(root @ root.transpose(0, 2, 1))), ((0, 1),))
        G = np.asarray(jax.vmap(lambda v: prior.latents(prior.unflatten(v)) - prior.means())(np.eye(sum(prior.ranks))))
        mean, V = (np.asarray(part) for part in run(posterior.marginals))
        spread = np.asarray(jax.vmap(posterior.deviation)(jnp.eye(sum(prior.ranks))))
    W = root @ root.transpose(0, 2, 1)
    P = np.eye(len(G)) + np.einsum("dil,ilk,eik->de", G, W, G)
    shifted = np.asarray(h) - np.einsum("ilk,k->il", W, [MEAN, 0.0])
    centre = np.linalg.solve(P, np.einsum("dil,il->d", G, shifted))
    np.testing.assert_allclose(mean, np.array([MEAN, 0.0]) + np.einsum("dil,d->il", G, centre), atol=1e-9)
    np.testing.assert_allclose(V, np.einsum("dil,de,eik->ilk", G, np.linalg.inv(P), G), atol=1e-9)
    np.testing.assert_allclose(spread.T @ spread, np.linalg.inv(P), atol=1e-9)


def test_a_prior_a_hundred_million_times_wider_than_the_noise_is_sampled_as_it_is():
    """Two rows at one input: what whitens them has neither jitter nor a difference between them."""
    model = pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.RBF(1e8, 1.0), mean=0.3))
    twice, y = np.zeros((2, 1)), np.array([0.5, 0.5])
    with jax.enable_x64(True):
        program = Program(model, Data(twice, y))
        assert np.shape(program.factors[0]) == (1, 1)
        f = np.asarray(program.latents(model, [jnp.array([[0.7]])]))
        # As where hyperparameters are sampled: what is left at a copy of the data was 1.0.
        residual = model.compiled_prior(twice).groups[0].conditional(jnp.zeros((1, 1)), jnp.zeros((8, 1)))[1]
    np.testing.assert_allclose(f, 0.3 + 0.7e4, rtol=1e-15)
    assert float(residual[0]) < 2e-4


@pytest.mark.slow
def test_engines_agree_on_two_rows_at_one_input():
    import numpyro.distributions as dist

    kernel, twice, y = pgm.RBF(1e8, 1.0), np.zeros((2, 1)), np.array([0.5, 0.5])
    fixed = pgm.Model(pgm.Gaussian(1.0), pgm.GP(kernel))
    draws = pgm.nuts(fixed, twice, y, num_samples=2000, num_warmup=500, progress=False)
    np.testing.assert_array_equal(draws.latents[:, :, 0], draws.latents[:, :, 1])
    np.testing.assert_allclose(draws.variance, 0.5, rtol=0.15)
    sampled = pgm.Model(pgm.Gaussian(1.0), pgm.GP(kernel, mean=dist.Normal(0.0, 1.0)))
    result = pgm.integrate(sampled, twice, y, progress=False)
    for at in (twice, np.zeros((1, 1))):
        np.testing.assert_allclose(result.predict_latent(at)[1], 0.5, rtol=1e-3)


def test_weights_of_rows_and_rows_that_are_repeated_say_the_same():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.4, 0.9), mean=-0.3))
    places = np.linspace(-1.5, 2.0, 5)[:, None]
    ones, zeros = np.array([3, 0, 5, 1, 2]), np.array([1, 4, 2, 0, 6])
    rows = np.concatenate([np.repeat(places, ones, axis=0), np.repeat(places, zeros, axis=0)])
    repeated = pgm.cavi(model, rows, np.repeat([1.0, 0.0], [ones.sum(), zeros.sum()]))
    both = np.concatenate([places, places])
    weighted = pgm.cavi(model, both, np.repeat([1.0, 0.0], 5), weights=np.concatenate([ones, zeros]))
    np.testing.assert_allclose(repeated.elbo, weighted.elbo, atol=1e-8)
    for ours, theirs in zip(repeated.predict_latent(NEW[:, :1]), weighted.predict_latent(NEW[:, :1]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert repeated.prior.groups[0].rank == 8


@pytest.mark.slow
def test_fifty_thousand_rows_at_a_hundred_inputs():
    draws = np.random.default_rng(0)
    inputs = draws.permutation(np.repeat(np.linspace(-3.0, 3.0, 101), 500))[:, None]
    y = (draws.random(len(inputs)) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(2.0 * inputs[:, 0])))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0)))
    result = pgm.gaussian_vi(model, inputs, y)
    places, where = np.unique(inputs, return_inverse=True)
    both, ones = np.concatenate([places, places])[:, None], np.bincount(where.ravel(), y)
    weights = np.concatenate([ones, np.bincount(where.ravel()) - ones])
    weighted = pgm.gaussian_vi(model, both, np.repeat([1.0, 0.0], 101), weights=weights)
    np.testing.assert_allclose(result.elbo, weighted.elbo, atol=1e-5)
    for ours, theirs in ((result, weighted), (pgm.correct(result), pgm.correct(weighted))):
        np.testing.assert_allclose(ours.predict_latent(both)[1], theirs.predict_latent(both)[1], rtol=1e-6)
    assert pgm.fit(model, inputs, y).converged


def test_a_lengthscale_left_open_counts_distinct_rows():
    places = np.array([[0.0], [1.0], [5.0]])
    assert median_distance(np.repeat(places, [50, 40, 1], axis=0)) == 4.0


def test_more_memory_than_there_is_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 24.0 * 30**2)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0)))
    many = np.linspace(0.0, 1.0, 31)[:, None]
    monkeypatch.setattr(pgm.Model, "prior", None)
    for engine in (pgm.cavi, pgm.gaussian_vi, pgm.fit, pgm.gibbs, pgm.nuts):
        with pytest.raises(MemoryError, match=r"31 distinct inputs take 0\.0 GB .* available.*Inducing\(300\).*svi"):
            engine(model, many, (many[:, 0] > 0.5).astype(float))
    model.resolve(many).check_memory(np.concatenate([many[:30], many[:30]]))


def test_a_covariance_is_made_and_factorised_in_place():
    n, kernel = 700, pgm.Matern12(1.0, 0.5)
    inputs = np.random.default_rng(1).uniform(-2.0, 2.0, (n, 2))
    with jax.enable_x64(True):
        Auto().bind(kernel, 0.0, inputs, 1)
        tracemalloc.start()
        pgm.Dense().bind(kernel, 0.0, inputs, 1)
        dense = tracemalloc.get_traced_memory()[1]
        # What the first left behind does not count.
        gc.collect()
        tracemalloc.reset_peak()
        Auto().bind(kernel, 0.0, inputs, 1)
        cheapest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Of NumPy's arrays, beside one of JAX's at a time; and a few strips of 128 rows.
    strips = 4 * 8 * 128 * n
    assert dense < 16 * n**2 + strips
    assert cheapest < 24 * n**2 + strips


def test_results_at_repeated_inputs_come_back_from_a_file(tmp_path):
    result = pgm.cavi(apart(), X, Y)
    again = pgm.load(result.save(tmp_path / "fit.npz"), two_parts)
    for ours, theirs in zip(result.predict_latent(NEW), again.predict_latent(NEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_chains_that_differ_are_warned_of():
    means = np.array([[[0.0], [0.0]], [[0.1], [4.0]]])
    with pytest.warns(pgm.MixingWarning, match=r"gibbs: R-hat is 3\.00 \(latent 0 at row 1\)"):
        warn_unmixed("gibbs", 500, means, np.full(means.shape, 500 / 499))
    warn_unmixed("gibbs", 500, 0.1 * means, np.ones(means.shape))
    # Two draws say nothing.
    warn_unmixed("gibbs", 2, means, np.ones(means.shape))
