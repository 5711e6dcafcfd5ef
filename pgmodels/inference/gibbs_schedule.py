"""Iterations of the sampler: the schedule of its moves, their record and adaptation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.derive import OneVersusRest, one_versus_rest
from pgmodels.augmentation.predictors import NoAugmentationError
from pgmodels.inference.moves import (
    Chain,
    ClassByClass,
    DataAugmentation,
    FourBlock,
    Move,
    MoveRequirement,
    MoveSchedule,
    MoveStats,
    PlainSweep,
    Reference,
    Target,
    prior_at,
    surrogate_at,
)
from pgmodels.inference.slice_moves import (
    Hamiltonian,
    LikelihoodSlice,
    MarginalSlice,
    SliceLatents,
    SurrogateSlice,
    acceptance,
)
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Data, Model, with_powers
from pgmodels.objectives.base import FormulaObjective
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.base import RandomKey
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import Module, as_array

# Records of iterations, running moments, and which draws are stored.

# Lifts a function of one chain to several chains, as ``jax.vmap`` does.
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]
# Iterations compiled as one loop. Its trip count is an argument, so that any number of draws reuses it.
CHUNK = 50
# Names of the first quantity that was not finite, for the error.
BLOCKS = ("", "auxiliaries", "latents", "log likelihood")


@dataclass(frozen=True)
class Keep:
    """Which draws of the latents a run stores: all, the draws of some rows, or only running moments."""

    what: str
    rows: tuple[int, ...] = ()

    @classmethod
    def read(cls, keep: Any, num_rows: int) -> "Keep":
        """Read the argument ``keep``. Raises ValueError unless it is "all", "moments" or rows of X."""
        if isinstance(keep, str) and keep in ("all", "moments"):
            return cls(keep)
        try:
            rows = np.asarray(keep)
        except ValueError:
            rows = np.zeros(0)
        if isinstance(keep, str) or rows.ndim != 1 or not rows.size or rows.dtype.kind not in "iu":
            raise ValueError(f'keep must be "all", "moments" or a list of rows of X; got {shorten(keep)}.')
        if rows.min() < 0 or rows.max() >= num_rows:
            raise ValueError(
                f"keep names row {rows.max() if rows.min() >= 0 else rows.min()}; X has rows 0 to {num_rows - 1}."
            )
        return cls("rows", tuple(int(row) for row in rows))


class Moments(NamedTuple):
    """Running means and sums of squared deviations of the latents of each chain, (chains, n, latents)."""

    count: Any
    mean: Array | np.ndarray
    squares: Array | np.ndarray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Moments":
        """Return moments before the first draw, for latents of shape (chains, n, latents)."""
        return cls(np.zeros(()), np.zeros(shape), np.zeros(shape))

    def add(self, latents: Array) -> "Moments":
        """Updated with one more draw (Welford 1962)."""
        count = self.count + 1
        mean = self.mean + (latents - self.mean) / count
        return Moments(count, mean, self.squares + (latents - self.mean) * (latents - mean))

    def pooled(self, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the draws of all chains at the first rows, (num_rows, latents)."""
        count, means, squares = (np.asarray(part) for part in self)
        return means.mean(axis=0)[:num_rows], (squares.mean(axis=0) / count + means.var(axis=0))[:num_rows]


class Record(NamedTuple):
    """Records of iterations along the first axis; coordinates and latents only if stored."""

    coordinates: Array | np.ndarray | None
    latents: Array | np.ndarray | None
    unknowns: Array | np.ndarray
    log_likelihood: Array | np.ndarray
    failed: Array | np.ndarray


# In the order of an iteration.
MOVES: tuple[Move, ...] = (
    Hamiltonian(),
    SurrogateSlice(),
    MarginalSlice(),
    LikelihoodSlice(),
    DataAugmentation(),
    SliceLatents(),
)


