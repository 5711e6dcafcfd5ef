"""GPs of one column as Markov processes: ``pgm.GP(kernel, form=pgm.Markov())``."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.kernels.kernel import Kernel, with_values
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.markov.chain import Chain
from pgmodels.priors.markov.prior import MarkovPrior, chain_at
from pgmodels.priors.representation import Representation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array


@dataclass(frozen=True)
class Markov(Representation):
    """A GP of one column as a Markov process: O(n) time and memory, and exact.

    For Matern12, Matern32, Matern52, Constant, White and Linear, their sums and products, of the same column:
    ``pgm.On(kernel, [column])`` if X has several. Gaps and ties may be of any size, and the rows in any order.

    References
    ----------
    Hartikainen and Särkkä 2010; Nickisch, Solin and Grigorievskiy 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> model = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.Matern32(), form=pgm.Markov()))
    >>> vi = pgm.cavi(model, X, np.sin(X[:, 0]))
    >>> bool(np.allclose(vi.mean, pgm.cavi(model.with_form(pgm.Dense()), X, np.sin(X[:, 0])).mean, atol=1e-6))
    True
    """

    has_factor: ClassVar[bool] = False

    def check(self, kernel: Kernel, num_columns: int) -> None:
        """See Representation."""
        with_values(kernel).to_state_space()
        columns = kernel.reads(num_columns)
        if len(columns) > 1:
            raise ValueError(
                f"pgm.Markov() is for kernels of one column, and {kernel!r} reads {len(columns)}: choose one, as in "
                "pgm.On(kernel, [0]), or another form of the GP, such as pgm.Dense()."
            )

    def bind(self, kernel: Any, mean: Any, X: Any, size: int, max_error: float = np.inf) -> MarkovPrior:
        """See Representation."""
        kernel, column = bare_arrays(kernel), _column(kernel, np.shape(X)[1])
        line = np.asarray(X, dtype=np.float64)[:, column]
        order = np.argsort(line, kind="stable")
        chain = _chain(kernel, as_array(line[order]))
        return _prior(kernel, as_array(mean), as_array(X), as_array(order), chain, size)

    def bind_traced(
        self, kernel: Any, mean: Array, X: Float[Array, "n _"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> MarkovPrior:
        """See Representation."""
        column = _column(kernel, X.shape[1])
        order = jnp.argsort(X[:, column])
        chain = chain_at(kernel.to_state_space(), X[order, column])
        return _prior(kernel, mean, X, order, chain, size)

    def bind_traced_for_moments(
        self, kernel: Any, mean: Array, X: Float[Array, "n _"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> MarkovPrior:
        """See Representation."""
        return self.bind_traced(kernel, mean, X, size, row_mask)


def _prior(
    kernel: Kernel, mean: Array, X: Float[Array, "n _"], order: Int[Array, " n"], chain: Chain, size: int
) -> MarkovPrior:
    return MarkovPrior(
        kernel=kernel,
        mean=mean,
        X=X,
        order=order,
        chain=chain,
        noise_roots=None,
        column=_column(kernel, X.shape[1]),
        size=size,
    )


def _column(kernel: Kernel, num_columns: int) -> int:
    """The column that a kernel reads; the first for a constant."""
    return next(iter(kernel.reads(num_columns)), 0)


@partial(compiled, optimise=False)
def _chain(kernel: Kernel, sorted_inputs: Float[Array, " n"]) -> Chain:
    return chain_at(kernel.to_state_space(), sorted_inputs)
