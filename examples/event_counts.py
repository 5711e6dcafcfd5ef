"""
Events over time
================

The rate of rare events from the days on which they happened, with bands that are corrected by linear response.

Data: the 191 explosions in British coal mines that killed ten men or more, from 1851 to 1962, by their days (Jarrett,
Biometrika 66, 1979): each number is the days since the explosion before, and the first was on 15 March 1851.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import pgmodels as pgm

GAPS = """
157 123 2 124 12 4 10 216 80 12 33 66 232 826 40 12 29 190 97 65 186 23 92 197 431 16 154 95 25 19 78 202 36 110 276 16
88 225 53 17 538 187 34 101 41 139 42 1 250 80 3 324 56 31 96 70 41 93 24 91 143 16 27 144 45 6 208 29 112 43 193 134
420 95 125 34 127 218 2 0 378 36 15 31 215 11 137 4 15 72 96 124 50 120 203 176 55 93 59 315 59 61 1 13 189 345 20 81
286 114 108 188 233 28 22 61 78 99 326 275 54 217 113 32 388 151 361 312 354 307 275 78 17 1205 644 467 871 48 123 456
498 49 131 182 255 194 224 566 462 228 806 517 1643 54 326 1312 348 745 217 120 275 20 66 292 4 368 307 336 19 329 330
312 536 145 75 364 37 19 156 47 129 1630 29 217 7 18 1358 2366 952 632
"""
first, last, day = pd.Timestamp("1851-01-01"), pd.Timestamp("1962-12-31"), pd.Timedelta(days=1)
events = np.cumsum([(pd.Timestamp("1851-03-15") - first).days, *map(int, GAPS.split())])

# %%
# Learned from counts a week: the mean of a count is bounded, RATE · σ(f), by an event in 50 days. As a Markov process
# the GP is exact for all 5,844 weeks.
YEAR, RATE = 365.25, 0.02
weeks = pd.DataFrame({"date": pd.date_range(first, last, freq=7 * day)})
by_week = np.bincount(events // 7, minlength=len(weeks))
kernel = pgm.On(pgm.Matern32(1.0, 10.0 * YEAR), ["date"])
model = pgm.Model(pgm.SigmoidPoisson(pgm.Fixed(7.0 * RATE)), pgm.GP(kernel, mean=-1.0, form=pgm.Markov()))
fitted = pgm.fit(model, weeks, by_week, correct=False)
learned = fitted.model.gps[0]
print(f"Learned from {len(weeks):,} weeks: {learned}")

# %%
# Then day by day: 40,907 rows, a count of 0, 1 or 2 each. CAVI's variances are too small, since it takes the auxiliary
# variables to be independent of the latent; linear response mends that in one more pass along the chain.
days = pd.DataFrame({"date": pd.date_range(first, last)})
by_day = np.bincount(events, minlength=len(days))
q = pgm.cavi(pgm.Model(pgm.SigmoidPoisson(pgm.Fixed(RATE)), learned).fixed(), days, by_day)
corrected = pgm.correct(q)
print(f"{len(days):,} days, {by_day.sum()} events, at most {by_day.max()} a day")

# %%
# The sampler, from the weeks, at the same hyperparameters: of each week's first day.
draws = pgm.gibbs(
    fitted.model.fixed(), weeks, by_week, num_samples=300, num_warmup=50, num_chains=2, keep="moments", seed=0
)
reference = np.sqrt(draws.variance[:, 0])
for name, result in (("cavi", q), ("corrected", corrected)):
    ratio = np.sqrt(result.variance[::7, 0]) / reference
    print(f"{name:9}: standard deviations {ratio.mean():.2f} of those of gibbs (ref.) on average")

# %%
# The rate of events a year. σ is monotone, so that quantiles of the latent are quantiles of the rate.
shown = pd.DataFrame({"date": pd.date_range(first, last, freq=28 * day)})


def rates(result, z):
    mean, variance = result.predict_latent(shown)
    return YEAR * RATE / (1.0 + np.exp(-(mean[:, 0] + z * np.sqrt(variance[:, 0]))))


years = np.arange(first.year, last.year + 1)
by_year = np.bincount(pd.DatetimeIndex(first + events * day).year - first.year, minlength=len(years))
figure, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
middles = pd.to_datetime([f"{year}-07-01" for year in years])
axes.bar(middles, by_year, width=330.0, color="0.85", label="events a year")
axes.fill_between(shown["date"], rates(corrected, -1.645), rates(corrected, 1.645), alpha=0.3, label="90 %, corrected")
for z in (-1.645, 1.645):
    axes.plot(shown["date"], rates(q, z), "C0:", linewidth=1.0, label="90 %, cavi" if z < 0.0 else None)
axes.plot(shown["date"], rates(corrected, 0.0), "C0", label="posterior median")
axes.plot(first + events * day, np.full(len(events), -0.2), "|", color="0.3", markersize=5, label="an event")
axes.set(xlabel="year", ylabel="events a year", title="Explosions in coal mines, modelled day by day")
axes.legend(frameon=False, fontsize="small")
