"""Summaries of results against ArviZ and SciPy."""

import arviz_stats as az
import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_base import rc_context
from scipy import stats

import pgmodels as pgm

X = np.linspace(-1.5, 1.5, 14)[:, None]
Y = (np.sin(2.0 * X[:, 0]) > 0.2).astype(float)
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.3, 0.5), 0.8), mean=pgm.Fixed(0.2)))


def test_draws_are_summarised_as_arviz_does():
    draws = pgm.gibbs(MODEL, X, Y, num_samples=60, num_warmup=10, num_chains=2, seed=0)
    table = draws.summary(latents=True)
    expected = az.summary(draws.to_arviz(), round_to="none", ci_kind="eti").loc[["variance", *table.index[2:]]]
    # The lengthscale, a number, keeps its value.
    assert list(table.index) == ["variance", "lengthscale", *(f"f[{row}, 0]" for row in range(14))]
    assert table.loc["lengthscale", "mean"] == 0.8
    assert table.loc["lengthscale"].isna().sum() == len(table.columns) - 1
    rows = table.drop(index="lengthscale")
    assert list(rows.columns) == list(expected.columns[: len(rows.columns)])
    # The deviation is of all draws, with one degree of freedom less in ArviZ.
    np.testing.assert_allclose(rows["sd"], expected["sd"], rtol=1e-2)
    columns = [name for name in rows.columns if name != "sd"]
    np.testing.assert_allclose(rows[columns], expected[columns], rtol=1e-9)


def test_approximations_have_the_quantiles_of_their_marginals():
    vi = pgm.gaussian_vi(MODEL, X, Y)
    with rc_context({"stats.ci_prob": 0.8}):
        table = vi.summary(latents=True)
    assert list(table.columns) == ["mean", "sd", "eti80_lb", "eti80_ub"]
    assert table.loc["variance"].isna().sum() == 3
    latent = table.loc["f[3, 0]"]
    normal = stats.norm(vi.mean[3, 0], np.sqrt(vi.variance[3, 0]))
    np.testing.assert_allclose(latent, [normal.mean(), normal.std(), normal.ppf(0.1), normal.ppf(0.9)], rtol=1e-9)
    assert list(vi.summary().index) == ["variance", "lengthscale"]


@pytest.mark.slow
def test_learned_integrated_and_streamed_results():
    learned = pgm.fit(MODEL, X, Y, seed=0)
    table = learned.summary()
    assert list(table.index) == list(learned.fit.values)
    # Medians of lognormal variables.
    values = np.array([float(value) for value in learned.fit.values.values()])
    np.testing.assert_allclose(np.sqrt(table.iloc[:, 2] * table.iloc[:, 3]), values, rtol=5e-3)
    spread = np.log(table.iloc[:, 3] / table.iloc[:, 2]) / (2.0 * stats.norm.ppf(0.945))
    np.testing.assert_allclose(table["mean"], values * np.exp(0.5 * spread**2), rtol=2e-2)
    mixed = pgm.integrate(MODEL, X, Y)
    table, marginal = mixed.summary(latents=True), mixed.hyperparameters["variance"]
    values, mass = marginal.values, marginal.mass
    np.testing.assert_allclose(table.loc["variance", "mean"], values @ mass)
    np.testing.assert_allclose(table.loc["variance", "sd"], np.sqrt(values**2 @ mass - (values @ mass) ** 2))
    # 0.055 of the mass is below the end.
    assert abs(mass[values < table.loc["variance"].iloc[2]].sum() - 0.055) < mass.max()
    low, high = mixed.quantiles([0.055, 0.945])[:, 5, 0]
    np.testing.assert_allclose(table.loc["f[5, 0]"].iloc[2:], [low, high], atol=0.02)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 0.8), form=pgm.Inducing(5)))
    with pytest.warns(pgm.ConvergenceWarning):
        streamed = pgm.svi(model, pgm.ArrayRows(X, Y), batch_size=7, max_epochs=1)
    assert list(streamed.summary().index) == ["variance", "lengthscale"]
    with pytest.raises(ValueError, match="latents are those at the data"):
        streamed.summary(latents=True)


def test_entries_of_arrays_and_stored_rows():
    model = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.On(pgm.Coregion(2, 1), [1]), mean=pgm.Fixed(0.0)))
    data = np.column_stack([X[:, 0], np.arange(14) % 2])
    table = pgm.cavi(model, data, X[:, 0]).summary()
    assert any("[0, 0]" in name for name in table.index), table.index
    draws = pgm.gibbs(MODEL.fixed(), X, Y, num_samples=5, num_warmup=2, num_chains=1, seed=0, keep=[2, 7])
    rows = draws.summary(latents=True)
    assert [name for name in rows.index if name.startswith("f[")] == ["f[2, 0]", "f[7, 0]"]
    np.testing.assert_allclose(rows.loc["f[7, 0]", "mean"], draws.latents[0, :, 1, 0].mean())
    assert "r_hat" not in rows
