"""Likelihoods: formulas as expressions, supports, sampling, and the named likelihoods."""

from pgmodels.likelihoods import infix
from pgmodels.likelihoods import operations as algebra
from pgmodels.likelihoods.expression import Expression

Expression.algebra = algebra
Expression.writer = infix.write
