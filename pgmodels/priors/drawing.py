"""Joint draws of all latents, compiled."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.priors.collection import Coordinates, PriorCollection
from pgmodels.priors.corrected_gaussian import CorrectedGaussian
from pgmodels.priors.gram import ROUNDING, pivoted_cholesky
from pgmodels.priors.linalg import root_by_rank
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled

# Draws per batch, so that larger numbers of draws share one program.
BATCH = 512
# Up to this many draws, optimised compilation takes longer than it saves.
_FEW = 64
# Residual variances below this fraction of the kernel's largest are dropped in draws at new inputs: they are jitter of
# the roots, or rounding at a row of the data.
_LEAST = 1e-12


def draw_latents(
    gaussian: PriorCollection | Posterior | CorrectedGaussian,
    count: int,
    seed: int,
    *path: int,
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Draws of the latents at the rows of a prior or posterior, (count, n, latents), and their coordinates by group.

    The key of a draw is the seed's, folded with the path and the number of the draw. Gaussians are padded to one of few
    sizes, so that data sets of similar length share compiled programs.
    """
    key = jax.random.key(seed)
    chunks = equal_chunks(np.arange(count), min(BATCH, power_of_two(count)))
    draw = _draw_few if len(chunks[0]) <= _FEW else _draw_many
    batches = [jax.tree.map(np.asarray, draw(gaussian, key, path, chunk)) for chunk in chunks]
    f, coordinates = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *batches)
    return f, coordinates


def draw_gaussian(mean: np.ndarray, covariance: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Joint draws (num_draws, m, latents) of a Gaussian of mean (m, latents).

    ``covariance`` is the covariance of each latent (latents, m, m), or of all latents (latents, m, latents, m). It may
    be singular, as where rows repeat each other.
    """
    rows, size = mean.shape
    blocks = covariance if covariance.ndim == 3 else covariance.reshape(1, size * rows, size * rows)
    # The number of rows of a root is the rank of the covariance, which is small for few groups at many rows.
    roots = [pivoted_cholesky(block, ROUNDING).A for block in blocks]
    deviations = np.stack([rng.standard_normal((num_draws, len(A))) @ A for A in roots], axis=1)
    deviations = deviations.reshape(num_draws, size, rows)
    return mean + np.swapaxes(deviations, 1, 2)


def draw_deviations(spread: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Deviations from the mean (num_draws, m, latents), of all rows by the same standard normals.

    ``spread`` has variances (m, latents) or covariances (m, latents, latents), whose symmetric roots are continuous.
    """
    noise = rng.standard_normal((num_draws, 1, spread.shape[1]))
    if spread.ndim == 2:
        return np.sqrt(np.maximum(spread, 0.0)) * noise
    values, vectors = np.linalg.eigh(spread)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return np.einsum("mlk,smk->sml", root, np.broadcast_to(noise, (num_draws, *spread.shape[:2])))


def draw_given(
    prior: PriorCollection, X_new: Float[Array, "m d"], coordinates: Coordinates, noise: Float[Array, "*batch m l k"]
) -> Float[Array, "*batch m l"]:
    """Joint draws of the latents at new inputs given coordinates, from standard normals. Usable under ``jit``.

    ``noise`` has as many for each latent and row as the largest ``LatentPrior.noise_size``.
    """
    drawn = []
    for part, group, span, v in zip(prior.slices(), prior.groups, prior.spans().groups, coordinates, strict=True):
        if group.extends:
            drawn.append(group.draw_given(X_new, v, noise[..., part, : group.noise_size]))
            continue
        C = group.residual_covariance(X_new)
        least = _LEAST * jnp.max(span.kernel.diagonal(X_new))  # type: ignore[attr-defined]
        drawn.append(group.conditional(X_new, v)[0] + root_by_rank(C, least) @ noise[..., part, 0])
    return jnp.concatenate(drawn, axis=-1)


def _draw(
    gaussian: PriorCollection | Posterior | CorrectedGaussian,
    key: Key[Array, ""],
    path: tuple[int | Int[Array, ""], ...],
    numbers: np.ndarray | Int[Array, " draws"],
) -> tuple[Array, Coordinates]:
    key = reduce(jax.random.fold_in, path, key)
    # The Gaussian is not batched: it is factorised already.
    return jax.vmap(lambda number: gaussian.draw(jax.random.fold_in(key, number)))(numbers)


_draw_few = compiled(_draw, optimise=False)
_draw_many = compiled(_draw)
