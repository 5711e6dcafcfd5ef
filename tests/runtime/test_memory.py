"""What is larger than the available memory is refused before any work; tables of rows need little."""

import resource
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.runtime import jit
from tests.own_likelihoods import summed
from tests.processes import python

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (30, 1))
Y = (X[:, 0] + 0.5 * RNG.normal(size=30) > 0.0).astype(float)
KERNEL = pgm.RBF(dist.LogNormal(0.0, 0.5), 1.0)
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), form=pgm.Dense()))
SAMPLED = pgm.Model(pgm.Bernoulli(), pgm.GP(KERNEL, form=pgm.Dense()))


@pytest.mark.parametrize("names", [("", "max", "current"), ("memory", "limit_in_bytes", "usage_in_bytes")])
def test_available_memory_in_a_container(tmp_path, names):
    folder, limit, usage = tmp_path / names[0], *names[1:]
    folder.mkdir(exist_ok=True)
    free = jit.available_memory(tmp_path)
    # In use are 700 bytes, of which 250 are of files that are read again if need be.
    (folder / f"memory.{limit}").write_text("1000\n")
    (folder / f"memory.{usage}").write_text("700\n")
    (folder / "memory.stat").write_text("anon 400\ninactive_file 150\nactive_file 100\nunevictable 50\n")
    assert jit.available_memory(tmp_path) == 550.0
    (folder / "memory.stat").unlink()
    assert jit.available_memory(tmp_path) == 300.0
    (folder / f"memory.{limit}").write_text("max\n")
    assert jit.available_memory(tmp_path) == pytest.approx(free, rel=0.5)


def test_available_memory_below_a_limit_of_addresses():
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 10**9, before[1]))
        # Others may allocate in the meantime.
        assert jit.available_memory() == pytest.approx(1e9, rel=0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def results():
    """Results of each class, by name."""
    plain = pgm.cavi(MODEL, X, Y)
    gaussian = pgm.gaussian_vi(MODEL, X, Y)
    offsets = [pgm.GP(pgm.RBF(1.0, 1.0)), pgm.GP(pgm.Linear(1.0))]
    return {
        "cavi": plain,
        "coupled": pgm.cavi(pgm.Model(summed(), offsets), X, Y),
        "corrected": pgm.correct(plain),
        "nested": pgm.correct(gaussian, method="nested"),
        "draws": pgm.gibbs(MODEL, X, Y, num_samples=400, num_warmup=20, num_chains=2),
        "integrated": pgm.integrate(SAMPLED, X, Y),
    }


NEW = np.linspace(-2.5, 2.5, 40)[:, None]
CALLS = {
    "prior_predictive": lambda results: pgm.prior_predictive(MODEL, X),
    "prior_predictive of a prior": lambda results: pgm.prior_predictive(SAMPLED, X),
    "cavi": lambda results: pgm.cavi(MODEL, X, Y),
    "gaussian_vi": lambda results: pgm.gaussian_vi(MODEL, X, Y),
    "fit": lambda results: pgm.fit(MODEL, X, Y),
    "integrate": lambda results: pgm.integrate(SAMPLED, X, Y),
    "gibbs": lambda results: pgm.gibbs(MODEL, X, Y),
    "nuts": lambda results: pgm.nuts(MODEL, X, Y),
    "to_numpyro": lambda results: pgm.to_numpyro(SAMPLED, X, Y),
    "numpyro_bound": lambda results: pgm.numpyro_bound(SAMPLED, X, Y),
    "update": lambda results: pgm.update(results["cavi"], NEW, (NEW[:, 0] > 0.0).astype(float)),
    "correct": lambda results: pgm.correct(results["cavi"]),
    "log_evidence": lambda results: pgm.log_evidence(results["cavi"]),
    "loo": lambda results: pgm.loo(results["cavi"]),
    "pareto_k": lambda results: pgm.diagnose(results["cavi"]),
    "draw_latents": lambda results: results["cavi"].draw_latents(NEW),
    "draw_latents of draws": lambda results: results["draws"].draw_latents(NEW),
    "draw_latents of points": lambda results: results["integrated"].draw_latents(NEW),
    "draw_at_data": lambda results: results["cavi"].draw_at_data(1000),
    "draw_at_data of points": lambda results: results["integrated"].draw_at_data(1000),
    "draw": lambda results: results["cavi"].predict(NEW).draw(),
    "quantiles": lambda results: results["corrected"].predict(NEW).quantiles(0.5),
    "predict of draws": lambda results: results["draws"].predict(NEW),
    "predict_latent of draws": lambda results: results["draws"].predict_latent(NEW),
    "to_arviz": lambda results: results["cavi"].to_arviz(),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_beyond_memory_are_refused_with_a_remedy(results, call, monkeypatch):
    monkeypatch.setattr(jit, "available_memory", lambda: 1000.0)
    with pytest.raises(MemoryError, match=r"need 0\.0 GB of memory.*(Use|Ask for|Take) "):
        CALLS[call](results)


def test_forty_thousand_rows_in_eight_gigabytes_are_refused_and_the_remedy_works(results, monkeypatch):
    monkeypatch.setattr(jit, "available_memory", lambda: 8e9)
    many = np.linspace(-2.0, 2.0, 40_000)[:, None]
    with pytest.raises(MemoryError, match=r"covariances at 40,000 distinct inputs.*pgm\.Inducing\(300\)"):
        pgm.prior_predictive(MODEL, many)
    # Three matrices, and 1,000 draws four times.
    with pytest.raises(MemoryError, match=r"1,000 draws of the latents at 40,000 rows need 39\.7 GB.*fewer rows"):
        results["cavi"].draw_latents(many)
    assert np.isfinite(results["cavi"].draw_latents(many[::100], 20)).all()
    few = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), form=pgm.Inducing(10)))
    assert np.isfinite(pgm.prior_predictive(few, many[::10], num_draws=20).observations).all()


