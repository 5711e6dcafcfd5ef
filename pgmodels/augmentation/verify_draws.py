"""Checks of the auxiliaries: their distributions, densities and sites."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.laws import Law
from pgmodels.augmentation.rules.rule import Rule
from pgmodels.augmentation.verify_case import (
    DRAWN,
    DRAWS,
    INTEGRATES,
    JOINT,
    POINTS,
    QUADRATURE,
    ROUNDING,
    SITE,
    STANDARD_ERRORS,
    Case,
    Check,
    relative,
)
from pgmodels.likelihoods.expression import Environment


def integrates_back(case: Case) -> Check:
    """Integrating out each rule's auxiliary gives the rule's factor, and the factors multiply to the formula."""
    total = case.run(partial(_log_product, case.augmentation), case.env(case.f))
    expected, error = case.log_density(case.f)
    checks = [case.check(INTEGRATES, relative(total, expected, error), QUADRATURE, case.f, None, ~np.isnan(expected))]
    drawn = {name: value for chain in case.chains for name, value in chain.items()}
    # Fix earlier auxiliaries at small values, for which the series and sums of later ones are short.
    values = {name: np.minimum(value[0], 12.0) for name, value in drawn.items()}
    for rule in case.augmentation.rules:
        if rule.auxiliary is not None:
            centre = np.median(drawn[rule.auxiliary.name], axis=0)
            log_integral, log_factor, known = _integral(case, rule, values, centre)
            discrepancy = np.max(np.where(known, np.abs(np.expm1(log_integral - log_factor)), 0.0), axis=-1)
            checks.append(case.check(INTEGRATES, discrepancy, QUADRATURE, case.f, rule, known.any(axis=-1)))
    return Check(INTEGRATES, max(check.figure for check in checks), QUADRATURE)


def _log_product(augmentation: Augmentation, env: Environment) -> Any:
    """The log of the product of the base and all rules' factors, (n,)."""
    total = augmentation.base.log_evaluate(env)[..., 0]
    for rule in augmentation.rules:
        if rule.parent is None:
            total = total + jnp.sum(rule.log_factor(env), axis=-1)
    return total


