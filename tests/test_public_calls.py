"""The calls that users write, as they write them."""

import numpy as np
import pytest

import pgmodels as pgm


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    return X[:40], (X[:40, 0] + 0.3 * rng.normal(size=40) > 0).astype(int), X[40:], (X[40:, 0] > 0).astype(int)


def test_the_main_calls(data, tmp_path):
    X, y, X_test, y_test = data
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance=1.0, lengthscale=1.0)))

    vi = pgm.cavi(model, X, y)
    mcmc = pgm.gibbs(model, X, y, num_samples=100, num_warmup=20, num_chains=2, seed=0)
    fixed = pgm.correct(vi)
    table = pgm.compare(gibbs=mcmc, cavi=vi, corrected=fixed, X=X_test, y=y_test)
    assert "cavi" in str(table)
    assert list(table.to_dataframe().index) == ["gibbs", "cavi", "corrected"]
    table.plot(tmp_path / "marginals.png")
    assert (tmp_path / "marginals.png").stat().st_size > 10_000

    derivation = pgm.derive(model)
    assert "PG(1, f)" in str(derivation)
    assert derivation.verify(seed=0).figures
    assert str(derivation.graph)
    assert derivation.graph.to_mermaid()
    assert derivation.graph.to_graphviz()

    assert vi.mean.shape == vi.variance.shape == (40, 1)
    assert vi.elbo == vi.elbo_trace[-1]
    assert vi.converged
    assert vi.num_iterations == len(vi.elbo_trace) - 1
    for result in (vi, mcmc, fixed):
        mean, variance = result.predict_latent(X_test)
        assert mean.shape == variance.shape == (10, 1)
        assert result.draw_latents(X_test, 3).shape == (3, 10, 1)
        p = result.predict(X_test)
        assert p.mean.shape == p.variance.shape == (10,)
        np.testing.assert_allclose(p.probabilities.sum(axis=1), 1.0, atol=1e-12)
        np.testing.assert_allclose(p.log_density(y_test), np.log(p.probabilities[np.arange(10), y_test]), rtol=1e-10)
        groups = {"posterior", "posterior_predictive", "log_likelihood", "observed_data", "sample_stats"}
        assert groups <= set(result.to_arviz().children)
    assert mcmc.latents.shape == (2, 100, 40, 1)
    np.testing.assert_allclose(mcmc.mean, mcmc.latents.mean(axis=(0, 1)), rtol=1e-12)


@pytest.mark.slow
def test_a_likelihood_of_ones_own(data):
    X, y, *_ = data

    @pgm.likelihood
    def logistic_softmax(y, f):
        return pgm.sigmoid(f[y]) / pgm.sum(pgm.sigmoid(f))

    @pgm.likelihood
    def negative_binomial(y, f, dispersion=pgm.Parameter(2.0, positive=True)):
        return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** dispersion

    model = pgm.Model(logistic_softmax(), pgm.GP(pgm.Matern52(lengthscale=2.0), size=3))
    classes = y + (X[:, 1] > 1)
    named = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.Matern52(lengthscale=2.0), size=3))
    np.testing.assert_allclose(pgm.cavi(model, X, classes).mean, pgm.cavi(named, X, classes).mean, rtol=1e-9)
    counts = pgm.Model(negative_binomial(), pgm.GP(pgm.RBF()))
    assert pgm.cavi(counts, X, y).converged


def test_kernels_add_multiply_and_may_be_any_callable(data):
    X, y, *_ = data
    kernel = pgm.RBF(1.0, [1.0, 2.0]) * pgm.Periodic(period=3.0) + pgm.Constant(0.5) + pgm.White(1e-3)
    assert np.isfinite(pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), X, y).elbo)
    linear = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(lambda X, Z: X @ Z.T)), X, y)
    np.testing.assert_allclose(linear.mean, pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear())), X, y).mean)
