from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import expit, logsumexp

import pgmodels as pgm
from pgmodels.inference.gibbs import SamplingError, gibbs
from pgmodels.inference.gibbs_schedule import SCHEMES as OF_NAME
from pgmodels.inference.gibbs_schedule import run_chunk
from pgmodels.inference.surrogates import fit_surrogate, fitting_problem, surrogate_of
from pgmodels.kernels.stationary import RBF, Matern12
from pgmodels.model import GP, Data, Model, with_powers
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks, together
from tests.covering import some
from tests.own_likelihoods import zero_inflated
from tests.referees import rbf
from tests.registry import CASES, EVERY
from tests.statistical.reference import effective_sizes, standard_error, z_scores


@pytest.mark.slow
def test_a_list_of_gps_is_the_same_model_as_one_gp_of_that_size():
    case = CASES["heteroscedastic"]
    X, y = case.data(40, seed=8)
    listed = Model(case.likelihood(), [GP(RBF(2.0, 1.2), mean=0.3), GP(RBF(2.0, 1.2), mean=0.3)])
    # The same law, drawn with other keys.
    together = gibbs(case.model(), X, y, num_samples=600, num_warmup=100, seed=2)
    apart = gibbs(listed, X, y, num_samples=600, num_warmup=100, seed=1)
    assert apart.latents.shape == (4, 600, 40, 2)
    assert np.max(np.abs(z_scores(apart.latents, together.latents))) < 4.0


@pytest.fixture(scope="module")
def binary():
    X, y = CASES["bernoulli"].data(20, seed=3)
    return CASES["bernoulli"].model(), X, y


def test_the_seed_decides_every_draw(binary):
    options = {"num_samples": 7, "num_warmup": 3, "num_chains": 2}
    one, again = (gibbs(*binary, seed=5, **options) for _ in range(2))
    with jax.enable_x64(True):
        key = jax.random.key(5)
    by_key = gibbs(*binary, seed=key, **options)
    other = gibbs(*binary, seed=6, **options)
    for same in (again, by_key, gibbs(*binary, seed=np.int64(5), **options)):
        assert np.array_equal(one.latents, same.latents)
        assert np.array_equal(one.log_likelihood_trace, same.log_likelihood_trace)
    assert not np.any(one.latents == other.latents)


def test_chains_differ(binary):
    draws = gibbs(*binary, num_samples=5, num_warmup=0, num_chains=2, seed=0)
    assert len(np.unique(draws.latents[:, :, 0, 0])) == 10


@pytest.mark.parametrize(("num_warmup", "num_samples"), [(0, 1), (1, 49), (51, 50), (50, 101), (99, 53)])
def test_any_number_of_sweeps(binary, num_warmup, num_samples):
    """Iterations are compiled in chunks of 50: what is kept must not depend on where a chunk ends."""
    model, X, y = binary
    draws = gibbs(model, X, y, num_samples=num_samples, num_warmup=num_warmup, num_chains=2, seed=4)
    assert draws.latents.shape == (2, num_samples, 20, 1)
    assert draws.log_likelihood_trace.shape == (2, num_samples)
    assert (draws.num_chains, draws.num_samples, draws.num_warmup) == (2, num_samples, num_warmup)
    pieces = gibbs(model, X, y, num_samples=1, num_warmup=num_warmup, num_chains=2, seed=4)
    while pieces.num_samples < num_samples:
        pieces = pieces.extend(min(17, num_samples - pieces.num_samples))
    assert np.array_equal(draws.latents, pieces.latents)
    assert np.array_equal(draws.log_likelihood_trace, pieces.log_likelihood_trace)


def test_extend_leaves_the_first_draws_as_they_are(binary):
    first = gibbs(*binary, num_samples=30, num_warmup=5, num_chains=2, seed=4)
    before = first.latents.copy()
    longer = first.extend(20)
    assert longer.num_samples == 50
    assert np.array_equal(first.extend(20).latents, longer.latents)
    assert first.num_samples == 30
    assert np.array_equal(first.latents, before)
    assert np.array_equal(longer.latents[:, :30], before)
    with pytest.raises(ValueError, match="num_samples must be a whole number >= 1"):
        first.extend(0)


