"""A published claim: what is measured of it, part by part, and when it counts as reproduced."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from matplotlib.figure import Figure

# A line of a claim's table: what was measured, and what is published of the same, by column. Numbers stay numbers,
# and lists, which the table leaves out, are points of the picture.
Row = dict[str, Any]


# What is said of a claim, or of a named part of it. Refuted is what a counterexample, a proof or the published protocol
# contradicts; "not reproduced here" says what differs from print: size, rival, data or steps.
REPRODUCED, IN_PART, NOT_HERE, REFUTED = WORDS = ("reproduced", "reproduced in part", "not reproduced here", "refuted")
# Of what the paper does not say, but the package found of it.
FINDING = "finding"


class Side(NamedTuple):
    """A further condition, with a verdict of its own."""

    condition: str
    word: str
    reason: str


class Verdict(NamedTuple):
    """What is said of a claim.

    The reason is what came out, in whole sentences. The scope says which part is reproduced, what differs from print,
    or by what the claim is refuted.
    """

    word: str
    reason: str
    scope: str = ""
    sides: Sequence[Side] = ()


def reproduced_if(holds: bool, differs: str) -> tuple[str, str]:
    """Word and scope of a claim that holds in all or that, where it does not, was run otherwise than in print."""
    return (REPRODUCED, "") if holds else (NOT_HERE, differs)


class Claim(ABC):
    """A claim of a paper.

    Its parts, such as data sets, are measured one by one and kept, so that a run that was cut off goes on.
    """

    # Number in the list of claims, such as "W3".
    identifier: ClassVar[str]
    # What the paper says, with its section.
    title: ClassVar[str]
    # What the paper says, in whole sentences.
    statement: ClassVar[str]
    # What was run, and what the outcome means for a user, in whole sentences.
    ran: ClassVar[str] = ""
    meaning: ClassVar[str] = ""
    # What counts as reproduced, of the title alone.
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

    def derive(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows with what follows from them, such as levels that several parts share."""
        return rows

    def draw(self, rows: Sequence[Row]) -> Figure | None:
        """A picture of the rows, if there is one."""
        del rows
        return None
