"""Nested marginals of real data against long Gibbs runs."""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

import pgmodels as pgm
from pgmodels.datasets import Split, load
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.plots.style import legend_below, line_handle, new_figure, open_axes, styles
from validation.nested import laplace
from validation.nested.cases import ordered_logit
from validation.nested.measures import FOLDER, kept, write

GAUSSIAN, RESPONSE, NESTED = "Gaussian", "linear response", "nested"
LEVELS = np.array([0.01, 0.05, 0.95, 0.99])
# Gibbs sweeps of each of four chains, after a tenth as many.
SWEEPS = 5000


class Study(NamedTuple):
    """A data set, its likelihood and number of latents, training rows, and what makes y of the file's.

    ``has_laplace`` says whether Laplace approximations are computed: they need one latent a row and no kinks.
    """

    data: str
    likelihood: pgm.Likelihood
    rows: int
    size: int = 1
    target: Callable[[np.ndarray], np.ndarray] = np.asarray
    has_laplace: bool = True


def _scaled(y: np.ndarray) -> np.ndarray:
    return (y - y.mean()) / y.std()


def _thirds(y: np.ndarray) -> np.ndarray:
    """Ordered classes 0, 1, 2 at the terciles."""
    return np.digitize(y, np.quantile(y, [1 / 3, 2 / 3])).astype(float)


STUDIES = {
    "crabs, labels": Study("crabs", pgm.Bernoulli(), 150),
    "heart, labels": Study("heart", pgm.Bernoulli(), 200),
    "ionosphere, labels": Study("ionosphere", pgm.Bernoulli(), 250),
    "pima, labels": Study("pima", pgm.Bernoulli(), 400),
    "banana, probit": Study("banana", pgm.Probit(), 300),
    "coal, counts": Study("coal", pgm.NegativeBinomial(5.0), 90),
    "crab satellites, counts": Study("crab-satellites", pgm.NegativeBinomial(1.0), 130),
    "visits, counts": Study("nmes1988", pgm.NegativeBinomial(1.0), 300),
    "wine, three classes": Study("wine", pgm.LogisticSoftmax(3), 90, 3, has_laplace=False),
    "motorcycle, Student-t": Study("mcycle", pgm.StudentT(4.0, 0.4), 100, 1, _scaled),
    "motorcycle, Laplace": Study("mcycle", pgm.Laplace(0.4), 100, 1, _scaled, has_laplace=False),
    "motorcycle, ordered": Study("mcycle", ordered_logit(), 100, 1, _thirds),
    "seeds, binomial": Study("seeds", pgm.Binomial(), 16),
}


def split(study: Study) -> Split:
    """Training and test rows, standardised by the former."""
    data = load(study.data)
    order = np.random.default_rng(0).permutation(len(data.X))[: study.rows + 300]
    train, test = order[: study.rows], order[study.rows :]
    spread = data.X[train].std(axis=0)
    X, y = (data.X - data.X[train].mean(axis=0)) / np.where(spread > 0.0, spread, 1.0), study.target(data.y)
    return Split(X[train], y[train], X[test], y[test])


def fitted(study: Study, rows: Split) -> tuple[pgm.Model, dict[str, Any], float]:
    """A model with learned hyperparameters, its approximations, and the seconds of the nested marginals."""
    kernel = pgm.RBF(variance=4.0, lengthscale=np.sqrt(rows.X.shape[1]))
    model = pgm.Model(study.likelihood, pgm.GP(kernel, size=study.size))
    model = pgm.fit(model, rows.X, rows.y, correct=False, progress=False).model.fixed()
    gaussian = pgm.gaussian_vi(model, rows.X, rows.y, progress=False)
    response = pgm.correct(gaussian, method="linear_response", progress=False)
    results, seconds = {GAUSSIAN: gaussian, RESPONSE: response}, 0.0
    # The first call compiles.
    for _ in range(2):
        begin = time.perf_counter()
        results[NESTED] = pgm.correct(gaussian, method="nested", progress=False)
        seconds = time.perf_counter() - begin
    return model, results, seconds


