"""A GPU as a device of `arrays.py`: memory, streams and captured work.

Nothing here imports CuPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from runtime.backends.device import settings
from runtime.backends.device.clocks import EventStamps, Stamps
from runtime.backends.device.receive_stream import ReceiveStream
from symgraph.core.context import Context
from symgraph.core.errors import LimitError
from symgraph.core.types import Array, TensorType
from symgraph.core.units import bytes_text


class Gpu:
    """A context on a GPU, with its own streams beside those of other contexts on it."""

    is_host: bool = False

    def __init__(self, cupy: Any, context: Context, card: int) -> None:
        self.xp: Any = cupy
        self.context = context
        self._cuda, self._card = cupy.cuda, card
        # Temporaries of calls. In a CUDA graph they lie at the same places in every run, so the
        # memory must not be used for anything else after a call has freed it.
        self._temporaries = self._cuda.MemoryPool(self._straight)
        self._landings: dict[object, Array] = {}  # by place, shape and dtype
        with self._cuda.Device(card):
            self.stream = self._cuda.Stream(non_blocking=True)
            self._beside = self._cuda.Stream(non_blocking=True)
            self.receive_stream: ReceiveStream | None = ReceiveStream(self._cuda, self.stream)

    def bytes(self, count: int) -> Array:
        """See arrays.Device; one allocation of CuPy's pool, which begins at a multiple of 512.

        LimitError if the GPU does not have that much memory left.
        """
        try:
            memory: Array = self.xp.zeros(count, np.uint8)
        except self._cuda.memory.OutOfMemoryError as error:
            needed = f"its part of the plan needs {bytes_text(count)} besides parameters"
            raise self._full(needed) from error
        return memory

    def _full(self, needed: str) -> LimitError:
        free, whole = self._cuda.runtime.memGetInfo()
        return LimitError(
            f"{self.context} has {bytes_text(free)} left of {bytes_text(whole)}, but {needed}: see "
            "the table of `symgraph plan`, and set `partition.memory` to what is available"
        )

    def _straight(self, count: int) -> Any:
        """Allocate memory from the GPU itself, for the pool of temporaries.

        If there is none left, CuPy's own pool gives back what the same calls took before they were
        captured.
        """
        refused = self._cuda.runtime.CUDARuntimeError
        with suppress(refused):
            return self._cuda.MemoryPointer(self._cuda.Memory(count), 0)
        self.xp.get_default_memory_pool().free_all_blocks()
        try:
            return self._cuda.MemoryPointer(self._cuda.Memory(count), 0)
        except refused as error:
            needed = f"operators need {bytes_text(count)} more while they run"
            raise self._full(needed) from error

    def view(self, memory: Array, offset: int, type_: TensorType) -> Array:
        """See arrays.Device."""
        piece = memory[offset : offset + type_.nbytes]
        return piece.view(type_.dtype).reshape(type_.shape)

    def put(self, array: Array) -> Array:
        """See arrays.Device."""
        here: Array = self.xp.array(array, order="C")
        return here

    def holds(self, array: object) -> bool:
        """See arrays.Device."""
        return isinstance(array, self.xp.ndarray) and array.device.id == self._card

    def catch_up(self) -> None:
        """See arrays.Device."""
        with self._cuda.Device(self._card):
            self._cuda.get_current_stream().synchronize()

    @contextmanager
    def use(self) -> Iterator[None]:
        """See arrays.Device."""
        with self._cuda.Device(self._card), self.stream:
            yield

    def finish(self) -> None:
        """See arrays.Device."""
        self.stream.synchronize()

    def read(self, arrays: Sequence[Any]) -> list[Array]:
        """See arrays.Device; all are under way before anybody waits."""
        landed = [self._landing(place, array) for place, array in enumerate(arrays)]
        for array, landing in zip(arrays, landed, strict=True):
            array.get(out=landing, blocking=False)
        self.stream.synchronize()
        return [landing.copy() for landing in landed]

    def _landing(self, place: int, array: Array) -> Array:
        """Return pinned memory for an array, a copy into which does not make the host wait."""
        kind = place, array.shape, array.dtype
        if kind not in self._landings:
            memory = self._cuda.alloc_pinned_memory(max(array.nbytes, 1))
            flat = np.frombuffer(memory, array.dtype, array.size)
            self._landings[kind] = flat.reshape(array.shape)
        return self._landings[kind]

    def stamps(self) -> Stamps:
        """See arrays.Device."""
        return EventStamps(self._cuda, self.stream)

    def set_aside(self, count: int) -> None:
        """See arrays.Device: one allocation, which the pool then divides."""
        with self.use():
            if self._temporaries.total_bytes() < count:
                self._temporaries.malloc(count)

    @property
    def set_aside_bytes(self) -> int:
        """See arrays.Device."""
        with self.use():
            return int(self._temporaries.total_bytes())

    def making(self) -> AbstractContextManager[object]:
        """See arrays.Device."""
        allocator: AbstractContextManager[object] = self._cuda.using_allocator(
            self._temporaries.malloc
        )
        return allocator

    def captured(self, calls: Callable[[], None]) -> Callable[[], None] | None:
        """See arrays.Device: a CUDA graph; None if SYMGRAPH_CUDA_GRAPHS=0."""
        if not settings.cuda_graphs_are_used():
            return None
        with self.making():
            self.stream.begin_capture()
            try:
                calls()
            finally:
                graph = self.stream.end_capture()
        return partial(graph.launch, self.stream)

    def beside(self) -> AbstractContextManager[object]:
        """See arrays.Device: a stream that joins captures."""
        stream: AbstractContextManager[object] = self._beside
        return stream

    def record(self, *, beside: bool) -> Any:
        """See arrays.Device."""
        event = self._cuda.Event(disable_timing=True)
        return (self._beside if beside else self.stream).record(event)

    def wait(self, event: Any, *, beside: bool) -> None:
        """See arrays.Device."""
        (self._beside if beside else self.stream).wait_event(event)
