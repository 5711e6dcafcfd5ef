"""Rows that fill up the data: nothing follows from them, and another number of rows compiles nothing."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.moves import DataAugmentationInfo, MoveStats, autocorrelation, choose_relaxation
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.model import Data, padded_data
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.base import Sites, pad_rows, pad_sites, padded_size, row_mask_of
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.chain import apply, paths
from pgmodels.priors.collection import PriorCollection, padded_prior
from pgmodels.priors.representation import EAGER, Binding, Representation
from tests.covering import some
from tests.programs import conditioned, run

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (41, 2))
X_NEW = rng.uniform(-2.0, 2.0, (5, 2))


def prior() -> PriorCollection:
    """A dense group and one of coefficients, of unequal means and lengthscales."""
    gps = [
        pgm.GP(pgm.Matern12(variance=2.0, lengthscale=0.7), mean=0.4, size=1),
        pgm.GP(pgm.Linear(variance=0.5) + pgm.Constant(0.3), mean=-1.3, size=2),
    ]
    with jax.enable_x64(True):
        bound = [gp.form.bind(gp.kernel, gp.mean.value, X, gp.size) for gp in gps]
    assert [type(group).__name__ for group in bound] == ["DensePrior", "CoefficientPrior"]
    return PriorCollection(tuple(bound))


def some_sites(coupled=False):
    draws = np.random.default_rng(1)
    h = draws.normal(size=(41, 3))
    root = draws.normal(size=(41, 3, 3))
    # Of a strong site the dense formulas take another way.
    w = np.einsum("iab,icb->iac", root, root) if coupled else draws.exponential(size=(41, 3)) * [0.2, 8.0, 1.0]
    return Sites(jnp.array(h), jnp.array(w))


def test_sizes_are_few_and_near():
    for n in range(1, 300):
        size = padded_size(n)
        assert n <= size <= max(n + 7, 1.125 * n)
        assert padded_size(size) == size


def test_there_are_eight_sizes_between_powers_of_two():
    assert len({padded_size(n) for n in range(513, 1025)}) == 8


@pytest.mark.parametrize("coupled", [False, True])
def test_posteriors_say_the_same_of_the_data_when_filled_up(coupled):
    with jax.enable_x64(True):
        sites, new = some_sites(coupled), jnp.array(X_NEW)
        if coupled:
            condition = partial(condition_blocks, blocks=((0, 2), (1,)))
        else:
            condition = PriorCollection.condition
        posterior = run(condition, prior(), sites)
        padded = run(condition, padded_prior(prior()), pad_sites(sites, 48))
        assert padded.prior.num_rows == 48
        for ours, theirs in zip(run(posterior.moments), run(padded.moments), strict=True):
            np.testing.assert_allclose(theirs[:41], ours, rtol=0, atol=1e-13)
        np.testing.assert_allclose(run(padded.log_normalizer), run(posterior.log_normalizer), rtol=0, atol=1e-12)
        for ours, theirs in zip(run(posterior.predict, new), run(padded.predict, new), strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12)
        ours, theirs = (np.asarray(run(each.cross_covariance, new)) for each in (posterior, padded))
        np.testing.assert_allclose(theirs[..., :41], ours, rtol=0, atol=1e-12)
    # What fills up can be taken away again, and added in whatever precision the caller computes.
    assert padded_prior(prior()).groups[0].K.dtype == np.float64
    with jax.enable_x64(True):
        back = padded_prior(prior()).resized(41)
        same = jax.tree.map(np.array_equal, jax.tree.leaves(back), jax.tree.leaves(prior()))
        assert all(same)


def test_a_chain_says_the_same_when_filled_up():
    form, kernel = pgm.Markov(), bare_arrays(pgm.On(pgm.Matern32(2.0, 0.7) + pgm.White(0.1), [1]))
    rows, new = X.copy(), np.concatenate([X_NEW, X_NEW + 3.0])
    # The last time twice: neither is the first row, which the padding of arrays repeats.
    rows[5, 1] = rows[9, 1] = 2.5
    with jax.enable_x64(True):
        plain, sites = form.bind(kernel, 0.4, rows, 1).for_sampling(), some_sites()
        sites = Sites(sites.potential[:, :1], sites.precision[:, :1])
        padded, zeros = plain.resized(48), pad_sites(sites, 48)
        how, mean = Binding(traced=True, row_mask=jnp.array(row_mask_of(41, 48))), jnp.array(0.4)
        traced = jax.jit(lambda X: form.bind(kernel, mean, X, 1, how).for_sampling())(pad_rows(rows, 48))
        for a, b in ((traced.X[:, 1], padded.X[:, 1]), (traced.order, padded.order)):
            np.testing.assert_array_equal(a, b)
        for a, b in zip((*traced.chain, traced.noise_roots), (*padded.chain, padded.noise_roots), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)
        jax.tree.map(np.testing.assert_array_equal, padded.resized(41), plain)
        ours, theirs = conditioned(plain, sites)[0], conditioned(padded, zeros)[0]
        np.testing.assert_allclose(run(theirs.log_normalizer), run(ours.log_normalizer), rtol=0, atol=1e-12)
        for ask in (lambda q: q.predict(jnp.array(new)), lambda q: [part[:41] for part in q.moments()]):
            for a, b in zip(run(ask, theirs), run(ask, ours), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
        # Coordinates of the data say the same of new inputs, filled up with zeros as those of draws are.
        coordinates = run(plain.draw, jax.random.key(0))[1]
        longer = jnp.concatenate([coordinates, jnp.zeros((padded.rank - plain.rank, 1))])
        pairs = run(padded.conditional, jnp.array(new), longer), run(plain.conditional, jnp.array(new), coordinates)
        for a, b in zip(*pairs, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


def test_rows_that_fill_up_have_no_term_and_no_site_whatever_stands_in_them():
    model = pgm.Model(pgm.StudentT(3.0, 0.5), pgm.GP(pgm.RBF(lengthscale=1.3), mean=0.3))
    y = np.sin(X[:, 0])
    with jax.enable_x64(True):
        problem = problem_of(model, model.check(X, y))
        assert len(problem.y) == 48
        wild = jnp.array(problem.y).at[41:44].set(jnp.array([np.nan, 1e300, -np.inf]))
        other = Problem(problem.objective, problem.prior, wild, problem.parameters, row_weights=problem.row_weights)
        mean, variance = problem.marginals()
        sites = problem.sites(mean, variance)
        assert not np.asarray(sites.precision)[41:].any()
        np.testing.assert_array_equal(other.sites(mean, variance).potential, sites.potential)
        assert np.isfinite(problem.elbo(mean, variance, 0.0, sites).value)
        assert other.elbo(mean, variance, 0.0, sites) == problem.elbo(mean, variance, 0.0, sites)


def test_tuning_does_not_count_what_does_not_move():
    draws = np.random.default_rng(2)
    f, E = draws.normal(size=(1, 400, 3)), np.zeros((1, 400, 3))
    E[:] = 0.9 * f
    row_mask = np.array([1.0, 1.0, 0.0])
    f, E = f * row_mask, E * row_mask
    info = DataAugmentationInfo(*(part.sum(axis=1) for part in (f, E, f**2, f * E)))
    lag_one = autocorrelation(MoveStats(np.array(400), np.array(400), info, None))
    np.testing.assert_allclose(lag_one, 0.9, atol=1e-12)
    assert choose_relaxation(lag_one[:0]) == 0.0


def everything(n, m, likelihood, gps):
    """What is asked of a data set of n rows, with m new ones."""
    draws = np.random.default_rng(n)
    inputs, new = draws.uniform(-2.0, 2.0, (n, 2)), draws.uniform(-2.0, 2.0, (m, 2))
    y = draws.permutation(np.arange(n) % max(2, len(gps))).astype(float)
    model = pgm.Model(likelihood, gps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what random labels do not determine
        result = pgm.fit(model, inputs, y, max_iterations=3, correct=True)
        corrected = pgm.correct(pgm.cavi(model, inputs, y, max_iterations=20))
        for approximation in (result, corrected):
            assert approximation.mean.shape == (n, len(gps))
            approximation.predict_latent(new)
            if gps[0].form == pgm.Markov():
                approximation.uncorrected.draw_latents(new, 4)
        assert result.predict(new).probabilities.shape == (m, max(2, len(gps)))
        draws = pgm.gibbs(model, inputs, y, num_samples=4, num_warmup=0, num_chains=1, progress=False)
        assert draws.latents.shape == (1, 4, n, len(gps))
        draws.predict(new).probabilities  # noqa: B018


CASES = {
    "one latent": (pgm.Bernoulli(), [pgm.GP(pgm.RBF(lengthscale=1.3), mean=0.2)]),
    "three latents": (
        pgm.LogisticSoftmax(3),
        [pgm.GP(pgm.Matern12(lengthscale=scale), mean=0.1) for scale in (0.5, 1.0, 2.0)],
    ),
    "a chain": (pgm.Bernoulli(), [pgm.GP(pgm.On(pgm.Matern32(1.0, 1.3), [0]), mean=0.2, form=pgm.Markov())]),
}


@pytest.mark.parametrize("name", some(CASES, "one latent"))
def test_another_number_of_rows_compiles_nothing(name, compilations):
    everything(20, 7, *CASES[name])
    jax.jit(lambda x: jnp.sin(x) + len(name))(0.5)
    assert compilations, "compilations are not seen"
    compilations.clear()
    everything(23, 5, *CASES[name])
    everything(17, 8, *CASES[name])
    assert not compilations


def test_results_keep_rows_that_fill_up_and_do_not_show_them():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(lengthscale=1.3), mean=0.2))
    result = pgm.cavi(model, X, (X[:, 0] > 0).astype(float))
    corrected = pgm.correct(result)
    assert corrected.uncorrected is result
    assert corrected.posterior is result.posterior
    assert result.posterior.prior.num_rows == len(result.posterior.sites.potential) == len(corrected.shift) == 48
    for each in (result, corrected):
        assert each.prior.num_rows == len(each.mean) == len(each.variance) == len(each.sites.precision) == 41
        f, whitened = each.draw_at_data(3)
        assert f.shape == (3, 41, 1)
        assert [v.shape for v in whitened] == [(3, 41, 1)]
    # They have no influence: the covariances by linear response of their coordinates are those of the prior.
    assert not corrected.response[41:].any()


def test_a_form_that_cannot_fill_up_is_left_as_it_is():
    class Own(pgm.Dense):
        can_pad = False

    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), form=Own()))
    data = Data(X, np.sin(X[:, 0]))
    with jax.enable_x64(True):
        padded, unpadded = padded_data(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), data), padded_data(model, data)
    inputs, y, row_weights = unpadded
    np.testing.assert_array_equal(inputs.X[0], X)
    np.testing.assert_array_equal(y, data.y)
    np.testing.assert_array_equal(row_weights, np.ones(41))
    inputs, y, row_weights = padded
    np.testing.assert_array_equal(inputs.X[0], pad_rows(X, 48))
    np.testing.assert_array_equal(y, pad_rows(data.y, 48))
    np.testing.assert_array_equal(row_weights, row_mask_of(41, 48))


class Plain(Representation):
    """A form of one's own that knows nothing of rows that fill up, of priors that do."""

    def bind(self, kernel, mean, X, size, how=EAGER):
        return pgm.Dense().bind(kernel, mean, X, size, how._replace(row_mask=None))


