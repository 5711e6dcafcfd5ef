"""No public function, method or property computes in single precision, whatever JAX's setting is."""

import inspect
import re
from dataclasses import fields, is_dataclass

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from tests.covering import some
from tests.on_demand import OnDemand

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 1))
Y = np.arange(12) % 2.0
Y_GAP = np.where(np.arange(12) == 5, np.nan, Y)
X_NEW = X[:3] + 0.1
DATA = pd.DataFrame({"x": X[:, 0], "y": 1013.25 + X[:, 0] + RNG.normal(size=12), "g": list("abc") * 4, "died": Y})
# In the text of a compiled program, as in tensor<12x1xf32> and tensor<f32>.
SINGLE = re.compile(r"[x<]f32\b")
SLOW = pytest.mark.slow
# A dozen rows determine little, of which engines warn.
pytestmark = pytest.mark.filterwarnings("ignore")


def model():
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern52(1.0, 1.0)))


def unknown_model():
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern52(dist.LogNormal(0.0, 0.5), 1.0)))


def sparse_model():
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0), form=pgm.Inducing(4, "uniform")))


def counts_model():
    return pgm.Model(pgm.NegativeBinomial(2.0), pgm.GP(pgm.RBF(1.0, 1.0)))


def series_model():
    return pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.Matern52(1.0, 1.0), form=pgm.Markov()))


def compared(made):
    return pgm.compare(gibbs=made["draws"], cavi=pgm.cavi(made["model"], X, Y), X=X_NEW, y=[0.0, 1.0, 1.0])


# One object of each public class that computes, by a public call, itself one of those that are tested.
OBJECTS = {
    "model": (lambda made: model(), "Model"),
    "gp": (lambda made: pgm.GP(pgm.RBF(1.0, 1.0)), "GP"),
    "parameter": (lambda made: pgm.Parameter(2.0, prior=dist.LogNormal(0.0, 1.0)), "Parameter"),
    "likelihood": (lambda made: pgm.NegativeBinomial2(pgm.Parameter(2.0, positive=True)), "Likelihood"),
    "approximation": (lambda made: pgm.cavi(made["model"], X, Y_GAP, missing="predict"), "Approximation"),
    "gaussian": (lambda made: pgm.gaussian_vi(counts_model(), X, Y), "Approximation"),
    "series": (lambda made: pgm.cavi(series_model(), X, Y), "Approximation"),
    "corrected": (lambda made: pgm.correct(made["approximation"], method="linear_response"), "CorrectedApproximation"),
    "perturbed": (lambda made: pgm.correct(made["approximation"], method="perturbative"), "CorrectedApproximation"),
    "nested": (lambda made: pgm.correct(made["approximation"], method="nested"), "CorrectedApproximation"),
    "predictive": (lambda made: made["approximation"].predict(X_NEW), "Predictive"),
    "predicted counts": (lambda made: made["gaussian"].predict(X_NEW), "Predictive"),
    "prior predictive": (lambda made: pgm.prior_predictive(made["model"], X, num_draws=5), "PriorPredictive"),
    "marginal": (lambda made: made["integrated"].hyperparameters["variance"], "Marginal"),
    "derivation": (lambda made: pgm.derive(pgm.Bernoulli()), "Derivation"),
    "regression": (lambda made: pgm.formula("y ~ x + (1|g)", DATA), "Regression"),
    "formula": (lambda made: made["regression"].cavi(), "RegressionResult"),
    "draws": (lambda made: pgm.gibbs(unknown_model(), X, Y, num_samples=20, num_warmup=5, num_chains=2), "Draws"),
    "sparse": (lambda made: pgm.svi(sparse_model(), pgm.ArrayRows(X, Y)), "SparseApproximation"),
    "integrated": (lambda made: pgm.integrate(unknown_model(), X, Y, num_draws=256), "IntegratedApproximation"),
    "comparison": (compared, "Comparison"),
    "diagnosis": (lambda made: pgm.diagnose(made["approximation"], num_replicates=4), "Diagnosis"),
    "evidence": (lambda made: pgm.log_evidence(made["approximation"], num_draws=100), "Evidence"),
    "classifier": (lambda made: pgm.GPClassifier().fit(X, Y), "GPClassifier"),
    "regressor": (lambda made: pgm.GPRegressor().fit(X, DATA["y"]), "GPRegressor"),
}
SLOW_OBJECTS = (
    "corrected", "perturbed", "nested", "series", "sparse", "integrated", "marginal", "draws", "comparison",
    "diagnosis", "evidence", "regression", "classifier", "regressor",
)  # fmt: skip

