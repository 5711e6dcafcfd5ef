"""Conditions that a derivation imposes on the data."""

from typing import Any

from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.notation import Chain, Part, words
from pgmodels.likelihoods.printers.text import to_text


class Requirement:
    """A condition on a coefficient: ``nonnegative``, ``positive`` or ``indicator`` (0 or 1).

    ``written`` describes the coefficient and its factor, as a line of the derivation.
    """

    def __init__(self, expression: Expression, kind: str, written: Chain):
        self.expression, self.kind, self.written = expression, kind, written

    @property
    def reason(self) -> str:
        """The description of the coefficient, as text."""
        return to_text(self.written)

    def holds(self, values: Any) -> Any:
        """Whether each value satisfies the condition, up to rounding."""
        if self.kind == "nonnegative":
            return values >= -1e-9
        if self.kind == "positive":
            return values > 0
        return (values == 0) | (values == 1)

    @property
    def condition(self) -> tuple[Part, ...]:
        """The condition as items of a printed line."""
        return {"nonnegative": ("≥", 0), "positive": (">", 0), "indicator": (words("is 0 or 1"),)}[self.kind]

    @property
    def wording(self) -> str:
        """The condition as text."""
        return {"nonnegative": ">= 0", "positive": "> 0", "indicator": "0 or 1"}[self.kind]
