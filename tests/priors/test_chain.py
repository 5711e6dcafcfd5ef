"""Chains that sites couple with each other and with linear effects, against explicit matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.chain import draw_deviations
from pgmodels.priors.chain_posterior import (
    Factors,
    Layout,
    condition_chains,
    decoupled,
    pull_sites,
    respond,
    response_entries,
)
from pgmodels.priors.collection import require_coupling
from tests.covering import some
from tests.programs import run
from tests.statistical.reference import errors_of_draws

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(0)
N, SIZE = 40, 6
TIME = RNG.uniform(0.0, 10.0, N)
TIME[[3, 7]] = TIME[20]
LEVEL = RNG.integers(0, 4, N).astype(float)
X = np.column_stack([LEVEL, TIME, RNG.normal(size=N)])
X[7] = X[20]
NEW = np.column_stack([RNG.integers(0, 6, 6), [-3.0, 4.4, 4.5, 30.0, TIME[20], TIME[0]], RNG.normal(size=6)])
# Rounding of recursions of 40 steps, and the jitter of dense roots, times precisions of size 1.
TIGHT = 1e-8


def model_of(form):
    """Effects of levels between chains, of which two share a kernel; a constant and a slope."""
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.7, 0.8), [1]), 0.4, size=2, form=form),
        pgm.GP(pgm.On(pgm.White(0.6), [0]), -0.2),
        pgm.GP(pgm.On(pgm.Matern12(0.5, 2.0) + pgm.White(0.1), [1]), form=form),
        pgm.GP(pgm.Constant(0.9), form=form),
        pgm.GP(pgm.On(pgm.Linear(0.5), [2])),
    ]
    return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), SIZE), gps)


def random_sites(signed=False):
    """Sites on two predictors, one in four without precision; some precisions are negative if ``signed``."""
    Phi, h, w = RNG.normal(size=(N, 2, SIZE)), RNG.normal(size=(N, 2)), RNG.gamma(1.0, 1.0, (N, 2))
    w[::4] = 0.0
    if signed:
        w[1::4, 0] *= -0.05
    return jnp.asarray(Phi), Sites(jnp.asarray(h), jnp.asarray(w))


def summary(posterior):
    mean, V = posterior.marginals()
    return {
        "marginals": (mean, V),
        "new": posterior.marginals_at(jnp.asarray(NEW)),
        "log_normalizer": posterior.log_normalizer(),
        "divergence": posterior.divergence(V),
        "log_factor": posterior.log_factor(mean),
    }


def twins(Phi, sites):
    chains, dense = (model_of(form).prior(X) for form in (pgm.Markov(), pgm.Dense()))
    ours = run(condition_chains, chains, Phi, sites)
    return ours, run(condition_blocks, dense, pull_sites(Phi, sites), (tuple(range(SIZE)),))


def assert_close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=TIGHT), one, other)


@pytest.mark.parametrize("signed", [False, True])
def test_the_posterior_is_that_of_the_dense_form(signed):
    ours, dense = twins(*random_sites(signed))
    assert_close(run(summary, ours), run(summary, dense))
    assert np.max(np.abs(run(dense.marginals)[1][:, 0, 2:])) > 0.01
    assert ours.coupled_latents() == dense.coupled_latents()


@pytest.mark.parametrize(("rank", "sign"), [(2, 1.0), (SIZE, 1.0), (2, -1.0)])
def test_precisions_of_latents_are_split_into_predictors(rank, sign):
    roots = RNG.normal(size=(N, SIZE, rank))
    W = roots[..., :-1] @ roots[..., :-1].swapaxes(1, 2) + sign * roots[..., -1:] @ roots[..., -1:].swapaxes(1, 2)
    if sign < 0.0:
        # Of f[0] + f[1] and, negative, of f[0] - f[1]: zero on the diagonal.
        W[0] = 0.0
        W[0, 0, 1] = W[0, 1, 0] = 2.0
    # Potentials outside the range of the precisions, as of a Poisson variable's linear factor, are kept too.
    sites = Sites(jnp.asarray(RNG.normal(size=(N, SIZE))), jnp.asarray(W))
    pulled = run(lambda sites: pull_sites(*decoupled(sites)), sites)
    np.testing.assert_allclose(pulled.precision, W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pulled.potential, sites.potential, rtol=0, atol=1e-12)


@pytest.mark.parametrize("signed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_slopes_of_the_log_normaliser_are_those_of_the_dense_form(signed):
    Phi, sites = random_sites(signed)
    h, w = sites

    def slopes(form):
        model = model_of(form)
        inputs = model.inputs(X)

        def value(bare, Phi, h, w):
            prior = bare.prior(inputs, traced=True)
            if form == pgm.Markov():
                return condition_chains(prior, Phi, Sites(h, w)).log_normalizer()
            return condition_blocks(prior, pull_sites(Phi, Sites(h, w)), (tuple(range(SIZE)),)).log_normalizer()

        return jax.tree.leaves(run(jax.grad(value, (0, 1, 2, 3)), model.bare(), Phi, h, w))

    ours, dense = slopes(pgm.Markov()), slopes(pgm.Dense())
    assert len(ours) == len(dense) > 10
    # Kernel parameters move sums over all rows.
    for one, other in zip(ours, dense, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)
    assert max(np.max(np.abs(leaf)) for leaf in dense[:5]) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_draws_have_the_covariance_of_the_dense_form(signed):
    ours, dense = twins(*random_sites(signed))
    keys = jax.random.split(jax.random.key(1), 4000)
    at_data = run(lambda posterior: jax.lax.map(lambda key: posterior.draw(key)[0], keys), ours)[:, :4]
    at_new = run(ours.drawn_at, jnp.asarray(NEW), keys)
    covariances = run(dense.covariance)[:, :4, :, :4], run(dense.covariance_at, jnp.asarray(NEW))
    means = run(dense.marginals)[0][:4], run(dense.marginals_at, jnp.asarray(NEW))[0]
    for f, mean, C in zip((at_data, at_new), means, covariances, strict=True):
        flat, C = np.asarray(f).reshape(len(f), -1), np.moveaxis(C, (0, 2), (1, 3)).reshape(mean.size, mean.size)
        deviation = np.sqrt(np.diagonal(C))
        # Some 2,700 comparisons at five standard errors.
        assert np.all(np.abs(flat.mean(axis=0) - mean.ravel()) < 5.0 * deviation / np.sqrt(len(f)) + 1e-9)
        error = np.sqrt((np.outer(deviation, deviation) ** 2 + C**2) / len(f))
        assert np.all(np.abs(np.cov(flat.T) - C) < 5.0 * error + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_a_share_of_the_precisions_is_that_of_the_dense_form(signed):
    both = twins(*random_sites(signed))
    ours, dense = (run(lambda posterior: posterior.tempered(0.3).marginals(), twin) for twin in both)
    assert_close(ours, dense)


@pytest.mark.slow
def test_coordinates_of_draws_are_those_of_the_latents():
    ours, _ = twins(*random_sites())
    f, coordinates = run(ours.draw, jax.random.key(0))
    np.testing.assert_allclose(run(ours.prior.latents, coordinates), f, rtol=0, atol=1e-12)

    # What is drawn at rows of the data is known there.
    def at_the_data(coordinates):
        pairs = zip(ours.prior.groups, coordinates, strict=True)
        return jnp.concatenate([group.conditional(jnp.asarray(X), v)[0] for group, v in pairs], axis=1)

    again = run(at_the_data, coordinates)
    np.testing.assert_allclose(again, f, rtol=0, atol=1e-8)


def test_chains_of_two_columns_are_refused():
    gps = [pgm.GP(pgm.On(pgm.Matern32(), [column]), form=pgm.Markov()) for column in (1, 2)]
    model = pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps)
    with pytest.raises(ValueError, match=r"read one column.*columns 1, 2.*pgm.Inducing"):
        pgm.cavi(model, X, (LEVEL > 1).astype(float))


def test_forms_without_a_factor_beside_a_chain_are_refused():
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.0, 1.0), [1]), form=pgm.Markov()),
        pgm.GP(pgm.On(pgm.RBF(1.0, 1.0), [2]), form=pgm.Inducing(X[:5])),
    ]
    prior = pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps).prior(X)
    require_coupling(prior)
    with pytest.raises(ValueError, match=r"FICPrior has no factor matrix"):
        require_coupling(prior.for_sampling())


# Linear response over Markov chains, against conditioning on the factors with all covariances written out.


ROWS, NUM_NEW = 8, 4
CHAIN = pgm.Markov()
ONE = {
    "Matern12": [pgm.GP(pgm.On(pgm.Matern12(2.0, 0.8), [0]), form=CHAIN)],
    "Matern32": [pgm.GP(pgm.On(pgm.Matern32(2.0, 0.8), [0]), form=CHAIN)],
    "sum": [pgm.GP(pgm.On(pgm.Matern52(2.0, 0.8) + pgm.Constant(0.5), [0]), form=CHAIN)],
}
SEVERAL = {
    # States of different sizes.
    "chains": [
        pgm.GP(pgm.On(pgm.Matern12(1.2, 2.0), [0]), 0.3, form=CHAIN),
        pgm.GP(pgm.On(pgm.Matern32(2.0, 0.8), [0]), size=2, form=CHAIN),
    ],
    "a chain between effects": [
        pgm.GP(pgm.On(pgm.White(0.6), [1]), -0.2),
        pgm.GP(pgm.On(pgm.Matern32(2.0, 0.8), [0]), form=CHAIN),
        pgm.GP(pgm.On(pgm.Linear(0.5), [2])),
    ],
}


def inputs(rng, count):
    """Times, three levels, and a number."""
    return np.column_stack([rng.uniform(-2.0, 2.0, count), rng.integers(0, 3, count), rng.normal(size=count)])


def prior_of(gps, X):
    size = sum(gp.size for gp in gps)
    return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), size), gps).prior(X)


def covariances(gps, X):
    """The prior covariance of all latents at all inputs, latent by latent."""
    kernels = [gp.kernel for gp in gps for _ in range(gp.size)]
    return jax.scipy.linalg.block_diag(*(kernel(X, X) for kernel in kernels))


def corrected_by_matrices(K, W, Phi, factors, is_paired):
    """Covariances (rows, L, L) and the number of negative eigenvalues; W (n, L, L) and factors (n, S, S) of the first
    n of all rows."""
    n, P, size = Phi.shape
    rows = len(K) // size
    places = np.arange(size)[:, None] * rows + np.arange(rows)
    root, of_sites = np.linalg.cholesky(K + 1e-12 * np.eye(len(K))), np.zeros_like(K)
    read = np.zeros((n, P, len(K)))
    for i in range(n):
        of_sites[np.ix_(places[:, i], places[:, i])] += W[i]
        read[i][:, places[:, i]] = Phi[i]
    V = root @ np.linalg.inv(np.eye(len(K)) + root.T @ of_sites @ root) @ root.T
    flat = read.reshape(n * P, len(K))
    one, other = np.triu_indices(P) if is_paired else (np.arange(P),) * 2
    # Covariances of products z_p z_q: V_pa V_qb + V_pb V_qa.
    v = (flat @ V @ flat.T).reshape(n, P, n, P)
    p, q = v[:, one], v[:, other]
    of_products = p[..., one] * q[..., other] + p[..., other] * q[..., one]
    S, R = P + len(one), len(one)
    C = np.zeros((n, S, n, S))
    C[:, :P, :, :P], C[:, P:, :, P:] = (flat @ K @ flat.T).reshape(n, P, n, P), of_products.reshape(n, R, n, R)
    C, across = C.reshape(n * S, n * S), np.zeros((len(K), n, S))
    across[:, :, :P] = (K @ flat.T).reshape(len(K), n, P)
    across, B = across.reshape(len(K), n * S), jax.scipy.linalg.block_diag(*factors)
    system = np.eye(n * S) + np.asarray(B) @ C
    covariance = K - across @ np.linalg.solve(system, B) @ across.T
    half = np.linalg.cholesky(C + 1e-12 * np.eye(n * S))
    negative = int(np.sum(np.linalg.eigvalsh(np.eye(n * S) + half.T @ B @ half) < 0.0))
    return np.stack([covariance[np.ix_(at, at)] for at in places.T]), negative


def check_response(gps, posterior_of, Phi, W, is_paired, scales=(0.02, 1.0)):
    """Whether moments, predictions and numbers of negative eigenvalues are those of explicit matrices."""
    rng = np.random.default_rng(4)
    X, new = inputs(rng, ROWS), inputs(rng, NUM_NEW)
    new[:, 0] = [-3.0, -0.4, 0.9, 4.0]
    # Rows with equal times, and two equal rows.
    X[3, 0], X[5] = X[2, 0], X[2]
    prior = prior_of(gps, X)
    posterior = run(posterior_of, prior)
    K = np.asarray(covariances(gps, np.concatenate([X, new])))
    P, counts = Phi.shape[1], []
    layout = Layout.of(posterior.prior, posterior.is_coupled)
    S = P + (P * (P + 1) // 2 if is_paired else P)
    respond_to = jax.jit(
        lambda posterior, factors: (
            (response := respond(posterior, factors, layout)).moments()[1],
            response.predict(jnp.asarray(new))[1],
            jnp.sum(response.negative()),
        )
    )
    for scale in scales:
        for _ in range(4):
            factors = scale * rng.normal(size=(ROWS, S, S))
            factors = 0.5 * (factors + factors.swapaxes(1, 2))
            factors[:, :P, :P] += np.einsum("ipl,ilk,iqk->ipq", Phi, W, Phi) if scale < 1.0 else 0.0
            # Rows without factors, and with one of rank one.
            factors[0], factors[1] = 0.0, np.outer(factors[1, 0], factors[1, 0])
            across = jnp.asarray(Phi) if posterior.is_coupled else None
            at_data, at_new, negative = respond_to(posterior, Factors(jnp.asarray(factors), None, across))
            expected, count = corrected_by_matrices(K, W, Phi, factors, is_paired)
            counts.append(count)
            assert negative == count
            # Indefinite systems have small eigenvalues of any sign: relative to the largest entry.
            ours = np.concatenate([at_data, at_new])
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    # Both kinds of systems are among them.
    assert 0 in counts[:4]
    assert max(counts[4:]) > 0


@pytest.mark.parametrize("name", some(list(ONE) + list(SEVERAL), "Matern32", "chains"))
def test_response_of_latents_that_no_site_couples(name):
    gps, rng = (ONE | SEVERAL)[name], np.random.default_rng(5)
    size = sum(gp.size for gp in gps)
    w = rng.gamma(1.5, 0.7, (ROWS, size))
    Phi = np.broadcast_to(np.eye(size), (ROWS, size, size))
    sites = Sites(jnp.zeros((ROWS, size)), jnp.asarray(w))
    check_response(gps, lambda prior: prior.condition(sites), Phi, w[:, :, None] * np.eye(size), is_paired=False)


@pytest.mark.parametrize(
    ("name", "is_paired"),
    some([(name, is_paired) for name in SEVERAL for is_paired in (False, True)], ("a chain between effects", True)),
)
def test_response_of_latents_that_sites_couple(name, is_paired):
    gps, rng = SEVERAL[name], np.random.default_rng(6)
    Phi, w = rng.normal(size=(ROWS, 2, 3)), rng.gamma(1.5, 0.4, (ROWS, 2))
    sites = Sites(jnp.zeros((ROWS, 2)), jnp.asarray(w))
    W = np.einsum("ipl,ip,ipk->ilk", Phi, w, Phi)
    check_response(gps, lambda prior: condition_chains(prior, jnp.asarray(Phi), sites), Phi, W, is_paired)


def test_the_matrices_grow_with_the_entries_of_a_block():
    X = inputs(np.random.default_rng(0), ROWS)
    prior, nothing = prior_of(SEVERAL["chains"], X), Sites(*2 * (jnp.zeros((ROWS, 3)),))
    # Three chains of 2 + 3 entries; all in one block of 6 + 21.
    assert response_entries(run(prior.condition, nothing)) == ROWS * 15**2
    coupled = run(condition_chains, prior, jnp.ones((ROWS, 1, 3)), Sites(*2 * (jnp.zeros((ROWS, 1)),)))
    assert response_entries(coupled) == ROWS * 27**2


# Markov chains given sites whose precisions may be negative, against explicit matrices.


TIMES = np.array([1.0, 0.4, 0.4 + 1e-3, 4.0, 2.9, 9.0])[:, None]
KERNEL = pgm.Matern32(1.7, 0.8) + pgm.Matern12(0.3, 5.0)
MEAN = 0.4
POTENTIAL = np.array([0.3, -1.0, 0.5, 0.0, 2.0, 0.1])
PRECISIONS = {
    "proper": np.array([-0.2, -0.3, 2.0, 0.0, -0.1, 1.0]),
    # The first row in time is improper by itself, and the second makes up for it.
    "improper at first": np.array([0.5, -0.9, 3.0, -0.2, 0.4, 0.0]),
    "improper": np.array([0.5, -0.9, 0.1, 1.0, 1.0, 1.0]),
    "improper in two directions": np.array([0.5, -0.9, 0.1, 1.0, 1.0, -2.0]),
}


def moments_of(w, h=POTENTIAL, count=len(TIMES)):
    """Mean and variance of the rows, log normaliser and divergence."""
    prior = pgm.Markov().bind(KERNEL, MEAN, TIMES[:count], 1)
    moments = jax.jit(lambda sites: prior.moments(sites))(Sites(*(jnp.asarray(v[:count, None]) for v in (h, w))))
    return prior, [np.asarray(part).squeeze() for part in moments]


def by_matrices(w, h=POTENTIAL, count=len(TIMES)):
    K, w, h = np.asarray(KERNEL(TIMES[:count], TIMES[:count])), w[:count], h[:count]
    precision = np.linalg.inv(K) + np.diag(w)
    V = np.linalg.inv(precision)
    right = h + np.linalg.solve(K, np.full(count, MEAN))
    mean, deviation = V @ right, V @ right - MEAN
    log_det = np.linalg.slogdet(np.eye(count) + K * w)[1]
    log_normalizer = 0.5 * (right @ mean - MEAN * np.sum(np.linalg.solve(K, np.full(count, MEAN))) - log_det)
    divergence = 0.5 * (np.trace(np.linalg.solve(K, V)) - count + log_det + deviation @ np.linalg.solve(K, deviation))
    return precision, V, [mean, np.diag(V), log_normalizer, divergence]


@pytest.mark.parametrize(("name", "count"), [("proper", 6), ("improper at first", 6), ("proper", 1)])
def test_moments_are_those_of_matrices(name, count):
    w = PRECISIONS[name]
    precision, _, expected = by_matrices(w, count=count)
    assert np.linalg.eigvalsh(precision)[0] > 0.0
    # The state of the filter after the first row in time.
    assert (1.0 + w[1] * np.asarray(KERNEL.diagonal(TIMES))[1] < 0.0) == (name == "improper at first")
    for ours, theirs in zip(moments_of(w, count=count)[1], expected, strict=True):
        np.testing.assert_allclose(ours, np.squeeze(theirs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["improper", "improper in two directions"])
def test_the_log_normaliser_of_an_improper_posterior_is_undefined(name):
    w = PRECISIONS[name]
    assert np.linalg.eigvalsh(by_matrices(w)[0])[0] < 0.0
    _, (_, _, log_normalizer, divergence) = moments_of(w)
    assert np.isnan(log_normalizer)
    assert np.isnan(divergence)


@pytest.mark.parametrize("name", ["proper", "improper at first"])
def test_draws_have_the_covariance_of_matrices(name):
    w = PRECISIONS[name]
    prior, _ = moments_of(w)
    n, d = len(TIMES), prior.dimension
    chain, order = prior.for_sampling(), np.asarray(prior.order)
    precision = np.zeros((n, d, d))
    precision[:, 0, 0] = w[order]

    def drawn(noise):
        L = chain.noise_roots
        return draw_deviations(chain.chain, L, jnp.asarray(precision), noise.reshape(n, d))[:, 0]

    # Draws are linear in the standard normals.
    J = np.asarray(jax.jit(jax.jacfwd(drawn))(jnp.zeros(n * d)))
    np.testing.assert_allclose(J @ J.T, by_matrices(w)[1][np.ix_(order, order)], rtol=0, atol=1e-9)


def test_draws_of_the_posterior_are_by_the_sign_of_its_precisions():
    sites = Sites(*(jnp.asarray(part[:, None]) for part in (POTENTIAL, PRECISIONS["improper at first"])))
    posterior = pgm.Markov().bind(KERNEL, MEAN, TIMES, 1).condition(sites)
    keys = jax.random.split(jax.random.key(0), 40_000)

    def one(key):
        return posterior.prior.latents(sum(posterior.mean_and_deviation(key)))[:, 0]

    f = np.asarray(jax.jit(jax.vmap(one))(keys))
    _, V, (mean, *_) = by_matrices(PRECISIONS["improper at first"])
    assert errors_of_draws(f, mean, V) < 4.5
