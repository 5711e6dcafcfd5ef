"""The grammar of formulas: what is evaluated and what is refused, in formulas that are typed and in files."""

import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.regression.grammar import parse
from pgmodels.runtime.io import read_arrays, write_arrays

N = 40
RNG = np.random.default_rng(5)
DATA = pd.DataFrame(
    {
        "y": RNG.normal(size=N),
        "x": RNG.normal(size=N),
        "z": RNG.uniform(1.0, 2.0, N),
        "g": RNG.choice(list("abc"), N),
        "k": RNG.integers(0, 3, N),
        "trials": 10,
        "small": RNG.integers(1, 200, N).astype(np.uint8),
        "log": RNG.normal(size=N),
        "np": RNG.normal(size=N),
        "my x": RNG.normal(size=N),
        "my g": RNG.choice(list("uv"), N),
        "a.b": RNG.normal(size=N),
        "class": RNG.normal(size=N),
    }
)
# Each would create the file "ran" if it were evaluated.
CODE = "__import__('pathlib').Path('ran').touch()"
PLACES = [
    "y ~ x + I(x * 0 * {})", "y ~ {}", "y ~ {{{}}}", "y ~ x:{}", "y ~ C(g, {})", "y ~ poly(x, {})",
    "y ~ poly(x, degree={})", "y ~ offset({})", "y ~ gp({})", "y ~ gp(x, cov={})", "y ~ gp(x, period={})",
    "y ~ gp(x, k={})", "y ~ gp(x, by={})", "y ~ s(x, by=C({}))", "y ~ ({}|g)", "y ~ (I({})||g)", "y ~ (1|{})",
    "{} ~ x", "log({}) ~ x", "p(k, {}) ~ x", "c(y, {}) ~ x", "Surv(z, {}) ~ x", "y | se({}) ~ x", "g[{}] ~ x",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_formula_with_code_refuses_it_without_running_it(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    family = {"p": "binomial", "g": "bernoulli", "S": "weibull"}.get(place[0], "gaussian")
    with pytest.raises(ValueError, match=r"formula: .*(__import__|pathlib|touch)"):
        pgm.formula(place.format(CODE), DATA, family=family)
    # A call of what a call returned was evaluated while the text was read.
    with pytest.raises(ValueError, match="formula: "):
        pgm.formula(place.format(f"{CODE}(x)"), DATA, family=family)
    assert not list(tmp_path.iterdir())


NOT_ALLOWED = [
    "().__class__.__bases__[0].__subclasses__()", "x.__class__", "x.values", "x[0]", "(lambda: 1)()",
    "[one for one in x]", "{'a': x}", "f'{x}'", "(v := x)", "x if z else k", "x in z", "log(*x)", "log(**x)",
    "log(x, out=x)", "log(x, x)", "np.log(x, where=False)", "np.load('ran')", "np.lib", "eval('1')",
    "getattr(x, 'values')", "poly(x, 2, _state={})", "Q('x')(x)", "'a' * 1000000000", "'x'.join(g)",
    "C(x, 'Treatment(1)')", "cr(x, df=4, constraints=\"__import__('os')\")", "x and z", "b'x'", "1j * x", "x @ z",
    "x << 3", "...",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_ALLOWED)
def test_expression_beyond_the_grammar_is_refused(text):
    before = DATA.copy()
    with pytest.raises(ValueError, match="formula: "):
        pgm.formula(f"y ~ I({text})", DATA)
    pd.testing.assert_frame_equal(DATA, before)


@pytest.mark.parametrize(
    "text",
    [
        "I(9**9**9)",
        "I(x * 9**9**9**9)",
        "I(2**x**10**9)",
        "I(x * " + "9" * 400 + ")",
        "I(x * " + "9" * 5000 + ")",
        "poly(x, 10**9)",
        "bs(x, df=10**9)",
        "bs(x, degree=10**9)",
        "I(" + "+".join(["x"] * 20000) + ")",
        "I" + "(" * 5000 + "x" + ")" * 5000,
        "(" * 5000 + "x" + ")" * 5000,
        "I(" + "-" * 5000 + "x)",
        "*".join(f"v{number}" for number in range(60)),
        "(" + " + ".join(f"v{number}" for number in range(60)) + ")**9",
    ],
    ids=lambda text: text[:20],
)
def test_formula_of_huge_powers_or_sizes_is_refused_at_once(text):
    with pytest.raises(ValueError, match=r"finite|too large|cannot be read|up to|more than|too many"):
        pgm.formula(f"y ~ {text}", DATA)


def test_power_of_a_sum_of_terms_stops_where_no_interaction_is_new():
    assert len(parse("y ~ (a + b + c)**1000000000")[1].linear) == 8


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        (f"y ~ x + I(x * 0 * {CODE})", "__import__"),
        ("y ~ x + I(().__class__.__bases__[0].__subclasses__())", "__class__"),
        ("y ~ x + I(x[0])", r"x\[0\]"),
        (f"y ~ x + ({CODE}|g)", "touch"),
        (f"{CODE} ~ x", "__import__"),
        (f"y ~ gp(x, cov={CODE})", "__import__"),
        ("y ~ own(x)", "own\\(x\\) calls own, which is not one of .* context="),
        ("y ~ f(x)", "context="),
    ],
)
def test_load_formula_of_a_hostile_file_refuses_it_without_running_it(hostile, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = pgm.formula("y ~ x", DATA, priors={"scale": pgm.Fixed(1.0)}).gaussian_vi().save(tmp_path / "fit.npz")
    document, arrays = read_arrays(path)
    document["regression"]["dict"]["formula"] = [hostile]
    write_arrays(path, document, arrays)
    with pytest.raises(ValueError, match=message):
        pgm.load_formula(path)
    assert [file.name for file in tmp_path.iterdir()] == ["fit.npz"]


def test_load_formula_evaluates_functions_of_the_context_that_it_is_given(tmp_path):
    context = {"tens": lambda x: 10.0 * x}
    priors = {"scale": pgm.Fixed(1.0)}
    result = pgm.formula("y ~ tens(x) + poly(z, 2)", DATA, priors=priors, context=context).gaussian_vi()
    path = result.save(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match=r"tens\(x\) calls tens"):
        pgm.load_formula(path)
    new = DATA.head(5)
    table = pgm.load_formula(path, context=context).predictions(new)
    np.testing.assert_allclose(table["mean"], result.predictions(new)["mean"], rtol=1e-12)


X, Z, K = (DATA[name].to_numpy(float) for name in ("x", "z", "k"))
COLUMNS = {
    "log(z) + log": [np.log(Z), DATA["log"]],
    "np.log(z) + np": [np.log(Z), DATA["np"]],
    "log(`my x` + 9) + `my x`": [np.log(DATA["my x"] + 9.0), DATA["my x"]],
    "Q('my x')": [DATA["my x"]],
    "a.b + exp(a.b)": [DATA["a.b"], np.exp(DATA["a.b"])],
    "class + I(class ** 2)": [DATA["class"], DATA["class"] ** 2],
    "sin(2 * pi * x) + np.cos(np.pi * x)": [np.sin(2.0 * np.pi * X), np.cos(np.pi * X)],
    "I(x**2) + I(-x // 2) + I(x % 1)": [X**2, -X // 2, X % 1],
    "{x + 1}": [X + 1.0],
    "I(0 < x < 1)": [(X > 0) & (X < 1)],
    "I((x > 0) & ~(z < 1.5) | (k == 1))": [((X > 0) & ~(Z < 1.5)) | (K == 1)],
    "I(g == 'b')": [DATA["g"] == "b"],
    "np.where(x > 0, z, -1)": [np.where(X > 0, Z, -1.0)],
    "maximum(x, z) + np.clip(x, -1, 1)": [np.maximum(X, Z), np.clip(X, -1.0, 1.0)],
    # Whole numbers of one byte would overflow.
    "I(small ** 2) + I(small - 150)": [DATA["small"].astype(float) ** 2, DATA["small"].astype(float) - 150.0],
    "scale(x) + I(2 * center(z))": [(X - X.mean()) / X.std(ddof=1), 2.0 * (Z - Z.mean())],
    "x:z + x %in% log(z)": [X * Z, X * np.log(Z)],
    "(x + z + k)**2 - x:k": [X, Z, K, X * Z, Z * K],
    "x / z": [X, X * Z],
    "x*z - x": [Z, X * Z],
    "k:C(k, contr.sum) - k:C(k, contr.sum) + x": [X],
    "C(k, Treatment(1))": [K == 0, K == 2],
    "C(k, contr.treatment(base=2))": [K == 0, K == 1],
    "C(g, levels=['c', 'a', 'b'])": [DATA["g"] == "a", DATA["g"] == "b"],
    "+ - - x": [X],
}


def centred(columns, rows=slice(None)):
    """Columns of linear terms less their means, after the column of the intercept."""
    columns = np.column_stack(columns).astype(float)
    return (columns - np.append(0.0, columns[:, 1:].mean(axis=0)))[rows]


@pytest.mark.parametrize("text", COLUMNS)
def test_expression_has_the_values_of_its_columns(text):
    columns = [np.ones(N), *COLUMNS[text]]
    regression = pgm.formula(f"y ~ {text}", DATA)
    np.testing.assert_allclose(regression.X, centred(columns), rtol=1e-12, atol=1e-14)
    # Transforms keep what they learned.
    np.testing.assert_allclose(
        regression.read(DATA.iloc[[3, 17]])[0], centred(columns, [3, 17]), rtol=1e-12, atol=1e-14
    )


def test_orthogonal_polynomial_of_new_data_is_that_of_the_training_data():
    regression = pgm.formula("y ~ poly(x, degree=3)", DATA)
    basis = np.linalg.qr(np.vander(X, 4, increasing=True))[0][:, 1:]
    signs = np.sign((basis * regression.X[:, 1:]).sum(axis=0))
    np.testing.assert_allclose(regression.X[:, 1:], basis * signs, atol=1e-10)
    np.testing.assert_allclose(regression.read(DATA.head(2))[0][:, 1:], (basis * signs)[:2], atol=1e-10)


def test_name_is_a_column_where_it_is_one_and_else_a_value_of_the_context():
    context = {"x": 5.0, "shift": 2.0, "double": lambda v: 2.0 * v, "own.f": np.tanh}
    regression = pgm.formula("y ~ I(x + shift) + double(x) + own.f(z)", DATA, context=context)
    np.testing.assert_allclose(regression.X, centred([np.ones(N), X + 2.0, 2.0 * X, np.tanh(Z)]))


def test_only_columns_that_a_formula_reads_need_values():
    # Not text that is like a column's name, nor a function that is.
    holed = DATA.assign(a=np.nan, log=np.nan, np=np.nan, trials=np.nan)
    pgm.formula("y ~ I(g == 'a') + log(z) + np.sin(x)", holed)
    with pytest.raises(ValueError, match="row 0, column 'log'"):
        pgm.formula("y ~ log(z) + log", holed)
    with pytest.raises(ValueError, match="row 0, column 'my x'"):
        pgm.formula("y ~ exp(`my x`)", DATA.assign(**{"my x": np.nan}))


def test_comparison_of_a_missing_value_in_new_data_is_refused():
    result = pgm.formula("y ~ I(x > 0)", DATA, priors={"scale": pgm.Fixed(1.0)}).gaussian_vi()
    with pytest.raises(ValueError, match="newdata has no value in row 1, column 'x'"):
        result.predictions(pd.DataFrame({"x": [1.0, np.nan]}))


REFUSED = {
    "I(x^2)": r"in I\(x \^ 2\), \^ is no power: write x \*\* 2",
    "x**2": r"Write the power of a column in I\(\), as in I\(x\*\*2\)",
    "x^2": r"Write the power of a column in I\(\), as in I\(x\*\*2\)",
    "x/10": r"write arithmetic in I\(\): I\(x/10\)",
    "2*x": r"write arithmetic in I\(\): I\(2\*x\)",
    "x + 2": r"Write a sum of numbers in I\(\)",
    "x > 2": r"write arithmetic and comparisons in I\(\)",
    "x - z": r"Write a difference of columns in I\(\)",
    "I(g == 1)": "compares text with a number",
    "I(x == 'a')": "compares numbers with text",
    "I(x and z)": "write & and | between comparisons",
    "log(g)": "g must be numbers; got",
    "log(x)": r"data, log\(x\) must be finite; got nan in row",
    "height": "data has no column 'height'",
    "gp(x, by=k)": r"k has whole numbers that repeat. Write by=C\(k\) .* or by=num\(k\)",
    "ar1(z, by=k)": r"Write by=C\(k\)",
    "gp(x, by=log(z))": "by must be a column",
    "(1|g + k)": r"as \(1\|a\) \+ \(1\|b\)",
    "(1|log(z))": "the factor must be a column; got log",
    "1|g": r"must be in parentheses, as in \(1\|g\)",
    "x +": "the end is not expected",
    "3": r"as in I\(x \+ 3\)",
    "x - 3": r"as in I\(x - 3\)",
    "'x'": "written in backticks",
    ".": "for all other columns is not available",
}


@pytest.mark.parametrize("text", REFUSED)
def test_term_that_means_something_else_elsewhere_is_refused_with_a_remedy(text):
    with pytest.raises(ValueError, match=REFUSED[text]):
        pgm.formula(f"y ~ {text}", DATA)


def test_slope_of_a_group_is_a_function_with_a_sum_in_it():
    priors = {"(1 + log(z + 1)|g)": {"variance": [0.5, 0.2], "root": pgm.Fixed([[1.0, 0.0], [0.6, 0.8]])}}
    regression = pgm.formula("y ~ 0 + x + (log(z+1)|g)", DATA, priors=priors | {"x": dist.Normal(0.0, 1.0)})
    kernel = regression.model.gps[1].kernel
    features = np.column_stack([np.ones(N), np.log(Z + 1.0)])
    covariance = np.array([[0.5, 0.6 * np.sqrt(0.1)], [0.6 * np.sqrt(0.1), 0.2]])
    same = DATA["g"].to_numpy()[:, None] == DATA["g"].to_numpy()
    expected = same * (features @ covariance @ features.T)
    np.testing.assert_allclose(kernel(regression.X, regression.X), expected, rtol=1e-6)
    assert [term.name for term in pgm.formula("y ~ (np.log(z+1)||g)", DATA).terms] == [
        "linear",
        "(1|g)",
        "(0 + np.log(z + 1)|g)",
    ]


def test_names_in_backticks_are_columns_in_every_term():
    text = "y ~ `my x` + gp(`my x`, by=`my g`) + s(`my x`) + (1 | `my g`) + (`my x`|g:`my g`) + offset(`my x`)"
    regression = pgm.formula(text, DATA)
    assert [term.name for term in regression.terms] == [
        "linear",
        "gp(`my x`, by=`my g`)",
        "s(`my x`)",
        "(1|`my g`)",
        "(1 + `my x`|g:`my g`)",
    ]
    column, group = DATA["my x"].to_numpy(), (DATA["my g"] == "v").to_numpy(float)
    pairs = np.unique(DATA["g"] + DATA["my g"], return_inverse=True)[1]
    linear = centred([np.ones(N), column])
    expected = np.column_stack([linear, column, group, column, group, pairs, np.ones(N), column])
    np.testing.assert_allclose(regression.X, expected)


@pytest.mark.parametrize(("marker", "is_of_levels"), [("C", True), ("num", False)])
def test_marker_of_by_chooses_levels_or_numbers(marker, is_of_levels):
    priors = {f"gp(x, by={marker}(k))": {"variance": 1.0, "lengthscale": 1.5}}
    regression = pgm.formula(f"y ~ gp(x, by={marker}(k))", DATA, priors=priors)
    squared = pgm.Matern52(1.0, 1.5)(X[:, None], X[:, None])
    weights = K[:, None] == K if is_of_levels else np.outer(K, K)
    inputs = regression.X
    np.testing.assert_allclose(regression.model.gps[1].kernel(inputs, inputs), squared * weights, rtol=1e-12)


@pytest.mark.parametrize(
    ("response", "family", "expected"),
    [
        ("y/100", "gaussian", [DATA["y"] / 100.0]),
        ("y | se(0.1)", "gaussian", [DATA["y"], np.full(N, 0.1)]),
        ("k | trials(10)", "binomial", [K, np.full(N, 10.0)]),
        ("p(np.minimum(k, trials), trials)", "binomial", [K, DATA["trials"]]),
        ("p(k, 2*k + 1)", "binomial", [K, 2.0 * K + 1.0]),
        ("y > 0", "bernoulli", [DATA["y"] > 0]),
        ("`my x`", "gaussian", [DATA["my x"]]),
    ],
)
def test_response_is_an_expression(response, family, expected):
    y = pgm.formula(f"{response} ~ x", DATA, family=family).y
    np.testing.assert_allclose(y.reshape(N, -1), np.column_stack(expected).astype(float), rtol=1e-12)


def test_boolean_options_are_those_of_r_too():
    assert parse("y ~ gp(x, z, iso=FALSE, period=365.25 / 7)")[1].calls[0].options == {
        "iso": False,
        "period": pytest.approx(365.25 / 7),
    }
    np.testing.assert_allclose(pgm.formula("y ~ poly(x, 2, raw=TRUE)", DATA).X[:, 2], X**2 - np.mean(X**2))


def test_regression_of_expressions_is_a_pickle_with_the_same_predictions():
    import pickle

    result = pgm.formula("y ~ poly(x, 2) + (log(z)||g)", DATA, priors={"scale": pgm.Fixed(1.0)}).gaussian_vi()
    copy = pickle.loads(pickle.dumps(result))
    new = DATA.head(3)
    np.testing.assert_allclose(copy.predictions(new)["mean"], result.predictions(new)["mean"], rtol=1e-12)
    assert re.search(r"log\(z\)", repr(copy.regression))


# What R, brms, mgcv, lme4, INLA, rstanarm and bambi have, as terms, responses, families and options.
FOREIGN = {
    "factor(k)": r"write C\(g\)", "as.factor(k)": r"write C\(g\)", "x + te(x)": "must have two columns or more",
    "t2(x, z)": r"write te\(x, z\)", "ns(x, 3)": r"write s\(x\).*bs\(x, df=5\)",
    "cut(x, 3)": "compute it as a column of data", "mo(k)": r"s\(x\), or as ordered categories",
    "mm(g, k)": r"\(1\|mm\(g1, g2\)\)", "hsgp(x, m=10, c=2)": r"write gp\(x, k=20\)",
    "f(x, model='rw2')": r"write rw2\(t\) or s\(x\)", "ar(time=x)": r"write ar1\(t\)",
    "car(g)": r"must be car\(area, W\)",
    "me(x, z)": "columns have no errors", "ifelse(x > 0, 1, 0)": r"write np.where\(",
    "pmax(x, z)": r"write np.maximum\(", "log(s(x))": "must be terms by themselves",
    "gp(x):z": "must be terms by themselves", "weights(z)": "weights='w'",
    "s(g, bs='re')": r"bs must be one of .*\(1\|g\)", "gp(x, m=20)": "Write k=20",
    "gp(x, cov='exp_quad')": "cov must be one of 'rbf', 'matern12'.* Write cov='rbf'",
    "gp(x, cov='matern15')": "Write cov='matern32'",
    "gp(x, kernel='rbf')": r"has no option 'kernel'; gp takes by, cov, iso, period, k.* Write gp\(x, cov='rbf'\)",
    "gp(x, k='many')": "k must be a whole number", "gp(x, k=2.5)": "k must be a whole number",
    "gp(x, iso=3)": "iso must be True or False", "gp(x, period=-2)": "period must be a positive number",
    "gp(x, period=12, cov='rbf')": r"cov='rbf' has not. Write gp\(x, period=...\) \+ gp\(x, cov='rbf'\)",
    "gp(x, cov='periodic')": r"needs a period in units of the column, as in gp\(x, period=12\)",
}  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_name_of_another_package_is_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match=FOREIGN[text]) as caught:
        pgm.formula(f"y ~ {text}", DATA)
    # Formulaic's messages had colour codes of terminals.
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "C(k) + (1|k) + gp(x, by=C(k))",
        "gp(x, z, iso=False)",
        "bs(x, df=5) + cr(z, df=5) + cc(x, df=5)",
        "gp(x, k=20) + gp(x, period=12) + gp(x, cov='rbf')",
        "I(x**2) + I(x / 10) + I(x > 2) + I(x - z) + np.where(x > 2, 1, 0) + np.minimum(x, z)",
        "(0 + x + z || g) + (1|g) + (1|k)",
        "gp(x, cov='product') + offset(log(z))",
    ],
)
def test_remedies_of_messages_are_read(text):
    product = pgm.Periodic(1.0, 1.0, 12.0) * pgm.RBF(1.0, 1.0)
    assert len(pgm.formula(f"y ~ {text}", DATA, context={"product": product}).X) == N