class Schedule(Module):
    """The moves of a run in the order of an iteration, with a MoveSchedule each."""

    moves: tuple[Move, ...] = eqx.field(static=True)
    move_schedules: tuple[MoveSchedule, ...]

    @classmethod
    def first(cls, moves: Sequence[Move]) -> "Schedule":
        """Return the initial schedule of each move."""
        return cls(tuple(moves), tuple(move.first() for move in moves))

    def __iter__(self) -> Iterator[tuple[Move, MoveSchedule]]:
        return zip(self.moves, self.move_schedules, strict=True)

    def of(self, kind: type[Move]) -> MoveSchedule | None:
        """Return the schedule of a kind of move, None if the run has none."""
        return next((move_schedule for move, move_schedule in self if isinstance(move, kind)), None)

    def change(self, kind: type[Move], **values: int) -> "Schedule":
        """Return a copy with changed entries for a kind of move, if the run has it."""
        new = {name: as_array(value) for name, value in values.items()}
        changed = (entry._replace(**new) if isinstance(move, kind) else entry for move, entry in self)
        return Schedule(self.moves, tuple(changed))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the schedules by names of moves."""
        entries_by_move = {}
        for move, move_schedule in self:
            settings = {} if move_schedule.settings is None else move_schedule.settings._asdict()
            entries = {"repeats": move_schedule.repeats, "every": move_schedule.every, **settings}
            entries_by_move[move.name] = {name: np.asarray(value)[()] for name, value in entries.items()}
        return entries_by_move

    @property
    def needs_coordinates(self) -> bool:
        """Whether a move needs standard coordinates of hyperparameters and latents."""
        return any(MoveRequirement.PRECONDITIONER in move.requirements for move in self.moves)

    @property
    def needs_surrogate(self) -> Array:
        """Whether an iteration makes a move that uses the surrogate."""
        repeats = (move_schedule.repeats for move, move_schedule in self if move.state == "surrogate")
        return sum(repeats, as_array(0)) > 0

    @property
    def renewals(self) -> set[int]:
        """Indices of moves before which the shared prior or surrogate is stale and must be recomputed."""
        indices, is_stale = set(), False
        # Two passes: a reference that is stale at the end of an iteration is recomputed in the next.
        for index, move in 2 * list(enumerate(self.moves)):
            if move.state is None:
                is_stale = is_stale or MoveRequirement.HYPERPARAMETERS in move.requirements
            elif is_stale:
                indices.add(index)
                is_stale = False
        return indices


def zero_stats(schedule: Schedule, chains: Chain) -> tuple[MoveStats, ...]:
    """Return statistics of zero iterations, one for each move."""
    zero, jumps = jnp.zeros(()), jnp.zeros_like(chains.unknowns)
    return tuple(MoveStats(zero, zero, jax.vmap(move.no_info)(chains), jumps) for move in schedule.moves)


# Compiled iterations of all chains: each move in its order, and the records of draws and statistics.


class State(NamedTuple):
    """State of all chains, with chains along the first axis; within a move, of a single chain.

    ``reference`` is the prior or surrogate at each chain's hyperparameters, None if they are fixed (it is then
    ``Target.fixed_reference``). ``move_states`` holds the state of each move that has one, else ().
    """

    chains: Chain
    reference: Reference | None
    move_states: tuple[Any, ...]


def iterate(
    target: Target, schedule: Schedule, state: State, stats: Sequence[MoveStats], number: Array | int
) -> tuple[State, tuple[MoveStats, ...], Array]:
    """One iteration of all chains. Also returns whether all intermediate draws are finite, (chains,)."""
    finite = jnp.ones(len(state.chains.latents), bool)
    sums: list[tuple[Any, Array]] = []
    for in_sequence, indices in groupby(
        range(len(schedule.moves)), lambda i: MoveRequirement.HYPERPARAMETERS in schedule.moves[i].requirements
    ):
        run = partial(_run_moves, target, schedule, tuple(indices), number)
        if in_sequence:
            # Chains in sequence: in a batch, each chain would loop until the slowest has accepted.
            state, new_sums, is_finite = jax.lax.map(partial(run, lambda function: function), state)
        else:
            state, new_sums, is_finite = run(jax.vmap, state)
        sums += new_sums
        finite = finite & is_finite
    counts, size = [_num_steps(entry, number) for entry in schedule.move_schedules], len(finite)
    added = [
        MoveStats(size * (count > 0), size * count, info, jumps)
        for count, (info, jumps) in zip(counts, sums, strict=True)
    ]
    return state, jax.tree.map(jnp.add, tuple(stats), tuple(added)), finite


def _num_steps(move_schedule: MoveSchedule, number: Array | int) -> Array:
    """The number of steps of a move in an iteration."""
    return jnp.where(number % move_schedule.every == 0, move_schedule.repeats, 0)


def _run_moves(
    target: Target, schedule: Schedule, indices: Sequence[int], number: Array | int, lift: Lift, state: State
) -> tuple[State, list[tuple[Any, Array]], Array]:
    """Run moves on all chains (``lift``); also their summed ``info`` and squared jumps in the hyperparameters."""
    chain, reference, move_states = state
    sums, finite = [], lift(lambda _: jnp.array(True))(chain.unknowns)
    for index in indices:
        move, move_schedule = schedule.moves[index], schedule.move_schedules[index]
        if index in schedule.renewals and reference is not None:
            reference = lift(partial(_renewed, target, schedule.needs_surrogate))(chain, reference)
        before, count = chain.unknowns, _num_steps(move_schedule, number)
        steps = lift(partial(_steps, target, move, move_schedule.settings, count))
        chain, reference, move_state, info, is_finite = steps(chain, reference, move_states[index])
        finite = finite & is_finite
        move_states = (*move_states[:index], move_state, *move_states[index + 1 :])
        sums.append((info, lift(partial(_jumps, target, move))(before, chain.unknowns)))
    return State(chain, reference, move_states), sums, finite


def _steps(
    target: Target, move: Move, settings: Any, count: Array, chain: Chain, reference: Reference | None, state: Any
) -> tuple[Chain, Reference | None, Any, Any, Array | bool]:
    """All steps of a move in one iteration, for one chain. Its state may be the reference that moves share."""
    if move.state is None:
        moved = move.steps(target, settings, chain, state, count)
        state = moved.state
    else:
        used = getattr(target.fixed_reference if reference is None else reference, move.state)
        moved = move.steps(target, settings, chain, used, count)
        if MoveRequirement.HYPERPARAMETERS in move.requirements:
            reference = Reference(surrogate=moved.state)
    return moved.chain, reference, state, moved.info, moved.finite


def _jumps(target: Target, move: Move, before: Array, after: Array) -> Array:
    if MoveRequirement.HYPERPARAMETERS not in move.requirements or target.fitted is None:
        return jnp.zeros_like(before)
    return target.ellipse.standard(after - before) ** 2


def _renewed(target: Target, surrogate: Array, chain: Chain, reference: Reference) -> Reference:
    """The reference at the chain's hyperparameters. If no move uses the surrogate, only its prior is recomputed."""
    before = reference.surrogate
    if before is None:
        return Reference(prior_at(target, chain.unknowns))
    renewed = jax.lax.cond(
        surrogate,
        lambda: surrogate_at(target, chain.unknowns),
        lambda: replace(before, prior=prior_at(target, chain.unknowns)),
    )
    return Reference(surrogate=renewed)


