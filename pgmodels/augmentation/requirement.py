"""What a derivation needs of the data."""

from typing import Any

from pgmodels.augmentation.notation import plain
from pgmodels.language.expression import Expression


class Requirement:
    """What a derivation needs of a coefficient: ``nonnegative``, ``positive`` or ``indicator`` (0 or 1).

    ``marked_reason`` is ``reason`` with its words marked (``notation.words``).
    """

    def __init__(self, expression: Expression, kind: str, marked_reason: str):
        self.expression, self.kind, self.marked_reason = expression, kind, marked_reason
        self.reason = plain(marked_reason)

    def holds(self, values: Any) -> Any:
        """Where the values satisfy the requirement, up to rounding."""
        if self.kind == "nonnegative":
            return values >= -1e-9
        if self.kind == "positive":
            return values > 0
        return (values == 0) | (values == 1)

    @property
    def wording(self) -> str:
        """The requirement in words."""
        return {"nonnegative": ">= 0", "positive": "> 0", "indicator": "0 or 1"}[self.kind]
