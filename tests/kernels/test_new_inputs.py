"""User-defined kernels at new inputs: indefinite covariance matrices are rejected, valid ones accepted.

The arc kernel is exp(-d²/2) of the arc length d on a circle of length 4. At 0, 1 and 2 its matrix has a root; with 3
it has the eigenvalue 1 - 2 exp(-1/2) + exp(-2) = -0.0777, and no prior has such covariances.
"""

import jax
import jax.numpy as jnp
import numpy as np
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


@pytest.mark.parametrize("rows", [[[0.0], [3.0]], [[-4.0], [1.0]]])
def test_an_index_beyond_a_kernels_table_is_refused(rows):
    vi = pgm.cavi(model_of(pgm.On(looked_up, [0])), X, Y, progress=False)
    with pytest.raises(ValueError, match=r"indexes an array out of bounds for some row of X_new"):
        vi.predict_latent(rows)
    with pytest.raises(ValueError, match="for some row of X:"):
        pgm.cavi(model_of(looked_up), rows, Y[:2], progress=False)
    # Of the table itself: K (K + σ² I)^-1 y, and from the end as NumPy counts.
    expected = TABLE @ np.linalg.solve(TABLE + 1e-4 * np.eye(3), Y)
    assert np.allclose(vi.predict_latent([[0.0], [1.0], [-1.0]])[0][:, 0], expected, atol=1e-9)


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
