"""Formulas as text: what binds tighter stays together."""

import re

import numpy as np
import pytest
from matplotlib.mathtext import MathTextParser
from scipy.special import log_expit, logsumexp

import pgmodels as pgm
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.explain import explain, explain_latex, explain_sections
from pgmodels.augmentation.predictors import NoAugmentationError
from pgmodels.likelihoods.expression import Latent, Latents, Observation, ParameterSymbol
from pgmodels.likelihoods.likelihood import log_integral, trace
from pgmodels.likelihoods.operations import exp, log, normal_cdf, sigmoid, sum_
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
    to_latex,
    to_text,
    tree,
    words,
)
from tests.augmentation import test_explain
from tests.augmentation.test_derive import CHUNKS, Grammar
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


# Formulas as LaTeX: exact strings, balanced, complete, and readable by a parser of mathematics.


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (A / (B * Y), r"\frac{a}{b y}"),
        (-A * Y / 2, r"-\frac{a y}{2}"),
        (A * (B + Y), "a (b + y)"),
        (A ** (B + Y) * Y, "a^{b + y} y"),
        ((Y**A) ** B, "(y^{a})^{b}"),
        (1 / (1 + 1 / (1 + Y)), r"\frac{1}{1 + \frac{1}{1 + y}}"),
        (A * (1 + Y / B), r"a \left( 1 + \frac{y}{b} \right)"),
        (SUM / 2, r"\frac{\sum_{c} f_{c}}{2}"),
        (sigmoid(-F) ** Y, r"\sigma(-f)^{y}"),
        (A * (Y == 1) * Latents(3) ** 2, r"a \, [y = 1] f_{c}^{2}"),
        (Y * log(normal_cdf(F)) / 2, r"\frac{y \, \log \Phi(f)}{2}"),
        ((Y**2 + A) ** 0.5 / B, r"\frac{\sqrt{y^{2} + a}}{b}"),
        (abs(Y - F), r"\left| y - f \right|"),
        (1e-10 * Y, r"\mathrm{1e-10} y"),
        (ParameterSymbol("noise_scale", True) * F, r"\mathrm{noise\_scale} \, f"),
        (ParameterSymbol("λ", True) * exp(F), r"\lambda \, \exp(f)"),
        (factors(fraction("a", "b"), "c"), r"\left( \frac{a}{b} \right) c"),
        (raised(factors("a", "b"), Y + 1), "(a b)^{y + 1}"),
        (inverse_power(indexed("K", "c")), "K_{c}^{-1}"),
        (raised(indexed("ω3", 1), 2), r"\omega_{3,1}^{2}"),
        (call("σ̃₋", F), r"\tilde{\sigma}_{-}(f)"),
        (factors(expectation(indexed("k", "c")), "b"), r"\operatorname{E}[k_{c}] b"),
        (
            integral(density("N", "u", F, 1), "u2", 0, "∞"),
            r"\int_{0}^{\infty} \operatorname{N}(u; f, 1) \, \mathrm{d} u_{2}",
        ),
        (over("Σ", indexed("k", "c"), "B_i"), r"\sum_{k_{c}} B_{i}"),
        (line("w", "=", "-", factors(2, derivative("B", "s"))), r"w = -2 \frac{\partial B}{\partial s}"),
        (line("a", "≥", 1, APART, "b", "~", "c"), r"a \geq 1,\quad b \sim c"),
        (listed(0, "...", 25), r"0, \ldots, 25"),
        (line("y", "|", words("a_b is 5 % ("), "f", words(")")), r"y \mid \ \text{a\_b is 5 \% (}f\text{)}"),
        (call("KL", line("q", "‖", "p")), r"\operatorname{KL}(q \parallel p)"),
    ],
)
def test_exact_strings(written, expected):
    assert to_latex(tree(written)) == expected
    parse(expected)


def parse(text):
    """Read by matplotlib's parser of TeX, which raises ValueError at what it cannot read."""
    MathTextParser("path").parse(f"${text}$")


def letters(text):
    """Letters and digits; what is drawn instead of written left out."""
    return [c for c in re.sub(r"sqrt\(|[ΣΠ]_", "", text) if c.isalnum()]


DRAWN = {
    "alpha": "α", "beta": "β",
    "omega": "ω", "lambda": "λ", "mu": "μ", "sigma": "σ", "zeta": "ζ", "phi": "φ", "Phi": "Φ", "Gamma": "Γ", "pi": "π",
}  # fmt: skip
FUNCTIONS = ("exp", "log", "cosh", "tanh")


