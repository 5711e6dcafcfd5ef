"""Published regressions by formulas: with wide priors their coefficients are those of maximum likelihood."""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions.constraints import ordered_vector

import pgmodels as pgm
from tests.test_case_files import table
from tests.test_case_tables import BITTERNESS, TENANTS, numbers

pytest.importorskip("formulaic")
pytestmark = pytest.mark.slow


def wide(names, sd=10.0):
    return {name: dist.Normal(0.0, sd) for name in names}


def tenants():
    contact, kind, influence, satisfaction = (part.ravel() for part in np.indices((2, 4, 3, 3)))
    grades, kinds = ["Low", "Medium", "High"], ["Tower", "Apartment", "Atrium", "Terrace"]
    data = pd.DataFrame(
        {
            "Sat": pd.Categorical.from_codes(satisfaction, grades, ordered=True),
            "Infl": pd.Categorical.from_codes(influence, grades),
            "Type": pd.Categorical.from_codes(kind, kinds),
            "Cont": pd.Categorical.from_codes(contact, ["Low", "High"]),
        }
    )
    return data.assign(Freq=numbers(TENANTS))


def test_satisfaction_of_tenants():
    """The proportional odds of MASS, with a deviance of 3479.1493."""
    names = ["Infl[T.Medium]", "Infl[T.High]", "Type[T.Apartment]", "Type[T.Atrium]", "Type[T.Terrace]", "Cont[T.High]"]
    text, data = "Sat ~ Infl + Type + Cont", tenants()
    regression = pgm.formula(text, data, family="cumulative", weights="Freq", priors=wide(names))
    result = regression.fit()
    mean = result.summary()["mean"].astype(float)
    np.testing.assert_allclose(mean[names], [0.5664, 1.2888, -0.5723, -0.3662, -1.0910, 0.3603], atol=5e-3)
    np.testing.assert_allclose(mean[["cuts[0]", "cuts[1]"]], [-0.4961, 0.6907], atol=5e-3)
    p = result.result.predict(regression.X).probabilities[np.arange(72), regression.y.astype(int)]
    assert -2.0 * data["Freq"] @ np.log(p) == pytest.approx(3479.1493, abs=0.2)


def test_bitterness_of_wine():
    """``ordinal`` has a log likelihood of -86.4919."""
    temp, contact = np.tile(
        np.repeat([["cold", "no"], ["cold", "yes"], ["warm", "no"], ["warm", "yes"]], 2, axis=0).T, 9
    )
    data = pd.DataFrame({"rating": list(BITTERNESS), "temp": temp, "contact": contact})
    names = ["temp[T.warm]", "contact[T.yes]"]
    priors = wide(names) | {"cuts": pgm.Parameter([-2.0, 0.0, 2.0, 4.0], constraint=ordered_vector)}
    regression = pgm.formula("rating ~ temp + contact", data, family="cumulative", priors=priors)
    result = regression.fit(objective="augmented")
    mean = result.summary()["mean"].astype(float)
    np.testing.assert_allclose(mean[names], [2.5031, 1.5278], rtol=0.01)
    # The maximum; means of the summary are above it, since logarithms of the gaps are normal.
    np.testing.assert_allclose(result.result.fit.values["cuts"], [-1.3444, 1.2508, 3.4669, 5.0064], rtol=0.01)


def test_counts_of_roaches_with_exposure():
    """R's ``glm.nb`` has a log likelihood of -889.2917 and r = .274."""
    rows = table("roaches")
    data = pd.DataFrame(
        {name: rows[name].astype(float) for name in ("y", "roach1", "treatment", "senior", "exposure2")}
    )
    text = "y ~ I(roach1 / 100) + treatment + senior + offset(log(exposure2))"
    names = ["Intercept", "I(roach1 / 100)", "treatment", "senior"]
    priors = wide(names) | {"dispersion": pgm.Parameter(1.0, positive=True)}
    result = pgm.formula(text, data, family="negbinomial", priors=priors).fit()
    summary = result.summary().astype(float)
    difference = summary.loc[names, "mean"] - [2.8388, 1.2882, -0.7768, -0.3444]
    # The maximum of a skewed posterior is a sixth of a standard error from its mean.
    assert (difference.abs() < 0.2 * summary.loc[names, "sd"]).all()
    assert summary.loc["dispersion", "mean"] == pytest.approx(0.27427, rel=0.03)
    twice = data.head(2).assign(exposure2=lambda rows: 2.0 * rows["exposure2"])
    means = [result.predictions(part)["mean"].astype(float) for part in (data.head(2), twice)]
    np.testing.assert_allclose(means[1], 2.0 * means[0], rtol=1e-8)
