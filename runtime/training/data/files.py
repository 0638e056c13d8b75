"""Files of arrays: numpy's, safetensors, and the images of MNIST (IDX) and CIFAR (binary)."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from symgraph.core.errors import ConfigError
from symgraph.core.reading import read_bytes, reading
from symgraph.core.types import Array
from symgraph.frontend.idx_file import read_idx, require_plausible

Arrays = Mapping[str, Array]
WHAT = "file of arrays"
NPY = b"\x93NUMPY"
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
    if not file.exists():
        raise ConfigError(f"no such file or folder: {path}")
    raise ConfigError(
        f"{path}: files with several arrays end in .npz, .safetensors or .bin (CIFAR's); other "
        "arrays are data.files: {input: file}, and texts need data.sequence_length or data.buckets"
    )


def read_array(path: str) -> Array:
    """Read one array: .npy, of which only samples in use are in memory, or IDX."""
    with reading(path, WHAT), open(path, "rb") as file:
        magic = file.read(len(NPY))
    if magic != NPY:
        return read_idx(Path(path))
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
        require_plausible(file, sum(info.file_size for info in archive.infolist()))
    found = {}
    with np.load(file, allow_pickle=False) as arrays, warnings.catch_warnings(action="ignore"):
        for name in arrays.files:
            if not isinstance(array := arrays[name], np.ndarray):
                raise ConfigError(f"{file}: {name!r} in it is no .npy file")
            found[name] = array
    return found


def _idx_part(folder: Path, part: str) -> Arrays:
    """Return the arrays of one part of MNIST; empty if a file is missing."""
    found = {}
    for name, key in IDX_NAMES.items():
        for file in (folder / f"{part}-{name}", folder / f"{part}-{name}.gz"):
            if file.exists() and key not in found:
                found[key] = read_idx(file)
    return found if len(found) == len(IDX_NAMES) else {}


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
