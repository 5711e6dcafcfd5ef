"""Claims of Izmailov and Kropotov 2017."""

from collections.abc import Sequence

from validation.papers.claim import Claim
from validation.papers.izmailov.bounds import Laplace, OneOptimum
from validation.papers.izmailov.speed import FullFails, ManyInputs, SmallSets

CLAIMS: Sequence[Claim] = (OneOptimum(), Laplace(), SmallSets(), FullFails(), ManyInputs())
