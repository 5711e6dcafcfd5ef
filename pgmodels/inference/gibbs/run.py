"""A run of the Gibbs engine: chains that advance, what they leave, and the tuning on the way."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size

from pgmodels.compiled import compiled
from pgmodels.identity import digest
from pgmodels.inference.accuracy import accurate_prior, warn_inaccurate
from pgmodels.inference.chains import MixingWarning, warn_unmixed
from pgmodels.inference.checkpoint_folder import fault_of_leaves
from pgmodels.inference.gibbs.fitting import Fit, precisions_of
from pgmodels.inference.gibbs.iteration import State, renew_surrogates, run_chunk, start_chains
from pgmodels.inference.gibbs.moves.move import Move, Need, Seen
from pgmodels.inference.gibbs.record import BLOCKS, CHUNK, Keep, Record, no_moments
from pgmodels.inference.gibbs.response import constant_response
from pgmodels.inference.gibbs.schedule import MOVES, Schedule
from pgmodels.inference.gibbs.surrogate import first_fit, fit_again
from pgmodels.inference.gibbs.target import Chain, Target
from pgmodels.inference.gibbs.tuning import PILOT, default_schedule, pilot_schedule, tune
from pgmodels.inference.inducing import INDEPENDENT, warn_left_out
from pgmodels.interop.numpyro_model import checked_unknowns
from pgmodels.latent.coupled import CoupledPosterior, condition_coupled
from pgmodels.latent.fresh import Fresh
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.rows import live_rows, resize_rows
from pgmodels.model import Data, Model
from pgmodels.portable import Portable
from pgmodels.precision import as_array
from pgmodels.progress import progress_bar
from pgmodels.results.draws import Draws
from pgmodels.unknowns import Unknowns, are_held
from pgmodels.warning import warn


class SamplingError(ValueError):
    """A sampler's state is not finite. ``draws`` holds what was drawn until then, None if it was in warm-up."""

    def __init__(self, message: str, draws: Draws | None):
        super().__init__(message)
        self.draws = draws

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplingError, (*self.args, self.draws)


class Settings(NamedTuple):
    """What decides a run besides the model and the data."""

    num_warmup: int
    num_chains: int
    key: Any
    keep: Keep


