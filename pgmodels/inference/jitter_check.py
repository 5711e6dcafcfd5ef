"""Check that the prior's representation (jitter, neglected pivots, harmonics, basis functions) is accurate enough."""

import numpy as np

from pgmodels.model import Data, Model
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime.warnings import PgmodelsWarning, warn

# Neglected variance times the largest site precision: the target, and the limit for a warning. A datum's share of the
# ELBO is off by half of it, and by more if its residual is large.
_WANTED, _WARNED = 1e-7, 1e-2
# Tolerated error of the ELBO, in nats or relative to its size, whichever is larger.
_NATS, _SHARE = 0.1, 1e-9

# Share of a prior variance that basis functions may leave out.
_TRUNCATED = 0.01


class TruncationWarning(PgmodelsWarning):
    """The basis functions of a GP leave out a part of its prior variance."""


class PrecisionWarning(PgmodelsWarning):
    """The prior cannot be represented accurately enough for the data in double precision."""


def accurate_prior(model: Model, data: Data, prior: PriorCollection, precision: float) -> PriorCollection:
    """The prior itself if it is accurate enough for sites of a given precision, else a more accurate one.

    Raises ValueError if its variances overflow.
    """
    if not np.isfinite(prior.approximation_error):
        raise ValueError(
            "X: the kernel's variances at the data overflow double precision. Check the scale of X and the kernel's "
            "hyperparameters, or standardise X."
        )
    if prior.approximation_error * precision <= _WANTED:
        return prior
    return model.prior(data.X, max_error=_WANTED / precision)


def warn_inaccurate(
    prior: PriorCollection, precision: float, elbo: float = 0.0, rounding: float = 0.0, neglect: float = 0.0
) -> None:
    """Warn if a prior is not accurate enough for sites of a given precision, or the ELBO is not accurate.

    ``rounding`` is the ELBO's rounding error, ``neglect`` its error due to variances that the prior neglects.
    """
    _warn_truncated(prior)
    error = prior.approximation_error
    remedy = (
        "Raise the likelihood's scale or lower the prior variance, whose ratio is extreme, add a White kernel or, to "
        "pgm.Periodic with pgm.Markov(), harmonics."
    )
    if error * precision > _WARNED:
        warn(
            f"the latents' prior is approximated to a variance of {error:.1e} (jitter, neglected pivots or harmonics), "
            f"but the data determine a latent to {1.0 / precision:.1e}: in double precision ELBO, means and variances "
            f"lose accuracy. {remedy}",
            PrecisionWarning,
        )
    elif rounding + neglect > max(_NATS, _SHARE * abs(elbo)):
        warn(
            f"the ELBO, {elbo:.6g}, may be off by {rounding + neglect:.1g} nats: {neglect:.1g} due to a variance of "
            f"{error:.1e} that the prior neglects (jitter, neglected pivots or harmonics), and {rounding:.1g} due to "
            f"rounding. y is farther from the latents than the likelihood's scale allows. {remedy}",
            PrecisionWarning,
        )


def _warn_truncated(prior: PriorCollection) -> None:
    """Warn if basis functions leave out too much variance: everywhere if too few, else near the ends of the domain."""
    shares = [np.asarray(share) for group in prior.groups if (share := group.truncated_shares()) is not None]
    worst = max(shares, key=np.max, default=np.zeros(1))
    if np.max(worst) > _TRUNCATED:
        few = np.median(worst) > _TRUNCATED
        remedy = "Raise their number" if few else "Raise the boundary (and their number), or give a wider domain"
        warn(
            f"the basis functions of pgm.Hilbert leave out {np.max(worst):.1%} of the prior variance at some row and "
            f"{np.median(worst):.1%} at the median row, where deviations are too narrow. {remedy}.",
            TruncationWarning,
        )
