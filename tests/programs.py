"""Functions as one program each: operation by operation they would be dozens, and compiling them takes the time."""

import equinox as eqx


@eqx.filter_jit
def run(function, *arguments):
    """What a function returns, or a method of a module of arrays."""
    return function(*arguments)
