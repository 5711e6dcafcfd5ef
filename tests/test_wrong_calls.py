"""Wrong calls of public functions: ValueError or TypeError that says what, where and the remedy, and nothing else."""

import math
from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import sparse, special

import pgmodels as pgm

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 2))
Y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))


def model_of(formula, size=1, kernel=None):
    @pgm.likelihood
    def wrong(y, f):
        return formula(y, f)

    return pgm.Model(wrong(), pgm.GP(kernel or pgm.RBF(1.0, 1.0), size=size))


class StaticPolynomial(pgm.Kernel):
    degree: int = eqx.field(static=True)

    def __call__(self, X, Z):
        return (X @ Z.T + 1.0) ** self.degree

    def diagonal(self, X):
        return (jnp.sum(X**2, axis=1) + 1.0) ** self.degree


def in_numpy(X, Z):
    return np.asarray(X) @ np.asarray(Z).T


def log_normal(y, f):
    return pgm.normal_pdf(pgm.log(y), f, 1.0) / y


# Others are in test_remedies.py, whose remedies are run.
MISTAKES = {
    "np.exp": (lambda: model_of(lambda y, f: np.exp(-f)), ["numpy.exp", "'-f'", "pgm.exp"]),
    "expit": (lambda: model_of(lambda y, f: special.expit(f)), ["numpy.expit", "pgm.sigmoid"]),
    "math.log": (lambda: model_of(lambda y, f: math.log(f)), ["math", "'f'", "pgm.log"]),
    "jnp.exp": (lambda: model_of(lambda y, f: jnp.exp(f)), ["the formula wrong", "symbols", "pgm.exp"]),
    "an array": (lambda: model_of(lambda y, f: np.ones(2) * f), ["numpy.multiply", "'f'"]),
    "whole division": (lambda: model_of(lambda y, f: pgm.sigmoid(f) ** (y // 2)), ["round or divide y beforehand"]),
    "max of f": (lambda: model_of(lambda y, f: pgm.exp(-max(y - f, 0))), ["write abs", "max(f, 0)"]),
    "a mean's f and y exchanged": (
        lambda: pgm.likelihood(lambda y, f: f, mean=lambda f, y: f, variance=lambda y, f: f),
        ["mean=", "has the arguments (f, y)"],
    ),
    "a mean alone": (lambda: pgm.likelihood(lambda y, f: f, mean=lambda y, f: f), ["mean= without variance="]),
    "a mean without the parameter": (
        lambda: pgm.likelihood(lambda y, f, scale=1.0: f, mean=lambda y, f: f, variance=lambda y, f: f),
        ["mean= of the likelihood", "(scale)", "(none)"],
    ),
    "a NumPy kernel": (
        lambda: model_of(lambda y, f: pgm.sigmoid(f), kernel=in_numpy).check(X, Y),
        ["CallableKernel(in_numpy)", "jax.numpy"],
    ),
    "a kernel of one argument": (
        lambda: model_of(lambda y, f: pgm.sigmoid(f), kernel=lambda X: X @ X.T).check(X, Y),
        ["cannot be compiled", "X (n, d) and Z (m, d)"],
    ),
    "the logarithm of 0": (
        lambda: pgm.Model(pgm.likelihood(log_normal)(), pgm.GP(pgm.RBF(1.0, 1.0))).check(
            X, np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
        ),
        ["y is outside what the formula allows", "row 3"],
    ),
}


@cache
def fitted():
    return pgm.cavi(MODEL, X, Y)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(name):
    call, words = MISTAKES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_valid_formulas_kernels_and_rows_are_accepted():
    formula = model_of(lambda y, f: pgm.sigmoid(np.float64(2.0) * f[np.int64(1)]) ** y[np.int64(0)], 2)
    assert formula.likelihood.formula(2).text() == "σ(2 f[1])^y[0]"
    model_of(lambda y, f: pgm.sigmoid(f), kernel=StaticPolynomial(2)).check(X, Y)
    assert fitted().predict(np.reshape(X[0], (1, -1))).probabilities.shape == (1, 2)


def wrong_arrays(rng):
    """What is no input for two columns and six rows, of random shapes and kinds."""
    shape = tuple(rng.integers(1, 5, size=rng.integers(3, 5)))
    return [
        rng.normal(size=shape), rng.normal(size=(7, 2)) + 1j,
        rng.normal(size=int(rng.integers(3, 9))).reshape(1, 1, -1).astype(rng.choice(["f2", "f4", "f8"])),
        np.full((6, 2), rng.choice([np.nan, np.inf])), np.array(rng.choice(["a", "b"], size=(6, 2))),
        rng.choice(["a", "b"], size=(6, 2)).astype(object), np.ma.masked_less(rng.normal(size=(6, 2)), 5.0),
        np.datetime64("2024-01-01") + rng.integers(0, 9, (6, 2)), sparse.csr_matrix((6, 2)), [[1.0, 2.0], [3.0]],
        np.empty((0, 2)), None, "X", {}, object(), len, rng.normal(),
    ]  # fmt: skip


def given_arrays(rng):
    return [part for part in wrong_arrays(rng) if part is not None]


def wrong_objects(rng):
    return [None, rng.normal(), int(rng.integers(9)), "name", rng.normal(size=3), {"a": 1}, [object()], object(), len]


def given_objects(rng):
    return [part for part in wrong_objects(rng) if part is not None]


def wrong_counts(rng):
    return [None, "three", rng.normal(), -int(rng.integers(1, 9)), [3], np.nan, True, object(), rng.normal(size=2)]


def given_counts(rng):
    return [part for part in wrong_counts(rng) if part is not None]


def wrong_places(rng):
    return ["one", np.nan, np.inf, object(), dist.Normal(0.0, 1.0), {}, len, rng.normal(size=2)]


def wrong_scales(rng):
    return ["one", -abs(rng.normal()), 0.0, np.nan, np.inf, object(), dist.Normal(0.0, 1.0), dist.Poisson(2.0), {}, len]


def wrong_seeds(rng):
    return [None, "seed", rng.normal(), [1, 2], object(), np.ones(2), True]


SAMPLER = {"X": wrong_arrays, "y": wrong_arrays, "num_samples": wrong_counts, "num_warmup": wrong_counts}
SAMPLER |= {"num_chains": wrong_counts, "seed": wrong_seeds, "model": wrong_objects}
DATA = {"model": MODEL, "X": X, "y": Y}
INPUTS = {name: SAMPLER[name] for name in ("model", "X", "y")}
RUN = INPUTS | {"seed": wrong_seeds}
ASCENT = INPUTS | {"max_iterations": wrong_counts, "tolerance": wrong_scales}
SHAPED = {"variance": wrong_scales, "lengthscale": wrong_scales}
# Each function, right arguments, and what makes a wrong one of each.
CALLS = {
    "cavi": (pgm.cavi, DATA, ASCENT | {"weights": given_arrays}),
    "fit": (pgm.fit, DATA, ASCENT),
    "gaussian_vi": (pgm.gaussian_vi, DATA, ASCENT),
    "svi": (
        pgm.svi,
        DATA,
        RUN
        | {"tolerance": wrong_scales, "batch_size": wrong_counts, "max_epochs": wrong_counts, "rate": wrong_objects},
    ),
    "integrate": (
        pgm.integrate,
        DATA | {"model": pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0), 1.0)))},
        RUN | {"num_draws": wrong_counts},
    ),
    "log_evidence": (
        lambda **options: pgm.log_evidence(**{"result": fitted()} | options),
        {},
        {"result": wrong_objects, "num_draws": wrong_counts, "seed": wrong_seeds},
    ),
    "Inducing": (pgm.Inducing, {"inputs": 3}, {"inputs": wrong_counts, "select": given_objects}),
    "gibbs": (pgm.gibbs, DATA, SAMPLER),
    "nuts": (pgm.nuts, DATA, SAMPLER | {"target_accept": wrong_scales}),
    "to_numpyro": (pgm.to_numpyro, DATA, INPUTS),
    "pgm.log_density": (pgm.log_density, DATA, INPUTS),
    "numpyro_bound": (pgm.numpyro_bound, DATA, INPUTS),
    "numpyro_guide": (pgm.numpyro_guide, {}, {"result": wrong_objects}),
    "loo": (pgm.loo, {}, {"result": wrong_objects}),
    "check": (pgm.check, DATA, SAMPLER | {"weights": given_arrays, "num_replicates": wrong_counts}),
    "GibbsKernel": (pgm.GibbsKernel, DATA, RUN),
    "prior_predictive": (
        pgm.prior_predictive,
        {"model": MODEL, "X": X},
        {"model": wrong_objects, "X": wrong_arrays, "num_draws": wrong_counts, "seed": wrong_seeds},
    ),
    "derive": (pgm.derive, {"model": MODEL}, {"model": wrong_objects}),
    "Model": (
        pgm.Model,
        {"likelihood": pgm.Bernoulli(), "gps": pgm.GP(pgm.RBF())},
        {"likelihood": wrong_objects, "gps": wrong_objects},
    ),
    "GP": (pgm.GP, {"kernel": pgm.RBF()}, {"size": wrong_counts, "mean": lambda rng: ["a", {}, np.nan, object(), len]}),
    "RBF": (pgm.RBF, {}, SHAPED),
    "Matern32": (pgm.Matern32, {}, SHAPED),
    "RationalQuadratic": (pgm.RationalQuadratic, {}, SHAPED | {"alpha": wrong_scales}),
    "Periodic": (pgm.Periodic, {}, SHAPED | {"period": wrong_scales, "harmonics": given_counts}),
    "Cosine": (pgm.Cosine, {}, {"variance": wrong_scales, "period": wrong_scales}),
    "RandomWalk": (pgm.RandomWalk, {}, {"variance": wrong_scales, "start": wrong_places}),
    "White": (pgm.White, {}, {"variance": wrong_scales}),
    "Gaussian": (pgm.Gaussian, {"scale": 1.0}, {"scale": wrong_scales}),
    "StudentT": (pgm.StudentT, {"df": 4.0, "scale": 1.0}, {"df": wrong_scales, "scale": wrong_scales}),
    "NegativeBinomial": (pgm.NegativeBinomial, {"dispersion": 1.0}, {"dispersion": wrong_scales}),
    "LogisticSoftmax": (pgm.LogisticSoftmax, {"num_classes": 3}, {"num_classes": wrong_counts}),
    "Softmax": (pgm.Softmax, {"num_classes": 3}, {"num_classes": wrong_counts}),
    "MultinomialProbit": (pgm.MultinomialProbit, {"num_classes": 3}, {"num_classes": wrong_counts}),
    "RobustMax": (pgm.RobustMax, {"num_classes": 3}, {"num_classes": wrong_counts, "error": wrong_scales}),
    "StickBreaking": (pgm.StickBreaking, {"num_classes": 3}, {"num_classes": wrong_counts}),
    "Classes": (pgm.Classes, {"num_classes": 3}, {"num_classes": wrong_counts}),
    "correct": (pgm.correct, {}, {"approximation": wrong_objects}),
    "diagnose": (pgm.diagnose, {}, {"result": wrong_objects}),
    "verdicts": (pgm.verdicts, {}, {"comparison": wrong_objects}),
    "to_arviz": (
        lambda **options: pgm.to_arviz(**{"result": fitted()} | options),
        {},
        {"result": wrong_objects, "num_draws": wrong_counts},
    ),
    "plot_convergence": (pgm.plot_convergence, {}, {"draws": wrong_objects}),
    "plot_marginals": (pgm.plot_marginals, {}, {"comparison": wrong_objects}),
    "plot_densities": (pgm.plot_densities, {}, {"comparison": wrong_objects}),
    "plot_reliability": (pgm.plot_reliability, {}, {"comparison": wrong_objects}),
    "plot_latent": (pgm.plot_latent, {}, {"results": wrong_objects}),
    "plot_elbo": (pgm.plot_elbo, {}, {"results": wrong_objects}),
    "plot_skewness": (pgm.plot_skewness, {}, {"results": wrong_objects}),
    "plot_auxiliaries": (pgm.plot_auxiliaries, {}, {"results": wrong_objects}),
    "plot_graph": (pgm.plot_graph, {}, {"model": wrong_objects}),
    "plot_probability_map": (pgm.plot_probability_map, {}, {"result": wrong_objects}),
    "predict_latent": (lambda X_new: fitted().predict_latent(X_new), {}, {"X_new": wrong_arrays}),
    "draw_latents": (
        lambda **options: fitted().draw_latents(**{"X_new": X} | options),
        {},
        {"X_new": wrong_arrays, "num_draws": wrong_counts, "seed": wrong_seeds},
    ),
    "predict": (
        lambda X_new, covariates: fitted().predict(X_new, covariates),
        {"X_new": X, "covariates": None},
        {"X_new": wrong_arrays, "covariates": given_arrays},
    ),
    "log_density": (lambda y_new: fitted().predict(X).log_density(y_new), {}, {"y_new": wrong_arrays}),
}
NUM_CALLS = 100


@pytest.mark.parametrize("name", CALLS)
def test_random_wrong_calls_are_refused_by_name(name):
    function, right, makers = CALLS[name]
    rng = np.random.default_rng(17)
    for _ in range(NUM_CALLS):
        count = int(rng.integers(1, min(3, len(makers)) + 1))
        chosen = [str(k) for k in rng.choice(list(makers), count, replace=False)]
        wrong = {}
        for argument in chosen:
            options = makers[argument](rng)
            wrong[argument] = options[int(rng.integers(len(options)))]
        shown = {k: repr(v)[:60] for k, v in wrong.items()}
        try:
            function(**right | wrong)
        except (ValueError, TypeError) as error:
            text = str(error)
            assert len(text) >= 30, f"{name}({shown}): {text}"
            assert any(argument.lower() in text.lower() for argument in wrong), f"{name}({shown}): {text}"
        except Exception as error:
            pytest.fail(f"{name}({shown}) ended in {type(error).__name__}: {error}")
