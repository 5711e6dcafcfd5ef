"""Quadratic functions of the latents, as in the exponent of a conditionally Gaussian likelihood."""

from dataclasses import dataclass

from pgmodels.augmentation.normal_form import Term
from pgmodels.augmentation.predictor import Predictor, affine
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.operations import Power, Reduction
from pgmodels.likelihoods.symbols import Constant, Latent, Latents


@dataclass(frozen=True)
class Square:
    """weight * z^2 for a predictor z; ``reduced`` sums it over the latents."""

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
    """constant + squares of predictors."""

    constant: Expression
    squares: tuple[Square, ...]

    @property
    def expression(self) -> Expression:
        """The quadratic as a formula."""
        return add(self.constant, *(square.expression for square in self.squares))

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the latents that the quadratic depends on."""
        return tuple(sorted({p for square in self.squares for p in square.predictor.positions}))


@dataclass(frozen=True)
class Linear:
    """coefficient * latent."""

    coefficient: Expression
    predictor: Predictor

    @property
    def expression(self) -> Expression:
        """The product as a formula; over all latents it is summed."""
        value = multiply(self.coefficient, self.predictor.expression)
        return Reduction("sum", value) if value.is_vector else value


def read_quadratic(terms: list[Term]) -> tuple[Quadratic, tuple[Linear, ...]] | None:
    """Sort terms into constant + squares of predictors, and terms linear in a latent.

    None if a term is neither constant, linear nor the square of a predictor.
    """
    constant: Expression = Constant(0.0)
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
            linear.append(Linear(term.coefficient, Predictor(atom, Constant(1.0), Constant(0.0))))
            continue
        predictor = _squared_predictor(atom)
        if predictor is None:
            return None
        squares.append(Square(term.coefficient, predictor, term.reduced))
    return Quadratic(constant, tuple(squares)), tuple(linear)


def read_completed(terms: list[Term]) -> Quadratic | None:
    """The quadratic of terms by completing the square; None if they are not a quadratic with squares."""
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


def _squared_predictor(atom: Expression) -> Predictor | None:
    if isinstance(atom, Power) and isinstance(atom.exponent, Constant) and atom.exponent.value == 2.0:
        return affine(atom.base)
    return None


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
    return Square(second, Predictor(latent, Constant(1.0), shift), reduced), rest
