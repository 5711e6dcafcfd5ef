"""Calls that type checkers must accept and refuse: a decorator that erases a signature makes the latter pass.

mypy and pyright read this file, and report comments that ignore no error.
"""

from os import PathLike
from typing import assert_type

import jax
import numpy as np
import pandas as pd
import polars as pl

import pgmodels as pgm


@pgm.likelihood
def bare(y, f, slope=pgm.Parameter(2.0, positive=True)):
    return pgm.sigmoid(slope * f) ** y * pgm.sigmoid(-slope * f) ** (1 - y)


@pgm.likelihood(support=pgm.Binary())
def declared(y, f):
    return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


def likelihoods() -> pgm.Model:
    assert_type(bare(slope=1.0), pgm.Likelihood)
    assert_type(pgm.likelihood(support=pgm.Binary())(declared.function)(), pgm.Likelihood)
    pgm.likelihood(supports=pgm.Binary())  # type: ignore[call-overload]
    pgm.Parameter(2.0, postive=True)  # type: ignore[call-arg]
    pgm.RBF(scale=2.0)  # type: ignore[call-arg]
    pgm.GP(pgm.RBF(), sizes=2)  # type: ignore[call-arg]
    return pgm.Model(declared(), [pgm.GP(pgm.RBF(pgm.Fixed(1.0), [1.0, 2.0]), form=pgm.Inducing(20, "uniform"))])


def engines(model: pgm.Model, X: pd.DataFrame, y: pd.Series, key: jax.Array, folder: PathLike[str]) -> None:
    assert_type(pgm.cavi(model, X, y, weights=[1.0, 2.0], seed=key), pgm.Approximation)
    assert_type(pgm.gaussian_vi(model, [[1.0], [2.0]], [0, 1], max_iterations=3), pgm.Approximation)
    assert_type(pgm.fit(model, X, y, correct="auto", seed=3), pgm.Approximation | pgm.CorrectedApproximation)
    assert_type(pgm.svi(model, (X, y), checkpoint=folder), pgm.Approximation | pgm.SparseApproximation)
    assert_type(pgm.gibbs(model, X, y, keep=[1, 2], checkpoint="run"), pgm.Draws)
    assert_type(pgm.nuts(model, X, y, target_accept=0.9), pgm.Draws)
    assert_type(pgm.integrate(model, X, y, num_draws=256), pgm.IntegratedApproximation)
    pgm.cavi(model, X, y, max_iteration=3)  # type: ignore[call-arg]
    pgm.gaussian_vi(model, X, y, tolerances=1e-6)  # type: ignore[call-arg]
    pgm.fit(model, X, y, correct="always")  # type: ignore[arg-type]
    pgm.svi(model, X, y, batch=10)  # type: ignore[call-arg]
    pgm.gibbs(model, X, y, keep="some")  # type: ignore[arg-type]
    pgm.nuts(model, X, y, seed="0")  # type: ignore[arg-type]
    pgm.integrate(model, X, y, num_draws="many")  # type: ignore[arg-type]
    pgm.cavi(model.likelihood, X, y)  # type: ignore[arg-type]


def results(model: pgm.Model, approximation: pgm.Approximation, draws: pgm.Draws, X: pl.DataFrame) -> None:
    assert_type(pgm.correct(approximation), pgm.CorrectedApproximation)
    assert_type(pgm.log_evidence(approximation, num_draws=500).value, float)
    assert_type(pgm.diagnose(approximation, num_replicates=0), pgm.Diagnosis)
    assert_type(pgm.compare(gibbs=draws, cavi=approximation, X=X, y=[0.0]), pgm.Comparison)
    assert_type(pgm.prior_predictive(model, X, num_draws=3), pgm.PriorPredictive)
    assert_type(draws.predict(X, seed=3).probabilities, np.ndarray)
    assert_type(approximation.draw_latents(X, 3), np.ndarray)
    pgm.correct(approximation, method="newton")  # type: ignore[arg-type]
    pgm.log_evidence(approximation, draws=500)  # type: ignore[call-arg]
    pgm.diagnose(approximation, replicates=0)  # type: ignore[call-arg]
    pgm.prior_predictive(model, X, draws=3)  # type: ignore[call-arg]
    pgm.to_arviz(approximation, draws=3)  # type: ignore[call-arg]
    pgm.plot_latent(draws, X_new=X, colour="red")  # type: ignore[call-arg]
    pgm.Inducing(20, "random")  # type: ignore[arg-type]
