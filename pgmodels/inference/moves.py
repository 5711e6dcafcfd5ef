"""The sampler's target, and its moves of latents by data augmentation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.derive import OneVersusRest
from pgmodels.inference.bound import ProblemFamily
from pgmodels.inference.problem import Problem
from pgmodels.inference.surrogates import (
    Ellipse,
    Fit,
    SurrogatePath,
    ellipse_of,
    fit_surrogate,
    fitting_problem,
    linear_path,
    surrogate_of,
)
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model
from pgmodels.objectives.base import FormulaObjective
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors.base import Coordinates, RandomKey, Sites, masked
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection, flatten
from pgmodels.priors.linalg import vmap_as_loop
from pgmodels.priors.rows import Copies
from pgmodels.runtime.precision import Module, as_array

# Values of the likelihood's parameters by name.
Parameters = Mapping[str, Any]


class Reference(NamedTuple):
    """The Gaussian over the latents that moves use: the surrogate, which contains the prior, or the prior alone."""

    prior_alone: PriorCollection | None = None
    surrogate: BlockPosterior | None = None

    @property
    def prior(self) -> PriorCollection:
        """The prior of the latents."""
        prior = self.prior_alone if self.surrogate is None else self.surrogate.prior
        assert prior is not None
        return prior

    def draw(self, key: RandomKey) -> tuple[Array, Array]:
        """Return a draw of the latents at the data and its coordinates, flat."""
        if self.surrogate is None:
            latents, whitened = self.prior.draw(key)
            return latents, flatten(whitened)
        centre = self.surrogate.centre
        coordinates = centre + self.surrogate.deviation(jax.random.normal(key, centre.shape))
        return self.prior.latents(self.prior.unflatten(coordinates)), coordinates


class Chain(NamedTuple):
    """One chain: the key of the next draws, unconstrained hyperparameters, latents and their coordinates, flat."""

    key: RandomKey
    unknowns: Array
    latents: Array
    coordinates: Array


class Target(Module):
    """The posterior density that is sampled, of the problems of a ``family``: their model, data and hyperparameters.

    ``fixed_reference`` is the prior or surrogate if no hyperparameter is sampled; otherwise it is recomputed from the
    hyperparameters. ``fitted`` is the Gaussian at whose marginals the surrogate's factors are computed, with its
    standard coordinates. For priors without one it is the ellipse of the hyperparameters; None if unused.
    """

    family: ProblemFamily
    fitted: SurrogatePath | Ellipse | None = None
    fixed_reference: Reference | None = None

    @property
    def objective(self) -> FormulaObjective:
        """The formula, with the conditionals that the moves draw from."""
        return cast(FormulaObjective, self.family.objective)

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the formula, for moves of schemes that require one."""
        return cast(Augmentation, self.family.objective)

    @property
    def unknowns(self) -> ParameterVector:
        """The sampled hyperparameters."""
        return self.family.parameters

    @property
    def path(self) -> SurrogatePath:
        """The fitted Gaussian as a function of the unknowns. Raises ValueError if none was fitted."""
        if not isinstance(self.fitted, SurrogatePath):
            raise ValueError("no Gaussian was fitted: a move that needs one must list GAUSSIAN in its requirements.")
        return self.fitted

    @property
    def ellipse(self) -> Ellipse:
        """Middle and scale of the unknowns. Raises ValueError if there are none."""
        if self.fitted is None:
            raise ValueError("no hyperparameter is sampled: a move that needs one must list HYPERPARAMETERS.")
        return self.fitted.ellipse if isinstance(self.fitted, SurrogatePath) else self.fitted

    def parameters(self, vector: Array) -> Parameters:
        """Return the likelihood's parameters at given hyperparameters."""
        return self.family.model_at(vector).parameters

    def log_likelihood(self, latents: Array, vector: Array) -> Array:
        """Return log p(y | f) of all data."""
        return self.log_density(latents, self.parameters(vector))

    def log_density(self, latents: Array, parameters: Parameters) -> Array:
        """Return log p(y | f) of all data at given parameters of the likelihood."""
        return jnp.sum(self.masked(self.objective.log_density(self.family.y, latents, parameters)))

    def masked(self, terms: Array) -> Array:
        """Return terms of each row, zero for padding."""
        return masked(self.family.row_weights, terms)

    def checked_sites(self, potential: Array, precision: Array) -> tuple[Sites, Array]:
        """Return sites of the data, zero for padding, and whether they are finite."""
        h, w = self.masked(potential), self.masked(precision)
        return Sites(h, w), jnp.all(jnp.isfinite(h)) & jnp.all(jnp.isfinite(w))

    def draw_sites(self, key: RandomKey, latents: Array, parameters: Parameters, block: int) -> tuple[Sites, Array]:
        """Return the sites of a block's auxiliary variables, drawn given the latents, and whether they are finite."""
        z = self.augmentation.predictor_values(latents, self.family.y, parameters)
        return self.checked_sites(*self.augmentation.draw_auxiliaries(key, z, self.family.y, parameters, block))

    def problem(self, prior: PriorCollection, parameters: Parameters) -> Problem:
        """Return the problem of the conditionals at a prior and parameters of the likelihood."""
        return Problem(self.objective, prior, self.family.y, dict(parameters))

    def prior(self, vector: Array) -> PriorCollection:
        """Return the latents' prior at given hyperparameters."""
        if self.fixed_reference is not None:
            return self.fixed_reference.prior
        return self.family.prior_at(vector).for_sampling()

    def latents(self, vector: Array, coordinates: Array) -> Array:
        """Return the latents from coordinates at given hyperparameters."""
        prior = self.prior(vector)
        return prior.latents(prior.unflatten(coordinates))

    def log_joint(self, vector: Array, whitened: Array) -> Array:
        """Return the log posterior density of unconstrained unknowns and whitened coordinates, up to a constant."""
        prior = self.unknowns.log_prior_unconstrained(vector) - 0.5 * whitened @ whitened
        return prior + self.log_likelihood(self.latents(vector, whitened), vector)

    def log_posterior(self, standard: Array) -> Array:
        """Return the log posterior density of the standard coordinates of ``path``, up to a constant."""
        return self.log_joint(*self.path.place(standard)) + self.path.log_jacobian(standard)

    def surrogate(self, vector: Array) -> BlockPosterior:
        """Return the surrogate at given hyperparameters: their prior, with factors at the marginals of ``path``."""
        if self.fixed_reference is not None and self.fixed_reference.surrogate is not None:
            return self.fixed_reference.surrogate
        model, prior = self.family.model_at(vector), self.prior(vector)
        problem = fitting_problem(model, prior, self.family.y, self.family.row_weights)
        return surrogate_of(problem, self.path.at(vector))

    def fit(self, model: Model, prior: PriorCollection, start: Sites | None = None) -> Fit:
        """Fit a Gaussian to the posterior of the latents at a model's values and prior, from given sites."""
        return fit_surrogate(model, prior, self.family.y, self.family.row_weights, start)

    def reference(self, vector: Array) -> Reference:
        """Return the prior or surrogate that moves use at given hyperparameters."""
        if self.fixed_reference is not None:
            return self.fixed_reference
        if not isinstance(self.fitted, SurrogatePath):
            return Reference(self.prior(vector))
        return Reference(surrogate=self.surrogate(vector))


