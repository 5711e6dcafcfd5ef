import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.augmentation.augmentation import conditional_sites, expectations
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.explain import AugmentedGraph, Edge, Node, build_graph, explain
from pgmodels.augmentation.laws import VARIANCE
from pgmodels.likelihoods.expression import Environment, Latent, Latents, Observation, ParameterSymbol
from pgmodels.likelihoods.likelihood import trace
from pgmodels.likelihoods.operations import (
    add,
    exp,
    gamma,
    largest,
    multiply,
    normal_cdf,
    normal_pdf,
    positions,
    power,
    prod,
    sigmoid,
    sqrt,
    sum_,
)
from pgmodels.likelihoods.printing import Name
from tests.covering import some

pytestmark = pytest.mark.usefixtures("double_precision")

S = sigmoid
VALUES = {"r": 2.5, "df": 4.0, "s": 0.7, "p": 3.0}
LABELS = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
COUNTS = np.array([0.0, 3.0, 1.0, 7.0, 2.0])
REAL = np.array([-1.3, 0.4, 2.1, 0.0, -0.2])
CLASSES = np.array([0.0, 1.0, 2.0, 2.0, 0.0])


def student_t(y, f, df, s):
    constant = gamma((df + 1) / 2) / (gamma(df / 2) * sqrt(np.pi * df) * s)
    return constant * (1 + ((y - f) / s) ** 2 / df) ** (-(df + 1) / 2)


def ordered(distribution):
    def formula(y, f, r):
        below = [0, distribution(-1 - f), distribution(r - f), 1]
        return sum_((below[k + 1] - below[k]) * (y == k) for k in range(3))

    return formula


# name: formula, latents, parameters, observations
CASES = {
    "Bernoulli": (lambda y, f: S(f) ** y * S(-f) ** (1 - y), 1, "", LABELS),
    "Binomial": (lambda y, f: S(f) ** y[0] * S(-f) ** (y[1] - y[0]), 1, "", np.stack([COUNTS, COUNTS + 2], 1)),
    "NegativeBinomial": (lambda y, f, r: S(f) ** y * S(-f) ** r, 1, "r", COUNTS),
    "SigmoidPoisson": (lambda y, f, r: (r * S(f)) ** y * exp(-r * S(f)) / gamma(y + 1), 1, "r", COUNTS),
    "LogisticSoftmax": (lambda y, f: S(f[y]) / sum_(S(f)), 3, "", CLASSES),
    "StickBreaking": (lambda y, f: prod(S(f) ** (positions(f) == y) * S(-f) ** (positions(f) < y)), 2, "", CLASSES),
    "StudentT": (student_t, 1, "df s", REAL),
    "Laplace": (lambda y, f, s: exp(-abs(y - f) / s) / (2 * s), 1, "s", REAL),
    "Gaussian": (lambda y, f, s: normal_pdf(y, f, s), 1, "s", REAL),
    "Heteroscedastic": (lambda y, f, p: normal_pdf(y, f[0], 1 / sqrt(p * S(f[1]))), 2, "p", REAL),
    "Probit": (lambda y, f: normal_cdf(f) ** y * normal_cdf(-f) ** (1 - y), 1, "", LABELS),
    "MultinomialProbit": (lambda y, f, s: largest(f, y, s), 3, "s", CLASSES),
    "Scaled": (lambda y, f: S(2 * f - 1) ** y * S(1 - 2 * f) ** (1 - y), 1, "", LABELS),
    "Offset": (lambda y, f: S(f + y[1]) ** y[0] * S(-f - y[1]) ** (1 - y[0]), 1, "", np.stack([LABELS, REAL], 1)),
    "Exponential": (lambda y, f: exp(y * (2 * f - 1)) / (1 + exp(2 * f - 1)), 1, "", LABELS),
    "Mixed": (lambda y, f: S(f[0]) ** y * S(f[1]) / sum_(S(f)), 2, "", LABELS),
    "Individual": (lambda y, f: S(f[y]) / sum_([S(f[0]), S(f[1]), S(f[2])]), 3, "", CLASSES),
    "OrderedLogit": (ordered(S), 1, "r", np.array([0.0, 1.0, 2.0, 1.0, 0.0])),
    "OrderedProbit": (ordered(normal_cdf), 1, "r", np.array([0.0, 1.0, 2.0, 1.0, 0.0])),
    "ZeroInflated": (
        lambda y, f, r: S(-f[1]) * (y == 0) + S(f[1]) * (r * S(f[0])) ** y * exp(-r * S(f[0])) / gamma(y + 1),
        2,
        "r",
        COUNTS,
    ),
    "LabelNoise": (lambda y, f: 0.1 + 0.8 * S(f) ** y * S(-f) ** (1 - y), 1, "", LABELS),
    "Contaminated": (lambda y, f, s: 0.9 * normal_pdf(y, f, s) + 0.1 * exp(-abs(y - f)) / 2, 1, "s", REAL),
    "NoisyOr": (lambda y, f: (S(f[0]) + S(-f[0]) * S(f[1])) * (y == 1) + S(-f[0]) * S(-f[1]) * (y == 0), 2, "", LABELS),
    "Robust": (lambda y, f, s: exp(-sqrt(1 + (y - 2 * f) ** 2) / s), 1, "s", REAL),
}


