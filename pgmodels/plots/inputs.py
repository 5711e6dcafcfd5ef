"""Checks and conversions of the arguments of plotting functions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers
from pgmodels.diagnostics.compare import Comparison
from pgmodels.kernels.limits import intersection
from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.low_rank import InducingPointPrior
from pgmodels.results.draws import Draws
from pgmodels.results.nodes import DrawNodes
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result
from pgmodels.results.sparse import SparseApproximation, name_type


def labelled(results: Any) -> dict[str, Result]:
    """Results by label: from a comparison or a mapping, or one result under the name of its method.

    Raises ValueError for an empty mapping, or a value that is not a result.
    """
    if isinstance(results, SparseApproximation):
        raise ValueError(f"results must have data to plot; got {name_type(results)}.")
    if isinstance(results, Result):
        return {results.method: results}
    if isinstance(results, Comparison):
        return dict(results.results)
    if not isinstance(results, Mapping):
        raise ValueError(
            f"results must be a result, a dict of results by label or a Comparison; got {type(results).__name__}. Use "
            "{'cavi': approximation}, for example."
        )
    if not results:
        raise ValueError("results is empty: pass at least one result of cavi, correct, fit or gibbs.")
    for label, result in results.items():
        if not isinstance(result, Result):
            raise ValueError(
                f"results[{label!r}] must be a result, such as those of cavi, correct, fit or gibbs; got "
                f"{name_type(result)}."
            )
    return {str(label): result for label, result in results.items()}


def require_chains(draws: Any) -> Draws:
    """Check for draws with at least four per chain; raises ValueError otherwise."""
    if not isinstance(draws, Draws):
        raise ValueError(f"draws must be a result of gibbs or nuts; got {type(draws).__name__}.")
    if draws.num_samples < 4:
        raise ValueError(
            f"draws has {draws.num_samples} draws per chain, too few to assess convergence: draw at least 4, and "
            "preferably some hundreds."
        )
    return draws


def thin(draws: Draws, count: int) -> Draws:
    """About ``count`` of the draws, evenly spaced in each chain, or all if there are fewer."""
    step = max(1, -(-draws.num_chains * draws.num_samples // count))
    kept = {name: v[:, ::step] for name, v in draws.hyperparameters.items()}
    return replace(
        draws,
        whitened=None if draws.whitened is None else tuple(v[:, ::step] for v in draws.whitened),
        log_likelihood_trace=draws.log_likelihood_trace[:, ::step],
        hyperparameters=kept,
        statistics={name: v[:, ::step] for name, v in draws.statistics.items()},
        stored_latents=None if draws.stored_latents is None else draws.stored_latents[:, ::step],
    )


def fixed_covariates(result: Result, covariates: Any, num_rows: int) -> np.ndarray | None:
    """The columns of y after the first, fixed at ``covariates`` for a grid of inputs; None if they are not known.

    By default one trial if y is successes of trials, so that the mean is a probability. Raises ValueError for another
    number of covariates.
    """
    support = result.likelihood.support(result.model.num_latents)
    if covariates is None:
        return np.ones((num_rows, 1)) if isinstance(support, SuccessesOfTrials) else None
    values = np.atleast_1d(as_numbers(covariates, "covariates"))
    if values.shape != (support.num_covariates,):
        raise ValueError(
            f"covariates of a figure must have shape ({support.num_covariates},), one value for each column of y after "
            f"the first; got shape {values.shape}."
        )
    return np.tile(values, (num_rows, 1))


def around(X: np.ndarray, results: Sequence[Result], margin: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the range of each column of X, (d,), wider by a share of it as far as all results are defined."""
    low, high = X.min(axis=0), X.max(axis=0)
    beyond = np.where(high > low, margin * (high - low), 1.0)
    lowest, highest = intersection([result.model.limits(X.shape[1]) for result in results]).T
    return np.maximum(low - beyond, lowest), np.minimum(high + beyond, highest)


def smooth_draws(draws: Draws, X: np.ndarray, covariates: Any = None) -> tuple[np.ndarray, Predictive]:
    """Latents at X, (draws, m, latents), and the predictive distribution given them, both smooth in X."""
    f = draws.draw_marginals(X, common_noise=True)
    return f, Predictive(draws.likelihood, DrawNodes(f, draws.flat_likelihood_values), covariates)


def require_comparison(comparison: Any) -> Comparison:
    """Check for a Comparison; raises ValueError otherwise."""
    if not isinstance(comparison, Comparison):
        raise ValueError(
            f"comparison must be a result of compare; got {type(comparison).__name__}. Use "
            "pgm.compare(gibbs=draws, cavi=approximation)."
        )
    return comparison


def inducing_inputs(result: Result) -> tuple[np.ndarray, str]:
    """The distinct inducing inputs of the priors, (k, d), and their name in legends; none for dense priors.

    They include the pivots of low-rank priors.
    """
    groups = [group.span if isinstance(group, FICPrior) else group for group in result.prior.groups]
    priors = [group for group in groups if isinstance(group, InducingPointPrior)]
    Z = [np.asarray(prior.Z)[np.asarray(prior.active) > 0] for prior in priors]
    exact = all(prior.residual_variance() is None for prior in priors)
    distinct = np.unique(np.concatenate([np.zeros((0, result.X.shape[1])), *Z]), axis=0)
    return distinct, "inducing inputs (pivots of the factor)" if exact else "inducing inputs"
