"""Prior predictive draws of hyperparameters, latents and observations."""

from functools import partial

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number
from pgmodels.inference.prepare import choose_inputs, with_inputs
from pgmodels.model import Model, check_memory, numbered_inputs, require_model
from pgmodels.parameters.parameter import Parameter
from pgmodels.parameters.vector import with_priors, with_values
from pgmodels.priors.base import RandomKey
from pgmodels.priors.block_posterior import draw_latents
from pgmodels.priors.collection import padded_prior
from pgmodels.priors.rows import DistinctInputs
from pgmodels.results.draws import PriorPredictive
from pgmodels.results.predictive import DrawNodes, Predictive, check_covariates
from pgmodels.runtime.jit import compiled, require_draws
from pgmodels.runtime.precision import double_precision
from pgmodels.runtime.seeds import Seed, as_seed


@double_precision
def prior_predictive(
    model: Model, X: ArrayLike, covariates: ArrayLike | None = None, *, num_draws: int = 1000, seed: Seed = 0
) -> PriorPredictive:
    """Draw latents and observations at X from the model before data, to see whether the priors are plausible.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Hyperparameters given as NumPyro distributions are drawn, all other values fixed.
    X : array_like, shape (n, d)
        Inputs.
    covariates : array_like, shape (n, columns - 1), optional
        The columns of y after the first, which are not drawn. Event times have none, and are drawn without censoring.
    num_draws : int
        Number of joint draws.
    seed : int or jax.Array
        An int or a JAX key, for all draws.

    Returns
    -------
    PriorPredictive
        Draws of hyperparameters, latents and observations.

    Raises
    ------
    ValueError
        If the formula is not normalised over the support of y, or covariates that it reads are missing or invalid. If
        hardly any draw of a prior satisfies the parameter's constraint.
    MemoryError
        If the prior at X or the draws do not fit into memory.

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> import pgmodels as pgm
    >>> model = pgm.Model(pgm.Poisson(), pgm.GP(pgm.RBF(1.0, dist.LogNormal(0.0, 0.5)), mean=1.0))
    >>> draws = pgm.prior_predictive(model, [[0.0], [1.0]], num_draws=200)
    >>> draws.observations.shape, draws.latents.shape
    ((200, 2), (200, 2, 1))
    """
    check_whole_number(num_draws, "num_draws", 1)
    seed = as_seed(seed)
    model, inputs, _ = numbered_inputs(require_model(model), X)
    covariates = check_covariates(model.likelihood, model.num_latents, covariates, len(inputs))
    model = model.resolve(inputs)
    check_memory(model, inputs)
    require_draws(num_draws, len(inputs), model.num_latents)
    model = with_inputs(model, choose_inputs(model, inputs))
    unknowns = with_priors(model)
    key, pairs = jax.random.key(seed), zip(unknowns.names, unknowns.parameters, strict=True)
    values = [_draw_prior(p, name, jax.random.fold_in(key, i), num_draws) for i, (name, p) in enumerate(pairs)]
    if values:
        keys = jax.random.split(jax.random.fold_in(key, len(values)), num_draws)
        f = np.asarray(_draw_each(model.bare(), unknowns.leaf_indices, values, model.inputs(inputs), keys))
    else:
        f = draw_latents(padded_prior(model.prior(inputs)), num_draws, seed)[0][:, : len(inputs)]
    hyperparameters = dict(zip(unknowns.names, values, strict=True))
    drawn = {
        parameter: hyperparameters[name].reshape(num_draws, 1, -1) for parameter, name in unknowns.of_likelihood.items()
    }
    predictive = Predictive(model.likelihood, DrawNodes(f, drawn), covariates)
    observations = predictive.draw_given(f, drawn, np.random.default_rng(seed))
    return PriorPredictive(
        model=model,
        X=inputs,
        covariates=predictive.covariates,
        latents=f,
        observations=observations,
        hyperparameters=hyperparameters,
    )


def _draw_prior(parameter: Parameter, name: str, key: RandomKey, num_draws: int) -> np.ndarray:
    """Draws of a parameter's prior, by rejection sampling if it is declared without regard to the constraint."""
    if parameter.declared_prior is parameter.prior:
        return np.asarray(parameter.prior.sample(key, (num_draws,)))
    draws, max_rounds = list[np.ndarray](), 100
    for number in range(max_rounds):
        drawn = parameter.declared_prior.sample(jax.random.fold_in(key, number), (num_draws,))
        draws.append(np.asarray(drawn)[np.asarray(parameter.support(drawn))])
        if sum(map(len, draws)) >= num_draws:
            return np.concatenate(draws)[:num_draws]
    raise ValueError(
        f"prior_predictive: of {max_rounds * num_draws} draws of the prior of {name}, {parameter.hashable_prior!r}, "
        f"{sum(map(len, draws))} are within its constraint. Give it a prior on the constrained set, such as "
        "numpyro.distributions.Dirichlet on a simplex, or fix it with pgm.Fixed."
    )


@partial(compiled, static_argnames="leaf_indices")
def _draw_each(
    model: Model, leaf_indices: tuple[int, ...], values: list[np.ndarray], inputs: DistinctInputs, keys: RandomKey
) -> Array:
    """The latents of each draw of the values, (draws, n, latents)."""

    def one(draw: tuple[list[Array], RandomKey]) -> Array:
        return with_values(model, leaf_indices, draw[0]).prior(inputs, traced=True).draw(draw[1])[0]

    return jax.lax.map(one, (values, keys))