@pytest.mark.parametrize(
    ("response", "family", "message"),
    [
        ("k", "binomial", r"is p\(successes, trials\); got k. For labels of single trials use family='bernoulli'"),
        ("p(k, trials)", "poisson", "need family='binomial' or 'beta_binomial'"),
        ("y | se(0.1)", "student", "Known noise needs family='gaussian'"),
        ("c(y, x)", "gaussian", "are for a likelihood of your own"),
        ("`my g`", "gaussian", "must be numbers for family 'gaussian'.*Use 'bernoulli' for two levels"),
        ("y | cens(k)", "weibull", r"Surv\(time, 1 - censored\)"),
        ("cbind(k, trials)", "binomial", r"is written p\(successes, trials\)"),
        ("p(k)", "binomial", r"write p\(successes, trials\)"),
        ("y", ["gaussian"], "family must be one of"),
        ("y", "Gaussian", "got 'Gaussian'. Write family='gaussian'"),
        ("y", "Gamma", "got 'Gamma'. Write family='gamma'"),
        ("y", "nb", "got 'nb'. Write family='negbinomial'"),
        ("y", "zip", "got 'zip'. Write family='zero_inflated_poisson'"),
        ("y", "normal", "got 'normal'. Write family='gaussian'"),
        ("y", "multinomial", "got 'multinomial'. Write family='categorical'"),
        ("y", "coxph", "got 'coxph'. Write family='cox'"),
    ],
)
def test_response_of_another_family_is_refused_with_a_remedy(response, family, message):
    with pytest.raises(ValueError, match=message):
        pgm.formula(f"{response} ~ x", DATA, family=family)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("(1 | g)", "y ~ x + (1|g)"),
        ("1|g", "y ~ x + (1 |g)"),
        ("( 0+x|g )", "y ~ (0 + x|g)"),
        ("gp(x,by = g)", "y ~ gp(x, by=g)"),
        ("f[1]: (1 | g)", ["y ~ x", "f[1] ~ (1|g)"]),
    ],
)
def test_key_of_priors_is_a_term_but_for_spaces(key, text):
    family = "gaussian" if isinstance(text, str) else pgm.HeteroscedasticGaussian(2.0)
    regression = pgm.formula(text, DATA, family=family, priors={key: {"variance": 0.123}})
    assert "0.123" in repr(regression.model.gps[-1].kernel)


