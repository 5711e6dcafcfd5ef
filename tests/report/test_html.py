"""Display in notebooks and terminals: text escaped, elements closed, at most 100 columns."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.report.summaries import Html, element, html, join, table

NASTY = '<b>&"'
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
    rng = np.random.default_rng(1)
    X = rng.normal(size=(24, 2))
    y = (rng.random(24) < 1 / (1 + np.exp(-2 * X[:, 0] - 0.5))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.3, pgm.Fixed(0.9)), mean=0.4))
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


def test_names_that_users_give_are_escaped():
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
