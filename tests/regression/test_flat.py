"""Flat and Student-t priors of coefficients: closed forms, quadrature, and the errors of improper posteriors."""

import warnings

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints
from scipy import stats

import pgmodels as pgm

FLAT = dist.ImproperUniform(constraints.real, (), ())


def data():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.uniform(1990.0, 2025.0, 24), "z": rng.normal(size=24)})
    frame["y"] = 0.2 * (frame.x - 2007.0) + frame.z + rng.normal(size=24)
    frame["count"] = rng.poisson(np.exp(1.0 + 0.4 * frame.z))
    frame["binary"] = (rng.random(24) < 0.5).astype(int)
    return frame


def squares(frame):
    """Least squares of y on 1, x and z, with the root of the inverse of X^T X's diagonal."""
    X = np.column_stack([np.ones(24), frame.x, frame.z])
    return np.linalg.lstsq(X, frame.y, rcond=None)[0], np.sqrt(np.diag(np.linalg.inv(X.T @ X)))


@pytest.mark.parametrize("prior", ["flat", FLAT])
@pytest.mark.parametrize("engine", ["cavi", "gaussian_vi", "fit"])
def test_flat_priors_give_least_squares(prior, engine):
    frame = data()
    regression = pgm.formula("y ~ x + z", frame, priors=dict.fromkeys(["Intercept", "x", "z"], prior))
    result = getattr(regression, engine)()
    beta, deviations = squares(frame)
    table = result.summary().loc[["Intercept", "x", "z"]]
    scale = result.result.model.likelihood.parameters["scale"].value
    np.testing.assert_allclose(table["mean"], beta, rtol=1e-6)
    np.testing.assert_allclose(table["sd"], scale * deviations, rtol=1e-5)


def test_one_flat_coefficient_among_normal_ones_has_precision_zero():
    frame = data()
    priors = {"Intercept": dist.Normal(1.0, 2.0), "x": "flat", "z": dist.Normal(-0.5, 0.3)}
    result = pgm.formula("y ~ x + z", frame, priors=priors).cavi()
    scale = result.result.model.likelihood.parameters["scale"].value
    X = np.column_stack([np.ones(24), frame.x, frame.z])
    precision = X.T @ X / scale**2 + np.diag([0.25, 0.0, 1.0 / 0.09])
    mean = np.linalg.solve(precision, X.T @ frame.y / scale**2 + [0.25, 0.0, -0.5 / 0.09])
    table = result.summary().loc[["Intercept", "x", "z"]]
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(table["sd"], np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-6)


def test_a_flat_intercept_of_counts_is_at_the_variational_optimum():
    """E exp(f) is the mean count: s^2 = 1 / sum of y, and m = log(mean of y) - s^2 / 2."""
    frame = data()
    result = pgm.formula("count ~ 1", frame, family="poisson", priors={"Intercept": "flat"}).gaussian_vi()
    variance = 1.0 / frame["count"].sum()
    row = result.summary().loc["Intercept"]
    np.testing.assert_allclose(row["mean"], np.log(frame["count"].mean()) - 0.5 * variance, rtol=1e-5)
    np.testing.assert_allclose(row["sd"], np.sqrt(variance), rtol=1e-4)


@pytest.mark.parametrize(
    ("formula", "family", "words"),
    [
        ("y ~ x + twice", "gaussian", "do not determine x, twice, whose priors are flat"),
        ("y ~ z + constant", "gaussian", "do not determine constant, whose prior"),
        ("binary ~ x + separating", "bernoulli", "do not bound separating, whose prior is flat"),
        ("none ~ z", "poisson", "do not bound Intercept, whose prior is flat"),
    ],
)
def test_improper_posteriors_are_refused_by_the_names_of_their_columns(formula, family, words):
    frame = data().assign(constant=1.0, none=0)
    frame["twice"] = 2.0 * frame.x + 3.0
    frame["separating"] = frame.binary + 0.1 * frame.z.clip(-1.0, 1.0)
    names = ["Intercept", *formula.split("~ ")[1].split(" + ")]
    with pytest.raises(ValueError, match=words):
        pgm.formula(formula, frame, family=family, priors=dict.fromkeys(names, "flat"))
    # The remedy: a normal prior of the last one, which is among those that the message names, or of the intercept.
    names.remove("Intercept" if "none" in formula else names[-1])
    pgm.formula(formula, frame, family=family, priors=dict.fromkeys(names, "flat"))


