"""User-defined kernels at new inputs: indefinite covariance matrices are rejected, valid ones accepted.

The arc kernel is exp(-d²/2) of the arc length d on a circle of length 4. At 0, 1 and 2 its matrix has a root; with 3
it has the eigenvalue 1 - 2 exp(-1/2) + exp(-2) = -0.0777, and no prior has such covariances.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm

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


def test_nuts_says_what_to_do_about_an_indefinite_kernel():
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


# By kernel: the row that is refused, and the range of its column.
INVALID = [
    (looked_up, -1.0, "from 0 to 2 there; got -1"),
    (looked_up, 3.0, "from 0 to 2 there; got 3"),
    (looked_up, 1.5, "from 0 to 2 there; got 1.5"),
    (moved, 0.0, "from 1 to 3 there; got 0"),
    (moved, 4.0, "from 1 to 3 there; got 4"),
    (each_pair, -1.0, "from 0 to 2 there; got -1"),
    (each_pair, 3.0, "from 0 to 2 there; got 3"),
    (taken, -1.0, "from 0 to 2; -1 in row 2 gives -1"),
    (taken, 2.6, "from 0 to 2; 2.6 in row 2 gives 3"),
    (Table(pgm.Fixed(TABLE)), -1.0, "from 0 to 2 there; got -1"),
]


@pytest.mark.parametrize(("kernel", "value", "words"), INVALID)
def test_a_row_outside_a_kernels_table_is_refused_with_column_and_range(kernel, value, words):
    rows = np.array([[1.0], [2.0], [value]])
    for call in (
        lambda: pgm.cavi(model_of(kernel), rows, Y, progress=False),
        lambda: pgm.prior_predictive(model_of(kernel), rows, num_draws=2),
        lambda: pgm.cavi(model_of(kernel), rows[:2], Y[:2], progress=False).predict_latent(rows),
    ):
        with pytest.raises(ValueError, match=f"column 0 of X.*must (have|give) whole numbers {words}") as caught:
            call()
        assert "row 2" in str(caught.value)
        assert len(str(caught.value)) < 500


def test_a_frames_column_is_named_where_its_values_are_no_entries_of_a_table():
    frame = pd.DataFrame({"t": [0.1, 0.2, 0.3], "site": [0, -1, 2]})
    with pytest.raises(ValueError, match=r"column 'site' of X, which must have .* from 0 to 2 there; got -1 in row 1"):
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
    with pytest.raises(ValueError, match=r"whole numbers from 0 to 29 there; got 30 in row 2") as caught:
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
