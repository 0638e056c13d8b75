"""The command line `python -m symgraph.run`, which runtime.frontends.cli.run implements."""

from symgraph.app.command_line import status_of
from symgraph.app.door import leave
from symgraph.frontend.backend import load


def main(argv: list[str] | None = None) -> int:
    """Run the command line on these arguments, by default sys.argv's; return its exit status."""
    return status_of(lambda: load("run").main(argv))


if __name__ == "__main__":
    leave(main())
