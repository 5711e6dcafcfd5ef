"""Data sources of svi: arrays, or rows that are read again in every epoch."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from pgmodels.data.frames import Column, Columns
from pgmodels.data.missing import MissingChoice, check_missing
from pgmodels.data.sources.array import ArrayRows
from pgmodels.data.sources.rows import Block, Rows, Scaling
from pgmodels.data.sources.stream import batches, stacked_batches
from pgmodels.data.sources.survey import survey
from pgmodels.inference.row_check import RowCheck
from pgmodels.inference.stochastic.convergence import Settings, Stream
from pgmodels.model import Data, Model
from pgmodels.objectives.base import Objective


class Source(NamedTuple):
    """A data source: the rows, their number, the standardisation and names of their inputs, and a digest.

    The digest is empty if all rows are in memory.
    """

    rows: Rows
    num_rows: int
    scaling: Scaling
    columns: Columns | None
    digest: str


class _WeightedRows(ArrayRows):
    """Rows of arrays with their weights."""

    def __init__(self, data: Data):
        super().__init__(data.X, data.y)
        self.weights = data.row_weights

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """See Rows."""
        for rows in self.slices(rng):
            yield self.X[rows], self.y[rows], self.weights[rows]


def paired(X: Any, y: Any) -> tuple[Any, Any]:
    """X and y, which may be passed as a pair. Raises ValueError if y is missing."""
    if y is not None or isinstance(X, Rows):
        return X, y
    if isinstance(X, tuple) and len(X) == 2:
        return X
    raise ValueError(
        f"y is missing, and X, of type {type(X).__name__}, has none: give X and y, or rows that have both, "
        "pgm.ArrayRows(X, y), pgm.ParquetRows(files, target) or pgm.IterableRows(pairs), of pairs (X, y)."
    )


def source_of(
    model: Model,
    X: Any,
    y: Any,
    weights: Any,
    missing: MissingChoice,
    train_hyperparameters: bool,
    objective: Objective,
    seed: int,
) -> tuple[Model, Data, Source]:
    """The model, the checked data or a sample of the rows, and the source of batches."""
    if isinstance(X, Rows):
        _check_rows(y, weights, missing)
    _require_inducing(
        model,
        {
            "rows that are not in memory": isinstance(X, Rows),
            "train_hyperparameters=True": train_hyperparameters,
            f"objective={objective.name!r}": not objective.is_monotone,
        },
    )
    if not isinstance(X, Rows):
        model, data = model.prepare(X, y, weights, missing)
        unscaled = Scaling(np.zeros(data.X.shape[1]), np.ones(data.X.shape[1]))
        rows = ArrayRows(data.X, data.y) if data.weights is None else _WeightedRows(data)
        return model, data, Source(rows, len(data.X), unscaled, data.columns, "")
    columns = None if X.columns is None else tuple(map(Column, X.columns))
    model = model.numbered(columns)
    check = RowCheck(model)
    surveyed = survey(X, check, seed)
    model.warn_unseen(check.unseen)
    indexed = sorted(set().union(*(gp.kernel.indexes(surveyed.X.shape[1]) for gp in model.gps)))
    if X.standardise and indexed:
        raise ValueError(
            f"standardise=True would change column {indexed[0]} of X, whose values are numbers of outputs: standardise "
            "the other columns beforehand, and leave it out."
        )
    source = Source(X, surveyed.num_rows, surveyed.scaling, columns, surveyed.digest)
    return model, Data(surveyed.X, surveyed.y, columns), source


def shuffled(source: Source, settings: Settings, key: Any) -> Stream:
    """Stacks of batches, one per window, in a new order every epoch; one batch if it has all rows."""
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()

    def stream(first: int) -> Iterator[Block]:
        every = batches(source.rows, source.scaling, source.num_rows, settings.batch_size, seed, first)
        return stacked_batches(every, settings.window if settings.batch_size < source.num_rows else 1)

    return stream


def _check_rows(y: Any, weights: Any, missing: Any) -> None:
    check_missing(missing)
    if missing != "raise":
        raise ValueError(f"missing={missing!r} needs an array X; {Rows.__name__} must have a y in each row.")
    extra = [name for name, value in (("y", y), ("weights", weights)) if value is not None]
    if extra:
        raise ValueError(f"{extra[0]} needs an array X: {Rows.__name__} have their own y, and no weights.")


def _require_inducing(model: Model, reasons: Mapping[str, bool]) -> None:
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    for gp in model.gps:
        if reason is not None and not gp.form.num_inputs:
            raise ValueError(
                f"svi with {reason} needs GPs with inducing inputs; got {gp!r}. Use "
                "pgm.GP(kernel, form=pgm.Inducing(300))."
            )
