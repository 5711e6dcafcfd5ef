"""The augmentation rules: a class for each identity that introduces an auxiliary variable.

A rule stands for one factor of the likelihood. It knows the factor, its share of the local bound, the law of its
auxiliary given the latents, and the site that is left of the factor once the auxiliary is known. Auxiliaries that were
drawn earlier in the chain are read from ``env.parameters`` by name.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
from jax.scipy.stats import norm

from pgmodels import polya_gamma
from pgmodels.augmentation.notation import words
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.quadratic import Linear, Quadratic
from pgmodels.augmentation.samplers import inverse_gaussian, truncated_normal
from pgmodels.augmentation.stable import log_sigmoid_tilde
from pgmodels.augmentation.symbols import (
    Auxiliary,
    Expected,
    Function,
    Root,
    SiteTerm,
    Tilde,
    auxiliaries_of,
    mean_of,
    mean_quadratic,
    over_latents,
    substitute,
    variance_of,
)
from pgmodels.language.algebra import add, multiply, power
from pgmodels.language.expression import Environment, Expression
from pgmodels.language.functions import exp, log, normal_cdf
from pgmodels.language.functions import gamma as gamma_of
from pgmodels.language.functions import sigmoid as sigmoid_of
from pgmodels.language.operations import Sum
from pgmodels.language.symbols import Constant

Site = tuple[Any, Any]


class Rule(ABC):
    """One identity of the derivation. ``auxiliary`` is None where the factor is Gaussian already."""

    title: str
    auxiliary: Auxiliary | None
    factor: Expression
    positions: tuple[int, ...]

    @abstractmethod
    def share(self, m: Any, v: Any, env: Environment) -> Any:
        """The rule's share of the local bound, (..., n, 1) or a vector whose sum is meant."""

    @abstractmethod
    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        """A draw of the auxiliary given the latents and the auxiliaries before it."""

    def site(self, env: Environment) -> Site:
        """The site (potential, precision) that the factor leaves, each (..., n, latents); zeros for none."""
        return evaluate_sites(self.sites(), env)

    def rate_site(self, env: Environment) -> Site:
        """The site of latents coupled to this factor, its auxiliary integrated out; zeros for none."""
        return evaluate_sites(self.rate_sites(), env)

    @abstractmethod
    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        """log of the augmented factor, less the factors that later rules augment."""

    def log_factor(self, f: Any, env: Environment) -> Any:
        """log of the factor of the likelihood that the rule stands for, its auxiliary integrated out."""
        return self.factor.log_evaluate(env)

    @abstractmethod
    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        """log density of the auxiliary given the latents and the auxiliaries before it."""

    @abstractmethod
    def identity(self) -> str:
        """The identity as a formula."""

    @abstractmethod
    def augmented(self) -> str:
        """The factor with its auxiliary, less what later rules augment, as a formula; empty where that is 1."""

    @abstractmethod
    def law(self) -> str:
        """The law of the auxiliary given the latents and the auxiliaries before it; empty where there is none."""

    def conditional(self) -> str:
        """The complete conditional of the auxiliary, as a formula; empty where there is none."""
        if self.auxiliary is None:
            return ""
        given = ", ".join([parent.text() for parent in auxiliaries_of(self.factor)] + ["f", "y"])
        return f"{self.auxiliary.text()} | {given} ~ {self.law()}"

    def prior(self) -> tuple[Expression, ...]:
        """What the law of the auxiliary before any observation reads."""
        return ()

    def sites(self) -> tuple[SiteTerm, ...]:
        """The sites that the factor leaves, as formulas."""
        return ()

    def rate_sites(self, averaged: bool = False) -> tuple[SiteTerm, ...]:
        """The sites of latents coupled to this factor, its auxiliary integrated out; ``averaged`` for those of CAVI."""
        return ()

    def expectation(self) -> Expression | None:
        """The expectation of the auxiliary under the optimal q."""
        return None

    @abstractmethod
    def bound(self) -> Expression:
        """The share of the local bound, zero where an earlier rule contains it."""


