"""The objectives of a model, by name or as user-defined objects."""

from collections.abc import Callable
from typing import Literal

from pgmodels.augmentation.normal_form import expand
from pgmodels.augmentation.predictor import affine
from pgmodels.augmentation.predictors import rewrite_if_fewer
from pgmodels.augmentation.quadratic import read_completed
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.indicators import jumps
from pgmodels.likelihoods.operations import Call, Power
from pgmodels.likelihoods.symbols import Constant
from pgmodels.model import Model
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Kink, Quadrature
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.sparse import SparseApproximation


def augmented_objective(model: Model) -> Objective:
    """The bound of the derived augmentation; NoAugmentationError if there is none."""
    return model.augmentation


def expected_objective(model: Model, coarse: bool = False) -> Quadrature:
    """The expected log density of a model's formula, over its predictors where its factors combine latents."""
    if model.is_augmentable:
        formula, predictors = model.augmentation.formula, model.augmentation.predictors
    else:
        formula, predictors = rewrite_if_fewer(model.likelihood.formula(model.num_latents), model.num_latents)
    size = model.num_latents if predictors is None else len(predictors.rows)
    kinks = tuple(_kinks(formula)) if size == 1 else ()
    _check_jumps(formula, size)
    return Quadrature(formula, size, predictors, kinks, coarse)


# Objectives by name, as passed by users and recorded in results.
OBJECTIVES: dict[str, Callable[[Model], Objective]] = {
    "augmented": augmented_objective,
    "expected": expected_objective,
}
AUTO = "auto"
# The options of svi and vi, and of fit.
Choice = Literal["augmented", "expected"] | Objective
AutoChoice = Literal["auto", "augmented", "expected"] | Objective


def check_objective(objective: str | Objective, *, auto: bool = False) -> None:
    """Raise ValueError if ``objective`` is neither an Objective nor a name; ``auto`` allows the name "auto"."""
    names = ((AUTO,) if auto else ()) + tuple(OBJECTIVES)
    if not isinstance(objective, Objective) and objective not in names:
        raise ValueError(
            f"objective must be one of {', '.join(map(repr, names))}, or an instance of a subclass of pgm.Objective; "
            f"got {objective!r}."
        )


def objective_of(model: Model, objective: str | Objective) -> Objective:
    """The objective of a model by name, or the object itself if it has the model's number of latents.

    ``"auto"`` is the expected log density if each row has one predictor (quadrature in one dimension) or there is no
    augmentation; the derived bound if rows have several, or if it equals the expected log density in closed form.
    """
    check_objective(objective, auto=True)
    if isinstance(objective, Objective):
        if objective.num_latents != model.num_latents:
            raise ValueError(
                f"objective {objective.name!r} is for {objective.num_latents} latents; the model has "
                f"{model.num_latents}. Change the sizes of the model's GPs, or the size of the objective."
            )
        return objective
    if objective == AUTO:
        derived = model.augmentation if model.is_augmentable else None
        takes_derived = derived is not None and (derived.size > 1 or derived.is_exact)
        objective = "augmented" if takes_derived else "expected"
    return OBJECTIVES[objective](model)


def custom_objective(model: Model, objective: Objective) -> Objective | None:
    """The objective if it is user-defined; None if its name determines it."""
    by_name = OBJECTIVES.get(objective.name)
    return None if by_name is not None and by_name(model) == objective else objective


def objective_of_result(result: GaussianResult | SparseApproximation) -> Objective:
    """The objective that a result maximises.

    Raises ValueError for a loaded result of a user-defined objective that was not passed to ``pgm.load``.
    """
    if result.custom_objective is not None:
        return result.custom_objective
    if result.objective not in OBJECTIVES:
        raise ValueError(
            f"the result is the optimum of the user-defined objective {result.objective!r}, which is not stored in its "
            "file: load it with pgm.load(path, objective=...)."
        )
    return objective_of(result.model, result.objective)


def _check_jumps(formula: Expression, size: int) -> None:
    """Raise ValueError where quadrature at nodes relative to the marginals has no gradient, across a jump."""
    for node in jumps(formula):
        if size > 1 or not isinstance(node, Call) or affine(node.argument) is None:
            raise ValueError(
                f"objective 'expected' cannot integrate {node.text()}, which jumps: quadrature is exact for steps of "
                "one affine function of the latents, as in pgm.step((2 * y - 1) * f). Give the latents noise, as in "
                "pgm.largest(f, y, 1.0) or pgm.normal_cdf(z)."
            )


def _kinks(expression: Expression) -> list[Kink]:
    """The kinks of a formula: zeros of affine arguments of abs and step, and vertices under fractional powers.

    The root of a quadratic has a nearly sharp kink at its vertex if the constant added to the square is small.
    """
    if expression.latent_free:
        return []
    kinks = [kink for child in expression.children for kink in _kinks(child)]
    predictor = None
    if isinstance(expression, Call) and expression.name in ("abs", "step"):
        predictor = affine(expression.argument)
    elif isinstance(expression, Power) and isinstance(expression.exponent, Constant) and expression.exponent.value % 1:
        quadratic = read_completed(expand(expression.base, 1))
        predictor = quadratic.squares[0].predictor if quadratic and len(quadratic.squares) == 1 else None
    if predictor is not None:
        kinks.append(Kink(predictor.scale, predictor.shift))
    return kinks
