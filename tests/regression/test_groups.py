"""Effects and coefficients of the levels of groups: against the normal posterior in closed form."""

import os
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm

pytest.importorskip("formulaic")

N = 40
RNG = np.random.default_rng(11)
DATA = pd.DataFrame({"x": RNG.normal(3.0, 2.0, N), "z": RNG.normal(size=N), "h": RNG.choice(["u", "v"], N)})
# Groups of 5, 10 and 25 rows; numbers, which are levels in a group.
DATA["g"] = np.repeat([30, 7, 12], [5, 10, 25])
DATA["y"] = 4.0 + DATA["x"] + DATA["g"].map({30: 2.0, 7: -1.0, 12: 0.5}) * (1.0 + 0.2 * DATA["x"]) + RNG.normal(size=N)
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
            "variance": pgm.Fixed(first),
            "slope_variance": pgm.Fixed(second),
            "correlation": pgm.Fixed(CORRELATION),
        },
        "(0 + z|g:h)": {"variance": pgm.Fixed(SD_OF_Z**2)},
        "sigma": pgm.Fixed(SCALE),
    }
    result = pgm.formula("y ~ x + (1 + x|g) + (0 + z|g:h)", DATA, priors=priors).cavi()
    names, columns, mean = ["Intercept", "x"], [np.ones(N), DATA["x"]], [3.0, 1.5]
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
    frame = DATA.assign(label=np.array(["a", "b", "c"])[np.arange(N) % 3])
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
    values = {"variance": 500.0, "slope_variance": 30.0, "correlation": 0.1}
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
    with pytest.raises(ValueError, match="standard deviation is one of the variance") as error:
        pgm.formula("y ~ (1|g)", DATA, priors=priors)
    written = str(error.value).rpartition("{'variance': ")[2].partition("}")[0]
    regression = pgm.formula(
        "y ~ (1|g)", DATA, priors={"(1|g)": {"variance": eval(written, {"pgm": pgm, "dist": dist})}}
    )
    assert "sd(HalfNormal(2.5))" in repr(regression)
