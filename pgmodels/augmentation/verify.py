"""The numerical proof of one derivation: eight checks, each against the formula as it was written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.errors import VerificationError
from pgmodels.augmentation.laws import Law
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.integration import trapezoid_normal
from pgmodels.language.expression import Environment
from pgmodels.language.supports import Support
from pgmodels.precision import double_precision

ROWS = 8
DRAWS = 2000
# Latent points or auxiliaries a check looks at: one number everywhere, so that few shapes are compiled.
POINTS = 8

INTEGRATES = "the auxiliaries integrate back to the likelihood"
JOINT = "log joint - log conditional is the log likelihood"
SITE = "the site given the auxiliaries is the log joint in f"
DRAWN = "the draws follow the conditional"
TIGHT = "the bound is tight"
BELOW = "the bound is below"
GRADIENT = "the site is the gradient"
RISES = "the ELBO rises"

# Quadrature of a Pólya-Gamma density stops where its series cancels: the tail beyond holds up to 1e-5 of the mass.
QUADRATURE = 3e-5
# Two ways to the same number in double precision, relative to the numbers that were added; log-gammas lose 3 digits.
ROUNDING = 1e-9
# Richardson's differences with steps 1e-3 and 5e-4: a truncation error of fourth order, 1e-12 / length^4.
DIFFERENCES = 1e-5
# Standard errors. Some 100 comparisons a formula: normal tails beyond 6 are met once in 5 million formulas.
STANDARD_ERRORS = 6.0
# The trapezoid rule is exact to rounding for what is smooth, and far below the bound's own gap at kinks.
EXPECTATION = 1e-8


class Check(NamedTuple):
    """One check: the largest discrepancy that it found and how large it may be."""

    name: str
    figure: float
    tolerance: float


@dataclass(frozen=True)
class Verification:
    """What the checks of one derivation measured; all of them passed."""

    checks: tuple[Check, ...]

    @property
    def figures(self) -> dict[str, float]:
        """The largest discrepancy by the name of the check."""
        return {check.name: check.figure for check in self.checks}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        rows = [f"{'check':{width}}  {'figure':>9}  {'tolerance':>9}"]
        rows += [f"{c.name:{width}}  {c.figure:9.1e}  {c.tolerance:9.1e}" for c in self.checks]
        return "\n".join(rows)


@dataclass(frozen=True)
class Case:
    """An augmentation, data that it allows, and points at which to look at it."""

    augmentation: Augmentation
    parameters: Mapping[str, float]
    y: np.ndarray
    f: np.ndarray
    rng: np.random.Generator

    @cached_property
    def chains(self) -> list[dict[str, np.ndarray]]:
        """DRAWS draws, for each block, of the auxiliaries that it needs given f."""
        f = np.broadcast_to(self.f, (DRAWS, *self.f.shape))
        chains = [
            self.augmentation.draw_chain(self._key(), f, self.y, self.parameters, block)
            for block in range(len(self.augmentation.blocks))
        ]
        return [{name: np.asarray(value) for name, value in chain.items()} for chain in chains]

    def _key(self) -> Any:
        """A fresh JAX key."""
        return jax.random.key(int(self.rng.integers(2**31)))

    def points(self, spread: float) -> np.ndarray:
        """Latent points (POINTS, n, latents) around a mean that is not zero, ``f`` among them."""
        f = self.rng.normal(0.4, spread, (POINTS, *self.f.shape))
        f[0] = self.f
        return f

    def env(self, f: Any, **auxiliaries: Any) -> Environment:
        """The environment at latent values f, with auxiliaries by name."""
        return Environment(self.y, f, {**self.parameters, **auxiliaries})

    def log_density(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The formula's log p(y | f), (..., n), and its rounding error; nan where the formula itself keeps no digit.

        A formula such as 1 - sigmoid(f) cancels at large f as it is written. The error is found from the same formula
        in single precision, whose rounding unit is 2^29 times larger.
        """
        exact = np.asarray(self.augmentation.predictor_log_density(self.y, f, self.parameters))
        with jax.enable_x64(False):
            single = self.augmentation.predictor_log_density(
                self.y.astype(np.float32), f.astype(np.float32), self.parameters
            )
        exact, single = np.broadcast_arrays(exact, np.asarray(single, np.float64))
        exact, single = np.broadcast_to(exact, f.shape[:-1]), np.broadcast_to(single, f.shape[:-1])
        with np.errstate(invalid="ignore"):
            error = 32.0 * np.abs(exact - single) * 2.0**-29
        return np.where(np.isfinite(error), exact, np.nan), error

    def judge(
        self, name: str, discrepancy: Any, tolerance: float, f: Any, rule: Rule | None = None, known: Any = True
    ) -> Check:
        """Raise VerificationError where a discrepancy (..., n) exceeds the tolerance, or is nan where it is known."""
        discrepancy, known = np.broadcast_arrays(np.asarray(discrepancy), known)
        if not known.any():
            raise ValueError(
                f"verify: {name!r} cannot be computed at any of these observations (y = {self.y.tolist()}): pass "
                "y= with smaller values."
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
            + f"\n  worst at y = {self.y[worst[-1]].tolist()}, f = {[round(float(x), 6) for x in at]}"
        )


