"""Sites and expectations of a derivation as formulas that can be printed and evaluated."""

from dataclasses import dataclass
from typing import Any

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import Expected
from pgmodels.augmentation.predictor import latents_of
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, rebuild, substitute
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Tree
from pgmodels.likelihoods.operations import Reduction
from pgmodels.likelihoods.symbols import Constant, Latent, Latents, Positions


@dataclass(frozen=True)
class LatentSite:
    """The site exp(potential f - precision f^2 / 2) of a datum, for one latent or for each of them."""

    latent: Latent | Latents
    potential: Expression
    precision: Expression

    @property
    def variables(self) -> list[Tree]:
        """The latents and auxiliaries that the site depends on."""
        formulas = (self.potential, self.precision)
        latents = [node.notation() for part in formulas for node in latents_of(part).values()]
        return list(dict.fromkeys(latents + [auxiliary for part in formulas for auxiliary in _auxiliaries_in(part)]))


def _auxiliaries_in(expression: Expression) -> list[Tree]:
    if isinstance(expression, (Auxiliary, Element)):
        return [expression.notation()]
    return [symbol for child in expression.children for symbol in _auxiliaries_in(child)]


class Element(Expression):
    """One element of a vector of auxiliaries."""

    def __init__(self, vector: Auxiliary | Expected, position: int):
        self.vector, self.position = vector, position

    def _label(self) -> Any:
        return (self.vector.key, self.position)

    def evaluate(self, env: Environment) -> Any:
        return self.vector.evaluate(env)[..., self.position : self.position + 1]

    def notation(self, precedence: int = 0) -> Tree:
        return self.vector.element(self.position)


def conditional_sites(augmentation: Augmentation, block: int = 0, averaged: bool = False) -> tuple[LatentSite, ...]:
    """The sites of a block of latents: formulas of the auxiliaries, or of their expectations if ``averaged``."""
    positions = set(augmentation.blocks[block])
    terms: list[SiteTerm] = []
    for rule in augmentation.rules:
        if positions & set(rule.positions):
            terms += rule.sites()
        terms += rule.coupled_sites(averaged)
    symbols = [symbol for rule in augmentation.rules for symbol, _ in rule.expectations()] if averaged else []
    table = {symbol.auxiliary.key: symbol for symbol in symbols}
    sites: dict[tuple, LatentSite] = {}
    for term in terms:
        z = term.predictor
        if not positions & set(z.positions):
            continue
        # h z - w z^2 / 2 with z = scale f + shift
        h = multiply(z.scale, add(term.potential, multiply(-1.0, term.precision, z.shift)))
        w = multiply(power(z.scale, 2.0), term.precision)
        if isinstance(z.latent, Latent):
            h, w = (Reduction("sum", part) if part.is_vector else part for part in (h, w))
        before = sites.get(z.latent.key, LatentSite(z.latent, Constant(0.0), Constant(0.0)))
        sites[z.latent.key] = LatentSite(
            z.latent,
            add(before.potential, substitute(h, table)),
            add(before.precision, substitute(w, table)),
        )
    return _separate(tuple(sites.values()))


def _separate(sites: tuple[LatentSite, ...]) -> tuple[LatentSite, ...]:
    """Sites of each latent, for formulas with factors of a single latent and factors of all latents."""
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
    """The element of a vector for one latent."""
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
    """The expectation of each auxiliary under the optimal q; each depends only on earlier ones."""
    pairs = []
    table: dict[tuple, Expression] = {}
    for rule in augmentation.rules:
        known = {**table}
        for symbol, value in rule.expectations():
            pairs.append((symbol, substitute(value, known)))
            table[symbol.auxiliary.key] = symbol
    return tuple(pairs)
