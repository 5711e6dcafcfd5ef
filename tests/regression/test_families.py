"""Families of formulas without public names: densities against SciPy's, masses, moments and draws."""

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, special, stats

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.regression import response as families

S = special.expit


def nbinom(f, size):
    return stats.nbinom(size, size / (size + np.exp(f)))


def with_zero(f, density):
    return lambda y: np.where(y == 0, S(f[1]), S(-f[1]) * density(np.where(y == 0, 1.0, y)))


def inflated_beta(y, f=(0.4, -1.2, 0.7), phi=3.0):
    m, end = S(f[0]), np.isin(y, (0.0, 1.0))
    inside = S(-f[1]) * stats.beta(phi * m, phi * (1 - m)).pdf(np.where(end, 0.5, y))
    return np.where(end, S(f[1]) * np.where(y == 1, S(f[2]), S(-f[2])), inside)


def generalised_poisson(y, mean=np.exp(0.6), share=0.8 / 1.8):
    rate = mean * (1 - share)
    return np.exp(np.log(rate) + (y - 1) * np.log(rate + share * y) - rate - share * y - special.gammaln(y + 1))


def quantile_density(y, f=0.4, scale=0.8, q=0.3):
    u = (y - f) / scale
    return q * (1 - q) / scale * np.exp(-u * (q - (u < 0)))


def slanted(f=0.4, scale=0.8, alpha=-2.5):
    delta = alpha / np.hypot(1.0, alpha)
    omega = scale / np.sqrt(1.0 - 2.0 / np.pi * delta**2)
    return stats.skewnorm(alpha, f - omega * delta * np.sqrt(2.0 / np.pi), omega)