def test_key_of_priors_of_a_coefficient_is_its_name_but_for_spaces():
    regression = pgm.formula("y ~ poly(x, 2)", DATA, priors={"poly(x,2)[1]": dist.Normal(0.0, 0.321)})
    other = pgm.formula("y ~ poly(x, 2)", DATA, priors={"poly(x, 2)[1]": dist.Normal(0.0, 0.321)})
    assert repr(regression.model) == repr(other.model)
    with pytest.raises(ValueError, match="which are the same"):
        pgm.formula("y ~ (1|g)", DATA, priors={"(1|g)": {"variance": 1.0}, "(1 | g)": {"variance": 2.0}})
    with pytest.raises(ValueError, match="priors must be a dict"):
        pgm.formula("y ~ x", DATA, priors={0: dist.Normal(0.0, 1.0)})


def test_name_of_a_column_that_is_a_number_is_refused():
    with pytest.raises(ValueError, match="the name of column '0' is a number: rename it"):
        pgm.formula("y ~ `0`", pd.DataFrame({"y": [1.0, 2.0], "0": [1.0, 2.0]}))


def test_period_may_have_a_prior_in_place_of_a_number():
    text = "gp(x, cov='periodic')"
    priors = {text: {"period": dist.LogNormal(1.0, 0.1), "lengthscale": 1.0}}
    assert "period" in repr(pgm.formula(f"y ~ {text}", DATA, priors=priors).model)


