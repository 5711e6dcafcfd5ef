"""Check that every name is defined: ruff's F821 without the shapes of array annotations, which are strings.

Usage: ruff check --select F821 --config 'lint.ignore=[]' --output-format json . | python .ci/check_undefined.py
"""

import json
import sys
import tokenize


def strings(path: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Begin and end of every string of a file, as (line, column from 0)."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return [(token.start, token.end) for token in tokens if token.type == tokenize.STRING]


def main() -> int:
    """Print each undefined name outside of strings; 1 if there is one."""
    faults = []
    for fault in json.load(sys.stdin):
        path, place = fault["filename"], fault["location"]
        position = place["row"], place["column"] - 1
        if not any(begin <= position < end for begin, end in strings(path)):
            faults.append(f"{path}:{place['row']}: {fault['message']}")
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
