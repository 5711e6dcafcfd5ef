"""Learning hyperparameters: gradients, starts, priors, what is held, and a published figure."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm
from sklearn.datasets import load_breast_cancer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import pgmodels as pgm
from pgmodels.inference import bound as problem_family
from pgmodels.inference import search
from pgmodels.inference.bound import MarginalBound, collapsed_bound, points_at, sloped_bound, takes_slopes
from pgmodels.inference.objectives import objective_of
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.priors.representation import Auto
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.own_likelihoods import summed
from tests.referees import sigma


def small_data(seed, n):
    """A generator, inputs and latents."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * np.array([1.0, 2.0])
    return rng, X, np.sin(2 * X[:, 0]) + 0.4


def test_gaussian_likelihood_learns_what_exact_regression_learns():
    """With Gaussian noise the bound is the log marginal likelihood: scikit-learn must find the same optimum."""
    rng, X, f = small_data(1, 60)
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
    rng, X, f = small_data(2, 25)
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
    rng, X, f = small_data(3, 40)
    y = (rng.random(40) < norm.cdf(f)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.Fixed(2.0), np.array([1.0, 1.5]))))
    # The second column says nothing of y.
    with pytest.warns(pgm.FitWarning, match=r"lengthscale\[1\]"):
        fitted = pgm.fit(model, X, y, correct=False)
    assert set(fitted.fit.values) == {"lengthscale"}
    assert fitted.fit.values["lengthscale"].shape == (2,)
    assert float(fitted.model.gps[0].kernel.variance.value) == 2.0
    assert fitted.elbo >= max(fitted.fit.start_elbos.values())


@pytest.mark.slow
def test_nothing_to_learn_is_cavi():
    _, X, f = small_data(3, 40)
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

    rng, X, f = small_data(5, 30)
    y = rng.poisson(np.exp(f))
    with pytest.warns(pgm.FitWarning, match="dispersion"):
        fitted = pgm.fit(pgm.Model(counts(), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)
    assert float(fitted.model.likelihood.values["dispersion"]) == 2.0


@pytest.mark.slow
def test_normalised_parameter_maximises_the_bound():
    """The learned dispersion against a grid of fits that hold it."""
    rng, X, f = small_data(6, 50)
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
        names = ["precision", "f[0].variance", "f[0].lengthscale", "f[1].variance", "f[1].lengthscale", "f[1].mean"]
        assert learnable.names == names
        np.testing.assert_allclose(values, [3.0, np.exp(0.3), 0.7, 2.0, 1.1, -0.4], rtol=1e-6)


@pytest.mark.slow
def test_a_bound_has_the_elbo_of_its_ascent_and_rises_with_a_tighter_tolerance():
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    y = (np.sin(3.0 * X[:, 0]) > 0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.7), mean=0.1))
    with jax.enable_x64(True):
        bound = MarginalBound.of(trainable(model), Data(X, y))
        loose = bound.at(bound.learnable.start(), tolerance=1e-6)
        tight = bound.at(loose.vector, loose, 1e-11)
    for point in (loose, tight):
        assert point.ascent.converged
        assert point.ascent.trace[-1] == float(point.state.elbo) == -point.value
    assert loose.value + 1e-12 >= tight.value


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
    with pytest.warns(pgm.FitWarning):
        fitted = pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, np.ones(n), objective="augmented")
    assert fitted.fit.converged
    assert "StopIteration" not in fitted.fit.message


# Learning with a low-rank form whose pivots are chosen anew at each step: the bound and gradient of the dense form.


def gaussian_processes(count):
    """Of so smooth a kernel that sixty rows have a low-rank form, unequal lengthscales and a nonzero mean."""
    kernels = [pgm.RBF(1.7, np.array([2.8, 4.5])), pgm.RBF(0.8, np.array([5.1, 3.2]))]
    return [pgm.GP(kernel, mean=mean) for kernel, mean in zip(kernels, (0.4, -0.2), strict=True)][:count]


