"""The objectives of a model, by name or as user-defined objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from pgmodels.augmentation.augmentation import Factorised
from pgmodels.augmentation.derive import softmax_formula
from pgmodels.augmentation.normal_form import expand, read_completed, read_event
from pgmodels.augmentation.predictors import Predictors, affine, rewrite_if_fewer
from pgmodels.likelihoods.expression import Constant, Expression
from pgmodels.likelihoods.operations import Call, Largest, Power, jumps
from pgmodels.model import Model
from pgmodels.objectives.base import AdditiveNoise, ExpectedIndicator, Gumbel, Objective, Taylor
from pgmodels.objectives.expected import Kink, MeanField, Quadrature
from pgmodels.results.approximation import GaussianResult
from pgmodels.runtime.messages import shorten

if TYPE_CHECKING:
    from pgmodels.results.nested import SparseApproximation


def _over_predictors(model: Model) -> tuple[Expression, int, Predictors | None]:
    """A model's formula over its predictors where its factors combine latents, their number, and what they are."""
    if model.is_augmentable:
        formula, predictors = model.augmentation.formula, model.augmentation.predictors
    else:
        formula, predictors = rewrite_if_fewer(model.likelihood.formula(model.num_latents), model.num_latents)
    return formula, model.num_latents if predictors is None else len(predictors.rows), predictors


def expected_objective(model: Model, coarse: bool = False) -> Quadrature | ExpectedIndicator:
    """Return the expected log density of a model's formula, over its predictors where its factors combine latents.

    In closed form where it is affine in one step or indicator of the largest latent; the latents are then independent
    under q.
    """
    formula, size, predictors = _over_predictors(model)
    kinks = tuple(_kinks(formula)) if size == 1 else ()
    for node in jumps(formula):
        closed = read_event(model.likelihood.formula(model.num_latents), model.num_latents, ExpectedIndicator)
        if closed is not None:
            return closed
        if size > 1 or not isinstance(node, Call) or affine(node.argument) is None:
            raise ValueError(
                f"objective='expected' cannot integrate {model.likelihood.name}, and neither can 'mean_field', since "
                f"{node.text()} jumps: expected are steps of one affine function of the latents, as in pgm.step((2 * y "
                "- 1) * f), or a formula that is affine in one pgm.largest(f, y). Give the latents noise, as in "
                "pgm.normal_cdf(z) or pgm.largest(f, y, 1.0)."
            )
    return Quadrature(formula, size, predictors, kinks, coarse)


def mean_field_objective(model: Model) -> Objective:
    """Return the expected log density of latents that are independent under q, also if the formula reads sums."""
    expected = expected_objective(model)
    if not isinstance(expected, Quadrature) or expected.size == 1:
        return expected
    return MeanField(model.likelihood.formula(model.num_latents), model.num_latents)


def additive_noise_objective(model: Model) -> AdditiveNoise:
    """Return the bound with additive noise; ValueError if the formula is not affine in a step, Φ or largest latent."""
    formula = model.likelihood.formula(model.num_latents)
    terms = read_event(formula, model.num_latents, AdditiveNoise)
    expected = (
        "a formula that is affine in one pgm.step(z), pgm.normal_cdf(z) or pgm.largest(f, y, noise) with coefficients "
        "free of f and z affine in the latents"
    )
    if terms is None:
        raise ValueError(
            f"objective='additive_noise' needs {expected}, such as error + (1 - 2 * error) * "
            f"pgm.normal_cdf((2 * y - 1) * f); got {formula.text()} of {model.likelihood.name}. Write it in this form, "
            "or use objective='expected'."
        )
    if Constant(0.0).key in (terms.if_so.key, terms.if_not.key):
        raise ValueError(
            f"objective='additive_noise' needs {expected}, and both outcomes possible; got {formula.text()} of "
            f"{model.likelihood.name}, which is 0 in one case, so that the bound is minus infinity. Add an error rate, "
            "as in error + (1 - 2 * error) * pgm.normal_cdf((2 * y - 1) * f), or use objective='expected'."
        )
    return terms


def gumbel_objective(model: Model) -> Gumbel:
    """Return the bound of a softmax by Gumbel noise; ValueError for other formulas."""
    size = model.num_latents
    if model.likelihood.formula(size).key != softmax_formula(size).key:
        raise ValueError(
            "objective='gumbel' expects the likelihood pgm.exp(f[y]) / pgm.sum(pgm.exp(f)) with a latent for each "
            f"class; got {model.likelihood.name}. Choose objective='expected', which accepts any formula."
        )
    return Gumbel(size)


def taylor_objective(model: Model) -> Taylor:
    """Return the expansion about q's mean; ValueError if the log density has no second derivative everywhere."""
    formula, size, predictors = _over_predictors(model)
    if _kinks(formula) or _is_any(jumps(formula)):
        raise ValueError(
            f"objective='taylor' expects a log density with second derivatives; the density of "
            f"{model.likelihood.name} has a kink or a jump. Choose objective='expected'."
        )
    return Taylor(formula, size, predictors)


