"""Priors with inducing inputs: a low-rank factor and an independent residual at each input."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.options import check_whole_number
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.chunking import HELD
from pgmodels.priors.dense import whitened_root
from pgmodels.priors.factored import FactoredPosterior, with_residual
from pgmodels.priors.gram import JITTERS, RANK_MULTIPLE, ROUNDING, check_gram, gram, jittered_root
from pgmodels.priors.inducing.chunked import chunked_prior_at
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.inducing.selection import SELECTIONS, distinct_rows
from pgmodels.priors.linalg import solve_columns
from pgmodels.priors.low_rank import (
    InducingPointPrior,
    InducingPoints,
    LowRankPrior,
    LowRankState,
    inducing_points_of,
    low_rank_at,
    own_variances,
)
from pgmodels.priors.new_inputs import check_new_inputs
from pgmodels.priors.padding import pad_rows
from pgmodels.priors.representation import Representation
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

if TYPE_CHECKING:
    InducingInputs: TypeAlias = int | ArrayLike
    Selection: TypeAlias = Literal["heteroscedastic", "kmeans", "uniform", "variance", "merged", "GV", "HGV", "auto"]
else:
    # Not checked at run time: ``Inducing`` checks its arguments itself.
    InducingInputs = Selection = Any
DEFAULT: Selection = "heteroscedastic"
# Selections that depend on the site precisions; the last also determines the number of inducing inputs.
ADAPTIVE = ("heteroscedastic", "merged", "HGV", "auto")
# Selections whose every new choice replaces the last one.
PUBLISHED = ("GV", "HGV")
# The selection by the sites of the augmented bound, whatever the objective.
MERGED = "merged"
AUTOMATIC: Final = "auto"
_LIMIT = 1000
# Up to this many entries, computing a factor takes less time than optimised compilation.
_LIGHT = 2**21
# Jitter relative to each variance up to _MANY inputs; beyond, it grows with the rounding error of K(Z, Z), at
# most a tenth of it for the kernels and dimensions tried. Without a root, it is multiplied by _STEP.
_JITTER, _MANY, _STEP = 1e-12, 1000, 2.0


class InducingState(NamedTuple):
    """The factorisation of the latents at the inducing inputs, and sum w residual / 2."""

    span: LowRankState
    loss: Float[Array, ""]


class InducingPrior(LowRankPrior):
    """The prior of f = mean + A^T v + eps, A = L_Z^-1 K(Z, X), Var eps_i = ``residual`` = k(x_i, x_i) - (A^T A)_ii.

    The posterior is variational, q(f) = p(f | u) q(u) with u the latents at Z. Sites do not change eps, which is added
    to all marginals. The log normaliser is the normaliser for A^T v minus sum w residual / 2 (math: section 4).
    Covariances between inputs are covariances of A^T v.
    Source: Titsias 2009; Hensman, Fusi and Lawrence 2013.
    """

    # Products with A cost a small share of conditioning.
    has_cheap_products: ClassVar[bool] = True

    residual: Float[Array, " n"]

    def posterior(self, roots: Float[Array, "l r r"], centres: Float[Array, "l r"]) -> FactoredPosterior:
        """See LatentPrior."""
        nothing = jnp.zeros(self.size)
        states = InducingState(LowRankState(roots, centres), nothing)
        return FactoredPosterior(self, jnp.zeros((len(self.X), self.size)), nothing, states)

    def _resized_rows(self, size: int) -> dict[str, Any]:
        return {**super()._resized_rows(size), "residual": as_array(pad_rows(self.residual, size))}

    def residual_variance(self) -> Float[Array, " n"]:
        """See LatentPrior."""
        return self.residual

    def for_sampling(self) -> FICPrior:
        """See LatentPrior."""
        return FICPrior(inducing_points_of(self), self.residual)

    def _diagonal(self) -> Array:
        return super()._diagonal() + self.residual

    def _condition(self, h: Array, w: Array) -> Any:
        return InducingState(super()._condition(h, w), 0.5 * w @ self.residual)

    def _moments(self, state: Any) -> tuple[Array, Array]:
        mean, variance = super()._moments(state.span)
        return mean, variance + self.residual

    def _log_normalizer(self, state: Any, h: Array) -> Array:
        return super()._log_normalizer(state.span, h) - state.loss

    def _divergence(self, state: Any, w: Array, mean: Array, variance: Array) -> Array:
        return super()._divergence(state.span, w, mean, variance - self.residual)

    def _mean_and_deviation(self, state: Any, noise: Array) -> tuple[Array, Array]:
        return super()._mean_and_deviation(state.span, noise)

    def _covariance(self, state: Any) -> Array:
        return super()._covariance(state.span)

    def _predict(self, state: Any, cross: tuple[Array, Array]) -> tuple[Array, Array]:
        return super()._predict(state.span, cross)

    def _cross_covariance(self, state: Any, cross: tuple[Array, Array]) -> Array:
        return super()._cross_covariance(state.span, cross)

    def _covariance_at(self, state: Any, X_new: Array, cross: tuple[Array, Array]) -> Array:
        return super()._covariance_at(state.span, X_new, cross)


def inducing_at(
    kernel: Any, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int
) -> InducingPointPrior:
    """The prior with given inducing inputs; usable under ``jit``."""
    return _chosen(len(X), len(span.Z))(kernel, mean, X, span, size)


def _chosen(n: int, r: int) -> Callable[..., InducingPointPrior]:
    """The constructor of the prior that fits into memory."""
    return _held_at if n * r <= HELD else chunked_prior_at


def _held_at(kernel: Any, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int) -> InducingPrior:
    """See ``inducing_at``."""
    return _with_residual(low_rank_at(kernel, mean, X, span, size))


def inducing_by_root(
    kernel: Any, mean: Array, X: Float[Array, "n d"], Z: Float[Array, "r d"], size: int
) -> InducingPrior:
    """The prior with given inducing inputs at any value of the hyperparameters; usable under ``jit``.

    The jitter is fixed at 1e-8 of the mean variance at Z.
    """
    root, jitter = whitened_root(kernel, Z)
    A, ones = solve_columns(root, kernel(Z, X)), jnp.ones(len(Z))
    return _with_residual(
        LowRankPrior(
            kernel=kernel, mean=mean, X=X, A=A, Z=Z, root=root, active=ones, truncation_error=jitter, size=size
        )
    )


def inducing_points_at(kernel: Any, Z: Any, max_error: float = np.inf) -> InducingPoints:
    """Inducing inputs padded to few sizes, and the smallest jitter, from 1e-12 on, with which K(Z, Z) has a root.

    A smaller ``max_error`` lowers the first jitter. With jitter the inducing variables are f(Z) plus noise: the bound
    remains valid, and continuous in the hyperparameters even for nearly redundant inputs.
    Raises ValueError as ``Representation.bind`` does.
    """
    K = np.asarray(gram(kernel, as_array(Z)))
    check_gram(kernel, K)
    variances = own_variances(np.diagonal(K))
    least = float(np.clip(max_error / variances.max(), ROUNDING, _JITTER * max(1.0, len(Z) / _MANY) ** 2))
    # A factor of two leaves a margin for other linear algebra libraries.
    ladder = 0.5 * least * _STEP ** np.arange(np.ceil(np.log(JITTERS[-1] / least) / np.log(_STEP)) + 1)
    jitter = 2.0 * jittered_root(kernel, K / np.sqrt(np.outer(variances, variances)), tuple(ladder))[2]
    rank = -(-len(Z) // RANK_MULTIPLE) * RANK_MULTIPLE
    padded = np.pad(np.asarray(Z), ((0, rank - len(Z)), (0, 0)), mode="edge")
    return InducingPoints(as_array(padded), as_array((np.arange(rank) < len(Z)).astype(np.float64)), as_array(jitter))


@dataclass(frozen=True, repr=False)
class Inducing(Representation):
    """Inducing inputs: a sparse variational posterior of the latents, in O(n M^2) time per iteration.

    Parameters
    ----------
    inputs : int, "auto" or array_like, shape (M, d)
        The number of inducing inputs, or the inputs. ``"auto"`` increases their number until the ELBO gains less than
        0.05 nats, up to 1,000; ``Inducing(500, "auto")`` up to 500.
    select : str, optional
        How inputs are chosen from the rows of X:

        - ``"heteroscedastic"`` (the default): alternately with the posterior, the row with the largest residual prior
          variance times the precision of its site, as long as the ELBO is above that of ``"kmeans"``;
        - ``"kmeans"``: centres of k-means, with columns scaled so that the kernel changes equally fast along each, or
          rows if the centres fall between the levels of a group or an index;
        - ``"uniform"``: rows drawn at random;
        - ``"variance"``: greedily, the row with the largest residual prior variance;
        - ``"merged"``: as ``"heteroscedastic"``, by the sites of the augmented bound whatever the objective, such as
          ``fit(objective="expected")``, whose ELBO decides;
        - ``"GV"`` and ``"HGV"``, greedy variance and heteroscedastic greedy variance as published: rows as in
          ``"variance"``, or by their residual variance times the precisions of the current sites (equal ones for the
          first choice). Up to 10 times, the posterior is optimised (by ``fit`` with the hyperparameters), and new rows
          replace the last, even if they lower the ELBO;
        - ``"auto"``: as ``"heteroscedastic"``, with the number chosen too.

        With the others, ``fit`` chooses again at the learned hyperparameters, and keeps the new inputs if the ELBO is
        higher.

    Raises
    ------
    ValueError
        For inputs of a wrong shape, and an unknown selection.

    Notes
    -----
    The ELBO is below that of the exact prior, and never decreases with another inducing input. If X has no more
    distinct rows than ``inputs``, all of them are taken, and the form is exact. The covariance of the inducing inputs
    has a jitter of 1e-12 of the variances, so that nearly equal inputs do no harm (see ``inducing_points_at``).

    The factor takes 8 n M bytes. Beyond 128 MB (56,000 rows with M = 300) it is not stored: each pass over the data
    computes it again in chunks, which takes no longer, in O(n + M^2) memory. ``gibbs`` and ``correct`` store it in any
    case.

    References
    ----------
    Titsias 2009; Burt, Rasmussen and van der Wilk 2020; Passerello 2021; math, section 7.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> model = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.RBF(), form=pgm.Inducing(12)))
    >>> vi = pgm.cavi(model, X, np.sin(X[:, 0]))
    >>> bool(np.allclose(vi.mean, pgm.cavi(model.with_form(pgm.Dense()), X, np.sin(X[:, 0])).mean, atol=0.01))
    True
    """

    can_pad: ClassVar[bool] = True
    # In the generative model, the residuals of rows are independent.
    shares: ClassVar[bool] = False
    least_subset: ClassVar[int | None] = 5_000

    inputs: int | tuple[tuple[float, ...], ...]
    select: Selection | None = None
    # The seed of random selections, set by engines.
    seed: int = field(default=0, init=False)

    def __init__(self, inputs: InducingInputs, select: Selection | None = None):
        if isinstance(inputs, str) and inputs == AUTOMATIC and select is None:
            inputs, select = _LIMIT, AUTOMATIC
        if np.ndim(inputs) == 0:
            check_whole_number(inputs, "inputs of Inducing, if not an array (M, d),", 1)
            if select is not None and not (isinstance(select, str) and select in SELECTIONS):
                raise ValueError(f"select must be one of {', '.join(map(repr, SELECTIONS))}; got {select!r}.")
            object.__setattr__(self, "inputs", int(np.asarray(inputs)))
            object.__setattr__(self, "select", select or DEFAULT)
        else:
            if select is not None:
                raise ValueError(f"select={select!r} has no effect with given inputs: pass a number of inputs.")
            object.__setattr__(self, "inputs", _rows(inputs))
            object.__setattr__(self, "select", None)

    def __repr__(self) -> str:
        if isinstance(self.inputs, int):
            if (self.inputs, self.select) == (_LIMIT, AUTOMATIC):
                return f"Inducing({AUTOMATIC!r})"
            return f"Inducing({self.inputs})" if self.select == DEFAULT else f"Inducing({self.inputs}, {self.select!r})"
        return f"Inducing(<{len(self.inputs)} inputs>)"

    def with_seed(self, seed: int) -> "Inducing":
        """See Representation."""
        other = copy(self)
        object.__setattr__(other, "seed", seed)
        return other

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """See Representation."""
        return self.select in ADAPTIVE

    @property
    def selects_by_augmentation(self) -> bool:  # type: ignore[override]
        """See Representation."""
        return self.select == MERGED

    @property
    def takes_every_choice(self) -> bool:  # type: ignore[override]
        """See Representation."""
        return self.select in PUBLISHED

    @property
    def is_automatic(self) -> bool:  # type: ignore[override]
        """See Representation."""
        return self.select == AUTOMATIC

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        """See Representation."""
        return self.inputs if isinstance(self.inputs, int) else len(self.inputs)

    def with_inputs(self, Z: Any) -> "Inducing":
        """See Representation."""
        return Inducing(Z)

    def asks_for_more(self, kernel: Any, X: Any, weights: np.ndarray, count: int) -> bool:
        """See Representation."""
        if not self.is_automatic or count != self.inputs:
            return False
        return len(Inducing(count + 1, AUTOMATIC).choose(kernel, X, weights)) > count

    def choose(self, kernel: Any, X: Any, weights: np.ndarray | None = None) -> np.ndarray:
        """See Representation."""
        X = np.asarray(X, dtype=np.float64)
        if not isinstance(self.inputs, int) or self.select is None:
            Z = np.asarray(self.inputs)
            if Z.shape[1] != X.shape[1]:
                raise ValueError(
                    f"inputs of Inducing have {Z.shape[1]} column(s) and X has {X.shape[1]}: give inducing inputs with "
                    "the columns of X, or their number."
                )
            return Z
        distinct = distinct_rows(X)
        if len(distinct) <= self.inputs and self.select != AUTOMATIC:
            return X[distinct]
        count = min(self.inputs, len(distinct))
        return SELECTIONS[self.select](bare_arrays(kernel), X, count, weights if self.adapts else None, self.seed)

    def bind(self, kernel: Any, mean: Any, X: Any, size: int, max_error: float = np.inf) -> InducingPointPrior:
        """See Representation."""
        Z = self.choose(kernel, X)
        kernel, mean, X = bare_arrays(kernel), jnp.asarray(mean, dtype=jnp.float64), jnp.asarray(X, dtype=jnp.float64)
        span = inducing_points_at(kernel, Z, max_error)
        prior = _bound(_chosen(len(X), len(span.Z)), kernel, mean, X, span, size)
        check_new_inputs(prior, np.asarray(X), "X (without repeated rows)")
        return prior

    def bind_traced(
        self, kernel: Any, mean: Array, X: Float[Array, "n d"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> InducingPrior:
        """See Representation and ``inducing_by_root``."""
        del row_mask
        if isinstance(self.inputs, int):
            raise ValueError(f"the inducing inputs of {self!r} cannot be chosen in compiled code: pass an array.")
        return inducing_by_root(kernel, mean, X, as_array(np.asarray(self.inputs)), size)

    def bind_at(
        self, kernel: Any, mean: Array, X: Float[Array, "n d"], points: InducingPoints, size: int
    ) -> InducingPointPrior:
        """See Representation and ``inducing_at``."""
        return inducing_at(kernel, mean, X, points, size)

    def bind_traced_for_moments(
        self, kernel: Any, mean: Array, X: Float[Array, "n d"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> InducingPrior:
        """See Representation."""
        return self.bind_traced(kernel, mean, X, size, row_mask)


def _with_residual(span: LowRankPrior) -> InducingPrior:
    residual = with_residual(span.A, span.kernel.diagonal(span.X))[1]
    return InducingPrior(**{field.name: getattr(span, field.name) for field in fields(span)}, residual=residual)


def _is_large(at: Callable[..., Any], kernel: Any, mean: Array, X: Array, span: InducingPoints, size: int) -> bool:
    return len(X) * len(span.Z) > _LIGHT


@partial(compiled, static_argnames=("at", "size"), optimise=_is_large)
def _bound(
    at: Callable[..., Any], kernel: Any, mean: Array, X: Array, span: InducingPoints, size: int
) -> InducingPointPrior:
    return at(kernel, mean, X, span, size)


def _rows(inputs: Any) -> tuple[tuple[float, ...], ...]:
    """Distinct inducing inputs as numbers. Raises ValueError for other values."""
    try:
        Z = np.asarray(inputs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"inputs of Inducing must be numbers (M, d), or their number; got {shorten(inputs)}."
        ) from error
    if Z.ndim != 2 or not Z.size:
        raise ValueError(f"inputs of Inducing must have shape (M, d), one row per input; got shape {Z.shape}.")
    bad = np.argwhere(~np.isfinite(Z))
    if bad.size:
        raise ValueError(f"inputs of Inducing must be finite; row {bad[0][0]} is {shorten(Z[bad[0][0]].tolist())}.")
    return tuple(map(tuple, Z[distinct_rows(Z)].tolist()))