@pytest.mark.parametrize(
    ("likelihood", "latents", "objective", "rows"),
    [
        pytest.param(pgm.Bernoulli(), 1, "augmented", 60, id="one"),
        # Rows of latents that a predictor, or the sites of quadrature, couple count for each of them.
        pytest.param(summed(), 2, "augmented", 120, id="coupled by a predictor", marks=pytest.mark.slow),
        pytest.param(
            pgm.HeteroscedasticGaussian(2.5), 2, "expected", 120, id="coupled by sites", marks=pytest.mark.slow
        ),
    ],
)
def test_pivots_give_the_dense_bound_and_gradient(monkeypatch, likelihood, latents, objective, rows):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (60, 2))
    y = (rng.random(60) < sigma(1.0 + np.sin(2 * X[:, 0]))).astype(float)
    y = y if objective == "augmented" else y + rng.normal(size=60)
    model = pgm.Model(likelihood, gaussian_processes(latents))
    terms = objective_of(model, objective)
    with jax.enable_x64(True):
        learnable, data = trainable(model), Data(X, y)
        start = learnable.start()
        at_start = learnable.with_values(learnable.constrain(start)).bare()
        monkeypatch.setattr(problem_family, "MANY_ROWS", rows + 1)
        assert points_at(terms, at_start, [X] * latents, (None,) * latents) == (None,) * latents
        dense = MarginalBound.of(learnable, data, terms).at(start)
        monkeypatch.setattr(problem_family, "MANY_ROWS", rows)
        for points in points_at(terms, at_start, [X] * latents, (None,) * latents):
            assert points is not None
            # Padded to a size that other hyperparameters share.
            assert np.sum(points.active) < 60 < len(points.active) == 128
        low = MarginalBound.of(learnable, data, terms).at(start)
    # What the pivots neglect, 1e-10 of the variance a datum.
    np.testing.assert_allclose(low.value, dense.value, rtol=1e-8)
    # A root with pivots down to 1e-10 of the variance amplifies rounding to some 1e-6.
    np.testing.assert_allclose(low.slope, dense.slope, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_bound_of_inducing_inputs_has_no_steps():
    """What it gains between two vectors is its slope along the way, where ever fewer inputs tell of more than others.

    With variance and lengthscale growing together, of which rows away from the inducing inputs feel every pivot.
    """
    rng = np.random.default_rng(4)
    X = rng.normal(size=(400, 6))
    signal = X @ [1.0, -0.5, 0.2, 0.0, 0.8, 0.3] + 0.4 + np.sin(2.0 * X[:, 0])
    y = (rng.random(400) < sigma(signal)).astype(float)
    gp = pgm.GP(pgm.RBF(1.0, 2.0), mean=pgm.Fixed(0.1), form=pgm.Inducing(X[:60]))
    with jax.enable_x64(True):
        bound = MarginalBound.of(trainable(pgm.Model(pgm.Bernoulli(), gp)), Data(X, y))
        start, direction = np.array([8.0, 2.2]), np.array([2.0, 1.0])
        points = [bound.at(start)]
        for step in np.linspace(0.0, 2.0, 41)[1:]:
            points.append(bound.at(start + step * direction, points[-1]))
    values, slopes = np.array([at.value for at in points]), np.array([at.slope @ direction for at in points])
    # Simpson's rule over two steps, 4e-6 off at the start; inputs left out at 1e-10 of the variance made steps of 7e-4.
    along = 0.05 / 3.0 * (slopes[:-2] + 4.0 * slopes[1:-1] + slopes[2:])
    np.testing.assert_allclose(values[2:] - values[:-2], along, rtol=0, atol=2e-5)


# The gradient of the bound in the hyperparameters by slopes of the log normaliser, against that through roots.


RNG = np.random.default_rng(3)
# Some rows have equal inputs.
X = np.concatenate([RNG.normal(size=(18, 2)), np.zeros((3, 2))])


GPS = [pgm.GP(pgm.RBF(3.0, 1.3), 0.4), pgm.GP(pgm.RBF(0.7, 2.0), -0.5), pgm.GP(pgm.Matern32(2.0, 0.6), 0.1)]
LABELS, REAL = RNG.integers(0, 3, len(X)).astype(float), RNG.normal(1.0, 2.0, len(X))
# The last with a parameter of the likelihood, and with it a lower limit on variances.
CASES = {
    "independent classes": (pgm.LogisticSoftmax(3), LABELS, "mean_field"),
    "coupled classes": (pgm.LogisticSoftmax(3), LABELS, "expected"),
    "mean and spread": (pgm.HeteroscedasticGaussian(1.5), REAL, "mean_field"),
}


@pytest.mark.parametrize("name", CASES)
@double_precision
def test_slopes_are_derivatives(name):
    likelihood, y, objective = CASES[name]
    weights = RNG.uniform(0.5, 2.0, len(X))
    model, data = pgm.Model(likelihood, GPS[:2] if y is REAL else GPS).prepare(X, y, weights)
    bound = MarginalBound.of(trainable(model), data, objective_of(model, objective))
    start = bound.learnable.start()
    point = bound.at(start + RNG.normal(0.0, 0.2, len(start)), tolerance=1e-3)
    vector, points, state = point.vector, point.points, point.state
    # Large enough to be seen in a gradient.
    family = replace(bound.family, floor=1e-3 if bound.family.floor else 0.0)
    assert (family.floor > 0.0) == (y is REAL)
    problem = family.problem(jnp.asarray(vector), points)
    assert takes_slopes(problem)
    by_slopes = sloped_bound(problem, state)
    through = jax.grad(lambda vector: collapsed_bound(family.problem(vector, points), state))(jnp.asarray(vector))
    ours = jax.grad(lambda vector: by_slopes(family.problem(vector, points)))(jnp.asarray(vector))
    np.testing.assert_allclose(ours, through, rtol=1e-7, atol=1e-9)


# Learning from many rows in stages ends where learning from all of them at once does.


ROWS = 160


def data(rng):
    X = rng.normal(size=(ROWS, 2))
    f = 1.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 2.0 * X[:, 1]
    y = (rng.random(ROWS) < sigma(f)).astype(float)
    return X, y


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(Auto, "least_subset", 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "objective"),
    [
        pytest.param(pgm.RBF(1.0, np.array([1.0, 1.0])), "augmented", id="lengthscale by column"),
        pytest.param(pgm.Matern32(1.0, 1.0), "expected", id="variational Gaussian", marks=pytest.mark.slow),
    ],
)
def test_stages_end_at_the_optimum(few_rows, monkeypatch, kernel, objective):
    X, y = data(np.random.default_rng(3))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.1))
    fitted = pgm.fit(model, X, y, objective=objective)
    assert fitted.fit.start == "40 rows"
    assert fitted.converged
    monkeypatch.setattr(Auto, "least_subset", 512)
    at_once = pgm.fit(model, X, y, objective=objective)
    assert at_once.fit.start != "40 rows"
    # Both stop where a step changes the ELBO by some 1e-9 of its size.
    np.testing.assert_allclose(fitted.elbo, at_once.elbo, rtol=1e-7)
    for name, value in at_once.fit.values.items():
        np.testing.assert_allclose(fitted.fit.values[name], value, rtol=2e-2, err_msg=name)


