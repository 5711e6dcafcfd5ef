"""The kernel of an output index: covariances by hand, learning, names of outputs, and what it refuses.

Its regression of three outputs with unequal rows is in test_cases.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.kernels.columns import RADIUS, Coregion, Sphere

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
    assert pgm.Difference(Coregion(3), [0], [1]).reads(2, "levels") == (0, 1)
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


def test_invalid_uses_of_coregion_are_refused():
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


# User-defined kernels at new inputs: indefinite covariance matrices are rejected, valid ones accepted.
# The arc kernel is exp(-d²/2) of the arc length d on a circle of length 4. At 0, 1 and 2 its matrix has a root; with
# 3 it has the eigenvalue 1 - 2 exp(-1/2) + exp(-2) = -0.0777, and no prior has such covariances.


X = np.array([[0.0], [1.0], [2.0]])
Y = np.array([0.3, -0.2, 0.5])
NEW = np.array([[3.0]])
NOISE = pgm.Gaussian(pgm.Fixed(0.01))
TABLE = np.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]])


def arc(X, Z):
    d = jnp.abs(X[:, None, 0] - Z[None, :, 0]) % 4.0
    return jnp.exp(-0.5 * jnp.minimum(d, 4.0 - d) ** 2)


def looked_up(X, Z):
    return jnp.asarray(TABLE)[X[:, 0].astype(int)[:, None], Z[:, 0].astype(int)[None]]


def of_root(X, Z):
    return pgm.RBF(1.0, 1.0)(jnp.sqrt(X), jnp.sqrt(Z))


def smooth(X, Z):
    return jnp.exp(-0.5 * jnp.sum((X[:, None] - Z[None]) ** 2, axis=-1))


def model_of(kernel, form=None):
    return pgm.Model(NOISE, pgm.GP(kernel) if form is None else pgm.GP(kernel, form=form))


def test_a_kernel_that_is_no_covariance_at_new_inputs_is_refused_by_every_result():
    vi = pgm.cavi(model_of(arc), X, Y, progress=False)
    draws = pgm.gibbs(model_of(arc), X, Y, num_samples=4, num_warmup=4, num_chains=1, progress=False)
    for result in (vi, draws):
        for call in (result.predict_latent, result.draw_latents):
            with pytest.raises(ValueError, match=r"arc\) is not a covariance function: at row 1 .*\[3.0\]"):
                call(np.array([[0.5], [3.0]]))
        # 0, 1 and 2 again, and what is between them, make no negative variance.
        assert (result.predict_latent(X)[1] > 0).all()
    # Of one row, each of the other three has a variance; together they have none.
    one = pgm.cavi(model_of(arc), X[:1], Y[:1], progress=False)
    assert (one.predict_latent(X + 1.0)[1] > 0).all()
    with pytest.raises(ValueError, match=r"the matrix at X_new has the eigenvalue -0\.1"):
        one.draw_latents(X + 1.0)


def test_a_kernel_that_is_no_covariance_of_data_and_inducing_inputs_is_refused():
    every = np.vstack([X, NEW])
    with pytest.raises(ValueError, match="at row 3 of X"):
        pgm.cavi(model_of(arc, pgm.Inducing(X)), every, np.append(Y, 0.1), progress=False)


def test_nuts_refuses_an_indefinite_kernel_with_a_remedy():
    with pytest.raises(ValueError, match=r"eigenvalue is -0\.0777.*add a White kernel"):
        pgm.nuts(model_of(arc), np.vstack([X, NEW]), np.append(Y, 0.1), progress=False)


def test_a_kernel_that_is_not_a_number_somewhere_is_refused_there():
    vi = pgm.cavi(model_of(of_root), X, Y, progress=False)
    with pytest.raises(ValueError, match=r"not finite at row 1 of X_new, \[-3.0\]"):
        vi.predict_latent([[1.0], [-3.0]])
    assert np.isfinite(vi.predict_latent([[1.0], [4.0]])[1]).all()


def moved(X, Z):
    """Entries by columns that count from 1."""
    return jnp.asarray(TABLE)[X[:, 0].astype(int) - 1][:, Z[:, 0].astype(int) - 1]


doubled = jax.custom_vjp(lambda x: 2.0 * x)
doubled.defvjp(lambda x: (2.0 * x, None), lambda _, cotangent: (2.0 * cotangent,))


def with_own_derivative(X, Z):
    return doubled(looked_up(X, Z))


def each_pair(X, Z):
    entry = lambda x, z: jnp.asarray(TABLE)[x[0].astype(int), z[0].astype(int)]  # noqa: E731
    return jax.vmap(lambda x: jax.vmap(lambda z: entry(x, z))(Z))(X)


def taken(X, Z):
    rows = jnp.take(jnp.asarray(TABLE), jnp.round(X[:, 0]).astype(int), axis=0)
    return jnp.take(rows, jnp.round(Z[:, 0]).astype(int), axis=1)


class Table(pgm.Kernel):
    entries: pgm.Parameter

    def __call__(self, X, Z):
        return self.entries.value[X[:, 0].astype(int)][:, Z[:, 0].astype(int)]

    def diagonal(self, X):
        return self.entries.value[X[:, 0].astype(int), X[:, 0].astype(int)]


# By kernel: the row that is refused, and the entry that it would be.
INVALID = [
    (looked_up, -1.0, "entry -1"), (looked_up, 3.0, "entry 3"), (moved, 0.0, "entry -1"), (moved, 4.0, "entry 3"),
    (each_pair, -1.0, "entry -1"), (each_pair, 3.0, "entry 3"), (taken, -1.0, "entry -1"), (taken, 2.6, "entry 3"),
    (Table(pgm.Fixed(TABLE)), -1.0, "entry -1"), (with_own_derivative, -1.0, "entry -1"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "value", "words"), INVALID)
def test_a_row_outside_a_kernels_table_is_refused_with_row_and_range(kernel, value, words):
    rows = np.array([[1.0], [2.0], [value]])
    for call in (
        lambda: pgm.cavi(model_of(kernel), rows, Y, progress=False),
        lambda: pgm.prior_predictive(model_of(kernel), rows, num_draws=2),
        lambda: pgm.cavi(model_of(kernel), rows[:2], Y[:2], progress=False).predict_latent(rows),
    ):
        with pytest.raises(ValueError, match=f"{words} of an array of 3 entries at row 2 of X") as caught:
            call()
        assert f"column 0 is {value:g}. Entries are 0 to 2." in str(caught.value)
        assert len(str(caught.value)) < 500


def test_a_frames_column_is_named_where_its_values_are_no_entries_of_a_table():
    frame = pd.DataFrame({"t": [0.1, 0.2, 0.3], "site": [0, -1, 2]})
    with pytest.raises(ValueError, match=r"entry -1 of an array of 3 entries at row 1 of X, where .* 'site' is -1"):
        pgm.cavi(model_of(pgm.On(looked_up, ["site"]) * pgm.On(pgm.RBF(), ["t"])), frame, Y, progress=False)


@pytest.mark.parametrize(
    "index",
    [
        lambda x: jnp.clip(x.astype(int), 0, 2),
        lambda x: x.astype(int) % 3,
        lambda x: jnp.where(x < 0, 0.0, jnp.floor(x)).astype(int),
    ],
    ids=["clipped", "wrapped", "chosen"],
)
def test_an_index_that_the_kernel_makes_valid_itself_is_accepted(index):
    def kernel(X, Z):
        return jnp.asarray(TABLE)[index(X[:, 0])][:, index(Z[:, 0])]

    rows = np.array([-1.0, 1.5, 0.0])
    with jax.enable_x64(True):
        places = np.asarray(index(jnp.asarray(rows)))
    K = TABLE[np.ix_(places, places)]
    expected = K @ np.linalg.solve(K + 1e-4 * np.eye(3), Y)
    result = pgm.cavi(model_of(kernel, pgm.Dense()), rows[:, None], Y, progress=False)
    assert np.allclose(result.mean[:, 0], expected, atol=1e-6)


def test_a_table_that_is_indexed_by_a_difference_of_rows_may_count_from_its_end():
    # A circulant matrix.
    around = np.array([2.0, 0.5, 0.5])

    def kernel(X, Z):
        return jnp.asarray(around)[X[:, 0].astype(int)[:, None] - Z[:, 0].astype(int)[None]]

    K = around[(np.arange(3)[:, None] - np.arange(3)) % 3]
    expected = K @ np.linalg.solve(K + 1e-4 * np.eye(3), Y)
    assert np.allclose(pgm.cavi(model_of(kernel), X, Y, progress=False).mean[:, 0], expected, atol=1e-9)


def test_models_and_messages_have_no_long_arrays():
    kernel = Table(pgm.Fixed(np.eye(30) + 0.5))
    model = pgm.Model(pgm.Ordinal(3), pgm.GP(kernel))
    assert "Fixed(<30 x 30 numbers from 0.5 to 1.5>)" in repr(model)
    assert len(str(model)) < 500
    rows = np.array([[0.0], [29.0], [30.0]])
    with pytest.raises(ValueError, match=r"entry 30 of an array of 30 entries at row 2 of X") as caught:
        pgm.cavi(model_of(kernel), rows, Y, progress=False)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "call",
    [
        lambda many: pgm.RBF(1.0, many),
        lambda many: pgm.RBF(1.0, many.tolist()),
        lambda many: pgm.Fixed(many) and pgm.RBF(pgm.Fixed(many)).check(1),
        lambda many: pgm.Parameter(many, prior=dist.HalfNormal(many)) and pgm.RBF(dist.HalfNormal(many)),
        lambda many: pgm.Model(many, pgm.GP(pgm.RBF())),
        lambda many: pgm.GP(pgm.RBF(), size=many.tolist()),
        lambda many: pgm.GP(many.tolist()),
        lambda many: pgm.Inducing([many.tolist(), [1.0]]),
        lambda many: pgm.cavi(model_of(pgm.RBF()), X, Y).predict(X).quantiles(many.tolist()),
        lambda many: pgm.cavi(model_of(pgm.RBF()), X, Y, max_iterations=many.tolist()),
        lambda many: pgm.On(pgm.RBF(), many.tolist()),
    ],
)
def test_messages_abbreviate_long_arguments(call):
    with pytest.raises(ValueError, match=r"\w") as caught:
        call(-1.0 - np.arange(5000.0))
    assert len(str(caught.value)) < 600


# The low-rank form neglects variances of 1e-10 at the data, which are more far from them.
@pytest.mark.parametrize(("form", "off"), [(pgm.Dense(), 1e-7), (None, 3e-5)], ids=["dense", "cheapest"])
def test_a_covariance_that_rounding_hides_is_not_refused(form, off):
    # 12 rows within a lengthscale: K is singular to double precision, and new rows are far outside.
    near = np.linspace(0.0, 0.9, 12)[:, None]
    vi = pgm.cavi(model_of(smooth, form), near, np.sin(near[:, 0]), progress=False)
    far = np.linspace(-4.0, 4.0, 33)[:, None]
    variance = vi.predict_latent(far)[1]
    K = np.exp(-0.5 * (near - near.T) ** 2) + 1e-4 * np.eye(12)
    across = np.exp(-0.5 * (far - near.T) ** 2)
    assert np.allclose(variance[:, 0], 1.0 - np.sum(across * np.linalg.solve(K, across.T).T, axis=1), atol=off)
    assert vi.draw_latents(far, 10).shape == (10, 33, 1)


def test_kernels_called_by_hand_compute_in_double_precision():
    t = 1.7e9 + np.array([[-60.0], [0.0], [6.0]])
    expected = np.exp(-0.5 * (t - t.T) ** 2 / 100.0)
    for kernel in (pgm.RBF(1.0, 10.0), pgm.On(pgm.RBF(1.0, 10.0), [0]) * pgm.Constant(1.0)):
        assert np.allclose(np.asarray(kernel(t, t)), expected, rtol=1e-12, atol=0)
    assert np.asarray(pgm.Linear(1.0).diagonal(t)).dtype == np.float64
    # Within what JAX traces it is of the caller's precision.
    assert jax.jit(lambda x: pgm.RBF(1.0, 10.0)(x, x))(jnp.zeros((2, 1))).dtype == jnp.zeros(1).dtype


# Kernels of places on the earth: distances in km, positive definite, and the order of the columns.


PLACES = {"Berlin": (13.40, 52.52), "Paris": (2.35, 48.86), "Quito": (-78.47, -0.18), "Suva": (178.44, -18.14)}
SPHERE_X = np.array(list(PLACES.values()))


def chords(X):
    """By the law of haversines, which no coordinate of a place enters."""
    longitude, latitude = np.deg2rad(X).T
    half = np.sin(0.5 * (latitude[:, None] - latitude)) ** 2
    half = half + np.cos(latitude[:, None]) * np.cos(latitude) * np.sin(0.5 * (longitude[:, None] - longitude)) ** 2
    return 2.0 * RADIUS * np.sqrt(half)


def test_distances_are_chords_in_km():
    kernel = Sphere(pgm.RBF(2.0, 3000.0))
    np.testing.assert_allclose(
        kernel(SPHERE_X, SPHERE_X), 2.0 * np.exp(-0.5 * (chords(SPHERE_X) / 3000.0) ** 2), rtol=1e-10
    )
    np.testing.assert_allclose(kernel.diagonal(SPHERE_X), 2.0)
    # Berlin to Paris is 878 km over the surface.
    assert chords(SPHERE_X)[0, 1] == pytest.approx(878.0, rel=0.01)
    # Full turns change nothing.
    np.testing.assert_allclose(
        kernel(SPHERE_X + np.array([360.0, 0.0]), SPHERE_X), kernel(SPHERE_X, SPHERE_X), rtol=1e-10
    )


def test_it_is_positive_definite_over_the_whole_earth():
    rng = np.random.default_rng(0)
    places = np.column_stack([rng.uniform(-180, 180, 200), np.rad2deg(np.arcsin(rng.uniform(-1, 1, 200)))])
    for kernel in (pgm.RBF(1.0, 8000.0), pgm.Matern52(1.0, 20000.0)):
        assert np.linalg.eigvalsh(Sphere(kernel)(places, places)).min() > -1e-9


def test_sphere_of_named_columns_has_the_median_distance_as_lengthscale(tmp_path):
    frame = pd.DataFrame({"year": [2001.0, 2002.0, 2003.0, 2004.0], "lon": SPHERE_X[:, 0], "lat": SPHERE_X[:, 1]})
    kernel = pgm.On(Sphere(pgm.Matern32()), ["lon", "lat"]) + pgm.On(pgm.RBF(1.0, 2.0), ["year"])
    result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), frame, [0, 1, 1, 0])
    assert float(result.model.gps[0].kernel.left.kernel.kernel.lengthscale.value) == pytest.approx(
        np.median(chords(SPHERE_X)[np.triu_indices(4, 1)])
    )
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.model == result.model
    np.testing.assert_allclose(loaded.predict_latent(frame), result.predict_latent(frame))
    with pytest.raises(ValueError, match=r"X_new must have longitudes and then latitudes.*got 48.86 and 178.4"):
        result.predict(frame.assign(lon=48.86, lat=178.4))


def test_invalid_uses_of_sphere_are_refused():
    with pytest.raises(ValueError, match=r"longitudes and then latitudes in degrees.*in row 3"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(Sphere(pgm.RBF()))), SPHERE_X[:, ::-1], [0, 1, 1, 0])
    with pytest.raises(ValueError, match=r"Sphere reads longitude and latitude; got 3 column"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(Sphere(pgm.RBF()))), np.eye(3), [0, 1, 1])
    with pytest.raises(ValueError, match="one lengthscale, in km"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(Sphere(pgm.RBF(1.0, [1.0, 2.0])))), SPHERE_X, [0, 1, 1, 0])


def test_sphere_in_a_formula():
    frame = pd.DataFrame({"y": [1.0, 2.0, 1.5, 0.5], "lon": SPHERE_X[:, 0], "lat": SPHERE_X[:, 1]})
    regression = pgm.formula("y ~ gp(lon, lat, sphere=True)", frame)
    kernel = regression.model.gps[1].kernel.kernel
    assert isinstance(kernel, Sphere)
    assert 500.0 < np.exp(float(kernel.kernel.lengthscale.prior.loc)) < 13000.0
