"""README and docs/: their code runs as it stands, and what they cite, list and show exists."""

import ast
import doctest
import inspect
import re
import runpy
import sys
from pathlib import Path
from unittest.mock import MagicMock

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.augmentation.rules import RULES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
FENCED = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<block>.*?)^```$", re.MULTILINE | re.DOTALL)
# Written by a build of the site.
BUILT = {DOCS / "gallery", DOCS / "reference" / "api"}


def pages():
    return [path for path in [README, *DOCS.rglob("*.md")] if not BUILT & set(path.parents)]


def blocks(path, language):
    """The blocks of a page in a language, in order."""
    fenced = FENCED.finditer(path.read_text(encoding="utf-8"))
    return [match["block"] for match in fenced if match["language"] == language]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A page's blocks of Python with what its reader has: the package, and data in the folder and at hand."""
    monkeypatch.chdir(tmp_path)

    def run(page, language="python", **at_hand):
        names = {"pgm": pgm, "display": print, **at_hand}
        for block in blocks(ROOT / page, language):
            exec(compile(block, page, "exec"), names)
        return names

    yield run
    plt.close("all")


def test_every_page_with_code_is_run_below():
    source = Path(__file__).read_text(encoding="utf-8")
    runnable = {
        path.relative_to(ROOT).as_posix()
        for path in pages()
        if blocks(path, "python") or blocks(path, "{code-cell} ipython3")
    }
    tested = set(re.findall(r"run\(\"(.+?\.md)\"", source)) | {f"docs/tutorials/{name}.md" for name in TUTORIALS}
    # The front page shows a fragment.
    assert tested == runnable - {"docs/index.md"}
    languages = {match["language"] for path in pages() for match in FENCED.finditer(path.read_text(encoding="utf-8"))}
    known = {"python", "text", "console", "{code-cell} ipython3", "{math}", "{toctree}", "{eval-rst}"}
    assert {word for word in languages if not word.startswith(("{image}", "{include}"))} <= known


@pytest.mark.slow
def test_a_first_model(run, capsys, tmp_path):
    run("README.md")
    (shown,), printed = blocks(README, "text"), capsys.readouterr().out.splitlines()
    labels = [line[:34].rstrip() for line in shown.splitlines() if not line.startswith(("*", "  "))]
    assert [line[:34].rstrip() for line in printed if line[:34].rstrip() in labels] == labels
    # What does not depend on draws or on the clock.
    (elbo,) = (line for line in shown.splitlines() if line.startswith("ELBO"))
    assert elbo.split() == next(line.split() for line in printed if line.startswith("ELBO"))
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_derivation_that_is_shown():
    @pgm.likelihood
    def logistic_softmax(y, f):
        return pgm.sigmoid(f[y]) / pgm.sum(pgm.sigmoid(f))

    model = pgm.Model(logistic_softmax(), pgm.GP(pgm.Matern52(lengthscale=2.0), size=3))
    printed = str(pgm.derive(model)).splitlines()
    lines = iter(printed)
    (shown,) = blocks(DOCS / "explanation" / "augmentation_rules.md", "text")
    # In this order, among others.
    missing = [line for line in shown.splitlines() if line and line not in lines]
    assert not missing, printed


@pytest.mark.slow
def test_observations(run):
    names = run("docs/how-to/observations.md")
    for name in ("log_logistic", "tobit", "exposed", "attempts"):
        assert pgm.derive(names[name]()).augmentation.rules, name
    for name, size in (("ordered", 1), ("zero_inflated", 2), ("label_noise", 1)):
        assert pgm.derive(pgm.Model(names[name](), pgm.GP(pgm.RBF(1.0, 1.0), size=size))).verify(seed=0).figures, name


@pytest.mark.slow
def test_starts_from_results(run):
    names = run("docs/how-to/hyperparameters.md")
    assert names["elbos"][-1] == pytest.approx(pgm.cavi(names["model"], names["X"], names["y"]).elbo, abs=1e-6)
    assert all(result.fit.start == "result" for result in names["resampled"])
    new = names["third"].predict_latent([[1.5], [4.5]])
    np.testing.assert_allclose((names["means"][3], names["variances"][3]), new, atol=1e-6)


def test_predictors_that_combine_latents(run):
    names = run("docs/how-to/combine_latents.md")
    assert "z = f[0] + y[1] f[1] + f[2]" in str(pgm.derive(names["model"]))
    assert names["likelihood"].parameters["scale_0"].value == 0.3


def test_a_kernel_of_your_own(run):
    kernel = run("docs/how-to/own_kernel.md")["Projected"](
        pgm.Parameter(np.array([[1.0, -2.0], [0.5, 0.3]]), positive=False)
    )
    x = np.array([[0.7, 0.2]])
    np.testing.assert_allclose(kernel(x, x + 0.5), np.exp(-0.5 * (0.5**2 + 0.4**2)), rtol=1e-6)


def test_data_frames(run):
    names = run("docs/how-to/data_frames.md")
    assert [column.kind for column in names["result"].columns] == ["date", "level"]
    assert names["mean"].shape == (2, 1)


@pytest.mark.slow
def test_formulas(run):
    assert "treat[T.yes]" in run("docs/how-to/formulas.md")["result"].summary().index


@pytest.mark.slow
def test_new_ideas(run):
    assert run("docs/explanation/new_ideas.md")["series"].to_dataframe().loc["corrected", "variance_error"] < 0.05


@pytest.mark.slow
def test_ten_jobs(run):
    names = run("docs/how-to/ten_jobs.md")
    assert names["comparison"].to_dataframe().loc["vi", "mean_error"] < 0.05
    assert names["probabilities"].shape == (5, 2)


def num_statements(code, library):
    """Statements of Python other than imports; of R, lines that do not continue the one before."""
    if library != "brms":
        imports = (ast.Import, ast.ImportFrom)
        return sum(isinstance(node, ast.stmt) and not isinstance(node, imports) for node in ast.walk(ast.parse(code)))
    lines, count, depth = code.splitlines(), 0, 0
    for line in lines:
        count += depth == 0 and re.search(r"\w", line) is not None
        depth += len(re.findall(r"[(\[]", line)) - len(re.findall(r"[)\]]", line))
    return count


def test_statements_of_ten_jobs_are_counted():
    page = (DOCS / "how-to" / "ten_jobs.md").read_text(encoding="utf-8")
    table, *jobs = re.findall(r"^\| \[?(.+?)(?:\]\(#[\w-]+\))? \| (.+) \|$", page, re.MULTILINE)
    assert len(jobs) == 10
    libraries = table[1].split(" | ")
    for job, counts in jobs:
        section = page.split(f"\n## {job}\n")[1].split("\n## ")[0]
        codes = {
            "pgmodels": "".join(match["block"] for match in FENCED.finditer(section) if match["language"] == "python")
        }
        for match in FENCED.finditer(section):
            if match["language"] == "text":
                library, code = match["block"].split("\n", 1)
                codes[library.removeprefix("# ")] = code
        for library, count in zip(libraries, counts.split(" | "), strict=True):
            assert count == (str(num_statements(codes[library], library)) if library in codes else "-"), (job, library)


# The figures of the pages, of the other packages too.
@pytest.mark.slow
def test_coming_from_gpflow(run):
    names = run("docs/migrate/gpflow.md")
    bounds = [names[name].elbo for name in ("noisy", "logit", "probit", "log_link", "learned")]
    np.testing.assert_allclose(bounds, [-13.9336, -34.9368, -35.7335, -83.8922, -7.1051], atol=1e-4)


@pytest.mark.slow
def test_coming_from_scikit_learn(run):
    names = run("docs/migrate/scikit_learn.md")
    np.testing.assert_allclose(names["regressor"].predict([[1.0]], return_std=True), [[0.75835], [0.21628]], atol=1e-5)
    np.testing.assert_allclose(names["evidence"].value, -34.934, atol=0.01)
    np.testing.assert_allclose(names["classifier"].predict_proba([[1.0], [2.5]])[:, 1], [0.5850, 0.2519], atol=1e-4)


@pytest.mark.slow
def test_coming_from_brms_and_bambi(run):
    table = run("docs/migrate/brms_bambi.md")["integrated"].summary()
    # Of NumPyro with the same priors; its Monte Carlo errors are 0.004.
    np.testing.assert_allclose(table["mean"], [-1.147, -0.502, -1.049, -0.901, 0.650], atol=0.015)
    np.testing.assert_allclose(table["sd"], [0.327, 0.335, 0.377, 0.381, 0.293], atol=0.01)


@pytest.mark.slow
def test_coming_from_inla_and_mgcv(run):
    table = run("docs/migrate/inla.md")["result"].summary()
    assert abs(table.loc["treated", "mean"] - 1.0) < 4.0 * table.loc["treated", "sd"]
    estimates = run("docs/migrate/glmmtmb.md")["result"].summary()
    assert abs(estimates.loc["mined[T.yes]", "mean"] + 1.0) < 3.0 * estimates.loc["mined[T.yes]", "sd"]
    curve = run("docs/migrate/mgcv.md")["curve"]["mean"]
    # exp(1 + sin x) at 0, 1.5, 3, 4.5 and 6.
    assert curve.argmax() == 1
    assert curve.argmin() == 3


def test_long_series(run):
    names = run("docs/how-to/series.md")
    dense = pgm.gaussian_vi(names["model"].with_form(pgm.Dense()), names["times"][:, None], names["events"])
    np.testing.assert_allclose(names["vi"].mean, dense.mean, atol=1e-8)


@pytest.mark.slow
def test_scikit_learn(run):
    assert run("docs/how-to/scikit_learn.md")["search"].best_score_ > -0.4


@pytest.fixture
def rules():
    """The rules of augmentation, as they were before."""
    before = list(RULES)
    yield
    RULES[:] = before


# A rule and an engine.
@pytest.mark.slow
def test_extensions(run, rules):
    names = run("docs/how-to/contribute.md")
    assert pgm.derive(names["noise"]).augmentation.rules[0].title == "Secant"
    assert names["slow"].num_iterations > names["fast"].num_iterations
    np.testing.assert_allclose(names["slow"].mean, names["fast"].mean, atol=1e-5)
    for path in ("contribute", "own_kernel", "own_objective"):
        assert all(block.count("\n") <= 100 for block in blocks(DOCS / "how-to" / f"{path}.md", "python")), path


@pytest.mark.slow
def test_an_objective_of_your_own(run):
    names = run("docs/how-to/own_objective.md")
    exact = pgm.gaussian_vi(names["model"], names["X"], names["y"])
    np.testing.assert_allclose(names["vi"].elbo, exact.elbo, atol=1e-6)
    assert names["trace"][-1] == names["vi"].elbo
    np.testing.assert_allclose(names["fixed"].variance, pgm.correct(exact).variance, rtol=1e-3)


# Half a minute. There are fewer rows than classes, and steps enough for few.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.DataWarning", "ignore::pgmodels.ConvergenceWarning")
def test_large_data_and_many_classes(run, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal([6.0, 12.0, 900.0], [3.0, 5.0, 400.0], (600, 3))
    late = (X[:, 1] + rng.standard_normal(600) > 14.0).astype(int)
    pd.DataFrame({"month": X[:, 0], "hour": X[:, 1], "distance": X[:, 2], "late": late}).to_parquet(
        tmp_path / "flights.parquet"
    )
    names = run("docs/how-to/large_data.md", X_new=X[:5])
    assert names["vi"].predict(X[:2]).probabilities.shape == (2, 2)
    np.testing.assert_allclose(names["result"].model.gps[0].form.domain, [(-3.75, 23.75)], atol=0.05)
    names = run("docs/how-to/many_classes.md", X=X, y=rng.integers(0, 1000, 600))
    assert names["vi"].predict(X[:2]).probabilities.shape == (2, 1000)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Estimated shape parameter:UserWarning",
    "ignore:The inplace keyword",  # of pandas, in az.compare
)
def test_arviz(run, monkeypatch):
    try:
        import arviz_plots  # noqa: F401
    except (ImportError, AttributeError):  # arviz-plots 0.8 does not import with matplotlib 3.11
        monkeypatch.setitem(sys.modules, "arviz_plots", MagicMock())
    names = run("docs/how-to/arviz.md")
    # Two small-sample estimates of one quantity, of hyperparameters that are learned and drawn.
    assert abs(pgm.loo(names["fitted"]).elpd - pgm.loo(names["draws"]).elpd) < 3.0


@pytest.mark.slow
def test_check_a_model(run, tmp_path):
    check = run("docs/how-to/check_a_model.md")["check"]
    assert check.verdict[-1].startswith("Next: ")
    assert (tmp_path / "check.html").stat().st_size > 10_000


@pytest.mark.slow
def test_other_samplers(run, capsys):
    with jax.enable_x64(True):
        names = run("docs/how-to/other_samplers.md")
    jax.config.update("jax_enable_x64", False)
    assert abs(-float(names["loss"]) - names["vi"].elbo) < 0.3
    assert names["drawn"]["f"].shape == (100, 30, 1)


TUTORIALS = ("first_model", "own_likelihood", "mixed_models", "validate_vi", "large_data")


# Up to a minute each.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.CorrectionWarning")
@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorials_run(name, run, capsys):
    names = run(f"docs/tutorials/{name}.md", "{code-cell} ipython3")
    printed = capsys.readouterr().out
    assert "gibbs (ref.)" in printed
    if name == "own_likelihood":
        assert r"\begin{align*}" in printed
        assert "no augmentation for the factor" in printed
        assert 1.0 < float(names["fitted"].model.likelihood.values["dispersion"]) < 10.0


def test_every_public_name_is_in_the_reference():
    listed: dict[str, list[str]] = {}
    for path in (DOCS / "reference").glob("*.md"):
        for block in blocks(path, "{eval-rst}"):
            (module,) = re.findall(r"currentmodule:: (\S+)", block)
            listed.setdefault(module, []).extend(re.findall(r"^   (\w+)$", block, re.MULTILINE))
    assert sorted(listed.pop("pgmodels.systems")) == sorted(pgm.systems.__all__)
    # The module of published systems has a page of its own.
    assert sorted([*listed.pop("pgmodels"), "systems"]) == sorted(pgm.__all__)
    assert not listed


def test_sections_of_the_mathematics_that_are_cited_exist():
    page = (DOCS / "explanation" / "mathematics.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^\(math-section-(\w+)\)=\n## (\w+)\. ", page, re.MULTILINE))
    assert all(label == number for label, number in sections.items())
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "pgmodels").rglob("*.py")}
    cited = {(number, path) for path, text in texts.items() for number in re.findall(r"math:\s+section (\w+)", text)}
    assert len(cited) >= 10
    assert {number for number, _ in cited} <= set(sections), cited
    # Nor is any other form of citation.
    for path, text in texts.items():
        assert text.count("math: ") == len(re.findall(r"math: section \w+", text)), path


def test_the_list_of_modules_is_that_of_the_package():
    script = runpy.run_path(str(DOCS / "module_map.py"))
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    assert page == script["page"](), "run python docs/module_map.py"
    modules = [path for path in (ROOT / "pgmodels").rglob("*.py") if path.name != "__init__.py"]
    assert len(re.findall(r"^- `\w+\.py`: \S.*\.$", page, re.MULTILINE)) == len(modules)


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 100


def test_links_and_pictures_exist():
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", text):
            assert len(alternative.split()) >= 5, f"{target} needs words for those who do not see it"
            assert (path.parent / target).is_file(), target
        for target in re.findall(r"(?<!!)\[[^\]]+\]\(([^)#]+)\)", text):
            # The pages of the gallery are written by a build, one for each example.
            if match := re.fullmatch(r"\.\./gallery/(\w+)\.rst", target):
                assert match[1] == "index" or (ROOT / "examples" / f"{match[1]}.py").is_file(), target
            else:
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_labels_that_are_referred_to_exist():
    texts = [path.read_text(encoding="utf-8") for path in pages()]
    labels = {label for text in texts for label in re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}
    assert {label for text in texts for label in re.findall(r"\{ref\}`[^`]*<([\w-]+)>`", text)} <= labels


def test_every_option_of_the_command_line_is_documented():
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    options = set(re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", (ROOT / "pgmodels" / "cli.py").read_text("utf-8")))
    assert len(options) > 10
    assert options == set(re.findall(r"`(?:pgmodels )?(--[\w-]+)`", page))


def test_public_names_that_pages_refer_to_exist():
    for path in pages():
        for name in re.findall(r"\{py:obj\}`pgmodels\.(\w+)`", path.read_text(encoding="utf-8")):
            assert name in pgm.__all__, f"{path.name}: {name}"


def test_files_and_names_of_the_tables_that_follow_a_call_exist():
    page = (DOCS / "how-to" / "contribute.md").read_text("utf-8").split("## Follow a call")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\S+\.py)` \| (.*?) \|", page, re.MULTILINE)
    assert len(rows) > 20
    for file, names in rows:
        text = (ROOT / "pgmodels" / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^ *(?:class|def) {name}\b", text, re.MULTILINE), (file, name)


# The examples of docstrings run, and print what they show.


DOCSTRINGS = {name: inspect.getdoc(getattr(pgm, name)) for name in pgm.__all__} | {
    f"{name}.{method}": inspect.getdoc(attribute)
    for name in pgm.__all__
    if inspect.isclass(getattr(pgm, name))
    for method, attribute in vars(getattr(pgm, name)).items()
    if not method.startswith("_") and (inspect.isfunction(attribute) or isinstance(attribute, property))
}
EXAMPLES = {name: text for name, text in DOCSTRINGS.items() if text and ">>>" in text}
# Without inference.
CHEAP = ("Fixed", "RBF", "stack_outputs")


def docstrings_run(text, name):
    """What differs from what is shown."""
    differences = []
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=differences.append)
    return "".join(differences)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES]
)
def test_an_example_prints_what_it_shows(name):
    assert docstrings_run(EXAMPLES[name], name) == ""


def test_an_example_that_shows_another_value_fails():
    shown = EXAMPLES["RBF"]
    assert "0.271" in docstrings_run(shown.replace("0.271", "0.272"), "RBF")


def test_the_names_that_are_used_most_have_an_example():
    assert len(set(EXAMPLES) & set(pgm.__all__)) >= 40
    # Each begins with its imports, and shows a result.
    for name, text in EXAMPLES.items():
        examples = doctest.DocTestParser().get_examples(text)
        assert any("import pgmodels as pgm" in example.source for example in examples), name
        assert any(example.want for example in examples), name
