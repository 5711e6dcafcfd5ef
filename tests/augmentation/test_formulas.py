import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_expit, log_ndtr, ndtr
from scipy.special import gamma as gamma_function

from pgmodels.likelihoods.expression import Constant, Environment, Latent, Latents, Observation, ParameterSymbol
from pgmodels.likelihoods.operations import (
    absolute,
    exp,
    gamma,
    log,
    multiply,
    normal_cdf,
    normal_pdf,
    positions,
    power,
    prod,
    sigmoid,
    sqrt,
    sum_,
)

F, Y, R = Latent(0, 1), Observation(), ParameterSymbol("r", positive=True)
F3 = Latents(3)
PARAMETERS = {"r": 1.7}
POINTS = np.array([-40.0, -6.3, -0.7, 0.0, 0.4, 5.2, 40.0])
COUNTS = np.array([0.0, 1.0, 2.0, 3.0, 1.0, 0.0, 2.0])


def value(expression, y=COUNTS, f=POINTS[:, None], logarithm=False):
    with jax.enable_x64(True):
        env = Environment(np.asarray(y), np.asarray(f), PARAMETERS)
        result = expression.log_evaluate(env) if logarithm else expression.evaluate(env)
        return np.broadcast_to(np.asarray(result)[..., 0], np.shape(f)[:-1])


SCALARS = {
    "sigmoid": (sigmoid(2 * F - 1), lambda f, y: expit(2 * f - 1)),
    "complement": (sigmoid(-F) ** (Y + 1), lambda f, y: expit(-f) ** (y + 1)),
    "exp": (exp(-0.3 * F), lambda f, y: np.exp(-0.3 * f)),
    "log": (log(1 + F**2), lambda f, y: np.log(1 + f**2)),
    "abs": (absolute(F - Y), lambda f, y: np.abs(f - y)),
    "abs builtin": (abs(F - Y), lambda f, y: np.abs(f - y)),
    "sqrt": (sqrt(1 + F**2), lambda f, y: np.sqrt(1 + f**2)),
    "normal_cdf": (normal_cdf(F / 3), lambda f, y: ndtr(f / 3)),
    "normal_pdf": (
        normal_pdf(Y, F, R),
        lambda f, y: np.exp(-0.5 * ((y - f) / 1.7) ** 2) / (1.7 * math.sqrt(2 * math.pi)),
    ),
    "gamma": (gamma(Y + 1.5), lambda f, y: gamma_function(y + 1.5)),
    "quotient": (1 / (2 + F**2), lambda f, y: 1 / (2 + f**2)),
    "subtraction": (3 - F - Y, lambda f, y: 3 - f - y),
    "power of a number": (2.0**F, lambda f, y: 2.0**f),
    "indicator": ((Y == 1) + 2 * (Y > 1) + 4 * (Y <= 0) + 8 * (Y != 2), lambda f, y: INDICATORS[y.astype(int)]),
    "reversed comparison": ((Y < 2) * (Y >= 1), lambda f, y: (y == 1.0) * 1.0),
}
# 4 + 8, 1 + 8, 2 and 2 + 8 at y = 0, 1, 2, 3.
INDICATORS = np.array([12.0, 9.0, 2.0, 10.0])


@pytest.mark.parametrize("name", SCALARS)
def test_evaluates_as_numpy_does(name):
    expression, reference = SCALARS[name]
    # A few operations' rounding.
    np.testing.assert_allclose(value(expression), reference(POINTS, COUNTS), rtol=1e-13, atol=1e-300)


LOGARITHMS = {
    "sigmoid": (sigmoid(3 * F), lambda f, y: log_expit(3 * f)),
    "power": (sigmoid(-F) ** Y, lambda f, y: y * log_expit(-f)),
    "probit": (normal_cdf(F), lambda f, y: log_ndtr(f)),
    "product": (sigmoid(F) * exp(-(F**2)), lambda f, y: log_expit(f) - f**2),
    "sum": (sigmoid(F) + 2 * sigmoid(2 * F), lambda f, y: np.logaddexp(log_expit(f), np.log(2) + log_expit(2 * f))),
    "softplus": (1 + exp(20 * F), lambda f, y: np.logaddexp(0, 20 * f)),
    "gaussian": (exp(-20 * (F - Y) ** 2), lambda f, y: -20 * (f - y) ** 2),
    "even power": ((F - 0.3) ** 2, lambda f, y: 2 * np.log(np.abs(f - 0.3))),
    "reciprocal": (1 / (1 + exp(-20 * F)), lambda f, y: log_expit(20 * f)),
    "gamma": (gamma(Y + 200.0), lambda f, y: np.array([math.lgamma(c + 200) for c in y])),
}


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_neither_overflow_nor_cancel(name):
    expression, reference = LOGARITHMS[name]
    # Logarithms near 0 are exact to the rounding of 1.
    np.testing.assert_allclose(value(expression, logarithm=True), reference(POINTS, COUNTS), rtol=1e-12, atol=1e-15)


