"""The coarse graph: classes of forward nodes, each with its gradient nodes, placed as one.

    graph ──ties, cycles, light nodes──▶ classes ──seconds, bytes, values──▶ Coarse

Nodes that use a parameter in the same way belong together, and so does what lies on a cycle of
such classes: every layer of an unrolled network becomes a few classes, however many time steps it
has. Other ties (a weight of an embedding and of a decoder, groups, pins) join classes too where a
placement has to be contiguous; where not they are colours, so that what lies between stays free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from partitioner.base.aliasing import is_view, made_by
from partitioner.base.remembered import remembered
from partitioner.costs.cost import Costs, KindCosts, Speed
from partitioner.costs.machine import Device, Machine
from partitioner.strategies.contraction import Classes, Flow, acyclic, contract
from partitioner.strategies.rules import PIN, Demands, Pairs, Rule, contradiction, demands
from partitioner.strategies.traffic import Broadcast, traffic
from partitioner.strategies.types import Constraints
from symgraph.core.connected import connected
from symgraph.core.errors import PlacementError, nearest
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.tags import lookup
from symgraph.core.types import Array, Value
from symgraph.passes.precision import is_parameter_cast
from symgraph.passes.shards import place_of

Moves = list[tuple[int, int]]  # class and device


@dataclass(frozen=True)
class Coarse:
    """Classes of nodes in topological order, with what one micro-batch costs on a machine."""

    machine: Machine
    constraints: Constraints
    #: Forward node -> class.
    of: Mapping[str, int]
    #: The first node of each class.
    names: tuple[str, ...]
    #: Seconds of each class on each device: [devices, classes].
    times: Array
    #: Estimated bytes: parameters with gradients and optimizer arrays, and what is kept for the
    #: backward phase, for all micro-batches in flight.
    memory: Array
    #: Bytes of the parameters' values alone.
    parameters: Array
    #: The messages between classes.
    stars: tuple[Broadcast, ...]
    #: Classes of one colour >= 0 stay together.
    colours: tuple[int, ...]
    #: Whether a class may be on a device: [classes, devices].
    allowed: Array
    #: Whether values have to flow along a row of devices.
    contiguous: bool
    #: Sets of classes of which no two share a device.
    apart: tuple[tuple[frozenset[int], frozenset[int]], ...] = ()
    #: Sets of classes, and on how many devices they may be.
    at_most: tuple[tuple[frozenset[int], int], ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def unlimited(self) -> Coarse:
        """Return the same classes without limits on memory."""
        free = replace(self.constraints, memory=None)
        return replace(self, machine=self.machine.unlimited(), constraints=free)

    def on_first(self, count: int, steps: float) -> Coarse:
        """Return the same classes on the first devices, where nothing is pinned or demanded.

        Args:
            count: the number of devices.
            steps: the budget of a solver.
        """
        machine = self.machine.only(self.machine.contexts[:count])
        known = replace(self.constraints, steps=steps)
        times, allowed = self.times[:count], self.allowed[:, :count]
        return replace(self, machine=machine, constraints=known, times=times, allowed=allowed)

    @cached_property
    def limits(self) -> tuple[int | None, ...]:
        """The bytes that each device may hold; None: any number."""
        return memory_limits(self.machine, self.constraints)

    @cached_property
    def pins(self) -> tuple[int, ...]:
        """The device of each class that may be on no other; -1: any or several."""
        one = (self.allowed.sum(axis=1) == 1) & ~self.allowed.all(axis=1)
        return tuple(np.where(one, self.allowed.argmax(axis=1), -1).tolist())

    def allows(self, moves: Moves) -> bool:
        """Tell whether these classes may be on these devices."""
        return all(self.allowed[c, d] for c, d in moves)

    def keeps(self, devices: Sequence[int]) -> bool:
        """Tell whether a device for every class keeps all rules."""
        together = any({devices[c] for c in a} & {devices[c] for c in b} for a, b in self.apart)
        spread = any(len({devices[c] for c in held}) > most for held, most in self.at_most)
        return not together and not spread and self.allows([*enumerate(devices)])

    def without(self, classes: frozenset[int], device: int) -> Coarse | None:
        """Forbid classes a device, and with them their parts; None if one has no device left."""
        allowed = self.allowed.copy()
        for part in self.parts:
            if not classes.isdisjoint(part):
                allowed[part, device] = False
        return replace(self, allowed=allowed) if allowed.any(axis=1).all() else None

    @cached_property
    def link_costs(self) -> tuple[Array, Array]:
        """The seconds of latency, and for each byte, of all links: [devices, devices] each."""
        k = range(len(self.machine.devices))
        links = [[self.machine.link(a, b) for b in k] for a in k]
        latency = np.array([[link.latency for link in row] for row in links])
        return latency, np.array([[1 / link.bandwidth for link in row] for row in links])

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """A number for each device: those of one number may change places without a difference."""
        k = range(len(self.limits))
        apart = len({self.machine.link(a, b)[:2] for a in k for b in k if a != b}) > 1
        number: dict[object, int] = {}
        keys = (
            (device.place("socket") if apart else (), time.tobytes(), limit, column.tobytes())
            for device, time, limit, column in zip(
                self.machine.devices, self.times, self.limits, self.allowed.T, strict=True
            )
        )
        return tuple(number.setdefault(key, len(number)) for key in keys)

    @cached_property
    def parts(self) -> list[list[int]]:
        """The classes that are placed as one: those of a colour."""
        held: dict[int, list[int]] = {}
        for c, colour in enumerate(self.colours):
            held.setdefault(colour if colour >= 0 else -2 - c, []).append(c)
        return list(held.values())


@remembered
def coarsen(
    graph: Graph, costs: Costs, machine: Machine, constraints: Constraints, *, contiguous: bool
) -> Coarse:
    """Make the coarse graph of a graph. Raises PlacementError for impossible rules."""
    nodes = [n for n in graph if n.origin is None and not n.is_variable]
    index = {n.name: i for i, n in enumerate(nodes)}
    if not nodes:
        raise PlacementError("there is no node to place: the graph has variables only")
    casts = [n.name for n in nodes if is_parameter_cast(graph, n.name)]
    readers = _readers(nodes, casts)
    firm, loose = _ties(nodes, index, readers, constraints)
    firm += [(index[name], readers[name][0][0]) for name in casts if name in readers]
    found = _demanded(graph, nodes, index, readers, machine, constraints)
    loose = _compatible(loose, firm, found.allowed)
    _require_possible(graph, machine, constraints, [*firm, *loose])
    loose += found.ties + _on_one_device(found.allowed)
    if contiguous and not loose:
        free = coarsen(graph, costs, machine, constraints, contiguous=False)
        return replace(free, contiguous=True)
    allowed = found.allowed
    if not allowed.all():
        allowed = _intersected(allowed, connected(len(nodes), [*firm, *loose]))
    classes = _classes(graph, nodes, index, costs, machine, constraints)
    classes = replace(classes, of=connected(len(nodes), firm + (loose if contiguous else [])))
    classes = acyclic(classes)
    colours = connected(classes.count, [(int(classes.of[a]), int(classes.of[b])) for a, b in loose])
    tied = np.zeros(classes.count, dtype=bool)
    tied[[int(classes.of[v]) for pair in loose for v in pair]] = True
    coloured = np.where(tied, colours, -1)[classes.of]
    classes = contract(replace(classes, colours=_kinds(coloured, allowed, found)))
    coarse = weighed(
        graph,
        costs,
        machine,
        constraints,
        _homes(graph, index, classes, readers, constraints),
        tuple(classes.largest(coloured, -1).tolist()),
        _allowed(nodes, classes, allowed, found.allowed),
        contiguous,
    )

    def classes_of(held: frozenset[int]) -> frozenset[int]:
        return frozenset(int(classes.of[i]) for i in held)

    return replace(
        coarse,
        apart=tuple((classes_of(a), classes_of(b)) for a, b in found.apart),
        at_most=tuple((classes_of(held), count) for held, count in found.at_most),
    )


def _readers(nodes: list[Node], casts: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """Map a value's node to its forward readers: (number of the reader, place among its inputs).

    Readers of casts, which are parameters in another dtype, count as readers of the parameters.
    """
    readers: dict[str, list[tuple[int, int]]] = {}
    for i, node in enumerate(nodes):
        for slot, value in enumerate(node.inputs):
            readers.setdefault(value.node, []).append((i, slot))
    for node in nodes:
        if node.name in casts:
            parameter = node.inputs[0].node
            others = [at for at in readers[parameter] if nodes[at[0]] is not node]
            readers[parameter] = others + readers.get(node.name, [])
    return readers


# -- what stays together ---------------------------------------------------------------------------


def _ties(
    nodes: list[Node],
    index: Mapping[str, int],
    readers: Mapping[str, list[tuple[int, int]]],
    constraints: Constraints,
) -> tuple[Pairs, Pairs]:
    """List pairs of nodes that are in one class for any strategy, and that are on one device."""
    firm: Pairs = []
    loose: Pairs = []
    states = {v.node for n in nodes for v in n.inputs[len(n.inputs) - len(find(n.op).aux) :]}
    for name in {**dict.fromkeys(constraints.parameters), **dict.fromkeys(sorted(states))}:
        alike: dict[tuple[str, int], int] = {}  # operator and place -> the last reader
        for i, slot in readers.get(name, ()):
            use = nodes[i].op, slot
            if use in alike:
                firm.append((alike[use], i))
            alike[use] = i
        if name in states:
            firm.extend(pairwise(alike.values()))
        elif not constraints.split_tied:
            loose.extend(pairwise(alike.values()))
    for variable, node in constraints.together:
        if node in index and variable in readers:
            firm.append((readers[variable][0][0], index[node]))
    if constraints.keep_groups:
        for held in _groups(nodes).values():
            shards: dict[object, list[int]] = {}  # each piece of a split group stays together
            for i in held:
                shards.setdefault(place_of(nodes[i]), []).append(i)
            for piece in shards.values():
                loose.extend(pairwise(piece))
    return firm, loose


def _groups(nodes: list[Node]) -> dict[str, list[int]]:
    """Map each ctx_group to its nodes. Variables follow their readers."""
    groups: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        group = lookup(node.tags, "ctx_group")
        if group is not None:
            groups.setdefault(group, []).append(i)
    return groups


def _pins(
    nodes: list[Node],
    index: Mapping[str, int],
    readers: Mapping[str, list[tuple[int, int]]],
    machine: Machine,
    constraints: Constraints,
) -> dict[int, list[int]]:
    """Map devices to the nodes pinned to them; a variable's pin is that of its first reader."""
    pins: dict[int, list[int]] = {}
    groups = _groups(nodes) if constraints.pins else {}
    for name, device in constraints.pins.items():
        if not 0 <= device < len(machine.devices):
            raise PlacementError(
                f"{name!r} is pinned to device {device}; the machine's are 0 to "
                f"{len(machine.devices) - 1}"
            )
        if name in groups:
            held = groups[name]
        elif name in index:
            held = [index[name]]
        elif name in readers:
            held = [readers[name][0][0]]
        else:
            known = nearest(name, [*groups, *index])
            raise PlacementError(f"no group or node {name!r} to be pinned; {known}")
        pins.setdefault(device, []).extend(held)
    return pins


