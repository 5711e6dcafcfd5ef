"""Users' likelihoods, one row each: derived ones are verified, for others the error names engines that work."""

from functools import partial

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.constraints import ordered_vector, unit_interval
from numpyro.infer import util
from scipy import stats
from scipy.special import expit, log_expit

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.sampling import is_normalised
from tests.covering import some

RNG = np.random.default_rng(21)
N = 12
X = RNG.uniform(-1.0, 1.0, (N, 1))
REAL = RNG.normal(0.3, 1.5, N)
COUNT = RNG.poisson(2.0, N).astype(float)
LABEL = (RNG.random(N) < 0.4).astype(float)
GRADE = np.arange(N) % 3.0
TIME = np.column_stack([RNG.gamma(2.0, 0.8, N), LABEL])
EXPOSED = np.column_stack([COUNT, RNG.choice([0.5, 3.0], N)])
WEIGHTED = np.column_stack([LABEL, RNG.choice([0.5, 2.0], N)])


@pgm.likelihood(support=pgm.Real())
def quantile(y, f, scale=pgm.Parameter(0.7, positive=True)):  # of the asymmetric Laplace distribution, at 0.2
    return 0.2 * 0.8 / scale * pgm.exp(-(abs(y - f) + (2 * 0.2 - 1) * (y - f)) / (2 * scale))


def quantile_density(y, f):
    r = (y - f[:, 0]) / 0.7
    return np.log(0.16 / 0.7) - np.where(r > 0, 0.2 * r, -0.8 * r)


@pgm.likelihood(support=pgm.Counts())
def hurdle(y, f):
    return pgm.sigmoid(-f[1]) ** (y == 0) * (pgm.sigmoid(f[1]) * pgm.sigmoid(f[0]) ** (y - 1) * pgm.sigmoid(-f[0])) ** (
        y > 0
    )


def hurdle_mass(y, f):
    there = log_expit(f[:, 1]) + stats.geom.logpmf(y, expit(-f[:, 0]))
    return np.where(y == 0, log_expit(-f[:, 1]), there)


@pgm.likelihood(support=pgm.Counts())
def negative_binomial_hurdle(y, f, dispersion=pgm.Parameter(1.5, positive=True)):
    ways = pgm.gamma(y + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y + 1))
    count = ways * pgm.sigmoid(f[0]) ** y * pgm.sigmoid(-f[0]) ** dispersion
    return pgm.sigmoid(-f[1]) ** (y == 0) * (pgm.sigmoid(f[1]) * count / (1 - pgm.sigmoid(-f[0]) ** dispersion)) ** (
        y > 0
    )


def negative_binomial_hurdle_mass(y, f):
    law = stats.nbinom(1.5, expit(-f[:, 0]))
    return np.where(y == 0, log_expit(-f[:, 1]), log_expit(f[:, 1]) + law.logpmf(y) - np.log1p(-law.pmf(0)))


@pgm.likelihood(support=pgm.Classes(3))
def ordered_logit(y, f, cuts=pgm.Parameter([-1.0, 0.8], constraint=ordered_vector)):
    below = [0, *(pgm.sigmoid(cut - f) for cut in cuts), 1]
    return pgm.sum((below[k + 1] - below[k]) * (y == k) for k in range(3))


def ordered_logit_mass(y, f):
    below = np.concatenate([np.zeros_like(f), expit(np.array([-1.0, 0.8]) - f), np.ones_like(f)], axis=1)
    return np.log(np.diff(below)[np.arange(N), y.astype(int)])


@pgm.likelihood(support=pgm.Censored())
def log_logistic(y, f, shape=pgm.Parameter(1.5, positive=True)):
    z = shape * (pgm.log(y[0]) - f)
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


def log_logistic_density(y, f):
    law = stats.fisk(1.5, scale=np.exp(f[:, 0]))
    return np.where(y[:, 1] == 1, law.logpdf(y[:, 0]), law.logsf(y[:, 0]))


@pgm.likelihood(support=pgm.Clipped(0.0))
def tobit(y, f, scale=pgm.Parameter(0.7, positive=True)):
    return pgm.normal_cdf(-f / scale) ** (y == 0) * pgm.normal_pdf(y, f, scale) ** (y > 0)


