"""Verdicts: a planted error is reported, an exact or a close result is not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.special import expit

from pgmodels.diagnostics.compare import compare
from pgmodels.inference.correct import correct
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.vi import cavi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Gaussian
from pgmodels.model import GP, Model
from pgmodels.report.verdicts import verdicts


@cache
def gaussian():
    """CAVI is exact here, and every draw is independent."""
    X = np.random.default_rng(2).normal(size=(30, 2))
    model = Model(Gaussian(0.5), GP(RBF(1.5, 0.9), mean=0.4))
    y = np.sin(2 * X[:, 0]) + 0.3
    runs = [gibbs(model, X, y, num_samples=1500, num_warmup=5, num_chains=4, seed=seed) for seed in (3, 4)]
    return cavi(model, X, y), *runs


@cache
def bernoulli():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = (rng.random(30) < expit(2.0 * X[:, 0] + 0.8)).astype(float)
    model = Model(Bernoulli(), GP(RBF(0.5, 0.9), mean=0.8))
    vi = cavi(model, X, y)
    return vi, correct(vi), gibbs(model, X, y, num_samples=1500, num_warmup=100, num_chains=4, seed=3)


def judge(**results):
    return verdicts(compare(**results))


@pytest.mark.slow
def test_an_exact_approximation_and_a_second_run_are_trusted():
    vi, one, two = gaussian()
    verdicts = judge(gibbs=one, cavi=vi, second=two)
    assert {label: verdict.level for label, verdict in verdicts.items()} == dict.fromkeys(verdicts, "trust")
    assert any("none of 30 is off beyond Monte-Carlo error" in sentence for sentence in verdicts["cavi"].sentences)
    assert any("agrees with gibbs within Monte-Carlo error" in sentence for sentence in verdicts["second"].sentences)
    assert all(len(verdict.latents) == 0 for verdict in verdicts.values())


@pytest.mark.slow
def test_halved_variances_are_called_out_and_the_good_result_beside_them_is_not():
    _, fixed, draws = bernoulli()
    verdicts = judge(gibbs=draws, corrected=fixed, halved=replace(fixed, variance=0.5 * fixed.variance))
    assert verdicts["corrected"].level == "trust"
    assert verdicts["halved"].level == "distrust"
    assert "too narrow" in str(verdicts["halved"])
    assert len(verdicts["halved"].latents) > 15
    # Variance doubled is as wrong the other way.
    assert "too wide" in str(judge(gibbs=draws, doubled=replace(fixed, variance=2.0 * fixed.variance))["doubled"])


@pytest.mark.slow
def test_one_wrong_latent_is_named():
    vi, draws, _ = gaussian()
    mean = vi.mean.copy()
    mean[17, 0] += 1.5 * np.sqrt(vi.variance[17, 0])
    verdict = judge(gibbs=draws, cavi=replace(vi, mean=mean))["cavi"]
    assert verdict.level == "care"
    assert verdict.latents.tolist() == [[17, 0]]
    x = ", ".join(f"{value:.3g}" for value in vi.X[17])
    assert f"row 17 (x = {x})" in str(verdict)


@pytest.mark.slow
def test_a_biased_sampler_is_called_out():
    _, one, two = gaussian()
    moved = replace(two, whitened=tuple(v + 0.3 for v in two.whitened))
    verdict = judge(gibbs=one, moved=moved)["moved"]
    assert verdict.level == "distrust"
    assert "one of the two has not converged, or is wrong" in str(verdict)


@pytest.mark.slow
def test_errors_against_an_unmixed_reference_are_provisional():
    vi, draws, _ = gaussian()
    stuck = [v + np.array([0.0, 0.0, 3.0, 3.0])[:, None, None, None] for v in draws.whitened]
    verdicts = judge(gibbs=replace(draws, whitened=tuple(stuck)), cavi=vi)
    assert verdicts["gibbs"].level == "distrust"
    assert "the chains disagree" in str(verdicts["gibbs"])
    assert verdicts["cavi"].sentences[0] == "The reference, gibbs, is not reliable, so these figures are provisional."


@pytest.mark.parametrize(
    ("num_samples", "words"), [(3, "too few to assess convergence"), (30, "too low to use the draws")]
)
def test_short_runs_are_not_trusted(num_samples, words):
    _, _, draws = bernoulli()
    short = replace(
        draws,
        whitened=tuple(v[:2, :num_samples] for v in draws.whitened),
        log_likelihood_trace=draws.log_likelihood_trace[:2, :num_samples],
    )
    verdict = judge(gibbs=short)["gibbs"]
    assert verdict.level == "distrust"
    assert words in str(verdict)


def test_nonpositive_variances_are_not_trusted():
    _, fixed, draws = bernoulli()
    variance = fixed.variance.copy()
    variance[5] = -0.1
    verdict = judge(gibbs=draws, corrected=replace(fixed, variance=variance, num_nonpositive=1))["corrected"]
    assert verdict.level == "distrust"
    assert "1 of its variances" in str(verdict)
    assert verdict.latents[0].tolist() == [5, 0]
