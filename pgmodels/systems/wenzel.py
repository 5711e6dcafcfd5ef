"""The systems of Wenzel et al. 2019: X-GPC and its rival SVGPC, for labels 0 and 1."""

from typing import Unpack

from numpy.typing import ArrayLike

from pgmodels.inference.stochastic.svi import svi
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.others import White
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Probit
from pgmodels.model import Model
from pgmodels.results.approximation import Approximation
from pgmodels.results.sparse import SparseApproximation
from pgmodels.systems.parts import StochasticOptions, sparse


def x_gpc(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    batch_size: int = 100,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """X-GPC: GP classification by Pólya-Gamma augmentation, inducing inputs and natural gradients on minibatches.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs.
    y : array_like, shape (n,)
        Labels 0 and 1.
    kernel : Kernel, optional
        By default ``RBF() + White()``, with one lengthscale.
    num_inducing : int
        Number of inducing inputs, centres of k-means at the start, learned with the hyperparameters by Adam.
    batch_size : int
        Rows per step; all rows if there are fewer.
    **options
        ``seed``, ``progress``, ``max_epochs``, ``checkpoint`` and ``callback``, as in ``svi``.

    Returns
    -------
    Approximation or SparseApproximation

    Notes
    -----
    Deviations from print: step sizes decrease by Robbins and Monro's rule instead of the adaptive rate of Ranganath et
    al. 2013, which was measured to decrease too soon (``svi(rate="adaptive")`` has it); steps end by a test of the
    averages of q instead of a window of 5 steps.

    References
    ----------
    Wenzel et al. 2019, sections 3 and 4.
    """
    model = Model(Bernoulli(), sparse(kernel or RBF() + White(), num_inducing))
    return svi(model, X, y, batch_size=batch_size, train_hyperparameters=True, train_inducing=True, **options)


def svgpc(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    batch_size: int = 100,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """SVGPC: sparse variational GP classification with the probit link, by quadrature on minibatches.

    Parameters
    ----------
    X, y, kernel, num_inducing, batch_size, **options
        As in ``x_gpc``.

    Returns
    -------
    SparseApproximation

    Notes
    -----
    Deviation from print: q moves by natural gradients instead of Adam.

    References
    ----------
    Hensman, Matthews and Ghahramani 2015; Wenzel et al. 2019, section 5.
    """
    model = Model(Probit(), sparse(kernel or RBF() + White(), num_inducing))
    return svi(
        model, X, y, batch_size=batch_size, objective="expected", train_hyperparameters=True, train_inducing=True,
        **options,
    )  # fmt: skip
