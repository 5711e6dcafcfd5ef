"""Run functions as one compiled program each; operation by operation they would compile dozens."""

import equinox as eqx
import jax


@eqx.filter_jit
def run(function, *arguments):
    """Call a function, or a method of an equinox module, compiled."""
    return function(*arguments)


@jax.jit
def conditioned(prior, sites):
    """The posterior of a prior given sites, with its means and variances."""
    posterior = prior.condition(sites)
    return posterior, *posterior.moments()