@partial(compiled, on_one_thread=True, static_argnames="keep")
def run_chunk(
    target: Target,
    schedule: Schedule,
    state: State,
    moments: Moments,
    first: Array | int,
    count: Array | int,
    keep: Keep,
) -> tuple[State, Moments, tuple[MoveStats, ...], Record]:
    """``count`` <= CHUNK iterations of all chains, starting at ``first``; records are (CHUNK, chains, ...)."""
    sampled = bool(target.unknowns.leaf_indices)
    likelihood = jax.vmap(target.log_likelihood)

    def record(chains: Chain, failed: Array) -> Record:
        latents = chains.latents
        kept = {"all": latents if sampled else None, "moments": None, "rows": latents[:, jnp.array(keep.rows, int)]}
        coordinates = chains.coordinates if keep.what == "all" else None
        log_likelihood = likelihood(latents, chains.unknowns)
        finite = jnp.all(jnp.isfinite(latents), axis=(1, 2))
        failed = jnp.where(failed > 0, failed, jnp.where(finite, 0, 2))
        failed = jnp.where(failed > 0, failed, jnp.where(jnp.isfinite(log_likelihood), 0, 3))
        return Record(coordinates, kept[keep.what], chains.unknowns, log_likelihood, failed)

    def body(i: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        state, moments, stats, records = carry
        state, stats, finite = iterate(target, schedule, state, stats, first + i)
        entry = record(state.chains, jnp.where(finite, 0, 1))
        records = jax.tree.map(lambda store, value: store.at[i].set(value), records, entry)
        return state, moments.add(state.chains.latents), stats, records

    chains = state.chains
    empty = jax.eval_shape(record, chains, jnp.zeros(len(chains.latents), int))
    records = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), empty)
    return jax.lax.fori_loop(0, count, body, (state, moments, zero_stats(schedule, chains), records))


