"""Hyperparameters: what a prior must be, and priors over several numbers."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, ExpTransform, PowerTransform
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.sampling import is_normalised
from pgmodels.parameters.parameter import as_parameter
from pgmodels.parameters.vector import ParameterVector, parameter_names, trainable, with_priors
from tests import hyperpriors
from tests.covering import some
from tests.own_likelihoods import graded


class Undefined(dist.Uniform):
    """A distribution without quantiles, mean or density."""

    @property
    def mean(self):
        raise NotImplementedError

    def icdf(self, q):
        raise NotImplementedError

    def log_prob(self, value):
        raise NotImplementedError


class Nowhere(Undefined):
    """A distribution whose density is 0."""

    def log_prob(self, value):
        return jnp.full(jnp.shape(value), -jnp.inf)


# Made where they are tested: NumPyro computes as it builds a distribution.
REFUSED = {
    "the real line": (
        lambda: dist.Normal(1.0, 1.0),
        ["lengthscale of RBF must be positive", "Normal", "LogNormal, Gamma"],
    ),
    "an interval about zero": (
        lambda: dist.Uniform(-1.0, 1.0),
        ["lengthscale of RBF must be positive", "TruncatedNormal"],
    ),
    "negative in one entry": (
        lambda: dist.Uniform(np.array([-1.0, 0.5]), 2.0),
        ["lengthscale of RBF must be positive"],
    ),
    "the real plane": (
        lambda: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        ["lengthscale of RBF must be positive", "MultivariateNormal"],
    ),
    "counts": (lambda: dist.Poisson(3.0), ["prior of lengthscale of RBF is Poisson", "continuous one"]),
    "a simplex": (lambda: dist.Dirichlet(jnp.ones(2)), ["Dirichlet, with a joint constraint on its entries"]),
    "one point": (lambda: dist.Delta(1.5), ["prior of lengthscale of RBF is a Delta", "pgm.Fixed(1.5)"]),
    "no density": (
        lambda: Undefined(0.1, 5.0),
        ["Undefined of lengthscale of RBF has no log density in NumPyro", "use another distribution"],
    ),
    "no density anywhere": (
        lambda: Nowhere(0.1, 5.0),
        ["Nowhere of lengthscale of RBF has no finite density", "pgm.Parameter(1.0, prior=...)"],
    ),
    "real, declared so": (
        lambda: pgm.Parameter(1.0, positive=False, prior=dist.Normal(1.0, 1.0)),
        ["lengthscale of RBF must be positive"],
    ),
    "a start outside": (
        lambda: pgm.Parameter(7.0, prior=dist.Uniform(0.1, 5.0)),
        ["starts at 7.0, outside the support"],
    ),
    "other shapes": (
        lambda: pgm.Parameter(np.ones(3), prior=dist.LogNormal(jnp.zeros(2), 1.0)),
        ["start value has shape (3,) and its prior (2,)"],
    ),
    "SciPy's": (lambda: pgm.Parameter(1.0, prior=stats.gamma(2.0)), ["must be a NumPyro distribution"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_prior_must_be_a_density_over_what_the_value_can_be(name):
    prior, words = REFUSED[name]
    with pytest.raises(ValueError) as caught:
        pgm.RBF(1.0, prior())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "prior",
    [
        lambda: dist.Uniform(0.1, 5.0),
        lambda: dist.TruncatedNormal(1.0, 1.0, low=0.0),
        lambda: dist.Beta(2.0, 3.0),
        lambda: dist.HalfCauchy(1.0),
        lambda: dist.LogNormal(jnp.zeros(2), 1.0),
        lambda: dist.LogNormal(jnp.zeros(2), 1.0).to_event(1),
        lambda: pgm.Parameter(1.0, prior=dist.ImproperUniform(constraints.positive, (), ())),
    ],
)
def test_priors_on_positive_numbers_are_accepted(prior):
    lengthscale = pgm.RBF(1.0, prior()).lengthscale
    assert np.all(lengthscale.prior.support(lengthscale.value))
    assert np.shape(lengthscale.value) == lengthscale.prior.shape()


class OneOfScipys(dist.LogNormal):
    """A prior whose quantile function is not JAX's."""

    def icdf(self, q):
        return stats.lognorm.ppf(np.asarray(q), 0.5, scale=3.0)


