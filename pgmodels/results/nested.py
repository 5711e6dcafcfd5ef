"""Results of special kinds: nested marginals, minibatches, corrected Markov processes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn, TypeVar, final

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import Columns, Labels, Missing
from pgmodels.data.sources import Scaling
from pgmodels.model import Model, check_new_inputs
from pgmodels.objectives.base import Objective
from pgmodels.priors import chain_posterior as chain_response
from pgmodels.priors.base import pad_rows, pad_zeros
from pgmodels.priors.chain_posterior import ChainResponse, Factors, Layout
from pgmodels.priors.collection import Posterior, PriorCollection, check_covariances
from pgmodels.results.approximation import FitReport, JointResponse, NodesOf, ResponseApproximation
from pgmodels.results.gaussian import (
    GaussianPredictions,
    RowMoments,
    as_covariances,
    diagonals,
    mixing,
    mixing_at,
    with_shifts,
)
from pgmodels.results.predictive import CopulaNodes
from pgmodels.results.result import GridDensity, LatentDraws, Result
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import as_array
from pgmodels.runtime.seeds import Seed


@dataclass(eq=False, kw_only=True, repr=False)
class ChainCorrection(ResponseApproximation):
    """Linear response of latents that are Markov processes, in O(n), without a covariance between rows.

    ``factors`` (n, S, S) and ``slope`` (n,) are the responding factors of each row: see ``Factors`` in
    pgmodels.priors.chain_posterior.
    """

    factors: Float[np.ndarray, "n s s"]
    slope: Float[np.ndarray, " n"] | None

    @cached_property
    def response(self) -> ChainResponse:
        """The response at the data and at new inputs."""
        size = self.posterior.prior.num_rows
        slope = None if self.slope is None else as_array(pad_zeros(self.slope, size))
        factors = Factors(as_array(pad_zeros(self.factors, size)), slope, mixing(self.model, pad_rows(self.y, size)))
        return respond(self.posterior, factors, Layout.of(self.posterior.prior, self.posterior.is_coupled))

    @property
    def _num_across(self) -> int:
        # Memory: about eight matrices over all states and their products.
        layout = self.response.layout
        return 8 * (layout.num_blocks * layout.joint_size) ** 2

    def _moments_at(self, inputs: Array) -> RowMoments:
        mean, _ = super()._moments_at(inputs)
        shift, covariance = (np.asarray(part) for part in _predicted(self.response, inputs))
        return mean + shift, covariance if covariance.shape[1] > 1 else covariance[:, :, 0]

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> NoReturn:
        raise ValueError(
            "draw_latents: linear response with pgm.Markov() corrects the covariance of each row, but not between "
            "rows. Draw from the uncorrected result or with gibbs, or correct a result with form=pgm.Dense()."
        )


respond, _predicted = compiled(chain_response.respond, "layout"), compiled(ChainResponse.predict)


@dataclass(eq=False, kw_only=True, repr=False)
class SparseApproximation(GaussianPredictions):
    """A Gaussian approximation q of the latents at inducing inputs, from ``num_rows`` rows that it does not store.

    It predicts at inputs on their original scale; ``scaling`` standardised the inputs of the data. ``correct``,
    ``log_evidence``, ``diagnose``, ``compare``, ``to_arviz`` and plots need the data: run ``pgm.cavi(result.model,
    result.scaling(X), y)`` (``gaussian_vi`` for the objective "expected") on rows that fit into memory. ``elbo_trace``
    holds noisy ELBOs, averaged over windows of steps, and then the exact ELBO of each pass over all rows.
    """

    model: Model
    posterior: Posterior
    scaling: Scaling
    num_rows: int
    columns: Columns | None
    elbo_trace: Float[np.ndarray, " iterations"]
    converged: bool
    tolerance: float
    seconds: float
    fit: FitReport | Any = None
    method: str = "svi"
    objective: str = "augmented"
    custom_objective: Objective | None = None
    labels: Labels | None = None
    missing: Missing | None = None
    has_elbo = True

    @property
    def prior(self) -> PriorCollection:
        """The prior of the latents, factorised at the inducing inputs; it has no rows of the data."""
        return self.posterior.prior

    @property
    def weights(self) -> None:
        """None: neither rows nor weights are stored."""
        return None

    @property
    def elbo(self) -> float:
        """The last entry of ``elbo_trace``."""
        return float(self.elbo_trace[-1])

    @property
    def remedy(self) -> str:
        """The remedy for calls that need the rows, for messages."""
        return (
            f"stores no rows: run pgm.vi(result.model, X, y, objective={self.objective!r}) on rows that fit into "
            "memory, with X scaled by result.scaling"
        )

    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        return check_new_inputs(self.model, X_new, name, len(self.scaling.location), self.columns)

    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        inputs = self.scaling(self.check_inputs(X_new))
        check_covariances(self.posterior.prior, inputs, jointly=jointly)
        return inputs

    def to_arviz(self, num_draws: int = 1000, seed: Seed = 0, **options: Any) -> NoReturn:
        """Raise ValueError: ArviZ needs draws at the data, which the result does not store."""
        raise ValueError(f"to_arviz needs the data, and a SparseApproximation {self.remedy}.")

    def _latent_table(self) -> NoReturn:
        raise ValueError(f"summary: latents=True needs the data, and a SparseApproximation {self.remedy}.")


def name_type(value: object) -> str:
    """Return the type of a value that is no result at data, for messages, with the value's remedy, if any."""
    name, remedy = type(value).__name__, getattr(value, "remedy", None)
    return name if remedy is None else f"{name}, which {remedy}"


R = TypeVar("R", bound=Result)


