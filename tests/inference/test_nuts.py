"""The referee: the NumPyro model against a density written out by hand, and its draws against quadrature and Gibbs."""

from contextlib import nullcontext
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import expit, gammaln, logsumexp

import pgmodels as pgm
from pgmodels.inference.nuts import PreconditionedProgram, warn_divergent
from pgmodels.priors.base import padded_size
from tests.covering import some
from tests.processes import python
from tests.referees import rbf
from tests.registry import CASES
from tests.statistical.reference import effective_sizes, z_scores

X3 = np.array([[0.0, 0.3], [0.9, -0.4], [1.7, 0.8]])


def test_log_density_of_the_numpyro_model_is_the_product_written_out():
    priors = {"variance": dist.LogNormal(0.2, 0.7), "dispersion": dist.Gamma(3.0, 0.5), "mean": dist.Normal(0.4, 2.0)}
    gp = pgm.GP(pgm.RBF(priors["variance"], 1.3), mean=priors["mean"])
    model = pgm.Model(pgm.NegativeBinomial(priors["dispersion"]), gp)
    y = np.array([0.0, 4.0, 1.0])
    values = {"variance": 1.9, "mean": -0.6, "dispersion": 2.7}
    v = np.array([[0.4], [-1.1], [0.7]])
    K = rbf(X3, 1.9, 1.3) + 1.9e-12 * np.eye(3)
    f = -0.6 + np.linalg.cholesky(K) @ v
    r, p = 2.7, expit(f[:, 0])
    likelihood = gammaln(y + r) - gammaln(r) - gammaln(y + 1) + y * np.log(p) + r * np.log1p(-p)
    prior = stats.lognorm(0.7, scale=np.exp(0.2)).logpdf(1.9) + stats.norm(0.4, 2.0).logpdf(-0.6)
    prior += stats.gamma(3.0, scale=2.0).logpdf(2.7) + stats.norm.logpdf(v).sum()
    with jax.enable_x64(True):
        program = pgm.to_numpyro(model, X3, y)
        log_joint, trace = log_density(program, (), {}, values | {"whitened_0": jnp.asarray(v)})
        pointwise = trace["y"]["fn"].log_prob(trace["y"]["value"])
    np.testing.assert_allclose(float(log_joint), likelihood.sum() + prior, rtol=1e-12)
    np.testing.assert_allclose(trace["f"]["value"], f, rtol=1e-12)
    np.testing.assert_allclose(pointwise, likelihood, rtol=1e-12)


def test_two_gps_have_names_of_their_own():
    gps = [pgm.GP(pgm.RBF(dist.LogNormal(), 1.0)), pgm.GP(pgm.Matern32(1.0, dist.LogNormal()), mean=-1.0)]
    model = pgm.Model(pgm.HeteroscedasticGaussian(3.0), gps)
    with jax.enable_x64(True):
        program = pgm.to_numpyro(model, X3, np.array([0.1, -0.4, 1.2]))
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
            program()
    sampled = {name for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
    assert sampled == {"f[0].variance", "f[1].lengthscale", "whitened_0", "whitened_1"}
    assert trace["f"]["value"].shape == (3, 2)


def test_single_precision_is_refused():
    program = pgm.to_numpyro(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X3, np.array([0.0, 1.0, 1.0]))
    with numpyro.handlers.seed(rng_seed=0), pytest.raises(ValueError, match=r"numpyro\.enable_x64"):
        program()


def test_a_prior_on_a_parameter_of_an_unnormalised_formula_is_refused():
    @pgm.likelihood(support=pgm.Counts())
    def bare(y, f, dispersion=pgm.Parameter(2.0, positive=True)):
        return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** dispersion

    model = pgm.Model(bare(dispersion=dist.LogNormal()), pgm.GP(pgm.RBF(1.0, 1.0)))
    with pytest.raises(ValueError, match=r"dispersion has a prior, but the formula of bare"):
        pgm.nuts(model, X3, np.array([0.0, 1.0, 3.0]))


@pytest.mark.parametrize(
    ("options", "words"), [({"target_accept": 1.0}, "target_accept"), ({"num_samples": 0}, "num_samples")]
)
def test_bad_options_are_refused(options, words):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    with pytest.raises(ValueError, match=words):
        pgm.nuts(model, X3, np.array([0.0, 1.0, 1.0]), **options)


@cache
def binary():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 2))
    y = (rng.random(25) < expit(2.0 * X[:, 0] + 0.8)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), mean=0.8))
    return model, X, y, pgm.nuts(model, X, y, num_samples=800, num_warmup=200, seed=3)