def test_a_prior_starts_at_its_median():
    assert pgm.RBF(1.0, dist.LogNormal(0.3, 1.0)).lengthscale.value == pytest.approx(np.exp(0.3))
    assert pgm.RBF(1.0, OneOfScipys(np.log(3.0), 0.5)).lengthscale.value == pytest.approx(3.0)


def test_means_accept_real_priors():
    assert pgm.GP(pgm.RBF(), mean=dist.Normal(1.0, 2.0)).mean.value == 1.0
    with pytest.raises(ValueError, match="mean of a GP must be one number"):
        pgm.GP(pgm.RBF(), mean=dist.Normal(jnp.zeros(2), 2.0))


def test_priors_are_equal_where_their_numbers_are():
    one, same, other = (pgm.RBF(1.0, dist.LogNormal(jnp.array([0.0, x]), 1.0)).lengthscale for x in (1.0, 1.0, 2.0))
    assert hash(one.hashable_prior) == hash(same.hashable_prior)
    assert one.hashable_prior == same.hashable_prior
    assert one.hashable_prior != other.hashable_prior


RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 2))
Y = (X[:, 0] > 0).astype(float)


def test_an_array_of_lengthscales_has_a_prior_of_every_entry():
    value, centre = np.array([0.7, 2.0]), np.array([0.0, 0.5])
    shared = pgm.Parameter(np.ones(2), prior=dist.LogNormal(0.2, 0.3))
    for prior, median in ((shared, 0.2), (dist.LogNormal(jnp.asarray(centre), 0.3), centre)):
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, prior)))
        expected = stats.lognorm.logpdf(value, 0.3, scale=np.exp(median)).sum()
        # The prior's parameters come in single precision.
        np.testing.assert_allclose(float(with_priors(model).log_prior([jnp.asarray(value)])), expected, rtol=1e-6)


@pytest.mark.parametrize("engine", some([pgm.gibbs, pgm.nuts, pgm.fit], pgm.fit))
def test_an_array_of_lengthscales_is_sampled_and_learned_entry_by_entry(engine):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, dist.LogNormal(jnp.array([0.0, 0.5]), 0.3))))
    if engine is pgm.fit:
        assert pgm.fit(model, X, Y).fit.values["lengthscale"].shape == (2,)
        return
    drawn = engine(model, X, Y, num_samples=3, num_warmup=2, num_chains=1, seed=0).hyperparameters["lengthscale"]
    assert drawn.shape == (1, 3, 2)
    assert np.all(drawn[..., 0] != drawn[..., 1])


@pgm.likelihood(support=pgm.Binary())
def flipped(y, f, rate=pgm.Parameter(0.05, constraint=constraints.interval(0.0, 0.5))):
    return rate + (1 - 2 * rate) * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


