"""Event logs: read back by the format's own rules, checksums included."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from symgraph.app.step_log import EventLog, JsonLog, crc32c
from symgraph.core.errors import ConfigError


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),  # the check value of CRC-32C
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums(data, crc):
    assert crc32c(data) == crc


def records(path: Path) -> Iterator[bytes]:
    """The data of all records, whose checksums are right."""
    text, at = path.read_bytes(), 0
    while at < len(text):
        (length,) = struct.unpack_from("<Q", text, at)
        data = text[at + 12 : at + 12 + length]
        for part, place in ((text[at : at + 8], at + 8), (data, at + 12 + length)):
            (masked,) = struct.unpack_from("<I", text, place)
            turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert (turned >> 17 | turned << 15) & 0xFFFFFFFF == crc32c(part)
        yield data
        at += 16 + length


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a protocol buffer's fields."""
    at = 0

    def varint() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        elif kind == 2:
            length = varint()
            yield number, data[at : at + length]
            at += length
        else:
            size = {1: 8, 5: 4}[kind]
            (value,) = struct.unpack_from("<d" if size == 8 else "<f", data, at)
            yield number, value
            at += size


def test_what_is_written_is_read_back(tmp_path):
    with EventLog(str(tmp_path / "runs")) as log:
        log.write(step=1, loss=2.5, perplexity=math.inf)
        log.write(step=300, loss=0.125, tokens_per_second=1e4)
    (path,) = (tmp_path / "runs").iterdir()
    assert ".tfevents." in path.name
    first, *events = (dict(fields(data)) for data in records(path))
    assert first[3] == b"brain.Event:2"
    found = []
    for event in events:
        assert event[1] > 1.7e9  # seconds since 1970
        values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
        found.append((event[2], {value[1].decode(): value[2] for value in values}))
    assert found == [(1, {"loss": 2.5}), (300, {"loss": 0.125, "tokens_per_second": 1e4})]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with EventLog(None) as log:
        log.write(step=1, loss=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write events to .*file/x: Not a directory"):
        EventLog(str(tmp_path / "file" / "x"))


def test_a_run_that_resumes_writes_no_step_twice(tmp_path):
    """A killed run had written steps 3 and 4, and half a line, after its checkpoint of step 2."""
    path = tmp_path / "log"
    steps = [{"step": n, "loss": 1.0} for n in (8, 9, 1, 2, 3)]
    saved = {"step": 2, "checkpoint_stall": 0.1}
    lines = [*steps, saved, {"step": 4, "loss": 1.0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 5, "lo')
    with JsonLog(str(path), 2) as log:
        log.write(step=3, loss=2.0)
    left = [json.loads(line) for line in path.read_text().splitlines()]
    assert left == [*steps[:4], saved, {"step": 3, "loss": 2.0}]