class GaussianRule(Rule):
    """exp of a quadratic: conditionally Gaussian as it stands."""

    title = "Gaussian"
    auxiliary = None

    def __init__(self, quadratic: Quadratic, linear: tuple[Linear, ...], size: int):
        self.quadratic = quadratic
        self.linear = linear
        self.size = size
        exponent = add(multiply(-1.0, quadratic.expression), *(part.expression for part in linear))
        self.factor = exp(exponent)
        read = set(quadratic.positions) | {p for part in linear for p in part.predictor.positions}
        self.positions = tuple(sorted(read))

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        # E log of the factor itself: nothing is lost.
        total = -jnp.sum(self.quadratic.expected(m, v, env), axis=-1, keepdims=True)
        for part in self.linear:
            mean, _ = part.predictor.moments(m, v, env)
            total = total + jnp.sum(part.coefficient.evaluate(env) * mean, axis=-1, keepdims=True)
        return total

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        return None

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return self.share(f, jnp.zeros_like(f), env)

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return jnp.zeros((1, 1))

    def identity(self) -> str:
        return f"{self.factor.text()} {words('is Gaussian in')} f {words('already.')}"

    def augmented(self) -> str:
        return self.factor.text()

    def law(self) -> str:
        return ""

    def sites(self) -> tuple[SiteTerm, ...]:
        linear = [SiteTerm(part.predictor, part.coefficient, Constant(0.0)) for part in self.linear]
        return (*quadratic_sites(self.quadratic, Constant(1.0)), *linear)

    def bound(self) -> Expression:
        linear = [over_latents(multiply(part.coefficient, mean_of(part.predictor))) for part in self.linear]
        return add(multiply(-1.0, over_latents(mean_quadratic(self.quadratic))), *linear)


class PolyaGammaRule(Rule):
    """σ(z)^a σ(-z)^b with ω ~ PG(a + b, z) (Polson, Scott and Windle 2013, theorem 1)."""

    title = "Pólya-Gamma"
    auxiliary: Auxiliary

    def __init__(self, name: str, predictor: Predictor, a: Expression, b: Expression, counts: tuple[tuple, ...]):
        self.predictor = predictor
        self.a, self.b = a, b
        self.counts = counts
        self.positions = predictor.positions
        up = add(a, *(count for count, side in counts if side > 0))
        down = add(b, *(count for count, side in counts if side < 0))
        self.up, self.down = up, down
        self.total, self.difference = add(up, down), add(up, multiply(-1.0, down))
        z = predictor.expression
        self.factor = multiply(power(sigmoid_of(z), up), power(sigmoid_of(multiply(-1.0, z)), down))
        self.auxiliary = Auxiliary(name, predictor.is_vector or up.is_vector or down.is_vector)

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        # a log σ̃+(z) + b log σ̃-(z); the counts are part of the Poisson rules that drew them.
        mean, variance = self.predictor.moments(m, v, env)
        total = jnp.zeros_like(mean)
        if self.a.key != Constant(0.0).key:
            total = total + self.a.evaluate(env) * log_sigmoid_tilde(mean, variance)
        if self.b.key != Constant(0.0).key:
            total = total + self.b.evaluate(env) * log_sigmoid_tilde(-mean, variance)
        return total

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        z = self.predictor.value(f, env)
        b, z = jnp.broadcast_arrays(self.total.evaluate(env), z)
        return polya_gamma.draw(key, b, z)

    def log_factor(self, f: Any, env: Environment) -> Any:
        # The counts belong to the factors of the Poisson rules that draw them.
        z = self.predictor.value(f, env)
        return self.a.evaluate(env) * jax.nn.log_sigmoid(z) + self.b.evaluate(env) * jax.nn.log_sigmoid(-z)

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        z, b = self.predictor.value(f, env), self.total.evaluate(env)
        exponent = 0.5 * self.difference.evaluate(env) * z - 0.5 * auxiliary * z**2
        return exponent - b * jnp.log(2.0) + _log_polya_gamma(auxiliary, b, jnp.zeros_like(z))

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return _log_polya_gamma(auxiliary, self.total.evaluate(env), self.predictor.value(f, env))

    def identity(self) -> str:
        scale, rest = self._parts()
        return f"{self.factor.text()} = {scale} ∫ {rest} d{self.auxiliary.text()}"

    def _parts(self) -> tuple[str, str]:
        z, omega = self.predictor.expression, self.auxiliary
        linear = multiply(multiply(0.5, self.difference), z)
        exponent = add(linear, multiply(-0.5, omega, power(z, 2.0)))
        return (
            f"2^-{self.total.text(3)}",
            f"{exp(exponent).text()} PG({omega.text()}; {self.total.text()}, 0)",
        )

    def augmented(self) -> str:
        return " ".join(self._parts())

    def law(self) -> str:
        return f"PG({self.total.text()}, {self.predictor.text()})"

    def prior(self) -> tuple[Expression, ...]:
        return (self.total,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(0.5, self.difference), self.auxiliary),)

    def expectation(self) -> Expression:
        root = Root(self.auxiliary.name.replace("ω", "ζ"), self.predictor)
        total = add(self.a, self.b, *(Expected(count) for count, _ in self.counts))
        return multiply(total, Function("tanh", jnp.tanh, multiply(0.5, root)), power(multiply(2.0, root), -1.0))

    def bound(self) -> Expression:
        up, down = (Tilde(self.predictor, side, logarithm=True) for side in (1, -1))
        return over_latents(add(multiply(self.a, up), multiply(self.b, down)))


