"""The augmented model as a directed acyclic graph with plates: as text, for Mermaid and for Graphviz."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.predictor import latents_of
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.augmentation.symbols import auxiliaries_of
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.notation import Name, Tree, indexed
from pgmodels.likelihoods.printers.text import to_text
from pgmodels.likelihoods.symbols import Latent, Latents, ParameterSymbol


@dataclass(frozen=True)
class Plate:
    """A plate: a replicated subgraph. ``parent`` is the id of the enclosing plate, None if there is none."""

    id: str
    label: str
    parent: str | None


@dataclass(frozen=True)
class Node:
    """A variable. ``kind`` is observed, latent, auxiliary, process, parameter or hyperparameter.

    ``plate`` is the id of its innermost plate, None if it is not replicated.
    """

    id: str
    symbol: Tree
    kind: str
    plate: str | None

    @property
    def label(self) -> str:
        """The symbol as text."""
        return to_text(self.symbol)


@dataclass(frozen=True)
class Edge:
    """A directed edge: the conditional law of node ``target`` depends on node ``source``; both are ids."""

    source: str
    target: str


@dataclass(frozen=True)
class AugmentedGraph:
    """The directed graphical model of p(y, auxiliaries, f): nodes, plates and edges.

    An auxiliary's prior may depend on y (a Pólya-Gamma shape does); y is always drawn last, so that the edge points
    from the auxiliary to y.
    """

    name: str
    nodes: tuple[Node, ...]
    plates: tuple[Plate, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of each node, by id."""
        return {node.id: node.label for node in self.nodes}

    def plates_of(self, node: Node) -> tuple[Plate, ...]:
        """The plates around a node, innermost first."""
        plates = {plate.id: plate for plate in self.plates}
        enclosing, at = [], node.plate
        while at is not None:
            enclosing.append(plates[at])
            at = plates[at].parent
        return tuple(enclosing)

    def __str__(self) -> str:
        width = max(len(node.label) for node in self.nodes)
        lines = [f"Augmented graph of {self.name}", "", "Nodes"]
        for node in self.nodes:
            inside = " and ".join(plate.label for plate in self.plates_of(node))
            lines.append(f"  {node.label:<{width}}  {node.kind}{f', for each {inside}' if inside else ''}")
        lines += ["", "Edges"]
        for node in self.nodes:
            targets = [self.labels[edge.target] for edge in self.edges if edge.source == node.id]
            if targets:
                lines.append(f"  {node.label:<{width}}  → {', '.join(targets)}")
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        from pgmodels.report.summaries import graph_html

        return graph_html(self)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        lines = ["flowchart TD"]
        lines += self._nested(None, 1, self._mermaid_node, self._mermaid_plate, "end")
        lines += [f"  {edge.source} --> {edge.target}" for edge in self.edges]
        lines += [
            "  classDef observed fill:#cccccc,stroke:#333333,color:#000000",
            "  classDef latent fill:#ffffff,stroke:#333333,color:#000000",
            "  classDef dot fill:#ffffff,stroke:none,color:#000000",
        ]
        return "\n".join(lines) + "\n"

    def to_graphviz(self) -> str:
        """The graph in Graphviz's DOT language."""
        lines = [f"digraph {_dot(self.name)} {{", "  rankdir=TB;", "  node [shape=circle];"]
        lines += self._nested(None, 1, self._dot_node, self._dot_plate, "}")
        lines += [f"  {edge.source} -> {edge.target};" for edge in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def _nested(
        self,
        plate: str | None,
        depth: int,
        write: Callable[[Node], str],
        opening: Callable[[Plate], list[str]],
        closing: str,
    ) -> list[str]:
        pad = "  " * depth
        lines = [pad + write(node) for node in self.nodes if node.plate == plate]
        for inner in self.plates:
            if inner.parent == plate:
                lines += [pad + line for line in opening(inner)]
                lines += self._nested(inner.id, depth + 1, write, opening, closing)
                lines.append(pad + closing)
        return lines

    def _mermaid_node(self, node: Node) -> str:
        label = _mermaid(node.label)
        if node.kind in ("parameter", "hyperparameter"):
            return f'{node.id}["• {label}"]:::dot'
        shape = f'["{label}"]' if node.kind == "process" else f'(("{label}"))'
        return f"{node.id}{shape}:::{'observed' if node.kind == 'observed' else 'latent'}"

    def _mermaid_plate(self, plate: Plate) -> list[str]:
        return [f'subgraph {plate.id}["{_mermaid(plate.label)}"]']

    def _dot_node(self, node: Node) -> str:
        label = _dot(node.label)
        if node.kind in ("parameter", "hyperparameter"):
            return f"{node.id} [shape=point, width=0.08, xlabel={label}];"
        style = {"observed": ", style=filled, fillcolor=gray80", "process": ", shape=box"}.get(node.kind, "")
        return f"{node.id} [label={label}{style}];"

    def _dot_plate(self, plate: Plate) -> list[str]:
        return [f"subgraph cluster_{plate.id} {{", f"  label={_dot(plate.label)};", "  labeljust=r;"]


def build_graph(augmentation: Augmentation, name: str, gp_sizes: Sequence[int]) -> AugmentedGraph:
    """The graph of a model whose GPs have ``gp_sizes`` latents each.

    Latents that the formula uses only as a vector share one node in a plate. Raises ValueError if the number of latents
    of the GPs differs from the formula's.
    """
    if sum(gp_sizes) != augmentation.num_latents:
        raise ValueError(
            f"the formula reads {augmentation.num_latents} latents; the GPs have {sum(gp_sizes)} ({gp_sizes})."
        )
    return _Builder(augmentation, name, tuple(gp_sizes)).build()


class _Builder:
    def __init__(self, augmentation: Augmentation, name: str, gp_sizes: tuple[int, ...]):
        self.augmentation, self.name, self.gp_sizes = augmentation, name, gp_sizes
        self.nodes: list[Node] = []
        self.edges: dict[Edge, None] = {}
        self.parameters = {node.name: node for node in _parameters(augmentation.formula)}
        factors = [augmentation.formula, *(rule.factor for rule in augmentation.rules)]
        auxiliaries = [rule.auxiliary for rule in augmentation.rules if rule.auxiliary is not None]
        self.over_latents = any(map(_has_vector, factors)) or any(auxiliary.is_vector for auxiliary in auxiliaries)

    def build(self) -> AugmentedGraph:
        plates = [Plate("data", "i = 1..n", None)]
        if self.over_latents:
            label = f"c = 0..{self.augmentation.size - 1}"
            plates = [Plate("processes", label, None), plates[0], Plate("latents", label, "data")]
        self._priors()
        parameters = {name: self._add(node.notation(), "parameter", None) for name, node in self.parameters.items()}
        auxiliaries = {}
        for rule in self.augmentation.rules:
            if rule.auxiliary is not None:
                plate = "latents" if rule.auxiliary.is_vector else "data"
                auxiliaries[rule.auxiliary.name] = self._add(rule.auxiliary.notation(), "auxiliary", plate)
        y = self._add(Name("y"), "observed", "data")
        for rule in self.augmentation.rules:
            if rule.auxiliary is not None:
                self._connect_auxiliary(rule, auxiliaries, parameters, y)
        for latent in self._read_directly():
            self._connect(latent, y)
        for parameter in parameters.values():
            self._connect(parameter, y)
        return AugmentedGraph(self.name, tuple(self.nodes), tuple(plates), tuple(self.edges))

    def _priors(self) -> None:
        """Add kernel hyperparameters, GPs, latents and predictors, with their edges."""
        size, several = self.augmentation.num_latents, len(self.gp_sizes) > 1
        self.latents: dict[int, str] = {}
        if self.over_latents:
            # One GP a latent has its own hyperparameters; a GP of several latents shares them.
            symbol = indexed("θ", "c" if several else None)
            theta = self._add(symbol, "hyperparameter", "processes" if several else None)
            process = self._add(indexed("GP", "c"), "process", "processes")
            f = self._add(indexed("f", "c"), "latent", "latents")
            self._connect(theta, process)
            self._connect(process, f)
            self.latents = dict.fromkeys(range(size), f)
            return
        start = 0
        for number, count in enumerate(self.gp_sizes):
            index = number if several else None
            theta = self._add(indexed("θ", index), "hyperparameter", None)
            process = self._add(indexed("GP", index), "process", None)
            self._connect(theta, process)
            for position in range(start, start + count):
                self.latents[position] = self._add(Latent(position, size).notation(), "latent", "data")
                self._connect(process, self.latents[position])
            start += count
        predictors = self.augmentation.predictors
        if predictors is not None:
            latents, self.latents = self.latents, {}
            for position, row in enumerate(predictors.rows):
                self.latents[position] = self._add(predictors.symbol(position).notation(), "latent", "data")
                for latent in row:
                    self._connect(latents[latent], self.latents[position])

    def _connect_auxiliary(self, rule: Rule, auxiliaries: dict[str, str], parameters: dict[str, str], y: str) -> None:
        """Add the edges from the arguments of an auxiliary's prior, and from the auxiliaries in its sites to y."""
        target = auxiliaries[rule.auxiliary.name]  # type: ignore[union-attr]
        for expression in rule.prior():
            for parent in auxiliaries_of(expression):
                self._connect(auxiliaries[parent.name], target)
            for parameter in _parameters(expression):
                self._connect(parameters[parameter.name], target)
            for latent in self._latents_in(expression):
                self._connect(latent, target)
        for site in rule.sites():
            for part in (site.potential, site.precision):
                for auxiliary in auxiliaries_of(part):
                    self._connect(auxiliaries[auxiliary.name], y)

    def _read_directly(self) -> Iterable[str]:
        """The latents on which y depends directly, not through an auxiliary."""
        direct = [rule for rule in self.augmentation.rules if not rule.separates]
        return dict.fromkeys(latent for rule in direct for latent in self._latents_in(rule.factor))

    def _latents_in(self, expression: Expression) -> Iterable[str]:
        symbols = latents_of(expression).values()
        positions = [
            position
            for node in symbols
            for position in ([node.position] if hasattr(node, "position") else range(self.augmentation.size))
        ]
        return dict.fromkeys(self.latents[position] for position in positions)

    def _add(self, symbol: Tree, kind: str, plate: str | None) -> str:
        identifier = f"n{len(self.nodes)}"
        self.nodes.append(Node(identifier, symbol, kind, plate))
        return identifier

    def _connect(self, source: str, target: str) -> None:
        self.edges[Edge(source, target)] = None


def _parameters(expression: Expression) -> list[ParameterSymbol]:
    if isinstance(expression, ParameterSymbol):
        return [ParameterSymbol(expression.name, expression.positive)]
    parameters = {node.name: node for child in expression.children for node in _parameters(child)}
    return list(parameters.values())


def _has_vector(expression: Expression) -> bool:
    return any(isinstance(node, Latents) for node in latents_of(expression).values())


def _mermaid(text: str) -> str:
    """Escape a label for double quotes in Mermaid, whose entities are written #name;."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(character, entity)
    return text


def _dot(text: str) -> str:
    """Quote an identifier or a label."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
