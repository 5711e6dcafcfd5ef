"""What the plotting functions take: a result, several by label, or a comparison."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers
from pgmodels.diagnostics.compare import Comparison
from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.low_rank import InducingPointPrior
from pgmodels.results.draws import Draws
from pgmodels.results.nodes import DrawNodes
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result


def labelled(results: Any) -> dict[str, Result]:
    """Results by label: of a comparison, of a mapping, or one result under its method's name.

    Raises ValueError where there are none, or a value is something else.
    """
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
        raise ValueError("results is empty: give at least one of what cavi, correct, fit or gibbs return.")
    for label, result in results.items():
        if not isinstance(result, Result):
            raise ValueError(
                f"results[{label!r}] must be what cavi, correct, fit or gibbs return; got {type(result).__name__}."
            )
    return {str(label): result for label, result in results.items()}


def require_chains(draws: Any) -> Draws:
    """Draws with at least four of them in each chain, or ValueError."""
    if not isinstance(draws, Draws):
        raise ValueError(f"draws must be what gibbs returns; got {type(draws).__name__}.")
    if draws.num_samples < 4:
        raise ValueError(
            f"draws holds {draws.num_samples} draws a chain, which say nothing of its mixing: draw at least 4, and "
            "better some hundreds."
        )
    return draws


def thin(draws: Draws, count: int) -> Draws:
    """About ``count`` of the draws, evenly spaced in each chain; all where there are no more."""
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


def held_covariates(result: Result, covariates: Any, num_rows: int) -> np.ndarray | None:
    """The columns of y after the first, held at ``covariates`` over a grid of inputs; None where nothing says at what.

    One trial where y is successes of trials: the mean is then a probability. Raises ValueError for another length.
    """
    support = result.likelihood.support(result.model.num_latents)
    if covariates is None:
        return np.ones((num_rows, 1)) if isinstance(support, SuccessesOfTrials) else None
    held = np.atleast_1d(as_numbers(covariates, "covariates"))
    if held.shape != (support.num_covariates,):
        raise ValueError(
            f"covariates of a figure are what the columns of y after the first are held at, {support.num_covariates} "
            f"number(s) here; got shape {held.shape}."
        )
    return np.tile(held, (num_rows, 1))


def smooth_draws(draws: Draws, X: np.ndarray, covariates: Any = None) -> tuple[np.ndarray, Predictive]:
    """Latents at X, (draws, m, latents), and the predictive distribution that they give, both smooth in X."""
    f = draws.draw_marginals(X, common_noise=True)
    return f, Predictive(draws.likelihood, DrawNodes(f, draws.flat_likelihood_values), covariates)


def require_comparison(comparison: Any) -> Comparison:
    """A Comparison, or ValueError."""
    if not isinstance(comparison, Comparison):
        raise ValueError(
            f"comparison must be what compare returns; got {type(comparison).__name__}. Use "
            "pgm.compare(gibbs=draws, cavi=approximation)."
        )
    return comparison


def inducing_inputs(result: Result) -> tuple[np.ndarray, str]:
    """The inducing inputs of the latents' priors, (k, d), each once, and what they are; none of dense ones.

    The pivots of low-rank priors are such inputs too.
    """
    spans = [group.span if isinstance(group, FICPrior) else group for group in result.prior.groups]
    found = [span for span in spans if isinstance(span, InducingPointPrior)]
    Z = [np.asarray(span.Z)[np.asarray(span.active) > 0] for span in found]
    exact = all(span.residual_variance() is None for span in found)
    every = np.unique(np.concatenate([np.zeros((0, result.X.shape[1])), *Z]), axis=0)
    return every, "inducing inputs (pivots of the factor)" if exact else "inducing inputs"
