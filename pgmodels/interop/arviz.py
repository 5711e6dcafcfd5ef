"""Export of results to ArviZ."""

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from pgmodels.data.options import check_whole_number
from pgmodels.likelihoods.density import log_density
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.numerics.quadrature import CHUNK_VALUES, slices
from pgmodels.parameters.vector import with_priors
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.results.approximation import Approximation, CorrectedApproximation, LinearResponse
from pgmodels.results.correction import is_invalid
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import NestedApproximation
from pgmodels.results.predictive import warn_if_unnormalised
from pgmodels.results.prior_predictive import PriorPredictive
from pgmodels.results.result import Result
from pgmodels.results.sparse import name_type
from pgmodels.runtime import hooks
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.warnings import PgmodelsWarning, warn
from pgmodels.runtime.x64 import as_array, double_precision

if TYPE_CHECKING:
    from xarray import DataTree
_SAMPLERS = {
    "gibbs": "Gibbs sampling",
    "nuts": "NUTS",
    "integrate": "nested approximation; latents of different data independent given hyperparameters",
}


class InteropWarning(PgmodelsWarning):
    """An exported result lacks a group."""


@double_precision
def to_arviz(result: Result, num_draws: int = 1000, seed: Seed = 0) -> "DataTree":
    """Convert a result to the ``xarray.DataTree`` that ArviZ reads and ``to_netcdf`` stores.

    Parameters
    ----------
    result : Result
        A result of an engine.
    num_draws : int
        Independent draws of an approximation: of q, of the marginals of a corrected result, or of an integrated result
        with its hyperparameters. Draws keep all chains and draws; if y is drawn by slow numerical inversion,
        posterior_predictive has about ``num_draws`` of them, evenly spaced.
    seed : int or jax.Array
        An int or a JAX key, for these draws and the draws of y.

    Returns
    -------
    xarray.DataTree
        The groups of Notes; the attribute ``draws_of`` names the distribution.

    Raises
    ------
    ValueError
        For corrected variances that are not positive.

    Warns
    -----
    InteropWarning
        If y cannot be drawn from the likelihood; posterior_predictive is omitted.
    PredictionWarning
        If the formula is not known to be normalised in y: log_likelihood may then lack a factor (see its attribute
        ``normalised``), and predictive scores such as elpd_loo are not valid.

    Notes
    -----
    Groups and variables, with dimensions after chain and draw:

    - posterior: ``f`` (datum, latent), and sampled hyperparameters by name;
    - posterior_predictive: ``y`` (datum), replicated observations at the data's inputs given the draws of ``f``; if y
      has several columns, the first given the others, which are in constant_data as ``covariates`` (datum, column);
      event times are drawn without censoring; for a corrected result, the uncorrected latents are used in the rows
      whose response is skewed, as in ``predict``;
    - log_likelihood: ``y`` (datum), multiplied by the row's weight if rows have weights (in constant_data as
      ``weights``), so that leave-one-out removes the row with its weight;
    - observed_data: ``y`` (datum), the first column;
    - sample_stats: ``lp``, ``log p(y | f) - |v|^2 / 2``, the log joint density in whitened coordinates up to a
      constant, plus the log prior of sampled hyperparameters; and the sampler's statistics. Corrected and integrated
      results have no joint density, and have the ``log_likelihood`` of all data instead of ``lp``.
    """
    import arviz_base as az

    check_whole_number(num_draws, "num_draws", 1)
    seed = as_seed(seed)
    exported = result
    if isinstance(result, IntegratedApproximation):
        result = _drawn(result, int(num_draws), seed)
    f, whitened, draws_of = _latents(result, int(num_draws), seed)
    likelihood, y = result.likelihood, result.y
    several = y.ndim == 2
    log_likelihood = pointwise_log_likelihood(result, f)
    stats = {"log_likelihood": log_likelihood.sum(axis=-1)}
    # lp needs coordinates that are standard normal and determine the latents.
    if whitened is not None and result.prior.whitened and result.prior.residual_variances() is None:
        stats = {"lp": stats["log_likelihood"] - 0.5 * squared_norm(result, whitened)}
    sampled = {}
    if isinstance(result, Draws):
        stats = {name: value + _log_prior(result) if name == "lp" else value for name, value in stats.items()}
        stats |= result.statistics
        sampled = result.hyperparameters
    observed = y[:, 0] if several else y
    groups: dict[str, dict[str, np.ndarray]] = {
        "posterior": {"f": f, **sampled},
        "log_likelihood": {"y": log_likelihood},
        "sample_stats": stats,
        "observed_data": {"y": observed},
    }
    if several:
        groups["constant_data"] = {"covariates": y[:, 1:]}
    if result.weights is not None:
        groups["constant_data"] = groups.get("constant_data", {}) | {"weights": result.weights}
    kept = _kept_draws(result, f, num_draws)
    try:
        rng = np.random.default_rng(seed)
        values = {name: v[:, kept] for name, v in _likelihood_values(result).items()}
        latents = _averaging(exported, f, seed)[:, kept]
        covariates = likelihood.support(f.shape[-1]).covariate_columns(y)
        drawn = draw_observations(likelihood, latents, covariates, rng, values)
        groups["posterior_predictive"] = {"y": drawn}
    except ValueError as error:
        warn(f"posterior_predictive is omitted: {error}", InteropWarning)
    about = {
        "inference_library": "pgmodels",
        "inference_library_version": version("pgmodels"),
        "method": result.method,
        "likelihood": repr(likelihood),
        "draws_of": draws_of,
        "sampling_time": float(result.seconds),
    }
    tree = az.from_dict(
        groups,
        coords={"datum": np.arange(f.shape[2]), "latent": np.arange(f.shape[3])},
        dims={"f": ["datum", "latent"], "y": ["datum"], "covariates": ["datum", "column"], "weights": ["datum"]},
        attrs={"/": about} | {group: about for group in groups},
    )
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
    return tree


