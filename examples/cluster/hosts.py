"""Hosts: network namespaces with one interface each, and what starts programs in them."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "symgraph-"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
NETWORK = "10.77.0."  # host1 is 10.77.0.1; no packet leaves the namespaces but through the relay
PATIENCE = 5.0  # seconds for what still runs at the end, between SIGTERM and SIGKILL

# What mpiexec runs instead of ssh: ENTER [OPTION ...] HOST WORD ...
ENTER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host="host${{1##*.}}"
shift
exec nsenter --net="/run/netns/{prefix}$host" unshare --uts --ipc -- \\
    sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""


class Hosts:
    """Hosts with the names host1, host2, ...; a context manager that removes them at its end.

    Attributes:
        names: Of the hosts.
        interfaces: A file descriptor per host, from which to read the packets that the host sends,
            and to which to write those that it gets.
    """

    def __init__(self, count: int, slots: int = 1) -> None:
        """Prepare `count` hosts, on each of which mpiexec starts up to `slots` ranks."""
        self.names = [f"host{number + 1}" for number in range(count)]
        self.interfaces: list[int] = []
        self._slots, self._prefix = slots, f"{PREFIX}{os.getpid()}-"
        self._folder = tempfile.TemporaryDirectory(prefix=self._prefix)

    def __enter__(self) -> Self:
        _remove_stale()
        try:
            for number, name in enumerate(self.names):
                self._make(number, self._prefix + name)
            self._write_files()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def run(self, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a command line on the first host."""
        folder, name = Path(self._folder.name), self.names[0]
        enter = folder / "enter"
        settings = {
            "HYDRA_HOST_FILE": folder / "hydra",
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": enter,
            "OMPI_MCA_plm_rsh_agent": enter,
            "OMPI_MCA_orte_default_hostfile": folder / "openmpi",
            "OMPI_ALLOW_RUN_AS_ROOT": 1,
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1,
        }
        inside = [
            "nsenter",
            f"--net=/run/netns/{self._prefix}{name}",
            "unshare",
            "--uts",
            "--ipc",
            "--",
        ]
        named = ["sh", "-c", 'hostname "$0"; exec "$@"', name]
        env = os.environ | {key: str(value) for key, value in settings.items()}
        return subprocess.Popen([*inside, *named, *words], env=env)

    def _make(self, number: int, namespace: str) -> None:
        """Make a namespace and its interface."""
        device = f"sg{os.getpid()}-{number}"
        _ip("netns", "add", namespace)
        interface = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self.interfaces.append(interface)
        flags = struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(interface, TUNSETIFF, flags)
        _ip("link", "set", device, "netns", namespace, "name", "eth0")
        _ip("-n", namespace, "address", "add", f"{_address(number)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", link, "up", "txqueuelen", "1000")

    def _write_files(self) -> None:
        folder = Path(self._folder.name)
        addresses = [_address(number) for number in range(len(self.names))]
        (folder / "hydra").write_text("".join(f"{a}:{self._slots}\n" for a in addresses))
        (folder / "openmpi").write_text("".join(f"{a} slots={self._slots}\n" for a in addresses))
        (folder / "enter").write_text(ENTER.format(prefix=self._prefix))
        (folder / "enter").chmod(0o755)

    def _remove(self) -> None:
        """End what still runs on the hosts, and remove them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            begin = time.monotonic()
            while running := [pid for name in self.names for pid in _running(self._prefix + name)]:
                if time.monotonic() > begin + PATIENCE:
                    break
                _kill(running, number)
                time.sleep(0.1)
        for interface in self.interfaces:
            os.close(interface)
        self.interfaces = []
        for name in self.names:
            _ip("netns", "delete", self._prefix + name, check=False)
        self._folder.cleanup()


def _address(number: int) -> str:
    return f"{NETWORK}{number + 1}"


def _ip(*words: str, check: bool = True) -> str:
    """Run iproute2. Raises OSError with what it says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _running(namespace: str) -> list[int]:
    """Return the processes on a host."""
    return [int(word) for word in _ip("netns", "pids", namespace, check=False).split()]


def _kill(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _remove_stale() -> None:
    """Remove the hosts of runs that were killed."""
    for namespace, owner in _namespaces():
        if not Path(f"/proc/{owner}").exists():
            _kill(_running(namespace), signal.SIGKILL)
            _ip("netns", "delete", namespace, check=False)


def _namespaces() -> Iterator[tuple[str, int]]:
    """Yield all hosts of all runs, and the processes that made them."""
    for line in _ip("netns", "list").splitlines():
        namespace = line.split()[0]
        owner = namespace.removeprefix(PREFIX).partition("-")[0]
        if namespace.startswith(PREFIX) and owner.isdigit():
            yield namespace, int(owner)
