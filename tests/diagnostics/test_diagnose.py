"""A diagnosis: its figures, the sentences that interpret them, and notes on what was left out."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit, roots_hermitenorm

import pgmodels as pgm
from pgmodels import polya_gamma
from pgmodels.diagnostics.compare import ImportanceEstimate, importance_estimate, pareto_k
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.diagnostics.vsbc import Calibration, auxiliary_means, simulate_calibration
from pgmodels.inference.evidence import weigh
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import draw_latents
from pgmodels.report.verdicts import sentences
from pgmodels.results.approximation import PerturbativeApproximation
from tests.covering import some
from tests.own_likelihoods import undeclared
from tests.programs import conditioned
from tests.referees import hermite_grid, log_normal, rbf
from tests.registry import CASES, SEPARATE
from tests.report.test_report import Reader


@cache
def result():
    X = np.random.default_rng(1).uniform(-2.0, 2.0, (20, 2))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.5))
    return pgm.cavi(model, X, (X[:, 0] > 0.3).astype(float))


@cache
def diagnosis():
    return pgm.diagnose(result(), num_replicates=12, num_draws=500, seed=3, progress=False)


@cache
def corrected():
    return pgm.correct(result())


@cache
def four_classes():
    X = np.linspace(-2.0, 2.0, 12)[:, None]
    model = pgm.Model(pgm.StickBreaking(4), pgm.GP(pgm.RBF(2.0, 1.0), size=3))
    return pgm.diagnose(pgm.cavi(model, X, np.arange(12) // 3), num_replicates=5, num_draws=300)


def test_figures_are_those_of_their_modules():
    diagnosed, gap = diagnosis(), augmentation_gap(result())
    np.testing.assert_array_equal(diagnosed.gap, gap.value)
    np.testing.assert_array_equal(diagnosed.gap_error, gap.error)
    expected = importance_estimate(result(), 500, seed=3)
    assert diagnosed.pareto_k == expected.pareto_k
    np.testing.assert_array_equal(diagnosed.importance.mean, expected.mean)
    np.testing.assert_array_equal(diagnosed.vsbc.z, simulate_calibration(result(), 12, seed=3).z)
    assert diagnosed.notes == ()


@pytest.mark.slow
def test_a_corrected_result_is_another_gaussian_with_the_gap_of_its_bound():
    diagnosed = pgm.diagnose(corrected(), num_replicates=3, num_draws=4000, seed=3, progress=False)
    # Moments from the same sites, with and without padding.
    np.testing.assert_allclose(diagnosed.gap, diagnosis().gap, rtol=0.0, atol=1e-12)
    for name in ("mean", "variance", "elbo", "method"):
        ours, theirs = (getattr(one, name) for one in (corrected().uncorrected, result()))
        assert ours == theirs if name in ("elbo", "method") else np.allclose(ours, theirs, rtol=0.0, atol=1e-12)
    # Of the same posterior: its mean, variance and normaliser by weights of other draws.
    ours, theirs = diagnosed.importance, importance_estimate(result(), 4000, seed=8)
    for name in ("mean", "variance", "log_evidence"):
        error = np.hypot(*(getattr(one, f"{name}_error") for one in (ours, theirs)))
        assert np.all(np.abs(getattr(ours, name) - getattr(theirs, name)) < 5.0 * error)
    evidence = pgm.log_evidence(corrected(), num_draws=4000, seed=3)
    assert (ours.pareto_k, ours.log_evidence) == (evidence.k_hat, evidence.value)
    # Nearer to it than q is.
    assert ours.divergence + 2.0 * ours.divergence_error < theirs.divergence - 2.0 * theirs.divergence_error
    assert np.all(np.abs(corrected().variance - ours.variance) < np.abs(result().variance - ours.variance))
    text = " ".join(sentences(diagnosed))
    assert "for the uncorrected q, the ELBO" in text
    assert "Of the" not in text
    assert "before the correction" in diagnosed.notes[0]


def test_simulated_data_meet_the_corrected_gaussian_of_each():
    with jax.enable_x64(True):
        latents, _ = draw_latents(result().prior, 3, 5, 0)
    y = draw_observations(result().likelihood, latents, None, np.random.default_rng(5))
    calibration = simulate_calibration(corrected(), 3, seed=5)
    for replicate, (f, labels, z) in enumerate(zip(latents, y, calibration.z, strict=True)):
        refitted = pgm.correct(pgm.cavi(result().model, result().X, labels))
        np.testing.assert_allclose(z, (f - refitted.mean) / np.sqrt(refitted.variance), atol=1e-8)
        # Draws of each corrected Gaussian replace the true latents.
        with jax.enable_x64(True):
            drawn, _ = draw_latents(refitted.gaussian(), 8, 5, 1, replicate)
        expected = (drawn[:, : len(f)] - refitted.mean) / np.sqrt(refitted.variance)
        np.testing.assert_allclose(calibration.exact[replicate], expected, atol=1e-8)


@pytest.mark.slow
def test_dataframe_has_a_row_a_datum_and_latent():
    frame = four_classes().to_dataframe()
    assert frame.index.names == ["datum", "latent"]
    assert frame.shape == (36, 11)
    assert all(dtype.kind == "f" for dtype in frame.dtypes)
    assert frame.loc[(4, 2), "mean"] == four_classes().result.mean[4, 2]
    assert frame.loc[4, "gap"].nunique() == 1
    z = four_classes().vsbc.z[:, 4, 2]
    # The quantile of the standard normal at 3/4.
    assert frame.loc[(4, 2), "coverage_50"] == np.mean(np.abs(z) < 0.6744897501960817)
    assert frame.loc[(4, 2), "symmetry_p"] == four_classes().vsbc.symmetry[4, 2]
    one = diagnosis().to_dataframe()
    np.testing.assert_array_equal(one["importance_variance_error"], diagnosis().importance.variance_error[:, 0])


def test_without_replicates_the_rest_stands():
    diagnosed = pgm.diagnose(result(), num_replicates=0, num_draws=200)
    assert diagnosed.vsbc is None
    assert "num_replicates is 0" in diagnosed.notes[0]
    assert diagnosed.notes[0] in " ".join(str(diagnosed).split())
    frame = diagnosed.to_dataframe()
    assert frame[["coverage_50", "coverage_90", "symmetry_p"]].isna().all(axis=None)
    assert frame.drop(columns=["coverage_50", "coverage_90", "symmetry_p"]).notna().all(axis=None)
    assert len(diagnosed.plot().axes) == 4


def test_a_likelihood_that_cannot_be_drawn_from_is_said():
    model = pgm.Model(undeclared(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.5))
    diagnosed = pgm.diagnose(pgm.cavi(model, result().X, result().y), num_draws=500, seed=3)
    assert diagnosed.vsbc is None
    assert "has no declared support of y" in diagnosed.notes[0]
    # The formula is Bernoulli's: everything else is as it was.
    np.testing.assert_allclose(diagnosed.gap, diagnosis().gap, rtol=1e-9)
    np.testing.assert_allclose(diagnosed.importance.log_evidence, diagnosis().importance.log_evidence, rtol=1e-9)


@pytest.mark.slow
def test_qualifications_are_noted(monkeypatch):
    with pytest.warns(pgm.ConvergenceWarning):
        early = pgm.cavi(result().model, result().X, result().y, max_iterations=1)
    learned = pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, pgm.Fixed(1.0)))), result().X, result().y)
    z = np.random.default_rng(0).normal(size=(8, 20, 1))
    planted = Calibration(z, z[:, None], num_failed=2, num_unconverged=3)
    monkeypatch.setattr("pgmodels.diagnostics.diagnose.simulate_calibration", lambda *args: planted)
    stopped = replace(learned, uncorrected=replace(learned.uncorrected, converged=early.converged))
    notes = " ".join(pgm.diagnose(stopped, num_replicates=10, num_draws=200).notes)
    for words in ("has not converged", "learned values", "2 of 10 simulated", "On 3 of 10 simulated"):
        assert words in notes


def text_of(change_vsbc=None, **importance):
    base = diagnosis()
    vsbc = base.vsbc
    if change_vsbc is not None:
        rng = np.random.default_rng(5)
        vsbc = Calibration(change_vsbc(rng.normal(size=(100, 20, 2))), rng.normal(size=(100, 8, 20, 2)), 0, 0)
    changed = replace(base, vsbc=vsbc, importance=replace(base.importance, **importance))
    return " ".join(sentences(changed))


def test_sentences_say_which_way_q_is_off():
    exact = text_of(lambda z: z)
    assert "no bias" in exact
    assert "the coverage of q's intervals is correct" in exact
    # Of two latents, the first changed: the truth lies above q's mean, so the mean is too low.
    first = np.array([1.0, 0.0])
    assert "q's means are too low for latent 0;" in text_of(lambda z: z + 0.5 * first)
    assert "q's means are too high for latent 0;" in text_of(lambda z: z - 0.5 * first)
    assert "q is too narrow for latent 0." in text_of(lambda z: z * (1 + 0.4 * first))
    assert "q is too wide for all latents." in text_of(lambda z: 0.6 * z)

    # A few outliers: the mean of z^2 is within its standard error, but the intervals miss the truth.
    heavy = np.random.default_rng(6).standard_cauchy((10, 20, 2)) ** 3
    assert "q is too narrow for all latents." in text_of(lambda z: heavy)
    assert (np.abs(heavy) < 1.645).mean() < 0.8
    squares = (heavy**2).mean(axis=1)
    assert (stats.ttest_1samp(squares, 1.0).pvalue > 0.1).all()

    def at_two_data(z):
        z[:, 7, 1], z[:, 8, 1] = np.abs(z[:, 7, 1]), -np.abs(z[:, 7, 1])
        return z

    assert "biased at some of the data for latent 1" in text_of(at_two_data)


def test_sentences_follow_pareto_k():
    assert "close to the posterior" in text_of(pareto_k=0.31)
    assert "not far from the posterior" in text_of(pareto_k=0.62)
    assert "double the standard errors" in text_of(proposal_k=0.52)
    assert "double the standard errors" not in text_of(proposal_k=0.48)
    far = text_of(pareto_k=1.3)
    assert "far from the posterior. The ELBO is" in far
    assert "omitted" not in far
    assert "too far. Moments and log p(y) are therefore omitted." in text_of(
        pareto_k=1.3, reason="Pareto k-hat of the weights is 1.30: too far."
    )
    assert "sites times 0.35" in text_of(widening=0.35)
    X, y = result().X, np.sin(result().X[:, 0])
    gaussian = pgm.cavi(pgm.Model(pgm.Gaussian(0.4), pgm.GP(pgm.RBF(2.0, 1.0))), X, y)
    text = str(pgm.diagnose(gaussian, num_replicates=0, num_draws=200))
    assert "needs no augmentation" in text
    assert "q is the exact posterior" in text


@pytest.mark.parametrize("make", some([diagnosis, four_classes], diagnosis))
def test_printed_within_a_hundred_columns(make):
    text = str(make())
    assert max(map(len, text.splitlines())) <= 100
    for sentence in (*sentences(make()), *make().notes):
        assert sentence in " ".join(part.removeprefix("- ").strip() for part in text.splitlines())
    assert f"{make().gap.sum():#.3g}" in text


def test_html_holds_the_same_words():
    unbounded = ImportanceEstimate(np.inf, np.inf, 0.7, 1.0, 100, 1.0, reason="weights <nan> & worse")
    page = Reader(replace(diagnosis(), importance=unbounded)._repr_html_())
    assert "weights <nan> & worse" in page.words
    assert sentences(diagnosis())[0] in page.words
    assert f"{diagnosis().vsbc.bias[0][0]:.3f}" in page.words


def test_figures_have_a_panel_for_each_part():
    assert [axes.get_title() for axes in diagnosis().plot().axes] == [
        "Simulated data",
        "Augmentation gap",
        "Posterior mean by importance sampling",
        "Posterior sd by importance sampling",
    ]
    figure = four_classes().plot()
    assert len(figure.axes) == 6
    figure.savefig("/dev/null", format="png")
    reason = "k-hat is far too large"
    far = replace(diagnosis(), importance=ImportanceEstimate(1.4, 1.2, 0.7, 1.0, 100, 3.0, reason)).plot()
    assert reason in " ".join(text.get_text().replace("\n", " ") for axes in far.axes for text in axes.texts)


def test_silent_where_progress_is_off(capsys):
    pgm.diagnose(result(), num_replicates=2, num_draws=100, progress=False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_what_makes_no_sense_is_refused():
    draws = pgm.gibbs(result().model, result().X, result().y, num_samples=5, num_warmup=1, num_chains=2)
    with pytest.raises(ValueError, match="prints their R-hat"):
        pgm.diagnose(draws)
    with pytest.raises(ValueError, match=r"correction to second order which has marginals.*pgm.correct\(result\)"):
        pgm.diagnose(pgm.correct(result(), method="perturbative"))
    with pytest.raises(ValueError, match="not positive definite"):
        pgm.diagnose(replace(corrected(), is_positive=False))
    with pytest.raises(ValueError, match="got Model"):
        pgm.diagnose(result().model)
    for bad, match in (
        ({"num_replicates": 1}, "at least 2"),
        ({"num_replicates": -1}, "num_replicates must be a whole number >= 0"),
        ({"num_replicates": 2.0}, "got 2.0"),
        ({"num_replicates": True}, "got True"),
        ({"num_draws": 99}, "num_draws must be a whole number >= 100"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ):
        with pytest.raises(ValueError, match=match):
            pgm.diagnose(result(), **bad)


# Means of the auxiliaries against closed forms, sampled conditionals and quadrature.


@cache
def data(name):
    case = CASES[name]
    X, y = case.data(12, seed=3)
    with jax.enable_x64(True):
        model = case.model()
        return {"model": model, "X": X, "y": y, "prior": model.prior(X), "seconds": 0.0}


def approximation(name):
    """Any Gaussian marginals: the auxiliaries' optimal q is defined for all."""
    arguments, rng = data(name), np.random.default_rng(7)
    shape = (12, arguments["model"].num_latents)
    with jax.enable_x64(True):
        posterior = conditioned(arguments["prior"], Sites(jnp.zeros(shape), jnp.zeros(shape)))[0]
    moments = {"mean": rng.normal(0.4, 1.2, shape), "variance": rng.gamma(2.0, 0.4, shape)}
    rest = {"elbo_trace": np.zeros(2), "converged": True, "tolerance": 1e-6}
    arguments = {name: value for name, value in arguments.items() if name != "prior"}
    return pgm.Approximation(**arguments, **moments, posterior=posterior, **rest, method="cavi")


