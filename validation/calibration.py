"""Simulation-based calibration of CAVI and of the variational Gaussian, with and without linear response.

Usage: python validation/calibration.py [LIKELIHOOD ...]: those whose name has one of the words. An hour on one core.
"""

import argparse
import warnings
from collections.abc import Callable

import jax
import numpy as np
from table import write_table

import pgmodels as pgm
from pgmodels.diagnostics.vsbc import Calibration
from pgmodels.language.sampling import draw_observations
from pgmodels.latent.drawing import draw_latents

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("words", nargs="*")
parser.add_argument("--replicates", type=int, default=100)
parser.add_argument("--rows", type=int, default=40)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

LIKELIHOODS: dict[str, Callable[[], pgm.Likelihood]] = {
    "Bernoulli": lambda: pgm.Bernoulli(),
    "Probit": lambda: pgm.Probit(),
    "Binomial": lambda: pgm.Binomial(),
    "negative binomial": lambda: pgm.NegativeBinomial(4.0),
    "sigmoid-Poisson": lambda: pgm.SigmoidPoisson(8.0),
    "Student-t": lambda: pgm.StudentT(4.0, 0.4),
    "Laplace": lambda: pgm.Laplace(0.4),
    "Gaussian": lambda: pgm.Gaussian(0.4),
    "stick-breaking": lambda: pgm.StickBreaking(3),
    "heteroscedastic": lambda: pgm.HeteroscedasticGaussian(8.0),
    "logistic-softmax": lambda: pgm.LogisticSoftmax(3),
}
LABELS = ("CAVI", "CAVI + LR", "Gaussian", "Gaussian + LR")


def results_of(model: pgm.Model, X: np.ndarray, y: np.ndarray) -> list[pgm.Approximation]:
    """Both approximations, each as it is and corrected."""
    found = []
    for engine in (pgm.cavi, pgm.gaussian_vi):
        result = engine(model, X, y)
        found += [result, pgm.correct(result)]
    return found


def rows_of(name: str) -> list[dict[str, object]]:
    """A row for each approximation, of data sets drawn from the model."""
    rng = np.random.default_rng(options.seed)
    X = rng.uniform(-2.0, 2.0, (options.rows, 1))
    likelihood = LIKELIHOODS[name]()
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(4.0, 0.8), mean=0.3, size=likelihood.num_latents or 1))
    with jax.enable_x64(True):
        f, _ = draw_latents(model.prior(X), options.replicates, options.seed)
        trials = np.full((options.rows, 1), 5.0) if name == "Binomial" else None
        drawn = draw_observations(likelihood, f, trials, rng)
    z = np.empty((len(LABELS), *f.shape))
    for replicate, (latents, y) in enumerate(zip(f, drawn, strict=True)):
        observed = y if trials is None else np.column_stack([y, trials])
        for k, result in enumerate(results_of(model, X, observed)):
            with np.errstate(invalid="ignore"):
                z[k, replicate] = (latents - result.mean) / np.sqrt(result.variance)
    found = []
    for label, own in zip(LABELS, z, strict=True):
        finite = np.isfinite(own).all(axis=(1, 2))
        # All latents of a replicate side by side: one standard error for each figure.
        flat = own[finite].reshape(int(finite.sum()), -1, 1)
        figures = Calibration(z=flat, exact=flat[:, None], num_failed=int((~finite).sum()), num_unconverged=0)
        pairs = {"bias": figures.bias, "rms": figures.dispersion}
        pairs |= {f"{level} % interval": [part[i] for part in figures.coverage] for i, level in enumerate((50, 90))}
        row: dict[str, object] = {"likelihood": name, "approximation": label}
        row |= {word: f"{value[0]:.3f} +- {error[0]:.3f}" for word, (value, error) in pairs.items()}
        found.append(row | {"no covariance": figures.num_failed})
        print(found[-1], flush=True)
    return found


chosen = [name for name in LIKELIHOODS if not options.words or any(word in name for word in options.words)]
with warnings.catch_warnings():
    # Of data sets in which a class is not seen, or a response is no covariance: the latter are counted.
    warnings.simplefilter("ignore")
    table = [row for name in chosen for row in rows_of(name)]
write_table(
    "Simulation-based calibration of approximations, with linear response (LR) and without",
    table,
    f"{options.replicates} data sets of {options.rows} rows drawn from the model: RBF kernel, variance 4, lengthscale "
    "0.8 over (-2, 2), mean 0.3. z = (f - m) / sqrt(v) of the latents behind them: bias is its mean (above 0, means "
    "are too low), rms its root mean square (above 1, too narrow or off), and the shares inside central intervals "
    "follow. Standard errors count data sets. An exact posterior has 0, 1, 0.5 and 0.9. No covariance: data sets left "
    "out, where a corrected variance is not positive.",
    seed=options.seed,
)
