"""Formulas of several predictors, of classes and of ordered levels, beside models written by hand."""

import re

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.inference.objectives import objective_of
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.regression.grammar import parse_all

pytest.importorskip("formulaic")

N = 50
RNG = np.random.default_rng(11)
DATA = pd.DataFrame({"x": RNG.normal(1.0, 2.0, N), "g": RNG.choice(list("abc"), N), "days": RNG.integers(1, 9, N)})
SIGNAL = 0.4 * DATA["x"] - 0.3
DATA["y"] = SIGNAL + RNG.normal(size=N) * np.exp(0.3 * DATA["x"])
DATA["colour"] = RNG.choice(["blue", "green", "red"], N, p=[0.5, 0.3, 0.2])
GRADES = np.array(["low", "mid", "high"])
DATA["grade"] = pd.Categorical(GRADES[np.digitize(SIGNAL + RNG.logistic(size=N), [-1.0, 1.0])], GRADES, ordered=True)
DATA["count"] = np.where(RNG.random(N) < 0.3, 0, RNG.poisson(2.0, N))
GROUP = DATA["g"].map({"a": 0.0, "b": 1.0, "c": 2.0}).to_numpy()


def test_formulas_of_further_latents_are_read():
    _, parsed = parse_all(["y ~ x", "f[2] ~ s(t)"])
    assert sorted(parsed) == [0, 2]
    assert parsed[2].calls[0].arguments == ("t",)
    for texts in (["y ~ x", "sigma ~ x"], ["y ~ x", "f[0] ~ x"], ["y ~ x", "f[1] ~ x", "f[1] ~ g"]):
        with pytest.raises(ValueError, match="after the first, formulas are of further latents"):
            parse_all(texts)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (pgm.LogisticSoftmax(3), RNG.integers(0, 3, 6)),
        (pgm.Softmax(3), RNG.integers(0, 3, 6)),
        (pgm.StickBreaking(3), RNG.integers(0, 3, 6)),
        (pgm.HeteroscedasticGaussian(2.0), RNG.normal(size=6)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_vector_of_latents_may_be_sums(likelihood, y):
    terms = [2, 1, 3][: likelihood.num_latents]
    several = pgm.with_predictor(likelihood, terms)
    f = RNG.normal(size=(6, sum(terms)))
    sums = np.add.reduceat(f, np.cumsum([0, *terms[:-1]]), axis=1)
    y = y.astype(float)
    np.testing.assert_allclose(log_density(several, y, f), log_density(likelihood, y, sums), rtol=1e-12)


def test_a_sum_has_no_largest_latent():
    with pytest.raises(ValueError, match="reads single latents, not sums"):
        pgm.Model(pgm.with_predictor(pgm.RobustMax(3), [2, 2, 2]), pgm.GP(pgm.RBF(), size=6)).likelihood.formula(6)


@pytest.mark.slow
def test_a_predictor_of_the_noise_is_what_is_written_by_hand():
    family = pgm.HeteroscedasticGaussian(pgm.Fixed(2.0))
    priors = {"f[1]: (1|g)": {"variance": 0.3}, "f[1]: x": dist.Normal(0.0, 0.5)}
    regression = pgm.formula(
        ["y ~ x + offset(days)", "f[1] ~ x + (1|g) + offset(x)"], DATA, family=family, priors=priors
    )
    x, days = DATA["x"].to_numpy(), DATA["days"].to_numpy(float)
    # The first latent has the units of y.
    spread = float(np.std(DATA["y"]))
    level = pgm.Fixed(float(np.mean(DATA["y"])) - days.mean())
    slopes = spread**2 * np.array([2.5**4, (2.5 / x.std()) ** 2])
    gps = [
        pgm.GP(pgm.On(pgm.Linear(pgm.Fixed(slopes)), [0, 1]), mean=level),
        pgm.GP(pgm.On(pgm.Linear(pgm.Fixed([2.5**4, 0.25])), [2, 3]), mean=pgm.Fixed(-x.mean())),
        pgm.GP(pgm.On(pgm.White(0.3), [4])),
    ]

    @pgm.likelihood(support=pgm.Given(pgm.Real(), pgm.Real(), pgm.Real()), num_latents=3)
    def by_hand(y, f):
        return pgm.normal_pdf(y[0], f[0] + y[1], 1 / pgm.sqrt(2.0 * pgm.sigmoid(f[1] + f[2] + y[2])))

    ones, centred = np.ones(N), x - x.mean()
    X, y = np.column_stack([ones, centred, ones, centred, GROUP]), np.column_stack([DATA["y"], days, x])
    np.testing.assert_allclose(regression.X, X)
    np.testing.assert_allclose(regression.y, y)
    expected = pgm.cavi(pgm.Model(by_hand(), gps).fixed(), X, y)
    result = regression.cavi()
    np.testing.assert_allclose(result.result.mean, expected.mean, rtol=1e-6, atol=1e-8)
    assert list(result.summary().index[:4]) == ["Intercept", "x", "f[1]: Intercept", "f[1]: x"]
    effects = result.effects("f[1]: (1|g)").drop_duplicates("g").sort_values("g")
    nodes = result.result.joint_nodes(X, 1000, 0)
    effect = nodes.draws[:, :, 2] - nodes.draws[:, :, 2].mean(axis=1, keepdims=True)
    by_group = [effect[:, np.flatnonzero(code == GROUP)[0]].mean() for code in range(3)]
    np.testing.assert_allclose(effects["mean"], by_group, atol=0.1)
    linear = result.predictions(target="f[1]")
    np.testing.assert_allclose(linear["mean"], expected.mean[:, 1] + expected.mean[:, 2] + x, atol=0.3)


def test_without_a_formula_a_further_latent_is_constant():
    regression = pgm.formula("count ~ x", DATA, family="zero_inflated_negbinomial")
    assert [term.name for term in regression.terms] == ["linear", "f[1]: linear"]
    np.testing.assert_allclose(regression.X[:, 2:], 1.0)
    with pytest.raises(ValueError, match=r"there is no f\[2\]; ZeroInflatedNegativeBinomial has 2 latents"):
        pgm.formula(["count ~ x", "f[2] ~ x"], DATA, family="zero_inflated_negbinomial")


@pytest.mark.slow
def test_classes_share_terms_and_have_log_odds_of_the_first():
    priors = {"(1|g)": {"variance": 0.5}}
    regression = pgm.formula("colour ~ x + (1|g)", DATA, family="categorical", priors=priors)
    labels = np.searchsorted(["blue", "green", "red"], DATA["colour"]).astype(float)
    np.testing.assert_array_equal(regression.y, labels)
    assert [gp.size for gp in regression.model.gps] == [2, 2]
    f = RNG.normal(size=(N, 4))
    z = np.column_stack([np.zeros(N), f[:, 0] + f[:, 2], f[:, 1] + f[:, 3]])
    log_p = z[np.arange(N), labels.astype(int)] - np.log(np.exp(z).sum(axis=1))
    np.testing.assert_allclose(log_density(regression.model.likelihood, regression.y, f), log_p, rtol=1e-10)
    result = regression.gaussian_vi()
    assert list(result.summary().index) == ["Intercept[green]", "x[green]", "Intercept[red]", "x[red]"]
    table = result.predictions(DATA.head(4))
    assert list(table["level"][:3]) == ["blue", "green", "red"]
    np.testing.assert_allclose(table.groupby(table.index // 3)["mean"].sum(), 1.0, rtol=1e-10)
    assert sorted(set(result.effects("(1|g)")["level"])) == ["green", "red"]
    with pytest.raises(ValueError, match="have the same terms; give one formula"):
        pgm.formula(["colour ~ x", "f[1] ~ x"], DATA, family="categorical")
    assert len(regression.model.likelihood.parameters) == 0


def test_ordered_levels_have_cutpoints_in_place_of_an_intercept():
    regression = pgm.formula("grade ~ x + g", DATA, family="cumulative", priors={"cuts": pgm.Fixed([-1.0, 1.0])})
    assert regression.terms[0].columns[0].names == ("x", "g[T.b]", "g[T.c]")
    np.testing.assert_array_equal(regression.y, DATA["grade"].cat.codes)
    result = regression.gaussian_vi()
    new = pd.DataFrame({"x": [0.0, 2.0], "g": ["a", "c"]})
    table = result.predictions(new)
    assert list(table["level"]) == ["low", "mid", "high"] * 2
    # At x = 0 of the first level the predictor is 0.
    np.testing.assert_allclose(table["mean"][:3], np.diff([0.0, 1 / (1 + np.e), np.e / (1 + np.e), 1.0]), rtol=1e-6)
    # Against the engine's own integral.
    np.testing.assert_allclose(
        table["mean"][3:], result.result.predict(regression.read(new)[0]).probabilities[1], atol=0.02
    )
    difference = result.comparisons({"x": [0.0, 2.0]}, new)
    assert list(difference["level"]) == ["low", "mid", "high"]
    assert difference["mean"].sum() == pytest.approx(0.0, abs=1e-10)


def test_the_start_of_a_mean_is_that_of_y():
    level = pgm.formula("count ~ x + offset(log(days))", DATA, family="negbinomial").terms[0].mean
    assert level == pytest.approx(np.log(DATA["count"].mean()) - np.log(DATA["days"]).mean())
    data = DATA.assign(time=np.exp(DATA["y"]), event=1)
    assert pgm.formula("Surv(time, event) ~ x", data, family="weibull").terms[0].mean == pytest.approx(DATA["y"].mean())


def test_a_label_may_be_chosen():
    data = DATA.assign(died=np.where(DATA["y"] > 0, "yes", "no"))
    first = pgm.formula("died ~ x", data, family="bernoulli")
    other = pgm.formula("died['no'] ~ x", data, family="bernoulli")
    np.testing.assert_array_equal(first.y, 1.0 - other.y)
    assert other.response.levels == ("yes", "no")
    with pytest.raises(ValueError, match="must name one of two levels; died has"):
        pgm.formula("died['maybe'] ~ x", data, family="bernoulli")


def test_known_noise_and_times_with_two_ends():
    data = DATA.assign(sd=0.5, time=DATA["days"], end=DATA["days"] + 2.0, code=RNG.integers(0, 4, N))
    known = pgm.formula("y | se(sd) ~ x", data)
    np.testing.assert_allclose(known.y, np.column_stack([DATA["y"], np.full(N, 0.5)]))
    assert "KnownNoise" in repr(known)
    assert np.isfinite(known.gaussian_vi().predictions(data.head(3))["mean"]).all()
    with pytest.raises(ValueError, match="newdata has no column 'sd'"):
        known.gaussian_vi().predictions(data.head(3).drop(columns="sd"))
    times = pgm.formula("Surv(time, end, code, type='interval') ~ x", data, family="loglogistic")
    second = np.where(data["code"] == 3, data["end"], data["time"])
    np.testing.assert_allclose(times.y, np.column_stack([data["time"], data["code"], second]))


@pytest.mark.parametrize("response", ["p(ill, n)", "grade", "y"])
def test_rows_without_a_response_are_predicted(response):
    families = {"p(ill, n)": "binomial", "grade": "cumulative", "y": "gaussian"}
    name = {"p(ill, n)": "ill"}.get(response, response)
    data = DATA.assign(ill=DATA["count"].clip(upper=4.0), n=5)
    holes = data.copy()
    holes.loc[[3, 10], name] = None
    options = {"family": families[response], "priors": {"(1|g)": {"variance": 0.5}}}
    text = f"{response} ~ 0 + x + (1|g)"
    with pytest.raises(ValueError, match=f"2 of 50 rows have no value .* column '{name}'"):
        pgm.formula(text, holes, **options)
    # Priors by the spread of y and x are those of the rows with a response, and of all.
    slope = {"x": dist.Normal(0.0, 1.0), "scale": pgm.Fixed(1.0)}
    options["priors"] |= slope if response == "y" else {"x": slope["x"]}
    result = pgm.formula(text, holes, missing="predict", **options).gaussian_vi()
    assert list(result.result.missing.rows) == [3, 10]
    expected = pgm.formula(text, holes.drop([3, 10]), **options).gaussian_vi()
    table, other = result.predictions(), expected.predictions(data)
    assert len(table) == len(other) == N * max(1, 3 * (response == "grade"))
    np.testing.assert_allclose(table["mean"], other["mean"], rtol=1e-5)


def excess_zeros():
    """Eighty counts with excess zeros, of twelve groups of six rows and eight of one, and an outlier."""
    rng, groups = np.random.default_rng(0), np.r_[np.repeat(np.arange(12), 6), np.arange(12, 20)]
    x, effects = rng.normal(size=80), 0.5 * rng.normal(size=20)
    rate = np.exp(1.0 + 0.4 * x + effects[groups])
    y = np.where(rng.random(80) < 0.3, 0, rng.poisson(rate * rng.gamma(2.0, 0.5, 80)))
    y[-1] = 40
    return pd.DataFrame({"y": y, "x": x, "g": [f"g{number:02}" for number in groups]})


@pytest.mark.parametrize(("num_rows", "name"), [(2000, "expected"), (2001, "augmented")])
def test_fit_of_two_predictors_with_several_terms_maximises_the_expected_log_density(num_rows, name):
    model = pgm.formula("y ~ x + (1|g)", excess_zeros(), family="zero_inflated_negbinomial").model
    assert objective_of(model, "auto", num_rows).name == name


def test_a_result_prints_its_engine_objective_convergence_and_bound():
    result = pgm.formula("count ~ x", DATA, family="poisson").gaussian_vi()
    lines = str(result).split("\n")
    bound = f"{result.result.elbo:.4f}"
    assert f"  gaussian_vi on the expected log density: ELBO {bound} nats, converged" in lines
    assert "  correction: none" in lines


@pytest.mark.slow
def test_fit_of_excess_zeros_in_groups_has_the_deviations_of_weighted_draws():
    # At these values, and with intercepts that are this certain, one of 240 variances is 0.5 % above the prior's, which
    # a likelihood that is not log-concave allows.
    data = excess_zeros()
    variance, dispersion = (dist.LogNormal(np.log(value), 1e-3) for value in (0.15423, 0.59562))
    priors = {"(1|g)": {"variance": variance}, "dispersion": dispersion}
    priors |= {"Intercept": dist.Normal(np.log(data["y"].mean()), 2.5), "f[1]: Intercept": dist.Normal(0.0, 2.5)}
    regression = pgm.formula("y ~ x + (1|g)", data, family="zero_inflated_negbinomial", priors=priors)
    result = regression.fit()
    assert re.search(r"by linear response, but 1 of 240 variances are up to 0\.\d% above the prior's", str(result))
    f, _, log_density = result.result.draw_with_density(100_000, share=0.7)
    rate, zero = np.exp(f[:, :, 0] + f[:, :, 1]), expit(f[:, :, 2])
    size = float(result.result.model.likelihood.parameters["dispersion"].value)
    y = regression.y.astype(int)
    p = (1.0 - zero) * stats.nbinom.pmf(y, size, size / (size + rate)) + zero * (y == 0)
    log_weights = np.log(p).sum(axis=1) - log_density
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    assert 1.0 / np.sum(weights**2) > 2_000
    slope = (f[:, 0, 0] - f[:, 1, 0]) / (regression.X[0, 1] - regression.X[1, 1])
    mean = weights @ slope
    row = result.summary().loc["x"]
    assert row["mean"] == pytest.approx(mean, abs=0.03)
    assert row["sd"] == pytest.approx(np.sqrt(weights @ (slope - mean) ** 2), rel=0.06)
