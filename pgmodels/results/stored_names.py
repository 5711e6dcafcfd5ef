"""Names of classes and fields in saved files, which stay the same when the code's names change."""

# By the code's name. Names that are not listed are the same in files.
_CLASSES = {"Auto": "Cheapest", "ChunkedInducingPrior": "StreamedPrior", "FICPrior": "SparsePrior"}
_FIELDS = {"row_mask": "live", "truncation_error": "truncation"}
# Objectives that files name by the engine that maximised them.
_OBJECTIVES = {"cavi": "augmented", "gaussian_vi": "expected"}
_ENGINES = {name: stored for stored, name in _OBJECTIVES.items()}
_ATTRIBUTES = {stored: name for name, stored in _FIELDS.items()}


def stored_class(cls: type) -> str:
    """The name of a class in files."""
    return _CLASSES.get(cls.__name__, cls.__name__)


def stored_field(name: str) -> str:
    """The name of a field in files."""
    return _FIELDS.get(name, name)


def field_of(stored: str) -> str:
    """The name in the code of a field in a file."""
    return _ATTRIBUTES.get(stored, stored)


def objective_of(stored: str) -> str:
    """The name of an objective in a file."""
    return _OBJECTIVES.get(stored, stored)


def engine_of(objective: str) -> str:
    """The engine whose result a file holds corrected, by its objective."""
    return _ENGINES.get(objective, objective)
