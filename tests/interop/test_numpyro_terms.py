"""GPs as terms of NumPyro programs: densities against dense Gaussians, sampled X, names, data of a call, guides."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import scope, seed, trace
from numpyro.infer import MCMC, SVI, Trace_ELBO
from numpyro.infer.util import log_density
from scipy import stats

import pgmodels as pgm

X = np.array([[-1.2, 0.3], [-0.4, 1.1], [0.1, -0.9], [0.9, 0.2], [1.5, -0.3], [2.2, 0.8]])
Z = X[[0, 2, 5]] + 0.1
SEEN = np.array([0.4, -0.3, 1.2, 0.8, -0.5, 0.1])
VARIANCE, LENGTHSCALES, MEAN, NOISE = 1.7, np.array([0.7, 1.6]), -0.6, 0.5
DOMAIN = [(-4.0, 5.0), (-3.0, 3.5)]
FORMS = {
    "default": {},
    "dense": {"form": pgm.Dense()},
    "inducing": {"form": pgm.Inducing(Z)},
    "hilbert": {"form": pgm.Hilbert((5, 4), domain=DOMAIN)},
    "markov": {"form": pgm.Markov()},
}


def model_of(form, *, fixed=False, likelihood=None):
    """A GP of variance and mean that are sampled unless fixed."""
    variance, mean = (VARIANCE, MEAN) if fixed else (dist.LogNormal(0.2, 0.7), dist.Normal(0.4, 2.0))
    kernel = pgm.RBF(variance, LENGTHSCALES)
    if form == "markov":
        kernel = pgm.On(pgm.Matern32(variance, LENGTHSCALES[0]), [0])
    return pgm.Model(likelihood or pgm.Bernoulli(), pgm.GP(kernel, mean=mean, **FORMS[form]))


def rbf(A, B):
    return VARIANCE * np.exp(-0.5 * np.sum(((A[:, None] - B) / LENGTHSCALES) ** 2, axis=-1))


def covariance(form, A):
    """The prior covariance of f at the rows of A."""
    if form == "markov":
        r = np.sqrt(3.0) * np.abs(A[:, :1] - A[:, 0]) / LENGTHSCALES[0]
        return VARIANCE * (1.0 + r) * np.exp(-r)
    if form == "inducing":
        Q = rbf(A, Z) @ np.linalg.solve(rbf(Z, Z), rbf(Z, A))
        return Q + np.diag(VARIANCE - np.diag(Q))
    if form == "hilbert":
        K = 0.0
        for j in range(1, 6):
            for k in range(1, 5):
                (a, b), (c, d) = DOMAIN
                phi = np.sin(np.pi * j * (A[:, 0] - a) / (b - a)) * np.sin(np.pi * k * (A[:, 1] - c) / (d - c))
                w = np.array([np.pi * j / (b - a), np.pi * k / (d - c)])
                density = (
                    VARIANCE * 2.0 * np.pi * np.prod(LENGTHSCALES) * np.exp(-0.5 * np.sum((w * LENGTHSCALES) ** 2))
                )
                K = K + density * 4.0 / ((b - a) * (d - c)) * np.outer(phi, phi)
        return K
    return rbf(A, A)


def joint(process, values, **data):
    """A program with noisy sight of f, as log density and latents of the whitened coordinates."""

    def program():
        numpyro.sample("seen", dist.Normal(process(**data)[:, 0], NOISE), obs=SEEN)

    def density(v):
        log_p, sites = log_density(program, (), {}, values | {"whitened_0": v})
        return log_p, sites["f"]["value"][:, 0]

    return density


@pytest.mark.parametrize("at_call", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fixed", [True, False])
def test_density_and_posterior_are_those_of_a_dense_gaussian(form, fixed, at_call):
    """log p(v, y) = log p(y) + log p(v | y), whose terms are Gaussian, at any v; f has the closed-form posterior."""
    values = {} if fixed else {"variance": VARIANCE, "mean": MEAN}
    prior = 0.0 if fixed else stats.lognorm(0.7, scale=np.exp(0.2)).logpdf(VARIANCE) + stats.norm(0.4, 2.0).logpdf(MEAN)
    with jax.enable_x64(True):
        process = pgm.to_numpyro(model_of(form, fixed=fixed), X[::-1] if at_call else X)
        density = joint(process, values, **({"X": X} if at_call else {}))
        shape = trace(seed(process, 0)).get_trace()["whitened_0"]["value"].shape
        v = np.random.default_rng(3).normal(size=shape)
        log_p, B = float(density(v)[0]), np.asarray(jax.jacobian(lambda v: density(v)[1])(v))[..., 0]
        slope = np.asarray(jax.grad(lambda v: density(v)[0])(v))[:, 0]
    posterior = np.linalg.inv(np.eye(len(v)) + B.T @ B / NOISE**2)
    centre = v[:, 0] + posterior @ slope
    K = covariance(form, X)
    evidence = stats.multivariate_normal(np.full(6, MEAN), K + NOISE**2 * np.eye(6)).logpdf(SEEN)
    expected = evidence + prior + stats.multivariate_normal(centre, posterior).logpdf(v[:, 0])
    np.testing.assert_allclose(log_p, expected, rtol=1e-7)
    gain = K @ np.linalg.inv(K + NOISE**2 * np.eye(6))
    np.testing.assert_allclose(MEAN + B @ centre, MEAN + gain @ (SEEN - MEAN), atol=1e-6)
    np.testing.assert_allclose(B @ posterior @ B.T, K - gain @ K, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_in_sampled_inputs_are_finite_differences(form):
    with jax.enable_x64(True):
        process, (rng, step) = pgm.to_numpyro(model_of(form), X), (np.random.default_rng(4), 1e-5)
        v = rng.normal(size=trace(seed(process, 0)).get_trace()["whitened_0"]["value"].shape)

        @jax.jit
        def density(x):
            return joint(process, {"variance": VARIANCE, "mean": MEAN}, X=x)(v)[0]

        slopes = np.asarray(jax.grad(density)(X))
        moved = [X + step * sign * direction for direction in np.eye(12).reshape(12, 6, 2) for sign in (1.0, -1.0)]
        ups_and_downs = np.array([density(x) for x in moved]).reshape(6, 2, 2)
    np.testing.assert_allclose(slopes, (ups_and_downs[..., 0] - ups_and_downs[..., 1]) / (2.0 * step), atol=1e-4)
    assert np.max(np.abs(slopes[:, 0])) > 0.3


def test_observations_are_those_of_the_call_and_without_them_the_likelihood_is_not_there():
    model, y = model_of("default", likelihood=pgm.Gaussian(dist.LogNormal(0.0, 1.0))), SEEN
    values = {"variance": VARIANCE, "mean": MEAN, "whitened_0": np.ones((6, 1))}
    with jax.enable_x64(True):
        silent, informed, other = (pgm.to_numpyro(model, X, *rows) for rows in ((), (y,), (y[::-1],)))
        of_prior, sites = log_density(silent, (), {}, values)
        assert set(sites) == {"variance", "mean", "whitened_0", "f"}
        found = [log_density(informed, (), {}, values | {"scale": 0.4})[0]]
        found += [log_density(process, (X, y), {}, values | {"scale": 0.4})[0] for process in (silent, other)]
        found += [jax.jit(lambda y: log_density(silent, (), {"y": y}, values | {"scale": 0.4})[0])(y)]
    likelihood = stats.norm(np.asarray(sites["f"]["value"])[:, 0], 0.4).logpdf(y).sum() + stats.lognorm(1.0).logpdf(0.4)
    np.testing.assert_allclose(found, float(of_prior) + likelihood, rtol=1e-9)


def test_two_gps_of_one_program_have_sites_of_their_own():
    with jax.enable_x64(True):
        model = model_of("default")
        named, scoped = pgm.to_numpyro(model, X, name="one_"), scope(pgm.to_numpyro(model, X), prefix="two")
        sites = trace(seed(lambda: named() + scoped(), 0)).get_trace()
        assert set(sites) == {
            f"{gp}{site}" for gp in ("one_", "two/") for site in ("variance", "mean", "whitened_0", "f")
        }
        assert not np.allclose(sites["one_f"]["value"], sites["two/f"]["value"])
        with pytest.raises(AssertionError, match="unique names"):
            trace(seed(lambda: pgm.to_numpyro(model, X)() + pgm.to_numpyro(model, X)(), 0)).get_trace()


def test_a_group_of_levels_and_repeated_rows_share_latents():
    """The coordinates of fixed kernels are those that have any influence, those of rows and of levels once each."""
    twice = np.repeat(X[:3], 2, axis=0)
    levels = pgm.GP(pgm.On(pgm.White(0.5), [1]) * pgm.On(pgm.Constant(1.0), [0]))
    with jax.enable_x64(True):
        for gp in (pgm.GP(pgm.RBF(1.0, LENGTHSCALES)), levels):
            sites = trace(seed(pgm.to_numpyro(pgm.Model(pgm.Bernoulli(), gp), twice), 0)).get_trace()
            f = np.asarray(sites["f"]["value"])[:, 0]
            assert sites["whitened_0"]["value"].shape == (3, 1)
            assert np.array_equal(f[::2], f[1::2])
            assert len(np.unique(f)) == 3


UNFIT = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), form=pgm.Markov()))
WRONG = {
    "X": (lambda process: pgm.to_numpyro(model_of("dense"), X[:, 0]), r"X must have shape \(n, d\).*got shape.*Use"),
    "name": (lambda process: pgm.to_numpyro(model_of("dense"), X, name=3), r"name must be a str.*got 3\. Use name="),
    "columns": (lambda process: process(X=X[:, :1]), r"X must have the 2 column\(s\).*got shape \(6, 1\)"),
    "not finite": (lambda process: process(X=X * np.nan), r"X must be finite; got nan in row 0"),
    "traced X": (lambda process: jax.jit(lambda x: process(X=x))(X[:, 0]), r"X must have shape \(n, d\).*\(6,\)\. Use"),
    "y": (lambda process: process(y=2.0 * np.ones(6)), r"y must hold the labels 0 and 1; got"),
    "length": (lambda process: process(X=X[:4], y=np.ones(6)), r"same length; got 4 rows of X and 6 of y"),
    "traced y": (lambda process: jax.jit(lambda y: process(y=y))(np.ones(3)), r"got 6 rows of X and 3 of y"),
    "form": (lambda process: pgm.to_numpyro(UNFIT, X), r"Markov\(\) is for kernels of one column.*choose one"),
    "bound": (lambda process: pgm.numpyro_bound(model_of("dense"))(), r"needs arrays X and y; got X=None.*Give"),
    "kernel": (lambda process: gibbs_of()(jax.random.key(0)), r"needs arrays X and y; got X=None.*Give"),
    "start": (lambda process: gibbs_of(X, SEEN > 0)(jax.random.key(0), init_params=X), r"init_params must be None"),
    "traced": (lambda process: gibbs_of(jit_model_args=True)(jax.random.key(0), X, SEEN > 0), r"X and y of.*traced"),
}


def gibbs_of(*data, **options):
    kernel = pgm.GibbsKernel(model_of("default", fixed=True), *data)
    return MCMC(kernel, num_warmup=5, num_samples=20, progress_bar=False, **options).run


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_are_refused_by_name(name):
    call, message = WRONG[name]
    process = seed(pgm.to_numpyro(model_of("dense"), X), 0)
    with jax.enable_x64(True), pytest.raises(ValueError, match=message):
        call(process)


def test_the_gibbs_kernel_takes_the_data_of_a_run():
    y, model = (SEEN > 0.0).astype(float), model_of("default", fixed=True)
    with jax.enable_x64(True):
        samplers = [
            MCMC(kernel, num_warmup=5, num_samples=200, progress_bar=False)
            for kernel in (pgm.GibbsKernel(model, X, y), pgm.GibbsKernel(model), pgm.GibbsKernel(model, X, 1.0 - y))
        ]
        runs = [
            (samplers[0], ()),
            (samplers[1], (X, 1.0 - y)),
            (samplers[1], (X, y)),
            (samplers[2], (X, y)),
            (samplers[2], ()),
        ]
        found = []
        for sampler, data in runs:
            sampler.run(jax.random.key(2), *data)
            found.append(np.asarray(sampler.get_samples()["f"]))
    given, opposite, again, replaced, own = found
    assert np.array_equal(given, again)
    assert np.array_equal(given, replaced)
    assert np.array_equal(opposite, own)
    assert np.mean((given - opposite).mean(axis=0) * np.where(y > 0, 1.0, -1.0)[:, None]) > 0.3


def test_the_bound_takes_the_data_of_a_call_and_has_gradients_in_them():
    y, model = (SEEN > 0.0).astype(float), model_of("default")
    values = {"variance": VARIANCE, "mean": MEAN}
    with jax.enable_x64(True):
        expected = log_density(pgm.numpyro_bound(model, X, y), (), {}, values)[0]
        bound = pgm.numpyro_bound(model, X[::-1] + 0.5, 1.0 - y)
        found = [log_density(one, (X, y), {}, values)[0] for one in (bound, pgm.numpyro_bound(model))]

        @jax.jit
        def at(x, y):
            return log_density(bound, (x, y), {}, values)[0]

        np.testing.assert_allclose([*found, at(X, y)], expected, rtol=1e-9)
        direction = np.random.default_rng(5).normal(size=X.shape)
        slope = float(np.sum(np.asarray(jax.grad(at)(X, y)) * direction))
        finite = (at(X + 1e-4 * direction, y) - at(X - 1e-4 * direction, y)) / 2e-4
        np.testing.assert_allclose(slope, finite, rtol=1e-4)
        assert abs(slope) > 0.01


def test_a_guide_is_trained_to_the_posterior_of_other_data():
    model = pgm.Model(pgm.Gaussian(NOISE), pgm.GP(pgm.RBF(VARIANCE, LENGTHSCALES), mean=MEAN))
    start, goal = pgm.cavi(model, X, SEEN), pgm.cavi(model, X, SEEN[::-1])
    with jax.enable_x64(True):
        guide, target = pgm.numpyro_guide(start), pgm.to_numpyro(model, X, SEEN[::-1])
        svi = SVI(target, guide, numpyro.optim.Adam(0.02), Trace_ELBO(num_particles=20))
        trained = svi.run(jax.random.key(0), 1000, progress_bar=False).params
        losses = [
            float(Trace_ELBO(num_particles=4000).loss(jax.random.key(1), params, target, guide))
            for params in ({}, trained)
        ]
    assert losses[0] > -goal.elbo + 0.5
    np.testing.assert_allclose(losses[1], -goal.elbo, atol=0.1)
