"""The drawn graph: nodes in their plates, arrows that cross no node or label, readable text."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

import pgmodels as pgm
from pgmodels.plots.graph import RADIUS, Box, is_dot, lay_out
from tests.covering import some
from tests.plots.test_plots import boxes


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
    texts = boxes(figure)
    width, height = figure.bbox.width, figure.bbox.height
    for i, (text, box) in enumerate(texts):
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{text.get_text()!r} is clipped"
        for other, second in texts[:i]:
            assert not box.overlaps(second), f"{text.get_text()!r} and {other.get_text()!r} overlap"
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


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match=r"model must be a pgm.Model; got str"):
        pgm.plot_graph("Bernoulli")
