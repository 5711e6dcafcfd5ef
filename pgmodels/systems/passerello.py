"""The systems of Passerello 2021: collapsed bounds with inducing inputs for Gaussian and Pólya-Gamma sites."""

from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers, check_finite
from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Gaussian
from pgmodels.likelihoods.published import known_noise
from pgmodels.model import Model
from pgmodels.results.approximation import Approximation, CorrectedApproximation
from pgmodels.systems.parts import Options, sparse

Selection = Literal["uniform", "kmeans", "GV", "HGV"]


def sgpr(
    X: ArrayLike,
    y: ArrayLike,
    *,
    select: Selection = "kmeans",
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """SGPR: Gaussian-process regression with inducing inputs by the collapsed bound.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs.
    y : array_like, shape (n,)
        Observations.
    select : {"uniform", "kmeans", "GV", "HGV"}
        How inducing inputs are selected: see ``pgm.Inducing``.
    kernel : Kernel, optional
        By default ``RBF()``, with one lengthscale.
    num_inducing : int
        Number of inducing inputs.
    **options
        ``seed`` and ``progress``, as in ``fit``.

    Returns
    -------
    Approximation

    References
    ----------
    Titsias 2009; Passerello 2021, section 2.
    """
    observed = as_numbers(y, "y")
    check_finite(observed, "y")
    # Half of the variance of y as noise, as the start value.
    scale = float(np.std(observed)) / np.sqrt(2.0)
    model = Model(Gaussian(scale or 1.0), sparse(kernel or RBF(), num_inducing, select))
    return fit(model, X, y, objective="augmented", correct=False, **options)


def hgpr(
    X: ArrayLike,
    y: ArrayLike,
    noise_variance: ArrayLike,
    *,
    select: Selection = "HGV",
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """HGPR: as SGPR, with a known noise variance of each observation.

    Parameters
    ----------
    X, y, select, kernel, num_inducing, **options
        As in ``sgpr``.
    noise_variance : array_like, shape (n,)
        Noise variances, positive.

    Returns
    -------
    Approximation
        ``pgm.inducing_gap`` of it has the upper bound of its log evidence.

    References
    ----------
    Passerello 2021, section 3.
    """
    columns = [as_numbers(y, "y"), as_numbers(noise_variance, "noise_variance")]
    for name, column in zip(("y", "noise_variance"), columns, strict=True):
        if column.shape != (len(columns[0]),):
            raise ValueError(f"{name} must have shape (n,), one number per row of X; got shape {column.shape}.")
    model = Model(known_noise(), sparse(kernel or RBF(), num_inducing, select))
    return fit(model, X, np.column_stack(columns), objective="augmented", correct=False, **options)


def pgpr(
    X: ArrayLike,
    y: ArrayLike,
    *,
    select: Selection = "HGV",
    train_inducing: bool = False,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """PGPR: GP classification by the collapsed Pólya-Gamma bound, for labels 0 and 1.

    Parameters
    ----------
    X, select, kernel, num_inducing, **options
        As in ``sgpr``.
    y : array_like, shape (n,)
        Labels 0 and 1.
    train_inducing : bool
        Whether inducing inputs are learned by gradient ("PGPR GO").

    Returns
    -------
    Approximation

    References
    ----------
    Passerello 2021, section 4.
    """
    return _classified("augmented", X, y, select, train_inducing, kernel, num_inducing, options)


def svgp(
    X: ArrayLike,
    y: ArrayLike,
    *,
    select: Selection = "kmeans",
    train_inducing: bool = False,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """SVGP with the logistic likelihood by quadrature, for labels 0 and 1.

    Parameters
    ----------
    X, y, select, train_inducing, kernel, num_inducing, **options
        As in ``pgpr``; with ``train_inducing`` it is "SVGP GO".

    Returns
    -------
    Approximation

    Notes
    -----
    Deviation from print: q is at its optimum at all hyperparameters, and not optimised jointly with them.

    References
    ----------
    Hensman, Matthews and Ghahramani 2015; Passerello 2021, section 5.
    """
    return _classified("expected", X, y, select, train_inducing, kernel, num_inducing, options)


def merged(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """The merged model: inducing inputs by the precisions of PGPR's sites, and q and hyperparameters of SVGP.

    Parameters
    ----------
    X, y, kernel, num_inducing, **options
        As in ``pgpr``.

    Returns
    -------
    Approximation

    Notes
    -----
    Deviation from print: inputs are kept only if they raise the ELBO.

    References
    ----------
    Passerello 2021, section 7.1.2.
    """
    return _classified("expected", X, y, "merged", False, kernel, num_inducing, options)


def _classified(
    objective: Literal["augmented", "expected"],
    X: ArrayLike,
    y: ArrayLike,
    select: Selection | Literal["merged"],
    train_inducing: bool,
    kernel: Kernel | None,
    num_inducing: int,
    options: Options,
) -> Approximation | CorrectedApproximation:
    model = Model(Bernoulli(), sparse(kernel or RBF(), num_inducing, select))
    return fit(model, X, y, objective=objective, train_inducing=train_inducing, correct=False, **options)
