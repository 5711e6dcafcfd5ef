"""A model as plain text and numbers: its parts by class name, so that a file holds no code."""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeAlias

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from pgmodels.kernels.columns import Difference, On
from pgmodels.kernels.kernel import Kernel, Product, Sum
from pgmodels.kernels.others import Constant, Linear, Periodic, White
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from pgmodels.likelihoods import named as likelihoods
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, trace
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import Hashable, Parameter, Within
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.priors.representation import Auto, Dense, Representation
from pgmodels.runtime.x64 import as_array

# What JSON holds.
Description: TypeAlias = Any

_KERNELS: dict[str, type[Kernel]] = {
    cls.__name__: cls
    for cls in (
        RBF,
        Matern12,
        Matern32,
        Matern52,
        RationalQuadratic,
        Periodic,
        Linear,
        Constant,
        White,
        On,
        Difference,
        Sum,
        Product,
    )
}
_FAMILIES: dict[str, LikelihoodFamily] = {
    family.__name__: family
    for family in (
        likelihoods.Bernoulli,
        likelihoods.Probit,
        likelihoods.Binomial,
        likelihoods.NegativeBinomial,
        likelihoods.SigmoidPoisson,
        likelihoods.StudentT,
        likelihoods.Laplace,
        likelihoods.Gaussian,
        likelihoods.HeteroscedasticGaussian,
    )
}
# By the number of classes, which is so many more than there are latents.
_SIZED: dict[str, tuple[Callable[[int], Likelihood], int]] = {
    "LogisticSoftmax": (likelihoods.LogisticSoftmax, 0),
    "StickBreaking": (likelihoods.StickBreaking, 1),
}
_FORMS: dict[str, type[Representation]] = {cls.__name__: cls for cls in (Auto, Dense, Inducing)}


def describe(model: Model) -> Description:
    """A model as JSON holds it. Raises ValueError for a part that has no name in pgmodels or NumPyro."""
    return {
        "likelihood": _describe_likelihood(model.likelihood.unweighted, model.num_latents),
        "weighted": model.is_weighted,
        "gps": [
            {
                "kernel": _describe_kernel(gp.kernel),
                "mean": _describe_parameter(gp.mean, "mean"),
                "size": gp.size,
                "form": _describe_form(gp.form),
            }
            for gp in model.gps
        ],
    }


def build(description: Description, likelihood: Likelihood | LikelihoodFamily | None) -> Model:
    """The model of a description; ``likelihood`` is that of a formula of one's own.

    Raises ValueError where it is missing or another.
    """
    gps = [
        GP(
            _build_kernel(entry["kernel"]),
            mean=_build_parameter(entry["mean"]),
            size=entry["size"],
            form=_FORMS[entry["form"]["class"]](**entry["form"]["fields"]),
        )
        for entry in description["gps"]
    ]
    size = sum(gp.size for gp in gps)
    model = Model(_build_likelihood(description["likelihood"], likelihood, size), gps)
    return model.weighted if description.get("weighted", False) else model


def _describe_kernel(kernel: Kernel) -> Description:
    name = type(kernel).__name__
    if _KERNELS.get(name) is not type(kernel):
        raise _unnamed(f"the kernel {kernel!r}")
    parts = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    return {
        "class": name,
        "fields": {part: _describe_part(value, f"{part} of {name}") for part, value in parts.items()},
    }


def _describe_part(value: Kernel | Parameter | tuple[int, ...], name: str) -> Description:
    if isinstance(value, Kernel):
        return _describe_kernel(value)
    return _describe_parameter(value, name) if isinstance(value, Parameter) else list(value)


def _build_kernel(description: Description) -> Kernel:
    parts = {name: _build_part(value) for name, value in description["fields"].items()}
    return _KERNELS[description["class"]](**parts)


def _build_part(description: Description) -> Kernel | Parameter | list[int]:
    if isinstance(description, list):
        return description
    return _build_kernel(description) if "class" in description else _build_parameter(description)


def _describe_parameter(parameter: Parameter, name: str) -> Description:
    value = None if parameter.value is None else np.asarray(parameter.value).tolist()
    described = {"value": value, "positive": parameter.positive, "fixed": parameter.fixed, "prior": None}
    if parameter.constraint is not None:
        described["constraint"] = _describe_constraint(parameter.constraint, name)
    if parameter.hashable_prior is not None:
        prior = Hashable(parameter.declared_prior)
        described["prior"] = _describe_prior(prior, f"the prior {prior!r} of {name}")
    return described


def _build_parameter(description: Description) -> Parameter:
    value = description["value"]
    prior = None if description["prior"] is None else _build_prior(description["prior"])
    constraint = None if "constraint" not in description else _build_constraint(description["constraint"])
    if prior is not None and constraint is not None and prior.support != constraint:
        prior = Within(prior, constraint)
    return Parameter(
        None if value is None else np.asarray(value, dtype=np.float64),
        positive=description["positive"],
        fixed=description["fixed"],
        prior=prior,
        constraint=constraint,
    )


def _describe_constraint(constraint: Constraint, name: str) -> Description:
    """A constraint by its name, or its class and arguments, among NumPyro's."""
    for known, value in vars(constraints).items():
        if isinstance(value, Constraint) and type(value) is type(constraint) and value == constraint:
            return {"name": known}
    bounds = {key: getattr(constraint, key) for key in ("lower_bound", "upper_bound") if hasattr(constraint, key)}
    for known in ("interval", "greater_than", "less_than"):
        if getattr(constraints, known) is type(constraint):
            return {"class": known, "bounds": {key: float(value) for key, value in bounds.items()}}
    raise _unnamed(f"the constraint {constraint} of {name}")


