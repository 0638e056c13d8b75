"""The placement problem: nodes with costs on two kinds of device, and values that move.

The objective is the load of the slowest device, the time per sample of a full pipeline:

    accelerator   its nodes' times + the cost of every value that crosses its border, once each,
                  whether it is sent or received
    CPU core      its nodes' times; communication is charged to accelerators only

(Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
2020.) Nothing here knows of files: a problem is made of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from symgraph.errors import PlacementError

Array = npt.NDArray[Any]
Devices = Sequence[int] | Array  # node -> device


class InfeasibleError(PlacementError):
    """No placement keeps the limits; the message names the smallest memory limit that works."""


@dataclass(frozen=True)
class Transfer:
    """One value: the node that makes it, the nodes that read it, the time to move it once.

    A node may make several values. A dependency without data is a transfer of cost 0.
    """

    source: int
    targets: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class Problem:
    """What to place, and on what. All times in one unit, all sizes in another.

    accelerator, cpu: time of each node on a device of that kind; inf where it cannot run.
    memory: taken on an accelerator. colours: nodes of one colour >= 0 stay together; -1 is none.
    backward: nodes that a contiguous placement puts no order on (they follow their colour).
    memory_limit: of each accelerator; CPU cores have none.
    Devices are numbered: accelerators 0 .. K-1, then CPU cores K .. K+L-1.
    """

    names: tuple[str, ...]
    accelerator: Array
    cpu: Array
    memory: Array
    transfers: tuple[Transfer, ...]
    accelerators: int
    cpus: int = 0
    memory_limit: float = math.inf
    colours: Sequence[int] = ()
    backward: Sequence[bool] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        for what in ("accelerator", "cpu", "memory"):
            values = np.asarray(getattr(self, what), dtype=np.float64)
            object.__setattr__(self, what, values)
            if values.shape != (n,):
                raise PlacementError(f"{what}: {values.shape} values for {n} nodes")
            if np.isnan(values).any() or (values < 0).any():
                bad = self.names[int(np.argmax(np.isnan(values) | (values < 0)))]
                raise PlacementError(f"{what} of node {bad}: not a number >= 0")
        if not np.isfinite(self.memory).all():
            raise PlacementError("memory of a node is not finite")
        object.__setattr__(self, "colours", tuple(self.colours) or (-1,) * n)
        object.__setattr__(self, "backward", tuple(map(bool, self.backward)) or (False,) * n)
        self._check(n)

    def _check(self, n: int) -> None:
        if not n:
            raise PlacementError("there is no node to place")
        if len(self.colours) != n or len(self.backward) != n:
            raise PlacementError(f"colours and backward need one value for each of {n} nodes")
        if self.accelerators < 0 or self.cpus < 0:
            raise PlacementError(
                f"numbers of devices are >= 0 (accelerators: {self.accelerators}, "
                f"cpus: {self.cpus})"
            )
        if math.isnan(self.memory_limit) or self.memory_limit < 0:
            raise PlacementError(f"the memory limit is a number >= 0, not {self.memory_limit}")
        for t in self.transfers:
            if not all(0 <= v < n for v in (t.source, *t.targets)):
                raise PlacementError(f"a transfer names a node that is not there: {t}")
            if not (t.cost >= 0 and math.isfinite(t.cost)):
                raise PlacementError(f"a transfer costs a finite time >= 0: {t}")

    @property
    def devices(self) -> int:
        return self.accelerators + self.cpus

    def device_name(self, device: int) -> str:
        """`acc:0`, `acc:1`, ..., `cpu:0`, ..."""
        if device < self.accelerators:
            return f"acc:{device}"
        return f"cpu:{device - self.accelerators}"


@dataclass(frozen=True)
class Load:
    """What one device does: times, and the memory it takes."""

    device: str
    nodes: int
    compute: float
    incoming: float
    outgoing: float
    memory: float

    @property
    def total(self) -> float:
        return self.compute + self.incoming + self.outgoing


@dataclass(frozen=True)
class Solution:
    """A placement with what is proven of it: no placement of its kind is below lower_bound."""

    assignment: tuple[int, ...]
    max_load: float
    lower_bound: float
    strategy: str
    loads: tuple[Load, ...] = field(repr=False, default=())

    @property
    def optimal(self) -> bool:
        return self.lower_bound >= self.max_load * (1 - 1e-9)

    @property
    def gap(self) -> float:
        """How far above the optimum this may be, as a share of max_load."""
        return 0.0 if self.optimal else 1 - self.lower_bound / self.max_load


def evaluate(problem: Problem, assignment: Devices) -> tuple[Load, ...]:
    """The load of every device, by the definition alone; the order of the sums is the nodes'."""
    devices = problem.devices
    nodes = [0] * devices
    compute, memory = [0.0] * devices, [0.0] * devices
    incoming, outgoing = [0.0] * devices, [0.0] * devices
    for v, d in enumerate(assignment):
        nodes[d] += 1
        on = problem.accelerator if d < problem.accelerators else problem.cpu
        compute[d] += float(on[v])
        memory[d] += float(problem.memory[v])
    for t in problem.transfers:
        home = assignment[t.source]
        others = {assignment[v] for v in t.targets} - {home}
        if others and home < problem.accelerators:
            outgoing[home] += t.cost
        for d in others:
            if d < problem.accelerators:
                incoming[d] += t.cost
    return tuple(
        Load(problem.device_name(d), nodes[d], compute[d], incoming[d], outgoing[d], memory[d])
        for d in range(devices)
    )


def violations(problem: Problem, assignment: Devices, *, contiguous: bool) -> list[str]:
    """Every rule that a placement breaks, in words; empty for a feasible one."""
    found = []
    homes: dict[int, int] = {}
    for v, (d, colour) in enumerate(zip(assignment, problem.colours, strict=True)):
        on = problem.accelerator if d < problem.accelerators else problem.cpu
        if not math.isfinite(on[v]):
            found.append(f"node {problem.names[v]} cannot run on {problem.device_name(d)}")
        if colour >= 0 and homes.setdefault(colour, d) != d:
            found.append(f"colour class {colour} is split")
    found += [
        f"{load.device} holds {load.memory:.0f} > {problem.memory_limit:.0f}"
        for load in evaluate(problem, assignment)[: problem.accelerators]
        if load.memory > problem.memory_limit
    ]
    if contiguous and not _acyclic(problem, assignment):
        found.append("values go round between devices")
    return found


def _acyclic(problem: Problem, assignment: Devices) -> bool:
    """Whether the forward part's devices can be put in a row that all values follow."""
    before: dict[int, set[int]] = {d: set() for d in range(problem.devices)}
    for t in problem.transfers:
        if not problem.backward[t.source]:
            for v in t.targets:
                if not problem.backward[v] and assignment[v] != assignment[t.source]:
                    before[assignment[v]].add(assignment[t.source])
    while ready := [d for d, sources in before.items() if not sources & before.keys()]:
        for d in ready:
            del before[d]
    return not before


def solution(problem: Problem, assignment: Devices, lower_bound: float, strategy: str) -> Solution:
    """A placement with its loads; a bound above its load (by rounding) becomes the load."""
    loads = evaluate(problem, assignment)
    worst = max(load.total for load in loads)
    return Solution(
        tuple(int(d) for d in assignment), worst, min(float(lower_bound), worst), strategy, loads
    )
