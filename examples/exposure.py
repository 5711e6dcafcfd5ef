"""Counts with an exposure: events in places of different size, their rate and its overdispersion learned.

Data: simulated, 90 places with 1 to 50 thousand inhabitants each.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import pgmodels as pgm

FIGURES = Path(__file__).parent / "figures"
FIGURES.mkdir(exist_ok=True)


# y[0] is a count, y[1] > 0 its exposure: the mean is y[1] exp(f), and the variance mean + mean^2 / dispersion.
@pgm.likelihood(
    support=pgm.Given(pgm.Counts(), pgm.Positive()),
    mean=lambda y, f, dispersion: y[1] * pgm.exp(f),
    variance=lambda y, f, dispersion: y[1] * pgm.exp(f) * (1 + y[1] * pgm.exp(f) / dispersion),
)
def events(y, f, dispersion=pgm.Parameter(1.0, positive=True)):
    z = f + pgm.log(y[1]) - pgm.log(dispersion)
    ways = pgm.gamma(y[0] + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** dispersion


rng = np.random.default_rng(9)
place = np.sort(rng.uniform(0.0, 10.0, 90))
thousands = np.round(np.exp(rng.uniform(0.0, np.log(50.0), 90)), 1)
rate = lambda x: np.exp(0.2 + np.sin(x))  # noqa: E731
count = rng.poisson(thousands * rate(place) * rng.gamma(5.0, 1.0 / 5.0, 90))
X, y = place[:, None], np.column_stack([count, thousands])

model = pgm.Model(events(), pgm.GP(pgm.RBF(1.0, 1.5), mean=0.0))
print(pgm.derive(model).verify(seed=0))
fitted = pgm.fit(model, X, y)
print(f"Learned: {fitted.model.likelihood}, the data were made with 5; {fitted.model.gps[0].kernel}")
draws = pgm.gibbs(fitted.model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=fitted, X=X, y=y))

# A prediction is for an exposure: here for a place of a thousand.
grid = np.linspace(0.0, 10.0, 101)
f = draws.draw_marginals(grid[:, None], common_noise=True)[..., 0]
expected = draws.predict(grid[:, None], covariates=np.ones(101)).mean
figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
axes.scatter(place, count / thousands, s=2.0 * thousands, color="0.6", label="counts per thousand, by size")
axes.fill_between(grid, *np.exp(np.quantile(f, [0.025, 0.975], axis=0)), alpha=0.25, label="95 % (gibbs)")
axes.plot(grid, expected, label="expected count of a thousand")
axes.plot(grid, rate(grid), color="0.2", linewidth=1.0, linestyle="--", label="the true rate")
axes.set(xlabel="place", ylabel="events per thousand", title="A rate from counts and exposures", ylim=(0.0, 8.0))
axes.legend(loc="upper center", fontsize="x-small")
figure.savefig(FIGURES / "exposure_rate.png", dpi=100)
