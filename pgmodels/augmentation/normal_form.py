"""Formulas in normal form: factors, quadratic forms and events."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pgmodels.augmentation.predictors import (
    ONE,
    ZERO,
    Auxiliary,
    NoAugmentationError,
    Predictor,
    affine,
    latents_of,
    rewrite_if_fewer,
    split_latents,
    subexpressions,
    substitute,
)
from pgmodels.likelihoods.expression import Constant, Expression, Latent, Latents, Positions, Selected
from pgmodels.likelihoods.operations import (
    Call,
    Comparison,
    Largest,
    Power,
    Product,
    Reduction,
    Sum,
    add,
    exp,
    factors_of,
    log,
    multiply,
    power,
    sigmoid,
)
from pgmodels.objectives.base import AdditiveNoise, Event, Threshold, TopLatent


@dataclass(frozen=True)
class Factor:
    """The factor ``base ** exponent``; a vector means the product over the latents.

    ``parent`` is the auxiliary of the rule that returned the factor, or None for a factor of the likelihood itself.
    """

    base: Expression
    exponent: Expression
    parent: Auxiliary | None = None

    @property
    def expression(self) -> Expression:
        """Return the factor as a formula."""
        return power(self.base, self.exponent)


@dataclass(frozen=True)
class Term:
    """The product of ``coefficient`` and ``atoms``; ``reduced`` marks a sum over the latents."""

    coefficient: Expression
    atoms: tuple[Expression, ...]
    reduced: bool = False

    @property
    def expression(self) -> Expression:
        """The term as a formula."""
        product = multiply(self.coefficient, *self.atoms)
        return Reduction("sum", product) if self.reduced and product.is_vector else product


def factorise(expression: Expression, size: int) -> list[Factor]:
    """Write a formula over ``size`` latents as a product of irreducible factors."""
    return [unselect_factor(factor) for factor in _factorise(expression, size)]


def _factorise(expression: Expression, size: int) -> list[Factor]:
    if expression.latent_free:
        return [Factor(expression, ONE)]
    if isinstance(expression, Product):
        return [factor for child in expression.children for factor in _factorise(child, size)]
    if isinstance(expression, Reduction) and expression.operator == "prod":
        return [_over_latents(factor, size) for factor in _factorise(expression.argument, size)]
    if isinstance(expression, Power):
        return _factorise_power(expression, size)
    if isinstance(expression, Sum):
        rewritten = _link(expression)
        if rewritten is not None:
            return _factorise(rewritten, size)
        if expression.complement is not None:
            number, share = expression.complement
            return [Factor(Constant(number), ONE), Factor(add(1.0, multiply(-1.0, share)), ONE)]
    return [Factor(expression, ONE)]


def _factorise_power(expression: Power, size: int) -> list[Factor]:
    base, exponent = expression.base, expression.exponent
    if not exponent.latent_free:
        if base.latent_free and base.nonnegative:
            return [Factor(exp(multiply(exponent, log(base))), ONE)]
        return [Factor(expression, ONE)]
    is_link = isinstance(base, Sum) and _link(base) is not None
    if not base.nonnegative and not is_link and expression.nonnegative:
        # An even power of a base of unknown sign: use the square as base, so that fractional powers stay valid.
        return [Factor(power(base, 2.0), multiply(0.5, exponent))]
    return [Factor(inner.base, multiply(inner.exponent, exponent)) for inner in _factorise(base, size)]


def _over_latents(factor: Factor, size: int) -> Factor:
    if factor.base.latent_free and (factor.base.is_vector or factor.exponent.is_vector):
        return Factor(Reduction("prod", power(factor.base, factor.exponent)), ONE)
    if factor.base.is_vector:
        return factor
    if factor.exponent.is_vector:
        return Factor(factor.base, Reduction("sum", factor.exponent))
    return Factor(factor.base, multiply(float(size), factor.exponent))


def _link(expression: Sum) -> Expression | None:
    """Rewrite 1 + exp(z) with affine z as 1 / σ(-z), and 1 - σ(z), 1 - Φ(z) as σ(-z), Φ(-z)."""
    free = [child for child in expression.children if child.latent_free]
    dependent = [child for child in expression.children if not child.latent_free]
    if len(dependent) != 1 or not free:
        return None
    constant = add(*free)
    coefficient, rest = split_latents(dependent[0])
    if not isinstance(rest, Call):
        return None
    # If the argument has a function or power of a latent, no rule has the sigmoid: the sum remains, a mixture.
    nonlinear = any(isinstance(node, Call | Power) and not node.latent_free for node in subexpressions(rest.argument))
    if rest.name == "exp" and not nonlinear and constant.sign == 1 and coefficient.sign == 1:
        offset = log(multiply(coefficient, power(constant, -1.0)))
        shift = ZERO if multiply(coefficient, -1.0).key == multiply(constant, -1.0).key else offset
        return multiply(constant, power(sigmoid(multiply(-1.0, add(rest.argument, shift))), -1.0))
    if rest.name in ("sigmoid", "normal_cdf") and add(constant, coefficient).key == ZERO.key:
        return multiply(constant, Call(rest.name, multiply(-1.0, rest.argument)))
    return None


def unselect_factor(factor: Factor) -> Factor:
    """Write a factor of f[i] as a product over all latents: g(f[i]) = Π_c g(f[c])^[i = c]."""
    chosen = _selection(factor.base)
    if chosen is None:
        return factor
    indicator = Comparison("==", chosen.index, Positions(chosen.size))
    return Factor(_replace(factor.base, Latents(chosen.size)), multiply(indicator, factor.exponent))


def unselect_term(term: Term) -> Term:
    """Write a term of f[i] as a sum over all latents: g(f[i]) = Σ_c [i = c] g(f[c])."""
    chosen = _selection(multiply(*term.atoms))
    if chosen is None:
        return term
    indicator = Comparison("==", chosen.index, Positions(chosen.size))
    atoms = tuple(_replace(atom, Latents(chosen.size)) for atom in term.atoms)
    return Term(multiply(indicator, term.coefficient), atoms, reduced=True)


def _selection(expression: Expression) -> Selected | None:
    latents = list(latents_of(expression).values())
    if len(latents) == 1 and isinstance(latents[0], Selected):
        if latents[0].size == 1:
            raise NoAugmentationError(
                f"{latents[0].text()} selects among latents, but there is only one: write f, or add GPs."
            )
        return latents[0]
    if any(isinstance(node, Selected) for node in latents) and isinstance(expression, Call):
        affine(expression.argument)
    return None


def _replace(expression: Expression, latents: Latents) -> Expression:
    """Replace the selected latent f[i] by the vector of all latents."""
    if isinstance(expression, Selected):
        return latents
    if expression.latent_free:
        return expression
    rebuild: dict[type, Callable[..., Expression]] = {
        Sum: add,
        Product: multiply,
        Power: power,
        Call: lambda argument: Call(expression.name, argument),  # type: ignore[attr-defined]
    }
    if type(expression) not in rebuild:
        raise NoAugmentationError(
            f"{expression.text()} combines the latent selected by the data with a sum over latents."
        )
    return rebuild[type(expression)](*(_replace(child, latents) for child in expression.children))


def exponent_of(factor: Factor, size: int) -> list[Term] | None:
    """Return the terms of the exponent of a factor exp(...), or None for any other factor."""
    if not (isinstance(factor.base, Call) and factor.base.name == "exp"):
        return None
    exponent = multiply(factor.exponent, factor.base.argument)
    return expand(Reduction("sum", exponent) if exponent.is_vector else exponent, size)


def expand(expression: Expression, size: int) -> list[Term]:
    """Expand an expression into a sum of terms and collect like terms."""
    collected: dict[tuple, Term] = {}
    for term in _expand(expression, size):
        term = unselect_term(term)
        vector = term.coefficient.is_vector or any(atom.is_vector for atom in term.atoms)
        key = (*sorted((atom.key for atom in term.atoms), key=repr), term.reduced and vector)
        previous = collected.get(key)
        coefficient = term.coefficient if previous is None else add(previous.coefficient, term.coefficient)
        collected[key] = Term(coefficient, term.atoms, term.reduced and vector)
    return [term for term in collected.values() if term.coefficient.key != ZERO.key]


def _expand(expression: Expression, size: int) -> list[Term]:
    if expression.latent_free:
        return [Term(expression, ())]
    if isinstance(expression, Sum):
        return [term for child in expression.children for term in _expand(child, size)]
    if isinstance(expression, Product):
        terms = [Term(ONE, ())]
        for child in expression.children:
            terms = [_multiply_terms(lhs, rhs) for lhs in terms for rhs in _expand(child, size)]
        return terms
    if isinstance(expression, Reduction) and expression.operator == "sum":
        return [_sum_over_latents(term, size) for term in _expand(expression.argument, size)]
    if isinstance(expression, Power):
        return _expand_power(expression, size)
    if isinstance(expression, Call) and expression.name in ("sigmoid", "normal_cdf"):
        affine(expression.argument)
    return [Term(ONE, (expression,))]


def _expand_power(expression: Power, size: int) -> list[Term]:
    base, exponent = expression.base, expression.exponent
    if isinstance(exponent, Constant) and exponent.value == 2.0:
        if isinstance(base, Call) and base.name == "abs":
            return _expand(power(base.argument, 2.0), size)
        if (
            affine(base) is not None
            or isinstance(base, Selected)
            or ((chosen := _selection(base)) is not None and affine(_replace(base, Latents(chosen.size))) is not None)
        ):
            return [Term(ONE, (expression,))]
        if isinstance(base, Sum):
            terms = _expand(base, size)
            return [_multiply_terms(lhs, rhs) for lhs in terms for rhs in terms]
    if isinstance(exponent, Constant) and exponent.value == 0.5 and isinstance(base, Power):
        inner = base.exponent
        if isinstance(inner, Constant) and inner.value == 2.0:
            return [Term(ONE, (abs(base.base),))]
    return [Term(ONE, (expression,))]


def _multiply_terms(lhs: Term, rhs: Term) -> Term:
    coefficient, rest = split_latents(multiply(*lhs.atoms, *rhs.atoms))
    if lhs.reduced and rhs.reduced and lhs.atoms and rhs.atoms:
        raise NoAugmentationError(
            f"({lhs.expression.text()}) ({rhs.expression.text()}) multiplies two sums over the latents."
        )
    atoms = () if rest.key == ONE.key else factors_of(rest)
    return Term(multiply(lhs.coefficient, rhs.coefficient, coefficient), atoms, lhs.reduced or rhs.reduced)


def _sum_over_latents(term: Term, size: int) -> Term:
    vector = term.coefficient.is_vector or any(atom.is_vector for atom in term.atoms)
    if not vector:
        return Term(multiply(float(size), term.coefficient), term.atoms, term.reduced)
    if not term.atoms:
        return Term(Reduction("sum", term.coefficient), ())
    return Term(term.coefficient, term.atoms, reduced=True)


@dataclass(frozen=True)
class Square:
    """The term weight * z^2 of a predictor z; ``reduced`` sums it over the latents."""

    weight: Expression
    predictor: Predictor
    reduced: bool

    @property
    def expression(self) -> Expression:
        """The square as a formula."""
        value = multiply(self.weight, power(self.predictor.expression, 2.0))
        return Reduction("sum", value) if self.reduced and value.is_vector else value


@dataclass(frozen=True)
class Quadratic:
    """The sum of a constant and squares of predictors."""

    constant: Expression
    squares: tuple[Square, ...]

    @property
    def expression(self) -> Expression:
        """The quadratic as a formula."""
        return add(self.constant, *(square.expression for square in self.squares))

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the latents on which the quadratic depends."""
        return tuple(sorted({p for square in self.squares for p in square.predictor.positions}))