TEMPLATES = [
    *("y ~ {}", "y ~ x + {}", "y ~ ({}|g)", "y ~ (1|{})", "y ~ I({})", "y ~ gp({})", "y ~ s(x, by={})", "y ~ C({})"),
    *("y ~ poly(x, {})", "y ~ offset({})", "{} ~ x", "p({}) ~ x", "Surv({}) ~ x"),
]
TOKENS = [
    *(
        "y",
        "x",
        "z",
        "g",
        "k",
        "`my x`",
        "log",
        "I",
        "C",
        "gp",
        "s",
        "ar1",
        "offset",
        "poly",
        "np.",
        "contr.sum",
        "Surv",
    ),
    *(
        "p",
        "se",
        "trials",
        "lambda",
        "TRUE",
        "0",
        "1",
        "2",
        "9**9**9",
        "'a'",
        "'rbf'",
        "by=",
        "cov=",
        "period=",
        "type=",
    ),
    *("+", "-", "*", ":", "/", "**", "^", "(", ")", "(", ")", "|", "||", "~", ",", "==", ">", "&", "[", "]", "{", "}"),
    *(".", "%in%", "\\", '"', "`", "é", "\n", "@", "!", " "),
]


def check_fuzzed(count):
    @hypothesis.settings(max_examples=count, derandomize=True, deadline=None, database=None)
    @hypothesis.given(st.sampled_from(TEMPLATES), st.lists(st.sampled_from(TOKENS), min_size=1, max_size=7))
    def check(template, tokens):
        family = {"p": "binomial", "S": "weibull"}.get(template[0], "gaussian")
        try:
            X = pgm.formula(template.format("".join(tokens)), DATA, family=family).X
        except ValueError as error:
            X, message = np.zeros(1), str(error)
        else:
            message = "data"
        assert re.match(r"formula|data|priors|y\[|y must", message), message
        assert np.isfinite(X).all()

    check()


def test_formula_of_any_tokens_is_read_or_refused_by_name():
    check_fuzzed(300)


@pytest.mark.slow
def test_formula_of_any_tokens_is_read_or_refused_by_name_in_many_cases():
    check_fuzzed(3000)


@pytest.mark.parametrize("text", ["x**", "x^", "x*", "x:", "x/", "(x + z)**", "-", "x + -", "(x|", "gp(x) +"])
def test_formula_that_ends_too_early_is_refused(text):
    with pytest.raises(ValueError, match="formula: "):
        parse(f"y ~ {text}")