def _demanded(
    graph: Graph,
    nodes: list[Node],
    index: Mapping[str, int],
    readers: Mapping[str, list[tuple[int, int]]],
    machine: Machine,
    constraints: Constraints,
) -> Demands:
    """Return what rules and pins demand of the nodes."""
    found = demands(graph, constraints.rules, machine.contexts)
    for device, held in _pins(nodes, index, readers, machine, constraints).items():
        others = [d for d in range(len(machine.devices)) if d != device]
        found.allowed[np.ix_(held, others)] = False
    return found


def _require_possible(
    graph: Graph, machine: Machine, constraints: Constraints, ties: Pairs
) -> None:
    """Raise PlacementError for rules that contradict each other or the pins; it lists the fewest.

    ties: nodes that stay together in any case.
    """
    if not constraints.rules:
        return
    contexts = machine.contexts
    pins = [Rule(PIN, (name,), (contexts[d],)) for name, d in constraints.pins.items()]
    wrong = contradiction(graph, [*pins, *constraints.rules], contexts, ties)
    if wrong:
        listed = "; ".join(map(str, wrong))
        many = "these constraints contradict each other" if len(wrong) > 1 else "this constraint"
        cannot = "" if len(wrong) > 1 else " cannot be kept"
        raise PlacementError(
            f"{many}{cannot}: {listed} (nodes that share a parameter are on one device, unless "
            "partition.split_tied)"
        )


