"""A model as plain text and numbers: its components by class name, so that files hold no code."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from pgmodels.kernels.columns import Difference, On
from pgmodels.kernels.coregion import Coregion
from pgmodels.kernels.kernel import Kernel, Product, Sum
from pgmodels.kernels.line import Line
from pgmodels.kernels.others import Constant, Cosine, Linear, Periodic, White
from pgmodels.kernels.random_walk import RandomWalk
from pgmodels.kernels.sphere import Sphere
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from pgmodels.likelihoods import bounded, counts, measurements, ordinal, published, survival
from pgmodels.likelihoods import named as likelihoods
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, trace
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import Hashable, Parameter
from pgmodels.parameters.restricted import Within, sd
from pgmodels.priors.hilbert.representation import Hilbert
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.priors.markov.representation import Markov
from pgmodels.priors.representation import Auto, Dense, Representation
from pgmodels.results.stored_names import field_of, stored_class, stored_field
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.x64 import as_array

# Values that JSON can hold.
Description: TypeAlias = Any

_KERNELS: dict[str, type[Kernel]] = {
    stored_class(cls): cls
    for cls in (
        RBF,
        Matern12,
        Matern32,
        Matern52,
        RationalQuadratic,
        Periodic,
        Cosine,
        RandomWalk,
        Line,
        Linear,
        Constant,
        White,
        On,
        Sphere,
        Difference,
        Coregion,
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
        measurements.KnownNoise,
        measurements.CensoredGaussian,
        counts.Poisson,
        counts.NegativeBinomial2,
        counts.ZeroInflatedPoisson,
        counts.ZeroInflatedNegativeBinomial,
        counts.HurdlePoisson,
        counts.HurdleNegativeBinomial,
        counts.BetaBinomial,
        bounded.Gamma,
        bounded.LogNormal,
        bounded.Beta,
        published.known_noise,
        published.gpc_1_labels,
        published.gpc_2_labels,
        published.gpc_3_labels,
        published.gpc_1_classes,
        published.gpc_2_classes,
        published.gpc_3_classes,
    )
}
# Likelihoods by number of classes, and how many more classes than latents they have.
_SIZED: dict[str, tuple[Callable[..., Likelihood], int]] = {
    "Softmax": (likelihoods.Softmax, 0),
    "RobustMax": (likelihoods.RobustMax, 0),
    "MultinomialProbit": (likelihoods.MultinomialProbit, 0),
    "LogisticSoftmax": (likelihoods.LogisticSoftmax, 0),
    "StickBreaking": (likelihoods.StickBreaking, 1),
}
# Likelihoods by options and parameters.
_WITH_OPTIONS: dict[str, Callable[..., Likelihood]] = {
    "Ordinal": ordinal.Ordinal,
    "Weibull": survival.Weibull,
    "LogLogistic": survival.LogLogistic,
}
_REPRESENTATIONS: dict[str, type[Representation]] = {
    stored_class(cls): cls for cls in (Auto, Dense, Hilbert, Inducing, Markov)
}


# Constraints with bounds, of numpyro.distributions.constraints.
_BOUNDED = ("interval", "greater_than", "less_than")


def describe(model: Model) -> Description:
    """A model as values that JSON can hold. Raises ValueError for a component not of pgmodels or NumPyro."""
    return {
        "likelihood": _describe_likelihood(model.likelihood, model.num_latents),
        "gps": [
            {
                "kernel": _describe_kernel(gp.kernel),
                "mean": _describe_parameter(gp.mean, "mean"),
                "size": gp.size,
                "form": _describe_representation(gp.form),
            }
            for gp in model.gps
        ],
    }


def build_gps(description: Description) -> list[GP]:
    """The GPs of a model's description."""
    return [
        GP(
            _build_kernel(entry["kernel"]),
            mean=_build_parameter(entry["mean"]),
            size=entry["size"],
            form=_build_representation(entry["form"]),
        )
        for entry in description["gps"]
    ]


def _describe_kernel(kernel: Kernel) -> Description:
    name = stored_class(type(kernel))
    if _KERNELS.get(name) is not type(kernel):
        raise _unnamed(f"the kernel {kernel!r}")
    values = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    # Columns without names are as in older files.
    values = {key: value for key, value in values.items() if value is not None}
    return {
        "class": name,
        "fields": {stored_field(n): _describe_field(value, f"{n} of {name}") for n, value in values.items()},
    }


def _describe_field(value: Kernel | Parameter | int | tuple[int | str, ...], name: str) -> Description:
    if isinstance(value, Kernel):
        return _describe_kernel(value)
    if isinstance(value, Parameter):
        return _describe_parameter(value, name)
    return value if isinstance(value, int) else list(value)