# Over chains these loop: see pgmodels.priors.linalg.
surrogate_at = vmap_as_loop(lambda target, vector: target.surrogate(vector))
prior_at = vmap_as_loop(lambda target, vector: target.prior(vector))
latents_at = vmap_as_loop(lambda target, vector, coordinates: target.latents(vector, coordinates))


def fit_again(target: Target, vectors: np.ndarray, preconditioned: bool) -> tuple[SurrogatePath | None, str]:
    """The Gaussian fitted at the mean of hyperparameters (draws, d), None if that fails, and the fault in words."""

    def fit_at(vector: np.ndarray, start: Sites | None = None) -> Fit:
        model = target.family.model_at(as_array(vector))
        prior = model.prior(target.family.inputs, traced=True, known=target.family.fixed_groups).for_sampling()
        return target.fit(model, prior, start)

    ellipse = ellipse_of(vectors)
    middle, scale = np.asarray(ellipse.middle), np.asarray(ellipse.scale)
    fit = fit_at(middle)
    if not _is_finite(fit):
        return None, "moves keep using the Gaussian fitted before"
    neighbours = [(fit_at(middle + step, fit.sites), fit_at(middle - step, fit.sites)) for step in scale.T]
    bad = [not (_is_finite(up) and _is_finite(down)) for up, down in neighbours]
    fault = ""
    if any(bad):
        where = f"{sum(bad)} of {len(bad)} directions of the hyperparameters"
        fault = f"{where}: the Gaussian is constant along them"
    neighbours = [(fit, fit) if no else pair for no, pair in zip(bad, neighbours, strict=True)]
    return linear_path(fit, ellipse, neighbours, preconditioned), fault


