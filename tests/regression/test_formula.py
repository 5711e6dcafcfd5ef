"""Regression formulas: their grammar, that they build what is written by hand, and their tables."""

import re
import warnings

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest
from numpyro.distributions.constraints import ordered_vector
from scipy import stats

import pgmodels as pgm
from pgmodels.regression.grammar import parse
from pgmodels.regression.terms import with_chain
from pgmodels.runtime.io import read_arrays
from tests.test_cases import BITTERNESS, TENANTS, numbers, table

N = 60
RNG = np.random.default_rng(3)
DATA = pd.DataFrame(
    {
        "age": RNG.normal(40.0, 10.0, N),
        "sex": RNG.choice(["f", "m"], N),
        "treat": RNG.choice(["no", "yes"], N),
        "herd": RNG.choice(list("abcde"), N),
        "lon": RNG.normal(size=N),
        "lat": RNG.normal(size=N),
        "days": RNG.integers(3, 20, N),
        "n": RNG.integers(1, 9, N),
    }
)
PREDICTOR = 0.05 * (DATA["age"] - 40.0) + 0.8 * (DATA["treat"] == "yes") + np.sin(2.0 * DATA["lon"])
DATA["ill"] = RNG.binomial(DATA["n"], 1.0 / (1.0 + np.exp(1.0 - PREDICTOR)))
DATA["weight"] = 50.0 + 5.0 * PREDICTOR + RNG.normal(size=N)
DATA["died"] = np.where(PREDICTOR + RNG.logistic(size=N) > 0.5, "yes", "no")
DATA["count"] = RNG.poisson(DATA["days"] * np.exp(0.3 * PREDICTOR - 1.0))


def test_a_formula_is_read():
    terms = "gp(lon, lat, cov='rbf') + s(age) + treat*sex - 1 + (1|a/b) + (x||g) + offset(log(days))"
    response, parsed = parse(f"p(ill, n) ~ {terms}")
    assert (response.kind, response.arguments) == ("p", ("ill", "n"))
    assert parsed.linear == (("treat",), ("sex",), ("treat", "sex"))
    assert [(call.name, call.arguments) for call in parsed.calls] == [
        ("gp", ("lon", "lat")),
        ("s", ("age",)),
        ("offset", ("log(days)",)),
    ]
    assert parsed.calls[0].options == {"cov": "rbf"}
    groups = [(group.columns, group.effects) for group in parsed.groups]
    assert groups == [(("a",), ((),)), (("a", "b"), ((),)), (("g",), ((),)), (("g",), (("x",),))]


def test_a_smooth_is_not_rougher_than_a_tenth_of_its_range():
    rough, smooth = (gp.kernel.kernel for gp in pgm.formula("weight ~ gp(age) + s(age)", DATA).model.gps[1:])
    distances = np.abs(DATA["age"].to_numpy()[:, None] - DATA["age"].to_numpy())[np.triu_indices(N, 1)]
    priors = [kernel.lengthscale.prior for kernel in (rough, smooth.kernel)]
    low, high = (np.exp(prior.loc + 2.326 * np.array([-1.0, 1.0]) * prior.scale) for prior in priors)
    np.testing.assert_allclose(low, [np.quantile(distances, 0.02), distances.max()], rtol=1e-5)
    np.testing.assert_allclose(high, [0.1 * distances.max(), distances.max()], rtol=1e-5)


def test_an_intercept_and_a_slope_of_a_group_are_correlated():
    priors = {"(1 + age|herd)": {"variance": [0.5, 0.02], "root": pgm.Fixed([[1.0, 0.0], [-0.6, 0.8]])}}
    regression = pgm.formula("weight ~ 0 + lon + (age|herd)", DATA, priors=priors | {"lon": dist.Normal(0.0, 2.0)})
    group = regression.model.gps[1].kernel
    herds = np.searchsorted(sorted(set(DATA["herd"])), DATA["herd"])
    features = np.column_stack([np.ones(N), DATA["age"]])
    covariance = np.array([[0.5, -0.06], [-0.06, 0.02]])
    expected = (herds[:, None] == herds) * (features @ covariance @ features.T)
    np.testing.assert_allclose(group(regression.X, regression.X), expected, rtol=1e-6)


def test_several_effects_of_each_level_are_correlated():
    text = "weight ~ age + (age + lat|herd) + (0 + treat|sex)"
    R = np.array([[1.0, 0.3, -0.5], [0.3, 1.0, 0.2], [-0.5, 0.2, 1.0]])
    of_herd = {"variance": pgm.Fixed([4.0, 0.3, 0.8]), "root": pgm.Fixed(np.linalg.cholesky(R))}
    priors = {"sigma": pgm.Fixed(0.7), "(1+age+lat | herd)": of_herd}
    priors |= {"(0 + treat|sex)": {"variance": pgm.Fixed([2.0, 0.5]), "root": pgm.Fixed(np.eye(2))}}
    result = pgm.formula(text, DATA, priors=priors).gaussian_vi()
    X, herd = np.column_stack([np.ones(N), DATA[["age", "lat"]]]), DATA["herd"].to_numpy()
    treat, sex = pd.get_dummies(DATA["treat"]).to_numpy(float), DATA["sex"].to_numpy()
    deviations = np.sqrt([4.0, 0.3, 0.8])
    line, others = result.regression.terms[0], result.regression.terms[1:]
    assert [term.name for term in others] == ["(1 + age + lat|herd)", "(0 + treat|sex)"]
    B = result.regression.X[:, result.regression.blocks[0]]
    K = B @ np.diag(np.asarray(line.kernel.variance.value)) @ B.T + 0.49 * np.eye(N)
    K += (X * deviations) @ R @ (X * deviations).T * (herd[:, None] == herd)
    K += (treat * [2.0, 0.5]) @ treat.T * (sex[:, None] == sex)
    expected = stats.multivariate_normal(np.full(N, line.mean), K).logpdf(DATA["weight"])
    assert result.result.elbo == pytest.approx(expected, abs=1e-6)
    # Effects: E b = D R D X^T K^-1 (y - mean) over the rows of a level.
    pull = np.linalg.solve(K, DATA["weight"] - line.mean)
    level = herd[0]
    effects = np.outer(deviations, deviations) * R @ (X[herd == level].T @ pull[herd == level])
    table = result.ranef()
    rows = table[(table["term"] == "(1 + age + lat|herd)") & (table["group"] == level)]
    assert list(rows["effect"]) == ["Intercept", "age", "lat"]
    np.testing.assert_allclose(rows["mean"], effects, atol=1e-6)
    with pytest.raises(ValueError, match="has 9 effects of each level"):
        pgm.formula("weight ~ (poly(age, 9) - 1|herd)", DATA)


