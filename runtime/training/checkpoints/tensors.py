"""Files of tensors (safetensors): buffers that are laid out as such a file, and their reader."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from runtime.backends.device.arrays import copy
from runtime.training.checkpoints.disk import Disk
from symgraph.core.errors import ConfigError, DTypeError
from symgraph.core.types import Array
from symgraph.passes.shards import Shard

SUFFIX = ".safetensors"
CHUNK = 1 << 20  # bytes that are written at once
KINDS = {  # dtype -> its name in the file
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


class FileFacts(NamedTuple):
    """What a manifest says of a file."""

    #: Its bytes.
    size: int
    #: The SHA-256 of its content. (The fastest of hashlib's on processors of the last ten years.)
    sha256: str


class Image:
    """The bytes of a file of tensors, in memory: what is copied into `tensors` is in it."""

    #: Name -> the place of its values in `memory`.
    tensors: dict[str, Array]

    def __init__(self, like: Mapping[str, Array]) -> None:
        """Reserve memory for arrays of these shapes and dtypes, on any device."""
        for name, array in like.items():
            if array.dtype.name not in KINDS:
                raise DTypeError(f"{name!r}: {array.dtype} cannot be saved")
        self.layout = _layout(like)
        order = sorted(like, key=lambda name: (-like[name].dtype.itemsize, name))  # so all align
        entries, at = {}, 0
        for name in order:
            dtype, shape = like[name].dtype, list(like[name].shape)
            end = at + like[name].nbytes
            entries[name] = {"dtype": KINDS[dtype.name], "shape": shape, "data_offsets": [at, end]}
            at = end
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        start = 8 + len(header)
        self.memory = np.zeros(start + at, np.uint8)
        self.memory[:start] = np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8)
        self.tensors = {}
        for name in order:
            first, last = entries[name]["data_offsets"]
            values = self.memory[start + first : start + last].view(like[name].dtype)
            self.tensors[name] = values.reshape(like[name].shape)

    def fits(self, like: Mapping[str, Array]) -> bool:
        """Return whether it has a place for exactly these arrays."""
        return self.layout == _layout(like)

    def fill(self, arrays: Mapping[str, Array]) -> None:
        """Copy arrays of any device into their places."""
        for name, array in arrays.items():
            copy(self.tensors[name], array)

    def write(self, disk: Disk, file: Path, proceed: Iterable[object] | None = None) -> FileFacts:
        """Write the file, and return its facts once it is on the disk.

        Args:
            disk: Where it is written.
            file: Its path.
            proceed: Is asked for an element before each chunk, and may raise to stop.
        """
        digest = hashlib.sha256()
        asked = None if proceed is None else iter(proceed)

        def chunks() -> Iterator[memoryview]:
            data = self.memory.data
            for at in range(0, len(data), CHUNK):
                if asked is not None:
                    next(asked)
                digest.update(data[at : at + CHUNK])
                yield data[at : at + CHUNK]

        disk.write(file, chunks())
        disk.sync(file)
        return FileFacts(self.memory.nbytes, digest.hexdigest())


def _layout(like: Mapping[str, Array]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    return {name: (array.dtype, array.shape) for name, array in like.items()}


def facts_of(file: Path) -> FileFacts:
    """Compute the facts of a file."""
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return FileFacts(stream.tell(), digest.hexdigest())


class Reader:
    """Reads the tensors of a checkpoint, whichever rank wrote them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder: dict[str, Any] = {}  # tensor -> the open file that has it
        for file in sorted(path.glob(f"*{SUFFIX}")):
            try:
                opened: Any = safe_open(file, "numpy")
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
            self.holder |= dict.fromkeys(opened.keys(), opened)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.holder = {}

    def read(
        self, key: str, name: str, like: Array | None = None, shard: Shard | None = None
    ) -> Array:
        """Read the tensor of a variable.

        Args:
            key: The tensor's name, with {} for the variable or the parameter it is a shard of.
            name: The variable.
            like: An array of the expected shape and dtype; None: any.
            shard: The rows to read; None: all.

        Raises:
            ConfigError: The tensor is missing, or has another shape or dtype.
        """
        tensor = key.format(shard.parameter if shard else name)
        if tensor not in self.holder:
            raise ConfigError(f"{self.path} has no {tensor!r}: it was written by another network")
        stored, whole = self.holder[tensor].get_slice(tensor), self.holder[tensor].get_tensor
        array: Array
        if like is None:
            array = whole(tensor)
            return array
        shape = tuple(stored.get_shape())
        wanted = (shard.rows, *like.shape[1:]) if shard else like.shape
        part = shard if shape == wanted else None
        if part and part.start < part.stop:
            array = stored[part.start : part.stop]
        else:  # a slice without elements is an error of safetensors
            array = part.of(whole(tensor)) if part else whole(tensor)
        if (shape, array.dtype) != (wanted, like.dtype):
            raise ConfigError(
                f"{self.path}: {tensor!r} is {array.dtype}{list(shape)}, but the network has "
                f"{like.dtype}{list(wanted)}"
            )
        return array
