"""The measurement of this machine: what its devices do at once, and what messages take.

All ranks compute at the same time, as a full pipeline does: cores share memory, caches and clock
rate, so that a core by itself is faster than it will be. Messages go between two ranks while the
others wait. Ranks are not bound to cores, so those of a host get the same figures, as do contexts
that share a GPU.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partitioner.costs.machine import Device, Level, Machine
from runtime.backends.cpu.choice import figures_text
from runtime.backends.device import arrays
from runtime.backends.device.arrays import HOST, device, on_host
from runtime.backends.device.processor import core_count, limit_blas
from runtime.profiling.calibration.bench import Work, bench_of
from runtime.profiling.calibration.rates import call_seconds, speed_of
from runtime.transports import Cluster, ThreadCluster, Transport, launched_by_mpi, make_cluster
from runtime.transports.mpi.cluster import MpiCluster
from symgraph.core.context import Context, cpu
from symgraph.core.errors import ConfigError
from symgraph.core.writing import writing

SECONDS = 0.25  # time to repeat one kind of work
SMALL_MESSAGE, LARGE_MESSAGE, MAX_TURNS = 8, 4 << 20, 200  # bytes, bytes, most round trips
LEAST_TURNS = 3
# Between hosts, where the seconds of a message are no straight line over its bytes.
NETWORK_MESSAGES = (SMALL_MESSAGE, *(1 << power for power in (8, 10, 12, 14, 16, 18, 20)))
FIGURE_DIGITS = 4  # significant digits
DEVICES = "devices="


class _Rank(NamedTuple):
    """The measured figures of a rank."""

    host: str
    """The name of its host."""
    place: str
    """Its host's processor, or a GPU."""
    memory: int
    """Bytes of the whole place."""
    flops: float
    """Operations per second of matrix products."""
    bandwidth: float
    """Bytes per second of large additions."""
    call: float
    """Seconds of a small call."""


def measuring_ranks(environ: Mapping[str, str], contexts: Sequence[Context] | None) -> Cluster:
    """Return the processes that mpiexec started, or else a thread per device, by default per core.

    Raises:
        ConfigError: mpiexec started another number of processes than there are devices.
    """
    if not launched_by_mpi(environ):
        return ThreadCluster(core_count() if contexts is None else len(contexts))
    if contexts is not None:
        return make_cluster("mpi", len(contexts))
    return MpiCluster()


def devices_to_measure(words: Sequence[str]) -> tuple[Context, ...] | None:
    """Return the devices of arguments such as `devices=[gpu(0), gpu(1)]`; None without arguments.

    Raises:
        ConfigError: other arguments, or devices of several kinds, whose links one file cannot tell
            apart.
        PlacementError: a GPU that this host does not have.
    """
    if not words:
        return None
    if len(words) > 1 or not words[0].startswith(DEVICES):
        extra = next((word for word in words if not word.startswith(DEVICES)), words[-1])
        raise ConfigError(
            f"measuring a machine takes devices=[...] and no config; leave out {extra!r}"
        )
    names = words[0].removeprefix(DEVICES).strip()
    if names.startswith("[") and names.endswith("]"):
        names = names[1:-1]
    contexts = tuple([Context.parse(name) for name in names.split(",")])
    if len({*contexts}) < len(contexts) or len({c.kind for c in contexts}) > 1:
        raise ConfigError(f"{words[0]!r}: the devices must be different ones of one kind")
    if not launched_by_mpi(os.environ):  # else each rank looks for its own: it forks before that
        for context in contexts:
            arrays.require(context)
    return contexts


def measure_machine(cluster: Cluster, contexts: Sequence[Context] | None = None) -> Machine:
    """Measure the machine whose devices are the ranks of a cluster, by default cpu(0), cpu(1), ...

    The result is the same on all processes. Hosts are nodes, and divide their memory among their
    ranks, as GPUs do among contexts. Of the links inside hosts the first is measured, and of those
    between hosts.
    """
    named = tuple(map(cpu, range(cluster.size))) if contexts is None else contexts
    with limit_blas(1):
        return cluster.run(lambda transport: _measure(transport, named))[0]


def machine_file(machine: Machine) -> str:
    """Return the text of a machine file, with this process's surroundings as comments."""
    here = device(machine.contexts[0])
    with here.use():
        words = bench_of(here).describe()
    if here.is_host:
        words["products, times"] = figures_text()
    about = "".join(f"#   {key}: {value}\n" for key, value in words.items())
    return f"# measured with symgraph machine on\n{about}{machine.to_yaml()}"


def write_machine(machine: Machine, path: str) -> None:
    """Write a machine file, as `writing` does."""
    with writing(path, "cannot write the machine file"):
        Path(path).write_text(machine_file(machine), encoding="utf-8")


def link_between(transport: Transport, a: int, b: int, here: arrays.Device = HOST) -> Level:
    """Measure messages between two ranks; all ranks must call this, and all get the result.

    Args:
        transport: the transport of this rank.
        a, b: the two ranks.
        here: the device of this rank, which holds the messages.
    """
    at_once = max(transport.exchange(bench_of(here).round_trips))
    sizes = (SMALL_MESSAGE, LARGE_MESSAGE)
    times = [_one_way(transport, a, b, nbytes, here, at_once) for nbytes in sizes]
    small, large = transport.exchange([min(t, default=0.0) for t in times])[a]
    return Level(_rounded(small), _bandwidth(small, large))


