"""Saving and loading: loaded results give the same figures, and files that cannot be loaded give the reason."""

import importlib.metadata
import json
import pickle
from dataclasses import dataclass, fields, replace
from inspect import isfunction
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.data.arrays import Column
from pgmodels.inference.problem import conditioned, problem_of
from pgmodels.likelihoods import counts, named
from pgmodels.likelihoods.likelihood import LikelihoodFamily
from pgmodels.model import Data
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.base import Sites
from pgmodels.priors.dense import LowRankPrior
from pgmodels.priors.representation import EAGER, Representation
from pgmodels.results.approximation import FitReport
from pgmodels.runtime.io import read_arrays, write_arrays
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.made_results import integrated
from tests.on_demand import OnDemand
from tests.processes import python
from tests.results.golden.make import FORMULAS, predictions
from tests.results.golden.make import sampled as sampled_model

RNG = np.random.default_rng(8)
X = RNG.uniform(-2.0, 2.0, (14, 2))
NEW = RNG.uniform(-2.0, 2.0, (5, 2))
LABELS = (X[:, 0] + 0.3 * RNG.normal(size=14) > 0.2).astype(float)
LABELS[:2] = 0.0, 1.0
COLUMNS = Column("left"), Column("right", "level", ("a", "b"))
NEW_LABELS = np.array([0.0, 1.0, 1.0, 0.0, 1.0])


@pgm.likelihood(support=pgm.Binary(), num_latents=2)
def additive(y, f, tilt=pgm.Parameter(0.7)):
    return pgm.sigmoid(f[0] + tilt * f[1]) ** y * pgm.sigmoid(-f[0] - tilt * f[1]) ** (1 - y)


def gp(**options):
    return pgm.GP(pgm.RBF(variance=1.7, lengthscale=np.array([0.9, 1.3])) + pgm.White(0.01), mean=0.3, **options)


def two_gps():
    preference = pgm.Difference(pgm.Matern32(0.4, 0.8), [0], [1])
    return [
        pgm.GP(pgm.On(pgm.RBF(1.4, 0.9), [1]), mean=0.2, form=pgm.Dense()),
        pgm.GP(preference * pgm.Linear(pgm.Fixed([0.5, 0.2])) + pgm.RationalQuadratic(), mean=pgm.Fixed(-0.4)),
    ]


@double_precision
def sampled_draws(**fields):
    """Draws with hyperparameters, as NUTS and Gibbs return them, without a run of either."""
    rng = np.random.default_rng(4)
    model = sampled_model()
    unknowns = with_priors(model)
    values = [0.5 + rng.random((2, 4, *shape)) for shape in unknowns.shapes]
    model = unknowns.with_values([np.median(value, axis=(0, 1)) for value in values])
    return pgm.Draws(
        model=model,
        X=X,
        y=LABELS,
        prior=model.prior(X, traced=True),
        whitened=(rng.normal(size=(2, 4, 14, 1)),),
        stored_latents=rng.normal(size=(2, 4, 14, 1)),
        hyperparameters=dict(zip(unknowns.names, values, strict=True)),
        log_likelihood_trace=rng.normal(size=(2, 4)),
        num_warmup=7,
        seconds=0.25,
        **fields,
    )


@double_precision
def finer():
    """A result with a more accurate prior than the model's default, as engines use for precise data."""
    inputs = np.linspace(-2.0, 2.0, 40)[:, None]
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.3, 2.5), mean=0.3))
    prior = model.prior(inputs, max_error=1e-14)
    assert isinstance(prior.groups[0], LowRankPrior)
    assert prior != model.prior(inputs)
    sites = Sites(jnp.asarray(np.sin(inputs)), jnp.asarray(0.2 + np.cos(inputs) ** 2))
    y = (inputs[:, 0] > 0).astype(float)
    # By the engines' program, since another would round differently.
    posterior, mean, variance, _ = conditioned(problem_of(model, Data(inputs, y), prior), sites)
    return pgm.Approximation(
        model=model,
        X=inputs,
        y=y,
        posterior=posterior,
        mean=np.asarray(mean),
        variance=np.asarray(variance),
        elbo_trace=np.array([-9.0, -8.5]),
        converged=False,
        tolerance=1e-9,
        seconds=0.5,
        method="cavi",
    )


