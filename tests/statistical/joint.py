"""The joint law p(θ) p(f | θ) p(y | f, θ) of every case of the registry, drawn independently of the package."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions.transforms import biject_to

import pgmodels as pgm
from tests.own_likelihoods import additive, label_noise, ordered_logit, ordered_probit, varying, zero_inflated
from tests.referees import labels, sigma, varying_generate
from tests.registry import EVERY

# Hyperparameters, none at a symmetric place: an interval, two half-lines and the whole line, each with its transform.
VARIANCE, MEAN = dist.Gamma(5.0, 3.0), dist.Normal(0.4, 0.6)
LENGTHSCALE = dist.Uniform(0.6, 2.6).expand([2])
OTHER_VARIANCE, OTHER_LENGTHSCALE, OTHER_MEAN = dist.LogNormal(-0.5, 0.4), dist.Gamma(8.0, 6.0), dist.Normal(-0.3, 0.5)

# Cutpoints: the first, and what lies between them.
CUTS = {"first": dist.Normal(-0.8, 0.5), "gap": dist.Gamma(6.0, 7.0), "other": dist.LogNormal(0.2, 0.3)}

LIKELIHOODS = {
    "negative_binomial": (pgm.NegativeBinomial, {"dispersion": dist.Gamma(8.0, 3.0)}),
    "sigmoid_poisson": (pgm.SigmoidPoisson, {"rate": dist.LogNormal(1.5, 0.35)}),
    "student_t": (pgm.StudentT, {"df": dist.Uniform(2.5, 9.0), "scale": dist.LogNormal(-0.6, 0.4)}),
    "laplace": (pgm.Laplace, {"scale": dist.LogNormal(-0.6, 0.4)}),
    "gaussian": (pgm.Gaussian, {"scale": dist.LogNormal(-0.6, 0.4)}),
    "heteroscedastic": (pgm.HeteroscedasticGaussian, {"precision": dist.Gamma(8.0, 2.0)}),
    "ordered_logit": (ordered_logit, CUTS),
    "ordered_probit": (ordered_probit, CUTS),
    "zero_inflated": (zero_inflated, {"dispersion": dist.Gamma(8.0, 3.0)}),
    "label_noise": (label_noise, {"flipped": dist.Uniform(0.03, 0.3)}),
    "additive": (additive, {"precision": dist.Gamma(8.0, 2.0)}),
    "varying": (varying, {"slope": dist.LogNormal(-0.4, 0.3)}),
}

# How many latents have the first kernel and how many the second, where they have a meaning each.
TWO_KERNELS = {
    "heteroscedastic": (1, 1),
    "zero_inflated": (1, 1),
    "additive": (1, 2),
    "varying": (1, 1),
    "shared": (1, 1),
}


def ordered(noise: Any) -> Any:
    """A generator of categories: how many cutpoints f + noise is above."""

    def generate(rng: np.random.Generator, f: np.ndarray, p: Mapping[str, np.ndarray]) -> np.ndarray:
        cuts = np.cumsum([p["first"], p["gap"], p["other"]], axis=0)
        return (f[:, 0] + noise(rng, len(f)) > cuts).sum(axis=0).astype(float)

    return generate


GENERATORS = {
    "negative_binomial": lambda rng, f, p: rng.negative_binomial(p["dispersion"], sigma(-f[:, 0])).astype(float),
    "sigmoid_poisson": lambda rng, f, p: rng.poisson(p["rate"] * sigma(f[:, 0])).astype(float),
    "student_t": lambda rng, f, p: f[:, 0] + p["scale"] * rng.standard_t(p["df"]),
    "laplace": lambda rng, f, p: f[:, 0] + p["scale"] * rng.laplace(size=len(f)),
    "gaussian": lambda rng, f, p: f[:, 0] + p["scale"] * rng.normal(size=len(f)),
    "heteroscedastic": lambda rng, f, p: f[:, 0] + rng.normal(size=len(f)) / np.sqrt(p["precision"] * sigma(f[:, 1])),
    "ordered_logit": ordered(lambda rng, n: rng.logistic(size=n)),
    "ordered_probit": ordered(lambda rng, n: rng.normal(size=n)),
    "zero_inflated": lambda rng, f, p: (
        rng.negative_binomial(p["dispersion"], sigma(-f[:, 0])) * labels(rng, sigma(f[:, 1]))
    ),
    "label_noise": lambda rng, f, p: labels(rng, p["flipped"] + (1 - 2 * p["flipped"]) * sigma(f[:, 0])),
    "additive": lambda rng, f, p: (
        f[:, 0] + f[:, 2] + rng.normal(size=len(f)) / np.sqrt(p["precision"] * sigma(f[:, 1]))
    ),
    "varying": lambda rng, f, p: varying_generate(rng, f, p["slope"]),
}


class Joint(NamedTuple):
    """Draws of a joint law, the replicas first.

    ``values`` are hyperparameters by the package's names; ``whitened`` (N, D) are v with f = mean + L v, L L^T = K, the
    latents one after another. Of the sparse model they are (v, e), f = mean + A^T v + sqrt(residual) e.
    """

    values: dict[str, np.ndarray]
    whitened: np.ndarray
    f: np.ndarray
    y: np.ndarray


class Group(NamedTuple):
    """Latents that share a kernel: where its hyperparameters and their mean are, its covariance, how many there are."""

    path: str
    mean: str
    covariance: Any
    size: int


def of_latents(first: int, size: int) -> str:
    """What the package puts before the names of a GP's parameters, of a model with several."""
    return f"f[{first}]." if size == 1 else f"f[{first}:{first + size}]."