@pytest.mark.slow
def test_a_form_that_knows_nothing_of_filling_up_is_sampled():
    kernel = pgm.RBF(variance=dist.LogNormal(0.0, 0.5), lengthscale=1.3)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.2, form=Plain()))
    labels = (np.arange(41) % 3 == 0).astype(float)
    draws = pgm.gibbs(model, X, labels, num_samples=3, num_warmup=0, num_chains=1, progress=False)
    assert draws.latents.shape == (1, 3, 41, 1)
    mean, variance = draws.predict_latent(X)
    # At the data nothing is left but jitter, of a deviation of 1e-4: the draws themselves.
    np.testing.assert_allclose((mean, variance), (draws.mean, draws.variance), rtol=0, atol=4e-4)


# Joint draws of a Markov process at new inputs given its states at the data, against the covariance matrix.


KERNELS = [
    pgm.Matern12(1.7, 0.8),
    pgm.Matern32(1.7, 0.8) + pgm.Constant(0.5),
    pgm.Matern52(1.7, 0.8) * pgm.Matern12(0.9, 3.0) + pgm.White(0.2),
]
# Unsorted: several in one gap, at rows of the data, twice the same, before all and after all.
NEW = np.array([0.5, -2.0, 0.55, 9.0, 1.0, 0.55, -3.0, 12.0, 2.5])[:, None]
MARKOV_GIVEN_X = np.array([1.0, 0.4, 0.4 + 1e-6, 4.0, 2.9])[:, None]


