"""Arrays on devices: the module that makes them, copies between devices, and the devices.

A numpy array is on the host, which all `cpu(i)` share; a CuPy array is on the GPU on which it was
made. Only this file imports CuPy, when a GPU is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, Protocol

import numpy as np

from runtime.backends.device import settings
from runtime.backends.device.clocks import HostStamps, Stamps
from runtime.backends.device.gpu import Gpu
from runtime.backends.device.receive_stream import ReceiveStream
from symgraph.core.context import Context, gpu
from symgraph.core.errors import PlacementError
from symgraph.core.types import Array, Shape, TensorType

CACHE_LINE = 64  # bytes
LARGE_PAGE = 1 << 21  # bytes; the system has such pages for whoever asks, as numpy does
ALTERNATIVE = "cpu(0), cpu(1), ... run the same partition and schedule, a thread each"


class Mark(Protocol):
    """A point in a GPU's work that others can wait for: a CUDA event."""

    @property
    def done(self) -> bool:
        """Whether the work has reached this point."""
        ...

    def synchronize(self) -> None:
        """Wait until the work has reached this point."""
        ...


class Device(Protocol):
    """What the runtime needs of a device.

    Attributes:
        xp: The array module, numpy or CuPy.
        is_host: Whether it is the CPU.
        receive_stream: Receives values while other work runs; None if the device cannot.
    """

    xp: Any
    is_host: bool
    receive_stream: ReceiveStream | None

    def bytes(self, count: int) -> Array:
        """Return zeroed memory that begins at a cache line."""
        ...

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """Return an array of this type that begins at a byte of the memory."""
        ...

    def put(self, array: Array) -> Array:
        """Copy an array of the host to this device, in C order."""
        ...

    def holds(self, array: object) -> bool:
        """Return whether it is an array on this device."""
        ...

    def catch_up(self) -> None:
        """Wait for a user's own work: what this thread has queued here outside of `use`."""
        ...

    def use(self) -> AbstractContextManager[object]:
        """Queue what this thread calls as this device's work (a context manager)."""
        ...

    def finish(self) -> None:
        """Wait until all of this device's work is done."""
        ...

    def read(self, arrays: Sequence[Array]) -> list[Array]:
        """Wait like `finish`, and return arrays of this device on the host."""
        ...

    def stamps(self) -> Stamps:
        """Return timestamps for the work of a thread that uses this device."""
        ...

    def set_aside(self, count: int) -> None:
        """Reserve at least this number of bytes for temporaries of calls; see `making`."""
        ...

    @property
    def set_aside_bytes(self) -> int:
        """The bytes reserved by `set_aside`, or more if those were too few."""
        ...

    def making(self) -> AbstractContextManager[object]:
        """Allocate this thread's temporaries from what is set aside (a context manager)."""
        ...

    def captured(self, calls: Callable[[], None]) -> Callable[[], None] | None:
        """Capture the work of these calls as one call, without running it yet.

        The calls take no values from the host and wait for nothing. None: this device cannot
        capture them, and they must be made each time.
        """
        ...

    def beside(self) -> AbstractContextManager[object]:
        """Queue what this thread calls beside this device's other work (a context manager).

        Only events keep the two in order: see `record` and `wait`.
        """
        ...

    def record(self, *, beside: bool) -> Any:
        """Return an event at the end of this device's work so far, or of the work beside it."""
        ...

    def wait(self, event: Any, *, beside: bool) -> None:
        """Make this device's later work wait for an event, or else the work beside it."""
        ...


class Host:
    """The CPU: work is done when its call returns."""

    xp: Any = np
    is_host: bool = True
    receive_stream: ReceiveStream | None = None
    set_aside_bytes: int = 0

    def bytes(self, count: int) -> Array:
        """See Device."""
        # Large pages save a core the translation of addresses: reading weights one after the
        # other, as time segments do, is a sixth faster.
        align = CACHE_LINE if count < LARGE_PAGE else LARGE_PAGE
        memory = np.zeros(count + align, np.uint8)
        start = -memory.ctypes.data % align
        return memory[start : start + count]

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """See Device."""
        return np.ndarray(type_.shape, type_.dtype, memory, offset)

    def put(self, array: Array) -> Array:
        """See Device."""
        return np.array(array, order="C")

    def holds(self, array: object) -> bool:
        """See Device."""
        return isinstance(array, np.ndarray)

    def catch_up(self) -> None:
        """See Device."""

    def use(self) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def finish(self) -> None:
        """See Device."""

    def read(self, arrays: Sequence[Array]) -> list[Array]:
        """See Device; the arrays themselves."""
        return [*arrays]

    def stamps(self) -> Stamps:
        """See Device."""
        return HostStamps()

    def set_aside(self, count: int) -> None:
        """See Device; the host allocates temporaries as it needs them."""

    def making(self) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def captured(self, calls: Callable[[], None]) -> Callable[[], None] | None:
        """See Device; the host's work is done when a call returns."""
        return None

    def beside(self) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def record(self, *, beside: bool) -> Any:
        """See Device."""

    def wait(self, event: Any, *, beside: bool) -> None:
        """See Device."""


HOST = Host()


def device(context: Context) -> Device:
    """Return the device of a context; PlacementError, saying what is missing, if it is not there.

    With SYMGRAPH_SHARE_GPUS=1 in the environment, gpu(0), gpu(1), ... share the GPUs of the
    machine, each with its own stream: so a pipeline can be tried on a single GPU.
    Products of float32 are as SYMGRAPH_PRODUCTS says, see settings.py.
    """
    return HOST if context.kind == "cpu" else _gpu(_cupy(context), context)


def require(context: Context) -> None:
    """Raise PlacementError, saying what is missing, if a device cannot be used."""
    device(context)


