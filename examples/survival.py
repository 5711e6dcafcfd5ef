"""Survival: times to an event, some of them cut short, and what an input does to them.

A log-logistic time has a Pólya-Gamma augmentation, censored or not. Data: simulated, 150 patients followed for 3 years.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import pgmodels as pgm

FIGURES = Path(__file__).parent / "figures"
FIGURES.mkdir(exist_ok=True)


# y[0] is a time; y[1] is 1 where it ended in an event, 0 where it was cut short. f is the logarithm of the median time.
@pgm.likelihood(support=pgm.Censored())
def log_logistic(y, f, shape=pgm.Parameter(1.0, positive=True)):
    z = shape * (pgm.log(y[0]) - f)
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


rng = np.random.default_rng(6)
age = np.sort(rng.uniform(30.0, 80.0, 150))
log_median = 1.4 - 1.6 / (1.0 + np.exp(-(age - 60.0) / 4.0))
time = np.exp(log_median + rng.logistic(size=150) / 2.2)
followed = rng.uniform(0.5, 3.0, 150)
y = np.column_stack([np.minimum(time, followed), time <= followed])
X = ((age - 55.0) / 15.0)[:, None]
print(f"{np.mean(y[:, 1] == 0):.0%} of the times are censored")

model = pgm.Model(log_logistic(), pgm.GP(pgm.RBF(1.0, 1.0), mean=0.5))
print(pgm.derive(model).verify(seed=0))
fitted = pgm.fit(model, X, y)
print(f"Learned: {fitted.model.likelihood}, the data were made with 2.2; {fitted.model.gps[0].kernel}")
draws = pgm.gibbs(fitted.model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=fitted))

later = draws.predict((np.array([[45.0], [75.0]]) - 55.0) / 15.0).survival(2.0)[:, 0]
print(f"No event within 2 years: {later[0]:.0%} at age 45, {later[1]:.0%} at age 75")

grid = np.linspace(30.0, 80.0, 101)
f = draws.draw_marginals((grid[:, None] - 55.0) / 15.0, common_noise=True)[..., 0]
figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
axes.fill_between(grid, *np.exp(np.quantile(f, [0.025, 0.975], axis=0)), alpha=0.25, label="95 % (gibbs)")
axes.plot(grid, np.exp(f.mean(axis=0)), label="median time")
axes.plot(age, np.exp(log_median), color="0.5", linewidth=1.0, label="the true one")
for event, marker, label in ((1, "o", "event"), (0, "2", "censored")):
    rows = y[:, 1] == event
    axes.plot(age[rows], y[rows, 0], marker, color="0.3", markersize=4, label=label)
axes.set(xlabel="age", ylabel="years", yscale="log", title="Time to the event", ylim=(0.05, 12.0))
axes.legend(loc="lower left", fontsize="x-small", ncols=2)
figure.savefig(FIGURES / "survival_median.png", dpi=100)
