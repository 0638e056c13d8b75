"""What a restart changes: which devices take part, and the config that they run.

Numbers do not depend on where things are placed. What they do depend on is held as the first plan
had it: micro-batches, time segments, and the pieces of groups in shards or replicas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from symgraph.app.config import Config
from symgraph.core.errors import ConfigError


class Blame(NamedTuple):
    """What ended an attempt, as the flight records tell."""

    #: The first failure in words.
    reason: str
    #: Its error alone, without the place, which another placement changes.
    error: str
    #: The rank that failed; -1: none in particular.
    rank: int = -1
    #: Its device; "": none.
    device: str = ""
    #: Whether the rank itself told of an error, so that it may come again.
    told: bool = False
    #: When the failure was first heard of (seconds of time.time); None: nobody said.
    at: float | None = None


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read the flight records in a folder; files that are damaged are left out."""
    records = []
    for path in sorted(folder.glob("rank-*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["failure"] is not None:  # else it was asked for
                blame([record])
                records.append(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return records


def blame(records: Sequence[Mapping[str, Any]]) -> Blame | None:
    """Find the first failure in the records of an attempt; None: they tell of none."""
    own = [r for r in records if r["failure"]["rank"] == r.get("rank")]
    for record in [*own, *records]:
        failure, devices = record["failure"], record.get("devices", [])
        rank = failure["rank"]
        where = f" at {failure['where']}" if failure.get("where") else ""
        device = devices[rank] if 0 <= rank < len(devices) else ""
        name = f"rank {rank} ({device}) failed{where}: " if device else ""
        told = record in own or rank < 0
        at = record.get("clock", {}).get("unix", 0) / 1e9 or None
        return Blame(f"{name}{failure['message']}", failure["message"], rank, device, told, at)
    return None


class DeviceChoice:
    """Who takes part: a device that failed is left out once, and longer if it fails again."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.all = tuple(devices)
        self._out: dict[str, int] = {}  # attempts for which a device is still left out
        self._length: dict[str, int] = {}  # attempts for which it was left out last
        self._back: set[str] = set()  # devices that came back for the current attempt

    def next(self, blamed: str) -> tuple[str, ...]:
        """Return the devices of the next attempt, after one in which `blamed` failed ("": none)."""
        returned = {d for d, left in self._out.items() if left == 1}
        self._out = {d: left - 1 for d, left in self._out.items() if left > 1}
        for device in self._back - {blamed}:
            self._length.pop(device, None)  # it held out for an attempt
        if blamed in self.all:
            again = blamed in self._back
            self._length[blamed] = 2 * self._length.get(blamed, 1) if again else 1
            self._out[blamed] = self._length[blamed]
        self._back = returned - {blamed}
        remaining = tuple(d for d in self.all if d not in self._out)
        if not remaining:  # better those that failed than none
            self._out.clear()
            return self.all
        return remaining


def taking_part(
    config: Config, devices: Sequence[str], facts: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return those of these devices that a run uses: of a grid, as many as make whole rows.

    Raises ConfigError if that is none; see `plan_overrides`.
    """
    rows = _rows(config, facts)
    used = tuple(devices[: len(devices) // rows * rows])
    if not used:
        raise ConfigError(
            f"partition.data_axis: {rows} rows need {rows} devices, but only "
            f"{', '.join(devices)} remains"
        )
    return used


def plan_overrides(
    config: Config, devices: Sequence[str], facts: Mapping[str, Any] | None
) -> list[str]:
    """Return the overrides by which a config runs on some of its devices, to the same bits.

    Args:
        config: The config of the run.
        devices: Those that take part, in the config's order.
        facts: What the first attempt planned (`runtime.training.job.plan_facts`); None: it did not
            come so far.

    Raises:
        ConfigError: The network cannot run on these devices.
    """
    held = _held(config, facts)
    if tuple(devices) == config.devices:
        return held
    used = taking_part(config, devices, facts)
    groups = _groups(config, facts, used[: len(used) // _rows(config, facts)])
    more: dict[str, Any] = {"devices": list(used), "group2ctx": groups, "pipeline.schedule": "auto"}
    if config.pipeline.order is not None:
        more["pipeline.order"] = None
    if config.partition.model_axis is not None:
        more["partition.model_axis"] = None
    if not isinstance(config.pipeline.recompute, str):  # a list of stages of another placement
        more["pipeline.recompute"] = "auto" if config.partition.memory else "all"
    if config.group2ctx and config.partition.strategy is None:
        more |= {"partition.strategy": "auto", "partition.split": "none"}
    if "partition.strategy" in more or config.partition.strategy is not None:
        more["partition.keep_groups"] = True
    return [*held, *(f"{key}={json.dumps(value)}" for key, value in more.items())]


def _held(config: Config, facts: Mapping[str, Any] | None) -> list[str]:
    """Return the overrides that hold what a plan chose."""
    if facts is None:
        return []
    held: dict[str, Any] = {}
    if config.pipeline.time_segment == "auto":
        held["pipeline.time_segment"] = facts["time_segment"]
    partition = config.partition
    rows = _rows(config, facts)
    if rows > 1:
        held["partition.data_axis"] = rows
    elif partition.strategy == "auto" and partition.split == "auto":
        held["partition.split"] = "none"
        held["group2ctx"] = {**config.model_dump(mode="json")["group2ctx"], **facts["split"]}
        held["partition.shards"] = facts["shards"]
    return [f"{key}={json.dumps(value)}" for key, value in held.items()]


def _rows(config: Config, facts: Mapping[str, Any] | None) -> int:
    """Return the rows of the grid of a run: the config's, or those that its plan chose."""
    chosen: int = (facts or {}).get("data_axis", 1)
    return config.partition.data_axis or chosen


def _groups(
    config: Config, facts: Mapping[str, Any] | None, devices: Sequence[str]
) -> dict[str, str | list[str]]:
    """Return group2ctx for fewer devices.

    Groups on a device that is missing are planned anew. A group in pieces keeps their number: the
    pieces of a missing device go to those that have the fewest.
    """
    groups: dict[str, Any] = {
        **config.model_dump(mode="json")["group2ctx"],
        **(facts["split"] if facts and _rows(config, facts) == 1 else {}),
    }
    found: dict[str, str | list[str]] = {}
    for group, placed in groups.items():
        if isinstance(placed, str):
            if placed in devices:
                found[group] = placed
            continue
        pieces = [d for d in placed if d in devices]
        found[group] = [d if d in devices else _take(pieces, devices) for d in placed]
    return found


def _take(pieces: list[str], devices: Sequence[str]) -> str:
    """Give a piece to the device that has the fewest."""
    device = min(devices, key=lambda d: (pieces.count(d), devices.index(d)))
    pieces.append(device)
    return device
