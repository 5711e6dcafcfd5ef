"""Times as responses of formulas: R's Surv, against densities of SciPy and maxima of truncated likelihoods."""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import optimize, stats

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density

pytest.importorskip("formulaic")

N = 200
RNG = np.random.default_rng(21)
X = RNG.normal(size=N)
SHAPE, LEVEL, SLOPE = 1.4, 1.0, 0.5
# People who enter late are seen only if they have no event before.
ENTRY = np.where(np.arange(N) % 4 == 0, 0.0, RNG.uniform(0.0, 3.0, N))
LAWS = {
    "weibull": lambda f, shape=SHAPE: stats.weibull_min(shape, scale=np.exp(f)),
    "loglogistic": lambda f, shape=SHAPE: stats.fisk(shape, scale=np.exp(f)),
}


def late(family, seed=1):
    """Times after their entry, the last ones censored."""
    law = LAWS[family](LEVEL + SLOPE * X)
    time = law.isf(law.sf(ENTRY) * np.random.default_rng(seed).uniform(size=N))
    end = ENTRY + 4.0
    return pd.DataFrame({"x": X, "entry": ENTRY, "exit": np.minimum(time, end), "died": (time <= end).astype(int)})


@pytest.mark.parametrize("family", LAWS)
@pytest.mark.parametrize("is_censored", [True, False])
def test_time_after_an_entry_has_its_density_over_the_survival_until_then(family, is_censored):
    data = late(family)
    data = data if is_censored else data[data["died"] == 1].reset_index(drop=True)
    regression = pgm.formula("Surv(entry, exit, died) ~ x", data, family=family, priors={"shape": pgm.Fixed(SHAPE)})
    np.testing.assert_allclose(regression.y, data[["exit", "died", "entry"]])
    f = np.random.default_rng(0).normal(size=len(data))
    law, died = LAWS[family](f), data["died"].to_numpy()
    expected = np.where(died == 1, law.logpdf(data["exit"]), law.logsf(data["exit"])) - law.logsf(data["entry"])
    np.testing.assert_allclose(log_density(regression.model.likelihood, regression.y, f[:, None]), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", LAWS)
def test_fit_of_late_entries_is_at_the_maximum_of_the_truncated_likelihood(family):
    data = late(family)
    wide = {"Intercept": dist.Normal(0.0, 100.0), "x": dist.Normal(0.0, 100.0)}
    shape = {"shape": dist.LogNormal(0.0, 100.0)}
    result = pgm.formula("Surv(entry, exit, died) ~ x", data, family=family, priors=wide | shape).fit()

    def loss(values):
        law = LAWS[family](values[0] + values[1] * X, np.exp(values[2]))
        died = data["died"] == 1
        return -np.sum(np.where(died, law.logpdf(data["exit"]), law.logsf(data["exit"])) - law.logsf(ENTRY))

    best = optimize.minimize(loss, [0.5, 0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    curvature = hessian(loss, best.x)
    spread = np.sqrt(np.diag(np.linalg.inv(curvature)))
    summary = result.summary()
    # Means and modes differ by a share of the deviations.
    np.testing.assert_allclose(summary["mean"].iloc[:2], best.x[:2], atol=0.25 * spread.max())
    np.testing.assert_allclose(summary["sd"].iloc[:2], spread[:2], rtol=0.1)
    assert np.log(summary.loc["shape", "mean"]) == pytest.approx(best.x[2], abs=0.5 * spread[2])
    # Without the entries the shape is far off.
    wrong = pgm.formula("Surv(exit, died) ~ x", data, family=family, priors=wide | shape).fit().summary()
    assert wrong.loc["shape", "mean"] > np.exp(best.x[2] + 2.0 * spread[2])


def hessian(loss, x, step=1e-4):
    eye = step * np.eye(len(x))
    return np.array(
        [
            [(loss(x + a + b) - loss(x + a - b) - loss(x - a + b) + loss(x - a - b)) / (4 * step**2) for b in eye]
            for a in eye
        ]
    )


def test_rate_after_entries_is_events_over_the_time_at_risk():
    """With shape 1 the posterior of exp(-f) under a wide prior has the mean of events over exposure."""
    data = late("weibull").assign(x=0.0)
    priors = {"Intercept": dist.Normal(0.0, 1e3), "shape": pgm.Fixed(1.0)}
    result = pgm.formula("Surv(entry, exit, died) ~ 1", data, family="weibull", priors=priors).gaussian_vi()
    events, exposure = data["died"].sum(), (data["exit"] - data["entry"]).sum()
    # f is log-gamma; the Gaussian of least divergence has the variance 1 / d and this mean.
    expected = np.log(exposure / events) + 0.5 / events
    assert result.summary().loc["Intercept", "mean"] == pytest.approx(expected, abs=1e-5)
    assert result.summary().loc["Intercept", "sd"] == pytest.approx(events**-0.5, rel=1e-4)


def test_predictions_of_new_data_are_of_times_without_an_entry():
    data = late("weibull")
    priors = {"shape": pgm.Fixed(2.0), "Intercept": dist.Normal(0.0, 3.0), "x": dist.Normal(0.0, 2.0)}
    result = pgm.formula("Surv(entry, exit, died) ~ x", data, family="weibull", priors=priors).gaussian_vi()
    new = pd.DataFrame({"x": [0.3, -1.0]})
    mean, variance = result.result.predict_latent(result.regression.read(new)[0])
    # The mean of a Weibull time is exp(f) gamma(1 + 1/shape).
    expected = np.exp(mean[:, 0] + variance[:, 0] / 2) * np.sqrt(np.pi) / 2
    # A thousand draws.
    np.testing.assert_allclose(result.predictions(new)["mean"], expected, rtol=0.02)


INTERVALS = pd.DataFrame(
    {
        "lower": [1.0, np.nan, 2.0, 3.0, -np.inf, 0.0, 2.5],
        "upper": [2.0, 1.5, np.nan, 3.0, 4.0, 0.5, np.inf],
        "x": np.arange(7.0),
    }
)
EXPECTED = [[1, 3, 2], [1.5, 2, 1.5], [2, 0, 2], [3, 1, 3], [4, 2, 4], [0.5, 2, 0.5], [2.5, 0, 2.5]]


@pytest.mark.parametrize("missing", ["raise", "drop", "predict"])
def test_intervals_have_open_ends_that_are_not_missing(missing):
    text = "Surv(lower, upper, type='interval2') ~ x"
    regression = pgm.formula(text, INTERVALS, family="loglogistic", missing=missing)
    np.testing.assert_allclose(regression.y, EXPECTED)
    f = np.linspace(-1.0, 1.0, 7)
    law = LAWS["loglogistic"](f)
    at = lambda column, end: law.cdf(np.nan_to_num(INTERVALS[column], nan=end, posinf=end, neginf=0.0))  # noqa: E731
    exact = INTERVALS["lower"] == INTERVALS["upper"]
    expected = np.where(exact, law.pdf(INTERVALS["upper"].fillna(1.0)), at("upper", np.inf) - at("lower", 0.0))
    fixed = pgm.formula(text, INTERVALS, family="loglogistic", priors={"shape": pgm.Fixed(SHAPE)}).model.likelihood
    np.testing.assert_allclose(log_density(fixed, regression.y, f[:, None]), np.log(expected), rtol=1e-9)


def test_codes_of_intervals_are_those_of_r_and_need_a_second_time_for_code_3_alone():
    data = pd.DataFrame(
        {
            "time": [1.0, 2.0, 3.0, 4.0, 5.0],
            "time2": [np.nan, np.nan, np.nan, 6.0, np.nan],
            "code": [0, 1, 2, 3, 3],
            "x": np.arange(5.0),
        }
    )
    text = "Surv(time, time2, code, type='interval') ~ x"
    with pytest.warns(pgm.FormulaWarning, match=r"1 of 5 rows.*row 4, column 'time2'"):
        regression = pgm.formula(text, data, family="weibull", missing="drop")
    np.testing.assert_allclose(regression.y, [[1, 0, 1], [2, 1, 2], [3, 2, 3], [4, 3, 6]])
    assert pgm.formula(text, data, family="weibull", missing="predict").y[:4].tolist() == regression.y.tolist()
    with pytest.raises(ValueError, match=r"1 of 5 rows have no value.*row 4, column 'time2'"):
        pgm.formula(text, data, family="weibull")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Surv(exit, died)", ["exit", "died"]),
        ("Surv(time=exit, event=died)", ["exit", "died"]),
        ("Surv(time = entry, time2 = exit, event = died)", ["exit", "died", "entry"]),
        ("Surv(exit, status == 2)", ["exit", "died"]),
        ("Surv(exit, outcome == 'dead')", ["exit", "died"]),
        ("Surv(exit)", ["exit", "one"]),
        ("Surv(exit, died, type='left')", ["exit", "left", "exit"]),
        ("Surv(exit / 12, died)", ["months", "died"]),
    ],
)
def test_forms_of_surv_are_those_of_r(response, expected):
    data = late("weibull")
    data = data.assign(
        status=1 + data["died"],
        outcome=np.where(data["died"] == 1, "dead", "alive"),
        one=1,
        left=2 - data["died"],
        months=data["exit"] / 12.0,
    )
    np.testing.assert_allclose(pgm.formula(f"{response} ~ x", data, family="weibull").y, data[expected])


@pytest.mark.parametrize(
    ("response", "family", "message"),
    [
        ("Surv(entry, exit, code)", "weibull", r"code in .* must be 0 or 1; got 2 .* codes of intervals need type="),
        ("Surv(exit, code)", "weibull", r"code in Surv\(exit, code\) must be 0 or 1.*as in code == 2"),
        ("Surv(exit, outcome)", "weibull", "outcome must be numbers; got .* as in outcome == 'a'"),
        ("Surv(exit, entry, died)", "weibull", "must have an entry from 0 to below the exit; got"),
        ("Surv(exit, entry, type='interval2')", "weibull", "must have a lower end that is not above the upper one"),
        ("Surv(9**9**9)", "weibull", r"data, Surv\(9\*\*9\*\*9\) must be finite; got inf"),
        ("Surv(exit, died, type='interval')", "weibull", "must be one of Surv"),
        ("Surv(exit, died, type='mstate')", "weibull", "must be one of Surv"),
        ("Surv(exit, died, origin=3)", "weibull", r"write Surv\(time, event\), Surv\(entry, exit, event\)"),
        ("Surv(exit, died)", "gaussian", "Times need family='weibull' or 'loglogistic'"),
        ("Surv(exit, died)", "poisson", "response of family 'poisson' is a column"),
        ("exit", "weibull", r"is Surv\(time, event\), or Surv\(time\) if all are events; got exit"),
        ("exit | cens(died)", "weibull", r"times Surv\(time, 1 - censored\)"),
    ],
)
def test_times_that_cannot_be_read_are_refused_with_a_remedy(response, family, message):
    data = late("weibull").assign(code=lambda one: one["died"] + 1, outcome="dead")
    with pytest.raises(ValueError, match=message):
        pgm.formula(f"{response} ~ x", data, family=family).gaussian_vi()


def test_file_of_late_entries_predicts_the_same(tmp_path):
    priors = {"shape": pgm.Fixed(1.4)}
    result = pgm.formula("Surv(entry, exit, died) ~ x", late("weibull"), family="weibull", priors=priors).gaussian_vi()
    other = pgm.load_formula(result.save(tmp_path / "fit.npz"))
    new = pd.DataFrame({"x": [0.3]})
    np.testing.assert_allclose(other.predictions(new)["mean"], result.predictions(new)["mean"], rtol=1e-10)
