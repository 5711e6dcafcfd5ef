"""The Gibbs sampler: `gibbs`."""

import copy
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.data.arrays import MissingChoice, check_whole_number
from pgmodels.inference.bound import ProblemFamily
from pgmodels.inference.checkpoint_folder import EngineCheckpoint, leaves_of
from pgmodels.inference.gibbs_schedule import (
    AUTO,
    BLOCKS,
    CHUNK,
    PILOT,
    SCHEMES,
    Keep,
    Moments,
    Record,
    Schedule,
    Scheme,
    SchemeName,
    State,
    default_schedule,
    pilot_schedule,
    renew_surrogates,
    run_chunk,
    start_chains,
    tune,
)
from pgmodels.inference.moves import Chain, Move, MoveRequirement, MoveStats, Reference, Target, fit_again
from pgmodels.inference.prepare import (
    INDEPENDENT,
    accurate_prior,
    nearly_converged,
    resolved,
    select_inducing_inputs,
    warn_inaccurate,
    warn_left_out,
)
from pgmodels.inference.slice_moves import check_blocks
from pgmodels.inference.surrogates import Ellipse, Fit, constant_path, ellipse_of, precisions_of
from pgmodels.likelihoods.sampling import checked_unknowns
from pgmodels.model import Data, Model, fixed_groups, forms_can_pad, require_model, with_powers
from pgmodels.parameters.vector import ParameterVector, have_fixed_kernels
from pgmodels.priors.base import RandomKey, Sites
from pgmodels.priors.block_posterior import BlockPosterior, condition_blocks
from pgmodels.priors.collection import NewLeaves, PriorCollection, can_pad, have_factors, padded_prior, require_coupling
from pgmodels.results.draws import Draws
from pgmodels.results.gaussian import constrained
from pgmodels.runtime.io import digest
from pgmodels.runtime.jit import compiled, one_thread_if_small, one_thread_up_to, require_draws
from pgmodels.runtime.messages import PgmodelsWarning, progress_bar, warn
from pgmodels.runtime.precision import Picklable, as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_key, as_seed


class MixingWarning(PgmodelsWarning):
    """Draws may be strongly correlated, or chains may differ, although the sampler is exact."""


def warn_unmixed(engine: str, count: int, means: np.ndarray, variances: np.ndarray) -> None:
    """Warn if the means (chains, n, latents) of ``count`` draws differ by more than their variances explain."""
    # Of fewer draws R-hat is noise.
    if count < 100 or len(means) < 2:
        return
    within = variances.mean(axis=0) * (count - 1) / count
    ratio = np.divide(means.var(axis=0, ddof=1), within, out=np.zeros_like(within), where=within > 0.0)
    largest = float(np.sqrt(1.0 + np.max(ratio)))
    # Gelman and Rubin 1992 recommend less.
    if largest > 1.2:
        row, latent = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        warn(
            f"{engine}: R-hat is {largest:.2f} (latent {latent} at row {row}): the chains have not converged to one "
            "distribution, and the draws' means and variances are wrong. Raise num_warmup and num_samples.",
            MixingWarning,
        )


class SamplingError(ValueError):
    """A sampler's state is not finite. ``draws`` has the draws before it, None during warm-up."""

    def __init__(self, message: str, draws: Draws | None):
        super().__init__(message)
        self.draws = draws

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplingError, (*self.args, self.draws)


class Settings(NamedTuple):
    """Settings of a run in addition to the model and the data."""

    num_warmup: int
    num_chains: int
    key: RandomKey
    keep: Keep