def draws(name):
    """Draws of the prior: the average of E[a | f, y] is over whatever the draws are."""
    arguments, rng = data(name), np.random.default_rng(8)
    whitened = tuple(
        rng.normal(size=(2, 30, group.rank, size))
        for group, size in zip(arguments["prior"].groups, arguments["prior"].sizes, strict=True)
    )
    trace = np.zeros((2, 30))
    return pgm.Draws(**arguments, whitened=whitened, log_likelihood_trace=trace, num_warmup=0, method="gibbs")


def tilted_mean(c):
    """E of PG(1, c): tanh(c / 2) / (2 c)."""
    return np.tanh(c / 2) / (2 * c)


def thinned(m, v):
    """σ̃₋(f), the share of a Poisson's points that remain."""
    return np.exp(-m / 2) / (2 * np.cosh(np.sqrt(m**2 + v) / 2))


def test_bernoulli_is_the_tilted_polya_gamma():
    vi = approximation("bernoulli")
    m, v = vi.mean[:, 0], vi.variance[:, 0]
    means = auxiliary_means(vi)
    assert list(means) == ["ω"]
    # E_q of PG(1, c) by its series: the sum of gammas of Polson, Scott and Windle 2013, equation 1.
    k = np.arange(1, 200_001)[:, None]
    series = np.sum(1.0 / (2 * np.pi**2 * (k - 0.5) ** 2 + 0.5 * (m**2 + v)), axis=0)
    # What is left of the series is below 1 / (2 pi^2 200,000).
    np.testing.assert_allclose(means["ω"], series, atol=3e-7)


