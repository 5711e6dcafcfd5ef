"""Objectives of variational inference: the base class, and tangent, additive, Gumbel and Taylor bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr, ndtr
from jax.typing import ArrayLike

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.operations import Largest
from pgmodels.numerics.elementary import log_probability_of_largest
from pgmodels.priors.chain_posterior import push_values
from pgmodels.runtime.precision import as_array

if TYPE_CHECKING:
    from pgmodels.augmentation.predictors import Predictors

# The values of a likelihood's parameters, by name: numbers, or arrays that broadcast against the latents.
Parameters: TypeAlias = Mapping[str, ArrayLike]
# A term of each datum as a function of means and variances, or covariances, of its predictors.
Bound: TypeAlias = Callable[[Array, Array], Array]


def sites_from(m: Array, by_mean: Array, by_variance: Array) -> tuple[Array, Array]:
    """Return the sites from the derivatives of B in means and variances."""
    w = -2.0 * by_variance
    return by_mean + w * m, w


def bound_and_sites_of(bound: Bound, m: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return the values of a bound B (n,) and its sites at means m and variances v (n, P), or covariances v (n, P, P).

    The sites are h = ∂B/∂m and w = -2 ∂B/∂s, s = v + m^2, or W = -2 ∂B/∂V, (n, P, P), for covariances. The bound is
    evaluated once for both.
    """

    def total(m: Array, v: Array) -> tuple[Array, Array]:
        values = bound(m, v)
        return jnp.sum(values), values

    (_, values), (by_mean, by_spread) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(m, v)
    if v.ndim == 2:
        return values, *sites_from(m, by_mean, by_spread)
    W = -(by_spread + jnp.swapaxes(by_spread, 1, 2))
    return values, by_mean + jnp.einsum("ipq,iq->ip", W, m), W


