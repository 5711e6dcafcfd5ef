"""Random small models, by number: a likelihood of the registry over GPs of random kernels, with rows that are repeated.

What is right of them is worked out here with explicit matrices and by importance sampling, without the package.
"""

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import gammaln, logsumexp

import pgmodels as pgm
from tests.registry import EVERY, Case

# Distinct rows, and how many of them are there twice: with one number of rows programs are shared.
DISTINCT, COPIES = 5, 2
N = DISTINCT + COPIES
# Their first latent is where y is.
LOCATIONS = ("gaussian", "student_t", "laplace", "heteroscedastic", "additive")
# The log densities of the others are not concave in the latents.
LOG_CONCAVE = (
    "bernoulli", "probit", "binomial", "negative_binomial", "stick_breaking", "laplace", "gaussian", "affine", "offset",
    "ordered_logit", "ordered_probit", "varying", "shared", "multinomial_probit", "log_poisson", "softmax",
)  # fmt: skip
# Of the draws that weigh the posterior a share is of the prior, so that no weight is large; the others are of Student's
# t with so many degrees of freedom, and so much wider than the curvature says.
_PRIOR, _DF, _WIDER = 0.3, 5.0, 1.2


def squares(A, B):
    return np.sum((A[:, None] - B[None]) ** 2, axis=-1)


def radial(profile):
    return lambda A, B, v, length: v * profile(np.sqrt(squares(A, B)) / length)


def periodic(A, B, v, length):
    return v * np.exp(-2 * np.sum(np.sin(np.pi * (A[:, None] - B[None]) / (2 * length)) ** 2, axis=-1))


def product(A, B, v, length):
    one, other = squares(A[:, :1], B[:, :1]), np.sqrt(3 * squares(A[:, 1:], B[:, 1:])) / length
    return v * np.exp(-0.5 * one / length**2) * (1 + other) * np.exp(-other)


# Each as the package writes it, with a variance and a lengthscale in the units of X, and as it is.
KERNELS = {
    "rbf": (pgm.RBF, radial(lambda r: np.exp(-0.5 * r**2))),
    "matern12": (pgm.Matern12, radial(lambda r: np.exp(-r))),
    "matern32": (pgm.Matern32, radial(lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r))),
    "matern52": (pgm.Matern52, radial(lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r))),
    "rational": (lambda v, length: pgm.RationalQuadratic(v, length, 1.5), radial(lambda r: (1 + r**2 / 3) ** -1.5)),
    "periodic": (lambda v, length: pgm.Periodic(v, 1.0, 2 * length), periodic),
    "straight line": (
        lambda v, length: pgm.Constant(0.7) + pgm.Linear(v / length**2),
        lambda A, B, v, length: 0.7 + v * A @ B.T / length**2,
    ),
    "with white": (
        lambda v, length: pgm.RBF(v, length) + pgm.White(0.3),
        lambda A, B, v, length: v * np.exp(-0.5 * squares(A, B) / length**2) + 0.3 * (squares(A, B) == 0),
    ),
    "product": (lambda v, length: pgm.On(pgm.RBF(v, length), [0]) * pgm.On(pgm.Matern32(1.0, length), [1]), product),
    "levels": (
        lambda v, length: pgm.On(pgm.White(v), [1]) + pgm.On(pgm.RBF(0.8, length), [0]),
        lambda A, B, v, length: (
            v * (A[:, None, 1] == B[None, :, 1]) + 0.8 * np.exp(-0.5 * squares(A[:, :1], B[:, :1]) / length**2)
        ),
    ),
}


