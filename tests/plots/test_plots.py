"""Figures against the results they show, and that all their text is readable."""

import base64
import pickle
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import nbclient
import nbformat
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.pylabtools import select_figure_formats
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text
from scipy import stats
from scipy.special import expit
from scipy.stats import skew

import pgmodels as pgm
from pgmodels.diagnostics.compare import convergence_by_latent, prediction_errors, reliability_bins
from pgmodels.diagnostics.vsbc import auxiliary_means
from pgmodels.plots.graph import SIZES, Box, is_dot, lay_out
from tests import made_results
from tests.covering import some
from tests.made_results import (
    ALL,
    CLASSES,
    ONE_INPUT,
    SAMPLES,
    TWO_INPUTS,
    among,
    approximation,
    comparison,
    problem,
    results,
)

RADIUS = SIZES.radius
FIGURES = {}
for every in ALL:
    FIGURES[f"marginals of {every}"] = lambda name=every: pgm.plot_marginals(comparison(name))
    FIGURES[f"densities of {every}"] = lambda name=every: pgm.plot_densities(comparison(name))
    FIGURES[f"auxiliaries of {every}"] = lambda name=every: pgm.plot_auxiliaries(comparison(name))
for every in CLASSES:
    FIGURES[f"reliability of {every}"] = lambda name=every: pgm.plot_reliability(comparison(name))
for every in ONE_INPUT:
    FIGURES[f"latents of {every}"] = lambda name=every: pgm.plot_latent(comparison(name))
for every in TWO_INPUTS:
    FIGURES[f"map of {every}"] = lambda name=every: pgm.plot_probability_map(results(name)["cavi"])
FIGURES |= {
    "map of draws": lambda: pgm.plot_probability_map(results("bernoulli")["gibbs"]),
    "map of one class": lambda: pgm.plot_probability_map(results("logistic_softmax")["cavi"], 2),
    "elbo": lambda: pgm.plot_elbo(comparison("bernoulli")),
    "skewness": lambda: pgm.plot_skewness(comparison("bernoulli")),
    "convergence": lambda: pgm.plot_convergence(results("heteroscedastic")["gibbs"]),
    "long labels": lambda: pgm.plot_marginals(relabelled("a_label_of_the_kind_that_scripts_make_for_us_by_the_dozen")),
    "dollars": lambda: pgm.plot_elbo({"$x_1$ and $x^2$": results("bernoulli")["cavi"]}),
}


def relabelled(label):
    by_label = results("bernoulli")
    return among({"gibbs": by_label["gibbs"], label: by_label["cavi"]})