class PoissonRule(Rule):
    """exp(-R σ(z)), R >= 0, with k ~ Poisson(R σ(-z)) (Galy-Fajou et al. 2019, section 3.1, augmentation 2).

    R is a coefficient, an auxiliary of an earlier rule, or a non-negative quadratic in latents other than that of z.
    """

    title = "Poisson"
    auxiliary: Auxiliary

    def __init__(self, name: str, predictor: Predictor, rate: Quadratic, parent: Auxiliary | None = None):
        self.predictor = predictor
        self.rate = rate
        self.parent = parent
        self.positions = predictor.positions
        z = predictor.expression
        self.factor = exp(multiply(-1.0, rate.expression, sigmoid_of(z)))
        self.auxiliary = Auxiliary(name, predictor.is_vector or rate.expression.is_vector)
        self.rate_positions = rate.positions

    def thinning(self, m: Any, v: Any, env: Environment) -> Any:
        """1 - σ̃-(z): what stands for σ(z) in the bound."""
        mean, variance = self.predictor.moments(m, v, env)
        return -jnp.expm1(log_sigmoid_tilde(-mean, variance))

    def log_thinning(self, m: Any, v: Any, env: Environment) -> Any:
        """log(1 - σ̃-(z)), finite where the value itself underflows."""
        return jnp.log(self.thinning(m, v, env))

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        if self.parent is not None:
            return jnp.zeros((1, 1))
        return -self.rate.expected(m, v, env) * self.thinning(m, v, env)

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        return jax.random.poisson(key, self._conditional_rate(f, env)).astype(f.dtype)

    def _conditional_rate(self, f: Any, env: Environment) -> Any:
        return self.rate.value(f, env) * jax.nn.sigmoid(-self.predictor.value(f, env))

    def log_factor(self, f: Any, env: Environment) -> Any:
        """log of the factor without its auxiliary."""
        return -self.rate.value(f, env) * jax.nn.sigmoid(self.predictor.value(f, env))

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return _log_poisson(auxiliary, self.rate.value(f, env))

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return _log_poisson(auxiliary, self._conditional_rate(f, env))

    def identity(self) -> str:
        name = self.auxiliary.text()
        index = f"{{{name}}}" if self.auxiliary.is_vector else name
        down = sigmoid_of(multiply(-1.0, self.predictor.expression))
        return f"{self.factor.text()} = Σ_{index} {self.augmented()} {power(down, self.auxiliary).text()}"

    def augmented(self) -> str:
        return f"Poisson({self.auxiliary.text()}; {self.rate.expression.text()})"

    def law(self) -> str:
        down = sigmoid_of(multiply(-1.0, self.predictor.expression))
        return f"Poisson({multiply(self.rate.expression, down).text()})"

    def prior(self) -> tuple[Expression, ...]:
        return (self.rate.expression,)

    def rate_sites(self, averaged: bool = False) -> tuple[SiteTerm, ...]:
        z = self.predictor
        link = add(1.0, multiply(-1.0, Tilde(z, -1))) if averaged else sigmoid_of(z.expression)
        return quadratic_sites(self.rate, link)

    def expectation(self) -> Expression:
        rate = mean_quadratic(self.rate)
        if self.parent is not None:
            rate = substitute(rate, {self.parent.key: Expected(self.parent)})
        return multiply(rate, Tilde(self.predictor, -1))

    def bound(self) -> Expression:
        if self.parent is not None:
            return Constant(0.0)
        thinning = add(1.0, multiply(-1.0, Tilde(self.predictor, -1)))
        return over_latents(multiply(-1.0, mean_quadratic(self.rate), thinning))


