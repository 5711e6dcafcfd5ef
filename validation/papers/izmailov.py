"""Claims."""

from collections.abc import Sequence

from validation.papers.claim import Claim

CLAIMS: Sequence[Claim] = ()
