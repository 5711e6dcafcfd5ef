"""The likelihoods of published systems that have no public name; saved files refer to them by the names here."""

from typing import Any

import numpy as np

from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.functions import largest, normal_cdf, normal_pdf, sqrt, step
from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.named import with_errors
from pgmodels.likelihoods.supports import Binary, Given, Positive, Real

# The variance of Gaussian noise whose distribution function is nearest to the logistic one, to 0.0095.
LOGISTIC_VARIANCE = 2.897


@likelihood(support=Given(Real(), Positive()), num_latents=1)
def known_noise(y: Expression, f: Expression) -> Expression:
    """y[0] = f + Gaussian noise with variance y[1]. Source: Passerello 2021, section 3."""
    return normal_pdf(y[0], f, sqrt(y[1]))  # type: ignore[index]


@likelihood(support=Binary(), num_latents=1)
def gpc_1_labels(y: Expression, f: Expression, error: Any) -> Expression:
    """The sign of f as the label, with random errors. Source: Liu et al. 2019, section II."""
    return with_errors(step((2 * y - 1) * f), error)


@likelihood(support=Binary(), num_latents=1)
def gpc_2_labels(y: Expression, f: Expression, error: Any) -> Expression:
    """As ``gpc_1_labels``, with standard normal noise of f."""
    return with_errors(normal_cdf((2 * y - 1) * f), error)


@likelihood(support=Binary(), num_latents=1)
def gpc_3_labels(y: Expression, f: Expression, error: Any) -> Expression:
    """As ``gpc_1_labels``, with nearly logistic noise of f."""
    return with_errors(normal_cdf((2 * y - 1) * f / np.sqrt(LOGISTIC_VARIANCE)), error)


@likelihood
def gpc_1_classes(y: Expression, f: Expression, error: Any) -> Expression:
    """The position of the largest latent as the class, with random errors. Source: Liu et al. 2019, section III."""
    return with_errors(largest(f, y), error, len(f) - 1)  # type: ignore[arg-type]


@likelihood
def gpc_2_classes(y: Expression, f: Expression, error: Any) -> Expression:
    """As ``gpc_1_classes``, with standard normal noise of the latents."""
    return with_errors(largest(f, y, 1.0), error, len(f) - 1)  # type: ignore[arg-type]


@likelihood
def gpc_3_classes(y: Expression, f: Expression, error: Any) -> Expression:
    """As ``gpc_1_classes``, with nearly logistic noise of the latents."""
    return with_errors(largest(f, y, LOGISTIC_VARIANCE), error, len(f) - 1)  # type: ignore[arg-type]