TYPED = {
    "numbers": lambda: pgm.Model(
        pgm.NegativeBinomial(0.25), pgm.GP(pgm.RBF(1.5, [0.5, 2.0]) + pgm.White(1e-8), mean=0.5)
    ),
    "held": lambda: pgm.Model(
        pgm.StudentT(pgm.Fixed(4.0), 1.0),
        pgm.GP(pgm.On(pgm.Matern32(pgm.Fixed(2.0)), [1]), mean=pgm.Fixed(-0.5), form=pgm.Dense()),
    ),
    "priors": lambda: pgm.Model(
        pgm.LogisticSoftmax(3),
        [
            pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0), pgm.Parameter(2.5, prior=dist.Gamma(2.0, 0.1))), size=2),
            pgm.GP(
                pgm.Periodic(dist.HalfNormal(2.0), dist.TruncatedNormal(0.5, 1.5, low=0.0), dist.Uniform(0.1, 3.0)),
                mean=dist.Normal(0.5, 3.0),
            ),
        ],
    ),
    "priors of arrays": lambda: pgm.Model(
        pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, dist.LogNormal(0.0, np.array([0.5, 1.0]))))
    ),
    "standard deviations": lambda: pgm.Model(
        pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.sd(dist.HalfNormal(2.5))) + pgm.Linear(pgm.sd(dist.HalfCauchy(0.1))))
    ),
    "expanded": lambda: pgm.Model(
        pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, pgm.Parameter([1.0, 2.0], prior=dist.InverseGamma(3.0, 1.0))))
    ),
    "constraints": lambda: pgm.Model(graded(dist.Normal(0.0, 3.0)), pgm.GP(pgm.Linear())),
    "held within": lambda: pgm.Model(graded(pgm.Fixed([-0.5, 0.5])), pgm.GP(pgm.Linear())),
    "bounds": lambda: pgm.Model(flipped(), pgm.GP(pgm.RBF())),
}


@pytest.mark.parametrize("name", TYPED)
def test_repr_evaluates_to_an_equal_model(name):
    names = vars(constraints) | vars(dist) | vars(pgm) | {"array": np.array, "graded": graded, "flipped": flipped}
    # Likelihoods of the package, too; here they are priors.
    names |= {"LogNormal": dist.LogNormal, "Gamma": dist.Gamma, "sd": pgm.sd}
    model = TYPED[name]()
    assert eval(repr(model), names) == model


def test_repr_shows_fixed_values_and_priors():
    kernel = pgm.RBF(variance=dist.LogNormal(0.0, 1.0), lengthscale=pgm.Fixed(2.0))
    assert repr(kernel) == "RBF(variance=LogNormal(0.0, 1.0), lengthscale=Fixed(2.0))"
    moved = pgm.RBF(pgm.Parameter(1 / 3, prior=dist.LogNormal(0.0, 1.0)))
    assert repr(moved) == "RBF(variance=Parameter(0.333333, prior=LogNormal(0.0, 1.0)), lengthscale=None)"
    # Objects without a repr have one that is the same in another process: fingerprints of runs use it.
    shifted = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [AffineTransform(1.0, 2.0), ExpTransform()])
    kernel = pgm.RBF(pgm.Parameter(2.0, prior=shifted), 1.0)
    assert repr(kernel) == "RBF(variance=Parameter(2.0, prior=TransformedDistribution(...)), lengthscale=1.0)"
    assert repr(graded()) == "graded(cuts=Parameter([-1.0, 0.8], constraint=ordered_vector))"


@pgm.likelihood
def line(y, f, slope=pgm.Parameter(1.0), scale=pgm.Parameter(0.5, positive=True)):
    return pgm.normal_pdf(y[0], f + slope * y[1], scale)


@pgm.likelihood(support=pgm.Real())
def unsaid(y, f, scale=pgm.Parameter(1.0)):
    return pgm.normal_pdf(y, f, scale)


def test_a_parameter_of_a_formula_is_real():
    rng, t = np.random.default_rng(4), np.linspace(0.0, 6.0, 40)
    x = rng.standard_normal(40)
    y = -2.0 * x + np.sin(2.0 * t) + 0.2 * rng.standard_normal(40)
    kernel = pgm.RBF(pgm.Fixed(0.6), pgm.Fixed(0.7))
    result = pgm.fit(pgm.Model(line(), pgm.GP(kernel)), t[:, None], np.column_stack([y, x]), progress=False)
    # Given the noise, the likeliest slope is that of generalised least squares.
    values = result.fit.values
    C = 0.6 * np.exp(-0.5 * (t[:, None] - t) ** 2 / 0.49) + values["scale"] ** 2 * np.eye(40)
    slope = x @ np.linalg.solve(C, y) / (x @ np.linalg.solve(C, x))
    assert slope < -1.9
    assert np.isclose(values["slope"], slope, atol=2e-4)


