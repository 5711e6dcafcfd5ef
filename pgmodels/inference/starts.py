"""Initial values of hyperparameters."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.inference.problem import are_few_rows
from pgmodels.kernels.kernel import Kernel, median_distance, with_data_values
from pgmodels.model import GP, Data, Model
from pgmodels.numerics.elementary import trigonometric_sums
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import Parameter, is_parameter
from pgmodels.parameters.vector import ParameterVector, constrain, free_shape
from pgmodels.priors.base import pad_rows, padded_size, weighted
from pgmodels.priors.chain_posterior import push_values
from pgmodels.priors.collection import columns
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import as_array

# A wave without what other functions explain is left out if its square is below this share of the largest.
_DEPENDENT = 1e-10


def spectral_periods(x: np.ndarray, h: np.ndarray, w: np.ndarray, num_periods: int) -> np.ndarray:
    """Return the periods of the highest peaks of a spectrum, the highest first, in O(n log n) time and O(n) memory.

    The spectrum of y = h / w is by weighted least squares, without a parabola and the higher peaks. Frequencies
    are from two cycles in the range of x up to one cycle for two distinct rows (Lomb 1976, Scargle 1982).
    """
    # The number of frequencies for each that can be resolved, one cycle over the range of the rows apart.
    oversampled = 8
    # Sums over sorted rows are faster.
    order = np.argsort(x)
    x, h, w = (part[order[w[order] > 0]] for part in (x, h, w))
    count = len(np.unique(x))
    if count < 8:
        return np.zeros(0)
    span, root = x[-1] - x[0], np.sqrt(w)
    cycles, y = (x - x[0]) / span, h / root
    # In cycles of so many times the range.
    numbers = np.arange(2 * oversampled, max(oversampled * count // 2, 3 * oversampled))

    def sums(values: np.ndarray, multiple: int = 1) -> np.ndarray:
        """The sums of values exp(i angle) at each frequency times ``multiple``."""
        at = multiple * numbers
        return trigonometric_sums(cycles / oversampled, values, int(at[-1]) + 1)[at]

    # The Gram matrix of root cos and root sin is [[level + a, b], [b, level - a]] with tilt = a + i b.
    level, tilt = np.full(len(numbers), 0.5 * w.sum()), 0.5 * sums(w, 2)
    removed, highest, periods = np.zeros((len(x), 0)), np.vander(cycles, 3), []
    for _ in range(num_periods):
        # A peak is removed with its sidelobes.
        wanted = root[:, None] * highest
        U, sizes, _ = np.linalg.svd(wanted - removed @ (removed.T @ wanted), full_matrices=False)
        functions = U[:, sizes > np.sqrt(_DEPENDENT) * sizes[0]]
        removed, y = np.column_stack([removed, functions]), y - functions @ (functions.T @ y)
        for function in functions.T:
            products = sums(root * function)
            level, tilt = level - 0.5 * np.abs(products) ** 2, tilt - 0.5 * products**2
        best = numbers[np.argmax(_powers(sums(root * y), level, tilt))]
        periods.append(span * oversampled / best)
        angles = 2.0 * np.pi * best / oversampled * cycles
        highest = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.array(periods)


def _powers(products: np.ndarray, level: np.ndarray, tilt: np.ndarray) -> np.ndarray:
    """The squared length of y in the span of each frequency's waves, from the eigenvectors of their Gram matrix."""
    length = np.abs(tilt)
    along = np.real(products**2 * np.conj(tilt)) / np.where(length > 0.0, length, 1.0)
    powers, least = np.zeros(len(level)), _DEPENDENT * np.max(level + length)
    for sign in (1.0, -1.0):
        size = level + sign * length
        share = 0.5 * (np.abs(products) ** 2 + sign * along)
        powers += np.where(size > least, share / np.where(size > least, size, 1.0), 0.0)
    return powers


# Start values for learning in the units of the data, for any likelihood and kernel.
# Locations, amplitudes and likelihood parameters come from the model in which every latent is constant; lengthscales
# from distances between rows. The user's start values form a separate start; Fixed values and values with a prior are
# kept.

