"""Exponentials of quadratics, which need no auxiliary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgmodels.augmentation.averages import mean_of, mean_quadratic
from pgmodels.augmentation.normal_form import Factor, Term, exponent_of
from pgmodels.augmentation.quadratic import Linear, Quadratic, read_quadratic
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule, quadratic_sites
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, over_latents
from pgmodels.likelihoods.algebra import add, multiply
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import exp
from pgmodels.likelihoods.notation import Tree, line, words

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class GaussianRule(Rule):
    """exp of a quadratic: conditionally Gaussian without an auxiliary."""

    title = "Gaussian"
    rank = 6

    def __init__(self, quadratic: Quadratic, linear: tuple[Linear, ...], parent: Auxiliary | None):
        self.quadratic, self.linear, self.parent = quadratic, linear, parent
        self.exponent = add(multiply(-1.0, quadratic.expression), *(part.expression for part in linear))
        self.factor = exp(self.exponent)
        read = set(quadratic.positions) | {p for part in linear for p in part.predictor.positions}
        self.positions = tuple(sorted(read))

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        terms = exponent_of(factor, deriver.size)
        if terms is None:
            return None
        read = read_quadratic([Term(multiply(-1.0, t.coefficient), t.atoms, t.reduced) for t in terms])
        if read is None:
            unsupported = [t for t in terms if read_quadratic([t]) is None]
            raise deriver.no_rule(_exponential(unsupported), _wanted(unsupported))
        quadratic, linear = read
        for square in quadratic.squares:
            if square.weight.sign == -1:
                raise deriver.no_rule(_exponential(terms), "a quadratic exponent with a negative leading coefficient")
            deriver.require(square.weight, "nonnegative", words("minus the coefficient of"), square.expression)
        if quadratic.squares or linear:
            flipped = tuple(Linear(multiply(-1.0, part.coefficient), part.predictor) for part in linear)
            deriver.rules.append(cls(Quadratic(ZERO, quadratic.squares), flipped, factor.parent))
        return (Factor(exp(multiply(-1.0, quadratic.constant)), ONE, factor.parent),)

    def share(self) -> Expression:
        # The exact expectation of the log factor.
        linear = [over_latents(multiply(part.coefficient, mean_of(part.predictor))) for part in self.linear]
        return add(multiply(-1.0, over_latents(mean_quadratic(self.quadratic))), *linear)

    def log_joint(self, env: Environment) -> Any:
        return self.exponent.evaluate(env)

    def identity(self) -> Tree:
        return line(self.factor, words("is Gaussian in"), "f", words("already."))

    def augmented(self) -> Expression:
        return self.factor

    def sites(self) -> tuple[SiteTerm, ...]:
        linear = [SiteTerm(part.predictor, part.coefficient, ZERO) for part in self.linear]
        return (*quadratic_sites(self.quadratic, ONE), *linear)


def _exponential(terms: list[Term]) -> Expression:
    return exp(add(*(multiply(term.coefficient, *term.atoms) for term in terms)))


def _wanted(terms: list[Term]) -> str:
    several = [t for t in terms if len(t.atoms) > 1]
    if several:
        return (
            f"an exponent whose terms contain one latent each (or a rate times σ(z)); {several[0].expression.text()} "
            "multiplies functions of the latents"
        )
    return "an exponent made of f, z^2, -κ |z|, -κ sqrt(Q) and -R σ(z)"
