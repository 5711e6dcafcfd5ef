"""Grids of new data, comparisons over them, their figures, and files of regression results."""

import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm

pytest.importorskip("formulaic")
from pgmodels.regression.result import conditional_grid
from pgmodels.results import result as intervals

N = 60
RNG = np.random.default_rng(5)
DATA = pd.DataFrame(
    {
        "x": RNG.normal(size=N),
        "z": RNG.uniform(0.0, 10.0, N),
        "sex": pd.Categorical(RNG.choice(["f", "m"], N), ["m", "f"]),
        "farm": RNG.choice(list("abcd"), N),
        "day": pd.date_range("2024-03-01", periods=N, tz=None),
        "old": RNG.random(N) < 0.5,
    }
)
DATA["died"] = np.where(DATA["x"] + (DATA["sex"] == "f") + RNG.logistic(size=N) > 0.5, "yes", "no")


@pytest.fixture(scope="module")
def result():
    priors = {"(1|farm)": {"variance": 0.4}, "s(day)": {"variance": 0.3, "lengthscale": 20.0}}
    text = "died ~ x * sex + old + s(day) + (1|farm)"
    return pgm.formula(text, DATA, family="bernoulli", priors=priors).gaussian_vi()


def test_a_grid_varies_some_columns_and_keeps_the_others():
    grid, by = conditional_grid(DATA, ["x", "sex"])
    assert by == ["x", "sex"]
    assert len(grid) == 100
    assert list(grid.columns) == list(DATA.columns)
    np.testing.assert_allclose([grid["x"].min(), grid["x"].max()], [DATA["x"].min(), DATA["x"].max()])
    np.testing.assert_allclose(np.diff(grid["x"].unique()), (DATA["x"].max() - DATA["x"].min()) / 49)
    assert list(grid["sex"][:2]) == ["m", "f"]
    np.testing.assert_allclose(grid["z"], DATA["z"].mean())
    assert set(grid["farm"]) == {DATA["farm"].mode()[0]}
    assert set(grid["day"]) == {DATA["day"].mean()}
    quartiles, _ = conditional_grid(DATA, {"sex": None, "z": None, "x": None})
    np.testing.assert_allclose(quartiles["x"].unique(), DATA["x"].quantile([0.0, 0.25, 0.5, 0.75, 1.0]))
    exact, _ = conditional_grid(DATA, {"z": [1.0, 2.0], "old": True})
    assert exact[["z", "old"]].to_numpy().tolist() == [[1.0, True], [2.0, True]]
    for wrong in ("height", [], {"height": [1.0]}):
        with pytest.raises(ValueError, match="conditional must name columns of the data"):
            conditional_grid(DATA, wrong)


def test_predictions_over_a_grid_are_those_at_its_rows(result):
    table = result.predictions(conditional={"x": [-1.0, 1.0], "sex": None})
    rows = pd.DataFrame({"x": [-1.0, -1.0, 1.0, 1.0], "sex": ["m", "f"] * 2})
    others = {
        name: [value] * 4 for name, value in conditional_grid(DATA, "x")[0].iloc[0][["old", "farm", "day"]].items()
    }
    direct = result.predictions(rows.assign(**others), exclude=["(1|farm)"])
    np.testing.assert_allclose(table["mean"], direct["mean"], rtol=1e-12)
    assert list(table.columns[:2]) == ["x", "sex"]
    # A grid of groups has their effects.
    by_farm = result.predictions(conditional="farm", target="linear")
    effects = result.effects("(1|farm)").drop_duplicates("farm").sort_values("farm")
    np.testing.assert_allclose(np.diff(by_farm["mean"]), np.diff(effects["mean"]), atol=0.05)


def test_comparisons_and_slopes_over_grids_and_groups(result):
    contrast = {"sex": ["m", "f"]}
    table = result.comparisons(contrast, conditional={"x": [-1.0, 0.0, 1.0]}, target="linear")
    summary = result.summary()["mean"].astype(float)
    expected = summary["sex[T.f]"] + summary["x:sex[T.f]"] * np.array([-1.0, 0.0, 1.0])
    np.testing.assert_allclose(table["mean"], expected, atol=0.08)
    averages = [result.predictions(DATA.assign(sex=value))["mean"] for value in ("m", "f")]
    by_farm = result.comparisons(contrast, average_by="farm")
    differences = (averages[1] - averages[0]).groupby(DATA["farm"]).mean()
    np.testing.assert_allclose(by_farm["mean"], differences, atol=0.03)
    ratio = result.comparisons(contrast, comparison="ratio")["mean"][0]
    assert result.comparisons(contrast, comparison="lift")["mean"][0] == pytest.approx(ratio - 1.0, rel=1e-10)
    slopes = result.slopes("x", average_by="sex", target="linear")
    assert list(slopes["sex"]) == ["m", "f"]
    np.testing.assert_allclose(slopes["mean"], [summary["x"], summary["x"] + summary["x:sex[T.f]"]], atol=0.05)
    with pytest.raises(ValueError, match="comparison must be 'diff', 'ratio' or 'lift'"):
        result.comparisons(contrast, comparison="odds")


CLASHES = {"mean": "no", "sd": "no", "level": "abc", "slope": "no", "contrast": "no", intervals.names()[1]: "no"}


