"""Supports of censored values and shares, and arguments of the likelihoods that use them."""

import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm


def test_intervals_are_recorded_as_they_were_looked_at():
    y = np.array([[2.0, 0, 2.0], [2.0, 1, 2.0], [2.0, 2, 2.0], [2.0, 3, 5.0]])
    drawn = np.array([[1.0] * 4, [3.0] * 4, [7.0] * 4])
    early = [[1.0, 1, 1.0], [1.0, 1, 1.0], [2.0, 2, 2.0], [2.0, 2, 2.0]]
    later = [[2.0, 0, 2.0], [3.0, 1, 3.0], [2.0, 0, 2.0], [2.0, 3, 5.0]]
    last = [[2.0, 0, 2.0], [7.0, 1, 7.0], [2.0, 0, 2.0], [5.0, 0, 5.0]]
    support = pgm.IntervalCensored()
    np.testing.assert_array_equal(support.recorded(drawn, y), [early, later, last])
    for records in (early, later, last):
        support.check(np.array(records))


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (pgm.Weibull(1.0, "interval"), [[0.0, 2.0, 3.0]], r"y\[0\] must hold times > 0; got 0 in row 0"),
        (pgm.Weibull(1.0, "interval"), [[1.0, 2.0, 0.0]], r"y\[2\] must hold times > 0.*repeats y\[0\]"),
        (pgm.LogLogistic(1.0, "interval"), [[1.0, 4.0, 1.0]], r"y\[1\] must hold a code.*got 4 in row 0"),
        (pgm.LogLogistic(1.0, "interval"), [[1.0, 3.0, 1.0]], r"above y\[0\] where the code y\[1\] is 3; got 1 to 1"),
        (
            pgm.Weibull(1.0, "counting"),
            [[2.0, 1.0, 2.0]],
            r"y\[2\] must hold times of entry from 0.*got 2 with the time 2",
        ),
        (pgm.Weibull(1.0, "counting"), [[2.0, 1.0, -1.0]], r"y\[2\] must hold times of entry from 0.*got -1 with"),
        (pgm.Weibull(1.0, "counting"), [[2.0, 3.0, 0.0]], r"y\[1\] must hold 1 where a time was observed"),
        (pgm.CensoredGaussian(1.0), [[-1.0, 3.0, -2.0]], r"got -1 to -2 in row 0"),
        (pgm.Beta(2.0), [0.3, 1.0], r"above 0 and below 1; got 1 in row 1.*y \* \(n - 1\) \+ 0.5"),
        (pgm.Gamma(2.0), [0.3, 0.0], r"real numbers > 0; got 0 in row 1"),
        (pgm.KnownNoise(), [[0.3, 0.0]], r"column 1 of y"),
        (pgm.Ordinal(3), [1.0, 3.0], r"class indices 0 to 2"),
    ],
)
def test_wrong_observations_say_so(likelihood, y, message):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 1.0)))
    with pytest.raises(ValueError, match=message):
        model.check(np.arange(len(y))[:, None], y)


def test_negative_values_of_the_line_may_be_censored():
    y = [[-1.0, 2.0, -1.0], [-3.0, 3.0, -2.0], [0.0, 1.0, 0.0]]
    model = pgm.Model(pgm.CensoredGaussian(1.0), pgm.GP(pgm.RBF(1.0, 1.0)))
    model.check(np.arange(3.0)[:, None], y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pgm.Ordinal(1), "num_classes must be a whole number >= 2"),
        (lambda: pgm.Ordinal(3, link="cloglog"), "link of Ordinal must be 'logit' or 'probit'; got 'cloglog'"),
        (lambda: pgm.Ordinal(3, cuts=[1.0, 0.0]), "cuts of Ordinal must satisfy"),
        (lambda: pgm.Ordinal(3, cuts=[0.0, 1.0, 2.0]), r"must be 2 increasing numbers.*got an array of shape \(3,\)"),
        (lambda: pgm.Weibull(-1.0), "shape of Weibull must be positive"),
        (
            lambda: pgm.LogLogistic(1.0, "left"),
            "censoring of LogLogistic must be 'right', 'counting' or 'interval'; got",
        ),
        (lambda: pgm.IntervalCensored(2.0), "low of IntervalCensored must be 0 for times or -inf"),
    ],
)
def test_wrong_arguments_say_so(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_cuts_may_be_fixed_or_have_a_prior():
    fixed = pgm.Ordinal(3, cuts=pgm.Fixed([-0.3, 0.9])).parameters["cuts"]
    assert not fixed.learned
    np.testing.assert_array_equal(fixed.value, [-0.3, 0.9])
    prior = pgm.Ordinal(3, cuts=dist.Normal(0.0, 2.0).expand([2])).parameters["cuts"]
    np.testing.assert_allclose(prior.value, [-np.log(2.0), np.log(2.0)])
    assert prior.prior is not None


def test_code_of_categories_is_their_printed_form():
    made = pgm.Ordinal(3, link="probit", cuts=pgm.Fixed([-0.3, 0.9]))
    assert (
        repr(made)
        == "Ordinal(num_classes=3, link='probit', cuts=Parameter(Fixed([-0.3, 0.9]), constraint=ordered_vector))"
    )
    assert repr(pgm.Weibull(pgm.Fixed(1.5))) == "Weibull(censoring='right', shape=Fixed(1.5))"