def count_gpus() -> int:
    """Return the number of contexts that name a GPU of this machine; 0 without CuPy or CUDA."""
    try:
        cards: int = _cupy(gpu(0)).cuda.runtime.getDeviceCount()
    except PlacementError:
        return 0
    return cards


def gpu_memory(context: Context) -> tuple[int, int]:
    """Return the free and all bytes of a GPU; PlacementError if it cannot be used."""
    here = device(context)
    with here.use():
        free, total = loaded().cuda.runtime.memGetInfo()
    return free, total


def is_on_gpu(values: object) -> bool:
    """Return whether it is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(values, cupy.ndarray)


def is_array(values: object) -> bool:
    """Return whether it is an array of numpy or CuPy."""
    return isinstance(values, np.ndarray) or is_on_gpu(values)


def on_host(values: Any) -> Array:
    """Return values as a numpy array: the same if it is one, a copy if they are on a GPU."""
    if isinstance(values, np.ndarray):
        return values
    array: Array = values.get() if is_on_gpu(values) else np.asarray(values)
    return array


def module_of(array: Array) -> Any:
    """Return the module of an array: numpy or CuPy."""
    return np if isinstance(array, np.ndarray) else loaded()


def beside(array: Any) -> AbstractContextManager[object]:
    """Run what this thread calls on the device of an array (a context manager)."""
    return nullcontext() if isinstance(array, np.ndarray) else array.device


def typed(values: Any, dtype: str) -> Array:
    """Return values in a dtype and in C order, on their GPU or else on the host."""
    if not is_on_gpu(values):
        return np.asarray(values, dtype, order="C")
    with beside(values):
        made: Array = values.astype(dtype, order="C", copy=False)
        loaded().cuda.get_current_stream().synchronize()
    return made


def copy(target: Array, source: Array) -> None:
    """Copy values between arrays of the same shape and type, on any devices."""
    if isinstance(target, np.ndarray):
        if not isinstance(source, np.ndarray) and target.flags.c_contiguous:
            source.get(out=target)
        else:
            target[...] = on_host(source)
    elif isinstance(source, np.ndarray):
        target.set(np.asarray(source, target.dtype, order="C"))
    else:
        target[...] = source


def fill(here: Device, target: Array, values: Any) -> None:
    """Overwrite an array of a device with values of any device and dtype; done on return."""
    if here.is_host:
        target[...] = on_host(values)
        return
    if is_on_gpu(values):
        source = typed(values, target.dtype.name)
    else:
        source = np.broadcast_to(np.asarray(values, target.dtype), target.shape)
    with here.use():
        copy(target, source)
        here.finish()


def pinned(shape: Shape, dtype: np.dtype[np.generic]) -> Array:
    """Return an uninitialised array in pinned memory of the host.

    Copies between it and a GPU continue after the call returns: see `mark`.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    array: Array = importlib.import_module("cupyx").empty_pinned(shape, dtype)
    return array


def mark(array: Array) -> Mark | None:
    """Return the end of this thread's work so far; None if the array is on the host."""
    if isinstance(array, np.ndarray):
        return None
    cuda = loaded().cuda
    event: Mark = cuda.get_current_stream().record(cuda.Event(disable_timing=True))
    return event


def after(mark: Mark | None, array: Array) -> None:
    """Let this thread's later work with an array wait for a mark."""
    if mark is None:
        return
    if isinstance(array, np.ndarray):
        mark.synchronize()
    else:
        loaded().cuda.get_current_stream().wait_event(mark)


def address(array: Array) -> int:
    """Return the address of the first element."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def one_place(a: Array, b: Array) -> bool:
    """Tell whether two arrays begin at the same address."""
    return address(a) == address(b)


def overlap(a: Array, b: Array) -> bool:
    """Tell whether two contiguous arrays have bytes in common."""
    return address(a) < address(b) + b.nbytes and address(b) < address(a) + a.nbytes


# -- GPUs ----------------------------------------------------------------------------------------


def loaded() -> Any:
    """Return the module CuPy; ImportError without it."""
    return sys.modules.get("cupy") or importlib.import_module("cupy")


def shared_library(*names: str) -> Any:
    """Return the first of these libraries that this process has loaded; OSError if none is."""
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    raise OSError(f"none of {', '.join(names)} is loaded")


def _cupy(context: Context) -> Any:
    """Return CuPy if there is a GPU for this context, else raise PlacementError."""
    settings.set_cupy_precision()
    try:
        cupy = loaded()
    except ImportError as error:
        raise _missing(
            context, f"the package cupy cannot be imported ({error}): pip install 'symgraph[gpu]'"
        ) from None
    if _first_asked() != os.getpid():
        raise _missing(
            context,
            "this process was forked when CUDA had been asked for GPUs, and it answers "
            "only there: make the MPI cluster first, which forks, then plans",
        )
    try:
        cards = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise _missing(context, f"CUDA finds no driver or no GPU ({error})") from None
    if not cards:
        raise _missing(context, "CUDA finds no GPU")
    if context.index >= cards and not settings.gpus_are_shared():
        there = "gpu(0)" if cards == 1 else f"gpu(0) to gpu({cards - 1})"
        raise _missing(
            context, f"this machine has {there}; {settings.SHARE_GPUS}=1 lets contexts share them"
        )
    return cupy


@cache
def _first_asked() -> int:
    """Return the process that called CUDA first, this one or one that it was forked from."""
    return os.getpid()


def _missing(context: Context, why: str) -> PlacementError:
    return PlacementError(f"{context} cannot be used: {why}; {ALTERNATIVE}")


@cache
def _gpu(cupy: Any, context: Context) -> Gpu:
    """Return the one `Gpu` of a context."""
    return Gpu(cupy, context, context.index % cupy.cuda.runtime.getDeviceCount())
