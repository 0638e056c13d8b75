"""Arrays on devices: which module makes them on which device, and which devices there are.

A numpy array is on the host, which all `cpu(i)` share; a CuPy array is on the GPU on which it was
made. CuPy is imported here only, when a GPU is asked for.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import numpy as np

from symgraph.context import Context
from symgraph.errors import LimitError, PlacementError
from symgraph.stamps import EventStamps, HostStamps, Stamps
from symgraph.types import Array, TensorType
from symgraph.units import bytes_text

ALIGN = 64  # bytes: a cache line
SHARE = "SYMGRAPH_SHARE_GPUS"
TF32 = "SYMGRAPH_TF32"
INSTEAD = "cpu(0), cpu(1), ... run the same partition and schedule, a thread each"


class Mark(Protocol):
    """A point in a GPU's work that others can wait for: a CUDA event."""

    def synchronize(self) -> None: ...


class Device(Protocol):
    """What the runtime needs of a device. xp: the array module. is_host: whether it is the CPU."""

    xp: Any
    is_host: bool

    def bytes(self, count: int) -> Array:
        """Zeroed memory that begins where a cache line does."""
        ...

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """An array of that type that lies in memory from a byte on."""
        ...

    def put(self, array: Array) -> Array:
        """A copy here, in C order, of an array of the host."""
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


class Host:
    """The CPU: work is done when its call returns."""

    xp: Any = np
    is_host: bool = True

    def bytes(self, count: int) -> Array:
        """See Device."""
        memory = np.zeros(count + ALIGN, np.uint8)
        start = -memory.ctypes.data % ALIGN
        return memory[start : start + count]

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """See Device."""
        return np.ndarray(type_.shape, type_.dtype, memory, offset)

    def put(self, array: Array) -> Array:
        """See Device."""
        return np.array(array, order="C")

    def use(self) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def finish(self) -> None:
        """See Device."""

    def stamps(self) -> Stamps:
        """See Device."""
        return HostStamps()


class Gpu:
    """A context on a GPU: a stream of its own, beside those of others on the same card."""

    is_host: bool = False

    def __init__(self, cupy: Any, context: Context, card: int) -> None:
        self.xp: Any = cupy
        self.context = context
        self._cuda, self._card = cupy.cuda, card
        with self._cuda.Device(card):
            self.stream = self._cuda.Stream(non_blocking=True)

    def bytes(self, count: int) -> Array:
        """See Device; one allocation of CuPy's pool, which begins at a multiple of 512.

        LimitError if the card has not that much left.
        """
        try:
            memory: Array = self.xp.zeros(count, np.uint8)
        except self._cuda.memory.OutOfMemoryError as error:
            free, whole = self._cuda.runtime.memGetInfo()
            raise LimitError(
                f"{self.context} has {bytes_text(free)} left of {bytes_text(whole)}, but its part "
                f"of the plan needs {bytes_text(count)} besides parameters: see the table of "
                "--plan, and let `partition.memory` be what there is"
            ) from error
        return memory

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """See Device."""
        piece = memory[offset : offset + type_.nbytes]
        return piece.view(type_.dtype).reshape(type_.shape)

    def put(self, array: Array) -> Array:
        """See Device."""
        here: Array = self.xp.array(array, order="C")
        return here

    @contextmanager
    def use(self) -> Iterator[None]:
        """See Device."""
        with self._cuda.Device(self._card), self.stream:
            yield

    def finish(self) -> None:
        """See Device."""
        self.stream.synchronize()

    def stamps(self) -> Stamps:
        """See Device."""
        return EventStamps(self._cuda, self.stream)


HOST = Host()


def device(context: Context) -> Device:
    """The device that a context names; PlacementError, saying what is missing, if it is not here.

    With SYMGRAPH_SHARE_GPUS=1 in the environment, gpu(0), gpu(1), ... are dealt out to the GPUs
    that there are, each with a stream of its own: so a pipeline can be tried on a single card.
    With SYMGRAPH_TF32=1 products of float32 are made in TF32, of 10 bits of mantissa; else in
    float32, whatever CUPY_TF32 says.
    """
    return HOST if context.kind == "cpu" else _gpu(_cupy(context), context)


def require(context: Context) -> None:
    """PlacementError, saying what is missing, if nothing can run on a device."""
    device(context)


def require_host(contexts: Iterable[Context], what: str) -> None:
    """PlacementError for a GPU among the contexts. what: needs the host, in words."""
    for context in contexts:
        if context.kind != "cpu":
            raise PlacementError(
                f"{context} cannot be used: {what} keeps its arrays on the host and runs on "
                "cpu(0), cpu(1), ...; python -m symgraph.run and runtime.Session run on GPUs"
            )


def on_host(array: Array) -> Array:
    """The values as a numpy array: the array itself if it is one, else a copy."""
    if isinstance(array, np.ndarray):
        return array
    copied: Array = array.get()
    return copied


def copy(target: Array, source: Array) -> None:
    """Copy values to an array of the same shape and type, from wherever to wherever."""
    if isinstance(target, np.ndarray):
        target[...] = on_host(source)
    elif isinstance(source, np.ndarray):
        target.set(np.ascontiguousarray(source, target.dtype))
    else:
        target[...] = source


def special_functions(array: Array) -> Any:
    """The module that is scipy.special for such an array; loaded when it is asked for."""
    on_cpu = isinstance(array, np.ndarray)
    return importlib.import_module("scipy.special" if on_cpu else "cupyx.scipy.special")


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


def _cupy(context: Context) -> Any:
    """The module, if there is a GPU for a context."""
    # CuPy reads this at its first product of float32: strict unless somebody asks for TF32.
    os.environ["CUPY_TF32"] = "1" if os.environ.get(TF32) == "1" else "0"
    try:
        cupy = loaded()
    except ImportError as error:
        raise _missing(
            context, f"the package cupy cannot be imported ({error}): pip install 'symgraph[gpu]'"
        ) from None
    try:
        cards = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise _missing(context, f"CUDA finds no driver or no GPU ({error})") from None
    if not cards:
        raise _missing(context, "CUDA finds no GPU")
    if context.index >= cards and os.environ.get(SHARE) != "1":
        there = "gpu(0)" if cards == 1 else f"gpu(0) to gpu({cards - 1})"
        raise _missing(context, f"this machine has {there}; {SHARE}=1 lets contexts share them")
    return cupy


def _missing(context: Context, why: str) -> PlacementError:
    return PlacementError(f"{context} cannot be used: {why}; {INSTEAD}")


@cache
def _gpu(cupy: Any, context: Context) -> Gpu:
    """One for each context, however often it is asked for."""
    return Gpu(cupy, context, context.index % cupy.cuda.runtime.getDeviceCount())