# Arguments by the names of parameters without a default.
ARGUMENTS = {
    "X": X, "X_new": X_NEW, "Z": X_NEW, "y": Y, "y_new": np.array([0.0, 1.0, 1.0]), "f": np.zeros((4, 3, 1)),
    "rows": slice(None), "num_draws": 4, "num_samples": 5, "n_samples": 2, "seed": 0, "rng": np.random.default_rng(0),
    "times": [1.0], "levels": [0.1, 0.5], "values": [0.0, 1.0], "size": 1, "num_columns": 1, "num_rows": 12,
    "columns": None, "term": "(1|g)", "contrast": {"x": [0.0, 1.0]}, "conditional": "x", "name": "x", "newdata": DATA,
    "frame": DATA, "number": 0, "value": 2.0, "at": [1.0],
}  # fmt: skip
# Where the parameters of a method have other meanings.
METHODS = {
    "draw_given": {"values": {}}, "linear_predictor": {"f": np.zeros((4, 12, 2))}, "estimates_of": {"functions": {}},
    "with_uncertainty": {"uncertainty": None}, "of": {"function": np.sqrt},
}  # fmt: skip
# What an object refuses: without rows to predict, a joint density, a finite set of values, or censoring.
REFUSED = {
    ("gaussian", "predict_missing"), ("series", "predict_missing"), ("draws", "predict_missing"),
    ("integrated", "predict_missing"), ("perturbed", "draw_at_data"), ("perturbed", "draw_latents"),
    ("perturbed", "draw_with_density"), ("perturbed", "gaussian"), ("perturbed", "joint_nodes"),
    ("perturbed", "require_covariance"),
    ("sparse", "to_arviz"), ("predictive", "survival"), ("predicted counts", "survival"), ("predicted counts", "mode"),
    ("predicted counts", "probabilities"), ("predicted counts", "probabilities_given"),
}  # fmt: skip
# The check of a derivation compares both precisions to estimate rounding errors.
IN_BOTH = {("derivation", "verify")}