def test_sign_is_printed_and_required_where_the_formula_needs_it():
    assert repr(line()) == "line(slope=1.0, scale=Parameter(0.5, positive=True))"
    assert repr(line(-2.0, pgm.Fixed(0.3))) == "line(slope=-2.0, scale=Fixed(0.3))"
    assert repr(pgm.Gaussian(dist.LogNormal(0.0, 1.0))) == "Gaussian(scale=LogNormal(0.0, 1.0))"
    assert pgm.GP(pgm.RBF(), mean=pgm.Parameter(0.0)).mean.support is constraints.real
    assert pgm.RBF(pgm.Parameter(2.0)).variance.support is constraints.positive
    X, y = np.arange(3.0)[:, None], np.array([0.1, -0.4, 0.3])
    with pytest.raises(ValueError, match=r"declare scale=pgm.Parameter\(1.0, positive=True\)"):
        pgm.cavi(pgm.Model(unsaid(), pgm.GP(pgm.RBF())), X, y)
    with pytest.raises(ValueError, match=r"declare scale=.*At -scale, y is outside what the formula allows"):
        pgm.cavi(pgm.Model(unsaid(dist.Normal(1.0, 0.1)), pgm.GP(pgm.RBF())), X, y)
    # What has a sign by its prior, or keeps its value, needs to say no more.
    for value in (dist.LogNormal(0.0, 1.0), pgm.Fixed(2.0), pgm.Parameter(2.0, positive=True)):
        parameter = unsaid(value).parameters["scale"]
        assert parameter.positive
        assert np.all(np.asarray(parameter.value) > 0)


# Priors without a quantile function and a finite mean, or with a median next to 0; the mode of the unconstrained value.
WITHOUT_CENTRE = {
    # a log v' - b v' has its maximum where the precision v' is a / b.
    "inverse gamma": (lambda: dist.InverseGamma(1e-3, 1e-3), 1.0),
    "inverse gamma without a mean": (lambda: dist.InverseGamma(1.0, 2.0), 2.0),
    "inverse gammas": (lambda: dist.InverseGamma(np.array([1e-3, 0.5]), np.array([1e-3, 2.0])), [1.0, 4.0]),
    "independent": (lambda: dist.InverseGamma(np.array([1e-3, 0.5]), np.array([1e-3, 2.0])).to_event(1), [1.0, 4.0]),
    "expanded": (lambda: dist.HalfCauchy(1.5).expand([2]), 1.5),
    # Its median is 5e-302.
    "gamma": (lambda: dist.Gamma(1e-3, 2e-3), 0.5),
    "half-Cauchy": (lambda: dist.FoldedDistribution(dist.Cauchy(0.0, 2.5)), 2.5),
    "half-t": (lambda: dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 2.5)), 2.5),
    "truncated t": (lambda: dist.LeftTruncatedDistribution(dist.StudentT(3.0, 0.0, 2.5), low=0.0), 2.5),
    "root of an inverse gamma": (
        lambda: dist.TransformedDistribution(dist.InverseGamma(1e-3, 4e-3), PowerTransform(0.5)),
        2.0,
    ),
    "log-normals that depend on each other": (
        lambda: dist.TransformedDistribution(dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), ExpTransform()),
        1.0,
    ),
    # No maximum: 1, where the logarithm is 0.
    "flat": (lambda: dist.ImproperUniform(constraints.positive, (), ()), 1.0),
    "flat over the logarithm": (
        lambda: dist.TransformedDistribution(dist.ImproperUniform(constraints.real, (), ()), ExpTransform()),
        1.0,
    ),
}


@pytest.mark.parametrize("name", WITHOUT_CENTRE)
def test_a_prior_without_a_median_and_a_mean_starts_at_its_unconstrained_mode(name):
    prior, mode = WITHOUT_CENTRE[name]
    lengthscale = pgm.RBF(1.0, prior()).lengthscale
    # The grid has a step of 1 % in log(value), and more for large values.
    np.testing.assert_allclose(lengthscale.value, np.broadcast_to(mode, lengthscale.prior.shape()), rtol=0.02)


