"""A run of the Gibbs engine: chains that advance, what they leave, and the tuning on the way."""

import copy
import hashlib
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size

from pgmodels.inference.accuracy import accurate_prior, warn_inaccurate
from pgmodels.inference.gaussian_vi import fit_surrogate
from pgmodels.inference.gibbs.moves import (
    Chain,
    Target,
    draw_auxiliaries_then_latents,
    move_all,
    renew,
    renew_prior,
    slice_latents,
    slice_unknowns,
    slice_unknowns_whitened,
)
from pgmodels.inference.gibbs.response import Fit, constant_response, linear_response
from pgmodels.inference.gibbs.tuning import PILOT, Probe, Tuning, default_tuning, pilot_tuning, tune
from pgmodels.interop.numpyro_model import checked_unknowns
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.sequential import COMPILER_OPTIONS
from pgmodels.model import Data, Model
from pgmodels.portable import Portable
from pgmodels.progress import progress_bar
from pgmodels.results.draws import Draws
from pgmodels.unknowns import Unknowns

# Iterations compiled as one loop. Its trip count is an argument, so that any number of draws reuses it.
CHUNK = 50
# Of a saved state: one more for every change of what it holds.
_FORMAT = 4
# What was not finite first, in the words of the error.
BLOCKS = ("", "auxiliaries", "latents", "log likelihood")


class SamplingError(ValueError):
    """A sampler's state is not finite. ``draws`` holds what was drawn until then, None if it was in warm-up."""

    def __init__(self, message: str, draws: Draws | None):
        super().__init__(message)
        self.draws = draws

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplingError, (*self.args, self.draws)


class MixingWarning(UserWarning):
    """Draws that are exact may be strongly correlated."""


@dataclass(frozen=True)
class Keep:
    """What a run stores of the latents: all of them, those of some rows, or running moments alone."""

    what: str
    rows: tuple[int, ...] = ()

    @classmethod
    def read(cls, keep: Any, num_rows: int) -> "Keep":
        """From what a user says; ValueError where it is neither "all", "moments" nor rows of X."""
        if isinstance(keep, str) and keep in ("all", "moments"):
            return cls(keep)
        try:
            rows = np.asarray(keep)
        except ValueError:
            rows = np.zeros(0)
        if isinstance(keep, str) or rows.ndim != 1 or not rows.size or rows.dtype.kind not in "iu":
            raise ValueError(f'keep must be "all", "moments" or a list of rows of X; got {keep!r}.')
        if rows.min() < 0 or rows.max() >= num_rows:
            raise ValueError(
                f"keep names row {rows.max() if rows.min() >= 0 else rows.min()}; X has rows 0 to {num_rows - 1}."
            )
        return cls("rows", tuple(int(row) for row in rows))


class Settings(NamedTuple):
    """What decides a run besides the model and the data."""

    num_warmup: int
    num_chains: int
    key: Any
    keep: Keep


class Moments(NamedTuple):
    """Running means and sums of squared deviations of the latents, a chain each (chains, n, latents)."""

    count: Any
    mean: Any
    squares: Any

    def add(self, latents: Any) -> "Moments":
        """With one more draw (Welford 1962)."""
        count = self.count + 1
        mean = self.mean + (latents - self.mean) / count
        return Moments(count, mean, self.squares + (latents - self.mean) * (latents - mean))


class Record(NamedTuple):
    """What iterations leave, the iterations first: whitened coordinates and latents as far as they are kept."""

    whitened: Any
    latents: Any
    unknowns: Any
    log_likelihood: Any
    failed: Any