@pytest.mark.parametrize(("name", "levels"), CLASHES.items())
def test_a_column_of_the_data_has_another_name_in_tables_with_its_name(name, levels):
    x = np.linspace(-1.0, 1.0, 12)
    y = x + np.cos(5.0 * x) if levels == "no" else np.resize(list(levels), 12)
    family = {"no": "gaussian", "abc": "categorical"}[levels]
    frame = pd.DataFrame({name: x, "data_sd": x, "y": y, "g": list("uvw") * 4})
    result, plain = (
        pgm.formula(f"y ~ {column} + g", data, family=family).gaussian_vi()
        for column, data in ((name, frame), ("x", frame.rename(columns={name: "x"})))
    )
    calls = {
        "predictions": lambda one, column: one.predictions(),
        "grid": lambda one, column: one.predictions(conditional=[column, "g"]),
        "averages": lambda one, column: one.predictions(average_by=column),
        "effects": lambda one, column: one.effects("linear"),
        "slopes": lambda one, column: one.slopes(column, conditional=column),
        "comparisons": lambda one, column: one.comparisons({"g": ["u", "v"]}, conditional=column),
    }
    for call in calls.values():
        table, expected = call(result, name), call(plain, "x")
        assert table.columns.is_unique
        # The same columns in the same order, but for names, and the text of a slope or contrast.
        numbers = [
            place for place, column in enumerate(expected) if column not in ("slope", "y", "g", "contrast", "level")
        ]
        np.testing.assert_allclose(
            table.iloc[:, numbers].astype(float), expected.iloc[:, numbers].astype(float), rtol=1e-6, atol=1e-9
        )
        renamed = [after for after, before in zip(table, expected, strict=True) if before == "x"]
        assert all(column.removeprefix("data_").removeprefix("data_") == name for column in renamed)


def test_figures_of_a_column_called_level_have_one_line():
    frame = pd.DataFrame({"level": np.linspace(-1.0, 1.0, 12), "y": np.linspace(-1.0, 1.0, 12) ** 2})
    result = pgm.formula("y ~ gp(level)", frame).cavi()
    for figure in (result.plot_effects(), result.plot_predictions("level"), result.plot_slopes("level", "level")):
        (axes,) = figure.axes
        assert len(axes.lines) == 1
        assert len(axes.lines[0].get_xdata()) == 12


def test_the_response_is_drawn(result):
    table = result.predictions(DATA.head(5), target="response")
    mean = result.predictions(DATA.head(5))["mean"].astype(float)
    np.testing.assert_allclose(table["mean"], mean, atol=5 * np.sqrt(0.25 / 1000))
    np.testing.assert_allclose(table["sd"], np.sqrt(mean * (1 - mean)), atol=0.05)
    with pytest.raises(ValueError, match="target must be 'mean', 'linear', 'response' or a predictor"):
        result.predictions(target="f[1]")


def test_figures_over_a_grid_show_its_values(result):
    figure = result.plot_predictions(["x", "sex"])
    (axes,) = figure.axes
    table = result.predictions(conditional=["x", "sex"])
    for line, sex in zip(axes.lines, ["m", "f"], strict=True):
        np.testing.assert_allclose(line.get_ydata(), table.loc[table["sex"] == sex, "mean"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "probability of died = yes")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["m", "f"]
    panels = result.plot_slopes("x", ["day", "old", "sex"]).axes
    assert [axes.get_title() for axes in panels] == ["sex = m", "sex = f"]
    points = result.plot_comparisons({"old": [False, True]}, "sex").axes[0]
    assert [label.get_text() for label in points.get_xticklabels()] == ["m", "f"]
    assert points.get_ylabel().replace("\n", " ") == "probability of died = yes, old: True - False"
    assert [axes.get_title() for axes in result.plot_effects().axes] == ["s(day)", "(1|farm)"]
    with pytest.raises(ValueError, match="up to three columns of a grid"):
        result.plot_predictions({"x": [0.0], "sex": None, "old": None, "farm": None})


def test_a_file_has_the_result_and_its_formula(result, tmp_path):
    path = result.save(tmp_path / "fit.npz")
    loaded = pgm.load_formula(path)
    pd.testing.assert_frame_equal(loaded.summary(), result.summary())
    new = DATA.head(3).assign(farm="new")
    pd.testing.assert_frame_equal(loaded.predictions(new), result.predictions(new))
    pd.testing.assert_frame_equal(loaded.effects("s(day)"), result.effects("s(day)"))
    assert "z" not in loaded.regression.data.columns
    plain = tmp_path / "plain.npz"
    result.result.save(plain)
    with pytest.raises(ValueError, match="is not a result of a formula"):
        pgm.load_formula(plain)


def test_a_file_needs_the_code_of_the_caller(tmp_path):
    @pgm.likelihood(support=pgm.Real(), num_latents=1)
    def narrow(y, f):
        return pgm.normal_pdf(y, f, 0.5)

    tens = {"tens": lambda x: x / 10.0}
    weights = RNG.uniform(0.5, 2.0, N)
    regression = pgm.formula("z ~ tens(x) + sex", DATA, family=narrow, context=tens, weights=weights)
    path = (result := regression.gaussian_vi()).save(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="has a likelihood that is not one by name: pass it"):
        pgm.load_formula(path, context=tens)
    loaded = pgm.load_formula(path, context=tens, family=narrow)
    pd.testing.assert_frame_equal(loaded.predictions(DATA.head(2)), result.predictions(DATA.head(2)))
    np.testing.assert_allclose(loaded.regression.weights, weights)
