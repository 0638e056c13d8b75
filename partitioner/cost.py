"""Costs before anything has run: a body by its operations and calls, on a device of known speed."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.report import body_flops
from partitioner.types import Body


@dataclass(frozen=True)
class Speed:
    """What one device does: floating-point operations a second, and seconds to start a kernel."""

    flops: float
    call: float

    def seconds(self, body: Body) -> float:
        """Time of one run of a body."""
        calls = sum(not n.is_variable for n in body.graph)
        return body_flops(body) / self.flops + calls * self.call
