"""Marginals of two and three latents against quadrature in as many dimensions."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import trapezoid
from scipy.special import logsumexp

import pgmodels as pgm
from pgmodels.plots.style import legend_below, line_handle, new_figure, open_axes, styles
from validation.nested.cases import CASES, MEAN, VARIANCES, Case
from validation.nested.measures import FOLDER, errors, kept, largest, triple, write

# Nodes in each dimension by the number of dimensions, and how far marginals fall to the ends of the grid, nats.
NODES, FALL = {2: 801, 3: 121}, 30.0
GAUSSIAN, RESPONSE, NESTED = "Gaussian", "linear response", "nested"
SHOWN = (
    ("log Poisson 0 0 0", 25.0),
    ("Bernoulli 1 1 1", 25.0),
    ("StudentT(4, 0.5) 0 3 0.2", 9.0),
    ("censored times", 9.0),
)


class Truth(NamedTuple):
    """Moments and E exp f of the latents (rows, latents), log p(y), and nodes and densities (nodes, rows, latents)."""

    mean: np.ndarray
    variance: np.ndarray
    exponential: np.ndarray
    log_evidence: float
    nodes: np.ndarray
    density: np.ndarray


def truth(case: Case, variance: float) -> Truth:
    """The posterior on a grid, at first over the prior's range and then over the posterior's."""
    shape = len(case.y), case.num_latents
    K = np.kron(case.covariance(variance), np.eye(shape[1]))
    P, size = np.linalg.inv(K), len(K)
    count = NODES[size]
    low, high = MEAN - 9.0 * np.sqrt(np.diag(K)), MEAN + 9.0 * np.sqrt(np.diag(K))
    for _ in range(3):
        # Grids of different latents are not in step, so that no two latents are equal.
        steps = (high - low) / (count - 1)
        axes = np.linspace(low, high, count, axis=1) + (0.31 * np.arange(size) * steps)[:, None]
        f = np.meshgrid(*axes, indexing="ij", sparse=True)
        log_p: Any = sum(-0.5 * P[i, j] * (f[i] - MEAN) * (f[j] - MEAN) for i in range(size) for j in range(size))
        for row, y in enumerate(case.observations):
            latents = np.broadcast_arrays(*f[row * shape[1] : (row + 1) * shape[1]])
            log_p = log_p + case.log_density(y, np.stack(latents))
        total = logsumexp(log_p)
        log_marginals = [logsumexp(log_p - total, axis=tuple(set(range(size)) - {i})) for i in range(size)]
        inside = [np.flatnonzero(values > values.max() - FALL) for values in log_marginals]
        low = np.array([axis[max(at[0] - 1, 0)] for axis, at in zip(axes, inside, strict=True)])
        high = np.array([axis[min(at[-1] + 1, count - 1)] for axis, at in zip(axes, inside, strict=True)])
    p = np.exp(np.stack(log_marginals))
    mean = np.sum(p * axes, axis=1)
    spread = np.sum(p * (axes - mean[:, None]) ** 2, axis=1)
    log_evidence = total + np.log(steps).sum() - 0.5 * np.linalg.slogdet(2.0 * np.pi * K)[1]
    moments = (part.reshape(shape) for part in (mean, spread, np.sum(p * np.exp(axes), axis=1)))
    return Truth(*moments, float(log_evidence), axes.T.reshape(-1, *shape), (p / steps[:, None]).T.reshape(-1, *shape))


def approximations(case: Case, variance: float) -> dict[str, Any]:
    """The variational Gaussian and its two corrections."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.CorrectionWarning)
        gaussian = pgm.gaussian_vi(case.model(variance), case.inputs, case.observations, progress=False)
        response = pgm.correct(gaussian, method="linear_response", progress=False)
        return {GAUSSIAN: gaussian, RESPONSE: response, NESTED: pgm.correct(gaussian, method="nested", progress=False)}


def divergences(marginals: Any, exact: Truth) -> np.ndarray:
    """KL(marginal || posterior marginal) of each latent (rows, latents)."""
    ours = marginals.pdf(exact.nodes)
    ratio = np.log(np.where(ours > 0.0, ours, 1.0)) - np.log(np.maximum(exact.density, 1e-300))
    return trapezoid(ours * ratio, exact.nodes, axis=0)


