"""Prices as JSON: a table of costs for each kind of device, and the links between kinds."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from partitioner.costs.cost import SCHEMA, TABLE, CostTable
from partitioner.costs.machine import Level, Machine
from runtime.planning.costs.prices import CostModel, link_of_host
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError
from symgraph.core.reading import read_text, reading
from symgraph.core.writing import writing


def save_prices(prices: CostModel, path: str | Path) -> None:
    """Write measured prices to a file that `load_prices` reads.

    Raises:
        ConfigError: nothing was measured, or the file cannot be written.
    """
    if not prices.measured:
        raise ConfigError(f"no costs were measured to write to {path}: `machine` describes them")
    text = json.dumps(prices_data(prices), indent=1, sort_keys=True) + "\n"
    with writing(path, "cannot write the costs to"):
        Path(path).write_text(text, encoding="utf-8")


def load_prices(path: str | Path) -> CostModel:
    """Read what `save_prices` wrote, or a table of costs alone.

    A table alone is for all kinds of devices, and messages take no time.

    Raises:
        ConfigError: the file is neither.
    """
    with reading(path, TABLE):
        data = json.loads(read_text(path, TABLE))
        if not isinstance(data, dict) or "kinds" not in data:
            table = CostTable.from_data(data, str(path))
            return CostModel.alike(table, link_of_host(0.0, inf))
        return prices_from(data, str(path))


def prices_data(prices: CostModel) -> dict[str, Any]:
    """Return measured prices as JSON data."""
    return {
        "schema": SCHEMA,
        "kinds": {
            kind: table.data()
            for kind, table in prices.kinds.items()
            if isinstance(table, CostTable)
        },
        "links": {
            " ".join(pair): {"latency": float(link.latency), "bandwidth": float(link.bandwidth)}
            for pair, link in prices.links.items()
        },
        "hosts": _hosts_data(prices.machine),
    }


def _hosts_data(machine: Machine | None) -> dict[str, Any] | None:
    """Return the places and links of devices on several hosts."""
    if machine is None:
        return None
    return {
        "devices": {str(device.context): device.node for device in machine.devices},
        "links": {name: level._asdict() for name, level in machine.links.items()},
    }


def prices_from(data: dict[str, Any], source: str = "costs") -> CostModel:
    """Return the prices of `prices_data`; for other data a ConfigError names the source."""
    with reading(source, TABLE):
        kinds = {
            str(kind): CostTable.from_data(table, source) for kind, table in data["kinds"].items()
        }
        links = {
            (sender, receiver): link_of_host(
                float(link["latency"]), float(link["bandwidth"]), receiver
            )
            for sender, receiver, link in (
                (*pair.split(" "), link) for pair, link in data["links"].items()
            )
        }
        model = CostModel(kinds, links)
        return model.on_hosts(*_hosts_from(data["hosts"])) if data.get("hosts") else model


def _hosts_from(
    data: dict[str, Any],
) -> tuple[list[Context], list[str], dict[str, Level]]:
    """Return devices, their hosts and the links of `_hosts_data`."""
    levels = {}
    for name, level in data["links"].items():
        messages = tuple((int(size), float(seconds)) for size, seconds in level["messages"])
        levels[str(name)] = Level(**{**level, "messages": messages})
    return [*map(Context.parse, data["devices"])], [*data["devices"].values()], levels
