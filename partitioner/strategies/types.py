"""What strategies are asked and what they answer: constraints and placed graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from partitioner.base.types import Placement
from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.placement.group2ctx import Groups
from symgraph.core.graph import Graph
from symgraph.core.types import Value

STEP, THROUGHPUT, LATENCY = "step", "throughput", "latency"
OBJECTIVES = {
    STEP: "the shortest simulated step of all micro-batches",
    THROUGHPUT: "the least load of the slowest device, as in a pipeline that never ends",
    LATENCY: "the shortest simulated time of one micro-batch alone",
}


STEPS = 2e8  # of a solver: some ten seconds


@dataclass(frozen=True)
class Constraints:
    """What a placement must keep to, and what the estimate of memory needs to know.

    memory: bytes that each device may hold, besides the devices' own limits. parameters:
    variables that stay for the run, auxiliary states included. grads: parameter -> the value of
    its gradient. slots: optimizer arrays a parameter. in_flight: micro-batches whose activations
    are held at once. keep_groups: the nodes of one ctx_group stay together. split_tied: a
    parameter may be sent to other devices than its own. together: (variable, node) that stay
    together, such as a state and what makes its next value. pins: ctx_group or node -> number of
    its device in the machine. spread: ctx_group whose operators are split -> the devices of its
    pieces, in order; `auto` tries that too. groups: the user's map, which the strategy group2ctx
    follows.
    objective: a name of OBJECTIVES, by which the best of several placements is taken. steps: of a
    solver; see partitioner.solve.budget.
    """

    memory: int | None = None
    parameters: Collection[str] = frozenset()
    grads: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    slots: int = 0
    in_flight: int = 1
    keep_groups: bool = False
    split_tied: bool = False
    together: Collection[tuple[str, str]] = ()
    pins: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    spread: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    groups: Groups | None = None
    objective: str = STEP
    steps: float = STEPS


@dataclass(frozen=True)
class Placed:
    """A placement and what is known of it.

    load: seconds a micro-batch of the slowest device, its messages included. lower_bound: what no
    placement of the same classes of nodes is below (of contiguous ones, but for the strategy
    noncontiguous); see coarse.py. memory: estimated bytes of each device.
    """

    placement: Placement
    load: float
    lower_bound: float
    strategy: str
    memory: tuple[int, ...]

    @property
    def optimal(self) -> bool:
        return self.lower_bound >= self.load * (1 - 1e-9)

    @property
    def gap(self) -> float:
        """How far above the optimum this may be, as a share of the load."""
        return 0.0 if self.optimal else 1 - self.lower_bound / self.load


Strategy = Callable[[Graph, Costs, Machine, Constraints], Placed]
