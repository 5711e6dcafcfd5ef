"""Functions as one program each: operation by operation they would be dozens, and compiling them takes the time."""

import equinox as eqx
import jax


@eqx.filter_jit
def run(function, *arguments):
    """What a function returns, or a method of a module of arrays."""
    return function(*arguments)


@jax.jit
def conditioned(prior, sites):
    """The posterior that sites make of a prior, with its means and variances."""
    posterior = prior.condition(sites)
    return posterior, *posterior.moments()
