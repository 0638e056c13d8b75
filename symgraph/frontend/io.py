"""The namespace `sg.io`: iterators over batches, as modules read them (MXNet's `mx.io`)."""

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
