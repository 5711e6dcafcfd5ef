"""Claims of Wenzel et al. 2019."""

from collections.abc import Sequence

from validation.papers.claim import Claim
from validation.papers.wenzel.prediction import TableTwo
from validation.papers.wenzel.quality import Gap, Latents
from validation.papers.wenzel.speed import InducingInputs, Speed

CLAIMS: Sequence[Claim] = (Speed(), Latents(), TableTwo(), InducingInputs(), Gap())