def test_weights_are_in_the_formula(tmp_path):
    data = DATA.assign(w=np.arange(N) % 3)
    result = pgm.formula("p(ill, n) | weights(w) ~ age", data, family="binomial").gaussian_vi()
    expected = pgm.formula("ill | trials(n) ~ age", data, family="binomial", weights="w").gaussian_vi().summary()
    for one in (result, pgm.load_formula(result.save(tmp_path / "f.npz"))):
        pd.testing.assert_frame_equal(one.summary(), expected)
    with pytest.raises(ValueError, match="has weights too: give one of both"):
        pgm.formula("weight | weights(w) ~ age", data, weights="w")


def test_correlations_of_effects_are_learned():
    rng, groups, size = np.random.default_rng(1), 40, 800
    S = np.array([[1.0, 0.5, -0.3], [0.5, 0.6, 0.1], [-0.3, 0.1, 0.4]])
    b, g, (x, z, noise) = (
        rng.multivariate_normal(np.zeros(3), S, groups),
        rng.integers(0, groups, size),
        rng.normal(size=(3, size)),
    )
    data = pd.DataFrame(
        {"x": x, "z": z, "g": g.astype(str), "y": 1.0 + b[g, 0] + b[g, 1] * x + b[g, 2] * z + 0.5 * noise}
    )
    result = pgm.formula("y ~ x + z + (x + z|g)", data).fit()
    names = ["Intercept", "x", "z"]
    deviations = result.VarCorr()["mean"].loc[[f"sd({name} | g)" for name in names]]
    pairs = [(1, 0), (2, 0), (2, 1)]
    correlations = result.summary()["mean"].loc[[f"cor({names[j]}, {names[i]} | g)" for i, j in pairs]]
    # The covariance of the effects themselves, which 20 rows of each level tell closely.
    C = np.cov(b[np.unique(g)].T)
    np.testing.assert_allclose(deviations, np.sqrt(np.diag(C)), rtol=0.1)
    np.testing.assert_allclose(correlations, [C[i, j] / np.sqrt(C[i, i] * C[j, j]) for i, j in pairs], atol=0.1)
    # All engines bind the levels.
    draws = pgm.formula("y ~ x + (x + z|g)", data[:40]).nuts(num_samples=4, num_warmup=4, progress=False)
    assert np.isfinite(draws.result.latents).all()
    tree = result.to_arviz(num_draws=20)
    assert {"cor(x, z | g)", "sd(z | g)"} <= set(tree["posterior"].data_vars)


def test_summaries_name_standard_deviations_and_correlations():
    terms = "(1|sex) + (1 + age|herd) + (0 + lon|treat) + (1|sex:treat) + s(lat) + gp(lon, cov='own')"
    context = {"own": pgm.RBF(1.0, 1.0) * pgm.Matern52(1.0, 1.0)}
    regression = pgm.formula(f"weight ~ {terms}", DATA, context=context)
    assert [printed.name for printed in regression.names.values()] == [
        *("sigma", "sd(s(lat))", "s(lat) lengthscale"),
        *(f"gp(lon, cov='own') {name}" for name in ("RBF.variance", "RBF.lengthscale")),
        *(f"gp(lon, cov='own') {name}" for name in ("Matern52.variance", "Matern52.lengthscale")),
        "sd(Intercept | sex)",
        ("sd(Intercept | herd)", "sd(age | herd)"),
        ("", "", "cor(Intercept, age | herd)", ""),
        *("sd(lon | treat)", "sd(Intercept | sex:treat)"),
    ]
    roots = [name for one in regression.names.values() if one.function is np.sqrt for name in one.of([""])]
    assert all(name.startswith("sd(") for name in roots)
    assert len(roots) == 6
    # Parameters of likelihoods that a user made have the names that the user gave.
    alone = pgm.formula(["count ~ (1|sex)", "f[1] ~ (1|sex)"], DATA, family="zero_inflated_negbinomial")
    names = [printed.name for printed in alone.names.values()]
    assert names == ["dispersion", "sd(Intercept | sex)", "f[1]: sd(Intercept | sex)"]
    assert [one.name for one in pgm.formula("weight ~ age", DATA, family=pgm.Gaussian(1.0)).names.values()] == ["scale"]


def test_priors_name_the_noise_as_summaries_do():
    for name in ("sigma", "scale"):
        regression = pgm.formula("weight ~ age", DATA, priors={name: dist.HalfNormal(0.123)})
        assert "HalfNormal(0.123)" in repr(regression)