def _compatible(pairs: Pairs, firm: Pairs, allowed: Array) -> Pairs:
    """Return the pairs that can be on one device, those before them too; a pin parts the others."""
    if allowed.all():
        return pairs
    home = connected(len(allowed), firm)
    masks = np.ones_like(allowed)
    np.logical_and.at(masks, home, allowed)
    root = [*range(len(allowed))]

    def find(c: int) -> int:
        while root[c] != c:
            root[c] = c = root[root[c]]
        return c

    kept: Pairs = []
    for a, b in pairs:
        one, two = find(int(home[a])), find(int(home[b]))
        both = masks[one] & masks[two]
        if both.any():
            kept.append((a, b))
            root[one], masks[two] = two, both
    return kept


def _on_one_device(allowed: Array) -> Pairs:
    """Pair the nodes that may be on one and the same device only, of several."""
    one = (allowed.sum(axis=1) == 1) & ~allowed.all(axis=1)
    columns = range(allowed.shape[1])
    return [
        pair for d in columns for pair in pairwise(np.flatnonzero(one & allowed[:, d]).tolist())
    ]


def _intersected(allowed: Array, part: Array) -> Array:
    """Return the devices that all nodes of a node's part may be on: [nodes, devices]."""
    masks = np.ones((int(part.max()) + 1, allowed.shape[1]), dtype=bool)
    np.logical_and.at(masks, part, allowed)
    shared: Array = masks[part]
    return shared


