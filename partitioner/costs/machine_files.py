"""Machine files: YAML that describes a `Machine`.

    devices:
      gpu(0): {flops: 15 TFLOP/s, bandwidth: 900 GB/s, call: 10 us, memory: 16 GiB, node: a}
      gpu(1): {flops: 15 TFLOP/s, bandwidth: 900 GB/s, call: 10 us, memory: 16 GiB, node: b}
    links:
      node: {latency: 5 us, bandwidth: 12 GB/s}
      network: {latency: 30 us, bandwidth: 10 Gbit/s, shared: true}

A network's messages take different trips by their size; `symgraph machine` writes how long those
of several sizes take, from rank to rank: `messages: {8: 30 us, 16384: 80 us, 4194304: 3.4 ms}`.

`Machine.to_yaml` writes them. Reading is in this file, so that only programs that read one import
pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Annotated

from pydantic import BeforeValidator, Field, FiniteFloat

from partitioner.costs.machine import LEVELS, Device, Level, Machine, mistakes
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError
from symgraph.core.units import parse_bytes, parse_si
from symgraph.core.yaml_check import Section, checked
from symgraph.core.yaml_lines import KeyPath, read


def _in(unit: str) -> Callable[[object], object]:
    return lambda value: parse_si(value, unit) if isinstance(value, str) else value


def _bytes_a_second(value: object) -> object:
    if isinstance(value, str) and value.rstrip().endswith("bit/s"):
        return parse_si(value, "bit/s") / 8
    return _in("B/s")(value)


def _bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _text(value: object) -> object:
    return str(value) if type(value) is int else value


Seconds = Annotated[FiniteFloat, BeforeValidator(_in("s")), Field(ge=0)]
Operations = Annotated[FiniteFloat, BeforeValidator(_in("FLOP/s")), Field(gt=0)]
Rate = Annotated[FiniteFloat, BeforeValidator(_bytes_a_second), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]
Name = Annotated[str, BeforeValidator(_text)]


class DeviceKeys(Section):
    """One device."""

    flops: Operations
    """Operations per second, such as 250 GFLOP/s."""
    call: Seconds = 0.0
    """Time of a kernel with almost no work, such as 1 us."""
    bandwidth: Rate = inf
    """Bytes per second to and from its memory, such as 40 GB/s; left out: no limit."""
    memory: Bytes | None = None
    """Bytes that it holds, such as 8 GiB; null: no limit."""
    socket: Name = "0"
    """The socket of its node that it is in."""
    node: Name = "0"
    """The node of its rack that it is in."""
    rack: Name = "0"
    """The rack that it is in."""


class LinkKeys(Section):
    """The links of one level."""

    latency: Seconds = 0.0
    """Time until the first byte arrives, such as 2 us."""
    bandwidth: Rate = inf
    """Bytes per second, such as 10 GB/s or 100 Gbit/s; left out: no limit."""
    shared: bool = False
    """true: one link for all devices of a place; false: one for each pair and direction."""
    messages: Mapping[Bytes, Seconds] = {}
    """Bytes of measured messages and the seconds of each from rank to rank, such as
    {8: 30 us, 64 KiB: 150 us}; between them seconds are linear. Empty: latency + bytes / bandwidth.
    """


class LinksKeys(Section):
    """The links by level."""

    socket: LinkKeys | None = None
    """Between devices of one socket."""
    node: LinkKeys | None = None
    """Between sockets of one node."""
    rack: LinkKeys | None = None
    """Between nodes of one rack."""
    network: LinkKeys | None = None
    """Between racks."""


class MachineKeys(Section):
    """A machine file."""

    devices: Annotated[Mapping[str, DeviceKeys], Field(min_length=1)]
    """Devices by name, such as cpu(0)."""
    links: LinksKeys = LinksKeys()
    """Links by level."""


def load_machine(path: str) -> Machine:
    """Read and check a machine file. Raises ConfigError, one line, for the first mistake."""
    keys = checked(read(path, "machine"), MachineKeys, _more_mistakes)
    return Machine(tuple(_devices(keys)), _links(keys))


def _devices(keys: MachineKeys) -> Iterator[Device]:
    for name, device in keys.devices.items():
        yield Device(Context.parse(name), **device.model_dump())


def _links(keys: MachineKeys) -> dict[str, Level]:
    named = ((name, getattr(keys.links, name)) for name in LEVELS)
    return {
        name: Level(x.latency, x.bandwidth, x.shared, tuple(sorted(x.messages.items())))
        for name, x in named
        if x is not None
    }


def _more_mistakes(keys: MachineKeys | None) -> Iterator[tuple[KeyPath, str]]:
    if keys is None:
        return
    wrong = False
    for name in keys.devices:
        try:
            Context.parse(name)
        except ConfigError as error:
            wrong = True
            yield ("devices", name), str(error)
    if not wrong:
        yield from mistakes(tuple(_devices(keys)), _links(keys))
