"""Models in files: a model that is loaded equals the one that was saved."""

import pickle

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.likelihoods import counts, named, supports
from pgmodels.likelihoods.likelihood import LikelihoodFamily

PRIORS = (
    lambda: dist.LogNormal(0.1, 0.3),
    lambda: dist.Gamma(np.array([2.0, 3.0]), 1.5),
    lambda: dist.InverseGamma(3.0, jnp.array([0.1, 0.3])),
    lambda: dist.HalfNormal(0.7),
    lambda: dist.HalfCauchy(0.7),
    lambda: dist.Uniform(0.1, 2.0),
    lambda: dist.TruncatedNormal(0.4, 1.2, low=0.0),
    lambda: dist.TruncatedNormal(0.4, 1.2, low=0.1, high=3.0),
    lambda: dist.Beta(2.0, 3.0),
    lambda: dist.Weibull(1.1, 2.0),
    lambda: dist.LogNormal(np.array([0.1, 0.2]), 0.3).to_event(1),
)
KERNELS = (
    lambda: pgm.Matern12(1.1) * pgm.Matern52(pgm.Fixed(0.3), [0.4, 0.6]),
    lambda: pgm.Periodic(1.0, 0.3, 1.9) + pgm.Constant(0.3) * pgm.RationalQuadratic(alpha=0.2),
    lambda: pgm.On(pgm.Cosine(1.0, dist.Gamma(2.0, 1.0)) * pgm.Periodic(harmonics=3), [1]),
    lambda: pgm.On(pgm.RandomWalk(0.3, start=-2.5), [0]),
    *(lambda prior=prior: pgm.RBF(1.0, pgm.Parameter([0.7, 0.9], prior=prior())) for prior in PRIORS),
)
LIKELIHOODS = [
    (lambda: pgm.Bernoulli(), 1),
    (lambda: pgm.Probit(), 1),
    (lambda: pgm.Binomial(), 1),
    (lambda: pgm.NegativeBinomial(1.5), 1),
    (lambda: pgm.SigmoidPoisson(pgm.Fixed(2.5)), 1),
    (lambda: pgm.StudentT(4.0, dist.HalfNormal(0.5)), 1),
    (lambda: pgm.Laplace(0.1 + 0.2), 1),
    (lambda: pgm.Gaussian(1.0 / 3.0), 1),
    (lambda: pgm.HeteroscedasticGaussian(1.3), 2),
    (lambda: pgm.LogisticSoftmax(3), 3),
    (lambda: pgm.StickBreaking(3), 2),
    (lambda: pgm.Softmax(3), 3),
    (lambda: pgm.MultinomialProbit(2), 2),
    (lambda: pgm.RobustMax(3, pgm.Fixed(0.04)), 3),
    (lambda: pgm.RobustMax(2, dist.Beta(1.0, 9.0)), 2),
    (lambda: pgm.KnownNoise(), 1),
    (lambda: pgm.Poisson(), 1),
    (lambda: pgm.NegativeBinomial2(1.5), 1),
    (lambda: pgm.ZeroInflatedPoisson(), 2),
    (lambda: pgm.ZeroInflatedNegativeBinomial(pgm.Fixed(1.5)), 2),
    (lambda: pgm.HurdlePoisson(), 2),
    (lambda: pgm.HurdleNegativeBinomial(1.5), 2),
    (lambda: pgm.BetaBinomial(3.5), 1),
    (lambda: pgm.Gamma(1.5), 1),
    (lambda: pgm.LogNormal(0.7), 1),
    (lambda: pgm.Beta(dist.HalfNormal(5.0)), 1),
    (lambda: pgm.CensoredGaussian(0.7), 1),
    (lambda: pgm.Ordinal(4), 1),
    (lambda: pgm.Ordinal(3, link="probit", cuts=pgm.Fixed([-0.3, 0.9])), 1),
    (lambda: pgm.Ordinal(3, cuts=dist.Normal(0.0, 2.0).expand([2])), 1),
    (lambda: pgm.Weibull(1.5), 1),
    (lambda: pgm.LogLogistic(pgm.Fixed(1.5), censoring="interval"), 1),
]
RATE = pgm.Parameter(0.02, constraint=dist.constraints.interval(0.0, 2 / 3))
PUBLISHED = [
    (lambda: named.known_noise(), 1),
    (lambda: named.gpc_1_labels(pgm.Fixed(0.04)), 1),
    (lambda: named.gpc_2_labels(RATE), 1),
    (lambda: named.gpc_3_labels(RATE), 1),
    (lambda: named.gpc_1_classes(RATE), 3),
    (lambda: named.gpc_2_classes(RATE), 3),
    (lambda: named.gpc_3_classes(pgm.Fixed(0.04)), 3),
]
HILBERT = (pgm.Hilbert(9), pgm.Hilbert([3, 4], 1.5), pgm.Hilbert(9, domain=[(-1.0, 1.0 / 3.0), None]))
FORMS = (pgm.Inducing(7, "kmeans"), pgm.Inducing([[0.1, 0.2], [1.0 / 3.0, 2.0]]), *HILBERT)
# Made where they are tested: NumPyro computes as it builds a distribution.
MODELS = [
    *(lambda kernel=kernel: pgm.Model(pgm.Bernoulli(), pgm.GP(kernel())) for kernel in KERNELS),
    *(
        lambda lik=likelihood, size=size: pgm.Model(lik(), pgm.GP(pgm.RBF(), size=size, form=pgm.Dense()))
        for likelihood, size in (*LIKELIHOODS, *PUBLISHED)
    ),
    *(lambda form=form: pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), form=form)) for form in FORMS),
]


