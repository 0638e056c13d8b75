"""The command line `symgraph`, which runtime.frontends.cli.command implements."""

from symgraph.app.command_line import status_of
from symgraph.app.door import leave
from symgraph.frontend.backend import load


def main(argv: list[str] | None = None) -> int:
    """Run the command line on these arguments, by default sys.argv's; return its exit status."""
    return status_of(lambda: load("command").main(argv))


def script() -> None:
    """Run the command line as the installed command `symgraph`, and end the process."""
    leave(main())


if __name__ == "__main__":
    script()
