"""The expected log density by few nodes, in other places for every datum of every step: right on average."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from pgmodels.numerics.quadrature import sobol_uniforms
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Quadrature

# Nodes of one predictor, on (-REACH, REACH) deviations, and of several.
_LINE, _REACH = 33, 8.0
_POINTS = 16
# A node this near to 0 or 1 would be at infinity.
_EDGE = 1e-12


class ShiftedQuadrature(Quadrature):
    """``Quadrature`` whose rule in steps on batches has few nodes, shifted together by another distance each datum.

    One predictor: 33 nodes of the trapezoid rule; more: 16 Sobol points, shifted modulo 1 (Cranley and Patterson 1976).
    Over uniform shifts either has the integral itself as its mean. The shifts are a sequence that fills the unit cube
    evenly, so that errors average out over data and steps faster than those of random ones. Kinks stay what they are.
    """

    @classmethod
    def of(cls, exact: Quadrature) -> "ShiftedQuadrature":
        """In the place of another; coarse where no step is made."""
        return cls(exact.formula, exact.size, exact.predictors, exact.kinks, coarse=True)

    def after(self, seen: Any) -> Objective:
        """See Objective."""
        return _Shifted(self, seen)


class _Shifted(Quadrature):
    """The rule after so many data, within compiled code."""

    def __init__(self, quadrature: Quadrature, seen: Any):
        super().__init__(quadrature.formula, quadrature.size, quadrature.predictors, quadrature.kinks)
        self.seen = seen

    def _rule(self, count: int) -> tuple[Any, Any]:
        shifts = self.shifts(count)
        if self.size == 1:
            spacing = 2.0 * _REACH / _LINE
            nodes = spacing * (jnp.arange(_LINE)[:, None] + shifts[:, 0]) - _REACH
            return nodes[:, :, None], spacing * jnp.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
        places = (sobol_uniforms(self.size, _POINTS)[:, None, :] + shifts) % 1.0
        return ndtri(jnp.clip(places, _EDGE, 1.0 - _EDGE)), jnp.full(_POINTS, 1.0 / _POINTS)

    def shifts(self, count: int) -> Any:
        """Those of so many data, (count, size)."""
        places = self.seen + jnp.arange(count)
        return (places[:, None] * irrationals(self.size)) % 1.0


def irrationals(size: int) -> np.ndarray:
    """Numbers (size,) whose multiples modulo 1 fill the unit cube evenly: powers of the root of x^(size + 1) = x + 1.

    Source: Roberts 2018, the generalised golden ratio.
    """
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (size + 1))
    return root ** -np.arange(1.0, size + 1)