def test_negative_binomial_counts_its_dispersion():
    vi = approximation("negative_binomial")
    c = np.sqrt(vi.mean[:, 0] ** 2 + vi.variance[:, 0])
    np.testing.assert_allclose(auxiliary_means(vi)["ω"], (vi.y + 2.5) * tilted_mean(c), rtol=1e-10)


def test_logistic_softmax_chain():
    vi = approximation("logistic_softmax")
    m, v = vi.mean, vi.variance
    means = auxiliary_means(vi)
    rate = 1.0 / np.sum(1.0 - thinned(m, v), axis=1)
    counts = rate[:, None] * thinned(m, v)
    is_label = np.arange(3) == vi.y[:, None]
    np.testing.assert_allclose(means["λ"], rate, rtol=1e-10)
    np.testing.assert_allclose(means["k"], counts, rtol=1e-10)
    np.testing.assert_allclose(means["ω"], (is_label + counts) * tilted_mean(np.sqrt(m**2 + v)), rtol=1e-10)


def test_two_blocks():
    vi = approximation("heteroscedastic")
    (m, g), (v, h) = vi.mean.T, vi.variance.T
    counts = 0.5 * 4.0 * ((vi.y - m) ** 2 + v) * thinned(g, h)
    means = auxiliary_means(vi)
    np.testing.assert_allclose(means["k"], counts, rtol=1e-10)
    np.testing.assert_allclose(means["ω"], (0.5 + counts) * tilted_mean(np.sqrt(g**2 + h)), rtol=1e-10)


