"""Draws of samplers and of the prior predictive."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number
from pgmodels.model import Groups, Model, forms_can_pad
from pgmodels.numerics.quadrature import power_of_two
from pgmodels.parameters.parameter import bare
from pgmodels.parameters.vector import has_one_prior, have_fixed_kernels, trainable, with_priors, with_values
from pgmodels.priors.base import LatentPrior, pad_rows, pad_zeros, padded_size
from pgmodels.priors.block_posterior import draw_given
from pgmodels.priors.collection import PriorCollection, padded_prior
from pgmodels.priors.rows import DistinctInputs
from pgmodels.results.predictive import DrawNodes, Predictive, spread_evenly
from pgmodels.results.result import DataResult, Functions, of_chains
from pgmodels.runtime.jit import compiled, require_draws
from pgmodels.runtime.precision import DoublePrecision, Picklable, as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_generator, as_seed

if TYPE_CHECKING:
    import pandas as pd
    from xarray import DataTree


@dataclass(eq=False, kw_only=True, repr=False)
class PriorPredictive(DoublePrecision, Picklable):
    """Joint draws of hyperparameters, latents and observations from the prior, at inputs X (n, d).

    ``latents`` (draws, n, latents) are joint over rows and latents. ``observations`` (draws, n) are the first column
    of y given ``covariates`` (n, columns - 1), which is None if y has one column. ``hyperparameters`` holds draws of
    the hyperparameters with a prior, by name, (draws, ...).
    """

    model: Model
    X: np.ndarray
    covariates: np.ndarray | None
    latents: np.ndarray
    observations: np.ndarray
    hyperparameters: dict[str, np.ndarray]

    def to_arviz(self) -> "DataTree":
        """Return an xarray.DataTree for ArviZ, with the groups prior and prior_predictive."""
        from pgmodels.interop.arviz import prior_to_arviz

        return prior_to_arviz(self)

    def shares_below(self, y: ArrayLike) -> dict[str, float]:
        """Compare data with the draws from the prior: a prior predictive check.

        Parameters
        ----------
        y : array_like, shape (n,)
            Observations at X, the first column.

        Returns
        -------
        dict
            The share of draws with a lower "mean" than y, and with a lower "standard deviation"; ties count half.

        Raises
        ------
        ValueError
            If y has another shape.
        """
        values = np.asarray(y, dtype=np.float64)
        if values.shape != self.observations.shape[1:]:
            raise ValueError(f"y must have shape {self.observations.shape[1:]}, one per row of X; got {values.shape}.")
        shares = {}
        for name, figure in (("mean", np.mean), ("standard deviation", np.std)):
            drawn, observed = figure(self.observations, axis=1), figure(values)
            shares[name] = float(np.mean(drawn < observed) + 0.5 * np.mean(drawn == observed))
        return shares

    def __repr__(self) -> str:
        drawn = ", ".join(["latents", "observations", *self.hyperparameters])
        return f"<PriorPredictive: {len(self.latents)} draws of {drawn} at {len(self.X)} rows>"


@dataclass(eq=False, kw_only=True, repr=False)
class Draws(DataResult):
    """Draws from the posterior.

    ``whitened`` holds the latents' whitened coordinates by group, (chains, draws, rank, latents of the group), and
    ``log_likelihood_trace`` is log p(y | f), (chains, draws). ``hyperparameters`` holds the draws of sampled
    hyperparameters by name, (chains, draws, ...); ``model`` then has their posterior medians. ``statistics`` are the
    sampler's statistics by ArviZ's names, (chains, draws). ``stored_latents`` is None if ``latents`` are computed
    from ``whitened`` and one prior. If only some latents were stored, ``whitened`` is None and ``rows`` are their rows
    of X. ``moments`` then holds running means and variances of all latents, (n, latents) each. ``tuning`` are the
    settings chosen in warm-up, and ``run`` is the state that ``extend`` continues from.
    """

    prior: PriorCollection
    whitened: tuple[Float[np.ndarray, "chains draws _ _"], ...] | None
    log_likelihood_trace: Float[np.ndarray, "chains draws"]
    num_warmup: int
    hyperparameters: dict[str, Float[np.ndarray, "chains draws ..."]] = field(default_factory=dict)
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    stored_latents: Float[np.ndarray, "chains draws stored l"] | None = None
    rows: Int[np.ndarray, " stored"] | None = None
    moments: tuple[Float[np.ndarray, "n l"], Float[np.ndarray, "n l"]] | None = None
    tuning: dict[str, Any] = field(default_factory=dict)
    run: Any = None

    @property
    def draws(self) -> "Draws":
        return self

    @cached_property
    def latents(self) -> np.ndarray:
        """The latents at the data, (chains, draws, n, latents), or at ``rows`` if only these were stored.

        Raises ValueError if only running moments were stored.
        """
        if self.stored_latents is not None:
            return self.stored_latents
        if self.whitened is None:
            raise ValueError('the draws of the latents were not stored: run gibbs with keep="all" or keep=[rows].')
        return _colour(padded_prior(self.prior), self.whitened)[..., : len(self.X), :]

    @property
    def likelihood_values(self) -> dict[str, np.ndarray]:
        """Draws of the sampled likelihood parameters by name, (chains, draws, 1, entries)."""
        pairs = trainable(self.model).of_likelihood.items()
        drawn = {parameter: self.hyperparameters[name] for parameter, name in pairs if name in self.hyperparameters}
        return {parameter: values.reshape(*values.shape[:2], 1, -1) for parameter, values in drawn.items()}

    @property
    def flat_likelihood_values(self) -> dict[str, np.ndarray]:
        """The ``likelihood_values`` of all chains, (chains * draws, 1, entries), to broadcast against latents."""
        return {name: v.reshape(-1, 1, v.shape[-1]) for name, v in self.likelihood_values.items()}

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
        return self._moments[0]

    @cached_property
    def variance(self) -> np.ndarray:
        """Posterior variances at the data, (n, latents)."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if self.moments is not None:
            return self.moments
        # If all draws are equal (prior variance 0), their moments are exact; averages would have rounding errors.
        varies = np.ptp(self.latents, axis=(0, 1)) > 0.0
        mean = np.where(varies, self.latents.mean(axis=(0, 1)), self.latents[0, 0])
        return mean, np.where(varies, self.latents.var(axis=(0, 1)), 0.0)

    def estimates_of(self, functions: Functions) -> "dict[str, pd.DataFrame]":
        """Return the tables; hyperparameters without a prior keep their values."""
        drawn = {name: functions.get(name, np.asarray)(values) for name, values in self.hyperparameters.items()}
        return super().estimates_of(functions) | {name: of_chains(values) for name, values in drawn.items()}

    def _latent_table(self) -> "pd.DataFrame":
        rows = range(self.num_rows) if self.rows is None else self.rows
        places = [f"f[{row}, {latent}]" for row in rows for latent in range(self.model.num_latents)]
        return of_chains(self.latents).set_axis(places)

    def extend(self, num_samples: int, progress: bool | None = None) -> "Draws":
        """Return a result with ``num_samples`` more draws of each chain, equal to one longer run.

        This result is not changed. Raises ValueError for draws that gibbs did not make.
        """
        from pgmodels.inference.gibbs import extend

        return extend(self, num_samples, progress)

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        conditionals = self._at(X_new)
        means = [centre.mean(axis=0) for centre, _ in conditionals]
        variances = [centre.var(axis=0) + residual.mean(axis=0)[:, None] for centre, residual in conditionals]
        return np.concatenate(means, axis=-1), np.concatenate(variances, axis=-1)

    def joint_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        check_whole_number(num_draws, "num_draws", 1)
        count = len(self.check_inputs(X_new))
        # Three copies of the covariance of a group given its coordinates.
        has_matrix = not all(group.is_chain for group in self.prior.groups)
        require_draws(num_draws, count, self.model.num_latents, 24.0 * has_matrix * count**2)
        rng = np.random.default_rng(as_seed(seed))
        chosen = spread_evenly(self.num_chains * self.num_samples, num_draws, rng)
        f = self._drawn_given(self._inputs_at(X_new, jointly=True), chosen, rng)
        return DrawNodes(f, {name: value[chosen] for name, value in self.flat_likelihood_values.items()})

    def marginal_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        check_whole_number(num_draws, "num_draws", 1)
        rng = np.random.default_rng(as_seed(seed))
        chosen = spread_evenly(self.num_chains * self.num_samples, num_draws, rng)
        f = self.draw_marginals(X_new, int(rng.integers(2**31)), common_noise=True)[chosen]
        return DrawNodes(f, {name: value[chosen] for name, value in self.flat_likelihood_values.items()})

    def _drawn_given(self, X_new: np.ndarray, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        num_draws = len(chosen)
        whitened = tuple(v[chosen] for v in self._flat_whitened())
        size = max(group.noise_size for group in self.prior.groups)
        noise = rng.standard_normal((num_draws, len(X_new), self.model.num_latents, size))
        if has_one_prior(self.model):
            prior, noise = padded_prior(self.prior), pad_zeros(noise, power_of_two(num_draws))
            padded = tuple(_pad_draws(v, group.rank) for v, group in zip(whitened, prior.groups, strict=True))
            return np.asarray(_draw_given(prior, *jax.tree.map(as_array, (X_new, padded, noise))))[:num_draws]
        leaf_indices = with_priors(self.model).leaf_indices
        values = [v.reshape(-1, *v.shape[2:])[chosen] for v in self.hyperparameters.values()]
        padded = tuple(_pad_rank(v, group.rank) for v, group in zip(whitened, self.prior.groups, strict=True))
        inputs, fixed = self.model.inputs(self.X), _fixed_groups(self.model, self.prior)
        arguments = values, padded, noise, inputs, fixed, as_array(X_new)
        return np.asarray(_draw_each(bare(self.model), leaf_indices, *arguments))

    def draw_marginals(self, X_new: ArrayLike, seed: Seed = 0, common_noise: bool = False) -> np.ndarray:
        """Return draws at X_new (m, d), one for each draw of the result, (chains * draws, m, latents).

        Rows are independent. ``common_noise`` uses one standard normal for all points of a draw, so that averages and
        quantiles over draws are smooth in X_new.
        """
        rng = as_generator(seed)
        latents = []
        for centre, residual in self._at(X_new):
            shape = (len(centre), 1, centre.shape[2]) if common_noise else centre.shape
            latents.append(centre + np.sqrt(residual)[..., None] * rng.standard_normal(shape))
        return np.concatenate(latents, axis=-1)

    def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None, seed: Seed = 0) -> Predictive:
        """Return the predictive distribution of y at new inputs, averaged over the draws.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.
        covariates : array_like, shape (m, columns - 1), optional
            The columns of y after the first, such as trials or an exposure.
        seed : int or jax.Array
            An int or a JAX key, for the latents at the new inputs given each draw.

        Returns
        -------
        Predictive
            Means, variances, probabilities, densities and draws, computed on request. ValueError is raised by each that
            depends on missing covariates.
        """
        nodes = DrawNodes(self.draw_marginals(X_new, seed), self.flat_likelihood_values)
        return Predictive(self.likelihood, nodes, covariates, self.labels)

    @double_precision
    def _at(self, X_new: ArrayLike) -> list[tuple[np.ndarray, np.ndarray]]:
        """E[f(X_new) | draw] (draws, m, latents) and Var[f(X_new) | draw] (draws or 1, m), one pair for each group."""
        require_draws(self.num_chains * self.num_samples, len(self.check_inputs(X_new)), self.model.num_latents)
        X_new, whitened = self._inputs_at(X_new), self._flat_whitened()
        count, inputs = len(X_new), as_array(pad_rows(X_new, padded_size(len(X_new))))
        prior = padded_prior(self.prior) if forms_can_pad(self.model) else self.prior
        pairs = zip(prior.groups, whitened, strict=True)
        if not has_one_prior(self.model):
            leaf_indices = with_priors(self.model).leaf_indices
            values = [v.reshape(-1, *v.shape[2:]) for v in self.hyperparameters.values()]
            padded = [_pad_rank(v, group.rank) for group, v in pairs]
            at_data = self.model.inputs(self.X, padded=True), _fixed_groups(self.model, prior)
            projected = _project(bare(self.model), leaf_indices, values, padded, *at_data, inputs)
            return [(np.asarray(centre)[:, :count], np.asarray(residual)[:, :count]) for centre, residual in projected]
        conditionals = [_at(group, inputs, as_array(_pad_draws(v, group.rank))) for group, v in pairs]
        arrays = [(np.asarray(centre), np.asarray(residual)) for centre, residual in conditionals]
        return [(centre[: len(whitened[0]), :count], residual[None, :count]) for centre, residual in arrays]

    def _flat_whitened(self) -> tuple[np.ndarray, ...]:
        if self.whitened is None:
            raise ValueError('predictions need the draws of all latents: run gibbs with keep="all".')
        return tuple(v.reshape(-1, *v.shape[2:]) for v in self.whitened)