@pytest.mark.parametrize("keep", some(["moments", [3, 0, 17]], "moments"))
def test_keeping_less_of_the_same_draws(binary, keep):
    options = {"num_samples": 120, "num_warmup": 30, "num_chains": 2, "seed": 4}
    full, part = gibbs(*binary, **options), gibbs(*binary, keep=keep, **options)
    # Two programs, each of which rounds in its own order.
    np.testing.assert_allclose(part.log_likelihood_trace, full.log_likelihood_trace, rtol=1e-12)
    # Running sums round otherwise than a sum at the end.
    np.testing.assert_allclose(part.mean, full.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(part.variance, full.variance, rtol=1e-9)
    assert part.whitened is None
    if keep == "moments":
        with pytest.raises(ValueError, match="were not stored"):
            _ = part.latents
    else:
        np.testing.assert_array_equal(part.rows, keep)
        np.testing.assert_allclose(part.latents, full.latents[:, :, keep], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match='keep="all"'):
        part.predict_latent(binary[1][:2])


@pytest.mark.parametrize("keep", ["some", [], [20], [-1], [0.5], [[1]], None])
def test_refuses_what_it_cannot_keep(binary, keep):
    with pytest.raises(ValueError, match="keep"):
        gibbs(*binary, num_samples=1, keep=keep)


def test_a_state_that_is_not_finite_stops_the_run_and_keeps_what_was_drawn(binary, monkeypatch):
    def broken(target, tuning, chains, moments, first, count, *rest):
        chains, moments, stats, record = run_chunk(target, tuning, chains, moments, first, count, *rest)
        if first >= 60:
            record = record._replace(failed=record.failed.at[3, 1].set(2))
        return chains, moments, stats, record

    monkeypatch.setattr("pgmodels.inference.gibbs.run_chunk", broken)
    with pytest.raises(SamplingError, match="the latents of chain 1 are not finite in iteration 63") as caught:
        gibbs(*binary, num_samples=200, num_warmup=10, num_chains=2, seed=4)
    assert caught.value.draws.num_samples == 53
    monkeypatch.undo()
    good = gibbs(*binary, num_samples=53, num_warmup=10, num_chains=2, seed=4)
    assert np.array_equal(caught.value.draws.latents, good.latents)


def test_nothing_is_compiled_again_for_equal_shapes(binary, compilations):
    model, X, y = binary
    gibbs(model, X, y, num_samples=60, num_warmup=30, num_chains=2, seed=4)
    other = Model(CASES["bernoulli"].likelihood(), GP(RBF(3.1, 0.9), mean=-0.2))
    compilations.clear()
    gibbs(other, X[::-1], 1.0 - y, num_samples=133, num_warmup=47, num_chains=2, seed=9)
    assert not compilations


def test_with_hyperparameters_sampled_one_kind_of_move_is_kept_and_nothing_is_compiled_again(binary, compilations):
    _, X, y = binary

    def run(num_samples, seed):
        model = Model(CASES["bernoulli"].likelihood(), GP(RBF(dist.LogNormal(0.5, 1.0), 0.9)))
        return gibbs(model, X, y, num_samples=num_samples, num_warmup=120, num_chains=2, seed=seed)

    tuning = run(20, 4).tuning
    # With so few data the expectations behind a surrogate are the dearer: both kinds of move tried, then one chosen.
    steps, slices = tuning["hamiltonian"]["repeats"], tuning["slice_unknowns"]["repeats"]
    assert (steps > 0) == (slices == 0) == (tuning["slice_latents"]["repeats"] == 0)
    compilations.clear()
    run(33, 9)
    names = ("run_chunk", "start_chains", "renew_surrogates", "_compiled_prior", "_refine")
    assert not [message for message in compilations if any(f"jit({name})" in message for name in names)]


EXACT_X = np.random.default_rng(1).uniform(-1, 1, (60, 1))


@pytest.mark.parametrize(
    ("kernel", "K"),
    [
        pytest.param(RBF(2.0, 1.0), rbf(EXACT_X, 2.0, 1.0), id="low rank"),
        pytest.param(
            Matern12(2.0, 1.0), 2.0 * np.exp(-np.abs(EXACT_X - EXACT_X.T)), id="dense", marks=pytest.mark.slow
        ),
    ],
)
def test_gaussian_data_against_the_exact_posterior(kernel, K):
    y = np.sin(2 * EXACT_X[:, 0]) + 0.5 * np.random.default_rng(2).normal(size=60)
    model = Model(CASES["gaussian"].likelihood(), GP(kernel, mean=0.3))
    draws = gibbs(model, EXACT_X, y, num_samples=1000, num_warmup=0, seed=3)
    gain = K @ np.linalg.inv(K + 0.25 * np.eye(60))
    mean, variance = 0.3 + gain @ (y - 0.3), np.diag(K - gain @ K)
    # 4,000 independent draws, 120 comparisons.
    assert np.all(np.abs(draws.mean[:, 0] - mean) < 4 * np.sqrt(variance / 4000))
    assert np.all(np.abs(draws.variance[:, 0] / variance - 1) < 4 * np.sqrt(2 / 4000))


# The Gaussian that the sampler turns about: the variational one, a little wider.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laplace", "heteroscedastic", "additive"])
def test_it_is_the_variational_gaussian_with_nine_tenths_of_its_factors(name):
    model, (X, y) = EVERY[name].unequal(), EVERY[name].data(9, seed=3)
    result = pgm.gaussian_vi(model, X, y)
    with jax.enable_x64(True):
        prior = model.prior(X)
        masked = model, prior, jnp.asarray(y), None
        problem = fitting_problem(*masked)
        fit = fit_surrogate(*masked)
        mean, covariance = fit.marginals
        # Of what few nodes give: a proposal needs no more.
        deviation = np.sqrt(result.variance)
        assert np.max(np.abs(mean - result.mean) / deviation) < 0.1
        assert np.max(np.abs(np.diagonal(covariance, axis1=1, axis2=2) / result.variance - 1.0)) < 0.1

        # Precisions of all latents, by dense inverses.
        def dense(posterior):
            size = mean.size
            return np.linalg.inv(np.asarray(posterior.covariance()).reshape(size, size))

        none = jnp.zeros(mean.shape)
        free = condition_blocks(prior, Sites(none, none).as_coupled(), fit.surrogate.blocks)
        variational = together(problem.condition(fit.sites))
        surrogate_mean = fit.surrogate.marginals()[0]
        np.testing.assert_allclose(surrogate_mean, mean, atol=1e-9)
        expected = 0.1 * dense(free) + 0.9 * dense(variational)
        np.testing.assert_allclose(dense(fit.surrogate), expected, rtol=1e-6, atol=1e-6 * np.max(expected))
        # Factors made where the latents are expected are those of the fit, whose last step moved it by less than that:
        # an ELBO of order 10 that changes by 1e-4 leaves some 1 % of a deviation.
        again = surrogate_of(problem, fit.marginals).marginals()
        for one, other in zip(again, fit.surrogate.marginals(), strict=True):
            np.testing.assert_allclose(one, other, atol=0.02 * np.max(deviation))


# The schemes of ``gibbs``: published sweeps, against quadrature, against the default, and what they refuse.


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


# Data without an inducing input nearby have the prior's variance by their residuals; weights are powers.
@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("form", "weights"), [(None, WEIGHTS), (pgm.Inducing(X[:2]), None), (pgm.Inducing(X), None)])
def test_agrees_with_quadrature_by_weights_and_inducing_inputs(scheme, form, weights):
    name = SCHEMES[scheme]
    options = {"weights": weights, "scheme": scheme, "num_samples": 2500, **OPTIONS}
    draws = pgm.gibbs(model_of(name, form), X, observed(name), **options)
    agrees(draws, *by_quadrature(name, np.ones(3) if weights is None else weights))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_with_equal_inputs_share_their_latents(scheme):
    name = SCHEMES[scheme]
    X, y = EVERY[name].data(20, seed=6)
    X[10:] = X[:10]
    draws = pgm.gibbs(EVERY[name].model(), X, y, scheme=scheme, num_samples=800, **OPTIONS)
    assert np.array_equal(draws.latents[:, :, 10:], draws.latents[:, :, :10])
    if scheme != "one_vs_rest":
        default = pgm.gibbs(EVERY[name].model(), X, y, num_samples=800, **OPTIONS)
        assert np.max(np.abs(z_scores(draws.latents, default.latents))) < 4.0


