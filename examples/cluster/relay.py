"""The relay: carries packets between hosts, with the delay, bandwidth and losses of a slow network.

Each host has an interface of its own, as with `tc netem` on it: its packets leave one after the
other at the bandwidth, wait for the delay and arrive. What does not fit into the queue in front of
a slow interface is lost, as in a switch. (The kernels of many test machines have no netem.)
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from examples.cluster.hosts import Hosts

QUEUE = 0.25  # seconds of packets in front of an interface; what comes beyond that is lost
AT_ONCE = 64  # packets read from one host before the others have their turn
LARGEST = 1 << 16  # bytes of a packet
ENDS = 1 << 20  # a number that is no interface's


class Link(NamedTuple):
    """The way from one host to another."""

    delay: float  #: seconds
    bandwidth: float  #: bytes per second that a host sends
    loss: float  #: share of packets


class Cut(NamedTuple):
    """The end of a host's link."""

    host: int
    seconds: float  #: after the start


class _Port:
    """The packets of one host on their way: (time of arrival, destination, packet)."""

    def __init__(self) -> None:
        self.packets: deque[tuple[float, int, bytes]] = deque()
        self.busy = 0.0  # until when the interface sends


def relay(hosts: Hosts, command: list[str], link: Link, cuts: list[Cut], rng: random.Random) -> int:
    """Run a command on the first host, and carry packets until it ends; return its status.

    Args:
        hosts: The hosts.
        command: The command line.
        link: What all packets meet.
        cuts: The links to cut, and when.
        rng: Draws the losses.
    """
    ports = [_Port() for _ in hosts.interfaces]
    process = hosts.run(command)
    begin, ended = time.monotonic(), os.pidfd_open(process.pid)
    number = {interface: at for at, interface in enumerate(hosts.interfaces)}
    try:
        while True:
            # select, because epoll and poll round up to milliseconds.
            ready, _, _ = select.select([ended, *hosts.interfaces], (), (), _pause(ports))
            if ended in ready:
                return process.wait()
            now = time.monotonic()
            off = {cut.host - 1 for cut in cuts if now >= begin + cut.seconds}
            for interface in ready:
                _read(interface, ports[number[interface]], link, now, rng)
            _deliver(ports, hosts.interfaces, off, time.monotonic())
    finally:
        if process.poll() is None:
            process.terminate()
        os.close(ended)


def _pause(ports: list[_Port]) -> float | None:
    """Return the seconds until the next packet arrives; None without one."""
    first = min((port.packets[0][0] for port in ports if port.packets), default=None)
    return None if first is None else max(0.0, first - time.monotonic())


def _read(interface: int, port: _Port, link: Link, now: float, rng: random.Random) -> None:
    """Take the packets that a host has sent."""
    for _ in range(AT_ONCE):
        try:
            packet = os.read(interface, LARGEST)
        except BlockingIOError:
            return
        start = max(now, port.busy)
        if packet[0] >> 4 != 4 or start > now + QUEUE or (link.loss and rng.random() < link.loss):
            continue
        port.busy = start + len(packet) / link.bandwidth
        # IPv4 addresses end in the host's number + 1.
        port.packets.append((port.busy + link.delay, packet[19] - 1, packet))


def _deliver(ports: list[_Port], interfaces: list[int], off: set[int], now: float) -> None:
    """Hand over the packets that have arrived, but none from or to hosts that are cut off."""
    for source, port in enumerate(ports):
        while port.packets and port.packets[0][0] <= now:
            _, target, packet = port.packets.popleft()
            if target < len(interfaces) and not {source, target} & off:
                with suppress(BlockingIOError):  # the host does not keep up
                    os.write(interfaces[target], packet)
