"""Every engine on every likelihood: the rows of ``engines.py`` crossed with those of ``registry.py``.

Each day every engine meets one likelihood, no two engines the same; in as many days as there are likelihoods, all.
"""

import pytest

from tests.engines import ENGINES
from tests.registry import EVERY

CELLS = [
    pytest.param(engine, case, marks=pytest.mark.turns(len(EVERY), row + column), id=f"{engine.name}-{case.name}")
    for row, engine in enumerate(ENGINES)
    for column, case in enumerate(EVERY.values())
    if engine.takes(case)
]


@pytest.mark.parametrize(("engine", "case"), CELLS)
def test_its_law_holds(engine, case):
    engine.holds(case)
