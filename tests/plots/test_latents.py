"""Plots of latents along an input and maps over two, against the results they show."""

import jax
import numpy as np
import pytest
from matplotlib.text import Text
from scipy import stats

import pgmodels as pgm
from tests.covering import some
from tests.made_results import approximation, comparison, problem, results


@pytest.mark.parametrize("name", some(["negative_binomial", "heteroscedastic"], "heteroscedastic"))
def test_bands_hold_the_stated_mass(name):
    by_label = results(name)
    x = np.linspace(-2.5, 2.5, 31)[:, None]
    figure = pgm.plot_latent({"gibbs": by_label["gibbs"], "cavi": by_label["cavi"]}, x)
    size = by_label["cavi"].model.num_latents
    for latent, axes in enumerate(figure.axes[:size]):
        outer, inner = ([c.get_paths()[0].vertices for c in axes.collections[k::2]] for k in (0, 1))
        mean, variance = (part[:, latent] for part in by_label["cavi"].predict_latent(x))
        for vertices, mass in ((outer[1], 0.9), (inner[1], 0.5)):
            low, high = (edge(vertices, x[:, 0], side) for side in (min, max))
            scale = np.sqrt(variance)
            covered = stats.norm.cdf(high, mean, scale) - stats.norm.cdf(low, mean, scale)
            np.testing.assert_allclose(covered, mass, atol=1e-6)
        # Draws by themselves, with noise of their own: the share of 400 in a band is 0.9 to within 4 * 0.015, 0.5 to
        # within 4 * 0.025, and so are the band's own ends.
        f = by_label["gibbs"].draw_marginals(x, seed=9)[..., latent]
        for vertices, mass, within in ((outer[0], 0.9, 0.09), (inner[0], 0.5, 0.15)):
            low, high = (edge(vertices, x[:, 0], side) for side in (min, max))
            np.testing.assert_allclose(((low < f) & (f < high)).mean(axis=0), mass, atol=within)
    predicted = next(line for line in figure.axes[size].lines if line.get_label() == "cavi")
    np.testing.assert_allclose(predicted.get_ydata(), by_label["cavi"].predict(x).mean, rtol=1e-9)
    data = next(line for line in figure.axes[size].lines if line.get_label() == "data")
    np.testing.assert_array_equal(data.get_ydata(), by_label["cavi"].y)


def edge(vertices, x, side):
    """The lower or upper edge of a band at inputs."""
    return np.array([side(vertices[vertices[:, 0] == value, 1]) for value in x])


def test_latents_need_one_column():
    with pytest.raises(ValueError, match="X of bernoulli has 2 columns; plot_latent needs one"):
        pgm.plot_latent({"bernoulli": results("bernoulli")["cavi"]})
    with pytest.raises(ValueError, match=r"X_new must have the 1 column"):
        pgm.plot_latent(results("student_t")["cavi"], np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("name", "label", "within"),
    some([("bernoulli", "cavi", 0.01), ("logistic_softmax", "cavi", 0.03)], ("bernoulli", "cavi", 0.01)),
)
def test_the_contour_is_where_the_probability_is_one_half(name, label, within):
    result = results(name)[label]
    figure = pgm.plot_probability_map(result)
    shown = [1] if name == "bernoulli" else [0, 1, 2]
    crossed = 0
    for axes, c in zip(figure.axes, shown, strict=False):
        for contour in axes.collections:
            if not hasattr(contour, "levels") or list(contour.levels) != [0.5]:
                continue
            at = np.concatenate([path.vertices for path in contour.get_paths()])[::5]
            p = result.predict(at).probabilities[:, c]
            # Interpolation in cells of a fiftieth of the range.
            np.testing.assert_allclose(p, 0.5, atol=within)
            crossed += 1
    assert crossed > 0


def test_a_map_shows_the_data_and_the_inducing_inputs():
    common, _, _ = problem("bernoulli")
    figure = pgm.plot_probability_map(results("bernoulli")["cavi"])
    points = [c.get_offsets() for c in figure.axes[0].collections if not hasattr(c, "levels")]
    for label, drawn in zip((0, 1), points, strict=True):
        np.testing.assert_array_equal(drawn, common["X"][common["y"] == label])
    assert len(boxed(figure)) == 3
    # Two hundred inputs and a smooth kernel: the factor has fewer pivots than data.
    X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    with jax.enable_x64(True):
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 3.0)))
        common = {"model": model, "X": X, "y": (X[:, 0] > 0) * 1.0, "prior": model.prior(X), "seconds": 0.0}
    figure = pgm.plot_probability_map(approximation(common, np.zeros((200, 1)), np.ones((200, 1))))
    crosses = next(line for line in figure.axes[0].lines if line.get_marker() == "x")
    group = common["prior"].groups[0]
    pivots = np.asarray(group.Z)[: int(np.asarray(group.active).sum())]
    assert sorted(map(tuple, np.transpose(crosses.get_data()))) == sorted(map(tuple, pivots))
    assert "inducing inputs (pivots of the factor)" in boxed(figure)


