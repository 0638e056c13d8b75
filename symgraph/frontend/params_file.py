"""Parameter files: MXNet's `.params` format, and checkpoints of a symbol with its parameters.

    mymodel-symbol.json     the network, as `Symbol.save` writes it
    mymodel-0003.params     parameters by name, after epoch 3

MXNet 1.x reads and writes the same files. Numbers are little-endian:

    magic 0x112, 0 (u64)   count (u64) arrays   count (u64) names, each with its length (u64)
    array:  kind (u32)   storage 0 (i32)   axes (u32 and i64 each)   device (2 i32)
            dtype (i32)   elements in C order
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError
from symgraph.core.reading import read_bytes, reading
from symgraph.core.types import CODES, Array
from symgraph.core.writing import writing
from symgraph.frontend.sym import load
from symgraph.frontend.symbol import Symbol

MAGIC = 0x112
# Kinds of arrays. The last may have no axes at all; the first, of MXNet 0.11, lacks the storage.
WITHOUT_STORAGE, DENSE, DENSE_OR_SCALAR = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MAX_AXES = 32
KIND = "parameter file of MXNet"
CPU = 1
Tables = tuple[dict[str, Array], dict[str, Array]]


def write_arrays(path: str | os.PathLike[str], arrays: Sequence[Any], names: Sequence[str]) -> None:
    """Write arrays, with a name for each or with no names at all, to a file of this format.

    The file appears under its name only when it is complete. Raises ConfigError if it cannot be
    written, or if the format has no number for a dtype.
    """
    parts = [struct.pack("<QQQ", MAGIC, 0, len(arrays))]
    for index, value in enumerate(arrays):
        array = np.asarray(value)
        if str(array.dtype) not in CODES:
            name = names[index] if names else index
            raise ConfigError(f"{path}: {name!r} is {array.dtype}, but files hold {CODES} only")
        kind = DENSE if array.ndim else DENSE_OR_SCALAR
        parts.append(struct.pack(f"<IiI{array.ndim}q", kind, 0, array.ndim, *array.shape))
        parts.append(struct.pack("<iii", CPU, 0, CODES.index(str(array.dtype))))
        parts.append(np.ascontiguousarray(array).tobytes())
    parts.append(struct.pack("<Q", len(names)))
    for name in names:
        text = name.encode()
        parts.append(struct.pack("<Q", len(text)) + text)
    partial = Path(f"{path}.partial")
    with writing(path):
        partial.write_bytes(b"".join(parts))
        os.replace(partial, path)


def read_arrays(path: str | os.PathLike[str]) -> tuple[list[Array], list[str]]:
    """Read the arrays of a file, and their names, of which there may be none.

    Raises ConfigError for a file that is missing, cut short or something else.
    """
    with reading(path, KIND):
        return _Reader(read_bytes(path, "parameter file")).contents()


def save_params(
    path: str | Path, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
) -> None:
    """Write parameters and auxiliary states, by name; errors as `write_arrays`."""
    tables = {"arg": arg_params, "aux": aux_params}
    arrays = {f"{k}:{n}": a for k, table in tables.items() for n, a in table.items()}
    write_arrays(path, list(arrays.values()), list(arrays))


def load_params(path: str | Path) -> Tables:
    """Read (parameters, auxiliary states) by name from a `.params` file.

    Raises ConfigError for a file that is missing, cut short or something else.
    """
    arrays, names = read_arrays(path)
    tables: dict[str, dict[str, Array]] = {"arg": {}, "aux": {}}
    with reading(path, KIND):
        if len(names) < len(arrays):
            raise ValueError("its arrays have no names; nd.load reads it")
        for key, array in zip(names, arrays, strict=True):
            kind, colon, name = key.partition(":")
            if not colon:
                kind, name = "arg", key
            if kind not in tables:
                raise ValueError(f"{key!r} is neither arg: nor aux:")
            tables[kind][name] = array
    return tables["arg"], tables["aux"]


class _Reader:
    """The bytes of a file, read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f"<{layout}", self.raw(struct.calcsize(f"<{layout}")))

    def raw(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, in the middle of a value")
        self.at += count
        return self.data[self.at - count : self.at]

    def contents(self) -> tuple[list[Array], list[str]]:
        magic, _, count = self.take("QQQ")
        if magic != MAGIC:
            raise ValueError(f"it begins with {magic:#x}, not {MAGIC:#x}")
        arrays = [self.array() for _ in range(count)]
        (count,) = self.take("Q")
        names = [self.raw(*self.take("Q")).decode() for _ in range(count)]
        if names and len(names) != len(arrays):
            raise ValueError(f"it has {len(names)} names for {len(arrays)} arrays")
        return arrays, names

    def array(self) -> Array:
        (kind,) = self.take("I")
        if kind in (DENSE, DENSE_OR_SCALAR):
            (storage,) = self.take("i")
            if storage:
                raise ValueError(
                    f"an array of storage {storage} is not dense: in MXNet, save what its "
                    "tostype('default') returns"
                )
            shape = self.axes(self.take("I")[0], "q")
        elif kind == WITHOUT_STORAGE:
            shape = self.axes(self.take("I")[0], "q")
        elif kind <= MAX_AXES:  # MXNet before 0.11: the number of axes comes first
            shape = self.axes(kind, "I")
        else:
            raise ValueError(f"an array of kind {kind:#x}")
        if not shape and kind != DENSE_OR_SCALAR:
            raise ValueError("an array without shape, which was never filled")
        *_, number = self.take("iii")
        if min(shape, default=0) < 0 or not 0 <= number < len(CODES):
            known = ", ".join(f"{i} {name}" for i, name in enumerate(CODES))
            raise ValueError(
                f"an array of shape {shape} and dtype number {number}; dtypes are {known}"
            )
        dtype = np.dtype(CODES[number])
        elements = self.raw(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(elements, dtype).reshape(shape).copy()

    def axes(self, count: int, letter: str) -> tuple[int, ...]:
        if count > MAX_AXES:
            raise ValueError(f"an array of {count} axes")
        return self.take(f"{count}{letter}")


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Symbol | None,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    remove_amp_cast: bool = True,
) -> None:
    """Write `<prefix>-symbol.json` and `<prefix>-<epoch>.params` (`mx.model.save_checkpoint`).

    A missing folder is created; remove_amp_cast is accepted without effect, as networks have no
    such casts. Raises ConfigError if the files cannot be written.
    """
    with writing(f"{prefix}-symbol.json"):
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        if symbol is not None:
            symbol.save(f"{prefix}-symbol.json")
    save_params(f"{prefix}-{epoch:04d}.params", arg_params, aux_params)


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, dict[str, Array], dict[str, Array]]:
    """Read (symbol, parameters, auxiliary states) of a checkpoint (`mx.model.load_checkpoint`).

    Raises ConfigError for files that are missing or damaged.
    """
    symbol = load(f"{prefix}-symbol.json")
    return symbol, *load_params(f"{prefix}-{epoch:04d}.params")
