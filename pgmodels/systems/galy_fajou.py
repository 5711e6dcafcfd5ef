"""The systems of Galy-Fajou et al. 2019 for several classes: logistic-softmax, and rivals of it."""

from typing import Literal, Unpack

from numpy.typing import ArrayLike

from pgmodels.inference.objectives import Choice
from pgmodels.inference.stochastic.svi import svi
from pgmodels.kernels.kernel import Kernel
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.named import LogisticSoftmax, MultinomialProbit, RobustMax, Softmax
from pgmodels.model import Model
from pgmodels.results.approximation import Approximation
from pgmodels.results.sparse import SparseApproximation
from pgmodels.systems.parts import StochasticOptions, ard, count_classes, sparse


def logistic_softmax(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    bound: Literal["factorised", "augmented"] = "factorised",
    shared: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 200,
    batch_size: int = 200,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GP classification with the logistic-softmax likelihood, by conditionally conjugate variational inference.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs.
    y : array_like, shape (n,)
        Classes 0, 1, ...
    num_classes : int, optional
        Number of classes; by default one more than the largest in y.
    bound : {"factorised", "augmented"}
        ``"factorised"`` is the published bound, ``"augmented"`` the tighter one of this package, which keeps the
        auxiliary variables of a datum together.
    shared : bool
        Whether all classes have the same hyperparameters and inducing inputs.
    kernel : Kernel, optional
        By default RBF with a lengthscale for each column, all starting at the median distance.
    num_inducing : int
        Number of inducing inputs, centres of k-means, which stay in place.
    batch_size : int
        Rows per step; all rows if there are fewer.
    **options
        ``seed``, ``progress``, ``max_epochs``, ``checkpoint`` and ``callback``, as in ``svi``.

    Returns
    -------
    Approximation or SparseApproximation

    Notes
    -----
    Deviation from print: steps are convex combinations of natural parameters, and not of means and covariances.

    References
    ----------
    Galy-Fajou et al. 2019, sections 3 and 4 and algorithm 1.
    """
    count = count_classes(y, num_classes)
    return _learned(LogisticSoftmax(count), count, X, y, bound, shared, kernel, num_inducing, batch_size, options)


def softmax(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    shared: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 200,
    batch_size: int = 200,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GP classification with the softmax likelihood, on its expected log density by randomised quadrature.

    Parameters
    ----------
    X, y, num_classes, shared, kernel, num_inducing, batch_size, **options
        As in ``logistic_softmax``.

    Returns
    -------
    SparseApproximation

    References
    ----------
    Galy-Fajou et al. 2019, equation 2 and section 5.
    """
    count = count_classes(y, num_classes)
    return _learned(Softmax(count), count, X, y, "expected", shared, kernel, num_inducing, batch_size, options)


def robust_max(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    error: float = 1e-3,
    shared: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 200,
    batch_size: int = 200,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GP classification with the robust-max likelihood, on its expected log density in closed form.

    Parameters
    ----------
    X, y, num_classes, shared, kernel, num_inducing, batch_size, **options
        As in ``logistic_softmax``.
    error : float
        Start value of the probability of a class that is not that of the largest latent, which is learned.

    Returns
    -------
    SparseApproximation

    References
    ----------
    Hensman et al. 2015; Galy-Fajou et al. 2019, equation 3, whose ε is ``error`` C / (C - 1) for C classes.
    """
    count = count_classes(y, num_classes)
    return _learned(RobustMax(count, error), count, X, y, "expected", shared, kernel, num_inducing, batch_size, options)


def multinomial_probit(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    shared: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 200,
    batch_size: int = 200,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GP classification with the multinomial probit likelihood, by conditionally conjugate variational inference.

    Parameters
    ----------
    X, y, num_classes, shared, kernel, num_inducing, batch_size, **options
        As in ``logistic_softmax``.

    Returns
    -------
    Approximation

    Notes
    -----
    Deviation from print: inducing inputs, steps on batches of rows, and hyperparameters that maximise the bound.

    References
    ----------
    Albert and Chib 1993; Girolami and Rogers 2006, whom Galy-Fajou et al. 2019 name.
    """
    count = count_classes(y, num_classes)
    return _learned(
        MultinomialProbit(count), count, X, y, "augmented", shared, kernel, num_inducing, batch_size, options
    )


def _learned(
    likelihood: Likelihood,
    size: int,
    X: ArrayLike,
    y: ArrayLike,
    objective: Choice,
    shared: bool,
    kernel: Kernel | None,
    num_inducing: int,
    batch_size: int,
    options: StochasticOptions,
) -> Approximation | SparseApproximation:
    kernel = kernel or ard(X)
    gps = [sparse(kernel, num_inducing, size=size)] if shared else [sparse(kernel, num_inducing) for _ in range(size)]
    model = Model(likelihood, gps)
    return svi(model, X, y, batch_size=batch_size, objective=objective, train_hyperparameters=True, **options)
