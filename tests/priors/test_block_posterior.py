"""A Gaussian posterior of latents that the data couple, against explicit matrices, whichever latents those are."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import Keep
from pgmodels.inference.linear_response import halves
from pgmodels.model import Data
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks, together
from pgmodels.priors.dense import DensePrior, LowRankPrior
from pgmodels.priors.linalg import root_by_rank
from pgmodels.results.approximation import LinearResponse, PerturbativeApproximation
from tests.made_results import drawn
from tests.programs import run
from tests.statistical.reference import errors_of_draws

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


# Joint draws of latents at new inputs against the covariances of explicit matrices.


DRAWN_RNG = np.random.default_rng(4)
DRAWN_N, L = 30, 3
DRAWN_X = DRAWN_RNG.uniform(-1.5, 1.5, (DRAWN_N, 2))
# Two rows of the data again, and one new row twice.
NEW = np.vstack([DRAWN_RNG.uniform(-2.0, 2.0, (3, 2)), DRAWN_X[[4, 11]]])
NEW = np.vstack([NEW, NEW[1]])
H, W = DRAWN_RNG.normal(0.5, 1.0, (DRAWN_N, L)), DRAWN_RNG.gamma(2.0, 0.4, (DRAWN_N, L))
# Precisions that couple the first latent of a datum with the third.
HALF = DRAWN_RNG.normal(0.0, 0.5, (DRAWN_N, L, L)) * np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]])
COUPLED = HALF @ np.swapaxes(HALF, 1, 2)
DRAWN_MEANS = np.array([0.7, -0.4, -0.4])
DRAWN_KERNELS = [pgm.Matern32(1.4, [0.6, 1.7]), *[pgm.On(pgm.RBF(0.9, 1.5), [0])] * 2]
MODEL = pgm.Model(
    pgm.LogisticSoftmax(3),
    [pgm.GP(DRAWN_KERNELS[0], mean=0.7, form=pgm.Dense()), pgm.GP(DRAWN_KERNELS[1], mean=-0.4, size=2)],
)
Y = DRAWN_RNG.integers(0, 3, DRAWN_N).astype(float)


def prior_at(inputs):
    """The prior covariance of all latents at inputs, latent after latent."""
    K = np.zeros((L * len(inputs),) * 2)
    for latent, kernel in enumerate(DRAWN_KERNELS):
        block = slice(latent * len(inputs), (latent + 1) * len(inputs))
        K[block, block] = kernel(inputs, inputs)
    return K


def brute_force(potential, precision):
    """Mean (m, L) and covariance (L, m, L, m) at NEW given sites, and with the data (L, m, n, L).

    By the matrix of all latents everywhere.
    """
    rows = DRAWN_N + len(NEW)
    K = prior_at(np.vstack([DRAWN_X, NEW]))
    Phi = np.zeros((DRAWN_N, L, L, rows))
    Phi[np.arange(DRAWN_N)[:, None], np.arange(L), np.arange(L), np.arange(DRAWN_N)[:, None]] = 1.0
    F = Phi.reshape(DRAWN_N * L, L * rows)
    P = np.zeros((DRAWN_N, L, DRAWN_N, L))
    P[np.arange(DRAWN_N), :, np.arange(DRAWN_N)] = precision
    P = P.reshape(DRAWN_N * L, DRAWN_N * L)
    mu = np.repeat(DRAWN_MEANS, rows)
    S = np.linalg.solve(np.eye(DRAWN_N * L) + P @ F @ K @ F.T, P @ F @ K)
    covariance = K - K @ F.T @ S
    mean = mu + covariance @ F.T @ (potential.ravel() - P @ F @ mu)
    new = (np.arange(L)[:, None] * rows + DRAWN_N + np.arange(len(NEW))).ravel()
    cross = (covariance @ F.T)[new].reshape(L, len(NEW), DRAWN_N, L)
    return mean[new].reshape(L, -1).T, covariance[np.ix_(new, new)].reshape(L, len(NEW), L, len(NEW)), cross


@cache
def posterior(coupled):
    prior = MODEL.prior(DRAWN_X)
    assert [type(group) for group in prior.groups] == [DensePrior, LowRankPrior]
    if coupled:
        return jax.jit(partial(condition_blocks, blocks=((0, 2), (1,))))(prior, Sites(H, COUPLED))
    return jax.jit(lambda prior, sites: prior.condition(sites))(prior, Sites(H, W))


@cache
def approximation(coupled):
    mean, variance = map(np.asarray, jax.jit(lambda posterior: posterior.moments())(posterior(coupled)))
    common = {"model": MODEL, "X": DRAWN_X, "y": Y, "seconds": 0.0, "method": "cavi", "elbo_trace": np.zeros(2)}
    q = {"mean": mean, "variance": variance, "posterior": posterior(coupled)}
    return pgm.Approximation(**common, **q, converged=True, tolerance=1e-9)


def corrected_by(kind, coupled, **correction):
    """A correction of the approximation that leaves its moments at the data as they are."""
    q = approximation(coupled)
    return kind(uncorrected=q, mean=q.mean, variance=q.variance, seconds=0.0, num_nonpositive=0, **correction)


def precision_of(coupled):
    return COUPLED if coupled else np.einsum("il,lk->ilk", W, np.eye(L))


@pytest.mark.parametrize("coupled", [False, True])
def test_the_covariance_at_new_inputs_is_that_of_explicit_matrices(coupled):
    mean, covariance, _ = brute_force(H, precision_of(coupled))
    actual = approximation(coupled)._covariance_at(jnp.asarray(NEW))
    if not coupled:
        actual = np.einsum("amk,ab->ambk", actual, np.eye(L))
    # The jitter, up to 1e-8 of a variance of 1, and what the low-rank factor leaves out.
    np.testing.assert_allclose(actual, covariance, atol=1e-7)
    np.testing.assert_allclose(approximation(coupled).predict_latent(NEW)[0], mean, atol=1e-7)


def standard_errors(draws, mean, covariance):
    """By how many standard errors means and covariances of draws (draws, m, L) are off, at most."""
    C = np.transpose(covariance, (1, 0, 3, 2)).reshape(mean.size, -1)
    return errors_of_draws(draws.reshape(len(draws), -1), mean.ravel(), C)


@pytest.mark.parametrize("coupled", [False, True])
def test_draws_have_this_covariance(coupled):
    drawn = approximation(coupled).draw_latents(NEW, 20_000, seed=3)
    assert drawn.shape == (20_000, len(NEW), L)
    # Some 190 correlated comparisons: 4.5 standard errors are passed once in a thousand.
    assert standard_errors(drawn, *brute_force(H, precision_of(coupled))[:2]) < 4.5
    # One row twice is one value, to the root of the rounding of a variance.
    np.testing.assert_allclose(drawn[:, 5], drawn[:, 1], atol=1e-6)
    np.testing.assert_array_equal(drawn, approximation(coupled).draw_latents(NEW, 20_000, seed=3))
    assert not np.array_equal(drawn, approximation(coupled).draw_latents(NEW, 20_000, seed=4))


@pytest.mark.parametrize("coupled", [False, True])
def test_linear_response_reaches_across_rows(coupled):
    mean, covariance, cross = brute_force(H, precision_of(coupled))
    root = np.random.default_rng(8).normal(0.0, 0.1, (DRAWN_N * L, DRAWN_N * L))
    T = root @ root.T
    # The same in whitened coordinates, whose covariance with the latents at the data is R^-T U.
    R, U = (np.asarray(part) for part in jax.jit(halves)(posterior(coupled), None))
    turned = np.linalg.solve(R.T, U.reshape(len(R), DRAWN_N * L))
    correction = {"shift": np.zeros(len(R)), "covariance": np.zeros((DRAWN_N, L, L)), "response": turned @ T @ turned.T}
    correction |= {"residual": 0.0}
    corrected = corrected_by(LinearResponse, coupled, **correction, is_positive=True)
    flat = cross.reshape(L * len(NEW), DRAWN_N * L)
    covariance = covariance + (flat @ T @ flat.T).reshape(covariance.shape)
    # Sums of 90 terms of size 1 at most, of covariances to 1e-7.
    np.testing.assert_allclose(corrected._covariance_at(jnp.asarray(NEW)), covariance, atol=1e-5)
    drawn = corrected.draw_latents(NEW, 2000, seed=6)
    assert standard_errors(drawn, mean, covariance) < 4.5
    without = corrected_by(LinearResponse, coupled, **correction, is_positive=False)
    with pytest.raises(ValueError, match="not positive definite, so the result has no distribution to draw from"):
        without.draw_latents(NEW)


def draws(count, **sampled):
    """Draws as of a sampler: the latents' coordinates at the data by their posterior, and hyperparameters."""
    _, whitened = approximation(True).draw_at_data(count, seed=1)
    model, coordinates = sampled_model() if sampled else MODEL, tuple(v[None] for v in whitened)
    return drawn(model, DRAWN_X, Y, posterior(True).prior, coordinates, hyperparameters=sampled)


