"""The command line of the partitioner: `python -m partitioner solve FILE`.

Exit status: 0 done, 2 bad input, 3 no placement keeps the limits, 130 interrupted; each but the
first with one clear line and no traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from partitioner.solve.problem import InfeasibleError
from partitioner.solve_command import add_solve, run_solve
from symgraph.errors import ConfigError, SymgraphError

OK, BAD_INPUT, INFEASIBLE, INTERRUPTED = 0, 2, 3, 130


class Parser(argparse.ArgumentParser):
    """One whose errors are one line, like all others of bad input."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help tells more)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = Parser(prog="python -m partitioner", description="Place networks on devices.")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    add_solve(commands.add_parser)
    try:
        run_solve(parser.parse_args(argv))
    except InfeasibleError as error:
        sys.stderr.write(f"symgraph: infeasible: {error}\n")
        return INFEASIBLE
    except SymgraphError as error:
        sys.stderr.write(f"symgraph: error: {error}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("symgraph: interrupted\n")
        return INTERRUPTED
    return OK


if __name__ == "__main__":
    sys.exit(main())
