"""A derivation as a person would write it: identities, conditionals, CAVI updates, bound.

The sites, expectations and bounds that are printed are expressions, which can be evaluated: the tests compare them with
what the engines compute.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import Expected, Root
from pgmodels.augmentation.notation import plain, words
from pgmodels.augmentation.predictor import latents_of
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, rebuild, substitute
from pgmodels.language.algebra import add, multiply, power
from pgmodels.language.expression import Environment, Expression
from pgmodels.language.operations import Reduction
from pgmodels.language.symbols import Constant, Latent, Latents, Positions

WIDTH = 100
_ONE_DATUM = "are for one datum."


@dataclass(frozen=True)
class LatentSite:
    """The site exp(potential f - precision f^2 / 2) that a datum leaves for one latent, or for each of them."""

    latent: Latent | Latents
    potential: Expression
    precision: Expression

    @property
    def suffix(self) -> str:
        """The index of the latent as printed: empty, ``[j]`` or ``[c]``."""
        return self.latent.text()[1:]

    @property
    def given(self) -> list[str]:
        """What the site is a function of, besides parameters."""
        parts = (self.potential, self.precision)
        latents = [node.text() for part in parts for node in latents_of(part).values()]
        auxiliaries = [text for part in parts for text in _auxiliary_texts(part)]
        return list(dict.fromkeys(latents)) + list(dict.fromkeys(auxiliaries))


def _auxiliary_texts(expression: Expression) -> list[str]:
    if isinstance(expression, (Auxiliary, Element)):
        return [expression.text()]
    return [text for child in expression.children for text in _auxiliary_texts(child)]


class Element(Expression):
    """One element of a vector of auxiliaries."""

    def __init__(self, vector: Auxiliary | Expected, position: int):
        self.vector, self.position = vector, position

    def _label(self) -> Any:
        return (self.vector.key, self.position)

    def evaluate(self, env: Environment) -> Any:
        return self.vector.evaluate(env)[..., self.position : self.position + 1]

    def text(self, precedence: int = 0) -> str:
        return self.vector.text().replace("[c]", f"[{self.position}]")


def conditional_sites(augmentation: Augmentation, block: int = 0, averaged: bool = False) -> tuple[LatentSite, ...]:
    """The sites of a block of latents, as formulas of the auxiliaries, or of their expectations if ``averaged``."""
    positions = set(augmentation.blocks[block])
    terms: list[SiteTerm] = []
    for rule in augmentation.rules:
        if positions & set(rule.positions):
            terms += rule.sites()
        terms += rule.coupled_sites(averaged)
    symbols = [symbol for rule in augmentation.rules for symbol, _ in rule.expectations()] if averaged else []
    table = {symbol.auxiliary.key: symbol for symbol in symbols}
    held: dict[tuple, LatentSite] = {}
    for term in terms:
        z = term.predictor
        if not positions & set(z.positions):
            continue
        # h z - w z^2 / 2 with z = scale f + shift
        h = multiply(z.scale, add(term.potential, multiply(-1.0, term.precision, z.shift)))
        w = multiply(power(z.scale, 2.0), term.precision)
        if isinstance(z.latent, Latent):
            h, w = (Reduction("sum", part) if part.is_vector else part for part in (h, w))
        before = held.get(z.latent.key, LatentSite(z.latent, Constant(0.0), Constant(0.0)))
        held[z.latent.key] = LatentSite(
            z.latent,
            add(before.potential, substitute(h, table)),
            add(before.precision, substitute(w, table)),
        )
    return _separate(tuple(held.values()))


def _separate(sites: tuple[LatentSite, ...]) -> tuple[LatentSite, ...]:
    """One site a latent, where some factors contain one latent and others all of them."""
    vectors = [site for site in sites if isinstance(site.latent, Latents)]
    if not vectors or len(vectors) == len(sites):
        return sites
    vector, size = vectors[0], vectors[0].latent.size
    separate = []
    for position in range(size):
        latent = Latent(position, size)
        h, w = (_element(part, position) for part in (vector.potential, vector.precision))
        for site in sites:
            if site.latent.key == latent.key:
                h, w = add(site.potential, h), add(site.precision, w)
        separate.append(LatentSite(latent, h, w))
    return tuple(separate)


def _element(expression: Expression, position: int) -> Expression:
    """The element of a vector that belongs to one latent."""
    if not expression.is_vector:
        return expression
    if isinstance(expression, (Auxiliary, Expected)):
        return Element(expression, position)
    if isinstance(expression, Positions):
        return Constant(position)
    if isinstance(expression, Latents):
        return Latent(position, expression.size)
    return rebuild(expression, [_element(child, position) for child in expression.children])


def expectations(augmentation: Augmentation) -> tuple[tuple[Expected, Expression], ...]:
    """The expectation of each auxiliary under the optimal q, in an order in which each needs only those before it."""
    found = []
    table: dict[tuple, Expression] = {}
    for rule in augmentation.rules:
        known = {**table}
        for symbol, value in rule.expectations():
            found.append((symbol, substitute(value, known)))
            table[symbol.auxiliary.key] = symbol
    return tuple(found)


@dataclass(frozen=True)
class Section:
    """A part of a derivation: lines as ``notation`` describes them, not wrapped; leading spaces are an indent."""

    title: str
    lines: tuple[str, ...]

    def text(self) -> str:
        """The section as text of at most 100 columns."""
        return "\n".join([*_wrap(self.title), *(part for line in self.lines for part in _wrap(f"  {plain(line)}"))])


def explain_sections(
    augmentation: Augmentation, name: str, latents: Sequence[str] | None = None
) -> tuple[Section, ...]:
    """The derivation's sections, from which text and MathML are made.

    ``latents`` are names of the latents, one each; ValueError if their number is another.
    """
    if latents is not None and len(latents) != augmentation.num_latents:
        raise ValueError(f"the likelihood has {augmentation.num_latents} latents; got {len(latents)} names for them.")
    sections = {
        name: _heading(augmentation, latents),
        "Augmentation": _steps(augmentation),
        "Augmented likelihood": [_augmented(augmentation)],
        "Complete conditionals (Gibbs)": _conditionals(augmentation),
        "CAVI updates": _updates(augmentation),
        "Local bound and ELBO": _elbo(augmentation),
        "Requires of the data": _requirements(augmentation),
    }
    return tuple(Section(title, tuple(lines)) for title, lines in sections.items() if lines)


def explain(augmentation: Augmentation, name: str, latents: Sequence[str] | None = None) -> str:
    """The derivation as text of at most 100 columns; arguments and errors are those of ``explain_sections``."""
    return "\n\n".join(section.text() for section in explain_sections(augmentation, name, latents)) + "\n"


def _heading(augmentation: Augmentation, latents: Sequence[str] | None) -> list[str]:
    lines = [f"p(y | f) = {augmentation.formula.text()}" + _range(augmentation)]
    if augmentation.predictors is not None:
        lines.append(f"{words('where')} {', '.join(augmentation.predictors.definitions())}")
    if latents is not None:
        size = augmentation.num_latents
        named = (f"{Latent(j, size).text()} {words(f'is {latent}')}" for j, latent in enumerate(latents))
        lines.append(f"{words('where')} {', '.join(named)}")
    if augmentation.predictors is not None:
        prior = f"{words('The predictors')} z = Φ f {words('have prior')}"
        lines.append(f"{words('Each latent has a prior of its own;')} f {words('given')} z {words('is Gaussian.')}")
    else:
        prior = words("Each latent has prior") if augmentation.size > 1 else f"f {words('has prior')}"
    lines.append(f"{prior} N(μ, K) {words('at the data. Formulas without')} K {words('or')} V {words(_ONE_DATUM)}")
    return lines


def _range(augmentation: Augmentation) -> str:
    everything = [augmentation.formula, *(rule.factor for rule in augmentation.rules)]
    vector = any(expression.is_vector for expression in everything)
    return f",  c = {_ellipsis(augmentation.size)}" if vector else ""


def _ellipsis(size: int) -> str:
    return ", ".join(str(j) for j in range(size)) if size <= 3 else f"0, ..., {size - 1}"


def _steps(augmentation: Augmentation) -> list[str]:
    lines = []
    for number, rule in enumerate(augmentation.rules, start=1):
        each = f"{words(', for each')} c" if rule.factor.is_vector else ""
        lines += [f"{words(f'{number}. {rule.title}')}{each}", f"   {rule.identity()}"]
    if any("PG(" in line for line in lines):
        density = words("is the Pólya-Gamma density; it is proportional to")
        lines.append(f"PG(ω; b, z) {density} exp(-z^2 ω / 2) PG(ω; b, 0){words('.')}")
    return lines


def _augmented(augmentation: Augmentation) -> str:
    base = augmentation.base
    parts = [] if base.key == Constant(1.0).key else [base.text(1)]
    for rule in augmentation.rules:
        text = rule.augmented()
        if text:
            vector = rule.auxiliary is not None and rule.auxiliary.is_vector
            several = " " in re.sub(r"\([^()]*\)", "", text)
            parts.append((f"Π_c ({text})" if several else f"Π_c {text}") if vector else text)
    names = ", ".join(["y", *(auxiliary.name for auxiliary in _auxiliaries(augmentation))])
    return f"p({names} | f) = {' · '.join(parts)}"


def _auxiliaries(augmentation: Augmentation, block: int | None = None) -> list[Auxiliary]:
    positions = set(range(augmentation.size) if block is None else augmentation.blocks[block])
    found = [rule.auxiliary for rule in augmentation.rules if positions & set(rule.positions)]
    return [auxiliary for auxiliary in found if auxiliary is not None]


def _conditionals(augmentation: Augmentation) -> list[str]:
    if len(augmentation.blocks) == 1:
        return _block_conditionals(augmentation, 0)
    lines = [words(f"The likelihood multiplies latents: they are drawn in {len(augmentation.blocks)} blocks.")]
    for block in range(len(augmentation.blocks)):
        held = {auxiliary.name for auxiliary in _auxiliaries(augmentation, block)}
        out = [auxiliary.name for auxiliary in _auxiliaries(augmentation) if auxiliary.name not in held]
        names = f" {words('and')} ".join(out)
        integrated = f"{words(', with')} {names} {words('integrated out')}" if out else ""
        lines.append(f"{words(f'Block {block + 1}:')} {_block_name(augmentation, block)}{integrated}")
        lines += [f"  {line}" for line in _block_conditionals(augmentation, block)]
    return lines


def _block_name(augmentation: Augmentation, block: int) -> str:
    inside = set(augmentation.blocks[block])
    size, letter = augmentation.size, _letter(augmentation)
    names = [letter + Latent(j, size).text()[1:] for j in range(size)]
    others = [name for j, name in enumerate(names) if j not in inside]
    return f"{', '.join(names[j] for j in sorted(inside))} {words('given')} {', '.join(others)}"


def _block_conditionals(augmentation: Augmentation, block: int) -> list[str]:
    positions = set(augmentation.blocks[block])
    active = [rule for rule in augmentation.rules if positions & set(rule.positions)]
    lines = [rule.conditional() for rule in active if rule.auxiliary is not None]
    sites = conditional_sites(augmentation, block)
    letter = _letter(augmentation)
    left = f"{words('What is left of the likelihood is')} exp(h {letter} - w {letter}^2 / 2){words(', with')}"
    lines += [left, *_sites(sites)]
    for site in sites:
        f, j = site.latent.text(), site.suffix
        given = ", ".join([*site.given, "y"])
        lines.append(f"{f} | {given} ~ N(V{j} (h{j} + K{j}^-1 μ{j}), V{j}),  {_covariance(j)}")
    return lines


def _letter(augmentation: Augmentation) -> str:
    """What sites are on: latents, or predictors where factors combine latents."""
    return "f" if augmentation.predictors is None else "z"


def _covariance(suffix: str) -> str:
    return f"V{suffix} = (K{suffix}^-1 + diag(w{suffix}))^-1"


def _sites(sites: Sequence[LatentSite]) -> list[str]:
    texts = []
    for site in sites:
        texts.append(f"h{site.suffix} = {site.potential.text()}")
        texts.append(f"w{site.suffix} = {site.precision.text()}")
    return texts


def _updates(augmentation: Augmentation) -> list[str]:
    every = [site for block in range(len(augmentation.blocks)) for site in conditional_sites(augmentation, block, True)]
    letter = _letter(augmentation)
    lines = [f"q({letter}{j}) = N(m{j}, V{j}),  v{j} = diag(V{j})" for j in _suffixes(every)]
    for symbol, value in expectations(augmentation):
        roots = [f"{root.text()} = {root.definition.text()}" for root in _roots(value)]
        lines.append(",  ".join([f"{symbol.text()} = {value.text()}", *roots]))
    if len(augmentation.blocks) > 1:
        lines.append(words("One block after the other, each with the expectations brought up to date first:"))
    lines += _sites(every)
    lines += [f"m{j} = V{j} (h{j} + K{j}^-1 μ{j}),  {_covariance(j)}" for j in _suffixes(every)]
    return lines


def _suffixes(sites: Sequence[LatentSite]) -> list[str]:
    """The indices of the latents, or one that stands for all where they are many."""
    return [site.suffix for site in sites] if len(sites) <= 2 else ["[j]"]


def _roots(expression: Expression) -> list[Root]:
    if isinstance(expression, Root):
        return [expression]
    found = {root.key: root for child in expression.children for root in _roots(child)}
    return list(found.values())


def _elbo(augmentation: Augmentation) -> list[str]:
    every = [site for block in range(len(augmentation.blocks)) for site in conditional_sites(augmentation, block)]
    bound = augmentation.bound.text()
    divergences = []
    for j in _suffixes(every):
        over = f"Σ_{j[1]} " if j in ("[c]", "[j]") else ""
        divergences.append(f"{over}KL(N(m{j}, V{j}) ‖ N(μ{j}, K{j}))")
    lines = [f"B = {bound}", " - ".join(["ELBO = Σ_i B_i", *divergences])]
    gradient = f"{words('The gradient of')} B {words('is the CAVI site:')} h = ∂B/∂m, w = -2 ∂B/∂s"
    lines.append(f"{gradient}{words(', where')} s = m^2 + v{words('.')}")
    printed = bound + " ".join(value.text() for _, value in expectations(augmentation))
    if "σ̃" in printed:
        f = _letter(augmentation)
        lines.append(f"{words('Here, with')} ζ = sqrt(E[z^2]), E[{f}] = m {words('and')} E[{f}^2] = s{words(':')}")
        for symbol, sign in (("σ̃₊", ""), ("σ̃₋", "-")):
            if symbol in printed:
                lines.append(f"{symbol}(z) = exp({sign}E[z] / 2) / (2 cosh(ζ / 2))")
    return lines


def _requirements(augmentation: Augmentation) -> list[str]:
    lines = []
    for required in augmentation.requirements:
        reason = f"{words('(')}{required.marked_reason}{words(')')}"
        lines.append(f"{required.expression.text()} {_wording(required.wording)} {reason}")
    return list(dict.fromkeys(lines))


def _wording(wording: str) -> str:
    return wording.replace(">=", "≥") if wording[0] in "<>" else words(f"is {wording}")


def _wrap(line: str) -> list[str]:
    """Break a line at spaces, before operators and outside of brackets where it can; the rest hangs by four columns."""
    indent = len(line) - len(line.lstrip(" "))
    hanging = " " * (indent + 4)
    lines = []
    while len(line) > WIDTH:
        start = len(line) - len(line.lstrip(" "))
        at = _break(line, start)
        lines.append(line[:at].rstrip())
        line = hanging + line[at:].lstrip()
    return [*lines, line]


def _break(line: str, start: int) -> int:
    depth, best, cost = 0, WIDTH, 1e9
    for at in range(start, WIDTH + 1):
        character = line[at]
        depth += (character in "([{") - (character in ")]}")
        if character == " " and at > start:
            operator = line[at + 1 : at + 3].strip() in ("+", "-", "=", "·", "~", "∫", "/")
            apart = line[at + 1] == " " or line[at - 1] == " "
            early = max(0.0, 0.5 * WIDTH - at) / 10
            early += 2.0 * line[:at].endswith("_c")
            here = depth + (-1.0 if apart else 0.0 if operator else 0.5) + early
            if here <= cost:
                best, cost = at, here
    return best