def test_probit_datum_has_one_of_the_two():
    vi, mcmc = approximation("probit"), draws("probit")
    m = vi.mean[:, 0]
    for result in (vi, mcmc):
        means = auxiliary_means(result)
        assert np.isnan(means["u"][vi.y == 0]).all()
        assert np.isnan(means["u2"][vi.y == 1]).all()
    expected = stats.truncnorm.mean(-m, np.inf, loc=m)[vi.y == 1]
    np.testing.assert_allclose(auxiliary_means(vi)["u"][vi.y == 1], expected, rtol=1e-8)


@pytest.mark.parametrize(
    "name",
    some(
        ["heteroscedastic", "logistic_softmax", "multinomial_probit", "probit", "stick_breaking", "student_t"],
        "heteroscedastic",
        "probit",
    ),
)
def test_draws_average_what_gibbs_draws(name):
    """E[a | f, y] averaged over draws of f against auxiliaries drawn at each of them, again and again."""
    mcmc = draws(name)
    means = auxiliary_means(mcmc)
    with jax.enable_x64(True):
        augmentation, y, parameters = mcmc.model.augmentation, jnp.asarray(mcmc.y), mcmc.model.parameters
        f = jnp.asarray(mcmc.latents.reshape(-1, *mcmc.latents.shape[2:]))
        blocks = range(len(augmentation.blocks))
        keys = jax.random.split(jax.random.key(5), (len(blocks), 40))
        draws_of = [jax.jit(partial(augmentation.draw_chain, block=block)) for block in blocks]
        drawn = [
            {k: v for block in blocks for k, v in draws_of[block](keys[block, i], f, y, parameters).items()}
            for i in range(40)
        ]
    assert set(means) == set(drawn[0])
    for symbol, mean in means.items():
        values = np.stack([np.asarray(part[symbol]) for part in drawn])
        values = (values if mean.ndim == 2 else values[..., 0]).mean(axis=1)
        # 40 averages over the same latents; t with 39 degrees of freedom exceeds 6 once in two million times.
        error = values.std(axis=0, ddof=1) / np.sqrt(40)
        there = np.isfinite(mean)
        assert (np.abs(values.mean(axis=0) - mean) <= 6 * error + 1e-12)[there].all()


def test_a_laplace_posterior_mean_is_infinite():
    # E[1 / |y - f|] over a density that is positive at y.
    assert np.isposinf(auxiliary_means(draws("laplace"))["ω"]).all()
    vi = approximation("laplace")
    expected = 1.0 / (2 * 0.5 * np.sqrt((vi.y - vi.mean[:, 0]) ** 2 + vi.variance[:, 0]))
    np.testing.assert_allclose(auxiliary_means(vi)["ω"], expected, rtol=1e-10)


def test_a_gaussian_likelihood_has_none():
    vi, mcmc = approximation("gaussian"), draws("gaussian")
    assert auxiliary_means(vi) == auxiliary_means(mcmc) == {}


def test_averages_take_the_spread_of_the_latents():
    # σ(-f)-dependent means are not those at the posterior mean: the draws' own spread enters.
    mcmc = draws("sigmoid_poisson")
    expected = np.mean(6.0 * expit(-mcmc.latents[..., 0]), axis=(0, 1))
    np.testing.assert_allclose(auxiliary_means(mcmc)["k"], expected, rtol=1e-10)


def test_corrected_results_have_those_of_q_and_nothing_else_has_any():
    vi = approximation("bernoulli")
    correction = {"shift": vi.mean, "curvature": vi.mean, "num_nonpositive": 0}
    moments = {"mean": vi.mean + 1.0, "variance": vi.variance, "seconds": 1.0}
    corrected = PerturbativeApproximation(uncorrected=vi, **moments, **correction)
    # Of the Gaussian that was corrected, by its own marginals: those of the posterior, not the moments that were made.
    c = np.sqrt(corrected.uncorrected.mean**2 + corrected.uncorrected.variance)[:, 0]
    np.testing.assert_allclose(auxiliary_means(corrected)["ω"], np.tanh(0.5 * c) / (2.0 * c), rtol=1e-6)
    with pytest.raises(ValueError, match="result must be a result of cavi, fit or gibbs; got str"):
        auxiliary_means("cavi")


# The augmentation gap against the divergence that it is defined as, integrated directly.

# Marginals of q at which the gaps are compared: wide and narrow, on either side of 0.
MEAN = np.array([[-1.7], [0.4], [2.3], [0.9]])
VARIANCE = np.array([[0.8], [3.5], [0.05], [1.6]])


def at_marginals(likelihood, y, mean=MEAN, variance=VARIANCE):
    """An approximation of some data with other marginals."""
    X = np.linspace(-1.0, 1.0, len(mean))[:, None]
    result = pgm.cavi(pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 0.7), size=mean.shape[1])), X, y)
    return replace(result, mean=mean, variance=variance)


