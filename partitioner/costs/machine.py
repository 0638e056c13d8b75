"""The machine: its devices, where they stand, and the links between them.

Places are nested: sockets in nodes, nodes in racks, racks in the network. Two devices talk over the
link of the narrowest place that holds both; where the file has none, over that of the next wider
one. A shared link is one wire in each such place, which its channels use in turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, NamedTuple, Self

from partitioner.costs.cost import Speed
from symgraph.core.columns import aligned_columns
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, PlacementError, nearest
from symgraph.core.units import bytes_text, exact_text, seconds_text, si_text
from symgraph.core.yaml_lines import KeyPath, dotted, written

LEVELS = ("socket", "node", "rack", "network")  # from the narrowest


@dataclass(frozen=True)
class Device:
    """The speed and memory of one device, and where it stands."""

    context: Context
    flops: float  #: operations per second
    call: float = 0.0  #: seconds of a small kernel
    bandwidth: float = inf  #: bytes per second to and from its memory
    memory: int | None = None  #: bytes that it holds; None: any number
    socket: str = "0"
    node: str = "0"
    rack: str = "0"

    @property
    def speed(self) -> Speed:
        """The roofline, which estimates seconds of nodes and bodies on this device."""
        return Speed(self.flops, self.call, self.bandwidth)

    def place(self, level: str) -> tuple[str, ...]:
        """Name the socket, node or rack it stands in, with the places around that first."""
        return (self.rack, self.node, self.socket)[: len(LEVELS) - 1 - LEVELS.index(level)]


class Level(NamedTuple):
    """The links inside places of one level."""

    latency: float = 0.0  #: seconds
    bandwidth: float = inf  #: bytes per second
    #: Whether a place has one link for all its pairs of devices, not one per pair and direction.
    shared: bool = False
    #: Bytes of measured messages, rising, and the seconds of each from rank to rank; between them
    #: seconds are linear. Without any, a message takes latency + bytes / bandwidth.
    messages: tuple[tuple[int, float], ...] = ()


class LinkSpec(NamedTuple):
    """The link of two devices."""

    latency: float = 0.0  #: seconds
    bandwidth: float = inf  #: bytes per second
    #: Pairs whose links have the same name share one link; "": not shared, in each direction.
    name: str = ""
    #: See `Level`.
    messages: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Machine:
    """Devices by number, and links by level. Raises PlacementError where they do not fit."""

    devices: tuple[Device, ...]
    links: Mapping[str, Level]

    def __post_init__(self) -> None:
        for path, message in mistakes(self.devices, self.links):
            raise PlacementError(f"machine: {dotted(path)}: {message}")

    @classmethod
    def uniform(
        cls, contexts: Iterable[Context], speed: Speed, latency: float, bandwidth: float
    ) -> Self:
        """Make a machine of equal devices without memory limits; each pair has a separate link."""
        devices = tuple(Device(c, speed.flops, speed.call, speed.bandwidth) for c in contexts)
        return cls(devices, {"network": Level(latency, bandwidth)})

    def unlimited(self) -> Machine:
        """Return the machine without its devices' memory limits."""
        free = tuple([replace(device, memory=None) for device in self.devices])
        return replace(self, devices=free)

    def with_limit(self, nbytes: int) -> Machine:
        """Return the machine with its devices' lower memory limits raised to this."""
        limits = [None if d.memory is None else max(d.memory, nbytes) for d in self.devices]
        pairs = zip(self.devices, limits, strict=True)
        return replace(self, devices=tuple([replace(d, memory=limit) for d, limit in pairs]))

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        return tuple(d.context for d in self.devices)

    def index(self, context: Context) -> int:
        """Return the number of a device. Raises ConfigError if the machine does not have it."""
        if context not in self._numbers:
            known = nearest(str(context), map(str, self.contexts))
            raise ConfigError(f"the machine has no device {context}: {known}")
        return self._numbers[context]

    @cached_property
    def _numbers(self) -> dict[Context, int]:
        return {context: number for number, context in enumerate(self.contexts)}

    def only(self, contexts: Iterable[Context]) -> Machine:
        """Select devices, in this order. Raises ConfigError for unknown ones."""
        return Machine(tuple(self.devices[self.index(c)] for c in contexts), self.links)

    def link(self, a: int, b: int) -> LinkSpec:
        """Return the link from one device, by number, to another; one to itself is free."""
        if a == b:
            return LinkSpec()
        ends = self._stands[a], self._stands[b]
        if ends not in self._wires:
            self._wires[ends] = self._wire(self.devices[a], self.devices[b])
        return self._wires[ends]

    def _wire(self, first: Device, second: Device) -> LinkSpec:
        level = _level(_narrowest((first, second)), self.links)
        assert level is not None
        latency, bandwidth, shared, messages = self.links[level]
        name = f"{level} {'/'.join(first.place(level))}".strip() if shared else ""
        return self._specs.setdefault(name or level, LinkSpec(latency, bandwidth, name, messages))

    @cached_property
    def _stands(self) -> list[int]:
        """The number of each device's socket, by which links are known: many devices share one."""
        numbers: dict[tuple[str, ...], int] = {}
        return [numbers.setdefault(d.place("socket"), len(numbers)) for d in self.devices]

    @cached_property
    def _wires(self) -> dict[tuple[int, int], LinkSpec]:
        """The links that were asked for, by the sockets of their ends."""
        return {}

    @cached_property
    def _specs(self) -> dict[str, LinkSpec]:
        """The different links, by their names or levels."""
        return {}

    def to_yaml(self) -> str:
        """Write the machine as a file that `load_machine` reads as an equal one."""
        devices = {str(d.context): _device_keys(d) for d in self.devices}
        links = {n: _level_keys(self.links[n]) for n in LEVELS if n in self.links}
        data = {"devices": devices} | ({"links": links} if links else {})
        return written(data, width=1000)

    def __str__(self) -> str:
        """Show a table of the devices and one of the links."""
        head = ("device", "rack/node/socket", "operations", "memory bandwidth", "a call", "memory")
        rows: list[tuple[str, ...]] = [head]
        rows += [
            (
                str(d.context),
                "/".join(d.place("socket")),
                si_text(d.flops, "FLOP/s"),
                _rate(d.bandwidth),
                seconds_text(d.call),
                "any" if d.memory is None else bytes_text(d.memory),
            )
            for d in self.devices
        ]
        if not self.links:
            return "\n".join(aligned_columns(rows))
        wires: list[tuple[str, ...]] = [("link inside a", "latency", "bandwidth", "shared")]
        wires += [
            (
                name,
                seconds_text(wire.latency),
                _rate(wire.bandwidth),
                "yes" if wire.shared else "no",
            )
            for name in LEVELS
            if (wire := self.links.get(name))
        ]
        return "\n".join([*aligned_columns(rows), "", *aligned_columns(wires)])


