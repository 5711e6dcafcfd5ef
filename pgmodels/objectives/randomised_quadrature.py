"""Randomised quadrature of the expected log density: few nodes, shifted anew for each datum; unbiased."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from pgmodels.numerics.quadrature import sobol_uniforms
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Quadrature

# Nodes for one predictor, on (-REACH, REACH) deviations, and for several.
_LINE, _REACH = 33, 8.0
_POINTS = 16
# Uniforms are clipped to this distance from 0 and 1, which map to infinity.
_EDGE = 1e-12


class ShiftedQuadrature(Quadrature):
    """``Quadrature`` that uses few nodes for minibatches, shifted by a distance that differs between data.

    One predictor: 33 nodes of the trapezoid rule; more: 16 Sobol points, shifted modulo 1 (Cranley and Patterson 1976).
    Under uniform shifts both are unbiased. The shifts are a low-discrepancy sequence, so that errors average out over
    data and steps faster than those of random shifts. Kinks are kept.
    """

    @classmethod
    def of(cls, exact: Quadrature) -> "ShiftedQuadrature":
        """Replace ``exact``; outside of minibatches it uses the coarse rule."""
        return cls(exact.formula, exact.size, exact.predictors, exact.kinks, coarse=True)

    def for_batch(self, num_previous_rows: Any) -> Objective:
        """See Objective."""
        return _Shifted(self, num_previous_rows)


class _Shifted(Quadrature):
    """The rule of a minibatch after ``num_previous_rows`` rows, within compiled code."""

    def __init__(self, quadrature: Quadrature, num_previous_rows: Any):
        super().__init__(quadrature.formula, quadrature.size, quadrature.predictors, quadrature.kinks)
        self.num_previous_rows = num_previous_rows

    def _rule(self, count: int) -> tuple[Any, Any]:
        shifts = self.shifts(count)
        if self.size == 1:
            spacing = 2.0 * _REACH / _LINE
            nodes = spacing * (jnp.arange(_LINE)[:, None] + shifts[:, 0]) - _REACH
            return nodes[:, :, None], spacing * jnp.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
        uniforms = (sobol_uniforms(self.size, _POINTS)[:, None, :] + shifts) % 1.0
        return ndtri(jnp.clip(uniforms, _EDGE, 1.0 - _EDGE)), jnp.full(_POINTS, 1.0 / _POINTS)

    def shifts(self, count: int) -> Any:
        """The shifts of the next ``count`` data, (count, size)."""
        rows = self.num_previous_rows + jnp.arange(count)
        return (rows[:, None] * irrationals(self.size)) % 1.0


def irrationals(size: int) -> np.ndarray:
    """Numbers (size,) whose multiples modulo 1 fill the unit cube evenly: powers of the root of x^(size + 1) = x + 1.

    Source: Roberts 2018, the generalised golden ratio.
    """
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (size + 1))
    return root ** -np.arange(1.0, size + 1)
