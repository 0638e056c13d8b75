"""The modules of higher layers that users reach through `import symgraph`, loaded on first use.

Nothing in symgraph imports partitioner or runtime. What MXNet offers on a symbol (`simple_bind`,
`mx.mod.Module`, `mx.viz.plot_network`) and profiles are made there, and this file alone names those
modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from symgraph.core.errors import ConfigError
from symgraph.core.heap import no_collections

MODULES = {
    "arrays": "runtime.backends.device.arrays",
    "executor": "runtime.frontends.mxnet.executor",
    "BaseModule": "runtime.frontends.mxnet.base_module",
    "BucketingModule": "runtime.frontends.mxnet.bucketing_module",
    "FeedForward": "runtime.frontends.mxnet.feed_forward",
    "Module": "runtime.frontends.mxnet.module",
    "PythonLossModule": "runtime.frontends.mxnet.python_module",
    "PythonModule": "runtime.frontends.mxnet.python_module",
    "SequentialModule": "runtime.frontends.mxnet.sequential_module",
    "command": "runtime.frontends.cli.command",
    "network_picture": "partitioner.views.network_picture",
    "placement_picture": "partitioner.views.picture",
    "profiling": "runtime.profiling.public",
    "run": "runtime.frontends.cli.run",
    "timeline_picture": "runtime.schedule.views.draw",
}
PACKAGES = ("partitioner", "runtime")
ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    """Import one of MODULES.

    Raises ConfigError if a file or folder of the user's own, such as `runtime.py`, is found in
    place of a package.
    """
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found and found.origin and not Path(found.origin).is_relative_to(ROOT / package):
            raise ConfigError(
                f"{found.origin} hides symgraph's package {package!r}: rename that file, or start "
                "from another folder"
            )
    module = MODULES[name]
    with no_collections(lasting=module not in sys.modules):
        return importlib.import_module(module)