def started_chains(target: Target, moves: tuple[Move, ...], vector: Array, keys: RandomKey) -> State:
    """Return chains, one for each key, at independent draws of the surrogate or the prior, at equal hyperparameters."""
    reference = target.reference(vector)

    def one(key: RandomKey) -> State:
        key, draw = jax.random.split(key)
        chain = Chain(key, vector, *reference.draw(draw))
        move_states = tuple(move.init(target, chain) if move.state is None else () for move in moves)
        return State(chain, reference if target.fixed_reference is None else None, move_states)

    return jax.vmap(one, out_axes=0)(keys)


start_chains = compiled(started_chains, static_argnames="moves", optimise=False, on_one_thread=True)


@partial(compiled, on_one_thread=True)
def renew_surrogates(target: Target, state: State) -> State:
    """Return the same chains, with the surrogates of a new target."""
    surrogate = jax.lax.map(partial(surrogate_at, target), state.chains.unknowns)
    return state._replace(reference=Reference(surrogate=surrogate))


# Adaptation during warm-up: how often each move is made; fixed afterwards.

# Iterations of a pilot run, from which moves are tuned.
PILOT = 25
# Maximum cost of Gibbs sweeps relative to the other moves, and maximum spacing between sweeps: if slice steps give the
# wanted number of effective draws, and if not.
_MIXING_WELL, _MIXING_BADLY = (0.1, 50), (1.0, 10)


def default_schedule(moves: Sequence[Move], prior: PriorCollection) -> Schedule:
    """Return the schedule before any pilot, with Hamiltonian steps if they cost at most the replaced slice steps."""
    schedule = Schedule.first(moves)
    hamiltonian, slices = schedule.of(Hamiltonian), schedule.of(SurrogateSlice)
    if hamiltonian is None or slices is None:
        return schedule
    if Hamiltonian().cost(prior, hamiltonian, None) > int(slices.repeats) * SurrogateSlice().cost(prior, slices, None):
        return Schedule.first([move for move in moves if not isinstance(move, Hamiltonian)])
    return schedule.change(Hamiltonian, repeats=0).change(SurrogateSlice, repeats=1)


def pilot_schedule(schedule: Schedule, stage: int) -> Schedule:
    """Return the schedule of a warm-up stage's pilot run: a sweep in every iteration, and the moves to compare.

    The first pilot tunes the step size of Hamiltonian steps, the second compares them to slice steps, and the last uses
    the chosen moves.
    """
    schedule = schedule.change(DataAugmentation, every=1)
    tried = schedule.of(Hamiltonian) is not None
    if not tried or stage == 1:
        schedule = schedule.change(SliceLatents, repeats=4)
    if not tried or stage > 1:
        return schedule
    if stage == 0:
        return schedule.change(Hamiltonian, repeats=1).change(SurrogateSlice, repeats=0).change(SliceLatents, repeats=0)
    return schedule.change(SurrogateSlice, repeats=1)