class GammaRule(Rule):
    """S^-p, S = c + Σ_j w_j σ(z_j), with λ ~ Gamma(p, rate S) (Galy-Fajou et al. 2019, section 3.1, augmentation 1)."""

    title = "Gamma"
    auxiliary: Auxiliary

    def __init__(
        self,
        name: str,
        base: Expression,
        exponent: Expression,
        constant: Expression,
        terms: tuple[tuple[Expression, Predictor, bool], ...],
    ):
        self.base, self.exponent, self.constant, self.terms = base, exponent, constant, terms
        self.positions = tuple(sorted({p for _, predictor, _ in terms for p in predictor.positions}))
        self.factor = power(base, multiply(-1.0, exponent))
        self.auxiliary = Auxiliary(name, base.is_vector or exponent.is_vector)
        self.poissons: tuple[PoissonRule, ...] = ()

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        # -p log(c + Σ_j w_j (1 - σ̃-(z_j)))
        parts = [poisson.log_thinning(m, v, env) for poisson in self.poissons]
        return -self.exponent.evaluate(env) * self._log_sum(parts, env)

    def _log_sum(self, logs: list[Any], env: Environment) -> Any:
        """log(c + Σ_j w_j exp(logs_j)), as a log-sum-exp so that nothing underflows."""
        columns = []
        if self.constant.key != Constant(0.0).key:
            columns.append((jnp.zeros((1, 1)), self.constant.evaluate(env)))
        for (weight, _, reduced), part in zip(self.terms, logs, strict=True):
            value, factor = jnp.broadcast_arrays(part, weight.evaluate(env))
            if reduced:
                columns.extend((value[..., i : i + 1], factor[..., i : i + 1]) for i in range(value.shape[-1]))
            else:
                columns.append((value, factor))
        values = jnp.stack(jnp.broadcast_arrays(*(value for value, _ in columns)))
        factors = jnp.stack(jnp.broadcast_arrays(*(factor for _, factor in columns)))
        return jax.nn.logsumexp(values, axis=0, b=factors)

    def _log_base(self, f: Any, env: Environment) -> Any:
        logs = [jax.nn.log_sigmoid(predictor.value(f, env)) for _, predictor, _ in self.terms]
        return self._log_sum(logs, env)

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        log_rate, shape = jnp.broadcast_arrays(self._log_base(f, env), self.exponent.evaluate(env))
        positive = shape > 0
        log_gamma = jax.random.loggamma(key, jnp.where(positive, shape, 1.0))
        return jnp.where(positive, jnp.exp(log_gamma - log_rate), 0.0)

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        p = self.exponent.evaluate(env)
        log_density = jsp.xlogy(p - 1, auxiliary) - jsp.gammaln(p) - auxiliary * self.constant.evaluate(env)
        return jnp.where(p > 0, log_density, 0.0)

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        p, log_rate = self.exponent.evaluate(env), self._log_base(f, env)
        log_density = p * log_rate + jsp.xlogy(p - 1, auxiliary) - jsp.gammaln(p) - auxiliary * jnp.exp(log_rate)
        return jnp.where(p > 0, log_density, 0.0)

    def identity(self) -> str:
        name = self.auxiliary
        return f"{self.factor.text()} = ∫ {_gamma_mixed(name, self.exponent, self.base)} d{name.text()}"

    def augmented(self) -> str:
        text = _gamma_mixed(self.auxiliary, self.exponent, self.constant)
        return "" if text == "1" else text

    def law(self) -> str:
        return f"Gamma({self.exponent.text()}, {words('rate')} {self.base.text()})"

    def prior(self) -> tuple[Expression, ...]:
        return (self.exponent,)

    def expectation(self) -> Expression:
        return multiply(self.exponent, power(self._mean_base(), -1.0))

    def _mean_base(self) -> Expression:
        total = self.constant
        for weight, predictor, reduced in self.terms:
            term = multiply(weight, add(1.0, multiply(-1.0, Tilde(predictor, -1))))
            total = add(total, over_latents(term) if reduced else term)
        return total

    def bound(self) -> Expression:
        return over_latents(multiply(-1.0, self.exponent, log(self._mean_base())))


