"""The choice of what multiplies matrices, by the kind of product: a BLAS library, or our kernels.

Another back end gives other bits, so one choice holds for all ranks of a run, and it depends on
nothing but the machine: `auto` is measured once, on one thread, and remembered in a file beside the
compiled kernels. Without MKL there is nothing to measure.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from math import exp, log, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.cpu import pair_calls
from runtime.backends.cpu.blas import BACK_ENDS
from runtime.backends.cpu.micro import available, multiply, pack_as_is, packed_shape
from runtime.backends.cpu.pair_calls import AMX, PACKED
from runtime.backends.cpu.pairs import pairs_shape
from runtime.backends.cpu.rounding import as_words, narrow
from runtime.backends.cpu.tiles import has_tiles
from runtime.backends.device.processor import limit_blas, processor_name
from runtime.backends.device.table import BoundCall
from symgraph.core.errors import ConfigError, nearest
from symgraph.core.types import Array, Shape
from symgraph.core.writing import keep

AUTO, OPENBLAS, MKL = "auto", "openblas", "mkl"
OWN = {PACKED, AMX}  # our own kernels
FEW_ROWS = range(2, 257)  # one row reads each weight once either way; BLAS is as fast for many
TRIES = 5
GAIN = 1.05  # by which another back end must be faster than the usual one: less is noise


class Choice(NamedTuple):
    """The back ends of a run: names of `BACK_ENDS`, or of our own kernels."""

    #: Of products of `FEW_ROWS`, such as a time step's; without a packed weight as `many`.
    few: str
    #: Of other products.
    many: str
    #: Of products whose left operand is transposed: the gradients of weights.
    turned: str
    #: Of products of bfloat16.
    bfloat16: str

    @property
    def libraries(self) -> set[str]:
        """The BLAS libraries among them."""
        return {*self} - OWN

    def __str__(self) -> str:
        """Name the back ends, and what each of them is for."""
        of = {name: [WORDS[k] for k in self._fields if getattr(self, k) == name] for name in self}
        words = {name: BACK_ENDS[name].describe() for name in self.libraries}
        parts = [f"{words.get(name, name)} ({', '.join(kinds)})" for name, kinds in of.items()]
        return ", ".join(parts)


WORDS = dict(
    zip(
        Choice._fields,
        ("few rows", "many rows", "weight gradients", "bfloat16"),
        strict=True,
    )
)
NAMES = (AUTO, OPENBLAS, MKL)

_lock = threading.RLock()
_settled: dict[str, Choice] = {}  # what names stand for in this process, where that is settled
_used: list[tuple[str, Choice]] = []  # the name and the back ends in force, last


# -- the choice in force -------------------------------------------------------------------------


def chosen() -> Choice:
    """Return the back ends of products that are planned, bound or run now."""
    return _used[-1][1] if _used else choice_of(AUTO)


def blas_name() -> str:
    """Return the name by which they were chosen; see `use_blas`."""
    return _used[-1][0] if _used else AUTO


@contextmanager
def use_blas(name: str) -> Iterator[Choice]:
    """Choose the BLAS for matrix products in this process, as `blas` in a config does.

    Plan, make and run sessions inside, as with `limit_blas`.

    Args:
        name: openblas: numpy's own BLAS, and our own kernels for few rows and bfloat16; mkl: MKL
            for all; auto: the fastest on this machine.

    Raises:
        ConfigError: Another name, or MKL is not installed.
    """
    choice = choice_of(name)
    _used.append((name, choice))
    try:
        yield choice
    finally:
        _used.pop()


def choice_of(name: str) -> Choice:
    """Return the back ends of a name; see `use_blas`."""
    if name not in NAMES:
        raise ConfigError(f"blas: {name!r}: {nearest(name, NAMES)}")
    if name != AUTO and not named(name).libraries <= {*installed()}:
        raise ConfigError(f"blas: {name}: it is not installed: pip install 'symgraph[{name}]'")
    with _lock:
        if name in _settled:
            return _settled[name]
        choice = named(OPENBLAS if name == AUTO else name)
        if name == AUTO and {*installed()} > {OPENBLAS}:
            choice = best(figures())
        return _settled.setdefault(name, choice)


def named(name: str) -> Choice:
    """Return the back ends of a library's name, whether it is installed or not."""
    if name == MKL:
        return Choice(MKL, MKL, MKL, MKL)
    return Choice(PACKED, OPENBLAS, OPENBLAS, AMX if has_tiles() else PACKED)


