"""A hat function of three tangents over a log-concave density, for rejection sampling in JAX and NumPy."""

from typing import Any, NamedTuple

from pgmodels.polya_gamma.namespace import namespace

# Below it, log1p(x)/x and expm1(x)/x are 1 -+ x/2 within x²/3, less than rounding.
_FLAT = 1e-8
# The double next above -1.
_LOWEST = -1 + 2.0**-53


class TangentHat(NamedTuple):
    """The exponential of three tangents, each over its piece; the first and the last piece are unbounded.

    All arrays have the three tangents on their first axis; ``edges`` are the two points where adjacent tangents meet.
    The hat lies above the density because the log of the density is concave (Devroye 1986, chapter VII).
    """

    points: Any
    heights: Any
    slopes: Any
    edges: Any
    masses: Any

    def propose(self, uniform: Any) -> tuple[Any, Any]:
        """A draw of the hat from one uniform of [0, 1), by inversion, and the log of the hat there."""
        xp = namespace(uniform)
        left_mass, middle, _ = self.masses
        mass = uniform * self.masses.sum(0)
        in_left, in_right = mass < left_mass, mass >= left_mass + middle
        point, height, slope = (
            xp.where(in_left, a[0], xp.where(in_right, a[2], a[1])) for a in (self.points, self.heights, self.slopes)
        )
        # Signed mass from the nearest edge: in the left piece it is negative.
        start = xp.where(in_right, self.edges[1], self.edges[0])
        run = (mass - xp.where(in_right, left_mass + middle, left_mass)) * xp.exp(-height - slope * (start - point))
        growth = slope * run
        flat = xp.abs(growth) < _FLAT
        # Rounding must not take the logarithm of a negative number.
        curved = xp.log1p(xp.maximum(growth, _LOWEST)) / xp.where(flat, 1.0, slope)
        x = start + xp.where(flat, run * (1 - growth / 2), curved)
        return x, height + slope * (x - point)


def tangent_hat(points: Any, heights: Any, slopes: Any) -> TangentHat:
    """The hat from ``points``, in increasing order, and the log density and its slope there, three of each.

    The first slope must be positive and the last negative.
    """
    xp = namespace(points)
    gaps = heights[1:] - heights[:-1] + slopes[:-1] * points[:-1] - slopes[1:] * points[1:]
    edges = gaps / (slopes[:-1] - slopes[1:])
    at_left = xp.exp(heights[:2] + slopes[:2] * (edges[0] - points[:2]))
    at_right = xp.exp(heights[2] + slopes[2] * (edges[1] - points[2]))
    width = edges[1] - edges[0]
    rise = slopes[1] * width
    flat = xp.abs(rise) < _FLAT
    average = xp.where(flat, 1 + rise / 2, xp.expm1(rise) / xp.where(flat, 1.0, rise))
    masses = xp.stack([at_left[0] / slopes[0], at_left[1] * width * average, -at_right / slopes[2]])
    return TangentHat(points, heights, slopes, edges, masses)
