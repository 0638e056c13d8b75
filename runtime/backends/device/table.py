"""The kernel table: operators whose calls run as compiled code on the arrays of a plan.

The maker of a kernel sees a call and its arrays once, and returns a function with arguments that
performs it; the worker runs nothing but those. For a case that the kernel does not cover, the maker
returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from symgraph.core.registry import Env
from symgraph.core.types import Array


class ErrorSlots(Protocol):
    """Errors that kernels of a GPU have noted, because they cannot raise."""

    slots: list[Array]

    def check(self, ids: Sequence[Array] | None = None) -> None: ...

    def place(self, what: str, count: int) -> Array: ...


class RandomKeys(Protocol):
    """Values that captured kernels read from device memory, because their arguments are frozen."""

    def write(self, env: Env) -> None: ...

    def places(self, stream: str) -> tuple[Array, Array]: ...


class CallContext:
    """What a rank's calls depend on besides their arrays; see runtime/backends/cuda/rank_memory.py.

    Attributes:
        env: the state of the run, set before each (see `registry.Env`).
        errors: what kernels on a GPU have noted instead of raising.
        random_keys: what kernels on a GPU draw random numbers with.
        beside: whether the calls that are bound may run beside others, with scratch of their own.
    """

    __slots__ = ("__weakref__", "beside", "env", "errors", "random_keys")

    def __init__(self) -> None:
        self.env = Env()
        self.errors: ErrorSlots | None = None
        self.random_keys: RandomKeys | None = None
        self.beside = False

    def set(self, env: Env) -> None:
        """Set the state for the calls that follow."""
        self.env = env
        if self.random_keys is not None:
            self.random_keys.write(env)

    def check(self) -> None:
        """Raise what a call would have raised if it could; waits for a GPU's work."""
        if self.errors is not None:
            self.errors.check()


class KernelCall(NamedTuple):
    """One call of an operator on arrays at fixed addresses, all C-contiguous."""

    attrs: Mapping[str, Any]
    ins: tuple[Array, ...]
    outs: tuple[Array, ...]
    context: CallContext
    #: By input, whether it is a parameter of the network, which changes between steps only.
    weights: tuple[bool, ...] = ()
    #: (input, transposed) -> the buffer of this parameter packed for `gemm`, as W^T or as W,
    #: packed anew in every step; None: nobody packs.
    pack: Callable[[int, bool], Array] | None = None


class BoundCall(NamedTuple):
    """A call on its arrays: function(*args) fills the outputs."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Step(NamedTuple):
    """A parameter's update, complete but for the factor of this step's gradients."""

    #: The formula: `sgd`, `momentum` or `adam`.
    formula: str
    #: Flat arrays: the parameter, its gradient and the optimizer's state.
    flat: Sequence[Array]
    #: The learning rate and the weight decay, in the parameter's dtype.
    rates: tuple[Any, ...]
    #: One more factor of the gradient.
    rescale: float
    #: The gradient's limit and the formula's settings, in the parameter's dtype.
    settings: tuple[Any, ...]

    def numbers(self, scale: float) -> tuple[Any, ...]:
        """Return what the formula's kernel takes after the arrays, with the gradients' factor."""
        number = self.flat[0].dtype.type
        return *self.rates, number(scale * self.rescale), *self.settings


def noop() -> None:
    """Stand for the call of an operator whose output is in place already; it is never called."""


Maker = Callable[[KernelCall], BoundCall | None]


def kernel(*names: str, table: dict[str, Maker]) -> Callable[[Maker], Maker]:
    """Register the maker of these operators' kernels in a device kind's table."""

    def add(maker: Maker) -> Maker:
        for name in names:
            assert name not in table, name
            table[name] = maker
        return maker

    return add