@pytest.mark.slow
def test_a_sample_that_says_nothing_does_no_harm(few_rows, monkeypatch):
    """Labels of one class alone among the rows of the sample: there the latent is far from 0 and has no lengthscale."""
    rng = np.random.default_rng(5)
    X, y = data(rng)
    sample = np.sort(np.random.default_rng(0).permutation(ROWS)[:40])
    y[sample] = 1.0
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    fitted = pgm.fit(model, X, y)
    assert fitted.converged
    monkeypatch.setattr(Auto, "least_subset", 512)
    np.testing.assert_allclose(fitted.elbo, pgm.fit(model, X, y).elbo, rtol=1e-6)


@pytest.mark.slow
def test_far_out_values_of_the_sample_are_not_gone_on_from(few_rows, monkeypatch):
    """There the bound may be flat, and a lengthscale that all rows determine would never come back."""
    X, y = data(np.random.default_rng(3))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, np.array([1.0, 1.0])), mean=0.1))
    monkeypatch.setattr(search, "SETTINGS", search.SETTINGS._replace(far_out=1.5, flat=1.0))
    fitted = pgm.fit(model, X, y)
    assert fitted.fit.start != "40 rows"
    monkeypatch.setattr(Auto, "least_subset", 512)
    at_once = pgm.fit(model, X, y)
    assert fitted.elbo == at_once.elbo
    # Where the bound is curved as much as is asked for they are.
    monkeypatch.setattr(Auto, "least_subset", 40)
    monkeypatch.setattr(search, "SETTINGS", search.SETTINGS._replace(flat=10.0))
    curved = pgm.fit(model, X, y)
    assert curved.fit.start == "40 rows"
    np.testing.assert_allclose(curved.elbo, at_once.elbo, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("separable", some([True, False], False), ids=["stage at its limit", "all rows at theirs"])
def test_limits_hold_with_stages(few_rows, monkeypatch, separable):
    """The variance grows as far as it may: in the stage too where classes are separable."""
    monkeypatch.setattr(search, "SETTINGS", search.SETTINGS._replace(reach=2.0))
    X, y = data(np.random.default_rng(3))
    if separable:
        y = (X[:, 0] + X[:, 1] > 0.2).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    fitted = pgm.fit(model, X, y)
    assert fitted.fit.start == "40 rows"
    monkeypatch.setattr(Auto, "least_subset", 512)
    at_once = pgm.fit(model, X, y)
    np.testing.assert_allclose(fitted.elbo, at_once.elbo, rtol=1e-7)
    # That of all rows, whose distances are not the stage's.
    np.testing.assert_allclose(fitted.fit.values["variance"], at_once.fit.values["variance"], rtol=1e-8)
    assert fitted.fit.values["variance"] > 8.0  # 14.6 and more without


@pytest.mark.parametrize(
    ("form", "rows", "stage"),
    [
        (None, 1023, None),
        (None, 1024, 512),
        (pgm.Dense(), 9000, 562),
        (pgm.Inducing(50), 9_999, None),
        (pgm.Inducing(50), 10_000, 5_000),
        (pgm.Inducing(50), 200_000, 12_500),
    ],
)
def test_rows_of_a_stage(form, rows, stage):
    gp = pgm.GP(pgm.RBF()) if form is None else pgm.GP(pgm.RBF(), form=form)
    model = pgm.Model(pgm.Bernoulli(), gp)
    assert search.num_subset_rows(model, np.zeros((rows, 1)), objective_of(model, "auto")) == stage


@pytest.mark.parametrize(
    ("classes", "rows", "stage"), [(3, 339, None), (3, 340, 170), (6, 255, None), (6, 1024, 128)], ids=str
)
def test_rows_of_a_stage_of_classes(classes, rows, stage):
    """Learned by quadrature they have fewer; by the augmented bound they have the same as one latent."""
    model = pgm.Model(pgm.LogisticSoftmax(classes), pgm.GP(pgm.RBF(), size=classes))
    assert search.num_subset_rows(model, np.zeros((rows, 1)), objective_of(model, "mean_field")) == stage
    assert search.num_subset_rows(model, np.zeros((1023, 1)), objective_of(model, "augmented")) is None


# The uncertainty of learned parameters, against fresh runs at other parameters, closed forms and Monte Carlo.


N = 24
UNCERTAINTY_RNG = np.random.default_rng(5)
UNCERTAINTY_X = np.sort(UNCERTAINTY_RNG.uniform(-2.0, 2.0, (N, 1)), axis=0)
F = 1.0 + 1.5 * np.sin(2.0 * UNCERTAINTY_X[:, 0])
COUNTS = UNCERTAINTY_RNG.poisson(np.exp(F)).astype(float)
UNCERTAINTY_LABELS = (UNCERTAINTY_RNG.random(N) < 1.0 / (1.0 + np.exp(1.0 - F))).astype(float)
CLASSES = np.arange(N) % 3.0
NUMBERS = F + 0.4 * UNCERTAINTY_RNG.normal(size=N)
NEW = np.array([[-2.5], [0.3], [1.7]])


def gp(form=None, mean=0.4, size=1):
    kernel = pgm.Matern32(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.5))
    return pgm.GP(kernel, mean=mean, size=size, **({} if form is None else {"form": form}))


