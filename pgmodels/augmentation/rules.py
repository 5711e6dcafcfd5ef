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
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.quadratic import Linear, Quadratic
from pgmodels.augmentation.stable import log_sigmoid_tilde
from pgmodels.formulas import Constant, Environment, Expression, add, exp, multiply, normal_cdf, power
from pgmodels.formulas import sigmoid as sigmoid_of

Site = tuple[Any, Any]


class Auxiliary(Expression):
    """The symbol of an auxiliary variable; given the latents it is a coefficient like any other."""

    def __init__(self, name: str, is_vector: bool):
        self.name = name
        self.is_vector = is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.name, self.is_vector)

    sign = 1  # type: ignore[assignment]
    nonnegative = True  # type: ignore[assignment]

    def evaluate(self, env: Environment) -> Any:
        return env.parameters[self.name]

    def text(self, precedence: int = 0) -> str:
        return f"{self.name}[c]" if self.is_vector else self.name


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

    @abstractmethod
    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        """The site (potential, precision) that the factor leaves, each (..., n, latents)."""

    @abstractmethod
    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        """log of the augmented factor, less the factors that later rules augment."""

    @abstractmethod
    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        """log density of the auxiliary given the latents and the auxiliaries before it."""

    @abstractmethod
    def identity(self) -> str:
        """The identity as a formula."""

    @abstractmethod
    def conditional(self) -> str:
        """The law of the auxiliary given the latents, as a formula; empty where there is none."""

    @abstractmethod
    def gaussian(self) -> str:
        """The exponent of the site, as a formula; empty where later rules take over."""

    @abstractmethod
    def expectation(self) -> str:
        """The expectations under q that the CAVI update needs, as a formula; empty where there are none."""

    @abstractmethod
    def bound(self) -> str:
        """The share of the local bound, as a formula; empty where an earlier rule contains it."""


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

    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        h, w = self.quadratic.site(jnp.ones((1, 1)), self.size, env)
        for part in self.linear:
            extra, _ = part.predictor.site(part.coefficient.evaluate(env), jnp.zeros((1, 1)), env)
            h = h + extra
        return h, w

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return self.share(f, jnp.zeros_like(f), env)

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return jnp.zeros((1, 1))

    def identity(self) -> str:
        return f"{self.factor.text()} is Gaussian in f already."

    def conditional(self) -> str:
        return ""

    def gaussian(self) -> str:
        return self.factor.argument.text()  # type: ignore[attr-defined]

    def expectation(self) -> str:
        return ""

    def bound(self) -> str:
        return f"E[{self.factor.argument.text()}]"  # type: ignore[attr-defined]


class PolyaGammaRule(Rule):
    """σ(z)^a σ(-z)^b with ω ~ PG(a + b, z) (Polson, Scott and Windle 2013, theorem 1)."""

    title = "Pólya-Gamma"

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

    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        # exp((a - b) z / 2 - ω z^2 / 2)
        return self.predictor.site(0.5 * self.difference.evaluate(env), auxiliary, env)

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        z, b = self.predictor.value(f, env), self.total.evaluate(env)
        exponent = 0.5 * self.difference.evaluate(env) * z - 0.5 * auxiliary * z**2
        return exponent - b * jnp.log(2.0) + _log_polya_gamma(auxiliary, b, jnp.zeros_like(z))

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return _log_polya_gamma(auxiliary, self.total.evaluate(env), self.predictor.value(f, env))

    def identity(self) -> str:
        z, name = self.predictor.expression.text(2), self.auxiliary.text()
        difference = multiply(0.5, self.difference).text(2)
        return (
            f"{self.factor.text()} = 2^-({self.total.text()}) "
            f"∫ exp({difference} {z} - {name} {z}^2 / 2) PG({name}; {self.total.text()}, 0) d{name}"
        )

    def conditional(self) -> str:
        return f"{self.auxiliary.text()} ~ PG({self.total.text()}, {self.predictor.text()})"

    def gaussian(self) -> str:
        z = self.predictor.expression.text(4)
        linear = multiply(0.5, self.difference).text(2)
        return f"{linear} {z} - {self.auxiliary.text()} {z}^2 / 2"

    def expectation(self) -> str:
        z = self.predictor.text()
        total = self.total.text()
        held = f"E[{total}]" if self.counts else (f"({total})" if " " in total else total)
        return f"E[{self.auxiliary.text()}] = {held} tanh(ζ/2) / (2 ζ),  ζ = sqrt(E[({z})^2])"

    def bound(self) -> str:
        z = self.predictor.text()
        up = multiply(self.a, _tilde("σ̃₊", z)) if self.a.key != Constant(0.0).key else Constant(0.0)
        down = multiply(self.b, _tilde("σ̃₋", z)) if self.b.key != Constant(0.0).key else Constant(0.0)
        total = add(up, down)
        if total.key == Constant(0.0).key:
            return ""
        return _over(total.text(), self.auxiliary.is_vector and total.text() != "")


