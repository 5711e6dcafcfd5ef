"""The derivation of an augmentation from a formula."""

import jax
import jax.numpy as jnp
from jax import Array

from pgmodels import polya_gamma
from pgmodels.augmentation.augmentation import Augmentation, Requirement
from pgmodels.augmentation.normal_form import Factor, Quadratic, factorise
from pgmodels.augmentation.predictors import (
    Auxiliary,
    NoAugmentationError,
    Predictor,
    SharedPredictorError,
    affine,
    auxiliaries_of,
    latents_of,
    over_predictors,
    parameters_of,
)
from pgmodels.augmentation.rules import RULES
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule
from pgmodels.likelihoods.expression import (
    Constant,
    Expression,
    Latents,
    Observation,
    ParameterSymbol,
    Positions,
    Selected,
)
from pgmodels.likelihoods.named import Softmax
from pgmodels.likelihoods.operations import Call, Comparison, Power, Reduction, Sum, add, exp, multiply, power
from pgmodels.likelihoods.printing import Part, line, words
from pgmodels.objectives.expected import Quadrature


class OneVersusRest(Quadrature):
    """The softmax e^f[y] / Σ_c e^f[c], to the power of a weight if ``weighted``, with draws of its auxiliaries.

    In f_c alone, it is proportional to σ(z)^[y = c] σ(-z)^[y != c], z = f_c - C_c, C_c = log Σ_{j != c} e^f_j. Each
    latent thus has Pólya-Gamma conditionals given the rest. They imply no bound: the objective is the expected log
    density by the coarse rule. Source: Polson, Scott and Windle 2013, section on the multinomial logit.
    """

    def __init__(self, formula: Expression, size: int, weighted: bool):
        super().__init__(formula, size, coarse=True)
        self.weighted = weighted

    def draw_site(self, key: Array, f: Array, y: Array, latent: Array) -> tuple[Array, Array]:
        """Draw ω | f, y of a latent and return its sites h = w ([y = c] - 1/2) + ω C_c and ω, (n, 1) each."""
        labels, weights = (y[:, :1], y[:, 1:]) if self.weighted else (y[:, None], jnp.ones((len(y), 1)))
        rest = jax.nn.logsumexp(f, axis=-1, where=jnp.arange(self.size) != latent, keepdims=True)
        omega = polya_gamma.draw(key, weights, jax.lax.dynamic_slice_in_dim(f, latent, 1, axis=-1) - rest)
        return weights * ((labels == latent) - 0.5) + omega * rest, omega


def one_versus_rest(formula: Expression, size: int) -> OneVersusRest | None:
    """Return the conditionals of a formula that is a softmax, or one to the power of a weight y[1]; else None."""
    for weighted in (False, True):
        if size > 1 and formula.key == softmax_formula(size, weighted).key:
            return OneVersusRest(formula, size, weighted)
    return None


def softmax_formula(size: int, weighted: bool = False) -> Expression:
    """Return the softmax of a class y, or of a class y[0] to the power of a weight y[1] if ``weighted``."""
    formula, f = Softmax(size).function, Latents(size)
    return formula(Observation(0), f) ** Observation(1) if weighted else formula(Observation(None), f)


