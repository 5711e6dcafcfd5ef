"""Whether the form in which a prior is held is accurate enough for what the data say."""

from pgmodels.latent.joint import JointPrior
from pgmodels.model import Data, Model
from pgmodels.warning import warn

# A neglected variance times the largest precision of a site: so much is wanted, and so much is warned of. A datum's
# share of the ELBO is off by half of it.
_WANTED, _WARNED = 1e-7, 1e-2


class PrecisionWarning(UserWarning):
    """No form of the prior holds enough digits for what the data say."""


def accurate_prior(model: Model, data: Data, prior: JointPrior, precision: float) -> JointPrior:
    """The prior as it is where it neglects nothing that counts beside sites of a given precision, else a finer one."""
    if prior.neglected * precision <= _WANTED:
        return prior
    return model.prior(data.X, neglected=_WANTED / precision)


def warn_inaccurate(prior: JointPrior, precision: float) -> None:
    """Warn where a prior neglects variances that count beside sites of a given precision."""
    if prior.neglected * precision > _WARNED:
        warn(
            f"the latents' prior is held to a variance of {prior.neglected:.1e} (jitter or neglected pivots), and the "
            f"data determine a latent to {1.0 / precision:.1e}: double precision does not hold both, so that ELBO, "
            "means and variances are off. Raise the likelihood's scale or lower the prior variance, whose ratio is "
            "extreme, or add a White kernel.",
            PrecisionWarning,
        )
