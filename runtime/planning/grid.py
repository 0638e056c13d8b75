"""The rank grid: data parallel rows of model parallel columns.

    devices 0 1 2 3, data_axis=2          model axis ->
                                   data   device 0   device 1    each row runs its share of every
                                   axis   device 2   device 3    micro-batch's samples

What is placed, by groups or by a strategy, is placed on the first row; each group is then on its
whole column, as replicas (symgraph.passes.replicate), whose gradients are summed while backward
runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from partitioner.placement.group2ctx import Groups, devices_of
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.passes.shards import GROUP


def grid_rows(
    devices: Sequence[Context], data_axis: int, model_axis: int | None = None
) -> list[tuple[Context, ...]]:
    """The devices in rows, one for each share of the samples.

    model_axis: devices of a row, if the user says so too. ConfigError if there is no such grid.
    """
    if data_axis < 1 or len(devices) % data_axis:
        raise ConfigError(
            f"data_axis={data_axis} does not divide the {len(devices)} devices into equal rows; "
            f"give {data_axis} times as many devices as one copy of the network needs"
        )
    columns = len(devices) // data_axis
    if model_axis not in (None, columns):
        raise ConfigError(
            f"data_axis={data_axis} and model_axis={model_axis} make {data_axis * model_axis} "
            f"ranks, but there are {len(devices)} devices"
        )
    return [tuple(devices[i : i + columns]) for i in range(0, len(devices), columns)]


def in_first_row(
    groups: Groups, rows: Sequence[tuple[Context, ...]], named: Collection[str]
) -> dict[str, Context]:
    """The device of each group in the first row; of one on a column, as other plans have it, too.

    named: the groups in the network; another one on a column is left out. ConfigError for a group
    on other devices.
    """
    found: dict[str, Context] = {}
    whole = {column: column[0] for column in zip(*rows, strict=True)}
    for group, given in groups.items():
        devices = devices_of(given)
        if devices in whole:
            found |= {group: whole[devices]} if group in named else {}
        elif len(devices) > 1:
            raise ConfigError(
                f"group {group!r} is on several devices, but data_axis={len(rows)} puts it on all "
                "devices of a column; map it to one device of the first row"
            )
        elif devices[0] in rows[0]:
            found[group] = devices[0]
        else:
            raise ConfigError(
                f"group {group!r} is on {devices[0]}, which is not in the first row of the grid "
                f"({', '.join(map(str, rows[0]))}); the other rows follow that one"
            )
    return found


def groups_in(graph: Graph) -> set[str]:
    """The ctx_groups of a graph's operators."""
    found = {lookup(n.tags, GROUP) for n in graph if not n.is_variable}
    return {group for group in found if group}


class Columns(NamedTuple):
    """of: operator -> its group, none of which is on two devices of a row. devices: of groups."""

    of: dict[str, str]
    devices: dict[str, tuple[Context, ...]]


def columns(
    graph: Graph, device_of: Mapping[str, Context], rows: Sequence[tuple[Context, ...]]
) -> Columns:
    """The groups to replicate, from the first row's device of each operator.

    Groups keep their names if they are on one device. What has no device is on the first one.
    """
    first = rows[0]
    calls = [n for n in graph if not n.is_variable]
    home = {n.name: device_of.get(n.name, first[0]) for n in calls}
    own = {n.name: lookup(n.tags, GROUP) or "" for n in calls}
    homes: dict[str, set[Context]] = {}
    for name, group in own.items():
        homes.setdefault(group, set()).add(home[name])
    found = Columns({}, {})
    for name, group in own.items():
        if not group or len(homes[group]) > 1:
            group = f"{group} {home[name]}".strip()
        found.of[name] = group
        found.devices[group] = tuple(row[first.index(home[name])] for row in rows)
    return found