def _rate(bandwidth: float) -> str:
    return si_text(bandwidth, "B/s") if isfinite(bandwidth) else "any"


def _narrowest(devices: Iterable[Device]) -> str:
    """Find the level of the narrowest place that holds all these devices."""
    return next(level for level in LEVELS if len({d.place(level) for d in devices}) == 1)


def _level(narrowest: str, links: Mapping[str, Level]) -> str | None:
    """Find the level whose link is used inside a place of that level."""
    return next((n for n in LEVELS[LEVELS.index(narrowest) :] if n in links), None)


def mistakes(
    devices: tuple[Device, ...], links: Mapping[str, Level]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong with devices and links that are right one by one."""
    if not devices:
        yield ("devices",), "needs at least 1 entry"
    for context, count in Counter(d.context for d in devices).items():
        if count > 1:
            yield ("devices", str(context)), f"{context} is listed {count} times"
    for name in sorted(links.keys() - set(LEVELS)):
        yield ("links", name), f"unknown level: {nearest(name, LEVELS)}"
    if len(devices) > 1:
        # The widest place that two devices may have in common is what holds all of them.
        level = _narrowest(devices)
        if _level(level, links) is None:
            yield ("links",), f"{_apart(devices, level)}, but no link joins them: add {level}"


def _apart(devices: tuple[Device, ...], level: str) -> str:
    """Describe two devices that have no narrower place in common than one of that level."""
    first, *others = devices
    if level == "socket":
        return f"{first.context} and {others[0].context} are in one socket"
    inner = LEVELS[LEVELS.index(level) - 1]
    other = next(d for d in others if d.place(inner) != first.place(inner))
    return f"{first.context} and {other.context} are in different {inner}s"


def _device_keys(device: Device) -> dict[str, Any]:
    keys: dict[str, Any] = {"flops": exact_text(device.flops, "FLOP/s")}
    if isfinite(device.bandwidth):
        keys["bandwidth"] = exact_text(device.bandwidth, "B/s")
    if device.call:
        keys["call"] = exact_text(device.call, "s")
    if device.memory is not None:
        mebi, rest = divmod(device.memory, 1 << 20)
        keys["memory"] = device.memory if rest else f"{mebi} MiB"
    places = {"socket": device.socket, "node": device.node, "rack": device.rack}
    return keys | {level: place for level, place in places.items() if place != "0"}


def _level_keys(level: Level) -> dict[str, Any]:
    keys: dict[str, Any] = {"latency": exact_text(level.latency, "s") if level.latency else 0}
    if isfinite(level.bandwidth):
        keys["bandwidth"] = exact_text(level.bandwidth, "B/s")
    keys["shared"] = level.shared
    if level.messages:
        keys["messages"] = {n: exact_text(seconds, "s") for n, seconds in level.messages}
    return keys