class GibbsRun(Picklable):
    """Chains of one model and data set. ``number`` counts iterations, warm-up included."""

    def __init__(self, model: Model, data: Data, settings: Settings, scheme: Scheme = AUTO):
        self.model, self.data, self.settings = model, data, settings
        self.unknowns: ParameterVector = checked_unknowns(model)
        self.is_sampled = bool(self.unknowns.leaf_indices)
        vector = as_array(self.unknowns.start())
        # If kernel hyperparameters are sampled, in the form that does not depend on their values.
        groups = fixed_groups(model, data.X, have_fixed_kernels(model)) if self.is_sampled else ()
        bound = model.prior(data.X, traced=True, known=groups) if self.is_sampled else model.prior(data.X)
        self.prior: PriorCollection = bound.for_sampling()
        pads = forms_can_pad(model) and can_pad(self.prior)
        self.prior = padded_prior(self.prior) if pads else self.prior
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
        self.target = Target(family, fixed_reference=None if self.is_sampled else Reference(self.prior))
        quarter, self.stages = settings.num_warmup // 4, tuple[int, ...]()
        if self.is_sampled and quarter > PILOT:
            # The last pilot sets only the numbers of moves.
            self.stages = quarter, 2 * quarter, 3 * quarter
        elif not self.is_sampled and settings.num_warmup >= PILOT:
            self.stages = (0,)
        moves = _usable_moves(self.target, self.prior, scheme.moves, vector, has_warmup=bool(self.stages))
        self.schedule: Schedule = default_schedule(moves, self.prior)
        # The largest precision of the fitted Gaussian's factors.
        self.precision = 0.0
        if have_factors(self.prior.spans()):
            self._fit_first(vector)
        elif self.is_sampled:
            self.target = replace(self.target, fitted=Ellipse(vector, as_array(np.eye(len(vector)))))
        keys = _split_key(settings.key, settings.num_chains)
        self.state: State = start_chains(self.target, self.schedule.moves, vector, keys)
        self.moments = Moments.none(self.chains.latents.shape)
        self.number = 0
        self.records: list[Record] = []
        self.vectors: list[np.ndarray] = []
        self.failed_fits: list[str] = []

    @property
    def chains(self) -> Chain:
        """The current states of the chains."""
        return self.state.chains

    def _fit_first(self, vector: Array) -> None:
        """Fit the Gaussian at the model's values."""
        model = self.target.family.model
        fit = self.target.fit(model, self.prior)
        self.precision = _largest_precision(fit)
        if self.is_sampled:
            self.target = replace(self.target, fitted=constant_path(fit, vector, self.schedule.needs_coordinates))
            return
        finer = accurate_prior(self.model, self.data, self.prior, self.precision)
        if finer is not self.prior:
            self.prior = finer.resized(self.prior.num_rows)
            fit = self.target.fit(model, self.prior)
            self.precision = _largest_precision(fit)
        surrogate = _to_draw_from(fit.surrogate).completed(fit.surrogate)
        self.target = replace(self.target, fixed_reference=Reference(surrogate=surrogate))

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
    def arrays(self) -> tuple[Any, ...]:
        """The state that the next iteration needs, as a pytree of arrays.

        The first is of the hyperparameters since the last fit, one vector for each iteration.
        """
        chains = self.chains._replace(key=jax.random.key_data(self.chains.key))
        past = np.concatenate(self.vectors) if self.vectors else np.zeros((0, *chains.unknowns.shape))
        return past, self.state._replace(chains=chains), self.schedule, self.moments, self.target.fitted

    def restore(self, arrays: tuple[Any, ...], number: int, records: list[Record], failed_fits: list[str]) -> None:
        """Restore a saved state, with its ``arrays``."""
        past, state, self.schedule, self.moments, fitted = arrays
        self.target = replace(self.target, fitted=fitted)
        self.vectors = [np.asarray(past)]
        kind = jax.random.key_impl(self.settings.key)
        chains = state.chains._replace(key=jax.random.wrap_key_data(state.chains.key, impl=kind))
        self.state = state._replace(chains=chains)
        self.number, self.records, self.failed_fits = number, records, failed_fits

    def advance(self, until: int, saved: "Checkpoint | None", progress: bool | None) -> None:
        """Iterate until the run has ``until`` iterations in total."""
        warmup = self.settings.num_warmup
        with progress_bar("gibbs", until, progress) as bar:
            bar.advance(min(self.number, until))
            while self.number < until:
                before = self.number
                if self.number in self.stages:
                    self._adapt()
                if self.number == warmup:
                    self.moments = Moments.none(self.chains.latents.shape)
                if self.number < until:
                    ends = [end for end in (*self.stages, warmup, until) if end > self.number]
                    self._chunk(min(CHUNK, min(ends) - self.number))
                bar.advance(self.number - before, _note(self.records) if bar.visible else "")
                if saved is not None:
                    saved.save(self, final=self.number >= until)

    def warn(self) -> None:
        """Warn of an inaccurate prior, failed fits, too few inducing inputs, and chains that differ."""
        warn_inaccurate(self.prior, self.precision)
        rows = len(self.data.y)
        if have_factors(self.prior.spans()) and not have_factors(self.prior):
            vector = as_array(np.median(np.asarray(self.chains.unknowns), axis=0))
            residual, precision, variance = (
                np.asarray(leaf)[:rows] for leaf in _inducing_residuals(self.target, vector)
            )
            model = self.unknowns.with_values(self.unknowns.constrain(vector))
            warn_left_out(model, self.data.X, residual, precision, variance, INDEPENDENT)
        count, means, squares = (np.asarray(part) for part in self.moments)
        warn_unmixed("gibbs", int(count), means[:, :rows], squares[:, :rows] / max(float(count), 1.0))
        if self.failed_fits:
            warn(
                f"no Gaussian could be fitted in warm-up ({'; '.join(self.failed_fits)}). The draws are still "
                "exact, but may mix slowly: check R-hat and ESS, and narrow very wide priors.",
                MixingWarning,
            )

    def draws(self, num_samples: int, seconds: float) -> Draws:
        """Return the draws so far, at most ``num_samples``."""

        def joined(*chunks: np.ndarray) -> np.ndarray:
            # In the memory layout of files and pickles, so that means over draws are equal to the last digit.
            return np.ascontiguousarray(np.swapaxes(np.concatenate(chunks), 0, 1)[:, :num_samples])

        records = jax.tree.map(joined, *self.records)
        hyperparameters = {}
        if self.is_sampled:
            vectors = records.unknowns
            values = constrained(self.unknowns, as_array(vectors.reshape(-1, vectors.shape[-1])))
            arrays = [np.asarray(value).reshape(*vectors.shape[:2], *value.shape[1:]) for value in values]
            hyperparameters = dict(zip(self.unknowns.names, arrays, strict=True))
        model = self.unknowns.with_values(self.unknowns.median(list(hyperparameters.values())))
        count, keep = len(self.data.y), self.settings.keep
        prior = self.prior.resized(count)
        if hyperparameters:
            prior = model.prior(self.data.X, traced=True, known=self.target.family.fixed_groups).for_sampling()
        whitened = None
        if records.coordinates is not None:
            counts = [group.rank * size for group, size in zip(self.prior.groups, self.prior.sizes, strict=True)]
            pairs = zip(np.split(records.coordinates, np.cumsum(counts)[:-1], axis=-1), self.prior.sizes, strict=True)
            by_group = (np.swapaxes(flat.reshape(*flat.shape[:-1], size, -1), -1, -2) for flat, size in pairs)
            ranks = [group.rank for group in prior.groups]
            whitened = tuple(v[..., :rank, :] for v, rank in zip(by_group, ranks, strict=True))
        latents = records.latents
        if latents is not None and keep.what == "all":
            latents = latents[:, :, :count]
        return Draws(
            model=model,
            **self.data._asdict(),
            prior=prior,
            whitened=whitened,
            log_likelihood_trace=records.log_likelihood,
            hyperparameters=hyperparameters,
            stored_latents=latents,
            rows=np.array(keep.rows) if keep.what == "rows" else None,
            moments=None if keep.what == "all" else self.moments.pooled(count),
            tuning=self.schedule.as_dict(),
            run=self,
            num_warmup=self.settings.num_warmup,
            seconds=seconds,
            method="gibbs",
        )

    def copy(self) -> "GibbsRun":
        """Return a copy of the run, which continues independently."""
        other = copy.copy(self)
        other.records = list(self.records)
        return other

    def _chunk(self, count: int) -> tuple[MoveStats, ...]:
        """At most CHUNK iterations. Raises SamplingError if a state is not finite."""
        arguments = (self.target, self.schedule, self.state, self.moments, self.number, count)
        self.state, self.moments, stats, record = run_chunk(*arguments, self.settings.keep)
        # Sliced in NumPy: JAX would compile a slice for every length.
        record = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], record)
        bad = np.argwhere(record.failed > 0)
        if self.number >= self.settings.num_warmup:
            good = count if not bad.size else int(bad[0, 0])
            if good:
                self.records.append(jax.tree.map(lambda leaf: leaf[:good], record))
        elif self.is_sampled:
            self.vectors.append(record.unknowns)
        if bad.size:
            step, chain = bad[0]
            drawn = sum(len(part.log_likelihood) for part in self.records)
            raise SamplingError(
                f"gibbs: the {BLOCKS[int(record.failed[step, chain])]} of chain {chain} are not finite in iteration "
                f"{self.number + step} (warm-up included). Look for extreme values in y, prior variances of many "
                f"orders of magnitude, or a likelihood scale close to zero. The error's .draws has the {drawn} draws "
                "of each chain before it.",
                self.draws(drawn, float("nan")) if drawn else None,
            )
        self.number += count
        return stats

    def _adapt(self) -> None:
        """A pilot run, from which moves are tuned, after another fit of the Gaussian to recent hyperparameters."""
        if self.is_sampled and self.number < self.stages[-1]:
            vectors = np.concatenate(self.vectors).reshape(-1, self.chains.unknowns.shape[1])
            self.vectors = []
            if self.target.fitted is not None:
                self._fit_again(vectors)
        self.schedule = pilot_schedule(self.schedule, self.stages.index(self.number))
        self.schedule = tune(self.prior, self.is_sampled, self._chunk(PILOT), self.schedule)

    def _fit_again(self, vectors: np.ndarray) -> None:
        if not have_factors(self.prior.spans()):
            self.target = replace(self.target, fitted=ellipse_of(vectors))
            return
        path, fault = fit_again(self.target, vectors, self.schedule.needs_coordinates)
        if fault:
            self.failed_fits.append(f"iteration {self.number}{':' if path is None else ','} {fault}")
        if path is not None:
            self.target = replace(self.target, fitted=path)
            self.state = renew_surrogates(self.target, self.state)


