"""Program: `python -m symgraph.run` with the faults of `tests.helpers.faults`, telling how it ends.

Prints the number of every process that it is, and of each rank that ends by itself its status.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from symgraph.run import main
from tests.helpers.faults import say

RANK = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "?"))
leave = os._exit


def told(status: int) -> NoReturn:
    """End the process, as a rank does after a failure, and say so."""
    say(f"rank {RANK} ends with status {status}")
    leave(status)


def say_process() -> None:
    say(f"process {os.getpid()}")


if __name__ == "__main__":
    say_process()
    os.register_at_fork(after_in_child=say_process)  # the first process becomes the rank's guard
    os._exit = told
    code = main(sys.argv[1:])
    say(f"rank {RANK} ends with status {code}")
    sys.exit(code)
