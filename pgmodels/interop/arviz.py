"""Results as ArviZ data."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmodels.data.arrays import check_whole_number
from pgmodels.likelihoods.likelihood import Likelihood, log_density
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.likelihoods.supports import Classes
from pgmodels.numerics.quadrature import CHUNK_VALUES, slices
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.collection import have_factors
from pgmodels.results.draws import Draws, PriorPredictive
from pgmodels.results.nested import require_result
from pgmodels.results.predictive import warn_if_unnormalised
from pgmodels.results.result import Result
from pgmodels.runtime.messages import PgmodelsWarning, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed

if TYPE_CHECKING:
    from xarray import DataTree


@double_precision
def pointwise_log_likelihood(result: Result, f: np.ndarray) -> np.ndarray:
    """Return log p(y_i | f_i), times the row's weight, for latents f (..., n, latents) at the data, (..., n)."""
    flat = f.reshape(-1, *f.shape[-2:])
    values = {} if result.draws is None else result.draws.flat_likelihood_values
    chunks = []
    for rows in slices(len(flat), f.shape[-2] * f.shape[-1], CHUNK_VALUES // 2):
        likelihood = result.model.likelihood.with_values({name: v[rows] for name, v in values.items()})
        chunks.append(log_density(likelihood, result.data.y, flat[rows]))
    return result.data.row_weights * np.concatenate(chunks).reshape(f.shape[:-1])


@double_precision
def log_priors(result: Result, whitened: tuple[np.ndarray, ...] | None) -> dict[str, np.ndarray]:
    """Return the log prior of sampled hyperparameters by name, (chains, draws), and of "latents".

    The log prior of latents, (chains, draws, latents), is -|v|^2 / 2 for their whitened coordinates v. It is included
    if the coordinates are standard normal and determine the latents.
    """
    terms, draws = {}, result.draws
    if draws is not None and draws.hyperparameters:
        sampled = with_priors(draws.model)
        for name, parameter in zip(sampled.names, sampled.parameters, strict=True):
            density = np.asarray(parameter.prior.log_prob(as_array(draws.hyperparameters[name])))
            terms[name] = density.reshape(*draws.log_likelihood_trace.shape, -1).sum(axis=-1)
    if whitened is None or not have_factors(result.prior.spans()) or result.prior.residual_variances() is not None:
        return terms
    squares = []
    for group, v in zip(result.prior.groups, whitened, strict=True):
        # Without padding, which comes last; nuts has none.
        active = np.asarray(getattr(group, "active", np.ones(v.shape[-2])))[: v.shape[-2]]
        squares.append(np.einsum("...rl,r->...l", v**2, active))
    return terms | {"latents": -0.5 * np.concatenate(squares, axis=-1)}


_SAMPLERS = {
    "gibbs": "Gibbs sampling",
    "nuts": "NUTS",
    "integrate": "nested approximation; latents of different data independent given hyperparameters",
}
_DIMS = {
    "f": ["datum", "latent"],
    "latents": ["latent"],
    "y": ["datum"],
    "X": ["datum", "input"],
    "covariates": ["datum", "column"],
    "weights": ["datum"],
}


class InteropWarning(PgmodelsWarning):
    """Warning that an exported result lacks a group."""


@double_precision
def to_arviz(
    result: Result,
    num_draws: int = 1000,
    seed: Seed = 0,
    *,
    coords: Mapping[str, Sequence[Any]] | None = None,
    prior: PriorPredictive | None = None,
) -> "DataTree":
    """Convert a result to the ``xarray.DataTree`` that ArviZ reads and ``to_netcdf`` stores.

    Parameters
    ----------
    result : Result
        A result of an engine.
    num_draws : int
        Independent draws of an approximation: of q, of the marginals of a corrected result, or of an integrated result
        with its hyperparameters. Draws keep all chains and draws. If y is drawn by slow numerical inversion,
        posterior_predictive has about ``num_draws`` of them, evenly spaced.
    seed : int or jax.Array
        An int or a JAX key, for these draws and the draws of y.
    coords : dict, optional
        Labels of the rows, "datum", such as the index of a data frame; of "latent"; and of the columns of X, "input".
        The default is row numbers, column names of X, and for latents of classes the labels of y.
    prior : PriorPredictive, optional
        The result of ``prior_predictive`` for the model at X, for the groups prior and prior_predictive.

    Returns
    -------
    xarray.DataTree
        The groups in Notes. The attribute ``draws_of`` names the distribution.

    Raises
    ------
    ValueError
        If corrected variances are not positive, or the number of labels is wrong.

    Warns
    -----
    InteropWarning
        If y cannot be drawn from the likelihood. The group posterior_predictive is omitted.
    PredictionWarning
        If the formula is not known to be normalised in y. Then log_likelihood may lack a factor (see its attribute
        ``normalised``), and predictive scores such as elpd_loo are not valid.

    Notes
    -----
    Groups and variables, with dimensions after chain and draw:

    - posterior: ``f`` (datum, latent), and sampled hyperparameters by name;
    - posterior_predictive: ``y`` (datum), replicated observations at the data's inputs given the draws of ``f``. If y
      has several columns, it is the first given the other columns, ``covariates`` (datum, column) in constant_data.
      Event times are drawn without censoring. For a corrected result, rows with a skewed response use the uncorrected
      latents, as ``predict`` does;
    - log_likelihood: ``y`` (datum), multiplied by the row's weight if rows have weights (``weights`` in constant_data),
      so that leave-one-out removes the row with its weight;
    - log_prior: of sampled hyperparameters by name, and of ``latents`` (latent), up to a constant. It is in whitened
      coordinates, in which a power of it scales the prior covariance (for ``az.psense``);
    - observed_data: ``y`` (datum), the first column, as codes of its labels (attribute ``labels``);
    - constant_data: ``X`` (datum, input);
    - sample_stats: ``lp``, ``log p(y | f) - |v|^2 / 2``, the log joint density in whitened coordinates up to a
      constant, plus the log prior of sampled hyperparameters; and the sampler's statistics. Corrected and integrated
      results have no joint density, and have the ``log_likelihood`` of all data instead of ``lp``. Approximations with
      a joint density have ``log_p`` and ``log_q`` for ``az.loo_approximate_posterior`` (Magnusson et al. 2019): the log
      densities of the posterior, up to a constant, and of the approximation, both relative to the prior.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> tree = pgm.to_arviz(pgm.gaussian_vi(model, X, y), num_draws=100)
    >>> tree["posterior"].sizes["draw"], "log_likelihood" in tree.children
    (100, True)
    """
    import arviz_base as az

    check_whole_number(num_draws, "num_draws", 1)
    seed = as_seed(seed)
    exported: Result = require_result(result, "result must be a result of an engine such as cavi or gibbs")
    drawn = exported.draw_with_parameters(int(num_draws), seed)
    result = exported if drawn is None else as_draws(exported, *drawn)
    draws = result.draws
    if draws is None:
        f, draws_of, whitened, log_q = result.latent_draws(int(num_draws), seed)
    else:
        sampler = _SAMPLERS.get(
            draws.method, "a normal approximation of the learned parameters, and latents given them"
        )
        f, draws_of, whitened, log_q = draws.latents, f"the posterior, by {sampler}", draws.whitened, None
    coordinates = _coordinates(result, f, coords or {})
    likelihood, y = result.likelihood, result.y
    several = y.ndim == 2
    log_likelihood = pointwise_log_likelihood(result, f)
    total = log_likelihood.sum(axis=-1)
    log_prior = log_priors(result, whitened)
    stats = {"log_likelihood": total}
    if "latents" in log_prior:
        stats = {"lp": total + sum(v.reshape(*total.shape, -1).sum(axis=-1) for v in log_prior.values())}
    if log_q is not None:
        stats |= {"log_p": total, "log_q": log_q}
    if draws is not None:
        stats |= draws.statistics
    groups: dict[str, dict[str, Any]] = {
        "posterior": {"f": f} | ({} if draws is None else draws.hyperparameters),
        "log_likelihood": {"y": log_likelihood},
        "sample_stats": stats,
        "observed_data": {"y": y[:, 0] if several else y},
        "constant_data": {"X": result.X},
    }
    if log_prior:
        groups["log_prior"] = log_prior
    if several:
        groups["constant_data"]["covariates"] = y[:, 1:]
    if result.weights is not None:
        groups["constant_data"]["weights"] = result.weights
    kept = _kept_draws(result, f, num_draws)
    try:
        rng = np.random.default_rng(seed)
        values = {} if draws is None else {name: v[:, kept] for name, v in draws.likelihood_values.items()}
        latents = f if exported.draws is not None else exported.averaging_draws(f[0], seed)[None]
        covariates = likelihood.support(f.shape[-1]).covariate_columns(y)
        replicated = draw_observations(likelihood, latents[:, kept], covariates, rng, values)
        groups["posterior_predictive"] = {"y": replicated}
    except ValueError as error:
        warn(f"posterior_predictive is omitted: {error}", InteropWarning)
    about = _about(likelihood) | {"method": result.method, "draws_of": draws_of, "sampling_time": float(result.seconds)}
    attributes = {"/": about} | dict.fromkeys(groups, about)
    if result.labels is not None:
        attributes["observed_data"] = about | {"labels": [str(label) for label in result.labels]}
    tree = az.from_dict(groups, coords=coordinates, dims=_DIMS, attrs=attributes)
    lacking = warn_if_unnormalised(likelihood, f.shape[-1], "the log_likelihood of to_arviz")
    tree["log_likelihood"].attrs["normalised"] = (
        "not known: a factor that does not depend on f may be missing; differences between draws are valid, elpd is not"
        if lacking
        else "yes"
    )
    if "posterior_predictive" in groups:
        predictive = tree["posterior_predictive"].to_dataset().assign_coords(draw=kept)
        predictive.attrs["draws"] = f"{len(kept)} of the {f.shape[1]} draws of each chain, evenly spaced"
        tree["posterior_predictive"] = predictive
    if prior is not None:
        _add_prior(tree, prior, coordinates)
    return tree


def _add_prior(tree: "DataTree", prior: PriorPredictive, coordinates: Mapping[str, np.ndarray]) -> None:
    is_drawn, shape = isinstance(prior, PriorPredictive), (len(coordinates["datum"]), len(coordinates["latent"]))
    if not is_drawn or prior.latents.shape[1:] != shape:
        got = repr(prior) if is_drawn else type(prior).__name__
        raise ValueError(f"prior must be pgm.prior_predictive(model, X) at the X of the result; got {got}.")
    drawn = prior_to_arviz(prior)
    for name in ("prior", "prior_predictive"):
        dataset = drawn[name].to_dataset()
        tree[name] = dataset.assign_coords({key: coordinates[key] for key in ("datum", "latent") if key in dataset})


def prior_to_arviz(draws: PriorPredictive) -> "DataTree":
    """Return prior draws as an xarray.DataTree of one chain: prior (``f``, hyperparameters) and prior_predictive."""
    import arviz_base as az

    groups = {
        "prior": {"f": draws.latents[None]} | {name: v[None] for name, v in draws.hyperparameters.items()},
        "prior_predictive": {"y": draws.observations[None]},
    }
    if draws.covariates is not None:
        groups["constant_data"] = {"covariates": draws.covariates}
    about = _about(draws.model.likelihood)
    return az.from_dict(
        groups,
        coords={"datum": np.arange(len(draws.X)), "latent": np.arange(draws.latents.shape[-1])},
        dims=_DIMS,
        attrs={"/": about} | dict.fromkeys(groups, about),
    )


def _about(likelihood: Likelihood) -> dict[str, Any]:
    return {
        "inference_library": "pgmodels",
        "inference_library_version": version("pgmodels"),
        "likelihood": repr(likelihood),
    }


def as_draws(result: Result, f: np.ndarray, values: Mapping[str, np.ndarray]) -> Draws:
    """Return draws in one chain: latents (draws, n, latents), and hyperparameters (draws, ...) by name."""
    copied = ("model", "X", "y", "seconds", "method", "columns", "weights", "labels", "prior")
    return Draws(
        **{name: getattr(result, name) for name in copied},
        whitened=None,
        stored_latents=f[None],
        hyperparameters={name: value[None] for name, value in values.items()},
        log_likelihood_trace=np.zeros((1, len(f))),
        num_warmup=0,
    )


def _coordinates(result: Result, f: np.ndarray, names: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    support, size = result.model.support, f.shape[3]
    lengths = {"datum": f.shape[2], "latent": size, "input": result.X.shape[1]}
    coordinates: dict[str, Any] = {name: np.arange(length) for name, length in lengths.items()}
    if result.columns is not None:
        coordinates["input"] = [column.name for column in result.columns]
    if isinstance(support, Classes) and result.labels is not None and len(result.labels) == size:
        coordinates["latent"] = result.labels
    unknown = set(names) - set(coordinates)
    if unknown:
        raise ValueError(f"coords may have {', '.join(coordinates)}; got {', '.join(sorted(unknown))}.")
    for name, values in names.items():
        if len(values) != len(coordinates[name]):
            raise ValueError(
                f"coords[{name!r}] must have {len(coordinates[name])} labels; got {len(values)}. The data are without "
                "rows that missing= or a weight of 0 leaves out."
            )
    for name, labels in (coordinates | dict(names)).items():
        if not isinstance(labels, np.ndarray) or labels.dtype == object:
            # Labels of several parts, as of a MultiIndex of pandas, become text.
            labels = np.asarray([", ".join(map(str, one)) if isinstance(one, tuple) else one for one in labels])
        # NetCDF stores numbers, dates and text.
        coordinates[name] = labels if labels.dtype.kind in "iufM" else labels.astype(str)
    return coordinates


def _kept_draws(result: Result, f: np.ndarray, num_draws: int) -> np.ndarray:
    """Return the draws of each chain for which y is drawn: all, unless drawing needs slow numerical inversion."""
    chains, draws = f.shape[:2]
    support = result.likelihood.support(f.shape[-1])
    if result.likelihood.draws_exactly(f.shape[-1]) or all(
        piece.is_discrete and np.isfinite(piece.high).all() for piece in support.pieces(result.y)
    ):
        return np.arange(draws)
    return np.arange(0, draws, max(1, -(-chains * draws // num_draws)))