@pytest.fixture(scope="module")
def results():
    """A result of each kind, on few data, by name."""
    model = pgm.Model(pgm.Bernoulli(), gp())
    learned = FitReport("given", {"given": -8.25, "data": -np.inf}, {"mean": np.array(0.1)}, 3, 4, True, "done")

    def of_rows(gibbs):
        rows = {"rows": np.array([1, 4]), "stored_latents": gibbs.latents[:, :, [1, 4]], "whitened": None}
        return replace(gibbs, **rows, moments=(gibbs.mean, gibbs.variance))

    return OnDemand(
        {
            "plain": lambda all: pgm.cavi(model, X, LABELS),
            "cavi": lambda all: replace(all["plain"], columns=COLUMNS, converged=np.bool_(True)),
            "fit": lambda all: replace(all["plain"], method="fit", fit=learned),
            "combined": lambda all: pgm.cavi(pgm.Model(additive(0.8), two_gps()), X, LABELS),
            "gaussian_vi": lambda all: pgm.gaussian_vi(model, X, LABELS),
            "correct": lambda all: pgm.correct(all["plain"]),
            "perturbative": lambda all: pgm.correct(all["plain"], method="perturbative"),
            "gibbs": lambda all: pgm.gibbs(model, X, LABELS, num_samples=5, num_warmup=0, num_chains=2, seed=3),
            "gibbs, rows": lambda all: of_rows(all["gibbs"]),
            "gibbs, sampled": lambda all: sampled_draws(
                method="gibbs", tuning={"leapfrogs": None, "step": np.array(0.4)}
            ),
            "nuts": lambda all: sampled_draws(method="nuts", statistics={"diverging": np.zeros((2, 4), dtype=bool)}),
            "finer": lambda all: finer(),
        }
    )


