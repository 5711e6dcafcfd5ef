"""A published claim: what is measured of it, part by part, and when it counts as reproduced."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from matplotlib.figure import Figure

# A line of a claim's table: what was measured, and what is published of the same, by column. Numbers stay numbers,
# and lists, which the table leaves out, are points of the picture.
Row = dict[str, Any]


class Verdict(NamedTuple):
    """Whether a claim is reproduced, and the figure that decides."""

    reproduced: bool
    reason: str


class Claim(ABC):
    """A claim of a paper.

    Its parts, such as data sets, are measured one by one and kept, so that a run that was cut off goes on.
    """

    # Number in the list of claims, such as "W3".
    identifier: ClassVar[str]
    title: ClassVar[str]
    # What is published, with its place.
    statement: ClassVar[str]
    # What counts as reproduced.
    criterion: ClassVar[str]
    # Data, sizes and options of the measurement.
    settings: ClassVar[str]
    # Significant digits of numbers in the table.
    digits: ClassVar[int] = 4

    @abstractmethod
    def part_names(self, full: bool) -> Sequence[str]:
        """Names of the parts, by default or at full size."""

    @abstractmethod
    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """The rows of a part."""

    @abstractmethod
    def judge(self, rows: Sequence[Row]) -> Verdict:
        """The verdict on the rows of all parts."""

    def draw(self, rows: Sequence[Row]) -> Figure | None:
        """A picture of the rows, if there is one."""
        del rows
        return None
