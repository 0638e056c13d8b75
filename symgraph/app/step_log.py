"""Step logs: figures of each training step, as lines of JSON or as scalars for TensorBoard.

TensorBoard reads TFRecord files of `Event` protocol buffers. The few fields that scalars need are
written here, so no further package is needed.
"""

from __future__ import annotations

import json
import math
import struct
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO

from symgraph.core.errors import ConfigError, RunError

VERSION = b"brain.Event:2"
POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected
SESSION_LOG, STARTED = 7, 1  # by which TensorBoard drops events of this step and later ones
DOUBLE, BYTES, FLOAT = 1, 2, 5  # wire types of protocol buffers


class StepLog(ExitStack, ABC):
    """An open file that takes the figures of steps; as a context manager it closes the file.

    Without a path nothing is written. With `after`, the figures of later steps that an earlier run
    has written no longer count, as this run makes those steps again. Raises ConfigError if the file
    cannot be opened.
    """

    mode = "ab"
    target = "the log"  # what error messages say is written

    def __init__(self, path: str | None, after: int | None = None) -> None:
        super().__init__()
        self._path, self._after = path, after
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                file = open(self._file_in(path), self.mode, buffering=0)  # noqa: SIM115
                self._file = self.enter_context(file)
            except OSError as error:
                raise ConfigError(self._failure(error)) from None

    def write(self, *, step: int, **figures: float) -> None:
        """Write the figures of a step at once. Raises RunError, for example if the disk is full."""
        if self._file is not None:
            self._append(self._entry(step, figures))

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise RunError(self._failure(error)) from None

    def _failure(self, error: OSError) -> str:
        return f"cannot write {self.target} {self._path}: {error.strerror}"

    def _file_in(self, path: str) -> Path:
        return Path(path)

    @abstractmethod
    def _entry(self, step: int, figures: dict[str, float]) -> bytes:
        """Return the bytes that one step adds to the file."""


class JsonLog(StepLog):
    """A JSON object per line, appended, so that a resumed run continues the file.

    Figures that are not finite become null.
    """

    def _file_in(self, path: str) -> Path:
        if self._after is not None and Path(path).is_file():
            _cut(Path(path), self._after)
        return Path(path)

    def _entry(self, step: int, figures: dict[str, float]) -> bytes:
        finite = {name: v if math.isfinite(v) else None for name, v in figures.items()}
        return json.dumps({"step": step, **finite}).encode() + b"\n"


class EventLog(StepLog):
    """A new TensorBoard event file in a folder, with one scalar per figure and step.

    Figures that are not finite are left out.
    """

    mode = "wb"
    target = "events to"

    def __init__(self, folder: str | None, after: int | None = None) -> None:
        super().__init__(folder, after)
        if folder is not None:
            self._append(_event(0, _field(3, BYTES, VERSION)))
        if folder is not None and after is not None:
            start = _field(SESSION_LOG, BYTES, _varint(1 << 3) + _varint(STARTED))
            self._append(_event(after + 1, start))

    def _file_in(self, path: str) -> Path:
        Path(path).mkdir(parents=True, exist_ok=True)
        return Path(path, f"events.out.tfevents.{time.time_ns()}.symgraph")

    def _entry(self, step: int, figures: dict[str, float]) -> bytes:
        values = b"".join(
            _field(1, BYTES, _field(1, BYTES, name.encode()) + _field(2, FLOAT, value))
            for name, value in figures.items()
            if math.isfinite(value)
        )
        return _event(step, _field(5, BYTES, values))


def _cut(path: Path, after: int) -> None:
    """Cut the lines of steps after this one off the end of a log, and a line half written.

    If figures of a step are followed by those of an earlier one, they are of another run: they
    stay, like all before them.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    kept: list[bytes] = []  # of earlier steps, such as the writing of a checkpoint
    last = math.inf
    while lines:
        line = lines.pop()
        try:
            said = json.loads(line)
            step, of_step = said["step"], "loss" in said
            if of_step and not after < step <= last:
                lines.append(line)
                break
        except (ValueError, KeyError, TypeError):
            continue
        last = step if of_step else last
        if step <= after:
            kept.insert(0, line)
    path.write_bytes(b"".join([*lines, *kept]))


def _event(step: int, content: bytes) -> bytes:
    event = _field(1, DOUBLE, time.time()) + _varint(2 << 3) + _varint(step) + content
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


def _field(number: int, wire_type: int, value: bytes | float) -> bytes:
    """Encode a field of a protocol buffer."""
    key = _varint(number << 3 | wire_type)
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    return key + struct.pack("<d" if wire_type == DOUBLE else "<f", value)


def _varint(number: int) -> bytes:
    """Encode seven bits per byte, the lowest first; the highest bit says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C checksum (RFC 3720)."""
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0) for crc in table]
    return tuple(table)
