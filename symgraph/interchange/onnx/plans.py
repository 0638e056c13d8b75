"""Plans in ONNX files: the stage and devices of each node, in ONNX's own fields (IR version 11).

    ModelProto.configuration          the devices, with their names: cpu(0), cpu(1), ...
    NodeProto.device_configurations   pipeline_stage, and a sharding_spec for each tensor: the
                                      devices that have it, whole, in copies or cut along an axis

A file that is read gives a `FilePlan`: groups with their devices, and the attributes by which nodes
and variables belong to them. Placing the imported network by these groups puts every node on the
device that the file says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from symgraph.core.context import Context, cpu
from symgraph.core.errors import ConfigError
from symgraph.core.reading import reading
from symgraph.core.tags import hide
from symgraph.interchange.onnx.package import onnx_package
from symgraph.interchange.onnx.reader import WHAT, read_model

MOST_DEVICES = 1 << 16
NAME = "symgraph"  # of the configuration that is written
LEAST_IR = 11  # the first version with these fields
SHARDS, REPLICAS = "shards", "replicas"
ATTRIBUTE = {SHARDS: "shard", REPLICAS: "replicate"}
Length = int | str  # a number, or the name of a length that is left open


class Cut(NamedTuple):
    """An axis that is cut."""

    axis: int
    #: The factors of its length, the outermost first, each with the number of its pieces.
    factors: tuple[tuple[Length, int], ...]


class Spread(NamedTuple):
    """The devices that have a tensor, by number."""

    devices: tuple[int, ...]
    #: The cut, whose pieces are on these devices in order; None: each has all of it.
    cut: Cut | None = None


class NodePlace(NamedTuple):
    """Where a node runs."""

    stage: int
    #: Names of its inputs and outputs -> where they are; not all need be there.
    tensors: Mapping[str, Spread]


class DevicePlan(NamedTuple):
    """A plan as a file holds it."""

    #: The name of the configuration.
    name: str
    #: The names of the devices.
    devices: tuple[str, ...]
    #: By the labels of the ONNX nodes; see `label`.
    nodes: Mapping[str, NodePlace]


Groups = dict[str, Context | tuple[Context, ...]]


@dataclass(frozen=True)
class FilePlan:
    """A plan from a file, as groups of the imported network."""

    #: The devices.
    devices: tuple[Context, ...]
    #: Group -> its device, or one for each shard or replica.
    group2ctx: Groups
    #: The label of an ONNX node -> the attributes of the operators that are made of it.
    nodes: Mapping[str, Mapping[str, str]]
    #: Input or initializer -> the attributes of its variable.
    variables: Mapping[str, Mapping[str, str]]


def label(node: Any) -> str:
    """Return a NodeProto's name, or that of its first output if it has none."""
    return str(node.name or next(iter(node.output), ""))


# -- writing ---------------------------------------------------------------------------------------


def add_plan(model: Any, plan: DevicePlan) -> None:
    """Write a plan into a ModelProto. Raises ConfigError if the package onnx is too old."""
    if not hasattr(model, "configuration"):
        raise ConfigError(
            f"plans need the package onnx 1.18 or newer, not {onnx_package().__version__}"
        )
    model.ir_version = max(model.ir_version, LEAST_IR)
    model.configuration.add(name=plan.name, num_devices=len(plan.devices), device=plan.devices)
    for node in model.graph.node:
        place = plan.nodes.get(label(node))
        if place is None:
            continue
        into = node.device_configurations.add(
            configuration_id=plan.name, pipeline_stage=place.stage
        )
        for name in dict.fromkeys([*node.input, *node.output]):
            if name in place.tensors:
                _add_spec(into.sharding_spec.add(tensor_name=name), place.tensors[name])


