"""Lifeline between processes: a TCP star that carries failures and detects deaths and stalls.

MPI cannot tell a rank that another one has raised, died or ended: the wait for its message just
continues. Rank 0 is the hub, every other rank holds one connection to it, and a helper thread in
each process listens. Messages are JSON lines:

    {"rank": 2, "token": "…", …}   a rank joins; the token came through MPI, so strangers cannot
    {"failure": {…}}               the run has failed; the hub passes it on
    {"status": {…}, "answer": 3}   to the hub, regularly: the rank's waits and progress
    {"question": 4}                the hub asks for that again (see stalls.py)
    {"bye": true}                  this rank is done (or leaves after a failure): no loss

A connection that ends without a goodbye means that the process at its other end is lost. A process
that is stopped, or cut off, ends no connection: that is found by the guards (`guard.py`), to which
each process hands a second connection of the same star.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self

from runtime.transports.base import GRACE_SECONDS, Failure, failure_of
from runtime.transports.mpi.guard import FAILED, Guard
from runtime.transports.stalls import RankStatus, StallDetector
from symgraph.core.errors import RunError

__all__: list[str] = []

LOST = "its process was lost (it ended without a goodbye)"
LATE = "it did not come to the end of the run within {seconds:g} s of the others"
ORPHANED = "its process was orphaned (the MPI launcher ended or was killed)"
HELLO_SECONDS = 5.0  # a connection that is silent for so long is a stranger's
ORPHAN_SECONDS = 1.0  # time for a better reason to arrive than "orphaned"
SIOCGIFADDR = 0x8915  # linux/sockios.h: asks for an interface's address
LOOK_SECONDS = 0.25  # how often the helper checks
LIFE, BEAT = "life", "beat"  # the uses of a connection


class Lifeline:
    """One rank's part of the star.

    Attributes:
        failure: The first failure heard of, or None.
        status: What this rank is doing; the rank itself writes it.
        alarms: Called, on any thread, when the first failure is heard of.
        watches: Called by the helper regularly; they return a failure that no call has raised.
    """

    def __init__(
        self, rank: int, links: dict[int, socket.socket], guard: Guard | None, patience: float
    ) -> None:
        """links: peer -> its connection. patience: seconds to notice a failure in."""
        self.failure: Failure | None = None
        self.status = RankStatus()
        self.alarms: list[Callable[[], None]] = []
        self.watches: list[Callable[[], Failure | None]] = []
        self._told: object = None  # the last report
        self._question = 0  # the last one heard
        self._detector = StallDetector()  # the hub's
        self._rank, self._links, self._guard, self._patience = rank, links, guard, patience
        self._talking = set(links)  # peers that have neither said goodbye nor gone
        self._changed = threading.Condition()  # of failure and _talking
        self._closed = False
        self._wake, self._waker = socket.socketpair()
        self._helper = threading.Thread(target=self._listen, name="symgraph-lifeline", daemon=True)
        self._helper.start()

    @classmethod
    def open(
        cls,
        rank: int,
        size: int,
        exchange: Callable[[Any], list[Any]],
        patience: float,
        guard: Guard | None,
    ) -> Self:
        """Join all ranks; RunError if they cannot reach the hub within `patience` seconds.

        exchange: gives each rank's JSON-able object to all, through MPI.
        """
        names, unlinked = zip(
            *exchange([socket.gethostname(), guard is not None and not guard.linked]), strict=True
        )
        uses = (LIFE, BEAT) if all(unlinked) else (LIFE,)
        deadline = time.monotonic() + patience
        if rank == 0:
            one_host = len(set(names)) == 1
            with socket.create_server(("127.0.0.1" if one_host else "", 0), backlog=size) as server:
                hosts = ["127.0.0.1"] if one_host else _addresses(names[0])
                token = secrets.token_hex(16)
                exchange([hosts, server.getsockname()[1], token])
                links = _welcome(server, size, uses, token, deadline)
        else:
            hosts, port, token = exchange(None)[0]
            links = {
                use: {0: _join({"rank": rank, "token": token, "use": use}, hosts, port, deadline)}
                for use in uses
            }
        if guard is not None and BEAT in uses:
            for peer, link in links[BEAT].items():
                guard.link(peer, link)
        return cls(rank, links[LIFE], guard, patience)

    def abort(self, failure: Failure) -> None:
        """Tell every rank, unless a failure is known already."""
        self._fail(failure, heard_from=self._rank)

    def close(self, timeout: float) -> None:
        """Say goodbye, wait until every rank has (bounded), and stop the helper; idempotent.

        The wait is for `timeout` seconds, after a failure for `GRACE_SECONDS`; a rank that takes
        longer has failed. The hub says goodbye last, so while any rank is at work a failure still
        reaches it; and since the hub knows who is late, the others wait a little longer.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._rank != 0:
                self._tell({"bye": True})
            longer = timeout if self._rank == 0 else timeout + GRACE_SECONDS
            with self._changed:
                self._changed.wait_for(lambda: self.failure or not self._talking, longer)
                late = sorted(self._talking)
            if late and self.failure is None:
                self._fail(Failure(late[0], "", LATE.format(seconds=timeout)), self._rank)
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._talking, GRACE_SECONDS if self.failure else 0
                )
            if self._rank == 0:
                self._tell({"bye": True})
        except BaseException as error:  # Ctrl-C
            self._fail(failure_of(self._rank, "", error), self._rank)
            raise
        finally:
            self._waker.close()  # the helper sees the end of the other half, and stops
            self._helper.join()
            for link in (self._wake, *self._links.values()):
                link.close()

    def _fail(self, failure: Failure, heard_from: int) -> None:
        with self._changed:
            if self.failure is not None:
                return
            self.failure = failure
            self._changed.notify_all()
        if self._guard is not None:
            self._guard.tell(FAILED, self._patience, why=str(failure))
        self._tell({"failure": asdict(failure)}, but=heard_from)
        for alarm in self.alarms:
            alarm()

    def _tell(self, message: dict[str, Any], but: int | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        for peer, link in self._links.items():
            if peer != but:
                with suppress(OSError):  # it has gone: the helper sees that, and says so
                    link.sendall(line)

    def _listen(self) -> None:
        unread = dict.fromkeys(self._links, b"")  # peer -> start of a line
        orphaned_at: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ, None)
            for peer, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, peer)
            while True:
                for key, _ in selector.select(LOOK_SECONDS):
                    if key.data is None:
                        return
                    lines = _read(self._links[key.data], unread, key.data)
                    if lines is None:
                        selector.unregister(key.fileobj)
                    self._hear(key.data, lines)
                orphaned_at = self._look_for_guard(orphaned_at)
                self._look_around()
                if self.failure is None and self._links:
                    self._detect_stalls() if self._rank == 0 else self._tell_status()

    def _hear(self, peer: int, lines: list[bytes] | None) -> None:
        """Take in complete lines from a peer; None is the connection's end."""
        for message in map(json.loads, lines or []):
            if "failure" in message:
                self._fail(Failure(**message["failure"]), heard_from=peer)
            elif "status" in message:
                self._detector.hear(peer, message["status"], message["answer"])
            elif "question" in message:
                self._question = message["question"]
            else:
                self._end(peer)
        if lines is None:
            if peer in self._talking:
                self._fail(Failure(peer, "", LOST), heard_from=peer)
            self._end(peer)

    def _end(self, peer: int) -> None:
        with self._changed:
            self._talking.discard(peer)
            self._changed.notify_all()

    def _look_around(self) -> None:
        found = self._guard and self._guard.failure()
        if found:
            self.abort(Failure(found[0], "", found[1]))
        for watch in self.watches:
            over = self._closed or self.failure is not None
            failure = None if over else watch()
            if failure is not None:
                self.abort(failure)

    def _tell_status(self) -> None:
        report = {"status": self.status.as_json(), "answer": self._question}
        if report != self._told:
            self._told = report
            self._tell(report)

    def _detect_stalls(self) -> None:
        """Look for ranks that wait forever, on the hub, and end the run if there are any."""
        detector, asked = self._detector, self._detector.question
        detector.hear(self._rank, self.status.as_json(), asked)
        closed = {*self._links} - self._talking
        text = detector.look(closed | {self._rank} if self._closed else closed, time.monotonic())
        if text is not None:
            self._fail(Failure(-1, "", text), heard_from=self._rank)
        elif detector.question != asked:
            self._tell({"question": detector.question})

    def _look_for_guard(self, orphaned_at: float | None) -> float | None:
        """End a process whose guard is gone: first by a failure, then, if it does not react, hard.

        Returns when the guard was first seen gone.
        """
        if self._guard is None or os.getppid() == self._guard.process:
            return None
        now = time.monotonic()
        if orphaned_at is None:
            return now
        if now > orphaned_at + ORPHAN_SECONDS:
            self.abort(Failure(self._rank, "", ORPHANED))
        if now > orphaned_at + ORPHAN_SECONDS + 2 * GRACE_SECONDS:
            os._exit(1)
        return orphaned_at