def sampled(model: pgm.Model, rows: Split) -> pgm.Draws:
    """A long run of Gibbs."""
    return pgm.gibbs(
        model, rows.X, rows.y, num_samples=SWEEPS, num_warmup=SWEEPS // 10, num_chains=4, seed=0, progress=False
    )


def _of_laplace(model: pgm.Model, rows: Split) -> tuple[laplace.LogDensity, np.ndarray, np.ndarray]:
    """The rows' log density, and the prior mean and covariance of their latents."""
    gp = model.gps[0]
    K = np.array(gp.kernel(rows.X, rows.X))
    K += 1e-8 * np.mean(np.diag(K)) * np.eye(len(K))

    def log_densities(f: np.ndarray) -> np.ndarray:
        return log_density(model.likelihood, rows.y, f[..., None])

    return log_densities, np.full(len(K), float(gp.mean.value)), K


def measured(key: str) -> dict[str, Any]:
    """Errors of each approximation against Gibbs, with the Monte-Carlo errors of the same averages."""
    study = STUDIES[key]
    rows = split(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        model, results, seconds = fitted(study, rows)
        draws = sampled(model, rows)
        comparison = pgm.compare(gibbs=draws, **{name.split()[0].lower(): result for name, result in results.items()})
        evidence = pgm.log_evidence(results[GAUSSIAN], seed=0)
    deviation = np.sqrt(draws.variance)
    # Means of absolute values of normal errors.
    scale = np.sqrt(2.0 / np.pi)
    f = draws.latents.reshape(-1, *draws.mean.shape)
    exact = np.quantile(f, LEVELS, axis=0)
    size = np.mean((deviation / np.maximum(comparison.mcse_mean, 1e-12)) ** 2)
    at = norm.pdf(norm.ppf(LEVELS))
    row: dict[str, Any] = {"data": key, "rows": study.rows, "seconds": seconds, "independent draws": float(size)}
    row["variance, Monte Carlo"] = float(scale * np.mean(comparison.mcse_variance / draws.variance))
    row["quantiles, Monte Carlo"] = float(scale * np.mean(np.sqrt(LEVELS * (1.0 - LEVELS) / size) / at))
    densities = {name: result.marginals for name, result in results.items()}
    if study.has_laplace:
        for name, approximation in {laplace.FULL: laplace.full, laplace.SIMPLIFIED: laplace.simplified}.items():
            begin = time.perf_counter()
            densities[name] = approximation(*_of_laplace(model, rows))[:, None]
            row[f"seconds, {name}"] = time.perf_counter() - begin
    for name, density in densities.items():
        errors = abs(density.variance / draws.variance - 1.0)
        beyond = abs(density.quantiles(LEVELS) - exact) / deviation
        row[name] = {
            "mean": float(np.mean(abs(density.mean - draws.mean) / deviation)),
            "variance": float(errors.mean()),
            "largest variance": float(errors.max()),
            "quantiles": [float(value) for value in beyond.reshape(len(LEVELS), -1).mean(axis=1)],
        }
    for name, result in results.items():
        row[name]["log density"] = float(np.mean(result.predict(rows.X_test).log_density(rows.y_test)))
    row["log density, Gibbs"] = float(np.mean(draws.predict(rows.X_test).log_density(rows.y_test)))
    bounds = results[NESTED].log_evidence_bounds
    row |= {"ELBO": results[NESTED].elbo, "least bound": float(bounds.min()), "largest bound": float(bounds.max())}
    row |= {"log p(y)": evidence.value, "standard error": evidence.standard_error}
    skewness = abs(results[NESTED].skewness)
    where = np.unravel_index(np.argmax(skewness), skewness.shape)
    density, edges = np.histogram(f[:, *where], 80, density=True)
    nodes = np.linspace(edges[0], edges[-1], 200)
    row["most skewed"] = {
        "edges": edges.tolist(),
        "density": density.tolist(),
        "curves": {name: result.marginals[where].pdf(nodes).tolist() for name, result in results.items()},
    }
    return row


def run(again: bool) -> None:
    """Measure all studies, and write the tables and the picture."""
    rows = kept("gibbs", STUDIES, measured, again).values()
    errors, predictions, laplaces = [], [], []
    for row in rows:
        if laplace.FULL in row:
            names = (laplace.FULL, laplace.SIMPLIFIED, NESTED)
            line = {"data": row["data"]} | {f"mean, {name}": row[name]["mean"] for name in names}
            line |= {f"variance, {name}": row[name]["variance"] for name in names}
            line |= {f"quantiles, {name}": max(row[name]["quantiles"]) for name in names}
            line |= {f"seconds, {name}": row[f"seconds, {name}"] for name in names[:2]}
            laplaces.append(line | {"seconds, nested": row["seconds"]})
        line: dict[str, Any] = {"data": row["data"], "rows": row["rows"], "independent draws": row["independent draws"]}
        for name in (GAUSSIAN, RESPONSE, NESTED):
            line[f"variance, {name}"] = f"{row[name]['variance']:.3f} ({row[name]['largest variance']:.3f})"
        line["variance, Monte Carlo"] = row["variance, Monte Carlo"]
        for name in (GAUSSIAN, NESTED):
            line[f"quantiles, {name}"] = max(row[name]["quantiles"])
        line["quantiles, Monte Carlo"] = row["quantiles, Monte Carlo"]
        errors.append(line | {"seconds": row["seconds"]})
        line = {"data": row["data"]}
        line |= {name: f"{row[name]['log density']:.5f}" for name in (GAUSSIAN, RESPONSE, NESTED)}
        line |= {"Gibbs": f"{row['log density, Gibbs']:.5f}", "ELBO": f"{row['ELBO']:.3f}"}
        line |= {"bounds": f"{row['least bound']:.3f} to {row['largest bound']:.3f}"}
        predictions.append(line | {"log p(y)": f"{row['log p(y)']:.3f} ± {row['standard error']:.3f}"})
    draw(list(rows)).savefig(FOLDER / "gibbs.png", dpi=110)
    write(
        "gibbs",
        "Nested marginals against long Gibbs runs",
        f"Four chains of {SWEEPS:,} sweeps; RBF kernel with values learned by `fit`. Variance: mean relative error "
        "over latents, and the largest in brackets. Quantiles at 1, 5, 95 and 99 %: mean error in posterior deviations "
        "at the worst of these levels. Monte Carlo: what these averages would be of exact marginals. Below, the mean "
        "log density of test rows, and the bounds of log p(y), which is estimated by importance sampling. Last, "
        "Laplace approximations of the marginals; seconds are of all marginals, of nested ones after compilation, "
        "beside other work.",
        [errors, predictions, laplaces],
    )


def draw(rows: list[dict[str, Any]]) -> Figure:
    """The most skewed marginal of each study."""
    looks = styles([GAUSSIAN, RESPONSE, NESTED])
    figure = new_figure(12.0, 2.6 * -(-len(rows) // 4))
    panels = figure.subplots(-(-len(rows) // 4), 4, squeeze=False).ravel()
    for axes, row in zip(panels, rows, strict=False):
        shown = row["most skewed"]
        axes.stairs(shown["density"], shown["edges"], fill=True, color="0.85")
        nodes = np.linspace(shown["edges"][0], shown["edges"][-1], 200)
        for name, curve in shown["curves"].items():
            axes.plot(nodes, curve, color=looks[name].colour, linestyle=looks[name].line)
        open_axes(axes, title=row["data"], yticks=[])
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    legend_below(figure, [line_handle(look) for look in looks.values()], list(looks))
    return figure
