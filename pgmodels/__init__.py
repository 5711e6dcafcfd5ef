"""Gaussian process models from the formula of their likelihood."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgmodels.runtime import exit_on_interrupt, is_command

if is_command():
    # The imports below take a second or more, in which a command may be interrupted too.
    exit_on_interrupt()

from pgmodels import systems
from pgmodels.augmentation.predictors import NoAugmentationError, VerificationError
from pgmodels.data.arrays import stack_outputs
from pgmodels.data.sources import ArrayRows, IterableRows, ParquetRows, Rows
from pgmodels.derivation import Derivation, derive
from pgmodels.diagnostics.compare import Comparison, compare, loo
from pgmodels.diagnostics.diagnose import Diagnosis, InducingGap, diagnose, inducing_gap
from pgmodels.inference.correct import correct, marginals
from pgmodels.inference.evidence import Evidence, EvidenceWarning, log_evidence
from pgmodels.inference.fit import FitWarning, fit
from pgmodels.inference.gibbs import MixingWarning, SamplingError, gibbs
from pgmodels.inference.integrate import integrate
from pgmodels.inference.loop import ConvergenceWarning, IterationInfo
from pgmodels.inference.prepare import InducingWarning, PrecisionWarning, TruncationWarning
from pgmodels.inference.prior_predictive import prior_predictive
from pgmodels.inference.svi import svi
from pgmodels.inference.update import batch, update
from pgmodels.inference.vi import MeanFieldWarning, cavi, gaussian_vi, vi
from pgmodels.interop.arviz import InteropWarning, to_arviz
from pgmodels.kernels.columns import Coregion, Difference, On, Sphere, Structured
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.others import Constant, Cosine, Linear, Periodic, RandomWalk, White
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from pgmodels.likelihoods.counts import (
    BetaBinomial,
    HurdleNegativeBinomial,
    HurdlePoisson,
    LogLogistic,
    NegativeBinomial2,
    Ordinal,
    Poisson,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from pgmodels.likelihoods.likelihood import Likelihood, likelihood
from pgmodels.likelihoods.modified import SwitchedLikelihood, with_predictor
from pgmodels.likelihoods.named import (
    Bernoulli,
    Beta,
    Binomial,
    CensoredGaussian,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    KnownNoise,
    Laplace,
    LogisticSoftmax,
    LogNormal,
    MultinomialProbit,
    NegativeBinomial,
    Probit,
    RobustMax,
    SigmoidPoisson,
    Softmax,
    StickBreaking,
    StudentT,
)
from pgmodels.likelihoods.operations import (
    cauchy_cdf,
    exp,
    gamma,
    largest,
    log,
    normal_cdf,
    normal_pdf,
    positions,
    prod,
    sigmoid,
    sqrt,
    step,
)
from pgmodels.likelihoods.operations import sum_ as sum
from pgmodels.likelihoods.sampling import SamplingWarning
from pgmodels.likelihoods.supports import (
    Binary,
    Censored,
    Classes,
    Clipped,
    Counts,
    Given,
    IntervalCensored,
    LeftTruncated,
    Piece,
    Positive,
    Real,
    SuccessesOfTrials,
    Support,
    UnitInterval,
)
from pgmodels.model import GP, DataWarning, Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import Fixed, Parameter
from pgmodels.priors.hilbert import Hilbert
from pgmodels.priors.inducing import Inducing
from pgmodels.priors.markov import Markov
from pgmodels.priors.representation import Dense
from pgmodels.report.verdicts import Verdict, verdicts
from pgmodels.results.approximation import Approximation, CorrectedApproximation
from pgmodels.results.draws import Draws, PriorPredictive
from pgmodels.results.gaussian import CorrectionWarning
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import SparseApproximation
from pgmodels.results.predictive import PredictionWarning, Predictive
from pgmodels.results.result import Marginal
from pgmodels.runtime.jit import InstallationWarning
from pgmodels.runtime.messages import PgmodelsWarning

if TYPE_CHECKING:
    from pgmodels.estimators import GPClassifier, GPRegressor
    from pgmodels.inference.numpyro import GibbsKernel, gibbs_steps, numpyro_bound
    from pgmodels.inference.nuts import DivergenceWarning, nuts
    from pgmodels.interop.numpyro import log_density, numpyro_guide, to_numpyro
    from pgmodels.parameters.prior import sd
    from pgmodels.plots.chains import plot_auxiliaries, plot_convergence, plot_elbo
    from pgmodels.plots.graph import plot_graph
    from pgmodels.plots.latents import plot_latent, plot_probability_map
    from pgmodels.plots.marginals import plot_densities, plot_marginals, plot_reliability, plot_skewness
    from pgmodels.regression.formula import FormulaWarning, formula, load_formula
    from pgmodels.results.storage import load
    from pgmodels.workflow import Check, check

# The modules of what is imported at first use: matplotlib, NumPyro and scikit-learn are slow to load.
_LAZY = {
    "Check": "workflow", "check": "workflow", "DivergenceWarning": "inference.nuts", "GPClassifier": "estimators",
    "GPRegressor": "estimators", "FormulaWarning": "regression.formula", "GibbsKernel": "inference.numpyro",
    "formula": "regression.formula", "load": "results.storage", "load_formula": "regression.formula",
    "nuts": "inference.nuts", "plot_auxiliaries": "plots.chains", "plot_convergence": "plots.chains",
    "plot_densities": "plots.marginals", "plot_elbo": "plots.chains", "plot_graph": "plots.graph",
    "plot_latent": "plots.latents", "plot_marginals": "plots.marginals", "plot_probability_map": "plots.latents",
    "plot_reliability": "plots.marginals", "plot_skewness": "plots.marginals", "gibbs_steps": "inference.numpyro",
    "log_density": "interop.numpyro", "numpyro_bound": "inference.numpyro", "numpyro_guide": "interop.numpyro",
    "sd": "parameters.prior", "to_numpyro": "interop.numpyro",
}  # fmt: skip

__all__ = [
    "GP", "RBF", "Approximation", "ArrayRows", "Bernoulli", "Beta", "BetaBinomial", "Binary", "Binomial", "Censored",
    "CensoredGaussian", "Check", "Classes", "Clipped", "Comparison", "Constant", "ConvergenceWarning", "Coregion",
    "CorrectedApproximation", "CorrectionWarning", "Cosine", "Counts", "DataWarning", "Dense", "Derivation",
    "Diagnosis", "Difference", "DivergenceWarning", "Draws", "Evidence", "EvidenceWarning", "FitWarning", "Fixed",
    "FormulaWarning", "GPClassifier", "GPRegressor", "Gamma", "Gaussian", "GibbsKernel", "Given",
    "HeteroscedasticGaussian", "Hilbert", "HurdleNegativeBinomial", "HurdlePoisson", "Inducing", "InducingGap",
    "InducingWarning", "InstallationWarning", "IntegratedApproximation", "InteropWarning", "IntervalCensored",
    "IterableRows", "IterationInfo", "Kernel", "KnownNoise", "Laplace", "LeftTruncated", "Likelihood", "Linear",
    "LogLogistic", "LogNormal", "LogisticSoftmax", "Marginal", "Markov", "Matern12", "Matern32", "Matern52",
    "MeanFieldWarning", "MixingWarning", "Model", "MultinomialProbit", "NegativeBinomial", "NegativeBinomial2",
    "NoAugmentationError", "Objective", "On", "Ordinal", "Parameter", "ParquetRows", "Periodic", "PgmodelsWarning",
    "Piece", "Poisson", "Positive", "PrecisionWarning", "PredictionWarning", "Predictive", "PriorPredictive", "Probit",
    "RandomWalk", "RationalQuadratic", "Real", "RobustMax", "Rows", "SamplingError", "SamplingWarning",
    "SigmoidPoisson", "Softmax", "SparseApproximation", "Sphere", "StickBreaking", "Structured", "StudentT",
    "SuccessesOfTrials", "Support", "SwitchedLikelihood", "TruncationWarning", "UnitInterval", "Verdict",
    "VerificationError", "Weibull", "White", "ZeroInflatedNegativeBinomial", "ZeroInflatedPoisson", "batch",
    "cauchy_cdf", "cavi", "check", "compare", "correct", "derive", "diagnose", "exp", "fit", "formula", "gamma",
    "gaussian_vi", "gibbs", "gibbs_steps", "inducing_gap", "integrate", "largest", "likelihood", "load", "load_formula",
    "log", "log_density", "log_evidence", "loo", "marginals", "normal_cdf", "normal_pdf", "numpyro_bound",
    "numpyro_guide", "nuts", "plot_auxiliaries", "plot_convergence", "plot_densities", "plot_elbo", "plot_graph",
    "plot_latent", "plot_marginals", "plot_probability_map", "plot_reliability", "plot_skewness", "positions",
    "prior_predictive", "prod", "sd", "sigmoid", "sqrt", "stack_outputs", "step", "sum", "svi", "systems", "to_arviz",
    "to_numpyro", "update", "verdicts", "vi", "with_predictor",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("pgmodels")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"pgmodels.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
