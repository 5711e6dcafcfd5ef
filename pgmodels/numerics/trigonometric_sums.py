"""Sums of waves at scattered points, for many frequencies at once."""

import numpy as np
import scipy

# A point is spread over _WIDTH cells of a grid, as exp(-_RATE t^2) at a distance of t cells. With _FINENESS cells for
# each frequency the sums are exact to 1e-11 of the sum of the absolute coefficients.
_WIDTH, _RATE, _FINENESS = 24, np.pi / 16.0, 4


def trigonometric_sums(u: np.ndarray, coefficients: np.ndarray, count: int) -> np.ndarray:
    """The sums of coefficients exp(2 pi i k u) over points u (n,) in [0, 1), for k = 0, ..., ``count`` - 1.

    Takes O(n + count log count) operations: points are spread over a grid, which has a fast Fourier transform. Source:
    Greengard and Lee 2004.
    """
    size = scipy.fft.next_fast_len(max(_FINENESS * count, _WIDTH), real=True)
    cells, beyond = np.divmod(u * size, 1.0)
    # The first cell of a point is that many before its own.
    first, cells = _WIDTH // 2 - 1, cells.astype(np.intp)
    grid = np.zeros(size + _WIDTH)
    for number in range(_WIDTH):
        spread = np.bincount(cells + number, coefficients * np.exp(-_RATE * (number - first - beyond) ** 2))
        grid[: len(spread)] += spread
    grid[:_WIDTH] += grid[size:]
    angles = np.pi * np.arange(count) / size
    # The transform of the Gaussian, and of the shift by the first cell.
    shape = np.sqrt(np.pi / _RATE) * np.exp(2j * first * angles - angles**2 / _RATE)
    return np.conj(scipy.fft.rfft(grid[:size])[:count]) / shape
