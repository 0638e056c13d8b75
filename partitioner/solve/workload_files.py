"""Workload files: published placement problems, read as `Problem`s.

Two formats, told apart by their first character:

    dnn-partitioning   JSON: nodes with times on accelerator and CPU and bytes, edges with the
                       time to move their source's output; numbers of devices and the memory limit
                       (github.com/msr-fiddle/dnn-partitioning)
    PipeDream profile  `nodeN -- text -- forward_compute_time=.., ...` and `\\tnodeA -- nodeB`
                       (github.com/msr-fiddle/pipedream, profiler/**/graph.txt); see profile_files

Times are milliseconds, memory is in bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.solve.problem import Kind, Problem, Transfer, published
from partitioner.solve.profile_files import parse_profile
from symgraph.core.errors import ConfigError, nearest
from symgraph.core.orders import find_cycle
from symgraph.core.reading import read_text, reading

TOP_KEYS = {"maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges"}
NODE_KEYS = {"id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode"}
EDGE_KEYS = {"sourceId", "destId", "cost"}


@dataclass(frozen=True)
class Workload:
    """A problem read from a file. Its names are the file's node ids."""

    problem: Problem
    titles: tuple[str, ...]  #: the file's description of each node; "": none
    notes: tuple[str, ...] = ()  #: what a reader of the solution should know


def read_workload(
    path: str | Path,
    *,
    accelerators: int | None = None,
    cpus: int | None = None,
    memory_limit: float | None = None,
    bandwidth: float | None = None,
) -> Workload:
    """Read a file of either format.

    Args:
        path: the file.
        accelerators: the number of accelerators, instead of the file's.
        cpus: the number of CPU cores, instead of the file's.
        memory_limit: bytes of each accelerator, instead of the file's limit.
        bandwidth: bytes per second between devices, for profiles.

    Raises:
        ConfigError: for a file that cannot be read, with the place of the first mistake.
    """
    with reading(path, "workload"):
        text = read_text(path, "workload")
        if text.lstrip()[:1] in ("{", "["):
            if bandwidth is not None:
                raise ConfigError("--bandwidth is for profiles; this file has transfer times")
            workload = _from_json(text)
        else:
            problem, titles, notes = parse_profile(text, bandwidth)
            if accelerators is None:
                raise ConfigError("a profile has no devices; add --accelerators")
            workload = Workload(problem, titles, notes)
        _check_order(workload.problem)
        acc, cpu = workload.problem.kinds
        kinds = (
            _with_options(acc, count=accelerators, memory_limit=memory_limit),
            _with_options(cpu, count=cpus),
        )
        return replace(workload, problem=replace(workload.problem, kinds=kinds))


def _with_options(kind: Kind, **options: float | None) -> Kind:
    """Replace the file's values of a kind by those that are given."""
    changes: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    return replace(kind, **changes)


def _from_json(text: str) -> Workload:
    top = json.loads(text)
    _keys(top, TOP_KEYS, "the file")
    nodes = _list(top, "nodes")
    number: dict[int | str, int] = {}
    for i, node in enumerate(nodes):
        where = f"nodes[{i}]"
        _keys(node, NODE_KEYS, where)
        if isinstance(node["id"], bool) or not isinstance(node["id"], (int, str)):
            raise ConfigError(f"{where}: id is {_shown(node['id'])}, not a number")
        if number.setdefault(node["id"], i) != i:
            raise ConfigError(f"{where}: id {node['id']} is taken by nodes[{number[node['id']]}]")
    if not nodes:
        raise ConfigError("nodes is empty: there is nothing to place")
    colours: dict[int, int] = {}
    problem = published(
        tuple(str(node["id"]) for node in nodes),
        np.array([_accelerator_time(node) for node in nodes]),
        np.array([_number(node, "cpuLatency") for node in nodes]),
        np.array([_number(node, "size") if "size" in node else 0.0 for node in nodes]),
        _transfers(_list(top, "edges"), number),
        _count(top, "maxFPGAs"),
        _count(top, "maxCPUs"),
        _number(top, "maxSizePerFPGA"),
        [_colour(node, colours) for node in nodes],
        [_flag(node, "isBackwardNode") for node in nodes],
    )
    return Workload(problem, tuple(str(node.get("name", "")) for node in nodes))


