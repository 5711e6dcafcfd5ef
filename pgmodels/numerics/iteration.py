"""Iterative methods: Adam, Anderson acceleration, conjugate gradients, searches in a box."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

    from pgmodels.priors.base import Sites


class Adam(NamedTuple):
    """Unconstrained values, running averages of their gradient and its square, and the number of steps."""

    vector: Float[Array, " values"]
    mean: Float[Array, " values"]
    square: Float[Array, " values"]
    num_steps: Float[Array, ""]


def initial_adam(vector: Float[Array, " values"]) -> Adam:
    """Return the state before the first step."""
    return Adam(vector, jnp.zeros_like(vector), jnp.zeros_like(vector), jnp.zeros(()))


def adam_step(
    state: Adam, slope: Float[Array, " values"], rate: Float[Array, ""], units: Float[Array, " values"]
) -> Adam:
    """Return an ascent step of about ``rate`` times ``units`` in each value (Kingma and Ba 2015, algorithm 1)."""
    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-8
    num_steps = state.num_steps + 1.0
    mean = beta_1 * state.mean + (1.0 - beta_1) * slope
    square = beta_2 * state.square + (1.0 - beta_2) * slope**2
    direction = (mean / (1.0 - beta_1**num_steps)) / (jnp.sqrt(square / (1.0 - beta_2**num_steps)) + epsilon)
    return Adam(state.vector + rate * units * direction, mean, square, num_steps)


class History(NamedTuple):
    """The latest image under the map and its residual, and the last differences of these; zero where missing."""

    latest: Float[Array, "2 size"]
    moves: Float[Array, "depth 2 size"]

    @property
    def started(self) -> Bool[Array, ""]:
        """Whether there is an iterate."""
        return jnp.any(self.latest != 0)

    def after(self, sites: Iterable[Array], image: Iterable[Array]) -> "History":
        """Return the history with another iterate and its image added."""
        vector = _flat(image)
        latest = jnp.stack([vector, vector - _flat(sites)])
        move = jnp.where(self.started, latest - self.latest, 0.0)
        return History(latest, jnp.concatenate([self.moves[1:], move[None]]))

    def combined(self) -> Float[Array, " size"]:
        """Return the images' combination of least residual (Walker and Ni 2011, equation 2.3), or the latest image."""
        vector, residual = self.latest
        R = self.moves[:, 1]
        squares = R @ R.T
        # Differences soon become nearly collinear: without a ridge, their weights would be rounding errors.
        ridge = 1e-10 * jnp.trace(squares) + jnp.finfo(R.dtype).tiny
        weights = cho_solve(cho_factor(squares + ridge * jnp.eye(len(R)), lower=True), R @ residual)
        return vector - weights @ self.moves[:, 0]

    def extrapolated(self, image: "Sites") -> "Sites":
        """Return ``combined`` as sites; uncoupled precisions are at least 0.1 times positive ones of the image."""
        vector = self.combined()
        size = image.potential.size
        precision = vector[size:].reshape(image.precision.shape)
        if not image.coupled:
            precision = jnp.where(image.precision < 0.0, precision, jnp.maximum(precision, 0.1 * image.precision))
        return image._replace(potential=vector[:size].reshape(image.potential.shape), precision=precision)

    def without_iterate(self) -> "History":
        """Return the history with only its differences, for the iterates of a similar map."""
        return History(jnp.zeros_like(self.latest), self.moves)

    def masked(self, keep: Bool[Array, ""]) -> "History":
        """Return this history if ``keep``, else an empty history."""
        return History(*(jnp.where(keep, array, 0.0) for array in self))


def empty_history(sites: Iterable[Array]) -> History:
    """Return the history before the first iterate, with room for five differences."""
    size = sum(array.size for array in sites)
    return History(jnp.zeros((2, size)), jnp.zeros((5, 2, size)))


def _flat(sites: Iterable[Array]) -> Float[Array, " size"]:
    return jnp.concatenate([array.ravel() for array in sites])


def hessian(gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray, *, central: bool) -> np.ndarray:
    """Return the symmetric Hessian at x (d,), of unit scale, by d + 1 gradients, or 2 d (second order, ``central``)."""
    at, step = None if central else gradient(x), 0.05
    slopes = [gradient(x + move) - (gradient(x - move) if at is None else at) for move in step * np.eye(len(x))]
    H = np.array(slopes) / (2.0 * step if central else step)
    return 0.5 * (H + H.T)


class Evaluated(Protocol):
    """A point with the value of a function and its gradient, ``slope``."""

    @property
    def value(self) -> float: ...

    @property
    def slope(self) -> np.ndarray: ...


P = TypeVar("P", bound=Evaluated)


