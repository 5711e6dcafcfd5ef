"""NUTS on the whitened latents and hyperparameters: `nuts`."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS

from pgmodels.data.arrays import MissingChoice, check_between
from pgmodels.inference.gibbs import check_sizes, warn_unmixed
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.prepare import resolved, variational_problem, warn_inaccurate
from pgmodels.inference.problem import Problem, largest_precision
from pgmodels.inference.surrogates import fit_surrogate
from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.interop.numpyro import WHITENED, Program, WhitenedPrior
from pgmodels.likelihoods.operations import jumps
from pgmodels.model import Data, Model, require_model
from pgmodels.priors.base import Sites, pad_rows
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import approximation_error
from pgmodels.priors.representation import Auto
from pgmodels.results.draws import Draws
from pgmodels.runtime.jit import compiled, one_thread_if_small, require_draws
from pgmodels.runtime.messages import PgmodelsWarning, shows_progress, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_key

# Statistics that NumPyro records of each draw, with ArviZ's names.
_STATISTICS = {
    "diverging": "diverging",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
    "adapt_state.step_size": "step_size",
}


class DivergenceWarning(PgmodelsWarning):
    """Some trajectories of a Hamiltonian sampler diverged, so that its draws may miss part of the posterior."""


def warn_divergent(diverging: np.ndarray, target_accept: float) -> None:
    """Warn if trajectories diverged, of (chains, draws)."""
    if np.any(diverging):
        warn(
            f"nuts: {np.sum(diverging)} of {diverging.size} trajectories diverged: the draws may miss part of the "
            f"posterior. Raise target_accept above {target_accept}, or narrow very wide priors of hyperparameters.",
            DivergenceWarning,
        )


@double_precision
@one_thread_if_small
def nuts(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    num_samples: int = 1000,
    num_warmup: int = 500,
    num_chains: int = 4,
    seed: Seed = 0,
    target_accept: float = 0.8,
    progress: bool | None = None,
) -> Draws:
    """Draw from the posterior by NumPyro's NUTS, on the likelihood's formula itself, without augmentation.

    For every form of a GP a factor of the covariance of the distinct inputs whitens the latents. The factor is as exact
    as double precision allows. The sampler moves in the coordinates in which a Gaussian fitted at the start values is
    standard normal.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Hyperparameters, means and likelihood parameters given as NumPyro distributions are
        sampled; all others are fixed at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    num_samples : int
        Draws of each chain after warm-up.
    num_warmup : int
        Warm-up iterations of each chain, which are discarded.
    num_chains : int
        Number of chains.
    seed : int or jax.Array
        An int or a JAX key; determines every draw.
    target_accept : float
        Target acceptance probability of the step-size adaptation, between 0 and 1.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Draws
        Draws of the latents at the data, and ``hyperparameters``.

    Raises
    ------
    ValueError
        For invalid data or options, a kernel whose matrix is not a covariance, or a formula that jumps, with
        ``pgm.step`` or ``pgm.largest`` without noise.

    Warns
    -----
    DivergenceWarning
        If trajectories diverge.
    MixingWarning
        If chains disagree.
    PrecisionWarning
        If the prior is less exact than the data require.

    Notes
    -----
    A gradient costs O(n r + r^2) for factors of r rows in total. If kernel hyperparameters are sampled, it costs
    O(n^3), for a Cholesky root with a jitter of 1e-12 of the variances (see ``pgmodels.priors.dense.exact_root``).

    References
    ----------
    Hoffman and Gelman 2014; Phan, Pradhan and Jankowiak 2019.
    """
    start = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights, missing)
    node = next(jumps(model.likelihood.formula(model.num_latents)), None)
    if node is not None:
        # The gradient is 0 almost everywhere, and does not lead to the posterior's mass.
        raise ValueError(
            f"nuts needs a gradient of the log density, but the gradient of {model.likelihood.name} is 0 almost "
            f"everywhere, since {node.text()} jumps. Use gaussian_vi, or add noise to the latents: pgm.normal_cdf(z) "
            "for pgm.step(z), pgm.largest(f, y, 1.0) for pgm.largest(f, y)."
        )
    check_sizes(num_samples, num_warmup, num_chains)
    check_between(target_accept, "target_accept", 0.0, 1.0)
    key = as_key(seed)
    model = resolved(model.with_form(Auto()), data)
    require_draws(num_samples * num_chains, len(data.X), model.num_latents)
    # Raises a helpful error if a kernel's matrix is not a covariance, where NumPyro would find no start.
    model.prior(data.X)
    program = PreconditionedProgram(model, data)
    sampler = MCMC(
        NUTS(program, target_accept_prob=target_accept),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        # A batch of factorisations can hang (see pgmodels.priors.linalg): chains then run sequentially.
        chain_method="vectorized" if all(group is not None for group in program.fixed_groups) else "sequential",
        progress_bar=shows_progress(progress),
    )
    sampler.run(key, extra_fields=tuple(_STATISTICS))
    samples = sampler.get_samples(group_by_chain=True)
    statistics = {_STATISTICS[name]: np.asarray(v) for name, v in sampler.get_extra_fields(group_by_chain=True).items()}
    warn_divergent(statistics["diverging"], target_accept)
    model = program.unknowns.with_values(
        program.unknowns.median([np.asarray(samples[name]) for name in program.unknowns.names])
    )
    draws = Draws(
        model=model,
        **data._asdict(),
        prior=model.prior(data.X, traced=True, known=program.fixed_groups),
        whitened=tuple(np.asarray(samples[f"{WHITENED}{i}"]) for i in range(len(model.gps))),
        stored_latents=np.asarray(samples["f"]),
        hyperparameters={name: np.asarray(samples[name]) for name in program.unknowns.names},
        log_likelihood_trace=np.zeros((num_chains, num_samples)),
        statistics=statistics,
        num_warmup=num_warmup,
        seconds=0.0,
        method="nuts",
    )
    if approximation_error(draws.prior):
        # The largest precision of the data on a latent, from the curvature of the log likelihood about the draws.
        problem = replace(variational_problem(model, data, expected_objective(model), draws.prior), coupled=False)
        at_draws = (as_array(pad_rows(part, len(problem.y))) for part in (draws.mean, draws.variance))
        warn_inaccurate(draws.prior, largest_precision(problem, _sites(problem, *at_draws)))
    warn_unmixed("nuts", num_samples, draws.latents.mean(axis=1), draws.latents.var(axis=1))
    log_likelihood = pointwise_log_likelihood(draws, draws.latents).sum(axis=-1)
    return replace(draws, log_likelihood_trace=log_likelihood, seconds=time.perf_counter() - start)


class PreconditionedProgram(Program):
    """The sites of Program, with whitened coordinates that are functions of a site about a fitted Gaussian.

    It needs a finite Gaussian at the model's values, and at most 2,000 coordinates. Up to this number a product with
    the Gaussian's root is as cheap as a product with the factors.
    """

    def __init__(self, model: Model, data: Data):
        super().__init__(model, data)
        self.surrogate: BlockPosterior | None = None
        prior = model.prior(data.X, traced=True, known=self.fixed_groups)
        if sum(prior.ranks) > 2000:
            return
        surrogate = fit_surrogate(self.powers, prior, self.y, None).surrogate
        if all(np.isfinite(np.asarray(part)).all() for part in jax.tree.leaves((surrogate.centre, surrogate.roots))):
            self.surrogate = surrogate.with_inverse_roots()
            groups: Any = prior.groups
            self.of_gaussian = [np.flatnonzero(np.asarray(group.active)) for group in groups]

    def whitened(self, prior: WhitenedPrior) -> list[Any]:
        if self.surrogate is None:
            return super().whitened(prior)
        flat = dist.ImproperUniform(constraints.real_vector, (), self.surrogate.centre.shape)
        flat = self.surrogate.centre + self.surrogate.deviation(numpyro.sample("about_gaussian", flat))
        numpyro.factor("prior_of_whitened", -0.5 * jnp.sum(flat**2))
        pairs = zip(self.surrogate.prior.unflatten(flat), self.of_gaussian, strict=True)
        return [numpyro.deterministic(f"{WHITENED}{i}", v[active]) for i, (v, active) in enumerate(pairs)]


@partial(compiled, optimise=False)
def _sites(problem: Problem, mean: Array, variance: Array) -> Sites:
    return problem.sites(*problem.of_latents(mean, jax.vmap(jnp.diag)(variance)))
