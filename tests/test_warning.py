import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.warning import warn


def called_within(depth):
    """A function of the package that warns so many calls deep."""
    inside = {"__name__": "pgmodels.deep", "warn": warn}
    exec("def call(n): return warn('deep', UserWarning) if n == 0 else call(n - 1)", inside)
    return inside["call"](depth)


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_a_warning_has_the_line_outside_however_deep(depth):
    with pytest.warns(UserWarning, match="deep") as caught:
        called_within(depth)
    assert caught[0].filename == __file__


def test_a_warning_of_an_engine_and_of_a_prediction_has_the_callers_line():
    X, y = np.linspace(0.0, 1.0, 5)[:, None], np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(4.0, 0.5)))
    with pytest.warns(pgm.ConvergenceWarning) as caught:
        pgm.cavi(model, X, y, max_iterations=1)
    assert caught[0].filename == __file__

    @pgm.likelihood(support=pgm.Binary())
    def unnormalised(y, f):
        return 2.0 * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)

    vi = pgm.cavi(pgm.Model(unnormalised(), pgm.GP(pgm.RBF(4.0, 0.5))), X, y)
    with pytest.warns(pgm.PredictionWarning) as caught:
        vi.predict(X).log_density(y)
    assert caught[0].filename == __file__
