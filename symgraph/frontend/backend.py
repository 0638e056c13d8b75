"""The modules of layers above that users reach through `import symgraph`, loaded on first use.

Nothing in symgraph imports partitioner or runtime; what MXNet offers on a symbol (`simple_bind`,
`mx.mod.Module`, `mx.viz.plot_network`) is built there. This file alone names those modules.
"""

from __future__ import annotations

import importlib
from types import ModuleType

MODULES = {
    "executor": "runtime.frontends.mxnet.executor",
    "BaseModule": "runtime.frontends.mxnet.base_module",
    "BucketingModule": "runtime.frontends.mxnet.bucketing_module",
    "Module": "runtime.frontends.mxnet.module",
    "network_picture": "partitioner.views.network_picture",
    "run": "runtime.frontends.cli.run",
}


def load(name: str) -> ModuleType:
    """Import one of MODULES."""
    return importlib.import_module(MODULES[name])
