"""Every law of a conditionally Gaussian core on every form of a prior: the rows of ``forms.py``, by dense twins."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import log_ndtr

import pgmodels as pgm
from pgmodels.priors.base import Sites, latents_given
from pgmodels.priors.dense import DensePrior, FactoredPosterior, LowRankPrior
from pgmodels.priors.inducing import ChunkedInducingPrior
from pgmodels.priors.linalg import dense_covariance, dense_factor, dense_variance, vmap_as_loop, vmap_as_loop_if_batched
from pgmodels.priors.representation import Auto, Binding
from tests.covering import some
from tests.forms import FORMS, MEAN, inputs, kernel, some_sites
from tests.programs import run
from tests.referees import hermite_grid
from tests.state_space import StateSpace
from tests.statistical.reference import errors_of_draws, z_scores

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
        return latents_given(prior, key, mean + deviation), prior.draw(key)[0]

    after, before = jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(11), count))
    silent = jax.tree.map(jnp.zeros_like, sites)
    for draws, observed in ((after, sites), (before, silent)):
        for latent in range(2):
            mean, Sigma, residual, _ = case.twin(observed, latent)
            mean, Sigma = mean[:n], Sigma[:n, :n] + np.diag(residual[:n])
            assert errors_of_draws(np.asarray(draws)[:, :, latent], mean, Sigma) < 5
    # Latents of one group are independent: correlations are within 5 / sqrt(N) of zero.
    first, second = np.asarray(after)[:, :, 0], np.asarray(after)[:, :, 1]
    assert np.all(np.abs(np.corrcoef(first.T, second.T)[:n, n:]) < 5 / np.sqrt(count))


@law_of([name for name, case in FORMS.items() if case.traced is not None], "duplicated rows", "smooth", "inducing")
def test_log_normalizer_as_a_function_of_hyperparameters(case):
    sites = some_sites(len(case.X))

    def objective(kernel, mean):
        how = Binding(traced=True, for_moments=True)
        prior = case.form.bind(kernel, jnp.asarray(mean), jnp.asarray(case.X), 2, how)
        return prior.moments(sites)[2]

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
    kernel = pgm.On(pgm.Linear([0.5, 2.0]), [0, 1]) + pgm.On(pgm.White(0.3), [2]) * (
        pgm.Constant(1.0) + pgm.On(pgm.Linear(0.5), [0])
    )
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


# The conditionally Gaussian core at its borders: extreme precisions, kernels that are none, one form for another.


class Table(eqx.Module):
    """A kernel given by its matrix: what a mistaken user kernel returns."""

    matrix: jax.Array

    def __call__(self, X, Z):
        return self.matrix

    def diagonal(self, X):
        return jnp.diagonal(self.matrix)


def bind(covariance, X, size=2, mean=MEAN, form=Auto()):
    return form.bind(covariance, mean, X, size)


def draw(posterior, key):
    """A draw of the latents of a group and its coordinates."""
    mean, deviation = run(posterior.mean_and_deviation, key)
    return run(posterior.prior.latents, mean + deviation), mean + deviation


def test_low_rank_represents_the_kernel():
    covariance, X = FORMS["smooth"].kernel, FORMS["smooth"].X
    prior = bind(covariance, X)
    K = np.asarray(covariance(X, X))
    assert prior.rank % 16 == 0
    assert 0 <= float(prior.truncation_error) <= 1e-10 * 1.7
    # The neglected part is positive semi-definite: its diagonal bounds it, up to the rounding of K.
    np.testing.assert_allclose(prior.A.T @ prior.A, K, rtol=0, atol=float(prior.truncation_error) + 1e-14)
    rank = int(prior.active.sum())
    np.testing.assert_array_equal(prior.A[rank:], 0)
    # A at the training inputs by the pivots: rounding of K over the smallest pivot, 1e-16 / sqrt(1e-10), a few times.
    np.testing.assert_allclose(run(prior.factor_at, prior.X)[0], prior.A, rtol=0, atol=1e-9)


def test_the_jitter_of_a_dense_prior_is_kept():
    case = FORMS["smooth, dense"]
    prior, K = case.prior(), case.kernel(case.X, case.X)
    assert float(prior.jitter) > 0
    np.testing.assert_allclose(prior.K, K + float(prior.jitter) * np.eye(len(K)), rtol=0, atol=1e-15)


@pytest.mark.parametrize("n", [1, 2])
def test_log_normalizer_is_the_integral(n):
    X = inputs(n, seed=4)
    h, w = jnp.asarray([[0.9], [-0.4]])[:n], jnp.asarray([[0.6], [0.0]])[:n]
    root = np.linalg.cholesky(np.asarray(kernel()(X, X)))
    grid, mass = hermite_grid(80, n)
    f = MEAN + grid @ root.T
    integral = np.sum(mass * np.exp(f @ h[:, 0] - 0.5 * f**2 @ w[:, 0]))
    log_normalizer = run(bind(kernel(), X, size=1).moments, Sites(h, w))[2]
    # 80 Hermite nodes integrate exp(-w k x^2 / 2) with w k = 1 to about 1e-12.
    np.testing.assert_allclose(log_normalizer, np.log(integral), rtol=0, atol=1e-11)


def exact_posterior(K, mean, h, w):
    """Mean and covariance in fractions: Gauss-Jordan on (I + K W) [Sigma, mean] = [K, K (h - w mean)]."""
    n = len(K)
    K, h, w, mean = ([[Fraction(float(x)) for x in row] for row in np.atleast_2d(a)] for a in (K, h, w, mean))
    h, w, mean = h[0], w[0], mean[0][0]
    shifted = [h[j] - w[j] * mean for j in range(n)]
    table = [
        [(i == j) + K[i][j] * w[j] for j in range(n)] + K[i] + [sum(K[i][j] * shifted[j] for j in range(n))]
        for i in range(n)
    ]
    for i in range(n):
        table[i] = [x / table[i][i] for x in table[i]]
        for k in range(n):
            if k != i:
                table[k] = [x - table[k][i] * y for x, y in zip(table[k], table[i], strict=True)]
    solved = np.asarray([[float(x) for x in row[n:]] for row in table])
    return float(mean) + solved[:, -1], solved[:, :n]


def test_extreme_precisions():
    X = inputs(8, seed=5)
    w = jnp.asarray([1e10, 1e-10, 1e10, 0.0, 1.0, 1e10, 1e-10, 1e5])[:, None]
    f = jnp.asarray([0.3, 1.2, -0.8, 0.4, 2.0, 0.1, -1.5, 0.9])[:, None]
    h = jnp.where(w < 1, 0.5, w * f)
    prior = bind(kernel(), X, size=1)
    assert isinstance(prior, DensePrior)
    assert float(prior.jitter) == 0
    twin_mean, Sigma = exact_posterior(prior.K, MEAN, h[:, 0], w[:, 0])
    posterior = run(prior.condition, Sites(h, w))
    mean, variance = run(posterior.moments)
    # Relative, although the variances span ten orders: 1e-16 times the condition of K between the strong points (1e3),
    # some ten operations; the mean is of size 1, from potentials of size 1e10.
    np.testing.assert_allclose(variance[:, 0], np.diagonal(Sigma), rtol=1e-10)
    np.testing.assert_allclose(mean[:, 0], twin_mean, rtol=0, atol=1e-10)
    deviation = np.sqrt(np.diagonal(Sigma))
    np.testing.assert_allclose(
        run(posterior.covariance)[0] / np.outer(deviation, deviation), Sigma / np.outer(deviation, deviation), atol=1e-9
    )
    many = jax.jit(jax.vmap(lambda key: draw(posterior, key)[0]))
    draws = many(jax.random.split(jax.random.key(3), 2000))[:, :, 0]
    # 4.5 standard errors of a standard deviation estimated from 2,000 draws: 4.5 / sqrt(4000).
    np.testing.assert_allclose(np.std(draws, axis=0) / deviation, 1.0, rtol=0, atol=0.07)


def test_variances_of_more_rows_than_lapack_inverts_at_once():
    n = 301
    rng = np.random.default_rng(6)
    K = np.asarray(kernel()(inputs(n, seed=6), inputs(n, seed=6))) + 1e-6 * np.eye(n)
    w = rng.choice([0.0, 1e-12, 1e-3, 0.7, 30.0, 1e6], n)

    def variance(K, w):
        return dense_variance(K, dense_factor(K, w))

    def covariance(K, w):
        return jnp.diagonal(dense_covariance(K, dense_factor(K, w)))

    # Along a direction in which all moves but precisions that are zero, where a square root has no slope.
    way = K, np.where(w > 0, w, 0.0) * rng.normal(size=n)
    value, slope = jax.jit(lambda: jax.jvp(variance, (K, w), way))()
    np.testing.assert_allclose(value, jax.jit(covariance)(K, w), rtol=0, atol=1e-11)
    # Sigma' = (I - Sigma W) K' (I - W Sigma) - Sigma W' Sigma.
    Sigma = K - K @ np.linalg.solve(np.eye(n) + w[:, None] * K, w[:, None] * K)
    I_minus_SW = np.eye(n) - Sigma * w
    exact = np.einsum("ij,jk,ik->i", I_minus_SW, way[0], I_minus_SW) - np.einsum("ij,j,ij->i", Sigma, way[1], Sigma)
    np.testing.assert_allclose(slope, exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], "smallest eigenvalue is -1"),
        ([[1.0, np.nan], [np.nan, 1.0]], r"entry \(0, 1\) is nan"),
        ([[1.0, 0.2], [0.1, 1.0]], "not symmetric"),
        ([[1.0, 0.0], [0.0, -1.0]], "variance at row 1 is -1"),
        ([[0.0, 0.0], [0.0, 0.0]], "variance at row 0 is 0"),
        ([1.0, 1.0], r"shape \(2,\)"),
    ],
)
def test_a_kernel_that_is_none_is_rejected(matrix, complaint):
    with pytest.raises(ValueError, match=f"kernel Table.*{complaint}.*White"):
        bind(Table(jnp.asarray(matrix)), inputs(2))


@pytest.mark.parametrize("entry", [(3, 40), (290, 5), (130, 299)])
def test_a_single_entry_without_its_mirror_image_is_found(entry):
    matrix = np.eye(300)
    matrix[entry] = 0.5
    names = rf"entry \({entry[0]}, {entry[1]}\)|entry \({entry[1]}, {entry[0]}\)"
    with pytest.raises(ValueError, match=f"not symmetric: ({names})"):
        bind(Table(jnp.asarray(matrix)), inputs(300))


def test_an_indefinite_kernel_of_low_rank_is_rejected():
    direction = np.random.default_rng(0).normal(size=(100, 2))
    matrix = np.outer(direction[:, 0], direction[:, 0]) - 0.01 * np.outer(direction[:, 1], direction[:, 1])
    np.fill_diagonal(matrix, np.abs(np.diagonal(matrix)))
    with pytest.raises(ValueError, match="smallest eigenvalue"):
        bind(Table(jnp.asarray(matrix)), inputs(100))


# Functions that ``vmap`` turns into loops give the numbers of the functions themselves.


X = np.linspace(-2.0, 1.5, 3)
SCALES = np.array([0.5, 1.0, 3.0])


def scaled_gradient(scale, x):
    # The derivative of a function with a rule of its own (jax.custom_jvp).
    return scale * jax.grad(log_ndtr)(x)


@pytest.mark.parametrize("wrap", [vmap_as_loop, vmap_as_loop_if_batched])
@pytest.mark.parametrize("axes", [None, (0, 0), (None, 0)])
def test_the_derivative_of_a_function_with_its_own_rule(wrap, axes):
    arguments = (SCALES[0] if axes is None or axes[0] is None else SCALES), (X[0] if axes is None else X)

    def both(function):
        return jax.jit(function if axes is None else jax.vmap(function, in_axes=axes))(*map(jnp.asarray, arguments))

    np.testing.assert_allclose(both(wrap(scaled_gradient)), both(scaled_gradient), rtol=1e-6)


@pytest.mark.slow
def test_gibbs_samples_hyperparameters_of_a_probit_model():
    # Its surrogate differentiates log_ndtr in a loop.
    rows, y = X[:, None], (X > 0.0).astype(float)
    model = pgm.Model(pgm.Probit(), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0), 1.0)))
    draws = pgm.gibbs(model, rows, y, num_samples=4, num_warmup=2, num_chains=1, seed=0, progress=False)
    assert np.unique(draws.hyperparameters["variance"]).size > 1


# A prior form from outside the package, without a factor matrix: CAVI, learning and Gibbs sweeps run with it.
# Its dense twin is the same kernel by the covariance matrix.


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (9, 1))
    # Unsorted, and one input twice.
    X[5] = X[2]
    return X, (rng.random(9) < 0.6).astype(float)


X_NEW = np.array([[-3.0], [-0.4], [0.9], [4.0]])


def model_of(form, lengthscale=0.8):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern12(1.7, lengthscale), mean=0.4, form=form))


def test_cavi_agrees_with_the_dense_twin(data):
    X, y = data
    line, dense = (pgm.cavi(model_of(form), X, y) for form in (StateSpace(), pgm.Dense()))
    assert line.elbo == pytest.approx(dense.elbo, abs=1e-8)
    places = np.vstack([X_NEW, X])
    for one, other in (
        ((line.mean, line.variance), (dense.mean, dense.variance)),
        (line.predict_latent(places), dense.predict_latent(places)),
    ):
        # Means and variances of size 1 to 3, by another order of the same operations.
        np.testing.assert_allclose(one, other, atol=1e-8)


@pytest.mark.slow
def test_learning_agrees_with_the_dense_twin(data):
    X, _ = data
    y = np.sin(2.0 * X[:, 0]) + 0.1 * np.cos(9.0 * X[:, 0])

    def learned(form):
        gp = pgm.GP(pgm.Matern12(1.7, 0.8), mean=0.4, form=form)
        return pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), gp), X, y)

    # To the tolerance of the optimiser.
    assert learned(StateSpace()).elbo == pytest.approx(learned(pgm.Dense()).elbo, abs=1e-6)


@pytest.mark.slow
def test_gibbs_sweeps_agree_with_the_dense_twin(data):
    X, y = data
    line = pgm.gibbs(model_of(StateSpace()), X, y, num_samples=2000, num_warmup=50, num_chains=2, seed=1)
    dense = pgm.gibbs(model_of(pgm.Dense()), X, y, num_samples=1000, num_warmup=50, num_chains=2, seed=1)
    assert list(line.tuning) == ["sweep"]
    assert line.tuning["sweep"]["relaxation"] < -0.05
    # 18 comparisons at four joint standard errors.
    assert np.max(np.abs(z_scores(line.latents, dense.latents))) < 4.0
    # Given draws at the data, what is drawn there again is the same; elsewhere both average the same function.
    np.testing.assert_allclose(line.predict_latent(X), (line.mean, line.variance), atol=1e-10)
    # Some 600 effective draws of deviation 1.3 the smaller.
    np.testing.assert_allclose(line.predict_latent(X_NEW), dense.predict_latent(X_NEW), atol=0.25)
    assert "lp" not in line.to_arviz().sample_stats


@pytest.mark.slow
def test_gibbs_samples_hyperparameters_as_the_dense_twin(data):
    X, y = data
    settings = {"num_samples": 1500, "num_warmup": 200, "num_chains": 2, "seed": 1}
    line, dense = (
        pgm.gibbs(model_of(form, dist.LogNormal(0.0, 0.5)), X, y, **settings) for form in (StateSpace(), pgm.Dense())
    )
    ours, theirs = (np.log(draws.hyperparameters["lengthscale"])[:, :, None, None] for draws in (line, dense))
    assert np.max(np.abs(z_scores(ours, theirs))) < 4.0


def test_what_needs_a_factor_says_so(data):
    X, y = data
    line = pgm.cavi(model_of(StateSpace()), X, y)
    with pytest.raises(ValueError, match=r"LinePrior has no factor matrix.*joint draws at new inputs.*pgm.Dense"):
        line.draw_latents(X_NEW)
