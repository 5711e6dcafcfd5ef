"""Claims of Galy-Fajou et al. 2019."""

from collections.abc import Sequence

from validation.papers.claim import Claim
from validation.papers.galy_fajou.bound import PublishedBound
from validation.papers.galy_fajou.formula import TwoClasses
from validation.papers.galy_fajou.likelihoods import Calibration
from validation.papers.galy_fajou.posterior import EffectOfAugmentation, FourBlockGibbs
from validation.papers.galy_fajou.scale import ManyClasses, NumInducing, RobustMaxRace

CLAIMS: Sequence[Claim] = (
    PublishedBound(),
    EffectOfAugmentation(),
    Calibration(),
    NumInducing(),
    RobustMaxRace(),
    FourBlockGibbs(),
    ManyClasses(),
    TwoClasses(),
)
