"""Brute-force references for the engines: optima, responses and expansions by independent methods."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize

from pgmodels.inference import cavi as natural_gradient
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites


def best_gaussian(case, roots, means, y, start):
    """Mean and variance (n, latents) of the Gaussian of the highest ELBO with the registry's own bound, and that ELBO.

    L-BFGS on the mean and the Cholesky root of a Gaussian over all n * latents whitened coordinates at once. It starts
    a tenth to a half of a prior standard deviation away from the result under test: not every ELBO is concave, and
    another local maximum would not be comparable. ``roots`` (latents, n, n) are those of the prior covariances,
    ``means`` (latents,).
    """
    size, n, _ = roots.shape
    total = n * size
    rng = np.random.default_rng(0)
    lower = np.tril_indices(total, -1)
    observed = jnp.asarray(y)

    def unpack(x):
        R = jnp.zeros((total, total)).at[lower].set(x[2 * total :])
        return x[:total], R + jnp.diag(jnp.exp(x[total : 2 * total]))

    def marginals(x, Phi):
        a, R = unpack(x)
        shape = (size, n)
        m = means + jnp.einsum("lij,lj->il", roots, a.reshape(shape))
        deviations = jnp.einsum("lij,ljk->ilk", roots, R.reshape(*shape, total))
        return jnp.einsum("ipl,il->ip", Phi, m), jnp.sum(jnp.einsum("ipl,ilk->ipk", Phi, deviations) ** 2, axis=-1)

    def negative_elbo(x):
        a, R = unpack(x)
        m, v = marginals(x, case.matrix(y))
        kl = 0.5 * (jnp.sum(R**2) + jnp.sum(a**2) - total) - jnp.sum(x[total : 2 * total])
        return kl - jnp.sum(case.bound(m, v, observed))

    whitened = np.linalg.solve(roots, (start.mean - means).T[:, :, None]).ravel()
    prior = np.sum(roots**2, axis=2).T
    scale = np.sqrt(np.clip(start.variance / prior, 0.05, 1.0)).T.ravel()
    x = np.concatenate([whitened, np.log(scale), np.zeros(len(lower[0]))])
    x[:total] += rng.uniform(0.1, 0.5, total) * rng.choice([-1, 1], total)
    both = jax.jit(jax.value_and_grad(negative_elbo))
    options = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 40, "ftol": 1e-16, "gtol": 1e-8}
    solution = minimize(lambda x: tuple(map(np.asarray, both(x))), x, jac=True, method="L-BFGS-B", options=options)
    m, v = jax.jit(marginals)(solution.x, np.broadcast_to(np.eye(size), (n, size, size)))
    return np.asarray(m), np.asarray(v), -float(solution.fun)


class Tilted(Objective):
    """An objective plus t m: that of the posterior times exp(t z)."""

    def __init__(self, objective):
        self.objective, self.size, self.predictors = objective, objective.size, objective.predictors
        self.takes_covariances = objective.takes_covariances

    @property
    def blocks(self):
        return self.objective.blocks

    def local_bound(self, m, v, y, parameters):
        untilted = {name: value for name, value in parameters.items() if name != "tilt"}
        return self.objective.local_bound(m, v, y, untilted) + jnp.sum(parameters["tilt"] * m, axis=-1)

    def local_sites(self, m, v, y, parameters):
        untilted = {name: value for name, value in parameters.items() if name != "tilt"}
        h, w = self.objective.local_sites(m, v, y, untilted)
        return h + parameters["tilt"], w

    def __hash__(self):
        return hash(self.objective)

    def __eq__(self, other):
        return isinstance(other, Tilted) and self.objective == other.objective


# Damped steps converge where full ones oscillate, to the last digit, beyond the resolution of the bound.
STEPS, LENGTH = 300, 0.7
# The remaining error is a few times the last step; differences divide it by tilts of 0.02.
CONVERGED = 1e-13


@jax.jit
def fixed_point(problem, sites):
    """The fixed point near the given sites, by damped iteration without the bound."""

    def advance(state):
        count, _, (before, variance, sites) = state
        mean = before
        for block in problem.objective.blocks:
            h, W = problem.sites(mean, variance)
            positive = W if problem.coupled else natural_gradient.positive_part(W)
            toward = h - natural_gradient.pull(W - positive, mean), positive
            in_block = np.isin(np.arange(problem.objective.size), block)
            length = jnp.where(in_block, LENGTH, 0.0)
            lengths = length, length[:, None] * length / LENGTH if problem.coupled else length
            sites = Sites(*(now + part * (then - now) for now, then, part in zip(sites, toward, lengths, strict=True)))
            mean, variance, *_ = problem.moments(sites)
        return count + 1, jnp.max(jnp.abs(mean - before)), (mean, variance, sites)

    def goes_on(state):
        count, moved, _ = state
        return (count < STEPS) & (moved > CONVERGED)

    mean, variance, *_ = problem.moments(sites)
    return jax.lax.while_loop(goes_on, advance, (0, jnp.inf, (mean, variance, sites)))[2]


def response_by_differences(problem, sites, entry, size=0.02):
    """The derivative of the means in a tilt of one predictor of one datum, by Richardson's differences."""
    tilted, moved = Tilted(problem.objective), {}
    for share in (-1.0, -0.5, 0.5, 1.0):
        tilt = np.zeros(sites.potential.shape)
        tilt[entry] = share * size
        other = replace(problem, objective=tilted, parameters={**problem.parameters, "tilt": tilt})
        moved[share] = np.asarray(fixed_point(other, sites)[0])
    near, far = (moved[0.5] - moved[-0.5]) / size, (moved[1.0] - moved[-1.0]) / (2 * size)
    return (4.0 * near - far) / 3.0


