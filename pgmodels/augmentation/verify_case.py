"""Data, points and tolerances for the checks of a derivation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.errors import VerificationError
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.likelihoods.expression import Environment
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.jit import compiled

ROWS = 8
DRAWS = 2000
# Latent points or auxiliary draws per check: the same for all, so that few shapes are compiled.
POINTS = 8

INTEGRATES = "the auxiliaries integrate back to the likelihood"
JOINT = "log joint - log conditional is the log likelihood"
SITE = "the site given the auxiliaries is the log joint in f"
DRAWN = "the draws follow the conditional"
TIGHT = "the bound is tight"
BELOW = "the bound is below"
GRADIENT = "the site is the gradient"
RISES = "the ELBO rises"
PRINTED = "the printed form is what is computed"

# Quadrature of a Pólya-Gamma density stops where its series cancels: the tail beyond has up to 1e-5 of the mass.
QUADRATURE = 3e-5
# Rounding between two evaluations of the same number, relative to its summands; log-gammas lose 3 digits.
ROUNDING = 1e-9
# Richardson's differences with steps 1e-3 and 5e-4: a truncation error of fourth order, 1e-12 / length^4.
DIFFERENCES = 1e-5
# Numbers are printed with six digits, 5e-6 of their size; logarithms of powers multiply that by the exponents.
SIX_DIGITS = 1e-4
# Standard errors. With about 100 comparisons per formula, a false alarm occurs once in 5 million formulas.
STANDARD_ERRORS = 6.0
# The trapezoid rule is exact to rounding for smooth integrands; at kinks its error is far below the bound's gap.
EXPECTATION = 1e-8


class Check(NamedTuple):
    """The result of one check: the largest discrepancy, ``figure``, and the tolerance."""

    name: str
    figure: float
    tolerance: float


@dataclass(frozen=True)
class Case:
    """An augmentation with valid data and latent points at which to check it."""

    augmentation: Augmentation
    parameters: Mapping[str, float]
    y: np.ndarray
    f: np.ndarray
    rng: np.random.Generator
    _programs: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function compiled, one program per shape, instead of operation by operation."""
        if function not in self._programs:
            # A new function each time: JAX would reuse programs of earlier checks even if the rules have changed since.
            self._programs[function] = compiled(lambda *traced: function(*traced))
        return self._programs[function](*arguments)

    @cached_property
    def chains(self) -> list[dict[str, np.ndarray]]:
        """DRAWS draws of each block's auxiliaries given f."""
        f = np.broadcast_to(self.f, (DRAWS, *self.f.shape))
        chains = [
            self.run(partial(self.augmentation.draw_chain, block=block), self._key(), f, self.y, self.parameters)
            for block in range(len(self.augmentation.blocks))
        ]
        return [{name: np.asarray(value) for name, value in chain.items()} for chain in chains]

    def _key(self) -> Any:
        """A fresh JAX key."""
        return jax.random.key(int(self.rng.integers(2**31)))

    def points(self, spread: float) -> np.ndarray:
        """Random latent points (POINTS, n, latents) with nonzero mean; the first is ``f``."""
        f = self.rng.normal(0.4, spread, (POINTS, *self.f.shape))
        f[0] = self.f
        return f

    def env(self, f: Any, **auxiliaries: Any) -> Environment:
        """The environment at latent values f, with auxiliaries by name."""
        return Environment(self.y, f, {**self.parameters, **auxiliaries})

    def log_density(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The formula's log p(y | f), (..., n), and its rounding error; nan where the formula loses all digits.

        A formula such as 1 - sigmoid(f) cancels at large f. The error is estimated from the same formula in single
        precision, whose rounding unit is 2^29 times larger.
        """
        exact = self.log_density_alone(f)
        with jax.enable_x64(False):
            single = self.log_density_alone(f)
        exact, single = np.broadcast_arrays(exact, np.asarray(single, np.float64))
        exact, single = np.broadcast_to(exact, f.shape[:-1]), np.broadcast_to(single, f.shape[:-1])
        with np.errstate(invalid="ignore"):
            error = 32.0 * np.abs(exact - single) * 2.0**-29
        return np.where(np.isfinite(error), exact, np.nan), error

    def local_bound(self, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        """B(m, v + m^2) of each datum."""
        return np.asarray(self.run(self.augmentation.local_bound, m, v, self.y, self.parameters))

    def local_sites(self, m: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """The potentials and precisions from the gradient of the bound."""
        return [np.asarray(site) for site in self.run(self.augmentation.local_sites, m, v, self.y, self.parameters)]

    def sites_given(self, auxiliaries: Mapping[str, Any], f: np.ndarray, block: int) -> list[np.ndarray]:
        """The sites of a block of latents given the auxiliaries."""
        sites = partial(self.augmentation.sites_given, block=block)
        return [np.asarray(site) for site in self.run(sites, auxiliaries, f, self.y, self.parameters)]

    def log_density_alone(self, z: np.ndarray) -> np.ndarray:
        """log p(y | z) in the current floating-point precision, without an error estimate."""
        return np.asarray(self.run(self.augmentation.predictor_log_density, self.y, z, self.parameters))

    def check(
        self,
        name: str,
        discrepancy: Any,
        tolerance: float,
        f: Any,
        rule: Rule | None = None,
        known: Any = True,
        printed: str = "",
    ) -> Check:
        """Raise VerificationError if a discrepancy (..., n) exceeds the tolerance or is nan; ``known`` is a mask.

        ``printed`` is the line of the derivation that the error names.
        """
        discrepancy, known = np.broadcast_arrays(np.asarray(discrepancy), known)
        if not known.any():
            raise ValueError(
                f"verify: {name!r} cannot be computed at any of these observations (y = {shorten(self.y.tolist())}): "
                "pass y= with smaller values."
            )
        size = np.where(known, np.where(np.isnan(discrepancy), np.inf, discrepancy), 0.0)
        worst = np.unravel_index(int(np.argmax(size)), size.shape)
        figure = float(size[worst])
        if figure <= tolerance:
            return Check(name, figure, tolerance)
        at = np.broadcast_to(f, (*size.shape, self.f.shape[-1]))[worst]
        rules = [rule] if rule is not None else list(self.augmentation.rules)
        raise VerificationError(
            f"{name}: failed by {figure:.3g}, tolerance {tolerance:.1g}\n"
            f"  likelihood: {self.augmentation.formula.text()}\n"
            f"  {'rule' if len(rules) == 1 else 'rules'}: "
            + "; ".join(f"{r.title} for {r.factor.text()}" for r in rules)
            + (f"\n  printed: {printed}" if printed else "")
            + f"\n  worst at y = {self.y[worst[-1]].tolist()}, f = {[round(float(x), 6) for x in at]}"
        )


def relative(value: Any, expected: np.ndarray, error: np.ndarray) -> np.ndarray:
    """|value - expected| beyond the rounding error of ``expected``, relative to 1 + |expected|."""
    with np.errstate(invalid="ignore"):
        return np.maximum(np.abs(np.asarray(value) - expected) - error, 0.0) / (1.0 + np.abs(expected))
