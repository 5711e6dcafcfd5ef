"""Inducing inputs moved by gradient in fit, and selected by the sites of another objective."""

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import vi as vi_module
from pgmodels.inference.bound import MarginalBound
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(4)
N = 100
X = RNG.normal(size=(N, 2)) * np.array([1.0, 2.0])
F = 2.5 * np.sin(1.2 * X[:, 0]) + 2.0 * np.cos(0.7 * X[:, 1]) - 1.0
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(-F))).astype(float)


def model(form, likelihood=None, mean=-0.4):
    return pgm.Model(likelihood or pgm.Bernoulli(), pgm.GP(pgm.RBF(1.5, [0.8, 1.3]), mean=mean, form=form))


def elbo_at(learned, Z, y, objective):
    moved = learned.fixed().with_form(pgm.Inducing(Z))
    return pgm.vi(moved, X, y, objective=objective, tolerance=1e-12).elbo


CASES = [
    pytest.param("bernoulli", "augmented", marks=pytest.mark.slow),
    pytest.param("bernoulli", "expected", marks=pytest.mark.slow),
    ("gaussian", "augmented"),
]


@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize(("name", "objective"), CASES)
def test_moved_inputs_raise_the_elbo_to_where_its_gradient_is_zero(name, objective):
    likelihood, y = (
        (pgm.Bernoulli(), LABELS) if name == "bernoulli" else (pgm.Gaussian(0.5), F + 0.3 * np.cos(np.arange(N) ** 2))
    )
    start = model(pgm.Inducing(8, "kmeans"), likelihood)
    kept, moved = (
        pgm.fit(start, X, y, objective=objective, train_inducing=each, correct=False) for each in (False, True)
    )
    assert moved.converged
    assert moved.elbo > kept.elbo + 0.1
    assert moved.elbo <= pgm.fit(model(pgm.Dense(), likelihood), X, y, objective=objective, correct=False).elbo
    Z = np.asarray(moved.model.gps[0].form.inputs)
    before = np.asarray(kept.model.gps[0].form.inputs)
    assert Z.shape == before.shape

    def gradient(result, Z, entry):
        step = np.zeros_like(Z)
        step[entry] = 1e-3
        return (elbo_at(result.model, Z + step, y, objective) - elbo_at(result.model, Z - step, y, objective)) / 2e-3

    for entry in [(0, 0), (3, 1), (7, 0)]:
        # The search ends at a relative gain of 1e-9 a step: a gradient g with curvature c leaves g^2 / 2c.
        assert abs(gradient(moved, Z, entry)) < 5e-3
    assert max(abs(gradient(kept, before, entry)) for entry in [(0, 0), (3, 1), (7, 0)]) > 0.05


def test_gradients_in_the_inducing_inputs_are_finite_differences():
    bound = MarginalBound(trainable(model(pgm.Inducing(X[:7]))), Data(X, LABELS))
    Z, step = X[:7] + 0.1, 1e-4
    _, _, (of_inputs,) = bound.at_inputs(bound.vector, (Z,))
    for entry in [(0, 0), (4, 1), (6, 1)]:
        e = np.zeros_like(Z)
        e[entry] = step
        up, down = (bound.at_inputs(bound.vector, (Z + sign * e,))[0] for sign in (1.0, -1.0))
        # The bound is optimal to 1e-11 of 30 nats, over twice the step.
        assert of_inputs[entry] == pytest.approx((up - down) / (2.0 * step), abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_inputs_move_after_a_scheme_and_stay_in_constant_columns():
    wide = np.column_stack([X, np.full(N, 3.0)])
    start = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.5, 1.0), mean=-0.4, form=pgm.Inducing(8, "HGV")))
    kept, moved = (
        pgm.fit(start, wide, LABELS, scheme="hybrid", train_inducing=each, correct=False, max_iterations=1000)
        for each in (False, True)
    )
    assert moved.elbo > kept.elbo
    np.testing.assert_array_equal(np.asarray(moved.model.gps[0].form.inputs)[:, 2], 3.0)


def test_inputs_that_do_not_exist_are_not_moved():
    with pytest.raises(ValueError, match=r"train_inducing=True needs inducing inputs.*form=pgm.Inducing"):
        pgm.fit(model(pgm.Dense()), X, LABELS, train_inducing=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_the_merged_selection_is_by_the_sites_of_the_augmented_bound(monkeypatch):
    selected = []
    near = vi_module.nearly_converged

    def recorded(*arguments, **options):
        elbo, precisions = near(*arguments, **options)
        selected.append(precisions)
        return elbo, precisions

    monkeypatch.setattr("pgmodels.inference.bound.nearly_converged", recorded)
    start = model(pgm.Inducing(12, "merged"))
    bound = MarginalBound(trainable(start), Data(X, LABELS), vi_module.objective_of(start, "expected"))
    bound(bound.vector)
    before, first = bound.best, bound.inputs[0]
    bound.choose_again(1e-5)
    augmented = pgm.cavi(start.fixed().with_form(pgm.Inducing(first)), X, LABELS)
    np.testing.assert_allclose(selected[0][:N], augmented.sites.precision, rtol=1e-2)
    gauss = pgm.gaussian_vi(start.fixed().with_form(pgm.Inducing(first)), X, LABELS)
    assert not np.allclose(gauss.sites.precision, augmented.sites.precision, rtol=0.02)
    assert bound.best <= before
    with pytest.raises(pgm.NoAugmentationError):
        pgm.fit(pgm.Model(_loglog(), pgm.GP(pgm.RBF(), form=pgm.Inducing(5, "merged"))), X, LABELS)


def _loglog():
    @pgm.likelihood
    def cloglog(y, f):
        return (1.0 - pgm.exp(-pgm.exp(f))) ** y * pgm.exp(-pgm.exp(f)) ** (1 - y)

    return cloglog()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_the_merged_model_is_no_worse_than_its_parts():
    # With one lengthscale k-means' centres do not depend on the hyperparameters, and merged selection starts there.
    def fitted(select, objective):
        gp = pgm.GP(pgm.RBF(1.5, 0.9), mean=-0.4, form=pgm.Inducing(10, select))
        return pgm.fit(pgm.Model(pgm.Bernoulli(), gp), X, LABELS, objective=objective, correct=False)

    merged = fitted("merged", "expected")
    assert merged.elbo >= fitted("kmeans", "expected").elbo - 1e-3
    assert merged.elbo > fitted("HGV", "augmented").elbo
