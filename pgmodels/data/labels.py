"""Labels of classes: y of text, booleans or categories as codes 0, 1, ..., by one coding for new data too."""

from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers
from pgmodels.data.frames import listed
from pgmodels.data.text_and_dates import as_python, is_missing, kind_of_entries

Labels = tuple[Any, ...]
_BOOLEANS: Labels = (False, True)


def labels_of(y: Any, name: str, num_labels: int, rows: np.ndarray | None = None) -> Labels | None:
    """The labels of y (n,) in the order of their codes, sorted or as its categories are; None if it holds numbers.

    Text outside ``rows`` is no label. Raises ValueError if their number is not ``num_labels``.
    """
    entries, categories = _entries(y)
    if entries is None:
        return None
    if categories is None:
        present = entries if rows is None or len(rows) != len(entries) else entries[rows]
        kind, _ = kind_of_entries(present)
        texts = {entry for entry in present if isinstance(entry, str)}
        if kind == "number" and num_labels == 2 and all(is_missing(e) or isinstance(e, bool) for e in present):
            return _BOOLEANS
        if kind != "text" or len(texts) < sum(not is_missing(entry) for entry in set(present)):
            return None
        categories = tuple(sorted(texts))
    elif all(isinstance(level, int | float) and level in range(num_labels) for level in categories):
        return None
    if len(categories) != num_labels:
        raise ValueError(
            f"{name} has {len(categories)} label{'s' * (len(categories) != 1)}, {listed(categories)}, and the "
            f"likelihood takes {num_labels}: {_remedy(categories, num_labels)}"
        )
    return categories


def coded(y: Any, labels: Labels, name: str, rows: np.ndarray | None = None) -> np.ndarray:
    """The codes (n,) of y by the labels of the training data, NaN where it has none.

    Raises ValueError for an unknown label in ``rows``, by default all.
    """
    if labels == _BOOLEANS:
        return as_numbers(y, name)
    entries, _ = _entries(y, as_it_is=True)
    if entries is None:
        return as_numbers(y, name)
    codes = {label: float(code) for code, label in enumerate(labels)}
    for row, entry in enumerate(entries):
        if not (is_missing(entry) or entry in codes) and (rows is None or rows[row]):
            raise ValueError(
                f"{name} has {entry!r} in row {row}, which is not a label of the training y ({listed(labels)}): give "
                "labels, not their codes, and drop rows of others."
            )
    return np.array([codes.get(entry, np.nan) for entry in entries])


def _entries(y: Any, as_it_is: bool = False) -> tuple[np.ndarray | None, Labels | None]:
    """The entries (n,) of y and its categories; no entries if y is not one column of text, booleans or categories.

    ``as_it_is`` takes entries of every kind.
    """
    categories: Any = getattr(getattr(y, "dtype", None), "categories", None)
    if not isinstance(y, np.ndarray | list | tuple):
        import narwhals.stable.v2 as nw

        series = nw.from_native(y, series_only=True, pass_through=True)
        if isinstance(series, nw.Series):
            if isinstance(series.dtype, nw.Enum):
                categories = series.dtype.categories
            elif isinstance(series.dtype, nw.Categorical):
                categories = series.cat.get_categories().to_list()
            y = series.to_list()
    if y is None or isinstance(y, np.ma.MaskedArray) or hasattr(y, "tocsr"):
        return None, None
    try:
        array = np.asarray(y)
        array = np.asarray(y, dtype=object) if array.dtype.kind != "O" else array
        is_plain = np.asarray(y).dtype.kind in "iufcmM"
    except (TypeError, ValueError, RuntimeError):
        return None, None
    if array.ndim != 1 or (is_plain and categories is None and not as_it_is):
        return None, None
    entries = np.empty(len(array), dtype=object)
    entries[:] = [as_python(entry) for entry in array]
    return entries, None if categories is None else tuple(as_python(level) for level in categories)


def _remedy(categories: Labels, num_labels: int) -> str:
    if len(categories) > num_labels:
        return f"take one of {len(categories)} classes, such as pgm.Softmax({len(categories)}), or drop rows."
    example = [*categories, *(f"another {number}" for number in range(1, num_labels - len(categories) + 1))]
    other = "" if len(categories) < 2 else f", or take one of {len(categories)} classes"
    return f"give a categorical of all in their order, with the categories {example!r}{other}."