UNCERTAINTY_CASES = {
    "counts": (pgm.NegativeBinomial(pgm.Parameter(4.0, prior=dist.LogNormal(1.0, 1.0))), gp(), COUNTS),
    "Markov": (pgm.Bernoulli(), gp(pgm.Markov()), UNCERTAINTY_LABELS),
    "inducing": (pgm.Bernoulli(), gp(pgm.Inducing(6)), UNCERTAINTY_LABELS),
    "Hilbert": (pgm.Bernoulli(), gp(pgm.Hilbert(60)), UNCERTAINTY_LABELS),
    "classes": (pgm.Softmax(3), gp(size=3), CLASSES),
    "varying noise": (pgm.HeteroscedasticGaussian(pgm.Fixed(8.0)), [gp(), gp(mean=pgm.Fixed(-1.0))], NUMBERS),
}


def differences(result, h=0.01):
    """The derivatives of the means at NEW in each unconstrained parameter, by runs to convergence at other values."""
    learned = trainable(result.model)
    engine = pgm.gaussian_vi if result.objective == "expected" else pgm.cavi
    t, derivatives = learned.start(), []
    for e in h * np.eye(len(t)):
        means = []
        for vector in (t + e, t - e):
            model = learned.with_values([np.asarray(value) for value in learned.constrain(vector)])
            if result.objective == "mean_field":
                run = pgm.vi(model, result.X, result.y, objective="mean_field", tolerance=1e-13, progress=False)
            else:
                run = engine(model, result.X, result.y, tolerance=1e-13, progress=False)
            means.append(run.predict_latent(NEW)[0])
        derivatives.append((means[0] - means[1]) / (2.0 * h))
    return np.array(derivatives)


