"""The predictor of one latent of a likelihood: its terms and offsets."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pgmodels.regression.columns import Design, Numbers, moments
from pgmodels.regression.grammar import Parsed, parse
from pgmodels.regression.terms import Term, call_term, check_call, group_term, linear_term


class Predictor(NamedTuple):
    """Terms, whose sum with the offsets is a latent of the likelihood."""

    terms: list[Term]
    offsets: list[Numbers]

    @property
    def has_offset(self) -> bool:
        """Whether it has offsets, or coefficients whose prior means are a line that is one."""
        return bool(self.offsets) or any(
            term.coefficients is not None and term.coefficients.means.any() for term in self.terms
        )

    def offset(self, frame: pd.DataFrame, name: str) -> np.ndarray:
        """The sum of its offsets (n,)."""
        columns = [offset.read(frame, name)[:, 0] for offset in self.offsets]
        columns += [term.read(frame, name) @ term.coefficients.means for term in self.terms if term.coefficients]
        return np.sum(columns, axis=0)


class Start(NamedTuple):
    """The scale of a latent, its prior mean, and whether its linear terms have an intercept."""

    scale: float = 1.0
    level: float = 0.0
    has_intercept: bool = True


def read_predictor(
    parsed: Parsed, number: int, start: Start, frame: pd.DataFrame, context: dict[str, Any], priors: dict[str, Any],
    counts: np.ndarray,
) -> Predictor:  # fmt: skip
    """The predictor of a parsed formula; priors of its terms are taken out of ``priors``.

    Default priors are those of data in which each row occurs as often as in ``counts``.
    """
    prefix = f"f[{number}]: " if number else ""
    for call in parsed.calls:
        check_call(call)
    offsets = [
        Numbers(call.arguments, frame, context, call.text, counts) for call in parsed.calls if call.name == "offset"
    ]
    level = start.level - sum(float(moments(offset.read(frame), counts)[0][0]) for offset in offsets)
    design = Design(parsed.linear, frame, context, start.has_intercept, counts)
    texts = [*design.names, *(call.text for call in parsed.calls), *(group.text for group in parsed.groups)]
    keys: dict[str, str] = {}
    for name in priors:
        if name.startswith(prefix):
            text = _same_term(name.removeprefix(prefix), texts)
            if text in keys:
                raise ValueError(f"priors has {keys[text]!r} and {name!r}, which are the same.")
            keys[text] = name
    chosen = {text: priors[name] for text, name in keys.items()}
    terms = [linear_term(design, frame, start.scale, level, chosen, counts)] if design.names else []
    calls = [call for call in parsed.calls if call.name != "offset"]
    terms += [call_term(call, frame, start.scale, context, chosen, counts) for call in calls]
    terms += [group_term(group, frame, start.scale, context, chosen, counts) for group in parsed.groups]
    for text in set(keys) - set(chosen):
        del priors[keys[text]]
    return Predictor([term._replace(predictor=number) for term in terms], offsets)


def _same_term(name: str, texts: Sequence[str]) -> str:
    """The text of the term or coefficient that a name is but for spaces and an implied 1; the name if there is none."""
    names = [name]
    if "|" in name:
        try:
            _, parsed = parse(f"y ~ {name if name.startswith('(') else f'({name})'}")
            names += [group.text for group in parsed.groups] if len(parsed.groups) == 1 else []
        except ValueError:
            pass
    plain = {text.replace(" ", ""): text for text in texts}
    return next((plain[one.replace(" ", "")] for one in names if one.replace(" ", "") in plain), name)
