"""A move of the sampler from outside the package."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import Adaptive, Keep
from pgmodels.inference.moves import DataAugmentation, Move, MoveRequirement, Step
from tests.inference.mcmc.test_invariance import FALSE_ALARMS, REPLICAS, STEPS
from tests.registry import CASES
from tests.statistical.geweke import Geweke, Kernel, inputs
from tests.statistical.joint import JointLaw

pytestmark = pytest.mark.usefixtures("double_precision")


@dataclass(frozen=True)
class CrankNicolson(Move):
    """A Metropolis step v' = sqrt(1 - length^2) v + length noise, which leaves the prior as it is (Cotter et al. 2013).

    Its state counts the steps that were accepted, and that were made.
    """

    length: float = 0.5
    # The error to plant.
    accepts_all: bool = False
    name: ClassVar[str] = "crank_nicolson"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset({MoveRequirement.FACTOR})

    def init(self, target, chain):
        return jnp.zeros(2)

    def step(self, target, settings, chain, state, number):
        key, noise_key, accept_key = jax.random.split(chain.key, 3)
        noise = jax.random.normal(noise_key, chain.coordinates.shape)
        coordinates = jnp.sqrt(1.0 - self.length**2) * chain.coordinates + self.length * noise
        latents = target.latents(chain.unknowns, coordinates)
        gain = target.log_likelihood(latents, chain.unknowns) - target.log_likelihood(chain.latents, chain.unknowns)
        accepted = (jnp.log(jax.random.uniform(accept_key)) < gain) | self.accepts_all
        latents, coordinates = (
            jnp.where(accepted, new, old) for new, old in ((latents, chain.latents), (coordinates, chain.coordinates))
        )
        moved = chain._replace(key=key, latents=latents, coordinates=coordinates)
        return Step(moved, state + jnp.array([accepted, 1.0]))

    def cost(self, prior, schedule, stats):
        return float(sum(factor.size for factor in prior.factors()))


@pytest.mark.parametrize("wrong", [False, True])
def test_it_takes_part_in_the_battery_by_a_row(wrong):
    geweke = Geweke(JointLaw("bernoulli", inputs(), False), seed=1)
    kernel = geweke.kernels(Kernel("Metropolis", CrankNicolson(0.6, wrong)))["Metropolis"]
    assert bool(geweke.scores(kernel, REPLICAS, STEPS).broken(FALSE_ALARMS)) == wrong


def test_it_takes_part_in_a_run():
    X, y = CASES["gaussian"].data(6, seed=3)
    model = CASES["gaussian"].model()
    settings = Settings(25, 2, jax.random.key(0), Keep("all"))
    run = GibbsRun(model.resolve(X), model.check(X, y), settings, Adaptive((CrankNicolson(), DataAugmentation())))
    run.advance(525, None, False)
    accepted, made = np.asarray(run.state.move_states[0]).T
    assert made.tolist() == [525.0, 525.0]
    assert np.all((accepted > 25) & (accepted < 500))
    draws = run.draws(500, 0.0)
    assert list(draws.tuning) == ["crank_nicolson", "sweep"]
    # As much work for sweeps as for the other move, which costs next to nothing.
    assert draws.tuning["sweep"]["every"] == 10
    exact = pgm.cavi(model, X, y)
    # Nothing is augmented here, so that a sweep draws independently and CAVI is exact: 12 comparisons, with 100 sweeps
    # alone.
    assert np.all(np.abs(draws.mean - exact.mean) < 4 * np.sqrt(exact.variance / 100))
    assert np.all(np.abs(draws.variance / exact.variance - 1) < 4 * np.sqrt(2 / 100))