def test_real_priors_without_a_median_and_a_mean_start_where_their_density_is_highest():
    cauchys = dist.MixtureSameFamily(dist.CategoricalProbs(np.array([0.8, 0.2])), dist.Cauchy(np.array([-50.0, 2.0])))
    for prior, mode in ((cauchys, -50.0), (dist.ImproperUniform(constraints.real, (), ()), 0.0)):
        value = pgm.GP(pgm.RBF(), mean=pgm.Parameter(None, positive=False, prior=prior)).mean.value
        np.testing.assert_allclose(value, mode, atol=0.6)


def test_every_continuous_distribution_of_numpyro_gives_a_start_value():
    for name, prior in hyperpriors.made().items():
        parameter = as_parameter(prior, name, positive=False)
        assert np.isfinite(parameter.value).all(), name
        assert np.all(prior.support(parameter.value)), name


# Names of parameters: short and unique.


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
            *["RBF[0].variance", "RBF[0].lengthscale", "Periodic.variance", "Periodic.lengthscale", "period"],
            *["RBF[1].variance", "RBF[1].lengthscale", "mean"],
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


# Parameters of several numbers: cutpoints in order, weights of a simplex, one dispersion a group.


ARRAYS_RNG = np.random.default_rng(5)
ARRAYS_X = ARRAYS_RNG.uniform(-2.0, 2.0, (24, 1))
F = ARRAYS_RNG.normal(0.3, 1.2, (24, 1))


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Binary()))
def grouped(y, f, dispersion=pgm.Parameter([1.0, 6.0], positive=True)):
    r = dispersion[y[1]]
    ways = pgm.gamma(y[0] + r) / (pgm.gamma(r) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(f) ** y[0] * pgm.sigmoid(-f) ** r


@pgm.likelihood(support=pgm.Binary())
def noisy(y, f, share=pgm.Parameter([0.9, 0.06, 0.04], constraint=constraints.simplex)):
    return share[0] * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y) + share[1] * y + share[2] * (1 - y)


GRADES = np.searchsorted([-0.5, 0.9], np.sin(1.5 * ARRAYS_X[:, 0]) * 2 + ARRAYS_RNG.logistic(size=24)).astype(float)
GROUP = (np.arange(24) % 2).astype(float)
COUNTS = np.column_stack([ARRAYS_RNG.poisson(ARRAYS_RNG.gamma(np.where(GROUP, 9.0, 0.7), np.exp(0.5))), GROUP])
LABELS = (GRADES > 0).astype(float)
GP = pgm.GP(pgm.RBF(pgm.Fixed(1.5), pgm.Fixed(1.0)))


def by_cuts(f, cuts):
    """The probabilities of the grades, (..., 3)."""
    below = expit(np.asarray(cuts) - f)
    return np.diff(np.concatenate([np.zeros_like(f), below, np.ones_like(f)], axis=-1), axis=-1)


def test_densities_read_their_entries():
    rows = np.arange(24)
    expected = np.log(by_cuts(F, [-1.0, 0.8])[rows, GRADES.astype(int)])
    np.testing.assert_allclose(log_density(graded(), GRADES, F), expected, rtol=1e-12)
    expected = stats.nbinom.logpmf(COUNTS[:, 0], np.where(GROUP, 6.0, 1.0), expit(-F[:, 0]))
    np.testing.assert_allclose(log_density(grouped(), COUNTS, F), expected, rtol=1e-11)
    draws = np.array([[[2.0, 3.0]], [[0.5, 4.0]]])
    log_densities = log_density(grouped().with_values({"dispersion": draws}), COUNTS, np.stack([F, F + 1]))
    for one, r, f in zip(log_densities, draws[:, 0], (F, F + 1), strict=True):
        expected = stats.nbinom.logpmf(COUNTS[:, 0], r[GROUP.astype(int)], expit(-f[:, 0]))
        np.testing.assert_allclose(one, expected, rtol=1e-11)


