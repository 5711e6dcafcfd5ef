"""Claims of Passerello 2021."""

from collections.abc import Sequence

from validation.papers.claim import Claim
from validation.papers.passerello.bounds import Boundary, Heteroscedastic, TwoBounds
from validation.papers.passerello.inducing import Automatic, LearnedInputs, Selections
from validation.papers.passerello.tables import Merged, Tables, Unreliable

CLAIMS: Sequence[Claim] = (
    TwoBounds(),
    Boundary(),
    Selections(),
    Tables(),
    Unreliable(),
    LearnedInputs(),
    Automatic(),
    Merged(),
    Heteroscedastic(),
)
