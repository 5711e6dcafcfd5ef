"""The kernel of an output index: covariances by hand, learning, names of outputs, and what it refuses.

Its regression of three outputs with unequal rows is in test_cases.py.
"""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.kernels.columns import Coregion

Fixed = pgm.Fixed


def model(coregion, lengthscale=0.3, columns=(0, 1), likelihood=None):
    x, output = columns
    kernel = pgm.On(pgm.RBF(Fixed(1.0), lengthscale), [x]) * pgm.On(coregion, [output])
    return pgm.Model(likelihood or pgm.Gaussian(0.1), pgm.GP(kernel, mean=Fixed(0.0)))


def correlations(B):
    scale = np.sqrt(np.diag(B))
    return (B / scale / scale[:, None])[np.triu_indices(len(B), 1)]


def test_it_is_the_covariance_of_the_outputs():
    rng = np.random.default_rng(0)
    W, kappa, (x, z) = rng.normal(size=(4, 2)), rng.gamma(2.0, size=4), rng.integers(0, 4, (2, 9))
    kernel = Coregion(4, 2, W, kappa)
    B = np.array([[W[i] @ W[j] + kappa[i] * (i == j) for j in range(4)] for i in range(4)])
    np.testing.assert_allclose(kernel(x[:, None], z[:, None]), B[np.ix_(x, z)], rtol=1e-14)
    np.testing.assert_allclose(kernel.diagonal(x[:, None]), np.diag(B)[x], rtol=1e-14)
    assert np.isnan(kernel(np.array([[0.5], [-1.0], [4.0]]), x[:1, None])).all()


def test_outputs_alone_are_as_many_latents():
    """100 rows of three outputs, against the normal mean of each group."""
    rng = np.random.default_rng(1)
    output = rng.integers(0, 3, 100)
    y = rng.normal(size=100)
    coregion = Coregion(3, 2)
    result = pgm.cavi(pgm.Model(pgm.Gaussian(0.4), pgm.GP(coregion, mean=0.0)), output[:, None], y)
    assert result.prior.groups[0].rank <= 8
    members = np.eye(3)[output]
    precision = np.linalg.inv(np.asarray(coregion.covariance)) + members.T @ members / 0.16
    mean, variance = result.predict_latent([[0], [1], [2]])
    np.testing.assert_allclose(mean[:, 0], np.linalg.solve(precision, members.T @ y / 0.16), rtol=1e-6)
    np.testing.assert_allclose(variance[:, 0], np.diag(np.linalg.inv(precision)), rtol=1e-6)


@pytest.mark.slow
def test_fit_learns_signs_and_correlations():
    """Against the covariances of the latents themselves, whitened over x; no start value is negative."""
    rng = np.random.default_rng(5)
    x = np.linspace(0.0, 12.0, 70)
    root = np.linalg.cholesky(np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2) + 1e-9 * np.eye(70))
    shared = rng.normal(size=(70, 2)) @ np.array([[1.0, -0.9, 0.5], [0.0, 0.4, -0.9]])
    whitened = shared + 0.3 * rng.normal(size=(70, 3))
    y = root @ whitened + 0.05 * rng.normal(size=(70, 3))
    X = np.column_stack([np.tile(x, 3), np.repeat(np.arange(3), 70)])
    fitted = pgm.fit(model(Coregion(3, 2)), X, y.T.ravel())
    directly = correlations(whitened.T @ whitened / 70)
    assert (np.sign(directly) == [-1, 1, -1]).all()
    # Both are of the same 70 draws; the noise adds some hundredths.
    learned = correlations(np.asarray(fitted.model.gps[0].kernel.right.kernel.covariance))
    np.testing.assert_allclose(learned, directly, atol=0.1)


def test_start_values_differ_between_outputs_and_between_columns():
    for num_outputs, rank in ((2, 1), (3, 1), (3, 3), (5, 2)):
        start = Coregion(num_outputs, rank).loadings.value
        assert all(len(set(column)) == num_outputs for column in start.T)
        assert np.linalg.matrix_rank(start) == rank
        assert (np.sum(start**2, axis=1) <= 1.0).all()
    # A prior has its centre at 0, where the gradient in the loadings is 0.
    kernel = Coregion(3, 1, dist.Normal(0.0, 1.0), dist.Gamma(2.0, 4.0))
    np.testing.assert_array_equal(kernel.loadings.value, Coregion(3).loadings.value)
    assert kernel.loadings.prior.shape() == (3, 1)
    assert kernel.kappa.prior.shape() == (3,)


def test_opposite_outputs_are_no_saddle():
    """One is the other with the opposite sign: loadings that start equal would fall to 0 together."""
    x = np.linspace(0.0, 1.0, 12)
    X = np.column_stack([np.tile(x, 2), np.repeat([0, 1], 12)])
    y = np.concatenate([np.sin(6 * x), -np.sin(6 * x)]) + 0.1 * np.random.default_rng(0).normal(size=24)
    options = {"lengthscale": Fixed(0.4), "likelihood": pgm.Gaussian(Fixed(0.1))}
    kappa = Fixed(0.01)
    fitted = pgm.fit(model(Coregion(2, kappa=kappa), **options), X, y)
    first, second = fitted.model.gps[0].kernel.right.kernel.loadings.value[:, 0]
    assert first * second < -0.5
    # The best of starts with both signs.
    starts = [pgm.fit(model(Coregion(2, 1, [[1.0], [sign]], kappa), **options), X, y).elbo for sign in (0.9, -0.9)]
    assert fitted.elbo == pytest.approx(max(starts), abs=1e-4)


def frame(n=6):
    metals = np.array(["zinc", "copper", "lead"] * n)
    rng = np.random.default_rng(2)
    return pd.DataFrame({"metal": metals, "x": rng.random(len(metals)), "y": rng.normal(size=len(metals))})


