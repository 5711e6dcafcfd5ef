"""The systems of Izmailov and Kropotov 2017: vi-JJ, -hybrid and -full, vi-Taylor and svi, for labels 0 and 1."""

from typing import Unpack

from numpy.typing import ArrayLike

from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.inference.empirical_bayes.schemes import SchemeName
from pgmodels.inference.objectives import ObjectiveName
from pgmodels.inference.stochastic.svi import svi as stochastic_vi
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.others import White
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.named import Bernoulli
from pgmodels.model import Model
from pgmodels.results.approximation import Approximation, CorrectedApproximation
from pgmodels.results.sparse import SparseApproximation
from pgmodels.systems.parts import Options, StochasticOptions, sparse


def vi_jj(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood | None = None,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """vi-JJ: sweeps of the local parameters and few L-BFGS-B evaluations over the hyperparameters, in turns.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs.
    y : array_like, shape (n,) or (n, columns)
        Labels 0 and 1, or observations of ``likelihood``.
    likelihood : Likelihood, optional
        By default Bernoulli; any with an augmentation and one latent.
    kernel : Kernel, optional
        By default ``RBF() + White()``, with one lengthscale.
    num_inducing : int
        Number of inducing inputs, centres of k-means.
    **options
        ``seed`` and ``progress``, as in ``fit``.

    Returns
    -------
    Approximation

    References
    ----------
    Izmailov and Kropotov 2017, algorithm 1.
    """
    return _fitted("augmented", "alternating", X, y, likelihood, kernel, num_inducing, options)


def vi_jj_hybrid(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood | None = None,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """vi-JJ-hybrid: three sweeps, then L-BFGS-B over hyperparameters and local parameters jointly.

    Parameters
    ----------
    X, y, likelihood, kernel, num_inducing, **options
        As in ``vi_jj``.

    Returns
    -------
    Approximation

    References
    ----------
    Izmailov and Kropotov 2017, section 4.1.
    """
    return _fitted("augmented", "hybrid", X, y, likelihood, kernel, num_inducing, options)


def vi_jj_full(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood | None = None,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """vi-JJ-full: L-BFGS-B over hyperparameters and local parameters jointly.

    Parameters
    ----------
    X, y, likelihood, kernel, num_inducing, **options
        As in ``vi_jj``.

    Returns
    -------
    Approximation

    References
    ----------
    Izmailov and Kropotov 2017, section 4.1.
    """
    return _fitted("augmented", "joint", X, y, likelihood, kernel, num_inducing, options)


def vi_taylor(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood | None = None,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    **options: Unpack[Options],
) -> Approximation | CorrectedApproximation:
    """vi-Taylor: as vi-JJ, with a Taylor expansion of the log density about q's mean in place of the bound.

    Parameters
    ----------
    X, y, kernel, num_inducing, **options
        As in ``vi_jj``.
    likelihood : Likelihood, optional
        By default Bernoulli; any without kinks and with one latent.

    Returns
    -------
    Approximation
        Its ``.elbo`` is Laplace's evidence, which is no bound; the hyperparameters are not its maximum (see ``fit``).

    Notes
    -----
    Deviation from print: steps to the expansion at q's mean are halved if they lower the posterior density there.

    References
    ----------
    Izmailov and Kropotov 2017, section 4.2.
    """
    return _fitted("taylor", "alternating", X, y, likelihood, kernel, num_inducing, options)


def svi(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood | None = None,
    kernel: Kernel | None = None,
    num_inducing: int = 100,
    batch_size: int = 100,
    **options: Unpack[StochasticOptions],
) -> Approximation | SparseApproximation:
    """svi: stochastic variational inference on the expected log density by quadrature.

    Parameters
    ----------
    X, y, likelihood, kernel, num_inducing
        As in ``vi_jj``.
    batch_size : int
        Rows per step; all rows if there are fewer.
    **options
        ``seed``, ``progress``, ``max_epochs``, ``checkpoint`` and ``callback``, as in ``svi``.

    Returns
    -------
    SparseApproximation

    Notes
    -----
    Deviation from print: natural gradients for q and Adam for the hyperparameters, instead of AdaDelta for both.

    References
    ----------
    Hensman, Matthews and Ghahramani 2015; Izmailov and Kropotov 2017, section 3.2.
    """
    return stochastic_vi(
        _model(likelihood, kernel, num_inducing), X, y, batch_size=batch_size, objective="expected",
        train_hyperparameters=True, **options,
    )  # fmt: skip


def _model(likelihood: Likelihood | None, kernel: Kernel | None, num_inducing: int) -> Model:
    return Model(likelihood or Bernoulli(), sparse(kernel or RBF() + White(), num_inducing))


def _fitted(
    objective: ObjectiveName,
    scheme: SchemeName,
    X: ArrayLike,
    y: ArrayLike,
    likelihood: Likelihood | None,
    kernel: Kernel | None,
    num_inducing: int,
    options: Options,
) -> Approximation | CorrectedApproximation:
    model = _model(likelihood, kernel, num_inducing)
    return fit(model, X, y, objective=objective, scheme=scheme, correct=False, **options)
