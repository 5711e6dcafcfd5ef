"""Names of parameters: short and unique."""

import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.parameters.vector import ParameterVector, names_by_path, parameter_names, trainable, with_priors


@pgm.likelihood(support=pgm.Real())
def awkward(
    y,
    f,
    variance=pgm.Parameter(1.0, positive=True),
    draw=pgm.Parameter(1.0, positive=True),
    mean=pgm.Parameter(0.0, positive=False),
):
    return pgm.normal_pdf(y, f + mean, variance * draw)


class Odd(pgm.Kernel):
    f: pgm.Parameter
    inner: pgm.Kernel

    def __call__(self, X, Z):
        return self.f.value * self.inner(X, Z)

    def diagonal(self, X):
        return self.f.value * self.inner.diagonal(X)


RBF, WHITE = pgm.RBF(1.0, 1.0), pgm.White(0.1)
NAMED = {
    "one of each": (pgm.StudentT(4.0, 1.0), pgm.GP(RBF), ["df", "scale", "variance", "lengthscale", "mean"]),
    "a sum": (
        pgm.Bernoulli(),
        pgm.GP(pgm.On(RBF, [0]) + WHITE),
        ["RBF.variance", "lengthscale", "White.variance", "mean"],
    ),
    "twice the same": (
        pgm.Bernoulli(),
        pgm.GP(RBF * pgm.Periodic() + pgm.On(RBF, [1])),
        [
            "RBF[0].variance",
            "RBF[0].lengthscale",
            "Periodic.variance",
            "Periodic.lengthscale",
            "period",
            "RBF[1].variance",
            "RBF[1].lengthscale",
            "mean",
        ],
    ),
    "several latents": (
        pgm.LogisticSoftmax(4),
        [pgm.GP(RBF, size=2), pgm.GP(pgm.Linear()), pgm.GP(RBF + WHITE)],
        [
            *["f[0:2].variance", "f[0:2].lengthscale", "f[0:2].mean", "f[2].variance", "f[2].mean"],
            *["f[3].RBF.variance", "f[3].lengthscale", "f[3].White.variance", "f[3].mean"],
        ],
    ),
    "names that meet": (
        awkward(),
        pgm.GP(RBF),
        ["likelihood.variance", "likelihood.draw", "likelihood.mean", "RBF.variance", "lengthscale", "GP.mean"],
    ),
    "names of others": (
        pgm.Bernoulli(),
        pgm.GP(Odd(pgm.Parameter(1.0), RBF)),
        ["Odd.f", "variance", "lengthscale", "mean"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_are_short_and_tell_apart(name):
    likelihood, gps, expected = NAMED[name]
    model = pgm.Model(likelihood, gps)
    names = list(parameter_names(model).values())
    assert sorted(names) == sorted(expected)
    # In the order of the leaves: that of values.
    every = ParameterVector(model, lambda parameter: True)
    assert every.names == names
    assert len(names_by_path(model)) == len(names)


def test_a_name_stands_for_its_value():
    likelihood, gps, _ = NAMED["several latents"]
    model = pgm.Model(likelihood, gps)
    unknowns = trainable(model)
    # Each value is its number among them.
    moved = unknowns.with_values([np.asarray(float(i)) for i in range(len(unknowns.names))])
    value = dict(zip(unknowns.names, range(len(unknowns.names)), strict=True))
    assert moved.gps[0].kernel.lengthscale.value == value["f[0:2].lengthscale"]
    assert moved.gps[1].kernel.variance.value == value["f[2].variance"]
    assert moved.gps[2].kernel.right.variance.value == value["f[3].White.variance"]
    # A mean that is held has a name, and is not among what is learned.
    assert "f[2].mean" not in value


def test_what_a_name_is_does_not_depend_on_what_is_sampled():
    model = pgm.Model(pgm.StudentT(4.0, dist.LogNormal(0.0, 1.0)), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0)) + WHITE))
    assert with_priors(model).names == ["scale", "RBF.variance"]
    assert with_priors(model).of_likelihood == {"scale": "scale"}
