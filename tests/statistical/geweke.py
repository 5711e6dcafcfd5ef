"""Geweke's test of transition kernels, with replicas that start at the joint law.

A replica is drawn from the joint law of hyperparameters, latents and data. Then a kernel moves hyperparameters and
latents given the data, the data are drawn afresh given these, and so on; after the last move the replica must still
have the joint law. Statistics of the end are compared with those of the same replica's start: the mean difference has
expectation 0, and a standard error from independent replicas. No chain has to converge and no autocorrelation has to be
estimated, so that the rate of false alarms is what it is said to be. Source: Geweke 2004; Grosse and Duvenaud 2014.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from pgmodels.inference.bound import ProblemFamily
from pgmodels.inference.gibbs_schedule import MOVES, SCHEMES, Keep, Moments, Schedule, run_chunk
from pgmodels.inference.gibbs_schedule import State as EngineState
from pgmodels.inference.moves import (
    Chain,
    ClassByClass,
    DataAugmentation,
    DataAugmentationSettings,
    FourBlock,
    Move,
    MoveRequirement,
    MoveSchedule,
    PlainSweep,
    Reference,
    Target,
    columns_of,
)
from pgmodels.inference.slice_moves import (
    Hamiltonian,
    HamiltonianSettings,
    LikelihoodSlice,
    MarginalSlice,
    SliceLatents,
    SurrogateSlice,
)
from pgmodels.inference.surrogates import Ellipse, SurrogatePath, constant_preconditioner
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import choose_blocks, have_factors
from pgmodels.priors.dense import LowRankPrior
from pgmodels.runtime.jit import supported_options
from tests.statistical.joint import Joint, JointLaw

NO_GAUSSIAN = MoveRequirement.NO_GAUSSIAN

# Replicas that are compiled as one program: a batch waits for its slowest slice step.
BATCH = 500
# The factor of overrelaxation.
RELAXATION = -0.7
# Hamiltonian steps, some of which are refused: their coordinates are poor ones.
LEAPFROGS, STEP = 3, 0.2
SETTINGS = {
    DataAugmentation: DataAugmentationSettings(jnp.asarray(RELAXATION)),
    Hamiltonian: HamiltonianSettings(jnp.asarray(LEAPFROGS), jnp.asarray(STEP)),
}


class Kernel(NamedTuple):
    """A row of the battery: a step of a move with some settings."""

    name: str
    move: Move
    settings: Any = None


KERNELS = (
    Kernel("sweep", PlainSweep(), DataAugmentationSettings(jnp.asarray(0.0))),
    Kernel("overrelaxed sweep", DataAugmentation(), SETTINGS[DataAugmentation]),
    Kernel("slice of latents", SliceLatents()),
    Kernel("slice of unknowns", SurrogateSlice()),
    Kernel("Hamiltonian step", Hamiltonian(), SETTINGS[Hamiltonian]),
    Kernel("slice of unknowns given sites", MarginalSlice()),
    Kernel("slice of the likelihood", LikelihoodSlice()),
    Kernel("four blocks", FourBlock()),
    Kernel("one versus rest", ClassByClass()),
)


# Each kernel is compiled once and run once: a quarter of the compiler's work, for programs that are twice as slow.
# With the newer way to fuse, level 1 gives wrong numbers (see pgmodels.runtime.jit): all or none of it.
CHEAP = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
CHEAP = CHEAP if CHEAP.keys() <= supported_options().keys() else {}


class State(NamedTuple):
    """What a kernel moves, the replicas first: unconstrained hyperparameters, latents and whitened coordinates."""

    unknowns: Any
    latents: Any
    whitened: Any


class Scores(NamedTuple):
    """z-scores of mean differences, and their names.

    ``inconsistency`` is how far the latents are from those of their whitened coordinates, at most.
    """

    z: np.ndarray
    names: list[str]
    inconsistency: float

    def broken(self, false_alarms: float) -> str:
        """What shows that the joint law is not kept, at this rate of false alarms; empty where nothing does."""
        size, name = self.worst()
        limit = threshold(len(self.z), false_alarms)
        if self.inconsistency > 1e-6:
            return f"latents {self.inconsistency:.2g} away from those of their whitened coordinates"
        return f"|z| = {size:.2f} > {limit:.2f}: {name}" if not size < limit else ""

    def worst(self) -> tuple[float, str]:
        """The largest |z| and what has it."""
        place = int(np.argmax(np.abs(self.z)))
        return float(np.abs(self.z[place])), self.names[place]


def inputs(n: int = 4) -> np.ndarray:
    """A few inputs (n, 2)."""
    return np.random.default_rng(5).uniform(-1.5, 1.5, (n, 2))


class Geweke:
    """Replicas of a joint law and the kernels that the Gibbs engine is made of: for a softmax, those of its own scheme.

    The surrogate is deliberately a poor one: a Gaussian with arbitrary factors, or, where hyperparameters are sampled,
    the engine's own factors for marginals that are wrong and follow the hyperparameters wrongly. Any
    surrogate must leave the posterior as it is.
    """

    def __init__(self, law: JointLaw, seed: int):
        self.law, self.rng = law, np.random.default_rng(seed)
        model, n = law.model, len(law.X)
        unknowns = with_priors(model)
        self.sampled = bool(unknowns.leaf_indices)
        placeholder = jnp.asarray(law.draw(self.rng, 1).y[0])
        scheme = SCHEMES["auto" if model.is_augmentable else "one_vs_rest"]
        self.target = Target(
            ProblemFamily(
                scheme.objective(model),
                unknowns,
                model.bare(),
                model.inputs(law.X),
                placeholder,
                None,
                needs_factors=True,
            )
        )
        # Hyperparameters that are sampled want the form that a prior has at every value of them.
        bound = model.prior(law.X, traced=True) if self.sampled else model.prior(law.X)
        prior, size = bound.for_sampling(), model.num_latents
        self.preconditioned = self.sampled and have_factors(prior)
        self.low_rank = any(isinstance(group, LowRankPrior) for group in prior.groups)
        roots = 0.4 * self.rng.normal(size=(n, size, size))
        W = roots @ np.swapaxes(roots, 1, 2)
        marginals = jnp.asarray(self.rng.normal(0.3, 0.5, (n, size))), jnp.asarray(0.1 * np.eye(size) + W)
        h = self.rng.normal(0.2, 0.6, (n, size))
        self.base = condition_blocks(prior, Sites(jnp.asarray(h), jnp.asarray(W)), choose_blocks(prior))
        d = len(unknowns.start())
        middle = jnp.asarray(unknowns.start() + 0.2)
        scale = jnp.asarray(np.tril(0.15 * self.rng.normal(size=(d, d)), -1) + 0.6 * np.eye(d))
        if self.sampled:
            D = len(self.base.centre)
            shapes = ((d, n, size), (d, n, size), (d, D), (d, D))
            slopes = [jnp.asarray(0.2 * self.rng.normal(size=shape)) for shape in shapes]
            frame = None
            if self.preconditioned:
                frame = replace(
                    constant_preconditioner(self.base, d), slope=slopes[2], log_length_slope=0.1 + 0.5 * slopes[3]
                )
            response = SurrogatePath(frame, *marginals, Ellipse(middle, scale), *slopes[:2])
            self.target = replace(self.target, fitted=response)
        else:
            self.target = replace(self.target, fixed_reference=Reference(surrogate=self.base.with_inverse_roots()))

    def kernels(self, *others: Kernel) -> dict[str, Callable[[Target, Chain], Chain]]:
        """The rows of the battery and others, as far as they fit the law, and iterations of the engine."""
        rows = [row for row in (*KERNELS, *others) if self._meets(row.move)]
        chosen: dict[str, Any] = {row.name: partial(self.step, row) for row in rows}
        if self._meets(DataAugmentation()):
            chosen["iterations"] = partial(self.iterations, slices=2)
        if self._meets(FourBlock()):
            chosen["iterations of four blocks"] = partial(self.iterations, slices=0, moves=(FourBlock(),))
        if self.sampled:
            chosen["iterations without slices"] = partial(self.iterations, slices=0)
        return chosen

    def _meets(self, move: Move) -> bool:
        augmentation = self.law.model.augmentation if self.law.model.is_augmentable else None
        if isinstance(move, ClassByClass) or augmentation is None:
            return augmentation is None and isinstance(move, ClassByClass | SliceLatents)
        if isinstance(move, FourBlock):
            return bool(augmentation.complete_laws) and not self.sampled
        lacking = {MoveRequirement.PRECONDITIONER} if not self.preconditioned else set()
        lacking |= {MoveRequirement.HYPERPARAMETERS} if not self.sampled else set()
        lacking |= {MoveRequirement.OF_LIKELIHOOD} if not np.any(self.target.unknowns.gps < 0) else set()
        if isinstance(move, MarginalSlice) and not self._drawn_together(augmentation):
            return False
        return not move.requirements & lacking

    def _drawn_together(self, augmentation: Any) -> bool:
        """Whether the latents of each GP are in one block, and given the coordinates without a residual."""
        blocks = [columns_of(augmentation, block) for block in augmentation.blocks]
        groups = self.base.prior.slices()
        return self.preconditioned and all(any(np.all(block[group]) for block in blocks) for group in groups)

    def step(self, row: Kernel, target: Target, chain: Chain) -> Chain:
        """One step of a move, with its state made for it."""
        reference = target.reference(chain.unknowns)
        state = row.move.init(target, chain) if row.move.state is None else getattr(reference, row.move.state)
        return row.move.step(target, row.settings, chain, state).chain

    def iterations(self, target: Target, chain: Chain, slices: int, moves: tuple[Move, ...] = MOVES) -> Chain:
        """Two iterations as the engine makes them, the second with a sweep, and so many slice steps of each kind.

        Of the latents three more, which is more than are drawn together.
        """
        moves = tuple(move for move in moves if self._meets(move) and NO_GAUSSIAN not in move.requirements)
        repeats = {SurrogateSlice: slices, SliceLatents: slices and slices + 3}
        every = {DataAugmentation: 2}
        schedules = tuple(
            MoveSchedule(jnp.asarray(repeats.get(kind, 1)), jnp.asarray(every.get(kind, 1)), SETTINGS.get(kind))
            for kind in map(type, moves)
        )
        chains = jax.tree.map(lambda leaf: leaf[None], chain)
        reference = jax.tree.map(lambda leaf: leaf[None], target.reference(chain.unknowns)) if self.sampled else None
        begun = tuple(move.init(target, chain) if move.state is None else () for move in moves)
        state = EngineState(chains, reference, jax.tree.map(lambda leaf: leaf[None], begun))
        # Without the jit around it, so that nothing compiled earlier is used.
        run = run_chunk.__wrapped__
        moments = Moments.none(chains.latents.shape)
        state, *_ = run(target, Schedule(moves, schedules), state, moments, 3, 2, Keep("moments"))
        return jax.tree.map(lambda leaf: leaf[0], state.chains)

    def scores(self, kernel: Callable[[Target, Chain], Chain], replicas: int, steps: int = 3) -> Scores:
        """z-scores after ``steps`` moves with data drawn afresh in between."""
        start = self._start(replicas)
        names = self.target.unknowns.names
        vectors = self.law.unconstrain(names, start.values) if self.sampled else np.zeros((replicas, 0))
        state, y, values = State(vectors, start.f, start.whitened), start.y, start.values
        move = self._batched(kernel)
        before = self._quantities(vectors, start.f, start.y)
        for step in range(steps):
            if step > 0:
                y = self.law.draw_data(self.rng, np.asarray(state.latents), values)
            keys = jax.random.split(jax.random.key(self.rng.integers(2**31)), replicas)
            state = move(keys, state, y)
            if self.sampled:
                values = self.law.constrain(names, state.unknowns)
        after = self._quantities(state.unknowns, state.latents, y)
        inconsistency = np.max(np.abs(self._latents(values, state.whitened) - state.latents))
        return Scores(*compare(before, after), float(inconsistency))

    def _start(self, replicas: int) -> Joint:
        start = self.law.draw(self.rng, replicas)
        if not self.low_rank:
            return start
        whitened = self.rng.normal(size=(replicas, len(self.base.centre)))
        f = self._latents(start.values, whitened)
        return Joint(start.values, whitened, f, self.law.draw_data(self.rng, f, start.values))

    def _latents(self, values: Any, whitened: np.ndarray) -> np.ndarray:
        """Latents by the law's own arithmetic; by the package's factor where that has coordinates of its own choice."""
        if not self.low_rank:
            return self.law.latents(values, whitened)
        prior = self.base.prior
        return np.asarray(jax.vmap(lambda flat: prior.latents(prior.unflatten(flat)))(whitened))

    def _batched(self, kernel: Any) -> Callable[[Any, State, Any], State]:
        """The kernel on all replicas, compiled for a batch; the surrogate is made for each replica's data."""

        @partial(jax.jit, compiler_options=CHEAP)
        @jax.vmap
        def move(key: Any, state: State, y: Any) -> State:
            target = eqx.tree_at(lambda t: t.family.y, self.target, y)
            moved = kernel(target, Chain(key, *state))
            return State(moved.unknowns, moved.latents, moved.coordinates)

        def all_batches(*replicas: Any) -> State:
            batches = [slice(start, start + BATCH) for start in range(0, len(replicas[0]), BATCH)]
            results = [move(*jax.tree.map(itemgetter(batch), replicas)) for batch in batches]
            return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)

        return all_batches

    def _quantities(self, vectors: Any, f: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Scalars whose joint law is tested, by name."""
        log_p = np.asarray(self._log_likelihood(vectors, f, y))
        y = y.reshape(*y.shape[:2], -1)[:, :, 0]
        quantities = {f"θ[{i}]": column for i, column in enumerate(vectors.T)}
        for latent in range(f.shape[2]):
            quantities |= {
                f"mean of f[{latent}]": f[:, :, latent].mean(axis=1),
                f"f[{latent}] at 0": f[:, 0, latent],
                f"slope of f[{latent}]": f[:, -1, latent] - f[:, 0, latent],
                f"y f[{latent}]": np.mean(np.tanh(y) * f[:, :, latent], axis=1),
            }
        return quantities | {"y at 0": y[:, 0], "mean of y": y.mean(axis=1), "log p(y | f)": log_p}

    @cached_property
    def _log_likelihood(self) -> Any:
        def one(vector: Any, f: Any, y: Any) -> Any:
            return eqx.tree_at(lambda t: t.family.y, self.target, y).log_likelihood(f, vector)

        return jax.jit(jax.vmap(one))


def compare(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """z-scores of the mean differences of all quantities, their squares and their products, and what they are of.

    Quantities are scaled by the middle and the spread that they start with and bounded by tanh, so that the means are
    normal at their ends too, whatever the tails of f and y.
    """
    features = []
    for quantities in (before, after):
        columns = []
        for name, values in quantities.items():
            low, middle, high = np.quantile(before[name], [0.16, 0.5, 0.84])
            columns.append(np.tanh((values - middle) / max(high - low, 1e-12)))
        x = np.stack(columns)
        first, second = np.triu_indices(len(x))
        features.append(np.concatenate([x, x[first] * x[second]]))
    names = list(before)
    names += [f"{names[i]} x {names[j]}" for i, j in zip(*np.triu_indices(len(before)), strict=True)]
    difference = features[1] - features[0]
    deviation = difference.std(axis=1)
    error = np.maximum(deviation, 1e-12) / np.sqrt(difference.shape[1])
    return difference.mean(axis=1) / error, names


def threshold(num_scores: int, false_alarms: float) -> float:
    """The |z| that the largest of so many standard normals exceeds with at most this probability (Bonferroni)."""
    return float(norm.isf(false_alarms / (2 * num_scores)))