def test_arviz_and_files_have_standard_deviations_beside_variances(tmp_path):
    regression = pgm.formula("weight ~ (1 + age|herd)", DATA)
    result = regression.cavi()
    tree = result.to_arviz(20, prior=pgm.prior_predictive(regression.model, regression.X, num_draws=20))
    prior = tree["prior"]
    sds = np.stack([prior["sd(Intercept | herd)"], prior["sd(age | herd)"]], axis=-1)
    np.testing.assert_allclose(sds**2, prior["f[1].Linear.variance"], rtol=1e-12)
    np.testing.assert_allclose(prior["cor(Intercept, age | herd)"], prior["f[1].root"][..., 1, 0], rtol=1e-12)
    np.testing.assert_array_equal(prior["sigma"], prior["scale"])
    document, _ = read_arrays(result.save(tmp_path / "fit.npz"))
    assert document["regression"]["dict"]["names"]["dict"]["f[1].Linear.variance"] == [
        "sd(Intercept | herd)",
        "sd(age | herd)",
    ]


@pytest.mark.slow
def test_summaries_have_standard_deviations_of_draws_and_of_other_variances(tmp_path):
    regression = pgm.formula("weight ~ age + (1|herd)", DATA)
    draws = regression.gibbs(num_samples=100, num_warmup=10, num_chains=1)
    row = draws.summary().loc["sd(Intercept | herd)"]
    roots = np.sqrt(draws.result.hyperparameters["f[1].variance"])
    np.testing.assert_allclose(row[["mean", "sd"]].astype(float), [roots.mean(), roots.std()], rtol=1e-12)
    pd.testing.assert_frame_equal(pgm.load_formula(draws.save(tmp_path / "draws.npz")).summary(), draws.summary())
    integrated = regression.integrate()
    row, marginal = integrated.summary().loc["sd(Intercept | herd)"], integrated.result.hyperparameters["f[1].variance"]
    assert row["mean"] == pytest.approx(marginal.mass @ np.sqrt(marginal.values), rel=1e-12)
    np.testing.assert_allclose(row.iloc[2:].astype(float) ** 2, marginal.quantiles([0.055, 0.945]), rtol=1e-9)
    learned = regression.fit()
    row, variance = learned.summary().loc["sd(Intercept | herd)"], learned.result.estimates["f[1].variance"].loc[""]
    # Quantiles of 4,096 values, which are interpolated before or after the root.
    np.testing.assert_allclose(row.iloc[2:].astype(float) ** 2, variance.iloc[2:].astype(float), rtol=1e-4)
    assert row["mean"] < np.sqrt(variance["mean"])
    assert row["sd"] > 0.0


@pytest.mark.slow
def test_a_model_is_what_is_written_by_hand():
    text = "p(ill, n) ~ age + treat + gp(lon, lat, cov='matern32') + (1|herd) + offset(log(days))"
    priors = {"gp(lon, lat, cov='matern32')": {"variance": 0.7, "lengthscale": 1.1}, "(1|herd)": {"variance": 0.4}}
    regression = pgm.formula(text, DATA, family="binomial", priors=priors)
    a, t = DATA["age"].to_numpy(), (DATA["treat"] == "yes").to_numpy(float)
    herds = np.searchsorted(sorted(set(DATA["herd"])), DATA["herd"]).astype(float)
    X = np.column_stack([np.ones(N), a - a.mean(), t - t.mean(), DATA["lon"], DATA["lat"], herds])
    spread = [2.5**2, 2.5 / a.std(), 2.5 / t.std()]
    y = np.column_stack([DATA["ill"], DATA["n"], np.log(DATA["days"])])
    np.testing.assert_allclose(regression.X, X)
    np.testing.assert_allclose(regression.y, y)
    # The intercept is about minus the mean offset.
    level = pgm.Fixed(-np.log(DATA["days"]).mean())
    gps = [
        pgm.GP(pgm.On(pgm.Linear(pgm.Fixed(np.square(spread))), [0, 1, 2]), mean=level),
        pgm.GP(pgm.On(pgm.Matern32(0.7, 1.1), [3, 4])),
        pgm.GP(pgm.On(pgm.White(0.4), [5])),
    ]
    model = pgm.Model(pgm.with_predictor(pgm.Binomial(), 3, offset=True), gps).fixed()
    by_hand = pgm.gaussian_vi(model, X, y)
    result = regression.gaussian_vi()
    np.testing.assert_allclose(result.result.mean, by_hand.mean, rtol=1e-7, atol=1e-8)
    # And the sum is one latent with a sum of kernels, with the offset as its mean.
    kernel = sum_of([gp.kernel for gp in gps])
    one = pgm.Model(pgm.with_predictor(pgm.Binomial(), 1, offset=True), pgm.GP(kernel, mean=level))
    together = pgm.gaussian_vi(one.fixed(), X, y)
    assert together.elbo == pytest.approx(by_hand.elbo, abs=1e-5)
    # Coefficients: the moments of the line at unit vectors, and at the origin of its columns.
    summary = result.summary()
    rows = np.eye(3, 6)
    rows[0, 1:3] = [-a.mean(), -t.mean()]
    mean, variance = by_hand.predict_latent(rows)
    np.testing.assert_allclose(summary["mean"].iloc[:3], mean[:, 0] - [0, level.value, level.value], rtol=1e-5)
    np.testing.assert_allclose(summary["sd"].iloc[:3], np.sqrt(variance[:, 0]), rtol=1e-5)
    assert list(summary.index[:3]) == ["Intercept", "age", "treat[T.yes]"]


def sum_of(kernels):
    first, *others = kernels
    for kernel in others:
        first = first + kernel
    return first