class TruncatedGaussianRule(Rule):
    """Φ(z)^a, a in {0, 1}, with u ~ N(z, 1) truncated to u > 0 (Albert and Chib 1993)."""

    title = "Truncated Gaussian"
    auxiliary: Auxiliary

    def __init__(self, name: str, predictor: Predictor, exponent: Expression):
        self.predictor, self.exponent = predictor, exponent
        self.positions = predictor.positions
        self.factor = power(normal_cdf(predictor.expression), exponent)
        self.auxiliary = Auxiliary(name, predictor.is_vector or exponent.is_vector)

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        # log Φ(E z) - Var(z) / 2
        mean, variance = self.predictor.moments(m, v, env)
        return self.exponent.evaluate(env) * (jsp.log_ndtr(mean) - 0.5 * variance)

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        z = self.predictor.value(f, env)
        shape = jnp.broadcast_shapes(z.shape, self.exponent.evaluate(env).shape)
        return truncated_normal(key, jnp.broadcast_to(z, shape))

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return self.exponent.evaluate(env) * norm.logpdf(auxiliary, self.predictor.value(f, env))

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        z = self.predictor.value(f, env)
        return self.exponent.evaluate(env) * (norm.logpdf(auxiliary, z) - jsp.log_ndtr(z))

    def identity(self) -> str:
        name, z = self.auxiliary.text(), self.predictor.text()
        return f"Φ({z}) = ∫_0^∞ N({name}; {z}, 1) d{name}" + self._switch()

    def _switch(self) -> str:
        opposite = add(1.0, multiply(-1.0, self.exponent))
        if self.exponent.key == Constant(1.0).key:
            return ""
        if isinstance(self.exponent, Sum) and not isinstance(opposite, Sum):
            return f"{words(', where')} {opposite.text()} = 0"
        return f"{words(', where')} {self.exponent.text()} = 1"

    def augmented(self) -> str:
        name = self.auxiliary.text()
        density = f"N({name}; {self.predictor.text()}, 1) [{name} > 0]"
        return density if self.exponent.key == Constant(1.0).key else f"({density})^{self.exponent.text(3)}"

    def law(self) -> str:
        return f"N({self.predictor.text()}, 1) {words('truncated to')} {self.auxiliary.text()} > 0" + self._switch()

    def prior(self) -> tuple[Expression, ...]:
        return (self.predictor.expression,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(self.exponent, self.auxiliary), self.exponent),)

    def expectation(self) -> Expression:
        mean = mean_of(self.predictor)
        return add(mean, multiply(Function("φ", norm.pdf, mean), power(normal_cdf(mean), -1.0)))

    def bound(self) -> Expression:
        spread = multiply(-0.5, variance_of(self.predictor))
        return over_latents(multiply(self.exponent, add(log(normal_cdf(mean_of(self.predictor))), spread)))


