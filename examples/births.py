"""
Births by day
=============

Counts of ten years of days as a sum of a trend, a season and effects of weekdays, each with a posterior of its own.

Data: simulated, about 40 births a day, fewer on weekends and most in September; an eleventh year is held out.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import pgmodels as pgm

# %%
# The truth, in logs of the mean.
rng = np.random.default_rng(12)
dates = pd.date_range("2008-01-01", "2018-12-31")
YEAR, NAMES = 365.25, ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
day, weekday = np.arange(len(dates), dtype=float), np.arange(1, len(dates) + 1) % 7
angle = 2.0 * np.pi * (day / YEAR - 0.72)
season = 0.08 * np.exp(3.0 * (np.cos(angle) - 1.0)) + 0.03 * np.cos(2.0 * angle + 1.0)
weekdays = np.array([0.03, 0.08, 0.06, 0.06, 0.04, -0.11, -0.16])
trend = 3.7 + 0.12 * np.sin(day / (1.5 * YEAR)) - 0.04 * np.sin(day / (0.5 * YEAR))
true_mean = np.exp(trend + season + weekdays[weekday])
y = rng.negative_binomial(80.0, 80.0 / (80.0 + true_mean))

# %%
# Three GPs, added up. Trend and season are Markov processes, the effects of weekdays seven coefficients beside them.
# The posterior of all is joint, and takes time that is linear in the days.
# Five harmonics are enough for a season as smooth as this. One start will do, since the values are near.
X = np.column_stack([day, weekday])
known = dates < "2018"
gps = [
    pgm.GP(pgm.On(pgm.Matern32(0.05, 3.0 * YEAR), [0]), mean=3.5, form=pgm.Markov()),
    pgm.GP(pgm.On(pgm.Periodic(0.01, pgm.Fixed(1.0), pgm.Fixed(YEAR), harmonics=5), [0]), form=pgm.Markov()),
    pgm.GP(pgm.On(pgm.White(0.01), [1])),
]
model = pgm.Model(pgm.with_predictor(pgm.NegativeBinomial2(50.0), 3), gps)
fitted = pgm.fit(model, X[known], y[known], num_starts=1, tolerance=1e-6)
print(f"Learned: {fitted.model.likelihood}")
for gp in fitted.model.gps:
    print(f"  {gp.kernel}")

# %%
# Draws of the three parts, at the data and in the year after them. Their constants could move from one to another:
# season and weekdays are shown about their means over four years and a week, which the trend takes over.


def centred(terms):
    season_mean = terms[..., :1461, 1:2].mean(axis=-2, keepdims=True)
    weekdays_mean = terms[..., :7, 2:3].mean(axis=-2, keepdims=True)
    return terms + np.concatenate([season_mean + weekdays_mean, -season_mean, -weekdays_mean], axis=-1)


terms = centred(fitted.draw_latents(X, 200, seed=0))
true_terms = centred(np.stack([trend, season, weekdays[weekday]], axis=-1))
low, middle, high = np.quantile(terms, [0.05, 0.5, 0.95], axis=0)
inside = (low < true_terms) & (true_terms < high)
for name, where, latent in (("trend", known, 0), ("season", day < 1461, 1), ("weekdays", day < 7, 2)):
    print(f"90 % bands of the {name} cover {inside[where, latent].mean():.0%} of the truth")

predicted = fitted.predict(X[~known])
error = np.sqrt(np.mean((predicted.mean - true_mean[~known]) ** 2))
print(
    f"Held-out year: root mean square error of the mean {error:.1f}, spread of the mean {true_mean[~known].std():.1f}"
)

# %%
# The counts around the end of the known years, which is a grey line, and the parts beside the truth.
figure, panels = plt.subplots(2, 2, figsize=(9.0, 5.4), layout="constrained")
(by_day, by_trend), (by_season, by_weekday) = panels
near = (dates >= "2017-10") & (dates < "2018-04")
by_day.plot(dates[near], y[near], ".", color="0.5", markersize=4, label="count")
by_day.plot(dates[near], fitted.predict(X[near]).mean, linewidth=1.0, label="mean")
by_day.plot(dates[near], true_mean[near], "--", color="0.3", linewidth=1.0, label="truth")
by_day.set(title="Births a day", xticks=pd.date_range("2017-10", "2018-04", freq="2MS"), ylim=(None, 77.0))
for axes, rows, x, latent in ((by_trend, day >= 0.0, dates, 0), (by_season, day < 366, 1.0 + 12.0 * day / 366, 1)):
    axes.fill_between(x[rows], low[rows, latent], high[rows, latent], alpha=0.3, label="90 %")
    axes.plot(x[rows], middle[rows, latent], label="median")
    axes.plot(x[rows], true_terms[rows, latent], "--", color="0.3", linewidth=1.0, label="truth")
by_trend.set(title="Trend", ylabel="log of births")
by_season.set(title="Season", xlabel="month", ylabel="log of births", xticks=range(1, 13, 2))
for axes in (by_day, by_trend):
    axes.axvline(dates[known][-1], color="0.6", linewidth=0.8)
ends = np.abs(np.stack([low, high]) - middle)[:, :7, 2]
by_weekday.errorbar(weekday[:7], middle[:7, 2], ends, fmt="o", markersize=4, label="median, 90 %")
by_weekday.plot(weekday[:7], true_terms[:7, 2], "x", color="0.3", label="truth")
by_weekday.set(title="Weekday", xticks=range(7), xticklabels=NAMES)
for axes in panels.flat:
    axes.legend(frameon=False, fontsize="x-small", ncols=3 if axes is by_day else 1)
