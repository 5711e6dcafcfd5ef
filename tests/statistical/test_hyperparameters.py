"""Sampled hyperparameters: Gibbs against NUTS on the same joint model, for every likelihood, and against a grid.

Means and standard deviations of the logarithms (of what may be negative: of itself) within four joint Monte-Carlo
standard errors, and those of the latents. Run with ``python -m pytest -m slow``. There are some 230 comparisons of
hyperparameters and 1,650 of latents: were all independent and both samplers exact, one battery in 8 would fail by
chance. The seeds are fixed, so that a failure is not chance twice.
"""

import numpy as np
import pytest

import pgmodels as pgm
from tests.inference.test_nuts import exact_regression, regression
from tests.registry import NAMES
from tests.statistical.joint import JointLaw
from tests.statistical.reference import assert_agree, effective_sizes

pytestmark = pytest.mark.slow


def unbounded(draws: pgm.Draws) -> np.ndarray:
    """Logarithms of positive hyperparameters, and means of GPs and cutpoints, (chains, draws, number, 1)."""
    columns = []
    for name, values in draws.hyperparameters.items():
        flat = values.reshape(draws.num_chains, draws.num_samples, -1)
        columns.append(flat if name.endswith(("mean", "first")) else np.log(flat))
    return np.concatenate(columns, axis=2)[..., None]


@pytest.mark.parametrize("name", NAMES)
def test_gibbs_agrees_with_nuts(name):
    rng = np.random.default_rng(NAMES.index(name))
    X = rng.uniform(-1.5, 1.5, (25, 2))
    law = JointLaw(name, X, True)
    # Data of the model itself, every class seen.
    classes = getattr(law.model.likelihood.support(law.model.num_latents), "num_classes", 0)
    candidates = (law.draw(rng, 1).y[0] for _ in range(1000))
    y = next(y for y in candidates if len(np.unique(y)) >= classes)
    draws = pgm.gibbs(law.model, X, y, num_samples=6_000, num_warmup=400, seed=1)
    referee = pgm.nuts(law.model, X, y, num_samples=5_000, num_warmup=700, target_accept=0.95, seed=2)
    assert_agree(f"{name} hyperparameters", unbounded(draws), unbounded(referee))
    assert_agree(f"{name} f", draws.latents, referee.latents)


def test_gibbs_agrees_with_a_grid():
    X, y, referee = regression()
    draws = pgm.gibbs(referee.model, X, y, num_samples=10_000, num_warmup=400, seed=3)
    weights, points, means, variances = exact_regression(X, y, X)
    unconstrained = unbounded(draws)
    sizes = effective_sizes(unconstrained)[:, 0]
    columns = {"lengthscale": 0, "scale": 1}
    assert set(draws.hyperparameters) == set(columns)
    for column, name in enumerate(draws.hyperparameters):
        x, exact = unconstrained[:, :, column, 0], np.log(points[:, columns[name]])
        center = weights @ exact
        deviation = np.sqrt(weights @ (exact - center) ** 2)
        error = deviation / np.sqrt(sizes[column])
        print(f"{name}: z {(x.mean() - center) / error:.2f}, ratio of deviations {x.std() / deviation:.4f}")
        assert abs(x.mean() - center) < 4.0 * error
        # A tail a little heavier than a Gaussian's: 1.5 for the kurtosis.
        assert abs(x.std() / deviation - 1.0) < 4.0 * 1.5 / np.sqrt(2.0 * sizes[column])
    exact_mean = weights @ means
    exact_variance = weights @ (variances + (means - exact_mean) ** 2)
    error = np.sqrt(exact_variance / effective_sizes(draws.latents)[:, 0])
    assert np.abs((draws.mean[:, 0] - exact_mean) / error).max() < 4.0
    np.testing.assert_allclose(draws.variance[:, 0], exact_variance, rtol=0.08)