def tune(prior: PriorCollection, sampled: bool, stats: Sequence[MoveStats], schedule: Schedule) -> Schedule:
    """Return the schedule after a pilot run: the tuning of each move, and how often each is made.

    Of the two kinds of moves on hyperparameters the more efficient is kept;
    both if Hamiltonian steps are rarely accepted.
    """
    pairs = zip(schedule, stats, strict=True)
    schedule = Schedule(schedule.moves, tuple(move.tune(prior, sampled, entry, sums) for (move, entry), sums in pairs))
    hamiltonian, slices = schedule.of(Hamiltonian), schedule.of(SurrogateSlice)
    if hamiltonian is not None and slices is not None:
        together = bool(hamiltonian.repeats and slices.repeats)
        if together and _hamiltonian_goes_further(prior, stats, schedule, hamiltonian, slices):
            schedule = schedule.change(SurrogateSlice, repeats=0)
            slices = slices._replace(repeats=as_array(0))
        elif together:
            schedule = schedule.change(Hamiltonian, repeats=0).change(
                SurrogateSlice, repeats=int(SurrogateSlice().first().repeats)
            )
        elif hamiltonian.repeats and acceptance(_of(schedule, Hamiltonian, stats)) < 0.3:
            # Steps that are so rarely accepted leave regions by slice steps alone.
            return (
                schedule.change(SurrogateSlice, repeats=1)
                .change(SliceLatents, repeats=4)
                .change(DataAugmentation, every=1)
            )
        if not slices.repeats:
            # The Hamiltonian step moves the latents too, and without slice steps no iteration needs a surrogate.
            return schedule.change(SliceLatents, repeats=0).change(DataAugmentation, every=_MIXING_BADLY[1])
    return schedule.change(DataAugmentation, every=_sweep_every(prior, sampled, stats, schedule))


def _hamiltonian_goes_further(
    prior: PriorCollection,
    stats: Sequence[MoveStats],
    schedule: Schedule,
    hamiltonian: MoveSchedule,
    slices: MoveSchedule,
) -> bool:
    def distance(kind: type[Move]) -> float:
        # Compared by the standardised hyperparameter that moves least. An independent draw has a mean squared jump of
        # 2; larger jumps alternate, and do not mix variances better.
        sums = _of(schedule, kind, stats)
        return float(np.minimum(np.sum(sums.jumps, axis=0) / float(sums.iterations), 2.0).min())

    by_steps = distance(Hamiltonian) / Hamiltonian().cost(prior, hamiltonian, None)
    return by_steps > distance(SurrogateSlice) / SurrogateSlice().cost(prior, slices, None)


def _sweep_every(prior: PriorCollection, sampled: bool, stats: Sequence[MoveStats], schedule: Schedule) -> int:
    """The iterations from one sweep to the next: more if slice steps about the surrogate suffice."""
    # Slice steps on hyperparameters cost more than a sweep, and sweeps also work where the Gaussian is far off.
    if sampled:
        return 1
    sweep = other = 0.0
    for (move, move_schedule), sums in zip(schedule, stats, strict=True):
        cost = move.cost(prior, move_schedule, sums)
        if move.is_sweep:
            sweep += cost
        else:
            other += int(move_schedule.repeats) * cost / int(move_schedule.every)
    slices = schedule.of(SliceLatents)
    share, most = _MIXING_WELL if slices is not None and slices.repeats < SliceLatents.max_steps else _MIXING_BADLY
    return int(np.clip(round(sweep / (share * other)), 1, most)) if other else 1


def _of(schedule: Schedule, kind: type[Move], stats: Sequence[MoveStats]) -> MoveStats:
    return next(sums for move, sums in zip(schedule.moves, stats, strict=True) if isinstance(move, kind))