@pytest.mark.parametrize("prior", [dist.ImproperUniform(constraints.positive, (), ()), "uniform", dist.Laplace()])
def test_other_priors_of_coefficients_are_refused(prior):
    with pytest.raises(ValueError, match=r"coefficient x must be .*, dist.StudentT\(df, mean, scale\) or"):
        pgm.formula("y ~ x", data(), priors={"x": prior})


def test_flat_priors_of_classes_are_refused():
    frame = data().assign(k=["a", "b", "c"] * 8)
    with pytest.raises(ValueError, match="x is flat, and the classes of 'categorical' have the same terms"):
        pgm.formula("k ~ x", frame, family="categorical", priors={"x": "flat"})


def test_files_hold_flat_priors(tmp_path):
    result = pgm.formula("y ~ x + z", data(), priors={"x": "flat", "z": dist.Normal(0.0, 2.0)}).cavi()
    again = pgm.load_formula(result.save(tmp_path / "flat.npz"))
    pd.testing.assert_frame_equal(again.summary(), result.summary())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["integrate", "gibbs", "nuts"])
def test_slopes_of_engines_that_sample_the_scale_have_the_variance_by_quadrature(engine):
    frame = data()
    priors = {"Intercept": "flat", "x": "flat", "z": "flat", "sigma": dist.HalfNormal(3.0)}
    result = getattr(pgm.formula("y ~ x + z", frame, priors=priors), engine)()
    beta, deviations = squares(frame)
    X = np.column_stack([np.ones(24), frame.x, frame.z])
    rest = np.sum((frame.y - X @ beta) ** 2)
    scale = np.linspace(0.05, 20.0, 20_000)
    logs = -(24 - 3) * np.log(scale) - rest / (2.0 * scale**2) - scale**2 / 18.0
    weights = np.exp(logs - logs.max())
    expected = np.sqrt((weights @ scale**2) / weights.sum()) * deviations
    table = result.summary().loc[["Intercept", "x", "z"]]
    # 4,000 draws: means within 0.1 deviations, and these within 8 %.
    np.testing.assert_array_less(np.abs(table["mean"] - beta) / expected, 0.1)
    np.testing.assert_allclose(table["sd"], expected, rtol=0.08)


@pytest.mark.parametrize(
    "engine", ["integrate", pytest.param("gibbs", marks=pytest.mark.slow), pytest.param("nuts", marks=pytest.mark.slow)]
)
def test_student_priors_have_the_posterior_by_quadrature(engine):
    """Priors at odds with y, so that a normal of the same scale would pull the slope by two deviations more."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"x": rng.normal(size=12)})
    frame["y"] = 2.0 + 1.6 * frame.x + 0.8 * rng.normal(size=12)
    priors = {
        "Intercept": dist.StudentT(3.0, 1.0, 0.5),
        "x": dist.StudentT(4.0, 0.5, 0.2),
        "sigma": dist.HalfNormal(1.0),
    }
    grids = np.meshgrid(
        np.linspace(-1.0, 5.0, 161), np.linspace(-1.0, 4.0, 161), np.linspace(0.2, 4.0, 80), indexing="ij"
    )
    a, b, s = grids
    logs = stats.t.logpdf(a, 3.0, 1.0, 0.5) + stats.t.logpdf(b, 4.0, 0.5, 0.2) - 0.5 * s**2 - 12 * np.log(s)
    for x, y in zip(frame.x, frame.y, strict=True):
        logs -= 0.5 * ((y - a - b * x) / s) ** 2
    weights = np.exp(logs - logs.max())
    mean = np.array([np.average(grid, weights=weights) for grid in grids])
    sd = np.array([np.average((grid - m) ** 2, weights=weights) ** 0.5 for grid, m in zip(grids, mean, strict=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.DivergenceWarning)
        table = getattr(pgm.formula("y ~ x", frame, priors=priors), engine)().summary().loc[["Intercept", "x", "sigma"]]
    np.testing.assert_allclose((table["mean"] - mean) / sd, 0.0, atol=0.08)
    np.testing.assert_allclose(table["sd"], sd, rtol=0.08)


def test_files_hold_student_priors(tmp_path):
    priors = {"x": dist.StudentT(4.0, 0.5, 0.2), "z": "flat"}
    result = pgm.formula("y ~ x + z", data(), priors=priors).cavi()
    again = pgm.load_formula(result.save(tmp_path / "student.npz"))
    pd.testing.assert_frame_equal(again.summary(), result.summary())