# ``register`` as a decorator would erase the signature.
hooks.arviz.register(Result, to_arviz)


@hooks.arviz.register(PriorPredictive)
def prior_to_arviz(draws: PriorPredictive) -> "DataTree":
    """An xarray.DataTree of prior draws, one chain: prior (``f`` and hyperparameters) and prior_predictive."""
    import arviz_base as az

    groups = {
        "prior": {"f": draws.latents[None]} | {name: v[None] for name, v in draws.hyperparameters.items()},
        "prior_predictive": {"y": draws.observations[None]},
    }
    if draws.covariates is not None:
        groups["constant_data"] = {"covariates": draws.covariates}
    about = {
        "inference_library": "pgmodels",
        "inference_library_version": version("pgmodels"),
        "likelihood": repr(draws.model.likelihood),
    }
    return az.from_dict(
        groups,
        coords={"datum": np.arange(len(draws.X)), "latent": np.arange(draws.latents.shape[-1])},
        dims={"f": ["datum", "latent"], "y": ["datum"], "covariates": ["datum", "column"]},
        attrs={"/": about} | {group: about for group in groups},
    )


def _drawn(result: IntegratedApproximation, num_draws: int, seed: int) -> Draws:
    """One chain of draws of the hyperparameters and of the latents given them."""
    f, values = result.draw_at_data(num_draws, seed)
    return Draws(
        **{
            name: getattr(result, name)
            for name in ("model", "X", "y", "seconds", "method", "columns", "weights", "prior")
        },
        whitened=None,
        stored_latents=f[None],
        hyperparameters={name: value[None] for name, value in values.items()},
        log_likelihood_trace=np.zeros((1, num_draws)),
        num_warmup=0,
    )


def _averaging(result: Result, f: np.ndarray, seed: int) -> np.ndarray:
    """The latents for draws of y: the posterior's, or uncorrected ones in rows whose corrected response is skewed."""
    if isinstance(result, IntegratedApproximation):
        return result.averaging_draws(f.shape[1], seed)[None]
    if isinstance(result, NestedApproximation) or not isinstance(result, CorrectedApproximation):
        return f
    return result.averaging_draws(f[0], seed)[None]


