"""A run of the Gibbs sampler: chains, stored draws, and adaptation during warm-up."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.inference.adaptive_selection import INDEPENDENT, warn_left_out
from pgmodels.inference.checkpoint_folder import fault_of_leaves
from pgmodels.inference.jitter_check import accurate_prior, warn_inaccurate
from pgmodels.inference.mcmc.chains import MixingWarning, warn_unmixed
from pgmodels.inference.mcmc.gibbs.adaptation import PILOT, default_schedule, pilot_schedule, tune
from pgmodels.inference.mcmc.gibbs.ellipse import Ellipse, ellipse_of
from pgmodels.inference.mcmc.gibbs.iteration import State, renew_surrogates, run_chunk, start_chains
from pgmodels.inference.mcmc.gibbs.moves.marginal_slice import check_blocks
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveRequirement, MoveStats
from pgmodels.inference.mcmc.gibbs.schedule import Schedule
from pgmodels.inference.mcmc.gibbs.schemes import AUTO, Scheme
from pgmodels.inference.mcmc.gibbs.surrogate import first_fit, fit_again
from pgmodels.inference.mcmc.gibbs.surrogate_fit import Fit, precisions_of
from pgmodels.inference.mcmc.gibbs.surrogate_path import constant_path
from pgmodels.inference.mcmc.gibbs.target import Chain, Reference, Target
from pgmodels.inference.mcmc.gibbs.trace import BLOCKS, CHUNK, Keep, Record, no_moments
from pgmodels.inference.problem_family import ProblemFamily
from pgmodels.likelihoods.normalisation import checked_unknowns
from pgmodels.model import Data, Model, with_powers
from pgmodels.parameters.vector import ParameterVector, have_fixed_kernels
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior, condition_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.fresh import Fresh
from pgmodels.results.draws import Draws
from pgmodels.runtime.identity import digest
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.pickling import Picklable
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.warnings import warn
from pgmodels.runtime.x64 import as_array


class SamplingError(ValueError):
    """A sampler's state is not finite. ``draws`` has the draws until then, None during warm-up."""

    def __init__(self, message: str, draws: Draws | None):
        super().__init__(message)
        self.draws = draws

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplingError, (*self.args, self.draws)


class Settings(NamedTuple):
    """Settings of a run besides the model and the data."""

    num_warmup: int
    num_chains: int
    key: Any
    keep: Keep