@double_precision
def verify_augmentation(
    augmentation: Augmentation, parameters: Mapping[str, float], support: Support, seed: int = 0, y: Any = None
) -> Verification:
    """Check a derivation numerically at observations of its support, or at the rows of ``y``.

    Raises VerificationError naming the first check that fails, its figure and where; ValueError where no observations
    are found that the formula allows.
    """
    rng = np.random.default_rng(seed)
    rows = _observations(augmentation, parameters, support, rng, y)
    f = rng.normal(0.4, 1.5, (ROWS, augmentation.size))
    # A few points far out, of either sign.
    f[rng.integers(ROWS, size=2), rng.integers(augmentation.size, size=2)] = [-5.3, 6.1]
    case = Case(augmentation, dict(parameters), rows, f, rng)
    return Verification(tuple(check(case) for check in CHECKS))


def _observations(
    augmentation: Augmentation, parameters: Mapping[str, float], support: Support, rng: np.random.Generator, y: Any
) -> np.ndarray:
    """ROWS observations that meet the derivation's requirements and have a finite log density."""
    found: list[np.ndarray] = []
    given = None if y is None else np.asarray(y, dtype=np.float64)
    for _ in range(40):
        candidates = support.examples(rng, 4 * ROWS) if given is None else _resized(given, 4 * ROWS, rng)
        found.extend(candidates[_allowed(augmentation, parameters, candidates)])
        if len(found) >= ROWS:
            return np.stack(found[:ROWS])
    wanted = "; ".join(f"{r.reason} ({r.expression.text()}) {r.wording}" for r in augmentation.requirements)
    raise ValueError(
        f"verify: {'no examples' if given is None else 'the rows of y are not'} observations that "
        f"{augmentation.formula.text()} allows{f' (it needs {wanted})' if wanted else ''}: pass y= with some "
        "that it does."
    )