@dataclass(frozen=True)
class Linear:
    """The product coefficient * latent."""

    coefficient: Expression
    predictor: Predictor

    @property
    def expression(self) -> Expression:
        """The product as a formula; over all latents, it is summed."""
        value = multiply(self.coefficient, self.predictor.expression)
        return Reduction("sum", value) if value.is_vector else value


def read_quadratic(terms: list[Term]) -> tuple[Quadratic, tuple[Linear, ...]] | None:
    """Sort terms into constant + squares of predictors, and terms linear in a latent; None if a term is neither."""
    constant: Expression = ZERO
    squares: list[Square] = []
    linear: list[Linear] = []
    for term in terms:
        if not term.atoms:
            constant = add(constant, term.coefficient)
            continue
        if len(term.atoms) != 1:
            return None
        atom = term.atoms[0]
        if isinstance(atom, (Latent, Latents)):
            linear.append(Linear(term.coefficient, Predictor(atom, ONE, ZERO)))
            continue
        predictor = None
        if isinstance(atom, Power) and isinstance(atom.exponent, Constant) and atom.exponent.value == 2.0:
            predictor = affine(atom.base)
        if predictor is None:
            return None
        squares.append(Square(term.coefficient, predictor, term.reduced))
    return Quadratic(constant, tuple(squares)), tuple(linear)