def network_between(transport: Transport, a: int, b: int, here: arrays.Device = HOST) -> Level:
    """Measure messages of many sizes between ranks of two hosts; see `link_between`.

    The figures are medians: on a network a message's usual time is what steps wait for. Large
    messages come first, because a TCP connection knows its bandwidth only from what it has carried.
    """
    at_once = max(transport.exchange(bench_of(here).round_trips))
    sizes = (*NETWORK_MESSAGES, LARGE_MESSAGE)
    times = [_one_way(transport, a, b, nbytes, here, at_once) for nbytes in reversed(sizes)]
    found = transport.exchange([float(np.median(t)) if t else 0.0 for t in reversed(times)])[a]
    rising = [_rounded(seconds) for seconds in np.maximum.accumulate(found).tolist()]
    bandwidth = _bandwidth(rising[0], rising[-1])
    return Level(rising[0], bandwidth, messages=tuple(zip(sizes, rising, strict=True)))


def links_between(
    transport: Transport, hosts: Sequence[str], here: arrays.Device = HOST
) -> dict[str, Level]:
    """Measure the links of a cluster: the first pair of ranks in a host, and the first between two.

    Args:
        transport: the transport of this rank.
        hosts: the host of each rank.
        here: the device of this rank.
    """
    ways = {"node": link_between, "network": network_between}
    return {level: ways[level](transport, *pair, here) for level, pair in _pairs(hosts).items()}


# -- on every rank -------------------------------------------------------------------------------


def _measure(transport: Transport, contexts: Sequence[Context]) -> Machine:
    transport.waiting_for("the measurement of the machine")
    here = device(contexts[transport.rank])
    with here.use():
        host, (place, memory) = platform.node(), bench_of(here).place()
        share = memory // transport.exchange([host, place]).count([host, place])
        sizes = bench_of(here).crowded_sizes
        speed = speed_of(
            here,
            sizes._replace(adding=min(sizes.adding, share // 16)),
            partial(_at_once, transport),
            partial(_in_turn, transport, call_seconds),
        )
    own = _Rank(host, place, memory, speed.flops, speed.bandwidth, speed.call)
    ranks = [_Rank(*figures) for figures in transport.exchange(own)]
    links = links_between(transport, [rank.host for rank in ranks], here)
    return Machine(_devices(ranks, contexts), links)


def _at_once(transport: Transport, work: Work, here: arrays.Device) -> float:
    """Return the seconds of one call while all ranks make calls."""
    work()
    here.finish()
    transport.exchange(None)
    return bench_of(here).crowded_seconds(work, SECONDS)


def _in_turn(
    transport: Transport, timer: Callable[[arrays.Device], float], here: arrays.Device
) -> float:
    """Time something while all other ranks wait: threads share one interpreter."""
    result = 0.0
    for rank in range(transport.size):
        if rank == transport.rank:
            result = timer(here)
        transport.exchange(None)
    return result


def _pairs(hosts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return for each level the first two ranks: of one host, and of two hosts."""
    found: dict[str, tuple[int, int]] = {}
    for b, host in enumerate(hosts):
        for a in range(b):
            found.setdefault("node" if hosts[a] == host else "network", (a, b))
    return found


def _one_way(
    transport: Transport, a: int, b: int, nbytes: int, here: arrays.Device, at_once: int
) -> list[float]:
    """Return half the seconds of messages from one rank to another and back; [] on third ranks.

    Args:
        at_once: round trips before the host waits for a GPU.
    """
    if transport.rank not in (a, b):
        return []
    times: list[float] = []
    begun = time.perf_counter()
    with here.use():
        message = here.put(np.zeros(nbytes, np.int8))
        while not on_host(message[:1])[0]:
            start = time.perf_counter()
            for _ in range(at_once):
                if transport.rank == a:
                    enough = len(times) >= LEAST_TURNS and start > begun + SECONDS
                    message[0] = enough or len(times) + 1 >= MAX_TURNS  # the last turn
                    transport.send(message, b, 0).wait()
                    transport.recv(message, b, 0)
                else:
                    transport.recv(message, a, 0)
                    transport.send(message, a, 0).wait()
            here.finish()
            times.append((time.perf_counter() - start) / 2 / at_once)
    return times[1:] or times  # the first one waits for the other rank to come


# -- figures -------------------------------------------------------------------------------------


def _devices(ranks: Sequence[_Rank], contexts: Sequence[Context]) -> tuple[Device, ...]:
    several = len({rank.host for rank in ranks}) > 1
    return tuple(
        _device(
            context,
            [r for r in ranks if (r.host, r.place) == (own.host, own.place)],
            own.host if several else "0",
        )
        for context, own in zip(contexts, ranks, strict=True)
    )


def _device(context: Context, alike: Sequence[_Rank], node: str) -> Device:
    """Return a device by the figures of all ranks of its place."""
    flops, bandwidth, call = (
        _rounded(float(np.median([getattr(rank, name) for rank in alike])))
        for name in ("flops", "bandwidth", "call")
    )
    mebibytes = min(rank.memory for rank in alike) // len(alike) >> 20
    return Device(context, flops, call, bandwidth, mebibytes << 20, node=node)


def _bandwidth(small: float, large: float) -> float:
    """Return the bytes per second of a link by the seconds of its messages."""
    # Half: where the latency is most of it, the difference of the two is mostly noise.
    return _rounded(LARGE_MESSAGE / max(large - small, large / 2))


def _rounded(figure: float) -> float:
    return float(f"{figure:.{FIGURE_DIGITS}g}")