@pytest.mark.parametrize("family", [graded, grouped, noisy], ids=lambda family: family.__name__)
def test_likelihoods_are_normalised_within_their_constraints(family):
    assert is_normalised(family(), 1, for_all_parameters=True) is True


def test_derivations_name_the_entries():
    model = pgm.Model(graded(), GP)
    assert "(1 - exp(cuts[0] - cuts[1])) σ(cuts[1] - f) σ(f - cuts[0])" in str(pgm.derive(model))
    assert "cuts" in [str(node.label) for node in pgm.derive(model).graph.nodes]
    assert "PG(ω; y[0] + dispersion[y[1]], 0)" in str(pgm.derive(pgm.Model(grouped(), GP)))
    assert pgm.derive(pgm.Model(grouped(), GP)).verify(seed=1)


def test_unconstrained_prior_density_includes_the_jacobian():
    model = pgm.Model(graded(dist.Normal(0.4, 2.0)), GP)
    with jax.enable_x64(True):
        unknowns, vector = with_priors(model), jnp.array([-0.7, 0.3])
        (cuts,) = unknowns.constrain(vector)
        np.testing.assert_allclose(cuts, [-0.7, -0.7 + np.exp(0.3)])
        _, volume = np.linalg.slogdet(jax.jacobian(lambda x: unknowns.constrain(x)[0])(vector))
        expected = stats.norm.logpdf(cuts, 0.4, 2.0).sum() + volume
        # The prior's own numbers are in single precision.
        np.testing.assert_allclose(unknowns.log_prior_unconstrained(vector), expected, rtol=1e-6)


def test_a_simplex_has_one_free_number_fewer():
    with jax.enable_x64(True):
        unknowns = trainable(pgm.Model(noisy(), GP))
        start = unknowns.start()
        assert start.shape == (2,)
        np.testing.assert_allclose(unknowns.constrain(jnp.asarray(start))[0], [0.9, 0.06, 0.04], rtol=1e-12)