def read_completed(terms: list[Term]) -> Quadratic | None:
    """Complete the square and return the quadratic of terms, or None if they are not a quadratic with squares."""
    read = read_quadratic(terms)
    if read is None:
        return None
    quadratic, linear = read
    constant = quadratic.constant
    squares: dict[tuple, list[Square]] = {}
    for square in quadratic.squares:
        squares.setdefault(square.predictor.latent.key, []).append(square)
    for part in linear:
        key = part.predictor.latent.key
        if key not in squares:
            return None
        completed, rest = _complete(squares[key], part.coefficient)
        squares[key] = [completed]
        constant = add(constant, rest)
    return Quadratic(constant, tuple(square for group in squares.values() for square in group))


def _complete(squares: list[Square], linear: Expression) -> tuple[Square, Expression]:
    """Write Σ weight z^2 + linear * f as one square and a constant."""
    latent, reduced = squares[0].predictor.latent, any(square.reduced for square in squares)
    second = add(*(multiply(s.weight, power(s.predictor.scale, 2.0)) for s in squares))
    first = add(linear, *(multiply(2.0, s.weight, s.predictor.scale, s.predictor.shift) for s in squares))
    zeroth = add(*(multiply(s.weight, power(s.predictor.shift, 2.0)) for s in squares))
    shift = multiply(0.5, first, power(second, -1.0))
    rest = add(zeroth, multiply(-0.25, power(first, 2.0), power(second, -1.0)))
    if reduced and rest.is_vector:
        rest = Reduction("sum", rest)
    return Square(second, Predictor(latent, ONE, shift), reduced), rest