def _accelerator_time(node: Mapping[str, Any]) -> float:
    return _number(node, "fpgaLatency") if _flag(node, "supportedOnFpga") else math.inf


def _colour(node: Mapping[str, Any], colours: dict[int, int]) -> int:
    """Number a node's colour class by appearance; -1 for none."""
    if node.get("colorClass") is None:
        return -1
    return colours.setdefault(_count(node, "colorClass", least=None), len(colours))


def _transfers(edges: list[Any], number: Mapping[int | str, int]) -> tuple[Transfer, ...]:
    """Turn the edges of each source into one value, whose cost they must agree on."""
    costs: dict[int, float] = {}
    targets: dict[int, dict[int, None]] = {}
    for i, edge in enumerate(edges):
        where = f"edges[{i}]"
        _keys(edge, EDGE_KEYS, where)
        ends = []
        for key in ("sourceId", "destId"):
            if isinstance(edge[key], (list, dict)) or edge[key] not in number:
                raise ConfigError(f"{where}: {key} {_shown(edge[key])} is not the id of a node")
            ends.append(number[edge[key]])
        if ends[0] == ends[1]:
            raise ConfigError(f"{where}: node {edge['sourceId']} has an edge to itself")
        cost = _number(edge, "cost")
        if abs(costs.setdefault(ends[0], cost) - cost) > 1e-6:
            raise ConfigError(
                f"{where}: node {edge['sourceId']} has two costs, {costs[ends[0]]} and {cost} "
                "(the cost of moving the node's output is the same for all its readers)"
            )
        targets.setdefault(ends[0], {})[ends[1]] = None
    return tuple(Transfer(v, tuple(to), costs[v]) for v, to in targets.items())


def _check_order(problem: Problem) -> None:
    """Raise ConfigError if forward nodes wait for each other in a ring."""
    cycle = find_cycle(
        (t.source, v)
        for t in problem.transfers
        for v in t.targets
        if not problem.backward[t.source] and not problem.backward[v]
    )
    if cycle:
        ring = [problem.names[v] for v in cycle]
        shown = " -> ".join([*ring[:6], *(["..."] if len(ring) > 6 else []), ring[0]])
        raise ConfigError(f"the forward nodes form a cycle: {shown}")


def _keys(value: Any, needed: set[str], where: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {_shown(value)}, not an object with {sorted(needed)}")
    for key in sorted(needed - value.keys()):
        raise ConfigError(f"{where} has no {key!r}; {nearest(key, value)}")


def _list(top: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(top[key], list):
        raise ConfigError(f"{key} is {_shown(top[key])}, not a list")
    items: list[Any] = top[key]
    return items


def _number(value: Mapping[str, Any], key: str) -> float:
    """Return a finite number >= 0."""
    x = value[key]
    good = isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < math.inf
    if not good:
        raise ConfigError(f"{_of(value)}{key} is {_shown(x)}, not a number >= 0")
    return float(x)


def _count(value: Mapping[str, Any], key: str, least: int | None = 0) -> int:
    x = value[key]
    if isinstance(x, float) and x.is_integer():
        x = int(x)
    if isinstance(x, bool) or not isinstance(x, int) or (least is not None and x < least):
        wanted = "a whole number" if least is None else f"a whole number >= {least}"
        raise ConfigError(f"{_of(value)}{key} is {_shown(x)}, not {wanted}")
    return x


def _flag(value: Mapping[str, Any], key: str) -> bool:
    if value[key] not in (0, 1):
        raise ConfigError(f"{_of(value)}{key} is {_shown(value[key])}, not true, false, 0 or 1")
    return bool(value[key])


def _of(value: Mapping[str, Any]) -> str:
    """Name the node or edge of a key, for the start of a message."""
    if "id" in value:
        return f"node {value['id']}: "
    return f"edge {value['sourceId']} -> {value['destId']}: " if "sourceId" in value else ""


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
