"""Formulas that are affine in one event of the latents: step(z), Φ(z) or largest(f, y)."""

from collections.abc import Iterator
from typing import TypeVar

from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.predictor import affine
from pgmodels.augmentation.predictors import rewrite_if_fewer
from pgmodels.augmentation.symbols import substitute
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.indicators import Largest
from pgmodels.likelihoods.operations import Call, Product, Sum
from pgmodels.likelihoods.symbols import Constant
from pgmodels.objectives.additive_noise import AdditiveNoise, Event, Threshold, TopLatent

# The variance of the noise of each function, as a threshold.
_NOISE = {"step": 0.0, "normal_cdf": 1.0}

Bound = TypeVar("Bound", bound=AdditiveNoise)


def read_event(formula: Expression, num_latents: int, objective: type[Bound]) -> Bound | None:
    """The objective of a formula that is affine in one event, with coefficients free of the latents, else None.

    The argument of step and Φ is an affine function of the latents.
    """
    formula, predictors = rewrite_if_fewer(formula, num_latents)
    size = num_latents if predictors is None else len(predictors.rows)
    nodes = {node.key: node for node in _events(formula)}
    if len(nodes) != 1:
        return None
    ((key, node),) = nodes.items()
    event = _event(node, size)
    if event is None or _degree(formula, key) != 1:
        return None
    if_so, if_not = (substitute(formula, {key: Constant(value)}) for value in (1.0, 0.0))
    return objective(event, if_so, if_not, size, predictors)


def _events(expression: Expression) -> Iterator[Largest | Call]:
    """The events in an expression."""
    if expression.latent_free:
        return
    if isinstance(expression, Largest) or (isinstance(expression, Call) and expression.name in _NOISE):
        yield expression
        return
    for child in expression.children:
        yield from _events(child)


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
    """The degree of an expression as a polynomial in the event of a key, None if it is not one."""
    if expression.key == key:
        return 1
    if expression.latent_free:
        return 0
    degrees = [_degree(child, key) for child in expression.children]
    if not isinstance(expression, (Sum, Product)) or None in degrees:
        return None
    known = [degree or 0 for degree in degrees]
    return max(known) if isinstance(expression, Sum) else sum(known)