@pytest.mark.slow
def test_gibbs_and_nuts_agree_and_either_may_be_the_reference():
    model, X, y, referee = binary()
    draws = pgm.gibbs(model, X, y, num_samples=1500, num_warmup=100, seed=1)
    by_label = pgm.verdicts(pgm.compare(nuts=referee, gibbs=draws, reference="nuts"))
    assert {label: verdict.level for label, verdict in by_label.items()} == {"nuts": "trust", "gibbs": "trust"}
    assert "agrees with nuts" in str(by_label["gibbs"])
    other = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), mean=0.3))
    draws = pgm.gibbs(other, X, y, num_samples=500, num_warmup=100, seed=1)
    table = pgm.compare(nuts=referee, gibbs=draws, reference="nuts")
    assert any("have different hyperparameters" in note for note in table.notes)
    assert pgm.verdicts(table)["gibbs"].level != "trust"


@pytest.mark.slow
def test_draws_of_nuts_do_what_draws_do():
    model, X, y, draws = binary()
    assert (draws.method, draws.num_chains, draws.num_samples) == ("nuts", 4, 800)
    root = np.linalg.cholesky(rbf(X, 2.0, 0.9))
    np.testing.assert_allclose(draws.latents, 0.8 + np.einsum("ij,csjl->csil", root, draws.whitened[0]), atol=1e-9)
    p = expit(draws.latents[..., 0])
    np.testing.assert_allclose(draws.log_likelihood_trace, np.log(np.where(y == 1, p, 1 - p)).sum(axis=-1), rtol=1e-9)
    tree = draws.to_arviz()
    assert {"diverging", "n_steps", "acceptance_rate", "step_size", "lp"} <= set(tree["sample_stats"].data_vars)
    again = pgm.nuts(model, X, y, num_samples=20, num_warmup=30, seed=5)
    same = pgm.nuts(model, X, y, num_samples=20, num_warmup=30, seed=5)
    np.testing.assert_array_equal(again.latents, same.latents)


@cache
def regression(num_samples=1000, num_warmup=400, num_chains=4):
    """A Gaussian likelihood with an unknown lengthscale and noise: everything but them integrates in closed form."""
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(-2.0, 2.0, 18))[:, None]
    y = 0.6 + np.sin(2.5 * X[:, 0]) + 0.3 * rng.normal(size=18)
    priors = {"lengthscale": dist.LogNormal(-0.3, 0.6), "scale": dist.Gamma(4.0, 8.0)}
    model = pgm.Model(pgm.Gaussian(priors["scale"]), pgm.GP(pgm.RBF(1.2, priors["lengthscale"]), mean=pgm.Fixed(0.4)))
    sizes = {"num_samples": num_samples, "num_warmup": num_warmup, "num_chains": num_chains}
    return X, y, pgm.nuts(model, X, y, seed=8, **sizes)


def exact_regression(X, y, X_new):
    """Grid weights over (lengthscale, scale) and the exact predictive means and variances of f at each grid point."""
    logs, moments, points = [], [], []
    for lengthscale in np.exp(np.linspace(-2.2, 1.2, 45)):
        for scale in np.exp(np.linspace(-2.3, 0.6, 45)):
            K = rbf(X, 1.2, lengthscale)
            S = K + scale**2 * np.eye(len(X))
            # Densities of the logarithms, in which the grid is uniform.
            prior = stats.norm(-0.3, 0.6).logpdf(np.log(lengthscale)) + stats.gamma(4.0, scale=1 / 8).logpdf(scale)
            logs.append(stats.multivariate_normal(np.full(len(X), 0.4), S).logpdf(y) + prior + np.log(scale))
            cross = rbf(X, 1.2, lengthscale, X_new)
            solved = np.linalg.solve(S, cross)
            moments.append((0.4 + solved.T @ (y - 0.4), 1.2 - np.sum(cross * solved, axis=0)))
            points.append((lengthscale, scale))
    weights = np.exp(np.array(logs) - logsumexp(logs))
    return weights, np.array(points), np.array([m for m, _ in moments]), np.array([v for _, v in moments])


