"""Gaussian process models from the formula of their likelihood."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgmodels.runtime import interruption as _interruption

if _interruption.is_command():
    # The imports below take a second or more, in which a command may be interrupted too.
    _interruption.exit_on_interrupt()

from pgmodels import systems
from pgmodels.augmentation.errors import NoAugmentationError, VerificationError
from pgmodels.data.outputs import stack_outputs
from pgmodels.data.sources.array import ArrayRows
from pgmodels.data.sources.iterable import IterableRows
from pgmodels.data.sources.parquet import ParquetRows
from pgmodels.data.sources.rows import Rows
from pgmodels.derivation import Derivation, derive
from pgmodels.diagnostics.compare import Comparison, compare
from pgmodels.diagnostics.diagnose import Diagnosis, diagnose
from pgmodels.diagnostics.inducing_gap import InducingGap, inducing_gap
from pgmodels.diagnostics.leave_one_out import loo
from pgmodels.inference.adaptive_selection import InducingWarning
from pgmodels.inference.corrections.correct import correct
from pgmodels.inference.corrections.marginals import marginals
from pgmodels.inference.empirical_bayes.fit import FitWarning, fit
from pgmodels.inference.engine import ConvergenceWarning
from pgmodels.inference.evidence.integrate import integrate
from pgmodels.inference.evidence.log_evidence import Evidence, EvidenceWarning, log_evidence
from pgmodels.inference.jitter_check import PrecisionWarning, TruncationWarning
from pgmodels.inference.loop import IterationInfo
from pgmodels.inference.mcmc.chains import MixingWarning
from pgmodels.inference.mcmc.gibbs.driver import SamplingError
from pgmodels.inference.mcmc.gibbs.sampler import gibbs
from pgmodels.inference.prior_predictive import prior_predictive
from pgmodels.inference.stochastic.svi import svi
from pgmodels.inference.update import update
from pgmodels.inference.variational.vi import MeanFieldWarning, cavi, gaussian_vi, vi
from pgmodels.interop.arviz import InteropWarning, to_arviz
from pgmodels.kernels.columns import Difference, On
from pgmodels.kernels.coregion import Coregion
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.line import Line
from pgmodels.kernels.others import Constant, Cosine, Linear, Periodic, White
from pgmodels.kernels.random_walk import RandomWalk
from pgmodels.kernels.sphere import Sphere
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from pgmodels.likelihoods.additive import with_predictor
from pgmodels.likelihoods.bounded import Beta, Gamma, LogNormal
from pgmodels.likelihoods.censoring import Censored, Clipped, IntervalCensored, LeftTruncated
from pgmodels.likelihoods.counts import (
    BetaBinomial,
    HurdleNegativeBinomial,
    HurdlePoisson,
    NegativeBinomial2,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from pgmodels.likelihoods.functions import (
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
from pgmodels.likelihoods.functions import sum_ as sum
from pgmodels.likelihoods.likelihood import Likelihood, likelihood
from pgmodels.likelihoods.measurements import CensoredGaussian, KnownNoise
from pgmodels.likelihoods.named import (
    Bernoulli,
    Binomial,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    LogisticSoftmax,
    MultinomialProbit,
    NegativeBinomial,
    Probit,
    RobustMax,
    SigmoidPoisson,
    Softmax,
    StickBreaking,
    StudentT,
)
from pgmodels.likelihoods.ordinal import Ordinal
from pgmodels.likelihoods.pieces import Piece
from pgmodels.likelihoods.sampling import SamplingWarning
from pgmodels.likelihoods.supports import (
    Binary,
    Classes,
    Counts,
    Given,
    Positive,
    Real,
    SuccessesOfTrials,
    Support,
    UnitInterval,
)
from pgmodels.likelihoods.survival import LogLogistic, Weibull
from pgmodels.likelihoods.switched import SwitchedLikelihood
from pgmodels.model import GP, DataWarning, Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import Fixed, Parameter
from pgmodels.priors.hilbert.representation import Hilbert
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.priors.markov.representation import Markov
from pgmodels.priors.representation import Dense
from pgmodels.report.verdicts import Verdict, verdicts
from pgmodels.results.approximation import Approximation, CorrectedApproximation
from pgmodels.results.correction import CorrectionWarning
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.marginal import Marginal
from pgmodels.results.predictive import PredictionWarning, Predictive
from pgmodels.results.prior_predictive import PriorPredictive
from pgmodels.results.sparse import SparseApproximation
from pgmodels.results.storage import load
from pgmodels.runtime.installation import InstallationWarning
from pgmodels.runtime.warnings import PgmodelsWarning

if TYPE_CHECKING:
    from pgmodels.estimators import GPClassifier, GPRegressor
    from pgmodels.inference.evidence.numpyro_bound import numpyro_bound
    from pgmodels.inference.mcmc.gibbs.numpyro_kernel import GibbsKernel
    from pgmodels.inference.mcmc.gibbs.steps import gibbs_steps
    from pgmodels.inference.mcmc.nuts import DivergenceWarning, nuts
    from pgmodels.interop.log_density import log_density
    from pgmodels.interop.numpyro_guide import numpyro_guide
    from pgmodels.interop.numpyro_model import to_numpyro
    from pgmodels.parameters.restricted import sd
    from pgmodels.plots.auxiliaries import plot_auxiliaries
    from pgmodels.plots.calibration import plot_reliability
    from pgmodels.plots.chains import plot_convergence, plot_rank, plot_trace
    from pgmodels.plots.elbo import plot_elbo
    from pgmodels.plots.graph import plot_graph
    from pgmodels.plots.latents import plot_latent
    from pgmodels.plots.maps import plot_probability_map
    from pgmodels.plots.marginals import plot_densities, plot_marginals
    from pgmodels.plots.skewness import plot_skewness
    from pgmodels.regression.formula import FormulaWarning, formula
    from pgmodels.regression.saving import load_formula
    from pgmodels.workflow import Check, check

# The modules of what is imported at first use: matplotlib, NumPyro and scikit-learn are slow to load.
_LAZY = {
    "Check": "workflow",
    "check": "workflow",
    "DivergenceWarning": "inference.mcmc.nuts",
    "GPClassifier": "estimators",
    "GPRegressor": "estimators",
    "FormulaWarning": "regression.formula",
    "GibbsKernel": "inference.mcmc.gibbs.numpyro_kernel",
    "formula": "regression.formula",
    "load_formula": "regression.saving",
    "nuts": "inference.mcmc.nuts",
    "plot_auxiliaries": "plots.auxiliaries",
    "plot_convergence": "plots.chains",
    "plot_densities": "plots.marginals",
    "plot_elbo": "plots.elbo",
    "plot_graph": "plots.graph",
    "plot_latent": "plots.latents",
    "plot_marginals": "plots.marginals",
    "plot_probability_map": "plots.maps",
    "plot_rank": "plots.chains",
    "plot_reliability": "plots.calibration",
    "plot_skewness": "plots.skewness",
    "plot_trace": "plots.chains",
    "gibbs_steps": "inference.mcmc.gibbs.steps",
    "log_density": "interop.log_density",
    "numpyro_bound": "inference.evidence.numpyro_bound",
    "numpyro_guide": "interop.numpyro_guide",
    "sd": "parameters.restricted",
    "to_numpyro": "interop.numpyro_model",
}

__all__ = [
    "GP",
    "RBF",
    "Approximation",
    "ArrayRows",
    "Bernoulli",
    "Beta",
    "BetaBinomial",
    "Binary",
    "Binomial",
    "Censored",
    "CensoredGaussian",
    "Check",
    "Classes",
    "Clipped",
    "Comparison",
    "Constant",
    "ConvergenceWarning",
    "Coregion",
    "CorrectedApproximation",
    "CorrectionWarning",
    "Cosine",
    "Counts",
    "DataWarning",
    "Dense",
    "Derivation",
    "Diagnosis",
    "Difference",
    "DivergenceWarning",
    "Draws",
    "Evidence",
    "EvidenceWarning",
    "FitWarning",
    "Fixed",
    "FormulaWarning",
    "GPClassifier",
    "GPRegressor",
    "Gamma",
    "Gaussian",
    "GibbsKernel",
    "Given",
    "HeteroscedasticGaussian",
    "Hilbert",
    "HurdleNegativeBinomial",
    "HurdlePoisson",
    "Inducing",
    "InducingGap",
    "InducingWarning",
    "InstallationWarning",
    "IntegratedApproximation",
    "InteropWarning",
    "IntervalCensored",
    "IterableRows",
    "IterationInfo",
    "Kernel",
    "KnownNoise",
    "Laplace",
    "LeftTruncated",
    "Likelihood",
    "Line",
    "Linear",
    "LogLogistic",
    "LogNormal",
    "LogisticSoftmax",
    "Marginal",
    "Markov",
    "Matern12",
    "Matern32",
    "Matern52",
    "MeanFieldWarning",
    "MixingWarning",
    "Model",
    "MultinomialProbit",
    "NegativeBinomial",
    "NegativeBinomial2",
    "NoAugmentationError",
    "Objective",
    "On",
    "Ordinal",
    "Parameter",
    "ParquetRows",
    "Periodic",
    "PgmodelsWarning",
    "Piece",
    "Poisson",
    "Positive",
    "PrecisionWarning",
    "PredictionWarning",
    "Predictive",
    "PriorPredictive",
    "Probit",
    "RandomWalk",
    "RationalQuadratic",
    "Real",
    "RobustMax",
    "Rows",
    "SamplingError",
    "SamplingWarning",
    "SigmoidPoisson",
    "Softmax",
    "SparseApproximation",
    "Sphere",
    "StickBreaking",
    "StudentT",
    "SuccessesOfTrials",
    "Support",
    "SwitchedLikelihood",
    "TruncationWarning",
    "UnitInterval",
    "Verdict",
    "VerificationError",
    "Weibull",
    "White",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "cavi",
    "check",
    "compare",
    "correct",
    "derive",
    "diagnose",
    "exp",
    "fit",
    "formula",
    "gamma",
    "gaussian_vi",
    "gibbs",
    "gibbs_steps",
    "inducing_gap",
    "integrate",
    "largest",
    "likelihood",
    "load",
    "load_formula",
    "log",
    "log_density",
    "log_evidence",
    "loo",
    "marginals",
    "normal_cdf",
    "normal_pdf",
    "numpyro_bound",
    "numpyro_guide",
    "nuts",
    "plot_auxiliaries",
    "plot_convergence",
    "plot_densities",
    "plot_elbo",
    "plot_graph",
    "plot_latent",
    "plot_marginals",
    "plot_probability_map",
    "plot_rank",
    "plot_reliability",
    "plot_skewness",
    "plot_trace",
    "positions",
    "prior_predictive",
    "prod",
    "sd",
    "sigmoid",
    "sqrt",
    "stack_outputs",
    "step",
    "sum",
    "svi",
    "systems",
    "to_arviz",
    "to_numpyro",
    "update",
    "verdicts",
    "vi",
    "with_predictor",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"pgmodels.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
