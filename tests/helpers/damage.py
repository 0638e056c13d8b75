"""Damaged files for all readers: seeded mutations, and a program that lets readers read them.

python -m tests.helpers.damage SEED COUNT      prints a line for each reader that did not refuse
                                               a file with an error of ours, or took too long
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import random
import resource
import signal
import struct
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from safetensors.numpy import save as safetensors

from partitioner.costs.machine import Level
from partitioner.costs.machine_files import load_machine
from partitioner.solve.workload_files import read_workload
from runtime.planning.costs.files import load_prices
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.text import load_schedule_file
from runtime.training.data.arrays import load_arrays
from symgraph.app.config import Config, load_config
from symgraph.app.corpus import text as read_corpus
from symgraph.app.data_config import ArraysData
from symgraph.core.errors import SymgraphError
from symgraph.core.types import Array, TensorType
from symgraph.frontend import sym
from symgraph.frontend.init import create
from symgraph.frontend.model import Model
from symgraph.frontend.params_file import load_params
from symgraph.interchange.torch import from_torch
from symgraph.passes.batching import Feed
from tests.helpers.profiles import ESTIMATES

ROOT = Path(__file__).parents[2]
TORCH = ROOT / "tests/symgraph/interchange/torch/data"
ADDRESSES = 4 << 30  # bytes: a file of some kilobytes must not need more
SECONDS = 60  # for one file, on a machine that does other things too
Reader = Callable[[Path], object]

# What a damaged file may hold in place of a value, and between any two bytes.
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 2**63, 10**30, 1e308, float("nan"), float("inf"), 0.5),
    *("", "x", "-1", "10" * 16, "(2, 3)", "(" * 500, "-" * 5000 + "1", "nan", "None", "None,"),
    *("\x1b[2J\n\r\x00", "n" * 3000, "\u202e", [], [[]], [0] * 70, {}, {"x": 1}, "(100000,) * 9"),
)
BYTES = (b"\x00", b"\xff\xfe", b"\n", b"\t", b"[" * 2000, b"{", b"}", b'"', b"\x1b[31m", b"\r\n")
NUMBERS = (b"-1", b"99999999999999999999", b"1e999", b"0", b"nan", b"*9", b"!!python/object:x")


def symbol(path: Path) -> None:
    """Do with a symbol what a user does before it is bound."""
    read = sym.load(str(path))
    read.tojson()
    for attrs in read.attr_dict().values():
        if "__init__" in attrs:
            create(attrs["__init__"])
    with_data = "data" in read.list_arguments() and "gru" not in path.name
    read.infer_shape_partial(**({"data": (2, 3, 32, 32)} if with_data else {}))
    read.infer_type()


def operators() -> bytes:
    """Operators with numbers that say how much they make, and variables with all attributes."""
    x = sym.Variable("x", shape=(4, 6), dtype="float32", lr_mult=2.0, wd_mult=0.5, init="ones")
    parts = sym.SliceChannel(x, num_outputs=2, name="cut")
    joined = sym.Concat(parts[0], parts[1], sym.tile(x, reps=(1, 2)), dim=1, name="join")
    heads = [
        sym.repeat(joined, repeats=2, axis=0),
        sym.arange(0, 10, step=2),
        sym.one_hot(sym.zeros((3,)), depth=5),
        sym.Embedding(sym.ones((2,)), input_dim=10, output_dim=3, name="words"),
        sym.FullyConnected(joined, num_hidden=4, name="fc"),
        sym.Reshape(x, shape=(2, -1)),
        sym.slice_axis(x, axis=1, begin=1, end=3),
        sym.add_n(x, x, x),
        sym.Dropout(sym.transpose(x, axes=(1, 0)), p=0.5),
        sym.broadcast_to(sym.sum(x, axis=1, keepdims=True), shape=(4, 5)),
    ]
    return sym.Group([*heads]).tojson().encode()


def samples(path: Path, shape: tuple[int, ...], classes: Path | None = None) -> None:
    """Do with files of samples what a run does until its first step, and before it evaluates."""
    types = {"data": TensorType((2, *shape), "float32"), "label": TensorType((2,), "int32")}
    feeds = {name: Feed(type_) for name, type_ in types.items()}
    network = Model(sym.Group([*map(sym.Variable, feeds)]), feeds)
    files = {"data": str(path), "label": str(classes)} if classes else {}
    given = ArraysData(
        kind="arrays", path=None if classes else str(path), files=files, held_out=0.5
    )
    found = load_arrays(given)
    found.about()
    assert found.digest
    run = any_config()
    for source in (found.source("training", run, network), found.source("held-out", run, network)):
        assert source is None or source.batches(0)


@functools.cache
def any_config() -> Config:
    return load_config(str(ROOT / "examples/table.yaml"))


def exported(path: Path) -> None:
    """Do with a network of PyTorch what a user does before it is bound."""
    network, _, _ = from_torch(path)
    network.infer_shape_partial()
    network.tojson()


def config(path: Path) -> None:
    load_config(str(path), (), schedules=SCHEDULES)


def archive(save: Callable[..., None], **arrays: Array) -> bytes:
    """A file of numpy's with some arrays."""
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def readers(folder: Path) -> dict[str, tuple[bytes, Reader]]:
    """A whole file for each reader, by the name of the file."""
    data, partitions = ROOT / "tests/symgraph/data", ROOT / "tests/partitioner/data"
    machine = "devices: {cpu(0): {flops: 1 GFLOP/s}, cpu(1): {flops: 2e9, node: a}}\n"
    links = "links: {network: {latency: 1 us, bandwidth: 1 GB/s}}\n"
    times = json.loads(ESTIMATES.to_json())
    times["measured"] = {"x": [1.0, 0.1, 5, [1.0, 2.0]]}
    prices = {"kinds": {"cpu": times}, "links": {"cpu cpu": {"latency": 1e-6, "bandwidth": 1e9}}}
    wire = Level(1e-3, 1e8, messages=((8, 1e-3), (100_000, 2e-3)))._asdict()
    hosts = {"devices": {"cpu(0)": "a", "cpu(1)": "b"}, "links": {"network": wire}}
    runs = "rank 0: 0F0 S0.0 D0F0\nrank 1: R0.0 1F0 D1F0\n"
    image = struct.pack(">IIII", 2051, 6, 7, 7) + bytes(6 * 7 * 7)
    table = {"data": np.ones((6, 4), "float32"), "label": np.arange(6, dtype="int32")}
    classes = folder / "classes.npy"
    np.save(classes, table["label"])
    row = functools.partial(samples, shape=(4,))
    picture = functools.partial(samples, shape=(7, 7), classes=classes)
    return {
        "gru.json": ((data / "gru-symbol.json").read_bytes(), symbol),
        "vgg.json": ((data / "vgg11_bn-symbol.json").read_bytes(), symbol),
        "operators.json": (operators(), symbol),
        "mxnet.params": ((data / "mxnet.params").read_bytes(), load_params),
        "run.yaml": ((ROOT / "examples/lstm_lm.yaml").read_bytes(), config),
        "machine.yaml": ((machine + links).encode(), lambda path: load_machine(str(path))),
        "table.json": (json.dumps(times).encode(), load_prices),
        "prices.json": (json.dumps(prices | {"hosts": hosts}).encode(), load_prices),
        "training.json": ((partitions / "training.json").read_bytes(), read_workload),
        "graph.txt": (
            (partitions / "lstm_profile.txt").read_bytes(),
            lambda path: read_workload(path, accelerators=2),
        ),
        "runs.txt": (runs.encode(), load_schedule_file),
        "runs.csv": (b"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", load_schedule_file),
        "words.txt": (b"a b c\nd e\n" * 20, lambda path: read_corpus(str(path))),
        "images.idx": (image, picture),
        "images.gz": (gzip.compress(image), picture),
        "rows.npz": (archive(np.savez, **table), row),
        "packed.npz": (archive(np.savez_compressed, **table), row),
        "rows.safetensors": (safetensors(table), row),
        "rows.npy": (
            archive(np.save, arr=table["data"]),
            functools.partial(row, classes=classes),
        ),
        "batch.bin": (bytes(6 * 3073), functools.partial(samples, shape=(3, 32, 32))),
        "net.pt2": ((TORCH / "resnet_block.pt2").read_bytes(), exported),
        "recurrent.pt2": ((TORCH / "bidirectional_gru.pt2").read_bytes(), exported),
    }


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Change a few places of a file."""
    try:
        layout = json.loads(whole)
    except ValueError:
        layout = None
    if isinstance(layout, dict) and rng.random() < 0.7:
        for _ in range(rng.choice((1, 1, 2))):
            _replace(layout, rng)
        return json.dumps(layout).encode()
    if whole.startswith(b"PK") and rng.random() < 0.7:
        return _rewritten(whole, rng)
    if whole[8:9] == b"{" and rng.random() < 0.7:
        return _reframed(whole, rng)
    changed = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, end = sorted(rng.randrange(len(changed) + 1) for _ in range(2))
        end = min(end, at + 40)
        kind = rng.randrange(5)
        if kind == 0:
            changed[at:end] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
        elif kind == 1:
            del changed[at : rng.choice((end, len(changed)))]
        elif kind == 2:
            changed[at:at] = rng.choice((*BYTES, *NUMBERS))
        elif kind == 3:
            changed[at:at] = changed[at:end] * rng.choice((1, 2, 50))
        else:
            _renumber(changed, rng)
    return bytes(changed)


def _rewritten(whole: bytes, rng: random.Random) -> bytes:
    """Damage a file inside a zip, which is otherwise in order; of a network, JSON documents."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(target, "w") as new:
        documents = [name for name in old.namelist() if name.endswith(".json")]
        chosen = rng.choice(documents or old.namelist())
        for name in old.namelist():
            content = old.read(name)
            if name == chosen and not documents:
                content = damaged(content, rng)
            elif name == chosen or name.endswith("model.json"):
                layout = json.loads(content)
                for _ in range(rng.choice((1, 2, 5))):
                    _replace(layout, rng)
                content = json.dumps(layout).encode()
            new.writestr(name, content)
    return target.getvalue()