@pytest.mark.slow
def test_sampled_hyperparameters_and_predictions_against_a_grid():
    X, y, draws = regression()
    X_new = np.array([[-1.4], [0.2], [2.6]])
    weights, points, means, variances = exact_regression(X, y, X_new)
    assert set(draws.hyperparameters) == {"lengthscale", "scale"}
    for column, name in enumerate(("lengthscale", "scale")):
        values = draws.hyperparameters[name]
        exact = weights @ points[:, column]
        deviation = np.sqrt(weights @ (points[:, column] - exact) ** 2)
        assert abs(values.mean() - exact) < 4.0 * deviation / np.sqrt(effective_sizes(values))
    exact_mean = weights @ means
    exact_variance = weights @ (variances + (means - exact_mean) ** 2)
    mean, variance = draws.predict_latent(X_new)
    # Some 500 effective draws: standard errors of 4.5 % of a deviation and of 6 to 10 % of a variance.
    assert np.all(np.abs(mean[:, 0] - exact_mean) < 0.2 * np.sqrt(exact_variance))
    np.testing.assert_allclose(variance[:, 0], exact_variance, rtol=0.35)
    # The noise of a new observation is that of each draw, and not of one value.
    predictive = draws.predict(X_new)
    noise = (draws.hyperparameters["scale"] ** 2).mean()
    np.testing.assert_allclose(predictive.variance, variance[:, 0] + noise, rtol=0.1)


@pytest.mark.slow
def test_predictions_use_the_hyperparameters_of_each_draw():
    X, _, draws = regression()
    X_new = np.array([[0.3], [2.1]])
    lengthscales = draws.hyperparameters["lengthscale"].ravel()
    whitened = draws.whitened[0].reshape(-1, 18)
    centres, residuals = [], []
    for lengthscale, v in zip(lengthscales, whitened, strict=True):
        root = np.linalg.cholesky(rbf(X, 1.2, lengthscale) + 1.2e-12 * np.eye(18))
        A = np.linalg.solve(root, rbf(X, 1.2, lengthscale, X_new))
        centres.append(0.4 + A.T @ v)
        residuals.append(1.2 - np.sum(A**2, axis=0))
    mean, variance = draws.predict_latent(X_new)
    np.testing.assert_allclose(mean[:, 0], np.mean(centres, axis=0), rtol=1e-6)
    np.testing.assert_allclose(variance[:, 0], np.var(centres, axis=0) + np.mean(residuals, axis=0), rtol=1e-5)


@pytest.mark.slow
def test_export_with_sampled_parameters():
    _, y, draws = regression(num_samples=200, num_warmup=100, num_chains=2)
    tree = draws.to_arviz()
    scale = draws.hyperparameters["scale"]
    np.testing.assert_array_equal(tree["posterior"]["scale"], scale)
    pointwise = stats.norm(draws.latents[..., 0], scale[..., None]).logpdf(y)
    np.testing.assert_allclose(tree["log_likelihood"]["y"], pointwise, rtol=1e-8)
    lengthscale = draws.hyperparameters["lengthscale"]
    prior = stats.lognorm(0.6, scale=np.exp(-0.3)).logpdf(lengthscale) + stats.gamma(4.0, scale=1 / 8).logpdf(scale)
    expected = pointwise.sum(axis=-1) - 0.5 * (draws.whitened[0] ** 2).sum(axis=(-2, -1)) + prior
    np.testing.assert_allclose(tree["sample_stats"]["lp"], expected, rtol=1e-8)
    # New observations have the noise of their own draw: standardised by it they have unit variance (se 1.7 %).
    drawn = tree["posterior_predictive"]["y"]
    kept = drawn["draw"].to_numpy()
    z = (drawn.to_numpy() - draws.latents[..., 0][:, kept]) / scale[:, kept, None]
    assert abs(z.var() - 1.0) < 0.05


