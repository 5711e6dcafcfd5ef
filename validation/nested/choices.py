"""Other choices of the Gaussian of the other latents given f_i = x, in NumPy, beside the package's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from pgmodels.results.result import GRID, REACH, GridDensity
from validation.nested.cases import MEAN, SMOOTH, VARIANCES, Case
from validation.nested.laplace import DEPTH
from validation.nested.measures import errors, kept, summary, write
from validation.nested.quadrature import GAUSSIAN, NESTED, approximations, truth

POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
NODES, LENGTH = 65, 1.5


class Terms:
    """E log p(y | f), f ~ N(m, v), of the rows, and its derivatives in m, by quadrature."""

    def __init__(self, case: Case):
        self.case = case

    def log_density(self, f: np.ndarray) -> np.ndarray:
        """(rows, nodes)."""
        return np.stack([self.case.log_density(y, row[None]) for y, row in zip(self.case.observations, f, strict=True)])

    def derivatives(self, m: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """The expectation and its first four derivatives, each (rows,)."""
        s, z = np.sqrt(v), POINTS
        values = self.log_density(m[:, None] + s[:, None] * z)
        hermite = (np.ones_like(z), z, z**2 - 1.0, z**3 - 3.0 * z, z**4 - 6.0 * z**2 + 3.0)
        return [(values * polynomial) @ WEIGHTS / s**order for order, polynomial in enumerate(hermite)]


class Pinned(NamedTuple):
    """f_i = x, and the other latents: their prior given it, and q of all latents with linear response R."""

    terms: Terms
    i: int
    x: float
    mean: np.ndarray
    precision: np.ndarray
    m: np.ndarray
    S: np.ndarray
    R: np.ndarray

    @property
    def others(self) -> np.ndarray:
        """The numbers of the other rows."""
        return np.delete(np.arange(len(self.m)), self.i)

    def bound(self, m: np.ndarray, C: np.ndarray) -> float:
        """Their expected log densities less the KL divergence from the prior given f_i = x."""
        d, P = m - self.mean, self.precision
        kl = 0.5 * (np.trace(P @ C) + d @ P @ d - len(d) - np.linalg.slogdet(P @ C)[1])
        return float(self.derivatives(m, C)[0].sum() - kl)

    def derivatives(self, m: np.ndarray, C: np.ndarray) -> list[np.ndarray]:
        """Those of the other rows."""
        every_m, every_v = np.full(len(self.m), self.x), np.ones(len(self.m))
        every_m[self.others], every_v[self.others] = m, np.diag(C)
        return [part[self.others] for part in self.terms.derivatives(every_m, every_v)]

    def conditional(self) -> tuple[np.ndarray, np.ndarray]:
        """The conditional of q: the choice ``zero``."""
        r, i, S = self.others, self.i, self.S
        m = self.m[r] + S[r, i] / S[i, i] * (self.x - self.m[i])
        return m, S[np.ix_(r, r)] - np.outer(S[r, i], S[i, r]) / S[i, i]

    def tilted(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sites along linear response, to first order: the choice ``first``."""
        r, i, R = self.others, self.i, self.R
        _, _, B2, B3, B4 = self.terms.derivatives(self.m, np.diag(self.S))
        D = np.linalg.solve(np.eye(len(B2)) - 0.5 * self.S**2 * B4, self.S**2 * B3)
        dm = R[:, i] / R[i, i]
        slope = -(B3 * dm + 0.5 * B4 * (D @ dm))
        precision, t = np.where(-B2 > 0.0, -B2, 1e-300), self.x - self.m[i]
        tilted = np.where(-B2 > 0.0, precision * np.exp(np.clip(slope / precision * t, -6.0, 6.0)), -B2)
        return (self.m + dm * t)[r], np.linalg.inv(self.precision + np.diag(tilted[r]))

    def updated(self, m: np.ndarray, C: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Fixed-point updates of the sites from there."""
        path = []
        for _ in range(count):
            _, first, second, *_ = self.derivatives(m, C)
            precision = np.maximum(-second, 1e-8)
            C = np.linalg.inv(self.precision + np.diag(precision))
            m = C @ (first + precision * m + self.precision @ self.mean)
            path.append((m, C))
        return path


# Each returns the Gaussians that are tried: the largest bound counts.
CHOICES: dict[str, Callable[[Pinned], list[tuple[np.ndarray, np.ndarray]]]] = {
    "zero": lambda pinned: [pinned.conditional()],
    "first": lambda pinned: [pinned.conditional(), pinned.tilted()],
    "first, 1 update": lambda pinned: [
        pinned.conditional(), pinned.tilted(), *pinned.updated(*pinned.tilted(), 1)
    ],
    "zero, 1 update": lambda pinned: [pinned.conditional(), *pinned.updated(*pinned.conditional(), 1)],
    "zero, 4 updates": lambda pinned: [pinned.conditional(), *pinned.updated(*pinned.conditional(), 4)],
    "zero, 50 updates": lambda pinned: [pinned.conditional(), *pinned.updated(*pinned.conditional(), 50)],
}  # fmt: skip


def marginals(case: Case, variance: float, choice: str, m: np.ndarray, S: np.ndarray) -> GridDensity:
    """The nested marginals of a case by one choice, relative to q with moments m and S."""
    terms, K = Terms(case), case.covariance(variance)
    _, _, _, B3, B4 = terms.derivatives(m, np.diag(S))
    D = np.linalg.solve(np.eye(len(m)) - 0.5 * S**2 * B4, S**2 * B3)
    R = np.linalg.inv(np.linalg.inv(S) - 0.5 * B3[:, None] * D)
    nodes, scale, curves = np.linspace(-REACH, REACH, NODES), LENGTH * np.sqrt(abs(np.diag(R))), []
    for i in range(len(m)):
        r, b = np.delete(np.arange(len(m)), i), K[:, i] / K[i, i]
        precision = np.linalg.inv(K[np.ix_(r, r)] - K[i, i] * np.outer(b[r], b[r]))
        values = []
        for x in m[i] + scale[i] * nodes:
            pinned = Pinned(terms, i, x, (MEAN + b * (x - MEAN))[r], precision, m, S, R)
            tried = [pinned.bound(*gaussian) for gaussian in CHOICES[choice](pinned) if _is_valid(gaussian[1])]
            itself = terms.log_density(np.full((len(m), 1), x))[i, 0]
            values.append(itself - 0.5 * (x - MEAN) ** 2 / K[i, i] - 0.5 * np.log(2.0 * np.pi * K[i, i]) + max(tried))
        top = np.nanmax(values)
        curves.append(CubicSpline(nodes, np.maximum(np.nan_to_num(values, nan=-np.inf), top - DEPTH))(GRID))
    return GridDensity(m, scale, np.stack(curves))


def _is_valid(C: np.ndarray) -> bool:
    return bool(np.isfinite(C).all() and np.linalg.eigvalsh(C)[0] > 0.0)


def compared(case: Case, variance: float) -> dict[str, Any]:
    """Errors of each choice against quadrature, beside the package's."""
    exact, results, K = truth(case, variance), approximations(case, variance), case.covariance(variance)
    gaussian = results[GAUSSIAN]
    precision = np.asarray(gaussian.sites.precision).reshape(len(case.y), -1)[:, 0]
    S = np.linalg.solve(np.eye(len(K)) + K * precision, K)
    row: dict[str, Any] = {"likelihood": case.name, "y": str(case.y), "kernel variance": variance}
    for choice in CHOICES:
        row[choice] = errors(marginals(case, variance, choice, gaussian.mean[:, 0], S), exact)
    return row | {NESTED: errors(results[NESTED].marginals, exact)}


def run(again: bool) -> None:
    """Measure all cases with one latent a row, and write the table."""
    keys = {f"{case.name} {case.y} {variance:g}": (case, variance) for case in SMOOTH for variance in VARIANCES}
    rows = list(kept("choices", keys, lambda key: compared(*keys[key]), again).values())
    write(
        "choices",
        "Choices of the Gaussian of the other latents",
        "Three latents as in the table against quadrature, with the same errors: of means in posterior deviations, of "
        "variances and of E exp f, relative. With f_i = x: zero is the conditional of q; first moves means along "
        "linear response and sites to first order; an update is a fixed-point update of all sites. The largest bound "
        "counts. Nested is the package's: zero and four to sixteen updates, each undone where it lowers the bound.",
        summary(rows, [*CHOICES, NESTED]),
    )
