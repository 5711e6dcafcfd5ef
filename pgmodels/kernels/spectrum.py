"""Spectral densities of kernels: how the variance of a latent is spread over frequencies."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Spectrum(NamedTuple):
    """The spectral density of a stationary function of some columns.

    ``density`` is a function of angular frequencies (m, d), in radians per unit of each column, with the integral
    (2 pi)^d times the variance; ``lengthscale`` (d,) has the unit of each column. A constant has no columns, and its
    density is its variance.
    """

    density: Callable[[Float[Array, "m d"]], Float[Array, " m"]]
    lengthscale: Float[Array, " d"]


# By the columns of each of the independent functions whose sum is the latent.
Spectra = dict[tuple[int, ...], Spectrum]


def added(one: Spectra, other: Spectra) -> Spectra:
    """The spectra of a sum: densities of the same columns add."""
    total = one | other
    for columns in one.keys() & other.keys():
        total[columns] = _sum(one[columns], other[columns])
    return total


def _sum(one: Spectrum, other: Spectrum) -> Spectrum:
    return Spectrum(
        lambda frequencies: one.density(frequencies) + other.density(frequencies),
        jnp.maximum(one.lengthscale, other.lengthscale),
    )


def multiplied(one: Spectra, other: Spectra) -> Spectra | None:
    """The spectra of a product of functions of different columns, or with a constant; None if they share columns."""
    total: Spectra = {}
    for first, first_spectrum in one.items():
        for second, second_spectrum in other.items():
            if set(first) & set(second):
                return None
            total = added(total, _product(first, first_spectrum, second, second_spectrum))
    return total


def in_columns(spectra: Spectra, columns: tuple[int, ...]) -> Spectra:
    """The spectra of functions whose columns are among others: column i is the column ``columns[i]`` of X."""
    return dict(_sorted(tuple(columns[i] for i in term), spectrum) for term, spectrum in spectra.items())


def _product(first: tuple[int, ...], one: Spectrum, second: tuple[int, ...], other: Spectrum) -> Spectra:
    split = len(first)

    def density(frequencies: Array) -> Array:
        return one.density(frequencies[:, :split]) * other.density(frequencies[:, split:])

    lengthscale = jnp.concatenate([one.lengthscale, other.lengthscale])
    return dict([_sorted(first + second, Spectrum(density, lengthscale))])


def _sorted(columns: tuple[int, ...], spectrum: Spectrum) -> tuple[tuple[int, ...], Spectrum]:
    """Columns in increasing order, and the spectrum as a function of frequencies in that order."""
    order = np.argsort(np.array(columns, int), kind="stable")
    places = np.argsort(order)
    density = lambda frequencies: spectrum.density(frequencies[:, places])  # noqa: E731
    return tuple(columns[i] for i in order), Spectrum(density, spectrum.lengthscale[order])
