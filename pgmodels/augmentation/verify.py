"""Numerical verification of a derivation: nine checks, each against the formula itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.verify_bound import bound_is_below, bound_is_tight, elbo_rises, site_is_gradient
from pgmodels.augmentation.verify_case import ROWS, Case, Check
from pgmodels.augmentation.verify_draws import (
    draws_follow_conditional,
    integrates_back,
    joint_minus_conditional,
    site_is_joint,
)
from pgmodels.augmentation.verify_print import print_is_computed
from pgmodels.likelihoods.density import undefined_coefficients
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.supports import Support
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.seeds import Seed, as_generator
from pgmodels.runtime.x64 import double_precision


@dataclass(frozen=True)
class Verification:
    """The results of the checks of one derivation, all passed."""

    checks: tuple[Check, ...]

    @property
    def figures(self) -> dict[str, float]:
        """The largest discrepancy of each check, by name."""
        return {check.name: check.figure for check in self.checks}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        rows = [f"{'check':{width}}  {'figure':>9}  {'tolerance':>9}"]
        rows += [f"{c.name:{width}}  {c.figure:9.1e}  {c.tolerance:9.1e}" for c in self.checks]
        return "\n".join(rows)


@double_precision
def verify_augmentation(
    augmentation: Augmentation,
    parameters: Mapping[str, float],
    support: Support,
    seed: Seed = 0,
    y: ArrayLike | None = None,
) -> Verification:
    """Check a derivation numerically at observations from its support, or at rows of ``y``.

    Raises VerificationError naming the first failed check, its discrepancy and the point; ValueError if no valid
    observations are available.
    """
    rng = as_generator(seed)
    rows = _observations(augmentation, parameters, support, rng, y)
    f = rng.normal(0.4, 1.5, (ROWS, augmentation.size))
    # Two points in the tails, one of each sign.
    f[rng.integers(ROWS, size=2), rng.integers(augmentation.size, size=2)] = [-5.3, 6.1]
    case = Case(augmentation, dict(parameters), rows, f, rng)
    return Verification(tuple(check(case) for check in CHECKS))


def _observations(
    augmentation: Augmentation, parameters: Mapping[str, float], support: Support, rng: np.random.Generator, y: Any
) -> np.ndarray:
    """ROWS observations that meet the derivation's requirements and have a finite log density."""
    accepted: list[np.ndarray] = []
    log_density = compiled(lambda y, f: augmentation.predictor_log_density(y, f, parameters))
    observed = None if y is None else np.asarray(y, dtype=np.float64)
    for _ in range(40):
        candidates = support.examples(rng, 4 * ROWS) if observed is None else _resized(observed, 4 * ROWS, rng)
        accepted.extend(candidates[_allowed(augmentation, parameters, candidates, log_density)])
        if len(accepted) >= ROWS:
            return np.stack(accepted[:ROWS])
    wanted = "; ".join(f"{r.reason} ({r.expression.text()}) {r.wording}" for r in augmentation.requirements)
    raise ValueError(
        f"verify: {'no examples' if observed is None else 'the rows of y are not'} observations that "
        f"{augmentation.formula.text()} allows{f' (it needs {wanted})' if wanted else ''}: pass y= with some "
        "that it does."
    )


def _resized(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return y[rng.integers(len(y), size=count)]


def _allowed(
    augmentation: Augmentation, parameters: Mapping[str, float], y: np.ndarray, log_density: Callable[..., Any]
) -> np.ndarray:
    f = np.full((len(y), augmentation.size), 0.3) + 0.2 * np.arange(augmentation.size)
    env = Environment(y, f, parameters)
    allowed = np.ones(len(y), dtype=bool)
    for requirement in augmentation.requirements:
        holds = requirement.holds(np.asarray(requirement.expression.evaluate(env)))
        allowed &= np.broadcast_to(np.all(holds, axis=-1), len(y))
    for _, rows in undefined_coefficients(augmentation.formula, env):
        allowed &= ~rows
    return allowed & np.isfinite(np.asarray(log_density(y, f)))


CHECKS: tuple[Callable[[Case], Check], ...] = (
    integrates_back,
    joint_minus_conditional,
    site_is_joint,
    draws_follow_conditional,
    bound_is_tight,
    bound_is_below,
    site_is_gradient,
    elbo_rises,
    print_is_computed,
)