class PoissonRule(Rule):
    """exp(-R σ(z)), R >= 0, with k ~ Poisson(R σ(-z)) (Galy-Fajou et al. 2019, section 3.1, augmentation 2).

    R is a coefficient, an auxiliary of an earlier rule, or a non-negative quadratic in latents other than that of z.
    """

    title = "Poisson"

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

    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        # σ(-z)^k is left to the Pólya-Gamma rule of z.
        size = self.predictor.latent.size
        return jnp.zeros((1, size)), jnp.zeros((1, size))

    def rate_site(self, f: Any, env: Environment) -> Site:
        """The site of the latents in the rate, with the auxiliary integrated out: exp(-R σ(z)) as it stands."""
        size = self.predictor.latent.size
        return self.rate.site(jax.nn.sigmoid(self.predictor.value(f, env)), size, env)

    def log_factor(self, f: Any, env: Environment) -> Any:
        """log of the factor without its auxiliary."""
        return -self.rate.value(f, env) * jax.nn.sigmoid(self.predictor.value(f, env))

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return _log_poisson(auxiliary, self.rate.value(f, env))

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return _log_poisson(auxiliary, self._conditional_rate(f, env))

    def identity(self) -> str:
        name = self.auxiliary.text()
        down = sigmoid_of(multiply(-1.0, self.predictor.expression)).text()
        return f"{self.factor.text()} = Σ_{name} Poisson({name}; {self.rate.expression.text()}) {down}^{name}"

    def conditional(self) -> str:
        down = sigmoid_of(multiply(-1.0, self.predictor.expression))
        return f"{self.auxiliary.text()} ~ Poisson({multiply(self.rate.expression, down).text()})"

    def gaussian(self) -> str:
        return ""

    def expectation(self) -> str:
        rate, z = self.rate.expression.text(2), self.predictor.text()
        return f"E[{self.auxiliary.text()}] = E[{rate}] σ̃₋({z})"

    def bound(self) -> str:
        if self.parent is not None:
            return ""
        rate, z = self.rate.expression.text(), self.predictor.text()
        held = f"E[{rate}]" if self.rate_positions else (f"({rate})" if " " in rate else rate)
        return _over(f"-{held} (1 - σ̃₋({z}))", self.auxiliary.is_vector)


class GammaRule(Rule):
    """S^-p, S = c + Σ_j w_j σ(z_j), with λ ~ Gamma(p, rate S) (Galy-Fajou et al. 2019, section 3.1, augmentation 1)."""

    title = "Gamma"

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

    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        # exp(-λ w σ(z)) is left to the Poisson rules.
        size = self.terms[0][1].latent.size
        return jnp.zeros((1, size)), jnp.zeros((1, size))

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        p = self.exponent.evaluate(env)
        log_density = jsp.xlogy(p - 1, auxiliary) - jsp.gammaln(p) - auxiliary * self.constant.evaluate(env)
        return jnp.where(p > 0, log_density, 0.0)

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        p, log_rate = self.exponent.evaluate(env), self._log_base(f, env)
        log_density = p * log_rate + jsp.xlogy(p - 1, auxiliary) - jsp.gammaln(p) - auxiliary * jnp.exp(log_rate)
        return jnp.where(p > 0, log_density, 0.0)

    def identity(self) -> str:
        name, p = self.auxiliary.text(), self.exponent.text()
        weight = "" if p == "1" else f"{name}^({p} - 1) / Γ({p}) "
        return f"{self.factor.text()} = ∫ {weight}exp(-{name} {self.base.text(2)}) d{name}"

    def conditional(self) -> str:
        return f"{self.auxiliary.text()} ~ Gamma({self.exponent.text()}, rate {self.base.text()})"

    def gaussian(self) -> str:
        return ""

    def expectation(self) -> str:
        return f"E[{self.auxiliary.text()}] = {self.exponent.text(2)} / {self._tilted()}"

    def _tilted(self) -> str:
        text = [] if self.constant.key == Constant(0.0).key else [self.constant.text()]
        for weight, predictor, reduced in self.terms:
            factor = "" if weight.key == Constant(1.0).key else f"{weight.text(2)} "
            term = f"{factor}(1 - σ̃₋({predictor.text()}))"
            text.append(f"Σ_c {term}" if reduced else term)
        return f"({' + '.join(text)})"

    def bound(self) -> str:
        p = "" if self.exponent.key == Constant(1.0).key else f"{self.exponent.text(2)} "
        return _over(f"-{p}log{self._tilted()}", self.auxiliary.is_vector)


