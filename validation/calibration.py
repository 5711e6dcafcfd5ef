"""Simulation-based calibration of CAVI and of the variational Gaussian, with and without linear response.

Usage: python validation/calibration.py [LIKELIHOOD ...]: those whose name has one of the words. Half an hour on one
core. The table is written anew after each likelihood.
"""

import argparse
import warnings
from collections.abc import Callable

import jax
import numpy as np
from own_likelihoods import log_poisson, softmax
from table import write_table

import pgmodels as pgm
from pgmodels.diagnostics.vsbc import LEVELS, Calibration
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.priors.block_posterior import draw_latents

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("words", nargs="*")
parser.add_argument("--replicates", type=int, default=1000)
parser.add_argument("--rows", type=int, default=40)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

MEAN = 0.3
# A deviation of so many standard errors is detected.
DETECTED = 3.0


LIKELIHOODS: dict[str, Callable[[], pgm.Likelihood]] = {
    "Bernoulli": lambda: pgm.Bernoulli(),
    "Probit": lambda: pgm.Probit(),
    "Binomial": lambda: pgm.Binomial(),
    "negative binomial": lambda: pgm.NegativeBinomial(4.0),
    "sigmoid-Poisson": lambda: pgm.SigmoidPoisson(8.0),
    "log-link Poisson": lambda: log_poisson(),
    "Student-t": lambda: pgm.StudentT(4.0, 0.4),
    "Laplace": lambda: pgm.Laplace(0.4),
    "Gaussian": lambda: pgm.Gaussian(0.4),
    "stick-breaking": lambda: pgm.StickBreaking(3),
    "heteroscedastic": lambda: pgm.HeteroscedasticGaussian(8.0),
    "logistic-softmax": lambda: pgm.LogisticSoftmax(3),
    "exponential softmax": lambda: softmax(),
}
# How many latents there are where the likelihood itself does not say.
SIZES = {"logistic-softmax": 3, "exponential softmax": 3}
ENGINES = {"CAVI": pgm.cavi, "Gaussian": pgm.gaussian_vi}


class Moments:
    """Means and variances of an approximation in every data set, NaN where there are none."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.variance = np.full(shape, np.nan), np.full(shape, np.nan)
        self.unconverged = 0

    def keep(self, replicate: int, result: pgm.Approximation) -> None:
        """Those of one data set; none where a corrected covariance is none."""
        if getattr(result, "is_positive", True) and (result.variance > 0).all():
            self.mean[replicate], self.variance[replicate] = result.mean, result.variance
            self.unconverged += not result.converged

    def row(self, f: np.ndarray) -> dict[str, object]:
        """What is found of them beside the latents behind the data."""
        known = np.isfinite(self.mean).all(axis=(1, 2))
        missed, centred = (f - self.mean)[known], self.mean[known] - MEAN
        # All latents of a replicate side by side: one standard error for each figure.
        z = (missed / np.sqrt(self.variance[known])).reshape(int(known.sum()), -1, 1)
        figures = Calibration(z=z, exact=z[:, None], num_failed=int((~known).sum()), num_unconverged=self.unconverged)
        rms, error = figures.dispersion
        shares = [(part[0] - level, spread[0]) for part, spread, level in zip(*figures.coverage, LEVELS, strict=True)]
        return {
            "bias": _cell(*(part[0] for part in figures.bias)),
            "shrinkage": _cell(*_slope(missed, centred)),
            "rms - 1": _cell(rms[0] - 1.0, error[0]),
            "50 % intervals, points": _cell(*(100.0 * part for part in shares[0]), digits=1),
            "90 % intervals, points": _cell(*(100.0 * part for part in shares[1]), digits=1),
            "left out": figures.num_failed,
            "unconverged": figures.num_unconverged,
        }


def _slope(missed: np.ndarray, centred: np.ndarray) -> tuple[float, float]:
    """The slope of f - m in m - MEAN through the origin, and its standard error from replicates as they are."""
    above, below = (np.sum(part * centred, axis=(1, 2)) for part in (missed, centred))
    slope = above.sum() / below.sum()
    scatter = np.sqrt(np.sum((above - slope * below) ** 2) * len(above) / (len(above) - 1))
    return slope, scatter / below.sum()


def _cell(value: float, error: float, digits: int = 3) -> str:
    """A deviation and its standard error, with a star where it is detected; an exact result has neither."""
    star = " *" if abs(value) > DETECTED * error else ""
    return f"{value:+.{digits}f} ± {error:.{digits}f}{star}"


def rows_of(name: str) -> list[dict[str, object]]:
    """A row for each approximation, of data sets drawn from the model."""
    rng = np.random.default_rng(options.seed)
    X = rng.uniform(-2.0, 2.0, (options.rows, 1))
    likelihood = LIKELIHOODS[name]()
    size = SIZES.get(name, likelihood.num_latents or 1)
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(4.0, 0.8), mean=MEAN, size=size))
    with jax.enable_x64(True):
        f, _ = draw_latents(model.prior(X), options.replicates, options.seed)
        trials = np.full((options.rows, 1), 5.0) if name == "Binomial" else None
        drawn = draw_observations(likelihood, f, trials, rng)
    engines = ENGINES if model.is_augmentable else {"Gaussian": pgm.gaussian_vi}
    moments_by_label = {label + more: Moments(f.shape) for label in engines for more in ("", " + LR")}
    for replicate, y in enumerate(drawn):
        observed = y if trials is None else np.column_stack([y, trials])
        for label, engine in engines.items():
            try:
                result = engine(model, X, observed)
            except ValueError as error:
                print(f"{name}, data set {replicate}: {error}", flush=True)
                continue
            moments_by_label[label].keep(replicate, result)
            moments_by_label[f"{label} + LR"].keep(replicate, pgm.correct(result))
    return [
        {"likelihood": name, "approximation": label} | moments.row(f) for label, moments in moments_by_label.items()
    ]


chosen = [name for name in LIKELIHOODS if not options.words or any(word in name for word in options.words)]
table: list[dict[str, object]] = []
for name in chosen:
    with warnings.catch_warnings():
        # Of data sets in which a class is not seen, or a response is no covariance: the latter are counted.
        warnings.simplefilter("ignore")
        table += rows_of(name)
    write_table(
        "Simulation-based calibration of approximations, with linear response (LR) and without",
        table,
        f"{options.replicates} data sets of {options.rows} rows drawn from the model: RBF kernel, variance 4, "
        f"lengthscale 0.8 over (-2, 2), mean {MEAN}; likelihoods of as many latents share those. All cells are "
        "deviations from what an exact posterior has, with standard errors that count data sets; a star marks those "
        "beyond three, as one in 370 is by chance. z = (f - m) / sqrt(v) of the latents behind the data. Bias: mean of "
        f"z (above 0, means are too low). Shrinkage: slope of f - m in m - {MEAN} (above 0, means are too near the "
        "prior's). Rms: root mean square of z, less 1 (above 0, too narrow or off). Intervals: share of latents inside "
        "central ones, less what it should be. Left out: data sets without a finite ELBO, or in which linear response "
        "is no covariance. Unconverged: after 1,000 iterations; they are in.",
        seed=options.seed,
        part="-".join(options.words),
    )
