"""The log joint density of a model and data as a function in JAX, for samplers of other libraries."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from pgmodels.interop.numpyro_model import WHITENED, Program, require_x64
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model, require_model
from pgmodels.priors.representation import Auto
from pgmodels.runtime.x64 import double_precision


class LogDensity:
    """The log density of a position: a dict of unconstrained hyperparameters by name, and whitened latents.

    ``start`` is a position: the hyperparameters' values and latents at their prior mean. ``constrain(position)`` has
    the hyperparameters, constrained, and the latents at the data, ``f`` (n, latents).
    """

    def __init__(self, program: Program):
        self._program = program
        self._parameters = dict(zip(program.unknowns.names, program.unknowns.parameters, strict=True))
        start = {name: np.asarray(p.transform.inv(p.value)) for name, p in self._parameters.items()}
        whitened = {f"{WHITENED}{i}": np.zeros(shape) for i, shape in enumerate(program.whitened_shapes)}
        self.start: dict[str, np.ndarray] = start | whitened

    def __call__(self, position: Mapping[str, Any]) -> Any:
        """log p(y | f) + log p(v) + log prior of the hyperparameters, with the Jacobian of their transforms."""
        require_x64()
        model, whitened = self._model(position), self._whitened(position)
        f = self._program.latents(model, whitened)
        total = jnp.sum(self._program.formula.log_evaluate(Environment(self._program.y, f, model.parameters))[..., 0])
        for v in whitened:
            total = total - 0.5 * jnp.sum(v**2) - 0.5 * np.log(2.0 * np.pi) * v.size
        for name, parameter in self._parameters.items():
            x = position[name]
            value = parameter.transform(x)
            total = total + jnp.sum(parameter.prior.log_prob(value))
            total = total + jnp.sum(parameter.transform.log_abs_det_jacobian(x, value))
        return total

    def constrain(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """The hyperparameters by name and the latents ``f`` (n, latents) of a position."""
        values = {name: parameter.transform(position[name]) for name, parameter in self._parameters.items()}
        return values | {"f": self._program.latents(self._model(position), self._whitened(position))}

    def _model(self, position: Mapping[str, Any]) -> Model:
        values = [parameter.transform(position[name]) for name, parameter in self._parameters.items()]
        return self._program.unknowns.with_values(values)

    def _whitened(self, position: Mapping[str, Any]) -> list[Any]:
        return [jnp.asarray(position[f"{WHITENED}{i}"]) for i in range(len(self._program.whitened_shapes))]


@double_precision
def log_density(model: Model, X: ArrayLike, y: ArrayLike) -> LogDensity:
    """The log joint density of a model and data, a pure function in JAX for any sampler or optimiser.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Parameters with priors are unknown, all others are fixed.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations.

    Returns
    -------
    LogDensity
        A function of a position, a dict of arrays; ``start`` is a position, and ``constrain`` translates one. It can
        be differentiated, compiled and batched, with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For invalid data, and if a likelihood parameter has a prior but the formula may omit a factor that depends on
        it.

    Notes
    -----
    The coordinates are those of the sites of ``to_numpyro``: ``whitened_0``, ... are standard normal a priori. Factors
    that the formula omits are omitted.
    """
    model, data = require_model(model).prepare(X, y)
    return LogDensity(Program(model.with_form(Auto()).resolve(data.X), data))
