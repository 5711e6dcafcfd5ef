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
from pgmodels.priors.padding import padded_size
from pgmodels.priors.representation import Representation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

# The largest share of the prior variance that a state-space form may leave out before learning; afterwards
# ``approximation_error`` is compared with the data.
_OMITTED = 1e-3
# The smallest number of rows to learn from first: with fewer, compilation takes longer than the search.
_LEAST_SUBSET = 20_000
_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class Markov(Representation):
    """A GP of one column as a Markov process: O(n) time and memory, and exact.

    For Matern12, Matern32, Matern52, Cosine, RandomWalk, Constant, White and Linear, their sums, and their products
    without RandomWalk and Linear, of the same column: ``pgm.On(kernel, [column])`` if X has several. Gaps and ties may
    be of any size, and the rows in any order.
    Periodic is a sum of harmonics, exact but for the share of the variance that these leave out: see there.

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

    can_pad: ClassVar[bool] = True
    has_factor: ClassVar[bool] = False
    least_subset: ClassVar[int | None] = _LEAST_SUBSET
    subset_is_stretch: ClassVar[bool] = True

    def check(self, kernel: Kernel, num_columns: int) -> None:
        """See Representation."""
        columns = kernel.reads(num_columns)
        if len(columns) > 1:
            raise ValueError(
                f"pgm.Markov() is for kernels of one column, and {kernel!r} reads {len(columns)}: choose one, as in "
                "pgm.On(kernel, [0]), or another form of the GP, such as pgm.Dense()."
            )
        values = with_values(kernel)
        state = values.to_state_space()
        share = float(state.omitted_variance) / max(float(values.diagonal(np.zeros((1, num_columns)))[0]), _TINY)
        if share > _OMITTED:
            raise ValueError(
                f"the harmonics of {kernel!r} leave out {share:.1%} of the variance, and pgm.Markov() takes up to "
                f"{_OMITTED:.1%}: keep more, as in pgm.Periodic(..., harmonics=30), at a cost that grows with the "
                "third power of their number, use a longer lengthscale, or another form, such as pgm.Dense()."
            )

    def subset(self, kernel: Any, X: np.ndarray, count: int, seed: int) -> np.ndarray:
        """See Representation: neighbours in time, which tell a lengthscale as well as all rows do."""
        order = np.argsort(X[:, _column(kernel, X.shape[1])], kind="stable")
        first = np.random.default_rng(seed).integers(len(X) - count + 1)
        return np.sort(order[first : first + count])

    def bind(self, kernel: Any, mean: Any, X: Any, size: int, max_error: float = np.inf) -> MarkovPrior:
        """See Representation."""
        kernel, column = bare_arrays(kernel), _column(kernel, np.shape(X)[1])
        line = np.asarray(X, dtype=np.float64)[:, column]
        order = np.argsort(line, kind="stable")
        padding = (0, padded_size(len(line)) - len(line))
        F, Q = _chain(kernel, as_array(np.pad(line[order], padding, mode="edge")))
        chain = Chain(*(as_array(np.asarray(part)[: len(line)]) for part in (F, Q)))
        return _prior(kernel, as_array(mean), as_array(X), as_array(order), chain, size)

    def bind_traced(
        self, kernel: Any, mean: Array, X: Float[Array, "n _"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> MarkovPrior:
        """See Representation."""
        column = _column(kernel, X.shape[1])
        if row_mask is not None:
            last = jnp.argmax(jnp.where(row_mask > 0.0, X[:, column], -jnp.inf))
            X = jnp.where(row_mask[:, None] > 0.0, X, X[last])
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