def _usable_moves(
    target: Target, prior: PriorCollection, moves: Sequence[Move], vector: Array, has_warmup: bool
) -> list[Move]:
    """Moves whose requirements are met; ValueError if hyperparameters are sampled and no move updates them."""
    unknowns = target.unknowns
    is_sampled, has_gaussian = bool(unknowns.leaf_indices), have_factors(prior.spans())
    if target.objective.predictors is not None:
        # Predictors couple latents in the sweep too.
        require_coupling(prior)
    if not has_gaussian:
        check_blocks(target, prior)
    conditions = {
        MoveRequirement.HYPERPARAMETERS: is_sampled,
        # Without warm-up the step size of Hamiltonian steps is not tuned.
        MoveRequirement.WARMUP: has_warmup,
        MoveRequirement.OF_PRIOR: np.any(unknowns.gps >= 0),
        MoveRequirement.OF_LIKELIHOOD: np.any(unknowns.gps < 0),
        MoveRequirement.FACTOR: has_gaussian,
        MoveRequirement.GAUSSIAN: has_gaussian,
        MoveRequirement.NO_GAUSSIAN: not has_gaussian,
        MoveRequirement.PRECONDITIONER: have_factors(prior) and is_sampled,
    }
    met = {requirement for requirement, holds in conditions.items() if holds}
    possible = [move for move in moves if move.requirements - met <= {MoveRequirement.GRADIENT}]
    differentiated = [move for move in possible if MoveRequirement.GRADIENT in move.requirements]
    if differentiated and not _has_gradient(target, prior, vector):
        possible = [move for move in possible if move not in differentiated]
    if is_sampled and not any(MoveRequirement.HYPERPARAMETERS in move.requirements for move in possible):
        raise ValueError(
            f"gibbs cannot sample {', '.join(unknowns.names)} here: no move of the scheme updates them. Learn "
            "them with fit, or fix them with pgm.Fixed."
        )
    return possible