def test_outputs_by_name_in_a_data_frame(tmp_path):
    table = frame()
    of_names = model(Coregion(3, loadings=[[1.0], [0.8], [-0.5]]), columns=("x", "metal"))
    result = pgm.cavi(of_names, table[["metal", "x"]], table.y)
    codes = table.metal.map({"copper": 0, "lead": 1, "zinc": 2})
    numbered = model(Coregion(3, loadings=[[1.0], [0.8], [-0.5]]))
    assert result.elbo == pytest.approx(pgm.cavi(numbered, np.column_stack([table.x, codes]), table.y).elbo, rel=1e-12)
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.model == result.model
    np.testing.assert_allclose(loaded.predict_latent(table), result.predict_latent(table))
    with pytest.raises(ValueError, match=r"X_new has 'tin' in row 0, column 'metal', which is not a level of the"):
        result.predict_latent(table.assign(metal="tin"))
    with pytest.raises(ValueError, match=r"X must have an output from 0 to 1.*got 2 in row 0. Set num_outputs"):
        pgm.cavi(model(Coregion(2), columns=("x", "metal")), table[["metal", "x"]], table.y)
    # Two rows whose difference is that of two outputs.
    pairs = np.array([[0.0, 1.0], [2.0, 1.0]])
    assert pgm.Difference(Coregion(3), [0], [1]).indexes(2) == (0, 1)
    B = np.asarray(Coregion(3).covariance)
    np.testing.assert_allclose(
        pgm.Difference(Coregion(3), [0], [1]).diagonal(pairs), [B[i, i] + B[1, 1] - 2 * B[i, 1] for i in (0, 2)]
    )


def test_repr_is_what_one_types():
    kernel = Coregion(2, 1, [[1.0], [-0.5]], Fixed(0.1))
    assert repr(kernel) == "Coregion(2, rank=1, loadings=[[1.0], [-0.5]], kappa=Fixed([0.1, 0.1]))"
    assert eval(repr(kernel), {"Coregion": Coregion, "Fixed": Fixed}) == kernel


def test_amplitudes_are_scaled_together():
    on = pgm.On(Coregion(2, loadings=[[1.0], [-0.5]], kappa=0.2), [1])
    x = np.array([[0.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(on.scaled(9.0)(x, x), 9.0 * np.asarray(on(x, x)), rtol=1e-14)
    half_fixed = pgm.On(Coregion(2, kappa=Fixed(0.2)), [1])
    np.testing.assert_array_equal(half_fixed.scaled(9.0)(x, x), half_fixed(x, x))


def test_what_it_cannot_be_is_named():
    for arguments in ((0,), (2.0,), (True,), (3, 0)):
        with pytest.raises(ValueError, match="of Coregion must be a whole number >= 1"):
            Coregion(*arguments)
    with pytest.raises(ValueError, match=r"loadings of Coregion\(3, rank=2\) must have shape \(3, 2\); got \(3, 1\)"):
        Coregion(3, 2, np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"loadings of Coregion\(3, rank=1\) must have shape \(3, 1\); got \(\)"):
        Coregion(3, loadings=1.0)
    with pytest.raises(ValueError, match=r"kappa of Coregion\(3, rank=1\) must have shape \(3,\); got \(2,\)"):
        Coregion(3, kappa=[0.1, 0.2])
    with pytest.raises(ValueError, match="kappa of Coregion must be positive"):
        Coregion(3, kappa=-1.0)
    X = np.array([[0.1, 0.0], [0.2, 1.5]])
    with pytest.raises(ValueError, match=r"X must have an output from 0 to 2.*got 1.5 in row 1"):
        pgm.cavi(model(Coregion(3)), X, [0.0, 1.0])
    sparse = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.On(Coregion(3), [1]), form=pgm.Inducing(2)))
    with pytest.raises(ValueError, match="standardise=True would change column 1 of X, whose values are numbers of"):
        pgm.svi(sparse, pgm.ArrayRows([[0.1, 0.0], [0.2, 2.0]], [0.0, 1.0], standardise=True))
    with pytest.raises(ValueError, match=r"Coregion\(3, rank=1\) reads one column, the number of the output; got 2"):
        pgm.cavi(pgm.Model(pgm.Gaussian(0.1), pgm.GP(Coregion(3))), X, [0.0, 1.0])


@pytest.mark.slow
def test_covariances_by_gibbs_are_those_by_nuts():
    rng = np.random.default_rng(3)
    x = rng.uniform(0.0, 3.0, 24)
    X = np.column_stack([x, np.arange(24) % 2])
    y = np.where(X[:, 1] == 0, 1.0, -0.7) * np.sin(2 * x) + 0.3 * rng.normal(size=24)
    coregion = Coregion(2, 1, dist.Normal(0.0, 1.0), Fixed(0.1))
    priors = model(coregion, Fixed(0.8), likelihood=pgm.Gaussian(Fixed(0.3)))
    covariances = {}
    for name, engine, options in (("gibbs", pgm.gibbs, {}), ("nuts", pgm.nuts, {"target_accept": 0.95})):
        draws = engine(priors, X, y, num_samples=2000, num_warmup=1000, num_chains=2, seed=0, **options)
        loadings = draws.hyperparameters["loadings"][..., 0]
        # The sign of the loadings is arbitrary, that of their product is not.
        covariances[name] = loadings[..., 0] * loadings[..., 1]
    means = {name: values.mean() for name, values in covariances.items()}
    # Some 400 effective draws each of a standard deviation of 0.6: four standard errors.
    assert means["gibbs"] == pytest.approx(means["nuts"], abs=4 * 0.6 * np.sqrt(2 / 400))
    assert means["nuts"] < -0.2