def _is_finite(fit: Fit) -> bool:
    leaves = (fit.elbo, fit.surrogate.centre, *jax.tree.leaves(fit.surrogate.roots), *fit.marginals)
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


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

    repeats: Array
    every: Array
    settings: Any = None


class Step(NamedTuple):
    """Result of a step: chain, state of the move, ``info`` to be summed, and whether all draws are finite."""

    chain: Chain
    state: Any
    info: Any = ()
    finite: Array | bool = True


class MoveStats(NamedTuple):
    """Sums over iterations of one move: iterations with the move, steps (both over all chains), and ``info``.

    ``jumps`` (chains, d) are sums of squared changes of the standardised hyperparameters in an iteration;
    zero for moves that do not update them.
    """

    iterations: Array
    steps: Array
    info: Any
    jumps: Array


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
        return ()

    def no_info(self, chain: Chain) -> Any:
        """Return the ``info`` of zero steps."""
        return ()

    @abstractmethod
    def step(self, target: Target, settings: Any, chain: Chain, state: Any) -> Step:
        """One step."""

    def steps(self, target: Target, settings: Any, chain: Chain, state: Any, count: Array | int) -> Step:
        """``count`` steps in sequence, with their ``info`` summed."""
        # A shared state that does not change is not carried through the loop.
        changes_state = self.state is None or MoveRequirement.HYPERPARAMETERS in self.requirements

        def again(_: Array, before: Step) -> Step:
            moved = self.step(target, settings, before.chain, before.state if changes_state else state)
            info = jax.tree.map(jnp.add, before.info, moved.info)
            return Step(moved.chain, moved.state if changes_state else (), info, before.finite & moved.finite)

        start = Step(chain, state if changes_state else (), self.no_info(chain), jnp.array(True))
        last = jax.lax.fori_loop(0, count, again, start)
        return last if changes_state else last._replace(state=state)

    @abstractmethod
    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """Floating-point operations of a step."""

    def first(self) -> MoveSchedule:
        """Return the schedule before any pilot; kept if there is no warm-up."""
        return move_schedule(1, 1)

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """Return the schedule after a pilot; ``sampled`` is whether hyperparameters are sampled."""
        return schedule


def factor_operations(prior: PriorCollection) -> float:
    """Floating-point operations, up to a factor of 1/3, of a prior at new hyperparameters: n^3 if dense."""
    return float(sum(group.rank**2 * len(group.X) for group in prior.spans().groups))


def move_schedule(repeats: int, every: int, settings: tuple[Array, ...] | None = None) -> MoveSchedule:
    """Return a MoveSchedule of arrays."""
    return MoveSchedule(as_array(repeats), as_array(every), settings)


# A loop over chains: see pgmodels.priors.linalg.
mean_and_deviation = vmap_as_loop(
    lambda target, prior, key, sites, parameters: (
        target.problem(prior, parameters).condition(sites).mean_and_deviation(key)
    )
)


class DataAugmentationSettings(NamedTuple):
    """The factor of overrelaxation, in (-1, 0]."""

    relaxation: Array


class DataAugmentationInfo(NamedTuple):
    """Moments of f before the sweep and of E[f | auxiliaries], (n, latents) each."""

    before: Array
    expected: Array
    squares: Array
    products: Array


@dataclass(frozen=True)
class GibbsSweep(Move):
    """A move that draws auxiliary variables and all latents in turn; the cost of other moves determines its spacing."""

    is_sweep: ClassVar[bool] = True

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        return sweep_operations(prior)


