"""One contestant of markov_peers.py on one series: seconds, and the latent's moments at the rows of the test.

Usage: python validation/markov_contestant.py CASE.npz CONTESTANT MOMENTS.npz; prints JSON. Those of peers run in the
environments that markov_peers.py says how to make.
"""

import json
import math
import resource
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

Case = Mapping[str, Any]
Moments = tuple[np.ndarray, np.ndarray]
# BayesNewton's examples take steps of Adam of 0.1. After 300 of them its values are the optimum's to four digits (2.29
# after 100 where that is 2.28); its sites have settled after 10 sweeps at fixed hyperparameters.
STEPS, RATE, SWEEPS = 300, 0.1, 10
# The noise of rows that say nothing.
NO_WEIGHT = 1e4


class Learned(NamedTuple):
    """Learned values, and mean and variance of the latent at the rows of the test under them."""

    values: dict[str, float]
    moments: Moments


class Contestant(NamedTuple):
    """Of a library: its names on the package index, moments at the case's values, and those that it learns."""

    packages: tuple[str, ...]
    posterior: Callable[[], Moments]
    learn: Callable[[], Learned]


def cpu() -> float:
    """Seconds of the processors so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def values_of(case: Case, end: str) -> tuple[float, float, float]:
    """Variance, lengthscale and noise: the true ones, or those to start from, whose names end in ``_start``."""
    variance, lengthscale, noise = (float(case[f"{name}{end}"]) for name in ("variance", "lengthscale", "noise"))
    return variance, lengthscale, noise


def pgmodels(case: Case) -> Contestant:
    """The package: ``gaussian_vi`` and ``correct``, and ``fit``."""
    import pgmodels as pgm

    X, y, X_test = case["x"][:, None], case["y"], case["x_test"][:, None]
    is_gaussian = str(case["kind"]) == "Gaussian"

    def model(end: str) -> pgm.Model:
        variance, lengthscale, noise = values_of(case, end)
        gp = pgm.GP(pgm.Matern32(variance, lengthscale), form=pgm.Markov())
        return pgm.Model(pgm.Gaussian(noise) if is_gaussian else pgm.Bernoulli(), gp)

    def posterior() -> Moments:
        result = pgm.gaussian_vi(model("").fixed(), X, y)
        mean, variance = (result if is_gaussian else pgm.correct(result)).predict_latent(X_test)
        return mean[:, 0], variance[:, 0]

    def learn() -> Learned:
        result = pgm.fit(model("_start"), X, y, progress=False)
        mean, variance = result.predict_latent(X_test)
        kernel: Any = result.model.gps[0].kernel
        values = {"lengthscale": float(kernel.lengthscale.value), "variance": float(kernel.variance.value)}
        if is_gaussian:
            values["noise"] = float(result.fit.values["scale"])
        return Learned(values, (mean[:, 0], variance[:, 0]))

    return Contestant(("pgmodels", "jax"), posterior, learn)


def tinygp(case: Case) -> Contestant:
    """tinygp, quasiseparable, of Gaussian noise, with SciPy's L-BFGS."""
    import jax
    import jax.numpy as jnp
    import tinygp as tiny
    from scipy.optimize import minimize

    jax.config.update("jax_enable_x64", True)
    x, y, x_test = (jnp.asarray(case[name]) for name in ("x", "y", "x_test"))

    def process(log_values: Any, rows: Any, noise: Any) -> Any:
        kernel = tiny.kernels.quasisep.Matern32(scale=jnp.exp(log_values[1]), sigma=jnp.exp(log_values[0] / 2.0))
        return tiny.GaussianProcess(kernel, rows, diag=noise**2)

    # New rows as rows of hardly any weight, since its own prediction takes time and memory with rows times new rows.
    joined = jnp.concatenate([x, x_test])
    order = jnp.argsort(joined)
    is_new = jnp.arange(len(joined)) >= len(x)

    @jax.jit
    def moments_at(log_values: Any) -> Any:
        noise = jnp.where(is_new, NO_WEIGHT, jnp.exp(log_values[2]))
        values = jnp.concatenate([y, jnp.zeros(len(x_test))])
        conditioned = process(log_values, joined[order], noise[order]).condition(values[order]).gp
        back = jnp.argsort(order)[len(x) :]
        return conditioned.loc[back], conditioned.variance[back]

    def moments(log_values: Any) -> Moments:
        mean, variance = moments_at(log_values)
        return np.asarray(mean), np.asarray(variance)

    def minus_evidence(log_values: Any) -> Any:
        return -process(log_values, x, jnp.full(len(x), jnp.exp(log_values[2]))).log_probability(y)

    loss = jax.jit(jax.value_and_grad(minus_evidence))

    def learn() -> Learned:
        best = minimize(loss, np.log(values_of(case, "_start")), jac=True, method="L-BFGS-B").x
        values = dict(zip(("variance", "lengthscale", "noise"), map(float, np.exp(best)), strict=True))
        return Learned(values, moments(best))

    return Contestant(("tinygp", "jax"), lambda: moments(np.log(values_of(case, ""))), learn)


