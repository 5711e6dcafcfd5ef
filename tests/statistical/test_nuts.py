"""Gibbs against NUTS, for every likelihood: means and variances of every latent. Run with ``python -m pytest -m slow``.

The criterion is four joint Monte-Carlo standard errors at every point. A test makes 80 comparisons (one latent) to 240
(three): were all independent and both samplers exact, one in 200 to one in 65 would fail by chance. The seeds are
fixed, so that a failure is not chance twice.
"""

import numpy as np
import pytest

from pgmodels.inference.mcmc.gibbs.sampler import gibbs
from tests.registry import CASES, NAMES
from tests.statistical.reference import effective_sizes, nuts, z_scores

N = 40

# Kernel variance, latent mean, scale and shift of the truth. In "far" it reaches from -10 to 6 under a prior with a
# standard deviation of 4, which makes binary labels mostly zero.
SETTINGS = {
    "balanced": {"variance": 2.0, "mean": 0.3, "scale": 1.5, "shift": 0.3},
    "far": {"variance": 16.0, "mean": -1.0, "scale": 8.0, "shift": -2.0},
}


def compare(name: str, setting: str, num_samples: int, num_nuts: int) -> tuple[float, float, float, float]:
    """The largest |z| of the means and of the variances, and the least effective sizes of Gibbs and NUTS."""
    case, options = CASES[name], SETTINGS[setting]
    X, y = case.data(N, seed=7, scale=options["scale"], shift=options["shift"])
    model = case.model(variance=options["variance"], mean=options["mean"])
    draws = gibbs(model, X, y, num_samples=num_samples, num_warmup=500, num_chains=4, seed=1)
    squared = np.sum((X[:, None] - X[None]) ** 2, axis=-1)
    K = options["variance"] * np.exp(-0.5 * squared / 1.2**2) + 1e-8 * np.eye(N)
    referee = nuts(case, K, options["mean"], y, num_samples=num_nuts, seed=2)
    mean, variance = z_scores(draws.latents, referee)
    sizes = [float(effective_sizes(x).min()) for x in (draws.latents, referee)]
    return float(np.abs(mean).max()), float(np.abs(variance).max()), *sizes


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_gibbs_agrees_with_nuts(name, setting):
    # 4 x 10,000 sweeps and 4 x 3,000 draws put standard errors at 1 to 3 % of a posterior standard deviation.
    mean, variance, gibbs_size, nuts_size = compare(name, setting, num_samples=10_000, num_nuts=3_000)
    print(f"{name} {setting}: |z| {mean:.2f} {variance:.2f}, least ESS Gibbs {gibbs_size:.0f}, NUTS {nuts_size:.0f}")
    # Below these the standard errors are themselves too uncertain to be judged by.
    assert gibbs_size > 400
    assert nuts_size > 400
    assert mean < 4.0
    assert variance < 4.0