def test_divergences_are_reported():
    with pytest.warns(pgm.DivergenceWarning, match="3 of 400 trajectories diverged"):
        warn_divergent(np.arange(400).reshape(4, 100) < 3, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_named_likelihood_agrees_through_compare(case):
    X, y = case.data(30, seed=5)
    model = case.model(variance=2.0, mean=0.3)
    draws = pgm.gibbs(model, X, y, num_samples=8000, num_warmup=500, seed=1)
    referee = pgm.nuts(model, X, y, num_samples=2500, num_warmup=500, seed=2)
    verdict = pgm.verdicts(pgm.compare(nuts=referee, gibbs=draws))["gibbs"]
    assert verdict.level == "trust", str(verdict)


YEARS = np.linspace(1990.0, 2025.0, 30)
LINE = np.column_stack([np.ones(30), YEARS])
TREND = 3.0 + 0.2 * (YEARS - 2007.0) + 1.45 * np.random.default_rng(1).standard_normal(30)


def trend(sd):
    """A line over years with known noise, whose slope has the posterior of least squares at a wide prior."""
    return pgm.Model(pgm.Gaussian(scale=1.45), pgm.GP(pgm.Linear(pgm.Fixed(sd**2)), mean=pgm.Fixed(0.0)))


@pytest.mark.parametrize("sd", [1e3, 1e8])
def test_the_sampler_moves_in_coordinates_that_are_standard_normal_nearly(sd):
    """Given the precision of the fitted Gaussian, 0.9 of that of the data, eigenvalues are between 1 and 1 / 0.9."""
    with jax.enable_x64(True):
        model, data = trend(sd).prepare(LINE, TREND)
        program = PreconditionedProgram(model.resolve(data.X), data)

        def loss(u):
            return -log_density(program, (), {}, {"about_gaussian": u})[0]

        assert np.all(np.abs(jax.grad(loss)(jnp.zeros(2))) < 1e-3)
        values = np.linalg.eigvalsh(jax.hessian(loss)(jnp.zeros(2)))
    assert 0.999 < values[0] <= values[1] < 1.0 / 0.9 + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("sd", [1e3, 1e8])
def test_a_line_over_years_mixes_at_a_wide_prior(sd):
    draws = pgm.nuts(trend(sd), LINE, TREND, num_samples=500, num_warmup=200, seed=2)
    slope = draws.predict_latent([[0.0, 1.0]])
    deviation = 1.45 / np.sqrt(np.sum((YEARS - YEARS.mean()) ** 2))
    expected = np.linalg.lstsq(LINE, TREND, rcond=None)[0][1]
    # At 1e3 the prior of the intercept moves the slope by 0.02 deviations.
    np.testing.assert_allclose(slope[0][0, 0], expected, atol=0.15 * deviation)
    np.testing.assert_allclose(np.sqrt(slope[1][0, 0]), deviation, rtol=0.1)


# The Gibbs engine inside NumPyro's MCMC.


def run(kernel, method, num_samples=400, thinning=1, seed=3):
    with jax.enable_x64(True):
        options = {"chain_method": method, "progress_bar": False, "thinning": thinning}
        sampler = MCMC(kernel, num_warmup=20, num_samples=num_samples, num_chains=3, **options)
        sampler.run(jax.random.key(seed))
        return {name: np.asarray(value) for name, value in sampler.get_samples(group_by_chain=True).items()}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vectorized", "sequential"])
def test_draws_are_those_of_gibbs(method):
    case = CASES["bernoulli"]
    X, y = case.data(15, seed=3)
    kernel = pgm.GibbsKernel(case.model(), X, y)
    samples = run(kernel, method)["f"]
    assert samples.shape == (3, 400, 15, 1)
    draws = pgm.gibbs(case.model(), X, y, num_samples=2000, seed=7)
    assert np.max(np.abs(z_scores(samples, draws.latents))) < 4.0
    assert len(np.unique(samples[:, 0, 0, 0])) == 3
    assert np.array_equal(run(kernel, method, num_samples=20, thinning=4)["f"], samples[:, 3:20:4])


@pytest.mark.slow
def test_sampled_hyperparameters_have_their_names_and_law():
    X = np.linspace(-1.5, 1.5, 12)[:, None]
    y = np.sin(2.0 * X[:, 0]) + 0.2
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(-1.0, 0.5)), pgm.GP(pgm.RBF(1.2, dist.LogNormal(0.0, 0.5))))
    samples = run(pgm.GibbsKernel(model, X, y), "vectorized")
    assert set(samples) == {"f", "lengthscale", "scale"}
    draws = pgm.gibbs(model, X, y, num_samples=2000, seed=7)
    for name, values in draws.hyperparameters.items():
        assert np.max(np.abs(z_scores(np.log(samples[name])[..., None, None], np.log(values)[..., None, None]))) < 4.0


