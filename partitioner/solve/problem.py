"""The placement problem: nodes with costs on kinds of device, and values that move.

The objective is the load of the slowest device, the time per sample of a full pipeline:

    a device    its nodes' times + the cost of every value that crosses its border, once each,
                whether it is sent or received

(Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS
2020, where devices are accelerators and CPU cores, and cores do not pay for values: see
`published`.) Nothing here knows of files: a problem is made of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partitioner.solve.prices import best_prices
from symgraph.core.errors import PlacementError
from symgraph.core.orders import find_cycle
from symgraph.core.types import Array

Devices = Sequence[int] | Array  # node -> device
ACCELERATOR, CORE = "acc", "cpu"


class InfeasibleError(PlacementError):
    """No placement keeps the limits; the message names the smallest memory limit that works."""


@dataclass(frozen=True)
class Transfer:
    """A value that moves. A node may make several; a dependency without data costs 0."""

    source: int  #: the node that makes it
    targets: tuple[int, ...]  #: the nodes that read it
    cost: float  #: the time to move it once


@dataclass(frozen=True)
class Kind:
    """A kind of device; all devices of a kind are equal."""

    name: str  #: the name, such as `acc`; the devices are `acc:0`, `acc:1`, ...
    count: int  #: the number of devices
    times: Array  #: the time of each node on such a device; inf: it cannot run there
    #: The time that each transfer costs a device whose border it crosses; None: Transfer.cost.
    moves: Array | None = None
    memory_limit: float = math.inf  #: the memory of each device


@dataclass(frozen=True)
class Problem:
    """Nodes to place, and the devices to place them on, numbered kind after kind.

    All times are in one unit, all sizes in another.
    """

    names: tuple[str, ...]  #: the names of the nodes
    kinds: tuple[Kind, ...]  #: the kinds of device
    memory: Array  #: the memory of each node
    transfers: tuple[Transfer, ...]  #: the values that move
    colours: Sequence[int] = ()  #: nodes of one colour >= 0 stay together; -1: none
    #: Nodes on which a contiguous placement puts no order; they follow their colour.
    backward: Sequence[bool] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        object.__setattr__(self, "memory", np.asarray(self.memory, dtype=np.float64))
        object.__setattr__(self, "colours", tuple(self.colours) or (-1,) * n)
        object.__setattr__(self, "backward", tuple(map(bool, self.backward)) or (False,) * n)
        if not n:
            raise PlacementError("there are no nodes to place")
        self._check_values("memory", self.memory, n)
        if not np.isfinite(self.memory).all():
            raise PlacementError("memory of a node is not finite")
        if len(self.colours) != n or len(self.backward) != n:
            raise PlacementError(f"colours and backward need one value for each of {n} nodes")
        for kind in self.kinds:
            self._check_kind(kind, n)
        for t in self.transfers:
            if not all(0 <= v < n for v in (t.source, *t.targets)):
                raise PlacementError(f"a transfer refers to a node that does not exist: {t}")
            if not (t.cost >= 0 and math.isfinite(t.cost)):
                raise PlacementError(f"the cost of a transfer must be finite and >= 0: {t}")

    def _check_values(self, what: str, values: Array, n: int) -> None:
        if values.shape != (n,):
            raise PlacementError(f"{what}: {values.shape} values for {n} nodes")
        if np.isnan(values).any() or (values < 0).any():
            bad = self.names[int(np.argmax(np.isnan(values) | (values < 0)))]
            raise PlacementError(f"{what} of node {bad}: must be a number >= 0")

    def _check_kind(self, kind: Kind, n: int) -> None:
        self._check_values(f"{kind.name}: times", kind.times, n)
        if kind.count < 0:
            raise PlacementError(
                f"{kind.name}: the number of devices must be >= 0, not {kind.count}"
            )
        if math.isnan(kind.memory_limit) or kind.memory_limit < 0:
            raise PlacementError(
                f"{kind.name}: the memory limit must be a number >= 0, not {kind.memory_limit}"
            )
        if kind.moves is not None and kind.moves.shape != (len(self.transfers),):
            raise PlacementError(
                f"{kind.name}: {kind.moves.shape} moves for {len(self.transfers)} transfers"
            )

    @cached_property
    def devices(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """The number of each device's kind."""
        return tuple(g for g, kind in enumerate(self.kinds) for _ in range(kind.count))

    @cached_property
    def moves(self) -> tuple[tuple[float, ...], ...]:
        """The time that each transfer costs a device, by kind."""
        costs = tuple(float(t.cost) for t in self.transfers)
        return tuple(costs if k.moves is None else tuple(k.moves.tolist()) for k in self.kinds)

    @cached_property
    def prices(self) -> Array:
        """The price of a second on each kind (see prices.py); 0 for kinds without devices."""
        used = [g for g, kind in enumerate(self.kinds) if kind.count]
        prices = np.zeros(len(self.kinds))
        if used:
            times = np.stack([self.kinds[g].times for g in used])
            prices[used] = best_prices(times, np.array([self.kinds[g].count for g in used], float))
        return prices

    def device_name(self, device: int) -> str:
        """Return the name of a device: `acc:0`, `acc:1`, ..., `cpu:0`, ..."""
        g = self.kind_of[device]
        return f"{self.kinds[g].name}:{device - self.kind_of.index(g)}"


