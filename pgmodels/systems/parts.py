"""What the systems share: arguments, classes, and GPs with inducing inputs."""

from os import PathLike
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_inputs, as_numbers, check_finite
from pgmodels.data.options import check_whole_number
from pgmodels.inference.loop import Callback
from pgmodels.kernels.distance import median_distance
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.stationary import RBF
from pgmodels.model import GP
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.runtime.seeds import Seed


class Options(TypedDict, total=False):
    """Options of every system, passed on to its engine: the seed, and whether to show a progress bar."""

    seed: Seed
    progress: bool | None


class StochasticOptions(Options, total=False):
    """Options of the systems that ``svi`` runs, passed on to it: see there."""

    max_epochs: int | None
    checkpoint: str | PathLike[str] | None
    callback: Callback | None


def count_classes(y: ArrayLike, num_classes: int | None) -> int:
    """The number of classes, by default one more than the largest label. Raises ValueError for other labels."""
    labels = as_numbers(y, "y")
    check_finite(labels, "y")
    if labels.ndim != 1 or not labels.size or np.any(labels < 0) or np.any(labels % 1):
        raise ValueError(
            "y must have shape (n,) and hold the classes 0, 1, ...: use numpy.unique(y, return_inverse=True)[1]."
        )
    count = max(2, int(labels.max()) + 1) if num_classes is None else num_classes
    check_whole_number(count, "num_classes", 2)
    return count


def ard(X: ArrayLike) -> RBF:
    """The squared-exponential kernel with a lengthscale for each column of X, all starting at the median distance."""
    inputs = as_inputs(X, "X")
    return RBF(lengthscale=np.full(inputs.shape[1], float(median_distance(inputs))))


def sparse(kernel: Kernel, num_inducing: int, select: Any = "kmeans", size: int = 1) -> GP:
    """GPs with inducing inputs."""
    return GP(kernel, size=size, form=Inducing(num_inducing, select))
