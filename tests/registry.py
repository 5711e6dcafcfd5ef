"""The likelihoods that every engine is tested on: add a new one as a row, to be crossed with every engine and law.

``log_density``, ``bound`` and ``generate`` are independent of the package (``referees.py``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import stats
from jax.scipy.special import expit

from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.named import (
    Bernoulli,
    Binomial,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    LogisticSoftmax,
    MultinomialProbit,
    NegativeBinomial,
    Probit,
    SigmoidPoisson,
    Softmax,
    StickBreaking,
    StudentT,
)
from pgmodels.model import GP, Model
from tests.own_likelihoods import (
    additive,
    affine,
    label_noise,
    log_poisson,
    offset,
    ordered_logit,
    ordered_probit,
    own_softmax,
    shared,
    varying,
    zero_inflated,
)
from tests.referees import (
    binomial_bound,
    binomial_generate,
    down,
    draw_class,
    ends,
    expected_square,
    heteroscedastic_bound,
    interval_log_mass,
    labels,
    multinomial_probit_log_density,
    negative_binomial_bound,
    offset_generate,
    ordered_generate,
    ordered_logit_bound,
    pick,
    shared_bound,
    shared_generate,
    shared_log_density,
    sigma,
    sigmoid_poisson_bound,
    softmax_bound,
    softmax_generate,
    softmax_log_density,
    stick_bound,
    stick_probabilities,
    student_bound,
    up,
    varying_generate,
    varying_log_density,
    zero_inflated_bound,
    zero_inflated_log_density,
)


class Case(NamedTuple):
    """A likelihood and, independently of it, its log density, its local bound and a generator of observations.

    ``log_density(y, f)`` and ``bound(m, v, y)`` map (n, ...) and (n, latents) to (n,); ``bound`` is None without
    an augmentation. ``generate(rng, f)`` draws y.
    If factors combine latents, ``design(y)`` is Φ (n, predictors, latents), and the bound takes the predictors;
    ``multiply`` is whether the likelihood multiplies latents of a datum.
    ``limits`` clip the true latent ``limited`` to avoid counts in the thousands, which make Gibbs costly as data and
    slow to mix as auxiliaries.
    """

    name: str
    likelihood: Callable[[], Likelihood]
    num_latents: int
    log_density: Callable[[Any, Any], Any]
    bound: Callable[[Any, Any, Any], Any] | None
    generate: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    limits: tuple[float, float] = (-np.inf, np.inf)
    limited: int = -1
    design: Callable[[Any], Any] | None = None
    multiply: bool = False

    def model(self, variance: float = 2.0, lengthscale: float = 1.2, mean: float = 0.3) -> Model:
        """The likelihood over GPs that share an RBF kernel."""
        return Model(self.likelihood(), GP(RBF(variance, lengthscale), mean=mean, size=self.num_latents))

    def unequal(self, **options: Any) -> Model:
        """The likelihood over GPs with unequal kernels and means."""
        kernels = [RBF(1.5 + 0.5 * k, 0.8 + 0.4 * k) for k in range(self.num_latents)]
        return Model(self.likelihood(), [GP(kernel, mean=0.3 - 0.2 * k, **options) for k, kernel in enumerate(kernels)])

    def data(self, n: int, seed: int, scale: float = 1.5, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
        """X (n, 2) and y from smooth latents between shift - scale and shift + scale, every class present."""
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2.0, 2.0, (n, 2))
        directions = rng.normal(size=(2, self.num_latents))
        f = shift + scale * np.sin(1.3 * X @ directions + rng.uniform(0.0, 6.0, self.num_latents))
        f[:, self.limited] = np.clip(f[:, self.limited], *self.limits)
        y = self.generate(rng, f)
        for label in range(getattr(self.likelihood().declared_support, "num_classes", 0) or self.num_classes):
            if not (y == label).any():
                y[label] = label
        return X, y

    def matrix(self, y: Any) -> Any:
        """Φ (n, predictors, latents): the identity if no factor combines latents."""
        identity = np.broadcast_to(np.eye(self.num_latents), (len(y), self.num_latents, self.num_latents))
        return identity if self.design is None else self.design(y)

    @property
    def num_classes(self) -> int:
        """The number of classes of a formula that reads f[y]."""
        return self.num_latents if self.name == "own_softmax" else 0


def by_name(*cases: Case) -> dict[str, Case]:
    """Cases by name, with jitted functions: ten times cheaper than compiling operation by operation."""
    return {
        case.name: case._replace(log_density=jax.jit(case.log_density), bound=case.bound and jax.jit(case.bound))
        for case in cases
    }


CASES = by_name(
    Case(
        "bernoulli",
        Bernoulli,
        1,
        lambda y, f: dist.Bernoulli(logits=f[:, 0]).log_prob(y),
        lambda m, v, y: y * up(m[:, 0], v[:, 0]) + (1 - y) * down(m[:, 0], v[:, 0]),
        lambda rng, f: labels(rng, sigma(f[:, 0])),
    ),
    Case(
        "probit",
        Probit,
        1,
        lambda y, f: stats.norm.logcdf((2 * y - 1) * f[:, 0]),
        lambda m, v, y: stats.norm.logcdf((2 * y - 1) * m[:, 0]) - v[:, 0] / 2,
        lambda rng, f: (f[:, 0] + rng.normal(size=len(f)) > 0).astype(float),
    ),
    Case(
        "binomial",
        Binomial,
        1,
        lambda y, f: dist.Binomial(y[:, 1].astype(int), logits=f[:, 0]).log_prob(y[:, 0]),
        binomial_bound,
        binomial_generate,
    ),
    Case(
        "negative_binomial",
        lambda: NegativeBinomial(2.5),
        1,
        lambda y, f: stats.nbinom.logpmf(y, 2.5, expit(-f[:, 0])),
        negative_binomial_bound,
        lambda rng, f: rng.negative_binomial(2.5, sigma(-f[:, 0])).astype(float),
        limits=(-np.inf, 2.5),
    ),
    Case(
        "sigmoid_poisson",
        lambda: SigmoidPoisson(6.0),
        1,
        lambda y, f: stats.poisson.logpmf(y, 6.0 * expit(f[:, 0])),
        sigmoid_poisson_bound,
        lambda rng, f: rng.poisson(6.0 * sigma(f[:, 0])).astype(float),
    ),
    Case("logistic_softmax", lambda: LogisticSoftmax(3), 3, softmax_log_density, softmax_bound, softmax_generate),
    Case(
        "stick_breaking",
        lambda: StickBreaking(4),
        3,
        lambda y, f: jnp.log(pick(stick_probabilities(f), y)),
        stick_bound,
        lambda rng, f: draw_class(rng, np.asarray(jax.jit(stick_probabilities)(f))),
    ),
    Case(
        "student_t",
        lambda: StudentT(4.0, 0.5),
        1,
        lambda y, f: stats.t.logpdf(y, 4.0, f[:, 0], 0.5),
        student_bound,
        lambda rng, f: f[:, 0] + 0.5 * rng.standard_t(4, len(f)),
    ),
    Case(
        "laplace",
        lambda: Laplace(0.5),
        1,
        lambda y, f: stats.laplace.logpdf(y, f[:, 0], 0.5),
        lambda m, v, y: -jnp.sqrt(expected_square(m, v, y)) / 0.5 - jnp.log(2 * 0.5),
        lambda rng, f: f[:, 0] + rng.laplace(scale=0.5, size=len(f)),
    ),
    Case(
        "gaussian",
        lambda: Gaussian(0.5),
        1,
        lambda y, f: stats.norm.logpdf(y, f[:, 0], 0.5),
        lambda m, v, y: stats.norm.logpdf(y, m[:, 0], 0.5) - v[:, 0] / (2 * 0.5**2),
        lambda rng, f: f[:, 0] + 0.5 * rng.normal(size=len(f)),
    ),
    Case(
        "heteroscedastic",
        lambda: HeteroscedasticGaussian(4.0),
        2,
        lambda y, f: stats.norm.logpdf(y, f[:, 0], 1 / jnp.sqrt(4.0 * expit(f[:, 1]))),
        heteroscedastic_bound,
        lambda rng, f: f[:, 0] + rng.normal(size=len(f)) / np.sqrt(4.0 * sigma(f[:, 1])),
        limits=(-2.0, np.inf),
        multiply=True,
    ),
    Case("own_softmax", own_softmax, 3, softmax_log_density, softmax_bound, softmax_generate),
    Case(
        "affine",
        affine,
        1,
        lambda y, f: dist.Bernoulli(logits=2 * f[:, 0] - 1).log_prob(y),
        lambda m, v, y: y * up(2 * m[:, 0] - 1, 4 * v[:, 0]) + (1 - y) * down(2 * m[:, 0] - 1, 4 * v[:, 0]),
        lambda rng, f: labels(rng, sigma(2 * f[:, 0] - 1)),
    ),
    Case(
        "offset",
        offset,
        1,
        lambda y, f: dist.Bernoulli(logits=f[:, 0] + y[:, 1]).log_prob(y[:, 0]),
        lambda m, v, y: y[:, 0] * up(m[:, 0] + y[:, 1], v[:, 0]) + (1 - y[:, 0]) * down(m[:, 0] + y[:, 1], v[:, 0]),
        offset_generate,
    ),
    Case(
        "ordered_logit",
        ordered_logit,
        1,
        lambda y, f: jnp.log(expit(ends(y)[1] - f[:, 0]) - expit(ends(y)[0] - f[:, 0])),
        ordered_logit_bound,
        ordered_generate(lambda rng, n: rng.logistic(size=n)),
    ),
    Case(
        "ordered_probit",
        ordered_probit,
        1,
        lambda y, f: interval_log_mass(y, f[:, 0]),
        lambda m, v, y: interval_log_mass(y, m[:, 0]) - v[:, 0] / 2,
        ordered_generate(lambda rng, n: rng.normal(size=n)),
    ),
    Case(
        "zero_inflated",
        zero_inflated,
        2,
        zero_inflated_log_density,
        zero_inflated_bound,
        lambda rng, f: rng.negative_binomial(2.5, sigma(-f[:, 0])) * labels(rng, sigma(f[:, 1])),
        limits=(-np.inf, 2.5),
    ),
    Case(
        "label_noise",
        label_noise,
        1,
        lambda y, f: jnp.log(0.1 + 0.8 * expit((2 * y - 1) * f[:, 0])),
        lambda m, v, y: jnp.log(0.1 + 0.8 * jnp.exp(up((2 * y - 1) * m[:, 0], v[:, 0]))),
        lambda rng, f: labels(rng, 0.1 + 0.8 * sigma(f[:, 0])),
    ),
    Case(
        "additive",
        additive,
        3,
        lambda y, f: stats.norm.logpdf(y, f[:, 0] + f[:, 2], 1 / jnp.sqrt(4.0 * expit(f[:, 1]))),
        # The predictors in the order of the formula: that of the noise first.
        lambda m, v, y: heteroscedastic_bound(m[:, ::-1], v[:, ::-1], y),
        lambda rng, f: f[:, 0] + f[:, 2] + rng.normal(size=len(f)) / np.sqrt(4.0 * sigma(f[:, 1])),
        limits=(-2.0, np.inf),
        limited=1,
        # The added latents are not adjacent.
        design=lambda y: np.broadcast_to(np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), (len(y), 2, 3)),
        multiply=True,
    ),
    Case(
        "varying",
        varying,
        2,
        varying_log_density,
        lambda m, v, y: y[:, 0] * up(m[:, 0] - 0.3, v[:, 0]) + (1 - y[:, 0]) * down(m[:, 0] - 0.3, v[:, 0]),
        varying_generate,
        design=lambda y: np.stack([np.ones(len(y)), 0.7 * y[:, 1]], axis=1)[:, None],
    ),
    Case(
        "shared",
        shared,
        2,
        shared_log_density,
        shared_bound,
        shared_generate,
        design=lambda y: np.broadcast_to(np.array([[1.0, 1.0], [0.0, 1.0]]), (len(y), 2, 2)),
    ),
    Case(
        "multinomial_probit",
        lambda: MultinomialProbit(3),
        3,
        multinomial_probit_log_density,
        lambda m, v, y: multinomial_probit_log_density(y, m) - v.sum(axis=1) / 2,
        lambda rng, f: np.argmax(f + rng.normal(size=f.shape), axis=1).astype(float),
    ),
)
# Likelihoods without an augmentation.
FORMULAS = by_name(
    Case(
        "log_poisson",
        log_poisson,
        1,
        lambda y, f: stats.poisson.logpmf(y, jnp.exp(f[:, 0])),
        None,
        lambda rng, f: rng.poisson(np.exp(f[:, 0])).astype(float),
    ),
    Case(
        "softmax",
        lambda: Softmax(3),
        3,
        lambda y, f: pick(jax.nn.log_softmax(f), y),
        None,
        lambda rng, f: draw_class(rng, np.exp(f)),
    ),
)
EVERY = CASES | FORMULAS
NAMES = tuple(CASES)
# No factor of these combines latents.
SEPARATE = tuple(name for name in NAMES if CASES[name].design is None)
