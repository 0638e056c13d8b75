"""The event log: scalars of a training run as TensorBoard reads them.

An event file is a TFRecord file of `Event` protocol buffers. The few fields that scalars need are
written here, so that no further package is needed.
"""

from __future__ import annotations

import math
import struct
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import BinaryIO

from symgraph.core.errors import ConfigError, RunError

VERSION = b"brain.Event:2"
POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected
DOUBLE, BYTES, FLOAT = 1, 2, 5  # wire types


class EventLog(ExitStack):
    """Writes a new event file into a folder, a scalar for each figure of a step; None: nowhere.

    As a context manager it closes the file. ConfigError if that cannot be written.
    """

    def __init__(self, folder: str | None) -> None:
        super().__init__()
        self._folder = folder
        self._file: BinaryIO | None = None
        if folder is not None:
            path = Path(folder) / f"events.out.tfevents.{time.time_ns()}.symgraph"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by us
                self._file = self.enter_context(file)
            except OSError as error:
                raise ConfigError(f"cannot write events to {folder}: {error.strerror}") from None
            self._append(_event(0, _field(3, BYTES, VERSION)))

    def write(self, *, step: int, **figures: float) -> None:
        """Write the scalars of a step; what is no finite number is left out."""
        if self._file is None:
            return
        values = b"".join(
            _field(1, BYTES, _field(1, BYTES, name.encode()) + _field(2, FLOAT, value))
            for name, value in figures.items()
            if math.isfinite(value)
        )
        self._append(_event(step, _field(5, BYTES, values)))

    def _append(self, event: bytes) -> None:
        """Write an event; RunError if the disk is full."""
        assert self._file is not None
        try:
            self._file.write(_record(event))
        except OSError as error:
            raise RunError(f"cannot write events to {self._folder}: {error.strerror}") from None


def _event(step: int, what: bytes) -> bytes:
    return _field(1, DOUBLE, time.time()) + _varint(2 << 3) + _varint(step) + what


def _field(number: int, kind: int, value: bytes | float) -> bytes:
    """A field of a protocol buffer."""
    key = _varint(number << 3 | kind)
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    return key + struct.pack("<d" if kind == DOUBLE else "<f", value)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _record(data: bytes) -> bytes:
    """A record of a TFRecord file: length and data, each with its masked checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        found.append(crc)
    return tuple(found)
