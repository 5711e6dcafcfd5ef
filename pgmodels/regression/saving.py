"""Files of regression results: the engine's result, the formula and the columns of the data that it reads."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pandas as pd

from pgmodels.data.series import kind_of_column
from pgmodels.data.text_and_dates import DATE, DURATION, ZONED
from pgmodels.regression.formula import Regression, formula
from pgmodels.regression.grammar import parse_all
from pgmodels.regression.result import RegressionResult
from pgmodels.results.storage import faults_of, load, read_file, save_result
from pgmodels.runtime.atomic_io import decode
from pgmodels.runtime.x64 import double_precision

_ENTRY = "regression"


@double_precision
def save_formula(result: RegressionResult, path: str | PathLike[str]) -> Path:
    """Write the engine's result, the formula and the columns of the data to one file: see ``RegressionResult.save``.

    It has both names of a hyperparameter, in the model and in summaries.
    """
    regression = result.regression
    response, predictors = parse_all(regression.formula)
    names = {*response.names, *(name for parsed in predictors.values() for name in parsed.names)}
    stored = {
        "formula": tuple(regression.formula),
        "family": regression.family if isinstance(regression.family, str) else None,
        "link": regression.link,
        "weights": regression.weights,
        "names": {name: printed.name for name, printed in regression.names.items()},
        "columns": {name: _coded(regression.data[name]) for name in regression.data.columns if name in names},
        "priors": {
            term.prefix + name: tuple(value if np.isfinite(value) else None for value in prior)
            for term in regression.terms
            if term.coefficients is not None
            for name, prior in term.coefficients.priors.items()
        },
    }
    return save_result(result.result, path, **{_ENTRY: stored})


def load_formula(
    path: str | PathLike[str], *, context: Mapping[str, Any] | None = None, family: Any = None
) -> RegressionResult:
    """Load the result of a regression formula from a file written by its ``save``, with the same predictions.

    Parameters
    ----------
    path : str or path
        The file. It has the columns of the data that the formula reads.
    context : dict, optional
        The functions and kernels that the formula names, since files hold no code.
    family : Likelihood or likelihood family, optional
        The family, if it was not one by name.

    Returns
    -------
    RegressionResult

    Raises
    ------
    ValueError
        For a file of another kind, or without a family that it needs.
    """
    path = Path(path)
    document, arrays = read_file(path)
    if _ENTRY not in document:
        raise ValueError(f"{path} is not a result of a formula: load it with pgm.load.")
    with faults_of(path):
        stored = decode(document[_ENTRY], arrays)
        named, link, texts, weights = (stored[name] for name in ("family", "link", "formula", "weights"))
        frame = pd.DataFrame({name: _decoded(**column) for name, column in stored["columns"].items()})
        priors = {name: _prior(*values) for name, values in stored["priors"].items()}
    if named is None and family is None:
        raise ValueError(
            f"{path} has a likelihood that is not one by name: pass it, as in load_formula(path, family=)."
        )
    # The formula may need functions in context.
    with faults_of(path, unsuitable=ValueError):
        regression: Regression = formula(
            texts, frame, family=named or family, link=link, context=context, missing="predict", priors=priors,
            weights=weights,
        )  # fmt: skip
    result: Any = load(path, likelihood=regression.model.likelihood)
    with faults_of(path):
        if len(result.X) > len(regression.X) or result.X.shape[1] != regression.X.shape[1]:
            raise ValueError(f"X has the shape {result.X.shape}, and the columns of the data {regression.X.shape}")
    regression.model = result.model
    return RegressionResult(regression, result)


def _prior(mean: float, scale: float | None, freedom: float | None) -> Any:
    """The prior of a coefficient; it is flat without a scale, and normal without degrees of freedom."""
    if scale is None:
        return "flat"
    return dist.Normal(mean, scale) if freedom is None else dist.StudentT(freedom, mean, scale)


def _coded(column: pd.Series) -> dict[str, Any]:
    """A column as an array of numbers, and how to make the column of it."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return {"kind": "number", "array": column.to_numpy()}
    kind = kind_of_column(column)
    if kind in (DATE, ZONED, DURATION):
        zone, unit = None, column.dt.unit
        if kind == ZONED:
            zone, column = str(column.dt.tz), column.dt.tz_convert(None)
        stored = {"array": column.to_numpy().astype(np.int64), "unit": unit}
        return stored | ({"kind": "duration"} if kind == DURATION else {"kind": "date", "zone": zone})
    is_category = hasattr(column, "cat")
    entries = column if is_category else column.astype("category")
    levels = tuple(level.item() if isinstance(level, np.generic) else level for level in entries.cat.categories)
    if not all(isinstance(level, bool | int | float | str) for level in levels):
        raise ValueError(f"save: the levels of column {column.name!r} are neither text nor numbers; use pickle.")
    kind, ordered = "category" if is_category else "text", bool(entries.cat.ordered)
    return {"kind": kind, "array": entries.cat.codes.to_numpy(), "levels": levels, "ordered": ordered}


def _decoded(
    kind: str,
    array: np.ndarray,
    levels: tuple[Any, ...] = (),
    ordered: bool = False,
    unit: str = "",
    zone: str | None = None,
) -> Any:
    """The column of an array of numbers."""
    if kind == "number":
        return array
    if kind == "date":
        times = pd.Series(array.astype(f"datetime64[{unit}]"))
        return times if zone is None else times.dt.tz_localize("UTC").dt.tz_convert(zone)
    if kind == "duration":
        return array.astype(f"timedelta64[{unit}]")
    column = pd.Series(pd.Categorical.from_codes(array, [*levels], ordered))
    return column if kind == "category" else column.astype(object)
