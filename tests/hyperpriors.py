"""NumPyro's univariate distributions on the reals, the positive numbers or an interval, as hyperpriors.

By name, each as a factory: some versions of NumPyro lack some.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

REAL = {
    "AsymmetricLaplace": lambda: dist.AsymmetricLaplace(0.3, 1.5, 0.7),
    "AsymmetricLaplaceQuantile": lambda: dist.AsymmetricLaplaceQuantile(0.3, 1.5, 0.4),
    "Cauchy": lambda: dist.Cauchy(0.3, 1.5),
    "Gumbel": lambda: dist.Gumbel(0.3, 1.5),
    "ImproperUniform": lambda: dist.ImproperUniform(dist.constraints.real, (), ()),
    "Laplace": lambda: dist.Laplace(0.3, 1.5),
    "Logistic": lambda: dist.Logistic(0.3, 1.5),
    "Normal": lambda: dist.Normal(0.3, 1.5),
    "SoftLaplace": lambda: dist.SoftLaplace(0.3, 1.5),
    "StudentT": lambda: dist.StudentT(4.0, 0.3, 1.5),
    "of an array": lambda: dist.Normal(np.array([0.3, 0.4]), 1.5),
    "expanded": lambda: dist.Normal(0.3, 1.5).expand([2]),
    "independent": lambda: dist.Normal(0.3, 1.5).expand([2]).to_event(1),
    "masked": lambda: dist.Normal(0.3, 1.5).mask(np.array(True)),
    "mixed": lambda: dist.MixtureSameFamily(
        dist.CategoricalProbs(jnp.array([0.25, 0.75])), dist.Normal(jnp.array([-1.0, 2.0]), 1.5)
    ),
    "moved": lambda: dist.TransformedDistribution(dist.Gumbel(0.3, 1.5), dist.transforms.AffineTransform(1.0, 2.0)),
}
POSITIVE = {
    "Chi2": lambda: dist.Chi2(3.0),
    "Dagum": lambda: dist.Dagum(2.0, 3.0, 1.5),
    "Exponential": lambda: dist.Exponential(1.5),
    "FoldedDistribution": lambda: dist.FoldedDistribution(dist.Normal(0.3, 1.5)),
    "Gamma": lambda: dist.Gamma(2.0, 1.5),
    "Gompertz": lambda: dist.Gompertz(2.0, 1.5),
    "HalfCauchy": lambda: dist.HalfCauchy(1.5),
    "HalfNormal": lambda: dist.HalfNormal(1.5),
    "InverseGamma": lambda: dist.InverseGamma(2.0, 1.5),
    "InverseGaussian": lambda: dist.InverseGaussian(2.0, 1.5),
    "Levy": lambda: dist.Levy(0.0, 1.5),
    "LogLogistic": lambda: dist.LogLogistic(1.5, 2.5),
    "LogNormal": lambda: dist.LogNormal(0.3, 1.5),
    "LogUniform": lambda: dist.LogUniform(0.1, 10.0),
    "Lomax": lambda: dist.Lomax(1.5, 3.0),
    "LowerTruncatedPowerLaw": lambda: dist.LowerTruncatedPowerLaw(-2.5, 0.4),
    "Pareto": lambda: dist.Pareto(0.4, 3.0),
    "Weibull": lambda: dist.Weibull(1.5, 2.0),
    "truncated below": lambda: dist.TruncatedNormal(0.3, 1.5, low=0.0),
    "truncated Cauchy": lambda: dist.TruncatedCauchy(0.3, 1.5, low=0.0),
    "transformed": lambda: dist.TransformedDistribution(dist.Normal(0.3, 1.5), dist.transforms.ExpTransform()),
    "transformed twice": lambda: dist.TransformedDistribution(
        dist.Normal(0.3, 1.5), [dist.transforms.ExpTransform(), dist.transforms.AffineTransform(0.0, 2.0)]
    ),
    "expanded, positive": lambda: dist.HalfCauchy(1.5).expand([2]),
}
INTERVAL = {
    "Beta": lambda: dist.Beta(2.0, 3.0),
    "BetaProportion": lambda: dist.BetaProportion(0.4, 3.0),
    "DoublyTruncatedPowerLaw": lambda: dist.DoublyTruncatedPowerLaw(-2.5, 0.4, 3.0),
    "Kumaraswamy": lambda: dist.Kumaraswamy(2.0, 3.0),
    "RelaxedBernoulliLogits": lambda: dist.RelaxedBernoulliLogits(0.7, 0.3),
    "TruncatedPolyaGamma": lambda: dist.TruncatedPolyaGamma(),
    "Uniform": lambda: dist.Uniform(0.4, 3.0),
    "truncated": lambda: dist.TruncatedNormal(0.3, 1.5, low=0.1, high=2.0),
    "truncated StudentT": lambda: dist.TruncatedDistribution(dist.StudentT(4.0, 0.3, 1.5), low=0.1, high=2.0),
    "truncated above": lambda: dist.TruncatedNormal(0.3, 1.5, high=2.0),
    "truncated Gamma": lambda: dist.TruncatedGamma(2.0, 1.5, low=0.1, high=2.0),
    "truncated Gamma above": lambda: dist.TruncatedGamma(2.0, 1.5, high=2.0),
    "truncated Gamma below": lambda: dist.TruncatedGamma(2.0, 1.5, low=0.1),
}


def made():
    """The distributions that the installed NumPyro has."""
    priors = {}
    for name, make in (REAL | POSITIVE | INTERVAL).items():
        try:
            priors[name] = make()
        except AttributeError as error:
            if "'numpyro.distributions' has no attribute" not in str(error):
                raise
    return priors
