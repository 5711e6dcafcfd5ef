"""Smooths: centred wiggles beside lines, against projections written out and against mgcv."""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.kernels.others import ByLevel, Centred

RNG = np.random.default_rng(4)
X, Z = RNG.normal(2.0, 3.0, (9, 2)), RNG.normal(1.0, 2.0, (6, 2))
LEFT, RIGHT = (np.column_stack([RNG.normal(size=n), np.arange(n) % 3]) for n in (9, 7))


def functions(rows, line, levels):
    values = rows[:, :-1] if levels else rows
    B = np.column_stack([np.ones(len(rows)), *(values.T if line else [])])
    return np.concatenate([B * (rows[:, -1:] == level) for level in range(levels)], axis=1) if levels else B


@pytest.mark.parametrize(("line", "levels"), [(True, 0), (False, 0), (True, 3), (False, 3)])
def test_a_centred_kernel_is_of_what_a_fit_at_the_nodes_leaves(line, levels):
    inner = ByLevel(pgm.RBF(1.0, 1.0), [1.3, 0.2, 0.7], [0.8, 2.0, 1.1], 3) if levels else pgm.RBF(1.4, [0.9, 2.0])
    left, right, nodes = (LEFT, RIGHT, LEFT[:8]) if levels else (X, Z, X[:7])
    every = np.concatenate([left, right, nodes])
    K = np.asarray(inner(every, every))
    B = functions(every, line, levels)
    P = np.eye(len(every))
    P[:, -len(nodes) :] -= B @ np.linalg.pinv(B[-len(nodes) :])
    expected = (P @ K @ P.T)[: len(left), len(left) : len(left) + len(right)]
    kernel = Centred(inner, nodes, line, levels)
    np.testing.assert_allclose(kernel(left, right), expected, atol=1e-6)
    np.testing.assert_allclose(kernel.diagonal(left), np.diag(kernel(left, left)), atol=1e-9)
    # The fit at the nodes themselves is nothing.
    fitted = np.linalg.pinv(functions(nodes, line, levels)) @ np.asarray(kernel(nodes, right))
    np.testing.assert_allclose(fitted, 0.0, atol=1e-6)


def test_functions_of_levels_have_their_own_variances_and_lengthscales():
    kernel = ByLevel(pgm.Matern52(1.0, 1.0), [1.3, 0.2, 0.7], 0.8, 3)
    assert kernel.lengthscale.value.tolist() == [0.8] * 3
    for level, variance in enumerate([1.3, 0.2, 0.7]):
        left, right = (rows[rows[:, 1] == level] for rows in (LEFT, RIGHT))
        alone = pgm.Matern52(variance, 0.8)(left[:, :1], right[:, :1])
        np.testing.assert_allclose(kernel(left, right), alone, rtol=1e-12)
        assert not np.asarray(kernel(left, RIGHT[RIGHT[:, 1] != level])).any()
    np.testing.assert_allclose(kernel.diagonal(LEFT), np.diag(kernel(LEFT, LEFT)))


N = 50
DATA = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["x", "z", "y"])
DATA["g"] = RNG.choice(["a", "b", "c"], N, p=[0.5, 0.3, 0.2])
DATA["y"] += 2.0 * DATA["x"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("s(x)", ["x"]), ("te(x, z)", ["x", "z"]), ("s(x, z)", ["x", "z"]), ("ti(x, z)", []), ("s(x, period=9)", []),
        ("s(x, bs='cc')", []), ("s(x, by=g)", ["x:g[a]", "x:g[b]", "x:g[c]"]), ("s(x, by=z)", ["z", "x:z"]),
        ("s(x, g, bs='fs')", []), ("s(x, k=10)", ["x"]), ("rw2(x)", ["x"]),
    ],
)  # fmt: skip
def test_a_smooth_has_lines_of_its_own(text, names, tmp_path):
    regression = pgm.formula(f"y ~ g + {text}", DATA)
    line, smooth = regression.terms
    assert [line.columns[0].names[place] for place in smooth.lines] == names
    assert list(line.columns[0].names) == ["Intercept", "g[T.b]", "g[T.c]", *names]
    result = regression.cavi()
    loaded = pgm.load_formula(result.save(tmp_path / "fit.npz"))
    if names and text != "s(x, by=z)":
        columns = regression.X[:, regression.blocks[0]][:, list(smooth.lines)]
        centred = (DATA["x"] - DATA["x"].mean()).to_numpy()
        indicators = pd.get_dummies(DATA["g"]).to_numpy(float) if "by" in text else np.ones((N, 1))
        expected = indicators * centred[:, None]
        np.testing.assert_allclose(columns[:, : indicators.shape[1]], expected - expected.mean(axis=0), atol=1e-12)
    table = result.effects(text)
    pd.testing.assert_frame_equal(loaded.effects(text), table)
    # The effects of all terms are the predictor, less its mean.
    whole = result.predictions(target="linear")["mean"]
    gap = whole - result.predictions(target="linear", exclude=[smooth.name])["mean"]
    # Three standard errors of a difference of means of 1,000 draws, of a deviation of about one.
    np.testing.assert_allclose(table["mean"], gap - gap.mean(), atol=0.15)


