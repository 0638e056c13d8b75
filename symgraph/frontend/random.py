"""The namespace `sg.random`: the seed, and random values as arrays (MXNet's `mx.random`).

    sg.random.seed(7)
    sg.random.uniform(-1, 1, shape=(2, 3))

The seed is also the key of dropout, of random operators and of first values wherever a module or an
executor is given none of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symgraph.core.errors import nearest
from symgraph.core.seeding import SEEDING
from symgraph.frontend import sym_random
from symgraph.frontend.ndarray import on_arrays

__all__ = ["seed"]


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Set the seed of everything that has none of its own (`mx.random.seed`).

    Executors, modules and functions here begin anew: after the same seed they draw the same
    numbers. ctx is accepted without effect, since numbers do not depend on the device.
    """
    SEEDING.set(seed_state)


def __getattr__(name: str) -> Callable[..., Any]:
    function = None if name.startswith("_") else getattr(sym_random, name, None)
    if getattr(function, "__module__", None) != sym_random.__name__:
        raise AttributeError(f"symgraph.random has no {name!r}; {nearest(name, __dir__())}")
    assert function is not None
    return on_arrays(function)


def __dir__() -> list[str]:
    own = [
        n
        for n, v in vars(sym_random).items()
        if callable(v) and v.__module__ == sym_random.__name__
    ]
    return sorted([*__all__, *(n for n in own if not n.startswith("_"))])
