"""Classification and regression with scikit-learn's interface."""

from abc import abstractmethod
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from pgmodels.inference.fit import fit
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.integrate import integrate
from pgmodels.inference.loop import ConvergenceWarning
from pgmodels.inference.svi import svi
from pgmodels.inference.vi import cavi, gaussian_vi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.likelihoods.named import (
    Bernoulli,
    Gaussian,
    Laplace,
    LogisticSoftmax,
    MultinomialProbit,
    NegativeBinomial,
    Probit,
    Softmax,
    StickBreaking,
    StudentT,
)
from pgmodels.likelihoods.supports import Binary, Classes
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import Fixed, Parameter
from pgmodels.priors.inducing import Inducing
from pgmodels.priors.representation import Auto, Representation
from pgmodels.results.predictive import Predictive
from pgmodels.runtime.messages import renamed
from pgmodels.runtime.precision import DoublePrecision

METHODS = ("fit", "cavi", "gaussian_vi", "svi", "gibbs", "integrate")
_BINARY = {"logit": Bernoulli, "probit": Probit}
_SEVERAL = {
    "logistic_softmax": LogisticSoftmax,
    "softmax": Softmax,
    "stick_breaking": StickBreaking,
    "probit": MultinomialProbit,
}


class SklearnWarning(ConvergenceWarning, SklearnConvergenceWarning):
    """A ConvergenceWarning of pgmodels, to which filters for scikit-learn's ConvergenceWarning apply."""


