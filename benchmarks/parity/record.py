"""The record of a network in one library: names, shapes, outputs, gradients, auxiliary states.

The values of inputs and parameters depend only on their names and shapes, so two libraries, in two
Pythons, compute with the same numbers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.parity.networks import Network

Arrays = dict[str, Any]


class Record(NamedTuple):
    """arguments, states, outputs: name -> shape, in order. arrays: `output NAME`, `grad NAME`,
    `state NAME`, in float32."""

    arguments: dict[str, list[int]]
    states: dict[str, list[int]]
    outputs: dict[str, list[int]]
    arrays: Arrays


def value(name: str, shape: tuple[int, ...], limit: int | None) -> Any:
    """Return numbers around 0, or whole numbers from 0 (lengths: from 1) below the limit."""
    draw = np.random.RandomState(zlib.crc32(name.encode()) % 2**32)
    if limit is not None:
        return draw.randint(name == "length", limit + (name == "length"), shape).astype("float32")
    if name.endswith(("gamma", "moving_var")):
        return draw.uniform(0.5, 1.5, shape).astype("float32")
    return draw.uniform(-0.5, 0.5, shape).astype("float32")


def feeds(network: Network, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    return {name: value(name, tuple(s), network.ids.get(name)) for name, s in shapes.items()}


def shapes_by_name(names: Iterable[str], shapes: Iterable[Any]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in zip(names, shapes, strict=True)}


def pack(records: Mapping[str, Record]) -> Arrays:
    """Pack records into a few arrays for one small npz file, one array per network."""
    packed: Arrays = {}
    for name, record in records.items():
        layout = [(key, list(a.shape)) for key, a in record.arrays.items()]
        text = json.dumps([*record[:3], layout], separators=(",", ":"))
        packed[f"{name}.json"] = np.frombuffer(text.encode(), "uint8")
        packed[f"{name}.values"] = np.concatenate([a.reshape(-1) for a in record.arrays.values()])
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[str, Record]:
    records = {}
    for key in packed:
        name, kind = key.rsplit(".", 1)
        if kind != "json":
            continue
        arguments, states, outputs, layout = json.loads(bytes(packed[key]))
        sizes = [int(np.prod(shape)) for _, shape in layout]
        parts = np.split(packed[f"{name}.values"], np.cumsum(sizes)[:-1])
        arrays = {k: part.reshape(s) for (k, s), part in zip(layout, parts, strict=True)}
        records[name] = Record(arguments, states, outputs, arrays)
    return records


def differences(ours: Record, theirs: Record, tolerance: float = 1e-5) -> list[str]:
    """List the differences; arrays may differ by `tolerance` of their largest element.

    A gradient that is zero except for rounding (such as that of a bias before BatchNorm) is
    compared relative to a twentieth of the network's largest gradient.
    """
    found = []
    grads = [abs(a).max() for key, a in theirs.arrays.items() if key.startswith("grad ")]
    least = max(grads, default=0.0) / 20
    for field in ("arguments", "states", "outputs"):
        mine, other = list(getattr(ours, field).items()), list(getattr(theirs, field).items())
        if mine != other:
            pair = next(
                (p for p in zip(mine, other, strict=False) if p[0] != p[1]), (len(mine), len(other))
            )
            found.append(f"{field} differ: {pair[0]} here, {pair[1]} there")
    for key in theirs.arrays:
        mine, other = ours.arrays.get(key), theirs.arrays[key]
        if mine is None or mine.shape != other.shape:
            found.append(f"{key}: {None if mine is None else mine.shape}, not {other.shape}")
            continue
        largest = max(abs(other).max(), least if key.startswith("grad ") else 1e-30)
        error = abs(mine - other).max() / largest
        if not error <= tolerance:
            found.append(f"{key}: differs by {error:.2g} of its largest element")
    return found