def _reframed(whole: bytes, rng: random.Random) -> bytes:
    """Replace values in the header of a safetensors file, whose length stays right."""
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    layout = json.loads(whole[8:end])
    for _ in range(rng.choice((1, 1, 2))):
        _replace(layout, rng)
    header = json.dumps(layout).encode()
    return struct.pack("<Q", len(header)) + header + whole[end:]


def _replace(layout: Any, rng: random.Random) -> None:
    """Replace a value somewhere in a JSON document, text mostly by text."""
    places = [*_places(layout)]
    if places:
        holder, key = rng.choice(places)
        value = copy.deepcopy(rng.choice(VALUES))
        text = isinstance(holder[key], str) and rng.random() < 0.8
        holder[key] = str(value) if text else value


def _places(layout: Any) -> Iterator[tuple[Any, Any]]:
    for key in [*layout] if isinstance(layout, dict) else range(len(layout)):
        yield layout, key
        if isinstance(layout[key], dict | list):
            yield from _places(layout[key])


def _renumber(changed: bytearray, rng: random.Random) -> None:
    """Replace a number of a text."""
    digits = [i for i, byte in enumerate(changed) if byte in b"0123456789"]
    if digits:
        at = rng.choice(digits)
        changed[at : at + 1] = rng.choice(NUMBERS)


def failures(seed: int, count: int) -> Iterator[str]:
    """Let all readers read `count` damaged files in turns; a traceback of each that failed."""

    def too_long(signal_: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as name:
        whole = readers(Path(name))
        for path, (content, read) in whole.items():
            (Path(name) / path).write_bytes(content)
            read(Path(name) / path)
        for number in range(seed, seed + count):
            path, (content, read) = list(whole.items())[number % len(whole)]
            (Path(name) / path).write_bytes(damaged(content, random.Random(number)))
            signal.alarm(SECONDS)
            try:
                read(Path(name) / path)
            except SymgraphError as error:
                if not str(error).replace("\n  ", "").isprintable():
                    yield f"{number} {path}: not printable: {error!r}"
            except BaseException:
                yield f"{number} {path}: {traceback.format_exc()}"
            finally:
                signal.alarm(0)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    print("\n".join(failures(int(sys.argv[1]), int(sys.argv[2]))))
