"""Draws from the posterior."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from pgmodels import generic
from pgmodels.compiled import compiled
from pgmodels.integration import power_of_two
from pgmodels.latent.drawing import draw_given
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.rows import filled_size, resize_rows, resize_zeros
from pgmodels.model import Groups
from pgmodels.options import check_whole_number
from pgmodels.parameters import bare
from pgmodels.precision import double_precision
from pgmodels.results.nodes import DrawNodes, spread_evenly
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result
from pgmodels.seeds import as_seed
from pgmodels.unknowns import are_held, has_one_prior, uncertain, with_values


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

    prior: JointPrior
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
        return _colour(self.prior.filled(), self.whitened)[..., : len(self.X), :]

    @property
    def likelihood_values(self) -> dict[str, np.ndarray]:
        """Draws of likelihood parameters by their own names, (chains, draws, 1, entries), where they were sampled."""
        if not self.hyperparameters:
            return {}
        pairs = uncertain(self.model).of_likelihood.items()
        drawn = {own: self.hyperparameters[name] for own, name in pairs}
        return {own: values.reshape(*values.shape[:2], 1, -1) for own, values in drawn.items()}

    @property
    def flat_likelihood_values(self) -> dict[str, np.ndarray]:
        """The same over all chains, (chains * draws, 1, entries), to broadcast against latents (draws, n, latents)."""
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
        if self.moments is not None:
            return self.moments[0]
        return np.where(self._varies, self.latents.mean(axis=(0, 1)), self.latents[0, 0])

    @cached_property
    def variance(self) -> np.ndarray:
        """Posterior variances at the data, (n, latents)."""
        if self.moments is not None:
            return self.moments[1]
        return np.where(self._varies, self.latents.var(axis=(0, 1)), 0.0)

    @cached_property
    def _varies(self) -> np.ndarray:
        """Whether draws of a latent differ, (n, latents): of one that the prior knows sums have rounding alone."""
        return np.ptp(self.latents, axis=(0, 1)) > 0.0

    def extend(self, num_samples: int, progress: bool | None = None) -> "Draws":
        """Draws that go on from here: these and ``num_samples`` more of each chain, as one longer run would give.

        These stay as they are. Raises ValueError for draws of another engine than gibbs.
        """
        return generic.extend(self, num_samples, progress)

    @double_precision
    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at X_new (m, d), (m, latents) each."""
        parts = self._at(X_new)
        means = [centre.mean(axis=0) for centre, _ in parts]
        variances = [centre.var(axis=0) + residual.mean(axis=0)[:, None] for centre, residual in parts]
        return np.concatenate(means, axis=-1), np.concatenate(variances, axis=-1)

    @double_precision
    def draw_latents(self, X_new: Any, num_draws: int = 1000, seed: int = 0) -> np.ndarray:
        """Draws of the latents at X_new (m, d), (num_draws, m, latents): joint over rows and latents, as functions are.

        Each goes with a draw of this result, each as often as every other. O(m^3), for each draw where
        hyperparameters were sampled. Raises ValueError where a GP's form has no factor.
        """
        check_whole_number(num_draws, "num_draws", 1)
        seed = as_seed(seed)
        X_new, rng = self._inputs_at(X_new, jointly=True), np.random.default_rng(seed)
        chosen = spread_evenly(self.num_chains * self.num_samples, num_draws, rng)
        whitened = tuple(v[chosen] for v in self._flat_whitened())
        noise = rng.standard_normal((num_draws, len(X_new), self.model.num_latents))
        if has_one_prior(self.model):
            prior, noise = self.prior.filled(), resize_zeros(noise, power_of_two(num_draws))
            filled = tuple(_filled_up(v, group.rank) for v, group in zip(whitened, prior.groups, strict=True))
            return np.asarray(_draw_given(prior, X_new, filled, noise))[:num_draws]
        places = uncertain(self.model).places
        values = [v.reshape(-1, *v.shape[2:])[chosen] for v in self.hyperparameters.values()]
        filled = tuple(_with_rank(v, group.rank) for v, group in zip(whitened, self.prior.groups, strict=True))
        inputs, held = self.model.inputs(self.X), self._held(self.prior)
        return np.asarray(_draw_each(bare(self.model), places, values, filled, noise, inputs, held, X_new))

    def draw_marginals(self, X_new: Any, seed: int = 0, common_noise: bool = False) -> np.ndarray:
        """One draw of the latents at X_new (m, d) for each draw, (chains * draws, m, latents), each point by itself.

        ``common_noise`` gives all points of a draw one standard normal, so that what is averaged or ranked over draws
        is smooth in X_new.
        """
        rng = np.random.default_rng(as_seed(seed))
        parts = []
        for centre, residual in self._at(X_new):
            shape = (len(centre), 1, centre.shape[2]) if common_noise else centre.shape
            parts.append(centre + np.sqrt(residual)[..., None] * rng.standard_normal(shape))
        return np.concatenate(parts, axis=-1)

    def predict(self, X_new: Any, covariates: Any = None, seed: int = 0) -> Predictive:
        """The predictive distribution of y at X_new (m, d), averaged over the draws.

        ``covariates`` (m, columns - 1) holds the columns of y after the first, such as trials or an exposure: what
        depends on them raises ValueError where they are left out.
        """
        values = self.flat_likelihood_values
        nodes = DrawNodes(self.draw_marginals(X_new, seed), values)
        return Predictive(self.likelihood, nodes, covariates)

    @double_precision
    def _at(self, X_new: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """E[f(X_new) | draw] (draws, m, latents) and Var[f(X_new) | draw] (draws or 1, m), a group each."""
        X_new, whitened = self._inputs_at(X_new), self._flat_whitened()
        count, inputs = len(X_new), resize_rows(X_new, filled_size(len(X_new)))
        prior = self.prior.filled() if self.model.fills else self.prior
        pairs = zip(prior.groups, whitened, strict=True)
        if not has_one_prior(self.model):
            places = uncertain(self.model).places
            values = [v.reshape(-1, *v.shape[2:]) for v in self.hyperparameters.values()]
            filled = [_with_rank(v, group.rank) for group, v in pairs]
            at_data = self.model.filled(self.X)[0], self._held(prior)
            projected = _project(bare(self.model), places, values, filled, *at_data, inputs)
            return [(np.asarray(centre)[:, :count], np.asarray(residual)[:, :count]) for centre, residual in projected]
        parts = [_at(group, inputs, _filled_up(v, group.rank)) for group, v in pairs]
        draws = len(whitened[0])
        return [(np.asarray(centre)[:draws, :count], np.asarray(residual)[None, :count]) for centre, residual in parts]

    def _held(self, prior: JointPrior) -> Groups:
        """The groups of a prior that all draws have in common, but for their means; None in the place of others."""
        pairs = zip(prior.groups, are_held(self.model), strict=True)
        return tuple(group if held else None for group, held in pairs)

    def _flat_whitened(self) -> tuple[np.ndarray, ...]:
        """Whitened coordinates over all chains, (draws, rank, latents of the group)."""
        if self.whitened is None:
            raise ValueError('predictions need the draws of all latents: run gibbs with keep="all".')
        return tuple(v.reshape(-1, *v.shape[2:]) for v in self.whitened)


@compiled
def _draw_given(prior: JointPrior, X_new: Any, whitened: Any, noise: Any) -> Any:
    return draw_given(prior, X_new, whitened, noise)


@partial(compiled, static_argnames="places")
def _draw_each(
    model: Any, places: tuple[int, ...], values: Any, whitened: Any, noise: Any, inputs: Any, held: Any, X_new: Any
) -> Any:
    """Joint draws at new inputs, each with its own whitened latents and hyperparameters."""

    def one(draw: tuple[Any, Any, Any]) -> Any:
        prior = with_values(model, places, draw[0]).traced_prior(inputs, held).generative()
        return draw_given(prior, X_new, *draw[1:])

    return jax.lax.map(one, (values, whitened, noise))


@partial(compiled, static_argnames="places")
def _project(
    model: Any, places: tuple[int, ...], values: Any, whitened: Any, inputs: Any, held: Any, X_new: Any
) -> Any:
    """Mean and residual variance of the latents at new inputs for each draw of whitened latents and hyperparameters."""

    def one(draw: tuple[Any, Any]) -> Any:
        prior = with_values(model, places, draw[0]).traced_prior(inputs, held).generative()
        return [group.at(X_new, v) for group, v in zip(prior.groups, draw[1], strict=True)]

    return jax.lax.map(one, (values, whitened))


@compiled
def _at(group: Any, X_new: Any, whitened: Any) -> Any:
    return group.at(X_new, whitened)


@double_precision
def _colour(prior: JointPrior, whitened: tuple[np.ndarray, ...]) -> np.ndarray:
    flat = [v.reshape(-1, *v.shape[-2:]) for v in whitened]
    filled = tuple(_filled_up(v, group.rank) for v, group in zip(flat, prior.groups, strict=True))
    f = np.asarray(_latents(prior, filled))[: len(flat[0])]
    return f.reshape(*whitened[0].shape[:-2], *f.shape[1:])


def _filled_up(draws: np.ndarray, rank: int) -> np.ndarray:
    """Draws (draws, coordinates, latents) with zeros after them, up to a power of two: few programs are shared."""
    return resize_zeros(_with_rank(draws, rank), power_of_two(len(draws)))


def _with_rank(draws: np.ndarray, rank: int) -> np.ndarray:
    """Draws with zeros for the coordinates of rows that fill up the data."""
    return np.pad(draws, ((0, 0), (0, rank - draws.shape[1]), (0, 0)))


@compiled
def _latents(prior: JointPrior, whitened: Any) -> Any:
    return prior.latents(whitened)
