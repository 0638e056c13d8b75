"""Device names: the kind of processor, and the number among those of its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from symgraph.core.errors import ConfigError

KINDS = ("cpu", "gpu")
OTHER_MEMORY = {"cpu_pinned": "cpu", "cpu_shared": "cpu"}  # MXNet's names for it on the host


@dataclass(frozen=True, order=True, repr=False, init=False)
class Context:
    """A device such as `cpu(0)` or `gpu(1)`, after `mx.Context`.

    Order is by kind, then index ("cpu" sorts before "gpu"), so sorted devices are the same on
    every rank. `with cpu(1):` makes it the device of what is bound inside without one.
    """

    kind: str
    index: int

    def __init__(self, device_type: str | Context, device_id: int = 0) -> None:
        """Name a device.

        Args:
            device_type: "cpu" or "gpu", or a device, which is copied. "cpu_pinned" and
                "cpu_shared" mean "cpu".
            device_id: Its number, from 0.

        Raises:
            ConfigError: Another kind, or a negative number.
        """
        if isinstance(device_type, Context):
            device_id, device_type = device_type.index, device_type.kind
        device_type = OTHER_MEMORY.get(device_type, device_type)
        if device_type not in KINDS or type(device_id) is not int or device_id < 0:
            raise ConfigError(_refusal(f"{device_type}({device_id})"))
        object.__setattr__(self, "kind", device_type)
        object.__setattr__(self, "index", device_id)

    @property
    def device_type(self) -> str:
        return self.kind

    @property
    def device_id(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"

    def __enter__(self) -> Context:
        _open.set((*_open.get(), self))
        return self

    def __exit__(self, *exc: object) -> None:
        _open.set(_open.get()[:-1])

    @classmethod
    def parse(cls, text: str) -> Context:
        """Parse a device as a config file writes it, `cpu(N)` or `gpu(N)`; else ConfigError."""
        match = re.fullmatch(r"(cpu|gpu)\(([0-9]+)\)", text.strip())
        if match is None:
            raise ConfigError(_refusal(text))
        return gpu(int(match[2])) if match[1] == "gpu" else cpu(int(match[2]))


def require_context(what: str, value: object) -> Context:
    """Return the value if it is a device; TypeError, which names `what`, for anything else."""
    if not isinstance(value, Context):
        raise TypeError(f"{what} is a device like cpu(0), not {value!r}")
    return value


def require_contexts(what: str, value: object) -> tuple[Context, ...]:
    """Return the devices of a sequence, or a single device; TypeError for anything else."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(require_context(what, device) for device in value)
    return (require_context(what, value),)


def _refusal(text: str) -> str:
    return f"{text!r} is not a device: write cpu(N) or gpu(N) with N = 0, 1, 2, ..., as in 'cpu(0)'"


def cpu(device_id: int = 0) -> Context:
    """Return the CPU device number `device_id`: a thread or rank of its own, not a core."""
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    """Return the GPU number `device_id` of this machine."""
    return Context("gpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Return `cpu(device_id)`: that memory is pinned changes no result, and is done by itself."""
    return cpu(device_id)


_open: ContextVar[tuple[Context, ...]] = ContextVar("open_contexts", default=())


def current_context() -> Context:
    """Return the device of the innermost `with` of this thread or task, or else cpu(0)."""
    return _open.get()[-1] if _open.get() else cpu()