class ScaleMixtureRule(Rule):
    """φ(Q), φ completely monotone and Q >= 0 a quadratic: exp(-ω Q) under a mixing law of ω."""

    auxiliary: Auxiliary

    def __init__(self, name: str, base: Quadratic, factor: Expression, is_vector: bool, size: int):
        self.base, self.factor, self.size = base, factor, size
        self.positions = base.positions
        self.auxiliary = Auxiliary(name, is_vector)

    def sites(self) -> tuple[SiteTerm, ...]:
        return quadratic_sites(self.base, self.auxiliary)


class GammaMixtureRule(ScaleMixtureRule):
    """Q^-p with ω ~ Gamma(p, rate Q): Student-t."""

    title = "Scale mixture (Gamma mixing)"

    def __init__(self, name: str, base: Quadratic, exponent: Expression, size: int):
        self.exponent = exponent
        expression = base.expression
        factor = power(expression, multiply(-1.0, exponent))
        super().__init__(name, base, factor, expression.is_vector or exponent.is_vector, size)

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        return -self.exponent.evaluate(env) * jnp.log(self.base.expected(m, v, env))

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        rate, shape = jnp.broadcast_arrays(self.base.value(f, env), self.exponent.evaluate(env))
        positive = shape > 0
        return jnp.where(positive, jax.random.gamma(key, jnp.where(positive, shape, 1.0)) / rate, 0.0)

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        p = self.exponent.evaluate(env)
        log_density = jsp.xlogy(p - 1, auxiliary) - jsp.gammaln(p) - auxiliary * self.base.value(f, env)
        return jnp.where(p > 0, log_density, 0.0)

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        p = self.exponent.evaluate(env)
        return jnp.where(p > 0, self.log_joint(auxiliary, f, env) + p * jnp.log(self.base.value(f, env)), 0.0)

    def identity(self) -> str:
        return f"{self.factor.text()} = ∫ {self.augmented()} d{self.auxiliary.text()}"

    def augmented(self) -> str:
        return _gamma_mixed(self.auxiliary, self.exponent, self.base.expression)

    def law(self) -> str:
        return f"Gamma({self.exponent.text()}, {words('rate')} {self.base.expression.text()})"

    def prior(self) -> tuple[Expression, ...]:
        return (self.exponent,)

    def expectation(self) -> Expression:
        return multiply(self.exponent, power(mean_quadratic(self.base), -1.0))

    def bound(self) -> Expression:
        return over_latents(multiply(-1.0, self.exponent, log(mean_quadratic(self.base))))


