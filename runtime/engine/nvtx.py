"""Ranges: the instructions of a GPU's worker by name, for NVIDIA's profilers (NVTX)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from runtime.backends.device.arrays import Device
from runtime.schedule.program import Program

NVTX = "SYMGRAPH_NVTX"

Call = Callable[[], None]


def in_ranges(device: Device, program: Program, calls: Sequence[Call]) -> list[Call]:
    """The calls of a program; with SYMGRAPH_NVTX=1, on a GPU, each in a range with its name."""
    if device.is_host or os.environ.get(NVTX) != "1":
        return [*calls]
    nvtx = device.xp.cuda.nvtx
    return [
        partial(_in_range, nvtx, str(instruction), call)
        for instruction, call in zip(program, calls, strict=True)
    ]


def _in_range(nvtx: Any, name: str, call: Call) -> None:
    nvtx.RangePush(name)
    try:
        call()
    finally:
        nvtx.RangePop()
