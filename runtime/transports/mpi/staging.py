"""Staging: how values on GPUs go through MPI, directly or by way of the host.

A CUDA-aware MPI reads and writes the memory of GPUs itself. Any other gets pinned buffers of the
host, which messages of one type reuse.
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

MPIX_CUDA = 0  # MPICH's MPIX_GPU_SUPPORT_CUDA


def cuda_aware(library: str, environ: Mapping[str, str]) -> bool:
    """Return whether MPI takes memory of GPUs: as SYMGRAPH_CUDA_AWARE_MPI says, else as MPI says.

    library: a shared library that is, or is linked with, the MPI that has been initialised.
    """
    setting = cuda_aware_mpi(environ)
    if setting is not None:
        return setting
    answer = _answer(library)
    return mpi_gpu_support_is_set(environ) if answer is None else answer


def _answer(library: str) -> bool | None:
    """Ask MPI itself; None if it has no function for that."""
    mpi = ctypes.CDLL(library)
    if hasattr(mpi, "MPIX_Query_cuda_support"):  # Open MPI, MPICH from 4.0 on
        return bool(mpi.MPIX_Query_cuda_support())
    if hasattr(mpi, "MPIX_GPU_query_support"):  # MPICH
        supported = ctypes.c_int(0)
        mpi.MPIX_GPU_query_support(MPIX_CUDA, ctypes.byref(supported))
        return bool(supported.value)
    return None


class Staging:
    """One rank's buffers for values on GPUs that are in transit."""

    def __init__(self, library: str, environ: Mapping[str, str]) -> None:
        """See `cuda_aware`, which is called at the first value."""
        self._library, self._environ = library, environ
        self.agreed: bool | None = None  # whether all ranks with GPUs are; None: not asked
        self._pinned = PinnedBuffers()

    @cached_property
    def aware(self) -> bool:
        """Whether MPI takes the memory of GPUs."""
        return cuda_aware(self._library, self._environ)

    def outgoing(self, array: Array) -> Array:
        """Return what MPI can send now for an array on a GPU; call `sent` afterwards."""
        if self.aware:
            if not array.flags.c_contiguous:
                array = loaded().ascontiguousarray(array)
            settle(array)
            return array
        buffer = self._pinned.acquire(array)
        copy(buffer, array)
        return buffer

    def sent(self, buffer: Array | None) -> None:
        """Release the buffer of a message that has been sent, if it has one."""
        if isinstance(buffer, np.ndarray):
            self._pinned.release(buffer)

    def incoming(self, out: Array) -> Array:
        """Return what MPI can receive into for an array on a GPU; call `received` afterwards."""
        if self.aware:
            settle(out)
            return out
        return self._pinned.acquire(out)

    def received(self, buffer: Array, out: Array) -> None:
        """Copy received values to the array on the GPU, and release the buffer."""
        if buffer is not out:
            copy(out, buffer)
            self._pinned.release(buffer, mark(out))


def settle(array: Array) -> None:
    """Wait until the work that this thread has queued is done with an array."""
    end = mark(array)
    if end is not None:
        end.synchronize()