class RandomModel(NamedTuple):
    """A likelihood, a kernel with its variance and lengthscale and a mean for each latent, and data."""

    case: Case
    kernels: tuple[tuple[str, float, float], ...]
    means: tuple[float, ...]
    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray

    def model(self, **options: Any) -> pgm.Model:
        """As the package writes it; GPs of equal kernels and means are one."""
        latents = list(zip(self.kernels, self.means, strict=True))
        gps = [
            pgm.GP(KERNELS[name][0](*values), mean=mean, size=size, **options)
            for ((name, *values), mean), size in Counter(latents).items()
        ]
        return pgm.Model(self.case.likelihood(), gps)

    def covariance(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """The prior covariances of the latents between inputs, (latents, a, b)."""
        return np.stack([KERNELS[name][1](A, B, *values) for name, *values in self.kernels])

    def roots(self, X: np.ndarray) -> np.ndarray:
        """Roots of the latents' prior covariances at inputs, (latents, rows, rows), singular ones too."""
        values, vectors = np.linalg.eigh(self.covariance(X, X))
        return vectors * np.sqrt(np.maximum(values, 0.0))[:, None]

    def covariates(self) -> np.ndarray | None:
        """The columns of y after the first."""
        return self.y[:, 1:] if self.y.ndim == 2 else None

    def __str__(self) -> str:
        return f"{self.case.name} with {self.kernels} and means {self.means}, X of size {np.abs(self.X).max():.3g}"


def random_model(seed: int, name: str | None = None, kernels: tuple[str, ...] | None = None) -> RandomModel:
    """The model of a number; of a likelihood and of kernels where these are named."""
    rng = np.random.default_rng([40, seed])
    case = EVERY[name or tuple(EVERY)[seed % len(EVERY)]]
    size, unit = case.num_latents, 10.0 ** rng.uniform(-3, 6)
    offset = 1e6 * rng.integers(2) if case.name in LOCATIONS else 0.0

    def latent():
        chosen = (kernels or tuple(KERNELS))[rng.integers(len(kernels or KERNELS))]
        return (chosen, float(rng.uniform(0.4, 3.0)), float(unit * rng.uniform(0.6, 2.0))), float(rng.normal(0.2, 0.3))

    latents = [latent()] * size if rng.random() < 0.5 else [latent() for _ in range(size)]
    drawn_kernels, means = [kernel for kernel, _ in latents], [mean for _, mean in latents]
    means[0] += offset
    places = rng.uniform(-2, 2, (DISTINCT, 2))
    # Two levels of the second column, for kernels that read levels.
    places[:, 1] = np.where(rng.random(DISTINCT) < 0.5, 1.0, places[:, 1])
    X = unit * places[rng.permutation([*range(DISTINCT), *rng.integers(DISTINCT, size=COPIES)])]
    model = RandomModel(case, tuple(drawn_kernels), tuple(means), X, np.zeros(N), unit * rng.uniform(-3, 3, (N, 2)))
    f = np.array(means) + np.stack([root @ rng.normal(size=len(root.T)) for root in model.roots(X)], axis=1)
    f[:, case.limited] = np.clip(f[:, case.limited], *case.limits)
    if case.name == "log_poisson":
        f = np.minimum(f, 4.0)
    y = case.generate(rng, f)
    classes = np.arange(getattr(case.likelihood().declared_support, "num_classes", 0) or case.num_classes)
    if not np.isin(classes, y).all():
        y[classes] = classes
    return model._replace(y=y)


class Referee(NamedTuple):
    """log p(y) with its standard error, and the posterior means of the latents at the data with theirs."""

    log_evidence: float
    error: float
    mean: np.ndarray
    mean_error: np.ndarray
    effective: float


@cache
def _log_densities(name: str) -> Any:
    """Those of data (rows, ...) at latents (draws, rows, latents)."""
    return jax.jit(jax.vmap(EVERY[name].log_density, (None, 0)))


def _near_the_mode(log_joint: Any, log_densities: Any, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whitened latents (latents, rows) near the mode, and the matrix of precisions there.

    By Newton steps with differences over a third, that densities with kinks have as well.
    """
    size = len(roots)
    units, v = 0.3 * np.eye(size), np.zeros((size, N))
    moves = np.concatenate([[a * p + b * q for a in (1, -1) for b in (1, -1)] for p in units for q in units])
    across = np.zeros((N, size, size, N))
    for latent, root in enumerate(roots):
        across[:, latent, latent] = root
    across = across.reshape(N * size, size * N)
    for _ in range(20):
        f = np.einsum("lij,lj->il", roots, v)
        ends = log_densities(f + np.concatenate([units, -units])[:, None])
        slope = (ends[:size] - ends[size:]).T / 0.6
        corners = log_densities(f + moves[:, None]).reshape(size, size, 4, N)
        W = -np.einsum("pqcn,c->npq", corners, [1, -1, -1, 1]) / 0.36
        values, vectors = np.linalg.eigh(W)
        W = np.einsum("npk,nk,nqk->npq", vectors, np.maximum(values, 0.0), vectors)
        P = np.zeros((N, size, N, size))
        P[np.arange(N), :, np.arange(N)] = W
        H = np.eye(size * N) + across.T @ P.reshape(N * size, -1) @ across
        step = np.linalg.solve(H, across.T @ slope.ravel() - v.ravel()).reshape(size, N)
        length = next((t for t in 0.5 ** np.arange(12) if log_joint(v + t * step) > log_joint(v)), 0.0)
        v = v + length * step
    return v, H


def referee(drawn: RandomModel, seed: int = 0, num_draws: int = 40_000) -> Referee:
    """By importance sampling: draws of the prior, and of Student's t about the mode by the curvature there."""
    size, roots, means = drawn.case.num_latents, drawn.roots(drawn.X), np.array(drawn.means)
    program = _log_densities(drawn.case.name)

    def log_densities(f):
        with jax.enable_x64(True):
            values = np.asarray(program(drawn.y, means + f))
        return np.where(np.isnan(values), -np.inf, values)

    def log_joint(v):
        return log_densities(np.einsum("lij,lj->il", roots, v)[None]).sum() - 0.5 * np.sum(v**2)

    mode, H = _near_the_mode(log_joint, log_densities, roots)
    values, vectors = np.linalg.eigh(H)
    mode, root = mode.ravel(), vectors * np.sqrt(_WIDER / values)
    rng, dim = np.random.default_rng(seed), size * N
    z = rng.normal(size=(num_draws, dim))
    of_prior = rng.random(num_draws) < _PRIOR
    v = np.where(of_prior[:, None], z, mode + (z / np.sqrt(rng.chisquare(_DF, (num_draws, 1)) / _DF)) @ root.T)
    distance = np.sum(np.linalg.solve(root, (v - mode).T) ** 2, axis=0)
    of_t = (
        gammaln((_DF + dim) / 2) - gammaln(_DF / 2) - dim / 2 * np.log(_DF * np.pi)
        - np.linalg.slogdet(root)[1] - (_DF + dim) / 2 * np.log1p(distance / _DF)
    )  # fmt: skip
    log_prior = -0.5 * np.sum(v**2, axis=1) - dim / 2 * np.log(2 * np.pi)
    f = np.einsum("lij,slj->sil", roots, v.reshape(-1, size, N))
    terms = log_densities(f).sum(axis=1) + log_prior
    terms -= np.logaddexp(np.log(_PRIOR) + log_prior, np.log1p(-_PRIOR) + of_t)
    log_evidence = logsumexp(terms) - np.log(num_draws)
    weights = np.exp(terms - log_evidence)
    mean = np.mean(weights[:, None, None] * f, axis=0)
    spread = np.std(weights[:, None, None] * (f - mean), axis=0)
    return Referee(
        log_evidence, np.std(weights) / np.sqrt(num_draws), means + mean, spread / np.sqrt(num_draws),
        np.sum(weights) ** 2 / np.sum(weights**2),
    )  # fmt: skip


def exact(drawn: RandomModel, X_new: np.ndarray, scale: float = 0.5, level: float = 0.0) -> tuple[Any, Any, float]:
    """Mean and variance at inputs and log p(y), of Gaussian noise, by explicit matrices; ``level`` is of the mean."""
    cover = lambda A, B: drawn.covariance(A, B)[0] + level  # noqa: E731
    C, k = cover(drawn.X, drawn.X) + scale**2 * np.eye(N), cover(X_new, drawn.X)
    residual = drawn.y - drawn.means[0]
    solved = np.linalg.solve(C, np.column_stack([residual, k.T]))
    log_p = -0.5 * (residual @ solved[:, 0] + np.linalg.slogdet(2 * np.pi * C)[1])
    variance = np.diagonal(cover(X_new, X_new)) - np.einsum("ij,ji->i", k, solved[:, 1:])
    return drawn.means[0] + k @ solved[:, 0], variance, log_p