def test_vectors_over_the_latents():
    f = np.array([[-40.0, 0.4, 2.0], [1.0, -3.0, 40.0]])
    y = np.array([2.0, 0.0])
    chosen = f[[0, 1], [2, 0]]
    softmax = sigmoid(F3[Y]) / sum_(sigmoid(F3))
    expected = log_expit(chosen) - np.log(expit(f).sum(axis=1))
    np.testing.assert_allclose(value(softmax, y, f, logarithm=True), expected, rtol=1e-13)
    np.testing.assert_allclose(value(softmax, y, f), np.exp(expected), rtol=1e-13)
    np.testing.assert_allclose(value(F3[Y], y, f), chosen)
    np.testing.assert_allclose(value(F3[-1], y, f), f[:, 2])
    weighted = sum_((positions(F3) + 1) * F3)
    np.testing.assert_allclose(value(weighted, y, f), f @ [1, 2, 3])
    stick = prod(sigmoid(F3) ** (positions(F3) == Y) * sigmoid(-F3) ** (positions(F3) < Y))
    expected = [log_expit(-f[0, :2]).sum() + log_expit(f[0, 2]), log_expit(f[1, 0])]
    np.testing.assert_allclose(value(stick, y, f, logarithm=True), expected, rtol=1e-13)


def test_reduces_python_sequences_and_iterates_over_latents():
    f = np.array([[-1.0, 0.4, 2.0]])
    np.testing.assert_allclose(value(sum_(latent**2 for latent in F3), [0.0], f), [5.16])
    np.testing.assert_allclose(value(prod([F3[0], F3[1], 3]), [0.0], f), [-1.2])
    assert len(F3) == 3
    assert len(F) == 1
    assert sum_(F).key == F.key


def test_reads_columns_of_y():
    y = np.array([[3.0, 0.5], [1.0, -0.2]])
    f = np.array([[0.7], [-1.1]])
    np.testing.assert_allclose(value(Y[0] * sigmoid(F + Y[1]), y, f), y[:, 0] * expit(f[:, 0] + y[:, 1]))


def test_broadcasts_over_leading_axes():
    f = np.random.default_rng(0).normal(0.3, 2.0, (5, 7, 1))
    with jax.enable_x64(True):
        rows = (sigmoid(F) ** Y).evaluate(Environment(COUNTS, f, {}))[..., 0]
    np.testing.assert_allclose(rows, expit(f[..., 0]) ** COUNTS, rtol=1e-13)


def test_zero_to_the_power_zero_switches_a_factor_off():
    assert value((F - 0.4) ** Y, y=np.zeros(7))[4] == 1.0
    assert value((Y == 5) ** (Y == 7), logarithm=True).tolist() == [0.0] * 7


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (sigmoid(2 * F - 1) ** Y * sigmoid(1 - 2 * F) ** (1 - Y), "σ(2 f - 1)^y σ(1 - 2 f)^(1 - y)"),
        (sigmoid(F3[Y]) / sum_(sigmoid(F3)), "σ(f[y]) / Σ_c σ(f[c])"),
        (normal_pdf(Y, F, R), "exp(-(y - f)^2 / (2 r^2)) / (sqrt(2 π) r)"),
        (-(F + Y), "-(f + y)"),
        (exp(-abs(Y[1] - F)), "exp(-|y[1] - f|)"),
        (sqrt(F**2 + 1) * 0.5, "sqrt(f^2 + 1) / 2"),
        (normal_cdf(F) ** (Y == 1), "Φ(f)^[y = 1]"),
        (prod(sigmoid(F3) ** (positions(F3) <= Y)), "Π_c σ(f[c])^[c ≤ y]"),
        (F3[2] - 1, "f[2] - 1"),
        (1 / (R * (1 + F**2)), "1 / (r (1 + f^2))"),
    ],
)
def test_prints_infix(expression, text):
    assert expression.text() == text
    assert str(expression) == repr(expression) == text


