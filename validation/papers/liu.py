"""Claims of Liu et al. 2019."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import norm

from pgmodels.systems.liu import LOGISTIC_VARIANCE
from validation.papers.claim import Claim, Row, Verdict


class LogisticVariance(Claim):
    """L1: the normal distribution nearest to the logistic one."""

    identifier: ClassVar[str] = "L1"
    title: ClassVar[str] = "Normal noise of variance 2.897 is nearly logistic"
    statement: ClassVar[str] = "the largest difference of the distribution functions is 0.009 (section II-B, figure 5)."
    criterion: ClassVar[str] = "the largest difference is 0.0095 to 0.0001, of which 0.009 is a truncation."
    settings: ClassVar[str] = "a grid of 200,001 points on (-20, 20); the variance with the least largest difference."

    def parts(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return ("distribution functions",)

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        z = np.linspace(-20.0, 20.0, 200_001)

        def largest(variance: float) -> float:
            return float(np.max(np.abs(expit(z) - norm.cdf(z / np.sqrt(variance)))))

        best = minimize_scalar(largest, bounds=(2.0, 4.0), method="bounded").x
        return [
            {"variance": variance, "largest difference": largest(variance), "published": 0.009}
            for variance in (LOGISTIC_VARIANCE, float(best))
        ]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        difference, best = rows[0]["largest difference"], rows[1]["variance"]
        return Verdict(abs(difference - 0.0095) < 1e-4, f"{difference:.5f}, and the best variance is {best:.3f}.")


CLAIMS: Sequence[Claim] = (LogisticVariance(),)