def boxed(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_map_of_means_is_of_means():
    result = results("binomial")["cavi"]
    figure = pgm.plot_probability_map(result)
    filled = next(c for c in figure.axes[0].collections if hasattr(c, "levels"))
    low, high = result.X.min(axis=0), result.X.max(axis=0)
    corners = [np.linspace(a - 0.08 * (b - a), b + 0.08 * (b - a), 80) for a, b in zip(low, high, strict=True)]
    inputs = np.stack(np.meshgrid(*corners), axis=-1).reshape(-1, 2)
    mean = result.predict(inputs, np.ones(len(inputs))).mean
    np.testing.assert_allclose([filled.zmin, filled.zmax], [mean.min(), mean.max()], rtol=1e-9)
    filled = next(
        c for c in pgm.plot_probability_map(result, covariates=3.0).axes[0].collections if hasattr(c, "levels")
    )
    np.testing.assert_allclose([filled.zmin, filled.zmax], [3.0 * mean.min(), 3.0 * mean.max()], rtol=1e-9)
    with pytest.raises(ValueError, match=r"covariates of a figure must have shape \(1,\), .*; got shape \(2,\)"):
        pgm.plot_probability_map(result, covariates=[3.0, 4.0])


def test_maps_of_what_is_not_there_are_refused():
    with pytest.raises(ValueError, match="X has 1 columns; plot_probability_map needs two"):
        pgm.plot_probability_map(results("student_t")["cavi"])
    with pytest.raises(ValueError, match="from 0 to 2; got 3"):
        pgm.plot_probability_map(results("logistic_softmax")["cavi"], 3)
    with pytest.raises(ValueError, match="y is not a class"):
        pgm.plot_probability_map(results("binomial")["cavi"], 1)
    with pytest.raises(ValueError, match="num_points must be a whole number"):
        pgm.plot_densities(comparison("bernoulli"), 0)


def test_a_part_of_a_long_series_is_shown_with_its_data():
    x = np.linspace(0.0, 500.0, 20_001)
    model = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.Matern12(1.0, 2.0), form=pgm.Markov()))
    q = pgm.cavi(model, x[:, None], np.sin(x))
    part = pgm.plot_latent(q, np.linspace(100.0, 110.0, 50)[:, None])
    curve, data = part.axes[0].lines[0], part.axes[1].lines[0]
    assert (curve.get_xdata().min(), curve.get_xdata().max()) == (100.0, 110.0)
    np.testing.assert_array_equal(data.get_xdata(), x[(x >= 100.0) & (x <= 110.0)])
    notes = [text.get_text() for figure in (part, pgm.plot_latent(q)) for text in figure.findobj(Text)]
    assert sum("X_new shows a part" in note.replace("\n", " ") for note in notes) == 1


def test_curves_stay_where_all_models_are_defined():
    x, y = np.linspace(3.0, 103.0, 40), np.sin(np.arange(40.0))
    walk = pgm.Model(pgm.Gaussian(0.3), pgm.GP(pgm.RandomWalk(0.3)))
    waves = pgm.Model(pgm.Gaussian(0.3), pgm.GP(pgm.RBF(1.0, 1.0), form=pgm.Hilbert(120, domain=[(-9.0, 107.0)])))
    by_label = {"walk": pgm.cavi(walk, x[:, None], y), "waves": pgm.cavi(waves, x[:, None], y)}
    for shown, ends in ((by_label["walk"], (3.0, 108.0)), (by_label["waves"], (-2.0, 107.0)), (by_label, (3.0, 107.0))):
        curve = pgm.plot_latent(shown).axes[0].lines[0].get_xdata()
        np.testing.assert_allclose((curve[0], curve[-1]), ends, rtol=1e-12)


def test_a_map_ends_at_the_poles():
    places = np.column_stack([np.linspace(-20.0, 30.0, 8), np.linspace(40.0, 89.0, 8)])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Sphere(pgm.RBF(1.0, 2000.0))))
    axes = pgm.plot_probability_map(pgm.cavi(model, places, np.tile([0.0, 1.0], 4))).axes[0]
    filled = next(c for c in axes.collections if hasattr(c, "levels"))
    assert max(path.vertices[:, 1].max() for path in filled.get_paths() if len(path.vertices)) == 90.0
