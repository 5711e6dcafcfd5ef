"""Mixtures of Gaussians over hyperparameters."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number
from pgmodels.model import Model
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.block_posterior import draw_deviations, draw_gaussian
from pgmodels.priors.collection import PriorCollection
from pgmodels.results.gaussian import (
    MixedPredictive,
    NormalDensity,
    averaging,
    mixed_moments,
    mixed_quantiles,
    nodes_at,
    warn_skewed,
)
from pgmodels.results.predictive import DrawNodes, Predictive, check_covariates
from pgmodels.results.result import (
    BANDWIDTH,
    CONTRACTION,
    GRID,
    DataResult,
    Functions,
    GridDensity,
    Marginal,
    of_marginal,
)
from pgmodels.runtime.jit import require_draws
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_generator, as_seed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(eq=False, kw_only=True, repr=False)
class IntegratedApproximation(DataResult):
    """The posterior as a mixture of Gaussians, corrected by linear response, over points of the hyperparameters.

    ``vectors`` (K, d) are the points, unconstrained, and ``shares`` (K,) their weights. At each point,
    ``log_densities`` is log p(y, θ) and ``elbos`` is the bound on log p(y | θ). ``k_hats`` is Pareto k-hat of the
    importance weights: nan without weights, with particles and for an exact evidence. ``means`` (K, n, latents) and
    ``covariances`` (K, n, latents, latents) are the moments of each datum's latents; ``potential`` and ``precision``
    are the sites. Marginals of hyperparameters are weighted points, ``support`` (S, d) with ``mass`` (S,). ``owners``
    (S,) index the point that represents each. ``log_evidence`` is log p(y). ``model`` has the hyperparameters at their
    mode (of their logarithms, if positive). ``converged`` is True if the search for the mode converged, ``holds_mass``
    if the points cover the posterior. ``num_failed`` counts points without a finite evidence. ``unreliable`` is the
    mass of points with a k-hat above its limit.
    """

    vectors: Float[np.ndarray, "points p"]
    shares: Float[np.ndarray, " points"]
    log_densities: Float[np.ndarray, " points"]
    elbos: Float[np.ndarray, " points"]
    k_hats: Float[np.ndarray, " points"]
    means: Float[np.ndarray, "points n l"]
    covariances: Float[np.ndarray, "points n l l"]
    potential: Float[np.ndarray, "points n l"]
    precision: Float[np.ndarray, "points n l"] | Float[np.ndarray, "points n l l"]
    support: Float[np.ndarray, "support p"]
    mass: Float[np.ndarray, " support"]
    owners: Int[np.ndarray, " support"]
    log_evidence: float
    converged: bool
    holds_mass: bool
    num_failed: int
    unreliable: float

    @cached_property
    def prior(self) -> PriorCollection:
        """The prior of the latents at the data, at the mode."""
        return self.model.prior(self.X, traced=True)

    @cached_property
    def hyperparameters(self) -> dict[str, Marginal]:
        """The marginals of the hyperparameters that were integrated out, by name."""
        unknowns, values = with_priors(self.model), self._values(self.support)
        bounds = {name: p.bounds for name, p in zip(unknowns.names, unknowns.parameters, strict=True)}
        return {name: Marginal(array, self.mass, bounds[name]) for name, array in values.items()}

    def estimates_of(self, functions: Functions) -> "dict[str, pd.DataFrame]":
        items = self.hyperparameters.items()
        marginals = {name: m.of(functions[name]) if name in functions else m for name, m in items}
        return super().estimates_of(functions) | {name: of_marginal(m) for name, m in marginals.items()}

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior means of the latents at the data, (n, latents)."""
        return self._moments[0]

    @cached_property
    def variance(self) -> np.ndarray:
        """Posterior variances of the latents at the data, (n, latents)."""
        return self._moments[1]

    @cached_property
    def marginals(self) -> GridDensity:
        """The marginals of the latents at the data, (n, latents): mean, variance, quantiles and pdf."""
        scale = np.sqrt(self.variance)
        values = self.mean + scale * GRID[:, None, None]
        components = zip(self.shares, self.means, _variances(self.covariances), strict=True)
        density = sum(share * NormalDensity(mean, variance).pdf(values) for share, mean, variance in components)
        return GridDensity(self.mean, scale, np.moveaxis(np.log(np.maximum(density, 1e-300)), 0, -1))

    def quantiles(self, levels: ArrayLike, X_new: ArrayLike | None = None) -> np.ndarray:
        """Return quantiles of the latents (levels, m, latents) at levels between 0 and 1, at the data or at X_new."""
        means, covariances = (self.means, self.covariances) if X_new is None else self._moments_at(X_new)[:2]
        return mixed_quantiles(levels, self.shares, means, _variances(covariances))

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        means, covariances, _ = self._moments_at(X_new)
        return mixed_moments(self.shares, means, _variances(covariances))

    def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None) -> Predictive:
        count = len(self.check_inputs(X_new))
        covariates = check_covariates(self.likelihood, self.model.num_latents, covariates, count)
        means, covariances, plain = self._moments_at(X_new)
        # All components except the lightest, which together have at most 0.5 % of the weight.
        order = np.argsort(self.shares)
        light = (self.shares[order] < 1e-3) & (np.cumsum(self.shares[order]) < 5e-3)
        kept, skewed = np.sort(order[~light]), np.zeros(means.shape[1], dtype=bool)
        components = []
        for k in kept:
            model = self._model_at(k)
            mean, spread, rows = self._averaging(k, model, means, covariances, plain, covariates)
            skewed |= rows
            nodes = nodes_at(model, mean, spread, covariates)
            components.append(Predictive(model.likelihood, nodes, covariates, self.labels))
        warn_skewed(skewed, "X_new")
        return MixedPredictive(self.shares[kept] / self.shares[kept].sum(), components)

    def joint_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        from pgmodels.inference.integrate import joint_moments_at

        seed = as_seed(seed)
        count, size = len(self.check_inputs(X_new)), self.model.num_latents
        require_draws(num_draws, count, size, 8.0 * (3.0 if size == 1 else 5.0) * (size * count) ** 2)
        inputs = self._inputs_at(X_new, jointly=True)

        def draw(point: int, number: int, rng: np.random.Generator) -> np.ndarray:
            mean, covariance = joint_moments_at(self, inputs, point)
            return draw_gaussian(mean, covariance, number, rng)

        return self._nodes_by_point(draw, num_draws, seed)

    def marginal_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        means, covariances, _ = self._moments_at(X_new)
        require_draws(num_draws, *means.shape[1:])

        def draw(point: int, number: int, rng: np.random.Generator) -> np.ndarray:
            return means[point] + draw_deviations(covariances[point], number, rng)

        return self._nodes_by_point(draw, num_draws, seed)

    def _nodes_by_point(
        self, draw: Callable[[int, int, np.random.Generator], np.ndarray], num_draws: int, seed: Seed
    ) -> DrawNodes:
        """Return draws of the latents, in proportion to points' weights, with each point's likelihood parameters."""
        check_whole_number(num_draws, "num_draws", 1)
        rng = np.random.default_rng(as_seed(seed))
        counts = rng.multinomial(num_draws, self.shares)
        draws = [draw(int(point), int(counts[point]), rng) for point in np.flatnonzero(counts)]
        order = rng.permutation(num_draws)
        points, values = np.repeat(np.arange(len(counts)), counts)[order], self._values(self.vectors)
        of_likelihood = with_priors(self.model).of_likelihood
        drawn = {name: values[path][points].reshape(num_draws, 1, -1) for name, path in of_likelihood.items()}
        return DrawNodes(np.concatenate(draws)[order], drawn)

    def _averaging(
        self,
        point: int,
        model: Model,
        means: np.ndarray,
        covariances: np.ndarray,
        plain: np.ndarray,
        covariates: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        spreads = (part[point] if part.shape[-1] > 1 else part[point][:, :, 0] for part in (covariances, plain))
        corrected, other = ((means[point], spread) for spread in spreads)
        return averaging(model, self.y, corrected, other, covariates)

    def draw_at_data(self, num_draws: int, seed: Seed = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return draws of the latents (num_draws, n, latents), and of hyperparameters by name, (num_draws, ...).

        Each draw of latents is given a point of the hyperparameters, and independent across data.
        """
        rng = as_generator(seed)
        require_draws(num_draws, *self.means.shape[1:])
        chosen = rng.choice(len(self.mass), size=num_draws, p=self.mass)
        f = self._draw_at(self.owners[chosen], self.covariances, rng)
        mean = self.mass @ self.support
        # The rows of the root of their covariance.
        root = np.linalg.qr(np.sqrt(self.mass)[:, None] * (self.support - mean), mode="r")
        noise = rng.standard_normal((num_draws, len(root))) @ root
        return f, self._values(mean + CONTRACTION * (self.support[chosen] - mean) + BANDWIDTH * noise)

    draw_with_parameters = draw_at_data

    def averaging_draws(self, f: np.ndarray, seed: Seed = 0) -> np.ndarray:
        """Return the latents of ``draw_at_data``, with uncorrected Gaussians in rows whose response is skewed."""
        rng = as_generator(seed)
        points = self.owners[rng.choice(len(self.mass), size=len(f), p=self.mass)]
        plain, covariances = self._moments_at(self.X)[2], self.covariances.copy()
        covariates = self.likelihood.support(self.model.num_latents).covariate_columns(self.y)
        skewed = np.zeros(len(self.X), dtype=bool)
        for k in np.unique(points):
            *_, rows = self._averaging(k, self._model_at(k), self.means, covariances, plain, covariates)
            covariances[k][rows] = plain[k][rows]
            skewed |= rows
        warn_skewed(skewed, "the data")
        return self._draw_at(points, covariances, rng)

    def _draw_at(self, points: np.ndarray, covariances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal((len(points), *self.means.shape[1:]))
        return self.means[points] + np.einsum("snlk,snk->snl", np.linalg.cholesky(covariances)[points], noise)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        return mixed_moments(self.shares, self.means, _variances(self.covariances))

    def _moments_at(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from pgmodels.inference.integrate import moments_at

        # Cached for the last inputs, because a table needs moments and quantiles: each would repeat seconds of work.
        inputs, last = self._inputs_at(X_new), vars(self).get("_last")
        if last is None or not np.array_equal(last[0], inputs):
            vars(self)["_last"] = last = np.array(inputs), moments_at(self, inputs)
        return last[1]

    @double_precision
    def _values(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        unknowns = with_priors(self.model)
        values = jax.vmap(unknowns.constrain)(as_array(vectors))
        return {name: np.asarray(value) for name, value in zip(unknowns.names, values, strict=True)}

    def _model_at(self, point: int) -> Model:
        values = self._values(self.vectors[point : point + 1])
        return with_priors(self.model).with_values([value[0] for value in values.values()])


def _variances(covariances: np.ndarray) -> np.ndarray:
    return np.diagonal(covariances, axis1=-2, axis2=-1)