def _kinds(coloured: Array, allowed: Array, found: Demands) -> Array:
    """Number the nodes that ties and rules treat alike; -1: they treat them like no other."""
    sides = [side for pair in found.apart for side in pair] + [held for held, _ in found.at_most]
    within = np.zeros((len(coloured), len(sides)), dtype=bool)
    for at, side in enumerate(sides):
        within[sorted(side), at] = True
    if not sides and allowed.all():
        return coloured
    bound = np.flatnonzero((coloured >= 0) | ~allowed.all(axis=1) | within.any(axis=1))
    rows = np.hstack([coloured[:, None], allowed, within])[bound]
    kinds = np.full(len(coloured), -1)
    kinds[bound] = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    return kinds


def _allowed(nodes: list[Node], classes: Classes, allowed: Array, alone: Array) -> Array:
    """Find the devices that every class may be on: [classes, devices].

    Args:
        nodes: the nodes.
        classes: their classes.
        allowed: the devices of each node, with those tied to it.
        alone: the same by the rules of the node itself.
    """
    masks = _intersected(allowed, classes.of)
    for i in np.flatnonzero(~masks.any(axis=1))[:1]:
        own: Array = np.where(allowed.any(axis=1, keepdims=True), allowed, alone)
        held = np.flatnonzero((classes.of == classes.of[i]) & ~own.all(axis=1)).tolist()
        others = [b for b in held if not (own[held[0]] & own[b]).any()] or held[-1:]
        raise PlacementError(
            f"{nodes[held[0]].name!r} is pinned to {_listed(own[held[0]])} and "
            f"{nodes[others[0]].name!r} to {_listed(own[others[0]])}, but both stay together: "
            "they share parameters, or values go back and forth between them and nodes pinned with "
            "them; pin them to one device, or use the strategy noncontiguous"
        )
    by_class = np.ones((classes.count, allowed.shape[1]), dtype=bool)
    by_class[classes.of] = masks
    return by_class


