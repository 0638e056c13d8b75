"""Files of arrays: numpy's, safetensors, and the images of MNIST (IDX) and CIFAR (binary)."""

from __future__ import annotations

import gzip
import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from symgraph.core.errors import ConfigError
from symgraph.core.reading import read_bytes, reading
from symgraph.core.types import Array

Arrays = Mapping[str, Array]
WHAT = "file of arrays"
GZIP, NPY = b"\x1f\x8b", b"\x93NUMPY"
# What a compressed file may hold: this many bytes, or this many times its own size.
LARGEST, RATIO = 1 << 30, 100
BLOCK = 1 << 20  # bytes read at once
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
IDX_PARTS = ("train", "t10k")
IDX_NAMES = {"images-idx3-ubyte": "data", "labels-idx1-ubyte": "label"}
PIXELS = 3 * 32 * 32


def read_arrays(path: str) -> tuple[Arrays, Arrays | None]:
    """Read a file or folder with several arrays.

    Returns:
        The arrays by name, and those of the held-out part if they are in it too.

    Raises:
        ConfigError: It cannot be read, or has no arrays.
    """
    file = Path(path)
    if file.is_dir():
        return _folder(file)
    with reading(path, WHAT):
        if file.suffix == ".npz":
            return _npz(file), None
        if file.suffix == ".safetensors":
            return load_file(file), None
    if file.suffix == ".bin":
        return _cifar([file]), None
    raise ConfigError(
        f"{path}: files with several arrays end in .npz, .safetensors or .bin (CIFAR's); other "
        "arrays are data.files: {input: file}, and texts need data.sequence_length or data.buckets"
    )


def read_array(path: str) -> Array:
    """Read one array: .npy, of which only samples in use are in memory, or IDX."""
    with reading(path, WHAT), open(path, "rb") as file:
        magic = file.read(len(NPY))
    if magic != NPY:
        return _idx(Path(path))
    with reading(path, WHAT), warnings.catch_warnings(action="ignore"):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array


def _folder(folder: Path) -> tuple[Arrays, Arrays | None]:
    names = sorted(file.name for file in folder.iterdir())
    numpy_files = [name for name in names if name.endswith(".npy")]
    if numpy_files:
        return {n.removesuffix(".npy"): read_array(str(folder / n)) for n in numpy_files}, None
    binary = [folder / name for name in names if name.endswith(".bin")]
    if binary:
        tests = [file for file in binary if "test" in file.name]
        train = [file for file in binary if file not in tests]
        return _cifar(train or tests), _cifar(tests) if train and tests else None
    train_part, test_part = (_idx_part(folder, part) for part in IDX_PARTS)
    if train_part:
        return train_part, test_part or None
    raise ConfigError(
        f"{folder} has no files of arrays: .npy, CIFAR's .bin, or MNIST's such as "
        f"{IDX_PARTS[0]}-{next(iter(IDX_NAMES))}.gz"
    )


def _npz(file: Path) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        _require_plausible(file, sum(info.file_size for info in archive.infolist()))
    found = {}
    with np.load(file, allow_pickle=False) as arrays, warnings.catch_warnings(action="ignore"):
        for name in arrays.files:
            if not isinstance(array := arrays[name], np.ndarray):
                raise ConfigError(f"{file}: {name!r} in it is no .npy file")
            found[name] = array
    return found


def _require_plausible(file: Path, size: int) -> None:
    """Raise ConfigError if a compressed file is to become so much larger that it may be a bomb."""
    there = file.stat().st_size
    if size > max(LARGEST, RATIO * there):
        raise ConfigError(
            f"{file}: its {there:,} bytes are to become {size:,}, more than {RATIO} times as many; "
            "if they are meant to, store the arrays without compression"
        )


def _idx_part(folder: Path, part: str) -> Arrays:
    """Return the arrays of one part of MNIST; empty if a file is missing."""
    found = {}
    for name, key in IDX_NAMES.items():
        for file in (folder / f"{part}-{name}", folder / f"{part}-{name}.gz"):
            if file.exists() and key not in found:
                found[key] = _idx(file)
    return found if len(found) == len(IDX_NAMES) else {}


def _idx(file: Path) -> Array:
    """Read an IDX file: two zero bytes, type, number of axes, their lengths, numbers."""
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
                _require_plausible(file, count * dtype.itemsize)
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


def _cifar(files: list[Path]) -> Arrays:
    """Read CIFAR's binary files: one label byte (CIFAR-100: two, the last counts), 3072 pixels."""
    images, labels = [], []
    for file in files:
        raw = read_bytes(file, "file of CIFAR's")
        heads = [head for head in (1, 2) if raw and len(raw) % (head + PIXELS) == 0]
        if not heads:
            raise ConfigError(
                f"{file} has {len(raw):,} bytes, which is not a number of CIFAR's images of 1 or 2 "
                f"label bytes and {PIXELS} pixels"
            )
        rows = np.frombuffer(raw, np.uint8).reshape(-1, heads[0] + PIXELS)
        images.append(rows[:, heads[0] :].reshape(-1, 3, 32, 32))
        labels.append(rows[:, heads[0] - 1].astype(np.int32))
    return {"data": np.concatenate(images), "label": np.concatenate(labels)}
