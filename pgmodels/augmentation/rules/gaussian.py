"""Rules of Gaussian factors: squares, intervals, truncation and the largest of several."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from pgmodels.augmentation.laws import (
    ArgmaxNormal,
    Interval,
    IntervalMass,
    IntervalNormal,
    LargestMean,
    TruncatedNormal,
    mean_of,
    mean_quadratic,
    variance_of,
    where,
)
from pgmodels.augmentation.normal_form import Factor, Linear, Quadratic, Term, exponent_of, read_quadratic
from pgmodels.augmentation.predictors import Auxiliary, Logarithm, Predictor, SiteTerm, auxiliaries_of, over_latents
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule, exclusive, quadratic_sites
from pgmodels.likelihoods.expression import Constant, Environment, Expression
from pgmodels.likelihoods.operations import (
    Call,
    Largest,
    Sum,
    add,
    exp,
    factors_of,
    multiply,
    normal_cdf,
    power,
    split_number,
)
from pgmodels.likelihoods.printing import Tree, bracketed, density, factors, integral, line, over, raised, words

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

    def log_joint(self, env: Environment) -> Array:
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


class TruncationRule(Rule):
    """A probability to the power 0 or 1, with u ~ N(z, 1) truncated to its event (Albert and Chib 1993)."""

    rank = 3
    separates = True
    auxiliary: Auxiliary
    predictor: Predictor
    exponent: Expression

    @abstractmethod
    def truncated(self) -> Tree:
        """Return the density of N(z, 1) times the indicator of the event."""

    def log_joint(self, env: Environment) -> Array:
        z = self.predictor.expression.evaluate(env)
        return self.exponent.evaluate(env) * norm.logpdf(self.auxiliary.evaluate(env), z)

    def density(self) -> Tree:
        """Return the density of N(z, 1) at the auxiliary."""
        return density("N", self.auxiliary, self.predictor.expression, 1)

    def augmented(self) -> Tree:
        return self.truncated() if self.exponent.key == ONE.key else raised(self.truncated(), self.exponent)

    def prior(self) -> tuple[Expression, ...]:
        return (self.predictor.expression,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(self.exponent, self.auxiliary), self.exponent),)


@dataclass(frozen=True)
class Piece:
    """The product weight P(lower < u < upper) for u ~ N(z, 1), z without a shift; one limit may be infinite."""

    weight: Expression
    predictor: Predictor
    interval: Interval
    gap: Expression | None


class IntervalGaussianRule(TruncationRule):
    """Φ(a - z) - Φ(b - z), a > b free of f, or a tail for each value of y: u ~ N(z, 1) truncated to (b, a)."""

    title = "Interval Gaussian"
    law: IntervalNormal

    def __init__(self, name: str, predictor: Predictor, members: list[tuple[Factor, Piece]], parent: Auxiliary | None):
        self.predictor, self.parent = predictor, parent
        self.positions = predictor.positions
        self.factor = multiply(*(power(factor.base, factor.exponent) for factor, _ in members))
        self.intervals = tuple(piece.interval for _, piece in members)
        self.exponent = add(*(interval.exponent for interval in self.intervals))
        self.auxiliary = Auxiliary(name, predictor.is_vector or self.exponent.is_vector)
        self.law = IntervalNormal(predictor.expression, self.intervals)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        first = _piece(factor, deriver)
        if first is None:
            return None
        members = [(factor, first)]
        # One auxiliary serves all values of y that select an interval or a tail of the same Gaussian.
        for other in deriver.pending:
            piece = _piece(other, deriver)
            same = piece is not None and piece.predictor.key == first.predictor.key
            if piece is not None and same and exclusive([*(member.exponent for member, _ in members), other.exponent]):
                members.append((other, piece))
        if all(piece.gap is None for _, piece in members):
            return None
        for member, piece in members:
            deriver.pending = [other for other in deriver.pending if other is not member]
            deriver.require(member.exponent, "indicator", words("the exponent of"), member.base)
            if piece.gap is not None:
                deriver.require(piece.gap, "positive", words("the width of the interval in"), member.base)
        deriver.rules.append(cls(deriver.name("u"), first.predictor, members, factor.parent))
        return tuple(Factor(piece.weight, member.exponent, factor.parent) for member, piece in members)

    def share(self) -> Expression:
        # log(Φ(a - E z) - Φ(b - E z)) - Var(z) / 2
        log_mass = IntervalMass(IntervalNormal(mean_of(self.predictor), self.intervals))
        return over_latents(add(log_mass, multiply(-0.5, self.exponent, variance_of(self.predictor))))

    def identity(self) -> Tree:
        mass = integral(self.density(), self.auxiliary)
        return line(self.factor, "=", mass, words("over"), self.law.limits(self.auxiliary))

    def truncated(self) -> Tree:
        return factors(self.density(), bracketed(self.law.limits(self.auxiliary), "[]"))

    def averaged(self) -> IntervalNormal:
        # Allocations in the exponents belong to this factor; the mean is defined only for it.
        intervals = []
        for part in self.intervals:
            free = (factor for factor in factors_of(part.exponent) if not auxiliaries_of(factor))
            intervals.append(replace(part, exponent=multiply(*free)))
        return IntervalNormal(mean_of(self.predictor), tuple(intervals))


def _piece(factor: Factor, deriver: Deriver) -> Piece | None:
    """Return a factor as an interval or a tail of u ~ N(z, 1)."""
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
        high, low = (deriver.predictor(end, factor.expression) for end in (difference.upper, difference.lower))
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


class TruncatedGaussianRule(TruncationRule):
    """Φ(z)^a, a in {0, 1}, with u ~ N(z, 1) truncated to u > 0 (Albert and Chib 1993)."""

    title = "Truncated Gaussian"
    law: TruncatedNormal

    def __init__(self, name: str, predictor: Predictor, exponent: Expression, parent: Auxiliary | None):
        self.predictor, self.exponent, self.parent = predictor, exponent, parent
        self.positions = predictor.positions
        self.factor = power(normal_cdf(predictor.expression), exponent)
        self.auxiliary = Auxiliary(name, predictor.is_vector or exponent.is_vector)
        self.law = TruncatedNormal(predictor.expression, exponent)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent = factor.base, factor.exponent
        if not (isinstance(base, Call) and base.name == "normal_cdf"):
            return None
        predictor = deriver.predictor(base.argument, factor.expression)
        if isinstance(exponent, Constant) and exponent.value != 1.0:
            raise deriver.no_rule(factor.expression, "Φ(z) to the power 0 or 1")
        deriver.require(exponent, "indicator", words("the exponent of"), base)
        deriver.rules.append(cls(deriver.name("u"), predictor, exponent, factor.parent))
        return ()

    def share(self) -> Expression:
        # log Φ(E z) - Var(z) / 2
        spread = multiply(-0.5, variance_of(self.predictor))
        return over_latents(multiply(self.exponent, add(Logarithm(normal_cdf(mean_of(self.predictor))), spread)))

    def identity(self) -> Tree:
        mass = integral(self.density(), self.auxiliary, 0, "∞")
        return line(normal_cdf(self.predictor.expression), "=", mass, *where(self.exponent))

    def truncated(self) -> Tree:
        return factors(self.density(), bracketed(line(self.auxiliary, ">", 0), "[]"))

    def averaged(self) -> TruncatedNormal:
        return TruncatedNormal(mean_of(self.predictor), self.exponent)


class ArgmaxRule(TruncationRule):
    """largest(f, y, a)^b, a > 0, b in {0, 1}, with g_c ~ N(f_c / √a, 1), g_y the largest (Albert and Chib 1993)."""

    title = "Argmax of Gaussians"
    law: ArgmaxNormal

    def __init__(self, name: str, node: Largest, exponent: Expression, parent: Auxiliary | None):
        self.node, self.exponent, self.parent = node, exponent, parent
        self.predictor = Predictor(node.latents, power(node.noise, -0.5), ZERO)
        self.positions = self.predictor.positions
        self.factor = power(node, exponent)
        self.auxiliary = Auxiliary(name, is_vector=True)
        self.law = ArgmaxNormal(self.predictor.expression, node, exponent)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        node, exponent = factor.base, factor.exponent
        if not isinstance(node, Largest):
            return None
        if node.is_indicator:
            raise deriver.no_rule(factor.expression, "largest(f, y, noise) with noise > 0")
        if isinstance(exponent, Constant) and exponent.value != 1.0:
            raise deriver.no_rule(factor.expression, "largest(f, y, noise) to the power 0 or 1")
        deriver.require(exponent, "indicator", words("the exponent of"), node)
        deriver.require(node.noise, "positive", words("the noise of"), node)
        deriver.rules.append(cls(deriver.name("g"), node, exponent, factor.parent))
        return ()

    def share(self) -> Expression:
        # log P(g_y is the largest) at the means of q, minus Σ_c Var(z_c) / 2
        spread = multiply(-0.5, over_latents(variance_of(self.predictor)))
        return multiply(self.exponent, add(Logarithm(LargestMean(self.node)), spread))

    def log_joint(self, env: Environment) -> Array:
        each = norm.logpdf(self.auxiliary.evaluate(env), self.predictor.expression.evaluate(env))
        return self.exponent.evaluate(env) * jnp.sum(each, axis=-1, keepdims=True)

    def identity(self) -> Tree:
        return line(self.node, "=", integral(over("Π", "c", self.truncated()), "g"))

    def truncated(self) -> Tree:
        inside = bracketed(line(self.auxiliary, "≤", self.auxiliary.element(self.node.index)), "[]")
        return factors(self.density(), inside)

    def averaged(self) -> ArgmaxNormal:
        return ArgmaxNormal(mean_of(self.predictor), LargestMean(self.node), self.exponent)