NAMES = [
    "cavi", "fit", "combined", "gaussian_vi", "correct", "perturbative", "gibbs", "gibbs, rows", "gibbs, sampled",
    "nuts", "finer",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(results, tmp_path_factory):
    """The results saved, by name."""
    folder = tmp_path_factory.mktemp("saved")
    return OnDemand(
        {name: lambda all, name=name, i=i: results[name].save(folder / f"{i}.npz") for i, name in enumerate(results)}
    )


def load(path, name):
    return pgm.load(path, likelihood=additive if "combined" in name else None)


def figures(result):
    """The figures of a result, at the data and at new inputs."""
    values = {"mean": result.mean, "variance": result.variance}
    if isinstance(result, pgm.Draws):
        values |= {"latents": result.latents, **result.hyperparameters}
    if getattr(result, "whitened", ()) is None:
        return values
    new = NEW[:, : result.X.shape[1]]
    predictive = result.predict(new)
    values |= {
        "predicted mean": predictive.mean,
        "predicted variance": predictive.variance,
        "log density": predictive.log_density(NEW_LABELS),
        "latent": np.stack(result.predict_latent(new)),
    }
    if isinstance(result, pgm.Approximation):
        values |= {"drawn": result.draw_at_data(3, seed=2)[0], "elbo": np.array(result.elbo)}
    return values


def assert_same(one, other, name=""):
    """Bit for bit, and in double precision.

    Where predictors couple latents the factors and the posterior are computed in two programs after loading and in one
    before: they agree to rounding, some 1e-16 times the condition number of the posterior's matrix, below 1e3 here.
    """
    assert list(one) == list(other)
    for key, value in one.items():
        assert value.dtype == other[key].dtype == np.float64, key
        if name == "combined":
            np.testing.assert_allclose(value, other[key], rtol=1e-12, atol=1e-12, err_msg=key)
        else:
            assert np.array_equal(value, other[key]), key


def plain(value):
    """A field without arrays, to be compared."""
    if isinstance(value, FitReport):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(
    "name", some(NAMES, "cavi", "fit", "combined", "correct", "gibbs", "gibbs, rows", "gibbs, sampled", "nuts", "finer")
)
def test_a_result_says_the_same_when_it_is_loaded(results, files, name):
    result, back = results[name], load(files[name], name)
    assert type(back) is type(result)
    assert back.model == result.model
    assert repr(back.model) == repr(result.model)
    assert back.prior == result.prior
    for field in fields(result):
        if field.name not in ("model", "prior", "posterior", "uncorrected", "run"):
            assert plain(getattr(back, field.name)) == plain(getattr(result, field.name)), field.name
    if isinstance(result, pgm.CorrectedApproximation):
        for part in ("method", "elbo_trace", "converged", "tolerance", "objective"):
            assert plain(getattr(back.uncorrected, part)) == plain(getattr(result.uncorrected, part)), part
        for part in ("mean", "variance"):
            ours, theirs = (getattr(each.uncorrected, part) for each in (back, result))
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    assert_same(figures(back), figures(result), name)
    assert_same(figures(load(back.save(files[name].with_suffix(".again")), name)), figures(back), name)


READER = """
import pickle, sys, jax
import pgmodels as pgm
from tests.results.test_saving import figures, load
figures_read = {name: figures(load(path, name)) for name, path in zip(sys.argv[2::2], sys.argv[3::2])}
assert not jax.config.jax_enable_x64
with open(sys.argv[1], "wb") as file:
    pickle.dump(figures_read, file)
"""


@pytest.mark.slow
def test_a_fresh_process_without_x64_says_the_same(results, files, tmp_path):
    arguments = [part for name in NAMES for part in (name, files[name])]
    python("-c", READER, tmp_path / "figures_read", *arguments)
    figures_read = pickle.loads((tmp_path / "figures_read").read_bytes())
    for name in NAMES:
        assert_same(figures_read[name], figures(results[name]), name)


def test_a_file_holds_arrays_and_text_and_nothing_that_is_computed_again(files):
    with np.load(files["cavi"], allow_pickle=False) as stored:
        document = json.loads(stored["pgmodels"].tobytes())
        assert {stored[name].dtype.kind for name in stored.files} == {"f", "u"}
        # X, y, sites, moments and the trace of the ELBO: no matrix of the data with themselves.
        assert max(stored[name].size for name in stored.files if name != "pgmodels") < 14 * 14
    assert document["format"] == 4
    assert document["version"] == importlib.metadata.version("pgmodels")
    assert document["model"]["fields"]["gps"][0]["fields"]["kernel"]["class"] == "Sum"


@pytest.mark.parametrize("form", [pgm.Dense(), pgm.Hilbert(5), pgm.Inducing(4)], ids=repr)
def test_arrays_of_a_prior_that_the_model_does_not_have_are_in_the_file(tmp_path, form):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 0.9), form=form))
    with jax.enable_x64(True):
        prior = model.prior(X).for_sampling()
        (group,) = prior.groups
        name = next(name for name in ("jitter", "functions", "residual") if hasattr(group, name))
        other = eqx.tree_at(lambda part: getattr(part, name), group, getattr(group, name) + 1e-9)
        prior = replace(prior, groups=(other,))
    draws = replace(
        sampled_draws(method="gibbs"), model=model, prior=prior, hyperparameters={},
        whitened=(np.zeros((2, 4, group.rank, 1)),),
    )  # fmt: skip
    back = pgm.load(draws.save(tmp_path / "draws.npz"))
    assert back.prior == prior != model.prior(X).for_sampling()
    assert type(back.prior.groups[0]) is type(group)


class OwnKernel(pgm.Kernel):
    def __call__(self, X, Z):
        return X @ Z.T

    def diagonal(self, X):
        return jnp.sum(X**2, axis=1)


@dataclass(frozen=True)
class OwnForm(Representation):
    def bind(self, kernel, mean, X, size, how=EAGER):
        return pgm.Dense().bind(kernel, mean, X, size, how)


def skewed():
    return dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.ExpTransform())


@pytest.mark.parametrize(
    ("gp", "words"),
    [
        (pgm.GP(lambda X, Z: X @ Z.T), "kernel is CallableKernel"),
        (pgm.GP(pgm.RBF() + OwnKernel()), "kernel.right is OwnKernel"),
        (pgm.GP(pgm.RBF(), form=OwnForm()), "form is OwnForm"),
        (pgm.GP(pgm.RBF(pgm.Parameter(1.0, prior=skewed()))), "kernel.variance.prior is Transformed"),
    ],
)
def test_what_has_no_name_is_refused_with_the_remedy(results, tmp_path, gp, words):
    result = replace(results["cavi"], model=pgm.Model(pgm.Bernoulli(), gp))
    with pytest.raises(ValueError, match=f"{words}.*pickle"):
        result.save(tmp_path / "fit.npz")
    assert not list(tmp_path.iterdir())


