"""Likelihoods: formulas as expressions, supports, sampling, and the named likelihoods."""

from pgmodels.likelihoods import algebra, infix
from pgmodels.likelihoods.expression import Expression

Expression.algebra = algebra
Expression.writer = infix.write
