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
from pgmodels.results.saving import faults_of, load, read_file
from pgmodels.runtime.atomic_io import read_arrays, write_arrays
from pgmodels.runtime.x64 import double_precision

_ENTRY = "regression"


@double_precision
def save(result: RegressionResult, path: str | PathLike[str]) -> Path:
    """See ``RegressionResult.save``; hyperparameters have both their names in the model and those of summaries."""
    regression = result.regression
    response, predictors = parse_all(regression.formula)
    names = {*response.names, *(name for parsed in predictors.values() for name in parsed.names)}
    coded = {name: _coded(regression.data[name]) for name in regression.data.columns if name in names}
    file: Path = result.result.save(path)
    document, arrays = read_arrays(file)
    arrays |= {f"{_ENTRY} {place}": array for place, (array, _) in enumerate(coded.values())}
    if regression.weights is not None:
        arrays[f"{_ENTRY} weights"] = regression.weights
    document[_ENTRY] = {
        "formula": regression.formula,
        "family": regression.family if isinstance(regression.family, str) else None,
        "link": regression.link,
        "columns": {name: how for name, (_, how) in coded.items()},
        "names": {name: printed.name for name, printed in regression.names.items()},
        "priors": {
            term.prefix + name: [value if np.isfinite(value) else None for value in prior]
            for term in regression.terms
            if term.coefficients is not None
            for name, prior in term.coefficients.priors.items()
        },
    }
    write_arrays(file, document, arrays)
    return file


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
        stored = document[_ENTRY]
        named, link, texts, columns = (stored[name] for name in ("family", "link", "formula", "columns"))
        coded = {name: _decoded(arrays[f"{_ENTRY} {place}"], how) for place, (name, how) in enumerate(columns.items())}
        frame = pd.DataFrame(coded)
        centres = stored.get("priors")
        priors = {name: _prior(*values) for name, values in (centres or {}).items()}
    if centres is None:
        raise ValueError(f"{path} was written by an earlier version, whose columns are not centred: fit it again.")
    if named is None and family is None:
        raise ValueError(
            f"{path} has a likelihood that is not one by name: pass it, as in load_formula(path, family=)."
        )
    # The formula may need functions in context.
    with faults_of(path, unsuitable=ValueError):
        regression: Regression = formula(
            texts, frame, family=named or family, link=link, context=context, missing="predict", priors=priors,
            weights=arrays.get(f"{_ENTRY} weights"),
        )  # fmt: skip
    result: Any = load(path, likelihood=regression.model.likelihood)
    with faults_of(path):
        if len(result.X) > len(regression.X) or result.X.shape[1] != regression.X.shape[1]:
            raise ValueError(f"X has the shape {result.X.shape}, and the columns of the data {regression.X.shape}")
    regression.model = result.model
    return RegressionResult(regression, result)


def _prior(mean: float, scale: float | None, freedom: float | None = None) -> Any:
    """The prior of a coefficient of a file; older files have no degrees of freedom."""
    if scale is None:
        return "flat"
    return dist.Normal(mean, scale) if freedom is None else dist.StudentT(freedom, mean, scale)


def _coded(column: pd.Series) -> tuple[np.ndarray, dict[str, Any]]:
    """A column as an array of numbers, and how to make the column of it."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(), {"kind": "number"}
    kind = kind_of_column(column)
    if kind in (DATE, ZONED, DURATION):
        how: dict[str, Any] = {"kind": "duration" if kind == DURATION else "date", "unit": column.dt.unit}
        if kind == ZONED:
            how["zone"] = str(column.dt.tz)
            column = column.dt.tz_convert(None)
        return column.to_numpy().astype(np.int64), how
    is_category = hasattr(column, "cat")
    entries = column if is_category else column.astype("category")
    levels = [level.item() if isinstance(level, np.generic) else level for level in entries.cat.categories]
    if not all(isinstance(level, bool | int | float | str) for level in levels):
        raise ValueError(f"save: the levels of column {column.name!r} are neither text nor numbers; use pickle.")
    how = {"kind": "category" if is_category else "text", "levels": levels}
    return entries.cat.codes.to_numpy(), how | {"ordered": bool(entries.cat.ordered)}


def _decoded(array: np.ndarray, how: dict[str, Any]) -> Any:
    if how["kind"] == "number":
        return array
    if how["kind"] == "date":
        times = pd.Series(array.astype(f"datetime64[{how['unit']}]"))
        return times.dt.tz_localize("UTC").dt.tz_convert(how["zone"]) if "zone" in how else times
    if how["kind"] == "duration":
        return array.astype(f"timedelta64[{how['unit']}]")
    column = pd.Series(pd.Categorical.from_codes(array, how["levels"], how["ordered"]))
    return column if how["kind"] == "category" else column.astype(object)