class GibbsRun(Picklable):
    """Chains of one model and data set. ``number`` counts iterations, warm-up included."""

    def __init__(self, model: Model, data: Data, settings: Settings, scheme: Scheme = AUTO):
        self.model, self.data, self.settings = model, data, settings
        self.unknowns: ParameterVector = checked_unknowns(model)
        vector = as_array(self.unknowns.start())
        # If kernel hyperparameters are sampled, in the form that does not depend on their values.
        groups = model.fixed_groups(data.X, have_fixed_kernels(model)) if self._sampled else ()
        bound = model.compiled_prior(data.X, groups) if self._sampled else model.prior(data.X)
        self.prior: PriorCollection = bound.for_sampling()
        pads = model.can_pad and self.prior.can_pad
        self.prior = self.prior.padded() if pads else self.prior
        # Auxiliary variables are those of the formula to the power of the weights, which are a column of y here.
        self.powers = with_powers(model, data)
        y, row_mask = self.powers[1].padded(self.prior.num_rows)
        family = ProblemFamily(
            scheme.objective(self.powers[0]),
            self.unknowns,
            self.powers[0].bare(),
            model.inputs(data.X, padded=pads),
            y,
            row_mask if pads else None,
            tuple(fixed and new for fixed, new in zip(groups, self.prior.groups, strict=bool(groups))),
            needs_factors=True,
        )
        self.target = Target(family, fixed_reference=None if self._sampled else Reference(self.prior))
        self.stages = _stages(settings.num_warmup, self._sampled)
        self.schedule: Schedule = default_schedule(self._usable_moves(scheme.moves, vector), self.prior)
        # The largest precision of the fitted Gaussian's factors.
        self.precision = 0.0
        if self.prior.whitened:
            self._fit_first(vector)
        elif self._sampled:
            self.target = replace(self.target, fitted=Ellipse(vector, as_array(np.eye(len(vector)))))
        keys = _split_key(settings.key, settings.num_chains)
        self.state: State = start_chains(self.target, self.schedule.moves, vector, keys)
        self.moments = no_moments(self.chains.latents.shape)
        self.number = 0
        self.records: list[Record] = []
        self.vectors: list[np.ndarray] = []
        self.failed_fits: list[str] = []

    @property
    def chains(self) -> Chain:
        """The current states of the chains."""
        return self.state.chains

    def _usable_moves(self, moves: Sequence[Move], vector: Any) -> list[Move]:
        """Moves whose requirements are met; ValueError if hyperparameters are sampled and no move updates them."""
        if self.target.objective.predictors is not None:
            # Predictors couple latents in the sweep too.
            self.prior.require_coupling()
        met = {MoveRequirement.HYPERPARAMETERS} if self._sampled else set()
        # Without warm-up the step size of Hamiltonian steps is not tuned.
        met |= {MoveRequirement.WARMUP} if self.stages else set()
        met |= {MoveRequirement.OF_PRIOR} if np.any(self.unknowns.gps >= 0) else set()
        met |= {MoveRequirement.OF_LIKELIHOOD} if np.any(self.unknowns.gps < 0) else set()
        if self.prior.whitened:
            met |= {MoveRequirement.FACTOR, MoveRequirement.GAUSSIAN}
        else:
            met |= {MoveRequirement.NO_GAUSSIAN}
            check_blocks(self.target, self.prior)
        met |= {MoveRequirement.PRECONDITIONER} if self.prior.factored and self._sampled else set()
        possible = [move for move in moves if move.requirements - met <= {MoveRequirement.GRADIENT}]
        if any(MoveRequirement.GRADIENT in move.requirements for move in possible) and not _has_gradient(
            self.target, self.prior, vector
        ):
            possible = [move for move in possible if MoveRequirement.GRADIENT not in move.requirements]
        if self._sampled and not any(MoveRequirement.HYPERPARAMETERS in move.requirements for move in possible):
            raise ValueError(
                f"gibbs cannot sample {', '.join(self.unknowns.names)} here: no move of the scheme updates them. Learn "
                "them with fit, or fix them with pgm.Fixed."
            )
        return possible

    def _fit_first(self, vector: Any) -> None:
        """Fit the surrogate at the model's values."""
        fit = first_fit(self.target, self.prior)
        self.precision = _largest_precision(fit)
        if self._sampled:
            path = constant_path(fit, vector, self._preconditioned)
            self.target = replace(self.target, fitted=path)
            return
        finer = accurate_prior(self.model, self.data, self.prior, self.precision)
        if finer is not self.prior:
            self.prior = finer.resized(self.prior.num_rows)
            fit = first_fit(self.target, self.prior)
            self.precision = _largest_precision(fit)
        surrogate = _to_draw_from(fit.surrogate).completed(fit.surrogate)
        self.target = replace(self.target, fixed_reference=Reference(surrogate=surrogate))

    @property
    def _sampled(self) -> bool:
        """Whether hyperparameters are sampled."""
        return bool(self.unknowns.leaf_indices)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digests of everything that determines the draws, the same in every process."""
        num_warmup, num_chains, key, keep = self.settings
        model, data = self.powers
        return {
            "model": model.signature,
            "data": digest((data.X, data.y)),
            "seed": digest(key),
            "sizes": digest((int(num_warmup), int(num_chains), keep, self.schedule.moves)),
        }

    @property
    def arrays(self) -> Any:
        """The state that the next iteration needs, as a pytree of arrays."""
        chains = self.chains._replace(key=jax.random.key_data(self.chains.key))
        past = np.concatenate(self.vectors) if self.vectors else np.zeros((0, *chains.unknowns.shape))
        return self.state._replace(chains=chains), self.schedule, self.moments, past, self.target.fitted

    def restore(self, leaves: Any, number: int, records: list[Record], failed_fits: list[str]) -> str | None:
        """Restore a saved state; returns the fault if it does not fit this run."""
        expected, tree = jax.tree.flatten(self.arrays)
        # There is one vector of hyperparameters for each iteration.
        fault = fault_of_leaves(leaves, expected, len(jax.tree.leaves(self.arrays[:3])))
        if fault:
            return fault
        state, self.schedule, self.moments, past, fitted = jax.tree.unflatten(tree, [as_array(x) for x in leaves])
        self.target = replace(self.target, fitted=fitted)
        self.vectors = [np.asarray(past)]
        kind = jax.random.key_impl(self.settings.key)
        chains = state.chains._replace(key=jax.random.wrap_key_data(state.chains.key, impl=kind))
        self.state = state._replace(chains=chains)
        self.number, self.records, self.failed_fits = number, records, failed_fits
        return None

    def advance(self, until: int, saved: Any, progress: bool | None) -> None:
        """Iterate up to ``until`` iterations in all."""
        warmup = self.settings.num_warmup
        with progress_bar("gibbs", until, progress) as bar:
            bar.advance(min(self.number, until))
            while self.number < until:
                before = self.number
                if self.number in self.stages:
                    self._adapt()
                if self.number == warmup:
                    self.moments = no_moments(self.chains.latents.shape)
                if self.number < until:
                    ends = [end for end in (*self.stages, warmup, until) if end > self.number]
                    self._chunk(min(CHUNK, min(ends) - self.number))
                bar.advance(self.number - before, self._note() if bar.visible else "")
                if saved is not None:
                    saved.save(self, final=self.number >= until)

    def warn(self) -> None:
        """Warn with PrecisionWarning of an inaccurate prior, and with MixingWarning of chains that differ.

        Also with MixingWarning of failed fits in warm-up, and with InducingWarning of too few inducing inputs.
        """
        warn_inaccurate(self.prior, self.precision)
        self._warn_inducing()
        count, means, squares = (np.asarray(part) for part in self.moments)
        rows = len(self.data.y)
        warn_unmixed("gibbs", int(count), means[:, :rows], squares[:, :rows] / max(float(count), 1.0))
        if self.failed_fits:
            warn(
                f"no Gaussian could be fitted in warm-up ({'; '.join(self.failed_fits)}). The draws are still "
                "exact, but may mix slowly: check R-hat and ESS, and narrow very wide priors.",
                MixingWarning,
            )

    def _warn_inducing(self) -> None:
        """Warn of too few inducing inputs, at the mean state of the chains."""
        if self.prior.whitened and not self.prior.factored:
            vector = as_array(np.median(np.asarray(self.chains.unknowns), axis=0))
            residual, precisions, variances = (
                np.asarray(leaf)[: len(self.data.y)] for leaf in _inducing_residuals(self.target, vector)
            )
            model = self.unknowns.with_values(self.unknowns.constrain(vector))
            warn_left_out(model, self.data.X, residual, precisions, variances, effect=INDEPENDENT)

    def draws(self, num_samples: int, seconds: float) -> Draws:
        """The draws so far, the last ``num_samples`` at most."""

        def joined(*chunks: np.ndarray) -> np.ndarray:
            # In the memory layout of files and pickles, so that means over draws are equal to the last digit.
            return np.ascontiguousarray(np.swapaxes(np.concatenate(chunks), 0, 1)[:, :num_samples])

        records = jax.tree.map(joined, *self.records)
        hyperparameters = self._named(records.unknowns)
        model = self.unknowns.with_values(self.unknowns.median(list(hyperparameters.values())))
        count = len(self.data.y)
        whitened = None if records.coordinates is None else _by_group(self.prior, records.coordinates)
        prior = self.prior.resized(count)
        if hyperparameters:
            prior = model.compiled_prior(self.data.X, self.target.family.fixed_groups).for_sampling()
        if whitened is not None:
            ranks = [group.rank for group in prior.groups]
            whitened = tuple(v[..., :rank, :] for v, rank in zip(whitened, ranks, strict=True))
        latents = records.latents
        if latents is not None and self.settings.keep.what == "all":
            latents = latents[:, :, :count]
        return Draws(
            model=model,
            **self.data._asdict(),
            prior=prior,
            whitened=whitened,
            log_likelihood_trace=records.log_likelihood,
            hyperparameters=hyperparameters,
            stored_latents=latents,
            rows=np.array(self.settings.keep.rows) if self.settings.keep.what == "rows" else None,
            moments=self._pooled_moments() if self.settings.keep.what != "all" else None,
            tuning=self.schedule.as_dict(),
            run=self,
            num_warmup=self.settings.num_warmup,
            seconds=seconds,
            method="gibbs",
        )

    def _named(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Hyperparameters by name, (chains, draws, ...), from unconstrained ones (chains, draws, d)."""
        if not self.unknowns.leaf_indices:
            return {}
        values = _constrain(self.unknowns, as_array(vectors.reshape(-1, vectors.shape[-1])))
        arrays = [np.asarray(value).reshape(*vectors.shape[:2], *value.shape[1:]) for value in values]
        return dict(zip(self.unknowns.names, arrays, strict=True))

    def copy(self) -> "GibbsRun":
        """A copy of the run, which continues independently."""
        other = copy.copy(self)
        other.records = list(self.records)
        return other

    def _chunk(self, count: int) -> tuple[MoveStats, ...]:
        arguments = (self.target, self.schedule, self.state, self.moments, self.number, count)
        self.state, self.moments, stats, record = run_chunk(*arguments, self.settings.keep)
        # Sliced in NumPy: JAX would compile a slice for every length.
        record = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], record)
        bad = np.argwhere(record.failed > 0)
        if self.number >= self.settings.num_warmup:
            good = count if not bad.size else int(bad[0, 0])
            if good:
                self.records.append(jax.tree.map(lambda leaf: leaf[:good], record))
        elif self._sampled:
            self.vectors.append(record.unknowns)
        if bad.size:
            self._fail(int(bad[0, 0]), int(bad[0, 1]), record)
        self.number += count
        return stats

    def _fail(self, step: int, chain: int, record: Record) -> None:
        block = BLOCKS[int(record.failed[step, chain])]
        drawn = sum(len(part.log_likelihood) for part in self.records)
        raise SamplingError(
            f"gibbs: the {block} of chain {chain} are not finite in iteration {self.number + step} (warm-up included). "
            "Look for extreme values in y, prior variances of many orders of magnitude, or a likelihood scale close to "
            f"zero. The {drawn} draws of each chain until then are in the error's .draws.",
            self.draws(drawn, float("nan")) if drawn else None,
        )

    def _adapt(self) -> None:
        """Start a stage of warm-up: refit the surrogate, and tune the moves by a pilot run."""
        if self._sampled and self.number < self.stages[-1]:
            vectors = np.concatenate(self.vectors).reshape(-1, self.chains.unknowns.shape[1])
            self.vectors = []
            if self.target.fitted is not None:
                self._fit_again(vectors)
        self.schedule = pilot_schedule(self.schedule, self.stages.index(self.number))
        self.schedule = tune(self.prior, self._sampled, self._chunk(PILOT), self.schedule)

    def _fit_again(self, vectors: np.ndarray) -> None:
        """Refit the surrogate at the mean of recent hyperparameters, with its derivatives in them."""
        if not self.prior.whitened:
            self.target = replace(self.target, fitted=ellipse_of(vectors))
            return
        path, fault = fit_again(self.target, vectors, self._preconditioned)
        if fault:
            self.failed_fits.append(f"iteration {self.number}{':' if path is None else ','} {fault}")
        if path is not None:
            self.target = replace(self.target, fitted=path)
            self.state = renew_surrogates(self.target, self.state)

    @property
    def _preconditioned(self) -> bool:
        """Whether a move needs standard coordinates."""
        return any(MoveRequirement.PRECONDITIONER in move.requirements for move in self.schedule.moves)

    def _pooled_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents over the draws of all chains."""
        count, means, squares = (np.asarray(part) for part in self.moments)
        mean, rows = means.mean(axis=0), len(self.data.y)
        return mean[:rows], (squares.mean(axis=0) / count + means.var(axis=0))[:rows]

    def _note(self) -> str:
        """Progress of the run, for the progress bar."""
        if not self.records:
            return "warm-up"
        trace = np.concatenate([part.log_likelihood for part in self.records]).T
        if trace.shape[1] < 20:
            return "sampling"
        from numpyro.diagnostics import effective_sample_size

        return f"ESS of log p(y | f): {effective_sample_size(trace):.0f}"


def _largest_precision(fit: Fit) -> float:
    surrogate = fit.surrogate
    return float(np.asarray(surrogate.prior.total(surrogate.sites.precision)).max())


def _has_gradient(target: Target, prior: PriorCollection, vector: Any) -> bool:
    """Whether the posterior density can be differentiated: a user's kernel may have no reverse mode."""
    whitened = jnp.zeros(sum(prior.ranks))
    try:
        jax.eval_shape(jax.grad(target.log_joint, argnums=(0, 1)), vector, whitened)
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