def _largest_precision(fit: Fit) -> float:
    surrogate = fit.surrogate
    return float(np.asarray(surrogate.prior.total(surrogate.sites.precision)).max())


def _has_gradient(target: Target, prior: PriorCollection, vector: Array) -> bool:
    """Whether the posterior density can be differentiated: a user's kernel may have no reverse mode."""
    try:
        jax.eval_shape(jax.grad(target.log_joint, argnums=(0, 1)), vector, jnp.zeros(sum(prior.ranks)))
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


def _note(records: Sequence[Record]) -> str:
    if not records:
        return "warm-up"
    trace = np.concatenate([part.log_likelihood for part in records]).T
    if trace.shape[1] < 20:
        return "sampling"
    from numpyro.diagnostics import effective_sample_size

    return f"ESS of log p(y | f): {effective_sample_size(trace):.0f}"


@partial(compiled, optimise=False, on_one_thread=True)
def _inducing_residuals(target: Target, vector: Array) -> tuple[Array, Array, Array]:
    """Residual prior variance given the inducing inputs, site precision and q's variance of each latent."""
    surrogate = target.surrogate(vector)
    spans = surrogate.prior.spans()
    residual = surrogate.prior.marginals()[1] - spans.marginals()[1]
    W = precisions_of(surrogate)
    moved = condition_blocks(spans, Sites(surrogate.sites.potential, W), surrogate.blocks)
    return residual, jnp.diagonal(W, axis1=1, axis2=2), moved.moments()[1] + residual