# Calls of the public functions that do not make one of the objects.
CALLS = {
    "vi": lambda made, folder: pgm.vi(model(), X, Y),
    "batch": lambda made, folder: pgm.batch(model()).cavi(np.asarray(X)[None], np.asarray(Y)[None])[0],
    "update": lambda made, folder: pgm.update(made["gaussian"], X_NEW, [0.0, 1.0, 1.0]),
    "fit": lambda made, folder: pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), X, Y),
    "sd": lambda made, folder: pgm.RBF(pgm.sd(dist.HalfNormal(2.5)), 1.0),
    "marginals": lambda made, folder: pgm.marginals(made["approximation"], np.eye(11)[0]),
    "loo": lambda made, folder: pgm.loo(made["draws"]),
    "check": lambda made, folder: pgm.check(model(), X, Y, num_samples=100).report(folder / "check.html"),
    "inducing_gap": lambda made, folder: pgm.inducing_gap(pgm.cavi(sparse_model(), X, Y)),
    "verdicts": lambda made, folder: pgm.verdicts(made["comparison"]),
    "nuts": lambda made, folder: pgm.nuts(unknown_model(), X, Y, num_samples=10, num_warmup=10, num_chains=2),
    "stack_outputs": lambda made, folder: pgm.stack_outputs(X, np.column_stack([Y, Y])),
    "with_predictor": lambda made, folder: pgm.with_predictor(pgm.Bernoulli(), 2),
    "to_arviz": lambda made, folder: pgm.to_arviz(made["approximation"], 4),
    "to_numpyro": lambda made, folder: pgm.to_numpyro(model(), X, Y),
    "numpyro_guide": lambda made, folder: pgm.numpyro_guide(made["gaussian"]),
    "numpyro_bound": lambda made, folder: pgm.numpyro_bound(unknown_model(), X, Y),
    "log_density": lambda made, folder: pgm.log_density(model(), X, Y),
    "gibbs_steps": lambda made, folder: pgm.gibbs_steps(model(), X, Y),
    "load": lambda made, folder: pgm.load(made["approximation"].save(folder / "q.npz")).predict(X_NEW).mean,
    "load_formula": lambda made, folder: pgm.load_formula(made["formula"].save(folder / "q.npz")).slopes("x"),
    "likelihood": lambda made, folder: pgm.likelihood(lambda y, f: pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y))(),
    "plot_auxiliaries": lambda made, folder: pgm.plot_auxiliaries(made["approximation"]),
    "plot_convergence": lambda made, folder: pgm.plot_convergence(made["draws"]),
    "plot_densities": lambda made, folder: pgm.plot_densities(made["comparison"]),
    "plot_elbo": lambda made, folder: pgm.plot_elbo(made["approximation"]),
    "plot_graph": lambda made, folder: pgm.plot_graph(made["model"]),
    "plot_latent": lambda made, folder: pgm.plot_latent(made["approximation"]),
    "plot_marginals": lambda made, folder: pgm.plot_marginals(made["comparison"]),
    "plot_probability_map": lambda made, folder: pgm.plot_probability_map(pgm.cavi(model(), np.hstack([X, X**2]), Y)),
    "plot_reliability": lambda made, folder: pgm.plot_reliability(made["comparison"]),
    "plot_skewness": lambda made, folder: pgm.plot_skewness(made["approximation"]),
}  # fmt: skip
FAST_CALLS = ("stack_outputs", "with_predictor", "to_arviz", "load", "load_formula", "likelihood", "plot_latent")
# The functions of which CALLS and OBJECTS are made.
MAKERS = (
    "cavi", "gaussian_vi", "correct", "prior_predictive", "derive", "formula", "gibbs", "svi", "integrate", "compare",
    "diagnose", "log_evidence",
)  # fmt: skip
# Functions of formulas, which make symbols.
SYMBOLS = (
    "cauchy_cdf", "exp", "gamma", "largest", "log", "normal_cdf", "normal_pdf", "positions", "prod", "sigmoid", "sqrt",
    "step", "sum",
)  # fmt: skip
LIKELIHOODS = {
    "Bernoulli": (), "Beta": (2.0,), "BetaBinomial": (2.0,), "Binomial": (), "CensoredGaussian": (1.0,),
    "Gamma": (2.0,), "Gaussian": (1.0,), "HeteroscedasticGaussian": (1.0,), "HurdleNegativeBinomial": (2.0,),
    "HurdlePoisson": (), "KnownNoise": (), "Laplace": (1.0,), "LogLogistic": (2.0,), "LogNormal": (1.0,),
    "LogisticSoftmax": (3,), "MultinomialProbit": (3,), "NegativeBinomial": (2.0,), "NegativeBinomial2": (2.0,),
    "Ordinal": (3,), "Poisson": (), "Probit": (), "RobustMax": (3,),
    "SigmoidPoisson": (2.0,), "Softmax": (3,), "StickBreaking": (3,),
    "StudentT": (4.0, 1.0), "SwitchedLikelihood": ([pgm.Poisson(), pgm.Bernoulli()],), "Weibull": (2.0,),
    "ZeroInflatedNegativeBinomial": (2.0,), "ZeroInflatedPoisson": (),
}  # fmt: skip
KERNELS = {
    "RBF": pgm.RBF(1.0, 1.0), "Matern12": pgm.Matern12(1.0, 1.0), "Matern32": pgm.Matern32(1.0, 1.0),
    "Matern52": pgm.Matern52(1.0, 1.0), "RationalQuadratic": pgm.RationalQuadratic(1.0, 1.0), "White": pgm.White(1.0),
    "Constant": pgm.Constant(1.0), "Cosine": pgm.Cosine(1.0), "Linear": pgm.Linear(1.0),
    "Periodic": pgm.Periodic(1.0, 1.0, 2.0), "RandomWalk": pgm.RandomWalk(1.0, 1.0),
    "Sphere": pgm.Sphere(pgm.RBF(1.0, 1.0)),
    "Coregion": pgm.Coregion(2), "Structured": pgm.Structured.of([[1.0, 0.5], [0.5, 1.0]]),
    "On": pgm.On(pgm.RBF(1.0, 1.0), [0]),
    "Difference": pgm.Difference(pgm.RBF(1.0, 1.0), [0], [1]),
}  # fmt: skip
# Base classes, whose subclasses above compute; forms and bounds, whose methods the engines call; readers of rows;
# records of results; and what computes under NumPyro, which needs numpyro.enable_x64().
OTHERS = {
    "Kernel", "Dense", "Hilbert", "Inducing", "Markov", "Objective", "ArrayRows", "IterableRows", "ParquetRows", "Rows",
    "Check", "Verdict", "InducingGap", "IterationInfo", "Piece", "Fixed", "GibbsKernel",
}  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with the text of all programs that JAX compiles."""
    folder = tmp_path_factory.mktemp("programs")
    jax.clear_caches()
    before = jax.config.read("jax_dump_ir_to")
    jax.config.update("jax_dump_ir_to", str(folder))
    yield folder
    jax.config.update("jax_dump_ir_to", before)


@pytest.fixture(scope="module")
def made(programs):
    return OnDemand({name: make for name, (make, _) in OBJECTS.items()})


def single_precision(programs, *results):
    """The programs with single precision since the last call, and the arrays of results in it."""
    files = [path for path in programs.rglob("*") if path.is_file()]
    names = [path.name for path in files if SINGLE.search(path.read_text())]
    for path in files:
        path.unlink()
    arrays = [leaf for leaf in jax.tree.leaves(results) if getattr(leaf, "dtype", None) == np.float32]
    return names + arrays


def members(value):
    """The names of the public methods and properties that the package defines."""
    owners = [vars(owner) for owner in type(value).__mro__ if owner.__module__.startswith("pgmodels")]
    values = {field.name for field in fields(value)} if is_dataclass(value) else set()
    # Scikit-learn adds setters to classes, as set_fit_request.
    names = {name for owner in owners for name in owner if not name.startswith("_") and not name.endswith("_request")}
    return sorted(names - values)


def used(value, name, folder):
    """The value of a property, or the result of a method with arguments by the names of its parameters."""
    member = getattr(value, name)
    if not inspect.isroutine(member):
        return member
    needed = [
        parameter.name
        for parameter in inspect.signature(member).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    arguments = ARGUMENTS | {"path": folder / "result.npz", "folder": folder} | METHODS.get(name, {})
    return member(**{parameter: arguments[parameter] for parameter in needed})


def test_the_table_has_every_public_name():
    classes = {name for _, name in OBJECTS.values()}
    covered = {*classes, *CALLS, *MAKERS, *SYMBOLS, *LIKELIHOODS, *KERNELS, *OTHERS, "systems"}
    others = [getattr(pgm, name) for name in set(pgm.__all__) - covered]
    # Supports compute with NumPy.
    assert [value for value in others if not issubclass(value, Exception | pgm.Support)] == []


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW) if n in SLOW_OBJECTS else n for n in OBJECTS])
def test_a_public_class_computes_in_double_precision(name, made, programs, tmp_path):
    value = made[name]
    assert OBJECTS[name][1] in [cls.__name__ for cls in type(value).__mro__]
    assert single_precision(programs) == []
    for member in members(value):
        if (name, member) in REFUSED:
            with pytest.raises((ValueError, AssertionError)):
                used(value, member, tmp_path)
        else:
            single = single_precision(programs, used(value, member, tmp_path))
            assert not single or (name, member) in IN_BOTH, (member, single)


@pytest.mark.parametrize("name", [n if n in FAST_CALLS else pytest.param(n, marks=SLOW) for n in CALLS])
def test_a_public_function_computes_in_double_precision(name, made, programs, tmp_path):
    assert single_precision(programs, CALLS[name](made, tmp_path)) == []


@pytest.mark.parametrize("name", some(KERNELS, "RBF", "Linear", "Periodic", "RandomWalk", "Coregion", "On"))
def test_a_kernel_computes_in_double_precision(name, programs):
    inputs = np.abs(np.hstack([X, X])) if name in ("Sphere", "Difference") else np.round(np.abs(X)) % 2
    kernel = KERNELS[name]
    assert single_precision(programs, kernel(inputs, inputs[:3]), kernel.diagonal(inputs)) == []


@pytest.mark.parametrize(
    "name", some(LIKELIHOODS, "Bernoulli", "Gaussian", "LogisticSoftmax", "NegativeBinomial2", "Ordinal", "Weibull")
)
def test_a_likelihood_is_in_double_precision(name, programs):
    likelihood = getattr(pgm, name)(*LIKELIHOODS[name])
    size = likelihood.num_latents or (3 if LIKELIHOODS[name] == (3,) else 1)
    y = np.ones((4, likelihood.support(size).num_columns))
    moments = likelihood.moments(y if y.shape[1] > 1 else y[:, 0], np.full((2, 4, size), 0.3), size)
    assert single_precision(programs, likelihood, moments) == []


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_has_the_same_density_by_numpy_and_by_jax(name, monkeypatch):
    likelihood, rng = getattr(pgm, name)(*LIKELIHOODS[name]), np.random.default_rng(0)
    size = likelihood.num_latents or (3 if LIKELIHOODS[name] == (3,) else 1)
    y, f = likelihood.support(size).examples(rng, 40), rng.normal(0.3, 3.0, (5, 40, size))
    f[0, :2] = [[40.0], [-40.0]]
    by_numpy = log_density(likelihood, y, f)
    monkeypatch.setattr("pgmodels.likelihoods.likelihood._FEW", 0)
    np.testing.assert_allclose(by_numpy, log_density(likelihood, y, f), rtol=1e-11, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name", pgm.systems.__all__)
def test_a_published_system_computes_in_double_precision(name, programs):
    system = getattr(pgm.systems, name)
    options = inspect.signature(system).parameters
    known = {"num_inducing": 4, "noise_variance": np.full(12, 0.1)}
    result = system(X, Y, **{name: known[name] for name in known if name in options})
    assert single_precision(programs, result.predict_latent(X_NEW)) == []


def test_results_are_the_same_within_a_users_single_precision():
    model = pgm.formula("y ~ x", DATA)
    with jax.enable_x64(True):
        slope = model.cavi().slopes("x")["mean"].item()
    with jax.enable_x64(False):
        assert model.cavi().slopes("x")["mean"].item() == slope