SchemeName = Literal["auto", "sweep", "four_block", "one_vs_rest"]


@dataclass(frozen=True)
class Scheme:
    """A scheme: the ``moves`` of a run, which omits those whose requirements it does not meet, and their conditionals.

    Every scheme starts at draws of the Gaussian fitted to the posterior, or else of the prior. How often each move is
    made is chosen in warm-up.
    """

    name: str
    moves: tuple[Move, ...]

    def objective(self, model: Model) -> FormulaObjective:
        """Return the formula of a model with the conditionals that the moves draw from."""
        return model.augmentation

    def check(self, model: Model, data: Data) -> None:
        """Raise ValueError, before any work, if the scheme does not apply to the model or the weights."""
        if data.weights is None:
            return
        model, data = with_powers(model, data)
        env = Environment(data.y, jnp.zeros((len(data.y), model.num_latents)), model.parameters)
        for requirement in model.augmentation.requirements:
            if requirement.kind == "indicator" and not np.all(requirement.holds(requirement.expression.evaluate(env))):
                raise NoAugmentationError(
                    f"gibbs supports only weights 0 and 1 for {model.likelihood.name}: a weight is a power of the "
                    f"likelihood, and {requirement.reason} is then {requirement.expression.text()} (the weight is the "
                    "last column of y). For integer weights, repeat the rows; cavi and fit accept any weights."
                )


class Published(Scheme):
    """A published scheme: a single move, of the latents alone."""

    def check(self, model: Model, data: Data) -> None:
        """The likelihood has the conditionals, and no hyperparameter has a prior."""
        self.objective(model)
        sampled = with_priors(model).names
        if sampled:
            raise ValueError(
                f"scheme={self.name!r} updates the latents alone, and the model has a prior on {', '.join(sampled)}: "
                'fix the hyperparameters, as in pgm.gibbs(model.fixed(), ...), or choose scheme="auto".'
            )
        super().check(model, data)


class FourBlocks(Published):
    """Complete conditionals of rates, counts, Pólya-Gamma variables and latents (Galy-Fajou et al. 2019)."""

    def check(self, model: Model, data: Data) -> None:
        """The formula has a factor with a Gamma rule, and none within a mixture."""
        augmentation = model.augmentation
        outer = {
            rule.auxiliary.name for rule in augmentation.rules if rule.auxiliary is not None and rule.parent is None
        }
        laws = set(augmentation.complete_laws)
        if not laws or not laws <= outer:
            fault = "has one within a mixture" if laws else "has none"
            raise ValueError(
                f"scheme={self.name!r} needs a sum of sigmoids to a negative power as a factor of the likelihood, and "
                f'{model.likelihood.name} {fault}: choose scheme="sweep" or scheme="auto".'
            )
        super().check(model, data)


class OneVersusRestScheme(Published):
    """The classes of a softmax one after another, each given the others (Polson, Scott and Windle 2013)."""

    def objective(self, model: Model) -> OneVersusRest:
        """The likelihood needs no augmentation."""
        objective = one_versus_rest(model.likelihood.formula(model.num_latents), model.num_latents)
        if objective is None:
            raise ValueError(
                f"scheme={self.name!r} needs the likelihood exp(f[y]) / sum(exp(f)) with a latent for each class; got "
                f'{model.likelihood.name} with {model.num_latents} latents. Choose another scheme, such as "auto".'
            )
        return objective

    def check(self, model: Model, data: Data) -> None:
        """Weights may have any value."""
        super().check(model, data._replace(weights=None))


AUTO = Scheme("auto", MOVES)
SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        AUTO,
        # Auxiliary variables given the latents, latents given auxiliary variables (Polson, Scott and Windle 2013).
        Published("sweep", (PlainSweep(),)),
        FourBlocks("four_block", (FourBlock(),)),
        OneVersusRestScheme("one_vs_rest", (ClassByClass(),)),
    )
}
