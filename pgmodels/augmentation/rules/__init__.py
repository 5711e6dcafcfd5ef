"""The augmentation rules, in matching order. ``register`` adds a user's rule.

A rule is a subclass of ``Rule``, whose abstract methods define the interface.
"""

from pgmodels.augmentation.rules.gaussian import ArgmaxRule, GaussianRule, IntervalGaussianRule, TruncatedGaussianRule
from pgmodels.augmentation.rules.mixtures import (
    GammaMixtureRule,
    GammaRule,
    InverseGaussianMixtureRule,
    MixtureRule,
    PoissonRule,
    PolyaGammaRule,
    PositivePoissonRule,
)
from pgmodels.augmentation.rules.rule import DifferenceRule, Rule, SelectionRule

RULES: list[type[Rule]] = [
    PolyaGammaRule, PoissonRule, GammaRule, GammaMixtureRule, InverseGaussianMixtureRule, IntervalGaussianRule,
    TruncatedGaussianRule, ArgmaxRule, GaussianRule, SelectionRule, DifferenceRule, PositivePoissonRule, MixtureRule,
]  # fmt: skip


def register(rule: type[Rule]) -> type[Rule]:
    """Register a user's rule, to match before built-in rules. Raise TypeError unless it is a subclass of ``Rule``."""
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise TypeError(f"rule must be a subclass of pgmodels.augmentation.rules.Rule; got {rule!r}.")
    RULES.insert(0, rule)
    return rule
