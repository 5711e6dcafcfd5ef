"""Gaussian approximations of the posterior."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number
from pgmodels.model import Model
from pgmodels.numerics.quadrature import chunk_length, equal_chunks
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import Sites, pad_rows, pad_sites, pad_zeros, padded_size
from pgmodels.priors.block_posterior import CorrectedGaussian, draw_deviations, draw_latents, move
from pgmodels.priors.collection import Marginals, Posterior, PriorCollection, factors_at
from pgmodels.results.gaussian import (
    GaussianPredictions,
    MixedPredictive,
    NormalDensity,
    ParameterUncertainty,
    RowMoments,
    added_moments,
    as_covariances,
    averaging,
    cubature,
    is_invalid,
    joint_covariance,
    mixing,
    nodes_at,
    require_variances,
    second_order_moments,
    shifts_at,
    warn_invalid,
    warn_skewed,
    with_shifts,
)
from pgmodels.results.predictive import (
    DrawNodes,
    GaussianNodes,
    IndependentNodes,
    Predictive,
    PredictorNodes,
    check_covariates,
)
from pgmodels.results.result import DataResult, Functions, GridDensity, LatentDraws, Result, entries, of_draws
from pgmodels.runtime.jit import compiled, require_draws
from pgmodels.runtime.precision import as_array
from pgmodels.runtime.seeds import Seed, as_generator, as_seed

if TYPE_CHECKING:
    import pandas as pd

# The note on the correction in the report of an uncorrected result of ``fit``.
BEFORE_CORRECTION = "none: this is the result before it"
# Nodes at new inputs. Arguments: a model, a term added to the latents' means (m, latents), and the shifts
# (k, m, latents) of the directions that are integrated over in addition to the latents.
NodesOf: TypeAlias = Callable[[Model, np.ndarray, np.ndarray], GaussianNodes]


@dataclass(frozen=True, eq=False)
class FitReport:
    """A report of how hyperparameters were learned.

    ``start`` names the chosen start, or the subset of rows of a warm start; ``start_elbos`` has the (penalised) ELBO at
    each start. ``values`` are the learned values by name, on the natural scale; they maximise ``density``.
    ``correction`` names the correction, or the reason why there is none. ``exceptions`` names the cases in which it is
    not reliable. ``intervals`` names the method for the parameters' uncertainty, or the reason why there is none.
    """

    start: str
    start_elbos: dict[str, float]
    values: dict[str, np.ndarray]
    num_steps: int
    num_evaluations: int
    converged: bool
    message: str
    correction: str = "none"
    exceptions: str = ""
    density: str = ""
    intervals: str = ""


class GaussianResult(GaussianPredictions, Result, ABC):
    """Base class of Gaussian approximations of the posterior, corrected or not: see Approximation."""

    if TYPE_CHECKING:
        elbo_trace: np.ndarray
        converged: bool
        tolerance: float
        objective: str
        custom_objective: Objective | None
        # Of corrected results: the number of invalid variances, and whether the covariance is positive definite.
        num_nonpositive: int
        is_positive: bool

        @property
        def fit(self) -> FitReport | Any:
            """The report of how hyperparameters were learned; None if they were not learned."""

        @property
        def uncorrected(self) -> "Approximation":
            """The result before its correction; the result itself if it is not corrected."""

    # The distribution that ``latent_draws`` draws from, in words.
    drawn_from: ClassVar[str] = "the Gaussian approximation q: independent draws, joint over data"
    # Whether ``gaussian`` is the Gaussian of linear response.
    has_response: ClassVar[bool] = False

    @property
    def conditional(self) -> "GaussianResult":
        return self

    @property
    def has_elbo(self) -> bool:
        return self.uncorrected is self or self.uncorrected.fit is not None

    @property
    @abstractmethod
    def nodes(self) -> GaussianNodes:
        """The nodes that integrate over the latents of each datum."""

    def draw_at_data(self, num_draws: int, seed: Seed = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return joint draws at the data, (draws, n, latents), and their whitened coordinates by group.

        Raises ValueError if moments were corrected without a joint density.
        """
        require_draws(num_draws, *self.mean.shape)
        return self._at_rows(*draw_latents(self.gaussian(), num_draws, as_seed(seed)))

    @abstractmethod
    def gaussian(self, share: float = 1.0) -> Posterior | CorrectedGaussian:
        """Return the joint Gaussian at the rows of the posterior.

        A ``share`` of the data's precisions below 1 widens it. Raises ValueError if there is none.
        """

    def draw_with_density(
        self, num_draws: int, seed: Seed = 0, share: float = 1.0
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray]:
        """Return draws at the data from ``gaussian(share)``, and their log densities (draws,) relative to the prior."""
        require_draws(num_draws, *self.mean.shape)
        gaussian = self.gaussian(share)
        f, coordinates = draw_latents(gaussian, num_draws, as_seed(seed))
        log_density = _log_density_ratio(gaussian, as_array(f), tuple(map(as_array, coordinates)))
        return *self._at_rows(f, coordinates), np.asarray(log_density)

    def require_covariance(self) -> None:
        """Raise ValueError for a correction without a joint covariance of the latents."""

    def latent_draws(self, num_draws: int, seed: int) -> LatentDraws:
        """Return one chain of independent draws at the data; ValueError if a corrected variance is not positive."""
        f, whitened, log_q = self.draw_with_density(num_draws, seed)
        return LatentDraws(f[None], self.drawn_from, tuple(v[None] for v in whitened), log_q[None])

    @cached_property
    def marginals(self) -> NormalDensity | GridDensity:
        """The marginals of the latents at the data, (n, latents): mean, variance, quantiles and pdf."""
        return NormalDensity(self.mean, self.variance)

    @property
    def prior(self) -> PriorCollection:
        return self.posterior.prior.resized(len(self.y))

    @property
    def sites(self) -> Sites:
        """The Gaussian factors of the data: potential (n, latents) and precision, see Sites."""
        return pad_sites(self.posterior.sites, len(self.y))

    @property
    def elbo(self) -> float:
        """The final evidence lower bound, in nats."""
        return float(self.elbo_trace[-1])

    @property
    def num_iterations(self) -> int:
        """The number of iterations; 1 for Gaussian data."""
        return max(1, len(self.elbo_trace) - 1)

    @property
    def shifts(self) -> Float[np.ndarray, "k n l"]:
        """The derivatives of the means at the data along the directions of the parameters' uncertainty."""
        return np.zeros((0, *self.mean.shape)) if self.uncertainty is None else self.uncertainty.shifts

    def shifts_at(self, X_new: ArrayLike) -> Float[np.ndarray, "k m l"]:
        """Return the derivatives of the means at new inputs along the directions of the parameters' uncertainty."""
        inputs = self._inputs_at(X_new)
        if self.uncertainty is None:
            return np.zeros((0, len(inputs), self.model.num_latents))
        width = self._num_across * self.model.num_latents
        chunks = equal_chunks(np.arange(len(inputs)), min(padded_size(len(inputs)), chunk_length(width)))
        prior = self.posterior.prior
        shifts = [shifts_at(self.uncertainty, self.model, self.X, prior, as_array(inputs[rows])) for rows in chunks]
        return np.concatenate(shifts, axis=1)[:, : len(inputs)]

    @cached_property
    def mixing(self) -> np.ndarray | None:
        """The Φ of predictors z = Φ f at the data, (n, predictors, latents); None if no factor combines latents."""
        Phi = mixing(self.model, self.y)
        return None if Phi is None else np.asarray(Phi)

    def predictor_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances under q of the latents or predictors that the likelihood's factors read."""
        if self.mixing is None or not isinstance(self.nodes, PredictorNodes):
            return self.mean, self.variance
        across = np.einsum("ipl,ilq->ipq", self.mixing, self.nodes.half)
        return np.einsum("ipl,il->ip", self.mixing, self.nodes.mean), np.sum(across**2, axis=-1)

    def _at_rows(self, f: np.ndarray, coordinates: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        ranks = [group.rank for group in self.prior.groups]
        return f[:, : len(self.y)], tuple(v[:, :rank] for v, rank in zip(coordinates, ranks, strict=True))


@final
@dataclass(eq=False, kw_only=True, repr=False)
class Approximation(DataResult, GaussianResult):
    """A Gaussian approximation q(f) of the posterior: the prior times Gaussian factors of the data.

    ``posterior`` holds q with its factorisation. Its rows are the rows of the data, followed by padding rows without
    sites (see pgmodels.priors.base). ``mean`` and ``variance`` are its marginals at the data, (n, latents).
    ``elbo_trace`` holds the ELBO at the start and after each iteration. ``objective`` names the terms of the ELBO: the
    derived bound of ``cavi``, or the expected log densities of ``gaussian_vi``. ``custom_objective`` is the objective
    if it was given as an object.
    """

    has_density = True

    posterior: Posterior
    mean: Float[np.ndarray, "n l"]
    variance: Float[np.ndarray, "n l"]
    elbo_trace: Float[np.ndarray, " iterations"]
    converged: bool
    tolerance: float
    # None for engines that learn nothing. The type is Any, so that scripts need not check ``pgm.fit`` for None.
    fit: FitReport | Any = None
    objective: str = "augmented"
    custom_objective: Objective | None = None

    @property
    def uncorrected(self) -> "Approximation":
        """The result itself, which has no correction."""
        return self

    def with_uncertainty(self, uncertainty: ParameterUncertainty | None) -> "Approximation | CorrectedApproximation":
        """Return the result with an uncertainty of its parameters; None holds the parameters."""
        if uncertainty is None:
            return self
        covariance = np.asarray(marginals_at_data(self.posterior)[1])[: len(self.y)]
        learned = LearnedApproximation(
            uncorrected=self, mean=self.mean, variance=self.variance, covariance=covariance, seconds=self.seconds,
            num_nonpositive=0,
        )  # fmt: skip
        return learned.with_uncertainty(uncertainty)

    @cached_property
    def nodes(self) -> GaussianNodes:
        if not self.posterior.is_coupled:
            return IndependentNodes(self.mean, self.variance)
        mean, covariance = (np.asarray(part)[: len(self.y)] for part in marginals_at_data(self.posterior))
        return PredictorNodes(mean, covariance, self.mixing)

    def gaussian(self, share: float = 1.0) -> Posterior:
        return self.posterior if share == 1.0 else _tempered(self.posterior, share)


@dataclass(eq=False, kw_only=True, repr=False)
class CorrectedApproximation(GaussianResult):
    """An approximation with corrected moments.

    ``mean`` and ``variance`` are the corrected moments at the data, (n, latents). They have no ELBO: ``elbo`` and
    ``posterior`` belong to ``uncorrected``, as do model, data and iterations. ``seconds`` is the time of inference and
    correction. ``num_nonpositive`` counts the corrected variances at the data that are not positive, except zeros at a
    prior variance of 0: the correction is invalid there. ``uncertainty`` is the uncertainty of learned parameters, None
    if they are held at their values. Variances and predictions include it; ``conditional`` is the result without it.
    ``draw_at_data``, ``gaussian`` and densities are at the learned values.
    """

    uncorrected: Approximation
    mean: Float[np.ndarray, "n l"]
    variance: Float[np.ndarray, "n l"]
    seconds: float
    num_nonpositive: int
    uncertainty: ParameterUncertainty | None = None
    is_corrected: ClassVar[bool] = True
    # The description of the correction in reports of ``fit``.
    description: ClassVar[str]
    # Relative tolerance for comparisons with prior variances: rounding and quadrature errors.
    relative_error: ClassVar[float] = 1e-4

    def __post_init__(self) -> None:
        for name in (
            "model", "X", "y", "weights", "columns", "labels", "missing", "posterior", "elbo_trace", "converged",
            "tolerance", "objective", "custom_objective",
        ):  # fmt: skip
            setattr(self, name, getattr(self.uncorrected, name))

    @property
    def fit(self) -> FitReport | Any:
        """The report of how hyperparameters were learned; None if they were not learned."""
        report = self.uncorrected.fit
        if report is None or not self.is_corrected:
            return report
        exceptions = f", but {report.exceptions}" if report.exceptions else ""
        return replace(report, correction=self.description + exceptions)

    def require_covariance(self) -> None:
        if self.is_corrected:
            raise ValueError(
                f"result is a correction {self.description} which has marginals but no joint density: diagnose the "
                "uncorrected result or, for a GP of another form than pgm.Markov(), its linear response, "
                "pgm.correct(result), or compare it with draws."
            )

    def latent_draws(self, num_draws: int, seed: int) -> LatentDraws:
        if self.has_density:
            return super().latent_draws(num_draws, seed)
        invalid = np.argwhere(is_invalid(self.variance))
        if invalid.size:
            raise ValueError(
                f"{len(invalid)} corrected variances are not positive (first in row {invalid[0][0]}), so the result "
                "has no distribution to draw from: export the uncorrected result, or draws of gibbs."
            )
        noise = np.random.default_rng(seed).standard_normal((1, num_draws, *self.mean.shape))
        about = "the corrected marginals, independent of each other: they have no joint density"
        return LatentDraws(self.mean + np.sqrt(self.variance) * noise, about)

    def draw_with_parameters(self, num_draws: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
        if self.uncertainty is None:
            return None
        scores = self.uncertainty.scores(num_draws, seed)
        f = self.conditional.latent_draws(num_draws, seed).f[0]
        f = f + np.tensordot(scores, self.uncertainty.shifts, axes=1)
        return f, self.uncertainty.values(self.model, scores)

    @property
    def nodes(self) -> GaussianNodes:
        return self.uncorrected.nodes if self.posterior.is_coupled else IndependentNodes(self.mean, self.variance)

    @property
    def conditional(self) -> "Approximation | CorrectedApproximation":
        return self.with_uncertainty(None)

    def with_uncertainty(self, uncertainty: ParameterUncertainty | None) -> "CorrectedApproximation":
        """Return the result with another uncertainty of its parameters; None holds the parameters."""
        result = replace(self, uncertainty=uncertainty)
        change = np.sum(result.shifts**2, axis=0) - np.sum(self.shifts**2, axis=0)
        return replace(result, variance=self.variance + change)

    def estimates_of(self, functions: Functions) -> "dict[str, pd.DataFrame]":
        """Return the tables. Intervals of learned parameters are from draws of their normal density."""
        tables = super().estimates_of(functions)
        if self.uncertainty is None:
            return tables
        for name, values in self.uncertainty.nodes(self.model).items():
            flat = functions.get(name, np.asarray)(values).reshape(len(values), -1)
            tables[name] = of_draws(flat).set_axis(entries(values.shape[1:]))
        return tables

    def _conditional_marginals_at(self, X_new: ArrayLike) -> RowMoments:
        """``_marginals_at`` with the parameters held."""
        return super()._marginals_at(X_new)

    def _marginals_at(self, X_new: ArrayLike) -> RowMoments:
        mean, spread = self._conditional_marginals_at(X_new)
        return mean, with_shifts(spread, self.shifts_at(X_new))

    def gaussian(self, share: float = 1.0) -> Posterior | CorrectedGaussian:
        """Raise ValueError: corrected moments have no joint density."""
        raise ValueError(
            "a corrected result has moments and no joint density to draw from: draw the marginals independently from "
            "mean and variance, or draw jointly from the uncorrected result or with gibbs."
        )

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().predict_latent(X_new)
        warn_invalid(variance, "X_new")
        return mean, variance

    def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None) -> Predictive:
        count = len(self._inputs_at(X_new))
        covariates = check_covariates(self.likelihood, self.model.num_latents, covariates, count)
        nodes, shifts, uncertainty = self._nodes_of(X_new, covariates), self.shifts_at(X_new), self.uncertainty
        varying = 0 if uncertainty is None else uncertainty.count_of_likelihood(self.model)
        if uncertainty is None or not varying:
            at_values = nodes(self.model, np.zeros(shifts.shape[1:]), shifts)
            return Predictive(self.likelihood, at_values, covariates, self.labels)
        # Averaged over nodes of the likelihood's parameters; the latents are normal given them.
        scores, weights = cubature(varying)
        values = uncertainty.values(self.model, np.pad(scores, ((0, 0), (0, len(shifts) - varying))))
        learned, components = trainable(self.model), []
        for k, score in enumerate(scores):
            model = learned.with_values([values[name][k] for name in learned.names])
            at_score = nodes(model, np.tensordot(score, shifts[:varying], axes=1), shifts[varying:])
            components.append(Predictive(model.likelihood, at_score, covariates, self.labels))
        return MixedPredictive(weights, components)

    def _nodes_of(self, X_new: ArrayLike, covariates: np.ndarray | None) -> NodesOf:
        mean, spread = self._conditional_marginals_at(X_new)
        require_variances(spread)
        if self.is_corrected:
            plain = self.uncorrected._marginals_at(X_new)
            mean, spread, rows = averaging(self.model, self.y, (mean, spread), plain, covariates)
            warn_skewed(rows, "X_new")
        return lambda model, moved, shifts: nodes_at(model, mean + moved, with_shifts(spread, shifts), covariates)

    def joint_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        return self._with_parameters(super().joint_nodes(X_new, num_draws, seed).draws, X_new, seed)

    def marginal_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        mean, spread = self._conditional_marginals_at(X_new)
        require_variances(spread)
        check_whole_number(num_draws, "num_draws", 1)
        require_draws(num_draws, *mean.shape)
        f = self._transported(mean + draw_deviations(spread, num_draws, as_generator(seed)), X_new)
        return self._with_parameters(f, X_new, seed)

    def _transported(self, f: np.ndarray, X_new: ArrayLike) -> np.ndarray:
        return f

    def _with_parameters(self, f: np.ndarray, X_new: ArrayLike, seed: Seed) -> DrawNodes:
        """Draws f (draws, m, latents) given the learned values, moved with draws of the parameters."""
        if self.uncertainty is None:
            return DrawNodes(f)
        scores = self.uncertainty.scores(len(f), seed)
        moved = f + np.tensordot(scores, self.shifts_at(X_new), axes=1)
        return DrawNodes(moved, self.uncertainty.of_likelihood(self.model, scores))

    def averaging_draws(self, f: np.ndarray, seed: Seed = 0) -> np.ndarray:
        """Return draws f (draws, n, latents) at the data, with uncorrected draws in rows whose response is skewed."""
        corrected, plain = self._conditional_marginals_at(self.X), self.uncorrected._marginals_at(self.X)
        covariates = self.likelihood.support(self.model.num_latents).covariate_columns(self.y)
        *_, rows = averaging(self.model, self.y, corrected, plain, covariates)
        warn_skewed(rows, "the data")
        if not rows.any():
            return f
        others = self.uncorrected.draw_at_data(len(f), seed)[0]
        if self.uncertainty is not None:
            others = others + np.tensordot(self.uncertainty.scores(len(f), seed), self.uncertainty.shifts, axes=1)
        return np.where(rows[:, None], others, f)


@dataclass(eq=False, kw_only=True, repr=False)
class PerturbativeApproximation(CorrectedApproximation):
    """A correction to second order in the terms that q neglects (math: section 5).

    ``shift`` and ``curvature`` are E[∂Q/∂f] and E[∂²Q/∂f²] of the expansion's quadratic form, (n, latents).
    """

    description: ClassVar[str] = "to second order"
    # There is no joint covariance that could be indefinite.
    is_positive: ClassVar[bool] = True  # type: ignore[misc]

    shift: Float[np.ndarray, "n l"]
    curvature: Float[np.ndarray, "n l"]

    @property
    def method(self) -> str:
        """The method of ``correct``."""
        return "perturbative"

    @property
    def _num_across(self) -> int:
        # The covariances with the latents at the data.
        return max(super()._num_across, self.posterior.prior.num_rows)

    def _moments_at(self, inputs: Array) -> RowMoments:
        moments, size = super()._moments_at(inputs), self.posterior.prior.num_rows
        cross = _cross_covariance(self.posterior, inputs, mixing(self.model, pad_rows(self.y, size)))
        shift, curvature = (pad_zeros(part, size) for part in (self.shift, self.curvature))
        return second_order_moments(*moments, np.asarray(cross), shift, curvature)

    def _covariance_at(self, X_new: Array) -> np.ndarray:
        raise ValueError(
            "draw_latents: the expansion to second order corrects each row separately, without a joint covariance. "
            "Draw from pgm.correct(result), by linear response, from the uncorrected result, or with gibbs."
        )


@dataclass(eq=False, kw_only=True, repr=False)
class ResponseApproximation(CorrectedApproximation):
    """A correction by linear response: covariances from the derivative of q's means (math: section 5b).

    ``covariance`` (n, latents, latents) is the covariance of each datum's latents. ``is_positive`` is True if the
    response is a covariance; otherwise the correction is not valid.
    """

    description: ClassVar[str] = "by linear response"

    covariance: Float[np.ndarray, "n l l"]
    is_positive: bool

    @property
    def method(self) -> str:
        """The method of ``correct``."""
        return "linear_response"

    @cached_property
    def nodes(self) -> GaussianNodes:
        if self.mean.shape[1] == 1:
            return IndependentNodes(self.mean, self.variance)
        return PredictorNodes(self.mean, self.covariance, self.mixing)

    def with_uncertainty(self, uncertainty: ParameterUncertainty | None) -> "CorrectedApproximation":
        result = replace(self, uncertainty=uncertainty)
        new, old = (np.einsum("knl,knj->nlj", part, part) for part in (result.shifts, self.shifts))
        covariance = self.covariance + (new - old)
        return replace(result, covariance=covariance, variance=np.diagonal(covariance, axis1=1, axis2=2))


@dataclass(eq=False, kw_only=True, repr=False)
class LearnedApproximation(ResponseApproximation):
    """The uncorrected q(f) of ``fit`` given the learned parameters, with the uncertainty of the parameters."""

    is_corrected: ClassVar[bool] = False
    is_positive: bool = True
    has_density = True

    @property
    def method(self) -> str:
        """The name of the engine, since there is no correction."""
        return "fit"

    @property
    def conditional(self) -> Approximation:
        return self.uncorrected

    def gaussian(self, share: float = 1.0) -> Posterior:
        return self.uncorrected.gaussian(share)


@dataclass(eq=False, kw_only=True, repr=False)
class JointResponse(ResponseApproximation):
    """Linear response by coordinates, with a joint Gaussian.

    ``response`` (D, D) is added to the covariance of the whitened coordinates of ``posterior``, concatenated over
    latents. ``shift`` (D,) is added to their mean. For the augmented bound with one predictor per datum it is the
    shift of the expansion to second order (section 5); otherwise it is zero. ``residual`` is the relative residual of
    the equations if they are solved by conjugate gradients.
    """

    drawn_from: ClassVar[str] = "the corrected Gaussian, joint over data and latents"
    has_response: ClassVar[bool] = True

    shift: Float[np.ndarray, " q"]
    response: Float[np.ndarray, "q q"]
    residual: float

    def require_covariance(self) -> None:
        if not self.is_positive:
            raise ValueError(
                "the covariance by linear response is not positive definite, so the result has no distribution to draw "
                "from: draw from the uncorrected result, or with gibbs."
            )

    def gaussian(self, share: float = 1.0) -> CorrectedGaussian:
        """Return the corrected Gaussian at the rows of the posterior; q if the response is not a covariance.

        A ``share`` of the data's precisions below 1 widens it.
        """
        shift, response = (float(self.is_positive) * part for part in (self.shift, self.response))
        return _moved(self.posterior, shift, response, share)

    def draw_at_data(self, num_draws: int, seed: Seed = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return joint draws at the data. Raise ValueError if the response is not a covariance."""
        self.require_covariance()
        return super().draw_at_data(num_draws, seed)

    def _moments_at(self, inputs: Array) -> RowMoments:
        (mean, spread), added = super()._moments_at(inputs), (as_array(self.shift), as_array(self.response))
        shift, response = (np.asarray(part) for part in _added(self.posterior, inputs, *added))
        covariance = as_covariances(spread) + response
        return mean + shift, covariance if covariance.shape[1] > 1 else covariance[:, :, 0]

    def _covariance_at(self, X_new: Array) -> np.ndarray:
        self.require_covariance()
        return np.asarray(_response_at(self.posterior, X_new, as_array(self.response)))


@final
@dataclass(eq=False, kw_only=True, repr=False)
class LinearResponse(JointResponse):
    """A correction to the Gaussian of linear response: see JointResponse."""

    @property
    def has_density(self) -> bool:
        return self.is_positive


# The share is an argument, so that all shares use one program.
_moved, _response_at = compiled(move), compiled(joint_covariance)


@compiled
def _added(posterior: Posterior, X_new: Array, shift: Array, response: Array) -> tuple[Array, Array]:
    return added_moments(factors_at(posterior.prior, X_new), shift, response)


@compiled
def _cross_covariance(posterior: Posterior, X_new: Array, Phi: Float[Array, "n P L"] | None) -> Array:
    covariance = posterior.cross_covariance(X_new)
    return covariance if Phi is None else jnp.einsum("amkn,npk->amnp", covariance, Phi)


@compiled
def _tempered(posterior: Posterior, share: float) -> Posterior:
    return posterior.tempered(share)


@compiled
def _log_density_ratio(
    gaussian: Posterior | CorrectedGaussian, f: Array, coordinates: tuple[Array, ...]
) -> Float[Array, " draws"]:
    if isinstance(gaussian, CorrectedGaussian):
        return gaussian.log_density_ratio(coordinates)
    # Sites act on the part of f in the coordinates; the residual keeps its prior distribution.
    projected = f if gaussian.prior.residual_variances() is None else gaussian.prior.latents(coordinates)
    return gaussian.log_factor(projected) - gaussian.log_normalizer()


@compiled
def marginals_at_data(posterior: Posterior) -> Marginals:
    """Return the means and covariances of each datum's latents, and of padding rows."""
    return posterior.marginals()
