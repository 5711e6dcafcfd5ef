"""Hilbert-space basis functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number
from pgmodels.kernels.kernel import Inputs, Kernel, Spectrum, Use, unlimited, with_values
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.base import Covariance, LatentPrior, pad_rows
from pgmodels.priors.dense import LowRankState, SpanPrior
from pgmodels.priors.linalg import root_of_one_plus
from pgmodels.priors.representation import EAGER, Binding, Representation, Scalar
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array

Interval = tuple[float, float]


@dataclass(frozen=True)
class Basis:
    """Products over columns of sines that vanish at the ends of an interval, orthonormal on the box.

    ``counts`` has the number of sines of each column of X, and ``domain`` its interval, None for a column without one.
    """

    counts: tuple[int, ...]
    domain: tuple[Interval | None, ...]

    def frequencies(self, columns: tuple[int, ...]) -> Float[np.ndarray, "r d"]:
        """Return the angular frequencies of the products over some columns: pi j / (2 L), with L half the interval."""
        sines = [np.pi * np.arange(1, self.counts[c] + 1) / np.diff(self._interval(c)) for c in columns]
        return np.array(list(product(*sines)), float)

    def functions(self, columns: tuple[int, ...], X: Float[Array, "n d"]) -> Float[Array, "r n"]:
        """Return the products at rows of X."""
        functions = jnp.ones((1, len(X)), X.dtype)
        for c in columns:
            low, high = self._interval(c)
            angles = np.pi * np.arange(1, self.counts[c] + 1)[:, None] * ((X[:, c] - low) / (high - low))
            functions = (functions[:, None] * (jnp.sin(angles) * np.sqrt(2.0 / (high - low)))).reshape(-1, len(X))
        return functions

    def _interval(self, column: int) -> Interval:
        interval = self.domain[column]
        assert interval is not None
        return interval


@final
class TruncatedKernel(Kernel):
    """The approximation sum_j s_j^2 phi_j(x) phi_j(z) by spectral densities (Solin and Särkkä 2020, equation 20)."""

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel
    basis: Basis = eqx.field(static=True)

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        return self.kernel.reads(num_columns, use)

    def functions(self, X: Float[Inputs, "n d"]) -> Float[Array, "r n"]:
        """Return the basis functions at rows of X; they do not depend on the kernel's values."""
        X = as_array(X)
        return jnp.concatenate([self.basis.functions(columns, X) for columns, _ in self._terms()])

    def scale(self) -> Float[Array, " r"]:
        """Return the standard deviations s_j of the weights of the basis functions."""
        terms = self._terms()
        densities = [spectrum.density(as_array(self.basis.frequencies(columns))) for columns, spectrum in terms]
        # A density may underflow, and the derivative of its root is then not finite.
        return jnp.sqrt(jnp.maximum(jnp.concatenate(densities), jnp.finfo(densities[0].dtype).tiny))

    def factor(self, X: Float[Inputs, "n d"]) -> Float[Array, "r n"]:
        """Return the A (r, n) with covariance A^T A."""
        return self.scale()[:, None] * self.functions(X)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.factor(X).T @ self.factor(Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return jnp.sum(self.factor(X) ** 2, axis=0)

    def __repr__(self) -> str:
        return f"{self.kernel!r} in {self.basis.counts} functions"

    def _terms(self) -> list[tuple[tuple[int, ...], Spectrum]]:
        return sorted(self.kernel.spectra(len(self.basis.counts)).items(), key=lambda term: term[0])


class HilbertPrior(SpanPrior):
    """The prior f = mean + A^T v with A = diag(``scale``) ``functions``; its covariance is exactly ``kernel``.

    The precision P = I + S (Phi W Phi^T) S and the log normaliser depend on the hyperparameters only through S. At
    fixed sites, the products over the rows do not depend on the hyperparameters.
    """

    has_cheap_products: ClassVar[bool] = True

    kernel: TruncatedKernel
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    functions: Float[Array, "r n"]
    scale: Float[Array, " r"]
    size: int = eqx.field(static=True)

    @property
    def rank(self) -> int:
        return len(self.scale)

    @property
    def factor(self) -> Float[Array, "r n"]:
        return self.scale[:, None] * self.functions

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        return self.kernel.factor(X_new), jnp.zeros(len(X_new), self.scale.dtype)

    def truncated_shares(self) -> Float[Array, " n"]:
        return 1.0 - self._diagonal() / self.kernel.kernel.diagonal(self.X)

    def resized(self, size: int) -> "HilbertPrior":
        functions = as_array(pad_rows(self.functions.T, size).T)
        return replace(self, X=as_array(pad_rows(self.X, size)), functions=functions)

    def _condition(self, h: Array, w: Array) -> LowRankState:
        scaled, pulled = self.functions * jnp.sqrt(w), self.scale * (self.functions @ h)
        root = root_of_one_plus(self.scale[:, None] * (scaled @ scaled.T) * self.scale)
        return LowRankState(root, cho_solve((root, True), pulled), pulled, None)


if TYPE_CHECKING:
    Counts: TypeAlias = int | Sequence[int]
    Domain: TypeAlias = Sequence[Sequence[float] | None] | np.ndarray
else:
    # Types are not checked at run time: ``Hilbert`` checks its arguments itself.
    Counts = Domain = Any


@dataclass(frozen=True, repr=False)
class Hilbert(Representation):
    """Basis functions on a box (a Hilbert space GP): O(n m^2) time per iteration, without inducing inputs.

    The first m eigenfunctions of the Laplacian on the box, sines that vanish at the ends of an interval, replace the
    kernel. The prior variance of each is the spectral density at its frequency. The functions do not depend on
    hyperparameters, and all rows of X determine all of them. The form is for RBF, Matern12, Matern32, Matern52 and
    Constant, their sums, and products over different columns. Each may read at most three columns, as in
    ``pgm.On(kernel, [0, 2])``. Functions of different columns have separate bases.

    Parameters
    ----------
    count : int or sequence of int
        The number m of sines, one for all columns or one for each. Functions of several columns have all products.
    boundary : float, optional
        Half the interval of a column over half the range of the data, at least 1. By default the margin outside of the
        data is 2.5 lengthscales of the kernel when the model is fitted. It is at least 0.1 times the range of the
        data.
    domain : array_like, shape (d, 2), optional
        The interval of each column, in its units, instead of ``boundary``; None for a column that the kernel does not
        read. The model of a result has the domain: new inputs must lie in it.

    Raises
    ------
    ValueError
        For counts below 1, a boundary below 1, and invalid intervals.

    Notes
    -----
    A lengthscale l in an interval of half-length L needs about 1.75 L / l sines for RBF, and 3.42 L / l for Matern32.
    Shorter lengthscales lose variance, and longer lengthscales are distorted by the ends of the interval. If more than
    1 % of the prior variance is left out at a row, a TruncationWarning is emitted.

    References
    ----------
    Solin and Särkkä 2020; Riutort-Mayol, Bürkner, Andersen, Solin and Vehtari 2023; math, section 7b.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> model = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.RBF(1.0, 1.0), form=pgm.Hilbert(20)))
    >>> vi = pgm.cavi(model, X, np.sin(X[:, 0]))
    >>> bool(np.allclose(vi.mean, pgm.cavi(model.with_form(pgm.Dense()), X, np.sin(X[:, 0])).mean, atol=1e-3))
    True
    """

    can_pad: ClassVar[bool] = True
    least_subset: ClassVar[int | None] = 5_000

    count: int | tuple[int, ...]
    boundary: float | None = None
    domain: tuple[Interval | None, ...] | None = None

    def __init__(self, count: Counts, boundary: float | None = None, domain: Domain | None = None):
        if boundary is not None and domain is not None:
            raise ValueError("Hilbert accepts a boundary or a domain, not both: remove the boundary.")
        object.__setattr__(self, "count", _read_counts(count))
        object.__setattr__(self, "boundary", _read_boundary(boundary))
        object.__setattr__(self, "domain", None if domain is None else tuple(map(_read_interval, domain)))

    def __repr__(self) -> str:
        shown = [repr(self.count)] + ([] if self.boundary is None else [f"{self.boundary:g}"])
        if self.domain is not None:
            intervals = ["None" if one is None else "({:.6g}, {:.6g})".format(*one) for one in self.domain]
            shown.append(f"domain=[{', '.join(intervals)}]")
        return f"Hilbert({', '.join(shown)})"

    def check(self, kernel: Kernel, num_columns: int) -> None:
        most = max(map(len, with_values(kernel).spectra(num_columns)))
        if most > 3:
            raise ValueError(
                f"pgm.Hilbert() is for functions of at most 3 columns, but {kernel!r} has one of {most} columns: "
                "add functions of fewer columns, as in pgm.On(kernel, [0]) + pgm.On(kernel, [1]), or use another form "
                "of the GP, such as pgm.Inducing(300)."
            )
        for name in ("count", "domain"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != num_columns:
                raise ValueError(
                    f"{name} of Hilbert has {len(value)} entries, but X has {num_columns} column(s): give one for each "
                    "column."
                )
        for column in kernel.reads(num_columns):
            if self.domain is not None and self.domain[column] is None:
                raise ValueError(
                    f"domain of Hilbert has no interval for column {column}, which {kernel!r} reads: give its two ends."
                )

    def check_values(self, X: np.ndarray, name: str) -> None:
        for column, interval in enumerate(self.domain or ()):
            if interval is None or column >= X.shape[1]:
                continue
            values = X[:, column]
            outside = np.flatnonzero((values < interval[0]) | (values > interval[1]))
            if outside.size:
                raise ValueError(
                    f"{name}[{outside[0]}, {column}] is {values[outside[0]]:.6g}, outside the interval of pgm.Hilbert "
                    f"for column {column}, {interval[0]:.6g} to {interval[1]:.6g}, where its functions are defined. "
                    "Fit the model with a larger boundary, or with a domain that contains all inputs, as in "
                    "pgm.Hilbert(30, domain=[(0.0, 10.0)])."
                )

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        limits = unlimited(num_columns)
        for column, interval in enumerate(self.domain or ()):
            if interval is not None:
                limits[column] = interval
        return limits

    def resolve(self, kernel: Kernel, X: np.ndarray) -> "Hilbert":
        """Return the form with a domain."""
        if self.domain is not None:
            return self
        X = np.asarray(X, dtype=np.float64)
        # Functions of the same column share one interval, which fits the longest lengthscale.
        longest: dict[int, float] = {}
        for columns, spectrum in bare_arrays(kernel).spectra(X.shape[1]).items():
            for column, lengthscale in zip(columns, np.asarray(spectrum.lengthscale), strict=True):
                longest[column] = max(longest.get(column, 0.0), float(lengthscale))
        domain = [self._interval(X[:, c], c, longest[c]) if c in longest else None for c in range(X.shape[1])]
        return Hilbert(self.count, domain=domain)

    def memory(self, kernel: Covariance, X: np.ndarray) -> float:
        counts = (self.count,) * X.shape[1] if isinstance(self.count, int) else self.count
        spectra = bare_arrays(cast(Kernel, kernel)).spectra(X.shape[1])
        number = sum(math.prod(counts[column] for column in columns) for columns in spectra)
        # Memory: the functions, first as Python tuples of frequencies, and the square matrix of their weights.
        return number * (8.0 * len(X) + 100.0) + 8.0 * number**2

    def bind(self, kernel: Covariance, mean: Scalar, X: ArrayLike, size: int, how: Binding = EAGER) -> LatentPrior:
        if not how.traced:
            bare = bare_arrays(cast(Kernel, kernel))
            form = self.resolve(bare, np.asarray(X))
            return _compiled_prior(form._basis(np.shape(X)[1]), bare, as_array(mean), as_array(X), size)
        if self.domain is None:
            raise ValueError(f"the domain of {self!r} cannot be chosen in compiled code: call model.resolve(X) first.")
        return _prior(self._basis(np.shape(X)[1]), cast(Kernel, kernel), as_array(mean), as_array(X), size)

    def _interval(self, values: np.ndarray, column: int, lengthscale: float) -> Interval:
        low, high = float(np.min(values)), float(np.max(values))
        half = 0.5 * (high - low)
        if half == 0.0:
            raise ValueError(
                f"column {column} of X has one value, {low:.6g}, but pgm.Hilbert() needs an interval: leave the "
                "column out, or give its domain, as in pgm.Hilbert(30, domain=[(0.0, 10.0)])."
            )
        # A row at a distance d from an end loses the variance k(2 d): the share exp(-5) for a Matern12 kernel. The
        # published rule, half the interval = max(3.2 l, 1.2 S) with S half the range, is for the average row: with
        # l = S / 3, the last row loses 49 %.
        least = max(2.5 * lengthscale, 0.2 * half)
        beyond = least if self.boundary is None else (self.boundary - 1.0) * half
        return low - beyond, high + beyond

    def _basis(self, num_columns: int) -> Basis:
        counts = (self.count,) * num_columns if isinstance(self.count, int) else self.count
        assert self.domain is not None
        return Basis(counts, self.domain)


def _prior(basis: Basis, kernel: Kernel, mean: Array, X: Float[Array, "n d"], size: int) -> HilbertPrior:
    truncated = TruncatedKernel(kernel, basis)
    functions, scale = truncated.functions(X), truncated.scale()
    return HilbertPrior(kernel=truncated, mean=mean, X=X, functions=functions, scale=scale, size=size)


_compiled_prior = compiled(_prior, ("basis", "size"), optimise=False)


def _read_counts(count: Any) -> int | tuple[int, ...]:
    if np.ndim(count) == 0:
        check_whole_number(count, "count of Hilbert, if not one per column,", 1)
        return int(count)
    for one in count:
        check_whole_number(one, "count of Hilbert", 1)
    return tuple(int(one) for one in count)


def _read_boundary(boundary: object) -> float | None:
    if boundary is None:
        return None
    if not isinstance(boundary, (int, float, np.number)) or not 1.0 <= float(boundary) < np.inf:
        raise ValueError(
            f"boundary of Hilbert must be a number >= 1, half the interval over half the range of the data; got "
            f"{boundary!r}."
        )
    return float(boundary)


def _read_interval(interval: object) -> Interval | None:
    if interval is None:
        return None
    ends = np.asarray(interval, dtype=np.float64)
    if ends.shape != (2,) or not np.all(np.isfinite(ends)) or ends[0] >= ends[1]:
        raise ValueError(
            "domain of Hilbert must have the two ends (low, high) of an interval for each column; got "
            f"{shorten(interval)}."
        )
    return float(ends[0]), float(ends[1])
