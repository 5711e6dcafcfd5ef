"""The inducing inputs of steps on batches: chosen on a sample, before the first step."""

import numpy as np

from pgmodels.inference.adaptive_selection import Inputs, choose_inputs, is_automatic, select_inducing_inputs
from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.inference.objectives import Choice, objective_of
from pgmodels.inference.variational.vi import nearly_converged
from pgmodels.model import GP, Data, Model
from pgmodels.runtime.warnings import PgmodelsWarning, suppress_warnings

# Number of rows from which inducing inputs are chosen with a posterior, and on which hyperparameters are learned
# beforehand.
_ROWS, _FEW = 20_000, 2_000


def inputs_for_steps(
    model: Model,
    sample: Data,
    num_rows: int,
    train_hyperparameters: bool,
    objective: Choice,
    seed: int,
) -> Inputs:
    """The inducing inputs of a resolved model for ``num_rows`` rows, of which ``sample`` has some or all.

    The sufficient number depends on the hyperparameters: if these are to be trained, they are first learned from few
    rows. ``seed`` draws the rows.
    """
    if not is_automatic(model):
        return choose_inputs(model, sample.X)
    order = np.random.default_rng(seed).permutation(len(sample.X))
    if train_hyperparameters:
        few = sample.at(np.sort(order[:_FEW]))
        # The steps, which learn from all rows, give their own warnings.
        with suppress_warnings(PgmodelsWarning):
            fitted = fit(
                model,
                few.X,
                few.y,
                weights=few.weights,
                objective=objective,
                correct=False,
                seed=seed,
                progress=False,
            ).model
        pairs = zip(model.gps, fitted.gps, strict=True)
        gps = [GP(learned.kernel, learned.mean, gp.size, gp.form) for gp, learned in pairs]
        model = Model(fitted.likelihood, gps)
    rows = np.sort(order[:_ROWS])

    def optimum(model: Model, data: Data) -> tuple[float, np.ndarray]:
        elbo, precisions = nearly_converged(model, data, objective_of(model, objective))
        return elbo, num_rows / len(rows) * precisions

    return choose_inputs(select_inducing_inputs(model, sample.at(rows), optimum), sample.X)
