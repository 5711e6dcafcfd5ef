"""Every engine on every likelihood: the rows of ``engines.py`` crossed with those of ``registry.py``."""

import pytest

from tests.covering import covering
from tests.engines import ENGINES
from tests.registry import EVERY

CELLS = covering(
    ENGINES,
    tuple(EVERY.values()),
    takes=lambda engine, case: engine.takes(case),
    name=lambda engine, case: f"{engine.name}-{case.name}",
)


@pytest.mark.parametrize(("engine", "case"), CELLS)
def test_its_law_holds(engine, case):
    engine.holds(case)
