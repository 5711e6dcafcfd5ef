"""The language of likelihoods: formulas, supports, the named likelihoods."""

from pgmodels.language import algebra, infix
from pgmodels.language.expression import Expression

Expression.algebra = algebra
Expression.writer = infix.write