def expected_divergence(log_q, log_p, low, high, f_nodes=60):
    """E KL(q ‖ p(. | f)) for each datum by quadrature over f ~ N(m, v), and over ω between bounds.

    ``log_q(i, ω)`` and ``log_p(i, ω, f)`` are log densities; breaks at quantiles of log ω resolve the peaks.
    """
    z, weights = roots_hermitenorm(f_nodes)
    weights = weights / weights.sum()
    total = []
    for i, (m, v) in enumerate(zip(MEAN[:, 0], VARIANCE[:, 0], strict=True)):
        f = m + np.sqrt(v) * z

        def integrand(t, i=i, f=f):
            omega = np.exp(t)
            log_density = log_q(i, omega)
            if not np.isfinite(log_density) or log_density < -600:
                return 0.0
            return np.exp(log_density + t) * (log_density - weights @ log_p(i, omega, f))

        points = np.linspace(np.log(low), np.log(high), 12)
        total.append(sum(quad(integrand, a, b, epsabs=1e-10)[0] for a, b in pairwise(points)))
    return np.array(total)


@pytest.mark.parametrize("trials", [None, np.array([2.0, 3.0, 1.0, 4.0])], ids=["bernoulli", "binomial"])
def test_of_polya_gamma_it_is_the_divergence_of_densities(trials):
    successes = np.array([1.0, 0.0, 0.0, 1.0])
    b = np.ones(4) if trials is None else trials
    y = successes if trials is None else np.column_stack([successes, trials])
    c = np.sqrt(MEAN**2 + VARIANCE)[:, 0]
    expected = expected_divergence(
        lambda i, omega: float(polya_gamma.log_density(omega, b[i], c[i])),
        lambda i, omega, f: polya_gamma.log_density(omega, b[i], f),
        1e-4,
        4.4,
    )
    gap = augmentation_gap(at_marginals(pgm.Bernoulli() if trials is None else pgm.Binomial(), y))
    # Mass of PG beyond 4.4 is below exp(-4.4 pi^2 / 2) = 4e-10 times its power of ω, for b = 4 still 1e-6.
    np.testing.assert_allclose(gap.value, expected, rtol=1e-6, atol=2e-7)
    assert (gap.value > 1e-5).all()
    assert (gap.error < 1e-9).all()


def test_of_student_t_it_is_the_divergence_of_gammas():
    y, df, scale = np.array([0.3, -1.0, 2.0, 4.0]), 3.5, 0.7
    shape = (df + 1) / 2
    second = ((y - MEAN[:, 0]) ** 2 + VARIANCE[:, 0]) / (df * scale**2)
    expected = expected_divergence(
        lambda i, omega: stats.gamma.logpdf(omega, shape, scale=1 / (1 + second[i])),
        lambda i, omega, f: stats.gamma.logpdf(omega, shape, scale=1 / (1 + (y[i] - f) ** 2 / (df * scale**2))),
        1e-9,
        60.0,
        f_nodes=400,
    )
    gap = augmentation_gap(at_marginals(pgm.StudentT(df, scale), y))
    # 400 Gauss-Hermite nodes of the log1p, whose poles are within 1 deviation of the axis: 1e-6.
    np.testing.assert_allclose(gap.value, expected, rtol=2e-6)
    assert (gap.error < 1e-9).all()


def test_of_laplace_it_is_the_divergence_of_inverse_gaussians():
    y, scale = np.array([0.3, -1.0, 2.0, 4.0]), 0.6
    kappa = 1 / scale

    def law(distance):
        # ω^(-3/2) exp(-κ²/(4ω) - ω distance²): inverse Gaussian with mean κ/(2 distance) and shape κ²/2.
        return stats.invgauss(1 / (kappa * distance), scale=kappa**2 / 2)

    root = np.sqrt((y - MEAN[:, 0]) ** 2 + VARIANCE[:, 0])
    # The kink of |y - f| is beyond Gauss-Hermite: E over f of the divergence by its own closed form at each ω.
    expected = []
    for i in range(4):
        q, grid = law(root[i]), np.exp(np.linspace(np.log(1e-3), np.log(1e4), 4001))
        log_q = q.logpdf(grid)
        f = stats.norm(MEAN[i, 0], np.sqrt(VARIANCE[i, 0]))

        def divergence(x, i=i, grid=grid, log_q=log_q, f=f):
            log_p = law(max(abs(y[i] - x), 1e-12)).logpdf(grid)
            return f.pdf(x) * np.trapezoid(np.exp(log_q) * (log_q - log_p) * grid, np.log(grid))

        m, s = MEAN[i, 0], np.sqrt(VARIANCE[i, 0])
        breaks = np.unique(np.clip([m - 9 * s, y[i], m + 9 * s], m - 9 * s, m + 9 * s))
        expected.append(sum(quad(divergence, a, b)[0] for a, b in pairwise(breaks)))
    gap = augmentation_gap(at_marginals(pgm.Laplace(scale), y))
    np.testing.assert_allclose(gap.value, expected, rtol=1e-6)
    assert (gap.error < 1e-9).all()


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_a_kink_far_narrower_than_q_is_resolved(scale):
    y = np.array([0.3, -1.0, 2.0, 4.0])
    gap = augmentation_gap(at_marginals(pgm.Laplace(scale), y))
    m, s = MEAN[:, 0] - y, np.sqrt(VARIANCE[:, 0])
    # E|f - y| of a Gaussian in closed form.
    folded = s * np.sqrt(2 / np.pi) * np.exp(-0.5 * (m / s) ** 2) + m * (1 - 2 * stats.norm.cdf(-m / s))
    expected = (np.sqrt(m**2 + s**2) - folded) / scale
    assert (np.abs(gap.value - expected) <= gap.error).all()
    assert (gap.error < 1e-9 * (1 + folded / scale)).all()


def test_of_a_gaussian_likelihood_it_is_zero():
    gap = augmentation_gap(at_marginals(pgm.Gaussian(0.2), np.array([0.3, -1.0, 2.0, 4.0])))
    np.testing.assert_allclose(gap.value, 0.0, atol=1e-11)


