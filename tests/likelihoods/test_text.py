"""Formulas as text: what binds tighter stays together."""

import re

import pytest

from pgmodels.augmentation.explain import explain, explain_sections
from pgmodels.likelihoods.expression import Latent, Latents, Observation, ParameterSymbol
from pgmodels.likelihoods.operations import log, normal_cdf, sigmoid, sum_
from pgmodels.likelihoods.printing import (
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
    to_text,
    tree,
    words,
)
from tests.registry import CASES

Y, F, A, B = Observation(), Latent(0, 1), ParameterSymbol("a", True), ParameterSymbol("b", True)
SUM = sum_(Latents(3))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        # Expressions
        (A / B * Y, "a y / b"),
        (A / (B * Y), "a / (b y)"),
        (A - Y / B, "a - y / b"),
        (-A * Y / 2, "-a y / 2"),
        ((Y + 1) / 2, "(y + 1) / 2"),
        (A * (B + Y), "a (b + y)"),
        (0.5 + Y, "1/2 + y"),
        (A ** (B + Y) * Y, "a^(b + y) y"),
        ((Y**A) ** B, "(y^a)^b"),
        (Y**2 / 2, "y^2 / 2"),
        (A ** (1 / (2 * (B + Y))), "a^(1 / (2 (b + y)))"),
        (1 / (1 + 1 / (1 + Y)), "1 / (1 + 1 / (1 + y))"),
        (SUM * Y, "y Σ_c f[c]"),
        (SUM / 2, "(Σ_c f[c]) / 2"),
        (A / SUM, "a / Σ_c f[c]"),
        (sigmoid(-F) ** Y, "σ(-f)^y"),
        (A * (Y == 1) * Latents(3) ** 2, "a [y = 1] f[c]^2"),
        (Y * log(normal_cdf(F)) / 2, "y log Φ(f) / 2"),
        ((Y**2 + A) ** 0.5 / B, "sqrt(y^2 + a) / b"),
        (2 * abs(Y - abs(F)) / A, "2 |y - |f|| / a"),
        # What derivations and rules put together
        (factors(fraction("a", "b"), "c"), "(a / b) c"),
        (factors(line("a", "-", "b"), "c"), "(a - b) c"),
        (factors(over("Σ", "c", "a"), "b"), "(Σ_c a) b"),
        (fraction(fraction("a", "b"), factors("c", "d")), "(a / b) / (c d)"),
        (line("a", "-", line("b", "-", "c")), "a - (b - c)"),
        (line(A + Y, "·", Y - A), "(a + y) · (y - a)"),
        (raised(factors("a", "b"), Y + 1), "(a b)^(y + 1)"),
        (inverse_power(2, A + B), "2^-(a + b)"),
        (inverse_power(indexed("K", "c")), "K[c]^-1"),
        (raised(indexed("ω3", 1), 2), "ω3[1]^2"),
        (factors(expectation(indexed("k", "c")), "b"), "E[k[c]] b"),
        (over("Σ", indexed("k", "c"), "B_i"), "Σ_{k[c]} B_i"),
        (integral(density("N", "u", F, 1), "u", 0, "∞"), "∫_0^∞ N(u; f, 1) du"),
        (factors(2, integral(Y / A, indexed("ω", "c"))), "2 ∫ y / a dω[c]"),
        (line("w", "=", "-", factors(2, derivative("B", "s"))), "w = -2 ∂B/∂s"),
        (line("a", "=", 1, APART, "b", "=", 2), "a = 1,  b = 2"),
        (listed(0, "...", 25), "0, ..., 25"),
        (bracketed(line("c", "=", "y"), "[]"), "[c = y]"),
        (call("Gamma", 2, line(words("rate"), "rate")), "Gamma(2, rate rate)"),
    ],
)
def test_what_binds_tighter(written, text):
    assert to_text(tree(written)) == text


def test_words_and_formulas_stand_apart():
    sentence = line(
        line(1, "-", "y"), words("is 0 or 1 (& <b>)"), words(", where"), indexed("f", 0), words("given"), "y"
    )
    assert to_text(sentence) == "1 - y is 0 or 1 (& <b>), where f[0] given y"
    reason = line("y", ">", 0, words("("), words("the exponent of"), "f", words(")"))
    assert to_text(reason) == "y > 0 (the exponent of f)"


def test_sections_are_what_is_printed():
    augmentation = CASES["logistic_softmax"].model().augmentation
    printed = re.sub(r"\s+", " ", explain(augmentation, "softmax"))
    for section in explain_sections(augmentation, "softmax"):
        assert section.title in printed
        for each in section.lines:
            assert re.sub(r"\s+", " ", each.text()) in printed
