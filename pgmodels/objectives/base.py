"""The interface of local objectives: a bound term per datum, a function of predictor marginals, and its sites."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.runtime.x64 import as_array

if TYPE_CHECKING:
    from pgmodels.augmentation.predictors import Predictors
    from pgmodels.objectives.tangent import Tangent

# Rows whose second derivatives are computed at a time.
_ROWS = 64


def sites_from(m: Any, by_mean: Any, by_variance: Any) -> tuple[Any, Any]:
    """The sites from the derivatives of B in means and variances."""
    w = -2.0 * by_variance
    return by_mean + w * m, w


def bound_and_sites_of(bound: Callable[[Any, Any], Any], m: Any, v: Any) -> tuple[Any, Any, Any]:
    """The values of a bound B (n,) and its sites at means m and variances v (n, P), or covariances v (n, P, P).

    For covariances, precisions are W = -2 ∂B/∂V, (n, P, P). The bound is evaluated once for both.
    """

    def total(m: Any, v: Any) -> tuple[Any, Any]:
        values = bound(m, v)
        return jnp.sum(values), values

    (_, values), (by_mean, by_spread) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(m, v)
    if v.ndim == 2:
        return values, *sites_from(m, by_mean, by_spread)
    W = -(by_spread + jnp.swapaxes(by_spread, 1, 2))
    return values, by_mean + jnp.einsum("ipq,iq->ip", W, m), W


def sites_of(bound: Callable[[Any, Any], Any], m: Any, v: Any) -> tuple[Any, Any]:
    """The sites h = ∂B/∂m, w = -2 ∂B/∂s, s = v + m^2, of a bound B: see ``bound_and_sites_of``."""
    return bound_and_sites_of(bound, m, v)[1:]


class Objective(ABC):
    """A term B(m, v) per datum, a function of the marginal means and variances of its predictors under q(f).

    Subclasses implement ``local_bound`` and state what engines need to know as class attributes or properties; nothing
    else in the package asks for their name or class. Laws: sites and Hessians are derivatives of ``local_bound``; if
    ``is_bound``, the sum of terms minus KL(q || prior) is at most log p(y); if ``is_monotone``, a step to the sites at
    the current marginals never lowers that ELBO.

    ``size`` is the number of predictors, which are the latents themselves if ``predictors`` is None. Equal objectives
    share compiled code: a subclass with options must define __eq__ and __hash__ accordingly.
    """

    size: int
    predictors: Predictors | None = None
    # The name that results and files record; in reports, what the ELBO is a sum of, and the method that maximises it.
    name: str = "custom"
    title: str = "a custom objective"
    method: str = "Variational inference"
    # Whether the ELBO is a lower bound of log p(y).
    is_bound: bool = True
    # Whether B is E log p(y | f) itself, and not a bound of it.
    is_exact: bool = False
    # Whether sites are those that maximise the ELBO. If not, steps are accepted by the log posterior density at q's
    # mean, for which the objective has ``predictor_log_density``, and hyperparameters are learned by the scheme
    # "alternating" only.
    is_maximised: bool = True
    # Whether sites may have negative precisions.
    signed: bool = False
    # Whether terms level off in the latents: without curvature there, a full step overshoots.
    saturates: bool = False
    # Whether ``local_bound`` accepts the covariances (n, predictors, predictors) of the predictors of each datum.
    takes_covariances: bool = False
    # Whether full steps never lower the ELBO, as for bounds by auxiliary variables.
    is_monotone: bool = False
    # Whether B is a bound by auxiliary variables, whose law given f is known.
    has_auxiliaries: bool = False
    # Evaluations of the log density in a term, by which programs are compiled with more or less optimisation.
    num_nodes: int = 1

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Blocks of predictors that are updated jointly; by default one block of all."""
        return (tuple(range(self.size)),)

    @property
    def num_latents(self) -> int:
        """The number of latents; equal to ``size`` if no factor combines latents."""
        return self.size if self.predictors is None else self.predictors.num_latents

    def latents_of(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """The latents that a block of predictors depends on."""
        return block if self.predictors is None else self.predictors.latents_of(block)

    def stochastic(self) -> Objective:
        """The objective for steps on minibatches, whose terms may be noisy if they are unbiased."""
        return self

    def reduced(self) -> Objective:
        """The objective with fewer quadrature nodes, for differences between marginals that are close."""
        return self

    def for_batch(self, num_previous_rows: Any) -> Objective:
        """The objective of a minibatch; ``num_previous_rows`` in earlier ones seeds anything it samples per row."""
        return self

    def tangent(self) -> Tangent:
        """The bound for steps on a subset of the latents. Raises ValueError if there is none."""
        raise ValueError(
            f"class_batch_size cannot be combined with objective={self.name!r}: remove one of them, or choose "
            "objective='gumbel' for pgm.Softmax or 'augmented' for pgm.LogisticSoftmax."
        )

    def predictor_log_density(self, y: Any, z: Any, parameters: Mapping[str, Any]) -> Any:
        """log p(y | f) of each datum at predictors z (n, P); required unless ``is_maximised``."""
        raise NotImplementedError(f"{type(self).__name__} has no predictor_log_density, which its steps need.")

    @abstractmethod
    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """B of each datum under f ~ N(m, v), (n, predictors) each; shape (n,) (math: section 1)."""

    def local_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """The sites h = ∂B/∂m, w = -2 ∂B/∂s at q's marginals, s = v + m^2, shapes (n, predictors)."""
        return sites_of(lambda m, v: self.local_bound(m, v, y, parameters), m, v)

    def local_bound_and_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """B and the sites h, w at the same marginals; override to share work between them."""
        return self.local_bound(m, v, y, parameters), *self.local_sites(m, v, y, parameters)

    def local_bound_sites_and_coupling(
        self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]
    ) -> tuple[Any, Any, Any, Any]:
        """B, the sites h, w, and what sites of independent predictors leave out, at the same marginals.

        The latter is minus the second derivatives of B in the means of two predictors, zero on the diagonal, (n, P, P).
        Steps towards the sites need it only approximately; None does without.
        """
        return *self.local_bound_and_sites(m, v, y, parameters), None

    def second_derivatives(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """The gradient of each datum's B in u, (n, R), and the Hessian in (m, u), (n, P + R, P + R).

        u are the variances v (n, P), or the upper triangle of covariances v (n, P, P), row by row.
        """
        size, coupled = self.size, v.ndim == 3
        rows, columns = np.triu_indices(size)
        u = v[:, rows, columns] if coupled else v

        def bound(point: Any, y_i: Any) -> Any:
            m, u = point[:size], point[size:]
            V = jnp.zeros((size, size), u.dtype).at[rows, columns].set(u).at[columns, rows].set(u) if coupled else u
            return self.local_bound(m[None], V[None], y_i[None], parameters)[0]

        def derivatives(point: Any, y_i: Any) -> tuple[Any, Any]:
            return jax.jacfwd(lambda point: (jax.grad(bound)(point, y_i),) * 2, has_aux=True)(point)

        points, n = jnp.concatenate([m, u], axis=1), len(m)
        # In chunks of equal length, the last one padded with copies of the last row: one program, and little memory.
        rows_of = np.minimum(np.arange(n + -n % min(_ROWS, n)), n - 1).reshape(-1, min(_ROWS, n))
        pieces = jax.lax.map(lambda piece: jax.vmap(derivatives)(points[piece], as_array(y)[piece]), rows_of)
        H, slopes = (part.reshape(-1, *part.shape[2:])[:n] for part in pieces)
        return slopes[:, size:], H

    def local_hessian(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The Hessian of each datum's B in (m_p, s_p) of one predictor p at a time, shape (n, predictors, 2, 2)."""
        index = jnp.arange(self.size)
        return jnp.moveaxis(self.hessian_of_datum(m, v, y, parameters)[:, index, :, index, :], 0, 1)

    def hessian_of_datum(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The Hessian of each datum's B in (m, s) of all predictors, shape (n, predictors, 2, predictors, 2)."""

        def bound(shift: Any, m_i: Any, v_i: Any, y_i: Any) -> Any:
            dm, ds = shift[:, 0], shift[:, 1]
            # s = v + m^2: v changes by ds - 2 m dm - dm^2, without a difference of large squares.
            shifted = v_i + ds - 2.0 * m_i * dm - dm**2
            return self.local_bound((m_i + dm)[None], shifted[None], y_i[None], parameters)[0]

        def one(m_i: Any, v_i: Any, y_i: Any) -> Any:
            return jax.hessian(bound)(jnp.zeros((self.size, 2), m.dtype), m_i, v_i, y_i)

        return jax.vmap(one)(m, v, as_array(y))
