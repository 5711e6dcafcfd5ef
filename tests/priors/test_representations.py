"""Every law of a conditionally Gaussian core on every form of a prior: the rows of ``forms.py``, by dense twins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.dense import FactoredPosterior, LowRankPrior
from pgmodels.priors.inducing import ChunkedInducingPrior
from pgmodels.priors.representation import Auto
from tests.covering import some
from tests.forms import FORMS, MEAN, some_sites
from tests.programs import run

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.fixture
def case(request):
    return FORMS[request.param]


def law_of(forms, *default):
    return pytest.mark.parametrize("case", some(forms, *default), indirect=True)


def test_priors_are_of_the_expected_representation():
    for name, case in FORMS.items():
        assert isinstance(case.prior(), case.kind), name


def figures(prior, sites, new):
    """All that a posterior says, as one program."""
    posterior = prior.condition(sites)
    results = {
        "moments": posterior.moments(),
        "log Z": posterior.log_normalizer(),
        "predicted": posterior.predict(new),
        # The same without the factorisation kept.
        "alone": prior.moments(sites),
    }
    if isinstance(posterior, FactoredPosterior) and not isinstance(prior, ChunkedInducingPrior):
        results |= {"covariance": posterior.covariance(), "cross": posterior.cross_covariance(new)}
    return results


@law_of(FORMS, *FORMS)
def test_posterior(case):
    sites, n = some_sites(len(case.X)), len(case.X)
    results = run(figures, case.prior(), sites, jnp.asarray(case.new))
    mean, variance = map(jnp.concatenate, zip(results["moments"], results["predicted"], strict=True))
    expected = divergence = 0.0
    for latent in range(2):
        twin_mean, Sigma, residual, log_z = case.twin(sites, latent)
        expected += log_z
        # E log of the sites under q is log Z and KL(q || prior).
        h, w = (np.asarray(part)[:, latent] for part in sites)
        second = twin_mean**2 + np.diagonal(Sigma) + residual
        divergence += h @ twin_mean[:n] - 0.5 * w @ second[:n] - log_z
        np.testing.assert_allclose(mean[:, latent], twin_mean, rtol=0, atol=case.tolerance)
        np.testing.assert_allclose(variance[:, latent], np.diagonal(Sigma) + residual, rtol=0, atol=case.tolerance)
        if "covariance" in results:
            np.testing.assert_allclose(results["covariance"][latent], Sigma[:n, :n], rtol=0, atol=case.tolerance)
            np.testing.assert_allclose(results["cross"][latent], Sigma[n:, :n], rtol=0, atol=case.tolerance)
    np.testing.assert_allclose(results["log Z"], expected, rtol=0, atol=2 * case.tolerance)
    np.testing.assert_allclose(results["alone"].divergence, divergence, rtol=0, atol=2 * case.tolerance)
    for ours, theirs in zip(results["alone"], (*results["moments"], results["log Z"]), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


@law_of(FORMS, "smooth", "inducing, sampled", "inducing, streamed", "state space", "markov", "markov, sum")
def test_coordinates_carry_draws_to_the_data_and_to_new_inputs(case):
    prior, sites, rows, n = case.prior(), some_sites(len(case.X)), jnp.asarray(case.rows), len(case.X)

    @jax.jit
    def images(prior):
        """A draw's coordinates and latents, twice as far from the mean too, and where coordinates take rows."""
        mean, deviation = prior.condition(sites).mean_and_deviation(jax.random.key(2))
        coordinates = mean + deviation
        latents = prior.latents(jnp.stack([coordinates, 2 * coordinates]))
        units = jnp.eye(prior.rank)[:, :, None] * jnp.ones(2)
        return (
            coordinates,
            latents,
            prior.conditional(rows, coordinates),
            prior.conditional(rows, units)[0][..., 0] - MEAN,
        )

    coordinates, (f, twice), (again, residual), carried = images(prior)
    assert coordinates.shape == (prior.rank, 2)
    np.testing.assert_allclose(twice - MEAN, 2 * (f - MEAN), rtol=0, atol=1e-13)
    assert np.all(np.asarray(residual) >= 0)
    if not case.sampled:
        # At the data the latents come back, to the rounding or the jitter of a root.
        np.testing.assert_allclose(again[:n], f, rtol=0, atol=1e-4)
    if case.whitened:
        # Covariances by the factor: rounding over the smallest pivot (1e-16 / 1e-5), or the jitter's 1e-10 of K.
        K = carried.T @ carried
        np.testing.assert_allclose(K[n:, :n], case.covariance(case.rows)[0][n:, :n], rtol=0, atol=1e-8)
        np.testing.assert_allclose(np.diagonal(K) + residual, case.kernel.diagonal(case.rows), rtol=0, atol=1e-8)


