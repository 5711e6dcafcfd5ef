"""The examples of docstrings run, and print what they show."""

import doctest
import inspect

import pytest

import pgmodels as pgm

DOCSTRINGS = {name: inspect.getdoc(getattr(pgm, name)) for name in pgm.__all__} | {
    f"{name}.{method}": inspect.getdoc(attribute)
    for name in pgm.__all__
    if inspect.isclass(getattr(pgm, name))
    for method, attribute in vars(getattr(pgm, name)).items()
    if not method.startswith("_") and (inspect.isfunction(attribute) or isinstance(attribute, property))
}
EXAMPLES = {name: text for name, text in DOCSTRINGS.items() if text and ">>>" in text}
# Without inference.
CHEAP = ("Fixed", "RBF", "stack_outputs")


def run(text, name):
    """What differs from what is shown."""
    differences = []
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=differences.append)
    return "".join(differences)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES]
)
def test_an_example_prints_what_it_shows(name):
    assert run(EXAMPLES[name], name) == ""


def test_an_example_that_shows_another_value_fails():
    shown = EXAMPLES["RBF"]
    assert "0.271" in run(shown.replace("0.271", "0.272"), "RBF")


def test_the_names_that_are_used_most_have_an_example():
    assert len(set(EXAMPLES) & set(pgm.__all__)) >= 40
    # Each begins with its imports, and shows a result.
    for name, text in EXAMPLES.items():
        examples = doctest.DocTestParser().get_examples(text)
        assert any("import pgmodels as pgm" in example.source for example in examples), name
        assert any(example.want for example in examples), name
