"""Calls of operators through runtime.backends.cuda's makers, beside their own computations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.backends.cuda import KERNELS
from runtime.backends.device.table import BoundCall, CallContext, KernelCall
from symgraph.core.params import Site, parse_params
from symgraph.core.registry import Env, find, infer, run
from symgraph.core.types import TensorType, dtype_name, wide
from tests.fakes.fake_cupy import ndarray

TOLERANCE = {"float16": 1.5e-3, "bfloat16": 1.2e-2, "float32": 3e-6, "float64": 1e-13}
REALS = sorted(TOLERANCE)
SPARE = 8  # numbers before and behind an array, which nobody may write
GUARD = 55


def numbers(shape: Any, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    dtype = dtype_name(dtype)
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near_of(dtype: str, single: float, double: float) -> float:
    """The tolerance of what is summed in another order, or rounded in between to 16 bits."""
    return {"float32": single, "float64": double}.get(dtype, 3 * TOLERANCE[dtype])


def cells(*arrays: np.ndarray) -> list[np.ndarray]:
    """An LSTM's states, which are not of 16 bits."""
    return [array.astype(wide(array.dtype)) for array in arrays]


def on_gpu(array: np.ndarray) -> ndarray:
    """A copy between numbers that nobody may write."""
    room = np.full(array.size + 2 * SPARE, GUARD, array.dtype)
    inner = room[SPARE : SPARE + array.size].reshape(array.shape)
    inner[...] = array
    return ndarray(inner)


def whole(array: ndarray) -> bool:
    """Whether what is before and behind is as it was."""
    room = array._array
    while room.base is not None:
        room = room.base
    return bool((room[:SPARE] == GUARD).all() and (room[-SPARE:] == GUARD).all())


class Called:
    """A bound call with its arrays, its context and what the operator computes itself."""

    def __init__(self, op: str, ins: Any, over: dict[int, int], given: dict[str, Any]) -> None:
        found = find(op)
        attrs = parse_params(op, "test", found.params, given)
        self.ins = [on_gpu(np.asarray(x)) for x in ins]
        self.before = [x.get() for x in self.ins]
        self.context, self.over = CallContext(), over
        self.computed: Callable[[Env], Any] = lambda env: run(
            found, env, attrs, [x.copy() for x in self.before]
        )
        types = [TensorType(x.shape, x.dtype.name) for x in self.ins]
        made = infer(found, Site(op, "test", attrs), types)
        self.outs = [on_gpu(np.full(t.shape, 77, t.dtype)) for t in made]
        for out, source in over.items():
            self.outs[out] = self.ins[source].reshape(self.outs[out].shape)
        call = KernelCall(attrs, tuple(self.ins), tuple(self.outs), self.context)  # type: ignore[arg-type]
        bound = KERNELS[op](call)
        assert bound is not None, f"{op} has no kernel for this"
        self.bound: BoundCall = bound

    def results(self) -> list[np.ndarray]:
        self.bound.function(*self.bound.args)
        for array in (*self.ins, *self.outs):
            assert whole(array), "written beside an array"
        for i, (array, kept) in enumerate(zip(self.ins, self.before, strict=True)):
            if i not in self.over.values():
                assert array.get().tobytes() == kept.tobytes(), f"input {i} is written"
        return [out.get() for out in self.outs]


def agree(
    op: str, *ins: Any, over: dict[int, int] | None = None, near: float | None = None, **given: Any
) -> list[np.ndarray]:
    """The kernel's outputs, which are near the operator's own; over: output -> input it is in."""
    called = Called(op, ins, over or {}, given)
    found, wanted = called.results(), called.computed(Env())
    called.context.check()
    for own, exact in zip(found, wanted, strict=True):
        assert own.dtype == exact.dtype
        close = near or TOLERANCE[_real(ins)]
        np.testing.assert_allclose(own.astype(float), exact.astype(float), close, close)
    return found


def _real(ins: Any) -> str:
    return next(x.dtype.name for x in map(np.asarray, ins) if x.dtype.kind in "fV")


def has_no_kernel(op: str, *ins: Any, **given: Any) -> bool:
    """Whether the maker leaves a call to the operator's own computation."""
    attrs = parse_params(op, "test", find(op).params, given)
    arrays = [on_gpu(np.asarray(x)) for x in ins]
    types = [TensorType(x.shape, x.dtype.name) for x in arrays]
    made = infer(find(op), Site(op, "test", attrs), types)
    outs = [on_gpu(np.zeros(t.shape, t.dtype)) for t in made]
    return KERNELS[op](KernelCall(attrs, tuple(arrays), tuple(outs), CallContext())) is None  # type: ignore[arg-type]
