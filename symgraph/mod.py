"""Modules: networks that are trained over data iterators (MXNet's `mx.mod`).

They are in the runtime, a layer above, which is named here and loaded when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from symgraph.errors import nearest

PLACES = {
    "BaseModule": "runtime.module_base",
    "BucketingModule": "runtime.module_buckets",
    "Module": "runtime.module",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"symgraph.mod has no {name!r}; {nearest(name, PLACES)}")
    return getattr(importlib.import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})
