"""Inducing inputs that follow what is known: the kernel's values, and what the data say of each latent."""

from collections.abc import Callable

import numpy as np

from pgmodels.latent.inducing import ADAPTIVE, Inducing
from pgmodels.latent.joint import columns
from pgmodels.model import GP, Data, Model

# The inducing inputs (M, d) of each group, None where a group has another form.
Inputs = tuple[np.ndarray | None, ...]

# Selections in turns with the posterior, and what one must gain of the ELBO, relative to its size, for another.
_TURNS, _GAIN = 10, 1e-4


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


def settled(model: Model, data: Data, optimum: Callable[[Model, Data], tuple[float, np.ndarray]]) -> Model:
    """A resolved model with its inducing inputs chosen.

    Where they are to go by what the data say, selections take turns with ``optimum``, which gives the ELBO of a model
    and the precisions of its sites on the latents, until the ELBO gains nothing; the best ones stay.
    """
    best = with_inputs(model, choose_inputs(model, data.X))
    if not any(isinstance(gp.form, Inducing) and gp.form.select == ADAPTIVE for gp in model.gps):
        return best
    elbo, precisions = optimum(best, data)
    for _ in range(_TURNS):
        other = with_inputs(model, choose_inputs(model, data.X, precisions))
        if other == best:
            break
        moved, precisions = optimum(other, data)
        gain = moved - elbo
        if gain > 0:
            best, elbo = other, moved
        if not gain > _GAIN * abs(elbo):
            break
    return best
