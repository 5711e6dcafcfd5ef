"""The augmentation rules, in matching order; ``register`` adds a user's rule.

A rule is a subclass of ``Rule``, whose abstract methods define the interface; one rule per file.
"""

from pgmodels.augmentation.rules.argmax import ArgmaxRule
from pgmodels.augmentation.rules.difference import DifferenceRule
from pgmodels.augmentation.rules.gamma import GammaRule
from pgmodels.augmentation.rules.gamma_mixture import GammaMixtureRule
from pgmodels.augmentation.rules.gaussian import GaussianRule
from pgmodels.augmentation.rules.interval_gaussian import IntervalGaussianRule
from pgmodels.augmentation.rules.inverse_gaussian_mixture import InverseGaussianMixtureRule
from pgmodels.augmentation.rules.mixture import MixtureRule
from pgmodels.augmentation.rules.poisson import PoissonRule
from pgmodels.augmentation.rules.polya_gamma import PolyaGammaRule
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.augmentation.rules.selection import SelectionRule
from pgmodels.augmentation.rules.truncated_gaussian import TruncatedGaussianRule

RULES: list[type[Rule]] = [
    PolyaGammaRule,
    PoissonRule,
    GammaRule,
    GammaMixtureRule,
    InverseGaussianMixtureRule,
    IntervalGaussianRule,
    TruncatedGaussianRule,
    ArgmaxRule,
    GaussianRule,
    SelectionRule,
    DifferenceRule,
    MixtureRule,
]


def register(rule: type[Rule]) -> type[Rule]:
    """Class decorator that registers a user's rule, matched before the built-in ones.

    Raises TypeError if ``rule`` is not a subclass of ``Rule``.
    """
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise TypeError(f"rule must be a subclass of pgmodels.augmentation.rules.Rule; got {rule!r}.")
    RULES.insert(0, rule)
    return rule
