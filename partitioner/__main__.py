"""The command line of the partitioner: `python -m partitioner solve FILE`.

Exit status: 0 done, 2 bad input, 3 no placement keeps the limits, 130 interrupted. Every status
but 0 comes with one line on stderr and no traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from partitioner.solve.problem import InfeasibleError
from partitioner.solve.solve_command import add_solve, run_solve
from symgraph.app.command_line import OK, Parser, say, status_of

INFEASIBLE = 3


def main(argv: Sequence[str] | None = None, prog: str = "python -m partitioner") -> int:
    """Run the command line and return the exit status."""
    parser = Parser(prog=prog, description="Place networks on devices.")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    add_solve(commands.add_parser)

    def work() -> int:
        try:
            run_solve(parser.parse_args(argv))
        except InfeasibleError as error:
            say(f"infeasible: {error}")
            return INFEASIBLE
        return OK

    return status_of(work)


if __name__ == "__main__":
    sys.exit(main())
