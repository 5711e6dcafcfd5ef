"""One call that checks a model: its parts are those of the public calls, and its verdict follows from them."""

import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels import workflow
from pgmodels.cli import main
from pgmodels.runtime.io import atomic_write, make_folder
from pgmodels.workflow import next_step

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
    assert "predict with results['vi']" in next_step(reliable, [], [], fine)
    assert "predict with results['gibbs']" in next_step({"vi": "care", "gibbs": "care"}, [], [], fine)
    assert "draw longer" in next_step({"vi": "trust", "nuts": "distrust"}, [], [], fine)
    assert "change the priors" in next_step(reliable, ["mean"], [], fine)
    both = next_step(reliable, [], ["variance"], odd)
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


@pytest.mark.parametrize("known", [False, True])
def test_leave_one_out_of_a_gaussian_model_is_exact(known):
    rng = np.random.default_rng(5)
    x, noise = rng.normal(size=(12, 1)), rng.uniform(0.2, 0.6, 12) if known else np.full(12, 0.3)
    y, K = np.sin(2.0 * x[:, 0]) + 1.5, 1.7 * np.exp(-0.5 * ((x - x.T) / 0.7) ** 2)
    likelihood, given = (pgm.KnownNoise(), np.column_stack([y, noise])) if known else (pgm.Gaussian(0.3), y)
    result = pgm.cavi(pgm.Model(likelihood, pgm.GP(pgm.RBF(1.7, 0.7), mean=1.0)), x, given)
    expected = []
    for row in range(12):
        rest = np.delete(np.arange(12), row)
        w = np.linalg.solve(K[np.ix_(rest, rest)] + np.diag(noise[rest] ** 2), K[rest, row])
        deviation = np.sqrt(K[row, row] - w @ K[rest, row] + noise[row] ** 2)
        expected.append(stats.norm.logpdf(y[row], 1.0 + w @ (y[rest] - 1.0), deviation))
    np.testing.assert_allclose(pgm.loo(result).elpd_i, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning", "ignore::pgmodels.InducingWarning")
def test_leave_one_out_with_few_inducing_inputs_is_by_importance_sampling():
    y = np.sin(3.0 * X[:, 0]) + 1.5
    result = pgm.cavi(pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.RBF(1.7, 0.3), form=pgm.Inducing(2))), X, y)
    # Without the row the variance of the exact formula would be negative.
    assert result.predict(X).variance.max() > 2.0 * 0.1**2
    estimate = pgm.loo(result)
    assert np.isfinite(estimate.elpd_i).all()
    assert estimate.elpd < np.sum(result.predict(X).log_density(y))


def test_leave_one_out_needs_a_joint_density():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 0.8)))
    vi = pgm.cavi(model, X[:6], [0, 1, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"has none\. Use"):
        pgm.loo(pgm.correct(vi, method="perturbative"))
    with pytest.raises(ValueError, match="result must be a result"):
        pgm.loo("vi")


# Where validation writes: found out before any work, each file as it comes, and whole or not at all.


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=20), "y": np.arange(20) % 2})
    frame.to_csv(tmp_path / "small.csv", index=False)
    return tmp_path / "small.csv"


def refused(*args, **kwargs):
    raise PermissionError(13, "Permission denied")


def work(*args, **kwargs):
    raise AssertionError("the folder is to be checked before any work")


BAD = {
    "a file": lambda folder: folder / "file",
    "below a file": lambda folder: folder / "file" / "deep" / "er",
    "no place for files": lambda folder: Path("/proc/pgmodels-results"),
    "a long name": lambda folder: folder / ("x" * 300),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(name, table, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    path = BAD[name](tmp_path)
    monkeypatch.setattr(workflow, "fit", work)
    assert main(["validate", "--data", str(table), "--output", str(path), "--quiet"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--output must be a writable folder" in message
    assert "Choose another" in message
    with pytest.raises(ValueError, match="checkpoint must be a writable folder"):
        make_folder(path, "checkpoint")


@pytest.mark.parametrize(("owner", "name"), [(Path, "mkdir"), (tempfile, "TemporaryFile")])
def test_a_folder_that_may_not_be_written_to_is_refused(owner, name, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, name, refused)
    with pytest.raises(ValueError, match=r"--output must be a writable folder.*Permission denied"):
        make_folder(tmp_path / "new", "--output")


def test_a_file_is_complete_or_absent(tmp_path):
    path = tmp_path / "report.html"
    with atomic_write(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()

    def fail():
        with atomic_write(path) as temporary:
            temporary.write_text("half of the sec")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fail()
    assert path.read_text() == "first"
    make_folder(tmp_path / "a" / "b", "--output")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "report.html"]
    assert not os.listdir(tmp_path / "a" / "b")


class Table:
    """A comparison that is quick."""

    def save(self, folder):
        (folder / "comparison.csv").write_text("compared")


@pytest.fixture
def quick(monkeypatch):
    """Validation whose engines are quick."""
    X, y = np.linspace(0.0, 1.0, 6)[:, None], np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)
    for name in ("fit", "gaussian_vi", "correct", "gibbs", "diagnose"):
        monkeypatch.setattr(workflow, name, lambda *args, **kwargs: result)
    monkeypatch.setattr(workflow, "compare", lambda **kwargs: Table())
    report = "pgmodels.report.report.write_report"
    monkeypatch.setattr(report, lambda path, *args, **kwargs: path.write_text("reported"))
    return result


RESULTS = {"gibbs.nc", "cavi.npz", "gaussian.npz"}
ALL = RESULTS | {"comparison.csv", "settings.json", "report.html"}


def test_what_was_found_before_an_interruption_is_there_and_does_not_look_whole(quick, table, tmp_path, monkeypatch):
    output = tmp_path / "out"
    arguments = ["validate", "--data", str(table), "--output", str(output), "--quiet"]

    def names(folder):
        return {path.name for path in (output / folder).iterdir()}

    def interrupted(expected, *args, **kwargs):
        assert names("small.unfinished") == expected
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workflow, "gaussian_vi", partial(interrupted, {"cavi.npz"}))
        assert main(arguments) == 130
    assert names("small.unfinished") == {"cavi.npz"}
    assert names("small") == set()
    assert main(arguments) == 0
    assert names("small") == ALL
    assert not (output / "small.unfinished").exists()
    # What is whole stays whole until what is new is so too; what the user keeps beside it is left alone.
    (output / "small" / "notes.txt").write_text("mine")
    (output / "small" / "settings.json").write_text("earlier")
    (output / "small.unfinished").mkdir()
    (output / "small.unfinished" / ".gibbs.nc.0123456789abcdef.tmp").write_text("half")
    with monkeypatch.context() as patch:
        patch.setattr(workflow, "compare", partial(interrupted, RESULTS))
        assert main(arguments) == 130
    assert names("small") == ALL | {"notes.txt"}
    assert (output / "small" / "settings.json").read_text() == "earlier"
    # An earlier run's files are not this one's.
    assert main(arguments) == 0
    assert names("small") == ALL | {"notes.txt"}
    assert (output / "small" / "settings.json").read_text() != "earlier"
