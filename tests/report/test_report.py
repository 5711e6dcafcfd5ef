"""Reports: complete, self-contained, readable without images, and consistent with the comparison."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit

import pgmodels as pgm
from pgmodels.diagnostics.compare import compare
from pgmodels.inference.correct import correct
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.vi import cavi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Gaussian
from pgmodels.model import GP, Model
from pgmodels.report.report import write_report
from pgmodels.report.summaries import Html, element, html, join, table
from pgmodels.report.verdicts import verdicts
from pgmodels.results.approximation import FitReport

LOADS = re.compile(
    r"""(src|href|srcset|action|data|poster)\s*=\s*["'](?!data:image/|#)|url\(|@import|<script|<link|<iframe"""
)

NASTY = '<b>&"'


def labels(count):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(count, 2))
    y = (rng.random(count) < 1 / (1 + np.exp(-2 * X[:, 0] - 0.5))).astype(float)
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.3, pgm.Fixed(0.9)), mean=0.4)), X, y


@cache
def binary():
    model, X, y = labels(60)
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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    settings = {"command": "pgmodels validate --data 'a b'", "seed": 17, "versions": {"numpy": "9.9"}}
    return write_report(path, binary(), title="A title", settings=settings, notes=["beware of the dog"])


@pytest.mark.slow
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


@pytest.mark.slow
def test_headings_go_down_one_level_at_a_time(report):
    levels = [int(level) for level in re.findall(r"<h([1-6])", report.read_text(encoding="utf-8"))]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


@pytest.mark.slow
def test_the_index_leads_to_every_section(report):
    attributes = read(report).attributes
    targets = {value for name, value in attributes if name == "id"}
    links = [value.removeprefix("#") for name, value in attributes if name == "href"]
    assert len(links) >= 6
    assert set(links) <= targets


@pytest.mark.slow
def test_figures_say_what_they_show(report):
    reader = read(report)
    alts = [value for name, value in reader.attributes if name == "alt"]
    assert len(alts) == len(set(alts)) == reader.tags.count("img") == reader.tags.count("figcaption") >= 6
    assert min(map(len, alts)) > 30
    sources = [value for name, value in reader.attributes if name == "src"]
    assert all(re.match(r"data:image/(png|svg\+xml);base64,[A-Za-z0-9+/]{500,}=*$", source) for source in sources)


@pytest.mark.slow
def test_names_are_escaped_in_reports(tmp_path):
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_class_shares_are_the_shares(report):
    comparison = binary()
    test = comparison.test
    for value in (0, 1):
        mask = test.y == value
        share = np.mean((test.predictions["cavi"][mask, 1] > 0.5) == value)
        assert f"{mask.sum()}{np.mean((test.predictions['gibbs'][mask, 1] > 0.5) == value):.3f}{share:.3f}" in "".join(
            read(report).words.split()
        )


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_comparison_of_draws_alone_without_test_data(tmp_path):
    words = read(counts().report(tmp_path / "r.html", title="Counts", settings={"who": "me"})).words
    assert "NegativeBinomial" in words
    assert "who" in words
    assert "test rows" not in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "names", "message"),
    [(binary, ["one"], "2 names"), (binary, "ab", "2 names"), (counts, ["a", "b"], "not a class")],
)
def test_class_names_that_do_not_fit_are_refused(make, names, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make().report(tmp_path / "r.html", class_names=names)
    assert not (tmp_path / "r.html").exists()


# Display in notebooks and terminals: text escaped, elements closed, at most 100 columns.


VOID = {"img", "meta", "br", "hr", "wbr", "link"}


class Reader(HTMLParser):
    """Tags that were opened, text outside of them, and whether every tag was closed where it should be."""

    def __init__(self, document):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text, self.attributes = [], [], [], []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())


@cache
def problem():
    model, X, y = labels(24)
    vi = pgm.cavi(model, X, y)
    return model, vi, pgm.gibbs(model, X, y, num_samples=80, num_warmup=10, num_chains=2, seed=0)


def test_text_is_escaped_and_html_is_not():
    assert html("a < b & c") == "a &lt; b &amp; c"
    assert html(Html("<i>a</i>")) == "<i>a</i>"
    assert join(["<", element("b", "x>y")], ", ") == "&lt;, <b>x&gt;y</b>"
    assert element("p", "a", "&", class_="x", title='say "<i>"', style=None) == (
        '<p class="x" title="say &quot;&lt;i&gt;&quot;">a&amp;</p>'
    )
    assert element("img", alt="<") == '<img alt="&lt;">'


def test_tables_head_their_rows_and_columns():
    reader = Reader(table(["", NASTY], [["<r>", "1"], ["s", element("td", "2", class_="best")]], caption="a & b"))
    assert reader.tags.count("th") == 4
    assert reader.tags.count("td") == 2
    assert {"b", "r"}.isdisjoint(reader.tags)
    assert [value for name, value in reader.attributes if name == "scope"] == ["col", "col", "row", "row"]
    assert "a & b" in reader.words


