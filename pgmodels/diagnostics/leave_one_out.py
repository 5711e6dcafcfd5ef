"""Leave-one-out cross-validation of results by ArviZ."""

from typing import Any

from pgmodels.data.options import check_whole_number
from pgmodels.interop.arviz import to_arviz
from pgmodels.numerics.psis import FEWEST_DRAWS
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.result import Result
from pgmodels.results.sparse import name_type
from pgmodels.runtime.seeds import Seed


def loo(result: Result, *, num_draws: int = 4000, seed: Seed = 0) -> Any:
    """The expected log predictive density of leave-one-out, by Pareto-smoothed importance sampling.

    Parameters
    ----------
    result : Result
        Draws, an integrated result, or an approximation with a joint density: of ``cavi``, ``gaussian_vi``, ``fit`` or
        ``correct`` by linear response. Weights of its draws take it to the posterior without each row.
    num_draws : int
        Draws of an approximation, at least 100.
    seed : int or jax.Array
        An int or a JAX key, for these.

    Returns
    -------
    arviz_stats.ELPDData
        As of ``az.loo``, with ``elpd_i`` and ``pareto_k`` of each row.

    Raises
    ------
    ValueError
        For a corrected result without a joint density.

    Warns
    -----
    UserWarning
        By ArviZ, if Pareto k-hat of a row is above its limit: the estimate is then not reliable.

    Notes
    -----
    Hyperparameters that were learned are fixed, as if they did not depend on the row that is left out.

    References
    ----------
    Vehtari, Gelman and Gabry 2017; Magnusson et al. 2019 for approximations.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> estimate = pgm.loo(pgm.gaussian_vi(model, X, y))
    >>> estimate.elpd_i.shape, bool((estimate.pareto_k < 0.7).all())
    ((30,), True)
    """
    import arviz_stats as az

    if not isinstance(result, Result):
        raise ValueError(f"result must be a result, such as those of gibbs, fit or integrate; got {name_type(result)}.")
    check_whole_number(num_draws, "num_draws", FEWEST_DRAWS)
    if isinstance(result, GaussianResult):
        # Importance sampling needs a density.
        result = result.conditional
    if isinstance(result, GaussianResult) and not result.has_density:
        raise ValueError(
            f"loo needs the joint density of an approximation, and a result of method {result.method!r} has none: take "
            "result.uncorrected, or its linear response, pgm.correct(result.uncorrected)."
        )
    tree = to_arviz(result, num_draws, seed)
    stats = tree["sample_stats"]
    if "log_q" in stats:
        return az.loo_approximate_posterior(tree, stats["log_p"], stats["log_q"], pointwise=True)
    return az.loo(tree, pointwise=True)
