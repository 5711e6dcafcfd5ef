"""Test of symmetry about 0, which compares the distributions of x and -x."""

import numpy as np


def symmetry_test(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Kolmogorov-Smirnov distance between x and -x over the first axis, and its p-value, for x (draws, ...).

    x and -x are not independent samples, so that the two-sample distribution does not apply: its 5 % point rejects 11 %
    of symmetric samples. Given |x| the signs are fair coin tosses, and the distance is the maximum distance from 0 of
    their random walk, in order of decreasing |x|, over the number of steps (Butler 1969). This is exact at every size.
    """
    count = len(x)
    order = np.argsort(-np.abs(x), axis=0, kind="stable")
    walk = np.cumsum(np.take_along_axis(np.sign(x), order, axis=0), axis=0)
    farthest = np.abs(walk).max(axis=0).astype(int)
    levels = np.unique(farthest)
    p_values = np.array([_reach_probability(int(level), count) for level in levels])
    return farthest / count, p_values[np.searchsorted(levels, farthest)]


def _reach_probability(level: int, count: int) -> float:
    """The probability that a simple random walk of ``count`` steps reaches distance ``level`` from 0."""
    inside = np.zeros(2 * level + 1)
    inside[level] = 1.0
    reached = 0.0
    for _ in range(count):
        step = np.zeros_like(inside)
        step[1:] += 0.5 * inside[:-1]
        step[:-1] += 0.5 * inside[1:]
        reached += step[0] + step[-1]
        step[[0, -1]] = 0.0
        inside = step
    return float(min(reached, 1.0)) if level else 1.0
