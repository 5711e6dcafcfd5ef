"""What the engines return: a Gaussian approximation of the posterior, or draws from it."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.latent.joint import JointPrior
from pgmodels.latent.prior import whitened_prior
from pgmodels.model import Model
from pgmodels.parameters import bare
from pgmodels.precision import double_precision
from pgmodels.prediction import DrawNodes, GaussianNodes, Predictive
from pgmodels.unknowns import uncertain, with_values


@dataclass(eq=False, repr=False)
class Result:
    """What every result holds: the model with its hyperparameters resolved, the data, the prior at the data."""

    model: Model
    X: np.ndarray
    y: np.ndarray
    prior: JointPrior
    seconds: float
    method: str

    def to_arviz(self, **options: Any) -> Any:
        """An xarray.DataTree for ArviZ; see ``pgmodels.interop.to_arviz``."""
        from pgmodels.interop import to_arviz

        return to_arviz(self, **options)

    def __repr__(self) -> str:
        from pgmodels.summaries import result_line

        return result_line(self)

    def __str__(self) -> str:
        from pgmodels.summaries import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.summaries import result_html

        return result_html(self)

    @property
    def jitter(self) -> tuple[float, ...]:
        """What was added to the diagonal of each group's covariance to factorise it; 0 where nothing was."""
        return tuple(float(getattr(group, "jitter", 0.0)) for group in self.prior.groups)


@dataclass(frozen=True, eq=False)
class FitReport:
    """How hyperparameters were learned.

    ``start`` names the start chosen and ``start_elbos`` the (penalised) ELBO at each; ``values`` holds what was learned
    by name, on the natural scale.
    """

    start: str
    start_elbos: dict[str, float]
    values: dict[str, np.ndarray]
    num_steps: int
    num_evaluations: int
    converged: bool
    message: str


@dataclass(eq=False, kw_only=True, repr=False)
class Approximation(Result):
    """A Gaussian approximation q(f) of the posterior.

    ``mean`` and ``variance`` are its marginals at the data, (n, latents); ``potential`` and ``precision`` the sites
    (h, w) that make it. ``elbo_trace`` holds the ELBO at the start and after each iteration.
    """

    mean: np.ndarray
    variance: np.ndarray
    potential: np.ndarray
    precision: np.ndarray
    elbo_trace: np.ndarray
    converged: bool
    tolerance: float
    fit: FitReport | None = None

    @property
    def elbo(self) -> float:
        """The evidence lower bound reached."""
        return float(self.elbo_trace[-1])

    @property
    def num_iterations(self) -> int:
        """Iterations made."""
        return len(self.elbo_trace) - 1

    @double_precision
    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at X_new (m, d), (m, latents) each."""
        X_new = jnp.asarray(self.model.check_inputs(X_new, "X_new", self.X.shape[1]))
        h, w = jnp.asarray(self.potential), jnp.asarray(self.precision)
        mean, variance = _predict_latent(self.prior, X_new, h, w)
        return np.asarray(mean), np.asarray(variance)

    def predict(self, X_new: Any, covariates: Any = None) -> Predictive:
        """The predictive distribution of y at X_new (m, d).

        ``covariates`` (m, columns - 1) holds the columns of y after the first, such as trials; ones by default.
        """
        mean, variance = self.predict_latent(X_new)
        return Predictive(self.model.likelihood, GaussianNodes(mean, variance), covariates)

    @double_precision
    def draw_latents(self, num_draws: int, seed: int = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Joint draws from q at the data, (draws, n, latents), and their whitened coordinates by group."""
        keys = jax.random.split(jax.random.key(seed), num_draws)
        f, whitened = _draw_latents(self.prior, keys, jnp.asarray(self.potential), jnp.asarray(self.precision))
        return np.asarray(f), tuple(np.asarray(v) for v in whitened)


