"""Staging: how values of GPUs go through MPI, as they are or by way of the host.

An MPI that knows of CUDA reads and writes the memory of GPUs itself. Another one is given pinned
memory of the host, from and to which GPUs copy without a detour; messages of one type use it again
and again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from runtime.backends.device.arrays import copy, loaded, mark
from runtime.backends.device.pinned import PinnedBuffers
from runtime.backends.device.settings import cuda_aware_mpi, mpi_gpu_support_is_set
from symgraph.core.types import Array

__all__: list[str] = []

CUDA = 0  # MPICH's MPIX_GPU_SUPPORT_CUDA


def cuda_aware(library: str, environ: Mapping[str, str]) -> bool:
    """Whether an MPI takes memory of GPUs: as SYMGRAPH_CUDA_AWARE_MPI says, else as itself says.

    library: a shared library that is, or is linked with, the MPI that has been initialised.
    """
    setting = cuda_aware_mpi(environ)
    if setting is not None:
        return setting
    answer = _answer(library)
    return mpi_gpu_support_is_set(environ) if answer is None else answer


def _answer(library: str) -> bool | None:
    """What MPI says when it is asked; None if it cannot be."""
    mpi = ctypes.CDLL(library)
    if hasattr(mpi, "MPIX_Query_cuda_support"):  # Open MPI, MPICH from 4.0 on
        return bool(mpi.MPIX_Query_cuda_support())
    if hasattr(mpi, "MPIX_GPU_query_support"):  # MPICH
        found = ctypes.c_int(0)
        mpi.MPIX_GPU_query_support(CUDA, ctypes.byref(found))
        return bool(found.value)
    return None


class Staging:
    """One rank's memory for values of GPUs that are under way."""

    def __init__(self, library: str, environ: Mapping[str, str]) -> None:
        """See `cuda_aware`, which is asked when there is a value."""
        self._library, self._environ = library, environ
        self.agreed: bool | None = None  # whether all are `aware` that have cards, once asked
        self._pinned = PinnedBuffers()

    @cached_property
    def aware(self) -> bool:
        """Whether values go as they are."""
        return cuda_aware(self._library, self._environ)

    def given(self, array: Array) -> Array:
        """What MPI can send, now, of an array on a GPU; tell when it is `sent`."""
        if self.aware:
            if not array.flags.c_contiguous:
                array = loaded().ascontiguousarray(array)
            settle(array)
            return array
        buffer = self._pinned.acquire(array)
        copy(buffer, array)
        return buffer

    def sent(self, buffer: Array | None) -> None:
        """MPI needs it no longer; None, or what is on a GPU, is nobody's buffer."""
        if isinstance(buffer, np.ndarray):
            self._pinned.release(buffer)

    def target(self, out: Array) -> Array:
        """What MPI can receive into, now, instead of an array on a GPU; tell when it `came`."""
        if self.aware:
            settle(out)
            return out
        return self._pinned.acquire(out)

    def came(self, buffer: Array, out: Array) -> None:
        """The values are there: let the array have them."""
        if buffer is not out:
            copy(out, buffer)
            self._pinned.release(buffer, mark(out))


def settle(array: Array) -> None:
    """Wait until what this thread has called is done with an array."""
    now = mark(array)
    if now is not None:
        now.synchronize()