@law_of(
    ["rough", "smooth", "inducing", "inducing, sampled", "state space", "markov, sum"],
    "smooth",
    "inducing, sampled",
    "markov, sum",
)
def test_draws(case):
    sites, n, count = some_sites(len(case.X)), len(case.X), 20_000
    prior = case.prior()
    posterior = run(prior.condition, sites)

    def drawn(key):
        mean, deviation = posterior.mean_and_deviation(key)
        return prior.sample_given(key, mean + deviation), prior.draw(key)[0]

    after, before = jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(11), count))
    silent = jax.tree.map(jnp.zeros_like, sites)
    for draws, observed in ((after, sites), (before, silent)):
        for latent in range(2):
            mean, Sigma, residual, _ = case.twin(observed, latent)
            mean, Sigma = mean[:n], Sigma[:n, :n] + np.diag(residual[:n])
            deviation = np.sqrt(np.diagonal(Sigma))
            sample = np.asarray(draws)[:, :, latent]
            assert np.all(np.abs(sample.mean(axis=0) - mean) < 5 * deviation / np.sqrt(count))
            # Var of a sample covariance: (S_ii S_jj + S_ij^2) / N.
            error = np.sqrt((np.outer(deviation, deviation) ** 2 + Sigma**2) / count)
            assert np.all(np.abs(np.cov(sample.T) - Sigma) < 5 * error)
    # Latents of one group are independent: correlations are within 5 / sqrt(N) of zero.
    first, second = np.asarray(after)[:, :, 0], np.asarray(after)[:, :, 1]
    assert np.all(np.abs(np.corrcoef(first.T, second.T)[:n, n:]) < 5 / np.sqrt(count))


@law_of([name for name, case in FORMS.items() if case.traced is not None], "duplicated rows", "smooth", "inducing")
def test_log_normalizer_as_a_function_of_hyperparameters(case):
    sites = some_sites(len(case.X))

    def objective(kernel, mean):
        return case.form.bind_traced_for_moments(kernel, jnp.asarray(mean), jnp.asarray(case.X), 2).moments(sites)[2]

    value, gradient = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))(case.kernel, MEAN)
    twin = sum(case.twin(sites, latent)[3] for latent in range(2))
    np.testing.assert_allclose(value, twin, rtol=0, atol=case.traced)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, (case.kernel, MEAN)))
    evaluate = jax.jit(objective)
    for i, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            step = 1e-5
            ends = [
                float(evaluate(*jax.tree.unflatten(structure, [*leaves[:i], leaf.at[index].add(d), *leaves[i + 1 :]])))
                for d in (step, -step)
            ]
            # Central differences: step^2 times a third derivative of order 10 to 100, and rounding 1e-14 / step.
            np.testing.assert_allclose(
                jax.tree.leaves(gradient)[i][index], (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-7
            )


@law_of(FORMS, "rough", "inducing")
def test_equal_shapes_share_one_program(case):
    traces = []

    @jax.jit
    def update(prior, sites):
        traces.append(1)
        return prior.moments(sites)

    for scale in (1.0, 1.01, 0.99):
        update(case.prior(scale), some_sites(len(case.X)))
    assert len(traces) == 1


def test_few_functions_at_many_rows_need_no_matrix():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(2500, 2)), rng.integers(0, 7, 2500)])
    kernel = pgm.On(pgm.Linear([0.5, 2.0]), [0, 1]) + pgm.On(pgm.White(0.3), [2]) * pgm.On(pgm.Line(1.0, 0.5, 0.4), [0])
    assert Auto().memory(kernel, X) < 1e6
    prior = Auto().bind(kernel, MEAN, X, 1)
    assert isinstance(prior, LowRankPrior)
    assert int(prior.active.sum()) == 15
    some_rows = X[::50]
    K = np.asarray(run(kernel, some_rows, some_rows))
    A, residual = run(prior.factor_at, jnp.asarray(some_rows))
    for factor in (np.asarray(prior.A)[:, ::50], np.asarray(A)):
        np.testing.assert_allclose(factor.T @ factor, K, rtol=0, atol=1e-10)
    assert np.max(residual) < 1e-10
    # Smooth kernels have no known rank, and the matrix is made.
    assert Auto().memory(pgm.RBF(1.0, 1.0), X) > 1e8
