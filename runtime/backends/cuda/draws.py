"""Draws: the keys of a rank's random streams and where in the batch it is, for kernels to read.

They change from step to step and from micro-batch to micro-batch, while a CUDA graph has the
arguments of its kernels for good. So they lie at fixed addresses on the GPU, and are written there,
in the order of its work, before each run that may read them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.backends.cuda.base import module
from runtime.backends.device import arrays
from runtime.backends.device.table import CallContext
from symgraph.core.rand import key
from symgraph.core.registry import Env
from symgraph.core.types import Array

ROOM = 1024  # streams that are written together


class DeviceRandomKeys:
    """What kernels of one rank read."""

    def __init__(self, env: Env) -> None:
        self._sample: Any = module().zeros(1, "int64")
        self._keys: list[Any] = []  # of `ROOM` streams each
        self._streams: dict[str, int] = {}
        self._told = env._replace(step=-1, sample=0)

    def places(self, stream: str) -> tuple[Array, Array]:
        """Where a stream's key lies, and where the number of a run's first sample."""
        at = self._streams.setdefault(stream, len(self._streams))
        if at == ROOM * len(self._keys):
            self._keys.append(module().zeros(ROOM, "int64"))
        self._told = self._told._replace(step=-1)  # a new one has no key yet
        found: Array = self._keys[at // ROOM][at % ROOM : at % ROOM + 1]
        return found, self._sample

    def tell(self, env: Env) -> None:
        """Let what is called from now on read what holds for a run."""
        if env.sample != self._told.sample:
            self._sample.fill(env.sample)
        if (env.seed, env.step) != (self._told.seed, self._told.step):
            numbers = [key(env.seed, stream, env.step) for stream in self._streams]
            for place, keys in enumerate(self._keys):
                some = np.array(numbers[place * ROOM : (place + 1) * ROOM], np.uint64)
                arrays.copy(keys[: len(some)], some.view(np.int64))
        self._told = env


def places(clock: CallContext, stream: str) -> tuple[Array, Array]:
    """`Draws.places` of the rank that has this clock."""
    if clock.draws is None:
        clock.draws = DeviceRandomKeys(clock.env)
    return clock.draws.places(stream)
