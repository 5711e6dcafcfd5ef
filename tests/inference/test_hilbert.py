"""Engines with GPs of basis functions, against the dense form of the same GPs and a posterior computed by hand."""

import warnings

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

import pgmodels as pgm
from pgmodels.inference.prepare import warn_inaccurate
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.statistical.reference import z_scores


@pytest.fixture(scope="module")
def data():
    """Unsorted inputs in two columns, some rows twice, and binary y."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 8.0, (150, 2))
    X[50] = X[51] = X[3]
    y = (rng.random(150) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(X[:, 0])))).astype(float)
    return X, y


NEW = np.column_stack([np.linspace(-0.5, 8.5, 7), np.linspace(8.5, -0.5, 7)])
KERNELS = {
    "Matern52": pgm.On(pgm.Matern52(1.7, 1.5), [0]) + pgm.Constant(0.5),
    "sum": pgm.On(pgm.RBF(1.7, 1.2), [0]) + pgm.On(pgm.RBF(0.6, 2.0), [1]),
    "product": pgm.RBF(1.7, [1.8, 3.0]),
}
ENGINES = {
    "cavi": pgm.cavi,
    "gaussian_vi": pgm.gaussian_vi,
    "laplace": lambda *arguments: pgm.vi(*arguments, objective="taylor"),
    "svi": lambda *arguments: pgm.svi(*arguments, train_hyperparameters=False),
    "correct": lambda *arguments: pgm.correct(pgm.cavi(*arguments)),
    "fit": pgm.fit,
    "alternating": lambda *arguments: pgm.fit(*arguments, scheme="alternating", correct=False),
}
DENSE = {"svi": pgm.cavi}
# A lengthscale of the second column would be learned that no interval is long enough for.
ROWS = [
    (name, engine)
    for name in KERNELS
    for engine in ENGINES
    if name != "product" or engine not in ("fit", "alternating")
]


@pytest.mark.parametrize(("name", "engine"), some(ROWS, ("sum", "gaussian_vi")))
def test_posteriors_are_those_of_the_dense_form(data, name, engine):
    def model_of(form):
        return pgm.Model(pgm.Bernoulli(), pgm.GP(KERNELS[name], mean=0.4, form=form))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = ENGINES[engine](model_of(pgm.Hilbert(24 if name == "product" else 70, 2.5)), *data)
        dense = DENSE.get(engine, ENGINES[engine])(model_of(pgm.Dense()), *data)
    # What 70 functions leave out of Matern52 is 4e-4 of its variance.
    assert ours.elbo == pytest.approx(dense.elbo, abs=0.02)
    np.testing.assert_allclose(ours.predict_latent(NEW), dense.predict_latent(NEW), rtol=0, atol=3e-3)


def test_a_posterior_computed_by_hand():
    rng = np.random.default_rng(1)
    x = rng.uniform(0.0, 5.0, 30)
    y = np.sin(2.0 * x) + 0.3 * rng.standard_normal(30)
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), pgm.GP(pgm.Matern32(1.4, 0.8), form=pgm.Hilbert(12, 1.3)))
    with pytest.warns(pgm.TruncationWarning, match="Raise their number"):
        q = pgm.cavi(model, x[:, None], y)
    # Regression on 12 sines with the weights' variances of the density, 4 sqrt(3)^3 l / (3 + (l w)^2)^2.
    centre, half = 0.5 * (x.min() + x.max()), 0.5 * np.ptp(x) * 1.3
    w = np.pi * np.arange(1, 13) / (2.0 * half)
    s = 1.4 * 4.0 * 3.0**1.5 * 0.8 / (3.0 + (0.8 * w) ** 2) ** 2

    def sines(x):
        return np.sin(w * (x[:, None] - centre + half)) / np.sqrt(half)

    Phi, new = sines(x), sines(np.array([1.0, 2.5]))
    Sigma = np.linalg.inv(Phi.T @ Phi / 0.09 + np.diag(1.0 / s))
    mean, variance = q.predict_latent([[1.0], [2.5]])
    np.testing.assert_allclose(mean[:, 0], new @ Sigma @ Phi.T @ y / 0.09, rtol=1e-9)
    np.testing.assert_allclose(variance[:, 0], np.sum((new @ Sigma) * new, axis=1), rtol=1e-9)
    marginal = multivariate_normal(np.zeros(30), Phi @ np.diag(s) @ Phi.T + 0.09 * np.eye(30))
    assert q.elbo == pytest.approx(marginal.logpdf(y), rel=1e-10)


def test_the_domain_is_that_of_the_fit_and_inputs_beyond_are_refused(data, tmp_path):
    X, y = data
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.On(pgm.RBF(1.7, 0.8), [1]), form=pgm.Hilbert(30)))
    q = pgm.cavi(model, X, y)
    none, (low, high) = q.model.gps[0].form.domain
    ends = X[:, 1].min() - 2.5 * 0.8, X[:, 1].max() + 2.5 * 0.8
    assert none is None
    assert (low, high) == pytest.approx(ends)
    inside = np.array([[1e3, low], [0.0, high]])
    again = pgm.load(q.save(tmp_path / "q"))
    assert again.model == q.model
    np.testing.assert_array_equal(again.predict_latent(inside), q.predict_latent(inside))
    # Of fewer rows too.
    assert q.model.resolve(X[:20]).gps[0].form == q.model.gps[0].form
    with pytest.raises(ValueError, match=r"X_new\[1, 1\] is 11.*outside the interval of pgm.Hilbert for column 1"):
        again.predict(np.array([[0.0, 1.0], [0.0, 11.0]]))
    with pytest.raises(ValueError, match=r"^X\[20, 1\] is 12.*larger boundary, or with a domain"):
        pgm.cavi(q.model, np.vstack([X[:20], [[0.0, 12.0]]]), y[:21])


@double_precision
def test_what_is_left_out_is_said(data):
    X, _ = data

    def said(form, message):
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.On(pgm.RBF(1.7, 0.8), [1]), form=form))
        with pytest.warns(pgm.TruncationWarning, match=message):
            warn_inaccurate(model.prior(X), 1.0)

    said(pgm.Hilbert(30, 1.1), r"leave out [3-9].\.\d% .* at some row and 0\.\d% at the median row.*Raise the boundary")
    said(pgm.Hilbert(8), r"\d+\.\d% at the median row.*Raise their number")


@pytest.mark.parametrize(
    ("form", "kernel", "message"),
    [
        (lambda: pgm.Hilbert(0), None, r"count of Hilbert.*>= 1; got 0"),
        (lambda: pgm.Hilbert([3, 2.5]), None, r"count of Hilbert.*got 2.5"),
        (lambda: pgm.Hilbert(3, 0.9), None, r"boundary of Hilbert must be a number >= 1.*got 0.9"),
        (lambda: pgm.Hilbert(3, 1.2, [(0.0, 1.0)]), None, r"a boundary or a domain, not both"),
        (lambda: pgm.Hilbert(3, domain=[(1.0, 0.0)]), None, r"two ends .*got \(1.0, 0.0\)"),
        (lambda: pgm.Hilbert([3, 4, 5]), pgm.RBF(), r"count of Hilbert has 3 entries, but X has 2"),
        (lambda: pgm.Hilbert(3, domain=[(-1.0, 9.0), None]), pgm.RBF(), r"no interval for column 1"),
        (lambda: pgm.Hilbert(3), pgm.RBF() + pgm.Linear(), r"Linear.* has no spectral density.*pgm.Inducing\(300\)"),
        (lambda: pgm.Hilbert(3), pgm.RBF() * pgm.Matern12(), r"has no spectral density.*different columns"),
    ],
)
def test_bad_calls_are_refused_before_work_starts(data, form, kernel, message):
    with pytest.raises(ValueError, match=message):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel or pgm.RBF(), form=form())), *data)


def test_data_without_an_interval_are_refused(data):
    X, y = data
    for inputs, message in (
        (np.column_stack([X[:, 0], np.ones(len(X))]), r"column 1 of X has one value, 1,.*give its domain"),
        (np.column_stack([X, X]), r"at most 3 columns, but RBF.* has one of 4 columns: add"),
    ):
        with pytest.raises(ValueError, match=message):
            pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), form=pgm.Hilbert(5))), inputs, y)


@pytest.mark.slow
def test_sampled_and_integrated_hyperparameters_are_those_of_the_dense_form(data):
    X, y = data
    kernel = pgm.On(pgm.RBF(dist.LogNormal(0.5, 0.7), dist.LogNormal(0.2, 0.4)), [0])

    def model_of(form):
        return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, form=form))

    ours, dense = (model_of(form) for form in (pgm.Hilbert(40, 2.0), pgm.Dense()))
    mixed, exact = (pgm.integrate(model, X, y) for model in (ours, dense))
    np.testing.assert_allclose((mixed.mean, mixed.variance), (exact.mean, exact.variance), rtol=0, atol=2e-3)
    draws, others = (pgm.gibbs(model, X, y, num_samples=2000, num_warmup=500, num_chains=4) for model in (ours, dense))
    for name in ("variance", "lengthscale"):
        logs = [np.log(result.hyperparameters[name]) for result in (draws, others)]
        assert np.max(np.abs(z_scores(*logs))) < 4
