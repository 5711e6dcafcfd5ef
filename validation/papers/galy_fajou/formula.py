"""The likelihood with two classes."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from validation.papers.claim import IN_PART, REFUTED, REPRODUCED, Claim, Row, Side, Verdict

# Latents of the classes.
POINTS = ((1.0, -1.0), (-2.5, 2.5), (1.0, 0.0), (3.0, 1.0), (-2.0, -4.0))
# What the logistic function may be of, by the column of its excess.
COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "σ(f1) - p": lambda first, second: first,
    "σ(f1 - f2) - p": lambda first, second: first - second,
    "σ((f1 - f2) / 2) - p": lambda first, second: (first - second) / 2,
}


class TwoClasses(Claim):
    """G8: two classes."""

    identifier: ClassVar[str] = "G8"
    title: ClassVar[str] = '"The likelihood reduces to the binary logistic likelihood for C = 2" (section 3.1)'
    statement: ClassVar[str] = "The paper states that two classes give the binary logistic likelihood."
    ran: ClassVar[str] = "The formula was evaluated at five pairs of latents."
    meaning: ClassVar[str] = (
        "For a user, a model of two classes with two latents is not the binary model. Use `Bernoulli()` for two "
        "classes."
    )
    criterion: ClassVar[str] = (
        "for any latents, the probability of the first class is a logistic function of one combination of the "
        "two. The combinations are their difference, half of it, and the first latent. The function is exact to "
        "1e-12."
    )
    settings: ClassVar[str] = "the formula at five pairs of latents; the first two are f and -f."

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return ("formula",)

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        f = np.array(POINTS)
        p = np.exp(log_density(pgm.LogisticSoftmax(2), np.zeros(len(f)), f))
        first, second = f.T
        columns = {"first latent": first, "second latent": second, "probability": p}
        columns |= {name: expit(combination(first, second)) - p for name, combination in COMBINATIONS.items()}
        return [dict(zip(columns, line, strict=True)) for line in np.column_stack(list(columns.values())).tolist()]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        largest = {name: max(abs(row[name]) for row in rows) for name in COMBINATIONS}
        opposite = max(abs(row["σ(f1) - p"]) for row in rows if row["first latent"] == -row["second latent"])
        best = min(largest, key=lambda name: largest[name])
        said = f"Where f2 = -f1 the probability is the logistic function of f1, to {max(opposite, 1e-16):.0e}."
        if largest[best] < 1e-12:
            return Verdict(REPRODUCED, said)
        return Verdict(
            IN_PART if opposite < 1e-12 else REFUTED,
            said,
            "one latent and its negative, f2 = -f1",
            (
                Side(
                    "The same for two latents that are free",
                    REFUTED,
                    f"A counterexample is f = (3, 1). The nearest of three logistic functions, "
                    f"{best.removesuffix(' - p')}, is off by up to {largest[best]:.3f}.",
                ),
            ),
        )