def test_draws_of_a_sampler_go_on_from_their_latents_at_the_data():
    result = draws(4000)
    drawn = result.draw_latents(NEW, 4000, seed=2)
    # 4,000 draws, each once; as above.
    assert standard_errors(drawn, *brute_force(H, precision_of(True))[:2]) < 4.5
    # Each passes through its own latents at the rows of the data, up to the root of the jitter, and none comes twice.
    at_data = np.sort(result.latents[0][:, [4, 11]], axis=0)
    np.testing.assert_allclose(np.sort(drawn[:, 3:5], axis=0), at_data, atol=1e-3)
    assert result.draw_latents(NEW, 7).shape == (7, len(NEW), L)


@cache
def sampled_model():
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(dist.LogNormal(0.0, 1.0), [0.6, 1.7]), mean=0.7))


def test_each_draw_of_a_sampler_has_its_own_hyperparameters():
    variances = np.array([0.3, 4.0])
    v = np.random.default_rng(5).normal(size=(1, 2, DRAWN_N, 1))
    prior = sampled_model().prior(DRAWN_X, traced=True)
    result = dataclasses.replace(draws(2, variance=variances[None]), prior=prior, whitened=(v,))
    drawn = result.draw_latents(NEW, 4000, seed=2)
    # Given coordinates v, f = mean + L v at the data, and elsewhere the conditional of it.
    for number, variance in enumerate(variances):
        kernel = pgm.Matern32(variance, [0.6, 1.7])
        K, cross, at_new = kernel(DRAWN_X, DRAWN_X), kernel(NEW, DRAWN_X), kernel(NEW, NEW)
        f = np.linalg.cholesky(K) @ v[0, number, :, 0]
        mean = 0.7 + cross @ np.linalg.solve(K, f)
        rest = at_new - cross @ np.linalg.solve(K, cross.T)
        # The two are told apart by what they are at a row of the data.
        mine = drawn[np.abs(drawn[:, 3, 0] - mean[3]) < 1e-3][..., 0]
        assert len(mine) == 2000
        error = np.sqrt(np.maximum(np.diag(rest), 1e-6) / 2000)
        # Means and variances of 2,000 draws at six places: 4.5 standard errors, those at the data to the jitter.
        assert (np.abs(mine.mean(axis=0) - mean) < 4.5 * error).all()
        assert np.abs(np.cov(mine.T) - rest).max() < 4.5 * variance * np.sqrt(2 / 2000)
        assert np.corrcoef(mine[:, 0], mine[:, 2])[0, 1] == pytest.approx(
            rest[0, 2] / np.sqrt(rest[0, 0] * rest[2, 2]), abs=4.5 / np.sqrt(2000)
        )