class GibbsRun(Portable):
    """Chains of one model and data set. ``number`` counts iterations, warm-up included."""

    def __init__(self, model: Model, data: Data, settings: Settings, moves: Sequence[Move] = MOVES):
        self.model, self.data, self.settings = model, data, settings
        self.unknowns: Unknowns = checked_unknowns(model)
        vector = as_array(self.unknowns.start())
        # Where a kernel's values are sampled, of the form that it has at every value of them.
        groups = model.held_groups(data.X, are_held(model)) if self._sampled else ()
        bound = model.compiled_prior(data.X, groups) if self._sampled else model.prior(data.X)
        self.prior: JointPrior = bound.generative()
        live = None
        if model.fills and self.prior.fills:
            self.prior = self.prior.filled()
            live = as_array(live_rows(len(data.y), self.prior.num_rows))
        self.target = Target(
            model=model.bare(),
            inputs=model.inputs(data.X, filled=live is not None),
            y=as_array(resize_rows(data.y, self.prior.num_rows)),
            augmentation=model.augmentation,
            unknowns=self.unknowns,
            groups=tuple(own and new for own, new in zip(groups, self.prior.groups, strict=bool(groups))),
            held=None if self._sampled else self.prior,
            live=live,
        )
        self.stages = _stages(settings.num_warmup, self._sampled)
        self.schedule: Schedule = default_schedule(self._possible(moves, vector), self.prior)
        # The largest of the fitted Gaussian's factors.
        self.precision = 0.0
        if any(Need.GAUSSIAN in move.needs for move in self.schedule.moves):
            self._fit_first(vector)
        keys = _split_key(settings.key, settings.num_chains)
        self.state: State = start_chains(self.target, self.schedule.moves, vector, keys)
        self.moments = no_moments(self.chains.latents.shape)
        self.number = 0
        self.records: list[Record] = []
        self.vectors: list[np.ndarray] = []
        self.failed_fits: list[str] = []

    @property
    def chains(self) -> Chain:
        """The chains as they are."""
        return self.state.chains

    def _possible(self, moves: Sequence[Move], vector: Any) -> list[Move]:
        """The moves whose needs are met; ValueError where none moves hyperparameters that are to be sampled."""
        if self.target.augmentation.predictors is not None:
            # What combines latents couples them: the sweep needs their factors too.
            self.prior.spans().require_factors()
        met = {Need.UNKNOWNS} if self._sampled else set()
        # Without warm-up nothing finds the length of Hamiltonian steps.
        met |= {Need.WARMUP} if self.stages else set()
        met |= {Need.FACTOR, Need.GAUSSIAN} if self.prior.whitened else set()
        met |= {Need.FRAME} if self.prior.factored and self._sampled else set()
        possible = [move for move in moves if move.needs - met <= {Need.GRADIENT}]
        if any(Need.GRADIENT in move.needs for move in possible) and not _has_gradient(self.target, self.prior, vector):
            possible = [move for move in possible if Need.GRADIENT not in move.needs]
        if self._sampled and not any(Need.UNKNOWNS in move.needs for move in possible):
            forms = ", ".join(sorted({type(group).__name__ for group in self.prior.groups}))
            raise ValueError(
                f"gibbs cannot sample {', '.join(self.unknowns.names)} here: its moves of hyperparameters need a prior "
                f"with a factor matrix, and the latents' is {forms}. Learn them with fit, hold them with pgm.Fixed, or "
                "choose another form of the GP, such as pgm.Dense()."
            )
        return possible

    def _fit_first(self, vector: Any) -> None:
        """Fit the surrogate at the model's own values."""
        fit = first_fit(self.target, self.prior)
        self.precision = _largest_precision(fit)
        if self._sampled:
            response = constant_response(fit, vector, self._framed)
            self.target = replace(self.target, fitted=response)
            return
        finer = accurate_prior(self.model, self.data, self.prior, self.precision)
        if finer is not self.prior:
            self.prior = finer.resized(self.prior.num_rows)
            fit = first_fit(self.target, self.prior)
            self.precision = _largest_precision(fit)
        self.target = replace(self.target, held=_to_draw_from(fit.surrogate).completed(fit.surrogate))

    @property
    def _sampled(self) -> bool:
        """Whether hyperparameters are sampled."""
        return bool(self.unknowns.places)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What decides the draws, each in a text that is the same in every process."""
        num_warmup, num_chains, key, keep = self.settings
        return {
            "model": self.model.signature,
            "data": digest((self.data.X, self.data.y)),
            "seed": digest(key),
            "sizes": digest((int(num_warmup), int(num_chains), keep, self.schedule.moves)),
        }

    @property
    def arrays(self) -> Any:
        """All that the next iteration needs, as arrays."""
        chains = self.chains._replace(key=jax.random.key_data(self.chains.key))
        past = np.concatenate(self.vectors) if self.vectors else np.zeros((0, *chains.unknowns.shape))
        return self.state._replace(chains=chains), self.schedule, self.moments, past, self.target.fitted

    def restore(
        self, leaves: list[np.ndarray], number: int, records: list[Record], failed_fits: list[str]
    ) -> str | None:
        """Take up a saved state, unless it is not one of this run: what is wrong with it."""
        expected, tree = jax.tree.flatten(self.arrays)
        # Of the hyperparameters seen there are as many as iterations.
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
        """Warn with PrecisionWarning of a prior held too coarsely, with MixingWarning of chains that differ.

        Also with MixingWarning of failed fits in warm-up, and with InducingWarning of too few inducing inputs.
        """
        warn_inaccurate(self.prior, self.precision)
        self._warn_left_out()
        count, means, squares = (np.asarray(part) for part in self.moments)
        rows = len(self.data.y)
        warn_unmixed("gibbs", int(count), means[:, :rows], squares[:, :rows] / max(float(count), 1.0))
        if self.failed_fits:
            warn(
                f"no Gaussian could be fitted in warm-up ({'; '.join(self.failed_fits)}). The draws are exact all the "
                "same, but may mix slowly: look at R-hat and ESS, and narrow very wide priors.",
                MixingWarning,
            )

    def _warn_left_out(self) -> None:
        """Warn of too few inducing inputs, where there are any, in the middle of where the chains are."""
        if self.prior.whitened and not self.prior.factored:
            vector = as_array(np.median(np.asarray(self.chains.unknowns), axis=0))
            leaves = jax.tree.map(lambda leaf: np.asarray(leaf)[: len(self.data.y)], _left_out(self.target, vector))
            model = self.unknowns.with_values(self.unknowns.constrain(vector))
            warn_left_out(model, self.data.X, *leaves, effect=INDEPENDENT)

    def draws(self, num_samples: int, seconds: float) -> Draws:
        """The draws so far, the last ``num_samples`` at most."""

        def joined(*parts: np.ndarray) -> np.ndarray:
            # In the order in which files and pickles hold them: means over draws are the same there, to the last digit.
            return np.ascontiguousarray(np.swapaxes(np.concatenate(parts), 0, 1)[:, :num_samples])

        records = jax.tree.map(joined, *self.records)
        hyperparameters = self._named(records.unknowns)
        model = self.unknowns.with_values(self.unknowns.middle(list(hyperparameters.values())))
        count = len(self.data.y)
        whitened = None if records.coordinates is None else _by_group(self.prior, records.coordinates)
        prior = self.prior.resized(count)
        if hyperparameters:
            prior = model.compiled_prior(self.data.X, self.target.groups).generative()
        if whitened is not None:
            ranks = [group.rank for group in prior.groups]
            whitened = tuple(v[..., :rank, :] for v, rank in zip(whitened, ranks, strict=True))
        latents = records.latents
        if latents is not None and self.settings.keep.what == "all":
            latents = latents[:, :, :count]
        return Draws(
            model=model,
            X=self.data.X,
            y=self.data.y,
            columns=self.data.columns,
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
        if not self.unknowns.places:
            return {}
        values = _constrain(self.unknowns, as_array(vectors.reshape(-1, vectors.shape[-1])))
        arrays = [np.asarray(value).reshape(*vectors.shape[:2], *value.shape[1:]) for value in values]
        return dict(zip(self.unknowns.names, arrays, strict=True))

    def copy(self) -> "GibbsRun":
        """A run that goes on from here and leaves this one as it is."""
        other = copy.copy(self)
        other.records = list(self.records)
        return other

    def _chunk(self, count: int) -> tuple[Seen, ...]:
        arguments = (self.target, self.schedule, self.state, self.moments, self.number, count)
        self.state, self.moments, seen, record = run_chunk(*arguments, self.settings.keep)
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
        return seen

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
        """What the warm-up does at the start of a stage: new scales for hyperparameters, and a pilot."""
        if self._sampled and self.number < self.stages[-1]:
            vectors = np.concatenate(self.vectors).reshape(-1, self.chains.unknowns.shape[1])
            self.vectors = []
            if self.target.fitted is not None:
                self._fit_again(vectors)
        self.schedule = pilot_schedule(self.schedule, self.stages.index(self.number))
        self.schedule = tune(self.prior, self._sampled, self._chunk(PILOT), self.schedule)

    def _fit_again(self, vectors: np.ndarray) -> None:
        """Fit the surrogate again at the middle of the hyperparameters so far, and see how it follows them."""
        response, fault = fit_again(self.target, vectors, self._framed)
        if fault:
            self.failed_fits.append(f"iteration {self.number}{':' if response is None else ','} {fault}")
        if response is not None:
            self.target = replace(self.target, fitted=response)
            self.state = renew_surrogates(self.target, self.state)

    @property
    def _framed(self) -> bool:
        """Whether a move needs standard coordinates."""
        return any(Need.FRAME in move.needs for move in self.schedule.moves)

    def _pooled_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents over the draws of all chains."""
        count, means, squares = (np.asarray(part) for part in self.moments)
        mean, rows = means.mean(axis=0), len(self.data.y)
        return mean[:rows], (squares.mean(axis=0) / count + means.var(axis=0))[:rows]

    def _note(self) -> str:
        """How far the run is, in words."""
        if not self.records:
            return "warm-up"
        trace = np.concatenate([part.log_likelihood for part in self.records]).T
        if trace.shape[1] < 20:
            return "sampling"
        return f"ESS of log p(y | f): {effective_sample_size(trace):.0f}"


