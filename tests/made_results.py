"""Results constructed without an engine: approximations from random sites, and draws from them.

The true moments of the draws are therefore known.
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from pgmodels.diagnostics.compare import Comparison, HeldOutData, standard_errors
from pgmodels.priors.base import Sites
from pgmodels.results.approximation import Approximation, PerturbativeApproximation
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from tests.programs import conditioned
from tests.registry import CASES

ONE_INPUT = ("negative_binomial", "student_t", "heteroscedastic")
TWO_INPUTS = ("bernoulli", "logistic_softmax", "binomial")
CLASSES = ("bernoulli", "logistic_softmax")
ALL = ONE_INPUT + TWO_INPUTS
SAMPLES = 200


@cache
def problem(name, n=24):
    """The common fields of a case's results, and its test data."""
    case = CASES[name]
    X, y = case.data(2 * n, seed=3)
    X = X[:, :1] if name in ONE_INPUT else X
    with jax.enable_x64(True):
        model = case.model()
        return {"model": model, "X": X[:n], "y": y[:n], "prior": model.prior(X[:n]), "seconds": 1.0}, X[n:], y[n:]


@cache
def results(name):
    """Draws of a Gaussian, that Gaussian with half its variance, and a corrected result."""
    common, _, _ = problem(name)
    rng = np.random.default_rng(2)
    shape = (len(common["X"]), common["model"].num_latents)
    h = rng.normal(0.5, 1.0, shape)
    if shape[1] == 3:
        # Distinct classes.
        h += np.where(common["y"][:, None] == np.arange(3), 4.0, -3.0)
    exact = approximation(common, h, rng.gamma(2.0, 0.3, shape))
    whitened = exact.draw_at_data(2 * SAMPLES, seed=1)[1]
    draws = Draws(
        **common,
        method="gibbs",
        whitened=tuple(v.reshape(2, SAMPLES, *v.shape[1:]) for v in whitened),
        log_likelihood_trace=rng.normal(-20.0, 2.0, (2, SAMPLES)),
        num_warmup=0,
    )
    narrow = approximation(common, *(2 * np.asarray(part) for part in exact.sites))
    correction = {"shift": 0.1 * narrow.mean, "curvature": np.full(shape, 0.05), "num_nonpositive": 0}
    moments = {"mean": narrow.mean, "variance": narrow.variance, "seconds": narrow.seconds}
    corrected = PerturbativeApproximation(uncorrected=narrow, **moments, **correction)
    return {"gibbs": draws, "cavi": narrow, "corrected": corrected}


def approximation(common, h, w):
    with jax.enable_x64(True):
        posterior, mean, variance = conditioned(common["prior"], Sites(jnp.asarray(h), jnp.asarray(w)))
    common = {name: value for name, value in common.items() if name != "prior"}
    trace = -30.0 - 5.0 * 0.3 ** np.arange(8.0)
    moments = {"mean": np.asarray(mean), "variance": np.asarray(variance), "posterior": posterior}
    return Approximation(**common, **moments, elbo_trace=trace, converged=True, tolerance=1e-6, method="cavi")


def drawn(model, X, y, prior, whitened, **fields):
    """Draws as of a sampler, of the coordinates (chains, draws, ...) of each group."""
    fields = {"method": "gibbs", "num_warmup": 0, "seconds": 0.0} | fields
    trace = np.zeros(whitened[0].shape[:2])
    return Draws(model=model, X=X, y=y, prior=prior, whitened=whitened, log_likelihood_trace=trace, **fields)


def integrated(model, X, y):
    """A result of ``integrate`` with one point, of which nothing was computed."""
    one, moments = np.ones(1), np.zeros((1, len(X), model.num_latents))
    return IntegratedApproximation(
        model=model, X=X, y=y, seconds=1.0, method="integrate", vectors=np.zeros((1, 1)), shares=one, log_densities=one,
        elbos=one, k_hats=one, means=moments, covariances=np.ones((*moments.shape, moments.shape[-1])),
        potential=moments, precision=moments, support=np.zeros((1, 1)), mass=one, owners=np.zeros(1, int),
        log_evidence=0.0, converged=True, holds_mass=True, num_failed=0, unreliable=0.0,
    )  # fmt: skip


@cache
def comparison(name):
    """A comparison as of compare, with arbitrary probabilities or means as predictions, which need no integrals."""
    by_label, (_, X, y) = results(name), problem(name)
    rng = np.random.default_rng(5)
    draws = by_label["gibbs"]
    values = draws.model.likelihood.support(draws.model.num_latents).values()
    size = None if values is None else len(values)
    predictions = {
        k: rng.normal(size=len(X)) if size is None else rng.dirichlet(np.ones(size), len(X)) for k in by_label
    }
    mcse_mean, mcse_variance = standard_errors(draws.latents)
    return Comparison(
        reference="gibbs",
        results=by_label,
        test=HeldOutData(X, y, predictions, size is not None),
        mcse_mean=mcse_mean,
        mcse_variance=mcse_variance,
        notes=(),
        _frame=pd.DataFrame(),
    )


def among(by_label):
    """A comparison of other results of the same model, without test data."""
    first = comparison("bernoulli" if by_label["gibbs"].model.num_latents == 1 else "logistic_softmax")
    return replace(first, results=by_label, test=None)
