"""The rival of two papers: stochastic variational inference by AdaDelta or Adam on q and hyperparameters alike.

Source: Hensman, Matthews and Ghahramani 2015; Zeiler 2012 for AdaDelta; Kingma and Ba 2015 for Adam.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

import pgmodels as pgm
from pgmodels.datasets import Split
from pgmodels.inference.objectives import objective_of
from pgmodels.inference.prepare import without_inputs
from pgmodels.numerics.iteration import Adam, adam_step, initial_adam
from pgmodels.numerics.quadrature import gauss_hermite
from pgmodels.objectives.base import FormulaObjective
from pgmodels.parameters.vector import ParameterVector, trainable
from pgmodels.runtime.jit import compiled, one_thread_up_to
from pgmodels.runtime.precision import Module, as_array, double_precision
from validation.papers.curves import Curve, Look

# Nodes of the quadrature, and what is added to the diagonal of K(Z, Z), relative to its mean: GPflow's.
NODES, JITTER = 20, 1e-6
# Decay and offset of AdaDelta in the toolbox climin, which the paper used.
DECAY, OFFSET = 0.9, 1e-4
# Steps of a compiled block; test rows are looked at whenever there are so many times as many steps as at the last look.
BLOCK, BETWEEN = 20, 1.08


class AdaDelta(NamedTuple):
    """Unconstrained values, and running averages of the squares of their gradient and of their steps."""

    vector: Float[Array, " values"]
    square: Float[Array, " values"]
    moved: Float[Array, " values"]


def adadelta_step(state: AdaDelta, slope: Float[Array, " values"], rate: Any) -> AdaDelta:
    """An ascent step, which is ``rate`` times AdaDelta's."""
    square = DECAY * state.square + (1.0 - DECAY) * slope**2
    move = rate * jnp.sqrt(state.moved + OFFSET) / jnp.sqrt(square + OFFSET) * slope
    return AdaDelta(state.vector + move, square, DECAY * state.moved + (1.0 - DECAY) * move**2)


class Rival(Module):
    """Sparse variational classification with one latent, on the expected log density by Gauss-Hermite quadrature.

    Its vector has the unconstrained hyperparameters, the mean and the root of the covariance of q at the inducing
    inputs (``whitened`` by the root of the prior covariance, or not), and the inducing inputs if they move.
    """

    objective: FormulaObjective = eqx.field(static=True)
    learnable: ParameterVector = eqx.field(static=True)
    model: pgm.Model
    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    Z: Float[Array, "m d"]
    rule: type[AdaDelta] | type[Adam] = eqx.field(static=True)
    whitened: bool = eqx.field(static=True)
    moves: bool = eqx.field(static=True)

    def start(self) -> Array:
        """The vector of the model's values and q(u) = N(0, I)."""
        count = len(self.Z)
        pieces = [as_array(self.learnable.start()), jnp.zeros(count), jnp.ravel(jnp.eye(count))]
        return jnp.concatenate([*pieces, *([jnp.ravel(self.Z)] if self.moves else [])])

    def split(self, vector: Array) -> tuple[Array, Array, Array, Array]:
        """Unconstrained hyperparameters, mean and root of the covariance of q(u), and inducing inputs."""
        count, rest = len(self.Z), self.Z.size if self.moves else 0
        theta = len(vector) - rest - count * (count + 1)
        values, mean, root, Z = jnp.split(vector, np.cumsum([theta, count, count**2]))
        return values, mean, jnp.tril(root.reshape(count, count)), Z.reshape(self.Z.shape) if self.moves else self.Z

    def moments(self, vector: Array, X: Float[Array, "b d"]) -> tuple[Array, Array, Array]:
        """Mean and variance of the latent at rows, and KL(q || prior)."""
        values, mean, root, Z = self.split(vector)
        kernel = self.learnable.apply(self.model, values).gps[0].kernel
        K = kernel(Z, Z)
        L = jnp.linalg.cholesky(K + JITTER * jnp.mean(jnp.diag(K)) * jnp.eye(len(Z)))
        if not self.whitened:
            mean, root = (solve_triangular(L, part, lower=True) for part in (mean, root))
        A = solve_triangular(L, kernel(Z, X), lower=True)
        variance = kernel.diagonal(X) - jnp.sum(A**2, axis=0) + jnp.sum((root.T @ A) ** 2, axis=0)
        log_det = jnp.sum(jnp.log(jnp.abs(jnp.diag(root))))
        divergence = 0.5 * (jnp.sum(root**2) + jnp.sum(mean**2) - len(Z)) - log_det
        return A.T @ mean, variance, divergence

    def bound(self, vector: Array, rows: Array) -> Array:
        """The estimate of the bound from some rows."""
        nodes, weights = gauss_hermite(NODES)
        mean, variance, divergence = self.moments(vector, self.X[rows])
        f = mean + jnp.sqrt(variance) * as_array(nodes)[:, None]
        parameters = self.learnable.apply(self.model, self.split(vector)[0]).parameters
        density = jax.vmap(lambda z: self.objective.predictor_log_density(self.y[rows], z[:, None], parameters))(f)
        return len(self.y) / len(rows) * jnp.sum(as_array(weights / np.sqrt(2.0 * np.pi)) @ density) - divergence


