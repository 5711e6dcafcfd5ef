"""One contestant of race.py on one data set, in a process and on a core of its own: its losses as seconds go by.

Usage: python validation/race_contestant.py CASE.npz CORE CONTESTANT RATE SECONDS BEGUN; prints JSON. ``BEGUN`` is the
time at which the process was started.
"""

import json
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

# A step of natural gradients, as both libraries' guides have it for likelihoods that are not Gaussian.
NATURAL = 0.1
# A peer is looked at whenever it has made this many times as many steps as at the last look.
BETWEEN = 1.08
# On up to so many rows some are dense.
DENSE = 2000
# Processor seconds after which a contestant is stopped, its import included.
LIMIT = 120
# Steps of `svi` in its first calls, each from the start, and in those that go on from a checkpoint.
FEW, WINDOW = (8, 16, 32, 64, 128), 200


class Times(NamedTuple):
    """Seconds on the clock and of the processors."""

    clock: float
    processor: float


class Case(NamedTuple):
    """Training and test rows, inducing inputs and a lengthscale to start from, the rows of a batch, and classes."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    Z: np.ndarray
    lengthscale: float
    batch: int
    classes: int


def now() -> Times:
    """What has gone by since some moment, the system's part included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Times(time.perf_counter(), used.ru_utime + used.ru_stime)


def since_start() -> list[float]:
    """What has gone by since the process was started: imports and the model so far."""
    return [time.time() - float(sys.argv[6]), now().processor]


def read(path: str, split: str) -> Case:
    """One of the two splits of a case."""
    with np.load(path) as arrays:
        arrays_of_case = [arrays[f"{split}_{name}"] for name in Case._fields[:5]]
        return Case(*arrays_of_case, *(arrays[name].item() for name in Case._fields[5:]))


def batches(case: Case) -> Iterator[np.ndarray]:
    """Places of rows: all of them again and again, or batches of a new order of the rows in each pass."""
    rng, n = np.random.default_rng(0), len(case.X)
    while case.batch >= n:
        yield np.arange(n)
    while True:
        order = rng.permutation(n)
        for start in range(0, n - case.batch + 1, case.batch):
            yield order[start : start + case.batch]


def followed(step: Callable[[], None], loss: Callable[[], float], seconds: float) -> dict[str, object]:
    """The losses along steps, for so many processor seconds after the first one, looks not counted.

    ``compile`` is what the first step took beyond a usual one.
    """
    before = since_start()
    loss()  # What a look compiles is not the peer's to pay.
    curve, first, spent, steps, look = [], None, np.zeros(2), 0, 1
    while first is None or spent[1] - first[1] < seconds:
        begin = now()
        try:
            for _ in range(look - steps):
                step()
        except Exception as error:
            # What it had before counts.
            if len(curve) < 2:
                raise
            print(error, file=sys.stderr)
            break
        spent += np.subtract(now(), begin)
        steps = look
        first = spent.copy() if first is None else first
        curve.append([*spent, loss()])
        look = max(steps + 1, int(steps * BETWEEN))
    usual = (spent - first) / (steps - 1)
    return {"curve": curve, "compile": list(first - usual), "steps": steps, "before": before}


