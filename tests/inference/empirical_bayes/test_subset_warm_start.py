"""Learning from many rows in stages ends where learning from all of them at once does."""

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import search as maximum
from pgmodels.inference import search as stages
from pgmodels.inference.objectives import objective_of
from pgmodels.priors.representation import Auto
from tests.covering import some
from tests.referees import sigma

ROWS = 160


def data(rng):
    X = rng.normal(size=(ROWS, 2))
    f = 1.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 2.0 * X[:, 1]
    y = (rng.random(ROWS) < sigma(f)).astype(float)
    return X, y


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(Auto, "least_subset", 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "objective"),
    [
        pytest.param(pgm.RBF(1.0, np.array([1.0, 1.0])), "augmented", id="lengthscale by column"),
        pytest.param(pgm.Matern32(1.0, 1.0), "expected", id="variational Gaussian", marks=pytest.mark.slow),
    ],
)
def test_stages_end_at_the_optimum(few_rows, monkeypatch, kernel, objective):
    X, y = data(np.random.default_rng(3))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.1))
    fitted = pgm.fit(model, X, y, objective=objective)
    assert fitted.fit.start == "40 rows"
    assert fitted.converged
    monkeypatch.setattr(Auto, "least_subset", 512)
    at_once = pgm.fit(model, X, y, objective=objective)
    assert at_once.fit.start != "40 rows"
    # Both stop where a step changes the ELBO by some 1e-9 of its size.
    np.testing.assert_allclose(fitted.elbo, at_once.elbo, rtol=1e-7)
    for name, value in at_once.fit.values.items():
        np.testing.assert_allclose(fitted.fit.values[name], value, rtol=2e-2, err_msg=name)


@pytest.mark.slow
def test_a_sample_that_says_nothing_does_no_harm(few_rows, monkeypatch):
    """Labels of one class alone among the rows of the sample: there the latent is far from 0 and has no lengthscale."""
    rng = np.random.default_rng(5)
    X, y = data(rng)
    sample = np.sort(np.random.default_rng(0).permutation(ROWS)[:40])
    y[sample] = 1.0
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    fitted = pgm.fit(model, X, y)
    assert fitted.converged
    monkeypatch.setattr(Auto, "least_subset", 512)
    np.testing.assert_allclose(fitted.elbo, pgm.fit(model, X, y).elbo, rtol=1e-6)


@pytest.mark.slow
def test_far_out_values_of_the_sample_are_not_gone_on_from(few_rows, monkeypatch):
    """There the bound may be flat, and a lengthscale that all rows determine would never come back."""
    X, y = data(np.random.default_rng(3))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, np.array([1.0, 1.0])), mean=0.1))
    monkeypatch.setattr(stages, "_FAR_OUT", 1.5)
    monkeypatch.setattr(stages, "_FLAT", 1.0)
    fitted = pgm.fit(model, X, y)
    assert fitted.fit.start != "40 rows"
    monkeypatch.setattr(Auto, "least_subset", 512)
    at_once = pgm.fit(model, X, y)
    assert fitted.elbo == at_once.elbo
    # Where the bound is curved as much as is asked for they are.
    monkeypatch.setattr(Auto, "least_subset", 40)
    monkeypatch.setattr(stages, "_FLAT", 10.0)
    curved = pgm.fit(model, X, y)
    assert curved.fit.start == "40 rows"
    np.testing.assert_allclose(curved.elbo, at_once.elbo, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("separable", some([True, False], False), ids=["stage at its limit", "all rows at theirs"])
def test_limits_hold_with_stages(few_rows, monkeypatch, separable):
    """The variance grows as far as it may: in the stage too where classes are separable."""
    monkeypatch.setattr(maximum, "_REACH", 2.0)
    X, y = data(np.random.default_rng(3))
    if separable:
        y = (X[:, 0] + X[:, 1] > 0.2).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    fitted = pgm.fit(model, X, y)
    assert fitted.fit.start == "40 rows"
    monkeypatch.setattr(Auto, "least_subset", 512)
    at_once = pgm.fit(model, X, y)
    np.testing.assert_allclose(fitted.elbo, at_once.elbo, rtol=1e-7)
    # That of all rows, whose distances are not the stage's.
    np.testing.assert_allclose(fitted.fit.values["variance"], at_once.fit.values["variance"], rtol=1e-8)
    assert fitted.fit.values["variance"] > 8.0  # 14.6 and more without


@pytest.mark.parametrize(
    ("form", "rows", "stage"),
    [
        (None, 1023, None),
        (None, 1024, 512),
        (pgm.Dense(), 9000, 562),
        (pgm.Inducing(50), 9_999, None),
        (pgm.Inducing(50), 10_000, 5_000),
        (pgm.Inducing(50), 200_000, 12_500),
    ],
)
def test_rows_of_a_stage(form, rows, stage):
    gp = pgm.GP(pgm.RBF()) if form is None else pgm.GP(pgm.RBF(), form=form)
    model = pgm.Model(pgm.Bernoulli(), gp)
    assert stages._num_subset_rows(model, rows, objective_of(model, "auto")) == stage


@pytest.mark.parametrize(
    ("classes", "rows", "stage"), [(3, 339, None), (3, 340, 170), (6, 255, None), (6, 1024, 128)], ids=str
)
def test_rows_of_a_stage_of_classes(classes, rows, stage):
    """Learned by quadrature they have fewer; by the augmented bound they have the same as one latent."""
    model = pgm.Model(pgm.LogisticSoftmax(classes), pgm.GP(pgm.RBF(), size=classes))
    assert stages._num_subset_rows(model, rows, objective_of(model, "mean_field")) == stage
    assert stages._num_subset_rows(model, 1023, objective_of(model, "augmented")) is None
