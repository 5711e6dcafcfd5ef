"""The eigenfunctions of the Laplacian on a box, and a kernel truncated to finitely many of them."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.spectrum import Spectrum
from pgmodels.runtime.x64 import as_array

Interval = tuple[float, float]


@dataclass(frozen=True)
class Basis:
    """Products over columns of sines that vanish at the ends of an interval, orthonormal on the box.

    ``counts`` has the number of sines of each column of X, and ``domain`` its interval, None for a column without one.
    """

    counts: tuple[int, ...]
    domain: tuple[Interval | None, ...]

    def frequencies(self, columns: tuple[int, ...]) -> Float[np.ndarray, "r d"]:
        """Angular frequencies of the products over some columns: pi j / (2 L), with L half the interval."""
        sines = [np.pi * np.arange(1, self.counts[c] + 1) / np.diff(self._interval(c)) for c in columns]
        return np.array(list(product(*sines)), float)

    def functions(self, columns: tuple[int, ...], X: Float[Array, "n d"]) -> Float[Array, "r n"]:
        """The products at rows of X."""
        functions = jnp.ones((1, len(X)), X.dtype)
        for c in columns:
            low, high = self._interval(c)
            angles = np.pi * np.arange(1, self.counts[c] + 1)[:, None] * ((X[:, c] - low) / (high - low))
            sines = jnp.sin(angles) * np.sqrt(2.0 / (high - low))
            functions = (functions[:, None] * sines).reshape(-1, len(X))
        return functions

    def _interval(self, column: int) -> Interval:
        interval = self.domain[column]
        assert interval is not None
        return interval


@final
class TruncatedKernel(Kernel):
    """The covariance sum_j s_j^2 phi_j(x) phi_j(z) that approximates a kernel, s_j^2 its density at j's frequency.

    Source: Solin and Särkkä 2020, equation 20.
    """

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel
    basis: Basis = eqx.field(static=True)

    def reads(self, num_columns: int) -> tuple[int, ...]:
        return self.kernel.reads(num_columns)

    def functions(self, X: Float[Inputs, "n d"]) -> Float[Array, "r n"]:
        """The basis functions at rows of X; they do not depend on the kernel's values."""
        X = as_array(X)
        return jnp.concatenate([self.basis.functions(columns, X) for columns, _ in self._terms()])

    def scale(self) -> Float[Array, " r"]:
        """The standard deviations s_j of the weights of the basis functions."""
        terms = self._terms()
        densities = [spectrum.density(as_array(self.basis.frequencies(columns))) for columns, spectrum in terms]
        # A density may underflow, where the derivative of its root is not finite.
        return jnp.sqrt(jnp.maximum(jnp.concatenate(densities), jnp.finfo(densities[0].dtype).tiny))

    def factor(self, X: Float[Inputs, "n d"]) -> Float[Array, "r n"]:
        """The A (r, n) with covariance A^T A."""
        return self.scale()[:, None] * self.functions(X)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.factor(X).T @ self.factor(Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return jnp.sum(self.factor(X) ** 2, axis=0)

    def __repr__(self) -> str:
        return f"{self.kernel!r} in {self.basis.counts} functions"

    def _terms(self) -> list[tuple[tuple[int, ...], Spectrum]]:
        return sorted(self.kernel.spectra(len(self.basis.counts)).items(), key=lambda term: term[0])
