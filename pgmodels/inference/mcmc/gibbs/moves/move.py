"""Base class of the sampler's moves, and their requirements, schedules and statistics."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pgmodels.inference.mcmc.gibbs.target import Chain, Target
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime.x64 import as_array


class MoveRequirement(Enum):
    """Requirement of a move. A run omits moves whose requirements it does not meet."""

    FACTOR = "a prior with a factor (apart from residuals), so that whitened coordinates are standard normal"
    GAUSSIAN = "a Gaussian fitted to the posterior, which needs a factor"
    PRECONDITIONER = "standard coordinates of hyperparameters and latents, for a prior without residuals"
    HYPERPARAMETERS = "sampled hyperparameters, which the move updates"
    GRADIENT = "a posterior density with reverse-mode derivatives"
    OF_PRIOR = "sampled hyperparameters of kernels or means"
    OF_LIKELIHOOD = "sampled parameters of the likelihood"
    NO_GAUSSIAN = "a prior without a factor, for which no Gaussian is fitted"
    WARMUP = "a warm-up in which the move is tuned"


class MoveSchedule(NamedTuple):
    """Every ``every``-th iteration makes ``repeats`` steps of a move, with its tuned ``settings``."""

    repeats: Any
    every: Any
    settings: Any = None


class Step(NamedTuple):
    """Result of a step: chain, state of the move, ``info`` to be summed, and whether all draws are finite."""

    chain: Chain
    state: Any
    info: Any = ()
    finite: Any = True


class MoveStats(NamedTuple):
    """Sums over iterations of one move: iterations with the move, steps (both over all chains), and ``info``.

    ``jumps`` (chains, d) are sums of squared changes of the standardised hyperparameters in an iteration;
    zero for moves that do not update them.
    """

    iterations: Any
    steps: Any
    info: Any
    jumps: Any


@dataclass(frozen=True)
class Move(ABC):
    """A Markov transition of one chain that leaves the posterior invariant.

    ``state`` names the object that the move uses at the current hyperparameters, shared between moves: the ``prior`` or
    the ``surrogate`` of a ``Reference``. With None the move has a state from ``init``. A move that updates the
    hyperparameters either uses the surrogate, and returns it at the new hyperparameters, or uses None; then the shared
    object is recomputed.
    """

    name: ClassVar[str]
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset()
    state: ClassVar[Literal["prior", "surrogate"] | None] = None
    # Whether it is a Gibbs sweep, whose spacing goes by the cost of the other moves.
    is_sweep: ClassVar[bool] = False

    def init(self, target: Target, chain: Chain) -> Any:
        """Initial state of a move with ``state`` None: a pytree of arrays."""
        del target, chain
        return ()

    def no_info(self, chain: Chain) -> Any:
        """The ``info`` of zero steps."""
        del chain
        return ()

    @abstractmethod
    def step(self, target: Target, settings: Any, chain: Chain, state: Any, number: Any) -> Step:
        """One step, in iteration ``number``."""

    def steps(self, target: Target, settings: Any, chain: Chain, state: Any, number: Any, count: Any) -> Step:
        """``count`` steps in sequence, with their ``info`` summed."""
        # A shared state that does not change is not carried through the loop.
        changes_state = self.state is None or MoveRequirement.HYPERPARAMETERS in self.requirements

        def again(_: Any, before: Step) -> Step:
            current = before.state if changes_state else state
            moved = self.step(target, settings, before.chain, current, number)
            info = jax.tree.map(jnp.add, before.info, moved.info)
            return Step(moved.chain, moved.state if changes_state else (), info, before.finite & moved.finite)

        start = Step(chain, state if changes_state else (), self.no_info(chain), jnp.array(True))
        last = jax.lax.fori_loop(0, count, again, start)
        return last if changes_state else last._replace(state=state)

    @abstractmethod
    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """Floating-point operations of a step."""

    def first(self) -> MoveSchedule:
        """Schedule before any pilot; kept if there is no warm-up."""
        return move_schedule(1, 1)

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """Schedule after a pilot; ``sampled`` says whether hyperparameters are sampled."""
        del prior, sampled, stats
        return schedule


def factor_operations(prior: PriorCollection) -> float:
    """Floating-point operations, up to a factor of 1/3, of a prior at new hyperparameters: n^3 if dense."""
    return float(sum(group.rank**2 * len(group.X) for group in prior.spans().groups))


def move_schedule(repeats: int, every: int, settings: Any = None) -> MoveSchedule:
    """A MoveSchedule of arrays."""
    return MoveSchedule(as_array(repeats), as_array(every), settings)