def _add_spec(spec: Any, spread: Spread) -> None:
    if spread.cut is None and len(spread.devices) > 1:  # a group of devices with a copy each
        spec.device.append(-1)
        spec.index_to_device_group_map.add(key=-1, value=spread.devices)
        return
    spec.device.extend(spread.devices)
    if spread.cut is not None:
        into = spec.sharded_dim.add(axis=spread.cut.axis)
        for length, pieces in spread.cut.factors:
            factor = into.simple_sharding.add(num_shards=pieces)
            if isinstance(length, str):
                factor.dim_param = length
            else:
                factor.dim_value = length


# -- reading ---------------------------------------------------------------------------------------


def read_plan(file: str | Path | bytes) -> FilePlan | None:
    """Read the plan of an ONNX file, or of its bytes; None if it has none. Weights are not read.

    Raises:
        ConfigError: The file cannot be read, or holds a plan that is malformed or that groups of
            devices cannot express.
    """
    model, _, source = read_model(file)
    with reading(source, WHAT):
        return plan_of(model)


def plan_of(model: Any) -> FilePlan | None:
    """Return the plan of a ModelProto as groups; None if it has none."""
    found = device_plan_of(model)
    if found is None or not found.nodes:
        return None
    contexts = tuple(_context(name) for name in found.devices)
    groups = _Groups(found)
    for name in found.nodes:
        groups.add(name)
    names = {i.name for i in model.graph.input} | {t.name for t in model.graph.initializer}
    variables: dict[str, Mapping[str, str]] = {}
    for name, place in found.nodes.items():
        for tensor in names & place.tensors.keys():
            variables.setdefault(tensor, groups.attributes(groups.of[name], variable=True))
    nodes = {name: groups.attributes(group) for name, group in groups.of.items()}
    return FilePlan(contexts, groups.devices(contexts), nodes, variables)


def device_plan_of(model: Any) -> DevicePlan | None:
    """Return the plan of a ModelProto's first configuration, checked; None without one."""
    if not getattr(model, "configuration", ()):
        return None
    first = model.configuration[0]
    names = tuple(first.device)
    if (names and len(names) != first.num_devices) or not 0 < first.num_devices <= MOST_DEVICES:
        raise ConfigError(
            f"configuration {first.name!r} has {first.num_devices} devices, but names {len(names)}"
        )
    nodes = {}
    for node in model.graph.node:
        for given in node.device_configurations:
            if given.configuration_id == first.name:
                name, specs = label(node), given.sharding_spec
                tensors = {s.tensor_name: _spread(name, s, first) for s in specs}
                nodes[name] = NodePlace(given.pipeline_stage, tensors)
    devices = names or tuple(repr(cpu(i)) for i in range(first.num_devices))
    return DevicePlan(first.name, devices, nodes)


def _spread(node: str, spec: Any, configuration: Any) -> Spread:
    """Return a sharding_spec's content; ConfigError for what has no counterpart here."""
    where = f"node {node!r}: the sharding of {spec.tensor_name!r}"
    groups = {entry.key: tuple(entry.value) for entry in spec.index_to_device_group_map}
    cuts = []
    for dim in spec.sharded_dim:
        factors = tuple(
            (f.dim_param if f.HasField("dim_param") else f.dim_value, f.num_shards)
            for f in dim.simple_sharding
        )
        if math.prod(pieces for _, pieces in factors) != 1:
            cuts.append(Cut(dim.axis, factors))
    devices = tuple(spec.device)
    if len(devices) == 1 and devices[0] in groups:
        devices = groups[devices[0]]
    elif groups:
        raise ConfigError(f"{where} has copies of pieces, which groups of devices cannot express")
    if len(cuts) > 1:
        raise ConfigError(f"{where} cuts several axes; one is possible")
    if not devices or any(not 0 <= d < configuration.num_devices for d in devices):
        raise ConfigError(
            f"{where} names devices {[*devices]}, but configuration {configuration.name!r} has "
            f"0 to {configuration.num_devices - 1}"
        )
    if cuts and math.prod(pieces for _, pieces in cuts[0].factors) != len(devices):
        raise ConfigError(f"{where} makes other pieces than the {len(devices)} devices it names")
    return Spread(devices, cuts[0] if cuts else None)


