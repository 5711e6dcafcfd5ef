"""Error and loss of a binary classifier on test rows along its iterations, against seconds."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.linalg import cho_solve, cholesky, solve_triangular

import pgmodels as pgm
from pgmodels.datasets import Split
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.parameters.vector import trainable
from pgmodels.results.gaussian import nodes_at
from pgmodels.results.predictive import Predictive
from pgmodels.runtime.jit import one_thread_up_to
from pgmodels.runtime.precision import double_precision
from validation.papers.measures import scores

# Added to the diagonal of K(Z, Z), relative to its mean.
JITTER = 1e-8


class Look(NamedTuple):
    """Seconds so far, and error rate and mean negative log density (nats) of the test rows."""

    seconds: float
    error: float
    nll: float


def sparse_model(likelihood: Likelihood, Z: np.ndarray) -> pgm.Model:
    """The model of two papers, whose kernel has one lengthscale, an amplitude and noise."""
    kernel = pgm.RBF(1.0, float(np.sqrt(Z.shape[1]))) + pgm.White()
    return pgm.Model(likelihood, pgm.GP(kernel, form=pgm.Inducing(Z)))


def centres(split: Split, count: int, seed: int) -> np.ndarray:
    """Centres of k-means of the training rows."""
    return kmeans2(split.X, count, minit="++", seed=seed)[0]


class Curve:
    """Looks at test rows along iterations, whose own time is not counted.

    ``after_sweep`` and ``after_steps`` are callbacks of ``fit`` and ``svi`` for a model of one latent with inducing
    inputs. They raise TimeoutError once ``limit`` seconds are over.
    """

    def __init__(self, model: pgm.Model, split: Split, Z: np.ndarray, limit: float = np.inf):
        self.learnable, self.split, self.Z, self.limit = trainable(model), split, Z, limit
        self.looks: list[Look] = []
        self.begin = time.perf_counter()

    def after_sweep(self, state: Any, info: pgm.IterationInfo) -> None:
        """Look at the q of the sites of all rows."""
        now, kernel = self._begun(info), self._model_at(info).gps[0].kernel
        rows = len(self.split.X)
        # Precisions may be matrices, of one row and column.
        h, w = (np.asarray(part)[:rows].reshape(rows) for part in (state.sites.potential, state.sites.precision))
        # On a busy machine several BLAS threads wait for each other.
        with one_thread_up_to(1):
            A = _factor(kernel, self.Z, self.split.X)
            self._look(now, info, kernel, self.Z, (A * w) @ A.T, A @ h)

    def after_steps(self, state: Any, info: pgm.IterationInfo) -> None:
        """Look at the q of the last step, with the inducing inputs where they are."""
        now, kernel = self._begun(info), self._model_at(info).gps[0].kernel
        moved, naturals = np.asarray(state.values.vector), state.naturals[0]
        Z = moved[-self.Z.size :].reshape(self.Z.shape) if len(moved) > self.Z.size else self.Z
        with one_thread_up_to(1):
            self._look(now, info, kernel, Z, np.asarray(naturals.precision), np.asarray(naturals.potential))

    def add(self, model: pgm.Model, mean: np.ndarray, variance: np.ndarray, now: float) -> None:
        """A look, begun at ``now``, at latents of test rows with these moments."""
        predictive = Predictive(model.likelihood, nodes_at(model, mean[:, None], variance[:, None], None), None)
        figures = scores(predictive, self.split.y_test)
        self.looks.append(Look(now - self.begin, figures.error, figures.nll))
        self.begin += time.perf_counter() - now
        if self.looks[-1].seconds > self.limit:
            raise TimeoutError

    def _begun(self, info: pgm.IterationInfo) -> float:
        now = time.perf_counter()
        if info.number == 1:
            self.begin = now - info.seconds
        return now

    def _model_at(self, info: pgm.IterationInfo) -> pgm.Model:
        return self.learnable.with_values(list(info.values.values()))

    @double_precision
    def _look(
        self, now: float, info: pgm.IterationInfo, kernel: Any, Z: np.ndarray, precision: np.ndarray, h: np.ndarray
    ) -> None:
        """A look at q with whitened precision I + ``precision`` and potential ``h``."""
        A = _factor(kernel, Z, self.split.X_test)
        root = cholesky(np.eye(len(Z)) + precision, lower=True)
        U = solve_triangular(root, A, lower=True)
        prior = np.asarray(kernel.diagonal(self.split.X_test))
        variance = prior - np.sum(A**2, axis=0) + np.sum(U**2, axis=0)
        self.add(self._model_at(info), A.T @ cho_solve((root, True), h), variance, now)


@double_precision
def _factor(kernel: Any, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    """L^-1 K(Z, X), with L the root of K(Z, Z)."""
    K = np.asarray(kernel(Z, Z))
    root = cholesky(K + JITTER * np.mean(np.diag(K)) * np.eye(len(Z)), lower=True)
    return solve_triangular(root, np.asarray(kernel(Z, X)), lower=True)


def first_time(looks: Sequence[Look], level: float, score: str) -> float:
    """Seconds of the first look with a score of at most ``level``; infinite if there is none."""
    return next((look.seconds for look in looks if getattr(look, score) <= level), np.inf)


def score_at(looks: Sequence[Look], seconds: np.ndarray, score: str) -> np.ndarray:
    """The score of the last look at or before each time; NaN before the first look."""
    before = np.searchsorted([look.seconds for look in looks], seconds, side="right") - 1
    return np.where(before >= 0, np.array([getattr(look, score) for look in looks])[before], np.nan)
