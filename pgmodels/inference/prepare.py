"""Preparation: what is settled of a model and data before an algorithm starts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.inference.cavi import CAVI, NATURAL_GRADIENT
from pgmodels.inference.loop import Engine, maximise
from pgmodels.inference.problem import Problem, precisions, problem_of, separate_blocks
from pgmodels.kernels.kernel import with_values
from pgmodels.model import GP, Data, Model, check_memory
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import (
    PriorCollection,
    approximation_error,
    are_affordable,
    choose_blocks,
    columns,
    have_factors,
)
from pgmodels.priors.dense import dense_operations
from pgmodels.priors.inducing import ADAPTIVE, AUTOMATIC, ENOUGH, REPLACING, Inducing, greedy
from pgmodels.priors.markov import Markov, scan_operations
from pgmodels.priors.representation import Auto
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import PgmodelsWarning, warn
from pgmodels.runtime.precision import as_array

# Distinct inputs up to which the default form stays. In a new process, with Matern32 on one core, cavi takes 3.3 s in
# either form with 1,000, and 6.6 s against 3.7 s with 2,000 (4.0 s against 0.04 s once compiled), and fit 44 s against
# 14 s. Up to 2,000 fit corrects dense results, from which the latents can then be drawn jointly.
FEW = 2_000


def with_chain(model: Model, X: np.ndarray) -> Model:
    """Return the model with its only latent, of default form, as a Markov process where that is exact and cheaper."""
    if len(X) <= FEW or model.num_latents > 1 or model.gps[0].form != Auto():
        return model
    gp, form, num_columns = model.gps[0], Markov(), X.shape[1]
    try:
        form.check(gp.kernel, num_columns)
    except ValueError:
        return model
    count = len(np.unique(X[:, gp.kernel.reads(num_columns)], axis=0))
    state = with_values(gp.kernel).to_state_space()
    has_noise = bool(np.any(state.noise(as_array(np.ones(1)))))
    is_cheaper = scan_operations(count, state.dimension) < dense_operations(count)
    if count <= FEW or not (state.is_exact and has_noise and is_cheaper):
        return model
    return Model(model.likelihood, [GP(gp.kernel, gp.mean, gp.size, form)])


def resolved(model: Model, data: Data, seed: int = 0, *, may_be_chain: bool = False) -> Model:
    """Return the model with start values for hyperparameters declared as None, and domains of forms, from the data.

    Its one latent is a Markov process if it ``may_be_chain`` and that is cheaper: see ``with_chain``. ``seed`` is for
    random choices of inducing inputs. Raises MemoryError if the priors at the data need more than is available.
    """
    model = model.resolve(data.X, seed)
    model = with_chain(model, data.X) if may_be_chain else model
    check_memory(model, data.X)
    return model


class TruncationWarning(PgmodelsWarning):
    """The basis functions of a GP leave out a part of its prior variance."""


class PrecisionWarning(PgmodelsWarning):
    """The prior cannot be represented accurately enough for the data in double precision."""


def accurate_prior(model: Model, data: Data, prior: PriorCollection, precision: float) -> PriorCollection:
    """Return the prior, or a more accurate one for sites of a given precision; ValueError if its variances overflow."""
    if not np.isfinite(approximation_error(prior)):
        raise ValueError(
            "X: the kernel's variances at the data overflow double precision. Check the scale of X and the kernel's "
            "hyperparameters, or standardise X."
        )
    # Neglected variance times the largest site precision: a datum's share of the ELBO is off by half of it, and by more
    # if its residual is large.
    tolerated = 1e-7
    if approximation_error(prior) * precision <= tolerated:
        return prior
    return model.prior(data.X, max_error=tolerated / precision)


def warn_inaccurate(
    prior: PriorCollection, precision: float, elbo: float = 0.0, rounding: float = 0.0, neglected: float = 0.0
) -> None:
    """Warn if a prior is not accurate enough for sites of a given precision, or the ELBO is not accurate.

    ``rounding`` is the ELBO's rounding error, ``neglected`` its error due to variances that the prior neglects. Both
    together may be a tenth of a nat, or 1e-9 of the ELBO.
    """
    _warn_truncated(prior)
    error = approximation_error(prior)
    remedy = (
        "Raise the likelihood's scale or lower the prior variance, whose ratio is extreme, add a White kernel or, to "
        "pgm.Periodic with pgm.Markov(), harmonics."
    )
    if error * precision > 0.01:
        warn(
            f"the latents' prior is approximated to a variance of {error:.1e} (jitter, neglected pivots or harmonics), "
            f"but the data determine a latent to {1.0 / precision:.1e}: in double precision ELBO, means and variances "
            f"lose accuracy. {remedy}",
            PrecisionWarning,
        )
    elif rounding + neglected > max(0.1, 1e-9 * abs(elbo)):
        warn(
            f"the ELBO, {elbo:.6g}, may be off by {rounding + neglected:.1g} nats: {neglected:.1g} due to a variance "
            f"of {error:.1e} that the prior neglects (jitter, neglected pivots or harmonics), and {rounding:.1g} due "
            f"to rounding. y is farther from the latents than the likelihood's scale allows. {remedy}",
            PrecisionWarning,
        )


def _warn_truncated(prior: PriorCollection) -> None:
    """Warn if basis functions leave out too much variance: everywhere if too few, else near the ends of the domain."""
    shares = [np.asarray(share) for group in prior.groups if (share := group.truncated_shares()) is not None]
    worst, tolerated = max(shares, key=np.max, default=np.zeros(1)), 0.01
    if np.max(worst) > tolerated:
        few = np.median(worst) > tolerated
        remedy = "Raise their number" if few else "Raise the boundary (and their number), or give a wider domain"
        warn(
            f"the basis functions of pgm.Hilbert leave out {np.max(worst):.1%} of the prior variance at some row and "
            f"{np.median(worst):.1%} at the median row: deviations are too narrow there. {remedy}.",
            TruncationWarning,
        )


# Tolerance and iterations where q need not be converged: to select inducing inputs, to start from another objective's
# optimum, and before checking whether precisions are clipped at zero.
NEAR, FEW_STEPS = 1e-4, 200


def engine_of(objective: Objective) -> Engine:
    """Return the engine that maximises an objective."""
    return CAVI if objective.is_monotone else NATURAL_GRADIENT


def variational_problem(model: Model, data: Data, objective: Objective, prior: PriorCollection) -> Problem:
    """The problem of a resolved model, with predictors coupled or precisions of any sign where allowed and cheap."""
    problem = problem_of(model, data, prior, objective)
    wanted = couples(objective) or is_signed_apart(objective)
    return problem.with_coupled_sites() if wanted and is_affordable(objective, problem.prior) else problem


def couples(objective: Objective) -> bool:
    """Return whether the predictors of a datum are correlated under q if that is affordable."""
    return objective.takes_covariances and objective.size > 1


def is_signed_apart(objective: Objective) -> bool:
    """Return whether predictors are independent under q with precisions of any sign, if that is affordable."""
    return objective.signed and not objective.takes_covariances


def is_affordable(objective: Objective, prior: PriorCollection) -> bool:
    """Return whether the latents that sites of any sign couple are factorised together."""
    if objective.takes_covariances:
        return have_factors(prior) and len(choose_blocks(prior)) == 1
    return are_affordable(prior, separate_blocks(objective))


def with_selected_inputs(model: Model, data: Data, objective: Objective) -> Model:
    """Return a resolved model with the inducing inputs that its forms choose at its hyperparameters."""
    optimum = partial(nearly_converged, objective=objective, by=selecting(model, objective))
    return select_inducing_inputs(model, data, optimum)


def selecting(model: Model, objective: Objective) -> Objective:
    """Return the objective whose sites select inducing inputs: the model's, or the derived bound for some forms."""
    return model.augmentation if any(gp.form.select == "merged" for gp in model.gps) else objective