def altered(formula, **options):
    return pgm.likelihood(formula, support=options.pop("support", pgm.Binary()), num_latents=2, **options)


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        (None, r"additive has a custom formula, σ.*tilt.*likelihood=additive"),
        ("additive", "got 'additive'.*likelihood=additive"),
        (pgm.Bernoulli, r"has the parameters \[\], but the saved one, additive, has \['tilt'\]"),
        (altered(lambda y, f, tilt=0.7: pgm.sigmoid(f[0] + tilt * f[1])), "the formula of likelihood is σ"),
        (altered(additive.function, support=pgm.Counts()), r"support.*is Counts\(\), but the saved one is Binary"),
        (altered(additive.function, mean=lambda y, f, tilt: f[0], variance=lambda y, f, tilt: f[1]), "mean.*is none"),
    ],
)
def test_a_custom_formula_must_be_passed(files, passed, words):
    with pytest.raises(ValueError, match=words):
        pgm.load(files["combined"], likelihood=passed)


def test_formulas_that_differ_in_hidden_digits_are_told_apart(results, tmp_path):
    def shifted(by):
        return pgm.likelihood(lambda y, f: pgm.sigmoid(f - by), support=pgm.Binary())

    saved = replace(results["cavi"], model=pgm.Model(shifted(0.1)(), gp())).save(tmp_path / "fit.npz")
    assert pgm.load(saved, likelihood=shifted(0.1)()).model.likelihood.formula(1).text() == "σ(f - 0.1)"
    with pytest.raises(ValueError, match="digits that are not shown"):
        pgm.load(saved, likelihood=shifted(0.1 + 1e-12))


def test_another_format_is_refused(files, tmp_path):
    document, arrays = read_arrays(files["cavi"])
    write_arrays(tmp_path / "fit.npz", document | {"format": 5}, arrays)
    with pytest.raises(ValueError, match=r"format 5, written by pgmodels .*reads format 4"):
        pgm.load(tmp_path / "fit.npz")
    with pytest.raises(FileNotFoundError):
        pgm.load(tmp_path / "nothing.npz")


def test_a_file_is_replaced_whole_or_not_at_all(results, files, tmp_path, monkeypatch):
    path = tmp_path / "fit.npz"
    path.write_bytes(files["cavi"].read_bytes())

    def breaks(file, **arrays):
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", breaks)
    with pytest.raises(OSError, match="no space"):
        results["gibbs"].save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == files["cavi"].read_bytes()
    monkeypatch.undo()
    assert results["gibbs"].save(str(path)) == path
    assert isinstance(pgm.load(str(path)), pgm.Draws)
    for wrong in (tmp_path, tmp_path / "none" / "fit.npz"):
        with pytest.raises(ValueError, match="Name a file in an existing folder"):
            results["gibbs"].save(wrong)


def test_loaded_draws_say_how_to_go_on(files):
    with pytest.raises(ValueError, match=r"Pickle the draws .*checkpoint=folder"):
        load(files["gibbs"], "gibbs").extend(3)
    with pytest.raises(ValueError, match="got draws of nuts"):
        load(files["nuts"], "nuts").extend(3)


@pytest.mark.slow
def test_what_takes_long_to_make_is_saved(tmp_path):
    model = sampled_model()
    for name, made in (
        ("gibbs", pgm.gibbs(model, X, LABELS, num_samples=6, num_warmup=0, num_chains=2, seed=5)),
        ("nuts", pgm.nuts(model, X, LABELS, num_samples=6, num_warmup=6, num_chains=1)),
        ("fit", pgm.fit(model, X, LABELS)),
        ("combined", pgm.correct(pgm.cavi(pgm.Model(additive(0.8), two_gps()), X, LABELS))),
    ):
        assert_same(figures(load(made.save(tmp_path / "fit.npz"), name)), figures(made), name)


