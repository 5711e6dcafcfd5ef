"""The inducing inputs of steps on batches: chosen on a sample, before the first step."""

import numpy as np

from pgmodels.inference.empirical_bayes.bound import engine_of, objective_of
from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.inference.inducing_selection import Inputs, choose_inputs, is_automatic, select_inducing_inputs
from pgmodels.model import GP, Data, Model
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.runtime.warnings import PgmodelsWarning, suppress_warnings

# Number of rows from which inducing inputs are chosen with a posterior, and on which hyperparameters are learned
# beforehand.
_ROWS, _FEW = 20_000, 2_000


def inputs_for_steps(
    model: Model, sample: Data, num_rows: int, train_hyperparameters: bool, objective: str, seed: int
) -> Inputs:
    """The inducing inputs of a resolved model for ``num_rows`` rows, of which ``sample`` has some or all.

    The sufficient number depends on the hyperparameters: if these are to be trained, they are first learned from few
    rows. ``seed`` draws the rows.
    """
    if not is_automatic(model):
        return choose_inputs(model, sample.X)
    order = np.random.default_rng(seed).permutation(len(sample.X))
    if train_hyperparameters:
        few = np.sort(order[:_FEW])
        # The steps, which learn from all rows, give their own warnings.
        with suppress_warnings(PgmodelsWarning):
            y, weights = sample.y[few], None
            if model.is_weighted:
                y, weights = y[:, :-1].squeeze(axis=1) if y.shape[1] == 2 else y[:, :-1], y[:, -1]
            fitted = fit(
                model.unweighted,
                sample.X[few],
                y,
                weights=weights,
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
        elbo, precisions = engine_of(objective_of(model, objective)).nearly_converged(model, data)
        return elbo, num_rows / len(rows) * precisions

    chosen = select_inducing_inputs(model, Data(sample.X[rows], sample.y[rows], sample.columns), optimum)
    return tuple(np.asarray(gp.form.inputs) if isinstance(gp.form, Inducing) else None for gp in chosen.gps)