def nearly_converged(
    model: Model, data: Data, objective: Objective | None = None, by: Objective | None = None
) -> tuple[float, np.ndarray]:
    """Return the ELBO near an objective's optimum, and precisions (n, latents) of its or ``by``'s sites."""
    objective = objective or model.augmentation
    if by is not None and by != objective:
        return nearly_converged(model, data, objective)[0], nearly_converged(model, data, by)[1]
    problem = variational_problem(model, data, objective, model.prior(data.X))
    state = maximise(engine_of(objective).step, problem, start_state(model, data, problem), NEAR, FEW_STEPS).state
    return float(state.elbo), precisions(objective, state.sites, problem.y, model.parameters)


def start_state(model: Model, data: Data, problem: Problem) -> Any:
    """Return the start of an engine; near the optimum of the augmented bound for another objective, if there is one."""
    if not problem.objective.is_monotone and model.is_augmentable:
        bounded = problem_of(model, data, problem.prior)
        state = maximise(CAVI.step, bounded, init(CAVI, bounded), NEAR, FEW_STEPS).state
        if np.isfinite(float(state.elbo)):
            return state_from(problem, state.sites)
    return init(engine_of(problem.objective), problem)


def state_from(problem: Problem, sites: Sites) -> Any:
    """Return the state of sites, converted to coupled or independent ones as the problem requires."""
    h, w = sites
    if problem.coupled and not sites.coupled:
        w = jax.vmap(jnp.diag)(w)
    if sites.coupled and not problem.coupled:
        w = jnp.diagonal(w, axis1=1, axis2=2)
    return _from_sites(engine_of(problem.objective), problem, Sites(h, w))


