"""The race's reading of its runs."""

import importlib
import math
from pathlib import Path

import pytest

VALIDATION = Path(__file__).parents[1] / "validation"


@pytest.fixture
def race(monkeypatch):
    monkeypatch.syspath_prepend(str(VALIDATION))
    return importlib.import_module("race")


def test_a_contestant_stands_where_its_losses_first_reach_the_level(race):
    # The peer is there, rises again and ends at 0.40: the level is 0.405, and of two points below it the first counts.
    peer = {"contestant": "GPflow", "compile": [4.0, 2.0], "before": [3.0, 3.5]}
    runs = [
        peer | {"curve": [[5.0, 3.0, 0.5], [6.0, 4.0, 0.404], [7.0, 5.0, 0.41], [8.0, 6.0, 0.40]], "rate": 0.01},
        peer | {"curve": [[5.0, 3.5, 0.5], [9.0, 9.0, 0.403]], "rate": 0.05},
        {"contestant": "fit", "compile": [6.0, 6.0], "curve": [[7.0, 8.0, 0.405]], "before": [1.0, 2.0]},
        {"contestant": "svi", "curve": [[1.0, 1.0, 0.406]]},
    ]
    standings = race.standings(runs)
    assert standings["GPflow"].run["rate"] == 0.01
    assert standings["GPflow"][1:] == (6.0, 4.0, 2.0, 7.5)
    assert standings["fit"][1:] == (7.0, 8.0, 2.0, 10.0)
    assert standings["svi"].total == math.inf
    ratios = [race.ratio(standings, part) for part in ("total", "compiled", "process")]
    assert ratios == [0.5, 1.0, 0.75]
