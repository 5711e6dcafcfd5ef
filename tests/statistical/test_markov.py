"""Geweke's test of Gibbs moves with GPs that are Markov processes, and simulation-based calibration of ``gibbs``.

Were they exact, 1 run in 100 would fail by chance (Bonferroni over all scores).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.inference.bound import ProblemFamily
from pgmodels.inference.moves import Chain, Target
from pgmodels.inference.slice_moves import LikelihoodSlice, MarginalSlice
from pgmodels.inference.surrogates import Ellipse
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import flatten
from tests.statistical.test_sbc import p_values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("double_precision")]

REPLICAS, SWEEPS = 20_000, 3
FALSE_ALARM = 0.01
# Unsorted, with a tie, two that are close, and a gap of many lengthscales.
X = np.array([0.4, 0.0, 0.4, 1.1, 1.1 + 1e-7, 40.0])[:, None]


def products(f, y):
    """Replicas of the functions whose expectations are compared."""
    pairs = [f[:, i] * f[:, j] for i in range(len(X)) for j in range(i + 1)]
    return np.column_stack([f, *pairs, f * y, f**3])


@pytest.mark.parametrize("kernel", [pgm.Matern32(2.0, 0.8), pgm.Matern52(1.0, 2.0) + pgm.Matern12(0.5, 0.3)])
def test_sweeps_keep_the_joint_law(kernel):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.3, form=pgm.Markov()))
    prior = model.prior(X).for_sampling()
    rng = np.random.default_rng(2)

    @jax.jit
    @jax.vmap
    def sweeps(key, f, y):
        for number in range(SWEEPS):
            auxiliaries, latents = jax.random.split(jax.random.fold_in(key, number))
            h, w = model.augmentation.draw_auxiliaries(auxiliaries, f, y, {}, 0)
            f = prior.condition(Sites(h, w)).draw(latents)[0]
        return f

    def forward(count):
        # The latents by the dense covariance, and the data given them, without the package.
        K = np.asarray(kernel(X, X))
        values, vectors = np.linalg.eigh(K)
        f = 0.3 + rng.normal(size=(count, len(X))) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return f, (rng.random(f.shape) < 1.0 / (1.0 + np.exp(-f))).astype(float)

    f, y = forward(REPLICAS)
    moved = np.asarray(
        sweeps(jax.random.split(jax.random.key(3), REPLICAS), jnp.asarray(f)[:, :, None], jnp.asarray(y))
    )
    # The latents of one chain move.
    assert np.corrcoef(f[:, 0], moved[:, 0, 0])[0, 1] < 0.9
    ours, theirs = products(moved[:, :, 0], y), products(*forward(4 * REPLICAS))
    z = (ours.mean(axis=0) - theirs.mean(axis=0)) / np.sqrt(
        ours.var(axis=0) / len(ours) + theirs.var(axis=0) / len(theirs)
    )
    assert np.max(np.abs(z)) < stats.norm.isf(0.5 * FALSE_ALARM / len(z))


VARIANCE, LENGTHSCALE, OTHER_VARIANCE = dist.LogNormal(0.3, 0.5), dist.LogNormal(-0.2, 0.6), dist.LogNormal(-0.5, 0.4)
MEAN, PRECISION = dist.Normal(0.4, 0.7), dist.Gamma(8.0, 2.0)


def heteroscedastic():
    """Two GPs of unequal kernels, and the laws of their hyperparameters by name."""
    mean = pgm.GP(pgm.Matern32(VARIANCE, LENGTHSCALE) + pgm.Constant(0.3), mean=MEAN, form=pgm.Markov())
    spread = pgm.GP(pgm.Matern12(OTHER_VARIANCE, 0.7), mean=-0.5, form=pgm.Markov())
    model = pgm.Model(pgm.HeteroscedasticGaussian(PRECISION), [mean, spread])
    names = {
        "f[0].Matern32.variance": VARIANCE,
        "f[0].lengthscale": LENGTHSCALE,
        "f[0].mean": MEAN,
        "f[1].variance": OTHER_VARIANCE,
        "precision": PRECISION,
    }
    assert set(with_priors(model).names) == set(names)
    return model, names


def joint_draws(rng, count):
    """Hyperparameters by name, latents and data, by dense covariances without the package."""
    variance, other = (np.exp(rng.normal(law.loc, law.scale, count)) for law in (VARIANCE, OTHER_VARIANCE))
    lengthscale, mean = np.exp(rng.normal(-0.2, 0.6, count)), rng.normal(0.4, 0.7, count)
    precision = rng.gamma(8.0, 0.5, count)
    distance = np.abs(X - X.T)
    scaled = np.sqrt(3.0) * distance / lengthscale[:, None, None]
    first = variance[:, None, None] * (1.0 + scaled) * np.exp(-scaled) + 0.3
    second = other[:, None, None] * np.exp(-distance / 0.7)
    columns = []
    for K, centre in ((first, mean[:, None]), (second, np.full((count, 1), -0.5))):
        values, vectors = np.linalg.eigh(K)
        noise = rng.normal(size=(count, len(X)))
        columns.append(centre + np.einsum("sij,sj->si", vectors * np.sqrt(np.maximum(values, 0.0))[:, None], noise))
    named = {
        "f[0].Matern32.variance": variance,
        "f[0].lengthscale": lengthscale,
        "f[0].mean": mean,
        "f[1].variance": other,
        "precision": precision,
    }
    return named, np.stack(columns, axis=-1)


def data_given(rng, f, precision):
    rate = precision[:, None] / (1.0 + np.exp(-f[:, :, 1]))
    return f[:, :, 0] + rng.normal(size=f.shape[:2]) / np.sqrt(rate)


@pytest.mark.parametrize("moves", [(MarginalSlice(),), (LikelihoodSlice(), MarginalSlice())])
def test_moves_of_hyperparameters_keep_the_joint_law(moves):
    model, laws = heteroscedastic()
    unknowns, rng, replicas = with_priors(model), np.random.default_rng(6), 4_000
    family = ProblemFamily(
        model.augmentation, unknowns, model.bare(), model.inputs(X), jnp.zeros(len(X)), None, needs_factors=True
    )
    d = len(unknowns.names)
    scale = np.tril(0.1 * rng.normal(size=(d, d)), -1) + 0.5 * np.eye(d)
    target = Target(family, fitted=Ellipse(jnp.asarray(unknowns.start() + 0.1), jnp.asarray(scale)))
    positive = np.array([not isinstance(laws[name], dist.Normal) for name in unknowns.names])

    @jax.jit
    @jax.vmap
    def moved(key, vector, f, y):
        here = eqx.tree_at(lambda t: t.family.y, target, y)
        # The states are not conditioned on: moves draw new ones.
        states = here.prior(vector).draw(key)[1]
        chain = Chain(key, vector, f, flatten(states))
        for move in moves:
            chain = move.step(here, None, chain, ()).chain
        return chain.unknowns, chain.latents

    def quantities(vector, f, y):
        pairs = [f[:, i, 0] * f[:, j, 0] for i in range(len(X)) for j in range(i + 1)]
        products = [vector[:, :1] * f[:, :, 0], (f[:, :, 0] - y) ** 2 * f[:, :, 1], f[:, :, 1] ** 2]
        return np.column_stack([vector, vector**2, f.reshape(len(f), -1), *pairs, *products, np.tanh(y)])

    values, f = joint_draws(rng, replicas)
    vector = np.column_stack([values[name] for name in unknowns.names])
    vector = np.where(positive, np.log(np.where(positive, vector, 1.0)), vector)
    precision = unknowns.names.index("precision")
    before, start = None, vector
    for step in range(3):
        y = data_given(rng, f, np.exp(vector[:, precision]))
        before = quantities(vector, f, y) if before is None else before
        keys = jax.random.split(jax.random.key(step), replicas)
        vector, f = map(np.asarray, moved(keys, jnp.asarray(vector), jnp.asarray(f), jnp.asarray(y)))
    change = quantities(vector, f, y) - before
    change = change[:, change.std(axis=0) > 0.0]
    z = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(replicas))
    moving = np.abs(vector - start).max(axis=0) > 0.1
    np.testing.assert_array_equal(moving, [len(moves) > 1 or name != "precision" for name in unknowns.names])
    assert np.max(np.abs(z)) < stats.norm.isf(0.5 * FALSE_ALARM / len(z))


@pytest.mark.filterwarnings("ignore::pgmodels.MixingWarning")
@pytest.mark.parametrize("planted", [False, True], ids=["exact", "planted"])
def test_ranks_of_the_truth_are_uniform(planted, monkeypatch):
    """See test_sbc.py; planted is a prior of lengthscales that is not the one they are drawn from."""
    model, laws = heteroscedastic()
    if planted:
        monkeypatch.setitem(globals(), "LENGTHSCALE", dist.LogNormal(0.2, 0.6))
        model, _ = heteroscedastic()
    rng, replicates, thin, num_samples = np.random.default_rng(11), 200, 5, 300
    values, f = joint_draws(rng, replicates)
    y = data_given(rng, f, values["precision"])

    def log_likelihood(f, precision, y):
        rate = precision / (1.0 + np.exp(-f[..., 1]))
        return np.sum(0.5 * np.log(rate) - 0.5 * rate * (y - f[..., 0]) ** 2, axis=-1)

    rank_table = []
    for i in range(replicates):
        draws = pgm.gibbs(model, X, y[i], num_samples=num_samples, num_warmup=100, num_chains=2, seed=i, progress=False)
        precision = draws.hyperparameters["precision"][..., None]
        columns = [draws.latents.reshape(*draws.latents.shape[:2], -1)]
        columns += [draws.hyperparameters[name][..., None] for name in laws]
        columns += [log_likelihood(draws.latents, precision, y[i])[..., None]]
        drawn = np.concatenate(columns, axis=2)[:, thin - 1 :: thin]
        truth = [f[i].ravel(), [values[name][i] for name in laws], [log_likelihood(f[i], values["precision"][i], y[i])]]
        # Equal inputs have one latent, with two rounding errors.
        rank_table.append(np.sum(drawn < np.concatenate(truth), axis=(0, 1)))
    p = p_values(np.stack(rank_table), 2 * num_samples // thin, rng)
    print(f"least p-value {p.min():.2g}")
    assert (p.min() < FALSE_ALARM / p.size) == planted