def _is_costly(engine: Engine, problem: Problem, *_: Any) -> bool:
    return problem.objective.num_nodes > 1 and not problem.has_few_rows


@partial(compiled, static_argnames="engine", optimise=_is_costly)
def init(engine: Engine, problem: Problem) -> Any:
    """Compiled ``Engine.init``."""
    return engine.init(problem)


@partial(compiled, static_argnames="engine", optimise=_is_costly)
def _from_sites(engine: Engine, problem: Problem, sites: Sites) -> Any:
    return engine.state_of(problem, sites)


# Choice of inducing inputs.

# The inducing inputs (M, d) of each group, None if a group has another form.
Inputs = tuple[np.ndarray | None, ...]

# Maximum selections, alternating with the posterior.
TURNS = 10
# Factor by which site precisions are scaled up for a further selection, unless inducing inputs gained less than ENOUGH
# nats, and the largest such scale, which exceeds any variance above rounding.
SHARPER = 16.0
SHARPEST = SHARPER**TURNS


# Warn if the residual variance of inducing inputs costs more than 10 nats and is more than 0.25 of the latents'
# variance at the data: standard deviations are then too wide by a seventh on average. For 800 years of tree rings with
# lengthscale 20, 60 inputs lose 9 nats and 0.28, 80 lose 4 and 0.13; the ELBO was 0.9 to 1.5 times as many nats low.
_NATS = 10.0
# The effect on a variational posterior, and on draws of the sparse model.
LOOSE_BOUND = (
    "so that deviations are too wide and means too smooth, and the ELBO is about {nats:.0f} nats below that of the "
    "exact prior; learned lengthscales and noise are too large"
)
INDEPENDENT = "which is independent for each row: draws are too rough at the data and too smooth between the rows"


class InducingWarning(PgmodelsWarning):
    """Too few inducing inputs: more would improve the approximation."""


def choose_inputs(model: Model, X: np.ndarray, precisions: np.ndarray | None = None) -> Inputs:
    """Return the inducing inputs that each group's form chooses at the kernel's values and precisions (n, latents)."""
    inputs: list[np.ndarray | None] = []
    for gp, part in _groups(model):
        weights = None if precisions is None else _site_precisions(precisions, X, part)
        inputs.append(gp.form.choose(gp.kernel, X, weights))
    return tuple(inputs)


def _groups(model: Model) -> list[tuple[GP, slice]]:
    return list(zip(model.gps, columns([gp.size for gp in model.gps]), strict=True))


def _site_precisions(precisions: np.ndarray, X: np.ndarray, part: slice) -> np.ndarray:
    """Site precisions summed over the latents of a group, (n,)."""
    return np.maximum(precisions[: len(X), part], 0.0).sum(axis=1)


def with_inputs(model: Model, inputs: Inputs) -> Model:
    """Return the model with the given inducing inputs."""
    pairs = zip(model.gps, inputs, strict=True)
    gps = [gp if Z is None else GP(gp.kernel, gp.mean, gp.size, gp.form.with_inputs(Z)) for gp, Z in pairs]
    return Model(model.likelihood, gps)


def without_inputs(model: Model) -> Model:
    """Return the model without its inducing inputs, for compiled code that has them as an argument."""
    return Model(model.likelihood, [GP(gp.kernel, gp.mean, gp.size, gp.form.with_inputs(1)) for gp in model.gps])


def is_automatic(model: Model) -> bool:
    """Return whether the number of inducing inputs of some group is chosen from the data."""
    return any(gp.form.select == AUTOMATIC for gp in model.gps)


def takes_every_choice(model: Model) -> bool:
    """Return whether new inducing inputs replace the last without a test of the ELBO, as published for GV and HGV."""
    return any(gp.form.select in REPLACING for gp in model.gps)


def count_inputs(inputs: Inputs) -> int:
    """Total number of inducing inputs."""
    return sum(len(Z) for Z in inputs if Z is not None)


def same_inputs(one: Inputs, other: Inputs) -> bool:
    """Return whether two sets of inducing inputs are equal in each group."""
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(Z, Y) if Z is not None and Y is not None else Z is Y for Z, Y in pairs)


