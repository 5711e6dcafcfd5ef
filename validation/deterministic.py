"""Errors of CAVI, the variational Gaussian and both with linear response against a long run, over many models.

Usage: python validation/deterministic.py [ROW ...]: rows whose name has one of the words. Data sets other than
scikit-learn's are read from PGMODELS_DATA or OpenML. Half an hour on two cores.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from own_likelihoods import log_poisson, softmax
from table import write_table

import pgmodels as pgm
from pgmodels.datasets import load
from pgmodels.diagnostics.compare import standard_errors
from pgmodels.results.gaussian import NormalDensity

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("words", nargs="*")
parser.add_argument("--draws", type=int, default=4000, help="kept draws of each of 4 chains")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

Problem = tuple[pgm.Model, np.ndarray, np.ndarray]


def standardised(name: str, rows: int | None = None, columns: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The first rows of a data set in a random order, X standardised."""
    data = load(name, columns)
    order = np.random.default_rng(0).permutation(len(data.X))[:rows]
    X = data.X[order]
    return (X - X.mean(axis=0)) / X.std(axis=0), data.y[order]


def labels(name: str, rows: int | None, columns: list[int] | None, variance: float, lengthscale: float) -> Problem:
    """Two classes."""
    X, y = standardised(name, rows, columns)
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance, lengthscale))), X, y


def wine(likelihood: pgm.Likelihood, variance: float, size: int = 3) -> Problem:
    """Three classes, 118 rows."""
    X, y = standardised("wine", 118)
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(variance, 4.0), size=size)), X, y


def coal(likelihood: pgm.Likelihood, mean: float) -> Problem:
    """Disasters a year."""
    X, y = standardised("coal")
    return pgm.Model(likelihood, pgm.GP(pgm.Matern52(1.0, 0.7), mean=mean)), X, y


def mcycle(likelihood: pgm.Likelihood, *variances: float) -> Problem:
    """Accelerations over time."""
    X, y = standardised("mcycle")
    y = (y - y.mean()) / y.std()
    return pgm.Model(likelihood, [pgm.GP(pgm.RBF(variance, 0.4)) for variance in variances]), X, y


ROWS: dict[str, Callable[[], Problem]] = {
    **{
        f"breast cancer 2-D, n = 200, kernel variance {variance}": lambda variance=variance: labels(
            "breast-cancer", 200, [0, 1], float(variance), 1.5
        )
        for variance in (1, 4, 16, 64)
    },
    "breast cancer 30-D, n = 455, variance 30": lambda: labels("breast-cancer", 455, None, 30.0, 12.4),
    "Pima 8-D, n = 768, variance 4": lambda: labels("pima", None, None, 4.0, 3.0),
    "coal, negative binomial": lambda: coal(pgm.NegativeBinomial(5.0), -1.0),
    "coal, sigmoid-Poisson": lambda: coal(pgm.SigmoidPoisson(6.0), 0.0),
    "coal, Poisson with a log link": lambda: coal(log_poisson(), 0.0),
    "mcycle, Student-t": lambda: mcycle(pgm.StudentT(4.0, 0.4), 1.0),
    "mcycle, Laplace": lambda: mcycle(pgm.Laplace(0.4), 1.0),
    "mcycle, heteroscedastic": lambda: mcycle(pgm.HeteroscedasticGaussian(20.0), 1.0, 2.0),
    "wine, logistic-softmax, variance 1": lambda: wine(pgm.LogisticSoftmax(3), 1.0),
    "wine, logistic-softmax, variance 10": lambda: wine(pgm.LogisticSoftmax(3), 10.0),
    "wine, stick-breaking, variance 4": lambda: wine(pgm.StickBreaking(3), 4.0, 2),
    "wine, softmax, variance 4": lambda: wine(softmax(), 4.0),
}


def distance(draws: pgm.Draws, mean: np.ndarray, variance: np.ndarray) -> float:
    """The mean Wasserstein-1 distance of the draws' marginals from Gaussian ones, in posterior deviations."""
    flat = np.sort(draws.latents.reshape(-1, mean.size), axis=0)
    distances = NormalDensity(mean.ravel(), variance.ravel()).wasserstein(flat)
    return float(np.mean(distances / np.sqrt(draws.variance.ravel())))


def row(name: str, problem: Problem) -> dict[str, object]:
    """Errors of every result at the data, and of the variances at points between them."""
    model, X, y = problem
    sizes = {"num_samples": options.draws, "num_warmup": 500, "num_chains": 4, "seed": options.seed}
    draws = (pgm.gibbs if model.is_augmentable else pgm.nuts)(model, X, y, **sizes)
    between = 0.5 * (X[:50] + X[1:51])
    new_variance = draws.predict_latent(between)[1]
    deviation = np.sqrt(draws.variance)
    mean_error, variance_error = standard_errors(draws.latents)
    figures: dict[str, object] = {"model": name, "mean variance": float(draws.variance.mean())}
    seconds = {}
    for label, engine in (("CAVI", pgm.cavi), ("Gaussian", pgm.gaussian_vi)):
        if label == "CAVI" and not model.is_augmentable:
            columns = ("CAVI, v", "CAVI + LR, v", "CAVI + LR, new v", "CAVI + LR, m", "CAVI, m", "CAVI, W")
            figures |= dict.fromkeys(columns, "")
            continue
        engine(model, X, y)
        start = time.perf_counter()
        result = engine(model, X, y)
        seconds[label] = time.perf_counter() - start
        corrected = pgm.correct(result)
        figures |= {
            f"{label}, v": float(np.mean(np.abs(result.variance - draws.variance))),
            f"{label} + LR, v": float(np.mean(np.abs(corrected.variance - draws.variance))),
            f"{label} + LR, new v": float(np.mean(np.abs(corrected.predict_latent(between)[1] - new_variance))),
            f"{label} + LR, m": float(np.mean(np.abs(corrected.mean - draws.mean) / deviation)),
        }
        if label == "CAVI":
            figures["CAVI, m"] = float(np.mean(np.abs(result.mean - draws.mean) / deviation))
            figures["CAVI, W"] = distance(draws, result.mean, result.variance)
        else:
            figures["Gaussian + LR, W"] = distance(draws, corrected.mean, corrected.variance)
    figures["matched, W"] = distance(draws, draws.mean, draws.variance)
    figures |= {"s.e. v": float(np.mean(variance_error)), "s.e. m": float(np.mean(mean_error / deviation))}
    figures["seconds, Gaussian / CAVI"] = f"{seconds['Gaussian']:.2f} / {seconds.get('CAVI', np.nan):.2f}"
    print(figures, flush=True)
    return figures


chosen = [name for name in ROWS if not options.words or any(word in name for word in options.words)]
write_table(
    "Mean absolute errors of variances (v) and of means in posterior deviations (m) against a long run",
    [row(name, ROWS[name]()) for name in chosen],
    f"4 x {options.draws} draws of gibbs, of nuts where the formula has no augmentation, and their standard errors. "
    "LR: linear response, `pgm.correct`; new v: at 50 points between rows. W: mean Wasserstein-1 distance of the "
    "latents' marginals, in posterior deviations; matched: that of Gaussians with the draws' own means and variances, "
    "which is what the shape of the marginals leaves to any Gaussian, and some thousandths of the draws' own error. "
    "Seconds are of a second call, on a machine that had other work.",
    seed=options.seed,
)
