"""Linear response over Markov chains, against conditioning on the factors with all covariances written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.base import Sites
from pgmodels.priors.chain_posterior import Factors, Layout, condition_chains, respond, response_entries
from tests.covering import some
from tests.programs import run

pytestmark = pytest.mark.usefixtures("double_precision")

N, M = 8, 4
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


def corrected(K, W, Phi, factors, is_paired):
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


def check(gps, posterior_of, Phi, W, is_paired, scales=(0.02, 1.0)):
    """Whether moments, predictions and numbers of negative eigenvalues are those of explicit matrices."""
    rng = np.random.default_rng(4)
    X, new = inputs(rng, N), inputs(rng, M)
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
            factors = scale * rng.normal(size=(N, S, S))
            factors = 0.5 * (factors + factors.swapaxes(1, 2))
            factors[:, :P, :P] += np.einsum("ipl,ilk,iqk->ipq", Phi, W, Phi) if scale < 1.0 else 0.0
            # Rows without factors, and with one of rank one.
            factors[0], factors[1] = 0.0, np.outer(factors[1, 0], factors[1, 0])
            across = jnp.asarray(Phi) if posterior.is_coupled else None
            at_data, at_new, negative = respond_to(posterior, Factors(jnp.asarray(factors), None, across))
            expected, count = corrected(K, W, Phi, factors, is_paired)
            counts.append(count)
            assert negative == count
            # Indefinite systems have small eigenvalues of any sign: relative to the largest entry.
            ours = np.concatenate([at_data, at_new])
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    # Both kinds of systems are among them.
    assert 0 in counts[:4]
    assert max(counts[4:]) > 0


@pytest.mark.parametrize("name", some(list(ONE) + list(SEVERAL), "Matern32", "chains"))
def test_of_latents_that_no_site_couples(name):
    gps, rng = (ONE | SEVERAL)[name], np.random.default_rng(5)
    size = sum(gp.size for gp in gps)
    w = rng.gamma(1.5, 0.7, (N, size))
    Phi = np.broadcast_to(np.eye(size), (N, size, size))
    sites = Sites(jnp.zeros((N, size)), jnp.asarray(w))
    check(gps, lambda prior: prior.condition(sites), Phi, w[:, :, None] * np.eye(size), is_paired=False)


@pytest.mark.parametrize(
    ("name", "is_paired"),
    some([(name, is_paired) for name in SEVERAL for is_paired in (False, True)], ("a chain between effects", True)),
)
def test_of_latents_that_sites_couple(name, is_paired):
    gps, rng = SEVERAL[name], np.random.default_rng(6)
    Phi, w = rng.normal(size=(N, 2, 3)), rng.gamma(1.5, 0.4, (N, 2))
    sites = Sites(jnp.zeros((N, 2)), jnp.asarray(w))
    W = np.einsum("ipl,ip,ipk->ilk", Phi, w, Phi)
    check(gps, lambda prior: condition_chains(prior, jnp.asarray(Phi), sites), Phi, W, is_paired)


def test_the_matrices_grow_with_the_entries_of_a_block():
    X = inputs(np.random.default_rng(0), N)
    prior, nothing = prior_of(SEVERAL["chains"], X), Sites(*2 * (jnp.zeros((N, 3)),))
    # Three chains of 2 + 3 entries; all in one block of 6 + 21.
    assert response_entries(run(prior.condition, nothing)) == N * 15**2
    coupled = run(condition_chains, prior, jnp.ones((N, 1, 3)), Sites(*2 * (jnp.zeros((N, 1)),)))
    assert response_entries(coupled) == N * 27**2