def settle(choice: Choice, name: str = AUTO) -> None:
    """Make a name mean this choice in this process, without measuring."""
    _settled[name] = choice


def installed() -> list[str]:
    """Return the names of the libraries that are installed."""
    return [name for name, library in BACK_ENDS.items() if library.installed()]


def kinds_there() -> list[str]:
    """Return the names of the libraries that are installed, and AMX where there is that."""
    return [*installed(), *[AMX] * has_tiles()]


def product(kind: str, x: Array, y: Array, out: Array, row: Array | None = None) -> BoundCall:
    """Bind out = x y by the library for a kind of product; see `BackEnd.bind`."""
    choice = chosen()
    name = getattr(choice, kind)
    return BACK_ENDS[choice.many if name == PACKED else name].bind(x, y, out, row)


def matmul(x: Array, y: Array, out: Array | None = None) -> Array:
    """Multiply stacks of matrices, as `numpy.matmul` does."""
    return BACK_ENDS[chosen().many].matmul(x, y, out)


def low_matmul(
    x: Array, x_turned: bool, y: Array, y_turned: bool, out: Array, rooms: Sequence[Array]
) -> None:
    """Multiply stacks of bfloat16, as uint16, or their transposes, to float32.

    rooms: of `low_rooms`.
    """
    name = chosen().bfloat16
    if name in OWN:
        pair_calls.multiply_stacks(name, x, x_turned, y, y_turned, out, rooms)
        return
    x, y = (a.swapaxes(1, 2) if t else a for a, t in ((x, x_turned), (y, y_turned)))
    for left, right, product in zip(x, y, out, strict=True):
        function, args = BACK_ENDS[name].bind(left, right, product, None)
        function(*args)


def low_rooms(rows: int, inner: int, units: int) -> list[Shape]:
    """Return the shapes in float32 of what `low_matmul` uses for such a product."""
    name = chosen().bfloat16
    return pair_calls.stack_rooms(name, rows, inner, units) if name in OWN else []


def packed_product(x: Array, packed: Array, out: Array, add: Array | None = None) -> BoundCall:
    """Bind a product with a packed operand, plus a matrix or a row that is added to every row.

    Elements of a row lie side by side; rows may lie apart.
    """
    inner, units = x.shape[1], out.shape[1]
    assert x.dtype == packed.dtype == out.dtype
    assert packed.shape == packed_shape(inner, units)
    assert len(x) == len(out)
    assert inner == 1 or x.strides[1] == x.itemsize
    assert units == 1 or out.strides[1] == out.itemsize
    more = (0, 0) if add is None else (add.ctypes.data, add.strides[0] if add.ndim == 2 else 0)
    steps = x.strides[0], more[1], out.strides[0]
    sizes = len(x), inner, units
    return BoundCall(multiply, (packed, x.ctypes.data, more[0], out.ctypes.data, sizes, steps))


# -- the measurement -----------------------------------------------------------------------------

# Rows, inner size and columns of the products that are timed: those of LSTM networks.
SHAPES: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "few": ((20, 200, 800), (32, 1024, 2048)),
    "many": ((640, 200, 2000), (700, 1024, 1024)),
    "turned": ((800, 640, 200), (2048, 640, 512)),
    "bfloat16": ((20, 650, 1300), (640, 512, 1024)),
}

Figures = dict[str, dict[str, float]]  # kind of product -> back end -> time, relative to the first


def fastest(times: Mapping[str, float]) -> str:
    """Return the back end of the least time: not the first, the usual, unless it is clearly so."""
    usual, best = next(iter(times)), min(times, key=times.__getitem__)
    return best if times[usual] > GAIN * times[best] else usual


def best(found: Figures) -> Choice:
    """Return the fastest back ends, with one library among them.

    The threads of a library wait for its next product with a core each: two libraries in turn made
    steps on two threads 1.6 times as long.
    """
    large = [found[kind] for kind in ("many", "turned")]
    library = fastest({name: prod(times[name] for times in large) ** 0.5 for name in large[0]})
    few, low = (
        {name: time for name, time in found[kind].items() if name in {*OWN, library}}
        for kind in ("few", "bfloat16")
    )
    return Choice(fastest(few), library, library, fastest(low) if low else PACKED)


