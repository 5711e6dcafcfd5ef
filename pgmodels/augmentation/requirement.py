"""What a derivation needs of the data."""

from typing import Any

from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.notation import Chain, Part, words
from pgmodels.likelihoods.printers.text import to_text


class Requirement:
    """What a derivation needs of a coefficient: ``nonnegative``, ``positive`` or ``indicator`` (0 or 1).

    ``written`` says where the coefficient stands, as a line of the derivation.
    """

    def __init__(self, expression: Expression, kind: str, written: Chain):
        self.expression, self.kind, self.written = expression, kind, written

    @property
    def reason(self) -> str:
        """Where the coefficient stands, as text."""
        return to_text(self.written)

    def holds(self, values: Any) -> Any:
        """Where the values satisfy the requirement, up to rounding."""
        if self.kind == "nonnegative":
            return values >= -1e-9
        if self.kind == "positive":
            return values > 0
        return (values == 0) | (values == 1)

    @property
    def condition(self) -> tuple[Part, ...]:
        """The requirement as parts of a line."""
        return {"nonnegative": ("≥", 0), "positive": (">", 0), "indicator": (words("is 0 or 1"),)}[self.kind]

    @property
    def wording(self) -> str:
        """The requirement in words."""
        return {"nonnegative": ">= 0", "positive": "> 0", "indicator": "0 or 1"}[self.kind]
