"""The command line: ``pgmodels validate`` and ``pgmodels derive``."""

import argparse
import math
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from pgmodels.derivation import derive
from pgmodels.kernels import stationary as kernels
from pgmodels.likelihoods import named as likelihoods
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.model import GP, Model
from pgmodels.runtime import INTERRUPTED
from pgmodels.runtime.jit import ADVICE, computes_correctly, devices
from pgmodels.runtime.messages import environment
from pgmodels.runtime.seeds import NUM_SEEDS
from pgmodels.workflow import DEFAULT_STUDIES, Study, validate

T = TypeVar("T")

NAMED = (
    "Bernoulli", "Binomial", "Gaussian", "HeteroscedasticGaussian", "Laplace", "LogisticSoftmax", "NegativeBinomial",
    "Probit", "SigmoidPoisson", "StickBreaking", "StudentT",
)  # fmt: skip
KERNELS = ("RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic")
# Required arguments of likelihoods: printed in derivations, and start values in validation.
STARTS: dict[str, dict[str, float]] = {
    "NegativeBinomial": {"dispersion": 2.0}, "SigmoidPoisson": {"rate": 10.0}, "LogisticSoftmax": {"num_classes": 3},
    "StickBreaking": {"num_classes": 3}, "StudentT": {"df": 4.0, "scale": 1.0}, "Laplace": {"scale": 1.0},
    "Gaussian": {"scale": 1.0}, "HeteroscedasticGaussian": {"precision": 1.0},
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 2 for invalid arguments or data, 130 if interrupted."""
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        message = _of_script(error, options.likelihood) or (str(error) if isinstance(error, ValueError) else None)
        if message is None:
            raise
        Console(stderr=True).print(f"pgmodels: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2


def _of_script(error: Exception, likelihood: str | None) -> str | None:
    """Return the message of an error in the user's script, with the script's traceback; None for any other error."""
    path = (likelihood or "").rpartition(":")[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if not path or not (frames or (isinstance(error, SyntaxError) and error.filename == path)):
        return None
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return f"likelihood: {path} raised {type(error).__name__}: {error}\n{''.join(lines).rstrip()}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pgmodels", description="Gaussian process models from their likelihood.")
    about = "show versions and machine, and check the installation"
    parser.add_argument("--version", action=_Version, nargs=0, help=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = "compare variational inference and its correction with the exact Gibbs sampler"
    description = (
        "Fit hyperparameters, run CAVI, its correction and the Gibbs sampler, and compare them. Without --data: breast "
        "cancer with Bernoulli and wine with LogisticSoftmax."
    )
    _add_validate(commands.add_parser("validate", help=about, description=description))
    _add_derive(commands.add_parser("derive", help="print the augmentation of a likelihood, step by step"))
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        known = environment()
        lines = [f"{name} {number}" for name, number in known["versions"].items()]
        print("\n".join([*lines, f"{known['machine']}, JAX on {devices()}"]))
        if not computes_correctly():
            print(f"pgmodels: {ADVICE}", file=sys.stderr)
        parser.exit()


def _add_validate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data", help="breast-cancer, wine, a .csv, .parquet or .npz file, or a name in PGMODELS_DATA or OpenML"
    )
    command.add_argument(
        "--target",
        help="the column of y in a .csv or .parquet file, by default the last; several separated by commas, such as "
        "successes,trials; text is read as classes",
    )
    command.add_argument(
        "--columns", help="columns of X, by name or number, such as age,dose or 0,3,7; by default all other columns"
    )
    command.add_argument("--likelihood", help=f"one of {', '.join(NAMED)}, or script.py:function")
    command.add_argument("--kernel", default="RBF", choices=KERNELS)
    command.add_argument(
        "--variance",
        type=_positive,
        help="fix the kernel's variance at this value; fitted otherwise, with a LogNormal(0, 1) prior unless it has "
        "the units of a real y",
    )
    command.add_argument("--lengthscale", type=_positive, help="fix the kernel's lengthscale at this value")
    command.add_argument(
        "--train-size", type=_size, default=0.8, help="training rows: a number, or a share such as 0.8"
    )
    command.add_argument("--num-samples", type=_whole_number(1), default=400, help="draws of each chain")
    command.add_argument("--num-warmup", type=_whole_number(0), default=200)
    command.add_argument("--num-chains", type=_whole_number(1), default=4)
    command.add_argument("--seed", type=_whole_number(0, NUM_SEEDS - 1), default=0)
    command.add_argument(
        "--output", type=Path, default=Path("pgmodels-results"), help="folder for reports, tables and draws"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")
    command.set_defaults(run=_run_validate)


def _add_derive(command: argparse.ArgumentParser) -> None:
    command.add_argument("likelihood", help=f"one of {', '.join(NAMED)}, or script.py:function")
    command.add_argument(
        "--latents", type=_whole_number(1), help="number of latent GPs, for a formula that does not fix it"
    )
    command.add_argument("--verify", action="store_true", help="also check the derivation numerically")
    command.add_argument("--graph", choices=("text", "mermaid", "graphviz"), help="print the augmented graph instead")
    command.set_defaults(run=_run_derive)


def _run_validate(options: argparse.Namespace) -> int:
    if options.data is None and options.likelihood is not None:
        raise ValueError("--likelihood needs --data: name the data.")
    for option in ("columns", "target"):
        if options.data is None and getattr(options, option) is not None:
            raise ValueError(f"--{option} needs --data: name the data.")
    studies: tuple[Study, ...] = DEFAULT_STUDIES
    if options.data is not None:
        columns = None if options.columns is None else options.columns.split(",")
        studies = (Study(options.data, options.likelihood and _named(options.likelihood), columns, options.target),)
    settings = {
        "kernel": getattr(kernels, options.kernel), "variance": options.variance, "lengthscale": options.lengthscale,
        "train_size": options.train_size, "num_samples": options.num_samples, "num_warmup": options.num_warmup,
        "num_chains": options.num_chains, "seed": options.seed, "output": options.output,
        "progress": False if options.quiet else None, "command": shlex.join(["pgmodels", *options.arguments]),
    }  # fmt: skip
    console = Console(width=100 if not Console().is_terminal else None)
    if options.data is None:
        console.print("A demonstration on two data sets, for about 90 seconds on two cores.")
    for study in studies:
        validate(study, console=console, **settings)
    return 0


def _run_derive(options: argparse.Namespace) -> int:
    likelihood = _named(options.likelihood)(None)
    fixed = likelihood.num_latents
    if options.latents is not None and fixed not in (None, options.latents):
        raise ValueError(f"--latents: {options.likelihood} always has {fixed} latents; omit --latents.")
    derivation = derive(Model(likelihood, GP(kernels.RBF(), size=fixed or options.latents or 1)))
    if options.graph is not None:
        graph = derivation.graph
        print({"text": graph.__str__, "mermaid": graph.to_mermaid, "graphviz": graph.to_graphviz}[options.graph]())
    else:
        print(derivation)
    if options.verify:
        print(derivation.verify(seed=0))
    return 0


def _named(text: str) -> Callable[[int | None], Likelihood]:
    """Return a function from the number of classes (or None) to the likelihood of this name."""
    if ":" in text:
        path, function = text.rsplit(":", 1)
        of_script = _from_script(Path(path), function)
        return lambda num_classes: of_script if isinstance(of_script, Likelihood) else of_script()
    if text not in NAMED:
        raise ValueError(f"likelihood: there is no {text!r}. Use one of {', '.join(NAMED)}, or script.py:function.")
    family = getattr(likelihoods, text)

    def build(num_classes: int | None) -> Likelihood:
        start = dict(STARTS.get(text, {}))
        if num_classes is not None and "num_classes" in start:
            start["num_classes"] = num_classes
        return family(**start)

    return build


def _from_script(path: Path, function: str) -> Likelihood | LikelihoodFamily:
    if not path.is_file():
        raise ValueError(f"likelihood: there is no script {path}.")
    try:
        names = runpy.run_path(str(path), run_name="pgmodels_script")
    except SystemExit as error:
        raise ValueError(
            f"likelihood: {path} exits (exit status {error.code}) before it defines {function}: put the exit under "
            "if __name__ == '__main__'."
        ) from error
    if not isinstance(names.get(function), (Likelihood, LikelihoodFamily)):
        raise ValueError(f"likelihood: {path} has no function {function} decorated with @pgm.likelihood.")
    return names[function]


def _option(convert: Callable[[str], T], is_valid: Callable[[T], bool], expected: str) -> Callable[[str], T]:
    """Return a parser of numbers whose error for an invalid text names the ``expected`` number."""

    def read(text: str) -> T:
        try:
            value = convert(text)
            if is_valid(value):
                return value
        except ValueError:
            pass
        got = repr(text if len(text) <= 40 else f"{text[:37]}...")
        raise argparse.ArgumentTypeError(f"must be {expected}; got {got}")

    return read


def _whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    return _option(int, lambda value: least <= value <= most, f"a whole number from {least} to {most}")


_positive = _option(float, lambda value: 0.0 < value < math.inf, "a finite number > 0")
_size = _option(
    lambda text: float(text) if "." in text else int(text),
    lambda value: value >= 1 if isinstance(value, int) else 0.0 < value < 1.0,
    "a number of rows, 1 or more, or a share between 0 and 1, such as 0.8",
)