# Models in files: a model that is loaded equals the one that was saved.


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
    (lambda: pgm.Bernoulli(), 1), (lambda: pgm.Probit(), 1), (lambda: pgm.Binomial(), 1),
    (lambda: pgm.NegativeBinomial(1.5), 1), (lambda: pgm.SigmoidPoisson(pgm.Fixed(2.5)), 1),
    (lambda: pgm.StudentT(4.0, dist.HalfNormal(0.5)), 1), (lambda: pgm.Laplace(0.1 + 0.2), 1),
    (lambda: pgm.Gaussian(1.0 / 3.0), 1), (lambda: pgm.HeteroscedasticGaussian(1.3), 2),
    (lambda: pgm.LogisticSoftmax(3), 3), (lambda: pgm.StickBreaking(3), 2), (lambda: pgm.Softmax(3), 3),
    (lambda: pgm.MultinomialProbit(2), 2), (lambda: pgm.RobustMax(3, pgm.Fixed(0.04)), 3),
    (lambda: pgm.RobustMax(2, dist.Beta(1.0, 9.0)), 2), (lambda: pgm.KnownNoise(), 1), (lambda: pgm.Poisson(), 1),
    (lambda: pgm.NegativeBinomial2(1.5), 1), (lambda: pgm.ZeroInflatedPoisson(), 2),
    (lambda: pgm.ZeroInflatedNegativeBinomial(pgm.Fixed(1.5)), 2), (lambda: pgm.HurdlePoisson(), 2),
    (lambda: pgm.HurdleNegativeBinomial(1.5), 2), (lambda: pgm.BetaBinomial(3.5), 1), (lambda: pgm.Gamma(1.5), 1),
    (lambda: pgm.LogNormal(0.7), 1), (lambda: pgm.Beta(dist.HalfNormal(5.0)), 1),
    (lambda: pgm.CensoredGaussian(0.7), 1), (lambda: pgm.Ordinal(4), 1),
    (lambda: pgm.Ordinal(3, link="probit", cuts=pgm.Fixed([-0.3, 0.9])), 1),
    (lambda: pgm.Ordinal(3, cuts=dist.Normal(0.0, 2.0).expand([2])), 1), (lambda: pgm.Weibull(1.5), 1),
    (lambda: pgm.LogLogistic(pgm.Fixed(1.5), censoring="interval"), 1),
]  # fmt: skip
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


@pytest.mark.parametrize("made", MODELS)
def test_a_model_is_the_same_after_loading(made, tmp_path):
    model = made()
    back = pgm.load(integrated(model, np.zeros((1, 2)), np.zeros(1)).save(tmp_path / "model.npz")).model
    assert back == model
    assert [gp.form for gp in back.gps] == [gp.form for gp in model.gps]


def test_every_named_likelihood_is_tested():
    makers = {
        name
        for module in (counts, named)
        for name, value in vars(module).items()
        if name[0] != "_"
        and (
            isinstance(value, LikelihoodFamily)
            or (isfunction(value) and value.__module__ == module.__name__ and name[0].isupper())
        )
    }
    assert makers == {made().name for made, _ in (*LIKELIHOODS, *PUBLISHED)}


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


# Files saved by earlier code still load, and predict the numbers that it predicted.


FOLDER = Path(__file__).parent / "golden"
PREDICTIONS = json.loads((FOLDER / "predictions.json").read_text())


def test_every_golden_file_is_tested():
    assert {path.stem for path in FOLDER.glob("*.npz")} == set(PREDICTIONS)


def golden_load(path):
    return pgm.load(path, likelihood=FORMULAS.get(path.stem))


def contents(path):
    """A file's document, with the shapes of its arrays, without its version."""
    with np.load(path) as stored:
        return json.loads(stored["pgmodels"].tobytes()) | {"version": None}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_golden_file_loads_and_is_saved_with_the_same_names(name, tmp_path):
    path = FOLDER / f"{name}.npz"
    assert contents(golden_load(path).save(tmp_path / path.name)) == contents(path)


@pytest.mark.parametrize("name", some(PREDICTIONS, "cavi_dense_arrays", "gibbs", "svi", "svi_coupled"))
def test_a_golden_file_predicts_the_same(name):
    for figure, values in predictions(golden_load(FOLDER / f"{name}.npz")).items():
        # Rounding on other machines, times the condition number of the precise data's posterior, is below 1e-8.
        np.testing.assert_allclose(values, PREDICTIONS[name][figure], rtol=1e-8, atol=1e-8, err_msg=figure)