def gpflow(case: Case, rate: float, seconds: float) -> dict[str, object]:
    """GPflow's SVGP: in each compiled step one of natural gradients for q, and one of Adam for all else.

    Of classes Adam takes q too: natural gradients of its bound end in NaN, however short they start.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import gpflow
    import tensorflow as tf

    if case.classes == 2:
        likelihood = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid)
    else:
        likelihood = gpflow.likelihoods.MultiClass(case.classes)
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(1.0, case.lengthscale),
        likelihood,
        case.Z.copy(),
        num_latent_gps=1 if case.classes == 2 else case.classes,
        num_data=len(case.X),
    )
    natural_too = case.classes == 2
    for part in (model.q_mu, model.q_sqrt):
        gpflow.set_trainable(part, not natural_too)
    natural, adam = gpflow.optimizers.NaturalGradient(NATURAL), tf.optimizers.Adam(rate)
    X, y, X_test, y_test = (
        tf.constant(part if part.ndim == 2 else part[:, None]) for part in (case.X, case.y, case.X_test, case.y_test)
    )

    @tf.function(autograph=False)
    def steps(X, y):
        if natural_too:
            natural.minimize(lambda: model.training_loss((X, y)), [(model.q_mu, model.q_sqrt)])
        adam.minimize(lambda: model.training_loss((X, y)), model.trainable_variables)

    @tf.function(autograph=False)
    def loss():
        return -tf.reduce_mean(model.predict_log_density((X_test, y_test)))

    order = batches(case)
    if case.batch >= len(case.X):
        return followed(lambda: steps(X, y), lambda: float(loss()), seconds)

    def step() -> None:
        places = next(order)
        steps(tf.constant(case.X[places]), tf.constant(case.y[places, None]))

    return followed(step, lambda: float(loss()), seconds)


def gpytorch(case: Case, rate: float, seconds: float) -> dict[str, object]:
    """GPyTorch's SVGP: in each step one of natural gradients for q, and one of Adam for the rest; single precision."""
    import gpytorch
    import torch
    from gpytorch import variational as v

    torch.set_num_threads(1)
    torch.manual_seed(0)
    several = torch.Size([] if case.classes == 2 else [case.classes])

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = v.NaturalVariationalDistribution(len(case.Z), batch_shape=several)
            strategy = v.VariationalStrategy(
                self, torch.tensor(case.Z, dtype=torch.float32), q, learn_inducing_locations=True
            )
            if several:
                strategy = v.IndependentMultitaskVariationalStrategy(strategy, num_tasks=case.classes)
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=several)
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.covar_module.base_kernel.lengthscale = case.lengthscale
            self.covar_module.outputscale = 1.0

        def forward(self, X: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    class Logistic(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
        def forward(self, f: torch.Tensor) -> torch.distributions.Bernoulli:
            return torch.distributions.Bernoulli(logits=f)

    if several:
        likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=case.classes, mixing_weights=False)
    else:
        likelihood = Logistic()
    model = Model()
    X, y, X_test, y_test = (
        torch.tensor(part, dtype=torch.float32) for part in (case.X, case.y, case.X_test, case.y_test)
    )
    if several:
        y, y_test = y.long(), y_test.long()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=len(X), lr=NATURAL)
    adam = torch.optim.Adam(model.hyperparameters(), lr=rate)
    order = batches(case)

    def step() -> None:
        places = torch.from_numpy(next(order))
        natural.zero_grad()
        adam.zero_grad()
        (-bound(model(X[places]), y[places])).backward()
        natural.step()
        adam.step()

    def loss() -> float:
        model.eval()
        with torch.no_grad():
            latents = model(X_test)
            if several:
                with gpytorch.settings.num_likelihood_samples(200):
                    density = likelihood(latents).probs.mean(0)[torch.arange(len(y_test)), y_test].log()
            else:
                density = likelihood.log_marginal(y_test, latents)
        model.train()
        return -float(density.mean())

    return followed(step, loss, seconds)


def sklearn(case: Case, rate: float, seconds: float) -> dict[str, object]:
    """scikit-learn's classifier: Laplace's method on all rows, hyperparameters by L-BFGS."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    before, begin = since_start(), now()
    classifier = GaussianProcessClassifier(ConstantKernel(1.0) * RBF(case.lengthscale), random_state=0).fit(
        case.X, case.y
    )
    spent = np.subtract(now(), begin)
    density = np.log(classifier.predict_proba(case.X_test)[np.arange(len(case.y_test)), case.y_test.astype(int)])
    return {"curve": [[*spent, -float(density.mean())]], "before": before}


def gpboost(case: Case, rate: float, seconds: float) -> dict[str, object]:
    """GPBoost's Laplace approximation: on all rows, or with as many inducing inputs of its own (FITC) from DENSE on."""
    import gpboost

    before, begin = since_start(), now()
    few = len(case.X) <= DENSE
    options = {} if few else {"num_ind_points": len(case.Z)}
    model = gpboost.GPModel(
        gp_coords=case.X,
        cov_function="gaussian",
        likelihood="bernoulli_logit",
        gp_approx="none" if few else "fitc",
        num_parallel_threads=1,
        **options,
    )
    model.fit(y=case.y)
    spent = np.subtract(now(), begin)
    p = model.predict(gp_coords_pred=case.X_test, predict_response=True, predict_var=False)["mu"]
    density = np.log(np.clip(np.where(case.y_test == 1, p, 1.0 - p), np.finfo(float).tiny, None))
    return {"curve": [[*spent, -float(density.mean())]], "before": before}


