"""The certificate of inducing inputs against dense matrices and exact evidences."""

import jax
import numpy as np
import pytest

import pgmodels as pgm

RNG = np.random.default_rng(6)
N = 70
X = np.sort(RNG.uniform(-3.0, 3.0, N))[:, None]
NOISE = 0.05 + 0.4 * (X[:, 0] / 3.0) ** 2
KERNEL = {"variance": 1.7, "lengthscale": 0.6}
MEAN = 0.8
K = 1.7 * np.exp(-0.5 * ((X - X.T) / 0.6) ** 2)
Y = MEAN + np.linalg.cholesky(K + 1e-9 * np.eye(N)) @ RNG.normal(size=N) + np.sqrt(NOISE) * RNG.normal(size=N)
Z = X[::5]


@pgm.likelihood(support=pgm.Given(pgm.Real(), pgm.Positive()))
def known_noise(y, f):
    return pgm.normal_pdf(y[0], f, pgm.sqrt(y[1]))


def model(likelihood, form, size=1):
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(**KERNEL), mean=MEAN, size=size, form=form))


def log_normal(r, C):
    return -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2.0 * np.pi * C)[1])


def low_rank(Z):
    across = 1.7 * np.exp(-0.5 * ((Z - X.T) / 0.6) ** 2)
    return across.T @ np.linalg.solve(1.7 * np.exp(-0.5 * ((Z - Z.T) / 0.6) ** 2), across)


def upper_bounds(Q, z, D):
    """Passerello's U minus the ELBO, and the version with the weighted trace, from dense matrices."""
    left_out = np.diagonal(K - Q)
    weighted = np.sum(left_out / D)
    quadratic = z @ np.linalg.solve(Q + np.diag(D), z)
    larger = [np.diag(D + left_out.sum()), np.diag(D * (1.0 + weighted))]
    return [0.5 * (weighted + quadratic - z @ np.linalg.solve(Q + C, z)) for C in larger]


def test_the_evidence_of_regression_with_known_noise_is_within_the_bounds():
    """HGPR: the log evidence is between the ELBO and U, whose two versions are as written out."""
    gaps = []
    for count in (5, 2, 1):
        Z, y = X[::count], np.column_stack([Y, NOISE])
        result = pgm.cavi(model(known_noise(), pgm.Inducing(Z)), X, y)
        gap = pgm.inducing_gap(result)
        exact, Q = log_normal(Y - MEAN, K + np.diag(NOISE)), low_rank(X[::5])
        # The bound of an optimal q(u), Titsias 2009.
        if count == 5:
            elbo = log_normal(Y - MEAN, Q + np.diag(NOISE)) - 0.5 * np.sum(np.diagonal(K - Q) / NOISE)
            np.testing.assert_allclose(result.elbo, elbo, rtol=1e-8)
            np.testing.assert_allclose(gap, upper_bounds(Q, Y - MEAN, NOISE), rtol=1e-5)
        assert result.elbo <= exact <= result.elbo + gap.upper + 1e-6
        assert gap.upper == min(gap.by_trace, gap.by_weighted_trace)
        gaps.append(gap.upper)
    # All rows leave no residual variance.
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3


@pytest.mark.slow
def test_latents_with_sites_add_up_and_repeated_rows_are_summed():
    classes = np.random.default_rng(1).integers(0, 3, 2 * N)
    twice = np.concatenate([X, X])
    result = pgm.cavi(model(pgm.LogisticSoftmax(3), pgm.Inducing(Z), 3), twice, classes)
    gap = pgm.inducing_gap(result)
    expected = np.zeros(2)
    for h, w in zip(np.asarray(result.sites.potential).T, np.asarray(result.sites.precision).T, strict=True):
        h, w = h[:N] + h[N:], w[:N] + w[N:]
        expected += upper_bounds(low_rank(Z), h / w - MEAN, 1.0 / w)
    np.testing.assert_allclose(gap[2:], expected, rtol=1e-5)
    # The gain of the log normaliser with the exact prior, at these sites.
    with jax.enable_x64(True):
        dense = model(pgm.LogisticSoftmax(3), pgm.Dense(), 3).prior(twice)
        gain = dense.condition(result.sites).log_normalizer() - result.posterior.log_normalizer()
    assert 0.0 < float(gain) < gap.upper


@pytest.mark.slow
def test_automatic_inputs_are_certified():
    labels = (np.random.default_rng(2).random(N) < 1.0 / (1.0 + np.exp(-Y))).astype(float)
    gap = pgm.inducing_gap(pgm.cavi(model(pgm.Bernoulli(), pgm.Inducing("auto")), X, labels))
    # Selection ends where half of the weighted trace is below 0.05 nats.
    assert gap.upper < 1.0
    # Of a result of fit, which is corrected, too.
    fitted = pgm.fit(model(pgm.Gaussian(0.5), pgm.Inducing(30)), X, Y, correct=True)
    gap = pgm.inducing_gap(fitted)
    scale, variance, lengthscale = (float(fitted.fit.values[name]) for name in ("scale", "variance", "lengthscale"))
    C = variance * np.exp(-0.5 * ((X - X.T) / lengthscale) ** 2) + scale**2 * np.eye(N)
    assert fitted.elbo - 1e-6 <= log_normal(Y - float(fitted.fit.values["mean"]), C) <= fitted.elbo + gap.upper + 1e-6


def test_what_has_no_such_gap_is_refused():
    labels = (Y > MEAN).astype(float)
    with pytest.raises(ValueError, match=r"result has no inducing inputs.*pgm\.Inducing"):
        pgm.inducing_gap(pgm.cavi(model(pgm.Bernoulli(), pgm.Dense()), X, labels))
    with pytest.raises(ValueError, match=r"result must be what cavi.*got"):
        pgm.inducing_gap({})

    @pgm.likelihood(support=pgm.Real())
    def sums(y, f):
        return pgm.normal_pdf(y, f[0] + f[1], 0.5)

    gps = [pgm.GP(pgm.RBF(**KERNEL), form=pgm.Inducing(Z)), pgm.GP(pgm.RBF(1.0, 2.0), form=pgm.Inducing(Z))]
    with pytest.raises(ValueError, match="one site for each latent"):
        pgm.inducing_gap(pgm.cavi(pgm.Model(sums(), gps), X, Y))
