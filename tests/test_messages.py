"""What the package's errors and warnings say: names that exist, keywords that are taken, code that parses and runs."""

import ast
import builtins
import importlib
import inspect
import re
import tomllib
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import pgmodels as pgm
from pgmodels.inference.objectives import OBJECTIVES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pgmodels"

# The placeholder of a value in a message.
HELD = "held"
# Short for modules, as users import them.
MODULES = {"pgm": "pgmodels", "np": "numpy", "jnp": "jax.numpy", "dist": "numpyro.distributions"}
ROOTS = (
    *MODULES, "pgmodels", "numpy", "numpyro", "jax", "equinox", "multiprocessing", "concurrent", "joblib", "pickle",
)  # fmt: skip
# Mathematics, in which f(x) is no call of Python's.
NOTATION = {"p", "q", "P", "E", "KL"}
# Endings of files that are no attributes.
ENDINGS = {".csv", ".npz", ".parquet", ".py"}
# Words with an underscore that are values of arguments, groups of ArviZ, or a user's own.
WORDS = {"linear_response", "posterior_predictive", "log_likelihood", "target_names", "y_test"}
# Results that compare takes by names of the user's choice.
LABELS = {"gibbs", "cavi"}
# Modules that write other languages: DOT, HTML, options of XLA, formulas, and the documentation of the systems.
WRITERS = (
    "pgmodels/augmentation/explain.py",
    "pgmodels/report/report.py",
    "pgmodels/runtime/jit.py",
    "pgmodels/regression/",
    "pgmodels/systems.py",
)


@cache
def literals():
    """Every text of two words or more in the package but for docstrings: (where, the text, values as ``held``)."""
    texts = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                skipped.add(id(body[0].value))
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in node.values}
            # Shapes in annotations are no messages.
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Float":
                skipped |= {id(part) for part in ast.walk(node.slice)}
        for node in ast.walk(tree):
            text = None if id(node) in skipped else text_of(node)
            if text is not None and " " in text.strip():
                texts.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return texts


def text_of(node):
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else placeholder(part) for part in node.values)
    return None


def placeholder(part):
    """A value as it is put in: a number where it is formatted as one."""
    spec = "" if part.format_spec is None else text_of(part.format_spec)
    return "1" if re.search(r"[gfed%]$", spec or "") else HELD


def calls_in(text):
    """Snippets ``name(...)`` of a text, with the innermost too."""
    for match in re.finditer(r"(?<![\w.{])(?<!def )[A-Za-z_][\w.]*\(", text):
        depth = 0
        for end in range(match.end() - 1, len(text)):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            if depth == 0:
                yield text[match.start() : end + 1]
                break


def resolve(path):
    """The object of a dotted name, or None."""
    root, *rest = path.split(".")
    name = MODULES.get(root, root)
    value = importlib.import_module(name)
    for part in rest:
        if not hasattr(value, part):
            try:
                value = importlib.import_module(f"{name}.{part}")
            except ImportError:
                return None
        else:
            value = getattr(value, part)
        name = f"{name}.{part}"
    return value


@cache
def public_classes():
    return [value for name in pgm.__all__ if inspect.isclass(value := getattr(pgm, name))]


@cache
def methods():
    """Public methods of public classes by name."""
    methods_by_name = {}
    for cls in public_classes():
        for name, value in inspect.getmembers(cls, callable):
            if not name.startswith("_"):
                methods_by_name.setdefault(name, []).append(value)
    return methods_by_name


@cache
def attributes():
    """What may be read of public objects."""
    names = set()
    for cls in public_classes():
        names |= {name for name in dir(cls) if not name.startswith("_")}
        names |= {field.name for field in fields(cls)} if is_dataclass(cls) else set()
        for base in cls.__mro__:
            names |= set(getattr(base, "__annotations__", {}))
            source = inspect.getsource(base) if base.__module__.startswith("pgmodels") else ""
            names |= set(re.findall(r"self\.([a-z]\w*)", source))
    return names


@cache
def callables(name):
    """The public callables that a name may mean, and the last part of one as methods of what users hold."""
    last = name.rpartition(".")[2]
    if name.split(".")[0] in ROOTS and "." in name:
        function = resolve(name)
        return [] if function is None else [function]
    places = [np.ndarray, MCMC] if "." in name else [pgm, builtins, dist]
    return [getattr(place, last) for place in places if hasattr(place, last)] + methods().get(last, [])


@cache
def parameters():
    """The names of all parameters of public callables."""
    names = {"shape", "axis", "index"}
    for value in [getattr(pgm, name) for name in pgm.__all__] + [m for ms in methods().values() for m in ms]:
        try:
            names |= set(inspect.signature(value).parameters)
        except (TypeError, ValueError):
            continue
    for likelihood in ("Gaussian", "StudentT", "Laplace", "NegativeBinomial"):
        names |= {argument.name for argument in getattr(pgm, likelihood).arguments}
    return names


