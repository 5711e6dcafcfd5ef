"""What errors and warnings print to be run makes them go away: each is provoked, and its code run in its place."""

import re
from functools import cache

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import sparse

import pgmodels as pgm
from pgmodels.results.predictive import DrawNodes, Predictive

RNG = np.random.default_rng(7)
X = RNG.normal(size=(12, 2))
Y = (X[:, 0] + 0.5 * RNG.normal(size=12) > 0).astype(float)
COUNTS = RNG.poisson(2.0, 12).astype(float)
EXPOSURE = np.linspace(0.5, 2.0, 12)
KERNEL = pgm.RBF(1.0, 1.0)
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(KERNEL))
SAMPLED = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 0.3), 1.0)))


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
def exposed(y, f):
    rate = y[1] * pgm.exp(f)
    return rate ** y[0] * pgm.exp(-rate) / pgm.gamma(y[0] + 1)


@pgm.likelihood
def undeclared(y, f):
    return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


@pgm.likelihood(support=pgm.Binary())
def noisy(y, f, scale=pgm.Parameter(1.0, positive=True)):
    return pgm.sigmoid(scale * f) ** y * pgm.sigmoid(-scale * f) ** (1 - y)


@pgm.likelihood(support=pgm.Binary())
def needy(y, f, scale):
    return pgm.sigmoid(scale * f) ** y * pgm.sigmoid(-scale * f) ** (1 - y)


class Whole(pgm.Kernel):
    degree: int

    def __call__(self, X, Z):
        return (X @ Z.T + 1.0) ** self.degree

    def diagonal(self, X):
        return (jnp.sum(X**2, axis=1) + 1.0) ** self.degree


class Undeclared(pgm.Kernel):
    scale: float

    def __call__(self, X, Z):
        return self.scale * X @ Z.T

    def diagonal(self, X):
        return self.scale * jnp.sum(X**2, axis=1)


EXPOSED = pgm.Model(exposed(), pgm.GP(KERNEL))


@cache
def fitted():
    return pgm.cavi(MODEL, X, Y)


@cache
def drawn(keep="all"):
    return pgm.gibbs(MODEL, X, Y, num_samples=20, num_warmup=10, num_chains=2, seed=0, keep=keep)


@cache
def perturbed():
    return pgm.correct(fitted(), method="perturbative")


class Later:
    """A value that is made when a remedy needs it."""

    def __init__(self, make):
        self.make = make


def redeclared(line):
    """A polynomial kernel of degree 2, its field declared by a line of code, and a Parameter read by its value."""
    name = line.partition(":")[0]

    class Polynomial:
        def __call__(self, X, Z):
            return (X @ Z.T + 1.0) ** getattr(getattr(self, name), "value", getattr(self, name))

        def diagonal(self, X):
            return jax.vmap(lambda x: self(x[None], x[None])[0, 0])(X)

    place = {"pgm": pgm, "equinox": equinox}
    exec(f"class Own(pgm.Kernel):\n    {line}", place)
    for method in ("__call__", "diagonal"):
        setattr(place["Own"], method, getattr(Polynomial, method))
    place["Own"].__abstractmethods__ = frozenset()
    return place["Own"](2)


def check(X=X, y=Y, model=MODEL):
    return model.check(X, y)


def of(likelihood, **gp):
    return pgm.Model(likelihood, pgm.GP(KERNEL, **gp))


def sampled_by_numpyro():
    kernel = pgm.GibbsKernel(MODEL, X, Y)
    numpyro.infer.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False).run(jax.random.key(0))


def shared(weights):
    """A likelihood of two shares, with a joint prior."""
    return pgm.likelihood(lambda y, f, w=weights: pgm.sigmoid(w[0] * f))(dist.Dirichlet(np.ones(2)))


# Names of remedies and of their uses beyond those of this module.
NAMES = {"numpy": np, "constraints": constraints, "Predictive": Predictive, "DrawNodes": DrawNodes}
ROWS = RNG.normal(size=(12, 2, 3))
LABELS = np.array([1.0, 2.0] * 6)
SHIFTED = np.array([1.0, 2.0, 3.0] * 4)

