"""Arrays on devices: which module makes them on which device, and which devices there are.

A numpy array is on the host, which all `cpu(i)` share; a CuPy array is on the GPU on which it was
made. CuPy is imported here only, when a GPU is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, Protocol

import numpy as np

from runtime.backends.device import settings
from runtime.backends.device.clocks import HostStamps, Stamps
from runtime.backends.device.gpu import Gpu
from runtime.backends.device.receive_stream import ReceiveStream
from symgraph.core.context import Context
from symgraph.core.errors import PlacementError
from symgraph.core.types import Array, Shape, TensorType

ALIGN = 64  # bytes: a cache line
HUGE = 1 << 21  # bytes: a large page, where the system has such for who asks, as numpy does
INSTEAD = "cpu(0), cpu(1), ... run the same partition and schedule, a thread each"


class Mark(Protocol):
    """A point in a GPU's work that others can wait for: a CUDA event. done: it has come there."""

    @property
    def done(self) -> bool: ...
    def synchronize(self) -> None: ...


class Device(Protocol):
    """What the runtime needs of a device. xp: the array module. is_host: whether it is the CPU.

    receive_stream: on which values come in while other work goes on; None if nothing does.
    """

    xp: Any
    is_host: bool
    receive_stream: ReceiveStream | None

    def bytes(self, count: int) -> Array:
        """Zeroed memory that begins where a cache line does."""
        ...

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """An array of that type that lies in memory from a byte on."""
        ...

    def put(self, array: Array) -> Array:
        """A copy here, in C order, of an array of the host."""
        ...

    def holds(self, array: object) -> bool:
        """Whether it is an array that lies here."""
        ...

    def catch_up(self) -> None:
        """Wait for what this thread has called here outside of `use`: a user's own work."""
        ...

    def use(self) -> AbstractContextManager[object]:
        """Let what this thread calls be this device's work, in the order of the calls."""
        ...

    def finish(self) -> None:
        """Wait until all of this device's work is done."""
        ...

    def stamps(self) -> Stamps:
        """Points in time of what a thread that uses this device asks for."""
        ...

    def set_aside(self, count: int) -> None:
        """Have at least so many bytes for what calls make on the way; see `making`."""
        ...

    @property
    def set_aside_bytes(self) -> int:
        """What has been taken for that."""
        ...

    def making(self) -> AbstractContextManager[object]:
        """Let what this thread makes here, and drops again, lie in what is set aside for it."""
        ...

    def captured(self, calls: Callable[[], None]) -> Callable[[], None] | None:
        """What the calls ask of this device, as one call; they ask, but nothing is done yet.

        They take no values from the host and wait for nothing. None: they must be made each time.
        """
        ...


class Host:
    """The CPU: work is done when its call returns."""

    xp: Any = np
    is_host: bool = True
    receive_stream: ReceiveStream | None = None
    set_aside_bytes: int = 0

    def bytes(self, count: int) -> Array:
        """See Device."""
        # Whole large pages spare a core the look-up of addresses: reading weights one after the
        # other, as time segments do, is a sixth faster.
        align = ALIGN if count < HUGE else HUGE
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

    def stamps(self) -> Stamps:
        """See Device."""
        return HostStamps()

    def set_aside(self, count: int) -> None:
        """See Device: it comes from where all memory does."""

    def making(self) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def captured(self, calls: Callable[[], None]) -> Callable[[], None] | None:
        """See Device: the host has done what it is asked when the call returns."""
        return None


HOST = Host()


def device(context: Context) -> Device:
    """The device that a context names; PlacementError, saying what is missing, if it is not here.

    With SYMGRAPH_SHARE_GPUS=1 in the environment, gpu(0), gpu(1), ... are dealt out to the GPUs
    that there are, each with a stream of its own: so a pipeline can be tried on a single card.
    Products of float32 are as SYMGRAPH_PRODUCTS says, see settings.py.
    """
    return HOST if context.kind == "cpu" else _gpu(_cupy(context), context)


def require(context: Context) -> None:
    """PlacementError, saying what is missing, if nothing can run on a device."""
    device(context)


def is_on_gpu(values: object) -> bool:
    """Whether it is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(values, cupy.ndarray)


def is_array(values: object) -> bool:
    """Whether it is an array, numpy's or CuPy's."""
    return isinstance(values, np.ndarray) or is_on_gpu(values)


def on_host(values: Any) -> Array:
    """Anything as a numpy array: the array itself if it is one, a copy of what is on a GPU."""
    if isinstance(values, np.ndarray):
        return values
    found: Array = values.get() if is_on_gpu(values) else np.asarray(values)
    return found


def module_of(array: Array) -> Any:
    """The module that makes such arrays: numpy or CuPy."""
    return np if isinstance(array, np.ndarray) else loaded()


def beside(array: Any) -> AbstractContextManager[object]:
    """Let what this thread calls be done where an array lies."""
    return nullcontext() if isinstance(array, np.ndarray) else array.device


def typed(values: Any, dtype: str) -> Array:
    """Anything in a dtype and in C order: on its GPU if it is on one, else on the host."""
    if not is_on_gpu(values):
        return np.asarray(values, dtype, order="C")
    with beside(values):
        made: Array = values.astype(dtype, order="C", copy=False)
        loaded().cuda.get_current_stream().synchronize()
    return made


def copy(target: Array, source: Array) -> None:
    """Copy values to an array of the same shape and type, from wherever to wherever."""
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
    """Give an array of a device new values, from wherever and of any dtype; done on return."""
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
    """An array of the host that GPUs copy from and to without a detour; its values are undefined.

    What copies to a GPU from here goes on when the call returns: see `mark`.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    room: Array = importlib.import_module("cupyx").empty_pinned(shape, dtype)
    return room


def mark(array: Array) -> Mark | None:
    """The end of what this thread has called, if that may still be at work on an array."""
    if isinstance(array, np.ndarray):
        return None
    cuda = loaded().cuda
    event: Mark = cuda.get_current_stream().record(cuda.Event(disable_timing=True))
    return event


def after(mark: Mark | None, array: Array) -> None:
    """Let what this thread will do with an array wait for a mark."""
    if mark is None:
        return
    if isinstance(array, np.ndarray):
        mark.synchronize()
    else:
        loaded().cuda.get_current_stream().wait_event(mark)


def address(array: Array) -> int:
    """Where the first element lies."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


# -- GPUs ----------------------------------------------------------------------------------------


def loaded() -> Any:
    """The module CuPy, for what works on its arrays; ImportError without it."""
    return importlib.import_module("cupy")


def shared_library(*names: str) -> Any:
    """The first library of these names that this process has loaded; OSError if it has none."""
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    raise OSError(f"none of {', '.join(names)} is loaded")


def _cupy(context: Context) -> Any:
    """The module, if there is a GPU for a context."""
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
    """The process that has called CUDA first, this one or one that it was forked from."""
    return os.getpid()


def _missing(context: Context, why: str) -> PlacementError:
    return PlacementError(f"{context} cannot be used: {why}; {INSTEAD}")


@cache
def _gpu(cupy: Any, context: Context) -> Gpu:
    """One for each context, however often it is asked for."""
    return Gpu(cupy, context, context.index % cupy.cuda.runtime.getDeviceCount())