def contenders(kind: str) -> list[str]:
    """Return the back ends that are there for a kind of product, the usual one first."""
    low = kind == "bfloat16"
    own = [PACKED] if kind in ("few", "bfloat16") and available() else []
    libraries = [name for name, b in BACK_ENDS.items() if b.installed() and (b.low or not low)]
    return [AMX] * (low and has_tiles()) + own + libraries


def figures() -> Figures:
    """Return the times of this machine's back ends, as remembered, or else measured now."""
    file, kinds = _file(), {kind: contenders(kind) for kind in Choice._fields}
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found: Figures = json.loads(file.read_text(encoding="utf-8")) if file else {}
        if {kind: [*times] for kind, times in found.items()} == kinds:
            return found
    with limit_blas(1):
        found = {kind: times_of(kind, names) for kind, names in kinds.items()}
    if file is not None:
        keep(file, lambda to: to.write(json.dumps(found).encode()))
    return found


def figures_text() -> str:
    """Return the times of `figures` in words."""
    of = {
        WORDS[kind]: ", ".join(f"{name} {time:g}" for name, time in times.items())
        for kind, times in figures().items()
    }
    return "; ".join(f"{kind}: {times}" for kind, times in of.items())


def _file() -> Path | None:
    """Return the file of this machine's figures, in the folder of the compiled kernels."""
    compiled: Any = multiply
    folder = compiled.stats.cache_path
    about = [processor_name(), SHAPES, *[BACK_ENDS[name].describe() for name in installed()]]
    return folder and Path(folder, f"blas-{sha256(repr(about).encode()).hexdigest()[:16]}.json")


def times_of(kind: str, names: Sequence[str]) -> dict[str, float]:
    """Time a kind of product by back ends in turn; the geometric mean over its shapes counts."""
    logs = dict.fromkeys(names, 0.0)
    for shape in SHAPES[kind]:
        calls = {name: _trial(kind, name, *shape) for name in names}
        times = [{name: _seconds(call) for name, call in calls.items()} for _ in range(1 + TRIES)]
        for name in names:
            logs[name] += log(min(turn[name] for turn in times[1:])) / len(SHAPES[kind])
    return {name: round(exp(value - logs[names[0]]), 3) for name, value in logs.items()}


def _seconds(call: BoundCall) -> float:
    start = time.perf_counter()
    call.function(*call.args)
    return time.perf_counter() - start


def _trial(kind: str, name: str, rows: int, inner: int, units: int) -> BoundCall:
    """Bind a product of random numbers, with our own kernels' right operand packed."""
    random = np.random.default_rng(0)
    shapes = (inner, rows) if kind == "turned" else (rows, inner), (inner, units)
    x, y = (random.standard_normal(shape, np.float32) for shape in shapes)
    out = np.empty((rows, units), np.float32)
    if kind == "bfloat16":
        low: list[Array] = [np.empty(shape, np.uint16) for shape in shapes]
        for wide, words in zip((x, y), low, strict=True):
            narrow(as_words(wide.reshape(-1)), words.reshape(-1))
        if name not in OWN:
            return BoundCall(_run, (BACK_ENDS[name].bind(low[0], low[1], out, None), (low, out)))
        pairs_of_y = np.zeros(pairs_shape(inner, units), np.uint32)
        pair_calls.pack_pairs(low[1], {False: pairs_of_y})
        return pair_calls.product(name, low[0], False, low[1], False, out, None, pairs_of_y)
    if name != PACKED:
        bound = BACK_ENDS[name].bind(x.T if kind == "turned" else x, y, out, None)
        return BoundCall(_run, (bound, (x, y, out)))
    packed = np.zeros(packed_shape(inner, units), np.float32)
    pack_as_is(y, packed)
    return BoundCall(_run, (packed_product(x, packed, out), (x, out)))


def _run(bound: BoundCall, kept: object) -> None:
    """Run a product; `kept` keeps alive the memory whose addresses it has."""
    bound.function(*bound.args)