@double_precision
def pointwise_log_likelihood(result: Result, f: np.ndarray) -> np.ndarray:
    """log p(y_i | f_i), times the row's weight, for latents f (..., n, latents) at the data, (..., n)."""
    flat, n = f.reshape(-1, *f.shape[-2:]), f.shape[-2]
    # Rows are padded to few sizes, so that the formula is compiled few times.
    y, _ = result.data.padded(padded_size(n))
    values = {name: v.reshape(-1, 1, v.shape[-1]) for name, v in _likelihood_values(result).items()}
    chunks = []
    for rows in slices(len(flat), f.shape[-2] * f.shape[-1], CHUNK_VALUES // 2):
        likelihood = result.model.likelihood.with_values({name: v[rows] for name, v in values.items()})
        padded = np.moveaxis(pad_rows(np.moveaxis(flat[rows], -2, 0), len(y)), 0, -2)
        chunks.append(log_density(likelihood, y, padded)[..., :n])
    return result.data.row_weights * np.concatenate(chunks).reshape(f.shape[:-1])


def squared_norm(result: Result, whitened: tuple[np.ndarray, ...]) -> np.ndarray:
    """|v|^2 of whitened coordinates by group, (..., rank, latents) each, without padding."""
    total = np.zeros(whitened[0].shape[:-2])
    for group, v in zip(result.prior.groups, whitened, strict=True):
        active = np.asarray(getattr(group, "active", np.ones(v.shape[-2])))
        total += np.einsum("...rl,r->...", v**2, active)
    return total


def _likelihood_values(result: Result) -> dict[str, np.ndarray]:
    """Draws of sampled likelihood parameters, (chains, draws, 1, entries)."""
    return result.likelihood_values if isinstance(result, Draws) else {}


def _latents(result: Result, num_draws: int, seed: int) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None, str]:
    """Latents (chains, draws, n, latents), whitened coordinates if they have a joint density, and a description."""
    if isinstance(result, Draws):
        return result.latents, result.whitened, f"the posterior, by {_SAMPLERS[result.method]}"
    if isinstance(result, NestedApproximation) and result.is_positive:
        about = "nested variational marginals, joined by a Gaussian copula with the correlations of linear response"
        return result.draw_at_data(num_draws, seed)[0][None], None, about
    if isinstance(result, LinearResponse) and result.is_positive:
        f, whitened = result.draw_at_data(num_draws, seed)
        about = "the corrected Gaussian, joint over data and latents"
        return f[None], tuple(v[None] for v in whitened), about
    if isinstance(result, CorrectedApproximation):
        invalid = np.argwhere(is_invalid(result.variance))
        if invalid.size:
            raise ValueError(
                f"{len(invalid)} corrected variances are not positive (first in row {invalid[0][0]}), so the result "
                "has no distribution to draw from: export the uncorrected result, or draws of gibbs."
            )
        noise = np.random.default_rng(seed).standard_normal((1, num_draws, *result.mean.shape))
        about = "the corrected marginals, independent of each other: they have no joint density"
        return result.mean + np.sqrt(result.variance) * noise, None, about
    if isinstance(result, Approximation):
        f, whitened = result.draw_at_data(num_draws, seed)
        return (
            f[None],
            tuple(v[None] for v in whitened),
            "the Gaussian approximation q: independent draws, joint over data",
        )
    raise ValueError(f"result must be a result, such as those of cavi, correct, fit or gibbs; got {name_type(result)}.")


def _log_prior(draws: Draws) -> np.ndarray:
    """The log prior density of each draw of the hyperparameters, (chains, draws); 0 without sampled ones."""
    total = np.zeros(draws.log_likelihood_trace.shape)
    parameters = with_priors(draws.model).parameters if draws.hyperparameters else []
    for parameter, values in zip(parameters, draws.hyperparameters.values(), strict=True):
        density = np.asarray(parameter.prior.log_prob(as_array(values)))
        total += density.reshape(*total.shape, -1).sum(axis=-1)
    return total


def _kept_draws(result: Result, f: np.ndarray, num_draws: int) -> np.ndarray:
    """The draws of each chain for which y is drawn: all, unless drawing needs slow numerical inversion."""
    chains, draws = f.shape[:2]
    support = result.likelihood.support(f.shape[-1])
    if result.likelihood.draws_exactly(f.shape[-1]) or all(
        piece.is_discrete and np.isfinite(piece.high).all() for piece in support.pieces(result.y)
    ):
        return np.arange(draws)
    return np.arange(0, draws, max(1, -(-chains * draws // num_draws)))