def _largest_precision(fit: Fit) -> float:
    surrogate = fit.surrogate
    return float(np.asarray(surrogate.prior.total(surrogate.precision)).max())


def _has_gradient(target: Target, prior: JointPrior, vector: Any) -> bool:
    """Whether the posterior density can be differentiated: a kernel of one's own may have no reverse mode."""
    whitened = jnp.zeros(sum(prior.ranks))
    try:
        jax.eval_shape(jax.grad(target.log_joint, argnums=(0, 1)), vector, whitened)
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


def _stages(num_warmup: int, sampled: bool) -> tuple[int, ...]:
    """The iterations before which warm-up adapts; each begins with a pilot."""
    if sampled:
        # The last one sets the numbers of moves alone.
        quarter = num_warmup // 4
        return (quarter, 2 * quarter, 3 * quarter) if quarter > PILOT else ()
    return (0,) if num_warmup >= PILOT else ()


def _by_group(prior: JointPrior, flat: np.ndarray) -> tuple[np.ndarray, ...]:
    """Whitened coordinates (..., D) by group, (..., rank, size)."""
    counts = [group.rank * size for group, size in zip(prior.groups, prior.sizes, strict=True)]
    parts = np.split(flat, np.cumsum(counts)[:-1], axis=-1)
    pairs = zip(parts, prior.sizes, strict=True)
    return tuple(np.swapaxes(part.reshape(*part.shape[:-1], size, -1), -1, -2) for part, size in pairs)


@partial(compiled, lightly=True, on_one_thread=True)
def _left_out(target: Target, vector: Any) -> tuple[Any, Any, Any]:
    """Of each latent at data the prior variance that inducing inputs leave, its sites' precision, and its variance.

    The latter as of variational engines, where no site moves what is left.
    """
    surrogate = target.surrogate(vector)
    spans = surrogate.prior.spans()
    left = surrogate.prior.marginals()[1] - spans.marginals()[1]
    W = precisions_of(surrogate)
    moved = condition_coupled(spans, surrogate.potential, W, surrogate.blocks)
    return left, jnp.diagonal(W, axis1=1, axis2=2), moved.moments()[1] + left


@partial(compiled, lightly=True, on_one_thread=True)
def _to_draw_from(surrogate: CoupledPosterior) -> Fresh:
    return Fresh.beside(surrogate, surrogate.with_inverse_roots())


_split_key = compiled(jax.random.split, static_argnames="num", on_one_thread=True)


@partial(compiled, static_argnames="unknowns")
def _constrain(unknowns: Unknowns, vectors: Any) -> list[Any]:
    return jax.vmap(unknowns.constrain)(vectors)