ABOVE = {"bernoulli", "binomial", "student_t", "laplace", "gaussian"}


@pytest.mark.slow
@pytest.mark.parametrize("name", some([name for name in SEPARATE if name not in ABOVE], "logistic_softmax"))
def test_other_likelihoods_against_densities_and_bounds_written_by_hand(name):
    case = CASES[name]
    X, y = case.data(6, seed=2)
    result = pgm.cavi(case.model(), X, y)
    rng = np.random.default_rng(8)
    result = replace(
        result,
        mean=result.mean + 0.3 * rng.normal(size=result.mean.shape),
        variance=rng.uniform(0.1, 1.2, result.mean.shape),
    )
    gap = augmentation_gap(result)
    nodes, weights = hermite_grid({1: 200, 2: 80, 3: 36}[case.num_latents], case.num_latents)
    with jax.enable_x64(True):
        expected = -np.asarray(case.bound(result.mean, result.variance, y))
        for i in range(len(y)):
            f = result.mean[i] + np.sqrt(result.variance[i]) * nodes
            repeated = np.broadcast_to(y[i], (len(f), *y.shape[1:]))
            expected[i] += weights @ np.asarray(case.log_density(repeated, f))
    # Several latents: four standard errors, or 0.2 % where they are smaller than the tolerance that stops them.
    np.testing.assert_array_less(np.abs(gap.value - expected), 4 * gap.error + 2e-3 * expected + 1e-8)
    assert (gap.value >= -gap.error - 1e-12).all()
    assert (gap.error <= 2e-3 * gap.value + 1e-5).all()


# Importance sampling against posteriors in closed form and by quadrature.


def with_sites(result, potential=None, precision=None):
    """A result with other sites, and what follows from them."""
    h, w = result.sites
    with jax.enable_x64(True):
        sites = Sites(*(jnp.asarray(old if new is None else new) for old, new in ((h, potential), (w, precision))))
        posterior, mean, variance = conditioned(result.prior, sites)
        mean, variance = np.asarray(mean), np.asarray(variance)
    return replace(result, posterior=posterior, mean=mean, variance=variance)


SIX = np.array([-2.0, -1.1, 0.2, 0.9, 1.4, 2.6])[:, None]


def conditioned_by(factor):
    """The posterior covariance at SIX with so many times the noise's variance."""
    K = rbf(SIX, 1.5, 0.9)
    return K - K @ np.linalg.solve(K + 0.25 * factor * np.eye(6), K)


@cache
def gaussian():
    """The exact posterior of six data, its covariance, log p(y), and q: the posterior moved by a known shift."""
    y = np.array([0.3, 1.2, -0.4, 0.1, 0.9, 2.0])
    exact = pgm.cavi(pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.5, 0.9), mean=0.4)), SIX, y)
    S = conditioned_by(1.0)
    shift = np.array([0.2, -0.1, 0.15, 0.0, -0.25, 0.3])
    # The mean moves by S times the change of the potential.
    h = np.asarray(exact.sites.potential)
    moved = with_sites(exact, h + np.linalg.solve(S, shift)[:, None])
    log_evidence = stats.multivariate_normal(np.full(6, 0.4), rbf(SIX, 1.5, 0.9) + 0.25 * np.eye(6)).logpdf(y)
    return exact, moved, S, shift, log_evidence


@pytest.mark.slow
def test_a_shifted_gaussian_is_moved_back():
    exact, moved, S, shift, log_evidence = gaussian()
    squared = shift @ np.linalg.solve(S, shift)
    estimate = importance_estimate(moved, 20_000, seed=1)
    assert estimate.pareto_k < 0.5
    np.testing.assert_array_less(np.abs(estimate.mean - exact.mean), 4.5 * estimate.mean_error)
    np.testing.assert_array_less(np.abs(estimate.variance - exact.variance), 4.5 * estimate.variance_error)
    # The errors are smaller than the shift.
    assert estimate.mean_error.max() < 0.1 * np.abs(shift).max()
    assert abs(estimate.log_evidence - log_evidence) < 4 * estimate.log_evidence_error
    assert abs(estimate.divergence - 0.5 * squared) < 4 * estimate.divergence_error
    # Weights exp(d u - d^2 / 2) of a standard normal u, d^2 the squared shift: E w^2 = exp(d^2). Widening adds to that.
    from_q = weigh(moved, 1.0, 20_000, seed=1)
    np.testing.assert_allclose(from_q.weights.effective_size, 20_000 * np.exp(-squared), rtol=0.1)
    assert estimate.effective_size > 0.95 * from_q.weights.effective_size


def test_widening_keeps_the_mean_and_scales_the_sites():
    exact, _, _, _, _ = gaussian()
    f, _, _ = exact.draw_with_density(20_000, seed=4, share=0.25)
    # A quarter of the sites' precision: four times the noise about the same mean.
    S = conditioned_by(4.0)
    error = np.sqrt(np.diag(S) / 20_000)
    np.testing.assert_array_less(np.abs(f[..., 0].mean(axis=0) - exact.mean[:, 0]), 4.5 * error)
    np.testing.assert_allclose(np.cov(f[..., 0].T), S, atol=4.5 * np.sqrt(2 / 20_000) * S.max())


