"""Writes the golden files, run with the code whose files are to be kept readable: see README.md."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpyro.distributions as dist

import pgmodels as pgm

RNG = np.random.default_rng(41)
X = RNG.uniform(-2.0, 2.0, (10, 2))
NEW = RNG.uniform(-2.0, 2.0, (3, 2))
LABELS = (X[:, 0] > 0.1).astype(float)
CLASSES = np.arange(10.0) % 3
COUNTS = np.array([0.0, 3.0, 1.0, 0.0, 7.0, 2.0, 1.0, 4.0, 0.0, 2.0])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 1.0, 3.0, 1.0, 0.0, 1.0, 1.5])


@pgm.likelihood(support=pgm.Classes(3), num_latents=3)
def softmax(y, f):
    return pgm.exp(f[y]) / pgm.sum(pgm.exp(f))


@pgm.likelihood(support=pgm.Binary(), num_latents=2)
def tilted(y, f, tilt=pgm.Parameter(0.7)):
    return pgm.sigmoid(f[0] + tilt * f[1]) ** y * pgm.sigmoid(-f[0] - tilt * f[1]) ** (1 - y)


# The formulas that ``pgm.load`` is given.
FORMULAS = {"gaussian_vi_softmax": softmax, "cavi_coupled": tilted, "svi_coupled": tilted}


def rbf(**options):
    return pgm.GP(pgm.RBF(1.7, np.array([0.9, 1.3])), mean=0.3, **options)


def composite():
    preference = pgm.Difference(pgm.Matern32(0.4, 0.8), [0], [1])
    prior = dist.Gamma(3.0, 2.0)
    return [
        pgm.GP(pgm.On(pgm.RBF(1.4, pgm.Parameter(0.9, prior=prior)), [1]), mean=0.2, form=pgm.Dense()),
        pgm.GP(preference * pgm.Linear(pgm.Fixed([0.5, 0.2])) + pgm.RationalQuadratic() + pgm.White(0.01)),
    ]


def sampled():
    kernel = pgm.RBF(dist.LogNormal(0.1, 0.3), pgm.Parameter([1.1, 0.8], prior=dist.Gamma(3.0, 2.0)))
    return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=dist.Normal(0.0, 1.0)))


def precise():
    """Data so precise that CAVI uses a more accurate low-rank prior than the model's; its arrays are saved."""
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(1e-4)), pgm.GP(pgm.RBF(1.3, 4.0), mean=0.3))
    inputs = np.linspace(-2.0, 2.0, 24)[:, None]
    return pgm.cavi(model, inputs, np.sin(inputs[:, 0] / 2.0))


def with_arrays(result):
    """The result with another jitter in its prior than the model's, so that the prior's arrays are saved."""
    (group,) = result.prior.groups
    prior = replace(result.prior, groups=(replace(group, jitter=np.asarray(group.jitter) + 1e-14),))
    return replace(result, posterior=replace(result.posterior, prior=prior))


def one_sampled():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.1, 0.3), 1.1)))
    return pgm.integrate(model, X[:4], LABELS[:4], num_draws=256)


def results():
    """Each result to be stored, by name."""
    bernoulli, few = pgm.Model(pgm.Bernoulli(), rbf()), rbf(form=pgm.Inducing(4))
    plain = pgm.cavi(bernoulli, X, LABELS)
    chains = {"num_samples": 4, "num_warmup": 4, "num_chains": 2, "seed": 3}
    return {
        "cavi": plain,
        "cavi_weights_inducing": pgm.cavi(pgm.Model(pgm.NegativeBinomial(2.5), few), X, COUNTS, weights=WEIGHTS),
        "cavi_coupled": pgm.cavi(pgm.Model(tilted(0.8), composite()), X, LABELS),
        "cavi_low_rank_arrays": precise(),
        "cavi_dense_arrays": with_arrays(plain),
        "gaussian_vi_softmax": pgm.gaussian_vi(pgm.Model(softmax(), rbf(size=3)), X, CLASSES),
        "fit": pgm.fit(bernoulli, X, LABELS),
        "linear_response": pgm.correct(plain),
        "svi": pgm.svi(pgm.Model(pgm.Bernoulli(), few), X, LABELS, batch_size=5, seed=2),
        "svi_rows": pgm.svi(pgm.Model(pgm.Bernoulli(), few), pgm.ArrayRows(X, LABELS), batch_size=5, seed=2),
        "svi_coupled": pgm.svi(pgm.Model(tilted(0.8), [few, few]), pgm.ArrayRows(X, LABELS), batch_size=5, seed=2),
        "gibbs": pgm.gibbs(sampled(), X, LABELS, **chains),
        "gibbs_inducing": pgm.gibbs(pgm.Model(pgm.Bernoulli(), few), X, LABELS, **chains),
        "integrate": one_sampled(),
    }


def predictions(result):
    """Predictions of a result at new inputs, as lists."""
    inputs = NEW[:, : result.X.shape[1]] if hasattr(result, "X") else NEW
    predictive = result.predict(inputs)
    latent = result.predict_latent(inputs)
    values = {"mean": predictive.mean, "variance": predictive.variance, "latent": np.stack(latent)}
    return {name: np.asarray(value).tolist() for name, value in values.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    stored = results()
    for name, result in stored.items():
        result.save(folder / f"{name}.npz")
    figures = {name: predictions(result) for name, result in stored.items()}
    (folder / "predictions.json").write_text(json.dumps(figures, indent=1) + "\n")
