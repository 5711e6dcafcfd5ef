"""Which slow tests `.ci/nightly --since` runs again: those whose imports changed after their last pass."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = "tests/numerics/test_quadrature.py"


@pytest.fixture
def nightly(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    import nightly

    yield nightly
    sys.modules.pop("nightly")


def test_closure_has_what_a_test_imports_and_the_modules_of_public_names(nightly):
    names = {str(path.relative_to(ROOT)) for path in nightly.closure(ROOT / FILE)}
    assert {FILE, "pgmodels/numerics/quadrature.py", "tests/conftest.py"} <= names
    assert str(nightly.public()["svi"].relative_to(ROOT)) == "pgmodels/inference/svi.py"
    assert str(nightly.public()["nuts"].relative_to(ROOT)) == "pgmodels/inference/nuts.py"


@pytest.mark.parametrize(
    ("changed", "failed", "commit", "current"),
    [
        ("README.md", "0", "abc", True),
        ("pgmodels/numerics/quadrature.py", "0", "abc", False),
        ("README.md", "test_a", "abc", False),
        ("README.md", "0", "abc+", False),
    ],
)
def test_is_current_by_what_changed_since_the_pass(nightly, monkeypatch, changed, failed, commit, current):
    monkeypatch.setattr(nightly, "git", lambda *arguments: changed if arguments[0] == "diff" else "")
    assert nightly.is_current({"file": FILE, "commit": commit, "failed": failed}, "abc") is current
