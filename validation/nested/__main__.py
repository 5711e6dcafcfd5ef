"""Measure nested marginals, and write the tables and pictures.

Usage: python -m validation.nested [PART ...]: quadrature, choices, laplace, gibbs, cost; all without names. What is
measured is kept under validation/results/nested/ and not measured again. Data sets other than scikit-learn's are read
from PGMODELS_DATA or OpenML.
"""

import argparse
import sys

from validation.nested import choices, cost, gibbs, laplace, quadrature

PARTS = {
    "quadrature": quadrature.run,
    "choices": choices.run,
    "laplace": laplace.run,
    "gibbs": gibbs.run,
    "cost": cost.run,
}


def main(arguments: list[str]) -> None:
    """Measure the parts that the arguments name."""
    parser = argparse.ArgumentParser(
        prog="python -m validation.nested", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--again", action="store_true", help="measure again what is kept")
    options = parser.parse_args(arguments)
    for name in options.names or PARTS:
        if name not in PARTS:
            parser.error(f"PART must be one of {', '.join(PARTS)}; got {name}.")
        PARTS[name](options.again)


main(sys.argv[1:])