class JointLaw:
    """The law of a case at inputs X (n, 2). ``sampled`` says whether hyperparameters are drawn or fixed.

    The latents share an RBF kernel with unequal lengthscales; those that have a meaning each have two kernels,
    of which the second may see a column of X, or the difference of two. With inducing inputs Z it is the law of the
    sparse model; then hyperparameters must be drawn.
    """

    def __init__(self, name: str, X: np.ndarray, sampled: bool, Z: np.ndarray | None = None):
        self.case, self.X, self.Z = EVERY[name], X, Z
        self.priors: dict[str, Any] = {}
        # Next to none: the package's own roots try none at all first.
        self.jitter = 1e-12
        read = self._prior if sampled else self._fixed
        if name in TWO_KERNELS:
            sizes = TWO_KERNELS[name]
            one, other = of_latents(0, sizes[0]), of_latents(sizes[0], sizes[1])
            first = pgm.RBF(read(f"{one}variance", VARIANCE), read(f"{one}lengthscale", LENGTHSCALE))
            wrap, covariance = WRAPPED.get(name, (lambda kernel: kernel, matern32))
            second = wrap(
                pgm.Matern32(read(f"{other}variance", OTHER_VARIANCE), read(f"{other}lengthscale", OTHER_LENGTHSCALE))
            )
            means = read(f"{one}mean", MEAN), read(f"{other}mean", OTHER_MEAN)
            gps = [pgm.GP(first, means[0], size=sizes[0]), pgm.GP(second, means[1], size=sizes[1])]
            self.groups = [Group(one, f"{one}mean", rbf, sizes[0]), Group(other, f"{other}mean", covariance, sizes[1])]
        else:
            kernel = pgm.RBF(read("variance", VARIANCE), read("lengthscale", LENGTHSCALE))
            gps = [pgm.GP(kernel, read("mean", MEAN), size=self.case.num_latents)]
            self.groups = [Group("", "mean", rbf, self.case.num_latents)]
        if Z is not None:
            gps = [pgm.GP(gp.kernel, gp.mean, gp.size, pgm.Inducing(Z)) for gp in gps]
        likelihood = self.case.likelihood()
        if name in LIKELIHOODS:
            family, laws = LIKELIHOODS[name]
            likelihood = family(**{key: read(key, law) for key, law in laws.items()})
        self.model = pgm.Model(likelihood, gps)

    def _prior(self, name: str, law: Any) -> Any:
        self.priors[name] = law
        return law

    def _fixed(self, name: str, law: Any) -> Any:
        # Off the middle of the prior, unequal where there are several, and latents that go far.
        factor = 3.0 if name.endswith("variance") else 1.1
        unequal = np.linspace(factor, 0.8 * factor, int(np.prod(law.batch_shape))).reshape(law.batch_shape)
        self.priors[name] = np.asarray(law.mean * unequal)
        return self.priors[name]

    @property
    def drawn(self) -> dict[str, Any]:
        """The priors of the hyperparameters that are drawn, by name."""
        return {name: law for name, law in self.priors.items() if not isinstance(law, np.ndarray)}

    def draw_values(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """Hyperparameters by name, (count, ...)."""
        values = {}
        for name, law in self.priors.items():
            if isinstance(law, np.ndarray):
                values[name] = np.broadcast_to(law, (count, *law.shape))
            else:
                values[name] = draw_prior(rng, law, (count, *law.batch_shape))
        return values

    def draw(self, rng: np.random.Generator, count: int) -> Joint:
        """Independent draws of everything."""
        values = self.draw_values(rng, count)
        rank = len(self.X) + (0 if self.Z is None else len(self.Z))
        whitened = rng.normal(size=(count, rank * self.case.num_latents))
        f = self.latents(values, whitened)
        return Joint(values, whitened, f, self.draw_data(rng, f, values))

    def latents(self, values: Mapping[str, np.ndarray], whitened: np.ndarray) -> np.ndarray:
        """The latents (count, n, L) of hyperparameters and whitened coordinates (count, D)."""
        count = len(whitened)
        by_latent, by_group = whitened.reshape(count, sum(group.size for group in self.groups), -1), []
        for group in self.groups:
            whitened_of_group, by_latent = by_latent[:, : group.size], by_latent[:, group.size :]
            by_group.append(
                values[group.mean][:, None, None]
                + np.einsum("sij,slj->sil", self._colour(group, values), whitened_of_group)
            )
        return np.concatenate(by_group, axis=2)

    def _colour(self, group: Group, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The matrices (count, n, D) that take coordinates to latents of mean zero."""
        M, rows = (0, self.X) if self.Z is None else (len(self.Z), np.concatenate([self.Z, self.X]))
        K = group.covariance(rows, values[f"{group.path}variance"], values[f"{group.path}lengthscale"])
        inner = K if self.Z is None else K[:, :M, :M]
        jitter = self.jitter * np.trace(inner, axis1=1, axis2=2) / inner.shape[1]
        root = np.linalg.cholesky(inner + jitter[:, None, None] * np.eye(inner.shape[1]))
        if self.Z is None:
            return root
        A = np.linalg.solve(root, K[:, :M, M:])
        residual = np.diagonal(K[:, M:, M:], axis1=1, axis2=2) - np.sum(A**2, axis=1)
        spread = np.sqrt(residual)[:, :, None] * np.eye(len(self.X))
        return np.concatenate([np.swapaxes(A, 1, 2), spread], axis=2)

    def draw_data(self, rng: np.random.Generator, f: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """y (count, n, ...) given latents and hyperparameters."""
        count, n, size = f.shape
        flat = f.reshape(count * n, size)
        name = self.case.name
        if name in GENERATORS:
            parameters = {key: np.repeat(values[key], n) for key in LIKELIHOODS[name][1]}
            y = GENERATORS[name](rng, flat, parameters)
        else:
            y = self.case.generate(rng, flat)
        return y.reshape(count, n, *y.shape[1:])

    def unconstrain(self, names: list[str], values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The unconstrained vectors (count, d) of hyperparameters, in the order of ``names``."""
        columns = [np.asarray(biject_to(self.priors[name].support).inv(jnp.asarray(values[name]))) for name in names]
        return np.concatenate([part.reshape(len(part), -1) for part in columns], axis=1)

    def constrain(self, names: list[str], vectors: np.ndarray) -> dict[str, np.ndarray]:
        """The inverse of ``unconstrain``."""
        values, start = {}, 0
        for name in names:
            shape = self.priors[name].batch_shape
            part = vectors[:, start : start + int(np.prod(shape))].reshape(-1, *shape)
            values[name] = np.asarray(biject_to(self.priors[name].support)(jnp.asarray(part)))
            start += int(np.prod(shape))
        return values


def draw_prior(rng: np.random.Generator, law: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Draws of a prior of this file, by NumPy."""
    law = getattr(law, "base_dist", law) if not isinstance(law, dist.LogNormal) else law
    if isinstance(law, dist.Gamma):
        return rng.gamma(law.concentration, 1.0 / law.rate, shape)
    if isinstance(law, dist.Uniform):
        return rng.uniform(law.low, law.high, shape)
    drawn = rng.normal(law.loc, law.scale, shape)
    return np.exp(drawn) if isinstance(law, dist.LogNormal) else drawn


def _distance(X: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """Scaled squared distances (count, n, n) for lengthscales (count,) or (count, 2)."""
    lengthscale = lengthscale.reshape(len(lengthscale), 1, 1, -1)
    return np.sum(((X[:, None] - X[None]) / lengthscale) ** 2, axis=-1)


def rbf(X: np.ndarray, variance: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """RBF covariances, (count, n, n)."""
    return variance[:, None, None] * np.exp(-0.5 * _distance(X, lengthscale))


def matern32(X: np.ndarray, variance: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """Matérn 3/2 covariances, (count, n, n)."""
    s = np.sqrt(3.0 * _distance(X, lengthscale))
    return variance[:, None, None] * (1.0 + s) * np.exp(-s)


def of_difference(X: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Covariances of g(a) - g(b), Matérn 3/2 g, a and b the columns of X."""
    n = len(X)
    K = matern32(X.T.reshape(-1, 1), *values)
    return K[:, :n, :n] - K[:, :n, n:] - K[:, n:, :n] + K[:, n:, n:]


# The second kernel of a case, its covariance, and where its hyperparameters are.
WRAPPED = {
    "varying": (lambda kernel: pgm.On(kernel, [1]), lambda X, *values: matern32(X[:, 1:], *values)),
    "shared": (lambda kernel: pgm.Difference(kernel, [0], [1]), of_difference),
}