def derived(name, size=None):
    function, latents, parameters, _ = CASES[name]
    size = size or latents
    return derive_formula(trace(function, size, tuple((p, True, None) for p in parameters.split())), size)


def marginals(augmentation):
    rng = np.random.default_rng(5)
    shape = (5, augmentation.size)
    return jnp.asarray(rng.normal(0.6, 1.5, shape)), jnp.asarray(rng.gamma(2.0, 0.4, shape))


@pytest.mark.parametrize("name", some(CASES, "LogisticSoftmax", "StudentT", "OrderedProbit"))
def test_printed_sites_are_those_of_gibbs(name):
    augmentation, y = derived(name), jnp.asarray(CASES[name][3])
    f, _ = marginals(augmentation)
    for block, latents in enumerate(augmentation.blocks):

        @jax.jit
        def printed_and_computed(f, block=block):
            auxiliaries = augmentation.draw_chain(jax.random.key(block), f, y, VALUES, block)
            printed = evaluate_sites(augmentation, Environment(y, f, VALUES | auxiliaries), block, averaged=False)
            return printed, augmentation.sites_given(auxiliaries, f, y, VALUES, block)

        for one, other in zip(*printed_and_computed(f), strict=True):
            other = jnp.broadcast_to(other, f.shape)
            # Both sides are the same few operations in another order.
            np.testing.assert_allclose(one[:, latents], other[:, latents], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", some(CASES, "Bernoulli", "LogisticSoftmax", "Laplace", "NoisyOr"))
def test_printed_updates_are_those_of_cavi(name):
    augmentation, y = derived(name), jnp.asarray(CASES[name][3])
    m, v = marginals(augmentation)

    @jax.jit
    def printed_and_computed(m, v):
        values = VALUES | {VARIANCE: v}
        for symbol, value in expectations(augmentation):
            values[symbol.name] = value.evaluate(Environment(y, m, values))
        env, blocks = Environment(y, m, values), range(len(augmentation.blocks))
        printed = [evaluate_sites(augmentation, env, block, averaged=True) for block in blocks]
        return printed, augmentation.local_sites(m, v, y, VALUES)

    printed, expected = printed_and_computed(m, v)
    for got, latents in zip(printed, augmentation.blocks, strict=True):
        for one, other in zip(got, expected, strict=True):
            # h is a gradient plus w m in the code, direct here: a few roundings of numbers up to 10.
            np.testing.assert_allclose(one[:, latents], other[:, latents], rtol=1e-9, atol=1e-11)


def evaluate_sites(augmentation, env, block, averaged):
    h, w = (jnp.zeros(env.f.shape) for _ in range(2))
    for site in conditional_sites(augmentation, block, averaged):
        at = slice(None) if isinstance(site.latent, Latents) else slice(site.latent.position, site.latent.position + 1)
        h, w = h.at[:, at].add(site.potential.evaluate(env)), w.at[:, at].add(site.precision.evaluate(env))
    return h, w


# Written by hand from the papers' formulas, not copied from the output.
LINES = {
    "Bernoulli": [
        "p(y | f) = σ(f)^y σ(-f)^(1 - y)",
        "σ(f)^y σ(-f)^(1 - y) = 2^-1 ∫ exp((y - 1/2) f - ω f^2 / 2) PG(ω; 1, 0) dω",
        "ω | f, y ~ PG(1, f)",
        "h = y - 1/2",
        "w = ω",
        "f | ω, y ~ N(V (h + K^-1 μ), V),  V = (K^-1 + diag(w))^-1",
        "E[ω] = tanh(ζ / 2) / (2 ζ),  ζ = sqrt(m^2 + v)",
        "B = y log σ̃₊(f) + (1 - y) log σ̃₋(f)",
        "ELBO = Σ_i B_i - KL(N(m, V) ‖ N(μ, K))",
        "1 - y ≥ 0 (the exponent of σ(-f))",
    ],
    "Binomial": ["ω | f, y ~ PG(y[1], f)", "h = y[0] - y[1] / 2"],
    "NegativeBinomial": ["ω | f, y ~ PG(y + r, f)", "h = (y - r) / 2", "B = y log σ̃₊(f) + r log σ̃₋(f)"],
    "SigmoidPoisson": [
        "exp(-r σ(f)) = Σ_k Poisson(k; r) σ(-f)^k",
        "k | f, y ~ Poisson(r σ(-f))",
        "ω | k, f, y ~ PG(y + k, f)",
        "h = (y - k) / 2",
        "E[k] = r σ̃₋(f)",
        "h = (y - E[k]) / 2",
        "B = y log σ̃₊(f) - r (1 - σ̃₋(f)) + log(r^y / Γ(y + 1))",
    ],
    "LogisticSoftmax": [
        "p(y | f) = σ(f[y]) / Σ_c σ(f[c]),  c = 0, 1, 2",
        "1 / (Σ_c σ(f[c])) = ∫ exp(-λ Σ_c σ(f[c])) dλ",
        "λ | f, y ~ Gamma(1, rate Σ_c σ(f[c]))",
        "k[c] | λ, f, y ~ Poisson(λ σ(-f[c]))",
        "ω[c] | k[c], f, y ~ PG([y = c] + k[c], f[c])",
        "h[c] = ([y = c] - k[c]) / 2",
        "E[λ] = 1 / (Σ_c (1 - σ̃₋(f[c])))",
        "E[k[c]] = E[λ] σ̃₋(f[c])",
        "B = Σ_c [y = c] log σ̃₊(f[c]) - log(Σ_c (1 - σ̃₋(f[c])))",
        "ELBO = Σ_i B_i - Σ_c KL(N(m[c], V[c]) ‖ N(μ[c], K[c]))",
    ],
    "StickBreaking": ["ω[c] | f, y ~ PG([c = y] + [c < y], f[c])", "h[c] = ([c = y] - [c < y]) / 2"],
    "StudentT": [
        "ω | f, y ~ Gamma((df + 1) / 2, rate 1 + (y - f)^2 / (s^2 df))",
        "w = 2 ω / (s^2 df)",
        "h = 2 ω y / (s^2 df)",
    ],
    "Laplace": [
        "p(y | f) = exp(-|y - f| / s) / (2 s)",
        "ω | f, y ~ InverseGaussian(mean 1 / (2 s |y - f|), shape 1 / (2 s^2))",
        "B = log(1 / (2 s)) - sqrt((y - m)^2 + v) / s",
    ],
    "Gaussian": [
        "p(y | f) = exp(-(y - f)^2 / (2 s^2)) / (sqrt(2 π) s)",
        "f | y ~ N(V (h + K^-1 μ), V),  V = (K^-1 + diag(w))^-1",
        "h = y / s^2",
        "w = 1 / s^2",
    ],
    "Heteroscedastic": [
        "Block 1: f[0] given f[1], with k and ω integrated out",
        "Block 2: f[1] given f[0]",
        "w[0] = p σ(f[1])",
        "h[0] = p (1 - σ̃₋(f[1])) y",
        "k | f, y ~ Poisson(p (y - f[0])^2 σ(-f[1]) / 2)",
        "h[1] = 1/4 - k / 2",
    ],
    "Probit": [
        "u | f, y ~ N(f, 1) truncated to u > 0, where y = 1",
        "u2 | f, y ~ N(-f, 1) truncated to u2 > 0, where y = 0",
        "h = y u - (1 - y) u2",
        "E[u] = m + φ(m) / Φ(m)",
    ],
    "MultinomialProbit": [
        "p(y | f) = largest(f, y, s),  c = 0, 1, 2",
        "largest(f, y, s) = ∫ Π_c N(g[c]; f[c] / sqrt(s), 1) [g[c] ≤ g[y]] dg",
        "g[c] | f, y ~ N(f[c] / sqrt(s), 1), the largest at c = y",
        "h[c] = g[c] / sqrt(s)",
        "w[c] = 1 / s",
        "E[g[c]] = m[c] / sqrt(s) + sqrt(s) ∂log(largest(m, y, s))/∂m[c]",
        "B = log(largest(m, y, s)) - (Σ_c (v[c] / s)) / 2",
    ],
    "Scaled": ["h = 2 y - 1 + 2 ω", "w = 4 ω", "E[ω] = tanh(ζ / 2) / (2 ζ),  ζ = sqrt((2 m - 1)^2 + 4 v)"],
    "Offset": ["h = y[0] - 1/2 - ω y[1]", "ω | f, y ~ PG(1, f + y[1])"],
    "OrderedLogit": [
        "σ(r - f) - σ(-(1 + f)) = (1 - exp(-(r + 1))) σ(r - f) σ(1 + f)",
        "ω2 | f, y ~ PG([y = 1] + [y = 2], r - f)",
    ],
    "OrderedProbit": ["u | f, y ~ N(f, 1) truncated to u < -1 where y = 0; -1 < u < r where y = 1; u > r where y = 2"],
    "ZeroInflated": ["k | j, f, y ~ Poisson(r [j = 2] σ(-f[0]))", "E[k] = r q(j = 2) σ̃₋(f[0])"],
    "LabelNoise": [
        "j | f, y ~ Categorical(0.1, 0.8 σ(f)^y σ(-f)^(1 - y))",
        "q(j = 1) = 0.1 / (0.1 + 0.8 σ̃₊(f)^y σ̃₋(f)^(1 - y))",
        "ω | j, f, y ~ PG([j = 2], f)",
        "h = q(j = 2) (2 y - 1) / 2",
        "E[ω] = q(j = 2) tanh(ζ / 2) / (2 ζ),  ζ = sqrt(m^2 + v)",
    ],
    "NoisyOr": [
        "σ(f[0]) + σ(-f[0]) σ(f[1]) = Σ_j σ(f[0])^[j = 1] σ(-f[0])^[j = 2] σ(f[1])^[j = 2], where y = 1",
        "j | f, y ~ Categorical(σ(f[0]), σ(-f[0]) σ(f[1])), where y = 1, else j = 0",
        "ω | j, f, y ~ PG([j = 1] + [y = 0] + [j = 2], f[0])",
        "q(j = 1) = [y = 1] (σ̃₊(f[0]) / (σ̃₊(f[0]) + σ̃₊(-f[0]) σ̃₊(f[1])))",
        "h[0] = (q(j = 1) - [y = 0] - q(j = 2)) / 2",
    ],
    "Mixed": ["h[0] = (y - k[0]) / 2", "w[1] = ω2 + ω3[1]"],
}


@pytest.mark.parametrize("name", LINES)
def test_text(name):
    lines = [line.strip() for line in explain(derived(name), name).splitlines()]
    assert lines[0] == name
    assert [line for line in LINES[name] if line not in lines] == []


@pytest.mark.parametrize("name", CASES)
def test_text_fits_a_terminal(name):
    text = explain(derived(name), name)
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"0\.5|\(-[\d.]+\)|\^-\(1\)|exp\(0\)|exp\(-\(λ", text)


