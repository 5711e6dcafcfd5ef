"""The surrogate of the sampler: the variational Gaussian near its optimum, a little wider."""

from functools import partial
from typing import Any, NamedTuple, cast

from jaxtyping import Array

from pgmodels.inference.loop import run_block
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.problem import Problem, couple
from pgmodels.inference.variational.natural_gradient import NATURAL_GRADIENT, GaussianState, positive_part, pull
from pgmodels.inference.variational.vi import engine_of
from pgmodels.model import Model
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import choose_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.fresh import Fresh
from pgmodels.priors.posterior import Marginals
from pgmodels.runtime.jit import compiled

# The surrogate is only a reference distribution: a loose tolerance suffices.
_TOLERANCE, _MAX_STEPS = 1e-5, 40
# From this many coupled coordinates on, starting at the optimum of independent latents saves more than compiling costs.
_DEAR = 1000
# The sites' precisions are multiplied by this: the variational Gaussian is too narrow, and slice steps that start in
# its tails are slow to leave them. Between 0.8 and 0.95 the effective draws hardly depend on it.
_SHARE = 0.9


class Fit(NamedTuple):
    """A fitted Gaussian, with the latents' marginals, the predictors' sites and the ELBO at its optimum."""

    surrogate: BlockPosterior
    marginals: Marginals
    sites: Sites
    elbo: Array


def fitting_problem(model: Model, prior: PriorCollection, y: Any, row_mask: Any) -> Problem:
    """The problem of the fit: the expected log density with few nodes, at a model's values and prior.

    ``row_mask`` is 0 at padding rows, which get no factors; None if there are none.
    """
    objective = expected_objective(model, coarse=True)
    problem = Problem(objective, prior, y, model.parameters, row_weights=row_mask)
    return problem.with_coupled_sites() if objective.size > 1 and len(choose_blocks(prior)) == 1 else problem


def first_sites(model: Model, prior: PriorCollection, y: Any, row_mask: Any) -> Sites:
    """The start of the fit: the first sites of ``cavi``, whose bound does not overflow, if there is an augmentation."""
    if not model.is_augmentable:
        return _first_sites(fitting_problem(model, prior, y, row_mask))
    return _first_sites(Problem(model.augmentation, prior, y, model.parameters, row_weights=row_mask))


@partial(compiled, optimise=False)
def _first_sites(problem: Problem) -> Sites:
    return engine_of(problem.objective).init(problem).sites


def fit_surrogate(problem: Problem, start: Sites) -> Fit:
    """The variational Gaussian by natural-gradient steps, from given sites."""
    if problem.coupled and not start.coupled:
        if sum(problem.prior.ranks) >= _DEAR:
            start = _ascend_apart(problem.with_independent_sites(), start)
        start = start.as_coupled()
    return _ascend(problem, start).completed(problem.prior)


@partial(compiled, optimise=False, on_one_thread=True)
def _ascend_apart(problem: Problem, start: Sites) -> Sites:
    return _optimum(problem, start).sites


@partial(compiled, optimise=False, on_one_thread=True)
def _ascend(problem: Problem, start: Sites) -> Fresh:
    state = _optimum(problem, start)
    marginals = _coupled(problem, state.sites).marginals()
    surrogate = _widened(problem, state.sites, state.mean)
    return Fresh.beside(problem.prior, Fit(surrogate, marginals, state.sites, state.elbo))


def _optimum(problem: Problem, start: Sites) -> GaussianState:
    first = NATURAL_GRADIENT.state_of(problem, start)
    return run_block(NATURAL_GRADIENT.step, problem, first, _TOLERANCE, _MAX_STEPS, _MAX_STEPS).state


def surrogate_of(problem: Problem, marginals: Marginals) -> BlockPosterior:
    """The Gaussian whose factors approximate p(y | f) at given marginals of the latents; usable under ``jit``.

    h = E[g] + W m, with g the gradient of log p(y | f) and W = -E[dg/df] where that is positive semi-definite.
    Source: Opper and Archambeau 2009.
    """
    mean, spread = problem.of_latents(*marginals)
    slope = problem.sites(mean, spread)
    precision = positive_part(slope.precision)
    gradient = slope.potential - pull(slope.precision, mean)
    return _widened(problem, Sites(gradient + pull(precision, mean), precision), mean)


def precisions_of(surrogate: BlockPosterior) -> Any:
    """The precisions of the data's sites, (n, latents, latents), which the surrogate scales down."""
    return surrogate.sites.precision / _SHARE


def _widened(problem: Problem, sites: Sites, mean: Any) -> BlockPosterior:
    h, w = sites
    return _coupled(problem, Sites(h - (1.0 - _SHARE) * pull(w, mean), _SHARE * w))


def _coupled(problem: Problem, sites: Sites) -> BlockPosterior:
    """The posterior given sites, with the latents of a datum coupled if that is affordable."""
    posterior = couple(problem.objective.predictors, problem.prior, sites, problem.y, problem.parameters)
    # Surrogates are of priors with factors.
    return cast(BlockPosterior, posterior)
