"""NumPyro's NUTS on the density without auxiliaries, and the comparison of two samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, NUTS

from tests.registry import Case


def nuts(
    case: Case,
    K: np.ndarray,
    mean: float,
    y: np.ndarray,
    *,
    num_samples: int,
    num_warmup: int = 500,
    seed: int = 0,
    max_tree_depth: int = 8,
) -> np.ndarray:
    """Draws of f = mean + L v, v ~ N(0, I), L L^T = K, under the case's own density: (4, draws, n, latents)."""
    with jax.enable_x64(True):
        root, observed = jnp.linalg.cholesky(jnp.asarray(K)), jnp.asarray(y)

        def program():
            v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([len(K), case.num_latents]).to_event(2))
            numpyro.factor("likelihood", jnp.sum(case.log_density(observed, mean + root @ v)))

        sampler = MCMC(
            NUTS(program, target_accept_prob=0.9, max_tree_depth=max_tree_depth),
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.key(seed))
        v = np.asarray(sampler.get_samples(group_by_chain=True)["v"])
        return mean + np.einsum("ij,csjl->csil", np.asarray(root), v)


def standard_error(x: np.ndarray) -> np.ndarray:
    """The Monte-Carlo standard error of the mean of (chains, draws, ...), from the effective sample size."""
    return np.asarray(array_stats.mcse(x, chain_axis=0, draw_axis=1, method="mean"))


def z_scores(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Differences of the means and of the variances of two sets of draws, in joint standard errors, each (n, latents).

    A variance is the mean of the squared deviations, and so is its standard error.
    """
    scores = []
    for power in (1, 2):
        powers = [x if power == 1 else (x - x.mean(axis=(0, 1))) ** 2 for x in (one, other)]
        error = np.hypot(*(standard_error(x) for x in powers))
        scores.append((powers[0].mean(axis=(0, 1)) - powers[1].mean(axis=(0, 1))) / error)
    return scores[0], scores[1]


def assert_agree(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Means and variances within four joint standard errors, which smaller samples would leave too uncertain."""
    mean, variance = (float(np.abs(scores).max()) for scores in z_scores(ours, theirs))
    sizes = [float(effective_sizes(x).min()) for x in (ours, theirs)]
    print(f"{what}: |z| {mean:.2f} {variance:.2f}, least ESS {sizes[0]:.0f} {sizes[1]:.0f}")
    assert min(sizes) > 400
    assert mean < 4.0
    assert variance < 4.0


def errors_of_draws(draws: np.ndarray, mean: np.ndarray, C: np.ndarray) -> float:
    """By how many standard errors means and covariances of independent draws (draws, m) are off, at most."""
    variance = np.diag(C)
    of_means = np.abs(draws.mean(axis=0) - mean) / np.sqrt(variance / len(draws))
    # Var of a sample covariance: (C_ii C_jj + C_ij^2) / N.
    error = np.sqrt((np.outer(variance, variance) + C**2) / len(draws))
    # NaN if any is.
    return float(np.max([of_means.max(), np.max(np.abs(np.cov(draws.T) - C) / error)]))


def effective_sizes(x: np.ndarray) -> np.ndarray:
    """Effective sample sizes of the means, (n, latents)."""
    return np.asarray(array_stats.ess(x, chain_axis=0, draw_axis=1, method="mean"))