_draw_given = compiled(draw_given)


def _fixed_groups(model: Model, prior: PriorCollection) -> Groups:
    """Return the groups of a prior that differ between draws at most in their means; None for each other group."""
    pairs = zip(prior.groups, have_fixed_kernels(model), strict=True)
    return tuple(group if is_fixed else None for group, is_fixed in pairs)


@partial(compiled, static_argnames="leaf_indices")
def _draw_each(
    model: Model,
    leaf_indices: tuple[int, ...],
    values: list[np.ndarray],
    whitened: tuple[np.ndarray, ...],
    noise: np.ndarray,
    inputs: DistinctInputs,
    fixed_groups: Groups,
    X_new: Array,
) -> Float[Array, "draws m l"]:
    def one(draw: tuple[list[Array], tuple[Array, ...], Array]) -> Array:
        prior = with_values(model, leaf_indices, draw[0]).prior(inputs, traced=True, known=fixed_groups).for_sampling()
        return draw_given(prior, X_new, *draw[1:])

    return jax.lax.map(one, (values, whitened, noise))


@partial(compiled, static_argnames="leaf_indices")
def _project(
    model: Model,
    leaf_indices: tuple[int, ...],
    values: list[np.ndarray],
    whitened: list[np.ndarray],
    inputs: DistinctInputs,
    fixed_groups: Groups,
    X_new: Array,
) -> list[tuple[Array, Array]]:
    def one(draw: tuple[list[Array], list[Array]]) -> list[tuple[Array, Array]]:
        prior = with_values(model, leaf_indices, draw[0]).prior(inputs, traced=True, known=fixed_groups).for_sampling()
        return [group.conditional(X_new, v) for group, v in zip(prior.groups, draw[1], strict=True)]

    return jax.lax.map(one, (values, whitened))


@compiled
def _at(group: LatentPrior, X_new: Array, whitened: Array) -> tuple[Array, Array]:
    return group.conditional(X_new, whitened)


@double_precision
def _colour(prior: PriorCollection, whitened: tuple[np.ndarray, ...]) -> np.ndarray:
    flat = [v.reshape(-1, *v.shape[-2:]) for v in whitened]
    padded = tuple(as_array(_pad_draws(v, group.rank)) for v, group in zip(flat, prior.groups, strict=True))
    f = np.asarray(_latents(prior, padded))[: len(flat[0])]
    return f.reshape(*whitened[0].shape[:-2], *f.shape[1:])


def _pad_draws(draws: np.ndarray, rank: int) -> np.ndarray:
    """Return draws (draws, coordinates, latents) padded with zeros to a power of two, so that few programs compile."""
    return pad_zeros(_pad_rank(draws, rank), power_of_two(len(draws)))


def _pad_rank(draws: np.ndarray, rank: int) -> np.ndarray:
    return np.pad(draws, ((0, 0), (0, rank - draws.shape[1]), (0, 0)))


_latents = compiled(PriorCollection.latents)