def hessians(result):
    """H of each datum in T = (m_1..m_L, s_1..s_L), by central differences of the package's bound, (n, 2L, 2L)."""
    augmentation = result.model.augmentation
    m, s = result.mean, result.variance + result.mean**2
    size = m.shape[1]
    with jax.enable_x64(True):
        parameters = result.model.parameters

        def bound(move):
            moved_m, moved_s = m + move[:size], s + move[size:]
            return augmentation.local_bound(moved_m, moved_s - moved_m**2, jnp.asarray(result.y), parameters)

        bound = jax.jit(bound)

        def differences(step):
            H = np.zeros((len(m), 2 * size, 2 * size))
            units = step * np.eye(2 * size)
            for i, j in itertools.product(range(2 * size), repeat=2):
                ends = [a * b * np.asarray(bound(a * units[i] + b * units[j])) for a in (1, -1) for b in (1, -1)]
                H[:, i, j] = sum(ends) / (4 * step**2)
            return H

        # Richardson: the error is of order step^4 = 2e-15 times sixth derivatives (up to 1e6, for Laplace); that of
        # rounding is 1e-15 / step² = 3e-8.
        return (4 * differences(2e-4) - differences(4e-4)) / 3


def second_order(result, mean, variance, cross, H, latent):
    """Corrected moments of f_* (one point, one latent) by Gauss-Hermite quadrature over (f_*, f_i1, .., f_iL).

    Five nodes in each direction integrate the polynomials here (degree 2 in f_* and 4 in f_i) exactly.
    """
    size = result.mean.shape[1]
    nodes, weights = hermegauss(5)
    grid = np.array(list(itertools.product(nodes, repeat=size + 1)))
    weight = np.prod(np.array(list(itertools.product(weights, repeat=size + 1))), axis=1)
    weight = weight / weight.sum()
    first, second = mean, variance + mean**2
    for i in range(len(result.mean)):
        m, v = result.mean[i], result.variance[i]
        f = m + np.sqrt(v) * grid[:, 1:]
        slope = cross[i] / v[latent]
        rest = np.sqrt(max(variance - slope * cross[i], 0.0))
        star = mean + slope * (f[:, latent] - m[latent]) + rest * grid[:, 0]
        T = np.hstack([f - m, f**2 - (m**2 + v)])
        Q = np.einsum("gi,ij,gj->g", T, H[i], T)
        first += 0.5 * (weight @ (star * Q) - (weight @ star) * (weight @ Q))
        second += 0.5 * (weight @ (star**2 * Q) - (weight @ star**2) * (weight @ Q))
    return first, second - first**2
