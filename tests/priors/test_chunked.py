"""Inducing inputs whose factor is not held against the same with it, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.cavi import CoordinateAscent
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.plots.style import inducing_inputs
from pgmodels.priors import inducing
from pgmodels.priors import linalg as chunks
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import InducingPoints
from pgmodels.priors.inducing import ChunkedInducingPrior, FICPrior, InducingPrior, chunked_prior_at, inducing_points_at
from tests.covering import some
from tests.forms import MEAN, some_sites
from tests.priors.test_inducing import KERNEL, LABELS, PAIRS, X_NEW, N, X, bernoulli, one_scale, varying

pytestmark = pytest.mark.usefixtures("double_precision")

# Sums of some ten terms of order 1 in another order, by roots whose smallest entry is of order 0.1.
ORDER = 1e-10


@pytest.fixture
def without_factor(monkeypatch):
    """No factor is held, and five rows come at a time where there are sixteen coordinates."""
    monkeypatch.setattr(inducing, "HELD", 0)
    monkeypatch.setattr(chunks, "CHUNK", 80)


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
    prior, span = pgm.Inducing(X[:count]).bind(KERNEL, MEAN, X, 2), inducing_points_at(KERNEL, X[:count])
    assert isinstance(prior, InducingPrior)
    monkeypatch.setattr(chunks, "CHUNK", rows * prior.rank)
    expected = jax.jit(figures)(prior)

    @jax.jit
    def in_chunks(kernel):
        return figures(chunked_prior_at(kernel, prior.mean, prior.X, span, 2))

    for ours, theirs in zip(in_chunks(prior.kernel), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=ORDER)


def test_gradients_are_those_with_the_factor(without_factor):
    arguments, sites = (jnp.asarray(X), inducing_points_at(KERNEL, X[:7]), 2), some_sites(N)

    def bound(values, at):
        kernel, mean = values
        # The variance at the data is in the marginals, and what is left of it in the loss.
        prior = at(kernel, mean, *arguments)
        m, v, log_normalizer, _ = prior.moments(sites)
        return log_normalizer + jnp.sum(sites.potential * m) - 0.3 * jnp.sum(v)

    ours, theirs = (
        jax.jit(jax.value_and_grad(lambda values, at=at: bound(values, at)))((KERNEL, jnp.asarray(MEAN)))
        for at in (chunked_prior_at, inducing._held_at)
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=ORDER)


def test_neither_a_pass_nor_its_gradient_holds_a_factor(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 2**15)
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
        patch.setattr(inducing, "HELD", 0)
        patch.setattr(chunks, "CHUNK", 80)
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
    with pytest.raises(ValueError, match=r"all 24 rows do not fit into memory.*by linear response"):
        pgm.correct(pair[1], method="perturbative")


def test_results_are_saved(pair, tmp_path, without_factor):
    loaded = pgm.load(pair[1].save(tmp_path / "streamed.npz"))
    assert isinstance(loaded.prior.groups[0], ChunkedInducingPrior)
    for ours, theirs in zip(loaded.predict_latent(X_NEW), pair[1].predict_latent(X_NEW), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_sampler_holds_the_factor(monkeypatch):
    in_memory = bernoulli(pgm.Inducing(X[:9])).prior(X).for_sampling().groups[0]
    monkeypatch.setattr(inducing, "HELD", 0)
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
    monkeypatch.setattr(inducing, "HELD", 0)
    monkeypatch.setattr(chunks, "CHUNK", 320)
    in_chunks = engine(varying(pgm.Inducing(X[:9])), X, PAIRS)
    assert isinstance(in_chunks.prior.groups[0], ChunkedInducingPrior)
    assert_close(in_chunks.elbo_trace, in_memory.elbo_trace, 1e-9)
    assert_close((in_chunks.mean, in_chunks.variance), (in_memory.mean, in_memory.variance), 1e-8)
    assert_close(in_chunks.predict_latent(X_NEW), in_memory.predict_latent(X_NEW), 1e-8)


def test_coupled_latents_are_passed_over_in_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 2**15)
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


@pytest.mark.slow
def test_what_is_learned_with_every_row_is_that_of_the_dense_prior(without_factor):
    # Of another size than with a factor in other tests, whose programs would be taken.
    rows, labels = np.concatenate([X, X[:8]]), np.concatenate([LABELS, LABELS[:8]])
    one, other = (
        MarginalBound(trainable(one_scale(form)), Data(rows, labels)) for form in (pgm.Inducing(X), pgm.Dense())
    )
    (value, slope), (dense_value, dense_slope) = (bound(bound.learnable.start() + 0.3) for bound in (one, other))
    assert value == pytest.approx(dense_value, abs=1e-7)
    np.testing.assert_allclose(slope, dense_slope, atol=1e-6)
