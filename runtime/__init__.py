"""The runtime: schedules, their proof and simulation, and the workers that run them.

    from runtime import Options, Session, plan
    from runtime.chainermn import create_communicator

May import symgraph and partitioner.
Start reading: planning/planner.py for planning, engine/worker.py for running.
"""

# Imported first: it catches a Ctrl-C during the imports that follow.
from symgraph.app import door as door  # isort: split

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.public import *  # noqa: F403 (its __all__)


def __getattr__(name: str) -> Any:
    """Load all public names with the first: commands such as `symgraph --help` need none."""
    if name == "__all__" or not name.startswith("__"):
        public = importlib.import_module("runtime.public")
        globals().update({n: getattr(public, n) for n in ("__all__", *public.__all__)})
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'runtime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
