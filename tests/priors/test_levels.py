"""Priors of levels, and posteriors factorised by their structure, against the same ones with matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import pgmodels as pgm
from pgmodels.priors import linalg
from pgmodels.priors.collection import columns
from pgmodels.priors.representation import Auto
from pgmodels.runtime import jit


def factors_of(rng, n):
    """Factors of two latents of the same levels, of one of other levels, and of two dense ones; one row is unknown."""

    def of_levels(count, k, columns, level):
        return linalg.LevelFactor(level, jnp.asarray(rng.normal(size=(k, n))).at[:, 0].set(0.0), count, columns)

    many, few = (jnp.asarray(rng.integers(0, count, n)) for count in (130, 6))
    dense = [jnp.asarray(rng.normal(size=(k, n))) for k in (1, 3)]
    one, both, other = of_levels(130, 1, (1,), many), of_levels(130, 2, (1,), many), of_levels(6, 2, (2,), few)
    return [dense[0], one, other, both, dense[1]]


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [1, 3], [4, 1]], ids=str)
def test_a_root_of_levels_is_that_of_the_matrix(double_precision, chosen):
    rng = np.random.default_rng(0)
    factors = [A for place, A in enumerate(factors_of(rng, 200)) if place in chosen]
    half = jnp.asarray(rng.normal(size=(200, len(factors), len(factors))))
    W, led = half @ jnp.swapaxes(half, 1, 2), tuple(p for p, A in enumerate(factors) if getattr(A, "count", 0) == 130)
    vectors, matrix = jnp.asarray(rng.normal(size=sum(map(len, factors)))), jnp.eye(sum(map(len, factors)))

    @jax.jit
    def found():
        root, dense = linalg.LevelRoot.of(factors, W, led), [linalg.as_dense(A) for A in factors]
        solved = [linalg.solve_upper(root, linalg.solve_lower(root, right)) for right in (vectors, matrix)]
        turned = linalg.upper_times(root, matrix)
        once = linalg.upper_times(root, linalg.solve_upper(root, vectors)), linalg.solve(root, vectors)
        return dense, solved, turned.T @ turned, once, linalg.log_determinant(root), root.covariances(factors)

    dense, solved, precision, once, log_root, covariances = found()
    P = np.block([[(a * W[:, i, j]) @ b.T for j, b in enumerate(dense)] for i, a in enumerate(dense)])
    P = P + np.eye(len(matrix))
    C, parts = np.linalg.inv(P), columns(list(map(len, dense)))
    for got, expected in zip((*solved, precision, *once), (C @ vectors, C, P, vectors, C @ vectors), strict=True):
        assert_allclose(got, expected, atol=1e-9)
    assert_allclose(log_root, 0.5 * np.linalg.slogdet(P)[1], rtol=1e-12)
    pairs = list(zip(dense, parts, strict=True))
    expected = [[np.sum(a * (C[one, other] @ b), axis=0) for b, other in pairs] for a, one in pairs]
    assert_allclose(covariances, np.moveaxis(expected, -1, 0), atol=1e-10)


def test_products_with_a_factor_of_levels(double_precision):
    rng = np.random.default_rng(1)
    _, one, other, both, dense = factors_of(rng, 50)
    x, w = jnp.asarray(rng.normal(size=(50, 2))), jnp.asarray(rng.normal(size=50))

    def products(As, Bs, v):
        pairs = [linalg.weighted_product(A, w, B) for A in As for B in Bs]
        return [(linalg.times(A, x), linalg.times(A, w), linalg.transposed_times(A, v[:, : len(A)])) for A in As], pairs

    factors, v = (one, other, both, dense), jnp.asarray(rng.normal(size=(3, 260, 2)))
    matrices = tuple(map(linalg.as_dense, factors))
    for got, expected in zip(*(jax.tree.leaves(jax.jit(products)(A, A, v)) for A in (factors, matrices)), strict=True):
        assert_allclose(got, expected, atol=1e-12)
    assert linalg.to_eliminate([dense, one, both]) == (1, 2)
    # 130 coordinates are factorised as a matrix.
    assert linalg.to_eliminate([dense, one, other]) == ()


def test_levels_of_new_rows_are_found(double_precision):
    keys = jnp.asarray([[3.0, -1.0], [0.0, 2.0], [3.0, 2.0], [np.nan, np.nan]])
    X = jnp.asarray([[3.0, 2.0], [0.0, -1.0], [-0.0, 2.0], [3.0, -1.0], [3.0, 2.0], [np.nan, np.nan]])
    found = np.asarray(linalg.find_levels(keys, X))
    assert found[[0, 2, 3, 4]].tolist() == [2, 1, 0, 2]
    assert (found[[1, 5]] >= 4).all()


KERNELS = {
    "intercept": pgm.On(pgm.White(0.7), [1]),
    "line": pgm.On(pgm.White(1.0), [1]) * (pgm.Constant(0.5) + pgm.On(pgm.Linear(0.3), [0])),
    "sum": pgm.On(pgm.White(0.7), [1]) + pgm.On(pgm.Linear(0.3), [0]) * pgm.On(pgm.White(1.0), [1]),
    "crossed": pgm.On(pgm.White(0.4), [2]),
    "nested": pgm.On(pgm.White(0.2), [1, 2]),
    "slopes": pgm.Constant(1.0) + pgm.On(pgm.Linear(0.5), [0]),
}


def rows(seed, n, num_levels, is_new=False):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=n), rng.integers(0, num_levels, n), rng.integers(0, 7, n)])
    if is_new:
        X[::3, 1] += 1000.0
        X[5, 2] = 99.0
    return X


@pytest.fixture(scope="module")
def fits():
    """Fits of five terms, 300 levels, by structure and by matrices."""

    def probability(y, f):
        return pgm.sigmoid((2 * y - 1) * (f[0] + f[1] + f[2] + f[3] + f[4]))

    names, means = ("slopes", "intercept", "line", "crossed", "nested"), (0.0, 0.3, 0.0, -0.2, 0.0)
    X, y = rows(0, 416, 300), np.random.default_rng(3).integers(0, 2, 416)

    def fitted(form):
        gps = [pgm.GP(KERNELS[name], mean, form=form) for name, mean in zip(names, means, strict=True)]
        return pgm.cavi(pgm.Model(pgm.likelihood(probability, num_latents=5)(), gps), X, y)

    return fitted(Auto()), fitted(pgm.Dense())


def test_crossed_terms_are_factorised_by_their_structure(fits):
    assert [type(root).__name__ for root in fits[0].posterior.roots] == ["LevelRoot"]
    assert not any(isinstance(root, linalg.LevelRoot) for root in fits[1].posterior.roots)
    assert_allclose(fits[0].elbo, fits[1].elbo, rtol=1e-10)
    X_new = rows(1, 416, 300, is_new=True)
    for X in (fits[0].X, X_new):
        assert_allclose(*(fit.predict_latent(X) for fit in fits), atol=1e-8)
    corrected = [pgm.correct(fit) for fit in fits]
    for got, expected in zip(*((one.mean, one.variance, *one.predict_latent(X_new)) for one in corrected), strict=True):
        assert_allclose(got, expected, atol=1e-8)


def test_joint_quantities_of_crossed_terms(double_precision, fits):
    X_new, x = jnp.asarray(rows(1, 9, 300, is_new=True)), jnp.cos(jnp.arange(5.0 * 416)).reshape(416, 5)

    @jax.jit
    def read(posterior):
        marginals = posterior.marginals()
        return (
            marginals, posterior.marginals_at(X_new), posterior.covariance_at(X_new), posterior.times(x),
            posterior.cross_covariance(X_new), posterior.log_normalizer(), posterior.divergence(marginals[1]),
            posterior.tempered(0.7).marginals(),
        )  # fmt: skip

    for got, expected in zip(*(jax.tree.leaves(read(fit.posterior)) for fit in fits), strict=True):
        assert_allclose(got, expected, atol=1e-7)
    posterior = fits[0].posterior
    u = jax.random.normal(jax.random.key(0), posterior.centre.shape)
    assert_allclose(posterior.standardise(posterior.centre + posterior.deviation(u)), u, atol=1e-12)
    assert_allclose(posterior.with_inverse_roots().deviation(u), posterior.deviation(u), atol=1e-12)


def test_draws_have_the_moments_of_the_fit(fits):
    fit = fits[0]
    draws = fit.latent_draws(4000, seed=1).f[0]
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    assert_allclose(mean, fit.mean, atol=5.5 * np.sqrt(fit.variance.max() / 4000))
    assert_allclose(sd, np.sqrt(fit.variance), rtol=5.5 / np.sqrt(8000))


def test_kernels_say_which_columns_have_levels():
    assert KERNELS["nested"].level_columns(3) == (1, 2)
    assert KERNELS["sum"].level_columns(3) == (1,)
    assert (KERNELS["intercept"] + KERNELS["crossed"]).level_columns(3) == ()
    assert (KERNELS["intercept"] + KERNELS["slopes"]).level_columns(3) == ()
    X = rows(0, 5, 3)
    # A sum of effects of different levels, and a difference, have no features of one level.
    assert (KERNELS["intercept"] + KERNELS["slopes"]).features(X) is None
    assert pgm.Difference(pgm.White(), [1], [2]).features(X) is None
    for name in ("intercept", "line", "sum", "nested"):
        kernel = KERNELS[name]
        F, levels = np.asarray(kernel.features(X)), X[:, kernel.level_columns(3)]
        equal = (levels[:, None] == levels[None]).all(axis=2)
        assert_allclose(kernel(X, X), np.where(equal, F @ F.T, 0.0), atol=1e-6)


def test_crossed_groups_beyond_memory_are_refused(monkeypatch, fits):
    monkeypatch.setattr(jit, "available_memory", lambda: 1e6)
    X = rows(4, 400, 290)
    with pytest.raises(MemoryError, match=r"of the smaller groups and other terms .* need .* Leave out a term"):
        pgm.cavi(fits[0].model, X, np.zeros(400))
    # One group needs none, and neither do groups of latents that nothing couples, or smooth functions by group.
    pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(KERNELS["intercept"])), rows(4, 20_000, 2_000), np.zeros(20_000))
    curves = pgm.Model(pgm.Bernoulli(), pgm.GP(KERNELS["intercept"] * pgm.On(pgm.RBF(), [0])))
    assert curves.inputs(X).levels == (None,)


def test_balanced_groups_are_learned_as_in_closed_form():
    rng = np.random.default_rng(5)
    y = (0.7 * rng.normal(size=(300, 1)) + 0.4 * rng.normal(size=(300, 4))).ravel()
    X, by_group = np.repeat(np.arange(300.0), 4)[:, None], y.reshape(300, 4)
    result = pgm.fit(pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.White(), mean=pgm.Fixed(0.0))), X, y, correct=False)
    noise = by_group.var(axis=1).sum() * 4 / 900
    assert_allclose(result.fit.values["scale"] ** 2, noise, rtol=1e-4)
    assert_allclose(result.fit.values["variance"], np.mean(by_group.mean(axis=1) ** 2) - noise / 4, rtol=1e-3)
    assert result.fit.num_evaluations < 20
    assert result.num_iterations == 1
