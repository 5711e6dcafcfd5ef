import ast
import builtins
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for folder in ("validation", "examples") for path in (ROOT / folder).rglob("*.py"))
SUFFIXES = {".py", ".md", ".cff", ".toml", ".yml", ".yaml", ".txt", ".csv"}


def metadata():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8")
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and (path.suffix in SUFFIXES or path.parent.name == ".ci")]


def test_public_names_are_sorted_and_unique():
    assert len(set(pgm.__all__)) == len(pgm.__all__) > 40


def test_every_warning_and_error_can_be_named():
    """Users silence or catch them by name; subclasses of an error of the package are caught with it."""
    heads = re.compile(r"^class ([A-Z]\w+)\((\w+)", re.MULTILINE)
    classes = [pair for path in (ROOT / "pgmodels").rglob("*.py") for pair in heads.findall(path.read_text("utf-8"))]
    is_base = {name: is_exception(getattr(builtins, name, None)) for _, name in classes} | {"PgmodelsWarning": True}
    assert {name for name, base in classes if is_base[base]} == {
        name for name in pgm.__all__ if is_exception(getattr(pgm, name))
    }


def test_all_warnings_have_one_base_class():
    names = {name for name in pgm.__all__ if name.endswith("Warning")}
    assert len(names) > 10
    assert [name for name in names if not issubclass(getattr(pgm, name), pgm.PgmodelsWarning)] == []
    assert issubclass(pgm.PgmodelsWarning, UserWarning)


def is_exception(value):
    return inspect.isclass(value) and issubclass(value, Exception)


@pytest.mark.parametrize("name", pgm.__all__)
def test_public_name_exists_and_is_documented(name):
    assert inspect.getdoc(getattr(pgm, name)), f"pgm.{name} has no docstring"


@pytest.mark.parametrize("name", [name for name in pgm.__all__ if inspect.isclass(getattr(pgm, name))])
def test_public_methods_are_documented(name):
    owner = getattr(pgm, name)
    for method in (m for m in vars(owner) if not m.startswith("_")):
        attribute = inspect.getattr_static(owner, method)
        if inspect.isfunction(attribute) or isinstance(attribute, property):
            assert inspect.getdoc(getattr(owner, method)), f"pgm.{name}.{method} has no docstring"


def test_import_leaves_for_later_what_is_slow_to_load():
    program = """
import sys, pgmodels
slow = ("arviz_base", "arviz_stats", "matplotlib", "pandas", "scipy.stats", "sklearn", "xarray")
first_use = ("narwhals", "numpyro", "rich", "scipy.interpolate", "scipy.linalg", "scipy.optimize", "scipy.special")
print([name for name in (*slow, *first_use) if name in sys.modules])
import pgmodels.cli
print([name for name in slow if name in sys.modules])
pgmodels.plot_elbo
print("matplotlib" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert run.stdout.split("\n")[:3] == ["[]", "[]", "True"], run.stderr


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'pgmodels' has no attribute 'plot_nothing'"):
        pgm.plot_nothing  # noqa: B018
    assert set(pgm.__all__) <= set(dir(pgm))


def test_import_changes_no_global_state():
    # rich.console itself draws from ``random`` when it is imported: it comes before the first look.
    program = """
import os, random, warnings, jax, numpy as np, rich.console
before = (jax.config.jax_enable_x64, jax.config.jax_platforms, dict(os.environ), list(warnings.filters),
          np.get_printoptions(), np.geterr(), random.getstate(), np.random.get_state()[1].tolist())
import pgmodels
after = (jax.config.jax_enable_x64, jax.config.jax_platforms, dict(os.environ), list(warnings.filters),
         np.get_printoptions(), np.geterr(), random.getstate(), np.random.get_state()[1].tolist())
names = ("x64", "platforms", "environment", "warnings", "print options", "floating-point errors", "random", "np.random")
print([name for name, a, b in zip(names, before, after) if a != b])
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    # Warning filters belong to the libraries that are imported too; everything else must be as it was.
    changed = set(re.findall(r"'([^']+)'", run.stdout)) - {"warnings"}
    assert not changed


def test_engines_leave_single_precision_as_it_was():
    import jax
    import numpy as np

    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(lengthscale=1.0)))
    result = pgm.cavi(model, np.array([[0.0], [1.0], [2.5]]), np.array([0.0, 1.0, 1.0]))
    assert result.mean.dtype == np.float64
    assert jax.config.jax_enable_x64 is False


def test_files_stand_by_themselves():
    # Assembled here, so that this file does not contain what it looks for.
    forbidden = ["/".join(["..", "shared"]), "/".join(["", "work", ""]), "-".join(["chat", "gpt"])]
    for path in tracked_files():
        text = path.read_text(encoding="utf-8")
        for words in forbidden:
            assert words not in text, f"{path.relative_to(ROOT)} mentions {words}"


def test_version_and_metadata():
    assert importlib.metadata.version("pgmodels") == metadata()["version"]
    assert importlib.metadata.metadata("pgmodels")["License-Expression"] == "MIT"
    assert metadata()["requires-python"] == ">=3.11"
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")