def test_a_gaussian_regression_is_least_squares_under_wide_priors():
    wide = {name: dist.Normal(0.0, 1e3) for name in ("Intercept", "age", "treat[T.yes]")}
    regression = pgm.formula("weight ~ age + treat", DATA, priors=wide | {"scale": pgm.Fixed(1.0)})
    X = np.column_stack([np.ones(N), DATA["age"], DATA["treat"] == "yes"]).astype(float)
    expected = np.linalg.lstsq(X, DATA["weight"], rcond=None)[0]
    summary = regression.gaussian_vi().summary()
    np.testing.assert_allclose(summary["mean"], expected, rtol=1e-3)
    np.testing.assert_allclose(summary["sd"], np.sqrt(np.diag(np.linalg.inv(X.T @ X))), rtol=1e-3)


def test_functions_of_the_caller_are_called_for_new_data_too():
    functions = {"tens": lambda x: x / 10.0, "own": pgm.Matern32(1.0, 2.0)}
    regression = pgm.formula("weight ~ tens(age) + gp(tens(days), cov='own')", DATA, context=functions)
    new = DATA.tail(4)
    tens = (new["age"] - DATA["age"].mean()) / 10.0
    expected = np.column_stack([np.ones(4), tens, new["days"] / 10.0])
    np.testing.assert_allclose(regression.read(new)[0], expected)


def test_without_an_intercept_the_line_goes_through_zero():
    regression = pgm.formula("weight ~ age - 1", DATA, priors={"age": dist.Normal(0.0, 1e3), "scale": pgm.Fixed(1.0)})
    a, y = DATA["age"].to_numpy(), DATA["weight"].to_numpy()
    summary = regression.gaussian_vi().summary()
    assert summary.loc["age", "mean"] == pytest.approx((a @ y) / (a @ a), rel=1e-4)
    assert summary.loc["age", "sd"] == pytest.approx((a @ a) ** -0.5, rel=1e-4)


def fixed(text="died ~ age + treat + (1|herd)", family="bernoulli", **options):
    priors = {"(1|herd)": {"variance": 0.4}} if "(1|herd)" in text else {}
    return pgm.formula(text, DATA, family=family, priors=priors | options.pop("priors", {}), **options)