@partial(compiled, optimise=False, on_one_thread=True)
def _to_draw_from(surrogate: BlockPosterior) -> NewLeaves:
    return NewLeaves.of(surrogate, surrogate.with_inverse_roots())


_split_key = compiled(jax.random.split, static_argnames="num", on_one_thread=True)


_DRAWS_FILE, _STATE_FILE = re.compile(r"draws-\d{6}\.npz"), re.compile(r"state-\d{9}\.npz")


class Checkpoint(EngineCheckpoint):
    """A folder with the state of a run and its draws.

    ``index.npz`` is replaced last, atomically, and names the files of one state: a kill at any moment leaves a
    complete state. Draws are written once, in chunks.
    """

    engine, format = "gibbs", 12
    num_saved = 0
    draw_files: tuple[str, ...] = ()

    def restore(self, run: GibbsRun) -> None:
        """Restore the saved state of a run, if there is one. Raises ValueError if it belongs to another run."""
        if not self.continues(run.fingerprint):
            return
        match self.index:
            case {"number": int(number), "state": str(state), "parts": tuple(files), "failed_fits": tuple(fits)}:
                named = all(isinstance(file, str) and _DRAWS_FILE.fullmatch(file) for file in files)
                if not named or state != f"state-{number:09d}.npz" or not all(isinstance(fit, str) for fit in fits):
                    self.refuse(f"{self.file} is damaged: it does not name the files of one state")
            case _:
                self.refuse(f"{self.file} is damaged: it does not name the files of one state")
        records = []
        for draws in (self.path / name for name in files):
            values = self.read_file(draws)
            arrays = {name for name, value in values.items() if isinstance(value, np.ndarray)}
            if set(values) != set(Record._fields) or not {"unknowns", "log_likelihood", "failed"} <= arrays:
                self.refuse(f"{draws} is damaged: it contains {', '.join(values) or 'nothing'}, and no draws")
            records.append(Record(**values))
        drawn = sum(len(record.log_likelihood) for record in records)
        if drawn != max(number - run.settings.num_warmup, 0):
            self.refuse(f"{self.file} is of {number} iterations, and there are {drawn} draws")
        path = self.path / state
        run.restore(self.tree(path, self.read_file(path).get("leaves"), run.arrays), number, records, [*fits])
        self.draw_files, self.num_saved = files, len(records)

    def save(self, run: GibbsRun, final: bool) -> None:
        """Save a run, unless it was saved a moment ago and is not at its end."""
        if not self.is_due(final):
            return
        unsaved = run.records[self.num_saved :]
        if unsaved:
            name = f"draws-{len(self.draw_files):06d}.npz"
            self.write_file(self.path / name, jax.tree.map(lambda *arrays: np.concatenate(arrays), *unsaved)._asdict())
            self.draw_files = (*self.draw_files, name)
            self.num_saved = len(run.records)
        state = f"state-{run.number:09d}.npz"
        self.write_file(self.path / state, {"leaves": leaves_of(run.arrays)})
        self.write_index(
            {"number": run.number, "state": state, "parts": self.draw_files, "failed_fits": tuple(run.failed_fits)}
        )
        for old in self.path.glob("state-*.npz"):
            if old.name != state and _STATE_FILE.fullmatch(old.name):
                old.unlink()


