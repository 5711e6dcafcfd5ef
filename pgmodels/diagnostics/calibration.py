"""Calibration of predicted class probabilities."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Rows binned by the probability of their most probable class: bin b is (edges[b], edges[b + 1]].

    ``counts`` is the number of rows in each bin, ``confidence`` their mean probability and ``accuracy`` the share
    classified correctly, (bins,) each, NaN in empty bins.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def error(self) -> float:
        """The mean over rows of |accuracy - confidence| of their bin (Guo et al. 2017, equation 3)."""
        full = self.counts > 0
        gaps = np.abs(self.accuracy - self.confidence)[full]
        return float((self.counts[full] * gaps).sum() / self.counts.sum())


def reliability_bins(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> ReliabilityBins:
    """Rows binned by top-label confidence, for ``probabilities`` (m, classes) and class positions ``y`` (m,).

    Bins are ((b - 1) / num_bins, b / num_bins] (Guo et al. 2017, equations 1 and 2).
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == y
    place = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    count, hits, total = (
        np.bincount(place, weights=weights, minlength=num_bins) for weights in (None, correct, confidence)
    )
    with np.errstate(invalid="ignore"):
        return ReliabilityBins(np.arange(num_bins + 1) / num_bins, count, total / count, hits / count)


def expected_calibration_error(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> float:
    """The expected calibration error: the mean over rows of |accuracy - confidence| of their bin.

    ``probabilities`` (m, classes), ``y`` (m,) class positions. Source: Guo et al. 2017, equation 3.
    """
    return reliability_bins(probabilities, y, num_bins).error
