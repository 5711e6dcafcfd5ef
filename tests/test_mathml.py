"""Derivations as MathML: nothing is lost, and what binds tighter stays together."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.explain import explain, explain_sections
from pgmodels.augmentation.mathml import to_mathml
from pgmodels.augmentation.notation import plain, words
from pgmodels.language.functions import exp, prod, sigmoid, sum_
from pgmodels.language.likelihood import trace
from pgmodels.language.symbols import Latents, ParameterSymbol
from tests import test_explain
from tests.registry import CASES
from tests.test_random_formulas import CHUNKS, Grammar


def tree(line):
    return ElementTree.fromstring(f"<div>{to_mathml(line)}</div>")


def letters(text):
    """Letters and digits; what is drawn instead of written left out."""
    return [c for c in re.sub(r"sqrt\(|[ΣΠ]_", "", text) if c.isalnum()]


def check(line):
    """Every symbol is there in its order, every fraction, power and root is one, and no control character is left."""
    found, text = tree(line), plain(line)
    drawn = "".join(found.itertext())
    assert letters(drawn) == letters(text), text
    count = {tag: len(found.findall(f".//{tag}")) for tag in ("mfrac", "msup", "msubsup", "msqrt")}
    assert count["mfrac"] == text.count("/"), text
    assert count["msup"] + count["msubsup"] == text.count("^"), text
    assert count["msqrt"] == text.count("sqrt("), text
    assert not re.search(r"[\x00-\x1f^/_]", drawn), text
    for element in found.iter():
        children = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "munder": 2, "mover": 2, "msqrt": 1}
        assert len(element) == children.get(element.tag, len(element)), text
        # A number below or above is one element; an empty one is a formula that was lost.
        assert element.tag not in ("mi", "mn", "mo", "mtext") or element.text, text


def lines(augmentation, name="a name"):
    return [line for section in explain_sections(augmentation, name) for line in section.lines]


@pytest.mark.parametrize("name", CASES)
def test_named_likelihoods_are_typeset(name):
    for line in lines(CASES[name].model().augmentation):
        check(line)


@pytest.mark.parametrize("name", test_explain.CASES)
def test_formulas_are_typeset(name):
    function, latents, parameters, _ = test_explain.CASES[name]
    formula = trace(function, latents, tuple((p, True) for p in parameters.split()))
    for line in lines(derive_formula(formula, latents)):
        check(line)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_formulas_are_typeset(chunk):
    rng = np.random.default_rng([2024, chunk])
    typeset = 0
    for _ in range(12):
        grammar = Grammar(rng)
        formula = grammar.formula()
        try:
            augmentation = derive_formula(formula, grammar.size)
        except NoAugmentationError:
            continue
        for line in lines(augmentation):
            check(line)
        typeset += 1
    assert typeset > 0


def test_many_classes_are_typeset():
    f = Latents(26)
    for line in lines(derive_formula(exp(-sum_(sigmoid(f))) * prod(sigmoid(-f)), 26)):
        check(line)


@pytest.mark.parametrize("name", ["rate", "mean", "where", "df", "du", "E", "log", "d", "x_1", "π", "αβ2", "sqrtt"])
def test_any_name_of_a_parameter_is_typeset(name):
    """Names that are words of derivations, functions or differentials too."""
    f, r = Latents(2), ParameterSymbol(name, True)
    for line in lines(derive_formula(exp(-r * sigmoid(f[0])) / (r + sigmoid(f[1])) ** r, 2)):
        found, text = tree(line), plain(line)
        assert letters("".join(found.itertext())) == letters(text), text


def shape(element):
    """MathML as nested words, without the signs that show nothing."""
    inside = [part for part in map(shape, element) if part]
    if element.tag in ("mi", "mn", "mo", "mtext"):
        return re.sub("[\u2061\u2062\u00a0]", "", element.text)
    if element.tag in ("mspace", "wbr"):
        return ""
    if element.tag in ("mrow", "div", "math"):
        return " ".join(inside)
    return f"{element.tag.removeprefix('m')}({', '.join(inside)})"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a / b c", "frac(a, b) c"),
        ("a b / c", "frac(a b, c)"),
        ("a / (b c)", "frac(a, b c)"),
        ("a / b / c", "frac(frac(a, b), c)"),
        ("a - b / c + d", "a − frac(b, c) + d"),
        ("-a b / 2", "− frac(a b, 2)"),
        ("(a + b) / 2 c", "frac(a + b, 2) c"),
        ("a (b + c)", "a ( b + c )"),
        ("2^-(a + b)", "sup(2, − ( a + b ))"),
        ("2^(a + b) c", "sup(2, a + b) c"),
        ("2^-y^2", "sup(2, − sup(y, 2))"),
        ("(y^a)^b", "sup(( sup(y, a) ), b)"),
        ("x^2 / 2", "frac(sup(x, 2), 2)"),
        ("(x / 2)^2", "sup(( frac(x, 2) ), 2)"),
        ("1/2 + k", "frac(1, 2) + k"),
        ("-2 ∂B/∂s", "− 2 frac(∂ B, ∂ s)"),
        ("a^(1 / (2 (b + c)))", "sup(a, frac(1, 2 ( b + c )))"),
        ("1 / (1 + 1 / (1 + x))", "frac(1, 1 + frac(1, 1 + x))"),
        ("1 / Σ_c a f[c]", "frac(1, under(∑, c) a sub(f, c))"),
        ("(Σ_c f[c]) / 2", "frac(under(∑, c) sub(f, c), 2)"),
        ("Σ_{k[c]} k[c]", "under(∑, sub(k, c)) sub(k, c)"),
        ("σ(f)^y", "sup(σ ( f ), y)"),
        ("f[y] [y = c] k[c]^2", "sub(f, y) [ y = c ] subsup(k, c, 2)"),
        ("σ(-f[c])^k[c]", "sup(σ ( − sub(f, c) ), sub(k, c))"),
        ("K[c]^-1 μ", "subsup(K, c, − 1) μ"),
        ("ω3[1]^2 u2", "subsup(ω, 3 , 1, 2) sub(u, 2)"),
        ("E[k[c]] b", "E [ sub(k, c) ] b"),
        ("log σ̃₊(f) / 2", "frac(log sub(over(σ, ~), +) ( f ), 2)"),
        ("sqrt(m^2 + v) / s", "frac(sqrt(sup(m, 2) + v), s)"),
        ("2 |y - |f|| / s", "frac(2 | y − | f | |, s)"),
        ("|-f| |g| | y", "| − f | | g | ∣ y"),
        ("∫_0^∞ N(u; f, 1) du", "subsup(∫, 0, ∞) N ( u ; f , 1 ) d u"),
        ("2 ∫ ω^a df / 2 dω[c]", "2 ∫ frac(sup(ω, a) df, 2) d sub(ω, c)"),
        ("u | f ~ N(f, 1)", "u ∣ f ∼ N ( f , 1 )"),
        (f"Gamma(2, {words('rate')} rate + 1e-05)", "Gamma ( 2 , rate rate + 1e-05 )"),
    ],
)
def test_what_binds_tighter(line, expected):
    assert re.sub(r" +", " ", shape(tree(line))) == expected


@pytest.mark.parametrize("line", ["f^", "(a", "a)", "a / ", "a . b", "∫", "[y = c"])
def test_what_is_no_formula_is_told(line):
    with pytest.raises(ValueError, match="formula"):
        to_mathml(line)


def test_words_and_formulas_stand_apart():
    line = f"1 - y {words('is 0 or 1 (& <b>)')} {words(', where')} f[0] {words('given')} y"
    text = "".join(tree(line).itertext())
    assert "is 0 or 1 (& <b>), where" in text
    assert [element.tag for element in tree(line)] == ["math", "math", "math"]
    assert plain(line) == "1 - y is 0 or 1 (& <b>) , where f[0] given y"


def test_long_lines_may_break_at_relations_and_terms():
    short, long = (tree(line) for line in ("h = y - 1", "p(y | f) = " + " + ".join(["a b exp(f)"] * 6)))
    assert len(short.findall("math")) == 1
    assert len(long.findall("math")) > 6
    # What is broken apart reads as what it was.
    assert letters("".join(long.itertext())) == letters("pyf" + "abexpf" * 6)


def test_sections_are_what_is_printed():
    augmentation = CASES["logistic_softmax"].model().augmentation
    printed = re.sub(r"\s+", " ", explain(augmentation, "softmax"))
    for section in explain_sections(augmentation, "softmax"):
        assert section.title in printed
        for line in section.lines:
            assert re.sub(r"\s+", " ", plain(line)) in printed
