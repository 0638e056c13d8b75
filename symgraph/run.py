"""The command line, `python -m symgraph.run`: a door to runtime.frontends.cli.run."""

import sys

from symgraph.frontend.backend import load


def main(argv: list[str] | None = None) -> int:
    """Run the command line on these arguments (default: sys.argv's); the exit status."""
    status: int = load("run").main(argv)
    return status


if __name__ == "__main__":
    sys.exit(main())
