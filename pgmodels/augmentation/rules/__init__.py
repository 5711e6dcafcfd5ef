"""The rules, in the order in which each looks at a factor. Another rule is a class beside these (see ``Rule``)."""

from pgmodels.augmentation.rules.gamma import GammaRule
from pgmodels.augmentation.rules.gamma_mixture import GammaMixtureRule
from pgmodels.augmentation.rules.gaussian import GaussianRule
from pgmodels.augmentation.rules.inverse_gaussian_mixture import InverseGaussianMixtureRule
from pgmodels.augmentation.rules.poisson import PoissonRule
from pgmodels.augmentation.rules.polya_gamma import PolyaGammaRule
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.augmentation.rules.truncated_gaussian import TruncatedGaussianRule

RULES: tuple[type[Rule], ...] = (
    PolyaGammaRule,
    PoissonRule,
    GammaRule,
    GammaMixtureRule,
    InverseGaussianMixtureRule,
    TruncatedGaussianRule,
    GaussianRule,
)