@pytest.mark.parametrize("name", some(UNCERTAINTY_CASES, "counts", "Markov"))
def test_means_move_with_the_parameters_as_fresh_runs_do(name):
    likelihood, gps, y = UNCERTAINTY_CASES[name]
    result = pgm.fit(pgm.Model(likelihood, gps), UNCERTAINTY_X, y, progress=False)
    assert result.fit.intervals == "by the delta method"
    root = result.uncertainty.root
    expected = np.tensordot(root.T, differences(result), axes=1)
    # Central differences of means: second order in steps of 0.01 and 0.02.
    np.testing.assert_allclose(result.shifts_at(NEW), expected, atol=2e-3 * np.abs(expected).max())
    added = np.einsum("kml,kmj->mlj", expected, expected)
    variance = result.conditional.predict_latent(NEW)[1] + np.diagonal(added, axis1=1, axis2=2)
    np.testing.assert_allclose(result.predict_latent(NEW)[1], variance, rtol=5e-3)


def test_the_curvature_is_that_of_the_exact_evidence_with_priors():
    scale, variance = dist.LogNormal(-1.0, 0.7), dist.Gamma(2.0, 1.0)
    kernel = pgm.RBF(variance, pgm.Parameter(0.8))
    model = pgm.Model(pgm.Gaussian(pgm.Parameter(0.5, prior=scale)), pgm.GP(kernel, mean=0.7))
    result = pgm.fit(model, UNCERTAINTY_X, NUMBERS, progress=False)
    learned = trainable(result.model)
    assert learned.names == ["scale", "variance", "lengthscale", "mean"]

    def log_density(t):
        s, v, length = np.exp(t[:3])
        K = v * np.exp(-0.5 * (UNCERTAINTY_X - UNCERTAINTY_X.T) ** 2 / length**2) + s**2 * np.eye(N)
        # A lengthscale and a mean without a prior have no Jacobian.
        prior = norm.logpdf(t[0], -1.0, 0.7) + np.log(v) - v + t[1]
        return multivariate_normal.logpdf(NUMBERS, np.full(N, t[3]), K) + prior

    t, h = learned.start(), 1e-3
    E = h * np.eye(4)
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    H = [[sum(a * b * log_density(t + a * d + b * e) for a, b in signs) / (4 * h**2) for d in E] for e in E]
    root = result.uncertainty.root
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(-np.array(H)), rtol=5e-3, atol=1e-4)
    table = result.summary()
    # A lognormal variable.
    spread = np.linalg.norm(root[1])
    np.testing.assert_allclose(table.loc["variance", "mean"], np.exp(t[1] + 0.5 * spread**2), rtol=1e-2)
    ends = np.exp(t[1] + spread * norm.ppf([0.055, 0.945]))
    np.testing.assert_allclose(table.loc["variance", ["eti89_lb", "eti89_ub"]], ends, rtol=1e-2)


def test_ordered_grades_have_the_width_that_their_cut_points_give():
    x = np.r_[np.zeros(30), np.ones(30)].astype(int)
    grades = np.array(list("abc"))[np.r_[np.repeat([0, 1, 2], 10), np.repeat([0, 1, 2], [4, 8, 18])]]
    result = pgm.formula("y ~ x", pd.DataFrame({"x": x, "y": grades}), family="cumulative").fit(progress=False)
    # By polr's expected information, and by a long run: 0.503 and 0.504; 0.366 with cut-points held.
    np.testing.assert_allclose(result.summary().loc["x", "sd"], 0.503, atol=0.015)
    assert result.result.conditional.predict_latent(np.array([[1.0]]))[1][0, 0] ** 0.5 < 0.4