class TruncatedGaussianRule(Rule):
    """Φ(z)^a, a in {0, 1}, with u ~ N(z, 1) truncated to u > 0 (Albert and Chib 1993)."""

    title = "Truncated Gaussian"

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

    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        # exp(u z - z^2 / 2)
        a = self.exponent.evaluate(env)
        return self.predictor.site(a * auxiliary, a * jnp.ones_like(auxiliary), env)

    def log_joint(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        return self.exponent.evaluate(env) * norm.logpdf(auxiliary, self.predictor.value(f, env))

    def log_conditional(self, auxiliary: Any, f: Any, env: Environment) -> Any:
        z = self.predictor.value(f, env)
        return self.exponent.evaluate(env) * (norm.logpdf(auxiliary, z) - jsp.log_ndtr(z))

    def identity(self) -> str:
        name, z = self.auxiliary.text(), self.predictor.text()
        return f"Φ({z}) = ∫_0^∞ N({name}; {z}, 1) d{name}" + self._switch()

    def _switch(self) -> str:
        return "" if self.exponent.key == Constant(1.0).key else f"   where {self.exponent.text()} = 1"

    def conditional(self) -> str:
        return f"{self.auxiliary.text()} ~ N({self.predictor.text()}, 1) truncated to > 0" + self._switch()

    def gaussian(self) -> str:
        z, name = self.predictor.expression.text(4), self.auxiliary.text()
        term = f"{name} {z} - {z}^2 / 2"
        return term if self.exponent.key == Constant(1.0).key else f"{self.exponent.text(2)} ({term})"

    def expectation(self) -> str:
        z = self.predictor.text()
        return f"E[{self.auxiliary.text()}] = E[{z}] + φ(E[{z}]) / Φ(E[{z}])"

    def bound(self) -> str:
        z = self.predictor.text()
        a = "" if self.exponent.key == Constant(1.0).key else f"{self.exponent.text(2)} "
        return _over(f"{a}(log Φ(E[{z}]) - Var[{z}] / 2)", self.auxiliary.is_vector)


class ScaleMixtureRule(Rule):
    """φ(Q), φ completely monotone and Q >= 0 a quadratic: exp(-ω Q) under a mixing law of ω."""

    def __init__(self, name: str, base: Quadratic, factor: Expression, is_vector: bool, size: int):
        self.base, self.factor, self.size = base, factor, size
        self.positions = base.positions
        self.auxiliary = Auxiliary(name, is_vector)

    def site(self, auxiliary: Any, f: Any, env: Environment) -> Site:
        return self.base.site(auxiliary, self.size, env)

    def gaussian(self) -> str:
        return f"-{self.auxiliary.text()} {self.base.expression.text(2)}"


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
        name, p = self.auxiliary.text(), self.exponent.text(2)
        return f"{self.factor.text()} = ∫ {name}^({p} - 1) / Γ({p}) exp(-{name} {self.base.expression.text(2)}) d{name}"

    def conditional(self) -> str:
        return f"{self.auxiliary.text()} ~ Gamma({self.exponent.text()}, rate {self.base.expression.text()})"

    def expectation(self) -> str:
        return f"E[{self.auxiliary.text()}] = {self.exponent.text(2)} / E[{self.base.expression.text()}]"

    def bound(self) -> str:
        return _over(f"-{self.exponent.text(2)} log E[{self.base.expression.text()}]", self.auxiliary.is_vector)


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
        name, c = self.auxiliary.text(), multiply(0.5, power(self.steepness, 2.0)).text()
        return f"{self.factor.text()} = ∫ exp(-{name} {self.base.expression.text(2)}) Lévy({name}; {c}) d{name}"

    def conditional(self) -> str:
        mean = multiply(self.steepness, power(multiply(2.0, self.root), -1.0))
        shape = multiply(0.5, power(self.steepness, 2.0))
        return f"{self.auxiliary.text()} ~ InverseGaussian(mean {mean.text()}, shape {shape.text()})"

    def expectation(self) -> str:
        steepness = self.steepness.text(2)
        return f"E[{self.auxiliary.text()}] = {steepness} / (2 sqrt(E[{self.base.expression.text()}]))"

    def bound(self) -> str:
        return _over(f"-{self.steepness.text(2)} sqrt(E[{self.base.expression.text()}])", self.auxiliary.is_vector)


RULES: tuple[type[Rule], ...] = (
    PolyaGammaRule,
    PoissonRule,
    GammaRule,
    GammaMixtureRule,
    InverseGaussianMixtureRule,
    TruncatedGaussianRule,
    GaussianRule,
)


def truncated_normal(key: Any, mean: Any) -> Any:
    """Draws of N(mean, 1) truncated to positive values, exact for means of either sign and any size."""
    # u > 0 is ε > -mean. The upper tail probability is drawn in logs, so that Φ(mean) may underflow.
    log_tail = jsp.log_ndtr(mean) + jnp.log1p(-jax.random.uniform(key, mean.shape, mean.dtype))
    # ε = -Φ^-1(tail), by Newton's method on log Φ from the asymptote: log Φ is concave, so it converges from one side.
    near = jnp.clip(log_tail, -30.0, None)
    start = jnp.where(log_tail > -30.0, jsp.ndtri(jnp.exp(near)), -jnp.sqrt(-2.0 * log_tail))

    def newton(_: int, x: Any) -> Any:
        log_cdf = jsp.log_ndtr(x)
        slope = jnp.exp(norm.logpdf(x) - log_cdf)
        return x - (log_cdf - log_tail) / slope

    far = jax.lax.fori_loop(0, 6, newton, jnp.where(log_tail > -30.0, -8.0, start))
    epsilon = -jnp.where(log_tail > -30.0, start, far)
    return jnp.maximum(mean + epsilon, jnp.finfo(mean.dtype).tiny)


def inverse_gaussian(key: Any, mean: Any, shape: Any) -> Any:
    """Draws of the inverse Gaussian distribution (Michael, Schucany and Haas 1976), without cancellation."""
    normal_key, uniform_key = jax.random.split(key)
    chi = jax.random.normal(normal_key, mean.shape, mean.dtype) ** 2
    ratio = mean * chi / (2.0 * shape)
    # The smaller root of the quadratic is mean / (1 + ratio + sqrt(ratio (ratio + 2))).
    smaller = mean / (1.0 + ratio + jnp.sqrt(ratio * (ratio + 2.0)))
    accept = jax.random.uniform(uniform_key, mean.shape, mean.dtype) * (mean + smaller) <= mean
    return jnp.where(accept, smaller, mean * (mean / smaller))


def _log_poisson(k: Any, rate: Any) -> Any:
    return jsp.xlogy(k, rate) - rate - jsp.gammaln(k + 1.0)


def _log_polya_gamma(omega: Any, b: Any, c: Any) -> Any:
    omega, b, c = jnp.broadcast_arrays(omega, b, c)
    positive = b > 0
    return jnp.where(positive, polya_gamma.log_density(omega, jnp.where(positive, b, 1.0), c), 0.0)


class _Tilde(Expression):
    """log σ̃±(z), for printing."""

    nonnegative = False  # type: ignore[assignment]

    def __init__(self, symbol: str, argument: str):
        self.label = f"log {symbol}({argument})"

    def _label(self) -> Any:
        return self.label

    def evaluate(self, env: Environment) -> Any:
        raise TypeError("a symbol for printing has no value")

    def text(self, precedence: int = 0) -> str:
        return self.label


def _tilde(symbol: str, argument: str) -> Expression:
    return _Tilde(symbol, argument)


def _over(text: str, is_vector: bool) -> str:
    return f"Σ_c ({text})" if is_vector and text else text