def boxes(figure):
    """Every visible text and its box, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks() + axis.get_minor_ticks()
            span = 1e-9 * (high - low)
            hidden |= {tick.label1 for tick in ticks if not low - span <= tick.get_loc() <= high + span}
            hidden |= {tick.label2 for tick in ticks}
        if not axes.axison:
            hidden |= {label for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text, text.get_window_extent(renderer)) for text in texts if text not in hidden]


def assert_readable(figure, overlap):
    """Texts are within the figure, and overlap by less than some pixels; returns them with their boxes."""
    placed = boxes(figure)
    for i, (text, box) in enumerate(placed):
        inside = min(box.x0, box.y0) >= -1 and box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1
        assert inside, f"{text.get_text()!r} is clipped"
        for other, second in placed[:i]:
            wide = min(box.x1, second.x1) - max(box.x0, second.x0)
            high = min(box.y1, second.y1) - max(box.y0, second.y0)
            assert min(wide, high) <= 0 or min(wide, high) < overlap, (
                f"{text.get_text()!r} and {other.get_text()!r} overlap"
            )
    return placed


@pytest.mark.parametrize(
    "name",
    some(
        FIGURES,
        "marginals of bernoulli",
        "densities of bernoulli",
        "auxiliaries of bernoulli",
        "reliability of bernoulli",
        "latents of student_t",
        "map of bernoulli",
        "elbo",
        "convergence",
        "long labels",
        "dollars",
    ),
)
def test_everything_can_be_read(name):
    figure = FIGURES[name]()
    assert isinstance(figure, Figure)
    # Boxes of text reach a pixel or two beyond its ink.
    assert_readable(figure, overlap=2)
    for axes in figure.axes:
        assert axes.has_data(), "an empty panel"
        assert axes.get_xlabel() or not any(label.get_visible() for label in axes.get_xticklabels() if label.get_text())


def test_dollars_are_no_mathematics():
    figure = FIGURES["dollars"]()
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels == [r"\$x_1\$ and \$x^2\$"]
    assert not any(map(is_math_text, labels))


@pytest.mark.parametrize("name", some(["bernoulli", "logistic_softmax", "student_t"], "bernoulli"))
def test_marginals_are_those_of_the_results(name):
    by_label, table = results(name), comparison(name)
    figure = pgm.plot_marginals(table)
    predicted = table.test.predictions
    if name == "bernoulli":
        predicted = {label: p[:, 1] for label, p in predicted.items()}
    every = {"mean": {}, "variance": {}, "predicted": predicted}
    for label, result in by_label.items():
        every["mean"][label], every["variance"][label] = result.mean, result.variance
    for axes, values in zip(figure.axes, every.values(), strict=True):
        points = [c for c in axes.collections if c.get_label() in by_label]
        assert [c.get_label() for c in points] == ["cavi", "corrected"]
        for collection in points:
            x, y = collection.get_offsets().T
            np.testing.assert_array_equal(x, values["gibbs"].ravel())
            np.testing.assert_array_equal(y, values[collection.get_label()].ravel())
    bars = next(c for c in figure.axes[0].collections if c.get_label() not in by_label)
    ends = np.array(bars.get_segments())
    np.testing.assert_allclose(ends[:, :, 1].mean(axis=1), by_label["gibbs"].mean.ravel())
    # Independent draws: two standard errors are 2 sd / sqrt(400); their estimate is off by some per cent.
    expected = 4 * np.sqrt(by_label["gibbs"].variance.ravel() / (2 * SAMPLES))
    np.testing.assert_allclose(np.ptp(ends[:, :, 1], axis=1), expected, rtol=0.35)


def test_prediction_errors_are_those_of_independent_draws():
    by_label, (_, X, y) = results("bernoulli"), problem("bernoulli")
    p = expit(by_label["gibbs"].draw_marginals(X, seed=0)[..., 0])
    got = prediction_errors(by_label["gibbs"], X, y)
    np.testing.assert_allclose(got, p.std(axis=0) / np.sqrt(len(p)), rtol=0.35)
    several = prediction_errors(results("logistic_softmax")["gibbs"], *problem("logistic_softmax")[1:])
    assert several.shape == (24, 3)
    f, (_, X, y) = results("student_t")["gibbs"].draw_marginals(problem("student_t")[1])[..., 0], problem("student_t")
    got = prediction_errors(results("student_t")["gibbs"], X, y)
    np.testing.assert_allclose(got, f.std(axis=0) / np.sqrt(len(f)), rtol=0.35)


def test_densities_are_where_results_differ_most():
    by_label = results("logistic_softmax")
    mean = by_label["gibbs"].mean.copy()
    mean[7, 2] += 5 * np.sqrt(by_label["gibbs"].variance[7, 2])
    mean[3, 0] -= 4 * np.sqrt(by_label["gibbs"].variance[3, 0])
    moved = replace(by_label["cavi"], mean=mean, variance=by_label["gibbs"].variance)
    figure = pgm.plot_densities(among({"gibbs": by_label["gibbs"], "moved": moved}), num_points=2)
    assert [axes.get_title() for axes in figure.axes] == ["row 7, latent 2", "row 3, latent 0"]
    x, density = next(line for line in figure.axes[0].lines if line.get_label() == "moved").get_data()
    # Four deviations each way hold all but 6e-5.
    np.testing.assert_allclose(np.trapezoid(density, x), 1.0, atol=1e-4)
    np.testing.assert_allclose(np.trapezoid(density * x, x), mean[7, 2], rtol=1e-3)
    outline = figure.axes[0].patches[0].get_xy()
    area = 0.5 * abs(np.sum(outline[:-1, 0] * outline[1:, 1] - outline[1:, 0] * outline[:-1, 1]))
    np.testing.assert_allclose(area, 1.0, rtol=1e-9)


@pytest.mark.parametrize("name", CLASSES)
def test_reliability_is_that_of_the_predictions(name):
    test = comparison(name).test
    p, y = test.predictions["cavi"], test.y
    figure = pgm.plot_reliability(comparison(name))
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    line = next(line for line in figure.axes[0].lines if line.get_label() == "cavi")
    places = np.ceil(confidence * 15).astype(int)
    for b, (x, share) in zip(np.unique(places), np.transpose(line.get_data()), strict=True):
        np.testing.assert_allclose([x, share], [confidence[places == b].mean(), right[places == b].mean()], rtol=1e-12)
    for patch, predicted in zip(figure.axes[1].patches, test.predictions.values(), strict=True):
        expected = np.histogram(predicted.max(axis=1), np.linspace(0, 1, 16))[0]
        np.testing.assert_array_equal(patch.get_data().values, expected)
        assert expected.sum() == len(y)
    gaps = [abs((right - confidence)[places == b].sum()) for b in np.unique(places)]
    label = next(text.get_text() for text in figure.legends[0].get_texts() if text.get_text().startswith("cavi"))
    assert label == f"cavi (calibration error {sum(gaps) / len(y):.3f})"


def test_reliability_bins_by_hand():
    # Bins of width 1/15: 0.8 is the right end of bin 11, 0.6 of bin 8, and 0.7 is within bin 10.
    p = np.array([[0.8, 0.2], [0.2, 0.8], [0.8, 0.2], [0.4, 0.6], [0.7, 0.3]])
    bins = reliability_bins(p, np.array([0, 1, 1, 1, 1]))
    assert bins.counts.tolist() == [0] * 8 + [1, 0, 1, 3, 0, 0, 0]
    np.testing.assert_allclose(bins.edges, np.linspace(0, 1, 16))
    np.testing.assert_allclose(bins.accuracy[[8, 10, 11]], [1.0, 0.0, 2 / 3])
    np.testing.assert_allclose(bins.confidence[[8, 10, 11]], [0.6, 0.7, 0.8])
    np.testing.assert_allclose(bins.error, 0.2 * 0.4 + 0.2 * 0.7 + 0.6 * 2 / 15)


def test_elbo_is_the_trace():
    by_label = results("bernoulli")
    figure = pgm.plot_elbo(comparison("bernoulli"))
    values, gaps = (axes.lines for axes in figure.axes)
    assert [line.get_label() for line in values] == ["cavi"]
    np.testing.assert_array_equal(values[0].get_ydata(), by_label["cavi"].elbo_trace)
    np.testing.assert_allclose(gaps[0].get_ydata(), 5.0 * (0.3 ** np.arange(7.0) - 0.3**7), rtol=1e-10)
    assert "gibbs, corrected" in figure.legends[0].get_title().get_text()


def test_skewness_is_that_of_marginals():
    by_label = results("bernoulli")
    figure = pgm.plot_skewness(comparison("bernoulli"))
    axes = figure.axes[0]
    drawn, gaussian = axes.lines[0], axes.lines[1]
    np.testing.assert_array_equal(drawn.get_xdata(), by_label["gibbs"].X[:, 0])
    f = by_label["gibbs"].latents.reshape(-1, len(by_label["gibbs"].X))
    np.testing.assert_allclose(drawn.get_ydata(), skew(f, axis=0), rtol=1e-9)
    assert not gaussian.get_ydata().any()
    assert axes.get_ylabel() == "skewness"


@cache
def sticky():
    """Draws whose latent 1 at row 5 hardly moves."""
    draws = results("logistic_softmax")["gibbs"]
    f = draws.latents.copy()
    steps = np.random.default_rng(4).normal(size=f.shape[:2])
    f[:, :, 5, 1] = np.cumsum(steps, axis=1) * 0.1
    return replace(draws, stored_latents=f)


def sticky_with(**changes):
    return replace(sticky(), **changes)


def part_of_sticky(part):
    draws = sticky()
    return replace(draws, stored_latents=draws.latents[part], log_likelihood_trace=draws.log_likelihood_trace[part])


SOME = np.array([2, 5, 9])
# What cannot be plotted, and the message.
REFUSED = {
    "no test data": (lambda: pgm.plot_reliability(among(results("bernoulli"))), "no test data"),
    "no class": (lambda: pgm.plot_reliability(comparison("student_t")), "y is not a class"),
    "draws": (lambda: pgm.plot_reliability(results("bernoulli")["gibbs"]), "must be a result of compare; got Draws"),
    "no ELBO": (lambda: pgm.plot_elbo(results("bernoulli")["gibbs"]), r"none of the results \(gibbs\) has an ELBO"),
    "a list": (lambda: pgm.plot_elbo([results("bernoulli")["cavi"]]), "results must be a result, a dict"),
    "few draws": (lambda: pgm.plot_convergence(part_of_sticky(np.s_[:, :3])), "has 3 draws per chain"),
    "no draws": (lambda: pgm.plot_convergence(results("bernoulli")["cavi"]), "draws must be a result of gibbs"),
    "some rows": (
        lambda: auxiliary_means(sticky_with(whitened=None, stored_latents=sticky().latents[:, :, SOME], rows=SOME)),
        "draws store the latents of 3 rows of 24",
    ),
    "no latents": (lambda: pgm.plot_convergence(sticky_with(whitened=None, stored_latents=None)), "were not stored"),
    "corrected": (lambda: pgm.plot_auxiliaries(results("bernoulli")["corrected"]), "corrected and has no auxiliaries"),
    "different": (
        lambda: pgm.plot_auxiliaries({name: results(name)["cavi"] for name in CLASSES}), "different auxiliaries or data"
    ),
    "Gaussian": (
        lambda: pgm.plot_auxiliaries(approximation(problem("gaussian")[0], np.zeros((24, 1)), np.ones((24, 1)))),
        "Gaussian in f without augmentation",
    ),
    "no model": (lambda: pgm.plot_graph("Bernoulli"), r"model must be a pgm.Model; got str"),
    "two columns": (
        lambda: pgm.plot_latent({"it": results("bernoulli")["cavi"]}), "X of it has 2 columns; plot_latent needs one"
    ),
    "inputs": (lambda: pgm.plot_latent(results("student_t")["cavi"], np.zeros((3, 2))), "must have the 1 column"),
    "one column": (
        lambda: pgm.plot_probability_map(results("student_t")["cavi"]), "1 columns; plot_probability_map needs two"
    ),
    "class 3": (lambda: pgm.plot_probability_map(results("logistic_softmax")["cavi"], 3), "from 0 to 2; got 3"),
    "class of counts": (lambda: pgm.plot_probability_map(results("binomial")["cavi"], 1), "y is not a class"),
    "no points": (lambda: pgm.plot_densities(comparison("bernoulli"), 0), "num_points must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_convergence_counts_every_latent():
    draws = sticky()
    figure = pgm.plot_convergence(draws)
    assert [axes.get_title() for axes in figure.axes] == ["Bulk ESS", "Tail ESS", "R-hat"]
    for axes, values in zip(figure.axes, convergence_by_latent(draws.latents), strict=True):
        heights = np.array([patch.get_height() for patch in axes.patches])
        lefts = np.array([patch.get_x() for patch in axes.patches])
        assert heights.sum() == values.size
        np.testing.assert_allclose(heights @ lefts / values.size, values.mean(), atol=lefts[1] - lefts[0])
    marks = [[line.get_xdata()[0] for line in axes.lines] for axes in figure.axes]
    assert marks == [[400, 100], [400, 100], [1.01, 1.05]]
    alone = pgm.plot_convergence(part_of_sticky(np.s_[:1]))
    assert len(alone.axes) == 2
    assert "R-hat needs two" in alone.legends[0].get_title().get_text()


@pytest.mark.parametrize("name", some(["logistic_softmax", "heteroscedastic", "bernoulli"], "bernoulli"))
def test_auxiliaries_are_their_means(name):
    by_label = results(name)
    figure = pgm.plot_auxiliaries(comparison(name))
    means = {label: auxiliary_means(by_label[label]) for label in ("gibbs", "cavi")}
    titles = {"logistic_softmax": ["λ", *(f"{a}[{c}]" for a in "kω" for c in range(3))]}.get(name)
    titles = titles or (["k", "ω"] if name == "heteroscedastic" else ["ω"])
    assert [axes.get_title() for axes in figure.axes] == titles
    for axes, title in zip(figure.axes, titles, strict=True):
        value = {k: m[title[0]][:, int(title[2])] if "[" in title else m[title] for k, m in means.items()}
        order = np.argsort(value["gibbs"])
        for line in axes.lines:
            np.testing.assert_array_equal(line.get_ydata(), value[line.get_label()][order])
    assert "corrected" in figure.legends[0].get_title().get_text()


# The drawn graph: nodes in their plates, arrows that cross no node or label, readable text.


@pgm.likelihood
def weighted(y, f, observation_scale):
    return pgm.sigmoid(f[0]) ** y * pgm.sigmoid(f[1]) ** observation_scale / pgm.sum(pgm.sigmoid(f))


def overlap(one, other):
    return one.x_min < other.x_max and other.x_min < one.x_max and one.y_min < other.y_max and other.y_min < one.y_max


def gps(count):
    return [pgm.GP(pgm.RBF(lengthscale=1.0)) for _ in range(count)]


MODELS = {
    "Bernoulli": pgm.Bernoulli(),
    "Probit": pgm.Probit(),
    "Binomial": pgm.Binomial(),
    "NegativeBinomial": pgm.NegativeBinomial(2.5),
    "SigmoidPoisson": pgm.SigmoidPoisson(6.0),
    "LogisticSoftmax": pgm.LogisticSoftmax(3),
    "StickBreaking": pgm.StickBreaking(4),
    "StudentT": pgm.StudentT(4.0, 0.5),
    "Laplace": pgm.Laplace(0.5),
    "Gaussian": pgm.Gaussian(0.5),
    "HeteroscedasticGaussian": pgm.HeteroscedasticGaussian(4.0),
    "26 GPs": pgm.Model(pgm.LogisticSoftmax(26), gps(26)),
    "two GPs": pgm.Model(pgm.HeteroscedasticGaussian(4.0), gps(2)),
    "custom": pgm.Model(weighted(2.0), gps(2)),
}


@pytest.mark.parametrize(
    "name", some(MODELS, "Bernoulli", "LogisticSoftmax", "HeteroscedasticGaussian", "two GPs", "custom")
)
def test_graph(name):
    graph = pgm.derive(MODELS[name]).graph
    figure = pgm.plot_graph(MODELS[name])
    texts = assert_readable(figure, overlap=0)
    axes = figure.axes[0]
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == len(graph.edges)
    layout = lay_out(graph)
    inverted = axes.transData.inverted()
    labels = [inverted.transform(box) for text, box in texts if text.axes is axes and text is not axes.title]
    for edge, arrow in zip(graph.edges, arrows, strict=True):
        start, control, end = inverted.transform(arrow.get_transform().transform_path(arrow.get_path()).vertices)[:3]
        t = np.linspace(0, 1, 200)[:, None]
        line = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
        ends = [layout.nodes[edge.source], layout.nodes[edge.target]]
        assert np.hypot(*(line[-1] - ends[1])) < 1.5 * RADIUS
        for node in graph.nodes:
            if node.id not in (edge.source, edge.target):
                nearest = np.hypot(*(line - layout.nodes[node.id]).T).min()
                assert nearest > (0.05 if is_dot(node) else RADIUS), f"an arrow crosses {node.label}"
        for (x_min, y_min), (x_max, y_max) in labels:
            is_end = any(x_min - RADIUS < x < x_max + RADIUS and y_min - RADIUS < y < y_max + RADIUS for x, y in ends)
            hidden = (line[:, 0] > x_min) & (line[:, 0] < x_max) & (line[:, 1] > y_min) & (line[:, 1] < y_max)
            assert is_end or not hidden.any(), "an arrow crosses a label"


@pytest.mark.parametrize("name", MODELS)
def test_plates_hold_their_own_nodes_and_no_others(name):
    graph = pgm.derive(MODELS[name]).graph
    layout = lay_out(graph)
    for plate in graph.plates:
        box = layout.plates[plate.id]
        for node in graph.nodes:
            x, y = layout.nodes[node.id]
            if plate in graph.plates_of(node):
                assert box.x_min < x - RADIUS / 2 < x + RADIUS / 2 < box.x_max
                assert box.y_min < y - RADIUS / 2 < y + RADIUS / 2 < box.y_max
            else:
                assert not overlap(box, Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS))
        for other in graph.plates:
            second = layout.plates[other.id]
            if other.parent == plate.id:
                assert box.x_min <= second.x_min < second.x_max <= box.x_max
                assert box.y_min <= second.y_min < second.y_max <= box.y_max
            elif other.parent == plate.parent and other is not plate:
                assert not overlap(box, second)
    # Arrows point down.
    assert all(layout.nodes[edge.source][1] > layout.nodes[edge.target][1] for edge in graph.edges)


def test_kinds_are_told_apart():
    graph = pgm.derive(pgm.NegativeBinomial(2.5)).graph
    figure = pgm.plot_graph(pgm.derive(pgm.NegativeBinomial(2.5)))
    patches = figure.axes[0].patches
    circles = [patch for patch in patches if isinstance(patch, Circle) and patch.radius == RADIUS]
    shaded = [patch for patch in circles if patch.get_facecolor()[:3] == to_rgb("0.8")]
    assert (len(circles), len(shaded)) == (3, 1)
    assert tuple(shaded[0].center) == lay_out(graph).nodes[next(n.id for n in graph.nodes if n.label == "y")]
    dots = [patch for patch in patches if isinstance(patch, Circle) and patch.radius < RADIUS]
    squares = [patch for patch in patches if isinstance(patch, FancyBboxPatch)]
    # θ and the dispersion; the GP and one plate.
    assert (len(dots), len(squares)) == (2, 2)
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert texts == {r"$\theta$", r"$\mathrm{GP}$", "$f$", r"$\omega$", "$y$", "dispersion", "i = 1..n"}


def test_indices_are_subscripts_and_names_are_as_they_are():
    figure = pgm.plot_graph(MODELS["custom"])
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"$f_{c}$", "$k_{c}$", r"$\omega_{2}$", r"$\omega_{3,c}$", "observation_scale"} <= texts
    assert r"$f_{1}$" in {text.get_text() for text in pgm.plot_graph(MODELS["two GPs"]).axes[0].texts}


# What a notebook shows of figures, without %matplotlib inline and with it.


PNG = b"\x89PNG\r\n"


def figures():
    table = made_results.comparison("bernoulli")
    yield pgm.plot_convergence(table.results["gibbs"])
    yield pgm.plot_graph(table.results["cavi"].model)


def test_figures_have_a_picture_and_are_figures():
    for figure in figures():
        assert isinstance(figure, Figure)
        assert figure._repr_png_().startswith(PNG)
        again = pickle.loads(pickle.dumps(figure))
        assert again._repr_png_().startswith(PNG)
        np.testing.assert_array_equal(again.get_size_inches(), figure.get_size_inches())


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_notebook_shows_a_figure_as_one_picture(is_inline):
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    if is_inline:
        # As %matplotlib inline does.
        select_figure_formats(shell, {"png"})
    figure = pgm.plot_graph(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))))
    shown, _ = shell.display_formatter.format(figure)
    picture = shown["image/png"]
    assert (base64.b64decode(picture) if isinstance(picture, str) else picture).startswith(PNG)
    assert set(shown) == {"image/png", "text/plain"}


@pytest.mark.slow
def test_a_notebook_runs_with_figures_and_without_warnings():
    cells = [
        "import warnings; warnings.simplefilter('error', UserWarning)",
        "import numpy as np, pgmodels as pgm\nX = np.linspace(0, 1, 8)[:, None]; y = (X[:, 0] > 0.3).astype(float)",
        "vi = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)\npgm.plot_latent(vi)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    [shown] = notebook.cells[-1].outputs
    assert "image/png" in shown.data


# Plots of latents along an input and maps over two, against the results they show.


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