def test_the_effect_of_a_smooth_has_its_line():
    frame = pd.DataFrame({"x": np.linspace(0.0, 1.0, 30), "w": np.tile([0.0, 1.0], 15)})
    frame["y"] = 3.0 * frame["x"] + frame["w"]
    priors = {"s(x)": {"variance": pgm.Fixed(1e-6), "lengthscale": pgm.Fixed(1.0)}, "sigma": pgm.Fixed(0.01)}
    result = pgm.formula("y ~ w + s(x)", frame, priors=priors).cavi()
    np.testing.assert_allclose(result.effects("s(x)")["mean"], 3.0 * (frame["x"] - 0.5), atol=0.01)
    np.testing.assert_allclose(result.summary().loc[["x", "w"], "mean"].astype(float), [3.0, 1.0], atol=0.02)


# Monthly deaths of lung diseases in the United Kingdom, 1974 to 1979: R's data ldeaths.
DEATHS = """3035 2552 2704 2554 2014 1655 1721 1524 1596 2074 2199 2512 2933 2889 2938 2497 1870 1726 1607 1545 1396
1787 2076 2837 2787 3891 3179 2011 1636 1580 1489 1300 1356 1653 2013 2823 3102 2294 2385 2444 1748 1554 1498 1361 1346
1564 1640 2293 2815 3137 2679 1969 1870 1633 1529 1366 1357 1570 1535 2491 3084 2605 2573 2143 1693 1504 1461 1354 1333
1492 1781 1915"""
# Uptake of CO2 by twelve plants at seven concentrations: R's data CO2.
UPTAKE = """16 30.4 34.8 37.2 35.3 39.2 39.7 13.6 27.3 37.1 41.8 40.6 41.4 44.3 16.2 32.4 40.3 42.1 42.9 43.9 45.5 14.2
24.1 30.3 34.6 32.5 35.4 38.7 9.3 27.3 35 38.8 38.6 37.5 42.4 15.1 21 38.1 34 38.9 39.6 41.4 10.6 19.2 26.2 30 30.9
32.4 35.5 12 22 30.6 31.8 32.4 31.1 31.5 11.3 19.4 25.8 27.9 28.5 28.1 27.8 10.5 14.9 18.1 18.9 19.5 22.2 21.9 7.7 11.4
12.3 13 12.5 13.7 14.4 10.6 18 17.9 17.9 17.9 18.9 19.9"""


def near(table, mean, sd, tolerance):
    """Means within a part of their deviations, and deviations within a tenth and that part."""
    np.testing.assert_allclose(table["mean"].astype(float), mean, atol=tolerance * np.max(sd))
    np.testing.assert_allclose(table["sd"].astype(float), sd, rtol=0.1 + tolerance)


@pytest.mark.slow
def test_the_trend_of_deaths():
    """mgcv 1.8-41: gam(log(y) ~ s(month, bs = "cc", k = 12) + s(t), method = "REML"), months to 12.5."""
    data = pd.DataFrame({"y": [float(one) for one in DEATHS.split()], "t": np.arange(1.0, 73.0)})
    data["month"] = (data["t"] - 1) % 12 + 1
    result = pgm.formula("log(y) ~ s(month, period=12) + s(t)", data).fit()
    summary = result.summary()
    near(summary.loc[["Intercept"]], 7.58783, 0.01074, 0.2)
    near(summary.loc[["t"]], -0.18233 / 71.0, 2.0 * 0.01857 / 71.0, 0.2)
    seasons = result.effects("s(month, period=12)").iloc[[0, 19, 39, 71]]
    near(seasons, [0.36997, -0.33334, 0.12414, 0.21641], [0.0271, 0.0264, 0.0254, 0.0271], 0.5)


@pytest.mark.slow
def test_curves_of_levels_are_centred():
    """mgcv 1.8-41: gam(uptake ~ Type + Treatment + s(log(conc), by = Type, k = 7), method = "REML")."""
    data = pd.DataFrame({"uptake": [float(one) for one in UPTAKE.split()]})
    data["conc"] = np.tile(np.log([95.0, 175.0, 250.0, 350.0, 500.0, 675.0, 1000.0]), 12)
    data["Type"] = np.repeat(["Quebec", "Mississippi"], 42)
    data["Treatment"] = np.tile(np.repeat(["nonchilled", "chilled"], 21), 2)
    priors = {"Intercept": dist.Normal(0.0, 1e3)}
    text = "uptake ~ C(Type) + C(Treatment, contr.treatment('nonchilled')) + s(conc, by=Type)"
    result = pgm.formula(text, data, priors=priors).fit()
    summary = result.summary()
    near(summary.iloc[:3], [24.3131, 12.6595, -6.8595], [0.6679, 0.7713, 0.7713], 0.15)
    rows = [0, 3, 6, 42, 45, 48]
    curves = result.effects("s(conc, by=Type)").iloc[rows]
    expected = [-19.3968, 4.2259, 8.2622, -10.0322, 1.9694, 4.3864]
    np.testing.assert_allclose(curves["mean"].astype(float), expected, atol=0.5)
    np.testing.assert_allclose(curves["sd"].astype(float), [1.297, 0.858, 1.246, 1.236, 0.662, 1.148], rtol=0.35)
