"""Exports to other samplers: densities against SciPy, the guide's ELBO, the bound, and Gibbs steps."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive, Trace_ELBO
from numpyro.infer.util import log_density as numpyro_log_density
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from tests.statistical.reference import z_scores

X = np.array([-1.2, -0.4, 0.1, 0.9, 1.5, 2.2, 3.0])[:, None]
Y = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.3, 0.5), 0.8), mean=dist.Normal(0.2, 1.5)))


def kernel(variance, lengthscale=0.8):
    return variance * np.exp(-0.5 * (X - X.T) ** 2 / lengthscale**2)


def test_the_log_density_is_that_of_scipy_and_has_a_gradient():
    density = pgm.log_density(MODEL, X, Y)
    assert set(density.start) == {"variance", "mean", "whitened_0"}
    rng = np.random.default_rng(0)
    position = {name: value + rng.normal(size=np.shape(value)) for name, value in density.start.items()}
    with jax.enable_x64(True):
        value = float(jax.jit(density)(position))
        values = {name: np.asarray(part) for name, part in density.constrain(position).items()}
        slope = float(jax.grad(density)(position)["variance"])
        moved = [float(density(position | {"variance": position["variance"] + step})) for step in (1e-5, -1e-5)]
    np.testing.assert_allclose(values["variance"], np.exp(position["variance"]))
    # The density of the unconstrained variance is that of its logarithm.
    prior = stats.norm(0.3, 0.5).logpdf(position["variance"]) + stats.norm(0.2, 1.5).logpdf(position["mean"])
    f = values["f"][:, 0]
    expected = prior + stats.norm.logpdf(position["whitened_0"]).sum() + stats.bernoulli.logpmf(Y, expit(f)).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    # f has the prior of the kernel: |v|^2 is the quadratic form.
    centred = f - position["mean"]
    quadratic = centred @ np.linalg.solve(kernel(values["variance"]), centred)
    np.testing.assert_allclose(quadratic, (position["whitened_0"] ** 2).sum(), rtol=1e-6)
    np.testing.assert_allclose(slope, (moved[0] - moved[1]) / 2e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="64-bit arithmetic"):
        density(position)


def test_the_log_density_is_that_of_the_numpyro_model():
    model = pgm.Model(pgm.LogisticSoftmax(3), [pgm.GP(pgm.RBF(1.0, 0.8), size=2), pgm.GP(pgm.Matern32(0.7, 1.0))])
    y = np.array([0, 1, 2, 1, 0, 2, 2])
    density = pgm.log_density(model, X, y)
    position = {name: np.random.default_rng(1).normal(size=v.shape) for name, v in density.start.items()}
    with jax.enable_x64(True):
        expected, _ = numpyro_log_density(pgm.to_numpyro(model, X, y), (), {}, position)
        np.testing.assert_allclose(density(position), expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one latent", "coupled"])
def test_the_guide_has_the_elbo_and_moments_of_the_result(name):
    model, y = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.3, 0.8), mean=0.4)), Y
    if name == "coupled":
        model, y = pgm.Model(pgm.Softmax(3), pgm.GP(pgm.RBF(1.0, 0.8), size=3)), np.array([0, 1, 2, 1, 0, 2, 2])
    result = pgm.gaussian_vi(model, X, y)
    with jax.enable_x64(True):
        guide, target = pgm.numpyro_guide(result), pgm.to_numpyro(result.model.fixed(), X, y)
        losses = [
            float(Trace_ELBO(num_particles=500).loss(jax.random.key(seed), {}, target, guide)) for seed in range(8)
        ]
        draws = Predictive(lambda: numpyro.deterministic("drawn", guide()["f"]), num_samples=4000)(jax.random.key(0))
    error = np.std(losses, ddof=1) / np.sqrt(8)
    # The Monte-Carlo error of 4,000 draws; softmax has a small quadrature error of its own.
    assert abs(-np.mean(losses) - result.elbo) < 4 * error + 1e-3
    assert error < 0.05
    f = np.asarray(draws["drawn"])
    assert (np.abs(f.mean(axis=0) - result.mean) < 5 * np.sqrt(result.variance / 4000)).all()
    np.testing.assert_allclose(f.var(axis=0), result.variance, rtol=5 * np.sqrt(2 / 4000))
    with pytest.raises(ValueError, match=r"or \.uncorrected of a corrected result"):
        pgm.numpyro_guide(pgm.correct(result))


def test_the_bound_is_the_elbo_with_its_gradient():
    for objective, engine in (("augmented", pgm.cavi), ("expected", pgm.gaussian_vi)):
        with jax.enable_x64(True):
            program = pgm.numpyro_bound(MODEL, X, Y, objective=objective)

            def value(variance, mean, program=program):
                values = {"variance": variance, "mean": mean}
                return numpyro_log_density(program, (), {}, values)[0]

            got, slopes = jax.jit(jax.value_and_grad(value, (0, 1)))(1.7, -0.3)
            got, slopes = float(got), [float(slope) for slope in slopes]

        def elbo(variance, mean, engine=engine):
            fixed = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance, 0.8), mean=mean))
            prior = stats.lognorm(0.5, scale=np.exp(0.3)).logpdf(variance) + stats.norm(0.2, 1.5).logpdf(mean)
            return engine(fixed, X, Y, tolerance=1e-13).elbo + prior

        np.testing.assert_allclose(got, elbo(1.7, -0.3), rtol=1e-8)
        steps = [(1e-4, 0.0), (0.0, 1e-4)]
        finite = [(elbo(1.7 + a, -0.3 + b) - elbo(1.7 - a, -0.3 - b)) / 2e-4 for a, b in steps]
        np.testing.assert_allclose(slopes, finite, rtol=1e-3)
    with pytest.raises(ValueError, match="none has a prior"):
        pgm.numpyro_bound(MODEL.fixed(), X, Y)


@pytest.mark.parametrize("key", [jax.random.PRNGKey, pytest.param(jax.random.key, marks=pytest.mark.slow)])
def test_gibbs_steps_in_a_scan_are_draws_of_the_posterior(key):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.3, 0.8), mean=0.4))
    with jax.enable_x64(True):
        steps = pgm.gibbs_steps(model, X, Y)

        def chain(seed_key):
            def one(state, step_key):
                state, info = steps.step(step_key, state)
                return state, (state.z["f"], info.is_finite)

            first, *rest = jax.random.split(seed_key, 601)
            return jax.lax.scan(one, steps.init(first), jnp.stack(rest))[1]

        f, fine = jax.jit(chain)(key(3))
        f, fine = np.asarray(f)[None, 20:], np.asarray(fine)
    assert fine.all()
    draws = pgm.gibbs(model, X, Y, num_samples=1000, seed=7)
    assert np.max(np.abs(z_scores(np.stack([f[0, :290], f[0, 290:580]]), draws.latents))) < 4.5
