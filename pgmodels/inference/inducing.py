"""Inducing inputs that follow what is known: the kernel's values, and what the data say of each latent."""

from collections.abc import Callable

import numpy as np

from pgmodels.latent.inducing import AUTOMATIC, Inducing
from pgmodels.latent.joint import columns
from pgmodels.model import GP, Data, Model
from pgmodels.warning import warn

# The inducing inputs (M, d) of each group, None where a group has another form.
Inputs = tuple[np.ndarray | None, ...]

# Selections in turns with the posterior, and what one must gain of the ELBO, relative to its size, for another.
_TURNS, _GAIN = 10, 1e-4


class InducingWarning(UserWarning):
    """More inducing inputs than were allowed would tell more."""


def choose_inputs(model: Model, X: np.ndarray, precisions: np.ndarray | None = None) -> Inputs:
    """The inducing inputs that each group's form chooses at the kernel's values, from precisions (n, latents).

    Precisions of rows that fill up the data are left out.
    """
    found: list[np.ndarray | None] = []
    for gp, part in zip(model.gps, columns([gp.size for gp in model.gps]), strict=True):
        weights = None if precisions is None else np.maximum(precisions[: len(X), part], 0.0).sum(axis=1)
        found.append(gp.form.choose(gp.kernel, X, weights) if isinstance(gp.form, Inducing) else None)
    return tuple(found)


def with_inputs(model: Model, inputs: Inputs) -> Model:
    """The model with inducing inputs given."""
    pairs = zip(model.gps, inputs, strict=True)
    gps = [gp if Z is None else GP(gp.kernel, gp.mean, gp.size, Inducing(Z)) for gp, Z in pairs]
    return Model(model.likelihood, gps)


def warn_limited(model: Model, inputs: Inputs, num_rows: int) -> None:
    """Warn where, of what the data last chose, there are as many as may be, and more were wanted."""
    for form, Z in zip((gp.form for gp in model.gps), inputs, strict=True):
        if not isinstance(form, Inducing) or Z is None or form.select != AUTOMATIC:
            continue
        if len(Z) == form.inputs and len(Z) < num_rows:
            warn(
                f"{form!r} took all the inducing inputs that it may, {len(Z)}, and the data gain by more of them: "
                f"see what Inducing({2 * len(Z)}, {AUTOMATIC!r}) does to the ELBO.",
                InducingWarning,
            )


def settled(model: Model, data: Data, optimum: Callable[[Model, Data], tuple[float, np.ndarray]]) -> Model:
    """A resolved model with its inducing inputs chosen.

    Where they are to go by what the data say, selections take turns with ``optimum``, which gives the ELBO of a model
    and the precisions of its sites on the latents, until the ELBO gains nothing; the best ones stay.
    """
    best = with_inputs(model, choose_inputs(model, data.X))
    if not any(isinstance(gp.form, Inducing) and gp.form.adapts for gp in model.gps):
        return best
    elbo, precisions = optimum(best, data)
    for _ in range(_TURNS):
        chosen = choose_inputs(model, data.X, precisions)
        other = with_inputs(model, chosen)
        if other == best:
            break
        moved, precisions = optimum(other, data)
        gain = moved - elbo
        if gain > 0:
            best, elbo = other, moved
        if not gain > _GAIN * abs(elbo):
            break
    warn_limited(model, chosen, len(data.X))
    return best
