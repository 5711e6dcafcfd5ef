"""Whether flat priors of coefficients leave a proper posterior."""

from typing import TYPE_CHECKING

import numpy as np
import scipy

from pgmodels.likelihoods.density import log_density
from pgmodels.regression.terms import Term

if TYPE_CHECKING:
    from pgmodels.regression.formula import Regression

# How far from its prior mean a latent is asked for the tails of a row's likelihood, in units or deviations of y, and
# the fall in nats between once and twice that distance that makes a tail one.
_FAR, _FALL = 1e3, 1e-6
# Singular values of normalised columns below this are rounding, as are entries of directions.
_DEPENDENT, _ENTRY = 1e-10, 1e-6


def require_proper(regression: "Regression", number: int) -> None:
    """Raise ValueError if the data do not bound coefficients of a term with flat priors, in any of their directions."""
    term: Term = regression.terms[number]
    if term.coefficients is None:
        return
    names = term.columns[0].names  # type: ignore[attr-defined]
    priors = term.coefficients.priors
    flat = [place for place, name in enumerate(names) if name in priors and priors[name].scale == np.inf]
    if not flat:
        return
    listed = [term.prefix + names[place] for place in flat]
    if len(regression.classes) > 1:
        raise ValueError(
            f"priors: that of {listed[0]} is flat, and the classes of {regression.family!r} have the same terms, which "
            "such priors do not tell apart: give it dist.Normal(mean, sd)."
        )
    y = regression.y.reshape(len(regression.X), -1)
    observed = ~np.isnan(y).any(axis=1)
    above, below = _tails(regression, number, observed)
    X = regression.X[observed][:, regression.blocks[number]][:, flat]
    rows = above | below
    norms = np.linalg.norm(X[rows], axis=0)
    normalised = X[rows] / np.where(norms > 0.0, norms, 1.0)
    kernel = scipy.linalg.null_space(np.linalg.qr(normalised, mode="r"), rcond=_DEPENDENT)
    if kernel.size:
        chosen = [name for name, row in zip(listed, kernel, strict=True) if np.abs(row).max() > _ENTRY]
        raise ValueError(
            f"priors: the data do not determine {', '.join(chosen)}, whose priors are flat: their columns are linearly "
            "dependent in the rows that bear on them. Give one of them dist.Normal(mean, sd), or leave it out."
        )
    if _is_unbounded(normalised, above[rows], below[rows]):
        # Those without which the others are bounded; all if there is none.
        one_less = [_is_unbounded(np.delete(normalised, k, axis=1), above[rows], below[rows]) for k in range(len(flat))]
        chosen = [name for name, is_worse in zip(listed, one_less, strict=True) if not is_worse] or listed
        raise ValueError(
            f"priors: the data do not bound {', '.join(chosen)}, whose priors are flat: along a direction of them the "
            "likelihood falls in no row, as where a column separates y. Give one of them dist.Normal(mean, sd)."
            if len(chosen) > 1
            else f"priors: the data do not bound {chosen[0]}, whose prior is flat: in a direction of it the likelihood "
            "falls in no row, as where a column separates y. Give it dist.Normal(mean, sd)."
        )


def _tails(regression: "Regression", number: int, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether the likelihood of each observed row falls as the term's latent goes up, and as it goes down."""
    model, y = regression.model, regression.y[observed]
    means = np.concatenate([np.full(gp.size, float(gp.mean.value)) for gp in model.gps])
    first = y if y.ndim == 1 else y[:, 0]
    distance = _FAR * max(1.0, float(np.std(first)), float(np.max(np.abs(first - means[number]))))

    def at(step: float) -> np.ndarray:
        f = np.tile(means, (len(y), 1))
        f[:, number] += step
        with np.errstate(all="ignore"):
            values = np.asarray(log_density(model.likelihood, y, f))
        return np.where(np.isfinite(values), values, -np.inf)

    def falls(sign: float) -> np.ndarray:
        near, far = at(sign * distance), at(2.0 * sign * distance)
        return np.isneginf(far) | (far < near - _FALL)

    return falls(1.0), falls(-1.0)


def _is_unbounded(X: np.ndarray, above: np.ndarray, below: np.ndarray) -> bool:
    """Whether there is a direction b along which no row's likelihood falls, and X b is not zero."""
    codes = np.unique(np.column_stack([X, above, below]), axis=0)
    above, below = codes[:, -2] > 0.0, codes[:, -1] > 0.0
    Q = np.linalg.qr(codes[:, :-2])[0] * np.sqrt(len(codes))
    # A row whose likelihood falls upwards alone allows X b <= 0; at most 1, to limit b.
    signs = np.where(above & ~below, -1.0, np.where(below & ~above, 1.0, 0.0))
    one_sided = signs != 0.0
    if not (one_sided.any() and Q.size):
        return False
    sided, others = signs[one_sided, None] * Q[one_sided], Q[~one_sided]
    limits = np.concatenate([np.ones(len(sided)), np.zeros(len(sided))])
    fixed = (others, np.zeros(len(others))) if len(others) else (None, None)
    A = np.concatenate([sided, -sided])
    solved = scipy.optimize.linprog(-sided.sum(axis=0), A, limits, *fixed, bounds=(None, None))
    return solved.x is not None and -solved.fun > _ENTRY
