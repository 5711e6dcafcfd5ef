"""Coordinate-ascent variational inference: alternate the optimal sites and the Gaussian they imply."""

import time
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.derive import Augmentation
from pgmodels.latent.joint import JointPrior
from pgmodels.model import Data, Model
from pgmodels.precision import double_precision
from pgmodels.progress import progress_bar
from pgmodels.results.approximation import Approximation
from pgmodels.threads import one_thread_if_small


class ConvergenceWarning(UserWarning):
    """An iteration stopped before its tolerance was reached."""


class CaviState(NamedTuple):
    """q(f): marginal moments and the sites that produced them, each (n, latents), and the ELBO."""

    mean: Any
    variance: Any
    potential: Any
    precision: Any
    elbo: Any


def elbo(
    augmentation: Augmentation, y: Any, parameters: Any, m: Any, v: Any, h: Any, w: Any, log_normalizer: Any
) -> Any:
    """log Z(h, w) + Σ (B - h m + w s / 2): the evidence lower bound of the q(f) that sites imply (math: section 4)."""
    bound = jnp.sum(augmentation.local_bound(m, v, y, parameters))
    return log_normalizer + bound - jnp.sum(h * m - 0.5 * w * (v + m**2))


@partial(jax.jit, static_argnames="augmentation")
def init(augmentation: Augmentation, prior: JointPrior, y: Any, parameters: Any) -> CaviState:
    """Start from the sites at the prior mean and the prior variance, the latter at most 1.

    Far wider marginals than that make the first sites so flat that models with several latents end in a poor optimum.
    """
    zeros = jnp.zeros((y.shape[0], augmentation.size))
    m, v, _ = prior.moments(zeros, zeros)
    h, w = augmentation.local_sites(m, jnp.minimum(v, 1.0), y, parameters)
    return _state(augmentation, prior, y, parameters, h, w)


@partial(jax.jit, static_argnames="augmentation")
def step(augmentation: Augmentation, prior: JointPrior, y: Any, parameters: Any, state: CaviState) -> CaviState:
    """One sweep over the blocks of latents; the ELBO never falls."""
    for block in augmentation.blocks:
        h, w = augmentation.local_sites(state.mean, state.variance, y, parameters)
        columns = np.isin(np.arange(augmentation.size), block)
        h = jnp.where(columns, h, state.potential)
        w = jnp.where(columns, w, state.precision)
        state = _state(augmentation, prior, y, parameters, h, w)
    return state


@partial(jax.jit, static_argnames="augmentation")
def restart(augmentation: Augmentation, prior: JointPrior, y: Any, parameters: Any, h: Any, w: Any) -> CaviState:
    """The state that given sites imply."""
    return _state(augmentation, prior, y, parameters, h, w)


def _state(augmentation: Augmentation, prior: JointPrior, y: Any, parameters: Any, h: Any, w: Any) -> CaviState:
    m, v, log_normalizer = prior.moments(h, w)
    return CaviState(m, v, h, w, elbo(augmentation, y, parameters, m, v, h, w, log_normalizer))


def check_finite(state: CaviState, iteration: int) -> None:
    """Raise ValueError where the ELBO is not finite."""
    if not np.isfinite(state.elbo):
        raise ValueError(
            f"cavi: the ELBO is {float(state.elbo)} at iteration {iteration}. Look for extreme values in y, prior "
            "variances of many orders of magnitude, or a likelihood scale close to zero."
        )


@double_precision
@one_thread_if_small
def cavi(
    model: Model,
    X: Any,
    y: Any,
    *,
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    progress: bool | None = None,
) -> Approximation:
    """The Gaussian q(f) that maximises the augmented ELBO, hyperparameters held at their values.

    X (n, d), y (n,) or (n, columns). Stops where the ELBO changes by less than ``tolerance`` relative to its size in
    one iteration; warns with ConvergenceWarning where that takes more than ``max_iterations``. Raises ValueError for
    bad data and NoAugmentationError for a likelihood without an augmentation.
    """
    data = model.check(X, y)
    if max_iterations < 1 or not tolerance > 0:
        raise ValueError(
            f"max_iterations must be >= 1 and tolerance > 0; got max_iterations={max_iterations} and "
            f"tolerance={tolerance}."
        )
    return ascend(model.resolve(data.X), data, None, max_iterations, tolerance, progress)


def ascend(
    model: Model,
    data: Data,
    sites: tuple[Any, Any] | None,
    max_iterations: int,
    tolerance: float,
    progress: bool | None,
) -> Approximation:
    """Iterate from given sites, or from ``init`` where there are none, to the tolerance."""
    start = time.perf_counter()
    augmentation, prior = model.augmentation, model.prior(data.X)
    observations, parameters = jnp.asarray(data.y), model.parameters
    if sites is None:
        state = init(augmentation, prior, observations, parameters)
    else:
        state = restart(augmentation, prior, observations, parameters, *sites)
    check_finite(state, 0)
    trace = [float(state.elbo)]
    converged = False
    with progress_bar("cavi", max_iterations, progress) as bar:
        while not converged and len(trace) <= max_iterations:
            state = step(augmentation, prior, observations, parameters, state)
            check_finite(state, len(trace))
            trace.append(float(state.elbo))
            converged = abs(trace[-1] - trace[-2]) <= tolerance * max(1.0, abs(trace[-1]))
            bar.advance(1, f"ELBO {trace[-1]:.4f}")
    if not converged:
        warnings.warn(
            f"cavi did not converge: after {max_iterations} iterations the ELBO still changes by "
            f"{abs(trace[-1] - trace[-2]):.2g} an iteration. Raise max_iterations or tolerance.",
            ConvergenceWarning,
            stacklevel=5,
        )
    return Approximation(
        model=model,
        X=data.X,
        y=data.y,
        columns=data.columns,
        prior=prior,
        mean=np.asarray(state.mean),
        variance=np.asarray(state.variance),
        potential=np.asarray(state.potential),
        precision=np.asarray(state.precision),
        elbo_trace=np.asarray(trace),
        converged=converged,
        tolerance=tolerance,
        seconds=time.perf_counter() - start,
        method="cavi",
    )
