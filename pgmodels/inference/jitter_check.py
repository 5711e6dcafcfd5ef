"""Whether the form in which a prior is held is accurate enough for what the data say."""

from pgmodels.model import Data, Model
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime.warnings import PgmodelsWarning, warn

# A neglected variance times the largest precision of a site: so much is wanted, and so much is warned of. A datum's
# share of the ELBO is off by half of it, and by more where its residual is large.
_WANTED, _WARNED = 1e-7, 1e-2
# So far the ELBO may be off, in nats or relative to its size, whichever is more.
_NATS, _SHARE = 0.1, 1e-9


class PrecisionWarning(PgmodelsWarning):
    """No form of the prior holds enough digits for what the data say."""


def accurate_prior(model: Model, data: Data, prior: PriorCollection, precision: float) -> PriorCollection:
    """The prior as it is where it neglects nothing that counts beside sites of a given precision, else a finer one."""
    if prior.approximation_error * precision <= _WANTED:
        return prior
    return model.prior(data.X, max_error=_WANTED / precision)


def warn_inaccurate(
    prior: PriorCollection, precision: float, elbo: float = 0.0, rounding: float = 0.0, neglect: float = 0.0
) -> None:
    """Warn where a prior neglects variances that count beside sites of a given precision, or an ELBO is off.

    ``rounding`` is what that may have done to the ELBO, ``neglect`` what the variances that the prior neglects may.
    """
    error = prior.approximation_error
    remedy = "Raise the likelihood's scale or lower the prior variance, whose ratio is extreme, or add a White kernel."
    if error * precision > _WARNED:
        warn(
            f"the latents' prior is held to a variance of {error:.1e} (jitter or neglected pivots), and the "
            f"data determine a latent to {1.0 / precision:.1e}: double precision does not hold both, so that ELBO, "
            f"means and variances are off. {remedy}",
            PrecisionWarning,
        )
    elif rounding + neglect > max(_NATS, _SHARE * abs(elbo)):
        warn(
            f"the ELBO, {elbo:.6g}, may be off by {rounding + neglect:.1g} nats: by {neglect:.1g} for a variance of "
            f"{error:.1e} that the prior neglects (jitter or neglected pivots), and by {rounding:.1g} for "
            f"rounding. y is farther from the latents than the likelihood's scale lets it be. {remedy}",
            PrecisionWarning,
        )
