"""One call that checks a model: its parts are those of the public calls, and its verdict follows from them."""

from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.workflow import _next_step

X = np.linspace(-1.5, 1.5, 16)[:, None]


def test_a_prior_predictive_check_counts_draws():
    model = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.0, 1.0)))
    prior = pgm.prior_predictive(model, X, num_draws=200)
    means, deviations = prior.observations.mean(axis=1), prior.observations.std(axis=1)
    y = prior.observations[17]
    shares = prior.shares_below(y)
    assert shares["mean"] == np.mean(means < means[17]) + 0.5 / 200
    assert shares["standard deviation"] == np.mean(deviations < deviations[17]) + 0.5 / 200
    assert prior.shares_below(y + 100.0)["mean"] == 1.0
    with pytest.raises(ValueError, match=r"y must have shape \(16,\)"):
        prior.shares_below(y[:3])


def test_the_next_step_follows_from_the_levels():
    fine = {"vi": SimpleNamespace(pareto_k=SimpleNamespace(values=np.array([0.1, 0.5])))}
    odd = {"vi": SimpleNamespace(pareto_k=SimpleNamespace(values=np.array([0.1, 1.2])))}
    reliable = {"vi": "trust", "gibbs": "trust"}
    assert "predict with results['vi']" in _next_step(reliable, [], [], fine)
    assert "predict with results['gibbs']" in _next_step({"vi": "care", "gibbs": "care"}, [], [], fine)
    assert "draw longer" in _next_step({"vi": "trust", "nuts": "distrust"}, [], [], fine)
    assert "change the priors" in _next_step(reliable, ["mean"], [], fine)
    both = _next_step(reliable, [], ["variance"], odd)
    assert "large Pareto k-hat" in both
    assert "other priors of variance" in both


@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
def test_a_check_has_the_parts_of_the_public_calls(tmp_path):
    y = 0.5 * np.sin(2.0 * X[:, 0]) + 3.0
    model = pgm.Model(
        pgm.Gaussian(pgm.Fixed(0.5)), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(0.8)), mean=pgm.Fixed(0.0))
    )
    check = pgm.check(model, X, y, num_samples=100, num_warmup=5, num_chains=2, num_replicates=0)
    # Means of y have a prior deviation of about 0.6.
    assert check.prior.shares_below(y)["mean"] == 1.0
    assert "excludes the mean" in check.verdict[0]
    assert check.verdict[-1].startswith("Next: change the priors")
    assert set(check.results) == {"vi", "gibbs"}
    np.testing.assert_array_equal(check.results["vi"].mean, pgm.gaussian_vi(model, X, y).mean)
    # Of a Gaussian, leave-one-out has a closed form: y_i given the others.
    K = np.exp(-0.5 * (X - X.T) ** 2 / 0.8**2) + 0.25 * np.eye(16)
    inverse = np.linalg.inv(K)
    residual, variance = (inverse @ y) / np.diag(inverse), 1.0 / np.diag(inverse)
    exact = np.sum(-0.5 * residual**2 / variance - 0.5 * np.log(2 * np.pi * variance))
    assert abs(check.loo["vi"].elpd - exact) < 0.02 * abs(exact)
    assert check.sampled is None
    assert check.diagnosis.vsbc is None
    assert "Next: change the priors" in str(check)
    text = check.report(tmp_path / "check.html").read_text(encoding="utf-8")
    assert "Summary" in text
    assert "excludes the mean" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning", "ignore::pgmodels.MixingWarning")
def test_a_check_of_labels_with_priors(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": np.sort(rng.normal(size=30))})
    y = np.where(rng.random(30) < 1.0 / (1.0 + np.exp(-2.0 * frame["x"])), "yes", "no")
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 1.0))))
    check = pgm.check(model, frame, y, num_samples=150, num_replicates=4)
    assert list(check.sensitivity.index) == ["variance", "lengthscale"]
    assert set(check.sampled.hyperparameters) == {"variance", "lengthscale"}
    assert check.diagnosis.vsbc is not None
    assert "other priors of" in check.verdict[-1]
    assert abs(check.loo["vi"].elpd - check.loo["gibbs"].elpd) < 0.5
    assert "yes" in check.report(tmp_path / "check.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning", "ignore::pgmodels.MixingWarning")
def test_a_check_without_an_augmentation():
    y = np.random.default_rng(2).poisson(np.exp(np.sin(X[:, 0])))
    model = pgm.Model(pgm.Poisson(), pgm.GP(pgm.RBF(0.7, 1.0)))
    check = pgm.check(model, X, y, num_samples=100, num_replicates=0)
    assert set(check.results) == {"vi", "nuts"}


def test_leave_one_out_needs_a_joint_density():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 0.8)))
    vi = pgm.cavi(model, X[:6], [0, 1, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="has none: take"):
        pgm.loo(pgm.correct(vi, method="perturbative"))
    with pytest.raises(ValueError, match="result must be a result"):
        pgm.loo("vi")