def require_result(
    value: object,
    expected: str,
    remedy: str = "",
    kind: type[R] | tuple[type[R], ...] = Result,  # type: ignore[assignment]
) -> R:
    """Return the value if it is a result at data, or of the given ``kind``.

    Otherwise ValueError is raised, with the ``expected`` argument, the type of the value, and a ``remedy``.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{expected}; got {name_type(value)}.{remedy}")
    return value


@final
@dataclass(eq=False, kw_only=True, repr=False)
class NestedApproximation(JointResponse):
    """Marginals by a bound of log p(y, f_i = x) at each value x of a latent, normalised (math: section 5c).

    ``log_density`` (n, latents, grid) is the unnormalised log density of each latent at the data: a bound of
    log p(y, f_i = x) at ``location + scale * GRID``. Joint distributions are Gaussian copulas with the correlations of
    linear response; ``covariance`` has these correlations with the variances of the marginals.
    ``uncorrected`` is the variational Gaussian.
    """

    description: ClassVar[str] = "by nested variational marginals"
    # Measured against quadrature with three latents.
    relative_error: ClassVar[float] = 0.02
    method = "nested"

    location: Float[np.ndarray, "n l"]
    scale: Float[np.ndarray, "n l"]
    log_density: Float[np.ndarray, "n l grid"]

    @cached_property
    def marginals(self) -> GridDensity:
        """The marginals of the latents at the data, (n, latents)."""
        return self._conditional_marginals.widened(np.sum(self.shifts**2, axis=0))

    @property
    def _conditional_marginals(self) -> GridDensity:
        return GridDensity(self.location, self.scale, self.log_density)

    @property
    def log_evidence_bounds(self) -> np.ndarray:
        """A lower bound of log p(y) for each latent (n, latents), between the ELBO and log p(y).

        The KL divergence of a latent's marginal from the posterior marginal is at most log p(y) minus its bound. With
        more than 256 rows this holds up to the error of an expansion (math: section 5c).
        """
        return self._conditional_marginals.log_masses

    @property
    def skewness(self) -> np.ndarray:
        """The skewness of the latents at the data, (n, latents)."""
        return self.marginals.skewness

    def quantiles(self, levels: ArrayLike, X_new: ArrayLike | None = None) -> np.ndarray:
        """Return quantiles of the latents (levels, m, latents) at levels between 0 and 1, at the data or at X_new."""
        return (self.marginals if X_new is None else self.marginals_at(X_new)).quantiles(levels)

    def marginals_at(self, X_new: ArrayLike) -> GridDensity:
        """Return the latents' marginals at new inputs X_new (m, d): mean, variance, skewness, quantiles and pdf."""
        inputs = self._inputs_at(X_new)
        return self._marginals(inputs).widened(np.sum(self.shifts_at(inputs) ** 2, axis=0))

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        marginals = self.marginals_at(X_new)
        return marginals.mean, marginals.variance

    def _marginals(self, inputs: np.ndarray, Phi: np.ndarray | None = None) -> GridDensity:
        from pgmodels.inference.nested import nested_marginals

        return nested_marginals(self, inputs, Phi)

    @cached_property
    def nodes(self) -> CopulaNodes:
        if self.mixing is None:
            return CopulaNodes(self.marginals, self.mean, self.covariance)
        at_data = self._nodes_by(self._inputs_at(self.X), self.mixing)
        return at_data(self.model, np.zeros(self.mean.shape), self.shifts)

    def _nodes_of(self, X_new: ArrayLike, covariates: np.ndarray | None) -> NodesOf:
        inputs = self._inputs_at(X_new)
        return self._nodes_by(inputs, mixing_at(self.model, len(inputs), covariates))

    def _nodes_by(self, inputs: np.ndarray, Phi: np.ndarray | None) -> Callable[..., CopulaNodes]:
        mean, spread = self._conditional_marginals_at(inputs)
        covariance, marginals = as_covariances(spread), self._marginals(inputs, Phi)
        across = np.broadcast_to(np.eye(mean.shape[1]), covariance.shape) if Phi is None else Phi

        def nodes(_: Model, moved: np.ndarray, shifts: np.ndarray) -> CopulaNodes:
            added = np.sum(np.einsum("mpl,kml->kmp", across, shifts) ** 2, axis=0)
            placed = marginals.widened(added).moved(np.einsum("mpl,ml->mp", across, moved))
            return CopulaNodes(placed, mean + moved, with_shifts(covariance, shifts), across)

        return nodes

    def draw_at_data(self, num_draws: int, seed: Seed = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return draws (draws, n, latents) of the copula at the data, without whitened coordinates."""
        f, _ = super().draw_at_data(num_draws, seed)
        return self._to_marginals(f, self.X, self._conditional_marginals), ()

    def latent_draws(self, num_draws: int, seed: int) -> LatentDraws:
        if not self.is_positive:
            return super().latent_draws(num_draws, seed)
        about = "nested variational marginals, joined by a Gaussian copula with the correlations of linear response"
        return LatentDraws(self.draw_at_data(num_draws, seed)[0][None], about)

    def averaging_draws(self, f: np.ndarray, seed: Seed = 0) -> np.ndarray:
        return f

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> np.ndarray:
        return self._transported(super()._drawn_at(X_new, num_draws, seed), X_new)

    def _transported(self, f: np.ndarray, X_new: ArrayLike) -> np.ndarray:
        return self._to_marginals(f, X_new, self._marginals(self._inputs_at(X_new)))

    def _to_marginals(self, f: np.ndarray, X_new: ArrayLike, marginals: GridDensity) -> np.ndarray:
        """Return draws of the Gaussian of linear response transformed to these marginals."""
        mean, spread = self._conditional_marginals_at(X_new)
        variance = diagonals(spread)
        return marginals.transport((f - mean) / np.sqrt(np.where(variance > 0.0, variance, 1.0)))
