"""Checks of a derivation: cases, bounds and draws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.laws import Law
from pgmodels.augmentation.predictors import VerificationError
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.likelihoods.expression import Environment
from pgmodels.numerics.quadrature import trapezoid_normal
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten

ROWS = 8
DRAWS = 2000
# Number of latent points or auxiliary draws per check. It is the same for all, so that few shapes are compiled.
POINTS = 8

INTEGRATES = "the auxiliaries integrate back to the likelihood"
JOINT = "log joint - log conditional is the log likelihood"
SITE = "the site given the auxiliaries is the log joint in f"
DRAWN = "the draws follow the conditional"
TIGHT = "the bound is tight"
BELOW = "the bound is below"
GRADIENT = "the site is the gradient"
RISES = "the ELBO rises"
PRINTED = "the printed form equals the computed form"

# Rounding between two evaluations of the same number, relative to its summands; log-gammas lose 3 digits.
ROUNDING = 1e-9
# Printed numbers have six digits, an error of 5e-6 of their size; logarithms of powers multiply it by the exponents.
SIX_DIGITS = 1e-4
# Standard errors. With about 100 comparisons per formula, a false alarm occurs once in 5 million formulas.
STANDARD_ERRORS = 6.0


class Check(NamedTuple):
    """The result of one check: the largest discrepancy, ``figure``, and the tolerance."""

    name: str
    figure: float
    tolerance: float


@dataclass(frozen=True)
class Case:
    """An augmentation with valid data and latent points at which to check it."""

    augmentation: Augmentation
    parameters: Mapping[str, float]
    y: np.ndarray
    f: np.ndarray
    rng: np.random.Generator
    _programs: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function compiled, with one program per shape, instead of operation by operation."""
        if function not in self._programs:
            # A new function each time: JAX would reuse programs of earlier checks even if the rules have changed since.
            self._programs[function] = compiled(lambda *traced: function(*traced), optimise=False)
        return self._programs[function](*arguments)

    @cached_property
    def chains(self) -> list[dict[str, np.ndarray]]:
        """Return DRAWS draws of each block's auxiliaries given f."""
        f = np.broadcast_to(self.f, (DRAWS, *self.f.shape))
        draws = (partial(self.augmentation.draw_chain, block=b) for b in range(len(self.augmentation.blocks)))
        chains = [self.run(draw, self._key(), f, self.y, self.parameters) for draw in draws]
        return [{name: np.asarray(value) for name, value in chain.items()} for chain in chains]

    def _key(self) -> Array:
        return jax.random.key(int(self.rng.integers(2**31)))

    def points(self, spread: float) -> np.ndarray:
        """Return random latent points (POINTS, n, latents) with nonzero mean; the first is ``f``."""
        f = self.rng.normal(0.4, spread, (POINTS, *self.f.shape))
        f[0] = self.f
        return f

    def env(self, f: Any, **auxiliaries: np.ndarray) -> Environment:
        """Return the environment at latent values f, with auxiliaries by name."""
        return Environment(self.y, f, {**self.parameters, **auxiliaries})

    def log_density(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the formula's log p(y | f), (..., n), and its rounding error; nan if the formula loses all digits.

        A formula such as 1 - sigmoid(f) cancels at large f. Its error is estimated from the same formula in single
        precision, whose rounding unit is 2^29 times larger.
        """
        exact = self.log_density_alone(f)
        # JAX (0.10.1) would pass an array as doubles if an earlier program in doubles holds it.
        arguments = jax.tree.map(np.float32, (self.y, f, self.parameters))
        with jax.enable_x64(False):
            single = np.asarray(self.run(self.augmentation.predictor_log_density, *arguments), np.float64)
        exact, single = (np.broadcast_to(value, f.shape[:-1]) for value in (exact, single))
        with np.errstate(invalid="ignore"):
            error = 32.0 * np.abs(exact - single) * 2.0**-29
        return np.where(np.isfinite(error), exact, np.nan), error

    def local_bound(self, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return B(m, v + m^2) of each datum."""
        return np.asarray(self.run(self.augmentation.local_bound, m, v, self.y, self.parameters))

    def local_sites(self, m: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """Return the potentials and precisions from the gradient of the bound."""
        return [np.asarray(site) for site in self.run(self.augmentation.local_sites, m, v, self.y, self.parameters)]

    def sites_given(self, auxiliaries: Mapping[str, np.ndarray], f: np.ndarray, block: int) -> list[np.ndarray]:
        """Return the sites of a block of latents given the auxiliaries."""
        sites = partial(self.augmentation.sites_given, block=block)
        return [np.asarray(site) for site in self.run(sites, auxiliaries, f, self.y, self.parameters)]

    def log_density_alone(self, z: np.ndarray) -> np.ndarray:
        """Return log p(y | z) in the current floating-point precision, without an error estimate."""
        return np.asarray(self.run(self.augmentation.predictor_log_density, self.y, z, self.parameters))

    def check(
        self,
        name: str,
        discrepancy: np.ndarray,
        tolerance: float,
        f: np.ndarray,
        known: ArrayLike = True,
        rule: Rule | None = None,
        printed: str = "",
    ) -> Check:
        """Raise VerificationError if a discrepancy (..., n) exceeds the tolerance or is nan; ``known`` is a mask.

        ``printed`` is the line of the derivation that the error names.
        """
        discrepancy, known = np.broadcast_arrays(discrepancy, known)
        if not known.any():
            raise ValueError(
                f"verify: {name!r} cannot be computed at any of these observations (y = {shorten(self.y.tolist())}): "
                "pass y= with smaller values."
            )
        size = np.where(known, np.where(np.isnan(discrepancy), np.inf, discrepancy), 0.0)
        worst = np.unravel_index(int(np.argmax(size)), size.shape)
        figure = float(size[worst])
        if figure <= tolerance:
            return Check(name, figure, tolerance)
        at = np.broadcast_to(f, (*size.shape, self.f.shape[-1]))[worst]
        rules = [rule] if rule is not None else list(self.augmentation.rules)
        raise VerificationError(
            f"{name}: failed by {figure:.3g}, tolerance {tolerance:.1g}\n"
            f"  likelihood: {self.augmentation.formula.text()}\n"
            f"  {'rule' if len(rules) == 1 else 'rules'}: "
            + "; ".join(f"{r.title} for {r.factor.text()}" for r in rules)
            + (f"\n  printed: {printed}" if printed else "")
            + f"\n  worst at y = {self.y[worst[-1]].tolist()}, f = {[round(float(x), 6) for x in at]}"
        )


def relative(value: np.ndarray, expected: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return |value - expected| beyond the rounding error of ``expected``, relative to 1 + |expected|."""
    with np.errstate(invalid="ignore"):
        return np.maximum(np.abs(value - expected) - error, 0.0) / (1.0 + np.abs(expected))


def bound_is_tight(case: Case) -> Check:
    """Check that B(m, 0) = log p(y | m), for moderate and large |m|."""
    f = case.points(1.5)
    f[1] = np.where(case.rng.uniform(size=f[1].shape) < 0.5, -40.0, 40.0)
    f[2] = -f[1]
    expected, error = case.log_density(f)
    bound = case.local_bound(f, np.zeros_like(f))
    return case.check(TIGHT, relative(bound, expected, error), ROUNDING, f, ~np.isnan(expected))


def bound_is_below(case: Case) -> Check:
    """Check that B(m, v) <= E log p(y | f): the trapezoid rule for up to two latents, simulation for more."""
    size = case.augmentation.size
    m, v = np.clip(case.f, -3.0, 3.0), case.rng.uniform(0.2, 1.6, case.f.shape)
    # The trapezoid rule is exact to rounding for smooth integrands. At kinks, its error is far below the bound's gap.
    tolerance = 1e-8
    if size > 2:
        half = case.rng.normal(size=(2048, *m.shape))
        nodes, weights = np.concatenate([half, -half]), np.full(4096, 1 / 4096)
    else:
        points, weights = trapezoid_normal(size, 401 if size == 1 else 65)
        nodes = points[:, None, :]
    log_density = case.log_density_alone(m + np.sqrt(v) * nodes)
    # Points at which the formula underflows are omitted, which overestimates the expectation.
    log_density = np.where(np.isfinite(log_density), log_density, 0.0)
    expected = weights @ log_density
    slack = tolerance * (1.0 + weights @ np.abs(log_density))
    if size > 2:
        pairs = 0.5 * (log_density[:2048] + log_density[2048:])
        slack = slack + STANDARD_ERRORS * pairs.std(axis=0) / 2048**0.5
    # np.maximum keeps nan, which fails the check.
    return case.check(BELOW, np.maximum(case.local_bound(m, v) - expected - slack, 0.0), tolerance, m)


def site_is_gradient(case: Case) -> Check:
    """Check that h = ∂B/∂m and w = -2 ∂B/∂s by finite differences, and that w >= 0."""
    size = case.augmentation.size
    m, v = case.f, case.rng.uniform(0.2, 1.6, case.f.shape)
    h, w = case.local_sites(m, v)
    step = 1e-3
    offset = np.array([-1.0, -0.5, 0.5, 1.0])[:, None, None] * step
    by_m, by_s, largest = np.zeros_like(h), np.zeros_like(w), np.zeros((ROWS, 1))
    for latent in range(size):
        one = offset * np.eye(size)[latent]
        # First in m at fixed s, for which v = s - m^2 falls by 2 m δ + δ^2; then in s.
        means = np.concatenate([m + one, np.broadcast_to(m, (4, *m.shape))])
        bound = case.local_bound(means, np.concatenate([v - 2 * m * one - one**2, v + one]))
        far, half = bound[[3, 7]] - bound[[0, 4]], bound[[2, 6]] - bound[[1, 5]]
        by_m[:, latent], by_s[:, latent] = (8.0 * half - far) / (6.0 * step)
        largest = np.maximum(largest, np.abs(bound).max(axis=0)[:, None])
    scale = 1.0 + np.abs(h) + np.abs(w) + largest
    discrepancy = np.maximum(np.abs(by_m - h), np.abs(-2.0 * by_s - w)) / scale
    # Precisions may be negative only by rounding.
    negative = np.where(w < -ROUNDING * scale, np.inf, 0.0)
    # Richardson's differences with steps 1e-3 and 5e-4: a truncation error of fourth order, 1e-12 / length^4.
    return case.check(GRADIENT, np.max(discrepancy + negative, axis=-1), 1e-5, m)


def elbo_rises(case: Case) -> Check:
    """Check that the ELBO never decreases in ten CAVI sweeps by block, under a Gaussian prior with nonzero mean."""
    size, distance = case.augmentation.size, np.abs(np.subtract.outer(np.arange(ROWS), np.arange(ROWS)))
    prior = 1.7 * np.exp(-0.4 * distance)
    mean = 0.5 + 0.7 * np.cos(np.arange(ROWS)[:, None] + np.arange(size))
    m, covariance = mean.copy(), np.stack([prior] * size)

    def elbo() -> float:
        bound = case.local_bound(m, _variances(covariance))
        shift = (m - mean).T
        distance = sum(s @ np.linalg.solve(prior, s) for s in shift)
        distance += sum(np.trace(np.linalg.solve(prior, block)) for block in covariance)
        logdets = size * np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1].sum()
        return float(np.sum(bound)) - 0.5 * float(distance - size * ROWS + logdets)

    trace = [elbo()]
    for _ in range(10):
        for block in case.augmentation.blocks:
            h, w = case.local_sites(m, _variances(covariance))
            for latent in block:
                # (K^-1 + W)^-1 = K - K W^1/2 (I + W^1/2 K W^1/2)^-1 W^1/2 K; w < 0 is rounding, checked above.
                h_l, w_l = h[:, latent], np.maximum(w[:, latent], 0.0)
                scaled = np.sqrt(w_l)[:, None] * prior
                covariance[latent] = prior - scaled.T @ np.linalg.solve(np.eye(ROWS) + scaled * np.sqrt(w_l), scaled)
                m[:, latent] = mean[:, latent] + covariance[latent] @ (h_l - w_l * mean[:, latent])
            trace.append(elbo())
    fall = max(0.0, float(np.max(-np.diff(trace)))) / (1.0 + float(np.max(np.abs(trace))))
    return case.check(RISES, np.full(ROWS, fall), ROUNDING, m)


def _variances(covariance: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.diagonal(covariance, axis1=1, axis2=2).T)


def integrates_back(case: Case) -> Check:
    """Check that each rule's factor is its augmented form integrated out, and that factors multiply to the formula."""
    # Quadrature of a Pólya-Gamma density stops where its series cancels. The tail beyond has up to 1e-5 of the mass.
    tolerance = 3e-5
    total = np.asarray(case.run(partial(_log_product, case.augmentation), case.env(case.f)))
    expected, error = case.log_density(case.f)
    checks = [case.check(INTEGRATES, relative(total, expected, error), tolerance, case.f, ~np.isnan(expected))]
    drawn = {name: value for chain in case.chains for name, value in chain.items()}
    # Earlier auxiliaries are fixed at small values, for which the series and sums of later ones are short.
    values = {name: np.minimum(value[0], 12.0) for name, value in drawn.items()}
    for rule in case.augmentation.rules:
        if rule.auxiliary is not None:
            centre = np.median(drawn[rule.auxiliary.name], axis=0)
            log_integral, log_factor, known = _integral(case, rule, values, centre)
            discrepancy = np.max(np.where(known, np.abs(np.expm1(log_integral - log_factor)), 0.0), axis=-1)
            checks.append(case.check(INTEGRATES, discrepancy, tolerance, case.f, known.any(axis=-1), rule))
    return max(checks)


def _log_product(augmentation: Augmentation, env: Environment) -> Array:
    factors = (jnp.sum(rule.log_factor(env), axis=-1) for rule in augmentation.rules if rule.parent is None)
    return sum(factors, augmentation.base.log_evaluate(env)[..., 0])


def _integral(
    case: Case, rule: Rule, values: dict[str, np.ndarray], centre: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log integral over the auxiliary, the log factor, and a mask of computable integrals."""
    env, name, law = case.env(case.f, **values), *_drawn(rule)
    grid = law.grid(centre, env)
    at = case.env(case.f, **{**values, name: grid.values})
    log_terms = rule.log_joint(at) + rule.remaining_factor.log_evaluate(at)
    log_joint = np.broadcast_to(np.asarray(log_terms), grid.values.shape)
    weighed = np.where(np.isnan(log_joint), -np.inf, log_joint + grid.log_measure)
    log_integral = np.logaddexp.reduce(weighed, axis=0)
    log_factor = np.broadcast_to(np.asarray(case.run(rule.factor.log_evaluate, env)), centre.shape)
    # A factor to the power zero has no auxiliary, so its augmented form must be 1.
    off = np.broadcast_to(law.off(env), centre.shape)
    return np.where(off, log_joint[0], log_integral), log_factor, np.broadcast_to(grid.known, centre.shape)


def _drawn(rule: Rule) -> tuple[str, Law]:
    if rule.auxiliary is None or rule.law is None:
        raise ValueError(f"verify: the rule {rule.title} draws no auxiliary.")
    return rule.auxiliary.name, rule.law


def joint_minus_conditional(case: Case) -> Check:
    """Check that log joint - log conditional = log p(y | f), at draws of the auxiliaries and at perturbed values."""
    f = case.f
    expected, error = case.log_density(f)
    checks = []
    laws = dict(_drawn(rule) for rule in case.augmentation.rules if rule.auxiliary is not None)
    for chain in case.chains:
        drawn: dict[str, Any] = {name: value[:POINTS] for name, value in chain.items()}
        perturbed: dict[str, Any] = {name: laws[name].perturbed(value, case.rng) for name, value in drawn.items()}
        for auxiliaries in (drawn, perturbed):
            joint = np.asarray(case.augmentation.log_joint(auxiliaries, f, case.y, case.parameters))
            env = case.env(f, **auxiliaries)
            log_densities = (laws[name].log_density(value, env) for name, value in auxiliaries.items())
            conditional = np.asarray(sum(jnp.sum(part, axis=-1) for part in log_densities))
            # Neither is finite if the series of a Pólya-Gamma density cancels or a draw underflows.
            known = (np.isfinite(joint) | np.isfinite(conditional)) & ~np.isnan(expected)
            with np.errstate(invalid="ignore"):
                difference = np.maximum(np.abs(joint - conditional - expected) - error, 0.0)
                scale = 1.0 + np.abs(joint) + np.abs(conditional)
            checks.append(case.check(JOINT, difference / scale, ROUNDING, f, known))
    return max(checks)


def site_is_joint(case: Case) -> Check:
    """Check that the log joint, as a function of a block's latents, is h f - w f^2 / 2 plus a constant."""
    checks = []
    for block, chain in enumerate(case.chains):
        auxiliaries = {name: value[0] for name, value in chain.items()}
        latents = list(case.augmentation.blocks[block])
        f = np.broadcast_to(case.f, (POINTS, *case.f.shape)).copy()
        f[:, :, latents] = case.points(3.0)[..., latents]
        h, w = case.sites_given(auxiliaries, case.f, block)
        site = (h * f - 0.5 * w * f**2)[..., latents]
        joint = np.asarray(case.augmentation.log_joint(auxiliaries, f, case.y, case.parameters))
        constant = joint - site.sum(axis=-1)
        scale = 1.0 + np.max(np.abs(joint) + np.abs(site).sum(axis=-1), axis=0)
        known = ~np.isnan(joint).all(axis=0)
        checks.append(case.check(SITE, np.abs(constant - constant[0]) / scale, ROUNDING, f, known))
    return max(checks)


def draws_follow_conditional(case: Case) -> Check:
    """Check that exp(h δ - w ((f + δ)^2 - f^2) / 2) has the mean p(y | f + δ) / p(y | f) over draws of the sites."""
    size = case.augmentation.size
    f = np.broadcast_to(case.f, (DRAWS, *case.f.shape))
    log_density_at_f, error_at_f = case.log_density(case.f)
    checks = []
    for block, latents in enumerate(case.augmentation.blocks):
        h, w = (np.broadcast_to(x, f.shape) for x in case.sites_given(case.chains[block], f, block))
        slope, rare = h - w * case.f, (2.0 / DRAWS if case.chains[block] else 0.0)
        reach = 0.6 / np.maximum(1.0, np.maximum(slope.std(axis=0), np.sqrt(w.mean(axis=0))))
        for latent in latents:
            for sign in (-1.0, 1.0):
                step = sign * reach[:, latent]
                shifted = case.f + step[:, None] * np.eye(size)[latent]
                log_density, error = case.log_density(shifted)
                # Divided by the expected mean in logs, to avoid overflow: the mean should be 1.
                log_ratio = log_density - log_density_at_f
                weight = np.exp(slope[..., latent] * step - 0.5 * w[..., latent] * step**2 - log_ratio)
                mean, spread = weight.mean(axis=0), weight.std(axis=0) / DRAWS**0.5
                # For rare counts, a value that was never drawn may still have probability 1 / DRAWS.
                spread = spread + rare + error + error_at_f + ROUNDING * (1.0 + np.abs(log_density_at_f))
                # Data are skipped if a few draws dominate the variance, since the standard error is unreliable.
                squares = (weight - 1.0) ** 2
                known = (squares.max(axis=0) <= 0.02 * squares.sum(axis=0) + ROUNDING) & ~np.isnan(log_ratio)
                if known.any():
                    checks.append(case.check(DRAWN, np.abs(mean - 1) / spread, STANDARD_ERRORS, shifted, known))
    return max(checks, default=Check(DRAWN, 0.0, STANDARD_ERRORS))
