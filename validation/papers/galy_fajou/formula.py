"""The likelihood with two classes."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.density import log_density
from validation.papers.claim import Claim, Row, Verdict

# Latents of the classes.
POINTS = ((1.0, -1.0), (-2.5, 2.5), (1.0, 0.0), (3.0, 1.0), (-2.0, -4.0))


class TwoClasses(Claim):
    """G8: two classes."""

    identifier: ClassVar[str] = "G8"
    title: ClassVar[str] = "With two classes logistic-softmax is the logistic likelihood"
    statement: ClassVar[str] = '"The likelihood reduces to the binary logistic likelihood for C = 2" (section 3.1).'
    criterion: ClassVar[str] = (
        "the probability of the first class is a logistic function of one combination of the two latents, whatever "
        "they are: of their difference, half of it, or the first latent, to 1e-12."
    )
    settings: ClassVar[str] = "the formula at five pairs of latents; the first two are f and -f."

    def parts(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return ("formula",)

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        f = np.array(POINTS)
        probability = np.exp(log_density(pgm.LogisticSoftmax(2), np.zeros(len(f)), f))
        first, second = f.T
        return [
            {"first latent": a, "second latent": b, "probability": p, "of f": s, "of f1 - f2": d, "of half of it": h}
            for a, b, p, s, d, h in zip(
                first,
                second,
                probability,
                expit(first) - probability,
                expit(first - second) - probability,
                expit((first - second) / 2) - probability,
                strict=True,
            )
        ]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        largest = {name: max(abs(row[name]) for row in rows) for name in ("of f", "of f1 - f2", "of half of it")}
        opposite = max(abs(row["of f"]) for row in rows if row["first latent"] == -row["second latent"])
        best = min(largest, key=lambda name: largest[name])
        return Verdict(
            largest[best] < 1e-12,
            f"only where f2 = -f1 it is the logistic function of f1 (to {opposite:.0e}); elsewhere even the best of "
            f"the three, {best}, is off by up to {largest[best]:.3f}.",
        )