FITTED = {
    "graded": (graded, "cuts", GRADES, [[0.05, 0.0], [0.0, 0.05]]),
    "grouped": (grouped, "dispersion", COUNTS, [[0.05, 0.0], [0.0, 0.3]]),
    "noisy": (noisy, "share", LABELS, [[-0.01, 0.01, 0.0], [-0.01, 0.0, 0.01]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTED)
@pytest.mark.filterwarnings("ignore:.*do not determine")
def test_fit_stops_where_no_neighbour_within_the_constraint_is_better(name):
    family, parameter, y, moves = FITTED[name]
    fitted = pgm.fit(pgm.Model(family(), GP), ARRAYS_X, y)
    fitted_parameter = fitted.model.likelihood.parameters[parameter]
    assert np.all(fitted_parameter.support(fitted_parameter.value))
    for move in moves:
        for sign in (-1.0, 1.0):
            beside = fitted_parameter.value + sign * np.array(move)
            if np.all(fitted_parameter.support(beside)):
                # Beyond the tolerance of the ascent: the optimum may lie on the simplex's edge.
                assert pgm.cavi(pgm.Model(family(beside), GP), ARRAYS_X, y).elbo < fitted.elbo + 1e-6


@pytest.mark.slow
def test_samplers_keep_the_order_and_predictions_average_over_the_draws(tmp_path):
    model = pgm.Model(graded(dist.Normal(0.0, 3.0)), GP)
    draws = pgm.gibbs(model, ARRAYS_X, GRADES, num_samples=6, num_warmup=4, num_chains=2, seed=0)
    cuts = draws.hyperparameters["cuts"]
    assert cuts.shape == (2, 6, 2)
    assert (cuts[..., 0] < cuts[..., 1]).all()
    assert len(np.unique(cuts[..., 0])) == 12
    predictive = draws.predict(ARRAYS_X[:5])
    f = predictive.nodes.at(slice(None), 0)[0]
    expected = by_cuts(f, cuts.reshape(12, 1, 2)).mean(axis=0)
    np.testing.assert_allclose(predictive.probabilities, expected, rtol=1e-10)
    assert pgm.to_arviz(draws)["posterior"]["cuts"].shape == (2, 6, 2)
    assert "cuts=Parameter([" in repr(draws.model.likelihood)
    assert pgm.load(draws.save(tmp_path / "draws.npz"), likelihood=graded).model == draws.model
    assert pickle.loads(pickle.dumps(draws.model)) == draws.model


@pytest.mark.slow
def test_gibbs_and_nuts_agree_on_cutpoints():
    model = pgm.Model(graded(dist.Normal(0.0, 3.0)), GP)
    sizes = {"num_samples": 2000, "num_warmup": 500, "num_chains": 2, "seed": 0}
    results = [engine(model, ARRAYS_X, GRADES, **sizes) for engine in (pgm.gibbs, pgm.nuts)]
    one, other = (result.hyperparameters["cuts"] for result in results)
    spread = one.std(axis=(0, 1))
    # 4,000 draws each, of which some 500 count: five standard errors of a difference.
    np.testing.assert_allclose(one.mean(axis=(0, 1)), other.mean(axis=(0, 1)), atol=0.3 * spread.max())
    np.testing.assert_allclose(spread, other.std(axis=(0, 1)), rtol=0.2)


OUTSIDE = {
    "out of order": (lambda: graded([1.0, -1.0]), r"cuts of graded must satisfy OrderedVector.*got \[1.0, -1.0\]"),
    "not a simplex": (lambda: noisy([0.9, 0.3, 0.1]), "share of noisy must satisfy Simplex"),
    "no constraint": (lambda: pgm.Parameter([0.0, 1.0], constraint="ordered"), "one of numpyro.*got 'ordered'"),
    "another length of prior": (
        lambda: graded(pgm.Parameter([0.0, 1.0], prior=dist.Normal(jnp.zeros(3), 1.0))),
        r"shape \(2,\) and its prior \(3,\)",
    ),
    "negative": (
        lambda: pgm.RBF(1.0, pgm.Parameter([0.1, 0.2], constraint=constraints.ordered_vector)),
        "lengthscale of RBF must be positive, but its constraint OrderedVector",
    ),
    "a matrix": (lambda: grouped(np.ones((2, 2))), "must be one number or a list of numbers"),
    "a group that is none": (
        lambda: pgm.Model(grouped([1.0]), GP).check(ARRAYS_X, COUNTS),
        r"dispersion\[y\[1\]\] is an index of the 1 entries of dispersion, 0 to 0, and is out of range in row 1",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_outside_a_constraint_are_refused(name):
    call, message = OUTSIDE[name]
    with pytest.raises(ValueError, match=message):
        call()


FORMULAS = {
    "beyond the end": (lambda y, f, cuts: pgm.sigmoid(cuts[2] - f), r"reads cuts\[2\], but cuts has 2 entries"),
    "by a latent": (lambda y, f, cuts: pgm.sigmoid(cuts[f]), "an index is a function of y alone"),
    "by a fraction": (lambda y, f, cuts: pgm.sigmoid(cuts[0.5] - f), "an index is a whole number"),
    "as one number": (
        lambda y, f, cuts: pgm.sigmoid(cuts - f),
        r"uses cuts as one number, but it has 2 entries.*read an entry as cuts\[0\]",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_that_read_other_entries_are_refused(name):
    formula, message = FORMULAS[name]

    def reads(y, f, cuts=pgm.Parameter([0.5, 1.0], positive=True)):
        return formula(y, f, cuts)

    with pytest.raises(ValueError, match=message):
        pgm.Model(pgm.likelihood(reads)(), GP)