# Likelihood, latents, density or mass of y, and where y is: whole numbers, an interval, or points beside one.
LAWS = {
    "nbinom1": (families.nbinom1(1.7), [0.6], nbinom(0.6, np.exp(0.6) / 1.7).pmf, np.arange(400.0)),
    "genpois": (families.genpois(0.8), [0.6], generalised_poisson, np.arange(600.0)),
    "truncated_poisson": (families.truncated_poisson(), [0.3],
        lambda y: stats.poisson(np.exp(0.3)).pmf(y) / -np.expm1(-np.exp(0.3)), np.arange(1.0, 60.0)),
    "truncated_negbinomial": (families.truncated_negbinomial(1.3), [0.3],
        lambda y: nbinom(0.3, 1.3).pmf(y) / (1.0 - nbinom(0.3, 1.3).pmf(0)), np.arange(1.0, 400.0)),
    "zero_inflated_binomial": (families.zero_inflated_binomial(), [0.4, -0.5],
        lambda y: S(-0.5) * (y == 0) + S(0.5) * stats.binom(7, S(0.4)).pmf(y), np.arange(8.0)),
    "hurdle_gamma": (families.hurdle_gamma(2.3), [0.4, -0.5],
        with_zero((0.4, -0.5), stats.gamma(2.3, scale=np.exp(0.4) / 2.3).pdf), (0.0, np.inf, [0.0])),
    "hurdle_lognormal": (families.hurdle_lognormal(0.7), [0.4, -0.5],
        with_zero((0.4, -0.5), stats.lognorm(0.7, scale=np.exp(0.4)).pdf), (0.0, np.inf, [0.0])),
    "zero_one_inflated_beta": (families.zero_one_inflated_beta(3.0), [0.4, -1.2, 0.7], inflated_beta,
        (0.0, 1.0, [0.0, 1.0])),
    "asym_laplace": (families.asym_laplace(0.8, pgm.Fixed(0.3)), [0.4], quantile_density, (-np.inf, np.inf, [])),
    "skew_normal": (families.skew_normal(0.8, pgm.Fixed(-2.5)), [0.4], slanted().pdf, (-np.inf, np.inf, [])),
    "gaussian_log": (families.gaussian_log(0.8), [0.4], stats.norm(np.exp(0.4), 0.8).pdf, (-np.inf, np.inf, [])),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_a_density_is_the_one_of_scipy_with_its_moments_and_draws(name):
    made, f, density, where = LAWS[name]
    is_discrete = isinstance(where, np.ndarray)
    y = where[:9] if is_discrete else np.array([*where[2], 0.2, 0.9] if where[1] == 1.0 else [*where[2], 0.2, 1.9])
    columns = np.column_stack([y, np.full(len(y), 7.0)]) if name == "zero_inflated_binomial" else y
    latents = np.tile(f, (len(y), 1))
    np.testing.assert_allclose(np.exp(log_density(made, columns, latents)), density(y), rtol=1e-6)
    mass = [
        density(where) @ where**k if is_discrete
        else sum(density(np.array(end)) * end**k for end in where[2])
        + integrate.quad(lambda t, k=k: float(density(np.array(t))) * t**k, *where[:2], limit=200)[0]
        for k in range(3)
    ]  # fmt: skip
    assert mass[0] == pytest.approx(1.0, abs=1e-6)
    # Draws at latents that are known, also far out.
    trials = np.full((4000, 1), 7.0) if name == "zero_inflated_binomial" else None
    for at in (f, np.full(len(f), -40.0), np.full(len(f), 40.0)):
        assert np.isfinite(log_density(made, columns[-1:], np.array(at)[None])).all()
        model = pgm.Model(made, [pgm.GP(pgm.Constant(1e-12), mean=pgm.Fixed(one)) for one in at])
        drawn = pgm.prior_predictive(model, np.zeros((4000, 1)), num_draws=1, seed=1, covariates=trials).observations
        assert np.isfinite(drawn).all()
        assert at is not f or abs(drawn.mean() - mass[1]) < 4.0 * np.sqrt((mass[2] - mass[1] ** 2) / 4000.0)


CUTS = np.array([-0.4, 0.9, 0.2])


def test_steps_and_neighbours_of_ordered_levels_have_their_odds():
    for made in (families.sratio, families.acat):
        f = np.full((4, 1), 0.7)
        p = np.exp(log_density(made(pgm.Fixed(CUTS)), np.arange(4.0), f))
        assert p.sum() == pytest.approx(1.0)
        steps = special.logit(p[:3] / np.cumsum(p[::-1])[::-1][:3])
        expected = CUTS - 0.7 if made is families.sratio else None
        if expected is None:
            steps, expected = np.log(p[1:] / p[:-1]), 0.7 - CUTS
        np.testing.assert_allclose(steps, expected, rtol=1e-9)


def test_times_of_a_log_normal_are_censored_and_truncated():
    law, f = stats.lognorm(0.6, scale=np.exp(0.3)), np.full((4, 1), 0.3)
    right = log_density(families.censored_lognormal(0.6), np.array([[1.2, 1.0], [1.2, 0.0], [3.0, 1.0], [3.0, 0.0]]), f)
    expected = [law.logpdf(1.2), law.logsf(1.2), law.logpdf(3.0), law.logsf(3.0)]
    np.testing.assert_allclose(right, expected, rtol=1e-8)
    rows = np.array([[1.2, 1.0, 0.5], [1.2, 0.0, 0.0], [3.0, 1.0, 2.9], [3.0, 0.0, 1.0]])
    late = log_density(families.truncated_lognormal(0.6), rows, f)
    np.testing.assert_allclose(late, expected - law.logsf(rows[:, 2]), rtol=1e-8)
    codes = np.array([[1.2, 0.0, 1.2], [1.2, 1.0, 1.2], [1.2, 2.0, 1.2], [1.2, 3.0, 3.0]])
    between = np.log(law.cdf(3.0) - law.cdf(1.2))
    interval = log_density(families.interval_lognormal(0.6), codes, f)
    np.testing.assert_allclose(interval, [law.logsf(1.2), law.logpdf(1.2), law.logcdf(1.2), between], rtol=1e-8)


@pytest.mark.parametrize("f", [-40.0, -0.7, 0.9, 40.0])
def test_proportional_hazards_are_constant_in_pieces(f):
    starts, ratios = np.array([0.0, 0.8, 1.7]), [1.0, 2.5, 0.4]
    law = families.late_cox(np.array(ratios[1:]), pgm.Fixed(starts[1:]))
    hazard = lambda t: np.exp(f) * ratios[np.searchsorted(starts, t) - 1]  # noqa: E731
    until = lambda t: np.exp(f) * np.minimum(np.maximum(t - starts, 0.0), [0.8, 0.9, np.inf]) @ ratios  # noqa: E731
    y = np.array([[0.3, 1.0, 0.0], [1.1, 1.0, 0.9], [4.0, 1.0, 0.2], [4.0, 0.0, 2.0]])
    expected = [d * np.log(hazard(t)) - until(t) + until(entry) for t, d, entry in y]
    np.testing.assert_allclose(log_density(law, y, np.full((4, 1), f)), expected, rtol=1e-8)
    # The last piece by hand.
    last, low = np.exp(f) * 0.4, min(1.7, 50.0 * np.exp(-f))
    inner = [integrate.quad(lambda t, k=k: t**k * np.exp(-until(t)), 0.0, low, points=[0.8])[0] for k in (0, 1)]
    mean, square = inner[0] + np.exp(-until(1.7)) / last, 2.0 * inner[1]
    square += 2.0 * np.exp(-until(1.7)) * (1.7 / last + last**-2.0)
    moments = law.moments(np.ones((1, 3)), np.full((1, 1), f), 1)
    np.testing.assert_allclose(np.ravel(moments), [mean, square - mean**2], rtol=1e-6)
    drawn = law.draw(np.random.default_rng(0), np.ones((4000, 3)), np.full((4000, 1), f))
    assert abs(drawn.mean() - mean) < 4.0 * np.sqrt((square - mean**2) / 4000.0)


def test_cox_counts_a_row_of_weight_two_as_two_rows():
    times, weights = [0.4, 1.1, 1.9, 2.5, 3.2, 4.0], [3, 1, 2, 4, 2, 5]
    frame = pd.DataFrame({"t": times, "d": np.array(times) != 1.9, "w": weights})
    of_weights = pgm.formula("Surv(t, d) ~ 1", frame, family="cox", weights="w")
    of_rows = pgm.formula("Surv(t, d) ~ 1", frame.loc[frame.index.repeat(frame["w"])], family="cox")
    ends = [one.model.likelihood.parameters["ends"].value for one in (of_weights, of_rows)]
    np.testing.assert_array_equal(*ends)
    np.testing.assert_array_equal(ends[0], [2.5, 3.2])


@pytest.mark.parametrize(
    ("text", "family", "message"),
    [
        ("Surv(x + 1, 0 * n) ~ 1", "cox", "needs Surv.* with an event, and no intervals; got .* with 0 events"),
        ("n ~ x", "truncated_poisson", "counts of 1 or more; got 0 in row 0"),
        ("y ~ x", "hurdle_gamma", "y other than 0: .*row"),
        ("y ~ x", "zero_one_inflated_beta", "y other than 0 and 1: "),
    ],
)
def test_another_y_is_refused(text, family, message):
    frame = pd.DataFrame({"n": np.arange(6.0), "x": np.arange(6.0), "y": np.linspace(-1.0, 2.0, 6)})
    with pytest.raises(ValueError, match=message):
        pgm.formula(text, frame, family=family).fit()


def test_the_slant_of_skewed_data_is_found():
    y = -stats.skewnorm(5.0, 1.0, 2.0).rvs(400, random_state=0)
    summary = pgm.formula("y ~ 1", pd.DataFrame({"y": y}), family="skew_normal").fit().summary()
    alpha, location, omega = stats.skewnorm.fit(y)
    assert summary.loc["alpha", "mean"] == pytest.approx(alpha, abs=1.0)
    assert summary.loc["Intercept", "mean"] == pytest.approx(stats.skewnorm(alpha, location, omega).mean(), abs=0.05)


def test_weights_of_precisions_and_known_parts_of_noise(tmp_path):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(size=40), "w": rng.uniform(0.2, 5.0, 40)})
    frame["y"] = 1.0 + 2.0 * frame["x"] + rng.normal(size=40) / np.sqrt(frame["w"])
    frame["s"] = np.sqrt(1.0 / frame["w"])
    # As lm(y ~ x, weights = w): the normal equations, and the residual variance of 38 degrees of freedom.
    B, W = np.column_stack([np.ones(40), frame["x"]]), np.diag(frame["w"])
    beta = np.linalg.solve(B.T @ W @ B, B.T @ W @ frame["y"])
    left = frame["y"] - B @ beta
    errors = np.sqrt(np.diag(np.linalg.inv(B.T @ W @ B)) * (frame["w"] @ left**2 / 38.0))
    result = pgm.formula("y ~ x", frame, weights="w", weights_kind="precision").fit()
    summary = result.summary()
    np.testing.assert_allclose(summary["mean"][:2].astype(float), beta, atol=0.01)
    np.testing.assert_allclose(summary["sd"][:2].astype(float), errors, rtol=0.05)
    loaded = pgm.load_formula(result.save(tmp_path / "fit.npz"))
    pd.testing.assert_frame_equal(loaded.predictions(frame[:3]), result.predictions(frame[:3]))
    # A known standard deviation and one that is learned: here that is next to nothing.
    known = pgm.formula("y | se(s) ~ x", frame).fit().summary()
    partly = pgm.formula("y | se(s, sigma=True) ~ x", frame).fit().summary()
    np.testing.assert_allclose(partly["mean"][:2].astype(float), known["mean"][:2].astype(float), atol=0.03)
    assert partly.loc["sigma", "mean"] < 0.4
    with pytest.raises(ValueError, match="weights_kind='precision' needs weights, family='gaussian'"):
        pgm.formula("y ~ x", frame, weights_kind="precision")
    with pytest.raises(ValueError, match="weights_kind must be 'frequency' or 'precision'"):
        pgm.formula("y ~ x", frame, weights="w", weights_kind="lm")