def iterate(
    target: Target, tuning: Tuning, chains: Chain, probe: Probe, number: Any, axes: Any
) -> tuple[Chain, Probe, Any]:
    """One iteration of all chains; also whether all sites that were drawn are finite, (chains,)."""
    over_chains = partial(jax.vmap, in_axes=(axes,))
    move_latents = over_chains(partial(slice_latents, target), out_axes=(axes, 0))
    sweep = over_chains(
        partial(draw_auxiliaries_then_latents, target, relaxation=tuning.relaxation), out_axes=(axes, 0, 0)
    )

    def slice_whitened(chain: Chain) -> Chain:
        return slice_unknowns_whitened(target, chain, number % 4 == 0)

    def move_unknowns(chain: Chain) -> tuple[Chain, Any]:
        chain = jax.lax.cond(number % 2 == 0, slice_whitened, lambda chain: chain, chain)
        start = chain.unknowns
        probability = jnp.zeros(())
        if tuning.leapfrogs is not None:
            chain, probability = jax.lax.cond(
                tuning.leapfrogs > 0,
                lambda chain: move_all(target, chain, tuning.step, tuning.leapfrogs),
                lambda chain: (chain, jnp.zeros(())),
                chain,
            )
        between = chain.unknowns
        chain = jax.lax.cond(
            tuning.slice_steps + tuning.unknowns_slices > 0, partial(renew, target), partial(renew_prior, target), chain
        )

        def slice_once(i: Any, chain: Chain) -> Chain:
            return slice_unknowns(target, chain)

        chain = jax.lax.fori_loop(0, tuning.unknowns_slices, slice_once, chain)
        jumps = jnp.stack([between - start, chain.unknowns - between])
        return chain, (probability, jax.vmap(target.response.standard)(jumps) ** 2)

    def with_sweep(chains: Chain, probe: Probe) -> tuple[Chain, Probe, Any]:
        moved, expected, finite = sweep(chains)
        return moved, probe.add_sweep(chains.latents, expected), finite

    def without_sweep(chains: Chain, probe: Probe) -> tuple[Chain, Probe, Any]:
        return chains, probe, jnp.ones(len(chains.latents), bool)

    def slice_step(_: Any, carry: tuple[Chain, Probe]) -> tuple[Chain, Probe]:
        chains, probe = carry
        chains, shrinks = move_latents(chains)
        return chains, probe._replace(
            slices=probe.slices + len(shrinks), shrinks=probe.shrinks + jnp.sum(shrinks, dtype=float)
        )

    if target.unknowns.places:
        # One chain after the other: in a batch each would go on until the slowest has found its step.
        chains, (probabilities, jumps) = jax.lax.map(move_unknowns, chains)
        probe = probe.add_unknowns(probabilities, jumps)
    due = number % tuning.sweep_every == 0
    chains, probe, finite = jax.lax.cond(due, with_sweep, without_sweep, chains, probe)
    chains, probe = jax.lax.fori_loop(0, tuning.slice_steps, slice_step, (chains, probe))
    return chains, probe, finite


@partial(jax.jit, static_argnames=("keep", "axes"), compiler_options=COMPILER_OPTIONS)
def run_chunk(
    target: Target, tuning: Tuning, chains: Chain, moments: Moments, first: Any, count: Any, keep: Keep, axes: Any
) -> tuple[Chain, Moments, Probe, Record]:
    """``count`` <= CHUNK iterations of all chains from number ``first`` on; records are (CHUNK, chains, ...)."""
    sampled = bool(target.unknowns.places)
    likelihood = jax.vmap(target.log_likelihood)

    def record(chains: Chain, failed: Any) -> Record:
        latents = chains.latents
        kept = {"all": latents if sampled else None, "moments": None, "rows": latents[:, jnp.array(keep.rows, int)]}
        whitened = chains.whitened if keep.what == "all" else None
        log_likelihood = likelihood(latents, chains.unknowns)
        finite = jnp.all(jnp.isfinite(latents), axis=(1, 2))
        failed = jnp.where(failed > 0, failed, jnp.where(finite, 0, 2))
        failed = jnp.where(failed > 0, failed, jnp.where(jnp.isfinite(log_likelihood), 0, 3))
        return Record(whitened, kept[keep.what], chains.unknowns, log_likelihood, failed)

    def body(i: Any, carry: Any) -> Any:
        chains, moments, probe, records = carry
        chains, probe, finite = iterate(target, tuning, chains, probe, first + i, axes)
        entry = record(chains, jnp.where(finite, 0, 1))
        records = jax.tree.map(lambda store, value: store.at[i].set(value), records, entry)
        return chains, moments.add(chains.latents), probe, records

    empty = jax.eval_shape(record, chains, jnp.zeros(len(chains.latents), int))
    records = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), empty)
    return jax.lax.fori_loop(0, count, body, (chains, moments, Probe.empty(chains), records))