class Objective(ABC):
    """A term B(m, v) per datum, a function of the marginal means and variances of its predictors under q(f).

    Subclasses implement ``local_bound``. Class attributes or properties describe them to engines; no other code depends
    on their name or class. Laws: if ``is_maximised``, sites and Hessians are derivatives of ``local_bound``. If
    ``is_bound``, the sum of terms minus KL(q || prior), the ELBO, is at most log p(y). If ``is_monotone``, a step to
    the sites at the current marginals never lowers the ELBO.

    ``size`` is the number of predictors, which are the latents themselves if ``predictors`` is None. Equal objectives
    share compiled code: a subclass with options must define __eq__ and __hash__ accordingly, or be a frozen dataclass.
    """

    size: int
    predictors: Predictors | None = None
    # The name in results and files; for reports, the ELBO's terms, and the method that maximises the ELBO.
    name: str = "custom"
    title: str = "a custom objective"
    method: str = "Variational inference"
    # Whether B is exactly E log p(y | f), and not a bound of it.
    is_exact: bool = False
    # Whether the sites are independent of q; one sweep is then exact.
    has_fixed_sites: bool = False
    # Whether the sites maximise the ELBO. Otherwise, steps are accepted by the log posterior density at q's mean, for
    # which the objective has ``predictor_log_density``. Hyperparameters are then learned only by the scheme
    # "alternating".
    is_maximised: bool = True
    # Whether sites may have negative precisions.
    signed: bool = False
    # Whether terms level off in the latents: without curvature, a full step overshoots.
    saturates: bool = False
    # Whether ``local_bound`` accepts the covariances (n, predictors, predictors) of the predictors of each datum.
    takes_covariances: bool = False
    # Whether full steps never lower the ELBO, as for bounds by auxiliary variables.
    is_monotone: bool = False
    # Whether B is a bound by auxiliary variables, whose law given f is known.
    has_auxiliaries: bool = False
    # Evaluations of the log density in a term; they determine how far programs are optimised.
    num_nodes: int = 1

    @property
    def _identity(self) -> Hashable:
        """A value that is equal for equal objectives; by default no two objectives are equal."""
        return id(self)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objective) and self._identity == other._identity

    @property
    def is_bound(self) -> bool:
        """Whether the ELBO is a lower bound of log p(y); by default, if sites maximise it."""
        return self.is_maximised

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The blocks of predictors that are updated jointly; by default one block of all predictors."""
        return (tuple(range(self.size)),)

    @property
    def num_latents(self) -> int:
        """The number of latents; equal to ``size`` if no factor combines latents."""
        return self.size if self.predictors is None else self.predictors.num_latents

    def latents_of(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """Return the latents that a block of predictors depends on."""
        return block if self.predictors is None else self.predictors.latents_of(block)

    def stochastic(self) -> Objective:
        """Return the objective for steps on minibatches, whose terms may be noisy if they are unbiased."""
        return self

    def reduced(self) -> Objective:
        """Return the objective with fewer quadrature nodes, for differences between close marginals."""
        return self

    def for_batch(self, num_previous_rows: Array) -> Objective:
        """Return the objective of a minibatch; ``num_previous_rows`` of earlier ones seeds its samples for each row."""
        return self

    def tangent(self) -> Tangent:
        """Return the bound for steps on a subset of the latents. Raises ValueError if there is none."""
        raise ValueError(
            f"class_batch_size cannot be combined with objective={self.name!r}: remove one of them, or choose "
            "objective='gumbel' for pgm.Softmax or 'augmented' for pgm.LogisticSoftmax."
        )

    def predictor_log_density(self, y: Array, z: Array, parameters: Parameters) -> Array:
        """Return log p(y | f) of each datum at predictors z (n, P); required unless ``is_maximised``."""
        raise NotImplementedError(f"{type(self).__name__} has no predictor_log_density, which its steps need.")

    @abstractmethod
    def local_bound(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        """Return B of each datum under f ~ N(m, v), (n, predictors) each; shape (n,) (math: section 1)."""

    def local_sites(self, m: Array, v: Array, y: Array, parameters: Parameters) -> tuple[Array, Array]:
        """Return the sites h = ∂B/∂m, w = -2 ∂B/∂s at q's marginals, s = v + m^2, shapes (n, predictors)."""
        return bound_and_sites_of(lambda m, v: self.local_bound(m, v, y, parameters), m, v)[1:]

    def local_bound_and_sites(self, m: Array, v: Array, y: Array, parameters: Parameters) -> tuple[Array, Array, Array]:
        """Return B and the sites h, w at the same marginals; override to share work between them."""
        return self.local_bound(m, v, y, parameters), *self.local_sites(m, v, y, parameters)

    def local_bound_sites_and_coupling(
        self, m: Array, v: Array, y: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array, Array | None]:
        """Return B, the sites h, w, and the coupling that sites of independent predictors leave out, at the marginals.

        The coupling is minus the second derivatives of B in the means of two predictors, zero on the diagonal,
        (n, P, P). Steps towards the sites need it only approximately; None omits it.
        """
        return *self.local_bound_and_sites(m, v, y, parameters), None

    def second_derivatives(self, m: Array, v: Array, y: Array, parameters: Parameters) -> tuple[Array, Array]:
        """Return the gradient of each datum's B in u, (n, R), and the Hessian in (m, u), (n, P + R, P + R).

        u are the variances v (n, P), or the upper triangle of covariances v (n, P, P), row by row.
        """
        size, coupled = self.size, v.ndim == 3
        rows, columns = np.triu_indices(size)
        u = v[:, rows, columns] if coupled else v

        def bound(point: Array, y_i: Array) -> Array:
            m, u = point[:size], point[size:]
            V = jnp.zeros((size, size), u.dtype).at[rows, columns].set(u).at[columns, rows].set(u) if coupled else u
            return self.local_bound(m[None], V[None], y_i[None], parameters)[0]

        def derivatives(point: Array, y_i: Array) -> tuple[Array, Array]:
            return jax.jacfwd(lambda point: (jax.grad(bound)(point, y_i),) * 2, has_aux=True)(point)

        points, n = jnp.concatenate([m, u], axis=1), len(m)
        # Chunks of equal length, the last one padded with copies of the last row, need one program and little memory.
        length = min(64, n)
        rows_of = np.minimum(np.arange(n + -n % length), n - 1).reshape(-1, length)
        pieces = jax.lax.map(lambda piece: jax.vmap(derivatives)(points[piece], as_array(y)[piece]), rows_of)
        H, slopes = (part.reshape(-1, *part.shape[2:])[:n] for part in pieces)
        return slopes[:, size:], H

    def hessian_of_datum(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        """Return the Hessian of each datum's B in (m, s) of all predictors, shape (n, predictors, 2, predictors, 2)."""

        def bound(shift: Array, m_i: Array, v_i: Array, y_i: Array) -> Array:
            dm, ds = shift[:, 0], shift[:, 1]
            # s = v + m^2: v changes by ds - 2 m dm - dm^2, without a difference of large squares.
            shifted = v_i + ds - 2.0 * m_i * dm - dm**2
            return self.local_bound((m_i + dm)[None], shifted[None], y_i[None], parameters)[0]

        zeros = jnp.zeros((self.size, 2), m.dtype)
        return jax.vmap(partial(jax.hessian(bound), zeros))(m, v, as_array(y))


class Tangent(ABC):
    """A lower bound of an objective with -p log S, where S = constant + Σ_c S_c(m_c, v_c) and S_c > 0.

    -log S >= 1 - S / S0 - log S0, equal at S = S0. The ``log_scale`` is log S0 of each datum; given it, the bound is
    ``rest`` + Σ_c ``terms``. A step on a subset of the latents needs only their terms. With a random scale its
    expectation is still a lower bound, below the objective by p E[S / S0 - 1 - log(S / S0)].

    ``size`` is the number of latents. Equal tangents share compiled code: a subclass must define __eq__ and __hash__.
    Methods accept the means, variances and indices of a subset of the latents; the indices may differ between data.
    """

    size: int

    @abstractmethod
    def selected(self, y: Array, parameters: Parameters) -> tuple[Array, Array]:
        """Return the latents that the data select, as y in f[y], (n, indices), and a mask, 0 at repetitions."""

    @abstractmethod
    def constant(self, y: Array, parameters: Parameters) -> Array:
        """Return the constant term of S, (n,)."""

    @abstractmethod
    def log_sums(self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array) -> Array:
        """Return log S_c of a subset of latents, (n, latents)."""

    @abstractmethod
    def terms(self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array, log_scale: Array) -> Array:
        """Return the terms of the bound of a subset of latents, (n, latents)."""

    @abstractmethod
    def rest(self, y: Array, parameters: Parameters, log_scale: Array) -> Array:
        """Return the term of the bound that is free of the latents, (n,)."""

    def sites(
        self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array, log_scale: Array
    ) -> tuple[Array, Array]:
        """Return the sites of a subset of latents, (n, latents) each; see ``Objective.local_sites``."""
        return bound_and_sites_of(lambda m, v: self.terms(m, v, y, parameters, latents, log_scale), m, v)[1:]


class FormulaObjective(Objective):
    """An objective whose terms bound or approximate E log p(y | f) of a ``formula`` over its predictors."""

    formula: Expression

    @property
    def _identity(self) -> Hashable:
        return type(self), self.formula.key, self.size

    def predictor_values(self, f: Array, y: Array, parameters: Parameters) -> Array:
        """Return the predictors at latent values (..., n, latents): the same values if no factor combines latents."""
        return f if self.predictors is None else push_values(self.predictors.matrix(y, parameters), f)

    def log_density(self, y: Array, f: Array, parameters: Parameters) -> Array:
        """Return log p(y | f) of each datum, shape (..., n), from the formula itself."""
        return self.predictor_log_density(y, self.predictor_values(f, y, parameters), parameters)

    def predictor_log_density(self, y: Array, z: Array, parameters: Parameters) -> Array:
        """Return log p(y | f) as a function of the predictors (..., n, predictors)."""
        return self.formula.log_evaluate(Environment(y, z, parameters))[..., 0]


# Events that Gaussian latents determine, plus independent Gaussian noise. ``key`` identifies an event's formula, and
# ``is_noisy`` is True if there is noise.


class Threshold:
    """The event scale * f + shift + noise > 0, with f the only latent or predictor and noise N(0, ``noise``)."""

    def __init__(self, scale: Expression, shift: Expression, noise: float):
        self.scale, self.shift, self.noise = scale, shift, noise
        self.key, self.is_noisy = ("threshold", scale.key, shift.key, noise), noise > 0

    def _standardised(self, m: Array, v: Array, env: Environment) -> Array:
        scale, shift = (jnp.broadcast_to(part.evaluate(env), m.shape)[:, 0] for part in (self.scale, self.shift))
        # At zero variance the derivative would be infinite.
        spread = jnp.maximum(scale**2 * v[:, 0] + self.noise, 1e-24)
        return (scale * m[:, 0] + shift) / jnp.sqrt(spread)

    def log_probabilities(self, m: Array, v: Array, env: Environment) -> tuple[Array, Array]:
        """Return log P(event) and log P(no event) for latents N(m, v), (n, 1) each; shapes (n,)."""
        z = self._standardised(m, v, env)
        return log_ndtr(z), log_ndtr(-z)

    def probability(self, m: Array, v: Array, env: Environment) -> Array:
        """Return P(event), (n,)."""
        return ndtr(self._standardised(m, v, env))


class TopLatent:
    """The event that one latent, given by its index, is the largest after noise is added to all latents."""

    def __init__(self, node: Largest):
        self.node = node
        self.key, self.is_noisy = node.key, not node.is_indicator

    def log_probabilities(self, m: Array, v: Array, env: Environment) -> tuple[Array, Array]:
        """Return log P(event) and log P(no event) for latents N(m, v), (n, P) each; shapes (n,)."""
        log_p = log_probability_of_largest(m, v + self.node.noise.evaluate(env), self.node.chosen(env))[..., 0]
        return log_p, jnp.log1p(-jnp.exp(log_p))

    def probability(self, m: Array, v: Array, env: Environment) -> Array:
        """Return P(event), (n,)."""
        return jnp.exp(self.log_probabilities(m, v, env)[0])


Event: TypeAlias = Threshold | TopLatent


@dataclass(eq=False)
class AdditiveNoise(Objective):
    """B = S log p₁ + (1 - S) log p₀ for p(y | f) = p₀ + (p₁ - p₀) P(event | f), with S = P(event) under q.

    p₁ and p₀ are free of the latents, which are independent under q. The event's noise is part of the latents: B is
    E log p(y | g) over f ~ N(m, v) and g = f + noise. It is below E log p(y | f) unless there is no noise (math:
    section 6). Precisions are negative in rows on the wrong side. Source: Liu et al. 2019, equations 5 to 19.
    """

    name = "additive_noise"
    title = "the bound with additive noise"
    method = "Variational inference with additive noise"
    signed = True
    saturates = True

    event: Event
    if_so: Expression
    if_not: Expression
    size: int
    predictors: Predictors | None = None

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        """Whether B is E log p(y | f), since there is no noise."""
        return not self.event.is_noisy

    @property
    def _identity(self) -> Hashable:
        return type(self), self.event.key, self.if_so.key, self.if_not.key, self.size, self.num_latents

    def local_bound(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        env = Environment(y, jnp.zeros_like(m), parameters)
        one, zero = self._log_outcomes(env)
        return zero + self.event.probability(m, v, env) * (one - zero)

    def local_bound_and_sites(self, m: Array, v: Array, y: Array, parameters: Parameters) -> tuple[Array, Array, Array]:
        """Compute the integral of the largest latent once for both."""
        return bound_and_sites_of(lambda m, v: self.local_bound(m, v, y, parameters), m, v)

    def log_marginal(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        """Return log E p(y | f) of each datum for latents or predictors N(m, v), (n, size) each; shape (n,)."""
        env = Environment(y, jnp.zeros_like(m), parameters)
        one, zero = self._log_outcomes(env)
        log_p, log_rest = self.event.log_probabilities(m, v, env)
        return jnp.logaddexp(one + log_p, zero + log_rest)

    def _log_outcomes(self, env: Environment) -> tuple[Array, Array]:
        """log p₁ and log p₀, (n,)."""
        one, zero = (part.log_evaluate(env)[..., 0] for part in (self.if_so, self.if_not))
        return one, zero


class ExpectedIndicator(AdditiveNoise):
    """The expected log density of a formula that is affine in one indicator of independent latents."""

    name = "expected"
    title = "the expected log density"
    method = "The variational Gaussian"

    def is_concave(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        """Return False for each datum, (n,): a log density that jumps is not concave."""
        return jnp.zeros(len(m), dtype=bool)


@dataclass(frozen=True)
class Gumbel(Objective):
    """B = -log(1 + Σ_{c != y} E exp(f_c - f_y)) <= E log softmax(f)_y, by Jensen's inequality.

    The latents are independent under q: E exp(f_c - f_y) = exp(m_c - m_y + (v_c + v_y) / 2) for a datum's class y. It
    is concave in m and v, so that the ELBO has one optimum. It is loose for large variances. Example with two classes
    of equal means and variances 9 and 0: B is -4.5, and E log p is -1.4.

    Source: Liu et al. 2019, equations 20 to 26 (GPCsm).
    """

    name = "gumbel"
    title = "the Gumbel bound"
    method = "Variational inference with Gumbel noise"

    size: int

    def local_bound(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        chosen = _is_class(y, jnp.arange(self.size))

        def of_class(values: Array) -> Array:
            return jnp.sum(jnp.where(chosen, values, 0.0), axis=1, keepdims=True)

        # log E exp(f_c - f_y); 0 for c = y.
        logs = jnp.where(chosen, 0.0, m - of_class(m) + 0.5 * (v + of_class(v)))
        return -jax.nn.logsumexp(logs, axis=1)

    def tangent(self) -> GumbelTangent:
        return GumbelTangent(self.size)


@dataclass(frozen=True)
class GumbelTangent(Tangent):
    """The tangent of the Gumbel bound, B = m_y - v_y / 2 - log S.

    S has the term S_y = exp(m_y - v_y / 2) of a datum's class, and S_c = exp(m_c + v_c / 2) of each other class. With
    P = Σ_{c != y} E exp(f_c - f_y), the tangent is -(1 + P) / θ - log θ + 1 at θ = S0 / S_y (Liu et al. 2019, equation
    24). The paper holds θ when latents move. Here S0 is held: no term couples two latents, and sites do not need P.
    Precisions are S_c / S0, and 1 - S_y / S0 of the class; it is negative if S0 < S_y, but S0 = S_y is then better.
    """

    size: int

    def selected(self, y: Array, parameters: Parameters) -> tuple[Array, Array]:
        chosen = as_array(y)[:, None].astype(int)
        return chosen, jnp.ones(chosen.shape)

    def constant(self, y: Array, parameters: Parameters) -> Array:
        return jnp.zeros(len(y))

    def log_sums(self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array) -> Array:
        return m + jnp.where(_is_class(y, latents), -0.5, 0.5) * v

    def terms(self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array, log_scale: Array) -> Array:
        logs = self.log_sums(m, v, y, parameters, latents)
        return jnp.where(_is_class(y, latents), logs, 0.0) - jnp.exp(logs - log_scale[:, None])

    def rest(self, y: Array, parameters: Parameters, log_scale: Array) -> Array:
        return 1.0 - log_scale


def _is_class(y: Array, latents: Array) -> Array:
    """Return whether each latent belongs to the datum's class, (n, latents)."""
    return as_array(y)[:, None] == latents


class Taylor(FormulaObjective):
    """B = log p(y | m) + tr(H V) / 2, H the Hessian of log p(y | f) at q's mean m, for any formula without kinks.

    Its sites h = g - H m and w = -H are derivatives of log p(y | f) at m, not of B. The fixed point is therefore the
    posterior's mode with the curvature at the mode. The sum of terms minus KL is Laplace's evidence, which is no bound.
    Steps are accepted if they raise the log posterior density at m. Precisions have any sign.

    Source: Izmailov and Kropotov 2017, section 4.2 (vi-Taylor), for one latent; Rasmussen and Williams 2006, algorithms
    3.1 and 3.3.
    """

    name = "taylor"
    title = "Laplace's evidence"
    method = "Laplace's approximation"
    is_maximised = False
    signed = True

    def __init__(self, formula: Expression, size: int, predictors: Predictors | None = None):
        self.formula, self.size, self.predictors = formula, size, predictors
        self.takes_covariances = size > 1

    def local_bound(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        """Return B of each datum; ``v`` may be covariances (n, P, P)."""
        return self.local_bound_and_sites(m, v, y, parameters)[0]

    def local_sites(self, m: Array, v: Array, y: Array, parameters: Parameters) -> tuple[Array, Array]:
        """Return the sites; if ``v`` are covariances, precisions are (n, P, P)."""
        return self.local_bound_and_sites(m, v, y, parameters)[1:]

    def local_bound_and_sites(self, m: Array, v: Array, y: Array, parameters: Parameters) -> tuple[Array, Array, Array]:
        """Return B, and sites that are derivatives of the log density."""

        def at(m_i: Array, y_i: Array) -> Array:
            return self.predictor_log_density(y_i[None], m_i[None], parameters)[0]

        def datum(m_i: Array, y_i: Array) -> tuple[Array, Array, Array]:
            return *jax.value_and_grad(at)(m_i, y_i), jax.hessian(at)(m_i, y_i)

        value, gradient, H = jax.vmap(datum)(m, as_array(y))
        if v.ndim == 2:
            curvature = jnp.diagonal(H, axis1=1, axis2=2)
            return value + 0.5 * jnp.sum(curvature * v, axis=1), gradient - curvature * m, -curvature
        bound = value + 0.5 * jnp.einsum("ipq,ipq->i", H, v)
        return bound, gradient - jnp.einsum("ipq,iq->ip", H, m), -H