def test_many_classes_stay_short():
    text = explain(derived("LogisticSoftmax", 26), "LogisticSoftmax")
    assert "c = 0, ..., 25" in text
    assert len(text.splitlines()) == len(explain(derived("LogisticSoftmax"), "LogisticSoftmax").splitlines())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (add(multiply(-1.0, Latent(0, 1)), Observation()), "y - f"),
        (Observation() * 0.5 - 0.5, "(y - 1) / 2"),
        (-1 * (Observation() * 0.5 + 0.5), "-(y + 1) / 2"),
        (power(power(Observation(), ParameterSymbol("a", False)), ParameterSymbol("b", False)), "(y^a)^b"),
        (Observation() * 0.75, "3 y / 4"),
        (Observation() * 0.1, "0.1 y"),
        (sum_(Latents(3)) * Observation(), "y Σ_c f[c]"),
        (sum_(Latents(3)) / 2, "(Σ_c f[c]) / 2"),
        (2.0 / (Observation() + 1), "2 / (y + 1)"),
    ],
)
def test_formulas_print_without_ambiguity(expression, text):
    assert str(expression) == text


# graph


GP_SIZES = {name: [case[1]] for name, case in CASES.items()}
GRAPHS = {name: build_graph(derived(name), name, GP_SIZES[name]) for name in CASES}


