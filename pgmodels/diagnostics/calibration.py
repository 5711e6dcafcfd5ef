"""Whether predicted probabilities are met by frequencies."""

import numpy as np


def expected_calibration_error(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> float:
    """The mean over rows of |accuracy - confidence| of their bin of top-label confidence (Guo et al. 2017, equation 3).

    ``probabilities`` (m, classes), ``y`` (m,) class positions. Bins are ((b - 1) / num_bins, b / num_bins].
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == y
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins, weights=correct - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(y))