def compared_with(engine, name, scheme, n, **sizes):
    """Draws by a scheme and by another engine, which agree."""
    problem = EVERY[name].model(), *EVERY[name].data(n, seed=7)
    draws = pgm.gibbs(*problem, scheme=scheme, num_samples=4000, num_warmup=500, seed=1, progress=False)
    referee = engine(*problem, seed=2, progress=False, **sizes)
    # Four joint standard errors at 240 comparisons; with fewer effective draws they are not known to 7 %.
    assert effective_sizes(draws.latents).min() > 100
    assert np.max(np.abs(z_scores(draws.latents, referee.latents))) < 4.0
    return draws, referee


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sweep", "four_block"])
def test_agrees_with_the_default_which_mixes_better(scheme):
    draws, default = compared_with(pgm.gibbs, "logistic_softmax", scheme, 40, num_samples=2000, num_warmup=200)
    rates = [np.median(effective_sizes(run.latents)) / run.num_samples for run in (draws, default)]
    assert rates[0] < rates[1]


@pytest.mark.slow
def test_one_class_after_another_agrees_with_nuts():
    compared_with(pgm.nuts, "softmax", "one_vs_rest", 30, num_samples=600, num_warmup=300)


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
    size = run_chunk.cache_size()
    name = SCHEMES[scheme]
    model = model_of(name)
    pgm.gibbs(model, 1.1 * X, np.roll(observed(name), 1), scheme=scheme, num_samples=10, **OPTIONS)
    assert run_chunk.cache_size() == size


def test_a_site_of_a_class_has_the_gradient_of_the_log_density_on_average():
    """E[h - ω f_c] over ω is the derivative of w log p(y | f) in f_c, whatever the other latents are."""
    with jax.enable_x64(True):
        f = jnp.array([[0.7, -1.2, 2.5], [3.0, 0.1, -0.4]])
        y = jnp.array([[2.0, 0.6], [0.0, 2.5]])
        objective = OF_NAME["one_vs_rest"].objective(weighted())
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
