"""Gibbs sampling of the exact posterior: auxiliary variables, latents and hyperparameters, and slice moves."""

import time
from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.missing import MissingChoice
from pgmodels.data.options import check_whole_number
from pgmodels.inference.adaptive_selection import select_inducing_inputs
from pgmodels.inference.mcmc.gibbs.checkpoint import Checkpoint
from pgmodels.inference.mcmc.gibbs.driver import GibbsRun, Settings
from pgmodels.inference.mcmc.gibbs.schemes import SchemeName, scheme_of
from pgmodels.inference.mcmc.gibbs.trace import Keep
from pgmodels.inference.variational.vi import nearly_converged
from pgmodels.model import Model, require_model
from pgmodels.results.draws import Draws
from pgmodels.runtime.memory import require_draws
from pgmodels.runtime.seeds import Seed, as_key, as_seed
from pgmodels.runtime.threads import one_thread_if_small, one_thread_up_to
from pgmodels.runtime.x64 import double_precision


@double_precision
@one_thread_if_small
def gibbs(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    num_samples: int = 1000,
    num_warmup: int = 200,
    num_chains: int = 4,
    seed: Seed = 0,
    scheme: SchemeName = "auto",
    keep: Literal["all", "moments"] | Sequence[int] | np.ndarray = "all",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Draws:
    """Draw from the exact posterior of the latents and of all values that have a prior.

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
        Powers of the rows' likelihoods, as in ``cavi``; for some likelihoods 0 and 1 only.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    num_samples : int
        Draws of each chain after warm-up.
    num_warmup : int
        Warm-up iterations of each chain, which are discarded.
    num_chains : int
        Number of chains.
    seed : int or jax.Array
        An int or a JAX key; determines every draw, and inducing inputs as in ``cavi``.
    scheme : {"auto", "sweep", "four_block", "one_vs_rest"}
        Which moves are made; see Notes. ``"auto"`` mixes best; the others are published samplers of the latents with
        hyperparameters fixed, to reproduce or compare with published results.
    keep : "all", "moments" or sequence of int
        Which draws of the latents are stored: all; those at these rows of X; or none. Running means and variances of
        all latents are stored in any case.
    checkpoint : str or path, optional
        A folder in which the run is saved as it goes: the same call resumes it after an interruption, and gives the
        draws of an uninterrupted run bit for bit; with a larger ``num_samples`` it continues from the end.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Draws
        Draws of the latents at the data, ``hyperparameters``, and the settings chosen in warm-up, ``tuning``.

    Raises
    ------
    ValueError
        For bad data or options, and for a scheme that does not apply to the likelihood or to hyperparameters with
        priors.
    NoAugmentationError
        For a likelihood without an augmentation, or weights at which it has none, unless the scheme needs none.
    SamplingError
        If a state is not finite; the error holds the draws so far.

    Warns
    -----
    MixingWarning
        If hyperparameters are sampled and no Gaussian can be fitted again in warm-up, so that moves may be short.
    InducingWarning
        If there are too few inducing inputs.

    Notes
    -----
    By default an iteration makes slice moves about a variational Gaussian, which is fitted beforehand, and, in every
    iteration or at least every fiftieth, a Gibbs sweep: the auxiliary variables given the latents, then the latents
    given the auxiliary variables, overrelaxed. Hyperparameters are updated by slice steps too. If a Hamiltonian step on
    hyperparameters and latents jointly moves further for its cost (often with several latents per datum), it replaces
    the slice moves; it is not used for kernels that JAX cannot differentiate in reverse mode, nor with inducing inputs,
    which keep the positions chosen first. Chains start at draws of the Gaussian. How often each move is made is set in
    warm-up and then frozen. With ``pgm.Markov()`` no Gaussian is fitted: chains start at draws of the prior, and each
    iteration is a sweep, with a slice step on the hyperparameters of kernels and means given the auxiliary variables,
    the latents integrated out, and one on those of the likelihood given the latents.

    The other schemes make one move in every iteration, and nothing is tuned:

    - ``"sweep"``: the auxiliary variables given the latents, then the latents given the auxiliary variables, for any
      likelihood with an augmentation (Polson, Scott and Windle 2013).
    - ``"four_block"``: the complete conditionals λ | n, n | f, λ, ω | n, f and f | n, ω, for likelihoods with a sum of
      sigmoids to a negative power, such as ``LogisticSoftmax`` (Galy-Fajou et al. 2019, section 3.2). ``"sweep"`` draws
      λ | f instead, with n and ω integrated out, and mixes better.
    - ``"one_vs_rest"``: one latent after another given the others, for the softmax exp(f[y]) / sum(exp(f)), which has
      no augmentation of all latents together (Polson, Scott and Windle 2013, multinomial logit). Weights may have any
      value.

    References
    ----------
    Polson, Scott and Windle 2013; Galy-Fajou, Wenzel, Donner and Opper 2019; Adler 1981; Murray, Adams and MacKay 2010;
    Murray and Adams 2010; Neal 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> draws = pgm.gibbs(model, X, y, num_samples=200, num_warmup=50, num_chains=2)
    >>> draws.latents.shape
    (2, 200, 30, 1)
    >>> draws.predict([[1.5], [4.5]]).probabilities[:, 1] > 0.5
    array([ True, False])
    """
    start = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights, missing)
    chosen = scheme_of(scheme)
    chosen.check(model, data)
    check_sizes(num_samples, num_warmup, num_chains)
    settings = Settings(num_warmup, num_chains, as_key(seed), Keep.read(keep, len(data.X)))
    model = model.resolve(data.X, as_seed(seed))
    model.check_memory(data.X)
    if settings.keep.what == "all":
        require_draws(num_samples * num_chains, len(data.X), model.num_latents)
    with Checkpoint.opened(checkpoint) as saved:
        reached = partial(nearly_converged, objective=chosen.objective(model))
        model = select_inducing_inputs(model, data, reached)
        run = GibbsRun(model, data, settings, chosen)
        if saved is not None:
            saved.restore(run)
        run.advance(num_warmup + num_samples, saved, progress)
    run.warn()
    return run.draws(num_samples, time.perf_counter() - start)


@double_precision
def extend(draws: Draws, num_samples: int, progress: bool | None) -> Draws:
    """Continue draws by ``num_samples`` more of each chain."""
    check_sizes(num_samples, 0, 1)
    if draws.run is None and draws.method == "gibbs":
        raise ValueError(
            "extend continues the chains of gibbs, which a file written by save does not contain: pickle draws that "
            "are to be extended, or run gibbs(..., checkpoint=folder), which continues with a larger num_samples."
        )
    if draws.run is None:
        raise ValueError(f"extend continues the chains of gibbs; these draws are by {draws.method}.")
    start = time.perf_counter()
    run: GibbsRun = draws.run.copy()
    total = draws.num_samples + num_samples
    with one_thread_up_to(len(draws.X)):
        run.advance(draws.num_warmup + total, None, progress)
    return run.draws(total, draws.seconds + time.perf_counter() - start)


def check_sizes(num_samples: int, num_warmup: int, num_chains: int) -> None:
    """Raise ValueError if the sizes of a run are not whole numbers, or too small."""
    check_whole_number(num_samples, "num_samples", 1)
    check_whole_number(num_warmup, "num_warmup", 0)
    check_whole_number(num_chains, "num_chains", 1)
