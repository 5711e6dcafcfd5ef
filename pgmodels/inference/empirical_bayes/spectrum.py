"""The peaks of a spectrum of scattered rows, as start values of periods."""

import numpy as np

from pgmodels.numerics.trigonometric_sums import trigonometric_sums

# The number of frequencies for each that can be resolved, one cycle over the range of the rows apart.
_OVERSAMPLED = 8
# A wave without what other functions explain is left out if its square is below this share of the largest.
_DEPENDENT = 1e-10


def spectral_periods(x: np.ndarray, h: np.ndarray, w: np.ndarray, num_periods: int) -> np.ndarray:
    """The periods of the highest peaks of a spectrum, the highest first, in O(n log n) time and O(n) memory.

    Spectrum of y = h / w by weighted least squares, after removing a parabola and the higher peaks; frequencies from
    two cycles in the range of x up to one cycle for two distinct rows (Lomb 1976, Scargle 1982).
    """
    # Sums over sorted rows are faster.
    order = np.argsort(x)
    x, h, w = (part[order[w[order] > 0]] for part in (x, h, w))
    count = len(np.unique(x))
    if count < 8:
        return np.zeros(0)
    span, root = x[-1] - x[0], np.sqrt(w)
    cycles, y = (x - x[0]) / span, h / root
    # Of cycles in _OVERSAMPLED times the range.
    numbers = np.arange(2 * _OVERSAMPLED, max(_OVERSAMPLED * count // 2, 3 * _OVERSAMPLED))

    def sums(values: np.ndarray, multiple: int = 1) -> np.ndarray:
        """The sums of values exp(i angle) at each frequency times ``multiple``."""
        at = multiple * numbers
        return trigonometric_sums(cycles / _OVERSAMPLED, values, int(at[-1]) + 1)[at]

    # The Gram matrix of root cos and root sin is [[level + a, b], [b, level - a]] with tilt = a + i b.
    level, tilt = np.full(len(numbers), 0.5 * w.sum()), 0.5 * sums(w, 2)
    removed, highest, periods = np.zeros((len(x), 0)), np.vander(cycles, 3), []
    for _ in range(num_periods):
        # A peak is removed with its sidelobes.
        functions = _beside(removed, root[:, None] * highest)
        removed, y = np.column_stack([removed, functions]), y - functions @ (functions.T @ y)
        for function in functions.T:
            products = sums(root * function)
            level, tilt = level - 0.5 * np.abs(products) ** 2, tilt - 0.5 * products**2
        best = numbers[np.argmax(_powers(sums(root * y), level, tilt))]
        periods.append(span * _OVERSAMPLED / best)
        angles = 2.0 * np.pi * best / _OVERSAMPLED * cycles
        highest = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.array(periods)


def _beside(removed: np.ndarray, functions: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span functions (n, k) together with orthonormal ``removed`` (n, r)."""
    U, sizes, _ = np.linalg.svd(functions - removed @ (removed.T @ functions), full_matrices=False)
    return U[:, sizes > np.sqrt(_DEPENDENT) * sizes[0]]


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
