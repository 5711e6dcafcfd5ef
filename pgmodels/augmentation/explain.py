"""Derivations in words and as a graph."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pgmodels.augmentation.augmentation import Augmentation, LatentSite, conditional_sites, expectations
from pgmodels.augmentation.laws import Root
from pgmodels.augmentation.predictors import (
    Auxiliary,
    auxiliaries_of,
    latents_of,
    parameters_of,
    positions_of,
    subexpressions,
)
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.likelihoods.expression import Expression, Latent, Latents
from pgmodels.likelihoods.printing import (
    APART,
    Applied,
    Name,
    Number,
    ParameterName,
    Part,
    Tree,
    bracketed,
    call,
    density,
    derivative,
    escaped,
    expectation,
    factors,
    fraction,
    indexed,
    inverse_power,
    line,
    listed,
    names_in,
    nodes,
    over,
    raised,
    renamed,
    to_latex,
    to_text,
    tree,
    words,
)

# The augmented model as a directed acyclic graph with plates: as text, for Mermaid and for Graphviz.


@dataclass(frozen=True)
class Plate:
    """A plate: a replicated subgraph. ``parent`` is the id of the enclosing plate, or None."""

    id: str
    label: str
    parent: str | None


@dataclass(frozen=True)
class Node:
    """A variable: observed, latent, auxiliary, process, parameter or hyperparameter; ``plate`` is its id or None."""

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

    An auxiliary's prior may depend on y, e.g. the shape of a Pólya-Gamma variable. Since y is always drawn last, the
    edge points from the auxiliary to y.
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
        """Return the plates around a node, innermost first."""
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
        """Return the graph as a Mermaid flowchart."""
        lines = ["flowchart TD"]
        lines += self._nested(self._mermaid_node, lambda p: [f'subgraph {p.id}["{_mermaid(p.label)}"]'], "end")
        lines += [f"  {edge.source} --> {edge.target}" for edge in self.edges]
        lines += [
            "  classDef observed fill:#cccccc,stroke:#333333,color:#000000",
            "  classDef latent fill:#ffffff,stroke:#333333,color:#000000",
            "  classDef dot fill:#ffffff,stroke:none,color:#000000",
        ]
        return "\n".join(lines) + "\n"

    def to_graphviz(self) -> str:
        """Return the graph in Graphviz's DOT language."""
        lines = [f"digraph {_dot(self.name)} {{", "  rankdir=TB;", "  node [shape=circle];"]
        lines += self._nested(self._dot_node, self._dot_plate, "}")
        lines += [f"  {edge.source} -> {edge.target};" for edge in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def _nested(
        self,
        write: Callable[[Node], str],
        opening: Callable[[Plate], list[str]],
        closing: str,
        plate: str | None = None,
    ) -> list[str]:
        """Return the indented lines of a plate's nodes and of the plates in it; None means the whole graph."""
        lines = [write(node) for node in self.nodes if node.plate == plate]
        for inner in self.plates:
            if inner.parent == plate:
                lines += [*opening(inner), *self._nested(write, opening, closing, inner.id), closing]
        return [f"  {line}" for line in lines]

    def _mermaid_node(self, node: Node) -> str:
        label = _mermaid(node.label)
        if node.kind in ("parameter", "hyperparameter"):
            return f'{node.id}["• {label}"]:::dot'
        shape = f'["{label}"]' if node.kind == "process" else f'(("{label}"))'
        return f"{node.id}{shape}:::{'observed' if node.kind == 'observed' else 'latent'}"

    def _dot_node(self, node: Node) -> str:
        label = _dot(node.label)
        if node.kind in ("parameter", "hyperparameter"):
            return f"{node.id} [shape=point, width=0.08, xlabel={label}];"
        style = {"observed": ", style=filled, fillcolor=gray80", "process": ", shape=box"}.get(node.kind, "")
        return f"{node.id} [label={label}{style}];"

    def _dot_plate(self, plate: Plate) -> list[str]:
        return [f"subgraph cluster_{plate.id} {{", f"  label={_dot(plate.label)};", "  labeljust=r;"]


def build_graph(augmentation: Augmentation, name: str, gp_sizes: Sequence[int]) -> AugmentedGraph:
    """Return the graph of a model whose GPs have ``gp_sizes`` latents each.

    Latents that the formula uses only as a vector share one node in a plate. Raises ValueError if the GPs and the
    formula have different numbers of latents.
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
        self.parameters = parameters_of(augmentation.formula)
        factors = [augmentation.formula, *(rule.factor for rule in augmentation.rules)]
        auxiliaries = [rule.auxiliary for rule in augmentation.rules if rule.auxiliary is not None]
        nodes = [node for factor in factors for node in latents_of(factor).values()]
        self.over_latents = any(isinstance(node, Latents) for node in nodes) or any(a.is_vector for a in auxiliaries)

    def build(self) -> AugmentedGraph:
        plates = [Plate("data", "i = 1..n", None)]
        if self.over_latents:
            label = f"c = 0..{self.augmentation.size - 1}"
            plates = [Plate("processes", label, None), plates[0], Plate("latents", label, "data")]
        self._priors()
        parameters = {name: self._add(ParameterName(name), "parameter", None) for name in self.parameters}
        auxiliaries = {}
        for rule in self.augmentation.rules:
            if rule.auxiliary is not None:
                plate = "latents" if rule.auxiliary.is_vector else "data"
                auxiliaries[rule.auxiliary.name] = self._add(rule.auxiliary.notation(), "auxiliary", plate)
        y = self._add(Name("y"), "observed", "data")
        for rule in self.augmentation.rules:
            if rule.auxiliary is not None:
                self._connect_auxiliary(rule, auxiliaries, parameters, y)
        for rule in self.augmentation.rules:
            # y depends on the latents directly too, not only through an auxiliary.
            for latent in () if rule.separates else self._latents_in(rule.factor):
                self._connect(latent, y)
        for parameter in parameters.values():
            self._connect(parameter, y)
        return AugmentedGraph(self.name, tuple(self.nodes), tuple(plates), tuple(self.edges))

    def _priors(self) -> None:
        size, several = self.augmentation.num_latents, len(self.gp_sizes) > 1
        self.latents: dict[int, str] = {}
        if self.over_latents:
            # A GP of one latent has separate hyperparameters; a GP of several latents shares them.
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
            for name in parameters_of(expression):
                self._connect(parameters[name], target)
            for latent in self._latents_in(expression):
                self._connect(latent, target)
        for site in rule.sites():
            for part in (site.potential, site.precision):
                for auxiliary in auxiliaries_of(part):
                    self._connect(auxiliaries[auxiliary.name], y)

    def _latents_in(self, expression: Expression) -> Iterable[str]:
        return dict.fromkeys(self.latents[position] for position in positions_of(expression))

    def _add(self, symbol: Tree, kind: str, plate: str | None) -> str:
        identifier = f"n{len(self.nodes)}"
        self.nodes.append(Node(identifier, symbol, kind, plate))
        return identifier

    def _connect(self, source: str, target: str) -> None:
        self.edges[Edge(source, target)] = None


def _mermaid(text: str) -> str:
    entities: dict[str, str | int | None] = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"}
    return text.translate(str.maketrans(entities))


def _dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Each line is a tree that is printed as text or LaTeX. Its sites, expectations and bounds are expressions that can be
# evaluated: the tests compare them with the engines' values.

_ONE = Number("1")
# Parameters that have the name of a symbol of derivations are printed with another name, such as m_p.
PARAMETERS = {name: f"{name}_p" for name in ("m", "v", "h", "w", "c", "B", "K", "V", "M", "μ", "π")}


@dataclass(frozen=True)
class Line:
    """An unwrapped line of a derivation, indented by ``indent`` columns."""

    formula: Tree
    indent: int = 0

    def text(self) -> str:
        """Return the line as text."""
        return " " * self.indent + to_text(self.formula)

    def latex(self) -> str:
        """Return the line as LaTeX in math mode."""
        return (r"\quad " if self.indent else "") + to_latex(self.formula)


@dataclass(frozen=True)
class Section:
    """A section of a derivation, with a title."""

    title: str
    lines: tuple[Line, ...]

    def text(self) -> str:
        """Return the section as text of at most 100 columns."""
        return "\n".join([*_wrap(self.title), self.body()])

    def body(self) -> str:
        """Return the lines as text of at most 100 columns, without the title."""
        return "\n".join(part for line in self.lines for part in _wrap(f"  {line.text()}"))


def explain_sections(augmentation: Augmentation, name: str) -> tuple[Section, ...]:
    """Return the sections of a derivation, to be printed as text or LaTeX."""
    required = augmentation.requirements
    conditions = (_line(r.expression, *r.condition, words("("), r.written, words(")")) for r in required)
    sections = {
        name: _heading(augmentation),
        "Augmentation": _steps(augmentation),
        "Augmented likelihood": [_augmented(augmentation)],
        "Complete conditionals (Gibbs)": _conditionals(augmentation),
        "CAVI updates": _updates(augmentation),
        "Local bound and ELBO": _elbo(augmentation),
        "Conditions on the data": list(dict.fromkeys(conditions)),
    }
    sections[name] += _parameters(augmentation)
    return tuple(
        Section(title, tuple(replace(line, formula=renamed(line.formula, PARAMETERS)) for line in lines))
        for title, lines in sections.items()
        if lines
    )


def explain(augmentation: Augmentation, name: str) -> str:
    """Return the derivation as text of at most 100 columns."""
    return "\n\n".join(section.text() for section in explain_sections(augmentation, name)) + "\n"


def explain_latex(augmentation: Augmentation, name: str) -> str:
    """Return the derivation as an ``align*`` environment of LaTeX, one row for each line."""
    rows = []
    for section in explain_sections(augmentation, name):
        rows += [rf"\textbf{{{escaped(section.title)}}}", *(line.latex() for line in section.lines)]
    return "\\begin{align*}\n" + " \\\\\n".join(f"& {row}" for row in rows) + "\n\\end{align*}\n"


def likelihood_line(formula: Expression, *rest: Part) -> Line:
    """Return the line that states the likelihood."""
    return _line(call("p", line("y", "|", "f")), "=", formula, *rest)


def _line(*items: Part, indent: int = 0) -> Line:
    return Line(line(*items), indent)


def _heading(augmentation: Augmentation) -> list[Line]:
    expressions = [augmentation.formula, *(rule.factor for rule in augmentation.rules), *_auxiliaries(augmentation)]
    indices: tuple[Part, ...] = ()
    if any(expression.is_vector for expression in expressions):
        size = augmentation.size
        indices = APART, "c", "=", listed(*range(size)) if size <= 3 else listed(0, "...", size - 1)
    lines = [likelihood_line(augmentation.formula, *indices)]
    if augmentation.predictors is not None:
        lines.append(_line(words("where"), listed(*augmentation.predictors.definitions())))
    prior: list[Part] = [words("Each latent has prior")] if augmentation.size > 1 else ["f", words("has prior")]
    if augmentation.predictors is not None:
        prior = [words("The predictors"), "z", "=", factors("Φ", "f"), words("have prior")]
        lines.append(_line(words("Each latent has its own prior;"), "f", words("given"), "z", words("is Gaussian.")))
    if _shares_latents(augmentation):
        prior = ["f", words("has prior")]
        lines[-1] = _line(words("The predictors"), "z", "=", factors("Φ", "f"), words("share latents."))
    data, datum = words("at the data. Formulas without"), words("are for one datum.")
    lines.append(_line(*prior, call("N", "μ", "K"), data, "K", words("or"), "V", datum))
    return lines


def _parameters(augmentation: Augmentation) -> list[Line]:
    """Return the parameters that are printed with another name."""
    predictors = augmentation.predictors
    formulas = [augmentation.formula, *(() if predictors is None else predictors.definitions())]
    printed = (node for part in formulas for node in nodes(tree(part)))
    names = dict.fromkeys(node.text for node in printed if isinstance(node, ParameterName))
    renames = [line(PARAMETERS[name], words(f"is the parameter {name}")) for name in names if name in PARAMETERS]
    return [_line(words("where"), listed(*renames))] if renames else []


def _steps(augmentation: Augmentation) -> list[Line]:
    lines = []
    for number, rule in enumerate(augmentation.rules, start=1):
        title = f"{number}. {rule.title}"
        lines.append(_line(words(f"{title}, for each"), "c") if rule.factor.is_vector else _line(words(title)))
        lines.append(_line(rule.identity(), indent=3))
    if any("PG" in names_in(line.formula) for line in lines):
        states = words("is the Pólya-Gamma density; it is proportional to")
        tilted = call("exp", line("-", fraction(factors(raised("z", 2), "ω"), 2)))
        untilted = density("PG", "ω", "b", 0)
        lines.append(_line(density("PG", "ω", "b", "z"), states, factors(tilted, untilted), words(".")))
    return lines


def _augmented(augmentation: Augmentation) -> Line:
    terms: list[Part] = [augmentation.base]
    for rule in augmentation.rules:
        part = rule.augmented()
        if rule.auxiliary is not None and rule.auxiliary.is_vector and tree(part) != _ONE:
            part = over("Π", "c", part if isinstance(tree(part), Applied) else bracketed(part))
        terms.append(part)
    names = listed("y", *(auxiliary.name for auxiliary in _auxiliaries(augmentation)))
    several = listed(*(part for part in terms if tree(part) != _ONE), sign="·")
    return _line(call("p", line(names, "|", "f")), "=", several)


def _auxiliaries(augmentation: Augmentation, block: int | None = None) -> list[Auxiliary]:
    positions = set(range(augmentation.size) if block is None else augmentation.blocks[block])
    auxiliaries = [rule.auxiliary for rule in augmentation.rules if positions & set(rule.positions)]
    return [auxiliary for auxiliary in auxiliaries if auxiliary is not None]


def _conditionals(augmentation: Augmentation) -> list[Line]:
    if len(augmentation.blocks) == 1:
        return _block_conditionals(augmentation, 0)
    letter, size = _letter(augmentation), augmentation.size
    names = [indexed(letter, Latent(j, size).index) for j in range(size)]
    lines = [_line(words(f"The likelihood multiplies latents: they are drawn in {len(augmentation.blocks)} blocks."))]
    for block, inside in enumerate(augmentation.blocks):
        drawn = {auxiliary.name for auxiliary in _auxiliaries(augmentation, block)}
        out = [auxiliary.name for auxiliary in _auxiliaries(augmentation) if auxiliary.name not in drawn]
        auxiliaries = [part for name in out for part in (words("and"), name)][1:]
        integrated = [words(", with"), *auxiliaries, words("integrated out")] if out else []
        updated, others = (listed(*(names[j] for j in range(size) if (j in inside) is here)) for here in (True, False))
        lines.append(_line(words(f"Block {block + 1}:"), updated, words("given"), others, *integrated))
        lines += [replace(line, indent=2) for line in _block_conditionals(augmentation, block)]
    return lines


def _block_conditionals(augmentation: Augmentation, block: int) -> list[Line]:
    positions = set(augmentation.blocks[block])
    active = [rule for rule in augmentation.rules if positions & set(rule.positions)]
    lines = [_line(law) for law in (rule.conditional() for rule in active) if law is not None]
    sites = conditional_sites(augmentation, block)
    letter = _letter(augmentation)
    exponent = line(factors("h", letter), "-", fraction(factors("w", raised(letter, 2)), 2))
    given = words("Given the auxiliaries the likelihood is proportional to")
    lines.append(_line(given, call("exp", exponent), words(", with")))
    lines += _sites(sites)
    if _shares_latents(augmentation):
        latents = [Latent(j, augmentation.num_latents) for j in augmentation.latents_of(augmentation.blocks[block])]
        variables = dict.fromkeys(part for site in sites for part in site.variables)
        mean, covariance = _posterior(None, shared=True)
        law = call("N", mean, "V")
        return [*lines, _line(listed(*latents), "|", listed(*variables, "y"), "~", law, APART, covariance)]
    for site in sites:
        mean, covariance = _posterior(site.latent.index)
        law = call("N", mean, indexed("V", site.latent.index))
        lines.append(_line(site.latent, "|", listed(*site.variables, "y"), "~", law, APART, covariance))
    return lines


def _letter(augmentation: Augmentation) -> str:
    """Return the symbol that sites belong to: f, or z if factors combine latents."""
    return "f" if augmentation.predictors is None else "z"


def _posterior(j: Part | None, shared: bool = False) -> tuple[Tree, Tree]:
    """Return the mean of a latent given its sites and the definition of its covariance; joint if ``shared``."""
    K, V = indexed("K", j), indexed("V", j)
    h: Tree = indexed("h", j)
    w: Tree = call("diag", indexed("w", j))
    if shared:
        transposed = raised("Φ", "T")
        h, w = factors(transposed, h), factors(transposed, w, "Φ")
    mean = factors(V, line(h, "+", factors(inverse_power(K), indexed("μ", j))))
    return mean, line(V, "=", inverse_power(line(inverse_power(K), "+", w)))


def _shares_latents(augmentation: Augmentation) -> bool:
    """Return whether predictors share latents. Given the auxiliaries, only their joint law is then Gaussian."""
    predictors = augmentation.predictors
    rows = [latent for row in (() if predictors is None else predictors.rows) for latent in row]
    return len(set(rows)) < len(rows)


def _sites(sites: Sequence[LatentSite]) -> list[Line]:
    lines = []
    for site in sites:
        lines.append(_line(indexed("h", site.latent.index), "=", site.potential))
        lines.append(_line(indexed("w", site.latent.index), "=", site.precision))
    return lines


def _updates(augmentation: Augmentation) -> list[Line]:
    sites = [site for block in range(len(augmentation.blocks)) for site in conditional_sites(augmentation, block, True)]
    lines = []
    if _shares_latents(augmentation):
        moments = line("m", "=", factors("Φ", "M")), line("v", "=", call("diag", factors("Φ", "V", raised("Φ", "T"))))
        lines.append(_line(call("q", "f"), "=", call("N", "M", "V"), APART, moments[0], APART, moments[1]))
    for j in _indices(sites) if not lines else ():
        m, v, covariance = (indexed(name, j) for name in "mvV")
        marginal = call("q", indexed(_letter(augmentation), j))
        lines.append(_line(marginal, "=", call("N", m, covariance), APART, v, "=", call("diag", covariance)))
    for symbol, value in expectations(augmentation):
        roots = {node.key: node for node in subexpressions(value) if isinstance(node, Root)}
        definitions = (part for root in roots.values() for part in (APART, root, "=", root.definition))
        lines.append(_line(symbol, "=", value, *definitions))
    if len(augmentation.blocks) > 1:
        lines.append(_line(words("Blocks are updated in turn, each after its expectations:")))
    lines += _sites(sites)
    if _shares_latents(augmentation):
        mean, covariance = _posterior(None, shared=True)
        return [*lines, _line("M", "=", mean, APART, covariance)]
    for j in _indices(sites):
        mean, covariance = _posterior(j)
        lines.append(_line(indexed("m", j), "=", mean, APART, covariance))
    return lines


def _indices(sites: Sequence[LatentSite]) -> Sequence[Part | None]:
    """Return the indices of the latents, or a generic index if there are more than two."""
    return [site.latent.index for site in sites] if len(sites) <= 2 else ["j"]


def _elbo(augmentation: Augmentation) -> list[Line]:
    sites = [site for block in range(len(augmentation.blocks)) for site in conditional_sites(augmentation, block)]
    terms: list[Part] = [over("Σ", "i", "B_i")]
    if _shares_latents(augmentation):
        terms.append(call("KL", line(call("N", "M", "V"), "‖", call("N", "μ", "K"))))
    for j in _indices(sites) if len(terms) == 1 else ():
        q, prior = (call("N", *(indexed(name, j) for name in names)) for names in ("mV", "μK"))
        divergence = call("KL", line(q, "‖", prior))
        terms.append(over("Σ", j, divergence) if isinstance(j, str) else divergence)
    lines = [_line("B", "=", augmentation.bound), _line("ELBO", "=", listed(*terms, sign="-"))]
    gradient = listed(line("h", "=", derivative("B", "m")), line("w", "=", "-", factors(2, derivative("B", "s"))))
    second = line("s", "=", raised("m", 2), "+", "v")
    where = words(", where"), second, words(".")
    lines.append(_line(words("The gradient of"), "B", words("is the CAVI site:"), gradient, *where))
    printed = names_in(augmentation.bound.notation())
    printed |= {name for _, value in expectations(augmentation) for name in names_in(value.notation())}
    tildes = [(name, sign) for name, sign in (("σ̃₊", ()), ("σ̃₋", ("-",))) if name in printed]
    if tildes:
        f = _letter(augmentation)
        root, first = line("ζ", "=", call("sqrt", expectation(raised("z", 2)))), line(expectation(f), "=", "m")
        second = line(expectation(raised(f, 2)), "=", "s")
        lines.append(_line(words("Here, with"), root, ",", first, words("and"), second, words(":")))
    for name, sign in tildes:
        above = call("exp", line(*sign, fraction(expectation("z"), 2)))
        lines.append(_line(call(name, "z"), "=", fraction(above, factors(2, call("cosh", fraction("ζ", 2))))))
    return lines


def _wrap(line: str) -> list[str]:
    """Break a line at spaces, outside brackets if possible, to 100 columns; continuations are indented by four."""
    hanging, width = " " * (len(line) - len(line.lstrip(" ")) + 4), 100
    lines = [line]
    for depth in range(1, 10):
        if max(map(len, lines)) > width:
            lines = textwrap.wrap(
                _glued(line, depth), width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
            )
    return [each.replace("\u00a0", " ") for each in lines]


def _glued(line: str, depth: int) -> str:
    """Return a line with unbreakable spaces: deep in brackets, and after signs of sums and integrals."""
    level, glued = 0, ""
    for character in line:
        level += (character in "([{") - (character in ")]}")
        sign = re.search(r"(Σ|Π|∫)\S*$", glued)
        glued += "\u00a0" if character == " " and (level >= depth or sign) else character
    return glued
