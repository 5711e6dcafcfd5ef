"""Claims of Wenzel et al. 2019 on the approximation: table 1, figure 1, and the gap of the bound."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.linalg import cho_solve, cholesky
from scipy.special import log_expit, roots_hermitenorm

import pgmodels as pgm
from pgmodels.datasets import Split
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.plots.style import legend_below, new_figure, open_axes, styles
from pgmodels.results.predictive import PredictionWarning
from validation.papers.claim import IN_PART, NOT_HERE, REFUTED, REPRODUCED, Claim, Row, Side, Verdict, reproduced_if
from validation.papers.measures import fold, scores, silenced

# The paper's name of a set, and its table 1: differences of means and variances from the truth, error and NLL.
NAMES = {"pima": "Diabetis", "german": "German"}
TABLE_1 = {
    ("pima", "X-GPC"): (0.103, 0.426, 0.156, 0.347),
    ("pima", "corrected"): (0.033, 0.348, 0.156, 0.347),
    ("pima", "Gibbs"): (0.0, 0.0, 0.156, 0.346),
    ("german", "X-GPC"): (0.237, 2.28, 0.38, 0.666),
    ("german", "corrected"): (0.104, 1.94, 0.38, 0.667),
    ("german", "Gibbs"): (0.0, 0.0, 0.38, 0.662),
}
COLUMNS = ("difference of means", "difference of variances", "error", "NLL")
# The kernel's variance, and its lengthscale as a share of the learned one.
LEARNED = ("learned", "1")
KERNELS = (
    LEARNED,
    *((variance, share) for share in ("1", "1/2", "1/4") for variance in ("4", "16", "64")),
    ("48", "1/4"),
)


class Latents(Claim):
    """W2: table 1."""

    identifier: ClassVar[str] = "W2"
    title: ClassVar[str] = (
        "X-GPC is very close to the true posterior and marginally improved by the correction (section 5.1)"
    )
    statement: ClassVar[str] = (
        "The paper prints mean absolute differences from Gibbs at test rows (table 1). On Diabetis, the means "
        "differ by 0.103 for X-GPC and by 0.033 corrected, the variances by 0.426 and 0.348. On German, the means "
        "differ by 0.237 and 0.104, the variances by 2.28 and 1.94. So the correction leaves 0.32 and 0.44 of the "
        "error of means. It leaves 0.82 and 0.85 of the error of variances."
    )
    ran: ClassVar[str] = (
        "Hyperparameters and splits are not published. So eleven kernels were run on one fold of each set. The "
        "kernel counts whose error of the variances is nearest to print. The correction is the derived one of "
        "this package, since the printed variance formula is wrong."
    )
    meaning: ClassVar[str] = (
        "For a user, the correction is worth its cost. At kernels that the bound learns, it leaves a quarter of "
        "the error of means and a third of the error of variances. Do not use the printed formula of the "
        "variance."
    )
    criterion: ClassVar[str] = (
        "on both sets, the difference of means of X-GPC is within a factor of 1.5 of the published one. The "
        "correction leaves 0.2 to 0.5 of it (published: 0.32 and 0.44). The kernel counts whose difference of "
        "variances of X-GPC is nearest to the published one. In part if so on one set."
    )
    settings: ClassVar[str] = (
        "hyperparameters and splits are not published. The sets are pima and german (24 columns for 20), fold 0 "
        "of ten (all ten with --full). The RBF kernel has one lengthscale. One kernel is learned by the bound. "
        "The others have variances of 4 to 64 and 1, 1/2 and 1/4 of the learned lengthscale. A lengthscale "
        "learned anew at each variance would keep the latents' variances where they are. Gibbs: 4 x 2,000 draws. "
        "Linear response and the variational Gaussian are this package's."
    )
    num_draws: ClassVar[int] = 2000

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        folds = range(10 if full else 1)
        return [f"{name} {variance} {share} {k}" for name in NAMES for variance, share in KERNELS for k in folds]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        name, variance, share, number = part.split()
        split = fold(name, int(number), seed=seed)
        with silenced(pgm.CorrectionWarning, PredictionWarning):
            kernel, results = self._results(split, variance, share, seed)
            truth = results["Gibbs"].predict_latent(split.X_test)
            figures = {method: _figures(result, split, truth) for method, result in results.items()}
        rows = []
        for method, values in figures.items():
            row: Row = {"data": name, "kernel": f"{variance}, {share}", "fold": int(number), "method": method}
            row |= dict(zip(COLUMNS, values, strict=True)) | {"mean variance": float(np.mean(truth[1]))}
            row |= {"variance": float(kernel.variance.value), "lengthscale": float(kernel.lengthscale.value)}
            published = TABLE_1.get((name, method), (None,) * len(COLUMNS))
            rows.append(row | {f"published: {column}": at for column, at in zip(COLUMNS, published, strict=True)})
        return rows

    def _results(self, split: Split, variance: str, share: str, seed: int) -> tuple[Any, dict[str, Any]]:
        """The kernel, and the posterior by each method."""
        X, y = split.X, split.y
        vi = pgm.fit(_model(pgm.RBF()), X, y, objective="augmented", correct=False, progress=False)
        kernel: Any = vi.model.gps[0].kernel
        if (variance, share) != LEARNED:
            kernel = pgm.RBF(float(variance), float(Fraction(share)) * kernel.lengthscale.value)
            vi = pgm.cavi(_model(kernel), X, y, progress=False)
        model = vi.model.fixed()
        return kernel, {
            "X-GPC": vi,
            "corrected": pgm.correct(vi, method="perturbative"),
            "linear response": pgm.correct(vi),
            "variational Gaussian": pgm.gaussian_vi(model, X, y, progress=False),
            "Gibbs": pgm.gibbs(model, X, y, num_samples=self.num_draws, num_warmup=200, seed=seed, progress=False),
        }

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        holds, reasons, shares, of_variances = [], [], [], []
        for name in NAMES:
            means, variances, _, _ = TABLE_1[name, "X-GPC"]
            figures = _averages(rows, name)
            nearest = min(figures, key=lambda kernel: abs(figures[kernel]["X-GPC"][1] - variances))
            plain, corrected = figures[nearest]["X-GPC"], figures[nearest]["corrected"]
            remains = corrected / plain
            shares.append([float(part["corrected"][0] / part["X-GPC"][0]) for part in figures.values()])
            of_variances.append(f"{remains[1]:.2f} on {name}")
            holds.append(bool(means / 1.5 <= plain[0] <= 1.5 * means and 0.2 <= remains[0] <= 0.5))
            reasons.append(
                f"On {name} X-GPC's means are off by {plain[0]:.3f} and its variances by {plain[1]:.3f}. The "
                f"correction leaves {remains[0]:.2f} of the error of means."
            )
        german = TABLE_1["german", "corrected"][0] / TABLE_1["german", "X-GPC"][0]
        bracketed = min(shares[1]) <= german <= max(shares[1])
        reasons.append(
            f"On german the share is {min(shares[1]):.2f} to {max(shares[1]):.2f} over the kernels, and the published "
            f"{german:.2f} is {'within' if bracketed else 'outside'}."
        )
        part = "the means on pima, and on german within the range of the kernels"
        word, scope = (
            (REPRODUCED, "") if all(holds) else (IN_PART, part) if any(holds) else (NOT_HERE, "unknown kernels")
        )
        return Verdict(
            word,
            " ".join(reasons),
            scope,
            (
                Side(
                    "The correction leaves most of the variances' error (0.82 and 0.85, table 1)",
                    NOT_HERE,
                    f"The derived formula leaves less: {', '.join(of_variances)}. It is not the printed formula.",
                ),
                Side(
                    "The printed variance of the correction (appendix A.6)",
                    REFUTED,
                    "It disagrees with the exact second order. Recomputed for this page, it makes variances "
                    "three to four times worse than the derived one, and some negative.",
                ),
            ),
        )

    def draw(self, rows: Sequence[Row]) -> Figure:
        """See Claim."""
        methods = ("X-GPC", "corrected", "linear response")
        looks = styles(methods)
        figure = new_figure(8.0, 4.4)
        for axes, name in zip(figure.subplots(1, 2), NAMES, strict=True):
            for figures in _averages(rows, name).values():
                axes.plot(*zip(*(figures[method][1::-1] for method in methods), strict=True), color="0.8", zorder=0)
            for method in methods:
                points = np.array([figures[method][:2] for figures in _averages(rows, name).values()])
                axes.plot(points[:, 1], points[:, 0], looks[method].marker, color=looks[method].colour)
                if (name, method) in TABLE_1:
                    mean, variance = TABLE_1[name, method][:2]
                    axes.plot(variance, mean, looks[method].marker, color="black", markersize=9)
            axes.set(xscale="log", yscale="log")
            open_axes(axes, title=NAMES[name], xlabel="difference of variances", ylabel="difference of means")
        legend_below(
            figure,
            [Line2D([], [], color=look.colour, marker=look.marker, linestyle="") for look in looks.values()],
            methods,
            ["Mean absolute differences from Gibbs at test rows, joined by a line for each kernel. Black: published."],
        )
        return figure


def _model(kernel: pgm.RBF) -> pgm.Model:
    return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel))


def _figures(result: Any, split: Split, truth: tuple[np.ndarray, np.ndarray]) -> tuple[float, float, float, float]:
    moments, taken = result.predict_latent(split.X_test), scores(result.predict(split.X_test), split.y_test)
    mean, variance = (float(np.mean(np.abs(part - at))) for part, at in zip(moments, truth, strict=True))
    return mean, variance, taken.error, taken.nll


def _averages(rows: Sequence[Row], name: str) -> dict[str, dict[str, np.ndarray]]:
    """The figures of each kernel and method, averaged over folds."""
    by_kernel: dict[str, dict[str, list[list[float]]]] = {}
    for row in rows:
        if row["data"] == name:
            by_method = by_kernel.setdefault(row["kernel"], {})
            by_method.setdefault(row["method"], []).append([row[column] for column in COLUMNS])
    return {
        kernel: {method: np.mean(figures, axis=0) for method, figures in by_method.items()}
        for kernel, by_method in by_kernel.items()
    }


class Gap(Claim):
    """W5: what the augmentation costs."""

    identifier: ClassVar[str] = "W5"
    title: ClassVar[str] = "The bounds of both models differ by a divergence of the auxiliary variables (section 4.2)"
    statement: ClassVar[str] = (
        "The paper compares the bounds of the original and of the augmented model at the same q(f). The bound of "
        "the original model is larger by E_q(f) KL(q(ω) || p(ω | f, y))."
    )
    ran: ClassVar[str] = (
        "Both bounds were computed at the optimum of `cavi` on pima. The bound of the original model is by quadrature."
    )
    meaning: ClassVar[str] = "For a user, `pgm.diagnose` computes this loss of the augmented bound for each row."
    criterion: ClassVar[str] = (
        "the bound by quadrature less the bound of cavi is the sum of the gaps of all rows. It is also the sum of "
        "the divergences of Pólya-Gamma distributions in closed form. Both hold to 1e-7 nats."
    )
    settings: ClassVar[str] = (
        "pima, all rows, RBF kernel of variance 4 and lengthscale 3. The bound by quadrature and the divergences are "
        "computed by NumPy from the moments and sites of q."
    )
    digits: ClassVar[int] = 12

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return ("pima",)

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        split = fold(part, 0, seed=seed)
        X, y = np.concatenate([split.X, split.X_test]), np.concatenate([split.y, split.y_test])
        kernel = pgm.RBF(4.0, 3.0)
        result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), X, y, tolerance=1e-14, progress=False)
        m, v = result.mean[:, 0], result.variance[:, 0]
        c = np.sqrt(m**2 + v)
        nodes, weights = roots_hermitenorm(200)
        f = m[:, None] + np.sqrt(v)[:, None] * nodes
        expected = (log_expit(np.where(y[:, None] > 0.5, f, -f)) @ weights) / np.sqrt(2.0 * np.pi)
        # KL(PG(1, c) || PG(1, f)) has its mean under q(f) in closed form where c^2 = E f^2.
        half = (np.logaddexp(0.5 * f, -0.5 * f) @ weights) / np.sqrt(2.0 * np.pi)
        divergence = np.logaddexp(0.5 * c, -0.5 * c) - half
        h, w = (np.asarray(part)[: len(X), 0] for part in result.posterior.sites)
        from_prior = _divergence_from_prior(np.asarray(kernel(X, X)), m, h, w)
        quadrature = float(expected.sum()) - from_prior
        gap, difference = float(augmentation_gap(result).value.sum()), quadrature - result.elbo
        figures = {
            "bound by quadrature": quadrature,
            "bound of cavi": result.elbo,
            "difference of the bounds": difference,
            "sum of the gaps": gap,
            "sum of the divergences": float(divergence.sum()),
        }
        return [{"data": part, "quantity": name, "nats": value} for name, value in figures.items()]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        difference, gap, divergence = (row["nats"] for row in rows[-3:])
        off = max(abs(difference - gap), abs(difference - divergence))
        word, scope = reproduced_if(bool(off <= 1e-7), "rounding")
        return Verdict(
            word, f"The bounds differ by {difference:.8f} nats. The sums differ from this by {off:.1e}.", scope
        )


def _divergence_from_prior(K: np.ndarray, m: np.ndarray, h: np.ndarray, w: np.ndarray) -> float:
    """KL(q || prior) of the Gaussian with mean m = K (h - w m) and the precision of the prior plus diag(w)."""
    root = np.sqrt(w)
    B = cholesky(np.eye(len(K)) + root[:, None] * K * root, lower=True)
    trace = float(np.trace(cho_solve((B, True), np.eye(len(K)))))
    quadratic = float(m @ (h - w * m))
    return 0.5 * (trace - len(K) + quadratic) + float(np.sum(np.log(np.diag(B))))
