"""The link of a process to the supervisor that started it (see runtime.frontends.cli.supervisor).

A TCP connection, so that it works from any host. The process sends lines of JSON, the first with
the token, then facts as they come and, at least once a second, the number of steps done. A helper
thread sends them: neither a long call nor a supervisor that is stopped holds up the run. If the
supervisor ends, so does the process.

    {"token": "...", "ranks": [0], "pid": 4711, "host": "node-a"}
    {"plan": {...}}    {"resumed": 40}    {"step": 41, "seconds": 2.5}

The supervisor sends {"quit": true}, for a flight record, where signals do not reach the process.
"""

from __future__ import annotations

import json
import os
import platform
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from symgraph.app.command_line import TERMINATED, say

VARIABLE = "SYMGRAPH_SUPERVISOR"  # HOST:PORT:ATTEMPT:TOKEN
BEAT_SECONDS = 1.0
LINE_BYTES = 1 << 20  # the longest line that is read
LEAVE_SECONDS = 60.0  # to end by itself, once the supervisor is gone


class SupervisorLink:
    """The link of one process; without a supervisor it does nothing."""

    def __init__(self, environ: Mapping[str, str], ranks: Sequence[int]) -> None:
        """Connect, if the environment names a supervisor.

        Args:
            environ: The environment.
            ranks: The ranks in this process.
        """
        #: The number of the attempt; 0: there is no supervisor.
        self.attempt = 0
        #: Called, on the helper thread, when the supervisor asks for a flight record.
        self.asked: Callable[[], None] = lambda: None
        self._lines: list[dict[str, Any]] = []
        self._progress: dict[str, Any] = {}
        self._closed = False
        if VARIABLE not in environ:
            return
        host, port, attempt, token = environ[VARIABLE].split(":")
        self.attempt = int(attempt)
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=10)
        except OSError as error:
            say(f"warning: cannot reach the supervisor at {host}:{port}: {error.strerror}")
            return
        self._socket.settimeout(None)
        self.tell(token=token, ranks=list(ranks), pid=os.getpid(), host=platform.node())
        self._wake, self._waker = socket.socketpair()
        self._helper = threading.Thread(target=self._serve, name="symgraph-link", daemon=True)
        self._helper.start()

    def tell(self, **facts: Any) -> None:
        """Send facts soon."""
        self._lines.append(facts)
        self._ring()

    def progress(self, step: int, seconds: float) -> None:
        """Send, with the next beat, that so many steps are done, and how long this run trains."""
        first = not self._progress
        self._progress = {"step": step, "seconds": seconds}
        if first:
            self._ring()

    def close(self) -> None:
        """Say goodbye; from here on the end of the supervisor does not matter."""
        self._closed = True
        if hasattr(self, "_helper"):
            self._ring()
            self._helper.join(BEAT_SECONDS)

    def _ring(self) -> None:
        if hasattr(self, "_waker"):
            with suppress(OSError):
                self._waker.send(b"\n")

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            try:
                while not self._closed:
                    self._send()
                    for key, _ in selector.select(BEAT_SECONDS):
                        if key.fileobj is self._wake:
                            self._wake.recv(4096)
                        elif b"quit" in self._heard():
                            self.asked()
                self._send()
                self._socket.close()
            except OSError:
                self._leave()

    def _send(self) -> None:
        lines, self._lines = self._lines, []
        data = "".join(json.dumps(line) + "\n" for line in (*lines, self._progress))
        self._socket.sendall(data.encode())

    def _heard(self) -> bytes:
        data = self._socket.recv(4096)
        if not data:
            raise ConnectionResetError
        return data

    def _leave(self) -> None:
        """End this process, as its supervisor is gone: by SIGTERM, or else hard."""
        if self._closed:
            return
        say("the supervisor of this run has ended; so does the run")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LEAVE_SECONDS)
        if not self._closed:
            os._exit(TERMINATED)