class Deriver:
    """A builder of an augmentation, factor by factor, from ``pending`` factors; matching rules append themselves."""

    def __init__(self, formula: Expression, size: int):
        self.formula, self.size = formula, size
        # The full likelihood for error messages, if ``formula`` is one of its mixture components.
        self.likelihood = formula
        self.requirements: list[Requirement] = []
        self.rules: list[Rule] = []
        self.pending: list[Factor] = []
        # Factors free of the latents, by the name of the auxiliary whose rule returned them.
        self.coefficients: dict[str | None, list[Expression]] = {}
        self.name_counts: dict[str, int] = {}

    def derive(self) -> Augmentation:
        """Return the augmentation. Raise NoAugmentationError if no rule matches a factor."""
        if self.formula.is_vector:
            raise ValueError(
                f"the formula {self.formula.text()} has one value for each latent, not one number: reduce it with "
                "pgm.prod or pgm.sum, or index it with f[y]."
            )
        self.require_selected(self.formula)
        augmentation = self._build()
        self._check_used()
        return augmentation

    def require_selected(self, formula: Expression) -> None:
        """Require that the i of f[i] is an index: g(f[i]) is rewritten as Π_c g(f[c])^[i = c]."""
        for latent in latents_of(formula).values():
            if isinstance(latent, Selected):
                num_selected = Reduction("sum", Comparison("==", latent.index, Positions(latent.size)))
                self.require(num_selected, "positive", words("the number of latents that"), latent, words("selects"))

    def component_bound(self, formula: Expression) -> Expression:
        """Return the local bound of a mixture component, and add its requirements to the mixture."""
        inner = Deriver(formula, self.size)
        inner.likelihood = self.likelihood
        augmentation = inner._build()
        self.requirements += augmentation.requirements
        return augmentation.bound

    def _build(self) -> Augmentation:
        self.apply_rules(factorise(self.formula, self.size))
        self.rules.sort(key=lambda rule: rule.rank)
        for rule in self.rules:
            rule.finish(self)
        rules, requirements = tuple(self.rules), tuple(self.requirements)
        return Augmentation(self.formula, self.size, self.coefficient(None), rules, requirements)

    def apply_rules(self, factors: list[Factor]) -> None:
        """Apply the rules to factors that share a parent; exponentials are merged and matched last."""
        outer, self.pending = self.pending, _merged(factors)
        exponents: list[Expression] = []
        parent = factors[0].parent
        while self.pending:
            factor = self.pending.pop(0)
            if factor.exponent.key == ZERO.key:
                continue
            if not factor.base.latent_free and isinstance(factor.base, Call) and factor.base.name == "exp":
                exponent = multiply(factor.exponent, factor.base.argument)
                exponents.append(Reduction("sum", exponent) if exponent.is_vector else exponent)
            else:
                self.pending[:0] = self._apply_rule(factor)
        rest = [Factor(exp(add(*exponents)), ONE, parent)] if exponents else []
        while rest:
            rest[:0] = self._apply_rule(rest.pop(0))
        self.pending = outer

    def _apply_rule(self, factor: Factor) -> list[Factor]:
        """Apply the first matching rule. Return the remaining factors that do not depend on a new auxiliary."""
        if factor.base.latent_free:
            if factor.base.key != exp(0.0).key:
                self.coefficients.setdefault(_name(factor.parent), []).append(power(factor.base, factor.exponent))
            return []
        for rule in RULES:
            remaining = rule.match(factor, self)
            if remaining is not None:
                dependent = [part for part in remaining if part.parent is not factor.parent]
                for parent in {id(part.parent): part.parent for part in dependent}.values():
                    self.apply_rules([part for part in dependent if part.parent is parent])
                return [part for part in remaining if part.parent is factor.parent]
        wanted = "a power of σ(z), Φ(z), a sum, or an exponential"
        if isinstance(factor.base, (Sum, Reduction, Power)):
            wanted = "a sum or a quadratic to a negative power, or a sum of likelihoods to the power 0 or 1"
        raise self.no_rule(factor.expression, wanted)

    def coefficient(self, parent: Auxiliary | None) -> Expression:
        """Return the product of the latent-free factors of the likelihood (parent None), or of a rule's result."""
        return multiply(*self.coefficients.get(_name(parent), []))

    def check_plates(self, base: Expression, exponent: Expression, reduced: bool, factor: Expression) -> None:
        """Reject a product over the latents of functions of a sum over the latents: its auxiliaries form a matrix."""
        if reduced and (base.is_vector or exponent.is_vector):
            raise self.no_rule(factor, "a sum over the latents outside of products over the latents")

    def predictor(self, argument: Expression, factor: Expression) -> Predictor:
        """Return a factor's argument as a predictor. Raise NoAugmentationError unless it is affine in one latent."""
        predictor = affine(argument)
        if predictor is None:
            raise self.no_rule(factor, f"an affine function of one latent instead of {argument.text()}")
        return predictor

    def require_quadratic(self, quadratic: Quadratic, factor: Expression) -> None:
        """Require that a quadratic is non-negative."""
        for square in quadratic.squares:
            if square.weight.sign == -1:
                raise self.no_rule(factor, "a non-negative quadratic")
            squared = power(square.predictor.expression, 2.0)
            self.require(square.weight, "nonnegative", words("the coefficient of"), squared, words("in"), factor)
        if quadratic.constant.sign == -1 and quadratic.constant.key != ZERO.key:
            raise self.no_rule(factor, "a non-negative quadratic")
        self.require(quadratic.constant, "nonnegative", words("the least value of the quadratic in"), factor)

    def require(self, expression: Expression, kind: str, *reason: Part) -> None:
        """Add a requirement on a coefficient, with its description, unless it holds by construction."""
        trivially = expression.nonnegative and kind == "nonnegative"
        trivially |= isinstance(expression, Constant) and expression.value == 1.0
        trivially |= kind == "positive" and isinstance(expression, Constant) and expression.value > 0
        trivially |= kind == "positive" and isinstance(expression, ParameterSymbol) and expression.positive
        trivially |= kind == "indicator" and isinstance(expression, Comparison)
        if not trivially and not auxiliaries_of(expression):
            self.requirements.append(Requirement(expression, kind, line(*reason)))

    def name(self, symbol: str) -> str:
        """Return a name for an auxiliary that no parameter has: the symbol, numbered from the second use on."""
        self.name_counts[symbol] = count = self.name_counts.get(symbol, 0) + 1
        name = symbol if count == 1 else f"{symbol}{count}"
        return self.name(symbol) if name in parameters_of(self.likelihood) else name

    def no_rule(self, factor: Expression, wanted: str) -> NoAugmentationError:
        """Return the error for a factor that no rule matches; ``wanted`` describes the supported forms."""
        known = "\n".join(f"  - {rule.title}: {(rule.__doc__ or '').splitlines()[0]}" for rule in RULES)
        return NoAugmentationError(
            f"no augmentation for the factor {factor.text()}\n"
            f"in the likelihood {self.likelihood.text()}.\n"
            f"Looked for {wanted}.\nThe rules are:\n{known}"
        )

    def _check_used(self) -> None:
        used = {position for rule in self.rules for position in (*rule.positions, *rule.coupled)}
        unused = sorted(set(range(self.size)) - used)
        if unused:
            raise ValueError(
                f"the formula does not use latent {', '.join(f'f[{p}]' for p in unused)}: the model has {self.size} "
                f"latent GPs, the formula reads {len(used)}. Give the model as many GPs as the formula reads."
            )


def _name(auxiliary: Auxiliary | None) -> str | None:
    return None if auxiliary is None else auxiliary.name


def _merged(factors: list[Factor]) -> list[Factor]:
    merged: dict[tuple, Factor] = {}
    for factor in factors:
        previous = merged.get(factor.base.key)
        exponent = factor.exponent if previous is None else add(previous.exponent, factor.exponent)
        merged[factor.base.key] = Factor(factor.base, exponent, factor.parent)
    return list(merged.values())


def derive_formula(formula: Expression, size: int) -> Augmentation:
    """Derive the augmentation of a formula over ``size`` latents, or its predictors if factors combine latents."""
    try:
        return Deriver(formula, size).derive()
    except SharedPredictorError:
        over, predictors = over_predictors(formula, size)
    deriver = Deriver(over, len(predictors.rows))
    deriver.likelihood = formula
    deriver.require_selected(formula)
    augmentation = deriver.derive()
    augmentation.predictors = predictors
    predictors.check(augmentation.blocks)
    return augmentation