@dataclass(frozen=True)
class DataAugmentation(GibbsSweep):
    """For each block, draw its auxiliary variables given all latents, then its latents given the auxiliary variables.

    The latents' draw is overrelaxed in the coordinates of the prior (Adler 1981; math: section 4):
    v' = E v + a (v - E v) + sqrt(1 - a^2) deviation, with a = ``relaxation`` in (-1, 0].
    """

    name: ClassVar[str] = "sweep"
    state: ClassVar[Literal["prior"]] = "prior"

    def no_info(self, chain: Chain) -> DataAugmentationInfo:
        zeros = jnp.zeros_like(chain.latents)
        return DataAugmentationInfo(zeros, zeros, zeros, zeros)

    def step(self, target: Target, settings: DataAugmentationSettings, chain: Chain, state: PriorCollection) -> Step:
        key, augmentation, relaxation = chain.key, target.augmentation, settings.relaxation
        latents, coordinates = chain.latents, state.unflatten(chain.coordinates)
        parameters = target.parameters(chain.unknowns)
        expected, finite = latents, jnp.array(True)
        for index, block in enumerate(augmentation.blocks):
            key, auxiliary_key, latent_key = jax.random.split(key, 3)
            sites, is_finite = target.draw_sites(auxiliary_key, latents, parameters, index)
            means, deviations = mean_and_deviation(target, state, latent_key, sites, parameters)
            spread = jnp.sqrt(1.0 - relaxation**2)
            drawn = tuple(
                m + relaxation * (v - m) + spread * d for m, v, d in zip(means, coordinates, deviations, strict=True)
            )
            columns = columns_of(augmentation, block)
            expected = jnp.where(columns, state.latents(means), expected)
            latents, coordinates = replaced(state, columns, drawn, latents, coordinates)
            finite = finite & is_finite
        moved = chain._replace(key=key, latents=latents, coordinates=flatten(coordinates))
        before, expected = target.masked(chain.latents), target.masked(expected)
        return Step(moved, state, DataAugmentationInfo(before, expected, before**2, before * expected), finite)

    def first(self) -> MoveSchedule:
        return move_schedule(1, 1, DataAugmentationSettings(as_array(0.0)))

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """Return the factor of overrelaxation."""
        return schedule._replace(settings=DataAugmentationSettings(as_array(choose_relaxation(autocorrelation(stats)))))


@dataclass(frozen=True)
class PlainSweep(DataAugmentation):
    """The sweep without overrelaxation, whatever warm-up measures (Polson, Scott and Windle 2013)."""

    name: ClassVar[str] = "plain_sweep"

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        return schedule


def columns_of(augmentation: Augmentation, block: tuple[int, ...]) -> np.ndarray:
    """Which latents a block of predictors depends on."""
    return np.isin(np.arange(augmentation.num_latents), augmentation.latents_of(block))


def replaced(
    prior: PriorCollection, columns: np.ndarray, drawn: Coordinates, latents: Array, coordinates: Coordinates
) -> tuple[Array, Coordinates]:
    """Return latents and coordinates; the latents in ``columns`` have the drawn coordinates."""
    triples = zip(drawn, coordinates, prior.slices(), strict=True)
    coordinates = tuple(jnp.where(columns[part], new, old) for new, old, part in triples)
    return jnp.where(columns, prior.latents(drawn), latents), coordinates


def sweep_operations(prior: PriorCollection) -> float:
    """Floating-point operations of an auxiliary draw for each datum and latent, and of a draw of each latent."""
    # Of a Pólya-Gamma draw (measured).
    draw = 3000.0
    pairs = zip(prior.groups, prior.sizes, strict=True)
    return sum((size * (group.sweep_operations() + prior.num_rows * draw) for group, size in pairs), 0.0)


def autocorrelation(stats: MoveStats) -> np.ndarray:
    """cov(f, E[f | auxiliaries]) / var f of each latent that moved, within chains."""
    f, E, squares, products = (np.asarray(part) for part in stats.info)
    count = float(stats.steps) / len(f)
    variance = np.sum(squares - f**2 / count, axis=0)
    covariance = np.sum(products - f * E / count, axis=0)
    return (covariance / np.maximum(variance, 1e-300))[variance > 0]


def choose_relaxation(autocorrelation: np.ndarray) -> float:
    """Return the factor that makes the largest autocorrelation of the Gibbs sweep smallest over the latents.

    A latent whose plain sweep has the autocorrelation r = cov(f, E[f | auxiliaries]) / var f has r + (1 - r) a under
    overrelaxation with a. The largest over r in [low, high] is least at a = -(low + high) / (2 - low - high).
    """
    if not autocorrelation.size:
        return 0.0
    low, high = np.quantile(np.clip(autocorrelation, 0.0, 0.99), [0.05, 0.95])
    # Closer to -1 the draws oscillate for longer.
    return float(np.clip(-(low + high) / (2.0 - low - high), -0.95, 0.0))


# The sweep over complete conditionals: Gamma rates, Poisson counts, Pólya-Gamma variables and latents in turn.


