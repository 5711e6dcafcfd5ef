"""A Gaussian posterior of latents that the data couple, against explicit matrices, whichever latents those are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks, together
from tests.programs import run

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(0)
N = 26
X, X_NEW = RNG.uniform(-1.0, 1.0, (N, 1)), RNG.uniform(-1.0, 1.0, (2, 1))
KERNELS = (pgm.RBF(1.5, 0.8), pgm.Linear(0.7), pgm.Linear(0.7), pgm.Matern32(0.6, 0.5))
MEANS = (0.4, -0.7, -0.7, 0.2)


@pytest.mark.parametrize("blocks", [((0, 2), (1, 3)), ((0, 3), (1,), (2,))])
def test_blocks_of_latents_that_are_no_neighbours(blocks):
    gps = [
        pgm.GP(KERNELS[0], MEANS[0], form=pgm.Dense()),
        pgm.GP(KERNELS[1], MEANS[1], size=2),
        pgm.GP(KERNELS[3], MEANS[3]),
    ]
    prior = pgm.Model(pgm.LogisticSoftmax(4), gps).prior(X)
    # The ranks differ, so that a vector in another order is not even of the same parts.
    assert len({group.rank for group in prior.groups}) > 1
    h, roots = RNG.normal(0.3, 1.0, (N, 4)), RNG.normal(size=(N, 4, 4))
    mask = np.zeros((4, 4))
    for block in blocks:
        mask[np.ix_(block, block)] = 1.0
    W = roots @ roots.swapaxes(1, 2) * mask
    # A principal submatrix of what is positive semi-definite is so too.
    posterior = run(condition_blocks, prior, Sites(jnp.asarray(h), jnp.asarray(W)), blocks)

    # All latents at all inputs, latent after latent.
    rows = N + len(X_NEW)
    both = np.concatenate([X, X_NEW])
    K = np.zeros((4 * rows, 4 * rows))
    for latent, kernel in enumerate(KERNELS):
        span = slice(latent * rows, (latent + 1) * rows)
        K[span, span] = run(kernel, both, both)
    mu = np.repeat(MEANS, rows)
    F = np.zeros((4 * N, 4 * rows))
    for latent in range(4):
        F[latent * N + np.arange(N), latent * rows + np.arange(N)] = 1.0
    full = np.einsum("ilk,ij->likj", W, np.eye(N)).reshape(4 * N, 4 * N)
    S = K - K @ F.T @ full @ np.linalg.solve(np.eye(4 * N) + F @ K @ F.T @ full, F @ K)
    mean = mu + S @ F.T @ (h.T.ravel() - full @ (F @ mu))
    places = np.arange(4)[:, None] * rows

    # The jitter of the roots, 1e-10 of the variance, times precisions of size ten.
    for m, v, at in (
        (*run(posterior.moments), np.arange(N)),
        (*run(posterior.predict, jnp.asarray(X_NEW)), N + np.arange(2)),
    ):
        np.testing.assert_allclose(m.T, mean[places + at], atol=1e-7)
        np.testing.assert_allclose(v.T, np.diag(S)[places + at], atol=1e-7)
    evidence = -0.5 * np.linalg.slogdet(np.eye(4 * N) + F @ K @ F.T @ full)[1]
    evidence += h.T.ravel() @ (F @ mu) - 0.5 * (F @ mu) @ full @ (F @ mu)
    centred = h.T.ravel() - full @ (F @ mu)
    evidence += 0.5 * centred @ F @ S @ F.T @ centred
    np.testing.assert_allclose(run(posterior.log_normalizer), evidence, atol=1e-7)
    second = F @ (S + np.outer(mean, mean)) @ F.T
    divergence = h.T.ravel() @ (F @ mean) - 0.5 * np.sum(full * second) - evidence
    np.testing.assert_allclose(run(posterior.divergence, run(posterior.marginals)[1]), divergence, atol=1e-6)

    # f = E f + A^T R^-T u: its covariance from the images of unit vectors.
    image = jax.jit(jax.vmap(lambda u: prior.latents(prior.unflatten(posterior.deviation(u))) - prior.means()))
    images = np.asarray(image(jnp.eye(len(posterior.centre))))
    spread = images.swapaxes(1, 2).reshape(len(images), -1).T
    np.testing.assert_allclose(spread @ spread.T, F @ S @ F.T, atol=1e-7)
    u = RNG.normal(size=len(posterior.centre))
    back = run(lambda u: posterior.standardise(posterior.centre + posterior.deviation(u)), jnp.asarray(u))
    np.testing.assert_allclose(back, u, atol=1e-10)


def test_more_latents_than_are_solved_for_at_once():
    gps = [pgm.GP(KERNELS[0], form=pgm.Dense(), size=4), pgm.GP(KERNELS[3], form=pgm.Dense(), size=6)]
    prior = pgm.Model(pgm.LogisticSoftmax(10), gps).prior(X[:5])
    h, roots = RNG.normal(size=(5, 10)), RNG.normal(size=(5, 10, 10))
    W = roots @ roots.swapaxes(1, 2)
    conditioned = run(condition_blocks, prior, Sites(jnp.asarray(h), jnp.asarray(W)), (tuple(range(10)),))
    mean, V = run(lambda posterior: posterior.marginals(), conditioned)
    # Datum after datum.
    K = np.zeros((5, 10, 5, 10))
    for latent in range(10):
        K[:, latent, :, latent] = run(KERNELS[0 if latent < 4 else 3], X[:5], X[:5])
    K, full = K.reshape(50, 50), np.einsum("ilk,ij->iljk", W, np.eye(5)).reshape(50, 50)
    S = K @ np.linalg.inv(np.eye(50) + full @ K)
    expected = S.reshape(5, 10, 5, 10)[np.arange(5), :, np.arange(5)]
    np.testing.assert_allclose(V, expected, atol=1e-6)
    np.testing.assert_allclose(mean, (S @ h.ravel()).reshape(5, 10), atol=1e-6)


@pytest.mark.parametrize("form", [pgm.Dense(), pgm.Inducing(6, "variance")])
def test_deviations_by_products_are_those_of_solves(form):
    prior = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(KERNELS[0], size=3, form=form)).prior(X).for_sampling()
    roots = RNG.normal(size=(N, 3, 3))
    posterior = run(
        condition_blocks, prior, Sites(jnp.ones((N, 3)), jnp.asarray(roots @ roots.swapaxes(1, 2))), ((0, 1, 2),)
    )
    u = jnp.asarray(RNG.normal(size=posterior.centre.shape))
    solved = run(lambda posterior: posterior.deviation(u), posterior)
    products = run(lambda posterior: posterior.with_inverse_roots().deviation(u), posterior)
    assert not np.array_equal(products, solved)
    np.testing.assert_allclose(products, solved, atol=1e-12)


def quantities(posterior, key):
    """What a posterior says, with covariances between rows as those of each latent with itself."""
    new = jnp.asarray(X_NEW)
    at_rows = posterior.covariance(), posterior.cross_covariance(new), posterior.covariance_at(new)
    if posterior.is_coupled:
        at_rows = tuple(jnp.einsum("lmln->lmn", C) for C in at_rows)
    means, _ = posterior.mean_and_deviation(key)
    return {
        "moments": posterior.moments(),
        "marginals": posterior.marginals(),
        "predict": posterior.predict(new),
        "marginals_at": posterior.marginals_at(new),
        "at_rows": at_rows,
        "log_normalizer": posterior.log_normalizer(),
        "log_factor": posterior.log_factor(posterior.prior.latents(means)),
        "tempered": posterior.tempered(0.3).moments(),
        "together": together(posterior, 0.3).moments(),
    }


def test_independent_latents_are_the_same_one_by_one_and_as_blocks():
    prior = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(KERNELS[0], 0.4, size=3, form=pgm.Dense())).prior(X)
    sites = Sites(jnp.asarray(RNG.normal(0.3, 1.0, (N, 3))), jnp.asarray(RNG.gamma(2.0, 0.5, (N, 3))))
    independent = run(prior.condition, sites)
    blocks = run(condition_blocks, prior, sites.as_coupled(), ((0,), (1,), (2,)))
    assert (independent.is_coupled, blocks.is_coupled) == (False, True)
    assert (independent.coupled_latents(), blocks.coupled_latents()) == (None, [[0], [1], [2]])
    by_group, by_block = (run(quantities, posterior, jax.random.key(0)) for posterior in (independent, blocks))
    # The covariance without its jitter, of 1e-12 of a variance, times precisions.
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-8), by_group, by_block)


def signed_sites(rows):
    """Sites of latents that data couple in pairs, with one precision below zero."""
    W = np.zeros((rows, 3, 3))
    roots = RNG.normal(size=(rows, 2, 2))
    W[:, 1:, 1:] = roots @ roots.swapaxes(1, 2)
    W[:, 0, 0] = RNG.gamma(2.0, 0.5, rows)
    W[0, 0, 0] = -0.05
    return Sites(jnp.asarray(RNG.normal(0.3, 1.0, (rows, 3))), jnp.asarray(W))


@pytest.mark.parametrize("form", [pgm.Dense(), pgm.Inducing(6, "variance")])
def test_products_with_the_covariance(form):
    # Rows of equal inputs share their latents.
    inputs = np.concatenate([X, X[:4]])
    gps = [pgm.GP(kernel, form=form) for kernel in (KERNELS[0], pgm.RBF(0.6, 1.5), KERNELS[0])]
    prior = pgm.Model(pgm.LogisticSoftmax(3), gps).prior(inputs)
    sites, x = signed_sites(len(inputs)), jnp.asarray(RNG.normal(size=(len(inputs), 3)))

    def both(sites, x):
        posterior = condition_blocks(prior, sites, ((0,), (1, 2)))
        moved = condition_blocks(prior, sites._replace(potential=sites.potential + x), ((0,), (1, 2)))
        return posterior.times(x), moved.marginals()[0] - posterior.marginals()[0]

    np.testing.assert_allclose(*run(both, sites, x), atol=1e-10)
