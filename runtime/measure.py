"""The measurement of this machine: what its cores do at once, and what messages between them take.

All ranks compute at the same time, as a full pipeline does: cores share memory, caches and clock
rate, so that a core by itself is faster than it will be. Messages go between two ranks while the
others wait. Ranks are not bound to cores, so those of a host get the same figures.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from partitioner.machine import Device, Level, Machine
from runtime.calibrate import call_seconds
from runtime.processor import core_count
from runtime.profile import describe_machine
from runtime.transports import Cluster, ThreadCluster, Transport, launched_by_mpi
from symgraph.context import cpu
from symgraph.errors import ConfigError

SECONDS = 0.25  # of one kind of work
SIDE = 512  # of the square float32 product; large enough for BLAS's full rate
ARRAY = 16 << 20  # bytes of each array that is added: all together more than caches hold
SMALL, LARGE, TURNS = 8, 4 << 20, 200  # bytes of messages; the most that go forth and back
DIGITS = 4  # of a figure
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class _Rank(NamedTuple):
    """What a rank found; memory: of its whole host."""

    host: str
    memory: int
    flops: float
    bandwidth: float
    call: float


def measuring_ranks(environ: Mapping[str, str]) -> Cluster:
    """The processes that mpiexec started, or else a thread for every core."""
    if launched_by_mpi(environ):
        from runtime.transports.mpi import MpiCluster  # on demand: mpi4py is optional

        return MpiCluster()
    return ThreadCluster(core_count())


def measure_machine(cluster: Cluster) -> Machine:
    """The machine whose devices cpu(0), cpu(1), ... are the ranks of a cluster.

    The same on all processes. Hosts are nodes, and share out their memory among their ranks; of
    the links of each kind, inside a host and between hosts, the first is measured.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        return cluster.run(_measure)[0]


def machine_file(machine: Machine) -> str:
    """The text of a machine file, with this process's surroundings as comments."""
    about = "".join(f"#   {key}: {value}\n" for key, value in describe_machine().items())
    return f"# measured with --measure-machine on\n{about}{machine.to_yaml()}"


def write_machine(machine: Machine, path: str) -> None:
    """Write a machine file; ConfigError if that cannot be."""
    try:
        Path(path).write_text(machine_file(machine), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the machine file {path}: {error.strerror}") from None


def link_between(transport: Transport, a: int, b: int) -> Level:
    """Latency and bandwidth of messages between two ranks, told to all, who must call this."""
    own = [_one_way(transport, a, b, nbytes) for nbytes in (SMALL, LARGE)]
    small, large = transport.exchange(own)[a]
    # Half: where the latency is most of it, the difference of the two is mostly noise.
    return Level(_rounded(small), _rounded(LARGE / max(large - small, large / 2)))


def host_memory() -> int:
    """Bytes of this host's memory, or of this container's where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        text = path.read_text().strip() if path.is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits)


# -- on every rank -------------------------------------------------------------------------------


def _measure(transport: Transport) -> Machine:
    transport.waiting_for("the measurement of the machine")
    host, memory = platform.node(), host_memory()
    share = memory // transport.exchange(host).count(host)
    flops = 2 * SIDE**3 / _at_once(_product(), transport)
    size = min(ARRAY, share // 16)
    bandwidth = 3 * size / _at_once(_addition(size), transport)
    call = _in_turn(lambda: min(call_seconds("elemwise_add", 2) for _ in range(7)), transport)
    own = _Rank(host, memory, flops, bandwidth, call)
    ranks = [_Rank(*figures) for figures in transport.exchange(own)]
    links = {
        level: link_between(transport, *pair)
        for level, pair in _pairs([rank.host for rank in ranks]).items()
    }
    return Machine(_devices(ranks), links)


def _product() -> Callable[[], object]:
    a = np.ones((SIDE, SIDE), np.float32)
    out = np.empty_like(a)
    return lambda: np.matmul(a, a, out=out)


def _addition(size: int) -> Callable[[], object]:
    x, y, z = (np.ones(size // 4, np.float32) for _ in range(3))
    return lambda: np.add(x, y, out=z)


def _at_once(work: Callable[[], object], transport: Transport) -> float:
    """Seconds of one call while all ranks make calls; a quarter of the calls are faster.

    The median would count what other programs take from this one.
    """
    work()
    transport.exchange(None)
    times: list[float] = []
    begun = end = time.perf_counter()
    while end < begun + SECONDS:
        start, end = end, _after(work)
        times.append(end - start)
    return float(np.percentile(times, 25))


def _after(work: Callable[[], object]) -> float:
    work()
    return time.perf_counter()


def _in_turn(work: Callable[[], float], transport: Transport) -> float:
    """The result of this rank's work, done while all others wait: threads share one interpreter."""
    result = 0.0
    for rank in range(transport.size):
        if rank == transport.rank:
            result = work()
        transport.exchange(None)
    return result


def _pairs(hosts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Level -> the first two ranks of one host, and of two hosts, as far as there are such."""
    found: dict[str, tuple[int, int]] = {}
    for b, host in enumerate(hosts):
        for a in range(b):
            found.setdefault("node" if hosts[a] == host else "network", (a, b))
    return found


def _one_way(transport: Transport, a: int, b: int, nbytes: int) -> float | None:
    """The least seconds of a message from one rank to another and back, halved, on the first."""
    if transport.rank not in (a, b):
        return None
    message = np.zeros(nbytes, np.int8)
    times: list[float] = []
    begun = time.perf_counter()
    while not message[0]:
        start = time.perf_counter()
        if transport.rank == a:
            message[0] = len(times) + 1 >= TURNS or start > begun + SECONDS  # the last turn
            transport.send(message, b, 0).wait()
            transport.recv(message, b, 0)
        else:
            transport.recv(message, a, 0)
            transport.send(message, a, 0).wait()
        times.append((time.perf_counter() - start) / 2)
    return min(times)


# -- figures -------------------------------------------------------------------------------------


def _devices(ranks: Sequence[_Rank]) -> tuple[Device, ...]:
    hosts = [rank.host for rank in ranks]
    return tuple(
        _device(i, [r for r in ranks if r.host == host], host if len(set(hosts)) > 1 else "0")
        for i, host in enumerate(hosts)
    )


def _device(index: int, alike: Sequence[_Rank], node: str) -> Device:
    """A device of a host from the figures of all its ranks."""
    flops, bandwidth, call = (
        _rounded(float(np.median([getattr(rank, name) for rank in alike])))
        for name in ("flops", "bandwidth", "call")
    )
    mebibytes = min(rank.memory for rank in alike) // len(alike) >> 20
    return Device(cpu(index), flops, call, bandwidth, mebibytes << 20, node=node)


def _rounded(figure: float) -> float:
    return float(f"{figure:.{DIGITS}g}")