@pytest.mark.slow
def test_predictions_and_comparisons_are_those_of_the_latents():
    result = fixed().gaussian_vi()
    table = result.predictions()
    np.testing.assert_allclose(table["mean"], result.result.predict(result.regression.X).mean, atol=0.03)
    linear = result.predictions(target="linear", exclude=["(1|herd)"])
    np.testing.assert_allclose(linear["mean"], result.result.mean[:, 0], atol=0.15)
    low, high = (result.predictions(DATA.assign(treat=value))["mean"].mean() for value in ("no", "yes"))
    difference = result.comparisons({"treat": ["no", "yes"]})
    assert difference["mean"][0] == pytest.approx(high - low, abs=0.02)
    assert result.comparisons({"treat": ["no", "yes"]}, comparison="ratio")["mean"][0] == pytest.approx(
        high / low, rel=0.1
    )
    slope = result.slopes("age", target="linear")
    assert slope["mean"][0] == pytest.approx(result.summary().loc["age", "mean"], abs=0.01)
    averages = result.predictions(average_by="treat")
    assert list(averages["treat"]) == ["no", "yes"]
    effects = result.effects("(1|herd)")
    assert effects["mean"].mean() == pytest.approx(0.0, abs=1e-10)
    assert effects.columns[0] == "herd"
    figure = result.plot_effects()
    assert [axes.get_title() for axes in figure.axes] == ["(1|herd)"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == sorted(set(DATA["herd"]))
    assert set(np.unique(result.draws(DATA.head(4), 50))) <= {0.0, 1.0}


def test_new_levels_are_new_groups_and_of_fixed_effects_an_error():
    result = fixed().gaussian_vi()
    new = DATA.head(2).assign(herd=["a", "unknown"])
    spread = result.predictions(new, target="linear")["sd"]
    known = result.predictions(new.assign(herd="a"), target="linear")["sd"]
    assert spread[1] > known[1]
    with pytest.raises(ValueError, match=r"'maybe' in row 0, column 'treat', which is not a level"):
        result.predictions(new.assign(treat="maybe"))
    with pytest.raises(ValueError, match="newdata has no value in row 1, column 'herd'"):
        result.predictions(new.assign(herd=["a", None]))


def test_frames_of_every_library_and_functions_of_levels():
    text = "weight ~ gp(lon, by=sex) + gp(lat, by=age, iso=False) + ar1(days) + (0 + lon|herd)"
    of_pandas, of_polars = pgm.formula(text, DATA), pgm.formula(text, pl.from_pandas(DATA))
    np.testing.assert_allclose(of_pandas.X, of_polars.X)
    assert of_pandas.model == of_polars.model
    written = text.partition(" ~ ")[2].split(" + ", 3)
    assert [term.text for term in of_pandas.terms[1:]] == written
    # Functions of different levels are independent.
    women, men = of_pandas.X[DATA["sex"] == "f"][:3], of_pandas.X[DATA["sex"] == "m"][:3]
    values = pgm.formula(text, DATA, priors={"gp(lon, by=sex)": {"variance": 1.0, "lengthscale": 1.0}})
    assert np.all(np.asarray(values.model.gps[1].kernel(women, men)) == 0.0)


def test_a_factor_may_have_numbers_as_levels():
    numbered = DATA.assign(herd=DATA["herd"].map(dict(zip("abcde", "12345", strict=True))))
    text = "weight ~ herd + (1|herd)"
    np.testing.assert_allclose(pgm.formula(text, numbered).X, pgm.formula(text, DATA).X)


def test_rows_with_holes():
    # Of columns that the formula reads, not of one that is called as a function is.
    pgm.formula("weight ~ s(age)", DATA.assign(s=np.nan))
    holed = DATA.assign(age=DATA["age"].where(DATA.index != 3), lon=np.nan)
    with pytest.raises(ValueError, match=r"1 of 60 rows have no value.*row 3, column 'age'.*missing='drop'"):
        pgm.formula("weight ~ age", holed)
    with pytest.warns(pgm.FormulaWarning, match="1 of 60 rows have no value"):
        regression = pgm.formula("weight ~ age", holed, missing="drop", weights="n")
    assert len(regression.X) == len(regression.weights) == N - 1


# Of each herd the number of periods; of each period the number of animals and of ill ones.
CBPP = (
    "4 3 4 4 4 4 4 1 4 4 4 4 4 4 4\n"
    "14 12 9 5 22 18 21 22 16 16 20 10 10 9 6 18 25 24 4 17 17 18 20 16 10 9 5 34 9 6 8 6 22 22 18 22 25 27 22 22 "
    "10 8 6 5 21 24 19 23 19 2 3 2 19 15 15 15\n"
    "2 3 4 0 3 1 1 8 2 0 2 2 0 2 0 5 0 0 1 3 0 0 1 8 1 3 0 12 2 0 0 0 1 1 0 2 0 5 3 1 "
    "2 1 0 0 1 2 0 0 11 0 0 0 1 1 1 0"
)


@pytest.mark.slow
def test_engines_agree_on_a_known_mixed_model():
    """Incidence of a disease in 15 herds and four periods (Lesnoff et al. 2004); values of maximum likelihood."""
    herds, sizes, ill = (row.split() for row in CBPP.split("\n"))
    counts = [int(count) for count in herds]
    data = pd.DataFrame({"size": list(map(int, sizes)), "ill": list(map(int, ill))})
    data["herd"] = np.repeat([f"h{i}" for i in range(15)], counts)
    data["period"] = [f"p{p}" for count in counts for p in range(1, count + 1)]
    wide = {name: dist.Normal(0.0, 10.0) for name in ("Intercept", *(f"period[T.p{p}]" for p in (2, 3, 4)))}
    regression = pgm.formula(
        "p(ill, size) ~ period + (1|herd)",
        data,
        family="binomial",
        priors=wide | {"(1|herd)": {"variance": dist.LogNormal(-1.0, 2.0)}},
    )
    integrated, drawn = regression.integrate().summary(), regression.gibbs(seed=0).summary()
    published = [-1.3992, -0.9914, -1.1278, -1.5795]
    np.testing.assert_allclose(integrated["mean"][:4], published, atol=0.08)
    np.testing.assert_allclose(integrated[["mean", "sd"]], drawn[["mean", "sd"]], atol=0.03)
    assert integrated.loc["sd(Intercept | herd)", "mean"] == pytest.approx(0.64752, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fit", "integrate", "gibbs"])
def test_predictions_take_each_draw_with_its_likelihood_parameters(engine):
    # The mean of a count is dispersion * exp(f), and both are uncertain.
    regression = pgm.formula("count ~ age + (1|herd) + offset(log(days))", DATA, family="negbinomial")
    result = getattr(regression, engine)()
    new = DATA.head(5)
    X, frame = regression.read(new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PredictionWarning)
        exact = result.result.predict(X, covariates=regression.covariates(frame))
        mean, spread = exact.mean, np.sqrt(exact.variance)
    table = result.predictions(new)
    np.testing.assert_allclose(table["mean"], mean, atol=5.0 * float(table["sd"].max()) / np.sqrt(1000.0))
    draws = result.draws(new, 4000)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5.0 * spread.max() / np.sqrt(4000.0))
    # Unpaired, dispersions would widen the mean's interval to that of the dispersion.
    assert table["sd"].max() < 0.5 * mean.max()
    assert result.comparisons({"age": [30.0, 50.0]})["sd"][0] < mean.max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response", "family", "parameters"),
    [
        ("weight", "student", ["sigma"]),
        ("weight", "laplace", ["sigma"]),
        ("weight", "lognormal", ["sigma"]),
        ("weight", "gamma", ["shape"]),
        ("I(n / 10)", "beta", ["precision"]),
        ("died", "bernoulli", []),
        ("p(ill, n)", "beta_binomial", ["precision"]),
        ("count", "poisson", []),
        ("count", "negbinomial", ["dispersion"]),
        ("count", "zero_inflated_poisson", []),
        ("count", "hurdle_poisson", []),
        ("count", "hurdle_negbinomial", ["dispersion"]),
        ("Surv(days, event)", "weibull", ["shape"]),
        ("Surv(days, event)", "loglogistic", ["shape"]),
        ("Surv(days, event)", None, []),
    ],
)
def test_families_by_name(response, family, parameters):
    data = DATA.assign(event=(DATA["n"] > 2).astype(int))
    if family is None:

        @pgm.likelihood(support=pgm.Censored(), num_latents=1)
        def family(y, f):
            return (pgm.exp(f) * pgm.exp(-y[0] * pgm.exp(f))) ** y[1] * pgm.exp(-y[0] * pgm.exp(f)) ** (1 - y[1])

    result = pgm.formula(f"{response} ~ age + (1|herd)", data, family=family).fit()
    summary = result.summary()
    assert np.isfinite(summary["mean"].astype(float)).all()
    zeros = ["f[1]: Intercept"] * str(family).startswith(("zero", "hurdle"))
    assert list(summary.index) == ["Intercept", "age", *zeros, *parameters, "sd(Intercept | herd)"]
    assert np.isfinite(result.predictions(target="linear")["mean"]).all()
    assert np.isfinite(result.predictions(data.head(3))["mean"]).all()
    assert "(1|herd)" in repr(result)