def warn_limited(model: Model, inputs: Inputs, X: np.ndarray, precisions: np.ndarray) -> None:
    """Warn if an automatic selection has reached the maximum number of inducing inputs and would choose more."""
    for Z, (gp, part) in zip(inputs, _groups(model), strict=True):
        if Z is None or gp.form.select != AUTOMATIC or len(Z) != gp.form.num_inputs:
            continue
        weights = _site_precisions(precisions, X, part)
        if len(Inducing(len(Z) + 1, AUTOMATIC).choose(gp.kernel, X, weights)) > len(Z):
            warn(
                f"{gp.form!r} took its maximum of {len(Z)} inducing inputs, and the data require more: compare "
                f"the ELBO of Inducing({2 * len(Z)}, {AUTOMATIC!r}).",
                InducingWarning,
            )


def warn_left_out(
    model: Model,
    X: np.ndarray,
    residual: np.ndarray,
    precisions: np.ndarray,
    variances: np.ndarray,
    effect: str = LOOSE_BOUND,
) -> None:
    """Warn of too few inducing inputs, by their residual variances times the site precisions.

    Residual variances, site precisions and the latents' variances under q are (n, latents). The ELBO has the term
    - Σ w residual / 2 (math: section 4), which is about its loss.
    """
    precisions = np.maximum(precisions, 0.0)
    nats = 0.5 * float(np.sum(precisions * residual))
    share = float(np.mean(residual / np.maximum(variances, np.finfo(float).tiny)))
    warn_costly(model, nats, share, effect, lambda: _how_many(model, X, precisions))


def warn_costly(
    model: Model, nats: float, share: float, effect: str = LOOSE_BOUND, how_many: Callable[[], str] | None = None
) -> None:
    """Warn if the residual variance is too large, in nats and as a share of the latents' variance at the data.

    ``effect`` describes the consequence; ``how_many`` returns a sentence on the number needed.
    """
    if nats > _NATS and share > 0.25:
        count = sum(gp.form.num_inputs for gp in model.gps)
        needed = f"More than {count} are needed" if how_many is None else how_many()
        warn(
            f"the inducing inputs, {count} in all, are too few: {share:.0%} of the latents' variance at the data is "
            f"residual prior variance, {effect.format(nats=nats)}. {needed}: compare the result with a "
            f"result of twice as many, or let the data choose their number with Inducing({AUTOMATIC!r}).",
            InducingWarning,
        )


def _how_many(model: Model, X: np.ndarray, precisions: np.ndarray) -> str:
    """A sentence on the number of greedily selected rows that lose at most _NATS, up to twice the present number."""
    groups = [(gp, part) for gp, part in _groups(model.bare()) if gp.form.num_inputs]
    limits = [2 * gp.form.num_inputs for gp, _ in groups]
    counts = [
        len(greedy(gp.kernel, X, most, _site_precisions(precisions, X, part), enough=_NATS / len(groups)))
        for (gp, part), most in zip(groups, limits, strict=True)
    ]
    if any(count >= most for count, most in zip(counts, limits, strict=True)):
        return f"Even {sum(counts)} inputs lose more than {_NATS:.0f} nats"
    return f"About {sum(counts)} greedily selected inputs lose at most {_NATS:.0f} nats"


def select_inducing_inputs(
    model: Model, data: Data, optimum: Callable[[Model, Data], tuple[float, np.ndarray]]
) -> Model:
    """Return a resolved model with its inducing inputs chosen.

    If their form adapts to the data, selections alternate with ``optimum`` until the ELBO stops rising. ``optimum``
    returns the ELBO of a model and the precisions of its sites on the latents. The best inputs are kept, or the last if
    the form accepts each choice (Passerello 2021, section 3.3.2). If the data determine their number, it grows until
    more inputs have no further gain.
    """
    best = choose_inputs(model, data.X)
    if not any(gp.form.select in ADAPTIVE for gp in model.gps):
        return with_inputs(model, best)
    elbo, precisions = optimum(with_inputs(model, best), data)
    replaces, sharpness, tried = takes_every_choice(model), 1.0, best
    automatic = is_automatic(model) and not replaces
    for _ in range(TURNS):
        chosen = choose_inputs(model, data.X, sharpness * precisions)
        if same_inputs(chosen, best):
            warn_limited(model, chosen, data.X, sharpness * precisions)
            break
        sharpness *= 1.0 if replaces else SHARPER
        if same_inputs(chosen, tried):
            continue
        tried = chosen
        moved, precisions = optimum(with_inputs(model, chosen), data)
        # The gain of the ELBO that is required for another selection.
        limit = min(ENOUGH, 1e-4 * abs(elbo)) if automatic else 1e-4 * abs(elbo)
        gain, more = moved - elbo, automatic and count_inputs(chosen) > count_inputs(best)
        # More inputs must gain enough to be worth their time. No gain from fewer inputs does not imply none from more.
        if replaces or gain > (limit if more else 0.0):
            best, elbo = chosen, moved
        if (abs(gain) if replaces else gain) <= limit and (more or not automatic):
            break
    return with_inputs(model, best)