def with_model(model):
    """A result that needs no computation, of one row."""
    size, moments = model.num_latents, np.zeros((1, 1, model.num_latents))
    return pgm.IntegratedApproximation(
        model=model, X=np.zeros((1, 2)), y=np.zeros(1), seconds=1.0, method="integrate", vectors=np.zeros((1, 1)),
        shares=np.ones(1), log_densities=np.zeros(1), elbos=np.zeros(1), k_hats=np.zeros(1), means=moments,
        covariances=np.zeros((1, 1, size, size)), potential=moments, precision=moments, support=np.zeros((1, 1)),
        mass=np.ones(1), owners=np.zeros(1, int), log_evidence=0.0, converged=True, holds_mass=True, num_failed=0,
        unreliable=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("made", MODELS)
def test_a_model_is_the_same_after_loading(made, tmp_path):
    model = made()
    back = pgm.load(with_model(model).save(tmp_path / "model.npz")).model
    assert back == model
    assert [gp.form for gp in back.gps] == [gp.form for gp in model.gps]


def test_every_named_likelihood_is_tested():
    members = {name: value for module in (counts, named) for name, value in vars(module).items() if name[0] != "_"}
    makers = {name for name, value in members.items() if callable(value) and name[0].isupper()}
    families = {name for name, value in members.items() if isinstance(value, LikelihoodFamily)}
    others = {"Any", "Expression", "Likelihood", "LikelihoodFamily", "Parameter", *dir(supports)}
    assert (makers | families) - others == {made().name for made, _ in (*LIKELIHOODS, *PUBLISHED)}


def test_equal_models_are_equal_and_have_one_hash():
    def build(variance=1.7, prior=0.3, likelihood=None, mean=0.3, size=1):
        kernel = pgm.RBF(dist.LogNormal(0.1, prior), np.array([0.9, variance])) + pgm.White(0.01)
        return pgm.Model(likelihood or pgm.Bernoulli(), pgm.GP(kernel, mean=mean, size=size))

    others = [
        build(variance=1.8),
        build(prior=0.4),
        build(likelihood=pgm.Probit()),
        build(mean=0.4),
        build(mean=pgm.Fixed(0.3)),
        build(likelihood=pgm.HeteroscedasticGaussian(1.0), size=2),
    ]
    assert build() == build()
    assert len({build(), build(), *others}) == 1 + len(others)
    assert build() != "model"
    assert {build(): 1}[pickle.loads(pickle.dumps(build()))] == 1
    assert pgm.LogisticSoftmax(3) == pgm.LogisticSoftmax(3) != pgm.LogisticSoftmax(4)
    assert pgm.RBF(1.0, 2.0) == pgm.RBF(np.float32(1.0), 2) != pgm.Matern12(1.0, 2.0)
