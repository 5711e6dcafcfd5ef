"""Simulation-based calibration of ``gibbs`` end to end, for every likelihood. Run with ``python -m pytest -m slow``.

Hyperparameters are drawn from their priors, latents and data given them, and ``gibbs`` is run on the data: tuning, a
Gaussian fitted to each data set, warm-up. Among draws of the right posterior the rank of the truth is uniform, for
latents, hyperparameters and log p(y | f). Source: Talts et al. 2018; for the last quantity Modrák et al. 2023.

With so few data Hamiltonian steps are the cheaper ones and are chosen; every likelihood is run with slice steps too.
The published schemes are run with one likelihood each, with hyperparameters fixed.

Two exact tests for each quantity, of location and shape (Kolmogorov and Smirnov) and of spread (how many ranks are in
the middle half, a binomial count). Were ``gibbs`` exact, 1 run of the whole battery in 100 would fail by chance
(Bonferroni over all quantities, likelihoods, the two kinds of moves and the schemes). The seeds are fixed, so that a
failure is not chance twice.
"""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.slice_moves import Hamiltonian
from pgmodels.runtime.precision import double_precision
from tests.registry import NAMES
from tests.statistical import planted
from tests.statistical.geweke import inputs
from tests.statistical.joint import Joint, JointLaw

# One short run in hundreds ends with chains that differ, above all with two modes; ranks are over all runs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pgmodels.MixingWarning")]

REPLICATES = 200
# Autocorrelations five iterations apart are below 0.05 in these models, so that 120 draws are kept.
OPTIONS = {"num_samples": 300, "num_warmup": 120, "num_chains": 2}
THIN = 5
# They mix less well than the default: autocorrelations ten iterations apart are below 0.05.
SCHEMES = {"sweep": "bernoulli", "four_block": "logistic_softmax", "one_vs_rest": "softmax"}
LONGER = {"auto": 1} | dict.fromkeys(SCHEMES, 2)
X = inputs(5)


class Verdict(NamedTuple):
    """p-values by quantity: of location and shape, and of spread."""

    names: list[str]
    p: np.ndarray

    def worst(self) -> tuple[float, str]:
        """The smallest p-value and what has it."""
        place = np.unravel_index(np.argmin(self.p), self.p.shape)
        return float(self.p[place]), f"{('location', 'spread')[place[0]]} of {self.names[place[1]]}"


def names_of(law: JointLaw) -> list[str]:
    """The quantities whose ranks are taken, in the order of ``ranks``."""
    latents = [f"f[{latent}] at {i}" for i in (0, len(X) - 1) for latent in range(law.case.num_latents)]
    values = [f"{name}[{i}]" for name, prior in law.drawn.items() for i in range(int(np.prod(prior.batch_shape)))]
    return [*latents, *values, "log p(y | f)"]


@cache
def limit() -> float:
    """Of a p-value: there are two a quantity, with each kind of moves and with each scheme."""
    by_moves = sum(len(names_of(JointLaw(name, X, True))) for name in NAMES)
    return 0.01 / (4 * by_moves + 2 * sum(len(names_of(JointLaw(name, X, False))) for name in SCHEMES.values()))


def replicates(law: JointLaw, rng: np.random.Generator) -> list[Joint]:
    """Joint draws whose data ``gibbs`` takes: every class is seen. The posterior given the data stays what it was."""
    support, kept = law.model.likelihood.support(law.model.num_latents), []
    while len(kept) < REPLICATES:
        many = law.draw(rng, 200)
        for i in range(200):
            one = Joint({name: v[i] for name, v in many.values.items()}, many.whitened[i], many.f[i], many.y[i])
            if not isinstance(support, pgm.Classes) or len(np.unique(one.y)) == support.num_classes:
                kept.append(one)
    return kept[:REPLICATES]


@double_precision
def log_likelihood(model: pgm.Model, truth: Joint) -> float:
    values = {name: truth.values[name] for name in model.parameters}
    f, y = jnp.asarray(truth.f), jnp.asarray(truth.y)
    return float(jnp.sum(expected_objective(model).log_density(y, f, values)))


