"""The choice of the Markov form for a latent of many rows, where it is as exact as the default form."""

import numpy as np

from pgmodels.kernels.kernel import with_values
from pgmodels.model import GP, Model
from pgmodels.priors.dense import dense_operations
from pgmodels.priors.markov.prior import scan_operations
from pgmodels.priors.markov.representation import Markov
from pgmodels.priors.representation import Auto

# Distinct inputs up to which the default form stays. In a new process, with Matern32 on one core, cavi takes 3.3 s in
# either form with 1,000, and 6.6 s against 3.7 s with 2,000 (4.0 s against 0.04 s once compiled), and fit 44 s against
# 14 s. Up to 2,000 fit corrects dense results, from which the latents can then be drawn jointly.
FEW = 2_000


def with_chain(model: Model, X: np.ndarray) -> Model:
    """The model with its one latent as a Markov process, where that is exact and cheaper and the default form is asked.

    Several latents, which formulas and corrections may combine, keep their form, and so do kernels of low rank.
    """
    if len(X) <= FEW or model.num_latents > 1 or model.gps[0].form != Auto():
        return model
    gp, form, num_columns = model.gps[0], Markov(), X.shape[1]
    try:
        form.check(gp.kernel, num_columns)
    except ValueError:
        return model
    count = len(np.unique(X[:, gp.kernel.reads(num_columns)], axis=0))
    state = with_values(gp.kernel).to_state_space()
    has_noise = bool(np.any(state.noise(np.ones(1))))
    is_cheaper = scan_operations(count, state.dimension) < dense_operations(count)
    if count <= FEW or not (state.is_exact and has_noise and is_cheaper):
        return model
    return Model(model.likelihood, [GP(gp.kernel, gp.mean, gp.size, form)])