def model_of(case: Case, dense: bool = False) -> Any:
    """The model with the inducing inputs given, or dense."""
    import pgmodels as pgm

    size = 1 if case.classes == 2 else case.classes
    likelihood = pgm.Bernoulli() if size == 1 else pgm.LogisticSoftmax(size)
    form = {} if dense else {"form": pgm.Inducing(case.Z)}
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, case.lengthscale), size=size, **form))


def called(case: Case, call: Callable[[], Any]) -> list[float]:
    """Seconds of a call of the package, from its begin to its result, and the loss."""
    begin = now()
    result = call()
    return [*np.subtract(now(), begin), -float(np.mean(result.predict(case.X_test).log_density(case.y_test)))]


def fit(case: Case, dense: bool) -> list[float]:
    """One call of ``fit``, with the objective that it chooses."""
    import pgmodels as pgm

    model = model_of(case, dense)
    return called(case, lambda: pgm.fit(model, case.X, case.y, correct=False, progress=False))


def svi(case: Case, seconds: float, objective: str) -> None:
    """`svi` for a few steps, for more and more; then again and again from its checkpoint for a window more, in sums.

    It prints what there is after each call, so that who is stopped has it.

    The first call compiles, and what it took beyond the same call made once more is added to each of the following. The
    last begins at most so many processor seconds after the first ended.
    """
    import pgmodels as pgm

    model, per_pass = model_of(case), len(case.X) // case.batch
    before = since_start()
    # As the peers do.
    options = {"batch_size": case.batch, "train_hyperparameters": True, "train_inducing": True, "objective": objective}

    def steps(count: int, **more: str) -> list[float]:
        passes = -(-count // per_pass)
        return called(
            case, lambda: pgm.svi(model, case.X, case.y, max_epochs=passes, progress=False, **options, **more)
        )

    first, again = (steps(FEW[0]) for _ in range(2))
    compiled, curve = np.subtract(first[:2], again[:2]), [first]

    def add(spent: np.ndarray, loss: float) -> None:
        curve.append([*spent, loss])
        print(json.dumps({"curve": curve, "again": again, "compile": list(compiled), "before": before}), flush=True)

    for count in FEW[1:]:
        *spent, loss = steps(count)
        add(np.add(spent, compiled), loss)
    with tempfile.TemporaryDirectory() as folder:
        reached = compiled
        while curve[-1][1] - curve[0][1] < seconds:
            *spent, loss = steps(WINDOW * (len(curve) - len(FEW) + 1), checkpoint=folder)
            reached = np.add(spent, reached)
            add(reached, loss)


PEERS = {"GPflow": gpflow, "GPyTorch": gpytorch, "scikit-learn": sklearn, "GPBoost": gpboost}
OURS = ("fit", "fit, dense", "svi", "svi, expected")
PACKAGES = {
    "GPflow": ("gpflow", "tensorflow-cpu"),
    "GPyTorch": ("gpytorch", "torch"),
    "scikit-learn": ("scikit-learn",),
    "GPBoost": ("gpboost",),
}


def main(path: str, core: str, contestant: str, rate: str, seconds: str) -> None:
    """Run a contestant and print what it found; `fit` twice, on another split of the same rows too."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core)})
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    warnings.simplefilter("ignore")
    if contestant in PEERS:
        outcome = PEERS[contestant](read(path, "first"), float(rate), float(seconds))
        outcome["versions"] = [f"{name} {version(name)}" for name in PACKAGES[contestant]]
        print(json.dumps(outcome))
        return
    first, second = read(path, "first"), read(path, "second")
    import pgmodels  # noqa: F401

    if contestant.startswith("svi"):
        svi(first, float(seconds), "expected" if "expected" in contestant else "augmented")
        return
    dense, before = "dense" in contestant, since_start()
    outcome: dict[str, object] = {"curve": [fit(first, dense)], "before": before}
    print(json.dumps(outcome), flush=True)
    again = fit(second, dense)
    print(json.dumps({**outcome, "again": again, "compile": list(np.subtract(outcome["curve"][0][:2], again[:2]))}))


if __name__ == "__main__":
    main(*sys.argv[1:6])
