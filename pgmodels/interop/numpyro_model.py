"""A model as a NumPyro model function, without augmentation: what an independent sampler runs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pgmodels.language.expression import Environment
from pgmodels.language.likelihood import Likelihood, trace
from pgmodels.language.normalisation import is_normalised
from pgmodels.latent.dense import exact_root
from pgmodels.latent.form import Cheapest
from pgmodels.model import Data, Model, require_model
from pgmodels.parameters import bare
from pgmodels.precision import as_array, double_precision
from pgmodels.unknowns import Unknowns, are_held, uncertain

# Sites of whitened coordinates are whitened_0, whitened_1, ...
WHITENED = "whitened_"


class FormulaDistribution(dist.Distribution):
    """p(y | f) by a likelihood's formula, a batch of n data, for latents f (n, L) and values of its parameters."""

    def __init__(self, likelihood: Likelihood, f: Any, values: dict[str, Any], num_columns: int):
        self.likelihood, self.f, self.values = likelihood, f, values
        event_shape = () if num_columns == 1 else (num_columns,)
        super().__init__(batch_shape=f.shape[:1], event_shape=event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Real numbers: observations are checked against the likelihood's own support beforehand."""
        return constraints.real_vector if self.event_shape else constraints.real

    def log_prob(self, value: Any) -> Any:
        """log p(y | f) of each datum, (n,)."""
        likelihood = self.likelihood
        formula = trace(likelihood.function, self.f.shape[-1], likelihood.symbols)
        return formula.log_evaluate(Environment(value, self.f, self.values))[..., 0]


@double_precision
def to_numpyro(model: Model, X: Any, y: Any) -> Callable[[], None]:
    """The model, without augmentation, as a NumPyro model function of no arguments, conditioned on X (n, d) and y.

    Its sites are

    - each value that has a prior, named as in ``lengthscale``, ``mean`` and ``scale`` (with ``f[1].`` in front where
      the model has several GPs, see ``pgmodels.naming``); all others are held at their values;
    - ``whitened_0``, ``whitened_1``, ... (r, size), standard normal, one for each GP;
    - ``f`` (n, latents), deterministic: mean + A^T v at the distinct inputs, of which rows are copies. Where nothing
      of the kernel has a prior, A^T A is K, as exactly as double precision can hold it, and r its rank; otherwise it is
      K + j I with the jitter of ``pgmodels.latent.dense.exact_root``, and r the number of distinct inputs;
    - ``y``, observed, whose log density is the formula's.

    Run it with 64-bit arithmetic (``numpyro.enable_x64()``). Raises ValueError for bad data, and where a likelihood
    parameter has a prior but the formula may leave out a factor that depends on it.
    """
    model, data = require_model(model).given(X, y)
    program = Program(model.held_as(Cheapest()).resolve(data.X), data)

    def numpyro_model() -> None:
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("the model needs 64-bit arithmetic: call numpyro.enable_x64() before running it.")
        program()

    return numpyro_model


class Program:
    """The sites of ``to_numpyro`` for a resolved model, of which every GP has the default form, and checked data.

    ``held`` are the priors of groups whose kernels have nothing that is sampled, None in the place of others; these are
    held as exactly as double precision can, in the coordinates that have any influence.
    """

    def __init__(self, model: Model, data: Data):
        self.unknowns = checked_unknowns(model)
        self.y = as_array(data.y)
        inputs = model.inputs(data.X)
        self.copies = inputs.copies
        self.inputs = [X[:count] for X, count in zip(inputs.X, inputs.counts, strict=True)]
        # A factor that depends on nothing sampled is made here, once.
        self.held = model.held_groups(data.X, are_held(model))
        pairs = zip(self.held, self.inputs, strict=True)
        self.factors = [None if group is None else _active(group, len(X)) for group, X in pairs]

    def __call__(self) -> None:
        pairs = zip(self.unknowns.names, self.unknowns.parameters, strict=True)
        model = self.unknowns.with_values([numpyro.sample(name, parameter.prior) for name, parameter in pairs])
        whitened = []
        for index, (gp, A, X) in enumerate(zip(model.gps, self.factors, self.inputs, strict=True)):
            rank = len(X) if A is None else len(A)
            standard = dist.Normal(0.0, 1.0).expand((rank, gp.size)).to_event(2)
            whitened.append(numpyro.sample(f"{WHITENED}{index}", standard))
        f = numpyro.deterministic("f", self.latents(model, whitened))
        num_columns = 1 if self.y.ndim == 1 else self.y.shape[1]
        likelihood = FormulaDistribution(model.likelihood, f, model.parameters, num_columns)
        numpyro.sample("y", likelihood, obs=self.y)

    def latents(self, model: Model, whitened: Sequence[Any]) -> Any:
        """The latents f = mean + A^T v (n, latents) of whitened coordinates, a group each."""
        parts = []
        for gp, A, X, v in zip(model.gps, self.factors, self.inputs, whitened, strict=True):
            root = exact_root(bare(gp.kernel), X)[0] if A is None else A.T
            parts.append(as_array(gp.mean.value) + root @ v)
        return self.copies.side_by_side(parts)


def _active(group: Any, count: int) -> Any:
    """The factor (r, m) of a group at so many inputs, without the coordinates that have no influence there."""
    return as_array(np.asarray(group.factor)[np.asarray(group.active) > 0, :count])


def checked_unknowns(model: Model) -> Unknowns:
    """What has a prior; ValueError where the likelihood's density may lack a factor that depends on it."""
    unknowns = uncertain(model)
    named = list(unknowns.of_likelihood.values())
    if named and is_normalised(model.likelihood, model.num_latents, for_all_parameters=True) is not True:
        raise ValueError(
            f"{named[0]} has a prior, but the formula of {model.likelihood.name} is not known to be a normalised "
            "density of y, and the factor it leaves out may depend on it. Write the formula with its constants and "
            "declare its support, or hold the parameter with pgm.Fixed."
        )
    return unknowns
