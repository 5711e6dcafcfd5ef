"""Models as text and numbers: what is built of a description is the model described."""

import json

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.language import likelihoods, supports
from pgmodels.results.description import build, describe

PRIORS = [
    dist.LogNormal(0.1, 0.3),
    dist.Gamma(np.array([2.0, 3.0]), 1.5),
    dist.InverseGamma(3.0, jnp.array([0.1, 0.3])),
    dist.HalfNormal(0.7),
    dist.HalfCauchy(0.7),
    dist.Uniform(0.1, 2.0),
    dist.TruncatedNormal(0.4, 1.2, low=0.0),
    dist.TruncatedNormal(0.4, 1.2, low=0.1, high=3.0),
    dist.Beta(2.0, 3.0),
    dist.Weibull(1.1, 2.0),
    dist.LogNormal(np.array([0.1, 0.2]), 0.3).to_event(1),
]
KERNELS = [
    pgm.Matern12(1.1) * pgm.Matern52(pgm.Fixed(0.3), [0.4, 0.6]),
    pgm.Periodic(1.0, 0.3, 1.9) + pgm.Constant(0.3) * pgm.RationalQuadratic(alpha=0.2),
    *(pgm.RBF(1.0, pgm.Parameter([0.7, 0.9], prior=prior)) for prior in PRIORS),
]
LIKELIHOODS = [
    (pgm.Bernoulli(), 1),
    (pgm.Probit(), 1),
    (pgm.Binomial(), 1),
    (pgm.NegativeBinomial(1.5), 1),
    (pgm.SigmoidPoisson(pgm.Fixed(2.5)), 1),
    (pgm.StudentT(4.0, dist.HalfNormal(0.5)), 1),
    (pgm.Laplace(0.1 + 0.2), 1),
    (pgm.Gaussian(1.0 / 3.0), 1),
    (pgm.HeteroscedasticGaussian(1.3), 2),
    (pgm.LogisticSoftmax(3), 3),
    (pgm.StickBreaking(3), 2),
]
MODELS = [pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)) for kernel in KERNELS] + [
    pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size, form=pgm.Dense())) for likelihood, size in LIKELIHOODS
]
FORMS = (pgm.Inducing(7, "kmeans"), pgm.Inducing([[0.1, 0.2], [1.0 / 3.0, 2.0]]))
MODELS += [pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), form=form)) for form in FORMS]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_model_is_what_its_description_says(model):
    back = build(json.loads(json.dumps(describe(model))), None)
    assert back == model
    assert [gp.form for gp in back.gps] == [gp.form for gp in model.gps]


def test_every_named_likelihood_is_in_the_table():
    named = {name for name, value in vars(likelihoods).items() if callable(value) and name[0].isupper()}
    assert named - {"Expression", "Likelihood", *dir(supports)} == {likelihood.name for likelihood, _ in LIKELIHOODS}