# The variance of the noise for each function, if it is a threshold.
_NOISE = {"step": 0.0, "normal_cdf": 1.0}

Bound = TypeVar("Bound", bound=AdditiveNoise)


def read_event(formula: Expression, num_latents: int, objective: type[Bound]) -> Bound | None:
    """Return the objective of a formula that is affine in one event, with latent-free coefficients, else None.

    The argument of step and Φ is an affine function of the latents.
    """
    formula, predictors = rewrite_if_fewer(formula, num_latents)
    size = num_latents if predictors is None else len(predictors.rows)
    # An event within the argument of another event leaves the outer one without an affine argument.
    nodes: dict[Any, Largest | Call] = {
        node.key: node
        for node in subexpressions(formula)
        if not node.latent_free and (isinstance(node, Largest) or (isinstance(node, Call) and node.name in _NOISE))
    }
    if len(nodes) != 1:
        return None
    ((key, node),) = nodes.items()
    event = _event(node, size)
    if event is None or _degree(formula, key) != 1:
        return None
    if_so, if_not = (substitute(formula, {key: Constant(value)}) for value in (1.0, 0.0))
    return objective(event, if_so, if_not, size, predictors)


def _event(node: Largest | Call, size: int) -> Event | None:
    if not isinstance(node, Call):
        return TopLatent(node)
    try:
        predictor = affine(node.argument)
    except NoAugmentationError:
        return None
    if size != 1 or predictor is None:
        return None
    return Threshold(predictor.scale, predictor.shift, _NOISE[node.name])


def _degree(expression: Expression, key: tuple) -> int | None:
    """Return the degree of an expression as a polynomial in the event of a key, or None if it is not one."""
    if expression.key == key:
        return 1
    if expression.latent_free:
        return 0
    degrees = [_degree(child, key) for child in expression.children]
    if not isinstance(expression, (Sum, Product)) or None in degrees:
        return None
    known = [degree or 0 for degree in degrees]
    return max(known) if isinstance(expression, Sum) else sum(known)