# Lengthscales in units of the median distance.
LENGTHS = {"median distance": 1.0, "median distance / 4": 0.25, "median distance * 4": 4.0}
# Longest and shortest of several lengthscales. For 150 rows of two sines, one 5 to 20 times as fast as the other,
# "short" ends at ELBOs of -153 and -167 and "very short" at -105 and -94; in more dimensions no distance is so short.
SPREADS = {"short": (2.0, 1 / 8), "very short": (1.0, 1 / 32)}
# Number of spectral peaks used as start periods.
_NUM_PERIODS = 3


class ConstantFit(NamedTuple):
    """Fit of constant latents: their values (L,), the sites there (n, L), and the likelihood's parameters."""

    location: np.ndarray
    potential: np.ndarray
    precision: np.ndarray
    parameters: dict[str, np.ndarray]


class Start(NamedTuple):
    """An initial model, and the kind of local optimum that it may lead to."""

    model: Model
    kind: str


def initial_models(
    model: Model, data: Data, objective: Objective | None, num_starts: int | None = None, seed: int = 0
) -> dict[str, Start]:
    """Initial models by name; the first is the resolved ``model`` itself.

    The others have the means and amplitudes of constant latents, if there is an objective to fit these. They are of
    one kind, except where bounds are known to have several optima: several kernels, whose lengthscales may differ;
    latents that constants do not determine, such as a varying noise; and periods. If ``num_starts`` is larger than
    their number, random models are added, drawn from ``seed``.
    """
    starts = {"values given": Start(model, "level")}
    level = None if objective is None else constant_latents(model, data, objective)
    levelled = model if level is None else _levelled(model, data.X, level)
    lengthscales: list[Parameter] = []

    def median_length(lengthscale: Parameter, X: np.ndarray) -> Any:
        lengthscales.append(lengthscale)
        if not np.ndim(lengthscale.value):
            return median_distance(X)
        return np.sqrt(X.shape[1]) * np.array([median_distance(x[:, None]) for x in X.T])

    unit = _stretched(levelled, data.X, median_length)
    moved = {name: Start(_lengthened(unit, data.X, repeat(length)), "level") for name, length in LENGTHS.items()}
    count = len(lengthscales)
    if count > 1:
        for short, spread in SPREADS.items():
            lengths, kind = np.geomspace(*spread, count), f"{short} lengthscales"
            moved[f"lengthscales from long to {short}"] = Start(_lengthened(unit, data.X, iter(lengths)), kind)
            moved[f"lengthscales from {short} to long"] = Start(_lengthened(unit, data.X, iter(lengths[::-1])), kind)
    if level is not None and len(model.gps) > 1:
        for name in ("median distance", "median distance / 4"):
            moved[f"variances given, {name}"] = Start(_at_least(moved[name].model, model, data.X), "variances")
    if level is not None:
        peaks = _spectral_periods(unit, data.X, level)
        for number in range(_NUM_PERIODS):
            periods = (some[number] if number < len(some) else None for some in peaks)
            pick = lambda _, periods=periods: next(periods)  # noqa: E731
            gps = [GP(_with_periods(gp.kernel, data.X, pick), gp.mean, gp.size, gp.form) for gp in unit.gps]
            moved[f"period {number + 1} of the spectrum"] = Start(Model(unit.likelihood, gps), "period")
    for name, start in moved.items():
        if not any(eqx.tree_equal(start.model, other.model) for other in starts.values()):
            starts[name] = start
    rng, free = np.random.default_rng(seed), ParameterVector(unit, lambda parameter: parameter.is_free)
    for number in range(len(starts), num_starts or 0):
        # A standard deviation of a factor of e^1.5.
        deviation = steps(free, data.X) * 1.5 * rng.standard_normal(len(free.start()))
        starts[f"random {number}"] = Start(free.with_values(free.constrain(free.start() + deviation)), "level")
    return starts


