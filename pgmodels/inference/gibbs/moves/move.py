"""What a move of the sampler is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from pgmodels.inference.gibbs.target import Chain, Target
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPrior
from pgmodels.precision import as_array


class Need(Enum):
    """What a move may need of a run; one that needs what a run does not have is not made."""

    FACTOR = "a prior with a factor, but for residuals of data, so that its coordinates are standard normal"
    GAUSSIAN = "a Gaussian fitted to the posterior, which needs a factor"
    FRAME = "standard coordinates of hyperparameters and latents, about that Gaussian, for a prior without residuals"
    UNKNOWNS = "sampled hyperparameters, which it moves"
    GRADIENT = "a posterior density that can be differentiated backwards"
    WARMUP = "a warm-up that tunes it"


class Turn(NamedTuple):
    """In every ``every``-th iteration ``repeats`` steps of a move, with settings of its own."""

    repeats: Any
    every: Any
    settings: Any = None


class Step(NamedTuple):
    """What a step leaves: the chain, the move's state, what is to be summed up, whether all it drew was finite."""

    chain: Chain
    own: Any
    info: Any = ()
    finite: Any = True


class Seen(NamedTuple):
    """Sums over a stretch, of one move: its turns and its steps, times chains; each chain's ``info``.

    ``jumps`` (chains, d) are squared moves of the standardised hyperparameters, a turn each; of a move of these alone.
    """

    turns: Any
    steps: Any
    info: Any
    jumps: Any


@dataclass(frozen=True)
class Move(ABC):
    """A step of one chain that leaves the posterior unchanged by itself.

    ``state`` names what it stands on at the chain's hyperparameters, and shares with other moves: the prior, the
    surrogate, or None for a state of its own, from ``init``. A move of the hyperparameters has the surrogate, and gives
    back that of where it goes, or stands on nothing; what others stand on is then made again.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    state: ClassVar[type[JointPrior] | type[CoupledPosterior] | None] = None

    def init(self, target: Target, chain: Chain) -> Any:
        """The first state of its own, arrays alone."""
        del target, chain
        return ()

    def no_info(self, chain: Chain) -> Any:
        """The ``info`` of no step at all."""
        del chain
        return ()

    @abstractmethod
    def step(self, target: Target, settings: Any, chain: Chain, own: Any, number: Any) -> Step:
        """One step, in the iteration of this number."""

    def steps(self, target: Target, settings: Any, chain: Chain, own: Any, number: Any, count: Any) -> Step:
        """So many steps, one after the other; what they leave is summed up."""
        # What is shared and stays as it is needs no place in the loop.
        moves_own = self.state is None or Need.UNKNOWNS in self.needs

        def again(_: Any, before: Step) -> Step:
            held = before.own if moves_own else own
            moved = self.step(target, settings, before.chain, held, number)
            info = jax.tree.map(jnp.add, before.info, moved.info)
            return Step(moved.chain, moved.own if moves_own else (), info, before.finite & moved.finite)

        start = Step(chain, own if moves_own else (), self.no_info(chain), jnp.array(True))
        found = jax.lax.fori_loop(0, count, again, start)
        return found if moves_own else found._replace(own=own)

    @abstractmethod
    def cost(self, prior: JointPrior, turn: Turn, seen: Seen | None) -> float:
        """Floating-point operations of a step."""

    def first(self) -> Turn:
        """Its turn until something is known, and for ever where there is no warm-up."""
        return turn_of(1, 1)

    def tune(self, prior: JointPrior, sampled: bool, turn: Turn, seen: Seen) -> Turn:
        """Its turn after a pilot; ``sampled`` says whether hyperparameters are."""
        del prior, sampled, seen
        return turn


def factor_operations(prior: JointPrior) -> float:
    """Floating-point operations, but for a factor of a third, of making the prior's factors at other hyperparameters.

    n^3 of dense ones. Of a group whose kernel is held there are fewer, beside which those of a posterior count.
    """
    return float(sum(group.rank**2 * len(group.X) for group in prior.spans().groups))


def turn_of(repeats: int, every: int, settings: Any = None) -> Turn:
    """A turn, as arrays."""
    return Turn(as_array(repeats), as_array(every), settings)