REFUSED = {
    "no response": ("age + treat", {}, "formula must be text such as"),
    "an open parenthesis": ("weight ~ gp(lon", {}, "parentheses or quotes do not match"),
    "a process by inducing inputs and as a chain": (
        "weight ~ s(lon, k=5, markov=True)",
        {},
        "has k, for inducing inputs",
    ),
    "an option of an offset": ("count ~ offset(days, k=2)", {"family": "poisson"}, "offset takes none"),
    "two offsets in one": ("count ~ offset(days, n)", {"family": "poisson"}, "offset(days, n) must have one column"),
    "two columns of a period": ("weight ~ s(lon, lat, period=2)", {}, "s(lon, lat, period=2) must have one column"),
    "text in a process": ("weight ~ gp(herd)", {}, "herd has levels without an order"),
    "an unknown response": ("height ~ age", {}, "data has no column 'height'"),
    "an unknown group": ("weight ~ (1|farm)", {}, "data has no column 'farm', which (1|farm) reads"),
    "three labels": ("herd ~ age", {"family": "bernoulli"}, "must be numbers or have two levels"),
    "a family": ("weight ~ age", {"family": "gama"}, "family must be one of gaussian, skew_normal"),
    "a link": ("died ~ age", {"family": "bernoulli", "link": "log"}, "must be one of 'logit', 'probit', 'clog"),
    "a prior": ("weight ~ age", {"priors": {"hight": dist.Normal(0.0, 1.0)}}, "priors has 'hight', which is not"),
    "no frame": ("weight ~ age", {"data": {"age": [1.0]}}, "data must be a data frame of pandas, polars or pyarrow"),
    "a chain of each level": ("weight ~ ar1(days|herd)", {}, "for each level of herd is written ar1(days, by=herd)"),
    "a chain with a factor": ("weight ~ ar1(days, herd)", {}, "write ar1(x, by=g)"),
    "an action": ("weight ~ age", {"missing": "omit"}, "missing must be 'raise', 'drop' or 'predict'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_inputs_are_refused_by_name(name):
    text, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        pgm.formula(text, **{"data": DATA, **options})


def test_a_model_with_default_priors_is_what_is_written_by_hand():
    """The same to every engine: its fingerprint has the formula, values, priors, kernels and forms."""
    text = "count ~ age + gp(lon, k=20) + gp(lat, by=sex) + (0 + age|herd) + offset(log(days))"
    regression = pgm.formula(text, DATA, family="negbinomial")
    a, days = DATA["age"].to_numpy(), DATA["days"].to_numpy()
    level = np.log(DATA["count"].mean()) - np.log(days).mean()
    # Where it is more than 1, the deviation of the logarithms of the counts is the scale.
    scale = max(1.0, np.log(DATA["count"].where(DATA["count"] > 0, 0.5)).std(ddof=0))
    spread = [2.5**2 * scale, 2.5 * scale / a.std()]

    def lengthscale(x):
        x = np.unique(x)
        distances = np.abs(x[:, None] - x)[np.triu_indices(len(x), 1)]
        low, high = np.log([np.quantile(distances, 0.02), distances.max()])
        return dist.LogNormal((low + high) / 2, (high - low) / (2 * 2.326))

    def variance(unit):
        # NumPyro's StudentT holds arrays, and those of a formula are in double precision.
        with jax.enable_x64(True):
            prior = pgm.sd(dist.StudentT(3.0, 0.0, 2.5 * unit))
        return pgm.Parameter(np.exp(2.0 * np.log(unit) - 1.0), prior=prior)

    def matern(x):
        return pgm.Matern52(variance(scale), lengthscale=lengthscale(x))

    slope = pgm.Linear(variance(scale / a.std()))
    gps = [
        pgm.GP(pgm.On(pgm.Linear(pgm.Fixed(np.square(spread))), [0, 1]), mean=pgm.Fixed(level)),
        pgm.GP(pgm.On(matern(DATA["lon"]), [2]), form=pgm.Inducing(20)),
        pgm.GP(pgm.On(pgm.On(matern(DATA["lat"]), [0]) * pgm.On(pgm.White(pgm.Fixed(1.0)), [1]), [3, 4])),
        pgm.GP(pgm.On(pgm.On(pgm.White(pgm.Fixed(1.0)), [0]) * pgm.On(slope, [1]), [5, 6])),
    ]
    dispersion = pgm.Parameter(1.0, positive=True, prior=dist.LogNormal(0.0, 3.0))
    likelihood = pgm.with_predictor(pgm.NegativeBinomial2(dispersion), 4, offset=True)
    model = pgm.Model(likelihood, gps)
    assert repr(regression.model) == repr(model)
    assert regression.model.signature == model.signature
    sex = (DATA["sex"] == "m").to_numpy(float)
    herd = np.searchsorted(sorted(set(DATA["herd"])), DATA["herd"])
    X = np.column_stack([np.ones(N), a - a.mean(), DATA["lon"], DATA["lat"], sex, herd, a])
    np.testing.assert_allclose(regression.X, X)
    np.testing.assert_allclose(regression.y, np.column_stack([DATA["count"], np.log(days)]))


def test_arviz_has_the_index_of_the_data_and_terms():
    rng = np.random.default_rng(3)
    data = pd.DataFrame({"y": rng.normal(size=12), "x": rng.normal(size=12), "g": list("abc") * 4})
    data.index = pd.Index([f"row {number}" for number in range(12)])
    data.loc["row 4", "y"] = np.nan
    data.loc["row 7", "x"] = np.nan
    weights = np.ones(12)
    weights[9] = 0.0
    with pytest.warns(pgm.FormulaWarning, match="1 of 11 rows"):
        regression = pgm.formula(
            "y ~ x + (1|g)", data.drop(index="row 4"), weights=np.delete(weights, 4), missing="drop"
        )
    tree = regression.cavi().to_arviz(20)
    kept = [label for label in data.index if label not in ("row 4", "row 7", "row 9")]
    assert list(tree["posterior"]["datum"].values) == kept
    assert list(tree["posterior"]["latent"].values) == [term.name for term in regression.terms]
    np.testing.assert_array_equal(tree["observed_data"]["y"], data.loc[kept, "y"])
    regression = pgm.formula("y ~ x + (1|g)", data.drop(index="row 7"), missing="predict")
    tree = regression.cavi().to_arviz(20)
    np.testing.assert_array_equal(tree["observed_data"]["y"], data.drop(index=["row 4", "row 7"])["y"])
    assert "row 4" not in tree["posterior"]["datum"]


def test_arviz_of_a_multiindex_has_its_levels_as_text(tmp_path):
    rng = np.random.default_rng(3)
    index = pd.MultiIndex.from_product([["u", "v"], range(3)], names=["site", "plot"])
    data = pd.DataFrame({"y": rng.normal(size=6), "x": rng.normal(size=6)}, index=index)
    result = pgm.formula("y ~ x", data).cavi()
    tree = result.to_arviz(20)
    assert list(tree["posterior"]["datum"].values) == ["u, 0", "u, 1", "u, 2", "v, 0", "v, 1", "v, 2"]
    assert list(tree["observed_data"]["y"]) == list(data["y"])
    named = result.result.to_arviz(20, coords={"datum": [(name, number) for name, number in index]})
    assert list(named["posterior"]["datum"].values) == list(tree["posterior"]["datum"].values)


def test_several_starts_of_a_regression_whose_hyperparameters_all_have_priors_end_where_one_does():
    one, two = (pgm.formula("weight ~ age", DATA).fit(num_starts=number).summary() for number in (1, 2))
    np.testing.assert_allclose(two["mean"], one["mean"], rtol=1e-3)


def test_a_long_series_is_a_markov_process():
    text = "weight ~ s(age{}) + gp(lon) + gp(lat, cov='rbf') + (1|herd)"
    few = DATA.assign(lon=np.arange(N) % 20)
    by_default, dense = (pgm.formula(text.format(option), few).terms for option in ("", ", markov=False"))
    forms = [term.form for term in with_chain(by_default, few, min_values=N)]
    assert [form == pgm.Markov() for form in forms] == [False, True, False, False, False]
    forms = [term.form for term in with_chain(dense, few, min_values=N)]
    assert pgm.Markov() not in forms
    assert forms[1] == pgm.Dense()


@pytest.mark.slow
def test_a_regression_by_a_markov_process_is_that_of_the_dense_form():
    ours, theirs = (
        pgm.formula(f"weight ~ gp(age, markov={choice}) + (1|herd)", DATA).cavi().result for choice in (True, False)
    )
    assert ours.elbo == pytest.approx(theirs.elbo, abs=1e-6)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0, atol=1e-6)


def separated(num_rows):
    """Labels that are 0 wherever x is 1, once in 25 rows, with a number z and groups."""
    rng = np.random.default_rng(1)
    x, z = (np.arange(num_rows) % 25 == 0) * 1.0, rng.normal(size=num_rows)
    y = np.where(x == 1.0, 0, rng.random(num_rows) < 1.0 / (1.0 + np.exp(0.5 - z))).astype(int)
    return pd.DataFrame({"y": y, "x": x, "z": z, "g": [f"g{i}" for i in rng.integers(6, size=num_rows)]})


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["", " + (1|g)"])
def test_coefficients_that_separate_labels_keep_their_skewness_with_many_inputs(groups):
    # Linear response has the interval (-19.6, 0.02) and the probability 0.05. Referee: 400,000 weighted draws of the
    # three coefficients, without groups, whose variance is small: x -9.82, sd 5.63, (-20.30, -2.98), P(y = 1) 0.00527.
    priors = {name: dist.Normal(0.0, 10.0) for name in ("Intercept", "x", "z")}
    result = pgm.formula("y ~ x + z" + groups, separated(400), family="bernoulli", priors=priors).fit()
    row = result.summary().loc["x"].to_numpy()
    np.testing.assert_allclose(row, [-9.82, 5.63, -20.30, -2.98], atol=0.06)
    new = pd.DataFrame({"x": [1.0], "z": [0.0], "g": ["g1"]})
    assert result.predictions(new)["mean"][0] == pytest.approx(0.00527, abs=0.001)
    # A table in parts of 1,000 latents.
    table = result.predictions(pd.concat([new.assign(z=z) for z in np.linspace(-2.0, 2.0, 1201)]))
    assert len(table) == 1201
    assert table["mean"][600] == pytest.approx(0.00527, abs=0.001)


