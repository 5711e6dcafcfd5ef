"""Gibbs sampling of the exact posterior: auxiliaries, latents and hyperparameters, with slice moves between."""

import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.data.options import check_whole_number
from pgmodels.inference.inducing_selection import select_inducing_inputs
from pgmodels.inference.mcmc.gibbs.checkpoint import Checkpoint
from pgmodels.inference.mcmc.gibbs.driver import GibbsRun, Settings
from pgmodels.inference.mcmc.gibbs.trace import Keep
from pgmodels.inference.variational.vi import nearly_converged
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Data, Model, require_model, with_powers
from pgmodels.results.draws import Draws
from pgmodels.runtime import hooks
from pgmodels.runtime.seeds import as_key
from pgmodels.runtime.threads import one_thread_if_small, one_thread_up_to
from pgmodels.runtime.x64 import double_precision


@double_precision
@one_thread_if_small
def gibbs(
    model: Model,
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    num_samples: int = 1000,
    num_warmup: int = 200,
    num_chains: int = 4,
    seed: Any = 0,
    keep: Any = "all",
    checkpoint: Any = None,
    progress: bool | None = None,
) -> Draws:
    """Draws from the exact posterior of the latents, and of all values that have a prior.

    X (n, d), y (n,) or (n, columns); ``weights`` (n,) as in ``cavi``; ``seed`` is an int or a JAX key and decides every
    draw. Kernel hyperparameters, means and likelihood parameters given as NumPyro distributions are sampled; all others
    are held at their values.

    ``keep`` says what is stored: "all"; rows of X, as a list, whose latents are kept; or "moments". Running means and
    variances of all latents are kept in any case. ``checkpoint`` names a folder in which the run is saved as it goes:
    the same call takes it up again after an interruption, and gives the draws of an uninterrupted run bit for bit; with
    a larger ``num_samples`` it goes on from the end.

    An iteration makes slice moves about the variational Gaussian, fitted beforehand, and, in every iteration or every
    few (every fiftieth at least), the Gibbs sweep proper: auxiliaries given the latents, latents given the auxiliaries,
    overrelaxed.
    Hyperparameters take slice steps too; where a Hamiltonian step on them and the latents at once goes further for its
    cost (often with several latents a datum), it takes the place of the slice moves; not for a kernel that JAX cannot
    differentiate backwards, nor with inducing inputs, which stay where they are chosen first. Chains start at draws of
    that Gaussian; how often which move is made is set in warm-up and then frozen (``draws.tuning``).

    Raises ValueError for bad data or options; SamplingError, which holds what was drawn so far, where a state is not
    finite; NoAugmentationError for a likelihood without an augmentation, or whose powers have none. Warns with
    MixingWarning where, with hyperparameters sampled, no Gaussian can be fitted again in warm-up, so that moves may be
    short.
    """
    start = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights)
    if weights is not None:
        _check_powers(*with_powers(model, data))
    check_sizes(num_samples, num_warmup, num_chains)
    settings = Settings(num_warmup, num_chains, as_key(seed), Keep.read(keep, len(data.X)))
    saved = None if checkpoint is None else Checkpoint(checkpoint)
    model = select_inducing_inputs(model.resolve(data.X), data, nearly_converged)
    run = GibbsRun(model, data, settings)
    if saved is not None:
        saved.restore(run)
    run.advance(num_warmup + num_samples, saved, progress)
    run.warn()
    return run.draws(num_samples, time.perf_counter() - start)


def _check_powers(model: Model, data: Data) -> None:
    """Raise NoAugmentationError where a weight is a power whose auxiliary variables cannot be drawn."""
    env = Environment(data.y, jnp.zeros((len(data.y), model.num_latents)), model.parameters)
    for requirement in model.augmentation.requirements:
        if requirement.kind == "indicator" and not np.all(requirement.holds(requirement.expression.evaluate(env))):
            raise NoAugmentationError(
                f"weights are powers of the likelihood, and of {model.likelihood.name} gibbs can draw no power other "
                f"than 0 and 1: {requirement.reason} is {requirement.expression.text()}, where the last column of y is "
                "the weight. Repeat rows in the place of whole weights; cavi and fit take any."
            )


@hooks.extend.register(Draws)
@double_precision
def extend(draws: Draws, num_samples: int, progress: bool | None) -> Draws:
    """See ``Draws.extend``."""
    check_sizes(num_samples, 0, 1)
    if draws.run is None and draws.method == "gibbs":
        raise ValueError(
            "extend goes on from the chains of gibbs, which a file written by save does not hold: pickle draws that "
            "are to be extended, or run gibbs(..., checkpoint=folder), which goes on with a larger num_samples."
        )
    if draws.run is None:
        raise ValueError(f"extend goes on from the chains of gibbs; these draws are by {draws.method}.")
    start = time.perf_counter()
    run: GibbsRun = draws.run.copy()
    total = draws.num_samples + num_samples
    with one_thread_up_to(len(draws.X)):
        run.advance(draws.num_warmup + total, None, progress)
    return run.draws(total, draws.seconds + time.perf_counter() - start)


def check_sizes(num_samples: int, num_warmup: int, num_chains: int) -> None:
    """Raise ValueError where a run's sizes are not whole numbers, or too small."""
    check_whole_number(num_samples, "num_samples", 1)
    check_whole_number(num_warmup, "num_warmup", 0)
    check_whole_number(num_chains, "num_chains", 1)