def _integral(
    case: Case, rule: Rule, values: dict[str, np.ndarray], centre: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log integral over the auxiliary, log factor, and where the integral can be computed."""
    env, name, law = case.env(case.f, **values), *_drawn(rule)
    grid = law.grid(centre, env)
    at = case.env(case.f, **{**values, name: grid.values})
    log_joint = rule.log_joint(at) + rule.remaining_factor.log_evaluate(at)
    log_joint = np.broadcast_to(np.asarray(log_joint), grid.values.shape)
    log_terms = np.where(np.isnan(log_joint), -np.inf, log_joint + grid.log_measure)
    log_integral = np.logaddexp.reduce(log_terms, axis=0)
    log_factor = np.broadcast_to(np.asarray(case.run(rule.factor.log_evaluate, env)), centre.shape)
    # A factor to the power zero has no auxiliary: its augmented form must be 1.
    off = np.broadcast_to(law.off(env), centre.shape)
    return np.where(off, log_joint[0], log_integral), log_factor, grid.known


def _drawn(rule: Rule) -> tuple[str, Law]:
    """The name and the law of a rule's auxiliary."""
    if rule.auxiliary is None or rule.law is None:
        raise ValueError(f"verify: the rule {rule.title} draws no auxiliary.")
    return rule.auxiliary.name, rule.law


def joint_minus_conditional(case: Case) -> Check:
    """log joint - log conditional = log p(y | f), at draws of the auxiliaries and at perturbed values."""
    f = case.f
    expected, error = case.log_density(f)
    checks = []
    for block, chain in enumerate(case.chains):
        drawn = {name: value[:POINTS] for name, value in chain.items()}
        for auxiliaries in (drawn, _perturbed(case, drawn)):
            joint = np.asarray(case.augmentation.log_joint(auxiliaries, f, case.y, case.parameters, block))
            conditional = np.asarray(case.augmentation.log_conditional(auxiliaries, f, case.y, case.parameters))
            # Neither is finite where the series of a Pólya-Gamma density cancels or a draw underflows.
            known = (np.isfinite(joint) | np.isfinite(conditional)) & ~np.isnan(expected)
            with np.errstate(invalid="ignore"):
                difference = np.abs(joint - conditional - expected) - error
                scale = 1.0 + np.abs(joint) + np.abs(conditional)
            checks.append(case.check(JOINT, difference / scale, ROUNDING, f, None, known))
    return Check(JOINT, max(0.0, *(check.figure for check in checks)), ROUNDING)


def _perturbed(case: Case, auxiliaries: Mapping[str, Any]) -> dict[str, Any]:
    """Other values in the supports of the auxiliaries."""
    laws = dict(_drawn(rule) for rule in case.augmentation.rules if rule.auxiliary is not None)
    return {name: laws[name].perturbed(value, case.rng) for name, value in auxiliaries.items()}


def site_is_joint(case: Case) -> Check:
    """As a function of a block's latents, the log joint is h f - w f^2 / 2 plus a constant."""
    checks = []
    for block, chain in enumerate(case.chains):
        auxiliaries = {name: value[0] for name, value in chain.items()}
        latents = list(case.augmentation.blocks[block])
        f = np.broadcast_to(case.f, (POINTS, *case.f.shape)).copy()
        f[:, :, latents] = case.points(3.0)[..., latents]
        h, w = case.sites_given(auxiliaries, case.f, block)
        site = (h * f - 0.5 * w * f**2)[..., latents]
        joint = np.asarray(case.augmentation.log_joint(auxiliaries, f, case.y, case.parameters, block))
        constant = joint - site.sum(axis=-1)
        scale = 1.0 + np.max(np.abs(joint) + np.abs(site).sum(axis=-1), axis=0)
        known = ~np.isnan(joint).all(axis=0)
        checks.append(case.check(SITE, np.abs(constant - constant[0]) / scale, ROUNDING, f, None, known))
    return Check(SITE, max(check.figure for check in checks), ROUNDING)


def draws_follow_conditional(case: Case) -> Check:
    """Over draws of the sites at f, the mean of exp(h δ - w ((f + δ)^2 - f^2) / 2) is p(y | f + δ) / p(y | f).

    This tests the generating function of the sites, one latent at a time; δ is small enough for a finite variance.
    """
    size = case.augmentation.size
    f = np.broadcast_to(case.f, (DRAWS, *case.f.shape))
    here, here_error = case.log_density(case.f)
    checks = []
    for block, latents in enumerate(case.augmentation.blocks):
        h, w = (np.broadcast_to(x, f.shape) for x in case.sites_given(case.chains[block], f, block))
        slope, rare = h - w * case.f, (2.0 / DRAWS if case.chains[block] else 0.0)
        reach = 0.6 / np.maximum(1.0, np.maximum(slope.std(axis=0), np.sqrt(w.mean(axis=0))))
        for latent in latents:
            for sign in (-1.0, 1.0):
                step = sign * reach[:, latent]
                there = case.f + step[:, None] * np.eye(size)[latent]
                log_density, error = case.log_density(there)
                # Divided by the expected mean in logs, to avoid overflow: the mean should be 1.
                log_ratio = log_density - here
                weight = np.exp(slope[..., latent] * step - 0.5 * w[..., latent] * step**2 - log_ratio)
                mean, spread = weight.mean(axis=0), weight.std(axis=0) / DRAWS**0.5
                # Rare counts: a value that was never drawn may still have probability 1 / DRAWS.
                spread = spread + rare + error + here_error + ROUNDING * (1.0 + np.abs(here))
                # Skip data where a few draws dominate the variance: the standard error is unreliable.
                squares = (weight - 1.0) ** 2
                known = (squares.max(axis=0) <= 0.02 * squares.sum(axis=0) + ROUNDING) & ~np.isnan(log_ratio)
                if known.any():
                    checks.append(case.check(DRAWN, np.abs(mean - 1) / spread, STANDARD_ERRORS, there, None, known))
    return Check(DRAWN, max(0.0, *(check.figure for check in checks)), STANDARD_ERRORS)