def published(
    names: tuple[str, ...],
    accelerator: Array,
    cpu: Array,
    memory: Array,
    transfers: tuple[Transfer, ...],
    accelerators: int,
    cpus: int = 0,
    memory_limit: float = math.inf,
    colours: Sequence[int] = (),
    backward: Sequence[bool] = (),
) -> Problem:
    """Make the paper's problem: accelerators, and CPU cores without a limit and without messages.

    Args:
        names: the names of the nodes.
        accelerator: the time of each node on an accelerator; inf: it cannot run there.
        cpu: the time of each node on a CPU core; inf: it cannot run there.
        memory: the memory of each node.
        transfers: the values that move.
        accelerators: the number of accelerators.
        cpus: the number of CPU cores.
        memory_limit: the memory of each accelerator.
        colours: see Problem.
        backward: see Problem.
    """
    kinds = (
        Kind(ACCELERATOR, accelerators, np.asarray(accelerator, float), memory_limit=memory_limit),
        Kind(CORE, cpus, np.asarray(cpu, float), np.zeros(len(transfers))),
    )
    return Problem(names, kinds, memory, transfers, colours, backward)


@dataclass(frozen=True)
class Load:
    """The times and the memory of one device under a placement."""

    device: str
    nodes: int
    compute: float
    incoming: float
    outgoing: float
    memory: float

    @property
    def total(self) -> float:
        return self.compute + self.incoming + self.outgoing


def optimality_gap(load: float, lower_bound: float) -> float:
    """Return the most by which a load exceeds the optimum, as a share of the load; 0: optimal."""
    return 0.0 if lower_bound >= load * (1 - 1e-9) else 1 - lower_bound / load


@dataclass(frozen=True)
class Solution:
    """A placement with its proof: no placement of its kind has a load below lower_bound."""

    assignment: tuple[int, ...]
    max_load: float
    lower_bound: float
    strategy: str
    loads: tuple[Load, ...] = field(repr=False, default=())

    @property
    def optimal(self) -> bool:
        return self.gap == 0

    @property
    def gap(self) -> float:
        """The most by which this exceeds the optimum, as a share of max_load."""
        return optimality_gap(self.max_load, self.lower_bound)


def evaluate(problem: Problem, assignment: Devices) -> tuple[Load, ...]:
    """Compute the load of every device by the definition; sums are in the order of the nodes."""
    devices, kind_of = problem.devices, problem.kind_of
    nodes = [0] * devices
    compute, memory = [0.0] * devices, [0.0] * devices
    incoming, outgoing = [0.0] * devices, [0.0] * devices
    for v, d in enumerate(assignment):
        nodes[d] += 1
        compute[d] += float(problem.kinds[kind_of[d]].times[v])
        memory[d] += float(problem.memory[v])
    for i, t in enumerate(problem.transfers):
        home = assignment[t.source]
        others = {assignment[v] for v in t.targets} - {home}
        if others:
            outgoing[home] += problem.moves[kind_of[home]][i]
        for d in others:
            incoming[d] += problem.moves[kind_of[d]][i]
    return tuple(
        Load(problem.device_name(d), nodes[d], compute[d], incoming[d], outgoing[d], memory[d])
        for d in range(devices)
    )


def largest(problem: Problem, assignment: Devices) -> float:
    """Return the load of the slowest device."""
    return max(load.total for load in evaluate(problem, assignment))


def violations(problem: Problem, assignment: Devices, *, contiguous: bool) -> list[str]:
    """Describe every rule that a placement breaks; none for a feasible one."""
    broken = []
    homes: dict[int, int] = {}
    for v, (d, colour) in enumerate(zip(assignment, problem.colours, strict=True)):
        if not math.isfinite(problem.kinds[problem.kind_of[d]].times[v]):
            broken.append(f"node {problem.names[v]} cannot run on {problem.device_name(d)}")
        if colour >= 0 and homes.setdefault(colour, d) != d:
            broken.append(f"colour class {colour} is split")
    limits = [problem.kinds[g].memory_limit for g in problem.kind_of]
    broken += [
        f"{load.device} holds {load.memory:.0f} > {limit:.0f}"
        for load, limit in zip(evaluate(problem, assignment), limits, strict=True)
        if load.memory > limit
    ]
    if contiguous and not _acyclic(problem, assignment):
        broken.append("values go round between devices")
    return broken


def _acyclic(problem: Problem, assignment: Devices) -> bool:
    """Tell whether the forward part's devices can be put in a row that all values follow."""
    return not find_cycle(
        (assignment[t.source], assignment[v])
        for t in problem.transfers
        if not problem.backward[t.source]
        for v in t.targets
        if not problem.backward[v] and assignment[v] != assignment[t.source]
    )


def solution(problem: Problem, assignment: Devices, lower_bound: float, strategy: str) -> Solution:
    """Make a Solution; a bound above the load (by rounding) becomes the load."""
    loads = evaluate(problem, assignment)
    worst = max(load.total for load in loads)
    return Solution(
        tuple(int(d) for d in assignment), worst, min(float(lower_bound), worst), strategy, loads
    )
