"""The likelihood of ordered categories."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.functions import normal_cdf, sigmoid, sum_
from pgmodels.likelihoods.likelihood import Likelihood, likelihood
from pgmodels.likelihoods.supports import Classes
from pgmodels.parameters.parameter import Parameter, as_declared

# In place of those that ``Ordinal`` declares.
_CUTS = Parameter(np.array([-1.0, 1.0]))


def _cumulative(distribution: Any, y: Expression, f: Expression, cuts: Any) -> Expression:
    below = [0, *(distribution(cut - f) for cut in cuts), 1]
    return sum_((below[k + 1] - below[k]) * (y == k) for k in range(len(below) - 1))


# The number of cut-points below the latent plus noise.
@likelihood(num_latents=1, sampler=lambda rng, y, f, cuts: np.sum(f + rng.logistic(size=f.shape) > cuts, axis=0))
def _logit(y: Expression, f: Expression, cuts: Any = _CUTS) -> Expression:
    return _cumulative(sigmoid, y, f, cuts)


@likelihood(num_latents=1, sampler=lambda rng, y, f, cuts: np.sum(f + rng.standard_normal(f.shape) > cuts, axis=0))
def _probit(y: Expression, f: Expression, cuts: Any = _CUTS) -> Expression:
    return _cumulative(normal_cdf, y, f, cuts)


_LINKS = {"logit": _logit, "probit": _probit}


def Ordinal(num_classes: int, link: str = "logit", cuts: Any = None) -> Likelihood:
    """An ordered category y: P(y <= k) = F(cuts[k] - f), with F = σ or Φ; one latent. All engines take it.

    The cut-points carry the level of f: give the GP the mean ``pgm.Fixed(0.0)``.

    Parameters
    ----------
    num_classes : int
        Number of categories, at least 2; y is 0 to num_classes - 1, in order.
    link : "logit" or "probit"
        Proportional odds, or a category of f plus standard normal noise.
    cuts : array_like, Fixed, Parameter or NumPyro distribution, optional
        The num_classes - 1 cut-points, increasing, in units of f; learned by ``fit``. By default they start where all
        categories are equally likely at f = 0.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``num_classes`` is not a whole number >= 2, ``link`` is another, or ``cuts`` are not increasing or of another
        number.

    References
    ----------
    McCullagh 1980; Chu and Ghahramani 2005.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 3.0, 30)[:, None]
    >>> y = np.repeat([0, 1, 2], 10)
    >>> vi = pgm.cavi(pgm.Model(pgm.Ordinal(3, cuts=[-2.0, 2.0]), pgm.GP(pgm.RBF(9.0, 1.0))), X, y)
    >>> vi.predict([[0.0], [1.5], [3.0]]).probabilities.argmax(axis=1)
    array([0, 1, 2])
    """
    from numpyro.distributions.constraints import ordered_vector

    support = Classes(num_classes)
    if link not in _LINKS:
        raise ValueError(f"link of Ordinal must be 'logit' or 'probit'; got {link!r}.")
    quantile = scipy.special.logit if link == "logit" else scipy.special.ndtri
    count = support.num_classes - 1
    start = quantile(np.arange(1, count + 1) / support.num_classes)
    declared = Parameter(start, constraint=ordered_vector)
    parameter = as_declared(start if cuts is None else cuts, declared, "cuts of Ordinal", positive=False)
    if parameter.value.shape != (count,):
        raise ValueError(
            f"cuts of Ordinal must be {count} increasing numbers, one less than num_classes; got an array of shape "
            f"{parameter.value.shape}."
        )
    options = {"num_classes": support.num_classes, "link": link}
    return replace(_LINKS[link](parameter), name="Ordinal", declared_support=support, options=tuple(options.items()))