def steps(learnable: ParameterVector, X: np.ndarray) -> np.ndarray:
    """The unit of each unconstrained value: for a free mean the standard deviation of its latent, 1 without a unit."""
    model = learnable.model
    ones = jax.tree.map(
        lambda p: p.with_value(np.ones(np.shape(p.value))) if is_parameter(p) else p, model, is_leaf=is_parameter
    )
    deviations = [np.sqrt(_mean_variance(gp.kernel, X)) for gp in model.gps]
    means = [d if gp.mean.is_free and d > 0 else 1.0 for gp, d in zip(model.gps, deviations, strict=True)]
    ones = eqx.tree_at(lambda m: [gp.mean.value for gp in m.gps], ones, means)
    pairs = zip(learnable.of(ones), learnable.shapes, learnable.free_shapes, strict=True)
    units = [np.ravel(value if free == shape else np.ones(free)) for value, shape, free in pairs]
    return np.concatenate([np.zeros(0), *units])


def input_steps(inputs: Sequence[np.ndarray | None], X: np.ndarray) -> np.ndarray:
    """The unit of each entry of the inducing inputs, about the distance to the next one; 0 in constant columns."""
    spread, moving = np.std(X, axis=0), [Z for Z in inputs if Z is not None]
    return np.concatenate([np.zeros(0), *(np.tile(spread * len(Z) ** (-1.0 / Z.shape[1]), len(Z)) for Z in moving)])


def constant_latents(model: Model, data: Data, objective: Objective) -> ConstantFit | None:
    """Maximum-likelihood constants and free likelihood parameters, alternating.

    None if they are not finite. If the likelihood does not depend on the latents any more, its parameters are
    halfway to their declared values. At that fit all slopes are zero. Constants are updated as by CAVI for one latent
    value under a flat prior, which needs no initial scale.
    """
    objective = objective.reduced()
    location = np.concatenate([np.full(gp.size, float(gp.mean.value)) for gp in model.gps])
    variance = np.ones(model.num_latents)
    parameters, previous = model.likelihood.values, -np.inf
    # This many rows determine constants closely enough.
    few, most = data, 16384
    if len(data.y) > most:
        few = data.at(np.linspace(0, len(data.y) - 1, most).astype(int))
    rows, every = (some.padded(padded_size(len(some.y))) for some in (few, data))
    for _ in range(20):
        parameters, value = _likeliest(model, objective, parameters, rows, location, variance)
        for latent in range(model.num_latents):
            location, variance, h, w = _update(partial(_local, objective, parameters, rows), location, variance, latent)
        if not np.isfinite(value) or not np.isfinite(location).all():
            return None
        if value - previous < 1e-3:
            break
        previous = value
    # The mean square of the slopes of the terms is about their mean curvature where the model is right (Bartlett).
    # Below a tenth of it the likelihood does not depend on the latents: measured are 0.65 to 13, and 0.0015 and 0.015
    # with robust-max of ten and three classes, whose error rate becomes that of a guess. From there svi ends at a log
    # loss of 2.2 nats a row of pendigits.
    changed = np.mean((h - w * location) ** 2) < 0.1 * np.mean(np.abs(w))
    if changed:
        # The means of parameters and their declared values, on the unconstrained scale.
        free = {name: parameter for name, parameter in model.likelihood.parameters.items() if parameter.is_free}
        for name, parameter in free.items():
            ends = (parameter.transform.inv(np.asarray(value)) for value in (parameter.value, parameters[name]))
            parameters = parameters | {name: np.asarray(parameter.transform(0.5 * sum(ends)))}
    if few is not data or changed:
        h, w = (np.asarray(part) for part in _local(objective, parameters, every, location, variance)[2:])
    return ConstantFit(location, h, w, parameters)