def _read(link: socket.socket, unread: dict[int, bytes], peer: int) -> list[bytes] | None:
    """Return the complete lines that have arrived from a peer; None at the connection's end."""
    try:
        data = link.recv(65536)
    except OSError:
        data = b""
    if not data:
        return None
    *lines, unread[peer] = (unread[peer] + data).split(b"\n")
    return lines


def _addresses(host: str) -> list[str]:
    """Return where other hosts may reach this one: its name, then its addresses.

    The addresses are those of its name and of its interfaces: containers often have names that
    nobody else can look up, and sometimes not even they themselves.
    """
    names = [host]
    with suppress(OSError):
        infos = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
        names += [str(info[4][0]) for info in infos]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, interface in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                asked = struct.pack("256s", interface.encode())
                found = fcntl.ioctl(any_socket, SIOCGIFADDR, asked)
                names.append(socket.inet_ntoa(found[20:24]))
    return [name for name in dict.fromkeys(names) if not name.startswith("127.")]


def _welcome(
    server: socket.socket, size: int, uses: Sequence[str], token: str, deadline: float
) -> dict[str, dict[int, socket.socket]]:
    """Accept a connection of each other rank for each use."""
    links: dict[str, dict[int, socket.socket]] = {use: {} for use in uses}
    while any(len(found) < size - 1 for found in links.values()):
        server.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            link, _ = server.accept()
        except TimeoutError:
            for link in [link for found in links.values() for link in found.values()]:
                link.close()
            missing = [r for r in range(1, size) if any(r not in found for found in links.values())]
            raise RunError(f"lifeline: ranks {missing} did not connect to rank 0 in time") from None
        rank, use = _hello(link, token)
        if 0 < rank < size and rank not in links.get(use, {rank: link}):
            links[use][rank] = link
        else:
            link.close()
    return links


def _hello(link: socket.socket, token: str) -> tuple[int, str]:
    """Return the rank that a new connection names, and its use; -1 is a stranger."""
    link.settimeout(HELLO_SECONDS)
    line = b""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        while not line.endswith(b"\n") and len(line) < 1000:
            more = link.recv(1)  # leaves what follows the line unread
            if not more:
                return -1, ""
            line += more
        hello = json.loads(line)
        if secrets.compare_digest(hello["token"], token):
            return int(hello["rank"]), str(hello["use"])
    return -1, ""


def _join(hello: dict[str, Any], hosts: list[str], port: int, deadline: float) -> socket.socket:
    errors = []
    for host in hosts:
        try:
            seconds = min(HELLO_SECONDS, max(deadline - time.monotonic(), 0.01))
            link = socket.create_connection((host, port), seconds)
        except OSError as error:
            errors.append(f"{host}: {error}")
            continue
        link.settimeout(HELLO_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(json.dumps(hello).encode() + b"\n")
        return link
    raise RunError(
        f"lifeline: rank {hello['rank']} cannot reach rank 0 at port {port} ({'; '.join(errors)}); "
        "the hosts must allow TCP connections between them"
    )