def test_branching_is_refused():
    for branch in (lambda: bool(Y == 1), lambda: F if Y > 0 else -F, lambda: 0 < Y < 2, lambda: max(F, 0)):
        with pytest.raises((TypeError, ValueError), match=r"branches on|compares latent"):
            branch()


def test_comparing_latents_is_refused():
    with pytest.raises(ValueError, match="compares latent values"):
        F > 0  # noqa: B015


@pytest.mark.parametrize("position", [3, -4])
def test_an_index_out_of_range_says_how_many_latents_are_needed(position):
    with pytest.raises(ValueError, match=r"has 3 latent GPs: give it a GP with size=4"):
        F3[position]


@pytest.mark.parametrize("position", [True, 0.5, "a", slice(None)])
def test_an_index_is_a_whole_number(position):
    with pytest.raises(ValueError, match="an index is a whole number"):
        F3[position]


def test_bad_indices():
    with pytest.raises(ValueError, match="function of y alone"):
        F3[F3[0]]
    with pytest.raises(ValueError, match="cannot be indexed again"):
        F3[0][0]
    with pytest.raises(ValueError, match="cannot be indexed again"):
        Y[0][1]
    with pytest.raises(ValueError, match="whole number >= 0"):
        Y[-1]
    with pytest.raises(ValueError, match="the vector of latents"):
        positions(F3[0])
    assert F[0].key == F.key


@pytest.mark.parametrize("strange", ["a", None, np.ones(3), True])
def test_strange_operands_are_refused(strange):
    with pytest.raises(TypeError, match="a formula contains"):
        sigmoid(strange)


def test_numbers_must_be_finite():
    with pytest.raises(ValueError, match="must be finite"):
        F + math.inf
    with pytest.raises(ValueError, match="divides by zero"):
        F / 0


def test_numpy_and_jax_scalars_are_numbers():
    assert (F + np.float32(0.5)).key == (F + jnp.array(0.5)).key == (F + 0.5).key


def test_equal_formulas_are_equal_keys():
    def build():
        return sigmoid(2 * F - 1) ** Y * sigmoid(-F) ** R

    assert build().key == build().key
    assert hash(build()) == hash(build())
    different = [F, Y, R, 2 * F, F + 1, sigmoid(F), exp(F), F**2, F3[0], F3[1], F3[Y], Y == 1, Y < 1, Y <= 1]
    assert len({expression.key for expression in different}) == len(different)
    assert len({expression.key for expression in (Latent(0, 1), Latent(0, 2), Y[0], Y[1], Y)}) == 5


@pytest.mark.parametrize(
    ("written", "simplified"),
    [
        (F + F, 2 * F),
        (F - F, Constant(0)),
        (F * F, F**2),
        (F / F, Constant(1)),
        ((F**2) ** 3, F**6),
        (2 * (F + 1), 2 * F + 2),
        (sigmoid(F) ** Y * sigmoid(F), sigmoid(F) ** (Y + 1)),
        (exp(F) ** R, exp(R * F)),
        (multiply(F, 0), Constant(0)),
        (power(R * sigmoid(F), 0.5), sqrt(R) * sqrt(sigmoid(F))),
        (+F, F),
    ],
)
def test_simplifies(written, simplified):
    assert written.key == simplified.key


def test_roots_of_even_powers_stay():
    # (f^2)^(1/2) is |f|, not f; (-f)^(1/2) of a positive product is not a product of roots.
    np.testing.assert_allclose(value(sqrt(F**2)), np.abs(POINTS))
    negative = POINTS[:3, None]
    np.testing.assert_allclose(value(sqrt(-2 * F), COUNTS[:3], negative), np.sqrt(-2 * negative[:, 0]), rtol=1e-14)


LEAVES = {"f": F, "y": Y, "r": R}


def random_tree(rng, depth):
    """A random expression tree as nested tuples, with leaves of either sign."""
    if depth == 0 or rng.random() < 0.15:
        return str(rng.choice(["f", "y", "r"])) if rng.random() < 0.6 else float(rng.choice([-2, -1, -0.5, 0, 1, 2, 3]))
    kind = rng.choice(["add", "subtract", "multiply", "divide", "power", "sigmoid", "exp", "sqrt", "abs", "negate"])
    count = 2 if kind in ("add", "subtract", "multiply", "divide") else 1
    tree = (str(kind), *(random_tree(rng, depth - 1) for _ in range(count)))
    return (*tree, float(rng.choice([-2, -1, 0.5, 2, 3]))) if kind == "power" else tree


