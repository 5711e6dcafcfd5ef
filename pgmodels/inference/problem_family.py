"""The variational problem as a function of the hyperparameters: unconstrained vector, model, prior, problem."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array

from pgmodels.inference.problem import Problem, are_few_rows, separate_blocks
from pgmodels.inference.variational.second_order_sweeps import is_simple
from pgmodels.inference.variational.vi import couples, is_signed_apart
from pgmodels.model import Groups, Model, Points
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors.blocks import MAX_BLOCK
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.distinct_inputs import DistinctInputs
from pgmodels.priors.gram import RANK_MULTIPLE
from pgmodels.priors.inducing.representation import inducing_points_at
from pgmodels.priors.low_rank import InducingPoints, LowRankPrior
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array

# From this many rows on (times latents, if coupled), compiling one program per rank is cheaper than hundreds of dense
# factorisations.
MANY_ROWS = 600
# Above this share of the rows, a dozen low-rank factorisations take longer than a few dense ones, unless the rank is at
# most _SMALL_RANK.
_SHARE_OF_ROWS, _SMALL_RANK = 0.25, 64
# Ranks are padded to multiples of _RANK_STEP up to _SHORT_SWEEPS rows: a program takes a second or two, a hundred
# sweeps with 64 more coordinates half a second.
_RANK_STEP, _SHORT_SWEEPS = 128, 4000


class ProblemFamily(Module):
    """The problem at each value of an unconstrained vector of hyperparameters.

    ``model`` is the model without priors, ``inputs``, ``y`` and ``row_weights`` are the padded data. ``fixed_groups``
    has the priors of groups with fixed kernels, whose means may vary, None for the others. ``coupled`` is whether sites
    couple the predictors of a datum, None to couple them if that is affordable. Priors have factors if
    ``needs_factors`` or if sites or predictors couple the latents; otherwise they give moments only. ``floor`` is the
    ``floor`` of the problems.
    """

    objective: Objective = eqx.field(static=True)
    parameters: ParameterVector
    model: Model
    inputs: DistinctInputs
    y: Array
    row_weights: Array | None
    fixed_groups: Groups = ()
    coupled: bool | None = eqx.field(static=True, default=None)
    needs_factors: bool = eqx.field(static=True, default=False)
    floor: float = eqx.field(static=True, default=0.0)

    @property
    def has_few_rows(self) -> bool:
        """See ``are_few_rows``."""
        return are_few_rows(len(self.y), couples(self.objective), self.objective.num_nodes)

    def model_at(self, vector: Any) -> Model:
        """The model without priors at the values of a vector."""
        return self.parameters.apply(self.model, vector)

    def prior_at(self, vector: Array, points: Points = ()) -> PriorCollection:
        """The prior at the values of a vector, given the inducing points of groups that have them."""
        needed = self.needs_factors or combines_latents(self.objective) or is_signed_apart(self.objective)
        model = self.model_at(vector)
        return model.traced_prior(self.inputs, self.fixed_groups, points=points, for_moments=not needed)

    def problem(self, vector: Array, points: Points) -> Problem:
        """The problem at the values of a vector."""
        model, prior, coupled = self.model_at(vector), self.prior_at(vector, points), self.coupled
        if coupled is None:
            # By the number of rows, not the current rank: the shapes of q(f) must stay the same from call to call.
            ranks = [
                len(at.Z) if at and gp.form.num_inputs else len(X)
                for gp, at, X in zip(model.gps, points, self.inputs.X, strict=True)
                for _ in range(gp.size)
            ]
            blocks = [range(len(ranks))] if couples(self.objective) else separate_blocks(self.objective)
            wanted = couples(self.objective) or is_signed_apart(self.objective)
            total = max(sum(ranks[latent] for latent in block) for block in blocks)
            coupled = wanted and prior.factored and total <= MAX_BLOCK
        return Problem(self.objective, prior, self.y, model.parameters, coupled, self.row_weights, self.floor)


def combines_latents(objective: Objective) -> bool:
    """Whether predictors or sites couple the latents, whose priors then need factors."""
    return objective.predictors is not None or couples(objective)


def points_at(
    objective: Objective, model: Model, distinct: Sequence[np.ndarray], inputs: Sequence[np.ndarray | None]
) -> Points:
    """The inducing points of groups with inducing ``inputs``, else the pivots of groups that have a low-rank form.

    Pivots are chosen at the model's hyperparameters, and only if there are enough rows for a low-rank form to be
    faster. Where dense groups have sweeps with fewer factorisations, all groups have pivots or none has.
    """
    none = (None,) * len(model.gps)
    if any(Z is not None for Z in inputs):
        pairs = zip(model.gps, inputs, strict=True)
        return tuple(None if Z is None else inducing_points_at(gp.kernel, Z) for gp, Z in pairs)
    counts = list(map(len, distinct))
    many = max(counts)
    if combines_latents(objective):
        many = sum(n * gp.size for n, gp in zip(counts, model.gps, strict=True))
    if many < MANY_ROWS:
        return none
    points: list[InducingPoints | None] = []
    expands = objective.is_monotone and is_simple(objective)
    for gp, X in zip(model.gps, distinct, strict=True):
        if gp.form.has_coefficients(gp.kernel, X):
            points.append(None)
            continue
        most = max(_SMALL_RANK, _SHARE_OF_ROWS * len(X)) if expands else np.inf
        group = gp.form.low_rank(gp.kernel, gp.mean.value, X, gp.size)
        is_low = group is not None and group.rank <= most
        if expands and not is_low:
            return none
        points.append(_in_steps(group) if group is not None and is_low else None)
    return tuple(points)


def _in_steps(group: LowRankPrior) -> InducingPoints:
    """The pivots of a low-rank form, padded to a rank of few sizes where a program takes longer than the padding."""
    # The rank of a line, or of a few groups, is the same at all hyperparameters.
    steps = group.rank > RANK_MULTIPLE and len(group.X) <= _SHORT_SWEEPS
    more = -group.rank % _RANK_STEP if steps else 0
    Z, active = np.pad(group.Z, ((0, more), (0, 0)), mode="edge"), np.pad(group.active, (0, more))
    return InducingPoints(*map(as_array, (Z, active, 0.0)))