@dataclass(frozen=True)
class FourBlock(GibbsSweep):
    """λ | n, then n | f, λ, then ω | n, f, then f | n, ω, of the Gamma, Poisson and Pólya-Gamma rules.

    The Gibbs sweep instead draws λ | f, with n and ω integrated out. The state is n, which belongs to f: no other move
    may update the latents. Source: Galy-Fajou, Wenzel, Donner and Opper 2019, section 3.2; n is drawn at σ(-f), where
    they print σ(f).
    """

    name: ClassVar[str] = "four_block"

    def init(self, target: Target, chain: Chain) -> dict[str, Array]:
        """Counts by name, drawn given the latents."""
        # Independently of what the chain's key draws later.
        augmentation, key = target.augmentation, jax.random.fold_in(chain.key, 2**31 - 2)
        parameters = target.parameters(chain.unknowns)
        z = augmentation.predictor_values(chain.latents, target.family.y, parameters)
        drawn: dict[str, Array] = {}
        for index in range(len(augmentation.blocks)):
            drawn |= augmentation.draw_chain(
                jax.random.fold_in(key, index), z, target.family.y, parameters, index, known=drawn
            )
        # The counts that the complete conditionals of the rates depend on.
        rules = [rule for rule in augmentation.rules if rule.auxiliary is not None]
        rates = [rule.auxiliary for rule in rules if rule.auxiliary.name in augmentation.complete_laws]  # type: ignore[union-attr]
        return {count.name: drawn[count.name] for rate in rates for count in augmentation.children_of(rate)}  # type: ignore[arg-type]

    def step(self, target: Target, settings: None, chain: Chain, state: dict[str, Array]) -> Step:
        key, augmentation, counts, y = chain.key, target.augmentation, state, target.family.y
        parameters, prior = target.parameters(chain.unknowns), target.prior(chain.unknowns)
        latents, coordinates, finite = chain.latents, prior.unflatten(chain.coordinates), jnp.array(True)
        for index, block in enumerate(augmentation.blocks):
            key, rate_key, auxiliary_key, latent_key = jax.random.split(key, 4)
            z = augmentation.predictor_values(latents, y, parameters)
            env, laws = Environment(y, z, {**parameters, **counts}), augmentation.complete_laws
            keys = jax.random.split(rate_key, len(laws))
            rates = {name: law.draw(k, env) for (name, law), k in zip(laws.items(), keys, strict=True)}
            drawn = rates | augmentation.draw_chain(auxiliary_key, z, y, parameters, index, known=rates)
            counts = {name: drawn.get(name, before) for name, before in counts.items()}
            sites, is_finite = target.checked_sites(*augmentation.sites_given(drawn, z, y, parameters, index))
            moved = jax.tree.map(jnp.add, *mean_and_deviation(target, prior, latent_key, sites, parameters))
            latents, coordinates = replaced(prior, columns_of(augmentation, block), moved, latents, coordinates)
            finite = finite & is_finite
        return Step(chain._replace(key=key, latents=latents, coordinates=flatten(coordinates)), counts, finite=finite)


@dataclass(frozen=True)
class ClassByClass(GibbsSweep):
    """For each class, ω_c given all latents, then f_c given ω_c and the others (Polson, Scott and Windle 2013)."""

    name: ClassVar[str] = "one_vs_rest"
    state: ClassVar[Literal["prior"]] = "prior"

    def step(self, target: Target, settings: None, chain: Chain, state: PriorCollection) -> Step:
        objective = cast(OneVersusRest, target.objective)
        key, latents, finite, coordinates = chain.key, chain.latents, jnp.array(True), []
        for index, (part, group) in enumerate(zip(state.slices(), state.unflatten(chain.coordinates), strict=True)):
            copies = Copies(state.copies.rows, state.copies.places[index : index + 1])
            prior = PriorCollection((state.groups[index].replaced(size=1),), copies)

            def update(
                i: Array, before: tuple[Array, ...], first: int = part.start, prior: PriorCollection = prior
            ) -> tuple[Array, ...]:
                key, latents, group, finite = before
                key, auxiliary_key, latent_key = jax.random.split(key, 3)
                drawn_site = objective.draw_site(auxiliary_key, latents, target.family.y, first + i)
                sites, is_finite = target.checked_sites(*drawn_site)
                drawn = jax.tree.map(jnp.add, *mean_and_deviation(target, prior, latent_key, sites, {}))
                latents = jax.lax.dynamic_update_slice_in_dim(latents, prior.latents(drawn), first + i, axis=1)
                group = jax.lax.dynamic_update_slice_in_dim(group, drawn[0], i, axis=1)
                return key, latents, group, finite & is_finite

            start = key, latents, group, finite
            key, latents, group, finite = jax.lax.fori_loop(0, state.sizes[index], update, start)
            coordinates.append(group)
        return Step(chain._replace(key=key, latents=latents, coordinates=flatten(coordinates)), state, finite=finite)
