"""``python -m pgmodels``: the command line."""

from pgmodels.cli import command

if __name__ == "__main__":
    command()