def test_a_q_far_too_narrow_is_mended_by_widening():
    exact, _, _, _, log_evidence = gaussian()
    # The exact posterior with its sites' precisions doubled: widening by one half undoes it exactly.
    h, w = map(np.asarray, exact.sites)
    narrow = with_sites(exact, h + w * exact.mean, 2 * w)
    estimate = importance_estimate(narrow, 1000, seed=1)
    assert estimate.widening == 0.5
    assert estimate.proposal_k == -np.inf
    assert estimate.pareto_k == pareto_k(narrow, 1000, seed=1) > 0.3
    np.testing.assert_allclose(estimate.effective_size, 1000)
    np.testing.assert_allclose(estimate.log_evidence, log_evidence, rtol=1e-9)
    np.testing.assert_array_less(np.abs(estimate.variance - exact.variance), 4.5 * estimate.variance_error)
    product = np.linalg.solve(conditioned_by(1.0), conditioned_by(0.5))
    divergence = 0.5 * (np.trace(product) - 6 - np.linalg.slogdet(product)[1])
    assert abs(estimate.divergence - divergence) < 4 * estimate.divergence_error


@pytest.mark.slow
def test_standard_errors_are_what_estimates_scatter_by():
    exact, moved, S, shift, log_evidence = gaussian()
    shift = 0.6 * shift
    h, other = (np.asarray(result.sites.potential) for result in (exact, moved))
    nearer = with_sites(exact, h + 0.6 * (other - h))
    estimates = [importance_estimate(nearer, 1000, seed=seed) for seed in range(60)]
    for truth, name in (
        (exact.mean, "mean"),
        (exact.variance, "variance"),
        (log_evidence, "log_evidence"),
        (0.5 * shift @ np.linalg.solve(S, shift), "divergence"),
    ):
        scores = [(getattr(e, name) - truth) / getattr(e, f"{name}_error") for e in estimates]
        # 60 scores of unit variance: their root mean square is within 1 +- 3 / sqrt(120), and some more for its skew.
        rms = np.sqrt(np.mean(np.square(scores), axis=0))
        assert ((rms > 0.65) & (rms < 1.4)).all(), (name, rms)


def test_of_the_exact_posterior_nothing_is_left_to_mend():
    exact, _, _, _, log_evidence = gaussian()
    estimate = importance_estimate(exact, 400)
    assert estimate.pareto_k == -np.inf
    np.testing.assert_allclose(estimate.effective_size, 400)
    np.testing.assert_allclose(estimate.log_evidence, log_evidence, rtol=1e-9)
    np.testing.assert_allclose(estimate.divergence, 0.0, atol=1e-8)
    np.testing.assert_array_less(np.abs(estimate.mean - exact.mean), 4.5 * np.sqrt(exact.variance / 400))


@pytest.mark.parametrize("y", [np.array([1.0]), np.array([1.0, 0.0])], ids=["one", "two"])
def test_labels_against_quadrature(y):
    X = np.array([[0.0], [0.8]])[: len(y)]
    result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(9.0, 1.2), mean=0.7)), X, y)
    estimate = importance_estimate(result, 20_000, seed=2)
    grid, weight = hermite_grid(100, len(y))
    f = 0.7 + grid @ np.linalg.cholesky(rbf(X, 9.0, 1.2)).T
    p = weight * np.prod(np.where(y == 1, expit(f), expit(-f)), axis=-1)
    mean = p @ f / p.sum()
    variance = p @ (f - mean) ** 2 / p.sum()
    np.testing.assert_array_less(np.abs(estimate.mean[:, 0] - mean), 4 * estimate.mean_error[:, 0])
    np.testing.assert_array_less(np.abs(estimate.variance[:, 0] - variance), 4 * estimate.variance_error[:, 0])
    assert abs(estimate.log_evidence - np.log(p.sum())) < 4 * estimate.log_evidence_error
    # The error of CAVI's variance is far larger than that of the estimate.
    assert (np.abs(result.variance[:, 0] - variance) > 5 * estimate.variance_error[:, 0]).all()


@pytest.mark.slow
def test_the_elbo_lacks_the_gap_and_the_divergence():
    """log p(y) = ELBO + sum of the gaps + KL(q ‖ p(f | y)), each term computed by other means."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(12, 1))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    result = pgm.cavi(pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(1.5, 1.0), mean=0.3, size=3)), X, y)
    estimate, gap = importance_estimate(result, 4000, seed=3), augmentation_gap(result)
    missing = estimate.log_evidence - result.elbo - gap.value.sum() - estimate.divergence
    # log_evidence - divergence is the plain average of log p(y, f) / q(f) over draws of q.
    assert abs(missing) < 4 * np.hypot(estimate.divergence_error + estimate.log_evidence_error, gap.error.sum())
    assert gap.value.sum() > 20 * (estimate.divergence_error + estimate.log_evidence_error)


def test_no_expectations_beyond_the_limit():
    _, moved, _, _, _ = gaussian()
    far = with_sites(moved, np.asarray(moved.sites.potential) + 40.0)
    estimate = importance_estimate(far, 1000)
    assert estimate.pareto_k == pareto_k(far, 1000) > 0.7
    assert estimate.proposal_k > estimate.limit
    assert "above 0.67" in estimate.reason
    for name in ("mean", "variance", "log_evidence", "divergence"):
        assert getattr(estimate, name) is None
        assert getattr(estimate, f"{name}_error") is None


def test_fewer_draws_are_trusted_less():
    _, moved, _, _, _ = gaussian()
    # Vehtari et al. 2024: 1 - 1 / log10(S), at most 0.7.
    assert importance_estimate(moved, 100).limit == 0.5
    assert importance_estimate(moved, 5000).limit == 0.7


# The certificate of inducing inputs against dense matrices and exact evidences.

RNG = np.random.default_rng(6)
N = 70
X = np.sort(RNG.uniform(-3.0, 3.0, N))[:, None]
NOISE = 0.05 + 0.4 * (X[:, 0] / 3.0) ** 2
KERNEL = {"variance": 1.7, "lengthscale": 0.6}
PRIOR_MEAN = 0.8
K = 1.7 * np.exp(-0.5 * ((X - X.T) / 0.6) ** 2)
Y = PRIOR_MEAN + np.linalg.cholesky(K + 1e-9 * np.eye(N)) @ RNG.normal(size=N) + np.sqrt(NOISE) * RNG.normal(size=N)
Z = X[::5]


@pgm.likelihood(support=pgm.Given(pgm.Real(), pgm.Positive()))
def known_noise(y, f):
    return pgm.normal_pdf(y[0], f, pgm.sqrt(y[1]))


def model(likelihood, form, size=1):
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(**KERNEL), mean=PRIOR_MEAN, size=size, form=form))


def low_rank(Z):
    across = 1.7 * np.exp(-0.5 * ((Z - X.T) / 0.6) ** 2)
    return across.T @ np.linalg.solve(1.7 * np.exp(-0.5 * ((Z - Z.T) / 0.6) ** 2), across)


def upper_bounds(Q, z, D):
    """Passerello's U minus the ELBO, and the version with the weighted trace, from dense matrices."""
    left_out = np.diagonal(K - Q)
    weighted = np.sum(left_out / D)
    quadratic = z @ np.linalg.solve(Q + np.diag(D), z)
    larger = [np.diag(D + left_out.sum()), np.diag(D * (1.0 + weighted))]
    return [0.5 * (weighted + quadratic - z @ np.linalg.solve(Q + C, z)) for C in larger]