def _context(name: str) -> Context:
    try:
        return Context.parse(name)
    except ConfigError as error:
        raise ConfigError(f"a device of the file's plan: {error}") from None


class _Group(NamedTuple):
    """Nodes of one stage that run on the same devices in the same way."""

    stage: int
    #: SHARDS, REPLICAS, or "" for one device.
    kind: str
    devices: tuple[int, ...]


class _Groups:
    """The groups of a plan, by their names."""

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan
        #: ONNX node -> its group.
        self.of: dict[str, _Group] = {}
        self.names: dict[_Group, str] = {}
        self.known: dict[_Group, _Group] = {}
        self.stems: Counter[str] = Counter()
        stated = [(p.stage, _kind(p.tensors.values())) for p in plan.nodes.values()]
        #: Stage -> the first devices that are stated for a node of it.
        self.stages: dict[int, tuple[str, tuple[int, ...]]] = {}
        for stage, known in stated:
            # What we write says nothing only of nodes inside an operator that is split.
            if known is not None and (known[0] or plan.name != NAME):
                self.stages.setdefault(stage, known)
        for stage, known in stated:
            if known is not None:
                self.stages.setdefault(stage, known)
        self._place_others(sorted({place.stage for place in plan.nodes.values()}))

    def _place_others(self, stages: Sequence[int]) -> None:
        """Put stages of which only the number is stated on the devices, in order."""
        others = [stage for stage in stages if stage not in self.stages]
        if others and len(stages) > len(self.plan.devices):
            raise ConfigError(
                f"the file's plan has {len(stages)} stages for {len(self.plan.devices)} devices, "
                f"and does not say which of them stage {others[0]} is on"
            )
        for stage in others:
            self.stages[stage] = "", (stages.index(stage),)

    def add(self, name: str) -> None:
        """Find the group of a node."""
        place = self.plan.nodes[name]
        kind, devices = _kind(place.tensors.values()) or self.stages[place.stage]
        # Shards are one group, so that what cannot be split is beside what is.
        key = _Group(0 if kind == SHARDS else place.stage, kind, devices)
        group = self.of[name] = self.known.setdefault(key, _Group(place.stage, kind, devices))
        if group not in self.names:
            stem = f"stage{place.stage}" + (f"_{kind}" if kind else "")
            count = self.stems[stem]
            self.stems[stem] += 1
            self.names[group] = f"{stem}.{count}" if count else stem

    def attributes(self, group: _Group, *, variable: bool = False) -> dict[str, str]:
        """Return the attributes of a group's operators, or of the variables that they read."""
        found = {hide("ctx_group"): self.names[group]}
        if group.kind and not variable:
            found[hide(ATTRIBUTE[group.kind])] = str(len(group.devices))
        return found

    def devices(self, contexts: Sequence[Context]) -> Groups:
        """Return the devices of each group: one, if all pieces are on it."""
        found: Groups = {}
        for group, name in self.names.items():
            places = tuple(contexts[d] for d in group.devices)
            found[name] = places if len(set(places)) > 1 else places[0]
        return found


def _kind(spreads: Iterable[Spread]) -> tuple[str, tuple[int, ...]] | None:
    """Return how a node with such tensors is split, and its devices; None if nothing is stated.

    A node whose last tensor, an output, has copies on several devices is computed on each of them.
    """
    known = [*spreads]
    for spread in known:
        if spread.cut is not None:
            named = any(isinstance(n, str) and pieces > 1 for n, pieces in spread.cut.factors)
            return REPLICAS if named else SHARDS, spread.devices
    if not known:
        return None
    devices = known[-1].devices
    return REPLICAS if len(devices) > 1 else "", devices