def edges_by_label(graph):
    return {f"{graph.labels[edge.source]} → {graph.labels[edge.target]}" for edge in graph.edges}


def node(graph, label):
    return next(node for node in graph.nodes if node.label == label)


@pytest.mark.parametrize("name", CASES)
def test_structure(name):
    graph = GRAPHS[name]
    ids = {node.id for node in graph.nodes}
    assert len(ids) == len(graph.nodes)
    assert all(edge.source in ids and edge.target in ids for edge in graph.edges)
    for rule in derived(name).rules:
        if rule.auxiliary is not None:
            auxiliary = node(graph, rule.auxiliary.text())
            assert auxiliary.kind == "auxiliary"
            assert "i = 1..n" in [plate.label for plate in graph.plates_of(auxiliary)]
    observed = [node for node in graph.nodes if node.kind == "observed"]
    assert [node.label for node in observed] == ["y"]
    # y is drawn last, and everything leads to it.
    assert all(edge.source != observed[0].id for edge in graph.edges)
    assert {edge.source for edge in graph.edges} == ids - {observed[0].id}


@pytest.mark.parametrize("name", CASES)
def test_no_cycles(name):
    edges = set(GRAPHS[name].edges)
    remaining = {node.id for node in GRAPHS[name].nodes}
    while remaining:
        roots = {i for i in remaining if not any(e.target == i and e.source in remaining for e in edges)}
        assert roots
        remaining -= roots


