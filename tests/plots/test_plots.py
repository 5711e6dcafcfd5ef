"""Figures against the results they show, and that all their text is readable."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.special import expit
from scipy.stats import skew

import pgmodels as pgm
from pgmodels.diagnostics.compare import convergence_by_latent, prediction_errors, reliability_bins
from pgmodels.diagnostics.vsbc import auxiliary_means
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
    "trace": lambda: pgm.plot_trace(results("logistic_softmax")["gibbs"]),
    "rank": lambda: pgm.plot_rank(results("logistic_softmax")["gibbs"]),
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
        "trace",
        "rank",
        "convergence",
        "long labels",
        "dollars",
    ),
)
def test_everything_can_be_read(name):
    figure = FIGURES[name]()
    assert isinstance(figure, Figure)
    placed = boxes(figure)
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in placed:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{text.get_text()!r} is clipped"
    for i, (text, box) in enumerate(placed):
        for other, second in placed[:i]:
            wide = min(box.x1, second.x1) - max(box.x0, second.x0)
            high = min(box.y1, second.y1) - max(box.y0, second.y0)
            # Boxes of text reach a pixel or two beyond its ink.
            assert wide < 2 or high < 2, f"{text.get_text()!r} and {other.get_text()!r} overlap"
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


def test_reliability_needs_classes_and_test_data():
    by_label = results("bernoulli")
    with pytest.raises(ValueError, match="no test data"):
        pgm.plot_reliability(among(by_label))
    with pytest.raises(ValueError, match="y is not a class"):
        pgm.plot_reliability(comparison("student_t"))
    with pytest.raises(ValueError, match="must be a result of compare; got Draws"):
        pgm.plot_reliability(by_label["gibbs"])


def test_elbo_is_the_trace():
    by_label = results("bernoulli")
    figure = pgm.plot_elbo(comparison("bernoulli"))
    values, gaps = (axes.lines for axes in figure.axes)
    assert [line.get_label() for line in values] == ["cavi"]
    np.testing.assert_array_equal(values[0].get_ydata(), by_label["cavi"].elbo_trace)
    np.testing.assert_allclose(gaps[0].get_ydata(), 5.0 * (0.3 ** np.arange(7.0) - 0.3**7), rtol=1e-10)
    assert "gibbs, corrected" in figure.legends[0].get_title().get_text()
    with pytest.raises(ValueError, match=r"none of the results \(gibbs\) has an ELBO"):
        pgm.plot_elbo(by_label["gibbs"])
    with pytest.raises(ValueError, match="results must be a result, a dict"):
        pgm.plot_elbo([by_label["cavi"]])


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


def test_traces_are_those_of_the_worst_latents():
    draws = sticky()
    figure = pgm.plot_trace(draws)
    traces = figure.axes[::2]
    assert [axes.get_title() for axes in traces][:2] == ["log p(y | f)", "f[1] at row 5"]
    for axes, values in zip(traces, (draws.log_likelihood_trace, draws.latents[:, :, 5, 1]), strict=False):
        np.testing.assert_array_equal([line.get_ydata() for line in axes.lines], values)
    bulk, tail, _ = convergence_by_latent(draws.latents)
    worst = np.sort(np.minimum(bulk, tail), axis=None)[3]
    for axes in traces[1:]:
        latent, row = map(int, re.fullmatch(r"f\[(\d)\] at row (\d+)", axes.get_title()).groups())
        assert min(bulk[row, latent], tail[row, latent]) <= worst


def test_long_traces_are_thinned_and_say_so():
    draws = sticky()
    f = np.tile(draws.latents, (1, 15, 1, 1))
    long = replace(draws, stored_latents=f, log_likelihood_trace=np.tile(draws.log_likelihood_trace, (1, 15)))
    axes = pgm.plot_trace(long).axes
    assert axes[-2].get_xlabel() == "draw (one in 2 is shown)"
    x, y = axes[0].lines[0].get_data()
    np.testing.assert_array_equal(y, long.log_likelihood_trace[0, x])


def test_ranks_are_counted():
    draws = sticky()
    figure = pgm.plot_rank(draws)
    grid = np.array(figure.axes).reshape(-1, 2)
    order = np.argsort(draws.latents[:, :, 5, 1], axis=None)
    chain = order // SAMPLES
    for c, axes in enumerate(grid[1]):
        # Chains share 20 bins of 20 ranks.
        expected = [(chain[start : start + 20] == c).sum() for start in range(0, 400, 20)]
        assert [patch.get_height() for patch in axes.patches] == expected
    for axes in grid.ravel():
        assert sum(patch.get_height() for patch in axes.patches) == SAMPLES
    short = replace(draws, stored_latents=draws.latents[:, :3], log_likelihood_trace=draws.log_likelihood_trace[:, :3])
    for plot in (pgm.plot_trace, pgm.plot_rank, pgm.plot_convergence):
        with pytest.raises(ValueError, match="has 3 draws per chain"):
            plot(short)
        with pytest.raises(ValueError, match="draws must be a result of gibbs"):
            plot(results("bernoulli")["cavi"])


def test_sampled_hyperparameters_are_traced():
    scales = np.random.default_rng(6).gamma(3.0, 0.2, (2, SAMPLES, 2))
    draws = replace(sticky(), hyperparameters={"f[0].lengthscale": scales})
    axes = pgm.plot_trace(draws).axes
    assert [a.get_title() for a in axes[2:5:2]] == [f"f[0].lengthscale[{i}]" for i in (0, 1)]
    np.testing.assert_array_equal([line.get_ydata() for line in axes[4].lines], scales[..., 1])


def test_draws_of_some_rows_are_named_by_them():
    draws = sticky()
    rows = np.array([2, 5, 9])
    some = replace(draws, whitened=None, stored_latents=draws.latents[:, :, rows], rows=rows)
    assert pgm.plot_trace(some).axes[2].get_title() == "f[1] at row 5"
    with pytest.raises(ValueError, match="draws store the latents of 3 rows of 24"):
        auxiliary_means(some)
    none = replace(draws, whitened=None, stored_latents=None)
    assert [axes.get_title() for axes in pgm.plot_trace(none).axes[::2]] == ["log p(y | f)"]
    with pytest.raises(ValueError, match="were not stored"):
        pgm.plot_convergence(none)


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
    one = replace(draws, stored_latents=draws.latents[:1], log_likelihood_trace=draws.log_likelihood_trace[:1])
    alone = pgm.plot_convergence(one)
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


def test_auxiliaries_of_nothing_are_refused():
    by_label = results("bernoulli")
    with pytest.raises(ValueError, match="corrected and has no auxiliaries"):
        pgm.plot_auxiliaries(by_label["corrected"])
    with pytest.raises(ValueError, match="different auxiliaries or data"):
        pgm.plot_auxiliaries({"one": by_label["cavi"], "two": results("logistic_softmax")["cavi"]})
    with pytest.raises(ValueError, match="Gaussian in f without augmentation"):
        pgm.plot_auxiliaries(approximation(problem("gaussian")[0], np.zeros((24, 1)), np.ones((24, 1))))