@pytest.mark.parametrize("which", [0, 1, 2])
def test_models_and_results_show_themselves(which):
    shown = problem()[which]
    reader = Reader(shown._repr_html_())
    assert "Bernoulli()" in reader.words
    assert len(repr(shown)) < 200


def test_figures_of_results_are_the_results_own():
    _, vi, draws = problem()
    text = " ".join(str(vi).split())
    assert f"ELBO {vi.elbo:.4f} nats" in text
    assert f"{vi.num_iterations}, converged" in text
    assert "not converged" in " ".join(str(replace(vi, converged=False)).split())
    corrected = pgm.correct(vi)
    assert "0 of 24" in Reader(corrected._repr_html_()).words
    frame = pgm.compare(gibbs=draws).to_dataframe()
    words = Reader(draws._repr_html_()).words
    assert f"{frame.loc['gibbs', 'rhat']:.3f}" in words
    assert f"{frame.loc['gibbs', 'ess_bulk']:.0f}" in words
    assert f"{frame.loc['gibbs', 'ess_tail']:.0f}" in words
    assert "80 in each of 2 chains, after 10 of warm-up" in words
    one = replace(draws, whitened=tuple(v[:1] for v in draws.whitened), log_likelihood_trace=np.zeros((1, 80)))
    assert "not defined for one chain" in str(one).replace("\n", " ")
    kept = replace(draws, whitened=None, hyperparameters={"variance": np.arange(160.0).reshape(2, 80)})
    text = " ".join(str(kept).split())
    assert "were not stored" in text
    # The median, the 5 % and the 95 % quantile of 0, 1, ..., 159.
    assert "sampled variance 79.5 (90 %: 7.95 to 151)" in text


def test_every_hyperparameter_is_listed():
    words = Reader(problem()[0]._repr_html_()).words
    for value in ("variance", "1.3", "lengthscale", "0.9", "fixed", "mean", "0.4", "trainable"):
        assert value in words


def test_derivations_and_graphs_show_themselves():
    derivation = pgm.derive(pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(), size=3)))
    assert derivation._repr_latex_().startswith("\\begin{align*}")
    graph = Reader(derivation.graph._repr_html_()).words
    for node in derivation.graph.nodes:
        assert node.label in graph


def test_names_are_escaped_in_notebooks():
    def formula(y, f):
        return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)

    formula.__name__ = NASTY
    model = pgm.Model(pgm.likelihood(formula)(), pgm.GP(pgm.RBF(1.3, 0.9)))
    _, vi, draws = problem()
    renamed = replace(vi, model=model, method="<i>mine")
    results = {"gibbs<i>": draws, NASTY: vi}
    comparison = pgm.compare(**results)
    for shown in (model, pgm.derive(model).graph, renamed, comparison):
        reader = Reader(shown._repr_html_())
        assert "i" not in reader.tags
        assert "b" not in reader.tags or shown in (model, comparison)
        assert NASTY in reader.words
    assert "gibbs<i>" in Reader(comparison._repr_html_()).words


def test_what_is_best_is_marked():
    _, vi, draws = problem()
    worse = replace(vi, mean=vi.mean + 3.0)
    # Chains that do not agree, whatever their draws are.
    apart = replace(draws, stored_latents=draws.latents + np.array([0.0, 2.0])[:, None, None, None])
    reader = Reader(pgm.compare(gibbs=apart, cavi=vi, worse=worse)._repr_html_())
    # Means, Wasserstein and their maxima; variances and ELBO are alike.
    assert reader.tags.count("b") >= 3
    assert "! These errors are not reliable" in reader.words


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("label", ["a", "a_label_of_middling_length", "x" * 130, "words that go on " * 9])
def test_printed_results_and_comparisons_fit_100_columns(count, label):
    _, vi, draws = problem()
    results = {f"{label}{i}": replace(vi, mean=vi.mean + 0.1 * i) for i in range(count)}
    printed = str(pgm.compare(**{f"gibbs {label}": draws}, **results))
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 100
    # Every result has its own figure, once, in the order given.
    row = [cell for line in lines if line.startswith("ELBO") for cell in line.split()[2:]]
    assert row == ["-"] + [f"{vi.elbo:#.4g}"] * count
    name = "".join(label.split())
    heads = "".join("".join(printed.split()))
    assert count == 1 or name[:15] in heads
    for result in (vi, draws):
        assert max(map(len, str(result).splitlines())) <= 100


def test_a_comparison_in_one_block_reads_in_columns():
    _, vi, draws = problem()
    lines = str(pgm.compare(gibbs=draws, cavi=vi, other=vi)).splitlines()
    assert lines[0].split() == ["gibbs", "(ref.)", "cavi", "other"]
    assert all(line[len("smallest bulk ESS ") :].strip() for line in lines if line.startswith("smallest bulk ESS"))
    end = lines[0].index("cavi") + len("cavi")
    assert all(line[end - 2] != " " for line in lines if line.startswith(("mean |error|", "ELBO", "seconds")))


