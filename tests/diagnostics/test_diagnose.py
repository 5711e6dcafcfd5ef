"""A diagnosis: its figures, the sentences that interpret them, and notes on what was left out."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.diagnostics.compare import ImportanceEstimate, importance_estimate
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.diagnostics.vsbc import Calibration, simulate_calibration
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.priors.block_posterior import draw_latents
from pgmodels.report.verdicts import sentences
from tests.covering import some


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
    @pgm.likelihood
    def unknown(y, f):
        return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)

    model = pgm.Model(unknown(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.5))
    diagnosed = pgm.diagnose(pgm.cavi(model, result().X, result().y), num_draws=500, seed=3)
    assert diagnosed.vsbc is None
    assert "has no declared support of y" in diagnosed.notes[0]
    # The formula is Bernoulli's: everything else is as it was.
    np.testing.assert_allclose(diagnosed.gap, diagnosis().gap, rtol=1e-9)
    np.testing.assert_allclose(diagnosed.importance.log_evidence, diagnosis().importance.log_evidence, rtol=1e-9)


@pytest.mark.slow
def test_qualifications_are_noted(monkeypatch):
    from pgmodels.diagnostics import diagnose as module

    with pytest.warns(pgm.ConvergenceWarning):
        early = pgm.cavi(result().model, result().X, result().y, max_iterations=1)
    learned = pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, pgm.Fixed(1.0)))), result().X, result().y)
    z = np.random.default_rng(0).normal(size=(8, 20, 1))
    planted = Calibration(z, z[:, None], num_failed=2, num_unconverged=3)
    monkeypatch.setattr(module, "simulate_calibration", lambda *args: planted)
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
    class Words(HTMLParser):
        words = ""

        def handle_data(self, data):
            self.words += data + "\n"

    unbounded = ImportanceEstimate(np.inf, np.inf, 0.7, 1.0, 100, 1.0, reason="weights <nan> & worse")
    page = Words()
    page.feed(replace(diagnosis(), importance=unbounded)._repr_html_())
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
    with pytest.raises(ValueError, match="diagnostics are R-hat"):
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