def tobit_density(y, f):
    law = stats.norm(f[:, 0], 0.7)
    return np.where(y == 0, law.logcdf(0.0), law.logpdf(y))


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
def exposed(y, f, dispersion=pgm.Parameter(2.0, positive=True)):
    z = f + pgm.log(y[1])
    ways = pgm.gamma(y[0] + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** dispersion


def exposed_mass(y, f):
    return stats.nbinom.logpmf(y[:, 0], 2.0, 1.0 / (1.0 + y[:, 1] * np.exp(f[:, 0])))


@pgm.likelihood(support=pgm.Given(pgm.Binary(), pgm.Positive()))
def weighted(y, f):  # the likelihood of a datum to the power of its weight
    return (pgm.sigmoid(f) ** y[0] * pgm.sigmoid(-f) ** (1 - y[0])) ** y[1]


def weighted_density(y, f):
    return y[:, 1] * log_expit(np.where(y[:, 0] == 1, 1, -1) * f[:, 0])


@pgm.likelihood(support=pgm.Binary())
def support_vector(y, f):  # exp(-2 max(1 - (2y - 1) f, 0)): Polson and Scott 2011
    margin = 1 - (2 * y - 1) * f
    return pgm.exp(-abs(margin) - margin)


def support_vector_density(y, f):
    return -2.0 * np.maximum(1.0 - (2.0 * y - 1.0) * f[:, 0], 0.0)


@pgm.likelihood(support=pgm.Real())
def pseudo_huber(y, f, scale=pgm.Parameter(0.6, positive=True)):
    return pgm.exp(1 - pgm.sqrt(1 + ((y - f) / scale) ** 2))


@pgm.likelihood(support=pgm.Classes(3))
def one_vs_each(y, f):  # Titsias 2016: a lower bound of the softmax
    return pgm.prod(pgm.prod(pgm.sigmoid(f[k] - f[c]) for c in range(3) if c != k) ** (y == k) for k in range(3))


def one_vs_each_density(y, f):
    selected = f[np.arange(N), y.astype(int)]
    return log_expit(selected[:, None] - f).sum(axis=1) - log_expit(0.0)


@pgm.likelihood(support=pgm.Binary())
def guessing(y, f, rate=pgm.Parameter(0.2, constraint=unit_interval)):
    return rate * y + (1 - rate) * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


def guessing_mass(y, f):
    right = 0.2 + 0.8 * expit(f[:, 0])
    return np.log(np.where(y == 1, right, 1 - right))


@pgm.likelihood(support=pgm.Counts(), mean=lambda y, f: pgm.exp(f), variance=lambda y, f: pgm.exp(f))
def log_poisson(y, f):
    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)


def log_poisson_mass(y, f):
    return stats.poisson.logpmf(y, np.exp(f[:, 0]))


@pgm.likelihood(support=pgm.Binary())
def presence(y, f, rate=pgm.Parameter(2.5, positive=True)):
    none = pgm.exp(-rate * pgm.sigmoid(f))
    return (1 - none) ** y * none ** (1 - y)


def presence_mass(y, f):
    none = -2.5 * expit(f[:, 0])
    return np.where(y == 1, np.log(-np.expm1(none)), none)


@pgm.likelihood(support=pgm.Real())
def uneven_student(y, f, df=pgm.Fixed(4.0)):
    precision = 3 * pgm.sigmoid(f[1])
    norm = pgm.gamma((df + 1) / 2) / (pgm.gamma(df / 2) * pgm.sqrt(np.pi * df))
    return norm * pgm.sqrt(precision) * (1 + precision * (y - f[0]) ** 2 / df) ** (-(df + 1) / 2)


def uneven_student_density(y, f):
    return stats.t.logpdf(y, 4.0, f[:, 0], (3 * expit(f[:, 1])) ** -0.5)


# The family, its latents, data, an independent density, whether it is normalised, and whether it is derived.
TRIED = {
    "quantile": (quantile, 1, REAL, quantile_density, True, True),
    "hurdle": (hurdle, 2, COUNT, hurdle_mass, True, True),
    "negative binomial hurdle": (negative_binomial_hurdle, 2, COUNT, negative_binomial_hurdle_mass, True, False),
    "ordered logit": (ordered_logit, 1, GRADE, ordered_logit_mass, True, True),
    "log-logistic": (log_logistic, 1, TIME, log_logistic_density, True, True),
    "Tobit": (tobit, 1, np.maximum(REAL, 0.0), tobit_density, True, True),
    "exposure": (exposed, 1, EXPOSED, exposed_mass, True, True),
    "weights": (weighted, 1, WEIGHTED, weighted_density, False, True),
    "support vector": (support_vector, 1, LABEL, support_vector_density, False, True),
    "pseudo-Huber": (pseudo_huber, 1, REAL, lambda y, f: 1.0 - np.hypot(1.0, (y - f[:, 0]) / 0.6), False, True),
    "one-vs-each": (one_vs_each, 3, GRADE, one_vs_each_density, False, True),
    "guessing": (guessing, 1, LABEL, guessing_mass, True, True),
    "presence": (presence, 1, LABEL, presence_mass, True, True),
    "uneven Student": (uneven_student, 2, REAL, uneven_student_density, True, True),
    "log Poisson": (log_poisson, 1, COUNT, log_poisson_mass, True, False),
}


def model_of(family, size):
    return pgm.Model(family(), pgm.GP(pgm.RBF(1.0, 1.0), size=size))


@pytest.mark.parametrize("name", TRIED)
def test_the_density_is_what_it_is_written_for(name):
    family, size, y, density, normalised, _ = TRIED[name]
    f = np.random.default_rng(3).normal(0.4, 1.3, (N, size))
    np.testing.assert_allclose(log_density(family(), y, f), density(y, f), rtol=1e-9, atol=1e-9)
    assert is_normalised(family(), size, for_all_parameters=True) is normalised


DERIVED = [name for name, row in TRIED.items() if row[-1]]


