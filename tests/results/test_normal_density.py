"""Normal densities against scipy's; distances of draws are tested with comparisons."""

import numpy as np
import pytest
from scipy import stats

from pgmodels.results.gaussian import NormalDensity

MEAN, VARIANCE = np.array([[0.3, -2.0], [5.0, 1.0]]), np.array([[4.0, 0.25], [1.0, 9.0]])


def test_densities_and_quantiles():
    marginals, law = NormalDensity(MEAN, VARIANCE), stats.norm(MEAN, np.sqrt(VARIANCE))
    levels = np.array([0.02, 0.5, 0.9])
    np.testing.assert_allclose(marginals.quantiles(levels), [law.ppf(level) for level in levels], rtol=1e-12)
    values = np.array([-1.0, 0.7])[:, None, None]
    np.testing.assert_allclose(marginals.pdf(values), law.pdf(values), rtol=1e-12)
    np.testing.assert_allclose(marginals[1].quantiles(0.9)[0], law.ppf(0.9)[1], rtol=1e-12)
    assert not marginals.skewness.any()


def test_variances_that_are_not_positive_have_no_density():
    marginals = NormalDensity(np.zeros(2), np.array([-1.0, 1.0]))
    np.testing.assert_array_equal(np.isnan(marginals.quantiles([0.5])), [[True, False]])
    with pytest.raises(ValueError, match="levels must be numbers between 0 and 1"):
        marginals.quantiles([-1.96, 1.96])
