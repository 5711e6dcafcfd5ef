"""The augmentation gap: the difference between each datum's expected log likelihood and its local bound."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pgmodels.inference.objectives import objective_of_result
from pgmodels.likelihoods.density import log_density
from pgmodels.numerics.quadrature import equal_chunks, gauss_legendre, padded_chunks, sobol_normals
from pgmodels.objectives.base import Objective
from pgmodels.priors.padding import pad_rows, padded_size, weighted
from pgmodels.results.approximation import Approximation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision

# One latent: Gauss-Legendre rules of these orders on intervals of (-12, 12) standard deviations, which are halved until
# the rules agree to _TOLERANCE of the terms' size. Around a kink or spike, 40 halvings reach the rounding error.
_ORDERS = (10, 16)
_EDGES = np.linspace(-12.0, 12.0, 13)
_TOLERANCE = 1e-11
_HALVINGS = 40
# Intervals evaluated at a time: one shape, compiled once.
_CHUNK = 1024
# Several latents: numbers of scrambled Sobol points, increased until the standard error over _SCRAMBLES independent
# scrambles is below either of these limits.
_LEVELS = (256, 1024, 4096, 16384)
_SCRAMBLES = 8
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


class Gap(NamedTuple):
    """The augmentation gap of each datum and the error of its quadrature, (n,) each, in nats."""

    value: np.ndarray
    error: np.ndarray


@double_precision
def augmentation_gap(approximation: Approximation) -> Gap:
    """E_q(f) KL(q(ω) ‖ p(ω | f, y)) of each datum with auxiliary variables ω (Wenzel et al. 2019, section 4).

    It equals E_q(f) log p(y | f) - B(m, s), the loss of the ELBO due to the augmentation for this q(f). For one latent
    the error is a bound, about 1e-10 of the size of log p; for several it is the standard error of eight scrambled
    Sobol rules, at most 0.1 % of the gap or 1e-5 nats if 16,384 points each are enough.
    """
    divergence = _Divergence(approximation)
    return _adaptive(divergence) if divergence.nodes.num_directions == 1 else _sobol(divergence)


class _Divergence:
    """KL(q(ω) ‖ p(ω | f, y)) as a function of f, in nats.

    log p(y, ω | f) is quadratic in f, so that E_q(ω) log p(y, ω | f) - E_q(ω) log q(ω) is the quadratic with value B
    and sites (h, w) under q(f); the divergence is log p(y | f) minus this quadratic, which integrates to B exactly with
    any quadrature rule for the rest, also if the formula multiplies two latents of a datum.
    """

    def __init__(self, approximation: Approximation):
        model = approximation.model
        self.likelihood, self.y = model.likelihood, approximation.y
        n = len(self.y)
        self.weights = approximation.data.row_weights
        self.nodes, self.mixing = approximation.nodes, approximation.mixing
        mean, self.variance = approximation.predictor_moments()
        y, row_weights = approximation.data.padded(padded_size(n))
        m, v = (as_array(pad_rows(part, len(y))) for part in (mean, self.variance))
        terms = _bound_and_sites(objective_of_result(approximation), m, v, y, row_weights, model.parameters)
        self.bound, h, self.curvature = (np.asarray(term)[:n] for term in terms)
        self.slope = h - self.curvature * mean

    def at(self, rows: np.ndarray, standard: np.ndarray) -> np.ndarray:
        """The divergence at standard coordinates (points, rows, directions), (points, rows)."""
        f = self.nodes.place(rows, standard)
        centred = f - self.nodes.mean[rows]
        if self.mixing is not None:
            centred = np.einsum("ipl,sil->sip", self.mixing[rows], centred)
        quadratic = self.slope[rows] * centred - 0.5 * self.curvature[rows] * (centred**2 - self.variance[rows])
        log_p = self.weights[rows] * log_density(self.likelihood, self.y[rows], f)
        return log_p - self.bound[rows] - quadratic.sum(axis=-1)


@partial(compiled, static_argnames="objective")
def _bound_and_sites(
    objective: Objective, m: Any, v: Any, y: Any, row_weights: Any, parameters: Any
) -> tuple[Any, ...]:
    terms = objective.local_bound(m, v, y, parameters), *objective.local_sites(m, v, y, parameters)
    return tuple(weighted(row_weights, term) for term in terms)


def _adaptive(divergence: _Divergence) -> Gap:
    """One latent: halve the intervals on which the two rules disagree."""
    n = divergence.nodes.num_rows
    rows = np.repeat(np.arange(n), len(_EDGES) - 1)
    low, high = np.tile(_EDGES[:-1], n), np.tile(_EDGES[1:], n)
    allowed = _TOLERANCE * (1.0 + np.abs(divergence.bound))
    # The two rules may agree by chance on an interval with a kink.
    value, error = np.zeros(n), 10.0 * allowed
    for halving in range(_HALVINGS + 1):
        coarse, fine = _integrals(divergence, rows, low, high)
        difference = np.abs(fine - coarse)
        # NaN counts as done, since halving cannot help, and is reported.
        halved = (difference > allowed[rows]) & (halving < _HALVINGS)
        np.add.at(value, rows[~halved], fine[~halved])
        np.add.at(error, rows[~halved], difference[~halved])
        rows, low, high = rows[halved], low[halved], high[halved]
        if not rows.size:
            break
        middle = 0.5 * (low + high)
        rows = np.tile(rows, 2)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return Gap(value, error)


def _integrals(
    divergence: _Divergence, rows: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The integral of the divergence times the Gaussian density over each interval, by two rules."""
    rules = [gauss_legendre(order) for order in _ORDERS]
    nodes = np.concatenate([node for node, _ in rules])[:, None]
    weighted = []
    for chosen in equal_chunks(np.arange(len(rows)), _CHUNK):
        half, centre = 0.5 * (high - low)[chosen], 0.5 * (high + low)[chosen]
        z = centre + half * nodes
        values = divergence.at(rows[chosen], z[..., None])
        weighted.append(half * values * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi))
    values = np.concatenate(weighted, axis=1)[:, : len(rows)]
    split = np.split(values, [_ORDERS[0]])
    coarse, fine = (weight @ part for (_, weight), part in zip(rules, split, strict=True))
    return coarse, fine


def _sobol(divergence: _Divergence) -> Gap:
    """Several latents: increase the number of points until the scrambles agree."""
    rows = np.arange(divergence.nodes.num_rows)
    value, error = np.zeros(len(rows)), np.zeros(len(rows))
    for level in _LEVELS:
        means = _scrambled_means(divergence, rows, level)
        value[rows] = means.mean(axis=0)
        error[rows] = means.std(axis=0, ddof=1) / np.sqrt(_SCRAMBLES)
        rows = rows[error[rows] > np.maximum(_RELATIVE * value[rows], _ABSOLUTE)]
        if not rows.size:
            break
    return Gap(value, error)


def _scrambled_means(divergence: _Divergence, rows: np.ndarray, level: int) -> np.ndarray:
    """The mean over the points of each scramble, (scrambles, rows)."""
    chunks = padded_chunks(rows, level * divergence.nodes.num_latents)
    means = []
    for scramble in range(_SCRAMBLES):
        z = sobol_normals(divergence.nodes.num_directions, level, np.random.default_rng(scramble))
        means.append(np.concatenate([divergence.at(chunk, z[:, None, :]).mean(axis=0) for chunk in chunks]))
    return np.stack(means)[:, : len(rows)]