class Search(Generic[P]):
    """A minimisation of a function within a box by quasi-Newton methods, which keeps the best point.

    ``function(x, best)`` returns the point at x, or None if its value or gradient is not finite. It may start from the
    ``best`` point, None at first. ``units`` scale the coordinates, and ``box`` (2, size) has their limits.
    ``report(best)`` is called after each iteration; it may end the search by StopIteration. ``left_box`` is True if a
    point outside of the box was requested.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray, P | None], P | None],
        x: np.ndarray,
        units: np.ndarray,
        box: np.ndarray,
        report: Callable[[P], None] | None = None,
        best: P | None = None,
    ):
        self.function, self.units, self.box, self.report = function, units, box, report
        self.x, self.best = x, function(x, None) if best is None else best
        self.num_iterations, self.num_evaluations, self.left_box = 0, 1, False

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the value and its gradient; at invalid points, values that send a line search back."""
        best, away = self.best, x - self.x
        if best is None:
            return np.inf, np.zeros_like(x)
        # Scaling by units rounds coordinates.
        rounding = 4.0 * np.finfo(float).eps * np.abs(x)
        if np.all(np.abs(away) <= rounding):
            return best.value, best.slope
        outside = bool(np.any((x < self.box[0] - rounding) | (x > self.box[1] + rounding)))
        self.left_box |= outside
        point = None
        if not outside:
            self.num_evaluations += 1
            point = self.function(x, best)
        if point is None:
            height = 1.0 + abs(best.value)
            return best.value + height, 2.0 * height * away / (away @ away)
        if point.value <= best.value:
            self.x, self.best = np.array(x), point
        return point.value, point.slope

    @property
    def point(self) -> P:
        """The best point. Raises ValueError if no point had a finite value."""
        if self.best is None:
            raise ValueError("the function is not finite at the start of the search.")
        return self.best

    @property
    def height(self) -> float:
        """The divisor of the values that limits the first step, which has the gradient's length, to one unit."""
        return 1.0 if self.best is None else max(1.0, float(np.linalg.norm(self.best.slope * self.units)))

    def converge(self, max_iterations: int, tolerance: float) -> bool:
        """Repeat the search until it gains less than a relative tolerance. Return whether the iterations sufficed."""
        while self.num_iterations < max_iterations:
            before = self.point.value
            self.lbfgs(max_iterations - self.num_iterations, tolerance)
            if before - self.point.value <= tolerance * max(1.0, abs(before)):
                return True
        return False

    def lbfgs(
        self, max_iterations: int, tolerance: float, least_slope: float = 1e-6, height: float | None = None
    ) -> "OptimizeResult":
        """Run L-BFGS-B from the best point, in units, until an iteration gains less than a relative tolerance.

        It also ends if the largest slope, in units, is below ``least_slope``. Values are divided by ``height``.
        """
        from scipy.optimize import minimize

        height = self.height if height is None else height
        size = 1.0 if self.best is None else max(1.0, abs(self.best.value))

        def scaled(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self(z * self.units)
            return value / height, slope * self.units / height

        start, bounds = self.x / self.units, (self.box / self.units).T
        options = {"maxls": 40, "maxiter": max_iterations, "gtol": least_slope / height}
        options["ftol"] = tolerance * min(1.0, size / height)
        return minimize(
            scaled, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=self._advance, options=options
        )

    def bfgs(self, inverse_hessian: np.ndarray, max_iterations: int) -> "OptimizeResult":
        """Run BFGS from the best point with an initial inverse Hessian, until ``report`` ends it; see ``left_box``."""
        from scipy.optimize import minimize

        self.left_box = False
        options = {"hess_inv0": inverse_hessian, "gtol": 0.0, "maxiter": max_iterations}
        return minimize(self, self.x, jac=True, method="BFGS", callback=self._advance, options=options)

    def _advance(self, _: np.ndarray) -> None:
        self.num_iterations += 1
        if self.report is not None:
            self.report(self.point)


class Solution(NamedTuple):
    """The solution, its relative residual in the norm of the preconditioner, and the number of products.

    ``positive`` is True if all directions had positive curvature; the first direction without it ends the iterations.
    """

    x: Array
    residual: Float[Array, ""]
    num_products: Int[Array, ""]
    positive: Bool[Array, ""]


class _State(NamedTuple):
    """The state of the iterations: x, the residual r, the directions Q p and p, and r^T Q r."""

    x: Array
    residual: Array
    direction: Array
    raw: Array
    size: Float[Array, ""]
    num_products: Int[Array, ""]
    positive: Bool[Array, ""]


def conjugate_gradients(
    product: Callable[[Array, Array], Array],
    b: Array,
    precondition: Callable[[Array], Array],
    tolerance: float,
    max_products: int,
) -> Solution:
    """Solve M x = b for a symmetric M, by products, to a relative residual; arrays of any shape. Traceable.

    ``product(Q p, p)`` is M Q p, with the symmetric and positive preconditioner Q: M may have a term Q^-1.
    Source: Hestenes and Stiefel 1952.
    """
    first = precondition(b)
    size = jnp.sum(b * first)

    def unfinished(now: _State) -> Bool[Array, ""]:
        return (now.size > tolerance**2 * size) & (now.num_products < max_products) & now.positive

    def step(now: _State) -> _State:
        image = product(now.direction, now.raw)
        curvature = jnp.sum(now.direction * image)
        positive = curvature > 0.0
        length = jnp.where(positive, now.size / jnp.where(positive, curvature, 1.0), 0.0)
        residual = now.residual - length * image
        conditioned = precondition(residual)
        new_size = jnp.sum(residual * conditioned)
        turn = new_size / now.size
        x, direction = now.x + length * now.direction, conditioned + turn * now.direction
        return _State(x, residual, direction, residual + turn * now.raw, new_size, now.num_products + 1, positive)

    start = _State(jnp.zeros_like(b), b, first, b, size, jnp.zeros((), int), jnp.ones((), bool))
    end = jax.lax.while_loop(unfinished, step, start)
    relative = jnp.sqrt(jnp.maximum(end.size, 0.0) / jnp.where(size > 0.0, size, 1.0))
    return Solution(end.x, relative, end.num_products, end.positive)
