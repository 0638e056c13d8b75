"""Messages of communicators: one array or a tuple of them, after a header with their types.

A header is int64: its length (negative: the arrays are sent separately, after it), whether the
message was passed as one array, the number of arrays, then dtype, rank and dimensions of each.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.errors import DTypeError, RunError
from symgraph.core.types import DTYPES, Array, Shape, TensorType

EAGER_BYTES = 1 << 13  # messages up to this size are copied, so that their sender need not wait
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
ALIGNED = 8
PADDING: Bytes = np.zeros(ALIGNED, np.uint8)
CODES = {np.dtype(name): code for code, name in enumerate(DTYPES)}


class Message(NamedTuple):
    """What ranks send to each other."""

    arrays: tuple[Array, ...]
    #: Whether it was passed as one array, and is returned as one.
    single: bool

    @classmethod
    def of(cls, data: Any) -> Message:
        """Make a message of an array or number, or of a tuple or list of them.

        DTypeError if a dtype cannot be sent.
        """
        single = not isinstance(data, (tuple, list))
        arrays = tuple([_carried(x) for x in ([data] if single else data)])
        return cls(arrays, single)

    @property
    def data(self) -> Any:
        return self.arrays[0] if self.single else self.arrays

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays)

    def copy(self) -> Message:
        """Return a message with copies of the arrays."""
        return Message(tuple([a.copy() for a in self.arrays]), self.single)

    def packed(self, *, alone: bool = False) -> Bytes:
        """Return header and contents in one vector; alone: the header of contents that follow.

        Each array begins, and the vector ends, at a multiple of 8 bytes.
        """
        types = tuple([(CODES[a.dtype], a.shape) for a in self.arrays])
        header = _header(types, self.single, alone)
        if alone:
            return header
        parts = [(as_bytes(a), PADDING[: -a.nbytes % ALIGNED]) for a in self.arrays]
        return np.concatenate([header, *(piece for pair in parts for piece in pair)])

    def parts(self) -> tuple[Bytes, list[Bytes]]:
        """Return the vector to send first, a copy, and the arrays to send after it, if large."""
        if self.nbytes <= EAGER_BYTES:
            return self.packed(), []
        return self.packed(alone=True), [as_bytes(array) for array in self.arrays]


def begun(first: Bytes, out: Array | None = None) -> tuple[Message, list[Bytes]]:
    """Return the message that begins with this vector, and the memory to receive the rest into.

    out: a C-contiguous array to use as the message's; RunError if its type differs.
    """
    length = int(first[:8].view(np.int64)[0])
    single, types = _types(first[: 8 * abs(length)].tobytes())
    if out is not None:
        if [(dtype, shape) for dtype, shape, _ in types] != [(out.dtype, out.shape)]:
            sent = ", ".join(f"{dtype}{shape}" for dtype, shape, _ in types)
            raise RunError(f"the message is {sent}, but `out` is {out.dtype}{out.shape}")
        if length > 0:
            as_bytes(out)[...] = first[8 * length :][: out.nbytes]
        return Message((out,), True), [as_bytes(out)] if length < 0 else []
    if length < 0:
        message = Message(tuple([np.empty(shape, dtype) for dtype, shape, _ in types]), single)
        return message, [as_bytes(array) for array in message.arrays]
    arrays, at = [], 8 * length
    for dtype, shape, nbytes in types:
        arrays.append(first[at : at + nbytes].view(dtype).reshape(shape))
        at += nbytes + -nbytes % ALIGNED
    return Message(tuple(arrays), single), []


def as_bytes(array: Array) -> Bytes:
    """View a C-contiguous array's memory as a vector."""
    return array.reshape(-1).view(np.uint8)


def pickled(obj: Any) -> Message:
    """Pickle any object; arrays in it travel beside the pickle, unpickled (PEP 574)."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    parts: list[Any] = [stream, *(b.raw() for b in buffers)]
    return Message(tuple([np.frombuffer(part, np.uint8) for part in parts]), False)


def unpickled(message: Message) -> Any:
    stream, *buffers = message.arrays
    return pickle.loads(stream.tobytes(), buffers=buffers)


@lru_cache(1024)
def _header(types: tuple[tuple[int, Shape], ...], single: bool, alone: bool) -> Bytes:
    numbers = [0, int(single), len(types)]
    for code, shape in types:
        numbers += [code, len(shape), *shape]
    numbers[0] = -len(numbers) if alone else len(numbers)
    header = np.array(numbers, np.int64).view(np.uint8)
    header.flags.writeable = False  # shared by all messages of this type
    return header


@lru_cache(1024)
def _types(header: bytes) -> tuple[bool, tuple[tuple[np.dtype[Any], Shape, int], ...]]:
    """Return whether it is one array, and dtype, shape and bytes of each array."""
    _, single, count, *rest = np.frombuffer(header, np.int64).tolist()
    types = []
    for _ in range(count):
        code, rank = rest[:2]
        type_ = TensorType(tuple(rest[2 : 2 + rank]), DTYPES[code])
        types.append((np.dtype(type_.dtype), type_.shape, type_.nbytes))
        rest = rest[2 + rank :]
    return bool(single), tuple(types)


def _carried(x: Any) -> Array:
    if hasattr(x, "__cuda_array_interface__"):
        raise DTypeError(
            "an array of a GPU is not carried here, but its .get() is; communicator 'pure_nccl' "
            "has allreduce, bcast, allgather, bcast_data and multi_node_mean_grad for it"
        )
    array = np.asarray(x, order="C")
    if array.dtype not in CODES:
        raise DTypeError(
            f"an array of {array.dtype} is not carried; cast it to one of {', '.join(DTYPES)}, or "
            "use the call that ends in _obj"
        )
    return array
