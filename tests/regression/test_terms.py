"""Priors of coefficients, and slopes: against the normal posterior in closed form."""

import os
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints
from scipy import integrate, optimize, stats

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density

N = 60
RNG = np.random.default_rng(7)
X = RNG.normal(size=N)
NOISE = RNG.normal(size=N)
G = np.repeat(["a", "b", "c"], [10, 20, 30])
# The default prior deviation of an intercept is 2.5^2 standard deviations of y, 2.5 times that of a coefficient.
# Of means and deviations of 1,000 draws: four standard errors.
MEAN, DEVIATION = 4.0 / np.sqrt(1000.0), 0.1


def normal_posterior(B, y, mean, spread, scale=1.0):
    """Mean and covariance of coefficients with independent normal priors, of rows B with noise of one scale."""
    precision = B.T @ B / scale**2 + np.diag(1.0 / np.square(spread))
    covariance = np.linalg.inv(precision)
    return mean + covariance @ (B.T @ (y - B @ mean)) / scale**2, covariance


def assert_draws(table, mean, deviation):
    """The rows of a table are means and deviations of draws of normals."""
    assert np.all(np.abs(table["mean"] - mean) < MEAN * deviation)
    np.testing.assert_allclose(table["sd"], deviation, rtol=DEVIATION)


@pytest.mark.parametrize("level", [0.0, 101325.0, 1e6, 1e8])
def test_slopes_of_a_response_far_from_zero_are_those_of_the_coefficient(level):
    y = level + 5.0 * (0.5 * X + NOISE)
    result = pgm.formula("y ~ x", pd.DataFrame({"x": X, "y": y}), priors={"scale": pgm.Fixed(5.0)}).cavi()
    B, spread = np.column_stack([np.ones(N), X - X.mean()]), 2.5 * y.std() / np.array([0.4, X.std()])
    mean, covariance = normal_posterior(B, y, np.array([y.mean(), 0.0]), spread, 5.0)
    linear, of_mean = result.slopes("x", target="linear"), result.slopes("x")
    assert_draws(linear, mean[1], np.sqrt(covariance[1, 1]))
    # Of values of 1e8 the difference over 0.002 has nine digits fewer than sixteen, or five per mille of 1e-2.
    np.testing.assert_allclose(of_mean[["mean", "sd"]], linear[["mean", "sd"]], rtol=1e-13 * level + 1e-9)
    assert_draws(result.predictions(), B @ mean, np.sqrt(np.einsum("ij,jk,ik->i", B, covariance, B)))


# Days and seconds of 2001.
@pytest.mark.parametrize("origin", [0.0, 2.45e6, 1e9])
def test_slopes_of_a_column_far_from_zero_are_those_of_the_coefficient(origin):
    x, y = origin + 100.0 * X, 0.3 * X + NOISE
    result = pgm.formula("y ~ x", pd.DataFrame({"x": x, "y": y}), priors={"scale": pgm.Fixed(1.0)}).cavi()
    B, spread = np.column_stack([np.ones(N), X - X.mean()]), 2.5 * y.std() / np.array([0.4, X.std()])
    mean, covariance = normal_posterior(B, y, np.array([y.mean(), 0.0]), spread)
    mean, deviation = mean[1] / 100.0, np.sqrt(covariance[1, 1]) / 100.0
    coefficient = result.summary().loc["x"]
    np.testing.assert_allclose(coefficient[["mean", "sd"]].to_numpy(float), [mean, deviation], rtol=1e-6)
    for target in ("mean", "linear"):
        rows = result.slopes("x", average_by="x", target=target)
        assert_draws(rows, mean, deviation)
        # A line has one slope.
        np.testing.assert_allclose(rows["mean"], rows["mean"][0], rtol=1e-6)
        np.testing.assert_allclose(rows["sd"], rows["sd"][0], rtol=1e-6)


@pytest.mark.parametrize("term", ["poly(x, 3)", "s(x)", "gp(x)", "gp(x, by=z)"])
def test_slopes_do_not_depend_on_the_origin_of_a_column(term):
    z = NOISE[::-1]
    frames = [pd.DataFrame({"x": origin + 100.0 * X, "z": z, "y": X * (1.0 + z) + NOISE}) for origin in (0.0, 2.45e6)]
    here, far = (pgm.formula(f"y ~ {term}", frame).cavi().slopes("x", average_by="z") for frame in frames)
    assert np.all(np.abs(far["mean"] - here["mean"]) < 1.5 * MEAN * here["sd"])
    np.testing.assert_allclose(far["sd"], here["sd"], rtol=1.5 * DEVIATION)


def test_slopes_of_an_interaction_are_the_line_of_its_coefficients():
    z = NOISE[::-1]
    frame = pd.DataFrame({"x": 1e6 + X, "z": z, "y": X * (1.0 + z) + NOISE})
    result = pgm.formula("y ~ x * z", frame, priors={"scale": pgm.Fixed(1.0)}).cavi()
    B = np.column_stack([np.ones(N), frame["x"], z, frame["x"] * z])
    B, deviations = B - np.append(0.0, B[:, 1:].mean(axis=0)), B.std(axis=0) + np.array([0.4, 0.0, 0.0, 0.0])
    y = frame["y"].to_numpy()
    spread = 2.5 * y.std() / deviations
    mean, covariance = normal_posterior(B, y, np.array([y.mean(), 0, 0, 0]), spread)
    table = result.slopes("x", conditional={"z": [-1.0, 0.5]}, target="linear")
    rows = np.array([[0.0, 1.0, 0.0, -1.0], [0.0, 1.0, 0.0, 0.5]])
    assert_draws(table, rows @ mean, np.sqrt(np.diag(rows @ covariance @ rows.T)))


def test_slopes_of_draws_of_y_are_refused():
    result = pgm.formula("y ~ x", pd.DataFrame({"x": X, "y": X + NOISE})).cavi()
    with pytest.raises(ValueError, match="target must be 'mean', 'linear' or a predictor"):
        result.slopes("x", target="response")


