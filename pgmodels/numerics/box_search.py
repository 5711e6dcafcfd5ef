"""L-BFGS-B within a box, for functions that may not be finite."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pgmodels.numerics.barrier import barrier


class BoxSearch:
    """Minimises a function (x -> value and gradient, None where these are not finite); keeps the best point.

    ``units`` scale the coordinates, ``box`` (2, size) has their limits, and ``report`` is called after each iteration.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray], tuple[float, np.ndarray] | None],
        x: np.ndarray,
        units: np.ndarray,
        box: np.ndarray,
        report: Callable[["BoxSearch"], None] | None = None,
    ):
        self.function, self.units, self.box, self.report = function, units, box, report
        self.best, self.value, self.slope = x, np.inf, np.zeros_like(x)
        self.num_iterations = 0
        self(x)

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient; a barrier where they are not finite."""
        if np.isfinite(self.value) and np.array_equal(x, self.best):
            return self.value, self.slope
        evaluated = self.function(x)
        if evaluated is None:
            return barrier(x, self.best, self.value)
        if evaluated[0] <= self.value:
            self.best, (self.value, self.slope) = np.array(x), evaluated
        return evaluated

    def converge(self, max_iterations: int, tolerance: float) -> bool:
        """Search anew until a search gains less than a relative tolerance; whether the iterations were enough.

        A new search, without the curvature of the last one, confirms its end.
        """
        while self.num_iterations < max_iterations:
            before = self.value
            self.minimise(max_iterations - self.num_iterations, tolerance)
            if before - self.value <= tolerance * max(1.0, abs(before)):
                return True
        return False

    def minimise(self, max_iterations: int, tolerance: float) -> None:
        """Search from the best point until an iteration gains less than a relative tolerance."""
        from scipy.optimize import minimize

        # The first step is as long as the gradient, and a longer one may end far from any optimum.
        height = max(1.0, float(np.linalg.norm(self.slope * self.units)))

        def scaled(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self(z * self.units)
            return value / height, slope * self.units / height

        def callback(_: Any) -> None:
            self.num_iterations += 1
            if self.report is not None:
                self.report(self)

        minimize(
            scaled,
            self.best / self.units,
            jac=True,
            method="L-BFGS-B",
            bounds=(self.box / self.units).T,
            callback=callback,
            options={
                "ftol": tolerance * min(1.0, max(1.0, abs(self.value)) / height),
                "gtol": 1e-6 / height,
                "maxls": 40,
                "maxiter": max_iterations,
            },
        )
