"""Greedy variance (GV) and heteroscedastic greedy variance (HGV) as published, against a dense greedy choice."""

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.inducing_selection import TURNS
from pgmodels.model import Data
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.parameters.vector import trainable
from pgmodels.priors.inducing import Inducing
from tests.priors.test_inducing import LABELS, X, bernoulli, one_scale

pytestmark = pytest.mark.usefixtures("double_precision")


def dense_greedy(kernel, rows, count, weights):
    """Rows one at a time, by conditional variances from the dense covariance."""
    K = np.asarray(bare_arrays(kernel)(rows, rows))
    chosen = []
    for _ in range(count):
        explained = np.zeros(len(rows))
        if chosen:
            explained = np.sum(K[chosen] * np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen]), axis=0)
        chosen.append(int(np.argmax(weights * (np.diagonal(K) - explained))))
    return rows[chosen]


@pytest.fixture
def choices(monkeypatch):
    """The kernel, the site precisions and the chosen inputs of each selection."""
    made = []
    choose = Inducing.choose

    def recorded(form, kernel, rows, weights=None):
        Z = choose(form, kernel, rows, weights)
        if isinstance(form.inputs, int) and form.select in ("GV", "HGV"):
            made.append((kernel, weights, Z))
        return Z

    monkeypatch.setattr(Inducing, "choose", recorded)
    return made


@pytest.mark.parametrize("select", ["GV", "HGV"])
def test_inputs_at_fixed_hyperparameters_are_the_greedy_choice_at_the_last_sites(choices, select):
    result = pgm.cavi(bernoulli(pgm.Inducing(6, select)), X, LABELS)
    assert (len(choices) == 1) == (select == "GV")
    assert len(choices) <= 1 + TURNS
    for number, (kernel, weights, Z) in enumerate(choices):
        assert (weights is None) == (number == 0)
        np.testing.assert_array_equal(Z, dense_greedy(kernel, X, 6, np.ones(len(X)) if weights is None else weights))
    np.testing.assert_array_equal(np.asarray(result.model.gps[0].form.inputs), choices[-1][2])
    if select == "HGV":
        # The sites are those at the optimum for the inputs chosen before, to the tolerance of that optimum.
        before = pgm.cavi(bernoulli(pgm.Inducing(choices[-2][2])), X, LABELS)
        np.testing.assert_allclose(np.asarray(before.sites.precision)[:, 0], choices[-1][1], rtol=1e-2)


@pytest.mark.parametrize("objective", ["augmented", pytest.param("expected", marks=pytest.mark.slow)])
def test_fit_alternates_with_the_greedy_choice_of_its_hyperparameters_and_sites(choices, objective):
    fitted = pgm.fit(one_scale(pgm.Inducing(5, "HGV")), X, LABELS, objective=objective, correct=False)
    assert fitted.converged
    again = [(kernel, weights, Z) for kernel, weights, Z in choices if weights is not None]
    assert 1 <= len(again) <= 1 + TURNS
    for kernel, weights, Z in again:
        np.testing.assert_array_equal(Z, dense_greedy(kernel, X, 5, weights))
    last = np.asarray(fitted.model.gps[0].form.inputs)
    assert any(np.array_equal(last, Z) for *_, Z in choices)


def test_a_new_choice_replaces_the_last_at_most_ten_times_even_if_it_is_worse(monkeypatch):
    bound = MarginalBound(trainable(one_scale(pgm.Inducing(5, "GV"))), Data(X, LABELS))
    bound(bound.vector)
    turns = iter(range(100))
    monkeypatch.setattr(Inducing, "choose", lambda *arguments: X[: 1 + next(turns) % 2])
    before = bound.best
    assert bound.choose_again(1e-5)
    assert bound.best > before
    np.testing.assert_array_equal(bound.inputs[0], X[:1])
    # The value belongs to the new inputs.
    assert bound(bound.vector)[0] == pytest.approx(bound.best, abs=1e-9)
    assert sum(bound.choose_again(1e-5) for _ in range(30)) == TURNS - 1


def test_the_names_are_written():
    assert repr(pgm.Inducing(30, "HGV")) == "Inducing(30, 'HGV')"
    with pytest.raises(ValueError, match="'GV', 'HGV'"):
        pgm.Inducing(30, "hgv")