@pytest.mark.parametrize("name", some(DERIVED, "weights"))
def test_what_the_grammar_allows_is_derived_and_proven(name):
    family, size, y, *_ = TRIED[name]
    model = model_of(family, size)
    model.check(X, y)
    pgm.derive(model).verify(seed=0)


# Learned by maximising the bound, and sampled: parameters that only a normalised formula lets go.
FREE = {
    "ordered logit": ("cuts", dist.Normal(0.0, 3.0)),
    "log-logistic": ("shape", dist.LogNormal(0.0, 1.0)),
    "Tobit": ("scale", dist.LogNormal(0.0, 1.0)),
    "exposure": ("dispersion", dist.LogNormal(0.0, 1.0)),
    "quantile": ("scale", dist.LogNormal(0.0, 1.0)),
    "guessing": ("rate", dist.Beta(1.0, 4.0)),
    "presence": ("rate", dist.LogNormal(0.0, 1.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_parameters_are_learned_and_sampled(name):
    family, size, y, *_ = TRIED[name]
    parameter, prior = FREE[name]
    gp = pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(1.0)), size=size)
    # With the prior, for twelve data hardly say where a rate of guesses is.
    model = pgm.Model(family(**{parameter: prior}), gp)
    fitted = pgm.fit(model, X, y)
    assert np.all(fitted.model.likelihood.values[parameter] != model.likelihood.values[parameter])
    sizes = {"num_samples": 1500, "num_warmup": 500, "num_chains": 2, "seed": 0}
    one, other = (e(model, X, y, **sizes).hyperparameters[parameter] for e in (pgm.gibbs, pgm.nuts))
    # 3,000 draws each, of which some 300 count: five standard errors of a difference.
    np.testing.assert_allclose(one.mean(axis=(0, 1)), other.mean(axis=(0, 1)), atol=0.4 * np.max(one.std(axis=(0, 1))))


# Formulas without an augmentation: engines that need none work, the others name them in their error.


@pgm.likelihood
def weibull(y, f, shape=pgm.Parameter(1.5, positive=True)):
    return shape * y ** (shape - 1) * pgm.exp(-shape * f - (y / pgm.exp(f)) ** shape)


@pgm.likelihood
def softmax(y, f):
    return pgm.exp(f[y]) / pgm.sum(pgm.exp(f))


def gp(size=1):
    return pgm.GP(pgm.RBF(1.2, 0.8), mean=0.2, size=size)


def weibull_density(y, f):
    return stats.weibull_min.logpdf(y, 1.5, scale=np.exp(f[:, 0]))


def softmax_mass(y, f):
    return f[np.arange(len(y)), y.astype(int)] - np.log(np.exp(f).sum(axis=1))


CASES = {
    "poisson": (log_poisson, 1, COUNT, log_poisson_mass),
    "weibull": (weibull, 1, RNG.weibull(1.5, N), weibull_density),
    "softmax": (softmax, 3, GRADE, softmax_mass),
    "negative binomial hurdle": (negative_binomial_hurdle, 2, COUNT, negative_binomial_hurdle_mass),
}


@pytest.mark.parametrize("name", CASES)
def test_the_model_function_is_the_formula(name):
    lik, size, y, density = CASES[name]
    model = pgm.Model(lik(), gp(size))
    assert not model.is_augmentable
    v = np.random.default_rng(1).normal(size=(N, size))
    with jax.enable_x64(True):
        log_p, trace = util.log_density(pgm.to_numpyro(model, X, y), (), {}, {"whitened_0": v})
        f = np.asarray(trace["f"]["value"])
    np.testing.assert_allclose(float(log_p), density(y, f).sum() + stats.norm.logpdf(v).sum(), rtol=1e-9)
    assert "<code>p(y | f) = " in model._repr_html_()


@pytest.mark.slow
def test_nuts_samples_it_and_results_are_compared(tmp_path):
    lik, _, y, _ = CASES["poisson"]
    # With three draws the report has no figures of chains, whichever sampler made them.
    draws = pgm.nuts(pgm.Model(lik(), gp()), X, y, num_samples=3, num_warmup=30, num_chains=2)
    comparison = pgm.compare(one=draws, other=draws, X=X, y=y)
    assert np.isfinite(draws.predict(X).log_density(y)).all()
    comparison.report(tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text()
    assert "p(y | f) = exp(y f - exp(f)) / Γ(y + 1)" in written
    assert "too few draws for standard errors" in written


@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gibbs, partial(pgm.fit, objective="augmented")])
def test_engines_that_augment_name_those_that_do_not(engine):
    lik, _, y, _ = CASES["poisson"]
    with pytest.raises(pgm.NoAugmentationError, match=r"pgm\.nuts and pgm\.to_numpyro accept any formula"):
        engine(pgm.Model(lik(), gp()), X, y)


def test_observations_are_checked_by_the_density():
    lik, _, y, _ = CASES["weibull"]
    with pytest.raises(ValueError, match=r"its density .* at f = 0 has no finite logarithm in row 3"):
        pgm.to_numpyro(pgm.Model(lik(), gp()), X, np.where(np.arange(N) == 3, -1.0, y))
