import re

import pytest

from pgmodels.augmentation.explain import AugmentedGraph, Edge, Node, build_graph
from pgmodels.likelihoods.printing import Name
from tests.augmentation.test_explain import CASES, derived

GP_SIZES = {name: [case[1]] for name, case in CASES.items()}
GRAPHS = {name: build_graph(derived(name), name, GP_SIZES[name]) for name in CASES}


def edges_by_label(graph):
    return {(graph.labels[edge.source], graph.labels[edge.target]) for edge in graph.edges}


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
    assert edges_by_label(graph) == {
        ("θ", "GP[c]"),
        ("GP[c]", "f[c]"),
        ("f[c]", "y"),
        ("λ", "k[c]"),
        ("k[c]", "ω[c]"),
        ("k[c]", "y"),
        ("ω[c]", "y"),
    }
    inside = {n.label: [plate.label for plate in graph.plates_of(n)] for n in graph.nodes}
    both = ["c = 0..2", "i = 1..n"]
    data = {"y": both[1:], "λ": both[1:], "f[c]": both, "k[c]": both, "ω[c]": both}
    assert inside == {"θ": [], "GP[c]": ["c = 0..2"], **data}
    assert "  k[c]   auxiliary, for each c = 0..2 and i = 1..n" in str(graph).splitlines()
    assert "  λ      → k[c]" in str(graph).splitlines()


def test_coupled_latents():
    graph = build_graph(derived("Heteroscedastic"), "H", [1, 1])
    assert {("f[0]", "k"), ("f[0]", "y"), ("f[1]", "y"), ("p", "k"), ("p", "y"), ("k", "ω")} <= edges_by_label(graph)
    assert {("θ[0]", "GP[0]"), ("GP[1]", "f[1]")} <= edges_by_label(graph)


def test_truncated_gaussian_separates_the_latent_from_the_observation():
    assert edges_by_label(GRAPHS["Probit"]) == {
        ("θ", "GP"),
        ("GP", "f"),
        ("f", "u"),
        ("f", "u2"),
        ("u", "y"),
        ("u2", "y"),
    }


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
