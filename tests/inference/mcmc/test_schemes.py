"""The schemes of ``gibbs``: published sweeps, against quadrature, against the default, and what they refuse."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import expit, logsumexp

import pgmodels as pgm
from pgmodels.inference import gibbs_schedule as iteration
from pgmodels.inference.gibbs_schedule import scheme_of
from pgmodels.model import GP, Data, Model, with_powers
from tests.covering import some
from tests.own_likelihoods import zero_inflated
from tests.registry import EVERY
from tests.statistical.reference import effective_sizes, standard_error, z_scores

SCHEMES = {"sweep": "bernoulli", "four_block": "logistic_softmax", "one_vs_rest": "softmax"}
# Three inputs so far apart that their latents are independent, with every class.
X, Y = np.array([[-9.0], [0.0], [9.0]]), {"bernoulli": np.array([0.0, 1.0, 1.0])}
CLASSES = np.array([2.0, 0.0, 1.0])
WEIGHTS = np.array([0.6, 2.5, 1.0])
VARIANCES, MEANS = (2.0, 1.0, 3.0), (0.3, -0.8, 0.6)
OPTIONS = {"num_warmup": 60, "num_chains": 4, "seed": 1, "progress": False}


def model_of(name, form=None):
    """Latents with unequal variances and means, two in one group where there are three."""
    case, options = EVERY[name], {} if form is None else {"form": form}
    groups = [(0, 1), (1, 2)] if case.num_latents == 3 else [(0, 1)]
    gps = [GP(pgm.RBF(VARIANCES[k], 1.0), mean=pgm.Fixed(MEANS[k]), size=size, **options) for k, size in groups]
    return Model(case.likelihood(), gps)


def observed(name):
    return Y.get(name, CLASSES)


@cache
def draws_of(scheme, num_samples=1500, **options):
    name = SCHEMES[scheme]
    return pgm.gibbs(model_of(name), X, observed(name), scheme=scheme, num_samples=num_samples, **OPTIONS, **options)


def by_quadrature(name, weights):
    """Means and variances of the latents (n, latents) of independent data, on a grid of Gauss-Hermite nodes."""
    case = EVERY[name]
    spreads = [(MEANS[min(k, 1)], VARIANCES[min(k, 1)]) for k in range(case.num_latents)]
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)
    f = np.array(list(product(*(mean + np.sqrt(variance) * nodes for mean, variance in spreads))))
    log_prior = np.sum(list(product(*[np.log(mass)] * case.num_latents)), axis=1)
    moments = []
    for label, weight in zip(observed(name), weights, strict=True):
        logs = log_prior + weight * np.asarray(case.log_density(np.full(len(f), label), f))
        p = np.exp(logs - logsumexp(logs))
        moments.append((p @ f, p @ f**2 - (p @ f) ** 2))
    return tuple(map(np.array, zip(*moments, strict=True)))


def agrees(draws, mean, variance):
    """Four standard errors, at 3 to 9 means and variances: 1 run in 1,000 would fail by chance."""
    assert np.all(np.abs(draws.mean - mean) < 4 * standard_error(draws.latents))
    squares = (draws.latents - draws.mean) ** 2
    assert np.all(np.abs(draws.variance - variance) < 4 * standard_error(squares))
    # Enough for the standard errors to be known.
    assert effective_sizes(draws.latents).min() > 200


@pytest.mark.parametrize(
    "scheme", ["sweep", *(pytest.param(name, marks=pytest.mark.slow) for name in ("four_block", "one_vs_rest"))]
)
def test_agrees_with_quadrature(scheme):
    agrees(draws_of(scheme), *by_quadrature(SCHEMES[scheme], np.ones(3)))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_powers(scheme):
    name = SCHEMES[scheme]
    draws = pgm.gibbs(model_of(name), X, observed(name), weights=WEIGHTS, scheme=scheme, num_samples=2500, **OPTIONS)
    agrees(draws, *by_quadrature(name, WEIGHTS))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rows", [[0, 1], [0, 1, 2]])
def test_inducing_inputs(scheme, rows):
    """Data without an inducing input nearby have the prior's variance by their residuals."""
    name = SCHEMES[scheme]
    model = model_of(name, pgm.Inducing(X[rows]))
    draws = pgm.gibbs(model, X, observed(name), scheme=scheme, num_samples=2500, **OPTIONS)
    agrees(draws, *by_quadrature(name, np.ones(3)))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_with_equal_inputs_share_their_latents(scheme):
    name = SCHEMES[scheme]
    X, y = EVERY[name].data(20, seed=6)
    X[10:] = X[:10]
    draws = pgm.gibbs(EVERY[name].model(), X, y, scheme=scheme, num_samples=800, **OPTIONS)
    assert np.array_equal(draws.latents[:, :, 10:], draws.latents[:, :, :10])
    if scheme != "one_vs_rest":
        mean, variance = z_scores(
            draws.latents, pgm.gibbs(EVERY[name].model(), X, y, num_samples=800, **OPTIONS).latents
        )
        assert np.abs(mean).max() < 4.0
        assert np.abs(variance).max() < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sweep", "four_block"])
