"""The systems of Liu et al. 2019: classification with additive noise, GPC-I, II and III, and GPC-sm."""

from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_inputs
from pgmodels.inference.objectives import Choice
from pgmodels.inference.stochastic.svi import svi
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods import published
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.likelihoods.named import Softmax
from pgmodels.model import Model
from pgmodels.parameters.parameter import Fixed, Parameter, as_declared
from pgmodels.results.approximation import Approximation
from pgmodels.results.sparse import SparseApproximation
from pgmodels.systems.parts import StochasticOptions, count_classes, sparse

# The likelihoods of two classes and of more.
_GPC_1 = published.gpc_1_labels, published.gpc_1_classes
_GPC_2 = published.gpc_2_labels, published.gpc_2_classes
_GPC_3 = published.gpc_3_labels, published.gpc_3_classes


def gpc_1(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    error: float = 1e-3,
    learn_error: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 300,
    batch_size: int = 1024,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GPC-I: the class of the largest latent, or the sign of one, without noise and with an error rate.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs.
    y : array_like, shape (n,)
        Classes 0, 1, ...; with two classes the model has one latent.
    num_classes : int, optional
        Number of classes; by default one more than the largest in y.
    error : float
        The error rate δ, or its start value.
    learn_error : bool
        Whether the error rate is learned with the hyperparameters.
    kernel : Kernel, optional
        By default RBF with lengthscale 0.1 √d and variance 5, as start values; d is the number of columns of X.
    num_inducing : int
        Number of inducing inputs, centres of k-means at the start, learned with the hyperparameters by Adam.
    batch_size : int
        Rows per step; all rows if there are fewer.
    **options
        ``seed``, ``progress``, ``max_epochs``, ``checkpoint`` and ``callback``, as in ``svi``.

    Returns
    -------
    SparseApproximation

    Notes
    -----
    Deviation from print: q moves by natural gradients instead of Adam. The default kernel supposes standardised inputs.

    References
    ----------
    Liu et al. 2019, sections II and III.
    """
    return _noisy(X, y, num_classes, _GPC_1, error, learn_error, kernel, num_inducing, batch_size, options)


def gpc_2(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    error: float = 1e-3,
    learn_error: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 300,
    batch_size: int = 1024,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GPC-II: as GPC-I, with standard normal noise of the latents, as in the probit likelihood.

    Parameters
    ----------
    X, y, num_classes, error, learn_error, kernel, num_inducing, batch_size, **options
        As in ``gpc_1``.

    Returns
    -------
    SparseApproximation

    References
    ----------
    Liu et al. 2019, sections II and III.
    """
    return _noisy(X, y, num_classes, _GPC_2, error, learn_error, kernel, num_inducing, batch_size, options)


def gpc_3(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    error: float = 1e-3,
    learn_error: bool = True,
    kernel: Kernel | None = None,
    num_inducing: int = 300,
    batch_size: int = 1024,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GPC-III: as GPC-I, with nearly logistic noise of the latents, normal with variance 2.897.

    Parameters
    ----------
    X, y, num_classes, error, learn_error, kernel, num_inducing, batch_size, **options
        As in ``gpc_1``.

    Returns
    -------
    SparseApproximation

    References
    ----------
    Liu et al. 2019, sections II and III.
    """
    return _noisy(X, y, num_classes, _GPC_3, error, learn_error, kernel, num_inducing, batch_size, options)


def gpc_sm(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    kernel: Kernel | None = None,
    num_inducing: int = 300,
    batch_size: int = 1024,
    class_batch_size: int | None = None,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """GPC-sm: the softmax likelihood by its bound with Gumbel noise.

    Parameters
    ----------
    X, y, num_classes, kernel, num_inducing, batch_size, **options
        As in ``gpc_1``; the model has a latent for each class, also with two.
    class_batch_size : int, optional
        Classes per step, as in ``svi``; by default all.

    Returns
    -------
    SparseApproximation

    Notes
    -----
    Deviations from print: q moves by natural gradients instead of Adam. With ``class_batch_size``, θ_i of equation 24,
    one number per row, is S0(x_i) exp(v / 2 - m), with m and v of the row's class and log S0 affine in the prior's
    factor at x_i; see the notes of ``svi``.

    References
    ----------
    Liu et al. 2019, section III; equation 24 for steps on some of the rows and classes.
    """
    count = count_classes(y, num_classes)
    return _learned(Softmax(count), count, X, y, "gumbel", kernel, num_inducing, batch_size, options, class_batch_size)


def _noisy(
    X: ArrayLike,
    y: ArrayLike,
    num_classes: int | None,
    families: tuple[LikelihoodFamily, LikelihoodFamily],
    error: float,
    learn_error: bool,
    kernel: Kernel | None,
    num_inducing: int,
    batch_size: int,
    options: StochasticOptions,
) -> Approximation | SparseApproximation:
    from numpyro.distributions.constraints import interval

    count = count_classes(y, num_classes)
    family, size = (families[0], 1) if count == 2 else (families[1], count)
    rate = Parameter(1e-3, constraint=interval(0.0, (count - 1) / count))
    formula = family(as_declared(error if learn_error else Fixed(error), rate, "error", positive=False))
    return _learned(formula, size, X, y, "additive_noise", kernel, num_inducing, batch_size, options)


def _learned(
    formula: Likelihood,
    size: int,
    X: ArrayLike,
    y: ArrayLike,
    objective: Choice,
    kernel: Kernel | None,
    num_inducing: int,
    batch_size: int,
    options: StochasticOptions,
    class_batch_size: int | None = None,
) -> Approximation | SparseApproximation:
    if kernel is None:
        kernel = RBF(variance=5.0, lengthscale=0.1 * np.sqrt(as_inputs(X, "X").shape[1]))
    model = Model(formula, sparse(kernel, num_inducing, size=size))
    return svi(
        model, X, y, batch_size=batch_size, class_batch_size=class_batch_size, objective=objective,
        train_hyperparameters=True, train_inducing=True, **options,
    )  # fmt: skip