class InverseGaussianMixtureRule(ScaleMixtureRule):
    """exp(-κ √Q) with ω ~ InverseGaussian(mean κ / (2 √Q), shape κ^2 / 2): Laplace (Andrews and Mallows 1974)."""

    title = "Scale mixture (inverse Gaussian mixing)"

    def __init__(self, name: str, base: Quadratic, root: Expression, steepness: Expression, size: int):
        self.steepness, self.root = steepness, root
        factor = exp(multiply(-1.0, steepness, root))
        super().__init__(name, base, factor, root.is_vector or steepness.is_vector, size)

    def share(self, m: Any, v: Any, env: Environment) -> Any:
        return -self.steepness.evaluate(env) * jnp.sqrt(self.base.expected(m, v, env))

    def _law(self, f: Any, env: Environment) -> tuple[Any, Any]:
        steepness = self.steepness.evaluate(env)
        return steepness / (2.0 * jnp.sqrt(self.base.value(f, env))), 0.5 * steepness**2

    def draw(self, key: Any, f: Any, env: Environment) -> Any:
        mean, shape = jnp.broadcast_arrays(*self._law(f, env))
        active = shape > 0
        drawn = inverse_gaussian(key, jnp.where(active, mean, 1.0), jnp.where(active, shape, 1.0))
        return jnp.where(active, drawn, 0.0)

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        # Lévy mixing law with scale κ^2 / 2, whose Laplace transform at Q is exp(-κ √Q).
        c = 0.5 * self.steepness.evaluate(env) ** 2
        levy = 0.5 * jnp.log(c / (2 * jnp.pi)) - 1.5 * jnp.log(auxiliary) - c / (2 * auxiliary)
        return jnp.where(c > 0, levy - auxiliary * self.base.value(f, env), 0.0)

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        mean, shape = self._law(f, env)
        density = 0.5 * jnp.log(shape / (2 * jnp.pi)) - 1.5 * jnp.log(auxiliary)
        deviation = shape * (auxiliary - mean) ** 2 / (2 * mean**2 * auxiliary)
        return jnp.where(shape > 0, density - deviation, 0.0)

    def identity(self) -> str:
        return f"{self.factor.text()} = ∫ {self.augmented()} d{self.auxiliary.text()}"

    def augmented(self) -> str:
        name, scale = self.auxiliary, multiply(0.5, power(self.steepness, 2.0))
        mixed = exp(multiply(-1.0, name, self.base.expression))
        return f"{mixed.text(2)} Lévy({name.text()}; 0, {scale.text()})"

    def law(self) -> str:
        mean = multiply(self.steepness, power(multiply(2.0, self.root), -1.0))
        shape = multiply(0.5, power(self.steepness, 2.0))
        return f"InverseGaussian({words('mean')} {mean.text()}, {words('shape')} {shape.text()})"

    def prior(self) -> tuple[Expression, ...]:
        return (self.steepness,)

    def expectation(self) -> Expression:
        return multiply(0.5, self.steepness, power(mean_quadratic(self.base), -0.5))

    def bound(self) -> Expression:
        return over_latents(multiply(-1.0, self.steepness, power(mean_quadratic(self.base), 0.5)))


RULES: tuple[type[Rule], ...] = (
    PolyaGammaRule,
    PoissonRule,
    GammaRule,
    GammaMixtureRule,
    InverseGaussianMixtureRule,
    TruncatedGaussianRule,
    GaussianRule,
)


def evaluate_sites(terms: tuple[SiteTerm, ...], env: Environment) -> Site:
    """The sites of formulas at latent values and auxiliaries, added up."""
    potential, precision = jnp.zeros_like(env.f), jnp.zeros_like(env.f)
    for term in terms:
        h, w = term.predictor.site(term.potential.evaluate(env), term.precision.evaluate(env), env)
        potential, precision = potential + h, precision + w
    return potential, precision


def _log_poisson(k: Any, rate: Any) -> Any:
    return jsp.xlogy(k, rate) - rate - jsp.gammaln(k + 1.0)


def _log_polya_gamma(omega: Any, b: Any, c: Any) -> Any:
    omega, b, c = jnp.broadcast_arrays(omega, b, c)
    positive = b > 0
    return jnp.where(positive, polya_gamma.log_density(omega, jnp.where(positive, b, 1.0), c), 0.0)


def quadratic_sites(quadratic: Quadratic, multiplier: Expression) -> tuple[SiteTerm, ...]:
    """The sites of exp(-multiplier * quadratic)."""
    zero = Constant(0.0)
    return tuple(SiteTerm(s.predictor, zero, multiply(2.0, multiplier, s.weight)) for s in quadratic.squares)


def _gamma_mixed(auxiliary: Auxiliary, exponent: Expression, rate: Expression) -> str:
    """ω^(p - 1) / Γ(p) exp(-ω rate)."""
    trivial = isinstance(exponent, Constant) and exponent.value in (1.0, 2.0)
    scale = Constant(1.0) if trivial else power(gamma_of(exponent), -1.0)
    powers = power(auxiliary, add(exponent, -1.0))
    exponential = exp(multiply(-1.0, auxiliary, rate)) if rate.key != Constant(0.0).key else Constant(1.0)
    return multiply(powers, exponential, scale).text()
