"""Searches whose bound is only as exact as the steps ask for end where an exact one does."""

from itertools import pairwise

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import fit as fit_module
from pgmodels.inference import search as maximum
from pgmodels.inference.bound import FELT, TIGHT, MarginalBound
from tests.covering import some
from tests.registry import CASES


@pytest.fixture
def tolerances(monkeypatch):
    """The tolerance of every evaluation of a bound from here on."""
    used, call = [], MarginalBound.__call__

    def kept(self, vector, tolerance=TIGHT):
        used.append(tolerance)
        return call(self, vector, tolerance)

    monkeypatch.setattr(MarginalBound, "__call__", kept)
    return used


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize("form", some([pgm.Dense(), pgm.Inducing(12)], pgm.Dense()), ids=["dense", "inducing"])
def test_bounds_are_as_exact_as_steps_ask(form, tolerances, monkeypatch):
    X, y = CASES["bernoulli"].data(70, seed=2, scale=2.5)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0), form=form))
    eased = pgm.fit(model, X, y, objective="augmented", progress=False)
    starts = tolerances.count(maximum._START_TOLERANCE)
    taken = tolerances[starts:]
    # The start, once more, is no step: what is asked after it is no sharper.
    assert taken[:2] == [maximum._LOOSE] * 2
    assert all(later <= earlier for earlier, later in pairwise(taken))
    assert taken[-1] <= maximum._SURE
    monkeypatch.setattr(maximum, "_LOOSE", TIGHT)
    exact = pgm.fit(model, X, y, objective="augmented", progress=False)
    assert eased.converged
    assert exact.converged
    np.testing.assert_allclose(eased.elbo, exact.elbo, rtol=1e-8)
    for name, value in eased.fit.values.items():
        np.testing.assert_allclose(value, exact.fit.values[name], rtol=1e-3)


class Falling:
    """A bound that an ascent still raises: the negative of it, by tolerance; ``asked`` are those asked for."""

    def __init__(self, losses):
        self.losses, self.asked = losses, []

    def without_floor(self, vector, tolerance):
        """The value."""
        self.asked.append(tolerance)
        return self.losses[tolerance]


@pytest.mark.parametrize(
    ("losses", "is_felt", "count"),
    [
        ((100.05, np.nan, np.nan), False, 1),
        ((190.0, np.nan, np.nan), True, 1),
        ((101.0, 100.05, np.nan), False, 2),
        ((101.0, 100.3, np.nan), True, 2),
        ((100.5, 100.11, 100.1001), True, 3),
        ((100.5, 100.11, 100.09), False, 3),
    ],
)
def test_what_the_bound_feels_is_looked_at_as_closely_as_it_takes(losses, is_felt, count):
    """A tenth of a nat above the best, 100: at once where no more ascent can change the answer."""
    bound = Falling(dict(zip(fit_module._LOOKS, losses, strict=True)))
    assert (fit_module._loss(bound, np.zeros(1), 100.0) >= FELT) is is_felt
    assert len(bound.asked) == count


def test_an_inverse_hessian_that_rounding_spoiled_is_one_again():
    from scipy.optimize import minimize, rosen, rosen_der

    # Symmetric but for rounding, and with an eigenvalue below zero.
    for spoiled in (np.array([[2.0, 0.3 + 1e-16], [0.3, 1.0]]), np.array([[1.0, 1.0 + 1e-9], [1.0, 1.0]])):
        inverse_hessian = maximum._definite(spoiled)
        np.testing.assert_allclose(inverse_hessian, spoiled, rtol=1e-8)
        # SciPy refuses others.
        solution = minimize(rosen, np.zeros(2), jac=rosen_der, method="BFGS", options={"hess_inv0": inverse_hessian})
        np.testing.assert_allclose(solution.x, 1.0, rtol=1e-4)
