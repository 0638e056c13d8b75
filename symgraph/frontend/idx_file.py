"""IDX files, the format of MNIST, which may be compressed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from symgraph.core.errors import ConfigError
from symgraph.core.reading import reading
from symgraph.core.types import Array

WHAT = "file of arrays"
GZIP = b"\x1f\x8b"
# What a compressed file may hold: this many bytes, or this many times its own size.
LARGEST, RATIO = 1 << 30, 100
BLOCK = 1 << 20  # bytes read at once
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(file: Path) -> Array:
    """Read an IDX file: two zero bytes, type, number of axes, their lengths, numbers.

    Raises ConfigError if it cannot be read, or is something else.
    """
    import gzip  # which few programs need

    with reading(file, WHAT), file.open("rb") as raw:
        is_compressed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        with gzip.open(raw) if is_compressed else raw as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES:
                raise ConfigError(f"{file}: neither .npy nor an IDX file (MNIST's format)")
            dtype, axes = np.dtype(IDX_TYPES[head[2]]), head[3]
            shape = [int(n) for n in np.frombuffer(stream.read(4 * axes), ">u4", axes)]
            count = math.prod(shape)
            if is_compressed:
                require_plausible(file, count * dtype.itemsize)
            numbers = b"".join(_blocks(stream, count * dtype.itemsize + 1))
        size = count * dtype.itemsize
        if len(numbers) != size:
            raise ConfigError(
                f"{file}: an IDX file of shape {tuple(shape)} has {size:,} bytes of numbers, but "
                f"there are {'more' if len(numbers) > size else 'fewer'}"
            )
        array = np.frombuffer(numbers, dtype, count).reshape(shape)
        return array.astype(dtype.newbyteorder("="))


def _blocks(stream: BufferedIOBase, most: int) -> Iterator[bytes]:
    """Yield the next `most` bytes of a stream, or those up to its end, in blocks."""
    while most > 0 and (block := stream.read(min(most, BLOCK))):
        most -= len(block)
        yield block


def require_plausible(file: Path, size: int) -> None:
    """Raise ConfigError if a compressed file is to become so much larger that it may be a bomb."""
    there = file.stat().st_size
    if size > max(LARGEST, RATIO * there):
        raise ConfigError(
            f"{file}: its {there:,} bytes are to become {size:,}, more than {RATIO} times as many; "
            "if they are meant to, store the arrays without compression"
        )
