"""Reports: complete, self-contained, readable without images, and consistent with the comparison."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.report.report import write_report
from pgmodels.report.verdicts import verdicts
from pgmodels.results.approximation import FitReport
from tests.report.test_html import NASTY, Reader

LOADS = re.compile(
    r"""(src|href|srcset|action|data|poster)\s*=\s*["'](?!data:image/|#)|url\(|@import|<script|<link|<iframe"""
)

pytestmark = pytest.mark.slow


@cache
def binary():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    y = (rng.random(60) < 1 / (1 + np.exp(-2 * X[:, 0] - 0.5))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.3, pgm.Fixed(0.9)), mean=0.4))
    learned = FitReport("given", {"given": -21.5}, {"variance": np.array(1.30471)}, 5, 8, True, "enough")
    vi = replace(pgm.cavi(model, X[:40], y[:40]), fit=learned)
    draws = pgm.gibbs(model, X[:40], y[:40], num_samples=60, num_warmup=10, num_chains=2, seed=0)
    return pgm.compare(gibbs=draws, cavi=vi, X=X[40:], y=y[40:])


@cache
def letters():
    """26 classes with a latent each."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(52, 3))
    y = np.tile(np.arange(26.0), 2)
    model = pgm.Model(pgm.LogisticSoftmax(26), pgm.GP(pgm.RBF(1.0, 0.8), size=26))
    vi = pgm.cavi(model, X, y)
    # Draws of q stand for the posterior's, which would take longer.
    _, whitened = vi.draw_at_data(120)
    draws = pgm.Draws(
        model=vi.model,
        X=vi.X,
        y=vi.y,
        prior=vi.prior,
        seconds=1.0,
        method="gibbs",
        whitened=tuple(v.reshape(2, 60, *v.shape[1:]) for v in whitened),
        log_likelihood_trace=rng.normal(size=(2, 60)),
        num_warmup=0,
    )
    return pgm.compare(gibbs=draws, cavi=vi, X=X[:26] + 0.1, y=y[:26])


@cache
def counts():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(30, 1))
    y = rng.poisson(2.0, 30).astype(float)
    model = pgm.Model(pgm.NegativeBinomial(2.0), pgm.GP(pgm.RBF(0.5, 1.0)))
    draws = pgm.gibbs(model, X, y, num_samples=200, num_warmup=5, num_chains=2, seed=0)
    return pgm.compare(gibbs=draws)


def read(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert not LOADS.search(text)
    # Addresses may be written, as a data set's could be; nothing in this package writes one into a report.
    assert "http://" not in text
    assert "https://" not in text
    assert len(text.encode()) < 5e6
    return Reader(text)


def headings(path):
    return [int(level) for level in re.findall(r"<h([1-6])", path.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    settings = {"command": "pgmodels validate --data 'a b'", "seed": 17, "versions": {"numpy": "9.9"}}
    return write_report(path, binary(), title="A title", settings=settings, notes=["beware of the dog"])


def test_the_whole_report_is_there(report):
    reader = read(report)
    frame = binary().to_dataframe()
    for figure in (frame.loc["cavi", "mean_error"], frame.loc["gibbs", "negative_log_density"]):
        assert f"{figure:#.4g}" in reader.words
    for verdict in verdicts(binary()).values():
        for sentence in verdict.sentences:
            assert " ".join(sentence.split()) in reader.words
    for said in ("pgmodels validate --data 'a b'", "17", "numpy 9.9", "beware of the dog", "1.30471", "-21.5000", "PG"):
        assert said in reader.words
    assert r"\begin{align*}" in reader.words
    assert ("lang", "en") in reader.attributes
    assert "A title" in reader.words


def test_headings_go_down_one_level_at_a_time(report):
    levels = headings(report)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_the_index_leads_to_every_section(report):
    attributes = read(report).attributes
    targets = {value for name, value in attributes if name == "id"}
    links = [value.removeprefix("#") for name, value in attributes if name == "href"]
    assert len(links) >= 6
    assert set(links) <= targets


def test_figures_say_what_they_show(report):
    reader = read(report)
    alts = [value for name, value in reader.attributes if name == "alt"]
    assert len(alts) == len(set(alts)) == reader.tags.count("img") == reader.tags.count("figcaption") >= 6
    assert min(map(len, alts)) > 30
    sources = [value for name, value in reader.attributes if name == "src"]
    assert all(re.match(r"data:image/(png|svg\+xml);base64,[A-Za-z0-9+/]{500,}=*$", source) for source in sources)


def test_names_that_users_give_are_escaped(tmp_path):
    comparison = binary()
    nasty = replace(comparison.results["cavi"], method=NASTY)
    results = {"gibbs<i>": comparison.results["gibbs"], NASTY: nasty}
    renamed = pgm.compare(X=comparison.test.X, y=comparison.test.y, **results)
    diagnosis = pgm.diagnose(nasty, num_replicates=2, num_draws=100)
    path = write_report(
        tmp_path / "r.html",
        renamed,
        title="<i>title",
        settings={"command": "<i>", "<i>key": ["<i>value"]},
        notes=["<i>note"],
        class_names=["<i>no", NASTY],
        diagnoses={"<i>more": diagnosis},
    )
    reader = read(path)
    assert "i" not in reader.tags
    for text in (NASTY, "<i>no", "<i>title", "<i>key", "<i>value", "<i>note", "<i>more", "gibbs<i>"):
        assert text in reader.words
    # The only bold texts are what is best, the likelihood's name and the labels in "Data, model and results".
    bold = re.findall(r"<b>(.*?)</b>", path.read_text(encoding="utf-8"))
    assert all(re.match(r"[-\d.]+ \*$|Bernoulli\(\)$|gibbs&lt;i&gt;$|&lt;b&gt;&amp;&quot;$", text) for text in bold)


def test_26_classes_with_names(tmp_path):
    names = [f"letter {chr(65 + c)} {NASTY}" for c in range(26)]
    path = write_report(tmp_path / "r.html", letters(), title="Letters", settings={}, class_names=names)
    reader = read(path)
    assert reader.words.count("letter Q") >= 1
    # Two training rows and one test row of each class.
    assert re.search(r"letter Z <b>&\" ?2 ?1 ?", reader.words)
    comparison = letters()
    right = comparison.test.predictions["cavi"].argmax(axis=1)[25] == 25
    assert f"{float(right):.3f}" in reader.words


def test_class_shares_are_the_shares(report):
    comparison = binary()
    test = comparison.test
    for value in (0, 1):
        mask = test.y == value
        share = np.mean((test.predictions["cavi"][mask, 1] > 0.5) == value)
        assert f"{mask.sum()}{np.mean((test.predictions['gibbs'][mask, 1] > 0.5) == value):.3f}{share:.3f}" in "".join(
            read(report).words.split()
        )


def test_latents_to_distrust_are_listed_beside_the_reference(tmp_path):
    comparison = binary()
    draws, vi = comparison.results["gibbs"], comparison.results["cavi"]
    mean = vi.mean.copy()
    mean[7, 0] += 40.0
    path = pgm.compare(gibbs=draws, cavi=replace(vi, mean=mean)).report(tmp_path / "r.html")
    words = read(path).words
    variance = vi.variance[7, 0]
    assert f"{mean[7, 0]:.3g} ± {np.sqrt(variance):.3g}" in words
    assert f"{draws.mean[7, 0]:.3g} ± {np.sqrt(draws.variance[7, 0]):.3g}" in words
    assert "not reliable" in words


def test_a_comparison_of_draws_alone_without_test_data(tmp_path):
    words = read(counts().report(tmp_path / "r.html", title="Counts", settings={"who": "me"})).words
    assert "NegativeBinomial" in words
    assert "who" in words
    assert "test rows" not in words


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [(binary, ["one"], "2 names"), (binary, "ab", "2 names"), (counts, ["a", "b"], "not a class")],
)
def test_class_names_that_do_not_fit_are_refused(make, names, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make().report(tmp_path / "r.html", class_names=names)
    assert not (tmp_path / "r.html").exists()
