"""The rank grid: data parallel rows of model parallel columns.

    devices 0 1 2 3, data_axis=2          model axis ->
                                   data   device 0   device 1    each row runs its share of every
                                   axis   device 2   device 3    micro-batch's samples

Groups or a strategy place the network on the first row; each group is then on its whole column, as
replicas (symgraph.passes.replicate), whose gradients are summed while backward
runs. Where the links between some devices are slow, columns of devices that follow each other keep
the sums on fast links: rows are then (0, 2) and (1, 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from partitioner.placement.group2ctx import Groups, devices_of
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.passes.shards import GROUP


def rows_of(devices: int, model_axis: int | None) -> int:
    """Count the rows of a grid of devices; raise ConfigError if the devices do not fill them.

    model_axis: the devices of a row; None: all.
    """
    if model_axis is None:
        return 1
    if model_axis < 1 or devices % model_axis:
        raise ConfigError(
            f"model_axis={model_axis} does not divide the {devices} devices into equal rows; give "
            "a multiple of it as devices"
        )
    return devices // model_axis


def grid_rows(
    devices: Sequence[Context],
    data_axis: int,
    model_axis: int | None = None,
    *,
    near: bool = False,
) -> list[tuple[Context, ...]]:
    """Return the devices in rows, one row for each share of the samples.

    Args:
        devices: all devices.
        data_axis: the number of rows.
        model_axis: the devices of a row, if the user gives that too.
        near: whether the devices of a column follow each other, not those of a row.

    Raises:
        ConfigError: there is no such grid.
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
    if near:
        return [tuple(devices[row::data_axis]) for row in range(data_axis)]
    return [tuple(devices[i : i + columns]) for i in range(0, len(devices), columns)]


class Grid(NamedTuple):
    """A rank grid."""

    rows: int
    """The number of rows; 1: no grid."""
    near: bool = False
    """Whether the devices of a column follow each other, not those of a row."""


NO_GRID = Grid(1)


def grids_to_try(devices: int, samples: int, *, uneven: bool) -> list[Grid]:
    """Return the grids of more than one row whose rows all have a sample of each micro-batch.

    Args:
        devices: the number of devices.
        samples: of the smallest micro-batch.
        uneven: whether it matters which devices are near each other.
    """
    most = min(devices, samples)
    counts = [rows for rows in range(2, most + 1) if devices % rows == 0]
    orders = (False, True) if uneven else (False,)
    return [Grid(n, near) for n in counts for near in orders if not near or n < devices]


def in_first_row(groups: Groups, rows: Sequence[tuple[Context, ...]]) -> dict[str, Context]:
    """Return the device of each group in the first row.

    Groups may also be on whole columns, as in the options of plans that were made before.

    Args:
        groups: the user's map.
        rows: the grid.

    Raises:
        ConfigError: a group on other devices.
    """
    first_row: dict[str, Context] = {}
    on_column = {column: column[0] for column in zip(*rows, strict=True)}
    for group, given in groups.items():
        devices = devices_of(given)
        if devices in on_column:
            first_row[group] = on_column[devices]
        elif len(devices) > 1:
            raise ConfigError(
                f"group {group!r} is on several devices, but data_axis={len(rows)} puts it on all "
                "devices of a column; map it to one device of the first row"
            )
        elif devices[0] in rows[0]:
            first_row[group] = devices[0]
        else:
            raise ConfigError(
                f"group {group!r} is on {devices[0]}, which is not in the first row of the grid "
                f"({', '.join(map(str, rows[0]))}); the other rows follow that one"
            )
    return first_row


def groups_in(graph: Graph) -> set[str]:
    """Return the ctx_groups of a graph's operators."""
    groups = {lookup(n.tags, GROUP) for n in graph if not n.is_variable}
    return {group for group in groups if group}


class Columns(NamedTuple):
    """The groups to replicate."""

    of: dict[str, str]
    """Operator -> its group, which is on one device of each row."""
    devices: dict[str, tuple[Context, ...]]
    """The devices of each group, from the first row to the last."""


def columns(
    graph: Graph, device_of: Mapping[str, Context], rows: Sequence[tuple[Context, ...]]
) -> Columns:
    """Return the groups to replicate.

    Groups keep their names if they are on one device.

    Args:
        graph: the network.
        device_of: the device of each operator in the first row; by default its first device.
        rows: the grid.
    """
    first = rows[0]
    calls = [n for n in graph if not n.is_variable]
    device = {n.name: device_of.get(n.name, first[0]) for n in calls}
    group_of = {n.name: lookup(n.tags, GROUP) or "" for n in calls}
    devices: dict[str, set[Context]] = {}
    for name, group in group_of.items():
        devices.setdefault(group, set()).add(device[name])
    replicated = Columns({}, {})
    for name, group in group_of.items():
        if not group or len(devices[group]) > 1:
            group = f"{group} {device[name]}".strip()
        replicated.of[name] = group
        replicated.devices[group] = tuple(row[first.index(device[name])] for row in rows)
    return replicated