def _listed(allowed: Array) -> str:
    numbers = [str(d) for d in np.flatnonzero(allowed)]
    return f"device{'s' * (len(numbers) != 1)} {' or '.join(numbers) or 'of no number'}"


# -- classes ---------------------------------------------------------------------------------------


def _classes(
    graph: Graph,
    nodes: list[Node],
    index: Mapping[str, int],
    costs: Costs,
    machine: Machine,
    constraints: Constraints,
) -> Classes:
    """Make a class of every node; weigh it as shares of what one device has to do and may hold."""
    rows = [
        (index[v.node], i, v)
        for i, n in enumerate(nodes)
        for v in dict.fromkeys(n.inputs)
        if v.node in index
    ]
    number: dict[Value, int] = {}
    flow = Flow(
        np.array([a for a, _, _ in rows], dtype=np.int64),
        np.array([b for _, b, _ in rows], dtype=np.int64),
        np.array([number.setdefault(v, len(number)) for _, _, v in rows], dtype=np.int64),
        np.array([graph.type_of(v).nbytes for _, _, v in rows], dtype=np.int64),
    )
    seconds, memory = np.zeros(len(nodes)), np.zeros(len(nodes))
    for node in graph:
        at = index.get(node.origin or node.name)
        if at is not None:
            seconds[at] += costs.seconds_of(node, graph)
    bounds = [x for x in memory_limits(machine, constraints) if x is not None]
    if bounds:
        for i, node in enumerate(nodes):
            memory[i] = sum(t.nbytes for t in node.types) * constraints.in_flight
            held = (v for v in node.inputs if v.node in constraints.parameters)
            memory[i] += sum(graph.type_of(v).nbytes * (2 + constraints.slots) for v in held)
        memory /= max(min(bounds), 1)
    share = max(float(seconds.sum()) / len(machine.devices), 1e-300)
    alone = np.arange(len(nodes))
    return Classes(alone, flow, seconds / share, memory, np.full(len(nodes), -1))


def memory_limits(machine: Machine, constraints: Constraints) -> tuple[int | None, ...]:
    """List the bytes that each device may hold; None: any number."""
    pairs = ((device.memory, constraints.memory) for device in machine.devices)
    return tuple(min((x for x in pair if x is not None), default=None) for pair in pairs)


def _homes(
    graph: Graph,
    index: Mapping[str, int],
    classes: Classes,
    readers: Mapping[str, list[tuple[int, int]]],
    constraints: Constraints,
) -> dict[str, int]:
    """Map forward nodes to classes.

    A variable is with the first class that reads it, so that its value flows as all values do; a
    state with the node that makes its next value; a variable that no node reads with class 0.
    """
    of = {name: int(classes.of[i]) for name, i in index.items()}
    next_value = dict(constraints.together)
    for node in graph.variables:
        if node.origin is None:
            near = [int(classes.of[i]) for i, _ in readers.get(node.name, ())]
            of[node.name] = of.get(next_value.get(node.name, ""), min(near, default=0))
    return of


# -- what classes cost -----------------------------------------------------------------------------