def _build_kernel(description: Description) -> Kernel:
    values: dict[str, Any] = {field_of(name): _build_field(value) for name, value in description["fields"].items()}
    cls: Any = _KERNELS[description["class"]]
    return On.of_names(**values) if cls is On and "names" in values else cls(**values)


def _build_field(description: Description) -> Kernel | Parameter | int | list[int] | list[str]:
    if isinstance(description, int | list):
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
    if prior is not None and prior.shape() != np.shape(value):
        raise ValueError(f"a prior of shape {prior.shape()} is of a parameter of shape {np.shape(value)}")
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
    """A NumPyro constraint by its name, or by its class and bounds."""
    for known, value in vars(constraints).items():
        if isinstance(value, Constraint) and type(value) is type(constraint) and value == constraint:
            return {"name": known}
    bounds = {key: getattr(constraint, key) for key in ("lower_bound", "upper_bound") if hasattr(constraint, key)}
    for known in _BOUNDED:
        if getattr(constraints, known) is type(constraint):
            return {"class": known, "bounds": {key: float(value) for key, value in bounds.items()}}
    raise _unnamed(f"the constraint {constraint} of {name}")


def _build_constraint(description: Description) -> Constraint:
    if "name" in description:
        constraint = getattr(constraints, description["name"])
        if not isinstance(constraint, Constraint):
            raise ValueError(f"{description['name']} is not a constraint of NumPyro")
        return constraint
    if description["class"] not in _BOUNDED:
        raise ValueError(f"{description['class']} is not a constraint with bounds")
    return getattr(constraints, description["class"])(**description["bounds"])


def _describe_prior(prior: Hashable, name: str) -> Description:
    """A prior by its class, arguments and floating-point precision.

    Raises ValueError if these do not rebuild it: some distributions transform their arguments.
    """
    distribution = _describe_argument(prior.distribution, name)
    for double in (True, False):
        described = {"double": double, "distribution": distribution}
        if Hashable(_build_prior(described)) == prior:
            return described
    raise _unnamed(name)