def section(title):
    """Of the README."""
    return (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_conda_recipe_has_the_same_requirements():
    recipe = (ROOT / ".ci" / "recipe.yaml").read_text(encoding="utf-8")
    section = re.search(r"^  run:\n((?:    - .*\n)+)", recipe, re.MULTILINE)[1]
    listed = {line.removeprefix("    - ").replace(" ", "", 1) for line in section.splitlines()}
    of_conda = {requirement.replace("matplotlib>", "matplotlib-base>") for requirement in metadata()["dependencies"]}
    assert listed == {requirement.replace(" ", "") for requirement in of_conda} | {
        f"python{metadata()['requires-python']}"
    }
    assert f'version: "{metadata()["version"]}"' in recipe
    entry = f"pgmodels = {metadata()['scripts']['pgmodels']}"
    assert entry in recipe


def test_the_commands_of_the_readme_are_those_that_ci_runs():
    commands = re.findall(r"^    (.+)$", section("Two commands"), re.MULTILINE)
    main_job, tests = commands
    assert tests in scripted("run")
    assert main_job in scripted("nightly")


def scripted(name):
    """The lines of a script."""
    return [line.strip() for line in (ROOT / ".ci" / name).read_text(encoding="utf-8").splitlines()]


def test_typed_marker_ships():
    files = importlib.metadata.files("pgmodels") or []
    assert (Path(pgm.__file__).parent / "py.typed").exists()
    packaged = any(str(file).endswith("pgmodels/py.typed") for file in files)
    editable = any("editable" in str(file) or str(file).endswith(".pth") for file in files)
    assert packaged or editable


def test_citation_names_the_software_and_five_papers():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert not any("\t" in line for line in lines)
    top = dict(re.match(r"([\w-]+):\s*(.*)", line).groups() for line in lines if re.match(r"[\w-]+:", line))
    assert {"cff-version", "message", "type", "title", "version", "authors", "license", "references"} <= set(top)
    assert top["version"] == metadata()["version"]
    references = "\n".join(lines[lines.index("references:") + 1 :])
    entries = re.split(r"^  - ", references, flags=re.MULTILINE)[1:]
    assert len(entries) == 5
    for entry in entries:
        assert re.search(r"^    title: \".+\"$", entry, re.MULTILINE)
        assert re.search(r"^    year: \d{4}$", entry, re.MULTILINE)
        assert entry.count("family-names:") == entry.count("given-names:") >= 1
    first = [re.search(r"family-names: \"(.+?)\"", entry).group(1) for entry in entries]
    assert first == ["Galy-Fajou", "Izmailov", "Liu", "Passerello", "Wenzel"]


# The calls that users write, as they write them.


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    return X[:40], (X[:40, 0] + 0.3 * rng.normal(size=40) > 0).astype(int), X[40:], (X[40:, 0] > 0).astype(int)


def test_the_main_calls(data, tmp_path):
    X, y, X_test, y_test = data
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance=1.0, lengthscale=1.0)))

    vi = pgm.cavi(model, X, y)
    mcmc = pgm.gibbs(model, X, y, num_samples=100, num_warmup=20, num_chains=2, seed=0)
    fixed = pgm.correct(vi)
    table = pgm.compare(gibbs=mcmc, cavi=vi, corrected=fixed, X=X_test, y=y_test)
    assert "cavi" in str(table)
    assert list(table.to_dataframe().index) == ["gibbs", "cavi", "corrected"]
    table.plot(tmp_path / "marginals.png")
    assert (tmp_path / "marginals.png").stat().st_size > 10_000

    derivation = pgm.derive(model)
    assert "PG(1, f)" in str(derivation)
    assert derivation.verify(seed=0).figures
    assert str(derivation.graph)
    assert derivation.graph.to_mermaid()
    assert derivation.graph.to_graphviz()

    assert vi.mean.shape == vi.variance.shape == (40, 1)
    assert vi.elbo == vi.elbo_trace[-1]
    assert vi.converged
    assert vi.num_iterations == len(vi.elbo_trace) - 1
    for result in (vi, mcmc, fixed):
        mean, variance = result.predict_latent(X_test)
        assert mean.shape == variance.shape == (10, 1)
        assert result.draw_latents(X_test, 3).shape == (3, 10, 1)
        p = result.predict(X_test)
        assert p.mean.shape == p.variance.shape == (10,)
        np.testing.assert_allclose(p.probabilities.sum(axis=1), 1.0, atol=1e-12)
        np.testing.assert_allclose(p.log_density(y_test), np.log(p.probabilities[np.arange(10), y_test]), rtol=1e-10)
        groups = {"posterior", "posterior_predictive", "log_likelihood", "observed_data", "sample_stats"}
        assert groups <= set(result.to_arviz().children)
    assert mcmc.latents.shape == (2, 100, 40, 1)
    np.testing.assert_allclose(mcmc.mean, mcmc.latents.mean(axis=(0, 1)), rtol=1e-12)


def test_kernels_add_multiply_and_may_be_any_callable(data):
    X, y, *_ = data
    kernel = pgm.RBF(1.0, [1.0, 2.0]) * pgm.Periodic(period=3.0) + pgm.Constant(0.5) + pgm.White(1e-3)
    assert np.isfinite(pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), X, y).elbo)
    linear = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(lambda X, Z: X @ Z.T)), X, y)
    np.testing.assert_allclose(linear.mean, pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear())), X, y).mean)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_the_package_are_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pgmodels":
            # As the statement itself does, which runs nothing else of the script.
            only = ast.Module([node], [])
            exec(compile(only, str(path), "exec"), {})
        elif isinstance(node, ast.Import):
            for name in (alias.name for alias in node.names if alias.name.split(".")[0] == "pgmodels"):
                importlib.import_module(name)