def _resized(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return y[rng.integers(len(y), size=count)]


def _allowed(augmentation: Augmentation, parameters: Mapping[str, float], y: np.ndarray) -> np.ndarray:
    f = np.full((len(y), augmentation.size), 0.3) + 0.2 * np.arange(augmentation.size)
    allowed = np.ones(len(y), dtype=bool)
    for requirement in augmentation.requirements:
        holds = requirement.holds(np.asarray(requirement.expression.evaluate(Environment(y, f, parameters))))
        allowed &= np.broadcast_to(np.all(holds, axis=-1), len(y))
    return allowed & np.isfinite(np.asarray(augmentation.predictor_log_density(y, f, parameters)))


def integrates_back(case: Case) -> Check:
    """Each rule's auxiliary integrates out to the rule's factor, and the factors' product is the formula."""
    env = case.env(case.f)
    total = case.augmentation.base.log_evaluate(env)[..., 0]
    for rule in case.augmentation.rules:
        if rule.parent is None:
            total = total + jnp.sum(rule.log_factor(env), axis=-1)
    expected, error = case.log_density(case.f)
    checks = [case.judge(INTEGRATES, _relative(total, expected, error), QUADRATURE, case.f, None, ~np.isnan(expected))]
    drawn = {name: value for chain in case.chains for name, value in chain.items()}
    # Earlier auxiliaries are held at values at which the series and sums of later ones are short.
    values = {name: np.minimum(value[0], 12.0) for name, value in drawn.items()}
    for rule in case.augmentation.rules:
        if rule.auxiliary is not None:
            centre = np.median(drawn[rule.auxiliary.name], axis=0)
            log_integral, log_factor, known = _integral(case, rule, values, centre)
            discrepancy = np.max(np.where(known, np.abs(np.expm1(log_integral - log_factor)), 0.0), axis=-1)
            checks.append(case.judge(INTEGRATES, discrepancy, QUADRATURE, case.f, rule, known.any(axis=-1)))
    return Check(INTEGRATES, max(check.figure for check in checks), QUADRATURE)


def _integral(
    case: Case, rule: Rule, values: dict[str, np.ndarray], centre: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The log of the integral over the auxiliary, of the factor, and where the former can be computed."""
    env, name, law = case.env(case.f, **values), *_drawn(rule)
    grid = law.grid(centre, env)
    at = case.env(case.f, **{**values, name: grid.values})
    log_joint = rule.log_joint(at) + rule.left.log_evaluate(at)
    log_joint = np.broadcast_to(np.asarray(log_joint), grid.values.shape)
    log_terms = np.where(np.isnan(log_joint), -np.inf, log_joint + grid.log_measure)
    log_integral = np.logaddexp.reduce(log_terms, axis=0)
    log_factor = np.broadcast_to(np.asarray(rule.factor.log_evaluate(env)), centre.shape)
    # A factor to the power zero has no auxiliary: what is written for it must be 1.
    off = np.broadcast_to(law.off(env), centre.shape)
    return np.where(off, log_joint[0], log_integral), log_factor, grid.known


def _drawn(rule: Rule) -> tuple[str, Law]:
    """The name and the law of a rule's auxiliary."""
    if rule.auxiliary is None or rule.law is None:
        raise ValueError(f"verify: the rule {rule.title} draws no auxiliary.")
    return rule.auxiliary.name, rule.law


def joint_less_conditional(case: Case) -> Check:
    """log joint - log conditional is log p(y | f), whatever the auxiliaries: drawn, or moved away from the draw."""
    f = case.f
    expected, error = case.log_density(f)
    checks = []
    for block, chain in enumerate(case.chains):
        drawn = {name: value[:POINTS] for name, value in chain.items()}
        for auxiliaries in (drawn, _moved(case, drawn)):
            joint = np.asarray(case.augmentation.log_joint(auxiliaries, f, case.y, case.parameters, block))
            conditional = np.asarray(case.augmentation.log_conditional(auxiliaries, f, case.y, case.parameters))
            # Neither is finite where the series of a Pólya-Gamma density cancels or a draw underflows.
            known = (np.isfinite(joint) | np.isfinite(conditional)) & ~np.isnan(expected)
            with np.errstate(invalid="ignore"):
                difference = np.abs(joint - conditional - expected) - error
                scale = 1.0 + np.abs(joint) + np.abs(conditional)
            checks.append(case.judge(JOINT, difference / scale, ROUNDING, f, None, known))
    return Check(JOINT, max(0.0, *(check.figure for check in checks)), ROUNDING)


def _moved(case: Case, auxiliaries: Mapping[str, Any]) -> dict[str, Any]:
    """Other values of the auxiliaries that they can take."""
    laws = dict(_drawn(rule) for rule in case.augmentation.rules if rule.auxiliary is not None)
    return {name: laws[name].moved(value, case.rng) for name, value in auxiliaries.items()}


def site_is_joint(case: Case) -> Check:
    """As a function of a block's latents the log joint is h f - w f^2 / 2 and a constant."""
    checks = []
    for block, chain in enumerate(case.chains):
        auxiliaries = {name: value[0] for name, value in chain.items()}
        own = list(case.augmentation.blocks[block])
        f = np.broadcast_to(case.f, (POINTS, *case.f.shape)).copy()
        f[:, :, own] = case.points(3.0)[..., own]
        h, w = case.augmentation.sites_given(auxiliaries, case.f, case.y, case.parameters, block)
        site = np.asarray(h * f - 0.5 * w * f**2)[..., own]
        joint = np.asarray(case.augmentation.log_joint(auxiliaries, f, case.y, case.parameters, block))
        constant = joint - site.sum(axis=-1)
        scale = 1.0 + np.max(np.abs(joint) + np.abs(site).sum(axis=-1), axis=0)
        known = ~np.isnan(joint).all(axis=0)
        checks.append(case.judge(SITE, np.abs(constant - constant[0]) / scale, ROUNDING, f, None, known))
    return Check(SITE, max(check.figure for check in checks), ROUNDING)


def draws_follow_conditional(case: Case) -> Check:
    """Over draws of the sites at f, the mean of exp(h δ - w ((f + δ)^2 - f^2) / 2) is p(y | f + δ) / p(y | f).

    That is the generating function of the sites, for each latent in turn; δ is such that the mean has a variance.
    """
    size = case.augmentation.size
    f = np.broadcast_to(case.f, (DRAWS, *case.f.shape))
    here, here_error = case.log_density(case.f)
    checks = []
    for block, latents in enumerate(case.augmentation.blocks):
        h, w = case.augmentation.sites_given(case.chains[block], f, case.y, case.parameters, block)
        h, w = (np.broadcast_to(np.asarray(x), f.shape) for x in (h, w))
        slope, rare = h - w * case.f, (2.0 / DRAWS if case.chains[block] else 0.0)
        reach = 0.6 / np.maximum(1.0, np.maximum(slope.std(axis=0), np.sqrt(w.mean(axis=0))))
        for latent in latents:
            for sign in (-1.0, 1.0):
                step = sign * reach[:, latent]
                there = case.f + step[:, None] * np.eye(size)[latent]
                log_density, error = case.log_density(there)
                # What the mean should be is taken out in logs, so that nothing overflows: the mean should be 1.
                log_ratio = log_density - here
                weight = np.exp(slope[..., latent] * step - 0.5 * w[..., latent] * step**2 - log_ratio)
                mean, spread = weight.mean(axis=0), weight.std(axis=0) / DRAWS**0.5
                # Rare counts: what was never drawn may still have the probability 1 / DRAWS.
                spread = spread + rare + error + here_error + ROUNDING * (1.0 + np.abs(here))
                # Where a few draws dominate the variance, the standard error says nothing.
                squares = (weight - 1.0) ** 2
                known = (squares.max(axis=0) <= 0.02 * squares.sum(axis=0) + ROUNDING) & ~np.isnan(log_ratio)
                if known.any():
                    checks.append(case.judge(DRAWN, np.abs(mean - 1) / spread, STANDARD_ERRORS, there, None, known))
    return Check(DRAWN, max(0.0, *(check.figure for check in checks)), STANDARD_ERRORS)


def bound_is_tight(case: Case) -> Check:
    """B(m, 0) is log p(y | m), near and far."""
    f = case.points(1.5)
    f[1] = np.where(case.rng.uniform(size=f[1].shape) < 0.5, -40.0, 40.0)
    f[2] = -f[1]
    expected, error = case.log_density(f)
    bound = case.augmentation.local_bound(f, np.zeros_like(f), case.y, case.parameters)
    return case.judge(TIGHT, _relative(bound, expected, error), ROUNDING, f, None, ~np.isnan(expected))


def bound_is_below(case: Case) -> Check:
    """B(m, v) <= E log p(y | f), by the trapezoid rule for up to two latents and by simulation for more."""
    size = case.augmentation.size
    m, v = np.clip(case.f, -3.0, 3.0), case.rng.uniform(0.2, 1.6, case.f.shape)
    if size > 2:
        half = case.rng.normal(size=(2048, *m.shape))
        nodes, weights = np.concatenate([half, -half]), np.full(4096, 1 / 4096)
    else:
        points, weights = trapezoid_normal(size, 401 if size == 1 else 65)
        nodes = points[:, None, :]
    log_density = np.asarray(case.augmentation.predictor_log_density(case.y, m + np.sqrt(v) * nodes, case.parameters))
    # Where the formula underflows the point is left out, which leaves the expectation too large.
    log_density = np.where(np.isfinite(log_density), log_density, 0.0)
    expected = weights @ log_density
    slack = EXPECTATION * (1.0 + weights @ np.abs(log_density))
    if size > 2:
        pairs = 0.5 * (log_density[:2048] + log_density[2048:])
        slack = slack + STANDARD_ERRORS * pairs.std(axis=0) / 2048**0.5
    bound = np.asarray(case.augmentation.local_bound(m, v, case.y, case.parameters))
    excess = np.maximum(bound - expected - slack, 0.0)
    return case.judge(BELOW, np.where(np.isnan(excess), np.inf, excess), EXPECTATION, m)


def site_is_gradient(case: Case) -> Check:
    """h = ∂B/∂m and w = -2 ∂B/∂s by finite differences, and w >= 0."""
    size = case.augmentation.size
    m, v = case.f, case.rng.uniform(0.2, 1.6, case.f.shape)
    h, w = (np.asarray(x) for x in case.augmentation.local_sites(m, v, case.y, case.parameters))
    step = 1e-3
    offset = np.array([-1.0, -0.5, 0.5, 1.0])[:, None, None] * step
    by_m, by_s, largest = np.zeros_like(h), np.zeros_like(w), np.zeros((ROWS, 1))
    for latent in range(size):
        one = offset * np.eye(size)[latent]
        # In m at fixed s, where v = s - m^2 falls by 2 m δ + δ^2; then in s.
        means = np.concatenate([m + one, np.broadcast_to(m, (4, *m.shape))])
        variances = np.concatenate([v - 2 * m * one - one**2, v + one])
        bound = np.asarray(case.augmentation.local_bound(means, variances, case.y, case.parameters))
        far, half = bound[[3, 7]] - bound[[0, 4]], bound[[2, 6]] - bound[[1, 5]]
        by_m[:, latent], by_s[:, latent] = (8.0 * half - far) / (6.0 * step)
        largest = np.maximum(largest, np.abs(bound).max(axis=0)[:, None])
    scale = 1.0 + np.abs(h) + np.abs(w) + largest
    discrepancy = np.maximum(np.abs(by_m - h), np.abs(-2.0 * by_s - w)) / scale
    # A precision may be negative by rounding alone.
    negative = np.where(w < -ROUNDING * scale, np.inf, 0.0)
    return case.judge(GRADIENT, np.max(discrepancy + negative, axis=-1), DIFFERENCES, m)


def elbo_rises(case: Case) -> Check:
    """Ten rounds of CAVI, block by block, under a Gaussian prior with a mean that is not zero."""
    size, distance = case.augmentation.size, np.abs(np.subtract.outer(np.arange(ROWS), np.arange(ROWS)))
    prior = 1.7 * np.exp(-0.4 * distance)
    mean = 0.5 + 0.7 * np.cos(np.arange(ROWS)[:, None] + np.arange(size))
    m, covariance = mean.copy(), np.stack([prior] * size)

    def elbo() -> float:
        bound = case.augmentation.local_bound(m, _variances(covariance), case.y, case.parameters)
        shift = (m - mean).T
        distance = sum(s @ np.linalg.solve(prior, s) for s in shift)
        distance += sum(np.trace(np.linalg.solve(prior, part)) for part in covariance)
        logdets = size * np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1].sum()
        return float(np.sum(bound)) - 0.5 * float(distance - size * ROWS + logdets)

    trace = [elbo()]
    for _ in range(10):
        for block in case.augmentation.blocks:
            h, w = case.augmentation.local_sites(m, _variances(covariance), case.y, case.parameters)
            for latent in block:
                # (K^-1 + W)^-1 = K - K W^1/2 (I + W^1/2 K W^1/2)^-1 W^1/2 K; a w below zero is rounding, checked above.
                h_l, w_l = np.asarray(h)[:, latent], np.maximum(np.asarray(w)[:, latent], 0.0)
                scaled = np.sqrt(w_l)[:, None] * prior
                covariance[latent] = prior - scaled.T @ np.linalg.solve(np.eye(ROWS) + scaled * np.sqrt(w_l), scaled)
                m[:, latent] = mean[:, latent] + covariance[latent] @ (h_l - w_l * mean[:, latent])
            trace.append(elbo())
    fall = max(0.0, float(np.max(-np.diff(trace)))) / (1.0 + float(np.max(np.abs(trace))))
    return case.judge(RISES, np.full(ROWS, fall), ROUNDING, m)


def _variances(covariance: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.diagonal(covariance, axis1=1, axis2=2).T)


def _relative(value: Any, expected: np.ndarray, error: np.ndarray) -> np.ndarray:
    """|value - expected| beyond the rounding error of the latter, relative to it."""
    with np.errstate(invalid="ignore"):
        return np.maximum(np.abs(np.asarray(value) - expected) - error, 0.0) / (1.0 + np.abs(expected))


CHECKS: tuple[Callable[[Case], Check], ...] = (
    integrates_back,
    joint_less_conditional,
    site_is_joint,
    draws_follow_conditional,
    bound_is_tight,
    bound_is_below,
    site_is_gradient,
    elbo_rises,
)