def test_logistic_softmax():
    graph = GRAPHS["LogisticSoftmax"]
    edges = {"θ → GP[c]", "GP[c] → f[c]", "f[c] → y", "λ → k[c]", "k[c] → ω[c]", "k[c] → y", "ω[c] → y"}
    assert edges_by_label(graph) == edges
    inside = {n.label: [plate.label for plate in graph.plates_of(n)] for n in graph.nodes}
    both = ["c = 0..2", "i = 1..n"]
    data = {"y": both[1:], "λ": both[1:], "f[c]": both, "k[c]": both, "ω[c]": both}
    assert inside == {"θ": [], "GP[c]": ["c = 0..2"], **data}
    assert "  k[c]   auxiliary, for each c = 0..2 and i = 1..n" in str(graph).splitlines()
    assert "  λ      → k[c]" in str(graph).splitlines()


def test_coupled_latents():
    graph = build_graph(derived("Heteroscedastic"), "H", [1, 1])
    edges = {"f[0] → k", "f[0] → y", "f[1] → y", "p → k", "p → y", "k → ω", "θ[0] → GP[0]", "GP[1] → f[1]"}
    assert edges <= edges_by_label(graph)


def test_truncated_gaussian_separates_the_latent_from_the_observation():
    assert edges_by_label(GRAPHS["Probit"]) == {"θ → GP", "GP → f", "f → u", "f → u2", "u → y", "u2 → y"}


