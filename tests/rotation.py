"""Dear tests take turns: each case marked ``turns(k)`` is due in one of k turns, and slow in the others.

The turn is the number of the day unless ``PGMODELS_TEST_TURN`` is set; a run says its own, so that it can be repeated.
"""

import datetime
import os
import zlib
from collections.abc import Iterable

import pytest

NAME = "PGMODELS_TEST_TURN"


def settle_turn() -> None:
    """Choose the turn, before workers are started that have to agree on it."""
    os.environ.setdefault(NAME, str(datetime.date.today().toordinal()))


def take_turns(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what is not due in this turn. Neighbouring cases of a test are due in different turns."""
    for item in items:
        mark = item.get_closest_marker("turns")
        if mark is not None and (_place(item, *mark.args[1:]) + int(os.environ[NAME])) % mark.args[0]:
            item.add_marker(pytest.mark.slow)


def _place(item: pytest.Item, own: int | None = None) -> int:
    """The one given with the mark, or one by the test's name and the case's number."""
    if own is not None:
        return own
    # Arguments that one mark gives together count once.
    given = (mark.args[0] for mark in item.iter_markers("parametrize"))
    names = (names.split(",")[0].strip() if isinstance(names, str) else names[0] for names in given)
    return zlib.crc32(item.nodeid.split("[")[0].encode()) + sum(item.callspec.indices[name] for name in names)