# The call that fails, the pattern of the code in its message, and how the code is used, as ``{}``.
REMEDIES = {
    "a sparse X": (lambda: check(sparse.csr_matrix(X)), r"use (\S+\(\))\.", "check({})", {"X": sparse.csr_matrix(X)}),
    "complex numbers": (lambda: check(X + 0j), r"use (numpy\.real\(X\))", "check({})", {"X": X + 0j}),
    "a masked X": (
        lambda: check(np.ma.masked_less(X, -0.5)), r"use (X\.filled\(\.\.\.\))", "check({})",
        {"X": np.ma.masked_less(X, -0.5), "...": "0.0"},
    ),
    "one column": (lambda: check(X[:, 0]), r"Use (X\[:, None\])\.", "check({})", {"X": X[:, 0]}),
    "one row": (
        lambda: fitted().predict(X[0]), r"^X_new must have .* Use (numpy\.reshape\(.*\)) for one row",
        "fitted().predict({})", {"X_new": X[0]},
    ),
    "images": (lambda: check(ROWS), r"Use (X\.reshape.*)\.$", "check({})", {"X": ROWS}),
    "y as a column": (lambda: check(y=Y[:, None]), r"Use (y\[:, 0\])", "check(y={})", {"y": Y[:, None]}),
    "y as a column, flat": (lambda: check(y=Y[:, None]), r"or (y\.ravel\(\))", "check(y={})", {"y": Y[:, None]}),
    "too few columns of y": (
        lambda: check(y=COUNTS, model=EXPOSED), r"Use (np\.column_stack)",
        "check(y={}([COUNTS, EXPOSURE]), model=EXPOSED)",
    ),
    "labels 1 and 2": (
        lambda: check(y=LABELS), r": (y = \(numpy\.asarray\(y\) == 2\).*)\.$", "{}\ncheck(y=y)", {"y": LABELS},
    ),
    "labels from 1": (
        lambda: check(y=SHIFTED, model=of(pgm.LogisticSoftmax(3), size=3)), r"new data alike: (y = \[.*\])\.$",
        "{}\ncheck(y=y, model=of(pgm.LogisticSoftmax(3), size=3))", {"y": SHIFTED},
    ),
    "a kernel's class": (lambda: pgm.GP(pgm.RBF), r"mean (RBF\(\))\?", "pgm.GP(pgm.{})"),
    "a whole number in a kernel": (
        lambda: check(model=pgm.Model(pgm.Bernoulli(), pgm.GP(Whole(2)))), r"of Whole is 2, .* the field as (.*)\.$",
        "check(model=pgm.Model(pgm.Bernoulli(), pgm.GP(redeclared({!r}))))",
    ),
    "a number in a kernel": (
        lambda: check(model=pgm.Model(pgm.Bernoulli(), pgm.GP(Undeclared(2.0)))), r"the field as (.*), read self",
        "check(model=pgm.Model(pgm.Bernoulli(), pgm.GP(redeclared({!r}))))",
    ),
    "a family": (lambda: of(pgm.Bernoulli), r"as in (.*)\.$", "of(pgm.{})"),
    "no likelihood": (lambda: pgm.Model(3, pgm.GP(KERNEL)), r"such as (\S+\(\));", "pgm.Model({}, pgm.GP(KERNEL))"),
    "no GP": (
        lambda: pgm.Model(pgm.Bernoulli(), []), r"^gps is an empty .* as in (.*), or", "pgm.Model(pgm.Bernoulli(), {})",
    ),
    "a kernel for a GP": (
        lambda: pgm.Model(pgm.Bernoulli(), KERNEL), r"^gps must be a GP .* as (pgm\.GP\(kernel\))",
        "pgm.Model(pgm.Bernoulli(), {})", {"kernel": KERNEL},
    ),
    "too few latents": (
        lambda: of(pgm.LogisticSoftmax(3)), r"Use (.*) or a list", "pgm.Model(pgm.LogisticSoftmax(3), {})",
        {"kernel": KERNEL},
    ),
    "too few latents of a formula": (
        lambda: of(pgm.likelihood(lambda y, f: pgm.sigmoid(f[0]) * pgm.sigmoid(f[2]))()), r"with (size=3)",
        "of(pgm.likelihood(lambda y, f: pgm.sigmoid(f[0]) * pgm.sigmoid(f[2]))(), {})",
    ),
    "no model": (lambda: pgm.cavi(3, X, Y), r"GPs: (.*)\.$", "pgm.cavi({}, X, Y)"),
    "a likelihood for a model": (
        lambda: pgm.cavi(pgm.Bernoulli(), X, Y), r"^model must be a pgm.Model; .*Wrap .* as (.*)\.$",
        "pgm.cavi({}, X, Y)", {"likelihood": pgm.Bernoulli()},
    ),
    "a result for a model": (
        lambda: pgm.derive(fitted()), r"^model must be a pgm.Model; .*Give its (\.model)", "pgm.derive(fitted(){})",
    ),
    "a formula without f": (
        lambda: of(pgm.likelihood(lambda y, f: pgm.exp(-y))()), r"does not depend on f, .* as in (def .*)\.$",
        "{}\nof(pgm.likelihood(name)())",
    ),
    "f before y": (
        lambda: pgm.likelihood(lambda f, y: pgm.sigmoid(f)),
        r"has the arguments \(f, y\), but the observation comes first .*write def <lambda>(\(y, f\))",
        "def name{}:\n    return pgm.sigmoid(f)\npgm.likelihood(name)",
    ),
    "a missing parameter": (lambda: needy(), r": (needy\(scale=\.\.\.\))", "{}", {"...": "2.0"}),
    "a vector in a formula": (
        lambda: pgm.derive(of(pgm.likelihood(lambda y, f: pgm.sigmoid(f))(), size=2)), r"with (pgm\.prod)",
        "pgm.derive(of(pgm.likelihood(lambda y, f: {}(pgm.sigmoid(f)))(), size=2))",
    ),
    "comparisons joined by and": (
        lambda: of(pgm.likelihood(lambda y, f: pgm.sigmoid(f) ** ((y > 0) & (y < 3)))()),
        r"as in (\(y > 0\) \* \(y < 3\)),", "of(pgm.likelihood(lambda y, f: pgm.sigmoid(f) ** ({}))())",
    ),
    "not": (
        lambda: of(pgm.likelihood(lambda y, f: pgm.sigmoid(f) ** ~(y > 0))()), r"write (1 - \(y > 0\))",
        "of(pgm.likelihood(lambda y, f: pgm.sigmoid(f) ** ({}))())",
    ),
    "a kink": (
        lambda: of(pgm.likelihood(lambda y, f: pgm.exp(-f) ** (y < f))()), r"\(y < f\).* as in (.*) or \(f",
        "of(pgm.likelihood(lambda y, f: {})())",
    ),
    "if": (
        lambda: of(pgm.likelihood(lambda y, f: pgm.sigmoid(f) if y else 1)()), r"such as (.*), instead",
        "of(pgm.likelihood(lambda y, f: {})())",
    ),
    "a class for a support": (
        lambda: pgm.likelihood(lambda y, f: pgm.exp(f), support=pgm.Counts), r"^support .* such as (.*);",
        "pgm.likelihood(lambda y, f: pgm.exp(f), support={})",
    ),
    "Given without columns": (lambda: pgm.Given(pgm.Counts()), r"as in (.*); got", "{}"),
    "no support for draws": (
        lambda: pgm.prior_predictive(of(undeclared()), X),
        r"as in (.*)\.$",
        "{}\ndef name(y, f):\n    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)\n"
        "pgm.prior_predictive(of(name()), X)",
    ),
    "no support for probabilities": (
        lambda: pgm.cavi(of(undeclared()), X, Y).predict(X).probabilities, r"support: (.*)\.$",
        "{}\ndef name(y, f): return undeclared.function(y, f)\npgm.cavi(of(name()), X, Y).predict(X).probabilities",
    ),
    "no support for probabilities of counts": (
        lambda: pgm.cavi(of(undeclared()), X, Y).predict(X).probabilities_of([1]),
        r"as in (.*)\.$",
        "{}\ndef name(y, f):\n    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)\n"
        "Predictive(name(), DrawNodes(np.zeros((2, 3, 1)))).probabilities_of([1])",
    ),
    "y that cannot be 0": (
        lambda: pgm.Positive().check(np.array([1.0, 0.0])), r"such as (pgm\.Real\(\))",
        "{}.check(np.array([1.0, 0.0]))",
    ),
    "y that cannot be 0, clipped": (
        lambda: pgm.Positive().check(np.array([1.0, 0.0])), r"or (pgm\.Clipped.*)\.$", "{}.check(np.array([1.0, 0.0]))",
    ),
    "covariates of a prediction": (
        lambda: pgm.gaussian_vi(EXPOSED, X, np.column_stack([COUNTS, EXPOSURE])).predict(X).mean,
        r"(covariates=).*\(12, 1\)",
        "pgm.gaussian_vi(EXPOSED, X, np.column_stack([COUNTS, EXPOSURE])).predict(X, {}EXPOSURE[:, None]).mean",
    ),
    "covariates before data": (
        lambda: pgm.prior_predictive(EXPOSED, X), r"which was not given: pass .* as (covariates=), of shape",
        "pgm.prior_predictive(EXPOSED, X, {}EXPOSURE[:, None])",
    ),
    "no value": (lambda: pgm.RBF(variance=None), r", (pgm\.Fixed\(number\))", "pgm.RBF(variance={})", {"number": 2.0}),
    "no prior": (
        lambda: pgm.RBF(pgm.Parameter(1.0, prior=2.0)), r"such as (.*); got", "pgm.RBF(pgm.Parameter(1.0, prior={}))",
    ),
    "a Delta": (lambda: pgm.RBF(dist.Delta(2.0)), r"use (.*) instead", "pgm.RBF({})"),
    "a prior on less": (
        lambda: pgm.RBF(dist.Normal()), r"or (TruncatedNormal.*)\.$", "pgm.RBF(dist.{})", {"..., ": ""},
    ),
    "a joint prior": (
        lambda: shared(pgm.Parameter([0.5, 0.5])), r"as in (pgm\.Parameter.*)\.$", "shared({})",
        {"value": np.array([0.3, 0.7])},
    ),
    "no constraint": (
        lambda: pgm.Parameter([0.0, 1.0], constraint="ordered"), r"such as (ordered_vector);",
        "pgm.Parameter([0.0, 1.0], constraint=constraints.{})",
    ),
    "a form": (lambda: pgm.GP(KERNEL, form="dense"), r"such as (.*);", "pgm.GP(KERNEL, form={})"),
    "an open lengthscale": (lambda: pgm.RBF()(X, X), r"call (.*) first", "{}(X, X)", {"kernel": pgm.RBF()}),
    "nothing to integrate out": (
        lambda: pgm.integrate(MODEL, X, Y), r"use (pgm\.correct.*)\.$", "{}", {"model": MODEL, "y": Y},
    ),
    "nothing to integrate out, a prior": (
        lambda: pgm.integrate(MODEL, X, Y), r"as in (.*), or use",
        "pgm.integrate(pgm.Model(pgm.Bernoulli(), pgm.GP({})), X, Y)",
    ),
    "the evidence of draws": (lambda: pgm.log_evidence(drawn()), r"use (.*)\.$", "{}", {"model": MODEL, "y": Y}),
    "a diagnosis of draws": (
        lambda: pgm.diagnose(drawn()), r"Use (pgm\.compare\(gibbs=draws\))", "{}", {"draws": Later(drawn)},
    ),
    "a diagnosis to second order": (
        lambda: pgm.diagnose(perturbed()), r"response, (pgm\.correct\(result\))", "pgm.diagnose({}, num_replicates=0)",
        {"result": Later(fitted)},
    ),
    "draws to second order": (
        lambda: perturbed().draw_latents(X), r"from (pgm\.correct\(result\))", "{}.draw_latents(X, 3)",
        {"result": Later(fitted)},
    ),
    "a comparison without draws": (
        lambda: pgm.compare(cavi=fitted()), r"add (gibbs=.*)\.$", "pgm.compare(cavi=fitted(), {})",
        {"model": MODEL, "y": Y},
    ),
    "a figure of no comparison": (
        lambda: pgm.plot_marginals(fitted()), r"Use (.*)\.$", "pgm.plot_marginals({})",
        {"draws": Later(drawn), "approximation": Later(fitted)},
    ),
    "a figure of no test data": (
        lambda: pgm.plot_reliability(pgm.compare(gibbs=drawn(), cavi=fitted())), r"needs: (.*)\.$",
        "pgm.plot_reliability({})", {"...": "gibbs=drawn(), cavi=fitted()", "X_test": X, "y_test": Y},
    ),
    "a figure of no result": (
        lambda: pgm.plot_elbo(3), r"Use (.*), for example", "pgm.plot_elbo({})", {"approximation": Later(fitted)},
    ),
    "moments alone": (lambda: drawn("moments").latents, r'with (keep="all")', "drawn({}).latents"),
    "moments alone, rows": (lambda: drawn("moments").latents, r"or (keep=\[rows\])", "kept({}).latents", {"rows": 1}),
    "moments alone, predictions": (lambda: drawn("moments").predict(X), r'with (keep="all")', "drawn({}).predict(X)"),
    "classes at a time without inducing inputs": (
        lambda: pgm.svi(of(pgm.LogisticSoftmax(3), size=3), X, SHIFTED - 1, class_batch_size=2), r"Use (pgm\.GP.*)\.$",
        "pgm.svi(pgm.Model(pgm.LogisticSoftmax(3), {}), X, SHIFTED - 1, class_batch_size=2, max_epochs=1)",
        {"kernel": KERNEL},
    ),
    "no y": (lambda: pgm.svi(MODEL, X), r"both, (pgm\.ArrayRows\(X, y\))", "{}", {"y": Y}),
    "no y, pairs": (lambda: pgm.svi(MODEL, X), r"or (pgm\.IterableRows\(pairs\))", "{}", {"pairs": [(X, Y)]}),
    "rows without inducing inputs": (
        lambda: pgm.svi(MODEL, pgm.ArrayRows(X, Y)), r"Use (pgm\.GP.*)\.$",
        "pgm.svi(pgm.Model(pgm.Bernoulli(), {}), pgm.ArrayRows(X, Y))", {"kernel": KERNEL},
    ),
    "inducing inputs without values": (
        lambda: pgm.svi(MODEL, X, Y, train_inducing=True), r"needs (train_hyperparameters=True):",
        "pgm.svi(of(pgm.Bernoulli(), form=pgm.Inducing(4)), X, Y, train_inducing=True, {}, max_epochs=1)",
    ),
    "64 bits of the model": (
        lambda: pgm.to_numpyro(MODEL, X, Y)(), r"call (numpyro\.enable_x64\(\))",
        "{}\nnumpyro.handlers.seed(pgm.to_numpyro(MODEL, X, Y), 0)()",
    ),
    "64 bits of the kernel": (
        lambda: sampled_by_numpyro(), r"call (numpyro\.enable_x64\(\))", "{}\nsampled_by_numpyro()",
    ),
    "a seed": (
        lambda: pgm.gibbs(MODEL, X, Y, seed="one"), r"such as (.*); got",
        "pgm.gibbs(MODEL, X, Y, num_samples=4, num_warmup=4, num_chains=1, seed={})",
    ),
    "quantiles": (
        lambda: fitted().predict(X).quantiles(5), r"such as (\[.*\]);",
        "fitted().predict(X).quantiles({}, num_draws=10)",
    ),
    "a density of several numbers": (
        lambda: pgm.Marginal(np.ones((3, 2)) * [[1.0], [2.0], [4.0]], np.ones(3) / 3).density([1.0]), r"as in (.*)\.$",
        "{}.density([1.0])", {"marginal": pgm.Marginal(np.ones((3, 2)) * [[1.0], [2.0], [4.0]], np.ones(3) / 3)},
    ),
    "a file in no folder": (
        lambda: fitted().save("/no/such/folder/fit.npz"), r"as in (save\('fit\.npz'\))", "fitted().{}",
    ),
    "no such correction": (
        lambda: pgm.correct(fitted(), method=3), r"of ('linear_response')", "pgm.correct(fitted(), method={})",
    ),
    "counts without verification": (
        lambda: pgm.derive(of(undeclared())).verify(y=np.array([5.5])), r"pass (y=) with",
        "pgm.derive(of(undeclared())).verify({}np.array([1.0, 0.0]))",
    ),
}  # fmt: skip


# Their remedies are runs of engines that compile for seconds.
DEAR = {
    "a comparison without draws",
    "a diagnosis to second order",
    "classes at a time without inducing inputs",
    "inducing inputs without values",
    "nothing to integrate out",
    "nothing to integrate out, a prior",
    "the evidence of draws",
}


def kept(keep):
    return pgm.gibbs(MODEL, X, Y, num_samples=4, num_warmup=4, num_chains=1, keep=keep)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DEAR)) for n in REMEDIES])
def test_what_is_printed_runs(name, tmp_path, monkeypatch):
    provoke, pattern, use, *namespaces = REMEDIES[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError)) as caught:
        provoke()
    message = str(caught.value)
    match = re.search(pattern, message, re.DOTALL)
    assert match, message
    code = match.group(1)
    values = {
        key: value.make() if isinstance(value, Later) else value for key, value in (namespaces or [{}])[0].items()
    }
    for left_out in [key for key in values if "..." in key]:
        code = code.replace(left_out, values.pop(left_out))
    before = jax.config.read("jax_enable_x64")
    try:
        exec(use.replace("{!r}", repr(code)).replace("{}", code), globals() | NAMES | values)
    finally:
        numpyro.enable_x64(before)
