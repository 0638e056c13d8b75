"""Modules: networks trained on data iterators (MXNet's `mx.mod`), loaded from the runtime."""

from __future__ import annotations

from typing import Any

from symgraph.core.errors import nearest
from symgraph.frontend.backend import load

CLASSES = (
    "BaseModule",
    "BucketingModule",
    "Module",
    "PythonLossModule",
    "PythonModule",
    "SequentialModule",
)


def __getattr__(name: str) -> Any:
    if name not in CLASSES:
        raise AttributeError(f"symgraph.mod has no {name!r}; {nearest(name, CLASSES)}")
    return getattr(load(name), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *CLASSES})