class _GPEstimator(DoublePrecision, BaseEstimator):
    """Base class of the classifier and the regressor."""

    def __init__(
        self,
        kernel: Any = None,
        *,
        likelihood: Any = None,
        method: str = "fit",
        learn: bool = True,
        inducing: Any = "auto",
        mean: Any = None,
        max_iter: int = 200,
        tol: float = 1e-9,
        random_state: Any = 0,
        verbose: bool = False,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.method = method
        self.learn = learn
        self.inducing = inducing
        self.mean = mean
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.method == "gibbs"
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn hyperparameters and compute the posterior.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Inputs.
        y : array_like of shape (n_samples,)
            Class labels (numbers or text) for a classifier, observations for a regressor.
        sample_weight : array_like of shape (n_samples,), optional
            Powers of the rows' likelihoods: a row of weight 2 counts as two rows, and a row of weight 0 is ignored.

        Returns
        -------
        GPClassifier or GPRegressor
            The estimator.

        Raises
        ------
        ValueError
            For invalid parameters or data, and for a single class.
        """
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}; got {self.method!r}.")
        data: Any = X, y
        inputs, observed = validate_data(self, *data, dtype=np.float64, y_numeric=isinstance(self, RegressorMixin))
        weights = _check_sample_weight(sample_weight, inputs, dtype=np.float64)
        if (weights < 0.0).any():
            row = int(np.argmin(weights))
            raise ValueError(f"sample_weight must not be negative; got {weights[row]:g} in row {row}.")
        if not weights.any():
            raise ValueError("sample_weight is zero in all rows: at least one weight must be positive.")
        model, codes = self._model(observed, weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with renamed(ConvergenceWarning, SklearnWarning):
            self.result_ = self._run(model, inputs, codes, weights, seed)
        self.model_ = self.result_.model
        kernels = [gp.kernel for gp in self.model_.gps]
        self.kernel_ = kernels[0] if len(kernels) == 1 else kernels
        report = getattr(self.result_, "fit", None)
        steps = getattr(self.result_, "num_iterations", 1) if report is None else report.num_steps
        self.n_iter_ = max(1, int(steps))
        return self

    @abstractmethod
    def _model(self, y: np.ndarray, weights: np.ndarray) -> tuple[Model, np.ndarray]:
        """Return the model, and its observations (n,)."""

    def _run(self, model: Model, X: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int) -> Any:
        options: dict[str, Any] = {"weights": weights, "seed": seed, "progress": bool(self.verbose)}
        search: dict[str, Any] = {"max_iterations": self.max_iter, "tolerance": self.tol}
        if self.method == "svi":
            return svi(model, X, y, train_hyperparameters=self.learn, **options)
        if self.method in ("gibbs", "integrate"):
            # Hyperparameters with priors are sampled or integrated out; all other values are learned.
            model = fit(model, X, y, correct=False, **search, **options).model if self.learn else model.fixed()
            return (gibbs if self.method == "gibbs" else integrate)(model, X, y, **options)
        if self.learn:
            objective: Any = {"fit": "auto", "cavi": "augmented", "gaussian_vi": "expected"}[self.method]
            return fit(model, X, y, objective=objective, correct=False, **search, **options)
        engines: dict[str, Any] = {"fit": partial(fit, correct=False), "cavi": cavi, "gaussian_vi": gaussian_vi}
        return engines[self.method](model.fixed(), X, y, **search, **options)

    def _gp(self, weights: np.ndarray, size: int, variance: float, mean: float) -> GP:
        """Return the latent GPs, with start values for rows of positive weight."""
        kernel = RBF(variance=variance) if self.kernel is None else self.kernel
        start = Parameter(mean) if size == 1 else Fixed(0.0)
        level = start if self.mean is None else self.mean
        return GP(kernel, mean=level, size=size, form=self._form(int(np.count_nonzero(weights))))

    def _form(self, num_rows: int) -> Representation:
        if isinstance(self.inducing, str) and self.inducing == "auto":
            # With more rows, hyperparameters of dense covariances need over a minute.
            return Inducing("auto") if num_rows > 2_000 or self.method == "svi" else Auto()
        if self.inducing is None:
            return Auto()
        return self.inducing if isinstance(self.inducing, Representation) else Inducing(self.inducing)

    def _new_inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _predictive(self, X: ArrayLike) -> Predictive:
        # Inputs are read first, after the check that the estimator is fitted.
        inputs = self._new_inputs(X)
        return self.result_.predict(inputs)

    def latent_mean_and_variance(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the latents.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        mean, variance : ndarray of shape (n_samples,), or (n_samples, n_latents) with several latents
        """
        inputs = self._new_inputs(X)
        mean, variance = self.result_.predict_latent(inputs)
        return (mean[:, 0], variance[:, 0]) if mean.shape[1] == 1 else (mean, variance)

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return draws of y, with latents drawn jointly over the rows.

        Parameters
        ----------
        X : array_like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int
            Number of draws.
        random_state : int, RandomState or None
            Seed of the draws.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
        """
        inputs = self._new_inputs(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        nodes = self.result_.joint_nodes(inputs, n_samples, seed)
        return Predictive(self.result_.likelihood, nodes).draw(n_samples, seed).T


class GPClassifier(ClassifierMixin, _GPEstimator):
    """Gaussian process classification.

    Parameters
    ----------
    kernel : Kernel or callable, optional
        The kernel of the latents. By default an RBF kernel with a learned variance, and one learned lengthscale that
        starts at the median distance between inputs.
    likelihood : str, Likelihood or likelihood family, optional
        For two classes "logit" (the default), "probit" or a likelihood of labels 0 and 1. For more classes
        "logistic_softmax" (the default), "softmax", "stick_breaking", "probit" or a likelihood of classes 0 to C - 1.
        Classes are numbered in the order of ``classes_``.
    method : {"fit", "cavi", "gaussian_vi", "svi", "gibbs", "integrate"}
        ``fit`` maximises the bound that ``pgmodels.fit`` chooses, ``cavi`` the bound of the augmented likelihood.
        ``gaussian_vi`` maximises the expected log density. ``svi`` uses batches, for many rows. Hyperparameters with
        priors are sampled by ``gibbs``, and averaged over by ``integrate``; all other values are learned.
    learn : bool
        Whether hyperparameters are learned. If not, they keep the values of ``kernel`` and ``likelihood``.
    inducing : "auto", None, int or array of shape (n_inducing, n_features)
        Inducing inputs. "auto" uses none up to 2,000 rows. For more rows or "svi", the bound determines their number.
    mean : float, Parameter or Fixed, optional
        The mean of the latents. By default learned for one latent, and 0 for several.
    max_iter : int
        Maximum number of iterations of the search.
    tol : float
        Relative change of the bound below which the search has converged.
    random_state : int, RandomState or None
        Seed of random choices, and of draws by "gibbs".
    verbose : bool
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The class labels.
    n_classes_ : int
        Number of classes.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features, if X was a data frame with text as column names.
    model_ : Model
        The model with the learned values.
    kernel_ : Kernel
        The kernel with the learned values.
    result_ : Approximation, Draws or IntegratedApproximation
        The result of the engine, for ``pgmodels.correct``, ``compare``, ``diagnose`` and ArviZ.
    n_iter_ : int
        Number of iterations.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import pgmodels as pgm
    >>> X, y = load_iris(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), pgm.GPClassifier()).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    def _model(self, y: np.ndarray, weights: np.ndarray) -> tuple[Model, np.ndarray]:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.n_classes_ = len(self.classes_)
        present = np.unique(codes[weights > 0.0])
        if len(present) < 2:
            raise ValueError(
                f"y has one class with a positive weight, {self.classes_[present[0]]!r}; a classifier needs two "
                "or more."
            )
        likelihood = self._likelihood()
        gp = self._gp(weights, self._size(likelihood), variance=1.0, mean=0.0)
        return Model(likelihood, gp), codes.astype(np.float64)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probability of each class.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``.
        """
        probabilities = self._predictive(X).probabilities
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the class with the largest probability.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.
        """
        most = self.predict_proba(X).argmax(axis=1)
        return self.classes_[most]

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return draws of class labels, with latents drawn jointly over the rows: see GPRegressor."""
        codes = super().sample_y(X, n_samples, random_state).astype(int)
        return self.classes_[codes]

    def _size(self, likelihood: Likelihood) -> int:
        """Return the number of latents. If the formula leaves it open: one for y of 0 and 1, else one per class."""
        return likelihood.num_latents or (1 if isinstance(likelihood.declared_support, Binary) else self.n_classes_)

    def _likelihood(self) -> Likelihood:
        two, choice = self.n_classes_ == 2, self.likelihood
        names: dict[str, Any] = _BINARY if two else _SEVERAL
        if choice is None:
            return Bernoulli() if two else LogisticSoftmax(self.n_classes_)
        if isinstance(choice, str):
            if choice not in names:
                raise ValueError(
                    f"likelihood must be one of {', '.join(map(repr, names))} for {self.n_classes_} classes, or a "
                    f"pgmodels likelihood; got {choice!r}."
                )
            return names[choice]() if two else names[choice](self.n_classes_)
        likelihood = _as_likelihood(choice)
        support = likelihood.support(self._size(likelihood))
        count = 2 if isinstance(support, Binary) else support.num_classes if isinstance(support, Classes) else None
        if count != self.n_classes_:
            declared = "declares no classes" if count is None else f"is of {count} classes"
            raise ValueError(f"likelihood {likelihood.name} {declared}; y has {self.n_classes_} classes.")
        return likelihood


class GPRegressor(RegressorMixin, _GPEstimator):
    """Gaussian process regression, robust regression and regression of counts.

    Parameters
    ----------
    kernel : Kernel or callable, optional
        The kernel of the latent. By default an RBF kernel with a learned variance, and one learned lengthscale that
        starts at the median distance between inputs.
    likelihood : str, Likelihood or likelihood family, optional
        "gaussian" (the default), "student", "laplace", "negative_binomial", or a likelihood of numbers.
    method : {"fit", "cavi", "gaussian_vi", "svi", "gibbs", "integrate"}
        The engine, as in GPClassifier.
    learn : bool
        Whether hyperparameters are learned. If not, they keep the values of ``kernel`` and ``likelihood``.
    inducing : "auto", None, int or array of shape (n_inducing, n_features)
        Inducing inputs. "auto" uses none up to 2,000 rows. For more rows or "svi", the bound determines their number.
    mean : float, Parameter or Fixed, optional
        The mean of the latents. By default learned for one latent, and 0 for several.
    max_iter : int
        Maximum number of iterations of the search.
    tol : float
        Relative change of the bound below which the search has converged.
    random_state : int, RandomState or None
        Seed of random choices, and of draws by "gibbs".
    verbose : bool
        Whether to show a progress bar.

    Attributes
    ----------
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features, if X was a data frame with text as column names.
    model_ : Model
        The model with the learned values.
    kernel_ : Kernel
        The kernel with the learned values.
    result_ : Approximation, Draws or IntegratedApproximation
        The result of the engine, for ``pgmodels.correct``, ``compare``, ``diagnose`` and ArviZ.
    n_iter_ : int
        Number of iterations.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(40)
    >>> mean, deviation = pgm.GPRegressor().fit(X, y).predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.1), bool(deviation[0] < 0.2)
    (True, True)
    """

    def _model(self, y: np.ndarray, weights: np.ndarray) -> tuple[Model, np.ndarray]:
        y = np.asarray(y, dtype=np.float64)
        level = float(np.average(y, weights=weights))
        scale = float(np.sqrt(np.average((y - level) ** 2, weights=weights))) or 1.0
        likelihood, is_identity = self._likelihood(scale)
        variance, mean = (scale**2, level) if is_identity else (1.0, 0.0)
        return Model(likelihood, self._gp(weights, likelihood.num_latents or 1, variance, mean)), y

    def predict(self, X: ArrayLike, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of y, and its standard deviation.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Inputs.
        return_std : bool
            Whether to return also the standard deviations of y, noise included.

        Returns
        -------
        ndarray of shape (n_samples,), or two of these
        """
        predictive = self._predictive(X)
        return (predictive.mean, np.sqrt(predictive.variance)) if return_std else predictive.mean

    def _likelihood(self, scale: float) -> tuple[Likelihood, bool]:
        """Return the likelihood, with start values for the scale of y, and whether its mean is the latent."""
        noise = Parameter(0.5 * scale, positive=True)
        names = {
            "gaussian": lambda: Gaussian(noise),
            "student": lambda: StudentT(Fixed(4.0), noise),
            "laplace": lambda: Laplace(noise),
            "negative_binomial": lambda: NegativeBinomial(Parameter(1.0, positive=True)),
        }
        choice = "gaussian" if self.likelihood is None else self.likelihood
        if not isinstance(choice, str):
            return _as_likelihood(choice), False
        if choice not in names:
            raise ValueError(
                f"likelihood must be one of {', '.join(map(repr, names))}, or a pgmodels likelihood; got {choice!r}."
            )
        return names[choice](), choice != "negative_binomial"


def _as_likelihood(choice: object) -> Likelihood:
    likelihood = choice() if isinstance(choice, LikelihoodFamily) else choice
    if not isinstance(likelihood, Likelihood):
        raise ValueError(f"likelihood must be a name or a pgmodels likelihood such as pgm.Bernoulli(); got {choice!r}.")
    return likelihood