def test_the_evidence_of_regression_with_known_noise_is_within_the_bounds():
    """HGPR: the log evidence is between the ELBO and U, whose two versions are as written out."""
    gaps = []
    for count in (5, 2, 1):
        Z, y = X[::count], np.column_stack([Y, NOISE])
        result = pgm.cavi(model(known_noise(), pgm.Inducing(Z)), X, y)
        gap = pgm.inducing_gap(result)
        exact, Q = log_normal(Y - PRIOR_MEAN, K + np.diag(NOISE)), low_rank(X[::5])
        # The bound of an optimal q(u), Titsias 2009.
        if count == 5:
            elbo = log_normal(Y - PRIOR_MEAN, Q + np.diag(NOISE)) - 0.5 * np.sum(np.diagonal(K - Q) / NOISE)
            np.testing.assert_allclose(result.elbo, elbo, rtol=1e-8)
            np.testing.assert_allclose(gap, upper_bounds(Q, Y - PRIOR_MEAN, NOISE), rtol=1e-5)
        assert result.elbo <= exact <= result.elbo + gap.upper + 1e-6
        assert gap.upper == min(gap.by_trace, gap.by_weighted_trace)
        gaps.append(gap.upper)
    # All rows leave no residual variance.
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3


@pytest.mark.slow
def test_latents_with_sites_add_up_and_repeated_rows_are_summed():
    classes = np.random.default_rng(1).integers(0, 3, 2 * N)
    twice = np.concatenate([X, X])
    result = pgm.cavi(model(pgm.LogisticSoftmax(3), pgm.Inducing(Z), 3), twice, classes)
    gap = pgm.inducing_gap(result)
    expected = np.zeros(2)
    for h, w in zip(np.asarray(result.sites.potential).T, np.asarray(result.sites.precision).T, strict=True):
        h, w = h[:N] + h[N:], w[:N] + w[N:]
        expected += upper_bounds(low_rank(Z), h / w - PRIOR_MEAN, 1.0 / w)
    np.testing.assert_allclose(gap, expected, rtol=1e-5)
    # The gain of the log normaliser with the exact prior, at these sites.
    with jax.enable_x64(True):
        dense = model(pgm.LogisticSoftmax(3), pgm.Dense(), 3).prior(twice)
        gain = dense.condition(result.sites).log_normalizer() - result.posterior.log_normalizer()
    assert 0.0 < float(gain) < gap.upper


@pytest.mark.slow
def test_automatic_inputs_are_certified():
    labels = (np.random.default_rng(2).random(N) < 1.0 / (1.0 + np.exp(-Y))).astype(float)
    gap = pgm.inducing_gap(pgm.cavi(model(pgm.Bernoulli(), pgm.Inducing("auto")), X, labels))
    # Selection ends where half of the weighted trace is below 0.05 nats.
    assert gap.upper < 1.0
    # Of a result of fit, which is corrected, too.
    fitted = pgm.fit(model(pgm.Gaussian(0.5), pgm.Inducing(30)), X, Y, correct=True)
    gap = pgm.inducing_gap(fitted)
    scale, variance, lengthscale = (float(fitted.fit.values[name]) for name in ("scale", "variance", "lengthscale"))
    C = variance * np.exp(-0.5 * ((X - X.T) / lengthscale) ** 2) + scale**2 * np.eye(N)
    assert fitted.elbo - 1e-6 <= log_normal(Y - float(fitted.fit.values["mean"]), C) <= fitted.elbo + gap.upper + 1e-6


def test_what_has_no_such_gap_is_refused():
    labels = (Y > PRIOR_MEAN).astype(float)
    with pytest.raises(ValueError, match=r"result has no inducing inputs.*pgm\.Inducing"):
        pgm.inducing_gap(pgm.cavi(model(pgm.Bernoulli(), pgm.Dense()), X, labels))
    with pytest.raises(ValueError, match=r"result must be a result of cavi.*got"):
        pgm.inducing_gap({})

    @pgm.likelihood(support=pgm.Real())
    def sums(y, f):
        return pgm.normal_pdf(y, f[0] + f[1], 0.5)

    gps = [pgm.GP(pgm.RBF(**KERNEL), form=pgm.Inducing(Z)), pgm.GP(pgm.RBF(1.0, 2.0), form=pgm.Inducing(Z))]
    with pytest.raises(ValueError, match="one site for each latent"):
        pgm.inducing_gap(pgm.cavi(pgm.Model(sums(), gps), X, Y))