def test_agrees_with_the_default_which_mixes_better(scheme):
    X, y = EVERY["logistic_softmax"].data(40, seed=7)
    model = EVERY["logistic_softmax"].model()
    draws = pgm.gibbs(model, X, y, scheme=scheme, num_samples=4000, num_warmup=500, seed=1, progress=False)
    default = pgm.gibbs(model, X, y, num_samples=2000, num_warmup=200, seed=2, progress=False)
    # Four joint standard errors at 240 comparisons; with fewer effective draws they are not known to 7 %.
    assert effective_sizes(draws.latents).min() > 100
    mean, variance = z_scores(draws.latents, default.latents)
    assert np.abs(mean).max() < 4.0
    assert np.abs(variance).max() < 4.0
    rates = [np.median(effective_sizes(run.latents)) / run.num_samples for run in (draws, default)]
    assert rates[0] < rates[1]


@pytest.mark.slow
def test_one_class_after_another_agrees_with_nuts():
    case = EVERY["softmax"]
    X, y = case.data(30, seed=7)
    draws = pgm.gibbs(
        case.model(), X, y, scheme="one_vs_rest", num_samples=4000, num_warmup=500, seed=1, progress=False
    )
    referee = pgm.nuts(case.model(), X, y, num_samples=600, num_warmup=300, seed=2, progress=False)
    assert effective_sizes(draws.latents).min() > 100
    mean, variance = z_scores(draws.latents, referee.latents)
    assert np.abs(mean).max() < 4.0
    assert np.abs(variance).max() < 4.0


@pytest.mark.parametrize("scheme", some(SCHEMES, "four_block"))
def test_a_run_continues_bit_for_bit(scheme, tmp_path):
    name = SCHEMES[scheme]
    problem = model_of(name), X, observed(name)
    first = pgm.gibbs(*problem, scheme=scheme, num_samples=70, checkpoint=tmp_path, **OPTIONS)
    resumed = pgm.gibbs(*problem, scheme=scheme, num_samples=130, checkpoint=tmp_path, **OPTIONS)
    uninterrupted = pgm.gibbs(*problem, scheme=scheme, num_samples=130, **OPTIONS).latents
    for draws in (resumed, first.extend(60)):
        assert np.array_equal(draws.latents, uninterrupted)


def test_a_folder_of_another_scheme_is_refused(tmp_path):
    problem = model_of("bernoulli"), X, Y["bernoulli"]
    pgm.gibbs(*problem, scheme="sweep", num_samples=5, checkpoint=tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="contains another run of gibbs"):
        pgm.gibbs(*problem, num_samples=5, checkpoint=tmp_path, **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("keep", ["moments", (2, 0)])
def test_keeping_less_of_the_same_draws(scheme, keep):
    full, part = draws_of(scheme), draws_of(scheme, keep=keep)
    # Running sums round otherwise than a sum at the end.
    np.testing.assert_allclose(part.mean, full.mean, rtol=1e-9, atol=1e-12)
    if keep != "moments":
        np.testing.assert_allclose(part.latents, full.latents[:, :, list(keep)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=[pytest.mark.slow] * (name != "sweep")) for name in SCHEMES]
)
def test_is_saved_with_its_move(scheme, tmp_path):
    draws = draws_of(scheme)
    loaded = pgm.load(draws.save(tmp_path / "draws.npz"))
    assert np.array_equal(loaded.latents, draws.latents)
    assert list(loaded.tuning) == [{"sweep": "plain_sweep"}.get(scheme, scheme)]


@pytest.mark.slow
def test_the_counts_follow_the_latents():
    """E[n | f] = σ(-f_c) / Σ σ(f) at the end of many chains: counts of earlier latents have another covariance."""
    options = OPTIONS | {"num_chains": 800}
    run = pgm.gibbs(model_of("logistic_softmax"), X, CLASSES, scheme="four_block", num_samples=40, **options).run
    (counts,) = run.state.move_states[0].values()
    n, f = np.asarray(counts)[:, :3], np.asarray(run.chains.latents)[:, :3]
    products = (n - expit(-f) / expit(f).sum(axis=2, keepdims=True)) * np.tanh(f)
    # Four standard errors, at nine comparisons.
    assert np.all(np.abs(products.mean(axis=0)) < 4 * products.std(axis=0) / np.sqrt(len(f)))


