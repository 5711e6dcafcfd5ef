"""Differences of normal distribution functions: a Gaussian truncated to an interval."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jax.scipy.stats import norm

from pgmodels.augmentation.averages import mean_of, variance_of
from pgmodels.augmentation.interval_law import Interval, IntervalNormal
from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule
from pgmodels.augmentation.rules.selection import exclusive, value_of
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, auxiliaries_of, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power, split_number
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Tree, bracketed, density, factors, integral, line, raised, words
from pgmodels.likelihoods.operations import Call, Comparison, Product, Sum

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


@dataclass(frozen=True)
class Piece:
    """weight P(lower < u < upper) for u ~ N(z, 1), z without a shift; one limit may be infinite."""

    weight: Expression
    predictor: Predictor
    interval: Interval
    gap: Expression | None


class IntervalGaussianRule(Rule):
    """Φ(a - z) - Φ(b - z), a > b free of f, or a tail for each value of y: u ~ N(z, 1) truncated to (b, a)."""

    title = "Interval Gaussian"
    rank = 3
    separates = True
    auxiliary: Auxiliary
    law: IntervalNormal

    def __init__(self, name: str, predictor: Predictor, taken: list[tuple[Factor, Piece]], parent: Auxiliary | None):
        self.predictor, self.parent = predictor, parent
        self.positions = predictor.positions
        self.factor = multiply(*(power(factor.base, factor.exponent) for factor, _ in taken))
        self.intervals = tuple(piece.interval for _, piece in taken)
        self.exponent = add(*(interval.exponent for interval in self.intervals))
        self.auxiliary = Auxiliary(name, predictor.is_vector or self.exponent.is_vector)
        self.law = IntervalNormal(predictor.expression, self.intervals)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        first = _piece(factor, deriver)
        if first is None:
            return None
        taken = [(factor, first)]
        # One auxiliary serves all values of y that select an interval or a tail of the same Gaussian.
        for other in deriver.pending:
            piece = _piece(other, deriver)
            same = piece is not None and piece.predictor.key == first.predictor.key
            if piece is not None and same and _exclusive([*(member.exponent for member, _ in taken), other.exponent]):
                taken.append((other, piece))
        if all(piece.gap is None for _, piece in taken):
            return None
        for member, piece in taken:
            deriver.pending = [other for other in deriver.pending if other is not member]
            deriver.require(member.exponent, "indicator", words("the exponent of"), member.base)
            if piece.gap is not None:
                deriver.require(piece.gap, "positive", words("the width of the interval in"), member.base)
        deriver.rules.append(cls(deriver.name("u"), first.predictor, taken, factor.parent))
        return tuple(Factor(piece.weight, member.exponent, factor.parent) for member, piece in taken)

    def share(self) -> Expression:
        # log(Φ(a - E z) - Φ(b - E z)) - Var(z) / 2
        mass = IntervalNormal(mean_of(self.predictor), self.intervals).log_mass()
        return over_latents(add(mass, multiply(-0.5, self.exponent, variance_of(self.predictor))))

    def log_joint(self, env: Environment) -> Any:
        z = self.predictor.expression.evaluate(env)
        return self.exponent.evaluate(env) * norm.logpdf(self.auxiliary.evaluate(env), z)

    def identity(self) -> Tree:
        mass = integral(self._density(), self.auxiliary)
        return line(self.factor, "=", mass, words("over"), self.law.limits(self.auxiliary))

    def _density(self) -> Tree:
        return density("N", self.auxiliary, self.predictor.expression, 1)

    def augmented(self) -> Tree:
        truncated = factors(self._density(), bracketed(self.law.limits(self.auxiliary), "[]"))
        return truncated if self.exponent.key == ONE.key else raised(truncated, self.exponent)

    def prior(self) -> tuple[Expression, ...]:
        return (self.predictor.expression,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(self.exponent, self.auxiliary), self.exponent),)

    def averaged(self) -> IntervalNormal:
        intervals = tuple(replace(part, exponent=_without_auxiliaries(part.exponent)) for part in self.intervals)
        return IntervalNormal(mean_of(self.predictor), intervals)


def _piece(factor: Factor, deriver: Deriver) -> Piece | None:
    """A factor as an interval or a tail of u ~ N(z, 1)."""
    base = factor.base
    gap: Expression | None = None
    weight: Expression = ONE
    low: Predictor | None = None
    if isinstance(base, Call) and base.name == "normal_cdf":
        high = deriver.predictor(base.argument, factor.expression)
    else:
        difference = base.difference if isinstance(base, Sum) else None
        if difference is None or difference.name != "normal_cdf" or difference.upper is None:
            return None
        high, low = (
            deriver.predictor(argument, factor.expression) for argument in (difference.upper, difference.lower)
        )
        weight, gap = difference.weight, difference.gap
    # Φ(t - z) is the mass below t, Φ(z - t) the mass above it.
    if split_number(high.scale)[0] < 0:
        predictor = Predictor(high.latent, multiply(-1.0, high.scale), ZERO)
        interval = Interval(factor.exponent, None if low is None else low.shift, high.shift)
    else:
        predictor = Predictor(high.latent, high.scale, ZERO)
        above = None if low is None else multiply(-1.0, low.shift)
        interval = Interval(factor.exponent, multiply(-1.0, high.shift), above)
    return Piece(weight, predictor, interval, gap)


def _without_auxiliaries(exponent: Expression) -> Expression:
    """An exponent where the allocations in it are those of the factor, for which alone the mean is defined."""
    factors = exponent.children if isinstance(exponent, Product) else (exponent,)
    return multiply(*(factor for factor in factors if not auxiliaries_of(factor)))


def _exclusive(exponents: list[Expression]) -> bool:
    indicators = [
        exponent for exponent in exponents if isinstance(exponent, Comparison) and value_of(exponent) is not None
    ]
    return len(indicators) == len(exponents) and exclusive(indicators)
