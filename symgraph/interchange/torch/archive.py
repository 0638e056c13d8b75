"""PT2 archives: the zip of `torch.export.save`, with a network as JSON and weights as raw bytes.

Members are read one by one, by name, and none is written to disk. They are stored uncompressed, so
nothing that is read is larger than the file. The pickled example inputs are never opened.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError
from symgraph.core.reading import reading
from symgraph.core.types import Array

KIND = "file of torch.export.save"
MOST_JSON = 1 << 28  # bytes
MOST_MEMBERS = 1 << 20
REPEATED = 1 << 26  # bytes of an array that repeats its storage, as an expanded one does
# PyTorch's numbers of types; a bool is kept apart, as its arithmetic is not that of numbers.
DTYPES = {
    1: "uint8",
    2: "int8",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
}
STRIDED = 7


def field(table: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """Return an entry of a JSON object; ConfigError if it is missing or of another kind."""
    if not isinstance(table, dict):
        raise ConfigError(f"where {key!r} should be, the JSON has {_short(table)}")
    value = table.get(key)
    wrong_bool = isinstance(value, bool) and kind is int
    if not isinstance(value, kind) or wrong_bool:
        raise ConfigError(f"{key!r} is {_short(value)} in the JSON, which it cannot be")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def dtype_of(number: Any) -> str:
    """Return the name of a type by PyTorch's number; ConfigError for one that is not supported."""
    if type(number) is not int or number not in DTYPES:
        name = "bfloat16" if number == 13 else _short(number)
        raise ConfigError(
            f"tensors of type {name} are not supported: convert the module, as with "
            f".float(), before the export (known: {', '.join(DTYPES.values())})"
        )
    return DTYPES[number]


class Archive:
    """An open archive. Use it as a context manager; every method raises ConfigError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with reading(path, KIND):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ConfigError(f"not a {KIND}: it is no regular file")
            self._size = os.path.getsize(path)
            try:
                self._zip = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, NotImplementedError) as error:
                raise ConfigError(f"not a {KIND}: {error}") from None
            members = self._zip.infolist()
            if len(members) > MOST_MEMBERS:
                raise ConfigError(f"has {len(members)} members, more than {MOST_MEMBERS}")
            self._members = {member.filename: member for member in members}
            models = [n for n in self._members if n.split("/")[1:2] == ["models"]]
            models = [n for n in models if n.endswith(".json") and n.count("/") == 2]
            if len(models) != 1:
                raise ConfigError(
                    f"not a {KIND} with one network: it has {len(models)} members models/*.json"
                )
            self._folder, _, file = models[0].split("/")
            self.name = file.removesuffix(".json")
            order = f"{self._folder}/byteorder"
            if order in self._members and self._bytes(order, 100) != b"little":
                raise ConfigError("its numbers are not little-endian")

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exc: object) -> None:
        self._zip.close()

    def network(self) -> Any:
        """Return the parsed JSON of the network."""
        return self._json(f"models/{self.name}.json")

    def tensors(self) -> dict[str, tuple[Hashable, Array]]:
        """Return the weights and constants by name, each with the place of its numbers."""
        stored: dict[str, bytes] = {}
        found: dict[str, tuple[Hashable, Array]] = {}
        for kind in ("weights", "constants"):
            name = f"data/{kind}/{self.name}_{kind}_config.json"
            if f"{self._folder}/{name}" not in self._members:
                continue
            for key, entry in field(self._json(name), "config", dict).items():
                if not isinstance(entry, dict) or entry.get("tensor_meta") is None:
                    continue  # no tensor; an error follows if the network reads it
                if entry.get("use_pickle"):
                    raise ConfigError(f"tensor {key!r} is pickled, which is never read")
                place = f"data/{kind}/{field(entry, 'path_name', str)}"
                if place not in stored:
                    stored[place] = self._bytes(f"{self._folder}/{place}", self._size)
                meta = entry["tensor_meta"]
                array = _array(key, stored[place], meta)
                part = str((meta["storage_offset"], meta["strides"]))  # a storage may hold several
                found[key] = ((place, part), array)
        return found

    def _json(self, name: str) -> Any:
        text = self._bytes(f"{self._folder}/{name}", MOST_JSON)
        with reading(name, "network in JSON"):
            return json.loads(text)

    def _bytes(self, name: str, most: int) -> bytes:
        """Return a member's bytes; all members together are no more than the file."""
        member = self._members.get(name)
        if member is None:
            raise ConfigError(f"has no member {name!r}")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise ConfigError(f"member {name!r} is compressed or encrypted: PyTorch stores plainly")
        if member.file_size > min(most, self._size):
            raise ConfigError(f"member {name!r} says that it has {member.file_size} bytes")
        try:
            return self._zip.read(member)
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
            raise ConfigError(f"member {name!r} is damaged: {error}") from None


def _array(name: str, storage: bytes, meta: Any) -> Array:
    """Return a tensor as an array of its own, from its bytes and its sizes and strides."""
    dtype = np.dtype(dtype_of(field(meta, "dtype", int)))
    if meta.get("layout", STRIDED) != STRIDED:
        raise ConfigError(f"tensor {name!r} is sparse, which is not supported")
    sizes = [_count(name, size) for size in field(meta, "sizes", list)]
    strides = [_count(name, stride) for stride in field(meta, "strides", list)]
    offset = _count(name, field(meta, "storage_offset", dict))
    count = math.prod(sizes)
    if len(sizes) != len(strides) or len(sizes) > 32:
        raise ConfigError(f"tensor {name!r} has {len(sizes)} sizes and {len(strides)} strides")
    last = offset + sum((d - 1) * s for d, s in zip(sizes, strides, strict=True))
    if count and (last + 1) * dtype.itemsize > len(storage):
        raise ConfigError(f"tensor {name!r} of shape {tuple(sizes)} is longer than its bytes")
    if count * dtype.itemsize > max(len(storage), REPEATED):
        raise ConfigError(f"tensor {name!r} of shape {tuple(sizes)} is larger than its bytes")
    if not count:
        return np.empty(sizes, dtype)
    flat = np.frombuffer(storage, dtype, len(storage) // dtype.itemsize)
    steps = [stride * dtype.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], sizes, steps).copy()


def _count(name: str, size: Any) -> int:
    number = size.get("as_int") if isinstance(size, Mapping) else None
    if type(number) is not int or not 0 <= number < 1 << 48:
        raise ConfigError(f"tensor {name!r} has a size or stride {_short(size)}")
    return number