def rival_of(
    model: pgm.Model, split: Split, Z: np.ndarray, rule: type[AdaDelta] | type[Adam], whitened: bool, moves: bool
) -> Rival:
    """The rival of a model, from its values and inducing inputs ``Z``."""
    objective = objective_of(model, "expected")
    assert isinstance(objective, FormulaObjective)
    X, y, inputs = (as_array(part) for part in (split.X, split.y, Z))
    return Rival(objective, trainable(model), without_inputs(model).bare(), X, y, inputs, rule, whitened, moves)


@double_precision
def follow(
    model: pgm.Model,
    split: Split,
    Z: np.ndarray,
    rule: type[AdaDelta] | type[Adam],
    rate: float,
    batch_size: int,
    seconds: float,
    whitened: bool = False,
    moves: bool = False,
) -> list[Look]:
    """Looks at the test rows for so many seconds of steps, without compilation, or until the bound is not finite."""
    rival = rival_of(model, split, Z, rule, whitened, moves)
    start = rival.start()
    state = initial_adam(start) if rule is Adam else AdaDelta(start, jnp.zeros_like(start), jnp.zeros_like(start))
    batches, test = _batches(len(split.X), min(batch_size, len(split.X))), as_array(split.X_test)
    curve = Curve(model, split, Z)

    def look() -> None:
        now = time.perf_counter()
        values, mean, variance = map(np.asarray, _moments(rival, state.vector, test))
        curve.add(rival.learnable.with_values(rival.learnable.constrain(values)), mean, variance, now)

    # Compiles what is used below.
    _advance(rival, state, next(batches), rate)[0].block_until_ready()
    look()
    curve, steps, due = Curve(model, split, Z, seconds), 0, 0.0
    with suppress(TimeoutError), one_thread_up_to(batch_size):
        while bool(jnp.isfinite(state.vector).all()):
            if steps >= due:
                look()
                due = steps * BETWEEN
            state, steps = _advance(rival, state, next(batches), rate), steps + BLOCK
    return curve.looks


@partial(compiled, on_one_thread=True)
def _advance(rival: Rival, state: Any, rows: Any, rate: Any) -> Any:
    def step(state: Any, batch: Array) -> tuple[Any, None]:
        slope = jax.grad(rival.bound)(state.vector, batch)
        if rival.rule is Adam:
            return adam_step(state, slope, rate, jnp.ones_like(slope)), None
        return adadelta_step(state, slope, rate), None

    return jax.lax.scan(step, state, rows)[0]


@compiled
def _moments(rival: Rival, vector: Array, X: Array) -> tuple[Array, Array, Array]:
    return rival.split(vector)[0], *rival.moments(vector, X)[:2]


def _batches(count: int, size: int) -> Iterator[np.ndarray]:
    """Row numbers of a block's batches, from a new order of the rows in each epoch."""
    rng, batches = np.random.default_rng(0), np.zeros((0, size), int)
    while True:
        while len(batches) < BLOCK:
            order = rng.permutation(count)[: count // size * size]
            batches = np.concatenate([batches, order.reshape(-1, size)])
        yield batches[:BLOCK]
        batches = batches[BLOCK:]