def takes(function, call):
    """Whether a callable takes a call's arguments, by their number and names; ``...`` stands for some."""
    names = {keyword.arg: HELD for keyword in call.keywords}
    arguments = [HELD for argument in call.args if not (isinstance(argument, ast.Constant) and argument.value is ...)]
    if isinstance(function, type(pgm.Bernoulli)):
        return len(arguments) + len(names) <= len(function.arguments)
    try:
        signature = inspect.signature(function)
    except ValueError:  # of NumPy's own
        return True
    # Methods are looked up in their classes.
    for bound in ([], [HELD]):
        try:
            signature.bind_partial(*bound, *arguments, **names)
        except TypeError:
            continue
        return True
    return False


TEXTS = literals()


def dotted_names(text):
    for path in re.findall(rf"(?<![\w.@/])@?((?:{'|'.join(ROOTS)})(?:\.[A-Za-z_]\w*)+)", text):
        if not path.endswith((".npz", ".csv")) and resolve(path) is None:
            yield path


def calls(text):
    """Those that do not parse, that nobody can make, or with arguments that are not taken."""
    for snippet in calls_in(text):
        name = snippet.partition("(")[0]
        if is_notation(snippet) or HELD in name or name == "__call__":
            continue
        try:
            call = ast.parse(snippet, mode="eval").body
        except SyntaxError:
            yield f"{snippet} does not parse"
            continue
        if not callables(name):
            yield f"{name} is nothing that a user has"
        elif not any(takes(function, call) for function in callables(name)):
            yield f"{name} does not take the arguments of {snippet}"


def is_notation(snippet):
    """Whether a snippet is mathematics, a plural such as row(s), or no code by its own account."""
    is_symbolic = re.search(r"[^\x00-\x7f]|\*\s*[<)]|<[a-z]", snippet) is not None
    return snippet.endswith("(s)") or is_symbolic or snippet.partition("(")[0] in NOTATION


def keywords(text):
    # Those of calls are looked at with these.
    for snippet in sorted(calls_in(text), key=len, reverse=True):
        text = text.replace(snippet, "") if callables(snippet.partition("(")[0]) else text
    for name in re.findall(r"(?<![\w.\[{])([a-z_]+)=(?![=>])", text):
        if name not in {HELD, *LABELS, *parameters()}:
            yield f"{name}="


def words(text):
    """Words with an underscore that are no parameter and no attribute; those of dotted names are looked at there."""
    known = parameters() | attributes() | set(pgm.__all__) | set(OBJECTIVES) | WORDS
    for word in re.findall(r"(?<![\w.\]])([a-z]+(?:_[a-z0-9]+)+)(?![\w(=]|\.\w)", text):
        if word not in known and HELD not in word.split("_") and not hasattr(dist.constraints, word):
            yield word


def attributes_alone(text):
    for name in re.findall(r"(?<=[\s('])\.[a-z_]+\b", text):
        if name not in ENDINGS and name[1:] not in attributes():
            yield name


@cache
def options():
    source = (PACKAGE / "cli.py").read_text(encoding="utf-8")
    return set(re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", source))


def command_line(text):
    yield from (option for option in re.findall(r"(?<![\w-])--(?!held)[a-z][\w-]*", text) if option not in options())


@cache
def documentation():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def files(text):
    """Extras, environment variables, files and sections of the documentation."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    yield from (name for name in re.findall(r"pgmodels\[(\w+)\]", text) if name not in extras)
    yield from (name for name in re.findall(r"\b[A-Z]+_[A-Z_]+\b", text) if name not in documentation())
    for path in re.findall(r"\b[\w/]+\.(?:py|md|toml)\b", text):
        if path != "script.py" and not list(ROOT.glob(path)):
            yield path
    cited = re.findall(r"(?:README(?:\.md)?|documentation), ([A-Z][\w ]+)", text)
    yield from (name for name in cited if f"# {name}\n" not in documentation())


# Each check, and texts that it must find fault with.
CHECKS = {
    dotted_names: [
        "Use pgm.NoSuchKernel.",
        "as in pgm.no_such()",
        "take np.no_such",
        "numpyro.distributions.NoSuch(1)",
    ],
    calls: [
        "use pgm.GP(kernel, sise=3).",
        "Use pgm.Fixed(1.0, 2.0).",
        "take predict(X_new, columns=...)",
        "call vi.no_such(3)",
        "give pgm.IterableRows(pairs of X and y)",
        "as in no_such(likelihood=held)",
    ],
    keywords: ["give no_such= too", "Raise steps_each= there"],
    words: ["Raise max_steps or tolerance.", "use no_such_thing instead"],
    attributes_alone: ["Give its .modell.", "they are in the error's .no_draws"],
    command_line: ["say so with --no-such"],
    files: [
        "install pgmodels[nothing]",
        "see NO_SUCH_VARIABLE",
        "as in examples/no_such.py",
        "See README, No such section",
    ],
}


@pytest.mark.parametrize(("check", "text"), [(check, text) for check, texts in CHECKS.items() for text in texts])
def test_a_fault_is_found(check, text):
    assert list(check(text))


@pytest.mark.parametrize("check", CHECKS)
def test_messages_name_what_exists(check):
    read = [(where, text) for where, text in literals() if not where.startswith(WRITERS)]
    assert len(read) > 600
    assert not [f"{where}: {fault} in {text!r}" for where, text in read for fault in check(text)]