def interpret(tree, leaves, functions):
    """Evaluate a tree with the operators of Python, over numbers or symbols."""
    if isinstance(tree, str):
        return leaves[tree]
    if isinstance(tree, float):
        return tree
    kind, *arguments = tree
    a, *rest = (interpret(argument, leaves, functions) for argument in arguments)
    b = rest[0] if rest else None
    operators = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "multiply": lambda: a * b,
        "divide": lambda: a / b,
        "power": lambda: a**b,
        "negate": lambda: -a,
    }
    result = operators[kind]() if kind in operators else functions[kind](a)
    if isinstance(result, complex):
        raise ValueError("the root of a negative number")
    return result


NUMBERS = {"sigmoid": lambda z: float(expit(z)), "exp": math.exp, "sqrt": math.sqrt, "abs": abs}
SYMBOLS = {"sigmoid": sigmoid, "exp": exp, "sqrt": sqrt, "abs": absolute}


def test_simplifications_are_identities():
    rng = np.random.default_rng(7)
    compared = 0
    with jax.enable_x64(True):
        while compared < 300:
            tree = random_tree(rng, 4)
            leaves = {"f": float(rng.normal(0.3, 1.2)), "y": float(rng.integers(0, 4)), "r": float(rng.uniform(0.5, 3))}
            try:
                expected = interpret(tree, leaves, NUMBERS)
                neighbour = interpret(tree, {k: v * (1 + 1e-10) for k, v in leaves.items()}, NUMBERS)
            except (ZeroDivisionError, ValueError, OverflowError):
                continue
            # Trees that overflow or cancel say nothing about an identity.
            if not 1e-6 < abs(expected) < 1e6 or abs(neighbour / expected - 1) > 1e-7:
                continue
            formula = interpret(tree, LEAVES, SYMBOLS)
            if not isinstance(formula, float):
                env = Environment(np.array([leaves["y"]]), np.array([[leaves["f"]]]), {"r": leaves["r"]})
                assert float(np.squeeze(formula.evaluate(env))) == pytest.approx(expected, rel=1e-8), tree
                assert float(np.squeeze(jnp.exp(formula.log_evaluate(env)))) == pytest.approx(
                    expected if expected > 0 else math.nan, rel=1e-8, nan_ok=True
                ), tree
                compared += 1


@pytest.mark.parametrize(
    ("expression", "sign", "nonnegative"),
    [
        (R, 1, True),
        (-R, -1, False),
        (Y, 1, False),
        (Y == 1, 1, True),
        (R + 2, 1, True),
        (1 - Y, None, False),
        (F**2, 1, True),
        (F, None, False),
        (R * sigmoid(F), 1, True),
        (sum_(sigmoid(F3)), 1, True),
        (ParameterSymbol("a", positive=False), None, False),
    ],
)
def test_signs(expression, sign, nonnegative):
    assert expression.sign == sign
    assert expression.nonnegative == nonnegative


@pytest.mark.parametrize("size", [3, 40])
def test_the_latent_that_data_select_is_the_one_of_its_place(size):
    rng, chosen = np.random.default_rng(size), Latents(size)[Y]
    f, y = rng.normal(size=(5, 4, size)), np.array([[1.0, 0.0, 2.0, 2.0], [size - 1.0, 1.0, size, 0.5]])
    with jax.enable_x64(True):
        # Observations (2, 1, n) for latents (5, n): what is not there is nothing.
        selected = chosen.evaluate(Environment(y[:, None], jnp.asarray(f), {}))[..., 0]
        slope = jax.grad(lambda f: jnp.sum(chosen.evaluate(Environment(y[0], f, {})) * jnp.arange(4.0)[:, None]))(f)
    assert selected.shape == (2, 5, 4)
    np.testing.assert_array_equal(selected[0], f[:, np.arange(4), [1, 0, 2, 2]])
    np.testing.assert_array_equal(selected[1, :, :2], f[:, [0, 1], [size - 1, 1]])
    np.testing.assert_array_equal(selected[1, :, 2:], 0.0)
    expected = np.zeros((5, 4, size))
    expected[:, np.arange(4), [1, 0, 2, 2]] = np.arange(4.0)
    np.testing.assert_array_equal(slope, expected)