def _describe_argument(value: Any, name: str) -> Description:
    """A NumPyro distribution by its class and arguments, or one such argument."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return {"dtype": str(value.dtype), "values": np.asarray(value).tolist()}
    if isinstance(value, tuple):
        return [int(entry) for entry in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    kind = type(value)
    if not isinstance(value, dist.Distribution) or _distribution(kind.__name__) is not kind:
        raise _unnamed(name)
    arguments = [argument for argument in inspect.signature(kind).parameters if argument != "validate_args"]
    if not all(hasattr(value, argument) for argument in arguments):
        raise _unnamed(name)
    return {
        "class": kind.__name__,
        "arguments": {argument: _describe_argument(getattr(value, argument), name) for argument in arguments},
    }


def _distribution(name: str) -> Any:
    """The class of a distribution of pgmodels or NumPyro; None if there is none."""
    return sd if name == sd.__name__ else getattr(dist, name, None)


def _build_prior(description: Description) -> dist.Distribution:
    return _build_argument(description["distribution"], description["double"])


def _build_argument(description: Description, double: bool) -> Any:
    if isinstance(description, list):
        return tuple(description)
    if not isinstance(description, dict):
        return description
    if "dtype" in description:
        if np.dtype(description["dtype"]).kind not in "biuf":
            raise ValueError(f"an argument of a prior is of type {shorten(description['dtype'])}")
        with jax.enable_x64(True):
            return as_array(np.asarray(description["values"], dtype=description["dtype"]))
    kind = _distribution(description["class"])
    if not (isinstance(kind, type) and issubclass(kind, dist.Distribution)):
        raise ValueError(f"{description['class']} is not a distribution of NumPyro or pgmodels")
    arguments = {name: _build_argument(value, double) for name, value in description["arguments"].items()}
    with jax.enable_x64(double):
        return kind(**arguments)


def _describe_representation(form: Representation) -> Description:
    name = stored_class(type(form))
    if _REPRESENTATIONS.get(name) is not type(form):
        raise _unnamed(f"the form {form!r}")
    values = {field.name: getattr(form, field.name) for field in fields(form) if field.init}  # type: ignore[arg-type]
    return {"class": name, "fields": {stored_field(name): value for name, value in values.items()}}


def _build_representation(description: Description) -> Representation:
    arguments = {field_of(name): value for name, value in description["fields"].items()}
    return _REPRESENTATIONS[description["class"]](**arguments)


def _describe_likelihood(likelihood: Likelihood, size: int) -> Description:
    name, options = likelihood.name, dict(likelihood.options)
    described = {
        "name": name,
        "named": _named(name, likelihood.parameters, size, options) == likelihood,
        "parameters": {p: _describe_parameter(value, f"{p} of {name}") for p, value in likelihood.parameters.items()},
        "formulas": _formulas(likelihood, size),
    }
    return described | ({"options": options} if options else {})


def _formulas(likelihood: Likelihood, size: int) -> dict[str, list[str]]:
    """The formulas and support of a likelihood as text, with digests, since the text rounds numbers."""
    roles = {
        "formula": likelihood.function,
        "mean": likelihood.conditional_mean,
        "variance": likelihood.conditional_variance,
    }
    traced = {role: trace(function, size, likelihood.symbols) for role, function in roles.items() if function}
    digests = {role: hashlib.sha256(repr(formula.key).encode()).hexdigest() for role, formula in traced.items()}
    texts = {role: [formula.text(), digests[role]] for role, formula in traced.items()}
    support = likelihood.declared_support
    return texts if support is None else texts | {"support": [repr(support), ""]}


def _named(name: str, parameters: dict[str, Parameter], size: int, options: Mapping[str, Any]) -> Likelihood | None:
    """The likelihood of pgmodels with this name, these parameters and options, None if there is none."""
    largest = 1 + max((np.size(parameter.value) for parameter in parameters.values()), default=0)
    if any(type(option) is int and option > largest for option in options.values()):
        raise ValueError(
            f"the options of {name}, {shorten(dict(options))}, do not fit its parameters: pass an unchanged file"
        )
    if name in _WITH_OPTIONS:
        build_named, values = _WITH_OPTIONS[name], {**options, **parameters}
        return build_named(**values) if set(inspect.signature(build_named).parameters) == set(values) else None
    if name in _SIZED:
        constructor, more = _SIZED[name]
        _, *arguments = inspect.signature(constructor).parameters
        if size + more < 2 or sorted(arguments) != sorted(parameters):
            return None
        return constructor(size + more, **parameters)
    family = _FAMILIES.get(name)
    if family is None or _arguments(family) != sorted(parameters):
        return None
    return family(**parameters)


def build_likelihood(description: Description, argument: Likelihood | LikelihoodFamily | None, size: int) -> Likelihood:
    """The likelihood of a model's description with ``size`` latents; ``argument`` is needed for a custom formula.

    Raises ValueError if it is missing or differs from the saved one.
    """
    description = description["likelihood"]
    name, saved = description["name"], description["formulas"]
    parameters = {p: _build_parameter(value) for p, value in description["parameters"].items()}
    options = description.get("options", {})
    likelihood = _named(name, parameters, size, options) if argument is None and description["named"] else argument
    if not isinstance(likelihood, (Likelihood, LikelihoodFamily)):
        fault = f"got {shorten(argument)}" if argument is not None else "files hold no code"
        raise ValueError(
            f"the likelihood {name} has a custom formula, {saved['formula'][0]}, and {fault}: pass the likelihood "
            f"or its family, as in pgm.load(path, likelihood={name})."
        )
    if _arguments(likelihood) != sorted(parameters):
        raise ValueError(
            f"likelihood has the parameters {_arguments(likelihood)}, but the saved one, {name}, has "
            f"{sorted(parameters)}: pass the likelihood as it was when the result was saved."
        )
    if isinstance(likelihood, LikelihoodFamily):
        likelihood = likelihood(**parameters)
    likelihood = replace(likelihood, parameters=parameters)
    passed = _formulas(likelihood, size)
    for role in [role for role in {**saved, **passed} if saved.get(role) != passed.get(role)]:
        texts = [formulas[role][0] if role in formulas else "none" for formulas in (passed, saved)]
        digits = ", in digits that are not shown" if texts[0] == texts[1] else ""
        raise ValueError(
            f"the {role} of likelihood is {texts[0]}, but the saved one is {texts[1]}{digits}: pass the likelihood "
            f"{name} as it was when the result was saved."
        )
    return likelihood


def _arguments(likelihood: Likelihood | LikelihoodFamily) -> list[str]:
    """The names of the likelihood's parameters, sorted."""
    if isinstance(likelihood, Likelihood):
        return sorted(likelihood.parameters)
    return sorted(argument.name for argument in likelihood.arguments)


def _unnamed(what: str) -> ValueError:
    return ValueError(
        f"save stores the components of a model by class name, and {what} is not a class of pgmodels or NumPyro: use "
        "pickle (pickle.dump), which takes custom classes too."
    )