def test_the_plain_sweep_is_not_overrelaxed():
    assert draws_of("sweep").tuning == {"plain_sweep": {"repeats": 1, "every": 1, "relaxation": 0.0}}


@pytest.mark.parametrize("scheme", some(SCHEMES, "four_block"))
def test_other_data_of_equal_shape_do_not_recompile(scheme):
    draws_of(scheme)
    size = iteration.run_chunk.cache_size()
    name = SCHEMES[scheme]
    model = model_of(name)
    pgm.gibbs(model, 1.1 * X, np.roll(observed(name), 1), scheme=scheme, num_samples=10, **OPTIONS)
    assert iteration.run_chunk.cache_size() == size


def test_a_site_of_a_class_has_the_gradient_of_the_log_density_on_average():
    """E[h - ω f_c] over ω is the derivative of w log p(y | f) in f_c, whatever the other latents are."""
    with jax.enable_x64(True):
        f = jnp.array([[0.7, -1.2, 2.5], [3.0, 0.1, -0.4]])
        y = jnp.array([[2.0, 0.6], [0.0, 2.5]])
        objective = scheme_of("one_vs_rest").objective(weighted())
        gradient = jax.grad(lambda f: jnp.sum(objective.log_density(y, f, {})))(f)
        keys = jax.random.split(jax.random.key(0), 4000)
        draw = jax.jit(jax.vmap(lambda key, latent: objective.draw_site(key, f, y, latent), (0, None)))
        for latent in range(3):
            h, omega = draw(keys, latent)
            slopes = np.asarray(h - omega * f[:, latent : latent + 1])[:, :, 0]
            error = slopes.std(axis=0) / np.sqrt(len(keys))
            # Four standard errors, at six comparisons.
            assert np.all(np.abs(slopes.mean(axis=0) - gradient[:, latent]) < 4 * error)
            assert np.all(error < 0.02)


def weighted():
    """The softmax to the power of the weights."""
    return with_powers(model_of("softmax"), Data(X, CLASSES, weights=WEIGHTS))[0]


PRIOR = GP(pgm.RBF(dist.Gamma(2.0, 1.0), 1.0), mean=dist.Normal(0.0, 1.0))
THREE = GP(pgm.RBF(), size=3)


@pytest.mark.parametrize(
    ("scheme", "model", "fault"),
    [
        (
            "gibbs",
            model_of("bernoulli"),
            "scheme must be one of 'auto', 'sweep', 'four_block', 'one_vs_rest'; got 'gib",
        ),
        (None, model_of("bernoulli"), "scheme must be one of .*; got None"),
        ("sweep", Model(pgm.Bernoulli(), PRIOR), r"prior on variance, mean: fix the hyper.*model\.fixed\(\).*auto"),
        ("sweep", Model(pgm.Softmax(3), THREE), "no augmentation for the factor"),
        ("four_block", model_of("bernoulli"), "as a factor of the likelihood, and Bernoulli has none: choose"),
        ("four_block", Model(pgm.Softmax(3), THREE), "no augmentation for the factor"),
        ("one_vs_rest", Model(pgm.LogisticSoftmax(3), THREE), r"needs the likelihood exp\(f\[y\]\).*got LogisticSoft"),
        ("one_vs_rest", Model(pgm.Bernoulli(), PRIOR), "with 1 latents"),
    ],
)
def test_refuses_what_a_scheme_does_not_apply_to(scheme, model, fault, monkeypatch):
    # Before any work.
    monkeypatch.setattr("pgmodels.inference.gibbs.GibbsRun", None)
    y = CLASSES if model.num_latents == 3 else Y["bernoulli"]
    with pytest.raises(ValueError, match=fault):
        pgm.gibbs(model, X, y, scheme=scheme)


def test_refuses_a_gamma_rule_within_a_mixture():
    @pgm.likelihood
    def sometimes(y, f):
        return 0.2 / 3 + 0.8 * pgm.sigmoid(f[y]) / pgm.sum(pgm.sigmoid(f))

    with pytest.raises(ValueError, match="sometimes has one within a mixture"):
        pgm.gibbs(Model(sometimes(), THREE), X, CLASSES, scheme="four_block")


def test_weights_that_no_auxiliary_can_be_drawn_for_are_refused():
    model = Model(zero_inflated(), GP(pgm.RBF(), size=2))
    with pytest.raises(ValueError, match="gibbs supports only weights 0 and 1 for zero_inflated"):
        pgm.gibbs(model, X, np.array([0.0, 2.0, 1.0]), weights=WEIGHTS, scheme="sweep")