def drawn(text):
    """The letters and digits that LaTeX draws, in their order."""
    commands = re.compile(r"\\([A-Za-z]+)")
    text = commands.sub(lambda match: DRAWN.get(match[1], match[1] if match[1] in FUNCTIONS else ""), text)
    return [c for c in text if c.isalnum()]


def formulas(augmentation):
    return [each for section in explain_sections(augmentation, "a name") for each in section.lines]


@pytest.mark.parametrize("name", CASES)
def test_named_likelihoods_are_complete(name):
    check_complete(CASES[name].model().augmentation)


@pytest.mark.parametrize("name", test_explain.CASES)
def test_formulas_are_complete(name):
    function, latents, parameters, _ = test_explain.CASES[name]
    formula = trace(function, latents, tuple((p, True, None) for p in parameters.split()))
    check_complete(derive_formula(formula, latents))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_formulas_are_complete(chunk):
    rng = np.random.default_rng([2024, chunk])
    count = 0
    for _ in range(12):
        grammar = Grammar(rng)
        formula = grammar.formula()
        try:
            augmentation = derive_formula(formula, grammar.size)
        except NoAugmentationError:
            continue
        check_complete(augmentation)
        count += 1
    assert count > 0


@pytest.mark.parametrize("name", ["rate", "mean", "where", "df", "du", "E", "log", "d", "x_1", "π", "αβ2", "sqrtt"])
def test_any_name_of_a_parameter_is_complete(name):
    """Names that are words of derivations, functions or differentials too."""
    f, r = Latents(2), ParameterSymbol(name, True)
    check_complete(derive_formula(exp(-r * sigmoid(f[0])) / (r + sigmoid(f[1])) ** r, 2))


def check_complete(augmentation):
    """Every symbol is there in its order, every fraction and power is one, and brackets are closed."""
    for each in formulas(augmentation):
        text, latex = to_text(each.formula), to_latex(each.formula)
        assert drawn(latex) == letters(text), text
        assert latex.count(r"\frac") == text.count("/"), text
        assert latex.count("^{") == text.count("^"), text
        assert latex.count(r"\left") == latex.count(r"\right"), text
        assert balanced(latex), text


def balanced(text):
    """Whether every bracket of LaTeX's own is closed, and none before it is opened."""
    depth = np.cumsum([(c == "{") - (c == "}") for c in re.sub(r"\\[{}]", "", text)])
    return depth[-1] == 0 and depth.min() >= 0


@pytest.mark.parametrize(
    "name", ["probit", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "probit")]
)
def test_derivations_parse(name):
    for each in formulas(CASES[name].model().augmentation):
        parse(each.latex())


def test_a_derivation_is_one_environment():
    derivation = pgm.derive(pgm.NegativeBinomial(2.0))
    latex = derivation.to_latex()
    assert derivation._repr_latex_() == latex
    first, *rows, last = latex.splitlines()
    assert (first, last) == (r"\begin{align*}", r"\end{align*}")
    assert rows[0] == r"& \textbf{NegativeBinomial} \\"
    assert r"& \omega \mid f, y \sim \operatorname{PG}(y + \mathrm{dispersion}, f) \\" in rows
    assert all(row.startswith("& ") for row in rows)
    assert all(row.endswith(r" \\") for row in rows[:-1])
    assert not rows[-1].endswith("\\\\")


def test_names_are_escaped():
    formula = exp(-(F**2) * ParameterSymbol("a_b", True))
    assert r"& \textbf{50 \% \_x} \\" in explain_latex(derive_formula(formula, 1), "50 % _x")


# Weighted averages of densities over nodes.


def test_an_average_over_few_nodes():
    f = np.array([[-3.0, 0.5], [1.0, 2.0], [40.0, -0.7]])[:, :, None]
    y, log_weights = np.array([1.0, 0.0]), np.log([0.2, 0.5, 0.3])
    terms = log_expit((2.0 * y - 1.0) * f[:, :, 0])
    np.testing.assert_allclose(
        log_integral(pgm.Bernoulli(), y, f, log_weights), logsumexp(terms + log_weights[:, None], axis=0), rtol=1e-13
    )
    # Several values of y at the same nodes.
    both = log_integral(pgm.Bernoulli(), np.array([0.0, 1.0])[:, None, None] * np.ones((1, 1, 2)), f, log_weights)
    np.testing.assert_allclose(np.exp(both).sum(axis=0), 1.0, rtol=1e-13)
