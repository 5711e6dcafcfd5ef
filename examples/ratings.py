"""
Ratings that change
===================

The strengths of players over the years from who won: dynamic Bradley-Terry ratings, each a Markov process in time.

Data: simulated, 2,000 games of six players over eight years.
"""

import matplotlib.pyplot as plt
import numpy as np

import pgmodels as pgm

# %%
# The true strengths: each player has a career with a peak. In a game two players meet, and the better one of the day
# wins more often.
rng = np.random.default_rng(4)
NUM_PLAYERS = 6
peak, length = rng.uniform(0.0, 8.0, NUM_PLAYERS), rng.uniform(1.0, 4.0, NUM_PLAYERS)
level = rng.normal(0.0, 0.5, NUM_PLAYERS)


def strength(years):
    return level + 2.0 * np.exp(-0.5 * ((np.asarray(years)[..., None] - peak) / length) ** 2)


years = rng.uniform(0.0, 8.0, 2000)
first = rng.integers(0, NUM_PLAYERS, len(years))
second = (first + rng.integers(1, NUM_PLAYERS, len(years))) % NUM_PLAYERS
games = np.arange(len(years))
advantage = strength(years)[games, first] - strength(years)[games, second]
won = rng.random(len(years)) < 1.0 / (1.0 + np.exp(-advantage))
y = np.column_stack([won, first, second]).astype(float)


# %%
# A row reads the latents of its two players: f[winner] - f[loser]. The six chains are one joint chain, so that a sweep
# takes time linear in the number of games.
@pgm.likelihood(support=pgm.Given(pgm.Binary(), pgm.Classes(NUM_PLAYERS), pgm.Classes(NUM_PLAYERS)))
def game(y, f):
    z = f[y[1]] - f[y[2]]
    return pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (1 - y[0])


model = pgm.Model(game(), pgm.GP(pgm.Matern32(), size=NUM_PLAYERS, mean=pgm.Fixed(0.0), form=pgm.Markov()))
fitted = pgm.fit(model, years[:, None], y)
print(f"Learned: {fitted.model.gps[0].kernel}")

# %%
# Ratings have no origin: what the games tell is how much better a player is than the others.
grid = np.linspace(0.0, 9.0, 91)
draws = fitted.draw_latents(grid[:, None], 200, seed=0)
draws = draws - draws.mean(axis=2, keepdims=True)
true = strength(grid) - strength(grid).mean(axis=1, keepdims=True)
low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
played = grid <= 8.0
inside = (low < true) & (true < high)
print(f"90 % bands cover {inside[played].mean():.0%} of the true ratings")

best = [int(np.argmax(part[played].max(axis=0))) for part in (middle, true)]
pair = [[best[0], (best[0] + 1) % NUM_PLAYERS]]
chance = fitted.predict([[8.5]], covariates=pair).mean[0]
print(f"Best player by the posterior: {best[0]}; by the true ratings: {best[1]}")
print(f"Half a year later it beats player {pair[0][1]} with probability {chance:.2f}")

figure, axes = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
for player, color in zip(np.argsort(peak)[[0, 2, 5]], ("C0", "C1", "C2"), strict=True):
    axes.fill_between(grid, low[:, player], high[:, player], color=color, alpha=0.2)
    axes.plot(grid, middle[:, player], color=color, label=f"player {player}")
    axes.plot(grid, true[:, player], color=color, linewidth=1.0, linestyle="--")
axes.axvline(8.0, color="0.6", linewidth=0.8)
axes.set(
    ylim=(-1.9, 2.9), xlabel="year", ylabel="rating beyond the mean", title="Three of six ratings; dashed: the truth"
)
axes.legend(frameon=False, fontsize="small", loc="upper right", ncols=3)
