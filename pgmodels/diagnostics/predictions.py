"""Monte-Carlo standard errors of predictions from draws."""

from typing import Any

import numpy as np

from pgmodels.diagnostics.convergence import standard_errors
from pgmodels.likelihoods.density import log_density
from pgmodels.numerics.quadrature import slices
from pgmodels.results.draws import Draws
from pgmodels.runtime.seeds import Seed
from pgmodels.runtime.x64 import double_precision


@double_precision
def prediction_errors(draws: Draws, X: Any, y: Any, seed: Seed = 0) -> np.ndarray:
    """Monte-Carlo standard errors of the predictions of draws at X (m, d).

    Of each class probability (m, classes), of class 1 (m,) if there are two classes, or of the mean of y (m,) if y is
    not a class. ``y`` (m,) or (m, columns) supplies the columns after the first. ``seed`` as in ``Draws.predict``.
    """
    size = draws.model.num_latents
    predictive = draws.predict(X, draws.likelihood.support(size).covariate_columns(y), seed)
    # Likelihood parameters may be drawn together with the latents.
    likelihood, f = predictive.evaluated_likelihood, predictive.nodes.at(slice(None), 0)[0]
    values = predictive.support.values()
    chunks = slices(len(X), len(f) * size)
    if values is None:
        means = (np.asarray(predictive.moments_given(rows, f[:, rows])[0]) for rows in chunks)
        return np.concatenate([_error(draws, mean) for mean in means])
    columns = []
    for value in values[1:] if len(values) == 2 else values:
        label = np.full(len(X), value) if y.ndim == 1 else np.column_stack([np.full(len(X), value), y[:, 1:]])
        probabilities = [np.exp(log_density(likelihood, label[rows], f[:, rows])) for rows in chunks]
        columns.append(np.concatenate([_error(draws, part) for part in probabilities]))
    return columns[0] if len(values) == 2 else np.stack(columns, axis=1)


def _error(draws: Draws, values: np.ndarray) -> np.ndarray:
    """Standard errors of the means over draws of (chains * draws, k), (k,)."""
    chains = values.reshape(draws.num_chains, -1, values.shape[-1], 1)
    return standard_errors(chains)[0][:, 0]