def test_many_classes_are_one_plate():
    graph = build_graph(derived("LogisticSoftmax", 26), "letters", [26])
    assert len(graph.nodes) == len(GRAPHS["LogisticSoftmax"].nodes)
    assert {plate.label for plate in graph.plates} == {"i = 1..n", "c = 0..25"}
    separate = build_graph(derived("LogisticSoftmax", 26), "letters", [1] * 26)
    assert node(separate, "θ[c]").plate == node(separate, "GP[c]").plate == "processes"


def test_sizes_must_fit():
    with pytest.raises(ValueError, match="reads 3 latents; the GPs have 2"):
        build_graph(derived("LogisticSoftmax"), "softmax", [2])


@pytest.mark.parametrize("name", CASES)
def test_graphviz(name):
    graph = GRAPHS[name]
    dot = graph.to_graphviz()
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', dot)
    assert bare.count("{") == bare.count("}") == 1 + len(graph.plates)
    assert bare.count('"') % 2 == 0
    declared = re.findall(r"^\s*(\w+) \[", bare, re.MULTILINE)
    assert sorted(declared) == sorted(["node", *(node.id for node in graph.nodes)])
    assert re.findall(r"(\w+) -> (\w+);", bare) == [(edge.source, edge.target) for edge in graph.edges]
    assert bare.count("fillcolor") == 1
    points = sum(node.kind in ("parameter", "hyperparameter") for node in graph.nodes)
    assert bare.count("shape=point") == points
    for plate in graph.plates:
        assert f"subgraph cluster_{plate.id} {{" in dot


@pytest.mark.parametrize("name", CASES)
def test_mermaid(name):
    graph = GRAPHS[name]
    lines = [line.strip() for line in graph.to_mermaid().splitlines()]
    assert lines[0] == "flowchart TD"
    assert sum(line.startswith("subgraph ") for line in lines) == lines.count("end") == len(graph.plates)
    declared = [match[1] for line in lines if (match := re.match(r'(\w+)(?:\[|\(\()"[^"]*"(?:\]|\)\)):::\w+$', line))]
    assert sorted(declared) == sorted(node.id for node in graph.nodes)
    drawn = [tuple(line.split(" --> ")) for line in lines if " --> " in line]
    assert drawn == [(edge.source, edge.target) for edge in graph.edges]
    # "end" and "graph" are words of the language.
    assert not {"end", "graph", "subgraph"} & {*declared, *(plate.id for plate in graph.plates)}


def test_names_are_escaped():
    nodes = (Node("n0", Name('a "b" \\ #<c>'), "latent", None), Node("n1", Name("y"), "observed", None))
    graph = AugmentedGraph('the "name"', nodes, (), (Edge("n0", "n1"),))
    assert 'digraph "the \\"name\\"" {' in graph.to_graphviz()
    assert 'n0 [label="a \\"b\\" \\\\ #<c>"];' in graph.to_graphviz()
    assert 'n0(("a #quot;b#quot; \\ #35;#lt;c#gt;")):::latent' in graph.to_mermaid()
