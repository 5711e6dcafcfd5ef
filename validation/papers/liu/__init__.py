"""Claims of Liu et al. 2019."""

from collections.abc import Sequence

from validation.papers.claim import Claim
from validation.papers.liu.airline import Airline
from validation.papers.liu.benchmarks import LogisticSoftmaxFailure, RowNumber, SoftmaxNll
from validation.papers.liu.error_rate import FreeErrorRate
from validation.papers.liu.noise import BoundsOrdered, LogisticVariance

CLAIMS: Sequence[Claim] = (
    LogisticVariance(),
    BoundsOrdered(),
    FreeErrorRate(),
    SoftmaxNll(),
    RowNumber(),
    LogisticSoftmaxFailure(),
    Airline(),
)