def weighed(
    graph: Graph,
    costs: Costs,
    machine: Machine,
    constraints: Constraints,
    of: Mapping[str, int],
    colours: tuple[int, ...],
    allowed: Array,
    contiguous: bool,
) -> Coarse:
    """Weigh classes of nodes; `of` maps forward nodes to classes, `allowed` is that of Coarse."""
    n = len(colours)
    home, stars = traffic(graph, of)
    names = [""] * n
    for node in graph:
        if node.origin is None and not node.is_variable:
            names[of[node.name]] = names[of[node.name]] or node.name
    parameters = np.zeros(n, dtype=np.int64)
    memory = _kept(graph, home, n) * constraints.in_flight
    for node in graph.variables:
        if node.name in constraints.parameters:
            size = node.types[0].nbytes
            learnt = node.name in constraints.grads
            gradient = graph.type_of(constraints.grads[node.name]).nbytes if learnt else 0
            parameters[of[node.name]] += size
            memory[of[node.name]] += size + gradient + learnt * constraints.slots * size
    return Coarse(
        machine,
        constraints,
        of,
        tuple(names),
        node_times(graph, costs, machine, home, n),
        memory,
        parameters,
        stars,
        colours,
        allowed,
        contiguous,
    )


def node_times(
    graph: Graph, costs: Costs, machine: Machine, home: Mapping[str, int], count: int
) -> Array:
    """Estimate the seconds of each class on each device: [devices, classes].

    Costs are those of the device with the most operations per second (of each kind if costs are
    known by kind); on another one a node takes longer by the ratio of the two rooflines.

    Args:
        graph: the graph.
        costs: seconds of nodes.
        machine: the devices.
        home: node -> class.
        count: number of classes.
    """
    devices = machine.devices
    if not isinstance(costs, KindCosts):
        rows = _times(graph, costs, devices, home, count)
        return np.stack([rows[d.speed] for d in devices])
    by_kind: dict[str, list[Device]] = {}
    for device in devices:
        by_kind.setdefault(device.context.kind, []).append(device)
    of_kind = {
        kind: _times(graph, costs.kinds[kind], same, home, count) for kind, same in by_kind.items()
    }
    return np.stack([of_kind[d.context.kind][d.speed] for d in devices])


def _times(
    graph: Graph, costs: Costs, devices: Sequence[Device], home: Mapping[str, int], count: int
) -> dict[Speed, Array]:
    """Estimate the seconds of each class at each speed; costs are those of the fastest device."""
    first = max(devices, key=lambda device: device.flops).speed
    rows = {device.speed: np.zeros(count) for device in devices}
    for node in graph:
        seconds = costs.seconds_of(node, graph)
        if seconds:
            for speed, row in rows.items():
                slower = 1.0 if speed == first else _ratio(node, graph, speed, first)
                row[home[node.name]] += seconds * slower
    return rows


def _ratio(node: Node, graph: Graph, speed: Speed, first: Speed) -> float:
    fastest = first.seconds_of(node, graph)
    return speed.seconds_of(node, graph) / fastest if fastest else first.flops / speed.flops


def _kept(graph: Graph, home: Mapping[str, int], n: int) -> Array:
    """Count bytes of forward values that gradient nodes of each class read; views take none."""
    owner: dict[Value, Value] = {}
    kept: set[tuple[int, Value]] = set()
    for node in graph:
        if node.origin is not None:
            held = [owner[v] for v in node.inputs if v in owner]
            kept.update((home[node.name], v) for v in held)
        elif not node.is_variable:
            for made in made_by(node):
                if not is_view(node, graph):
                    owner[made] = made
                elif node.inputs[0] in owner:
                    owner[made] = owner[node.inputs[0]]
    nbytes = np.zeros(n, dtype=np.int64)
    for c, value in kept:
        nbytes[c] += graph.type_of(value).nbytes
    return nbytes