def ranks(law: JointLaw, truth: Joint, seed: int, scheme: str) -> np.ndarray:
    """How many of the draws are below the truth, for each quantity."""
    thin, options = LONGER[scheme] * THIN, OPTIONS | {"num_samples": LONGER[scheme] * OPTIONS["num_samples"]}
    draws = pgm.gibbs(law.model, X, truth.y, seed=seed, scheme=scheme, progress=False, **options)
    if law.drawn:
        # Hamiltonian steps are tried, or cost too much: see ``choose``.
        assert ("hamiltonian" not in draws.tuning) == (Hamiltonian.cost is too_much)
    ends = [0, len(X) - 1]
    columns = [draws.latents[:, :, ends].reshape(*draws.latents.shape[:2], -1)]
    columns += [draws.hyperparameters[name].reshape(*draws.latents.shape[:2], -1) for name in law.drawn]
    columns += [draws.log_likelihood_trace[..., None]]
    drawn = np.concatenate(columns, axis=2)[:, thin - 1 :: thin]
    values = [np.ravel(truth.values[name]) for name in law.drawn]
    true = np.concatenate([truth.f[ends].ravel(), *values, [log_likelihood(law.model, truth)]])
    return np.sum(drawn < true, axis=(0, 1))


def verdict(name: str, seed: int, scheme: str = "auto") -> Verdict:
    law, rng = JointLaw(name, X, scheme not in SCHEMES), np.random.default_rng(seed)
    rank_table = np.stack([ranks(law, truth, i, scheme) for i, truth in enumerate(replicates(law, rng))])
    return Verdict(names_of(law), p_values(rank_table, OPTIONS["num_chains"] * OPTIONS["num_samples"] // THIN, rng))


def p_values(rank_table: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Of location and shape, and of spread, (2, quantities), of ranks (replicates, quantities) among draws."""
    # A uniform number within the rank's interval makes the law exactly uniform.
    u = (rank_table + rng.random(rank_table.shape)) / (num_draws + 1)
    middle = np.sum(np.abs(u - 0.5) < 0.25, axis=0)
    shape = [stats.kstest(column, "uniform", method="exact").pvalue for column in u.T]
    spread = [stats.binomtest(int(count), len(u), 0.5).pvalue for count in middle]
    return np.array([shape, spread])


def too_much(*_: object) -> float:
    return np.inf


def choose(moves: str, patch: pytest.MonkeyPatch) -> None:
    """With "slice" Hamiltonian steps count as too expensive."""
    if moves == "slice":
        patch.setattr(Hamiltonian, "cost", too_much)


@pytest.mark.parametrize("moves", ["Hamiltonian", "slice"])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_of_the_truth_are_uniform(name, moves, monkeypatch):
    choose(moves, monkeypatch)
    p, what = verdict(name, seed=NAMES.index(name)).worst()
    print(f"{name}, {moves} steps: least p-value {p:.2g} ({what}), limit {limit():.2g}")
    assert p > limit(), f"{what}: p = {p:.2g}"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_of_the_truth_are_uniform_with_published_schemes(scheme):
    p, what = verdict(SCHEMES[scheme], seed=len(NAMES), scheme=scheme).worst()
    print(f"{scheme}: least p-value {p:.2g} ({what}), limit {limit():.2g}")
    assert p > limit(), f"{what}: p = {p:.2g}"


@pytest.mark.parametrize(
    ("plant", "name", "moves"),
    [
        (planted.no_jacobian, "gaussian", "Hamiltonian"),
        (planted.no_normalizer, "gaussian", "slice"),
        (planted.no_factors, "probit", "slice"),
    ],
)
def test_a_planted_error_is_found(plant, name, moves, planting):
    choose(moves, planting)
    plant(planting)
    p, what = verdict(name, seed=99).worst()
    print(f"{plant.__name__}: least p-value {p:.2g} ({what})")
    assert p < limit()
