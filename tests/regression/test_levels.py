"""Terms of levels with known covariances: areas, random walks, pedigrees and members."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.kernels.columns import Structured, adjacency, icar_covariance, walk_covariance

RNG = np.random.default_rng(3)
AREAS = ["a", "b", "c", "d", "e", "f"]
# A triangle with a tail, a pair, and an island.
PAIRS = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "e")]
W = pd.DataFrame(np.zeros((6, 6)), AREAS, AREAS)
for one, other in PAIRS:
    W.loc[one, other] = W.loc[other, one] = 1.0
N = 40
DATA = pd.DataFrame(
    {"y": RNG.normal(size=N), "x": RNG.normal(size=N), "t": RNG.choice([1.0, 2.0, 4.0, 7.0], N)}
    | {name: RNG.choice(AREAS, N) for name in ("area", "other")} | {"h": RNG.choice(["u", "v"], N)}
)  # fmt: skip
A = pd.DataFrame(0.3 + np.diag([0.7, 0.8, 0.9, 1.0, 0.6, 0.7]), AREAS, AREAS)
ONE = pd.get_dummies(DATA["area"]).to_numpy(float)
OTHER = pd.get_dummies(DATA["other"]).to_numpy(float)
PLACES = (DATA["t"].to_numpy()[:, None] == np.array([1.0, 2.0, 4.0, 7.0])).astype(float)
U = (DATA["h"] == "u").to_numpy(float)


def test_covariances_of_neighbours_are_inverses_on_the_differences_in_each_part():
    C = icar_covariance(W, scaled=False)
    L = np.diag(W.sum(axis=1)) - W.to_numpy()
    np.testing.assert_allclose(C[:5, :5], np.linalg.pinv(L)[:5, :5], atol=1e-12)
    assert C[5].tolist() == [0.0] * 5 + [1.0]
    scaled = icar_covariance(W)
    for part in ([0, 1, 2], [3, 4], [5]):
        assert np.prod(np.diag(scaled)[part]) == pytest.approx(1.0)
    np.testing.assert_allclose(scaled[:3, :3] / C[:3, :3], scaled[0, 0] / C[0, 0])


def test_steps_of_walks_have_the_variances_of_their_spans():
    x = np.array([0.0, 1.0, 3.0, 3.5, 7.0])
    h = np.diff(x)
    steps = np.diff(np.eye(5), axis=0)
    np.testing.assert_allclose(steps @ walk_covariance(x, 1) @ steps.T, np.diag(h), atol=1e-9)
    changes = np.diff(steps / h[:, None], axis=0)
    C = walk_covariance(x, 2)
    np.testing.assert_allclose(changes @ C @ changes.T, np.diag(h[:-1] + h[1:]) / 2.0, atol=1e-9)
    np.testing.assert_allclose(C @ np.column_stack([np.ones(5), x]), 0.0, atol=1e-9)
    assert np.prod(np.diag(walk_covariance(x, 2, scaled=True))) == pytest.approx(1.0)


def test_graphs_are_matrices_pairs_and_neighbours():
    lists = {area: [b if a == area else a for a, b in PAIRS if area in (a, b)] for area in AREAS}
    shuffled = W.sample(frac=1.0, random_state=1)
    for graph in (W, shuffled, lists):
        matrix, labels = adjacency(graph)
        pd.testing.assert_frame_equal(pd.DataFrame(matrix, labels, labels).loc[AREAS, AREAS], W)
    for graph in (PAIRS, pd.DataFrame(PAIRS, columns=["from", "to"])):
        matrix, labels = adjacency(graph)
        assert labels == AREAS[:5]
        np.testing.assert_array_equal(matrix, W.iloc[:5, :5])
    # What a GeoDataFrame has of geopandas: pairs of the numbers of areas that touch, in both orders.
    found = np.nonzero(W.to_numpy())
    shapes = SimpleNamespace(sindex=SimpleNamespace(query=lambda shapes, predicate: found), values=None)
    matrix, labels = adjacency(SimpleNamespace(index=AREAS, geometry=shapes, sindex=shapes.sindex))
    pd.testing.assert_frame_equal(pd.DataFrame(matrix, labels, labels), W)
    for wrong in (W.to_numpy() + np.eye(6), np.array([[0.0, 1.0], [0.5, 0.0]]), "abc", W.to_numpy()[:3], {"a": 1}):
        with pytest.raises(ValueError, match="the graph must be a symmetric matrix of 0 and 1"):
            adjacency(wrong)


# The covariance of a term's effects at the rows, with variance 1 and mixing 0.4.
EXPECTED = {
    "icar(area, W)": ONE @ icar_covariance(W, scaled=False) @ ONE.T,
    "bym2(area, W)": ONE @ (0.4 * icar_covariance(W) + 0.6 * np.eye(6)) @ ONE.T,
    "car(area, W)": ONE @ np.linalg.inv(np.diag(np.maximum(W.sum(axis=1), 1.0)) - 0.4 * W.to_numpy()) @ ONE.T,
    "rw1(t)": PLACES @ walk_covariance([1.0, 2.0, 4.0, 7.0], 1) @ PLACES.T,
    "rw2(t)": PLACES @ walk_covariance([1.0, 2.0, 4.0, 7.0], 2) @ PLACES.T,
    "(1|gr(area, cov=A))": ONE @ A.to_numpy() @ ONE.T,
    "(0 + x|gr(area, cov=A))": (ONE @ A.to_numpy() @ ONE.T) * np.outer(DATA["x"], DATA["x"]),
    "(1|gr(area))": ONE @ ONE.T,
    "(1|mm(area, other))": (ONE + OTHER) @ (ONE + OTHER).T / 4.0,
    "icar(area, W):rw1(t)": (ONE @ icar_covariance(W, scaled=False) @ ONE.T)
    * (PLACES @ walk_covariance([1.0, 2.0, 4.0, 7.0], 1) @ PLACES.T),
    "(1|gr(area, by=h))": (ONE @ ONE.T) * (np.outer(U, U) + 2.0 * np.outer(1.0 - U, 1.0 - U)),
}


@pytest.mark.parametrize("text", EXPECTED)
def test_a_term_has_the_covariances_of_its_levels_and_its_posterior(text, tmp_path):
    prior = {"variance": pgm.Fixed([0.7, 1.4] if "by" in text.split("(")[-1] else 0.7)}
    prior |= {"mixing": pgm.Fixed(0.4)} if text[:3] in ("bym", "car") else {}
    priors = {text: prior, "sigma": pgm.Fixed(0.5), "x": dist.Normal(0.2, 0.3)}
    priors |= {"t": dist.Normal(0.0, 1.0)} if text == "rw2(t)" else {}
    regression = pgm.formula(f"y ~ 0 + x + {text}", DATA, priors=priors, context={"W": W, "A": A})
    K = 0.7 * EXPECTED[text]
    np.testing.assert_allclose(regression.model.gps[1].kernel(regression.X, regression.X), K, atol=1e-9)
    # Against conjugate Gaussians, at new rows in another order, also from a file.
    new = DATA.iloc[[7, 3, 25]]
    B = np.column_stack([DATA["x"], *([DATA["t"] - DATA["t"].mean()] if text == "rw2(t)" else [])])
    L = np.concatenate([B * [0.3, 1.0][: B.shape[1]], np.linalg.cholesky(K + 1e-10 * np.eye(N))], axis=1)
    total, means = L @ L.T, 0.2 * DATA["x"].to_numpy()
    solved = np.linalg.solve(total + 0.25 * np.eye(N), np.column_stack([DATA["y"] - means, total]))
    result = regression.fit()
    at = new.index.to_numpy()
    mean = means[at] + total[at] @ solved[:, 0]
    variance = np.diag(total - total @ solved[:, 1:])[at]
    for one in (result, pgm.load_formula(result.save(tmp_path / "fit.npz"), context={"W": W, "A": A})):
        table = one.predictions(new, target="linear")
        np.testing.assert_allclose(table["mean"], mean, atol=0.06)
        np.testing.assert_allclose(table["sd"], np.sqrt(variance), rtol=0.1)
    is_group = not text.startswith(("rw", "icar(area, W):"))
    with nullcontext() if is_group else pytest.raises(ValueError, match="need a term of groups"):
        assert set(result.ranef()["group"].astype(str)) >= set(DATA["area"])


def test_a_matrix_without_labels_is_in_the_order_of_the_levels():
    frame = DATA.assign(area=pd.Categorical(DATA["area"], AREAS))
    for data in (frame, DATA):
        kernel = pgm.formula("y ~ bym2(area, W)", data, context={"W": W.to_numpy()}).model.gps[1].kernel
        labelled = pgm.formula("y ~ bym2(area, W)", DATA, context={"W": W}).model.gps[1].kernel
        x = np.column_stack([np.ones(6), np.arange(6.0)])
        np.testing.assert_allclose(kernel(x, x), labelled(x, x))
    one, other = (pgm.formula("y ~ (1|gr(area, cov=A))", DATA, context={"A": B}) for B in (A, A[AREAS[::-1]]))
    np.testing.assert_allclose(*(part.model.gps[1].kernel(one.X, one.X) for part in (one, other)))


@pytest.mark.parametrize(
    ("text", "context", "message"),
    [
        ("icar(area)", {}, r"must be icar\(area, W\)"),
        ("icar(area, W)", {}, r"reads W, which is not in context: pass it, as in context=\{'W': W\}"),
        ("icar(area, W)", {"W": W.iloc[:4, :4]}, r"has '.' in row \d+, column 'area', which is not a level of icar"),
        ("icar(area, W)", {"W": W.to_numpy()[:4, :4]}, "has 6 levels, and the matrix of .* 4 rows without labels"),
        ("icar(area, W)", {"W": 1.0}, "the graph must be"),
        ("icar(area, W, x=1)", {"W": W}, "has no option 'x'"),
        ("(1|gr(area, cov=A))", {"A": -A}, "must be positive semidefinite; its least eigenvalue"),
        ("(1|gr(area, cov=A))", {"A": A.rename(columns={"a": "z"})}, "rows and columns of A must have the same labels"),
        ("(1|gr(area, A))", {"A": A}, r"must be gr\(g\), gr\(g, cov=A\)"),
        ("(1|mm(area))", {}, r"mm\(g1, g2\), of names of columns"),
        ("(1 + x|gr(area, by=h))", {}, r"write \(1 \+ x\|\|gr\(area, by=h\)\)"),
        ("(1|gr(area, by=t))", {}, "by must be a column of text or categories; t has numbers"),
        ("s(x):rw1(t)", {}, "a product is of two of gp, ar1, rw1, rw2, car, icar, bym2, without by"),
        ("rw2(h)", {}, "needs numbers, dates or ordered categories"),
    ],
)
def test_terms_of_levels_that_cannot_be_read_are_refused_with_a_remedy(text, context, message):
    with pytest.raises(ValueError, match=message):
        pgm.formula(f"y ~ {text}", DATA, context=context)


def test_nuts_joins_groups_of_fewer_inputs_than_others():
    # 23 groups, a number of rows that engines pad, and two values of x.
    frame = pd.DataFrame({"g": np.arange(69) % 23, "x": (np.arange(69) % 23) % 2, "y": np.arange(69.0) / 69.0})
    draws = pgm.formula("y ~ x + (1|g)", frame).nuts(num_samples=20, num_warmup=100, num_chains=1)
    assert np.isfinite(draws.predictions()["mean"]).sum() == 69


def test_new_levels_of_known_covariances_are_refused():
    result = pgm.formula("y ~ icar(area, W) + rw1(t)", DATA, context={"W": W}).cavi()
    with pytest.raises(ValueError, match=r"'z' in row 0, column 'area', which is not a level of icar\(area, W\)"):
        result.predictions(DATA[:1].assign(area="z"))
    with pytest.raises(ValueError, match=r"has 3 in row 0, rw1\(t\), a value without a row .*missing='predict'"):
        result.predictions(DATA[:1].assign(t=3.0))


def test_a_kernel_of_levels_states_what_it_needs():
    with pytest.raises(ValueError, match=r"shapes \(K, r\) and \(r,\); got \(2, 2\) and \(3,\)"):
        Structured(np.eye(2), np.ones(3))
    with pytest.raises(ValueError, match=r"levels from 0 to 1 for Structured; got 2 in row 1"):
        pgm.cavi(pgm.Model(pgm.Gaussian(1.0), pgm.GP(Structured.of(np.eye(2)))), [[0.0], [2.0]], [0.1, 0.2])
    with pytest.raises(ValueError, match="symmetric matrix"):
        Structured.of([[1.0, 0.5], [0.2, 1.0]])


# Burglaries of 49 districts of Columbus, Ohio, and the neighbours of each with a higher number: mgcv's data columb.
CRIME = """15.72598 18.80175 30.62678 32.38776 50.73151 26.06666 .178269 38.42586 30.51592 34.00084 62.27545 56.70567
46.71613 57.06613 48.58549 54.83871 36.86877 43.96249 54.52197 .223797 40.07407 33.70505 20.0485 38.29787 61.29917
40.96974 52.79443 56.91978 60.75045 68.89204 17.67721 19.14559 41.96816 23.97403 39.17505 14.30556 42.44508 53.71094
19.10086 16.2413 18.90515 16.49189 36.66361 25.96226 29.02849 16.53053 27.82286 26.64527 22.54149"""
HIGHER = """1 2/2 3/3 4/4 7/5 7 8 10 14 15/8/7 11 12 13/10 11 12/9 14 19 21 24 25/16 19 21/11 14 15/12 13 15/13/15 17
18/15 24 25/17 23 24/19 22/18 23/23/21 22 26 31 32 34 39/23 29 33/25 26 27/31/24 28 29/25 27 28 29/27 28/27 32/28 32 34
36 37/29 36 37/36/33 35 38/39 40/34/35 41/37 39 42 43/38 41 45/37 42 44/42 43/45/40 46/46//43 44 47/47 48/47 48///48/"""