# Objectives by name, as passed by users and recorded in results.
OBJECTIVES: dict[str, Callable[[Model], Objective]] = {
    "augmented": lambda model: model.augmentation,
    "expected": expected_objective,
    "mean_field": mean_field_objective,
    "factorised": lambda model: Factorised(model.augmentation),
    "additive_noise": additive_noise_objective,
    "gumbel": gumbel_objective,
    "taylor": taylor_objective,
}
AUTO = "auto"
# Predictors of all rows up to which fit maximises the expected log density of several predictors per row rather than
# the derived bound, whose terms cost a hundredth: losses on held-out rows are up to 0.17 nats smaller
# (validation/results/learning.md). Of two predictors that are sums of latents, such as a mean and the logit of excess
# zeros, the joint expected log density takes 2.4 times as long as the derived bound (599 rows, 56 coordinates), whose
# variances are half to three quarters of the right ones.
MOST_PREDICTORS = 4_000
ObjectiveName = Literal["augmented", "expected", "mean_field", "factorised", "additive_noise", "gumbel", "taylor"]
# The options of svi and vi, and of fit.
Choice = ObjectiveName | Objective
AutoChoice = Literal["auto"] | ObjectiveName | Objective


def check_objective(objective: str | Objective, *, auto: bool = False) -> None:
    """Raise ValueError if ``objective`` is neither an Objective nor a name; ``auto`` allows the name "auto"."""
    names = ((AUTO,) if auto else ()) + tuple(OBJECTIVES)
    if not isinstance(objective, Objective) and objective not in names:
        raise ValueError(
            f"objective must be one of {', '.join(map(repr, names))}, or an instance of a subclass of pgm.Objective; "
            f"got {shorten(objective)}."
        )


def objective_of(model: Model, objective: str | Objective, num_rows: int = 0) -> Objective:
    """The objective of a model by name (``"auto"`` as ``fit``), or the object itself if it has as many latents."""
    check_objective(objective, auto=True)
    if isinstance(objective, Objective):
        if objective.num_latents != model.num_latents:
            raise ValueError(
                f"objective {objective.name!r} is for {objective.num_latents} latents; the model has "
                f"{model.num_latents}. Change the sizes of the model's GPs, or the size of the objective."
            )
        return objective
    if objective == AUTO:
        objective = _automatic(model, num_rows)
    return OBJECTIVES[objective](model)


def _automatic(model: Model, num_rows: int) -> ObjectiveName:
    """The objective of ``fit``: the tightest that is affordable, and the derived bound where it is as tight."""
    derived = model.augmentation if model.is_augmentable else None
    formula, size, predictors = _over_predictors(model)
    if derived is not None and derived.is_exact:
        return "augmented"
    if size > 1 and not _reads_largest(formula) and not _is_any(jumps(formula)):
        if derived is None:
            return "mean_field" if size > 2 else "expected"
        if num_rows * size <= MOST_PREDICTORS:
            if predictors is None:
                return "mean_field"
            if size == 2:
                return "expected"
    return "expected" if size == 1 or derived is None else "augmented"


def _is_any(expressions: Iterator[Expression]) -> bool:
    """Whether there are any; expressions themselves have no truth value."""
    return next(expressions, None) is not None


def _reads_largest(expression: Expression) -> bool:
    """Whether a formula has the probability of the largest latent, an integral at each node of the quadrature."""
    return isinstance(expression, Largest) or any(map(_reads_largest, expression.children))


def require_maximised(call: str, objective: Objective) -> None:
    """Raise ValueError for an objective that its sites do not maximise, such as Laplace's evidence."""
    if not objective.is_maximised:
        raise ValueError(
            f"{call} needs an objective that q maximises, and q is not the maximum of {objective.title} "
            f"(objective={objective.name!r}): choose objective='expected', or use only pgm.vi, or pgm.fit with "
            "scheme='alternating', correct=False and train_inducing=False."
        )


def custom_objective(model: Model, objective: Objective) -> Objective | None:
    """Return the objective if it is user-defined; None if its name determines it."""
    by_name = OBJECTIVES.get(objective.name)
    return None if by_name is not None and by_name(model) == objective else objective


def known_objective(result: GaussianResult | SparseApproximation) -> Objective | None:
    """Return the objective that a result maximises; None if it is user-defined and was not passed to ``pgm.load``."""
    if result.custom_objective is not None:
        return result.custom_objective
    return objective_of(result.model, result.objective) if result.objective in OBJECTIVES else None


def is_joint(objective: Objective) -> bool:
    """Return whether q maximises the expected log density itself, with covariances of a datum's predictors."""
    return objective.is_exact and (objective.takes_covariances or objective.num_latents == 1)


def objective_of_result(result: GaussianResult | SparseApproximation) -> Objective:
    """The objective of a result; ValueError for a loaded one whose own objective was not passed to ``pgm.load``."""
    objective = known_objective(result)
    if objective is None:
        raise ValueError(
            f"the result is the optimum of the user-defined objective {result.objective!r}, which is not stored in its "
            "file: load it with pgm.load(path, objective=...)."
        )
    return objective


def _kinks(expression: Expression) -> list[Kink]:
    """The zeros of affine arguments of abs and step, and vertices of quadratics under fractional powers."""
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