def _update(
    bound: Callable[..., Any], location: np.ndarray, variance: np.ndarray, latent: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Update one latent, halved until the ELBO under a flat prior does not fall; also the sites (n, L) before it."""

    def elbo(value: Array, variance: np.ndarray) -> float:
        return float(value) + 0.5 * float(np.sum(np.log(variance)))

    value, _, h, w = bound(location, variance)
    h, w = np.asarray(h), np.asarray(w)
    potential, precision = h[:, latent].sum(), w[:, latent].sum()
    if precision > 0:
        floor = elbo(value, variance)
        # A fall within rounding counts as none.
        floor -= 1e-12 * (1.0 + abs(floor))
        for halving in range(30):
            share, m, v = 0.5**halving, location.copy(), variance.copy()
            total = (1.0 - share) / v[latent] + share * precision
            m[latent] = ((1.0 - share) * m[latent] / v[latent] + share * potential) / total
            v[latent] = 1.0 / total
            if elbo(bound(m, v)[0], v) >= floor:
                return m, v, h, w
    return location, variance, h, w


def _many_rows(objective: Objective, parameters: dict[str, Array], y: Array, *_: Any) -> bool:
    return not are_few_rows(len(y), False, objective.num_nodes)


@partial(compiled, static_argnames="objective", optimise=_many_rows)
def _bound(
    objective: Objective,
    parameters: dict[str, Array],
    y: Array,
    row_weights: Array | None,
    location: Array,
    variance: Array,
) -> tuple[Array, dict[str, Array], Array, Array]:
    # A function of the latents, so that its gradient maps sites on predictors back to the latents.
    def total(parameters: dict[str, Array], m: Array, v: Array) -> Array:
        if objective.predictors is not None:
            Phi = objective.predictors.matrix(y, parameters)
            m, v = push_values(Phi, m), push_values(Phi**2, v)
        return jnp.sum(weighted(row_weights, objective.local_bound(m, v, y, parameters)))

    shape = (y.shape[0], objective.num_latents)
    m, v = jnp.broadcast_to(location, shape), jnp.broadcast_to(variance, shape)
    value, (by_parameter, by_mean, by_variance) = jax.value_and_grad(total, argnums=(0, 1, 2))(parameters, m, v)
    return value, by_parameter, by_mean - 2.0 * by_variance * m, -2.0 * by_variance


def _local(
    objective: Objective, parameters: dict[str, Any], rows: tuple[Array, Array | None], m: np.ndarray, v: np.ndarray
) -> tuple[Array, dict[str, Array], Array, Array]:
    """The bound at constant marginals, its gradient in the parameters, and the sites (n, L); ``rows`` are padded."""
    arrays = {name: jnp.asarray(value, jnp.float64) for name, value in parameters.items()}
    return _bound(objective, arrays, *rows, as_array(m), as_array(v))


def _likeliest(
    model: Model,
    objective: Objective,
    parameters: dict[str, Any],
    rows: tuple[Array, Array],
    location: np.ndarray,
    variance: np.ndarray,
) -> tuple[dict[str, Any], float]:
    """The free likelihood parameters that maximise the bound at constant marginals, and its value there."""
    free = {name: p for name, p in model.likelihood.parameters.items() if p.is_free}
    if not free:
        return parameters, float(_local(objective, parameters, rows, location, variance)[0])

    from scipy.optimize import minimize

    def unpack(vector: Array) -> dict[str, Any]:
        return dict(zip(free, constrain(list(free.values()), vector), strict=True))

    def pack(values: dict[str, Any]) -> np.ndarray:
        return np.concatenate([np.ravel(p.transform.inv(np.asarray(values[name]))) for name, p in free.items()])

    declared = pack({name: p.value for name, p in free.items()})
    sizes = [int(np.prod(free_shape(p))) for p in free.values()]
    # Standard deviation, in factors of e, of a penalty that keeps parameters that constants do not determine near their
    # declared values.
    leeway = 2.0
    bounded = np.repeat([p.positive or p.constraint is not None for p in free.values()], sizes)

    def negative(vector: np.ndarray) -> tuple[float, np.ndarray]:
        moved, pull_back = jax.vjp(unpack, as_array(vector))
        value, by_parameter, _, _ = _local(objective, parameters | moved, rows, location, variance)
        slope = np.asarray(pull_back({name: by_parameter[name] for name in free})[0])
        away = np.where(bounded, (vector - declared) / leeway, 0.0)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return np.inf, np.zeros_like(vector)
        return 0.5 * float(away @ away) - float(value), away / leeway - slope

    start = pack(parameters)
    # Steps longer than a factor of e^5 could leave the range of doubles if the start is extreme.
    bounds = [(x - 5.0, x + 5.0) if p else (None, None) for x, p in zip(start, bounded, strict=True)]
    solution = minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30})
    moved = {name: np.asarray(value) for name, value in unpack(as_array(solution.x)).items()}
    return parameters | moved, -float(solution.fun)


def _levelled(model: Model, X: np.ndarray, level: ConstantFit) -> Model:
    gps = []
    for gp, part in zip(model.gps, columns([gp.size for gp in model.gps]), strict=True):
        mean = gp.mean.with_value(np.mean(level.location[part])) if gp.mean.is_free else gp.mean
        # The mean square of h / w - mean, h / w being each datum's estimate of its latent; weighted by w.
        h, w, now = level.potential[:, part], level.precision[:, part], _mean_variance(gp.kernel, X)
        squares = np.divide((h - w * float(mean.value)) ** 2, w, out=np.zeros_like(w), where=w > 0)
        amplitude = float(np.sum(squares) / np.sum(w)) if np.any(w > 0) else np.nan
        usable = np.isfinite(amplitude) and amplitude > 0 and now > 0
        gps.append(GP(gp.kernel.scaled(amplitude / now) if usable else gp.kernel, mean, gp.size, gp.form))
    free = {name: level.parameters[name] for name, p in model.likelihood.parameters.items() if p.is_free}
    return Model(model.likelihood.with_values(free), gps)


def _mean_variance(kernel: Kernel, X: np.ndarray) -> float:
    return float(np.mean(np.asarray(kernel.diagonal(pad_rows(X, padded_size(len(X)))))[: len(X)]))


def _stretched(model: Model, X: np.ndarray, length: Callable[[Parameter, np.ndarray], Any]) -> Model:
    """The model with the value ``length(lengthscale, X)`` for each free lengthscale, X the columns of its kernel."""

    def of_free(lengthscale: Parameter, x: np.ndarray) -> Any:
        return length(lengthscale, x) if lengthscale.is_free else None

    kernels = [with_data_values(gp.kernel, "lengthscale", X, of_free) for gp in model.gps]
    gps = [GP(kernel, gp.mean, gp.size, gp.form) for kernel, gp in zip(kernels, model.gps, strict=True)]
    return Model(model.likelihood, gps)


def _with_periods(kernel: Kernel, X: np.ndarray, period: Callable[[np.ndarray], float | None]) -> Kernel:
    """The kernel with ``period(x)`` for each free period of one column x, unless that is None."""

    def of_free(value: Parameter, x: np.ndarray) -> float | None:
        return period(x[:, 0]) if value.is_free and x.shape[1] == 1 else None

    return with_data_values(kernel, "period", X, of_free)


def _lengthened(model: Model, X: np.ndarray, factors: Iterator[float]) -> Model:
    return _stretched(model, X, lambda lengthscale, _: next(factors) * np.asarray(lengthscale.value))


def _at_least(model: Model, reference: Model, X: np.ndarray) -> Model:
    """The model with the prior variances of its latents raised to those of another where they are smaller."""
    gps = []
    for gp, other in zip(model.gps, reference.gps, strict=True):
        now, least = _mean_variance(gp.kernel, X), _mean_variance(other.kernel, X)
        gps.append(GP(gp.kernel.scaled(least / now) if 0.0 < now < least else gp.kernel, gp.mean, gp.size, gp.form))
    return Model(model.likelihood, gps)


def _spectral_periods(model: Model, X: np.ndarray, level: ConstantFit) -> list[np.ndarray]:
    """For each free period the highest peaks of the spectrum of each datum's estimate of its latent, h / w."""
    peaks: list[np.ndarray] = []
    for gp, part in zip(model.gps, columns([gp.size for gp in model.gps]), strict=True):
        h, w = (np.sum(sites[: len(X), part], axis=1) for sites in (level.potential, level.precision))

        def keep_peaks(x: np.ndarray, h: np.ndarray = h, w: np.ndarray = w) -> None:
            # Pairs of items have no order in time.
            peaks.append(spectral_periods(x, h, w, _NUM_PERIODS) if len(x) == len(h) else np.zeros(0))

        _with_periods(gp.kernel, X, keep_peaks)
    return peaks
