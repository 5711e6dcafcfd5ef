"""The expansion about q's mean: Laplace's approximation, against scikit-learn, Newton's method and dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import pgmodels as pgm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = (X[:, 0] + 0.5 * RNG.normal(size=40) > -0.7).astype(float)
LENGTHSCALES = np.array([0.7, 1.9])


def kernel():
    return pgm.RBF(variance=3.0, lengthscale=LENGTHSCALES)


def covariance(X=X):
    scaled = X / LENGTHSCALES
    return 3.0 * np.exp(-0.5 * np.sum((scaled[:, None] - scaled[None]) ** 2, axis=2)) + 1e-10 * np.eye(len(X))


def laplace(log_density, K, mean, size):
    """The mode of the stacked latents, their posterior covariance and Laplace's evidence, in dense algebra."""
    with jax.enable_x64(True):
        gradient, hessian = jax.grad(log_density), jax.hessian(log_density)
        precision, f = np.linalg.inv(K), jnp.full(size, mean)

        def log_joint(f):
            return log_density(f) - 0.5 * (f - mean) @ precision @ (f - mean)

        for _ in range(60):
            step = np.linalg.solve(precision - hessian(f), gradient(f) - precision @ (f - mean))
            lengths = 0.5 ** np.arange(30)
            f = max((f + length * step for length in lengths), key=log_joint)
        curvature = precision - hessian(f)
        evidence = log_joint(f) - 0.5 * np.linalg.slogdet(K)[1] - 0.5 * np.linalg.slogdet(curvature)[1]
        return np.asarray(f), np.linalg.inv(curvature), float(evidence)


def test_the_laplace_classifier_of_scikit_learn():
    result = pgm.vi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel())), X, Y, objective="taylor", tolerance=1e-12)
    peer = GaussianProcessClassifier(ConstantKernel(3.0) * RBF(LENGTHSCALES), optimizer=None).fit(X, Y).base_estimator_
    assert result.elbo == pytest.approx(peer.log_marginal_likelihood_value_, abs=1e-6)
    np.testing.assert_allclose(result.mean[:, 0], peer.f_cached, atol=1e-6)
    assert "Laplace's approximation of Bernoulli()" in " ".join(str(result).split())
    assert "ELBO" not in str(result)


@pytest.mark.slow
def test_counts_with_a_mean_and_weights():
    counts = np.random.default_rng(1).poisson(np.exp(1.0 + X[:, 0])).astype(float)
    weights = np.where(np.arange(40) % 3 == 0, 2.0, 0.5)

    @pgm.likelihood(support=pgm.Counts(), num_latents=1)
    def poisson(y, f):
        return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)

    model = pgm.Model(poisson(), pgm.GP(kernel(), mean=-0.6))
    result = pgm.vi(model, X, counts, objective="taylor", weights=weights, tolerance=1e-12)

    def log_density(f):
        return jnp.sum(weights * (counts * f - jnp.exp(f) - jax.scipy.special.gammaln(counts + 1)))

    mode, posterior, evidence = laplace(log_density, covariance(), -0.6, 40)
    np.testing.assert_allclose(result.mean[:, 0], mode, atol=1e-6)
    np.testing.assert_allclose(result.variance[:, 0], np.diagonal(posterior), rtol=1e-6)
    assert result.elbo == pytest.approx(evidence, abs=1e-6)


@pytest.mark.slow
def test_three_classes_with_a_full_hessian():
    labels = np.where(X[:, 0] > 0, 1.0, np.where(X[:, 1] < -0.6, 2.0, 0.0))
    model = pgm.Model(pgm.Softmax(3), pgm.GP(kernel(), mean=0.3, size=3))
    result = pgm.vi(model, X, labels, objective="taylor", tolerance=1e-12)

    def log_density(f):
        return jnp.sum(jax.nn.log_softmax(f.reshape(3, 40).T, axis=1)[jnp.arange(40), labels.astype(int)])

    mode, posterior, evidence = laplace(log_density, np.kron(np.eye(3), covariance()), 0.3, 120)
    np.testing.assert_allclose(result.mean.T.ravel(), mode, atol=1e-6)
    np.testing.assert_allclose(result.variance.T.ravel(), np.diagonal(posterior), rtol=1e-6)
    assert result.elbo == pytest.approx(evidence, abs=1e-5)


def test_a_log_density_that_is_not_concave():
    y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(2).normal(size=40)
    y[[3, 20]] += np.array([3.0, -2.0])
    model = pgm.Model(pgm.StudentT(pgm.Fixed(4.0), pgm.Fixed(0.3)), pgm.GP(kernel(), mean=0.2))
    result = pgm.vi(model, X, y, objective="taylor", tolerance=1e-12)

    # Of several modes: it is a stationary point of the log posterior density, with precisions of both signs.
    mean, K = result.mean[:, 0], covariance()
    residual, scale = y - mean, 4.0 * 0.3**2
    weights = 5.0 * (scale - residual**2) / (scale + residual**2) ** 2
    assert weights.min() < 0.0
    np.testing.assert_allclose(mean - 0.2, K @ (5.0 * residual / (scale + residual**2)), atol=1e-5)
    posterior = np.linalg.solve(np.eye(40) + K * weights, K)
    np.testing.assert_allclose(result.variance[:, 0], np.diagonal(posterior), rtol=1e-6)


@pytest.mark.slow
def test_inducing_inputs_and_far_data():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel(), form=pgm.Inducing(X[::4])))
    result = pgm.vi(model, X, Y, objective="taylor", tolerance=1e-12)
    K_uu, K_uf = covariance(X[::4]), covariance()[::4]
    A = np.linalg.solve(np.linalg.cholesky(K_uu), K_uf)

    def log_density(v):
        f = v @ A
        return jnp.sum(jax.nn.log_sigmoid((2 * Y - 1) * f))

    mode, _, _ = laplace(log_density, np.eye(10), 0.0, 10)
    np.testing.assert_allclose(result.mean[:, 0], A.T @ mode, atol=1e-5)


def test_results_of_one_row_and_files(tmp_path):
    result = pgm.vi(pgm.Model(pgm.Probit(), pgm.GP(kernel(), mean=-1.0)), X[:1], Y[:1], objective="taylor")
    loaded = pgm.load(result.save(tmp_path / "result.npz"))
    assert loaded.objective == "taylor"
    np.testing.assert_array_equal(loaded.predict(X[:3]).probabilities, result.predict(X[:3]).probabilities)


def test_what_has_no_expansion_is_refused():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel()))
    with pytest.raises(ValueError, match="objective='taylor' is learned by scheme='alternating' only"):
        pgm.fit(model, X, Y, objective="taylor")
    with pytest.raises(ValueError, match="correct needs an objective that q maximises"):
        pgm.correct(pgm.vi(model, X, Y, objective="taylor"))
    with pytest.raises(ValueError, match=r"objective='taylor' expects .*; that of Laplace has a kink"):
        pgm.vi(pgm.Model(pgm.Laplace(0.3), pgm.GP(kernel())), X, Y, objective="taylor")


def test_a_largest_latent_is_refused():
    model = pgm.Model(pgm.RobustMax(3), pgm.GP(pgm.RBF(), size=3))
    with pytest.raises(ValueError, match="kink or a jump"):
        pgm.vi(model, np.zeros((3, 1)), np.arange(3), objective="taylor")
