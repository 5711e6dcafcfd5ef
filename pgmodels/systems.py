"""The systems of five papers under their own names, each a row of a table: paper, likelihood, engine, defaults.

Source: Wenzel et al. 2019; Galy-Fajou et al. 2019; Liu et al. 2019; Passerello 2021; Izmailov and Kropotov 2017.
"""

import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter as Argument
from inspect import Signature, signature
from os import PathLike
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_inputs, as_numbers, check_finite, check_whole_number
from pgmodels.inference.fit import fit
from pgmodels.inference.loop import Callback
from pgmodels.inference.svi import svi as stochastic_vi
from pgmodels.kernels.kernel import Kernel, median_distance
from pgmodels.kernels.others import White
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.likelihoods.named import (
    Bernoulli,
    Gaussian,
    LogisticSoftmax,
    MultinomialProbit,
    Probit,
    RobustMax,
    Softmax,
    gpc_1_classes,
    gpc_1_labels,
    gpc_2_classes,
    gpc_2_labels,
    gpc_3_classes,
    gpc_3_labels,
    known_noise,
)
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import Fixed, Parameter, as_declared
from pgmodels.priors.inducing import Inducing
from pgmodels.runtime.seeds import Seed

__all__ = [
    "gpc_1", "gpc_2", "gpc_3", "gpc_sm", "hgpr", "logistic_softmax", "merged", "multinomial_probit", "pgpr",
    "robust_max", "sgpr", "softmax", "svgp", "svgpc", "svi", "vi_jj", "vi_jj_full", "vi_jj_hybrid", "vi_taylor",
    "x_gpc",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


class Options(TypedDict, total=False):
    """Options of each system, passed on to its engine: the seed, and whether to show a progress bar."""

    seed: Seed
    progress: bool | None


class StochasticOptions(Options, total=False):
    """Options of the systems that ``pgm.svi`` runs, passed on to ``pgm.svi``."""

    max_epochs: int | None
    checkpoint: str | PathLike[str] | None
    callback: Callback | None


# The arguments of systems in their order: annotation, type and meaning. A row's ``meanings`` replace these meanings.
_ARGUMENTS: dict[str, tuple[Any, str, str]] = {
    "X": (ArrayLike, "array_like, shape (n, d)", "Inputs."),
    "y": (ArrayLike, "array_like, shape (n,)", "Labels 0 and 1."),
    "noise_variance": (ArrayLike, "array_like, shape (n,)", "Noise variances, positive."),
    "likelihood": (
        Likelihood | None,
        "Likelihood, optional",
        "By default Bernoulli; any likelihood with an augmentation and one latent.",
    ),
    "num_classes": (int | None, "int, optional", "Number of classes; by default the largest class in y plus one."),
    "bound": (
        Literal["factorised", "augmented"],
        '{"factorised", "augmented"}',
        '``"factorised"`` is the published bound. ``"augmented"`` is the tighter bound of this package, which keeps a '
        "datum's auxiliary variables together.",
    ),
    "error": (float, "float", "The error rate δ, or its start value."),
    "learn_error": (bool, "bool", "Whether the error rate is learned with the hyperparameters."),
    "shared": (bool, "bool", "Whether all classes have the same hyperparameters and inducing inputs."),
    "select": (
        Literal["uniform", "kmeans", "GV", "HGV"],
        '{"uniform", "kmeans", "GV", "HGV"}',
        "How inducing inputs are selected: see ``pgm.Inducing``.",
    ),
    "train_inducing": (bool, "bool", "Whether inducing inputs are learned by gradient."),
    "kernel": (Kernel | None, "Kernel, optional", "By default ``RBF()``, with one lengthscale."),
    "num_inducing": (int, "int", "Number of inducing inputs, centres of k-means."),
    "batch_size": (int, "int", "Rows per step; all rows if there are fewer."),
    "class_batch_size": (int | None, "int, optional", "Classes per step, as in ``pgm.svi``; by default all."),
}
# Options of an engine that its systems accept, and the type of its result.
_ENGINES: dict[Callable[..., Any], tuple[type, str, str]] = {
    fit: (Options, "``seed`` and ``progress``, as in ``pgm.fit``.", "Approximation"),
    stochastic_vi: (
        StochasticOptions,
        "``seed``, ``progress``, ``max_epochs``, ``checkpoint`` and ``callback``, as in ``pgm.svi``.",
        "Approximation or SparseApproximation\n    The result of ``pgm.svi`` for the objective.",
    ),
}
_DOCSTRING = """{summary}

Parameters
----------
{parameters}
**options
    {options}

Returns
-------
{returns}
{notes}
References
----------
{source}
"""
_Result = TypeVar("_Result")
_Values = Mapping[str, Any]


def _system(
    name: str,
    summary: str,
    source: str,
    likelihood: Callable[[_Values], Likelihood],
    objective: str,
    *,
    engine: Callable[..., _Result],
    kernel: Callable[[ArrayLike], Kernel],
    defaults: Mapping[str, Any],
    meanings: Mapping[str, str],
    notes: str = "",
    select: str = "kmeans",
    **fixed: Any,
) -> Callable[..., _Result]:
    """Return the function of a table row: an engine with ``fixed`` options, for the model of its arguments."""
    accepted = signature(engine)
    options_type, options_text, returns = _ENGINES[engine]

    def system(*args: Any, **kwargs: Any) -> _Result:
        bound = as_documented.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        X, y = values["X"], values["y"]
        if "num_classes" in values:
            values["num_classes"] = _count_classes(y, values["num_classes"])
        if "noise_variance" in values:
            values["y"] = _with_noise_variance(y, values["noise_variance"])
        formula = likelihood(values)
        # A formula for any number of classes has a latent for each class.
        size = (formula.num_latents or values["num_classes"]) if "num_classes" in values else 1
        gp_kernel = kernel(X) if values["kernel"] is None else values["kernel"]
        gp = partial(GP, gp_kernel, form=Inducing(values["num_inducing"], values.get("select", select)))
        gps = [gp(size=size)] if values.get("shared", True) else [gp() for _ in range(size)]
        passed_on = {argument: value for argument, value in values.items() if argument in accepted.parameters}
        chosen = values.get("bound", objective)
        return engine(Model(formula, gps), objective=chosen, **passed_on, **fixed, **values["options"])

    parameters, texts = [], []
    for argument, (annotation, kind, text) in _ARGUMENTS.items():
        if argument in defaults or argument in ("X", "y"):
            default = defaults.get(argument, Argument.empty)
            place = Argument.POSITIONAL_OR_KEYWORD if default is Argument.empty else Argument.KEYWORD_ONLY
            parameters.append(Argument(argument, place, default=default, annotation=annotation))
            meaning = textwrap.fill(meanings.get(argument, text), 112)
            texts.append(f"{argument} : {kind}\n{textwrap.indent(meaning, '    ')}")
    parameters.append(Argument("options", Argument.VAR_KEYWORD, annotation=Unpack[options_type]))
    as_documented = Signature(parameters, return_annotation=accepted.return_annotation)
    system.__signature__ = as_documented  # type: ignore[attr-defined]
    system.__name__ = system.__qualname__ = name
    system.__doc__ = _DOCSTRING.format(
        summary=summary,
        parameters="\n".join(texts),
        options=options_text,
        returns=returns,
        notes=f"\nNotes\n-----\n{textwrap.fill(notes, 116)}\n" if notes else "",
        source=source,
    )
    return system


def _count_classes(y: ArrayLike, num_classes: int | None) -> int:
    """Return the number of classes, by default the largest label plus one. Raise ValueError for invalid labels."""
    labels = as_numbers(y, "y")
    check_finite(labels, "y")
    if labels.ndim != 1 or not labels.size or np.any(labels < 0) or np.any(labels % 1):
        raise ValueError(
            "y must have shape (n,) and hold the classes 0, 1, ...: use numpy.unique(y, return_inverse=True)[1]."
        )
    count = max(2, int(labels.max()) + 1) if num_classes is None else num_classes
    check_whole_number(count, "num_classes", 2)
    return count


def _with_noise_variance(y: ArrayLike, noise_variance: ArrayLike) -> np.ndarray:
    columns = [as_numbers(y, "y"), as_numbers(noise_variance, "noise_variance")]
    for name, column in zip(("y", "noise_variance"), columns, strict=True):
        if column.shape != (len(columns[0]),):
            raise ValueError(f"{name} must have shape (n,), one number per row of X; got shape {column.shape}.")
    return np.column_stack(columns)


def ard(X: ArrayLike) -> RBF:
    """Return an RBF kernel with a lengthscale for each column of X, all starting at the median distance."""
    inputs = as_inputs(X, "X")
    return RBF(lengthscale=np.full(inputs.shape[1], float(median_distance(inputs))))


_CENTRES = "Number of inducing inputs, centres of k-means"
_TRAINED = f"{_CENTRES} at the start, learned with the hyperparameters by Adam."
_NOISY_KERNEL = "By default ``RBF() + White()``, with one lengthscale."
_NATURAL_GRADIENTS = "Deviation from print: q moves by natural gradients instead of Adam."

# Wenzel et al. 2019.
_wenzel = partial(
    _system,
    engine=stochastic_vi,
    kernel=lambda X: RBF() + White(),
    defaults={"kernel": None, "num_inducing": 100, "batch_size": 100},
    meanings={"kernel": _NOISY_KERNEL, "num_inducing": _TRAINED},
    train_hyperparameters=True,
    train_inducing=True,
)
x_gpc = _wenzel(
    "x_gpc",
    "X-GPC: GP classification by Pólya-Gamma augmentation, inducing inputs and natural gradients on minibatches.",
    "Wenzel et al. 2019, sections 3 and 4.",
    lambda values: Bernoulli(),
    "augmented",
    notes="Deviations from print: step sizes decrease by Robbins and Monro's rule. The published adaptive rate of "
    'Ranganath et al. 2013 was measured to decrease too soon; ``pgm.svi(rate="adaptive")`` has it. Steps end by a test '
    "of the averages of q instead of a window of 5 steps.",
)
svgpc = _wenzel(
    "svgpc",
    "SVGPC: sparse variational GP classification with the probit link, by quadrature on minibatches.",
    "Hensman, Matthews and Ghahramani 2015; Wenzel et al. 2019, section 5.",
    lambda values: Probit(),
    "expected",
    notes=_NATURAL_GRADIENTS,
)

# Galy-Fajou et al. 2019.
_CLASSES = {"num_classes": None, "shared": True, "kernel": None, "num_inducing": 200, "batch_size": 200}
_CLASSES_TEXTS = {
    "y": "Classes 0, 1, ...",
    "kernel": "By default RBF with a lengthscale for each column, all starting at the median distance.",
    "num_inducing": f"{_CENTRES}, which stay in place.",
    "error": "Start value of the probability that y is not the class of the largest latent; it is learned.",
}
_galy_fajou = partial(
    _system, engine=stochastic_vi, kernel=ard, defaults=_CLASSES, meanings=_CLASSES_TEXTS, train_hyperparameters=True
)
logistic_softmax = _galy_fajou(
    "logistic_softmax",
    "GP classification with the logistic-softmax likelihood, by conditionally conjugate variational inference.",
    "Galy-Fajou et al. 2019, sections 3 and 4 and algorithm 1.",
    lambda values: LogisticSoftmax(values["num_classes"]),
    "factorised",
    defaults=_CLASSES | {"bound": "factorised"},
    notes="Deviation from print: steps are convex combinations of natural parameters instead of means and covariances.",
)
softmax = _galy_fajou(
    "softmax",
    "GP classification with the softmax likelihood, on its expected log density by randomised quadrature.",
    "Galy-Fajou et al. 2019, equation 2 and section 5.",
    lambda values: Softmax(values["num_classes"]),
    "expected",
)
robust_max = _galy_fajou(
    "robust_max",
    "GP classification with the robust-max likelihood, on its expected log density in closed form.",
    "Hensman et al. 2015; Galy-Fajou et al. 2019, equation 3, whose ε is ``error`` C / (C - 1) for C classes.",
    lambda values: RobustMax(values["num_classes"], values["error"]),
    "expected",
    defaults=_CLASSES | {"error": 1e-3},
)
multinomial_probit = _galy_fajou(
    "multinomial_probit",
    "GP classification with the multinomial probit likelihood, by conditionally conjugate variational inference.",
    "Albert and Chib 1993; Girolami and Rogers 2006, whom Galy-Fajou et al. 2019 name.",
    lambda values: MultinomialProbit(values["num_classes"]),
    "augmented",
    notes="Deviation from print: inducing inputs, steps on batches of rows, and hyperparameters that maximise the "
    "bound.",
)


# Liu et al. 2019.
def _with_errors(labels: LikelihoodFamily, classes: LikelihoodFamily) -> Callable[[_Values], Likelihood]:
    """Return a function that makes the likelihood of two classes, or of more, with an error rate."""

    def likelihood(values: _Values) -> Likelihood:
        count, error = values["num_classes"], values["error"]
        from numpyro.distributions.constraints import interval

        rate = Parameter(1e-3, constraint=interval(0.0, (count - 1) / count))
        family = labels if count == 2 else classes
        return family(as_declared(error if values["learn_error"] else Fixed(error), rate, "error", positive=False))

    return likelihood


_FEW_OR_MANY = {"num_classes": None, "kernel": None, "num_inducing": 300, "batch_size": 1024}
_FEW_OR_MANY_TEXTS = {
    "y": "Classes 0, 1, ...",
    "kernel": "By default RBF with lengthscale 0.1 √d and variance 5, start values for standardised inputs; d is the "
    "number of columns of X.",
    "num_inducing": _TRAINED,
}
_liu = partial(
    _system,
    engine=stochastic_vi,
    kernel=lambda X: RBF(variance=5.0, lengthscale=0.1 * np.sqrt(as_inputs(X, "X").shape[1])),
    meanings=_FEW_OR_MANY_TEXTS,
    train_hyperparameters=True,
    train_inducing=True,
)
_noisy = partial(
    _liu,
    source="Liu et al. 2019, sections II and III.",
    objective="additive_noise",
    defaults=_FEW_OR_MANY | {"error": 1e-3, "learn_error": True},
    meanings=_FEW_OR_MANY_TEXTS | {"y": "Classes 0, 1, ...; with two classes the model has one latent."},
    notes=_NATURAL_GRADIENTS,
)
gpc_1 = _noisy(
    "gpc_1",
    "GPC-I: the class of the largest latent, or the sign of one, without noise and with an error rate.",
    likelihood=_with_errors(gpc_1_labels, gpc_1_classes),
)
gpc_2 = _noisy(
    "gpc_2",
    "GPC-II: as GPC-I, with standard normal noise of the latents, as in the probit likelihood.",
    likelihood=_with_errors(gpc_2_labels, gpc_2_classes),
)
gpc_3 = _noisy(
    "gpc_3",
    "GPC-III: as GPC-I, with nearly logistic noise of the latents, normal with variance 2.897.",
    likelihood=_with_errors(gpc_3_labels, gpc_3_classes),
)
gpc_sm = _liu(
    "gpc_sm",
    "GPC-sm: the softmax likelihood by its bound with Gumbel noise, with a latent for each class, also for two.",
    "Liu et al. 2019, section III; equation 24 for steps on some of the rows and classes.",
    lambda values: Softmax(values["num_classes"]),
    "gumbel",
    defaults=_FEW_OR_MANY | {"class_batch_size": None},
    notes="Deviations from print: q moves by natural gradients instead of Adam. With ``class_batch_size``, θ_i of "
    "equation 24, one number per row, is S0(x_i) exp(v / 2 - m), with m and v of the row's class and log S0 affine in "
    "the prior's factor at x_i; see the notes of ``pgm.svi``.",
)


# Passerello 2021.
def _gaussian(values: _Values) -> Likelihood:
    observed = as_numbers(values["y"], "y")
    check_finite(observed, "y")
    # The start value of the noise is half of the variance of y.
    return Gaussian(float(np.std(observed)) / np.sqrt(2.0) or 1.0)


_INDUCING = {"kernel": None, "num_inducing": 100}
_VALUES_TEXTS = {"y": "Observations.", "num_inducing": "Number of inducing inputs."}
_passerello = partial(
    _system, engine=fit, kernel=lambda X: RBF(), meanings={"num_inducing": "Number of inducing inputs."}, correct=False
)
sgpr = _passerello(
    "sgpr",
    "SGPR: Gaussian-process regression with inducing inputs by the collapsed bound.",
    "Titsias 2009; Passerello 2021, section 2.",
    _gaussian,
    "augmented",
    defaults=_INDUCING | {"select": "kmeans"},
    meanings=_VALUES_TEXTS,
)
hgpr = _passerello(
    "hgpr",
    "HGPR: as SGPR, with a known noise variance of each observation.",
    "Passerello 2021, section 3.",
    lambda values: known_noise(),
    "augmented",
    defaults=_INDUCING | {"noise_variance": Argument.empty, "select": "HGV"},
    meanings=_VALUES_TEXTS,
    notes="``pgm.inducing_gap`` of the result has the upper bound of its log evidence.",
)
pgpr = _passerello(
    "pgpr",
    "PGPR: GP classification by the collapsed Pólya-Gamma bound, for labels 0 and 1.",
    "Passerello 2021, section 4.",
    lambda values: Bernoulli(),
    "augmented",
    defaults=_INDUCING | {"select": "HGV", "train_inducing": False},
    notes='With ``train_inducing`` it is "PGPR GO".',
)
svgp = _passerello(
    "svgp",
    "SVGP with the logistic likelihood by quadrature, for labels 0 and 1.",
    "Hensman, Matthews and Ghahramani 2015; Passerello 2021, section 5.",
    lambda values: Bernoulli(),
    "expected",
    defaults=_INDUCING | {"select": "kmeans", "train_inducing": False},
    notes='With ``train_inducing`` it is "SVGP GO". Deviation from print: q is at its optimum for all hyperparameters '
    "instead of being optimised jointly with them.",
)
merged = _passerello(
    "merged",
    "The merged model: inducing inputs by the precisions of PGPR's sites, and q and hyperparameters of SVGP.",
    "Passerello 2021, section 7.1.2.",
    lambda values: Bernoulli(),
    "expected",
    defaults=_INDUCING,
    select="merged",
    notes="Deviation from print: inputs are kept only if they raise the ELBO.",
)

# Izmailov and Kropotov 2017.
_LOCAL = {"likelihood": None, **_INDUCING}
_izmailov = partial(
    _system,
    likelihood=lambda values: values["likelihood"] or Bernoulli(),
    kernel=lambda X: RBF() + White(),
    defaults=_LOCAL,
    meanings={
        "y": "Labels 0 and 1, or observations of ``likelihood``, also of several columns.",
        "kernel": _NOISY_KERNEL,
    },
)
_izmailov_fitted = partial(_izmailov, engine=fit, correct=False)
vi_jj = _izmailov_fitted(
    "vi_jj",
    "vi-JJ: sweeps of the local parameters and few L-BFGS-B evaluations over the hyperparameters, in turns.",
    "Izmailov and Kropotov 2017, algorithm 1.",
    objective="augmented",
    scheme="alternating",
)
vi_jj_hybrid = _izmailov_fitted(
    "vi_jj_hybrid",
    "vi-JJ-hybrid: three sweeps, then L-BFGS-B over hyperparameters and local parameters jointly.",
    "Izmailov and Kropotov 2017, section 4.1.",
    objective="augmented",
    scheme="hybrid",
)
vi_jj_full = _izmailov_fitted(
    "vi_jj_full",
    "vi-JJ-full: L-BFGS-B over hyperparameters and local parameters jointly.",
    "Izmailov and Kropotov 2017, section 4.1.",
    objective="augmented",
    scheme="joint",
)
vi_taylor = _izmailov_fitted(
    "vi_taylor",
    "vi-Taylor: as vi-JJ, with a Taylor expansion of the log density about q's mean instead of the bound.",
    "Izmailov and Kropotov 2017, section 4.2.",
    objective="taylor",
    scheme="alternating",
    notes="``likelihood`` may be any without kinks and with one latent. ``.elbo`` of the result is Laplace's evidence, "
    "which is no bound; the hyperparameters do not maximise it (see ``pgm.fit``). Deviation from print: steps to the "
    "expansion at q's mean are halved if they lower the posterior density there.",
)
svi = _izmailov(
    "svi",
    "svi: stochastic variational inference on the expected log density by quadrature.",
    "Hensman, Matthews and Ghahramani 2015; Izmailov and Kropotov 2017, section 3.2.",
    objective="expected",
    engine=stochastic_vi,
    defaults=_LOCAL | {"batch_size": 100},
    train_hyperparameters=True,
    notes="Deviation from print: natural gradients for q and Adam for the hyperparameters, instead of AdaDelta for "
    "both.",
)
