"""Device names: the kind of processor, and the number among those of its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from symgraph.core.errors import ConfigError

KINDS = ("cpu", "gpu")


@dataclass(frozen=True, order=True, repr=False)
class Context:
    """A device such as `cpu(0)` or `gpu(1)`, after `mx.Context`.

    Order is by kind, then index ("cpu" sorts before "gpu"), so sorted devices are the same on
    every rank. Raises ConfigError for another kind or a negative index.
    """

    kind: Literal["cpu", "gpu"]
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or type(self.index) is not int or self.index < 0:
            raise ConfigError(_refusal(f"{self.kind}({self.index})"))

    @property
    def device_type(self) -> str:
        return self.kind

    @property
    def device_id(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"

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