@pytest.mark.parametrize("name", ["cavi", "coupled", "corrected", "nested", "draws", "integrated"])
def test_draws_for_rows_one_by_one_have_the_moments_of_each_row(results, name):
    result, count = results[name], 4000
    nodes = result.marginal_nodes(NEW, count, seed=3)
    mean, variance = result.predict_latent(NEW)
    # Draws of chains come back several times, so that their errors are those of 800.
    number = 800 if name == "draws" else count
    error = np.sqrt(variance / number)
    assert (np.abs(nodes.draws.mean(axis=0) - mean) < 5.0 * error).all()
    np.testing.assert_allclose(nodes.draws.var(axis=0), variance, rtol=6.0 * np.sqrt(2.0 / number))
    assert np.array_equal(nodes.draws, result.marginal_nodes(NEW, count, seed=3).draws)
    # By the same normals at all rows: what is close together moves together.
    steps = np.abs(np.diff(nodes.draws.std(axis=0), axis=0)).max()
    assert steps < 2.0 * np.abs(np.diff(np.sqrt(variance), axis=0)).max() + 1e-3
    if name == "coupled":
        joint = result.draw_latents(NEW, 20_000)
        for row in (0, 20, 39):
            expected = np.cov(joint[:, row].T)
            scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
            assert (np.abs(np.cov(nodes.draws[:, row].T) - expected) < 0.1 * scale).all()


def grouped(count, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": rng.normal(size=count), "g": rng.integers(0, 6, count).astype(str)})


@pytest.fixture(scope="module")
def regression():
    data = grouped(60, 0)
    data["y"] = 3.0 + data.x + np.where(data.g == "2", 1.5, -0.4) + 0.3 * np.random.default_rng(1).normal(size=60)
    return pgm.formula("y ~ x + (1|g)", data).cavi()


def test_a_table_of_rows_is_that_of_the_posterior_in_parts_without_joint_draws(regression, monkeypatch):
    monkeypatch.setattr(type(regression.result), "joint_nodes", None)
    # A part has 2^23 numbers: 1,000 draws of two latents at 4,194 rows.
    new = grouped(4_300, 2)
    table = regression.predictions(new)
    # The Gaussian posterior of the sum of the latents, by the kernels' matrices.
    model, at_data, at_new = regression.regression.model, regression.regression.X, regression.regression.read(new)[0]
    K = lambda A, B: sum(np.asarray(gp.kernel(A, B)) for gp in model.gps)  # noqa: E731
    level = sum(float(gp.mean.value) for gp in model.gps)
    noise = float(np.asarray(model.likelihood.values["scale"])) ** 2
    gain = np.linalg.solve(K(at_data, at_data) + noise * np.eye(60), K(at_data, at_new)).T
    mean = level + gain @ (regression.regression.y - level)
    variance = sum(np.asarray(gp.kernel.diagonal(at_new)) for gp in model.gps)
    sd = np.sqrt(variance - np.sum(gain * K(at_new, at_data), axis=1))
    assert list(table.g) == list(new.g)
    assert len(table) == 4_300
    assert (np.abs(table["mean"] - mean) < 5.0 * sd / np.sqrt(1000)).all()
    np.testing.assert_allclose(table["sd"], sd, rtol=5.0 / np.sqrt(2000))
    pd.testing.assert_frame_equal(table, regression.predictions(new))
    # Rows of a part are those of the whole.
    pd.testing.assert_frame_equal(regression.predictions(new[4190:4200]), table[4190:4200].reset_index(drop=True))
    assert len(regression.predictions(new, target="response")) == 4_300


def test_averages_over_rows_that_do_not_fit_into_memory_are_refused(regression, monkeypatch):
    new = grouped(400, 3)
    monkeypatch.setattr(jit, "available_memory", lambda: 2e7)
    for call in (
        lambda: regression.predictions(new, average_by="g"),
        lambda: regression.comparisons({"g": ["1", "2"]}, new),
        lambda: regression.slopes("x", new),
        lambda: regression.effects("(1|g)", new),
        lambda: regression.draws(new),
    ):
        with pytest.raises(MemoryError, match=r"1,000 draws of the latents at [0-9,]+ rows need"):
            call()
    assert len(regression.predictions(new[:20])) == 20


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))
import numpy as np, pandas as pd
import pgmodels as pgm
from tests.runtime.test_memory import MODEL, X, Y, grouped
many = np.linspace(-2.0, 2.0, 40_000)[:, None]
for call in (lambda: pgm.prior_predictive(MODEL, many), lambda: pgm.cavi(MODEL, X, Y).draw_latents(many)):
    try:
        call()
    except MemoryError as error:
        print("refused:", error)
data = grouped(200, 0).assign(y=np.random.default_rng(1).normal(size=200))
print(np.isfinite(pgm.formula("y ~ x + (1|g)", data).fit().predictions(grouped(20_000, 1))["sd"]).all())
"""


@pytest.mark.slow
def test_a_process_with_a_limit_of_addresses_is_not_aborted():
    printed = python("-c", LIMITED)
    assert printed.count("refused:") == 2
    assert printed.endswith("True\n")