@partial(jax.jit, static_argnames="axes", compiler_options=COMPILER_OPTIONS)
def start_chains(target: Target, base: Any, vector: Any, keys: Any, axes: Any) -> Chain:
    """Chains at independent draws of the surrogate, a key each, all at the same hyperparameters."""
    surrogate = target.surrogate(vector) if target.unknowns.places else base
    prior = surrogate.prior

    def one(key: Any) -> Chain:
        key, draw = jax.random.split(key)
        whitened = surrogate.centre + surrogate.deviation(jax.random.normal(draw, surrogate.centre.shape))
        return Chain(key, vector, prior.latents(prior.unflatten(whitened)), whitened, surrogate)

    return jax.vmap(one, out_axes=axes)(keys)


@partial(jax.jit, compiler_options=COMPILER_OPTIONS)
def renew_surrogates(target: Target, chains: Chain) -> Chain:
    """The chains, their states untouched, with the surrogates of another target."""
    return jax.lax.map(partial(renew, target), chains)


class GibbsRun(Portable):
    """Chains of one model and data set. ``number`` counts iterations, warm-up included."""

    def __init__(self, model: Model, data: Data, settings: Settings):
        self.model, self.data, self.settings = model, data, settings
        self.unknowns: Unknowns = checked_unknowns(model)
        augmentation = model.augmentation
        y = jnp.asarray(data.y)
        self.axes = Chain(0, 0, 0, 0, 0 if self.unknowns.places else None)  # type: ignore[arg-type]
        vector = jnp.asarray(self.unknowns.start())
        # With hyperparameters sampled, of the form that it has at every value of them.
        sampled = bool(self.unknowns.places)
        self.prior: JointPrior = model.compiled_prior(data.X) if sampled else model.prior(data.X)
        fit = fit_surrogate(augmentation, self.prior, y, model.parameters)
        finer = self.prior if sampled else accurate_prior(model, data, self.prior, float(jnp.max(fit[0].precision)))
        if finer is not self.prior:
            self.prior, fit = finer, fit_surrogate(augmentation, finer, y, model.parameters)
        self.base = fit[0]
        self.target = Target(
            model=model.bare(),
            X=jnp.asarray(data.X),
            y=y,
            augmentation=augmentation,
            unknowns=self.unknowns,
        )
        self.stages = _stages(settings.num_warmup, sampled)
        # Without warm-up nothing finds the length of Hamiltonian steps.
        possible = sampled and len(self.stages) > 0 and _has_gradient(self.target, vector, self.base.centre)
        self.tuning = default_tuning(self.prior, possible)
        if sampled:
            self.target = replace(self.target, response=constant_response(fit, vector, self._framed))
        keys = jax.random.split(settings.key, settings.num_chains)
        self.chains = start_chains(self.target, self.base, vector, keys, self.axes)
        self.moments = self._no_moments()
        self.number = 0
        self.records: list[Record] = []
        self.vectors: list[np.ndarray] = []
        self.failed_fits: list[str] = []

    @property
    def fingerprint(self) -> str:
        """What decides the draws: model, data, sizes and seed."""
        digest = hashlib.sha256(
            repr((_FORMAT, self.model, self.unknowns.signature, self.settings._replace(key=None))).encode()
        )
        leaves = jax.tree.leaves(self.target.model)
        for array in (self.data.X, self.data.y, jax.random.key_data(self.settings.key), *leaves):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def state(self) -> Any:
        """All that the next iteration needs, as arrays."""
        chains = self.chains._replace(key=jax.random.key_data(self.chains.key))
        seen = np.concatenate(self.vectors) if self.vectors else np.zeros((0, *self.chains.unknowns.shape))
        return chains, self.tuning, self.moments, seen, self.target.response

    def restore(self, leaves: list[np.ndarray], number: int, records: list[Record], failed_fits: list[str]) -> None:
        """Take up a saved state."""
        tree = jax.tree.structure(self.state)
        chains, self.tuning, self.moments, seen, response = jax.tree.unflatten(tree, [jnp.asarray(x) for x in leaves])
        self.target = replace(self.target, response=response)
        self.vectors = [np.asarray(seen)]
        self.chains = chains._replace(key=jax.random.wrap_key_data(chains.key))
        self.number, self.records, self.failed_fits = number, records, failed_fits

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
                    self.moments = self._no_moments()
                if self.number < until:
                    ends = [end for end in (*self.stages, warmup, until) if end > self.number]
                    self._chunk(min(CHUNK, min(ends) - self.number))
                bar.advance(self.number - before, self._note() if bar.visible else "")
                if saved is not None:
                    saved.save(self, final=self.number >= until)

    def warn(self, stacklevel: int) -> None:
        """Warn with PrecisionWarning of a prior held too coarsely, with MixingWarning of failed fits in warm-up."""
        warn_inaccurate(self.prior, float(jnp.max(self.base.precision)), stacklevel + 1)
        if self.failed_fits:
            warnings.warn(
                f"no Gaussian could be fitted in warm-up ({'; '.join(self.failed_fits)}). The draws are exact all the "
                "same, but may mix slowly: look at R-hat and ESS, and narrow very wide priors.",
                MixingWarning,
                stacklevel=stacklevel + 1,
            )

    def draws(self, num_samples: int, seconds: float) -> Draws:
        """The draws so far, the last ``num_samples`` at most."""

        def joined(*parts: np.ndarray) -> np.ndarray:
            # In the order in which files and pickles hold them: means over draws are the same there, to the last digit.
            return np.ascontiguousarray(np.swapaxes(np.concatenate(parts), 0, 1)[:, :num_samples])

        records = jax.tree.map(joined, *self.records)
        hyperparameters = self._named(records.unknowns)
        model = self.unknowns.with_values([np.median(v, axis=(0, 1)) for v in hyperparameters.values()])
        prior = self.prior if not hyperparameters else model.compiled_prior(self.data.X)
        whitened = None if records.whitened is None else _by_group(prior, records.whitened)
        return Draws(
            model=model,
            X=self.data.X,
            y=self.data.y,
            columns=self.data.columns,
            prior=prior,
            whitened=whitened,
            log_likelihood_trace=records.log_likelihood,
            hyperparameters=hyperparameters,
            stored_latents=records.latents,
            rows=np.array(self.settings.keep.rows) if self.settings.keep.what == "rows" else None,
            moments=self._pooled_moments() if self.settings.keep.what != "all" else None,
            tuning=jax.tree.map(np.asarray, self.tuning)._asdict(),
            run=self,
            num_warmup=self.settings.num_warmup,
            seconds=seconds,
            method="gibbs",
        )

    def _named(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Hyperparameters by name, (chains, draws, ...), from unconstrained ones (chains, draws, d)."""
        if not self.unknowns.places:
            return {}
        values = _constrain(self.unknowns, jnp.asarray(vectors.reshape(-1, vectors.shape[-1])))
        arrays = [np.asarray(value).reshape(*vectors.shape[:2], *value.shape[1:]) for value in values]
        return dict(zip(self.unknowns.names, arrays, strict=True))

    def copy(self) -> "GibbsRun":
        """A run that goes on from here and leaves this one as it is."""
        other = copy.copy(self)
        other.records = list(self.records)
        return other

    def _chunk(self, count: int) -> Probe:
        arguments = (self.target, self.tuning, self.chains, self.moments, self.number, count)
        self.chains, self.moments, probe, record = run_chunk(*arguments, self.settings.keep, self.axes)
        # Sliced in NumPy: JAX would compile a slice for every length.
        record = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], record)
        bad = np.argwhere(record.failed > 0)
        if self.number >= self.settings.num_warmup:
            good = count if not bad.size else int(bad[0, 0])
            if good:
                self.records.append(jax.tree.map(lambda leaf: leaf[:good], record))
        elif self.unknowns.places:
            self.vectors.append(record.unknowns)
        if bad.size:
            self._fail(int(bad[0, 0]), int(bad[0, 1]), record)
        self.number += count
        return probe

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
        if self.unknowns.places and self.number < self.stages[-1]:
            self._recentre(np.concatenate(self.vectors).reshape(-1, self.chains.unknowns.shape[1]))
            self.vectors = []
        self.tuning = pilot_tuning(self.tuning, self.stages.index(self.number))
        self.tuning = tune(self.prior, self._chunk(PILOT), self.tuning)

    def _recentre(self, vectors: np.ndarray) -> None:
        """Fit the surrogate again at the middle of the hyperparameters so far, and see how it follows them."""
        recent = vectors[len(vectors) // 2 :]
        middle: Any = recent.mean(axis=0)
        covariance = np.atleast_2d(np.cov(recent.T))
        # Few and dependent draws: correlations are drawn towards 0, and no direction is given up.
        covariance = 0.9 * covariance + 0.1 * np.diag(np.diag(covariance)) + 1e-4 * np.eye(len(covariance))
        scale: Any = np.linalg.cholesky(covariance)
        fit = self._fit(middle, None)
        if not _is_finite(fit):
            self.failed_fits.append(f"iteration {self.number}: moves go on about the Gaussian fitted before")
            return
        neighbours = [(self._fit(middle + step, fit[0]), self._fit(middle - step, fit[0])) for step in scale.T]
        bad = [not (_is_finite(up) and _is_finite(down)) for up, down in neighbours]
        if any(bad):
            where = f"iteration {self.number}, {sum(bad)} of {len(bad)} directions of the hyperparameters"
            self.failed_fits.append(f"{where}: the Gaussian is held as it is along them")
        neighbours = [(fit, fit) if no else pair for no, pair in zip(bad, neighbours, strict=True)]
        response = linear_response(fit, jnp.asarray(middle), jnp.asarray(scale), neighbours, self._framed)
        self.target = replace(self.target, response=response)
        self.chains = renew_surrogates(self.target, self.chains)

    @property
    def _framed(self) -> bool:
        """Whether Hamiltonian steps are tried, which need standard coordinates."""
        return self.tuning.leapfrogs is not None

    def _fit(self, vector: Any, start: CoupledPosterior | None) -> Fit:
        """The fitted Gaussian at given hyperparameters."""
        drawn = self.target.drawn(jnp.asarray(vector))
        prior = drawn.compiled_prior(self.data.X)
        return fit_surrogate(self.target.augmentation, prior, self.target.y, drawn.parameters, start)

    def _no_moments(self) -> Moments:
        zeros = jnp.zeros(self.chains.latents.shape)
        return Moments(jnp.zeros(()), zeros, zeros)

    def _pooled_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents over the draws of all chains."""
        count, means, squares = (np.asarray(part) for part in self.moments)
        mean = means.mean(axis=0)
        return mean, squares.mean(axis=0) / count + means.var(axis=0)

    def _note(self) -> str:
        """How far the run is, in words."""
        if not self.records:
            return "warm-up"
        trace = np.concatenate([part.log_likelihood for part in self.records]).T
        if trace.shape[1] < 20:
            return "sampling"
        return f"ESS of log p(y | f): {effective_sample_size(trace):.0f}"


def _is_finite(fit: Fit) -> bool:
    surrogate, marginals = fit
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in (surrogate.centre, *surrogate.roots, *marginals))


def _has_gradient(target: Target, vector: Any, whitened: Any) -> bool:
    """Whether the posterior density can be differentiated: a kernel of one's own may have no reverse mode."""
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


@partial(jax.jit, static_argnames="unknowns")
def _constrain(unknowns: Unknowns, vectors: Any) -> list[Any]:
    return jax.vmap(unknowns.constrain)(vectors)