def bayesnewton(case: Case) -> Contestant:
    """BayesNewton: natural gradients of length 1, and Adam for the values."""
    import bayesnewton as newton
    import jax
    import objax

    jax.config.update("jax_enable_x64", True)
    is_gaussian = str(case["kind"]) == "Gaussian"

    def made(end: str) -> Any:
        variance, lengthscale, noise = values_of(case, end)
        kernel = newton.kernels.Matern32(variance=variance, lengthscale=lengthscale)
        gaussian = newton.likelihoods.Gaussian(variance=noise**2)
        likelihood = gaussian if is_gaussian else newton.likelihoods.Bernoulli(link="logit")
        return newton.models.MarkovVariationalGP(kernel, likelihood, case["x"][:, None], case["y"][:, None])

    # Compiled functions belong to a model: one is made once, and put back to its start before it is used again.
    @cache
    def prepared(end: str) -> tuple[Any, Any, Any, Any, Any]:
        model = made(end)
        adam = objax.optimizer.Adam(model.vars())
        gradients = objax.GradValues(model.energy, model.vars())
        everything = model.vars() + adam.vars()

        @objax.Function.with_vars(everything)
        def step() -> None:
            model.inference()
            adam(RATE, gradients()[0])

        sweep, predict = (objax.Jit(call, model.vars()) for call in (model.inference, model.predict))
        return model, sweep, objax.Jit(step), predict, (everything, everything.tensors())

    def posterior() -> Moments:
        _, sweep, _, predict, (variables, start) = prepared("")
        variables.assign(start)
        # Sites of Gaussian noise are exact after one.
        for _ in range(1 if is_gaussian else SWEEPS):
            sweep()
        return moments(predict)

    def learn() -> Learned:
        model, sweep, step, predict, (variables, start) = prepared("_start")
        variables.assign(start)
        for _ in range(STEPS):
            step()
        sweep()
        values = {"lengthscale": float(model.kernel.lengthscale), "variance": float(model.kernel.variance)}
        if is_gaussian:
            values["noise"] = math.sqrt(float(model.likelihood.variance))
        return Learned(values, moments(predict))

    def moments(predict: Any) -> Moments:
        mean, variance = predict(case["x_test"][:, None])
        return np.asarray(mean), np.asarray(variance)

    return Contestant(("bayesnewton", "jax"), posterior, learn)


CONTESTANTS = {"pgmodels": pgmodels, "tinygp": tinygp, "BayesNewton": bayesnewton}

if __name__ == "__main__":
    path, name, target = sys.argv[1:]
    contestant = CONTESTANTS[name](dict(np.load(path)))
    outcome: dict[str, Any] = {"versions": [f"{package} {version(package)}" for package in contestant.packages]}
    arrays = {}
    for call, run in (("posterior", contestant.posterior), ("learn", contestant.learn)):
        seconds = []
        for _ in range(2):
            begin = cpu()
            made = run()
            seconds.append(cpu() - begin)
        if isinstance(made, Learned):
            outcome["values"] = made.values
            made = made.moments
        outcome[call] = seconds
        arrays |= {f"{call}_mean": made[0], f"{call}_variance": made[1]}
        # A contestant that is stopped has what it made before.
        np.savez(target, **arrays)
        print(json.dumps(outcome), flush=True)