# Verdicts: a planted error is reported, an exact or a close result is not.


@cache
def gaussian():
    """CAVI is exact here, and every draw is independent."""
    X = np.random.default_rng(2).normal(size=(30, 2))
    model = Model(Gaussian(0.5), GP(RBF(1.5, 0.9), mean=0.4))
    y = np.sin(2 * X[:, 0]) + 0.3
    runs = [gibbs(model, X, y, num_samples=1500, num_warmup=5, num_chains=4, seed=seed) for seed in (3, 4)]
    return cavi(model, X, y), *runs


@cache
def bernoulli():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = (rng.random(30) < expit(2.0 * X[:, 0] + 0.8)).astype(float)
    model = Model(Bernoulli(), GP(RBF(0.5, 0.9), mean=0.8))
    vi = cavi(model, X, y)
    return vi, correct(vi), gibbs(model, X, y, num_samples=1500, num_warmup=100, num_chains=4, seed=3)


def judge(**results):
    return verdicts(compare(**results))


@pytest.mark.slow
def test_an_exact_approximation_and_a_second_run_are_trusted():
    vi, one, two = gaussian()
    verdicts = judge(gibbs=one, cavi=vi, second=two)
    assert {label: verdict.level for label, verdict in verdicts.items()} == dict.fromkeys(verdicts, "trust")
    assert any("none of 30 is off beyond Monte-Carlo error" in sentence for sentence in verdicts["cavi"].sentences)
    assert any("agrees with gibbs within Monte-Carlo error" in sentence for sentence in verdicts["second"].sentences)
    assert all(len(verdict.latents) == 0 for verdict in verdicts.values())


@pytest.mark.slow
def test_halved_variances_are_called_out_and_the_good_result_beside_them_is_not():
    _, fixed, draws = bernoulli()
    verdicts = judge(gibbs=draws, corrected=fixed, halved=replace(fixed, variance=0.5 * fixed.variance))
    assert verdicts["corrected"].level == "trust"
    assert verdicts["halved"].level == "distrust"
    assert "too narrow" in str(verdicts["halved"])
    assert len(verdicts["halved"].latents) > 15
    # Variance doubled is as wrong the other way.
    assert "too wide" in str(judge(gibbs=draws, doubled=replace(fixed, variance=2.0 * fixed.variance))["doubled"])


@pytest.mark.slow
def test_one_wrong_latent_is_named():
    vi, draws, _ = gaussian()
    mean = vi.mean.copy()
    mean[17, 0] += 1.5 * np.sqrt(vi.variance[17, 0])
    verdict = judge(gibbs=draws, cavi=replace(vi, mean=mean))["cavi"]
    assert verdict.level == "care"
    assert verdict.latents.tolist() == [[17, 0]]
    x = ", ".join(f"{value:.3g}" for value in vi.X[17])
    assert f"row 17 (x = {x})" in str(verdict)


@pytest.mark.slow
def test_a_biased_sampler_is_called_out():
    _, one, two = gaussian()
    moved = replace(two, whitened=tuple(v + 0.3 for v in two.whitened))
    verdict = judge(gibbs=one, moved=moved)["moved"]
    assert verdict.level == "distrust"
    assert "one of the two has not converged, or is wrong" in str(verdict)


@pytest.mark.slow
def test_errors_against_an_unmixed_reference_are_provisional():
    vi, draws, _ = gaussian()
    stuck = [v + np.array([0.0, 0.0, 3.0, 3.0])[:, None, None, None] for v in draws.whitened]
    verdicts = judge(gibbs=replace(draws, whitened=tuple(stuck)), cavi=vi)
    assert verdicts["gibbs"].level == "distrust"
    assert "the chains disagree" in str(verdicts["gibbs"])
    assert verdicts["cavi"].sentences[0] == "The reference, gibbs, is not reliable, so these figures are provisional."


@pytest.mark.parametrize(
    ("num_samples", "words"), [(3, "too few to assess convergence"), (30, "too low to use the draws")]
)
def test_short_runs_are_not_trusted(num_samples, words):
    _, _, draws = bernoulli()
    short = replace(
        draws,
        whitened=tuple(v[:2, :num_samples] for v in draws.whitened),
        log_likelihood_trace=draws.log_likelihood_trace[:2, :num_samples],
    )
    verdict = judge(gibbs=short)["gibbs"]
    assert verdict.level == "distrust"
    assert words in str(verdict)


def test_nonpositive_variances_are_not_trusted():
    _, fixed, draws = bernoulli()
    variance = fixed.variance.copy()
    variance[5] = -0.1
    verdict = judge(gibbs=draws, corrected=replace(fixed, variance=variance, num_nonpositive=1))["corrected"]
    assert verdict.level == "distrust"
    assert "1 of its variances" in str(verdict)
    assert verdict.latents[0].tolist() == [5, 0]
