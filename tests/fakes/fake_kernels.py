"""Kernels of the stand-in for CuPy: built by g++, loaded by each card, seen by its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.fakes.fake_graphs import on_host
from tests.fakes.fake_memory import uses
from tests.fakes.fake_streams import card
from tests.runtime.backends.cuda import emulation


def bytes_at(address: int, size: int) -> np.ndarray:
    """The memory at an address."""
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class RawModule(emulation.RawModule):
    """Kernels of one source, which say in their types what they write."""

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(name, super().get_function(name), self._signatures[name].types)


class RawKernel:
    """A kernel; `kernel` is what it is on the card in use, which loads it then."""

    def __init__(self, name: str, call: Callable[..., None], types: tuple[str, ...]) -> None:
        self.name, self._call, self._types = name, call, types
        self._loaded: dict[int, Callable[..., None]] = {}

    @property
    def kernel(self) -> Callable[..., None]:
        if card() not in self._loaded:
            on_host("loading a kernel")
            self._loaded[card()] = partial(self._launch, card())
        return self._loaded[card()]

    def __call__(self, *args: Any) -> None:
        self.kernel(*args)

    def _launch(self, of: int, grid: Any, block: Any, args: tuple[Any, ...]) -> None:
        assert of == card(), f"a kernel that card {of} has loaded, on card {card()}"
        assert type(grid) is type(block) is tuple
        given = [(a, kind) for a, kind in zip(args, self._types, strict=False) if "*" in kind]
        assert all(a.device.id == of for a, _ in given)
        written = [a._array for a, kind in given if not kind.startswith("const ")]
        uses([a._array for a, _ in given], written)
        if self.name == "copy_pieces":  # its table has the addresses
            rows = given[0][0]._array.tolist()
            uses([bytes_at(at, size) for at, _, size in rows], ())
            uses((), [bytes_at(to, size) for _, to, size in rows])
        self._call(grid, block, args)
