"""Measure claims of the papers, and write a page for each paper.

Usage: python -m validation.papers [NAME ...], a paper (wenzel, galy-fajou, liu, passerello, izmailov) or a claim such
as W3; all without names; index writes the pages anew and prints the table of all claims. What is measured is kept
under validation/results/papers/ and not measured again. Data sets other than scikit-learn's are read from
PGMODELS_DATA or OpenML.
"""

import argparse
import sys

from validation.papers import galy_fajou, izmailov, liu, passerello, wenzel
from validation.papers.record import Record, index, write_pages

PAPERS = {
    "wenzel": wenzel.CLAIMS,
    "galy-fajou": galy_fajou.CLAIMS,
    "liu": liu.CLAIMS,
    "passerello": passerello.CLAIMS,
    "izmailov": izmailov.CLAIMS,
}


def main(arguments: list[str]) -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(
        prog="python -m validation.papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--full", action="store_true", help="published sizes, which take hours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="measure again what is kept")
    options = parser.parse_args(arguments)
    every = {claim.identifier: claim for claims in PAPERS.values() for claim in claims}
    if options.names == ["index"]:
        write_pages(PAPERS)
        print(index(PAPERS), end="")
        return
    chosen = []
    for name in options.names or PAPERS:
        if name not in PAPERS and name.upper() not in every:
            parser.error(f"NAME must be one of {', '.join([*PAPERS, *every])}; got {name}.")
        chosen += PAPERS[name] if name in PAPERS else [every[name.upper()]]
    for claim in chosen:
        record = Record(claim, options.full, options.seed, options.again)
        for part in record.unmeasured:
            print(f"{claim.identifier}: {part}", flush=True)
            record.measure(part)
        record.draw()
        write_pages(PAPERS)
        verdict = record.verdict
        assert verdict is not None
        print(f"{claim.identifier}: {verdict.word}: {verdict.reason}", flush=True)


main(sys.argv[1:])