def test_districts_of_columbus():
    """The Markov random field of mgcv 1.8-41, gam(crime ~ s(district, bs = "mrf"), method = "REML")."""
    graph = {one: [int(b) for b in others.split()] for one, others in enumerate(HIGHER.split("/"))}
    data = pd.DataFrame({"crime": [float(value) for value in CRIME.split()], "district": range(49)})
    priors = {"icar(district, W)": {"variance": 300.0}, "sigma": 10.0, "Intercept": dist.Normal(35.0, 1e3)}
    regression = pgm.formula("crime ~ icar(district, W)", data, context={"W": graph}, priors=priors)
    result = regression.fit(correct=False)
    summary = result.summary()
    np.testing.assert_allclose(summary.loc["Intercept", ["mean", "sd"]].astype(float), [35.129, 1.298], atol=2e-3)
    sds = summary.loc[["sd(icar(district, W))", "sigma"], "mean"].astype(float)
    np.testing.assert_allclose(sds, [19.762, 9.087], rtol=2e-3)
    fitted = result.result.predict_latent(regression.X)[0].sum(axis=1)[:5]
    np.testing.assert_allclose(fitted, [18.8176, 22.125, 30.1331, 33.143, 44.1121], atol=0.02)


# Cases of lip cancer in 56 counties of Scotland, expected ones, per cent in agriculture (Breslow and Clayton 1993).
LIPS = """9 1.4 16/ 39 8.7 16/ 11 3 10/ 9 2.5 24/ 15 4.3 10/ 8 2.4 24/ 26 8.1 10/ 7 2.3 7/ 6 2 7/ 20 6.6 16/ 13 4.4 7/
5 1.8 16/ 3 1.1 10/ 8 3.3 24/ 17 7.8 7/ 9 4.6 16/ 2 1.1 10/ 7 4.2 7/ 9 5.5 7/ 7 4.4 10/ 16 10.5 7/ 31 22.7 16/ 11 8.8
10/ 7 5.6 7/ 19 15.5 1/ 15 12.5 1/ 7 6 7/ 10 9 7/ 16 14.4 10/ 11 10.2 10/ 5 4.8 7/ 3 2.9 24/ 7 7 10/ 8 8.5 7/ 11 12.3
7/ 9 10.1 0/ 11 12.7 10/ 8 9.4 1/ 6 7.2 16/ 4 5.3 0/ 10 18.8 1/ 8 15.8 16/ 2 4.3 16/ 6 14.6 0/ 19 50.7 1/ 3 8.2 7/ 2
5.6 1/ 3 9.3 1/ 28 88.7 0/ 6 19.6 1/ 1 3.4 1/ 1 3.6 0/ 1 5.7 1/ 1 7 1/ 0 4.2 16/ 0 1.8 10"""
SCOTLAND = """5 9 19/7 10/12/18 20 28/12 13 19//10 13 16 17//17 19 23 29/16 22///17 19/31 32 35/25 29 50/17 21 22 29/19
29/20 28 33 55 56//55/29 50//29 34 36 37 39/27 30 31 44 47 48 55 56/26 29/29 42 43/31 32 55/33 45/34 43 50/38 42 44 45
56/32 35 46 47/35/45 56/39 40 42 43 51 52 54/37 46/37 39 41/41 46/42 44 49 51 54/40 41/41 49 52/46 49 53/43 51//48
49/56/47 53/48 49 53/49/52 53 54//54/54///56/"""


@pytest.mark.slow
def test_lip_cancer_in_scotland():
    """INLA's BYM model of Moraga 2019, chapter 6: -0.305 (0.120) and, of a tenth in agriculture, 0.433 (0.128)."""
    rows = [[float(value) for value in row.split()] for row in LIPS.split("/")]
    data = pd.DataFrame(rows, columns=["cases", "expected", "aff"]).assign(county=range(1, 57))
    data["aff"] /= 10.0
    graph = {one + 1: [int(b) for b in others.split()] for one, others in enumerate(SCOTLAND.split("/"))}
    text = "cases ~ aff + offset(log(expected)) + bym2(county, W)"
    regression = pgm.formula(text, data, family="poisson", context={"W": graph})
    draws = regression.nuts(seed=1).summary()
    for result in (regression.fit(), regression.integrate()):
        summary = result.summary()
        np.testing.assert_allclose(summary.loc[["Intercept", "aff"], "mean"], [-0.305, 0.433], atol=0.02)
        np.testing.assert_allclose(summary.loc[["Intercept", "aff"], "sd"], [0.120, 0.128], atol=0.02)
        np.testing.assert_allclose(summary["mean"][:4].astype(float), draws["mean"][:4].astype(float), atol=0.06)
