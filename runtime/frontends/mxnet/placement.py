"""Placement: on which devices a module's networks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partitioner.placement.group2ctx import Groups, devices_of
from runtime.planning.options import Options, require_known
from runtime.profiling.calibration.pricing import quick_prices
from symgraph.core.context import Context, current_context, require_contexts
from symgraph.core.errors import ConfigError


def placed_options(
    options: Options,
    context: Context | Sequence[Context] | None,
    group2ctxs: Groups | Sequence[Groups] | None,
    strategy: str,
) -> Options:
    """The options with the devices to run on; several maps are the rows of a grid, as in MXNet."""
    require_known(options.schedule, strategy)
    devices = _contexts(current_context() if context is None else context)
    maps = [group2ctxs] if isinstance(group2ctxs, Mapping) else list(group2ctxs or [])
    groups: Groups | None = maps[0] if maps else None
    if len(maps) > 1:
        rows = _rows(maps)
        return replace(
            options,
            groups=groups,
            default=rows[0][0],
            data_axis=len(rows),
            devices=tuple([device for row in rows for device in row]),
        )
    devices += [d for given in (groups or {}).values() for d in devices_of(given)]
    devices = list(dict.fromkeys(devices))
    chosen = strategy if groups is None and len(devices) > 1 else None
    return replace(
        options,
        groups=groups,
        default=devices[0],
        devices=tuple(devices),
        strategy=chosen,
        data_axis=1,  # on a grid, bits would depend on what was measured
        pricing=lambda graph, contexts: quick_prices(contexts),  # binding must not take long
    )


def _contexts(context: Context | Sequence[Context]) -> list[Context]:
    """A list of one device or more; TypeError for anything else, ConfigError for no device."""
    contexts = require_contexts("context", context)
    if not contexts:
        raise ConfigError("context is an empty list: give one device or more")
    return list(contexts)


def _rows(maps: Sequence[Groups]) -> list[tuple[Context, ...]]:
    """The devices of each map, in one order; ConfigError for maps that are not copies."""
    columns = [[devices_of(row.get(group, ())) for row in maps] for group in maps[0]]
    places = list(dict.fromkeys(tuple(d for part in c for d in part) for c in columns))
    devices = [device for place in places for device in place]
    alike = all(row.keys() == maps[0].keys() for row in maps)
    if not alike or any(len(p) != len(maps) for p in places) or len({*devices}) < len(devices):
        raise ConfigError(
            f"group2ctxs has {len(maps)} maps, each for a copy of the network; they must have the "
            "same groups, each on one device, and no device in common"
        )
    return [tuple(row) for row in zip(*places, strict=True)]
