"""Choice of inducing inputs during inference."""

from collections.abc import Callable

import numpy as np

from pgmodels.model import GP, Data, Model, check_memory
from pgmodels.priors.collection import columns
from pgmodels.priors.inducing import ADAPTIVE, AUTOMATIC, ENOUGH, REPLACING, Inducing, greedy
from pgmodels.runtime.messages import PgmodelsWarning, warn

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
    """The inducing inputs that each group's form chooses at the kernel's values, from precisions (n, latents).

    Precisions of padding rows are ignored.
    """
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
    """The model with the given inducing inputs."""
    pairs = zip(model.gps, inputs, strict=True)
    gps = [gp if Z is None else GP(gp.kernel, gp.mean, gp.size, gp.form.with_inputs(Z)) for gp, Z in pairs]
    return Model(model.likelihood, gps)


def without_inputs(model: Model) -> Model:
    """The model without its inducing inputs, for compiled code that takes them as an argument."""
    gps = [GP(gp.kernel, gp.mean, gp.size, gp.form.with_inputs(1)) for gp in model.gps]
    return Model(model.likelihood, gps)


def is_automatic(model: Model) -> bool:
    """Whether the number of inducing inputs of some group is chosen from the data."""
    return any(gp.form.select == AUTOMATIC for gp in model.gps)


def takes_every_choice(model: Model) -> bool:
    """Whether new inducing inputs replace the last without a test of the ELBO, as published for GV and HGV."""
    return any(gp.form.select in REPLACING for gp in model.gps)


def count_inputs(inputs: Inputs) -> int:
    """Total number of inducing inputs."""
    return sum(len(Z) for Z in inputs if Z is not None)


def same_inputs(one: Inputs, other: Inputs) -> bool:
    """Whether two sets of inducing inputs are equal in each group."""
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
    model: Model,
    nats: float,
    share: float,
    effect: str = LOOSE_BOUND,
    how_many: Callable[[], str] | None = None,
) -> None:
    """Warn if the residual variance is too large, in nats and as a share of the latents' variance at the data.

    ``effect`` describes the consequence; ``how_many`` returns a sentence on the number needed.
    """
    if nats > _NATS and share > 0.25:
        count = sum(gp.form.num_inputs for gp in model.gps)
        needed = f"More than {count} are needed" if how_many is None else how_many()
        warn(
            f"the inducing inputs, {count} in all, are too few: {share:.0%} of the latents' variance at the data is "
            f"residual prior variance, {effect.format(nats=nats)}. {needed}: compare the result with that of "
            f"twice as many, or let the data choose their number with Inducing({AUTOMATIC!r}).",
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
    """A resolved model with its inducing inputs chosen.

    If their form adapts to the data, selections alternate with ``optimum``, which returns the ELBO of a model and the
    precisions of its sites on the latents, until the ELBO stops rising; the best inputs are kept, or the last if the
    form takes every choice (Passerello 2021, section 3.3.2). If their number is chosen from the data, it grows until
    more inputs give no further gain.
    """
    check_memory(model, data.X)
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