@double_precision
@one_thread_if_small
def gibbs(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    num_samples: int = 1000,
    num_warmup: int = 200,
    num_chains: int = 4,
    seed: Seed = 0,
    scheme: SchemeName = "auto",
    keep: Literal["all", "moments"] | Sequence[int] | np.ndarray = "all",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Draws:
    """Draw from the exact posterior of the latents and of all values with a prior.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Hyperparameters, means and likelihood parameters given as NumPyro distributions are
        sampled; all others are fixed at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``; for some likelihoods 0 and 1 only.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    num_samples : int
        Draws of each chain after warm-up.
    num_warmup : int
        Warm-up iterations of each chain, which are discarded.
    num_chains : int
        Number of chains.
    seed : int or jax.Array
        An int or a JAX key; determines every draw, and inducing inputs as in ``cavi``.
    scheme : {"auto", "sweep", "four_block", "one_vs_rest"}
        The moves of an iteration; see Notes. ``"auto"`` mixes best. The other schemes are published samplers of the
        latents with hyperparameters fixed, to reproduce or compare with published results.
    keep : "all", "moments" or sequence of int
        The stored draws of the latents: ``"all"``, none with ``"moments"``, or the draws at these rows of X. Running
        means and variances of all latents are always stored.
    checkpoint : str or path, optional
        A folder in which the run is saved regularly. After an interruption the same call resumes it, and returns the
        draws of an uninterrupted run bit for bit. With a larger ``num_samples`` it continues from the end.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Draws
        Draws of the latents at the data, ``hyperparameters``, and the settings chosen in warm-up, ``tuning``.

    Raises
    ------
    ValueError
        For invalid data or options, and for a scheme that does not apply to the likelihood or to hyperparameters with
        priors.
    NoAugmentationError
        For a likelihood without an augmentation, or weights for which it has none, unless the scheme needs none.
    SamplingError
        If a state is not finite; the error holds the draws so far.

    Warns
    -----
    MixingWarning
        If R-hat of a latent exceeds 1.2, or no Gaussian can be fitted again in warm-up, so that moves may be short.
    PrecisionWarning
        As in ``cavi``.
    InducingWarning
        If there are too few inducing inputs.

    Notes
    -----
    By default an iteration makes slice moves about a variational Gaussian, which is fitted beforehand. In every
    iteration, or at least every fiftieth, it adds a Gibbs sweep. A sweep draws the auxiliary variables given the
    latents, then the latents given these, overrelaxed. Slice steps update hyperparameters too. A Hamiltonian step on
    hyperparameters and latents jointly replaces the slice moves if it moves further for its cost, often with several
    latents per datum. It is not used for kernels that JAX cannot differentiate in reverse mode, nor with inducing
    inputs, which keep their first positions. Chains start at draws of the Gaussian. Warm-up sets the frequency of each
    move, which is then frozen. With ``pgm.Markov()`` no Gaussian is fitted, and chains start at draws of the prior.
    Each iteration is then a sweep and two slice steps. One is on the hyperparameters of kernels and means given the
    auxiliary variables, with the latents integrated out. One is on the likelihood's parameters given the latents.

    The other schemes make one move in every iteration, and nothing is tuned:

    - ``"sweep"``: the auxiliary variables given the latents, then the latents given the auxiliary variables, for any
      likelihood with an augmentation (Polson, Scott and Windle 2013).
    - ``"four_block"``: the complete conditionals λ | n, n | f, λ, ω | n, f and f | n, ω, for likelihoods with a sum of
      sigmoids to a negative power, such as ``LogisticSoftmax`` (Galy-Fajou et al. 2019, section 3.2). ``"sweep"`` draws
      λ | f instead, with n and ω integrated out, and mixes better.
    - ``"one_vs_rest"``: each latent in turn given all others, for the softmax exp(f[y]) / sum(exp(f)), which has
      no augmentation of all latents together (Polson, Scott and Windle 2013, multinomial logit). Weights may have any
      value.

    References
    ----------
    Polson, Scott and Windle 2013; Galy-Fajou, Wenzel, Donner and Opper 2019; Adler 1981; Murray, Adams and MacKay 2010;
    Murray and Adams 2010; Neal 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> draws = pgm.gibbs(model, X, y, num_samples=200, num_warmup=50, num_chains=2)
    >>> draws.latents.shape
    (2, 200, 30, 1)
    >>> draws.predict([[1.5], [4.5]]).probabilities[:, 1] > 0.5
    array([ True, False])
    """
    start = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights, missing)
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(map(repr, SCHEMES))}; got {scheme!r}.")
    chosen = SCHEMES[scheme]
    chosen.check(model, data)
    check_sizes(num_samples, num_warmup, num_chains)
    settings = Settings(num_warmup, num_chains, as_key(seed), Keep.read(keep, len(data.X)))
    model = resolved(model, data, as_seed(seed))
    if settings.keep.what == "all":
        require_draws(num_samples * num_chains, len(data.X), model.num_latents)
    with Checkpoint.opened(checkpoint) as saved:
        model = select_inducing_inputs(model, data, partial(nearly_converged, objective=chosen.objective(model)))
        run = GibbsRun(model, data, settings, chosen)
        if saved is not None:
            saved.restore(run)
        run.advance(num_warmup + num_samples, saved, progress)
    run.warn()
    return run.draws(num_samples, time.perf_counter() - start)


@double_precision
def extend(draws: Draws, num_samples: int, progress: bool | None) -> Draws:
    """Continue each chain of draws by ``num_samples`` more."""
    check_sizes(num_samples, 0, 1)
    if draws.run is None and draws.method == "gibbs":
        raise ValueError(
            "extend continues the chains of gibbs, which a file written by save does not contain. Pickle the draws "
            "instead, or run gibbs(..., checkpoint=folder), which continues with a larger num_samples."
        )
    if draws.run is None:
        raise ValueError(f"extend continues the chains of gibbs; got draws of {draws.method}. Run it with more draws.")
    start = time.perf_counter()
    run: GibbsRun = draws.run.copy()
    total = draws.num_samples + num_samples
    with one_thread_up_to(len(draws.X)):
        run.advance(draws.num_warmup + total, None, progress)
    return run.draws(total, draws.seconds + time.perf_counter() - start)


def check_sizes(num_samples: int, num_warmup: int, num_chains: int) -> None:
    """Raise ValueError if the sizes of a run are not whole numbers, or too small."""
    check_whole_number(num_samples, "num_samples", 1)
    check_whole_number(num_warmup, "num_warmup", 0)
    check_whole_number(num_chains, "num_chains", 1)
