"""The kernel table: operators whose calls run as compiled loops on arrays that are given.

A kernel's maker sees one call with its arrays, once, and answers the function and arguments that
do it; the worker runs nothing but those. It answers None for a case that it has no kernel for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numba

from symgraph.core.registry import Env
from symgraph.core.types import Array

# Flags that neither lose NaN and infinity nor change the order of a sum.
FAST = {"contract", "nsz", "arcp", "afn"}


class Check(Protocol):
    """What kernels that cannot raise have noted."""

    def check(self) -> None: ...

    def place(self, what: str, count: int) -> Array: ...


class Told(Protocol):
    """What kernels that cannot be told anew in each run read."""

    def tell(self, env: Env) -> None: ...

    def places(self, stream: str) -> tuple[Array, Array]: ...


class CallContext:
    """What calls may depend on besides their arrays, set before each run; see registry.Env.

    faults: what its rank's calls on a GPU note there; see runtime/backends/cuda/faults.py. draws:
    what they read there; see runtime/backends/cuda/draws.py.
    """

    __slots__ = ("__weakref__", "draws", "env", "faults")

    def __init__(self) -> None:
        self.env = Env()
        self.faults: Check | None = None
        self.draws: Told | None = None

    def set(self, env: Env) -> None:
        """What the calls that follow depend on."""
        self.env = env
        if self.draws is not None:
            self.draws.tell(env)

    def check(self) -> None:
        """Raise what a call would have raised if it could; waits for a GPU's work."""
        if self.faults is not None:
            self.faults.check()


class KernelCall(NamedTuple):
    """One call of an operator on arrays at fixed addresses, all C-contiguous.

    weights: by input, whether it is a parameter of the network: it changes between steps only.
    pack(i, transposed): the buffer that holds weight i packed for `gemm`, as W^T or as W, fresh
    in every step; None: nobody packs.
    """

    attrs: Mapping[str, Any]
    ins: tuple[Array, ...]
    outs: tuple[Array, ...]
    clock: CallContext
    weights: tuple[bool, ...] = ()
    pack: Callable[[int, bool], Array] | None = None


class BoundCall(NamedTuple):
    """A call that is ready: function(*args) fills the outputs."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def noop() -> None:
    """The call of an operator whose output is there already; nobody makes it."""


Maker = Callable[[KernelCall], BoundCall | None]
KERNELS: dict[str, Maker] = {}


def kernel(*names: str, table: dict[str, Maker] = KERNELS) -> Callable[[Maker], Maker]:
    """Register the maker of these operators' kernels. table: of the device that they are for."""

    def add(maker: Maker) -> Maker:
        for name in names:
            assert name not in table, name
            table[name] = maker
        return maker

    return add


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, for good (on disk); runs without the GIL."""
    compiled: Callable[..., Any] = numba.njit(
        nogil=True, cache=True, fastmath=FAST, error_model="numpy"
    )(function)
    return compiled


def jit_reassoc(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jit` for a sum in as many parts at a time as the processor takes; always in one order."""
    compiled: Callable[..., Any] = numba.njit(
        nogil=True, cache=True, fastmath=FAST | {"reassoc"}, error_model="numpy"
    )(function)
    return compiled


def jit_exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jit` for arithmetic that gives numpy's bits."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return compiled