def test_coefficients_with_a_markov_process_have_intervals_by_linear_response():
    # By scans there are no joint draws, which skewed marginals need.
    text, data = "y ~ x + gp(t, cov=k, markov=True)", separated(100).assign(t=np.arange(100.0))
    k, priors = pgm.Matern12(pgm.Fixed(0.1), pgm.Fixed(5.0)), wide(["Intercept", "x"])
    result = pgm.formula(text, data, family="bernoulli", priors=priors, context={"k": k}).fit()
    mean, sd, *interval = result.summary().loc["x"]
    np.testing.assert_allclose(interval, stats.norm.interval(0.89, mean, sd), rtol=1e-6)
    assert result.predictions(data[:1])["mean"][0] < 0.2


def test_a_fit_with_few_distinct_rows_has_skewed_marginals_at_any_number_of_rows():
    # Quadrature over both coefficients: slope -9.899, sd 5.601, (-20.331, -3.100), P(y = 1 | x = 1) 0.00495.
    x = (np.arange(1000) % 50 == 0) * 1.0
    y = np.where(x == 1.0, 0, np.random.default_rng(0).random(1000) < 0.4).astype(int)
    priors = {name: dist.Normal(0.0, 10.0) for name in ("Intercept", "x")}
    model = pgm.formula("y ~ x", pd.DataFrame({"y": y, "x": x}), family="bernoulli", priors=priors)
    result = model.fit()
    # Within a hundredth of a deviation, as nested marginals are on other data.
    np.testing.assert_allclose(result.summary().loc["x"].to_numpy(), [-9.899, 5.601, -20.331, -3.100], atol=0.056)
    frame = pd.DataFrame({"x": [1.0]})
    assert result.predictions(frame)["mean"][0] == pytest.approx(0.00495, rel=0.15)
    with pytest.warns(pgm.PredictionWarning):
        assert result.result.predict(model.read(frame)[0]).mean[0] == pytest.approx(0.00495, rel=0.01)


