"""Operators on floats of 16 bits by the kernels of float32: widened before, rounded once after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.backends.cpu.rounding import as_words, cast_all, narrow, widen
from runtime.backends.cpu.scratch import WIDE, whole_lines
from runtime.backends.cpu.table import CASTING, KERNELS, TAKES_LOW
from runtime.backends.device.table import BoundCall, KernelCall, Maker
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find, no_flops
from symgraph.core.types import BFLOAT16, HALVES, Array

FLOAT32 = np.dtype(np.float32)


def is_low(array: Array) -> bool:
    """Tell whether an array is of floats of 16 bits."""
    return array.dtype.itemsize == 2 and array.dtype.name in HALVES


def cast(source: Array, target: Array) -> BoundCall:
    """Bind a copy into another dtype."""
    if {source.dtype.name, target.dtype.name} == {BFLOAT16, "float32"}:
        function = widen if source.itemsize == 2 else narrow
        return BoundCall(function, (as_words(source.reshape(-1)), as_words(target.reshape(-1))))
    return BoundCall(np.copyto, (target, source, "unsafe"))


class WideCall:
    """A call whose arrays of 16 bits are float32 in the thread's scratch memory while it runs."""

    def __init__(self, maker: Maker, call: KernelCall) -> None:
        self.maker, self.call = maker, call
        self.shapes = [a.shape for a in (*call.ins, *call.outs) if is_low(a)]
        self.nbytes = sum(whole_lines(FLOAT32, self.shapes))
        self.address = 0
        self.steps: list[BoundCall] = []

    def bound(self) -> BoundCall | None:
        """Return the kernel's own call on wide arrays; None if it has none."""
        wide = iter(WIDE.arrays(FLOAT32, *self.shapes))
        ins, outs = (
            tuple([next(wide) if is_low(a) else a for a in side])
            for side in (self.call.ins, self.call.outs)
        )
        made = self.maker(self.call._replace(ins=ins, outs=outs, weights=(), pack=None))
        if made is not None:
            before = [(a, b) for a, b in zip(self.call.ins, ins, strict=True) if a is not b]
            after = [(b, a) for a, b in zip(self.call.outs, outs, strict=True) if a is not b]
            self.steps = [*casts(before), made, *casts(after)]
            self.address = WIDE.reserve(self.nbytes)
        return made

    def __call__(self) -> None:
        if WIDE.reserve(self.nbytes) != self.address:
            self.bound()
        for function, args in self.steps:
            function(*args)


def casts(pairs: Sequence[tuple[Array, Array]]) -> list[BoundCall]:
    """Bind casts of sources to targets: those of bfloat16 in one call."""
    if any(a.dtype.name != BFLOAT16 != b.dtype.name for a, b in pairs):
        return [cast(a, b) for a, b in pairs]
    rows = [
        (a.ctypes.data, b.ctypes.data, a.size * (1 if a.itemsize == 2 else -1)) for a, b in pairs
    ]
    return [BoundCall(cast_all, (np.array(rows, np.int64),))] if rows else []


def wide_bytes(node: Node, graph: Graph) -> int:
    """Return the bytes of `WIDE` that a node's call uses, if its kernel is that of float32."""
    op, types = find(node.op).name, (*graph.types_of(node.inputs), *node.types)
    if find(op).flops is no_flops or op not in KERNELS:
        return 0
    if op in CASTING and all(t.dtype != "float16" for t in types):  # they take bfloat16 as it is
        return 0
    if op in TAKES_LOW and TAKES_LOW[op](node.attrs, types):
        return 0
    shapes = [t.shape for t in types if t.dtype in HALVES]
    return sum(whole_lines(FLOAT32, shapes)) + 64 * bool(shapes)


def through_float32(maker: Maker, call: KernelCall) -> BoundCall | None:
    """Bind a call with arrays of 16 bits to the kernel of float32; None if it has none."""
    if not any(map(is_low, (*call.ins, *call.outs))):
        return None
    wide = WideCall(maker, call)
    made = wide.bound()
    if made is None:
        return None
    return BoundCall(wide, ())