def _build_constraint(description: Description) -> Constraint:
    if "name" in description:
        return getattr(constraints, description["name"])
    return getattr(constraints, description["class"])(**description["bounds"])


def _describe_prior(prior: Hashable, name: str) -> Description:
    """A prior by its class and arguments, and the precision in which it was made; ValueError where they make another.

    Some distributions compute from their arguments what they hold.
    """
    distribution = _describe_argument(prior.distribution, name)
    for double in (True, False):
        described = {"double": double, "distribution": distribution}
        if Hashable(_build_prior(described)) == prior:
            return described
    raise _unnamed(name)


def _describe_argument(value: Any, name: str) -> Description:
    """A NumPyro distribution by its class and the arguments that made it, or one of these arguments."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return {"dtype": str(value.dtype), "values": np.asarray(value).tolist()}
    if isinstance(value, tuple):
        return [int(entry) for entry in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    kind = type(value)
    if not isinstance(value, dist.Distribution) or getattr(dist, kind.__name__, None) is not kind:
        raise _unnamed(name)
    arguments = [argument for argument in inspect.signature(kind).parameters if argument != "validate_args"]
    if not all(hasattr(value, argument) for argument in arguments):
        raise _unnamed(name)
    return {
        "class": kind.__name__,
        "arguments": {argument: _describe_argument(getattr(value, argument), name) for argument in arguments},
    }


def _build_prior(description: Description) -> dist.Distribution:
    return _build_argument(description["distribution"], description["double"])


def _build_argument(description: Description, double: bool) -> Any:
    if isinstance(description, list):
        return tuple(description)
    if not isinstance(description, dict):
        return description
    if "dtype" in description:
        with jax.enable_x64(True):
            return as_array(np.asarray(description["values"], dtype=description["dtype"]))
    arguments = {name: _build_argument(value, double) for name, value in description["arguments"].items()}
    with jax.enable_x64(double):
        return getattr(dist, description["class"])(**arguments)


def _describe_form(form: Representation) -> Description:
    name = type(form).__name__
    if _FORMS.get(name) is not type(form):
        raise _unnamed(f"the form {form!r}")
    return {"class": name, "fields": dict(vars(form))}


def _describe_likelihood(likelihood: Likelihood, size: int) -> Description:
    name = likelihood.name
    return {
        "name": name,
        "named": _named(name, likelihood.parameters, size) == likelihood,
        "parameters": {p: _describe_parameter(value, f"{p} of {name}") for p, value in likelihood.parameters.items()},
        "formulas": _formulas(likelihood, size),
    }


def _formulas(likelihood: Likelihood, size: int) -> dict[str, list[str]]:
    """The formulas and the support of a likelihood as texts, with digests, since texts round their numbers."""
    roles = {
        "formula": likelihood.function,
        "mean": likelihood.conditional_mean,
        "variance": likelihood.conditional_variance,
    }
    traced = {role: trace(function, size, likelihood.symbols) for role, function in roles.items() if function}
    digests = {role: hashlib.sha256(repr(formula.key).encode()).hexdigest() for role, formula in traced.items()}
    found = {role: [formula.text(), digests[role]] for role, formula in traced.items()}
    support = likelihood.declared_support
    return found if support is None else found | {"support": [repr(support), ""]}


def _named(name: str, parameters: dict[str, Parameter], size: int) -> Likelihood | None:
    """The likelihood of pgmodels with a name and parameters, None where there is none."""
    if name in _SIZED:
        num_classes = size + _SIZED[name][1]
        return _SIZED[name][0](num_classes) if num_classes > 1 else None
    family = _FAMILIES.get(name)
    if family is None or _arguments(family) != sorted(parameters):
        return None
    return family(**parameters)


def _build_likelihood(description: Description, given: Any, size: int) -> Likelihood:
    name, saved = description["name"], description["formulas"]
    parameters = {p: _build_parameter(value) for p, value in description["parameters"].items()}
    likelihood = _named(name, parameters, size) if given is None and description["named"] else given
    if not isinstance(likelihood, (Likelihood, LikelihoodFamily)):
        fault = f"got {given!r}" if given is not None else "a file holds no code"
        raise ValueError(
            f"the likelihood {name} is a formula of your own, {saved['formula'][0]}, and {fault}: give the likelihood "
            f"or its family, as in pgm.load(path, likelihood={name})."
        )
    if _arguments(likelihood) != sorted(parameters):
        raise ValueError(
            f"the likelihood given has the parameters {_arguments(likelihood)}, and the one saved, {name}, has "
            f"{sorted(parameters)}: give the likelihood as it was when the result was saved."
        )
    if isinstance(likelihood, LikelihoodFamily):
        likelihood = likelihood(**parameters)
    likelihood = replace(likelihood, parameters=parameters)
    found = _formulas(likelihood, size)
    for role in [role for role in {**saved, **found} if saved.get(role) != found.get(role)]:
        texts = [formulas[role][0] if role in formulas else "none" for formulas in (found, saved)]
        digits = ", in digits that are not shown" if texts[0] == texts[1] else ""
        raise ValueError(
            f"the {role} of the likelihood given is {texts[0]}, and the one saved is {texts[1]}{digits}: give the "
            f"likelihood {name} as it was when the result was saved."
        )
    return likelihood


def _arguments(likelihood: Likelihood | LikelihoodFamily) -> list[str]:
    """The names of the parameters, sorted."""
    if isinstance(likelihood, Likelihood):
        return sorted(likelihood.parameters)
    return sorted(argument.name for argument in likelihood.arguments)


def _unnamed(what: str) -> ValueError:
    return ValueError(
        f"save names the parts of a model by class, and {what} is not one of pgmodels or NumPyro by itself: use pickle "
        "(pickle.dump), which takes such parts too."
    )