@pytest.mark.parametrize("kernel", some([(kernel,) for kernel in KERNELS], (KERNELS[0],)))
def test_the_joint_covariance_with_the_data_is_the_kernels(kernel):
    with jax.enable_x64(True):
        prior = pgm.Markov().bind(kernel, 0.4, MARKOV_GIVEN_X, 1).for_sampling()
        d, n, m = prior.dimension, len(MARKOV_GIVEN_X), len(NEW)

        draw_given = jax.jit(lambda *arrays: prior.draw_given(*arrays))

        def joint(noise, shocks):
            states = paths(prior.chain.transition, apply(prior.noise_roots[:, None], noise.reshape(n, 1, d)))
            coordinates = prior.coordinates(states)
            new = prior.draw_given(jnp.asarray(NEW), coordinates, shocks.reshape(m, 1, d))
            return jnp.concatenate([prior.latents(coordinates), new])[:, 0]

        zeros = jnp.zeros(n * d), jnp.zeros(m * d)
        np.testing.assert_allclose(jax.jit(joint)(*zeros), 0.4, atol=1e-12)
        # Draws are linear in the standard normals.
        J = np.concatenate(jax.jit(jax.jacfwd(joint, argnums=(0, 1)))(*zeros), axis=1)
        rows = np.concatenate([MARKOV_GIVEN_X, NEW])
        np.testing.assert_allclose(J @ J.T, np.asarray(kernel(rows, rows)), rtol=0, atol=1e-8)
        # Draws of several coordinates at once are those of each.
        rng = np.random.default_rng(0)
        coordinates, shocks = rng.normal(size=(3, n * d, 1)), rng.normal(size=(3, m, 1, d))
        together = draw_given(jnp.asarray(NEW), jnp.asarray(coordinates), jnp.asarray(shocks))
        apart = [
            draw_given(jnp.asarray(NEW), *map(jnp.asarray, pair)) for pair in zip(coordinates, shocks, strict=True)
        ]
        np.testing.assert_allclose(together, np.stack(apart), atol=1e-12)
