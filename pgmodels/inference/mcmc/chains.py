"""Whether chains have found the same distribution."""

import numpy as np

from pgmodels.runtime.warnings import PgmodelsWarning, warn

# Limit on the largest R-hat (Gelman and Rubin 1992 recommend less), and the smallest number of draws per chain for
# which it is checked: of fewer it is noise.
_RHAT, _DRAWS = 1.2, 100


class MixingWarning(PgmodelsWarning):
    """Draws may be strongly correlated, or chains may differ, although the sampler is exact."""


def warn_unmixed(engine: str, count: int, means: np.ndarray, variances: np.ndarray) -> None:
    """Warn if the means (chains, n, latents) of ``count`` draws differ by more than their variances explain."""
    if count < _DRAWS or len(means) < 2:
        return
    within = variances.mean(axis=0) * (count - 1) / count
    ratio = means.var(axis=0, ddof=1) / np.where(within > 0.0, within, 1.0)
    largest = float(np.sqrt(1.0 + np.max(np.where(within > 0.0, ratio, 0.0))))
    if largest > _RHAT:
        row, latent = np.unravel_index(int(np.argmax(np.where(within > 0.0, ratio, 0.0))), ratio.shape)
        warn(
            f"{engine}: R-hat is {largest:.2f} (latent {latent} at row {row}): the chains have not converged to the "
            "same distribution, and means and variances of the draws are wrong. Raise num_warmup and num_samples, and "
            "look for priors of many orders of magnitude.",
            MixingWarning,
        )