def measured(case: Case, variance: float) -> dict[str, Any]:
    """Errors of each approximation, and the bounds of log p(y)."""
    exact, results = truth(case, variance), approximations(case, variance)
    row: dict[str, Any] = {"likelihood": case.name, "y": str(case.y), "kernel variance": variance}
    for name, result in results.items():
        row[name] = errors(result.marginals, exact)
    nested = results[NESTED]
    bounds = nested.log_evidence_bounds
    row["least bound - ELBO"] = float(np.min(bounds - nested.elbo))
    row["log p(y) - largest bound"] = float(np.min(exact.log_evidence - bounds))
    row["KL"] = largest(divergences(nested.marginals, exact))
    row["bound of KL - KL"] = float(np.min(exact.log_evidence - bounds - divergences(nested.marginals, exact)))
    return row


def run(again: bool) -> None:
    """Measure all cases, and write the table and the picture."""
    keys = {f"{case.name} {case.y} {variance:g}": (case, variance) for case in CASES for variance in VARIANCES}
    rows = kept("quadrature", keys, lambda key: measured(*keys[key]), again).values()
    table = []
    for row in rows:
        cells = {name: triple(row[name]) for name in (GAUSSIAN, RESPONSE, NESTED)}
        table.append({key: cells.get(key, value) for key, value in row.items()})
    mean, variance = (max(row[NESTED][k] for row in rows) for k in (0, 1))
    exponential = [row[NESTED][2] for row in rows if row[GAUSSIAN][2] <= 0.5]
    beyond = [
        sum(row[NESTED][0] > 0.04 for row in rows),
        sum(row[NESTED][1] > 0.02 for row in rows),
        sum(value > 0.1 for value in exponential),
    ]
    draw().savefig(FOLDER / "quadrature.png", dpi=110)
    write(
        "quadrature",
        "Nested marginals against quadrature",
        "One row at the input 0, or three at 0, 0.7 and 1.8; RBF kernel of lengthscale 1, prior mean 0.3. Three errors "
        "of each approximation, the largest of all latents: of the mean, in posterior deviations, of the variance and "
        "of E exp f, relative. Each latent's bound of log p(y) is to be above the ELBO and below log p(y), and "
        "log p(y) less the bound is to be above the KL divergence of its marginal from the posterior's.\n\n"
        f"Nested: largest error of a mean {mean:.3f} deviations ({beyond[0]} of {len(rows)} above 0.04), of a variance "
        f"{variance:.3f} ({beyond[1]} above 0.02), of E exp f where the Gaussian's is within 0.5 "
        f"{max(exponential):.3f} ({beyond[2]} of {len(exponential)} above 0.1).",
        [table],
    )


def draw() -> Figure:
    """Marginals of the latent with the most skewed posterior, of some cases."""
    figure = new_figure(11.0, 6.4)
    looks = styles(["quadrature", GAUSSIAN, RESPONSE, NESTED], "quadrature")
    for axes, (name, variance) in zip(figure.subplots(2, 2).ravel(), SHOWN, strict=True):
        case = next(case for case in CASES if f"{case.name} {' '.join(map(str, case.y))}".startswith(name))
        exact = truth(case, variance)
        third = trapezoid(exact.density * (exact.nodes - exact.mean) ** 3, exact.nodes, axis=0) / exact.variance**1.5
        where = np.unravel_index(np.argmax(abs(third)), third.shape)
        nodes, density = exact.nodes[:, *where], exact.density[:, *where]
        axes.fill_between(nodes, density, color="0.85")
        for label, result in approximations(case, variance).items():
            axes.plot(
                nodes,
                result.marginals.pdf(exact.nodes)[:, *where],
                color=looks[label].colour,
                linestyle=looks[label].line,
            )
        shown = nodes[density > 1e-4 * density.max()]
        open_axes(axes, title=f"{case.name}, kernel variance {variance:g}", xlabel="f", xlim=(shown[0], shown[-1]))
    handles = [line_handle(looks[label]) for label in (GAUSSIAN, RESPONSE, NESTED)]
    legend_below(figure, handles, [GAUSSIAN, RESPONSE, NESTED])
    return figure