@dataclass(eq=False, kw_only=True, repr=False)
class CorrectedApproximation(Approximation):
    """An approximation whose marginals carry the perturbative correction (math: section 5).

    The marginals are all there is: no joint density, and so no ELBO, stands behind them. ``shift`` and ``curvature``
    are E[∂Q/∂f] and E[∂²Q/∂f²] of the expansion's quadratic form, (n, latents). ``num_nonpositive`` counts the
    corrected variances at the data that came out non-positive, beyond the reach of the expansion.
    """

    shift: np.ndarray
    curvature: np.ndarray
    num_nonpositive: int

    def draw_latents(self, num_draws: int, seed: int = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Raises ValueError: the corrected marginals belong to no joint density."""
        raise ValueError(
            "a corrected result has marginals and no joint density to draw from: draw each marginal by itself from "
            "mean and variance, or draw jointly from the uncorrected result or with gibbs."
        )

    @double_precision
    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Corrected mean and variance of the latents at X_new (m, d), (m, latents) each.

        Warns with CorrectionWarning where a corrected variance is not positive; it is returned as it is.
        """
        from pgmodels.inference.correction import correct_marginals, warn_nonpositive

        mean, variance = Approximation.predict_latent(self, X_new)
        X_new = jnp.asarray(self.model.check_inputs(X_new, "X_new", self.X.shape[1]))
        h, w = jnp.asarray(self.potential), jnp.asarray(self.precision)
        cross = _cross_covariance(self.prior, X_new, h, w)
        mean, variance = correct_marginals(mean, variance, cross, self.shift, self.curvature)
        warn_nonpositive(variance, "X_new")
        return mean, variance

    def predict(self, X_new: Any, covariates: Any = None) -> Predictive:
        """The predictive distribution of y at X_new (m, d), with the corrected marginals.

        Raises ValueError where a corrected variance is not positive: there is no predictive distribution there.
        """
        mean, variance = self.predict_latent(X_new)
        if not (variance > 0).all():
            row = int(np.argwhere(~(variance > 0))[0][0])
            raise ValueError(
                f"the corrected variance is {variance[row].min():.3g} in row {row} of X_new "
                f"({int((variance <= 0).sum())} in all): the correction does not reach there. Predict with the "
                "uncorrected result or with draws."
            )
        return Predictive(self.model.likelihood, GaussianNodes(mean, variance), covariates)


@dataclass(eq=False, kw_only=True, repr=False)
class Draws(Result):
    """Draws from the posterior.

    ``whitened`` holds the latents' whitened coordinates by group, (chains, draws, rank, latents of the group), and
    ``log_likelihood_trace`` is log p(y | f), (chains, draws). ``hyperparameters`` holds the draws of values that were
    sampled, by name, (chains, draws, ...); the values of ``model`` are then their posterior medians. ``statistics`` are
    the sampler's own figures by ArviZ's names, (chains, draws). ``stored_latents`` is None where ``latents`` follow
    from ``whitened`` and one prior. Where not all latents were kept, ``whitened`` is None, ``rows`` are those of X that
    were, and ``moments`` holds running means and variances, (n, latents) each. ``tuning`` is what warm-up chose, and
    ``run`` what ``extend`` goes on from.
    """

    whitened: tuple[np.ndarray, ...] | None
    log_likelihood_trace: np.ndarray
    num_warmup: int
    hyperparameters: dict[str, np.ndarray] = field(default_factory=dict)
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    stored_latents: np.ndarray | None = None
    rows: np.ndarray | None = None
    moments: tuple[np.ndarray, np.ndarray] | None = None
    tuning: dict[str, Any] = field(default_factory=dict)
    run: Any = None

    @cached_property
    def latents(self) -> np.ndarray:
        """The latents at the data, (chains, draws, n, latents), or at ``rows`` where only those were kept.

        Raises ValueError where only running moments were kept.
        """
        if self.stored_latents is not None:
            return self.stored_latents
        if self.whitened is None:
            raise ValueError('the draws of the latents were not kept: run gibbs with keep="all" or keep=[rows].')
        parts = [_colour(group, v) for group, v in zip(self.prior.groups, self.whitened, strict=True)]
        return np.concatenate(parts, axis=-1)

    @property
    def likelihood_values(self) -> dict[str, np.ndarray]:
        """Draws of likelihood parameters by their own names, (chains, draws, 1, 1), where they were sampled."""
        named = {name.removeprefix("likelihood."): v for name, v in self.hyperparameters.items()}
        return {name: named[name][..., None, None] for name in self.model.likelihood.parameters if name in named}

    @property
    def num_chains(self) -> int:
        """The number of chains."""
        return self.log_likelihood_trace.shape[0]

    @property
    def num_samples(self) -> int:
        """The number of draws of each chain."""
        return self.log_likelihood_trace.shape[1]

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior means at the data, (n, latents)."""
        return self.latents.mean(axis=(0, 1)) if self.moments is None else self.moments[0]

    @cached_property
    def variance(self) -> np.ndarray:
        """Posterior variances at the data, (n, latents)."""
        return self.latents.var(axis=(0, 1)) if self.moments is None else self.moments[1]

    def extend(self, num_samples: int, progress: bool | None = None) -> "Draws":
        """Draws that go on from here: these and ``num_samples`` more of each chain, as one longer run would give.

        These stay as they are. Raises ValueError for draws of another engine than gibbs.
        """
        from pgmodels.inference.gibbs import extend

        return extend(self, num_samples, progress)

    @double_precision
    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at X_new (m, d), (m, latents) each."""
        parts = self._at(X_new)
        means = [centre.mean(axis=0) for centre, _ in parts]
        variances = [centre.var(axis=0) + residual.mean(axis=0)[:, None] for centre, residual in parts]
        return np.concatenate(means, axis=-1), np.concatenate(variances, axis=-1)

    def draw_latents_at(self, X_new: Any, seed: int = 0, common_noise: bool = False) -> np.ndarray:
        """One draw of the latents at X_new (m, d) for each draw, (chains * draws, m, latents), each point by itself.

        ``common_noise`` gives all points of a draw one standard normal, so that what is averaged or ranked over draws
        is smooth in X_new.
        """
        rng = np.random.default_rng(seed)
        parts = []
        for centre, residual in self._at(X_new):
            shape = (len(centre), 1, centre.shape[2]) if common_noise else centre.shape
            parts.append(centre + np.sqrt(residual)[..., None] * rng.standard_normal(shape))
        return np.concatenate(parts, axis=-1)

    def predict(self, X_new: Any, covariates: Any = None, seed: int = 0) -> Predictive:
        """The predictive distribution of y at X_new (m, d), averaged over the draws.

        ``covariates`` (m, columns - 1) holds the columns of y after the first, such as trials; ones by default.
        """
        values = {name: v.reshape(-1, 1, 1) for name, v in self.likelihood_values.items()}
        nodes = DrawNodes(self.draw_latents_at(X_new, seed), values)
        return Predictive(self.model.likelihood, nodes, covariates)

    @double_precision
    def _at(self, X_new: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """E[f(X_new) | draw] (draws, m, latents) and Var[f(X_new) | draw] (draws or 1, m), a group each."""
        X_new = jnp.asarray(self.model.check_inputs(X_new, "X_new", self.X.shape[1]))
        if self.whitened is None:
            raise ValueError('predictions need the draws of all latents: run gibbs with keep="all".')
        whitened = tuple(v.reshape(-1, *v.shape[2:]) for v in self.whitened)
        if self.hyperparameters:
            places = uncertain(self.model).places
            values = [v.reshape(-1, *v.shape[2:]) for v in self.hyperparameters.values()]
            projected = _project(bare(self.model), places, values, whitened, jnp.asarray(self.X), X_new)
            return [(np.asarray(centre), np.asarray(residual)) for centre, residual in projected]
        parts = []
        for group, v in zip(self.prior.groups, whitened, strict=True):
            factor, residual = _factor_at(group, X_new)
            centre = float(group.mean) + np.einsum("rm,srl->sml", np.asarray(factor), v, optimize=True)
            parts.append((centre, np.asarray(residual)[None]))
        return parts


def same_hyperparameters(one: Result, other: Result) -> bool:
    """Whether two results hold the same hyperparameters at the same values, or sample the same ones."""
    sampled = [list(getattr(result, "hyperparameters", {})) for result in (one, other)]
    if any(sampled):
        return sampled[0] == sampled[1]
    leaves = [jax.tree.leaves(bare(result.model)) for result in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(map(np.array_equal, *leaves))


@eqx.filter_jit
def _project(model: Any, places: tuple[int, ...], values: Any, whitened: Any, X: Any, X_new: Any) -> Any:
    """Mean and residual variance of the latents at new inputs for each draw of whitened latents and hyperparameters."""

    def one(draw: tuple[Any, Any]) -> Any:
        drawn = with_values(model, places, draw[0])
        parts = []
        for gp, v in zip(drawn.gps, draw[1], strict=True):
            A, residual = whitened_prior(gp.kernel, jnp.asarray(gp.mean.value), X).factor_at(X_new)
            parts.append((gp.mean.value + A.T @ v, residual))
        return parts

    return jax.lax.map(one, (values, whitened))


@eqx.filter_jit
def _predict_latent(prior: JointPrior, X_new: Any, h: Any, w: Any) -> tuple[Any, Any]:
    return prior.predict(X_new, h, w)


@eqx.filter_jit
def _cross_covariance(prior: JointPrior, X_new: Any, h: Any, w: Any) -> Any:
    return prior.covariance_with_training(X_new, h, w)


@eqx.filter_jit
def _draw_latents(prior: JointPrior, keys: Any, h: Any, w: Any) -> Any:
    # The sites are not batched, so that their precision matrix is factorised once for all draws.
    return jax.vmap(lambda key: prior.draw(key, h, w))(keys)


@eqx.filter_jit
def _factor_at(group: Any, X_new: Any) -> Any:
    return group.factor_at(X_new)


@double_precision
def _colour(group: Any, whitened: np.ndarray) -> np.ndarray:
    return np.asarray(_latents(group, jnp.asarray(whitened)))


@eqx.filter_jit
def _latents(group: Any, whitened: Any) -> Any:
    return group.latents(whitened)