def test_draws_and_predictions_are_joint_in_parameters_and_latents():
    likelihood, gps, y = UNCERTAINTY_CASES["counts"]
    result = pgm.fit(pgm.Model(likelihood, gps), UNCERTAINTY_X, y, progress=False)
    nodes = result.joint_nodes(NEW, 20_000, 3)
    mean, variance = result.predict_latent(NEW)
    np.testing.assert_allclose(nodes.draws.var(axis=0), variance, rtol=0.05)
    np.testing.assert_allclose(nodes.draws.mean(axis=0), mean, atol=4.0 * np.sqrt(variance.max() / 20_000))
    f, dispersion = nodes.draws[:, :, 0], nodes.values["dispersion"][:, 0]
    # E y = dispersion exp(f) is correlated: each alone has a wide distribution.
    between = np.corrcoef(np.log(dispersion[:, 0]), f[:, 1])[0, 1]
    assert between < -0.5
    np.testing.assert_allclose(np.median(result.marginal_nodes(NEW, 20_000).draws, axis=0), mean, atol=0.05)
    predicted = result.predict(NEW)
    np.testing.assert_allclose(predicted.mean[1], np.mean(dispersion * np.exp(f), axis=0)[1], rtol=0.03)
    assert predicted.variance[1] > result.conditional.predict(NEW).variance[1]


def test_the_uncertainty_is_left_out_with_its_reason():
    model = pgm.Model(pgm.Bernoulli(), gp())
    uncorrected = pgm.fit(model, UNCERTAINTY_X, UNCERTAINTY_LABELS, correct=False, progress=False)
    assert uncorrected.fit.intervals == "none, with correct=False"
    assert uncorrected.uncertainty is None
    assert np.isnan(uncorrected.summary()["sd"]).all()
    # A variance of 0 maximises the bound: it stays, and the mean has its interval.
    alternating = pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.RBF(1.0, pgm.Fixed(0.7)), mean=0.0))
    with pytest.warns(pgm.FitWarning, match="do not determine variance"):
        flat = pgm.fit(alternating, UNCERTAINTY_X, np.tile([1.0, -1.0], N // 2) + 3.0, progress=False)
    assert flat.fit.values["variance"] < 1e-3
    sds = flat.summary()["sd"]
    assert np.isnan(sds["variance"])
    assert np.isclose(sds["mean"], N**-0.5, rtol=0.02)


def test_a_file_and_arviz_have_the_uncertainty(tmp_path):
    result = pgm.fit(pgm.Model(pgm.Bernoulli(), gp()), UNCERTAINTY_X, UNCERTAINTY_LABELS, progress=False)
    again = pgm.load(result.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(again.predict_latent(NEW)[1], result.predict_latent(NEW)[1])
    np.testing.assert_allclose(again.conditional.variance, result.conditional.variance)
    tree = result.to_arviz(4000, seed=2)
    posterior = tree["posterior"]
    np.testing.assert_allclose(posterior["f"].values[0].var(axis=0), result.variance, rtol=0.12)
    root = result.uncertainty.root
    logs = np.log(np.stack([posterior[name].values[0] for name in ("variance", "lengthscale")]))
    np.testing.assert_allclose(np.cov(logs), (root @ root.T)[:2, :2], rtol=0.1, atol=0.02)
    # The correlation of parameters and latents.
    between = np.mean((logs[0] - logs[0].mean())[:, None] * posterior["f"].values[0][:, :, 0], axis=0)
    np.testing.assert_allclose(between, result.uncertainty.shifts[:, :, 0].T @ root[0], atol=0.05)


@pytest.mark.parametrize("added", [0.0, 1e-6, 0.01, 2.0])
def test_a_density_plus_a_normal_variable(added):
    from pgmodels.results.result import GRID, GridDensity

    location, scale = np.array([[1.0], [-2.0]]), np.array([[0.5], [2.0]])
    # An exponential variable, cut off at five.
    logs = np.where(GRID > -2.0, -(GRID + 2.0), -60.0)
    skewed = GridDensity(location, scale, np.broadcast_to(logs, (2, 1, len(GRID))))
    wider = skewed.widened(np.array([[added], [added]]))
    np.testing.assert_allclose(wider.mean, skewed.mean, atol=2e-3)
    np.testing.assert_allclose(wider.variance, skewed.variance + added, rtol=0.01)
    third = skewed.skewness * skewed.variance**1.5
    np.testing.assert_allclose(wider.skewness * wider.variance**1.5, third, rtol=0.03)
