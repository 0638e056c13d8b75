"""The name of a device: which kind of processor, and which one of them."""

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
        if self.kind not in KINDS or self.index < 0:
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
        """The device written as in a config file: `cpu(N)` or `gpu(N)`; else ConfigError."""
        match = re.fullmatch(r"(cpu|gpu)\(([0-9]+)\)", text.strip())
        if match is None:
            raise ConfigError(_refusal(text))
        return gpu(int(match[2])) if match[1] == "gpu" else cpu(int(match[2]))


def require_context(what: str, given: object) -> Context:
    """What is a device; TypeError for anything else."""
    if not isinstance(given, Context):
        raise TypeError(f"{what} is a device like cpu(0), not {given!r}")
    return given


def require_contexts(what: str, given: object) -> tuple[Context, ...]:
    """The devices of what is one, or several in a sequence; TypeError for anything else."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(require_context(what, device) for device in given)
    return (require_context(what, given),)


def _refusal(text: str) -> str:
    return f"{text!r} is not a device: write cpu(N) or gpu(N) with N = 0, 1, 2, ..., as in 'cpu(0)'"


def cpu(device_id: int = 0) -> Context:
    """The CPU device number `device_id`: a thread or rank of its own, not a core."""
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    """The GPU number `device_id` of this machine."""
    return Context("gpu", device_id)