# Rows are filled up to more than these.
ROWS = 20


@pytest.fixture(scope="module")
def padded():
    """A kernel, and draws by gibbs, whose means at the first and the last data are far apart."""
    assert padded_size(ROWS) > ROWS
    X = np.linspace(-1.5, 1.5, ROWS)[:, None]
    y = np.where(X[:, 0] > 0.3, 1.0, 0.0)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    draws = pgm.gibbs(model, X, y, num_samples=500, num_warmup=50, num_chains=2, seed=7)
    return pgm.GibbsKernel(model, X, y), draws


def test_misuse_is_refused(padded):
    sampler = sampler_of(padded[0], 1, "sequential")
    with pytest.raises(ValueError, match="64-bit"):
        sampler.run(jax.random.key(0))
    with jax.enable_x64(True), pytest.raises(ValueError, match="needs arrays X and y"):
        sampler.run(jax.random.key(0), np.zeros((ROWS, 1)))


def sampler_of(kernel, num_chains, method):
    options = {"num_warmup": 0, "num_samples": 400, "progress_bar": False}
    return MCMC(kernel, num_chains=num_chains, chain_method=method, **options)


# On one device chains that are to be parallel follow each other.
@pytest.mark.parametrize(
    ("num_chains", "method"),
    some([(1, "sequential"), (2, "parallel"), (2, "vectorized"), (2, "sequential")], (2, "vectorized")),
)
def test_chains_of_every_method_have_the_rows_and_the_means_of_gibbs_and_go_on(padded, num_chains, method):
    kernel, draws = padded
    with jax.enable_x64(True):
        warns = (num_chains, method) == (2, "parallel") and jax.local_device_count() == 1
        with pytest.warns(UserWarning, match="not enough devices") if warns else nullcontext():
            sampler = sampler_of(kernel, num_chains, method)

        def run(seed, first):
            sampler.run(jax.random.key(seed), extra_fields=("number",))
            numbers = sampler.get_extra_fields(group_by_chain=True)["number"]
            assert np.array_equal(numbers, np.tile(np.arange(first, first + 400), (num_chains, 1)))
            samples = np.asarray(sampler.get_samples(group_by_chain=True)["f"])
            assert samples.shape == (num_chains, 400, ROWS, 1)
            assert np.array_equal(sampler.get_samples()["f"], samples.reshape(-1, ROWS, 1))
            assert len(np.unique(samples[:, 0, 0, 0])) == num_chains
            return samples

        samples = run(3, 1)
        sampler.post_warmup_state = sampler.last_state
        following = run(4, 401)
        sampler.post_warmup_state = None
        assert np.array_equal(run(3, 1), samples)
    assert not np.any(samples == following)
    # Each mean is over some 200 independent draws at least.
    for each in (samples, following):
        mean, deviation = each.mean(axis=(0, 1)), np.sqrt(draws.variance)
        assert np.all(np.abs(mean - draws.mean) < 0.4 * deviation)
    assert np.ptp(draws.mean) > 2.0 * deviation.max()


TWO_DEVICES = """
import numpyro
numpyro.set_host_device_count(2)
numpyro.enable_x64()
import jax, numpy as np, pgmodels as pgm
from numpyro.infer import MCMC
from tests.registry import CASES
X, y = CASES["bernoulli"].data(20, seed=3)
kernel, found = pgm.GibbsKernel(CASES["bernoulli"].model(), X, y), []
for method in ("parallel", "sequential"):
    sampler = MCMC(kernel, num_warmup=3, num_samples=5, num_chains=2, chain_method=method, progress_bar=False)
    for seed in (1, 2):
        sampler.run(jax.random.key(seed), extra_fields=("number",))
        numbers = sampler.get_extra_fields(group_by_chain=True)["number"]
        assert np.all(numbers[:, -1] == {1: 8, 2: 13}[seed])
        sampler.post_warmup_state = sampler.last_state
        found.append(np.asarray(sampler.get_samples(group_by_chain=True)["f"]))
assert found[0].shape == (2, 5, 20, 1)
np.testing.assert_allclose(found[:2], found[2:], rtol=1e-9, atol=1e-9)
"""


@pytest.mark.slow
def test_chains_on_two_devices_are_those_that_follow_each_other():
    python("-c", TWO_DEVICES)