def test_what_has_no_joint_covariance_says_so():
    correction = {"shift": np.zeros((DRAWN_N, L)), "curvature": np.zeros((DRAWN_N, L))}
    corrected = corrected_by(PerturbativeApproximation, False, **correction)
    with pytest.raises(ValueError, match=r"corrects each row separately.*pgm.correct\(result\)"):
        corrected.draw_latents(NEW)
    for count in (0, 2.5):
        with pytest.raises(ValueError, match="num_draws must be a whole number >= 1"):
            approximation(False).draw_latents(NEW, count)
    with pytest.raises(ValueError, match="X_new must have shape"):
        draws(4).draw_latents(NEW[0])


def test_latents_whose_kernel_is_held_have_one_factor_for_all_draws():
    # Beside a mean and a dispersion that are sampled: the kernel of rank 6 has one prior at all of their values.
    x = np.linspace(0.0, 1.0, 60)[:, None]
    kernel = pgm.RBF(1.3, 1.5)
    gp = pgm.GP(pgm.RBF(pgm.Fixed(1.3), pgm.Fixed(1.5)), mean=dist.Normal(0.0, 1.0))
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(-1.0, 1.0)), gp)
    data = Data(x, np.sin(x[:, 0]))
    run = GibbsRun(model, data, Settings(0, 1, jax.random.key(0), Keep("all")))
    rank = run.prior.groups[0].rank
    assert rank <= 16
    prior = run.target.prior(jnp.array([0.1, 2.5]))
    assert prior.groups[0].mean == 2.5
    assert run.prior.groups[0].mean == 0.0
    # Without a jitter that shows beside the variances.
    A = np.asarray(prior.groups[0].factor)[:, :60]
    np.testing.assert_allclose(A.T @ A, kernel(x, x), atol=1e-13)
    # Of each draw the latents at data follow from its own mean, and between them from interpolation.
    v = np.random.default_rng(6).normal(size=(1, 2, rank, 1))
    means = np.array([[-1.0, 2.0]])
    hyperparameters = {"scale": np.ones((1, 2)), "mean": means}
    draws = drawn(model, x, data.y, run.prior.resized(60), (v,), hyperparameters=hyperparameters)
    for number, mean in enumerate(means[0]):
        f = mean + A.T @ v[0, number, :, 0]
        latents = draws.draw_latents(x[::20], 2, seed=3)[..., 0]
        assert np.abs(latents - f[::20]).max(axis=1).min() < 1e-5
        assert np.abs(draws.draw_marginals(x[::20])[number, :, 0] - f[::20]).max() < 1e-5


