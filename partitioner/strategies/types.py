"""Types of strategies: constraints, and placed graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from partitioner.base.types import Placement
from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.placement.group2ctx import Groups
from partitioner.solve.problem import optimality_gap
from partitioner.strategies.rules import Rule
from symgraph.core.graph import Graph
from symgraph.core.types import Value

STEP, THROUGHPUT, LATENCY = "step", "throughput", "latency"
OBJECTIVES = {
    STEP: "the shortest simulated step of all micro-batches",
    THROUGHPUT: "the least load of the slowest device, as in a pipeline that never ends",
    LATENCY: "the shortest simulated time of one micro-batch alone",
}
SOLVER_STEPS = 2e8  # some ten seconds


@dataclass(frozen=True)
class Constraints:
    """The rules that a placement keeps, and the facts that its estimate of memory needs."""

    #: Bytes that each device may hold, in addition to the devices' limits; None: any number.
    memory: int | None = None
    #: Variables that stay for the run, auxiliary states included.
    parameters: Collection[str] = frozenset()
    #: Parameter -> the value of its gradient.
    grads: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    #: Optimizer arrays per parameter.
    slots: int = 0
    #: Micro-batches whose activations are held at once.
    in_flight: int = 1
    #: Whether the nodes of one ctx_group stay together.
    keep_groups: bool = False
    #: Whether a parameter may be sent to devices other than its own.
    split_tied: bool = False
    #: (variable, node) that stay together, such as a state and the node that makes its next value.
    together: Collection[tuple[str, str]] = ()
    #: ctx_group or node -> the number of its device in the machine.
    pins: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    #: What else the user demands.
    rules: tuple[Rule, ...] = ()
    #: ctx_group whose operators are split -> the devices of its pieces in order; `auto` tries it.
    spread: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    #: The user's map, which the strategy group2ctx follows.
    groups: Groups | None = None
    #: The budget of a solver; see partitioner.solve.budget.
    steps: float = SOLVER_STEPS


@dataclass(frozen=True)
class Placed:
    """A placement with its estimated load and memory."""

    placement: Placement
    #: Seconds per micro-batch of the slowest device, its messages included.
    load: float
    #: No placement of the same classes of nodes (see coarse.py) is faster; no contiguous one,
    #: except for the strategy noncontiguous.
    lower_bound: float
    #: The name of the strategy.
    strategy: str
    #: Estimated bytes of each device.
    memory: tuple[int, ...]

    @property
    def optimal(self) -> bool:
        return self.gap == 0

    @property
    def gap(self) -> float:
        """The most by which the load exceeds the optimum, as a share of the load."""
        return optimality_gap(self.load, self.lower_bound)


Strategy = Callable[[Graph, Costs, Machine, Constraints], Placed]
