"""The bound on the log evidence as a factor of NumPyro: hyperparameters sampled, latents integrated out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpy.typing import ArrayLike

from pgmodels.inference.empirical_bayes.bound import collapsed_bound
from pgmodels.inference.engine import MANY
from pgmodels.inference.loop import run_block
from pgmodels.inference.objectives import Choice, check_objective, objective_of, require_maximised
from pgmodels.inference.problem_family import ProblemFamily
from pgmodels.inference.variational.vi import engine_of
from pgmodels.interop.numpyro_model import checked_unknowns, require_x64
from pgmodels.model import Model, require_model
from pgmodels.priors.representation import Auto
from pgmodels.runtime.x64 import double_precision

# Gradients are those at the optimum of q(f): the inner loop must be near it.
_TOLERANCE = 1e-10


@double_precision
def numpyro_bound(
    model: Model, X: ArrayLike, y: ArrayLike, *, objective: Choice = "augmented"
) -> Callable[[], dict[str, Any]]:
    """A NumPyro model of the hyperparameters alone, whose factor is the derived bound on log p(y | hyperparameters).

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Parameters with priors are sampled, all others are fixed.
    X : array_like, shape (n, d)
        Inputs, one row per datum.
    y : array_like, shape (n,) or (n, columns)
        Observations.
    objective : str
        As in ``vi``.

    Returns
    -------
    callable
        A model function without arguments: a site for each parameter with a prior, and the factor ``bound``, the ELBO
        with q(f) at its optimum. Further sites may be added in a program that calls it; it returns the values of its
        sites. Run it with 64-bit arithmetic.

    Raises
    ------
    ValueError
        For invalid data, and without a parameter that has a prior.

    Notes
    -----
    O(n^3) a step of the inner loop, which every evaluation runs to its end; gradients are by the envelope theorem.
    """
    check_objective(objective)
    model, data = require_model(model).prepare(X, y)
    model = model.with_form(Auto()).resolve(data.X)
    model.check_memory(data.X)
    unknowns = checked_unknowns(model)
    if not unknowns.names:
        raise ValueError(
            "numpyro_bound samples hyperparameters, and none has a prior: give one a NumPyro distribution, as in "
            "pgm.RBF(numpyro.distributions.LogNormal(0, 1))."
        )
    terms = objective_of(model, objective)
    require_maximised("numpyro_bound", terms)
    inputs, padded, row_weights = model.padded(data)
    inputs = replace(inputs, spanning=(None,) * len(model.gps))
    family = ProblemFamily(terms, unknowns, model.bare(), inputs, padded, row_weights, model.coefficient_groups(data.X))
    points, engine = (None,) * len(model.gps), engine_of(terms)

    def bound(vector: Any) -> Any:
        problem = family.problem(jax.lax.stop_gradient(vector), points)
        state = run_block(engine.step, problem, engine.init(problem), _TOLERANCE, MANY, MANY).state
        slope = collapsed_bound(family.problem(vector, points), state)
        return jax.lax.stop_gradient(state.elbo - slope) + slope

    def numpyro_model() -> dict[str, Any]:
        require_x64()
        pairs = zip(unknowns.names, unknowns.parameters, strict=True)
        values = {name: numpyro.sample(name, parameter.prior) for name, parameter in pairs}
        free = [jnp.ravel(p.transform.inv(v)) for p, v in zip(unknowns.parameters, values.values(), strict=True)]
        numpyro.factor("bound", bound(jnp.concatenate(free)))
        return values

    return numpyro_model