@pytest.mark.parametrize("rank", [0, 3, 40])
def test_roots_of_draws_take_as_many_columns_as_the_rank(rank):
    A = np.random.default_rng(rank).normal(size=(40, rank)) * np.linspace(0.1, 3.0, 40)[:, None]
    C = A @ A.T
    # With what rounding may do to it, which makes it indefinite.
    noise = 1e-13 * np.random.default_rng(1).normal(size=(40, 40))
    with jax.enable_x64(True):
        root = np.asarray(root_by_rank(jnp.asarray(C + noise + noise.T), jnp.asarray(1e-12)))
    np.testing.assert_allclose(root @ root.T, C, atol=1e-11)
    assert np.any(root != 0.0, axis=0).sum() == rank


def test_effects_of_crossed_groups_are_sampled_by_their_rank():
    # 6 x 4 cells of two groups, of which each but one is there: 1 + 5 + 3 numbers say all of them.
    cells = np.array([(a, b) for a in range(6) for b in range(4) if (a, b) != (2, 3)], float)
    apart = pgm.On(pgm.White(dist.LogNormal()), [0]) + pgm.On(pgm.RBF(dist.LogNormal(), 1.7), [1])
    kernel = pgm.Constant(2.0) * (apart + pgm.Constant(0.3))
    assert kernel.terms(2) == ((0,), (1,), ())
    assert (kernel * pgm.On(pgm.White(), [1])).terms(2) == ((0, 1), (1,))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.4))
    unknowns = with_priors(model)
    new = np.array([[2.0, 3.0], [0.0, 0.0], [7.0, 1.0]])
    for variances in ([0.5, 3.0], [4.0, 1e-3]):
        moved = unknowns.with_values(variances)
        prior = moved.prior(cells, traced=True)
        (group,) = prior.groups
        assert group.rank == 9
        exact = np.asarray(moved.gps[0].kernel(cells, cells))
        A = np.asarray(group.factor)
        np.testing.assert_allclose(A.T @ A, exact, atol=1e-9)
        # At new cells too: all that is known of one of levels that are there, nothing more of a level that is not.
        cross = np.asarray(moved.gps[0].kernel(cells, new))
        told = cross.T @ np.linalg.lstsq(exact, cross, rcond=1e-12)[0]
        at_new, residual = map(np.asarray, group.factor_at(jnp.asarray(new)))
        np.testing.assert_allclose(at_new.T @ at_new, told, atol=1e-7)
        np.testing.assert_allclose(residual, np.diag(moved.gps[0].kernel(new, new)) - np.diag(told), atol=1e-7)
    # As many levels as half of the rows: a dense root takes less.
    assert model.inputs(cells[:12]).spanning == (None,)
    assert pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, form=pgm.Dense())).inputs(cells).spanning == (None,)
