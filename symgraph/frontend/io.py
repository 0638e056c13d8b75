"""The namespace `sg.io`: iterators over batches, as modules read them (MXNet's `mx.io`)."""

from symgraph.core.errors import nearest
from symgraph.frontend import left_out
from symgraph.frontend.data_iter import (
    HANDLES,
    DataBatch,
    DataDesc,
    DataIter,
    NDArrayIter,
    describe,
)
from symgraph.frontend.file_iter import CSVIter, LibSVMIter, MNISTIter
from symgraph.frontend.wrapped_iter import PrefetchingIter, ResizeIter

__all__ = [
    "HANDLES",
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "LibSVMIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
    "describe",
]


def __getattr__(name: str) -> object:
    left_out.refuse(f"io.{name}")
    raise AttributeError(f"symgraph.io has no {name!r}; {nearest(name, __all__)}")
