"""The base class of objectives of a formula, which also give its log density."""

from collections.abc import Mapping
from typing import Any

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.objectives.base import Objective
from pgmodels.priors.linear_predictor import push_values


class FormulaObjective(Objective):
    """An objective whose terms bound or approximate E log p(y | f) of a ``formula`` over its predictors."""

    formula: Expression

    def predictor_values(self, f: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The predictors at latent values (..., n, latents): the latents themselves if no factor combines them."""
        return f if self.predictors is None else push_values(self.predictors.matrix(y, parameters), f)

    def log_density(self, y: Any, f: Any, parameters: Mapping[str, Any]) -> Any:
        """log p(y | f) of each datum, shape (..., n), from the formula itself."""
        return self.predictor_log_density(y, self.predictor_values(f, y, parameters), parameters)

    def predictor_log_density(self, y: Any, z: Any, parameters: Mapping[str, Any]) -> Any:
        """log p(y | f) as a function of the predictors (..., n, predictors)."""
        return self.formula.log_evaluate(Environment(y, z, parameters))[..., 0]
