"""Learning hyperparameters: gradients, starts, priors, what is held, and a published figure."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import pgmodels as pgm
from pgmodels.inference import bound as bound_module
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.fit import FitWarning
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable


def small_data(rng, n=30):
    X = rng.normal(size=(n, 2)) * np.array([1.0, 2.0])
    return X, np.sin(2 * X[:, 0]) + 0.4


def test_gaussian_likelihood_learns_what_exact_regression_learns():
    """With Gaussian noise the bound is the log marginal likelihood: scikit-learn must find the same optimum."""
    rng = np.random.default_rng(1)
    X, f = small_data(rng, 60)
    y = f + 0.3 * rng.normal(size=60)
    fitted = pgm.fit(pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)
    kernel = sk.ConstantKernel(1.0) * sk.RBF(1.0) + sk.WhiteKernel(0.25)
    exact = GaussianProcessRegressor(kernel, n_restarts_optimizer=0).fit(X, y)
    # Both optimisers stop at a relative change of the objective near 1e-9.
    np.testing.assert_allclose(fitted.elbo, exact.log_marginal_likelihood_value_, rtol=1e-6)
    values = fitted.fit.values
    np.testing.assert_allclose(values["lengthscale"], exact.kernel_.k1.k2.length_scale, rtol=2e-3)
    np.testing.assert_allclose(values["scale"] ** 2, exact.kernel_.k2.noise_level, rtol=2e-3)


def test_prior_mean_and_prior_density_are_part_of_the_objective():
    """A constant mean and a prior on it, against a dense maximisation written out."""
    rng = np.random.default_rng(2)
    X, f = small_data(rng, 25)
    y = f + 3.0 + 0.3 * rng.normal(size=25)
    mean = dist.Normal(1.0, 0.5)
    gp = pgm.GP(pgm.RBF(pgm.Fixed(1.3), pgm.Fixed(0.8)), mean=mean)
    fitted = pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), gp), X, y)
    d2 = ((X[:, None] - X[None]) ** 2).sum(-1)
    C = 1.3 * np.exp(-d2 / (2 * 0.8**2)) + 0.09 * np.eye(25)

    def negative(mu):
        r = y - mu
        return 0.5 * r @ np.linalg.solve(C, r) - norm.logpdf(mu[0], 1.0, 0.5)

    best = minimize(negative, np.array([1.0]), tol=1e-12).x[0]
    np.testing.assert_allclose(fitted.fit.values["mean"], best, rtol=1e-5)
    assert abs(best - y.mean()) > 0.05  # the prior matters, so a result without it would fail


def test_the_optimum_with_priors_is_the_mode_of_the_unconstrained_values_and_says_so():
    """Of the logarithm of a variance, against a grid of the exact evidence."""
    X, y = np.arange(5.0)[:, None], np.array([0.4, 1.3, -0.2, 0.6, 0.9])
    kernel = pgm.RBF(dist.Gamma(2.0, 1.5), pgm.Fixed(0.8))
    fitted = pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), pgm.GP(kernel)), X, y, progress=False)
    grid = np.linspace(0.02, 4.0, 40_000)
    values, vectors = np.linalg.eigh(np.exp(-0.5 * (X - X.T) ** 2 / 0.8**2))
    spectrum = grid[:, None] * values + 0.09
    evidence = -0.5 * np.sum(np.log(spectrum) + (y @ vectors) ** 2 / spectrum, axis=1)
    posterior = evidence + np.log(grid) - 1.5 * grid
    mode = grid[(posterior + np.log(grid)).argmax()]
    assert np.isclose(fitted.fit.values["variance"], mode, atol=2e-4)
    assert mode > 1.2 * grid[posterior.argmax()]
    assert "the mode of the unconstrained parameters" in " ".join(str(fitted).split())
    assert "with priors" not in str(pgm.cavi(fitted.model.fixed(), X, y))


def test_a_prior_with_a_pole_at_zero_gives_the_mode_of_the_deviation():
    """The square of a half-normal deviation: its density is infinite at 0, and that of the logarithm has a mode."""
    X, y = np.arange(4.0)[:, None], np.array([0.3, -0.2, 0.1, 0.4])
    kernel = pgm.White(pgm.sd(dist.HalfNormal(2.5)))
    fitted = pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.5)), pgm.GP(kernel)), X, y, progress=False)
    deviation = np.exp(np.linspace(-6.0, 2.0, 80_001))
    total = deviation**2 + 0.25
    density = -2.0 * np.log(total) - 0.5 * np.sum(y**2) / total - 0.5 * (deviation / 2.5) ** 2 + np.log(deviation)
    np.testing.assert_allclose(fitted.fit.values["variance"], deviation[density.argmax()] ** 2, rtol=1e-3)


def test_fixed_values_stay_and_the_rest_moves():
    rng = np.random.default_rng(3)
    X, f = small_data(rng, 40)
    y = (rng.random(40) < norm.cdf(f)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.Fixed(2.0), np.array([1.0, 1.5]))))
    # The second column says nothing of y.
    with pytest.warns(FitWarning, match=r"lengthscale\[1\]"):
        fitted = pgm.fit(model, X, y, correct=False)
    assert set(fitted.fit.values) == {"lengthscale"}
    assert fitted.fit.values["lengthscale"].shape == (2,)
    assert float(fitted.model.gps[0].kernel.variance.value) == 2.0
    assert fitted.elbo >= max(fitted.fit.start_elbos.values())


@pytest.mark.slow
def test_nothing_to_learn_is_cavi():
    rng = np.random.default_rng(3)
    X, f = small_data(rng, 40)
    y = (f > 0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.Fixed(2.0), pgm.Fixed(1.0))))
    # cavi stops at a relative change of 1e-9, fit has gone on to 1e-11.
    np.testing.assert_allclose(pgm.fit(model, X, y, objective="augmented").elbo, pgm.cavi(model, X, y).elbo, rtol=1e-8)


@pytest.mark.slow
def test_parameters_of_an_unnormalised_formula_are_held():
    """Γ(y + r) / Γ(r) is missing, and depends on r: learning r from the formula would be wrong."""

    @pgm.likelihood
    def counts(y, f, dispersion=pgm.Parameter(2.0, positive=True)):
        return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** dispersion

    rng = np.random.default_rng(5)
    X, f = small_data(rng, 30)
    y = rng.poisson(np.exp(f))
    with pytest.warns(FitWarning, match="dispersion"):
        fitted = pgm.fit(pgm.Model(counts(), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)
    assert float(fitted.model.likelihood.values["dispersion"]) == 2.0


@pytest.mark.slow
def test_normalised_parameter_maximises_the_bound():
    """The learned dispersion against a grid of fits that hold it."""
    rng = np.random.default_rng(6)
    X, f = small_data(rng, 50)
    y = rng.negative_binomial(3.0, 1 / (1 + np.exp(f)))
    gp = pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(1.0)))
    fitted = pgm.fit(pgm.Model(pgm.NegativeBinomial(1.0), gp), X, y, objective="augmented")
    best = float(fitted.fit.values["dispersion"])
    elbos = [pgm.cavi(pgm.Model(pgm.NegativeBinomial(r), gp), X, y).elbo for r in (0.8 * best, 1.25 * best)]
    assert fitted.elbo > max(elbos)


@pytest.mark.slow
def test_wide_prior_variance_does_not_lead_to_a_poor_optimum():
    """Logistic-softmax at prior variance 80: from q = prior CAVI ends near -170, from a tighter start near -73."""
    from sklearn.datasets import load_wine

    data = load_wine()
    order = np.random.default_rng(0).permutation(178)[:142]
    X = data.data[order]
    X, y = (X - X.mean(0)) / X.std(0), data.target[order]
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(80.42, 17.80), size=3))
    assert pgm.cavi(model, X, y).elbo > -74.0


@pytest.mark.slow
def test_breast_cancer_elbo_of_passerello():
    """Random 90 % splits, 30 columns, one lengthscale: mean ELBO -69 ± 1 (Passerello 2021, M = 50: -69.6)."""
    data = load_breast_cancer()
    elbos = []
    for seed in range(8):
        rows = np.random.default_rng(seed).permutation(569)[:512]
        X = data.data[rows]
        X = (X - X.mean(0)) / X.std(0)
        # From lengthscale 1 the optimiser would end at -340: fit starts from the data.
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(lengthscale=1.0)))
        fitted = pgm.fit(model, X, data.target[rows], objective="augmented")
        assert fitted.fit.start == "median distance"
        elbos.append(fitted.elbo)
    assert abs(np.mean(elbos) + 69.0) < 1.0


def test_unconstrained_vector_round_trip():
    with jax.enable_x64(True):
        gps = [pgm.GP(pgm.RBF(dist.LogNormal(0.3, 1.0), 0.7)), pgm.GP(pgm.Matern32(2.0, 1.1), mean=-0.4)]
        model = pgm.Model(pgm.HeteroscedasticGaussian(3.0), gps)
        learnable = trainable(model)
        values = learnable.constrain(jnp.asarray(learnable.start()))
        expected = {
            "precision": 3.0,
            "f[0].variance": np.exp(0.3),
            "f[0].lengthscale": 0.7,
            "f[1].variance": 2.0,
            "f[1].lengthscale": 1.1,
            "f[1].mean": -0.4,
        }
        assert {name: pytest.approx(float(v)) for name, v in zip(learnable.names, values, strict=True)} == expected


@pytest.mark.slow
def test_an_ascent_that_is_as_exact_as_asked_for_is_not_made_again(monkeypatch):
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    y = (np.sin(3.0 * X[:, 0]) > 0).astype(float)
    with jax.enable_x64(True):
        bound = MarginalBound(trainable(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.7), mean=0.1))), Data(X, y))
        best, _ = bound(bound.vector, 1e-6)
        # Farther off: what is kept is of the best.
        assert bound(bound.vector + 1.0, 1e-11)[0] > best
        sharper = bound.optimum(1e-11)
        assert sharper.converged
        assert best + 1e-12 >= -sharper.trace[-1]
        monkeypatch.setattr(bound_module, "_ascend", None)
        known = bound.optimum(1e-6)
        assert known.converged
        assert known.trace[-1] == -best == known.state.elbo


@pytest.mark.slow
def test_a_shift_of_the_inputs_changes_nothing():
    """Two hours of time stamps, with a lengthscale for each column."""
    rng = np.random.default_rng(3)
    t = np.sort(rng.integers(0, 7200, 120)).astype(float)
    X = np.column_stack([t, rng.normal(size=120)])
    y = (rng.random(120) < 1 / (1 + np.exp(-3 * np.sin(2 * np.pi * t / 1200) - X[:, 1]))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, [120.0, 1.0])))
    here, there = pgm.fit(model, X, y), pgm.fit(model, X + np.array([2.0**30, 0.0]), y)
    assert there.fit.values["lengthscale"][0] > 200.0
    np.testing.assert_allclose(there.elbo, here.elbo, rtol=1e-8)
    np.testing.assert_allclose(there.fit.values["lengthscale"], here.fit.values["lengthscale"], rtol=1e-3)


@pytest.mark.slow
def test_values_stay_within_their_limits():
    """The bound grows without end towards a scale of 0, where rounding makes it any number."""
    X = np.array(
        [-0.6538286094183394, -0.1296136336927694, 0.7839754700613295, 1.4934311452207607, -1.2590655321041202]
    )
    y = [-2.996865350764697, -1.0110703743659013, 3.252356424260763, 1.511008143556655, -2.572680909153007]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Which there are goes by rounding.
        fitted = pgm.fit(
            pgm.Model(pgm.StudentT(4.0, 0.3), pgm.GP(pgm.RBF(1.0, 1.0))), X[:, None], y, objective="augmented"
        )
    assert fitted.fit.values["scale"] >= 0.3e-6
    assert fitted.elbo < 0.0


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3, 5])
def test_few_rows_converge(n):
    """Values run far where these say little of them; the bound then has no digits for a search to go by."""
    X = np.linspace(0.0, 1.0, n)[:, None]
    with pytest.warns(FitWarning):
        fitted = pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, np.ones(n), objective="augmented")
    assert fitted.fit.converged
    assert "StopIteration" not in fitted.fit.message