def test_slopes_of_whole_and_single_numbers_are_of_doubles():
    frame = pd.DataFrame({"x": np.arange(N) // 2, "y": X + NOISE})
    tables = [
        pgm.formula("y ~ x", frame.astype({"x": kind})).cavi().slopes("x") for kind in ("int64", "float32", float)
    ]
    for table in tables[:2]:
        np.testing.assert_allclose(table.iloc[:, 1:].astype(float), tables[2].iloc[:, 1:].astype(float), rtol=1e-6)


@pytest.mark.parametrize("text", ["y ~ 0 + g", "y ~ 0 + C(g)", "y ~ g - 1", "y ~ 0 + g + x", "y ~ 0 + x + g"])
def test_levels_without_an_intercept_have_the_mean_of_y_as_prior_mean(text):
    frame = pd.DataFrame({"g": G, "x": 500.0 + X, "y": 1e4 + 8.3 * NOISE})
    result = pgm.formula(text, frame, priors={"scale": pgm.Fixed(8.3)}).cavi()
    y, indicators = frame["y"].to_numpy(), (G[:, None] == ["a", "b", "c"]).astype(float)
    B, means, times = indicators, np.full(3, y.mean()), np.full(3, 2.5)
    if "x" in text:
        B, means, times = np.column_stack([B, X - X.mean()]), np.append(means, 0.0), np.append(times, 1.0)
    mean, covariance = normal_posterior(B, y, means, times * 2.5 * y.std() / B.std(axis=0), 8.3)
    summary = result.summary()
    levels = summary[summary.index.str.contains("g")]
    # The levels of the summary are at x = 0.
    origin = np.column_stack([np.eye(3), *[np.full(3, -500.0 - X.mean())] * ("x" in text)])
    np.testing.assert_allclose(levels["mean"], origin @ mean, rtol=1e-7)
    np.testing.assert_allclose(levels["sd"], np.sqrt(np.diag(origin @ covariance @ origin.T)), rtol=1e-6)
    if "x" in text:
        assert summary.loc["x", "mean"] == pytest.approx(mean[3], rel=1e-6)
    assert_draws(result.predictions(), B @ mean, np.sqrt(np.einsum("ij,jk,ik->i", B, covariance, B)))


def test_levels_without_an_intercept_of_counts_have_the_logarithm_of_the_mean_as_prior_mean():
    counts = np.random.default_rng(1).poisson(4e4, N)
    summary = pgm.formula("y ~ 0 + g", pd.DataFrame({"g": G, "y": counts}), family="poisson").gaussian_vi().summary()
    np.testing.assert_allclose(summary["mean"], [np.log(counts[g == G].mean()) for g in "abc"], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "family", "mean"),
    [("y ~ 0 + g", "bernoulli", 0.0), ("y ~ 0 + x", "gaussian", 0.0), ("y ~ 0 + g:x", "gaussian", 0.0)],
)
def test_without_a_constant_the_prior_mean_is_zero(text, family, mean):
    frame = pd.DataFrame({"g": G, "x": 5.0 + X, "y": np.arange(N) % 2 + 0.0})
    assert pgm.formula(text, frame, family=family).terms[0].mean == mean


def test_levels_of_a_second_predictor_have_the_prior_mean_of_its_intercept():
    frame = pd.DataFrame({"g": G, "y": np.arange(N) % 4})
    with_levels, with_intercept = (
        pgm.formula(["y ~ 1", f"f[1] ~ {text}"], frame, family="zero_inflated_poisson") for text in ("0 + g", "1 + g")
    )
    assert with_levels.terms[1].mean == with_intercept.terms[1].mean


def test_a_prior_of_the_intercept_is_the_one_that_is_given():
    y = np.array([10.0, 11.0, 10.5, 9.5])
    priors = {"Intercept": dist.Normal(0.0, 0.1), "scale": pgm.Fixed(1.0)}
    summary = pgm.formula("y ~ 1", pd.DataFrame({"y": y}), priors=priors).cavi().summary()
    # y.sum() / (4 + 1 / 0.1^2) and (4 + 1 / 0.1^2)^-1/2.
    assert summary.loc["Intercept", "mean"] == pytest.approx(41.0 / 104.0)
    assert summary.loc["Intercept", "sd"] == pytest.approx(104.0**-0.5)


def test_a_prior_of_the_intercept_of_counts_is_the_one_that_is_given():
    y = np.array([3.0, 5.0, 4.0, 6.0])
    priors = {"Intercept": dist.Normal(0.3, 0.2)}
    summary = pgm.formula("y ~ 1", pd.DataFrame({"y": y}), family="poisson", priors=priors).gaussian_vi().summary()

    def density(b, power):
        return b**power * np.exp(y.sum() * b - 4.0 * np.exp(b) - 0.5 * ((b - 0.3) / 0.2) ** 2 - 20.0)

    mass, first = (integrate.quad(density, -2.0, 3.0, args=(power,))[0] for power in (0, 1))
    # The variational mean of 18 events differs by a thousandth of a deviation.
    assert summary.loc["Intercept", "mean"] == pytest.approx(first / mass, abs=1e-3)


GIVEN = {"Intercept": (3.0, 0.5), "x": (-2.0, 0.2), "g[T.b]": (1.0, 0.3)}


@pytest.fixture(scope="module")
def with_prior_means():
    """A regression whose coefficients have prior means, its result, and its posterior in closed form."""
    frame = pd.DataFrame({"x": 4.0 + X, "g": G, "e": np.abs(NOISE), "y": 0.5 * X + NOISE})
    priors = {name: dist.Normal(*pair) for name, pair in GIVEN.items()} | {"scale": pgm.Fixed(1.0)}
    regression = pgm.formula("y ~ x + g + offset(e)", frame, priors=priors)
    B = np.column_stack([np.ones(N), G == "b", G == "c", frame["x"]]).astype(float)
    y = frame["y"].to_numpy()
    mean, spread = np.array([3.0, 1.0, 0.0, -2.0]), np.array([0.5, 0.3, 2.5 * y.std() / B[:, 2].std(), 0.2])
    return frame, regression.cavi(), B, mean, *normal_posterior(B, y - frame["e"].to_numpy(), mean, spread)


def test_summary_has_prior_means_of_coefficients(with_prior_means):
    _, result, _, _, mean, covariance = with_prior_means
    summary = result.summary().loc[["Intercept", "g[T.b]", "g[T.c]", "x"]]
    np.testing.assert_allclose(summary["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(summary["sd"], np.sqrt(np.diag(covariance)), rtol=1e-6)


def test_predictions_and_slopes_have_prior_means_of_coefficients(with_prior_means):
    frame, result, B, _, mean, covariance = with_prior_means
    deviation = np.sqrt(np.einsum("ij,jk,ik->i", B, covariance, B))
    for target in ("mean", "linear"):
        assert_draws(result.predictions(target=target), B @ mean + frame["e"], deviation)
        assert_draws(result.slopes("x", target=target), mean[3], np.sqrt(covariance[3, 3]))
    C = B - B.mean(axis=0)
    assert_draws(result.effects("linear"), C @ mean, np.sqrt(np.einsum("ij,jk,ik->i", C, covariance, C)))
    new = frame.head(3).assign(x=[0.0, 10.0, -10.0])
    table = result.comparisons({"x": [0.0, 2.0]}, new)
    assert_draws(table, 2.0 * mean[3], 2.0 * np.sqrt(covariance[3, 3]))


def test_an_excluded_term_is_at_its_prior_mean(with_prior_means):
    frame, result, B, prior_mean, *_ = with_prior_means
    table = result.predictions(exclude=["linear"])
    np.testing.assert_allclose(table["mean"], B @ prior_mean + frame["e"], rtol=1e-9)
    np.testing.assert_allclose(table["sd"], 0.0, atol=1e-9)


def test_prior_means_of_coefficients_are_loaded(with_prior_means, tmp_path):
    frame, result, *_ = with_prior_means
    loaded = pgm.load_formula(result.save(tmp_path / "result.npz"))
    pd.testing.assert_frame_equal(loaded.predictions(frame.head(5)), result.predictions(frame.head(5)))
    pd.testing.assert_frame_equal(loaded.summary(), result.summary())


def test_a_prior_mean_of_a_slope_leaves_the_default_of_the_intercept():
    frame = pd.DataFrame({"x": 1e6 + X, "y": 0.5 * X + NOISE})
    result = pgm.formula("y ~ x", frame, priors={"x": dist.Normal(2.0, 0.1), "scale": pgm.Fixed(1.0)}).cavi()
    y, B = frame["y"].to_numpy(), np.column_stack([np.ones(N), X - X.mean()])
    mean, covariance = normal_posterior(B, y, np.array([y.mean(), 2.0]), np.array([2.5**2 * y.std(), 0.1]))
    assert result.summary().loc["x", "mean"] == pytest.approx(mean[1], rel=1e-6)
    assert_draws(result.predictions(), B @ mean, np.sqrt(np.einsum("ij,jk,ik->i", B, covariance, B)))


def test_a_prior_of_one_level_is_at_the_origin():
    frame = pd.DataFrame({"g": G, "x": 5.0 + X, "y": 100.0 + NOISE})
    priors = {"g[b]": dist.Normal(90.0, 0.5), "scale": pgm.Fixed(1.0)}
    summary = pgm.formula("y ~ 0 + g + x", frame, priors=priors).cavi().summary()
    B = np.column_stack([*(g == G for g in "abc"), frame["x"]]).astype(float)
    y = frame["y"].to_numpy()
    of_levels = 2.5 * np.sqrt(1.0 + (frame["x"].mean() / X.std()) ** 2)
    spread = 2.5 * y.std() / B.std(axis=0) * np.array([of_levels, of_levels, of_levels, 1.0])
    spread[1] = 0.5
    mean, covariance = normal_posterior(B, y, np.array([y.mean(), 90.0, y.mean(), 0.0]), spread)
    np.testing.assert_allclose(summary["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(summary["sd"], np.sqrt(np.diag(covariance)), rtol=1e-6)


def test_offsets_and_prior_means_of_classes_are_of_every_class():
    frame = pd.DataFrame({"x": X, "e": np.abs(NOISE), "y": np.array(["a", "b", "c"])[np.arange(N) % 3]})
    priors = {"x": dist.Normal(2.0, 0.1)}
    regression = pgm.formula("y ~ x + offset(e)", frame, family="categorical", priors=priors)
    result = regression.gaussian_vi()
    # At their prior means the classes have log odds of the offset and the line, about their means, against the first.
    table = result.predictions(frame.head(4), exclude=["linear"])
    odds = np.exp(frame["e"] - frame["e"].mean() + 2.0 * (X - X.mean()))[:4]
    expected = np.column_stack([1.0 / (1.0 + 2.0 * odds), odds / (1.0 + 2.0 * odds), odds / (1.0 + 2.0 * odds)])
    np.testing.assert_allclose(table["mean"].to_numpy().reshape(4, 3), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (dist.Laplace(0.0, 1.0), r"must be dist.Normal\(mean, sd\), dist.StudentT\(df, mean, scale\) or"),
        (dist.ImproperUniform(constraints.positive, (), ()), r"must be dist.Normal\(mean, sd\)"),
        ("uniform", r"must be dist.Normal\(mean, sd\)"),
        (2.0, r"must be dist.Normal\(mean, sd\)"),
        (dist.Normal(np.zeros(2), 1.0), r"must be dist.Normal\(mean, sd\)"),
        (dist.Normal(0.0, np.inf), "must have a finite mean, a finite sd or scale > 0"),
    ],
)
def test_another_prior_of_a_coefficient_is_refused(prior, message):
    with pytest.raises(ValueError, match=message):
        pgm.formula("y ~ x", pd.DataFrame({"x": X, "y": X}), priors={"x": prior})


def priors_of(regression):
    """The priors of a regression's likelihood, and of its kernels in the order of the terms."""
    parameters = [*regression.model.likelihood.parameters.values()]
    for gp in regression.model.gps:
        leaves = jax.tree.leaves(gp.kernel, is_leaf=lambda node: isinstance(node, pgm.Parameter))
        parameters += [leaf for leaf in leaves if isinstance(leaf, pgm.Parameter)]
    return [parameter.prior for parameter in parameters if parameter.prior is not None]


def test_default_priors_of_standard_deviations_are_half_student_of_the_scale_of_y_and_of_the_column():
    rng = np.random.default_rng(1)
    n = 40
    frame = pd.DataFrame({"x": rng.normal(3.0, 20.0, n), "z": rng.normal(0.0, 0.1, n), "g": list("abcde") * 8})
    frame["y"], frame["w"] = rng.normal(50.0, 7.0, n), rng.integers(1, 4, n)
    # A row of weight 0 counts for nothing, and one of weight 2 twice.
    frame.loc[0, ["y", "x", "w"]] = 1e6, 1e5, 0.0
    text = "y ~ (1 + x|g) + (0 + x|g) + s(x) + gp(x, by=num(z))"
    priors = priors_of(pgm.formula(text, frame, weights="w"))
    scale, smooth, _, varying, _, intercept, slope, _, alone = priors
    times = np.repeat(np.arange(n), frame["w"].astype(int))
    s, of_x, of_z = (frame[name].to_numpy()[times].std() for name in ("y", "x", "z"))
    values = np.array([0.1, 1.0, 5.0, 50.0])
    # The density of a half-Student-t is twice that of the Student-t; of the square, over the derivative 2 sd.
    expected = {scale: s, intercept: s, slope: s / of_x, alone: s / of_x, smooth: s, varying: s / of_z}
    for prior, unit in expected.items():
        density = 2.0 * stats.t(3, scale=2.5 * unit).pdf(values)
        if prior is scale:
            np.testing.assert_allclose(np.exp(prior.log_prob(values)), density, rtol=1e-5)
        else:
            np.testing.assert_allclose(np.exp(prior.log_prob(values**2)), density / (2.0 * values), rtol=1e-5)


def test_default_priors_of_a_logarithm_are_of_a_scale_of_at_least_one():
    near, far = np.exp(0.1 * NOISE), np.exp(4.0 * NOISE)
    counts = np.where(NOISE > 0.0, np.round(far), 0.0)
    expected = {
        ("lognormal", tuple(near)): 1.0,
        ("lognormal", tuple(far)): 4.0 * NOISE.std(),
        ("gamma", tuple(far)): 4.0 * NOISE.std(),
        ("poisson", tuple(counts)): np.log(np.where(counts > 0.0, counts, 0.5)).std(),
        ("bernoulli", tuple(counts > 0.0)): 1.0,
    }
    for (family, y), scale in expected.items():
        regression = pgm.formula("y ~ x + (1|g)", pd.DataFrame({"x": X, "g": G, "y": y}), family=family)
        assert priors_of(regression)[-1].prior.scale == pytest.approx(2.5 * scale, rel=1e-6)
        slope = regression.model.gps[0].kernel.kernel.variance.value[1]
        assert slope == pytest.approx((2.5 * scale / X.std()) ** 2, rel=1e-6)


@pytest.mark.parametrize(
    "response", ["Surv(t, event)", "Surv(t - t + 0.0, t, event)", "Surv(lower, upper, type='interval2')"]
)
def test_default_priors_of_times_are_of_events(response):
    # Censored at times that are far above those of events.
    t, event = np.exp(np.where(X > 0.0, 10.0 + X, X)), (X <= 0.0).astype(float)
    frame = pd.DataFrame({"t": t, "event": event, "lower": t, "upper": np.where(event == 1.0, t, np.inf)})
    regression = pgm.formula(f"{response} ~ 1", frame, family="weibull")
    assert regression.terms[0].mean == pytest.approx(np.log(t[event == 1.0]).mean())
    assert regression.model.gps[0].kernel.kernel.variance.value[0] == pytest.approx(2.5**4)
    (shape,) = priors_of(regression)
    assert (shape.loc, shape.scale) == (0.0, 3.0)


@pytest.mark.parametrize(
    ("family", "response"),
    [
        (pgm.StudentT(pgm.Fixed(4.0), 1.0), "y"),
        (pgm.HeteroscedasticGaussian(2.0), "y"),
        (pgm.CensoredGaussian(1.0), "c(y, code, y)"),
        (pgm.NegativeBinomial2(1.0), "count"),
    ],
)
def test_default_priors_of_a_likelihood_are_in_the_units_of_its_mean(family, response):
    frame = pd.DataFrame({"x": X, "y": 1e3 + 50.0 * NOISE, "count": np.round(np.exp(8.0 + 2.0 * NOISE))})
    # A censored value is no measurement.
    frame["code"] = np.where(X > 1.0, 0.0, 1.0)
    used = (X <= 1.0) | ("code" not in response)
    frame.loc[~used, "y"] = 1e6
    regression = pgm.formula(f"{response} ~ x", frame, family=family)
    y = np.log(frame["count"]) if response == "count" else frame["y"]
    level = np.log(frame["count"].mean()) if response == "count" else y[used].mean()
    assert regression.terms[0].mean == pytest.approx(level)
    spread = np.sqrt(regression.model.gps[0].kernel.kernel.variance.value)
    np.testing.assert_allclose(spread, 2.5 * y[used].std(ddof=0) / np.array([0.4, X.std()]), rtol=1e-6)


def test_default_priors_of_times_are_of_all_where_none_is_of_an_event():
    frame = pd.DataFrame({"lower": np.exp(X), "upper": np.exp(X) + 1.0})
    regression = pgm.formula("Surv(lower, upper, type='interval2') ~ 1", frame, family="weibull")
    assert regression.terms[0].mean == pytest.approx(X.mean())


def test_default_priors_whose_variances_overflow_are_refused():
    frame = pd.DataFrame({"x": X, "g": G, "y": NOISE})
    # The sum of the squares does not overflow, but the variance of the prior of the intercept does.
    far, small = frame.head(6).assign(y=[1e154, *NOISE[:5]]), frame.assign(y=1e100 * NOISE, x=1e-60 * X)
    for changed in (far, small):
        with pytest.raises(ValueError, match=r"the prior of \w+ has a standard deviation of .*Change the units"):
            pgm.formula("y ~ x", changed)
    with pytest.raises(ValueError, match=r"effects have a scale of .*Change the units"):
        pgm.formula("y ~ (0 + x|g)", small)


# betareg's GasolineYield: the end points in degrees Fahrenheit and the percentages of gasoline, by batch.
GASOLINE = {
    1: [(365, 8.5), (379, 14.7), (428, 18.0)],
    2: [(351, 14.0), (424, 23.2)],
    3: [(267, 10.0), (360, 24.8), (402, 31.7)],
    4: [(285, 5.0), (365, 17.6), (444, 32.1)],
    5: [(235, 6.9), (300, 15.2), (365, 26.0), (410, 33.6)],
    6: [(307, 14.4), (367, 26.8), (395, 34.9)],
    7: [(218, 8.0), (273, 13.1), (347, 26.6)],
    8: [(212, 7.4), (272, 18.2), (340, 30.4)],
    9: [(235, 2.8), (275, 6.4), (358, 16.1), (416, 27.8)],
    10: [(205, 12.2), (275, 22.3), (345, 34.7), (407, 45.7)],
}


@pytest.mark.slow
def test_default_priors_leave_a_large_precision_and_small_slopes_to_the_data():
    rows = [(batch, degrees / 100.0, share / 100.0) for batch, pairs in GASOLINE.items() for degrees, share in pairs]
    frame = pd.DataFrame(rows, columns=["batch", "temp", "y"]).astype({"batch": str})
    summary = pgm.formula("y ~ temp + (1|batch)", frame, family="beta").fit().summary()
    # glmmTMB by maximum likelihood: 1.0829 with a standard error of 0.0494, and a precision of 302.
    assert summary.loc["temp", "sd"] == pytest.approx(0.0494, rel=0.12)
    assert summary.loc["temp", "mean"] == pytest.approx(1.0829, abs=0.15 * 0.0494)
    assert summary.loc["precision", "mean"] == pytest.approx(302.0, rel=0.15)


# Priors without a median and a finite mean, whose mode is 1 in any unit.
WEAK = {"InverseGamma": dist.InverseGamma(1e-3, 1e-3), "sd": pgm.sd(dist.InverseGamma(1e-3, 1e-3))}


def of_groups(unit, prior):
    y = unit * (np.repeat([-2.0, -1.0, 0.5, 2.5], 15) + NOISE)
    frame = pd.DataFrame({"y": y, "g": np.repeat(list("abcd"), 15)})
    return pgm.formula("y ~ 1 + (1|g)", frame, priors={"(1|g)": {"variance": prior}} if prior else None)


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_prior_of_a_variance_starts_in_the_units_of_the_data(name):
    weak, default = (of_groups(1e3, prior).model.gps[1].kernel.kernel.variance for prior in (WEAK[name], None))
    assert weak.declared_prior is WEAK[name]
    assert weak.value == default.value
    # A prior with a median starts there.
    assert of_groups(1e3, dist.HalfCauchy(2.0)).model.gps[1].kernel.kernel.variance.value == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fit", "integrate"])
def test_a_weak_prior_of_a_variance_is_one_in_any_unit(engine):
    small, large = (getattr(of_groups(unit, WEAK["InverseGamma"]), engine)().summary() for unit in (1.0, 1e3))
    np.testing.assert_allclose(large["mean"], 1e3 * small["mean"], rtol=0.02, atol=0.1)


# Effects and coefficients of the levels of groups: against the normal posterior in closed form.


GROUPS_N = 40
GROUPS_RNG = np.random.default_rng(11)
DATA = pd.DataFrame(
    {
        "x": GROUPS_RNG.normal(3.0, 2.0, GROUPS_N),
        "z": GROUPS_RNG.normal(size=GROUPS_N),
        "h": GROUPS_RNG.choice(["u", "v"], GROUPS_N),
    }
)
# Groups of 5, 10 and 25 rows; numbers, which are levels in a group.
DATA["g"] = np.repeat([30, 7, 12], [5, 10, 25])
DATA["y"] = (
    4.0
    + DATA["x"]
    + DATA["g"].map({30: 2.0, 7: -1.0, 12: 0.5}) * (1.0 + 0.2 * DATA["x"])
    + GROUPS_RNG.normal(size=GROUPS_N)
)
SCALE, SDS, CORRELATION, SD_OF_Z = 1.3, (1.5, 0.4), -0.6, 0.7
# Of deviations of 4,000 draws: four standard errors.
TOLERANCE = 4.0 / np.sqrt(2.0 * 4000.0)


def closed_form(features, mean, covariance):
    """The posterior mean and covariance of effects of features (n, k), given the scale of the noise."""
    precision = features.T @ features / SCALE**2 + np.linalg.inv(covariance)
    moved = features.T @ (DATA["y"].to_numpy() - features @ mean) / SCALE**2
    return mean + np.linalg.solve(precision, moved), np.linalg.inv(precision)


@pytest.fixture(scope="module")
def grouped():
    """A regression with given coefficients' priors and variances, its exact result, and its effects by name."""
    first, second = (SDS[0] ** 2, SDS[1] ** 2)
    priors = {
        "Intercept": dist.Normal(3.0, 2.0),
        "x": dist.Normal(1.5, 0.3),
        "(1 + x|g)": {
            "variance": pgm.Fixed([first, second]),
            "root": pgm.Fixed([[1.0, 0.0], [CORRELATION, np.sqrt(1.0 - CORRELATION**2)]]),
        },
        "(0 + z|g:h)": {"variance": pgm.Fixed(SD_OF_Z**2)},
        "sigma": pgm.Fixed(SCALE),
    }
    result = pgm.formula("y ~ x + (1 + x|g) + (0 + z|g:h)", DATA, priors=priors).cavi()
    names, columns, mean = ["Intercept", "x"], [np.ones(GROUPS_N), DATA["x"]], [3.0, 1.5]
    blocks = [np.diag([2.0**2, 0.3**2])]
    product = CORRELATION * SDS[0] * SDS[1]
    for level in (30, 7, 12):
        names += [(level, "Intercept"), (level, "x")]
        columns += [DATA["g"] == level, (DATA["g"] == level) * DATA["x"]]
        blocks.append(np.array([[first, product], [product, second]]))
    both = DATA["g"].astype(str) + ":" + DATA["h"]
    for level in sorted(set(both)):
        names.append((level, "z"))
        columns.append((both == level) * DATA["z"])
        blocks.append(np.array([[SD_OF_Z**2]]))
    size, at = len(names), 0
    covariance = np.zeros((size, size))
    for block in blocks:
        covariance[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    features = np.column_stack(columns).astype(float)
    moments = closed_form(features, np.array(mean + [0.0] * (size - 2)), covariance)
    return result, names, *moments


def test_ranef_has_the_effects_of_each_level(grouped):
    result, names, mean, covariance = grouped
    table = result.ranef()
    assert list(table.columns[:3]) == ["term", "group", "effect"]
    places = [names.index(pair) for pair in zip(table["group"], table["effect"], strict=True)]
    assert sorted(places) == list(range(2, len(names)))
    assert set(table["term"]) == {"(1 + x|g)", "(0 + z|g:h)"}
    np.testing.assert_allclose(table["mean"], mean[places], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(table["sd"], np.sqrt(np.diag(covariance))[places], rtol=TOLERANCE)


def test_coef_has_the_sums_of_effects_and_coefficients(grouped):
    result, names, mean, covariance = grouped
    table = result.coef()
    # z has no coefficient.
    weights = np.zeros((len(table), len(names)))
    for row, (group, effect) in enumerate(zip(table["group"], table["effect"], strict=True)):
        weights[row, names.index((group, effect))] = 1.0
        if effect in names:
            weights[row, names.index(effect)] = 1.0
    np.testing.assert_allclose(table["mean"], weights @ mean, rtol=1e-6, atol=1e-8)
    deviations = np.sqrt(np.einsum("ij,jk,ik->i", weights, covariance, weights))
    np.testing.assert_allclose(table["sd"], deviations, rtol=TOLERANCE)


def test_coef_of_further_predictors_and_of_classes_have_their_own_coefficients():
    frame = DATA.assign(label=np.array(["a", "b", "c"])[np.arange(GROUPS_N) % 3])
    classes = pgm.formula("label ~ z + (1 + z|h)", frame, family="categorical").gaussian_vi()
    scales = pgm.formula(["y ~ z", "f[1] ~ x + (1|h)"], frame, family=pgm.HeteroscedasticGaussian(2.0)).gaussian_vi()
    for result, name in ((classes, "{}[{}]"), (scales, "f[1]: {}")):
        effects, sums, summary = result.ranef(), result.coef(), result.summary()
        levels = effects.get("level", effects["effect"])
        names = [name.format(effect, level) for effect, level in zip(effects["effect"], levels, strict=True)]
        np.testing.assert_allclose(sums["mean"] - effects["mean"], summary.loc[names, "mean"], rtol=1e-5, atol=1e-6)
    assert list(classes.ranef()["level"]) == ["b", "c"] * 4
    assert set(scales.ranef()["term"]) == {"f[1]: (1|h)"}


def test_effects_of_groups_without_groups_are_refused():
    result = pgm.formula("y ~ x + s(z)", DATA).cavi()
    for call in (result.ranef, result.coef):
        with pytest.raises(
            ValueError, match=r"need a term of groups, such as \(1\|g\); the terms are 'linear', 's\(z\)'"
        ):
            call()
    assert result.VarCorr().empty


@pytest.mark.slow
def test_varcorr_has_the_standard_deviations_and_the_correlation_of_draws():
    result = pgm.formula("y ~ x + s(z) + (1 + x|g)", DATA).gibbs(num_samples=50, num_warmup=10, num_chains=1)
    names = ["sigma", "sd(Intercept | g)", "sd(x | g)", "cor(Intercept, x | g)"]
    table = result.VarCorr()
    assert list(table.index) == names
    pd.testing.assert_frame_equal(table, result.summary().loc[names])


@pytest.mark.slow
def test_varcorr_without_priors_is_that_of_lme4():
    path = Path(os.environ.get("PGMODELS_DATA", "")) / "r" / "sleepstudy.csv"
    if not path.is_file():
        pytest.skip("sleepstudy.csv is not in the folder r of PGMODELS_DATA")
    # Start values without priors, and coefficients with wide ones, are integrated out: REML.
    values = {"variance": [500.0, 30.0], "root": [[1.0, 0.0], [0.1, np.sqrt(0.99)]]}
    priors = {"(1 + Days|Subject)": values, "sigma": 20.0}
    frame = pd.read_csv(path, dtype={"Subject": str})
    result = pgm.formula("Reaction ~ Days + (1 + Days|Subject)", frame, priors=priors).fit(correct=False)
    estimates = result.VarCorr()["mean"].astype(float)
    # lme4 1.1: 25.592, 24.741, 5.922 and 0.066; the coefficients 251.405 (6.825) and 10.467 (1.546).
    np.testing.assert_allclose(estimates, [25.592, 24.741, 5.922, 0.066], rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(result.summary().loc[["Intercept", "Days"], "sd"], [6.825, 1.546], rtol=2e-3)
    # Of the first subject: 2.259 and 9.199, which the priors of the coefficients move by a thousandth of their sds.
    np.testing.assert_allclose(result.ranef()["mean"].iloc[:2], [2.259, 9.199], atol=0.02)


@pytest.mark.parametrize(
    "priors", [{"sd(Intercept | g)": dist.HalfNormal(2.5)}, {"(1|g)": {"sd": dist.HalfNormal(2.5)}}]
)
def test_priors_of_standard_deviations_by_name_are_refused_with_what_to_write(priors):
    with pytest.raises(ValueError, match="standard deviation needs a prior of the variance") as error:
        pgm.formula("y ~ (1|g)", DATA, priors=priors)
    written = str(error.value).rpartition("{'variance': ")[2].partition("}")[0]
    regression = pgm.formula(
        "y ~ (1|g)", DATA, priors={"(1|g)": {"variance": eval(written, {"pgm": pgm, "dist": dist})}}
    )
    assert "sd(HalfNormal(2.5))" in repr(regression)


# Times as responses of formulas: R's Surv, against densities of SciPy and maxima of truncated likelihoods.


TIMES_N = 200
TIMES_RNG = np.random.default_rng(21)
TIMES_X = TIMES_RNG.normal(size=TIMES_N)
SHAPE, LEVEL, SLOPE = 1.4, 1.0, 0.5
# People who enter late are seen only if they have no event before.
ENTRY = np.where(np.arange(TIMES_N) % 4 == 0, 0.0, TIMES_RNG.uniform(0.0, 3.0, TIMES_N))
LAWS = {
    "weibull": lambda f, shape=SHAPE: stats.weibull_min(shape, scale=np.exp(f)),
    "loglogistic": lambda f, shape=SHAPE: stats.fisk(shape, scale=np.exp(f)),
}


def late(family, seed=1):
    """Times after their entry, the last ones censored."""
    law = LAWS[family](LEVEL + SLOPE * TIMES_X)
    time = law.isf(law.sf(ENTRY) * np.random.default_rng(seed).uniform(size=TIMES_N))
    end = ENTRY + 4.0
    return pd.DataFrame(
        {"x": TIMES_X, "entry": ENTRY, "exit": np.minimum(time, end), "died": (time <= end).astype(int)}
    )


@pytest.mark.parametrize("family", LAWS)
@pytest.mark.parametrize("is_censored", [True, False])
def test_time_after_an_entry_has_its_density_over_the_survival_until_then(family, is_censored):
    data = late(family)
    data = data if is_censored else data[data["died"] == 1].reset_index(drop=True)
    regression = pgm.formula("Surv(entry, exit, died) ~ x", data, family=family, priors={"shape": pgm.Fixed(SHAPE)})
    np.testing.assert_allclose(regression.y, data[["exit", "died", "entry"]])
    f = np.random.default_rng(0).normal(size=len(data))
    law, died = LAWS[family](f), data["died"].to_numpy()
    expected = np.where(died == 1, law.logpdf(data["exit"]), law.logsf(data["exit"])) - law.logsf(data["entry"])
    np.testing.assert_allclose(log_density(regression.model.likelihood, regression.y, f[:, None]), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", LAWS)
def test_fit_of_late_entries_is_at_the_maximum_of_the_truncated_likelihood(family):
    data = late(family)
    wide = {"Intercept": dist.Normal(0.0, 100.0), "x": dist.Normal(0.0, 100.0)}
    shape = {"shape": dist.LogNormal(0.0, 100.0)}
    result = pgm.formula("Surv(entry, exit, died) ~ x", data, family=family, priors=wide | shape).fit()

    def loss(values):
        law = LAWS[family](values[0] + values[1] * TIMES_X, np.exp(values[2]))
        died = data["died"] == 1
        return -np.sum(np.where(died, law.logpdf(data["exit"]), law.logsf(data["exit"])) - law.logsf(ENTRY))

    best = optimize.minimize(loss, [0.5, 0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    curvature = hessian(loss, best.x)
    spread = np.sqrt(np.diag(np.linalg.inv(curvature)))
    summary = result.summary()
    # Means and modes differ by a share of the deviations.
    np.testing.assert_allclose(summary["mean"].iloc[:2], best.x[:2], atol=0.25 * spread.max())
    np.testing.assert_allclose(summary["sd"].iloc[:2], spread[:2], rtol=0.1)
    assert np.log(summary.loc["shape", "mean"]) == pytest.approx(best.x[2], abs=0.5 * spread[2])
    # Without the entries the shape is far off.
    wrong = pgm.formula("Surv(exit, died) ~ x", data, family=family, priors=wide | shape).fit().summary()
    assert wrong.loc["shape", "mean"] > np.exp(best.x[2] + 2.0 * spread[2])


def hessian(loss, x, step=1e-4):
    eye = step * np.eye(len(x))
    return np.array(
        [
            [(loss(x + a + b) - loss(x + a - b) - loss(x - a + b) + loss(x - a - b)) / (4 * step**2) for b in eye]
            for a in eye
        ]
    )


def test_rate_after_entries_is_events_over_the_time_at_risk():
    """With shape 1 the posterior of exp(-f) under a wide prior has the mean of events over exposure."""
    data = late("weibull").assign(x=0.0)
    priors = {"Intercept": dist.Normal(0.0, 1e3), "shape": pgm.Fixed(1.0)}
    result = pgm.formula("Surv(entry, exit, died) ~ 1", data, family="weibull", priors=priors).gaussian_vi()
    events, exposure = data["died"].sum(), (data["exit"] - data["entry"]).sum()
    # f is log-gamma; the Gaussian of least divergence has the variance 1 / d and this mean.
    expected = np.log(exposure / events) + 0.5 / events
    assert result.summary().loc["Intercept", "mean"] == pytest.approx(expected, abs=1e-5)
    assert result.summary().loc["Intercept", "sd"] == pytest.approx(events**-0.5, rel=1e-4)


def test_predictions_of_new_data_are_of_times_without_an_entry():
    data = late("weibull")
    priors = {"shape": pgm.Fixed(2.0), "Intercept": dist.Normal(0.0, 3.0), "x": dist.Normal(0.0, 2.0)}
    result = pgm.formula("Surv(entry, exit, died) ~ x", data, family="weibull", priors=priors).gaussian_vi()
    new = pd.DataFrame({"x": [0.3, -1.0]})
    mean, variance = result.result.predict_latent(result.regression.read(new)[0])
    # The mean of a Weibull time is exp(f) gamma(1 + 1/shape).
    expected = np.exp(mean[:, 0] + variance[:, 0] / 2) * np.sqrt(np.pi) / 2
    # A thousand draws.
    np.testing.assert_allclose(result.predictions(new)["mean"], expected, rtol=0.02)


INTERVALS = pd.DataFrame(
    {
        "lower": [1.0, np.nan, 2.0, 3.0, -np.inf, 0.0, 2.5],
        "upper": [2.0, 1.5, np.nan, 3.0, 4.0, 0.5, np.inf],
        "x": np.arange(7.0),
    }
)
EXPECTED = [[1, 3, 2], [1.5, 2, 1.5], [2, 0, 2], [3, 1, 3], [4, 2, 4], [0.5, 2, 0.5], [2.5, 0, 2.5]]


@pytest.mark.parametrize("missing", ["raise", "drop", "predict"])
def test_intervals_have_open_ends_that_are_not_missing(missing):
    text = "Surv(lower, upper, type='interval2') ~ x"
    regression = pgm.formula(text, INTERVALS, family="loglogistic", missing=missing)
    np.testing.assert_allclose(regression.y, EXPECTED)
    f = np.linspace(-1.0, 1.0, 7)
    law = LAWS["loglogistic"](f)
    at = lambda column, end: law.cdf(np.nan_to_num(INTERVALS[column], nan=end, posinf=end, neginf=0.0))  # noqa: E731
    exact = INTERVALS["lower"] == INTERVALS["upper"]
    expected = np.where(exact, law.pdf(INTERVALS["upper"].fillna(1.0)), at("upper", np.inf) - at("lower", 0.0))
    fixed = pgm.formula(text, INTERVALS, family="loglogistic", priors={"shape": pgm.Fixed(SHAPE)}).model.likelihood
    np.testing.assert_allclose(log_density(fixed, regression.y, f[:, None]), np.log(expected), rtol=1e-9)


def test_codes_of_intervals_are_those_of_r_and_need_a_second_time_for_code_3_alone():
    data = pd.DataFrame(
        {
            "time": [1.0, 2.0, 3.0, 4.0, 5.0],
            "time2": [np.nan, np.nan, np.nan, 6.0, np.nan],
            "code": [0, 1, 2, 3, 3],
            "x": np.arange(5.0),
        }
    )
    text = "Surv(time, time2, code, type='interval') ~ x"
    with pytest.warns(pgm.FormulaWarning, match=r"1 of 5 rows.*row 4, column 'time2'"):
        regression = pgm.formula(text, data, family="weibull", missing="drop")
    np.testing.assert_allclose(regression.y, [[1, 0, 1], [2, 1, 2], [3, 2, 3], [4, 3, 6]])
    assert pgm.formula(text, data, family="weibull", missing="predict").y[:4].tolist() == regression.y.tolist()
    with pytest.raises(ValueError, match=r"1 of 5 rows have no value.*row 4, column 'time2'"):
        pgm.formula(text, data, family="weibull")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Surv(exit, died)", ["exit", "died"]),
        ("Surv(time=exit, event=died)", ["exit", "died"]),
        ("Surv(time = entry, time2 = exit, event = died)", ["exit", "died", "entry"]),
        ("Surv(exit, status == 2)", ["exit", "died"]),
        ("Surv(exit, outcome == 'dead')", ["exit", "died"]),
        ("Surv(exit)", ["exit", "one"]),
        ("Surv(exit, died, type='left')", ["exit", "left", "exit"]),
        ("Surv(exit / 12, died)", ["months", "died"]),
    ],
)
def test_forms_of_surv_are_those_of_r(response, expected):
    data = late("weibull")
    data = data.assign(
        status=1 + data["died"],
        outcome=np.where(data["died"] == 1, "dead", "alive"),
        one=1,
        left=2 - data["died"],
        months=data["exit"] / 12.0,
    )
    np.testing.assert_allclose(pgm.formula(f"{response} ~ x", data, family="weibull").y, data[expected])


@pytest.mark.parametrize(
    ("response", "family", "message"),
    [
        ("Surv(entry, exit, code)", "weibull", r"code in .* must be 0 or 1; got 2 .* codes of intervals need type="),
        ("Surv(exit, code)", "weibull", r"code in Surv\(exit, code\) must be 0 or 1.*as in code == 2"),
        ("Surv(exit, outcome)", "weibull", "outcome must be numbers; got .* as in outcome == 'a'"),
        ("Surv(exit, entry, died)", "weibull", "must have an entry from 0 to below the exit; got"),
        ("Surv(exit, entry, type='interval2')", "weibull", "must have a lower end that is not above the upper one"),
        ("Surv(9**9**9)", "weibull", r"data, Surv\(9\*\*9\*\*9\) must be finite; got inf"),
        ("Surv(exit, died, type='interval')", "weibull", "must be one of Surv"),
        ("Surv(exit, died, type='mstate')", "weibull", "must be one of Surv"),
        ("Surv(exit, died, origin=3)", "weibull", r"write Surv\(time, event\), Surv\(entry, exit, event\)"),
        ("Surv(exit, died)", "gaussian", "Times need family='weibull', 'loglogistic', 'lognormal' or 'cox'"),
        ("Surv(exit, died)", "poisson", "response of family 'poisson' is a column"),
        ("exit", "weibull", r"is Surv\(time, event\), or Surv\(time\) if all are events; got exit"),
        ("exit | cens(died)", "weibull", r"times Surv\(time, 1 - censored\)"),
    ],
)
def test_times_that_cannot_be_read_are_refused_with_a_remedy(response, family, message):
    data = late("weibull").assign(code=lambda one: one["died"] + 1, outcome="dead")
    with pytest.raises(ValueError, match=message):
        pgm.formula(f"{response} ~ x", data, family=family).gaussian_vi()


def test_file_of_late_entries_predicts_the_same(tmp_path):
    priors = {"shape": pgm.Fixed(1.4)}
    result = pgm.formula("Surv(entry, exit, died) ~ x", late("weibull"), family="weibull", priors=priors).gaussian_vi()
    other = pgm.load_formula(result.save(tmp_path / "fit.npz"))
    new = pd.DataFrame({"x": [0.3]})
    np.testing.assert_allclose(other.predictions(new)["mean"], result.predictions(new)["mean"], rtol=1e-10)