# Published regressions by formulas: with wide priors their coefficients are those of maximum likelihood.


def wide(names, sd=10.0):
    return {name: dist.Normal(0.0, sd) for name in names}


def tenants():
    contact, kind, influence, satisfaction = (part.ravel() for part in np.indices((2, 4, 3, 3)))
    grades, kinds = ["Low", "Medium", "High"], ["Tower", "Apartment", "Atrium", "Terrace"]
    data = pd.DataFrame(
        {
            "Sat": pd.Categorical.from_codes(satisfaction, grades, ordered=True),
            "Infl": pd.Categorical.from_codes(influence, grades),
            "Type": pd.Categorical.from_codes(kind, kinds),
            "Cont": pd.Categorical.from_codes(contact, ["Low", "High"]),
        }
    )
    return data.assign(Freq=numbers(TENANTS))


@pytest.mark.slow
def test_satisfaction_of_tenants():
    """The proportional odds of MASS, with a deviance of 3479.1493."""
    names = ["Infl[T.Medium]", "Infl[T.High]", "Type[T.Apartment]", "Type[T.Atrium]", "Type[T.Terrace]", "Cont[T.High]"]
    text, data = "Sat ~ Infl + Type + Cont", tenants()
    regression = pgm.formula(text, data, family="cumulative", weights="Freq", priors=wide(names))
    result = regression.fit()
    mean = result.summary()["mean"].astype(float)
    np.testing.assert_allclose(mean[names], [0.5664, 1.2888, -0.5723, -0.3662, -1.0910, 0.3603], atol=5e-3)
    np.testing.assert_allclose(mean[["cuts[0]", "cuts[1]"]], [-0.4961, 0.6907], atol=5e-3)
    p = result.result.predict(regression.X).probabilities[np.arange(72), regression.y.astype(int)]
    assert -2.0 * data["Freq"] @ np.log(p) == pytest.approx(3479.1493, abs=0.2)


@pytest.mark.slow
def test_bitterness_of_wine():
    """``ordinal`` has a log likelihood of -86.4919."""
    temp, contact = np.tile(
        np.repeat([["cold", "no"], ["cold", "yes"], ["warm", "no"], ["warm", "yes"]], 2, axis=0).T, 9
    )
    data = pd.DataFrame({"rating": list(BITTERNESS), "temp": temp, "contact": contact})
    names = ["temp[T.warm]", "contact[T.yes]"]
    priors = wide(names) | {"cuts": pgm.Parameter([-2.0, 0.0, 2.0, 4.0], constraint=ordered_vector)}
    regression = pgm.formula("rating ~ temp + contact", data, family="cumulative", priors=priors)
    result = regression.fit(objective="augmented")
    mean = result.summary()["mean"].astype(float)
    np.testing.assert_allclose(mean[names], [2.5031, 1.5278], rtol=0.01)
    # The maximum; means of the summary are above it, since logarithms of the gaps are normal.
    np.testing.assert_allclose(result.result.fit.values["cuts"], [-1.3444, 1.2508, 3.4669, 5.0064], rtol=0.01)


@pytest.mark.slow
def test_counts_of_roaches_with_exposure():
    """R's ``glm.nb`` has a log likelihood of -889.2917 and r = .274."""
    rows = table("roaches")
    data = pd.DataFrame(
        {name: rows[name].astype(float) for name in ("y", "roach1", "treatment", "senior", "exposure2")}
    )
    text = "y ~ I(roach1 / 100) + treatment + senior + offset(log(exposure2))"
    names = ["Intercept", "I(roach1 / 100)", "treatment", "senior"]
    priors = wide(names) | {"dispersion": pgm.Parameter(1.0, positive=True)}
    result = pgm.formula(text, data, family="negbinomial", priors=priors).fit()
    summary = result.summary().astype(float)
    difference = summary.loc[names, "mean"] - [2.8388, 1.2882, -0.7768, -0.3444]
    # The maximum of a skewed posterior is a sixth of a standard error from its mean.
    assert (difference.abs() < 0.2 * summary.loc[names, "sd"]).all()
    assert summary.loc["dispersion", "mean"] == pytest.approx(0.27427, rel=0.03)
    twice = data.head(2).assign(exposure2=lambda rows: 2.0 * rows["exposure2"])
    means = [result.predictions(part)["mean"].astype(float) for part in (data.head(2), twice)]
    np.testing.assert_allclose(means[1], 2.0 * means[0], rtol=1e-8)
