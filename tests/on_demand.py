"""A mapping whose values are computed on first access."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class OnDemand(Mapping):
    """Values of ``makers``, called with this mapping once on first access, so that unused values cost nothing."""

    def __init__(self, makers: Mapping[str, Callable[[Mapping[str, Any]], Any]]):
        self.makers, self.made = makers, {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = self.makers[name](self)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)
