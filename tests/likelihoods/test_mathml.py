"""Formulas as MathML and as text: nothing is lost, and what binds tighter stays together in both."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.explain import explain, explain_sections
from pgmodels.likelihoods.functions import exp, log, normal_cdf, prod, sigmoid, sum_
from pgmodels.likelihoods.likelihood import trace
from pgmodels.likelihoods.notation import (
    APART,
    bracketed,
    call,
    density,
    derivative,
    expectation,
    factors,
    fraction,
    indexed,
    integral,
    inverse_power,
    line,
    listed,
    over,
    raised,
    tree,
    words,
)
from pgmodels.likelihoods.printers.mathml import to_mathml
from pgmodels.likelihoods.printers.text import to_text
from pgmodels.likelihoods.symbols import Latent, Latents, Observation, ParameterSymbol
from tests.augmentation import test_explain
from tests.augmentation.test_random_formulas import CHUNKS, Grammar
from tests.registry import CASES


def typeset(formula):
    return ElementTree.fromstring(f"<div>{to_mathml(formula)}</div>")


def letters(text):
    """Letters and digits; what is drawn instead of written left out."""
    return [c for c in re.sub(r"sqrt\(|[ΣΠ]_", "", text) if c.isalnum()]


def check(formula):
    """Every symbol is there in its order, and every fraction, power and root is one."""
    element_tree, text = typeset(formula), to_text(formula)
    drawn = "".join(element_tree.itertext())
    assert letters(drawn) == letters(text), text
    count = {tag: len(element_tree.findall(f".//{tag}")) for tag in ("mfrac", "msup", "msubsup", "msqrt")}
    assert count["mfrac"] == text.count("/"), text
    assert count["msup"] + count["msubsup"] == text.count("^"), text
    assert count["msqrt"] == text.count("sqrt("), text
    assert not re.search(r"[\^/_]", drawn), text
    for element in element_tree.iter():
        children = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "munder": 2, "mover": 2, "msqrt": 1}
        assert len(element) == children.get(element.tag, len(element)), text
        # A number below or above is one element; an empty one is a formula that was lost.
        assert element.tag not in ("mi", "mn", "mo", "mtext") or element.text, text


def lines(augmentation):
    return [each.formula for section in explain_sections(augmentation, "a name") for each in section.lines]


@pytest.mark.parametrize("name", CASES)
def test_named_likelihoods_are_typeset(name):
    for written in lines(CASES[name].model().augmentation):
        check(written)


@pytest.mark.parametrize("name", test_explain.CASES)
def test_formulas_are_typeset(name):
    function, latents, parameters, _ = test_explain.CASES[name]
    formula = trace(function, latents, tuple((p, True, None) for p in parameters.split()))
    for written in lines(derive_formula(formula, latents)):
        check(written)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_formulas_are_typeset(chunk):
    rng = np.random.default_rng([2024, chunk])
    count = 0
    for _ in range(12):
        grammar = Grammar(rng)
        formula = grammar.formula()
        try:
            augmentation = derive_formula(formula, grammar.size)
        except NoAugmentationError:
            continue
        for written in lines(augmentation):
            check(written)
        count += 1
    assert count > 0


def test_many_classes_are_typeset():
    f = Latents(26)
    for written in lines(derive_formula(exp(-sum_(sigmoid(f))) * prod(sigmoid(-f)), 26)):
        check(written)


@pytest.mark.parametrize("name", ["rate", "mean", "where", "df", "du", "E", "log", "d", "x_1", "π", "αβ2", "sqrtt"])
def test_any_name_of_a_parameter_is_typeset(name):
    """Names that are words of derivations, functions or differentials too."""
    f, r = Latents(2), ParameterSymbol(name, True)
    for written in lines(derive_formula(exp(-r * sigmoid(f[0])) / (r + sigmoid(f[1])) ** r, 2)):
        assert letters("".join(typeset(written).itertext())) == letters(to_text(written))


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


Y, F, A, B = Observation(), Latent(0, 1), ParameterSymbol("a", True), ParameterSymbol("b", True)
SUM = sum_(Latents(3))


@pytest.mark.parametrize(
    ("written", "text", "expected"),
    [
        # Expressions
        (A / B * Y, "a y / b", "frac(a y, b)"),
        (A / (B * Y), "a / (b y)", "frac(a, b y)"),
        (A - Y / B, "a - y / b", "a − frac(y, b)"),
        (-A * Y / 2, "-a y / 2", "− frac(a y, 2)"),
        ((Y + 1) / 2, "(y + 1) / 2", "frac(y + 1, 2)"),
        (A * (B + Y), "a (b + y)", "a ( b + y )"),
        (0.5 + Y, "1/2 + y", "frac(1, 2) + y"),
        (A ** (B + Y) * Y, "a^(b + y) y", "sup(a, b + y) y"),
        ((Y**A) ** B, "(y^a)^b", "sup(( sup(y, a) ), b)"),
        (Y**2 / 2, "y^2 / 2", "frac(sup(y, 2), 2)"),
        (A ** (1 / (2 * (B + Y))), "a^(1 / (2 (b + y)))", "sup(a, frac(1, 2 ( b + y )))"),
        (1 / (1 + 1 / (1 + Y)), "1 / (1 + 1 / (1 + y))", "frac(1, 1 + frac(1, 1 + y))"),
        (SUM * Y, "y Σ_c f[c]", "y under(∑, c) sub(f, c)"),
        (SUM / 2, "(Σ_c f[c]) / 2", "frac(under(∑, c) sub(f, c), 2)"),
        (A / SUM, "a / Σ_c f[c]", "frac(a, under(∑, c) sub(f, c))"),
        (sigmoid(-F) ** Y, "σ(-f)^y", "sup(σ ( − f ), y)"),
        (A * (Y == 1) * Latents(3) ** 2, "a [y = 1] f[c]^2", "a [ y = 1 ] subsup(f, c, 2)"),
        (Y * log(normal_cdf(F)) / 2, "y log Φ(f) / 2", "frac(y log Φ ( f ), 2)"),
        ((Y**2 + A) ** 0.5 / B, "sqrt(y^2 + a) / b", "frac(sqrt(sup(y, 2) + a), b)"),
        (2 * abs(Y - abs(F)) / A, "2 |y - |f|| / a", "frac(2 | y − | f | |, a)"),
        # What derivations and rules put together
        (factors(fraction("a", "b"), "c"), "(a / b) c", "( frac(a, b) ) c"),
        (factors(line("a", "-", "b"), "c"), "(a - b) c", "( a − b ) c"),
        (factors(over("Σ", "c", "a"), "b"), "(Σ_c a) b", "( under(∑, c) a ) b"),
        (fraction(fraction("a", "b"), factors("c", "d")), "(a / b) / (c d)", "frac(frac(a, b), c d)"),
        (line("a", "-", line("b", "-", "c")), "a - (b - c)", "a − ( b − c )"),
        (line(A + Y, "·", Y - A), "(a + y) · (y - a)", "( a + y ) · ( y − a )"),
        (raised(factors("a", "b"), Y + 1), "(a b)^(y + 1)", "sup(( a b ), y + 1)"),
        (inverse_power(2, A + B), "2^-(a + b)", "sup(2, − ( a + b ))"),
        (inverse_power(indexed("K", "c")), "K[c]^-1", "subsup(K, c, − 1)"),
        (raised(indexed("ω3", 1), 2), "ω3[1]^2", "subsup(ω, 3 , 1, 2)"),
        (factors(expectation(indexed("k", "c")), "b"), "E[k[c]] b", "E [ sub(k, c) ] b"),
        (over("Σ", indexed("k", "c"), "B_i"), "Σ_{k[c]} B_i", "under(∑, sub(k, c)) sub(B, i)"),
        (integral(density("N", "u", F, 1), "u", 0, "∞"), "∫_0^∞ N(u; f, 1) du", "subsup(∫, 0, ∞) N ( u ; f , 1 ) d u"),
        (factors(2, integral(Y / A, indexed("ω", "c"))), "2 ∫ y / a dω[c]", "2 ∫ frac(y, a) d sub(ω, c)"),
        (line("w", "=", "-", factors(2, derivative("B", "s"))), "w = -2 ∂B/∂s", "w = − 2 frac(∂ B, ∂ s)"),
        (line("a", "=", 1, APART, "b", "=", 2), "a = 1,  b = 2", "a = 1 , b = 2"),
        (listed(0, "...", 25), "0, ..., 25", "0 , … , 25"),
        (bracketed(line("c", "=", "y"), "[]"), "[c = y]", "[ c = y ]"),
        (call("Gamma", 2, line(words("rate"), "rate")), "Gamma(2, rate rate)", "Gamma ( 2 , rate rate )"),
    ],
)
def test_what_binds_tighter(written, text, expected):
    assert to_text(tree(written)) == text
    assert re.sub(r" +", " ", shape(typeset(tree(written)))) == expected


def test_words_and_formulas_stand_apart():
    sentence = line(
        line(1, "-", "y"), words("is 0 or 1 (& <b>)"), words(", where"), indexed("f", 0), words("given"), "y"
    )
    text = "1 - y is 0 or 1 (& <b>), where f[0] given y"
    assert to_text(sentence) == text
    assert "is 0 or 1 (& <b>), where" in "".join(typeset(sentence).itertext())
    assert [element.tag for element in typeset(sentence)] == ["math", "math", "math"]
    reason = line("y", ">", 0, words("("), words("the exponent of"), "f", words(")"))
    assert to_text(reason) == "y > 0 (the exponent of f)"
    assert "(the exponent of" in "".join(typeset(reason).itertext())


def test_long_lines_may_break_at_relations_and_terms():
    terms = factors("a", "b", call("exp", "f"))
    short = typeset(line("h", "=", Y - 1))
    long = typeset(line(call("p", line("y", "|", "f")), "=", listed(*[terms] * 6, sign="+")))
    assert len(short.findall("math")) == 1
    assert len(long.findall("math")) > 6
    # What is broken apart reads as what it was.
    assert letters("".join(long.itertext())) == letters("pyf" + "abexpf" * 6)


def test_sections_are_what_is_printed():
    augmentation = CASES["logistic_softmax"].model().augmentation
    printed = re.sub(r"\s+", " ", explain(augmentation, "softmax"))
    for section in explain_sections(augmentation, "softmax"):
        assert section.title in printed
        for each in section.lines:
            assert re.sub(r"\s+", " ", each.text()) in printed