def _stages(num_warmup: int, sampled: bool) -> tuple[int, ...]:
    """The iterations before which warm-up adapts; each begins with a pilot."""
    if sampled:
        # The last pilot sets only the numbers of moves.
        quarter = num_warmup // 4
        return (quarter, 2 * quarter, 3 * quarter) if quarter > PILOT else ()
    return (0,) if num_warmup >= PILOT else ()


def _by_group(prior: PriorCollection, flat: np.ndarray) -> tuple[np.ndarray, ...]:
    """Whitened coordinates (..., D) by group, (..., rank, size)."""
    counts = [group.rank * size for group, size in zip(prior.groups, prior.sizes, strict=True)]
    arrays = np.split(flat, np.cumsum(counts)[:-1], axis=-1)
    pairs = zip(arrays, prior.sizes, strict=True)
    return tuple(np.swapaxes(array.reshape(*array.shape[:-1], size, -1), -1, -2) for array, size in pairs)


@partial(compiled, optimise=False, on_one_thread=True)
def _inducing_residuals(target: Target, vector: Any) -> tuple[Any, Any, Any]:
    """Residual prior variance given the inducing inputs, site precision and posterior variance of each latent.

    The posterior variance is variational: sites do not reduce the residual variance.
    """
    surrogate = target.surrogate(vector)
    spans = surrogate.prior.spans()
    residual = surrogate.prior.marginals()[1] - spans.marginals()[1]
    W = precisions_of(surrogate)
    moved = condition_blocks(spans, Sites(surrogate.sites.potential, W), surrogate.blocks)
    return residual, jnp.diagonal(W, axis1=1, axis2=2), moved.moments()[1] + residual


@partial(compiled, optimise=False, on_one_thread=True)
def _to_draw_from(surrogate: BlockPosterior) -> Fresh:
    return Fresh.beside(surrogate, surrogate.with_inverse_roots())


_split_key = compiled(jax.random.split, static_argnames="num", on_one_thread=True)


@compiled
def _constrain(unknowns: ParameterVector, vectors: Any) -> list[Any]:
    return jax.vmap(unknowns.constrain)(vectors)
