"""Guard process between an MPI launcher and a rank: lets survivors speak, and bounds every wait.

Why: when a rank dies of a signal, MPICH's hydra kills every other rank with SIGKILL, which none
can catch, within milliseconds; `-disable-auto-cleanup` does not help, since the proxy's wait loop
kills all the same. Hydra learns of a death from two things: the process it started, and the end of
its PMI connection. So the process it started becomes a guard, the rank goes on as the guard's
child, and both hold the connection, as below a shell script that mpiexec starts:

    hydra_pmi_proxy ── guard (this file, started by exec) ─┬─ rank (the user's program)
                                                           └─ deputy

The guard ends with its rank's status. If a signal ended the rank that did not come through the
guard, it first waits `LOST_SECONDS`, in which the other ranks hear of the loss on the lifeline,
print what they waited for, and leave. After any other failure it waits `LEFT_SECONDS`: ranks that
fail leave together, and hydra's killing of the last guards no longer counts as their exit status
once nobody holds an output open. So guards close theirs: stdout at once, stderr when the rank ends.

The guard is its rank's watchdog as well. It needs neither the rank's interpreter nor MPI, so it
acts also when the rank is stopped, or stuck in a library. The rank tells it over a socket which
phase it is in; when the phase's bound is over, the guard says so and kills the rank. Guards hold a
star of connections, beside the ranks' own (`lifeline.py`), on which each one sends a beat: whoever
hears nothing of another for `heartbeat` seconds has found a failure. A guard that was delayed
itself counts no more than the time in which it could have heard something.

The rank has a process group of its own. Hydra signals the guard's group: what can be caught is
handed on. When the guard is killed, the rank dies with it as long as MPI is starting; later its
lifeline sees that the parent changed, and the deputy, which hydra does not know, ends what is left.

Run with `python -I -S`: imports the standard library only.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

__all__: list[str] = []

LOST_SECONDS = 4.0  # more than the survivors' own grace
LEFT_SECONDS = 0.25
STOPPED_SECONDS = 2.0  # the others hear why before a stopped rank is killed
ORPHAN_SECONDS = 8.0  # more than a rank needs to see that its guard has gone, and to leave
START_LOOK = 0.01  # seconds between looks while MPI starts: who is killed next leaves its segments
LOOKS = 8  # in a heartbeat, later
LONGEST_LOOK = 0.5
HANDED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
)
SEGMENTS = "/dev/shm/mpich_shm_"
OPENMP = "/dev/shm/__KMP_REGISTERED_LIB_{process}_{user}"  # of MKL's OpenMP, if it is loaded
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
PR_SET_PDEATHSIG = 1
MESSAGE_BYTES = 1 << 16

# The phases of a rank, and what it is said to have done when their bound is over.
STARTING, RUNNING, FAILED, CLOSING, CLOSED, FINALIZING, FINALIZED, STOPPED = range(8)
OVERDUE = {
    STARTING: "MPI did not start within {bound:g} s: another rank has ended or never started",
    FAILED: "it did not notice within {bound:g} s that the run had failed ({why})",
    CLOSING: "it did not leave within {bound:g} s",
    FINALIZED: "it did not end within {bound:g} s of MPI's end",
    FINALIZING: "MPI did not end within {bound:g} s: another rank has not come to its end; if its "
    "work takes so long, raise the timeout",
}
SILENT = "nothing was heard of its process for {seconds:g} s (its host is down, or the link is cut)"
HALTED = "its process was stopped for {seconds:g} s (by a signal such as SIGSTOP)"
HALTED_LAUNCHER = "the launcher's process, which MPI needs to start, was stopped for {seconds:g} s"


class Guard:
    """A rank's view of its guard."""

    def __init__(self, process: int, control: socket.socket) -> None:
        self.process = process
        atexit.register(control.close)  # it is used as long as the process lives
        #: Whether the guard is connected to those of other ranks.
        self.linked = False
        self._control = control
        self._heard: tuple[int, str] | None = None
        control.setblocking(False)

    def tell(self, phase: int, bound: float | None, **facts: object) -> None:
        """Say that a phase begins, and how many seconds it may last; None: without a bound."""
        self._send({"phase": phase, "bound": bound, **facts})

    def link(self, peer: int, connection: socket.socket) -> None:
        """Hand over a connection to the guard of rank `peer`."""
        with connection:
            connection.setblocking(False)
            self._send({"peer": peer}, connection.fileno())
        self.linked = True

    def failure(self) -> tuple[int, str] | None:
        """Return what the guards have found: a rank, and what is wrong with it."""
        with suppress(OSError):  # nothing to read
            self._heard = self._heard or tuple(json.loads(self._control.recv(MESSAGE_BYTES)))
        return self._heard

    def outlive(self) -> None:
        """Let this process live on if its guard is killed, to say so."""
        _die_with_parent(0)

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with suppress(OSError):  # the guard has gone: the lifeline sees that
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)


def stand_guard(bound: float, heartbeat: float) -> Guard:
    """Fork: this process becomes the guard, its child goes on, in the phase `STARTING`.

    Args:
        bound: Seconds in which MPI must have started.
        heartbeat: Seconds of silence after which a rank counts as lost.

    `RuntimeError` if other Python threads run: they would not live on in the child.
    """
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"the process has several threads ({names})")
    guard = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    rank = os.fork()
    if rank:
        os.set_inheritable(theirs.fileno(), True)
        words = (rank, theirs.fileno(), bound, heartbeat)
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *map(str, words)])
    theirs.close()
    os.setpgid(0, 0)
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != guard:  # it was killed meanwhile
        os._exit(1)
    return Guard(guard, ours)


def clear_segments() -> None:
    """Unlink MPI's shared memory; whoever has mapped it keeps it. All ranks must have started."""
    for path in _segments("self"):
        _unlink(path)


class Watch:
    """The guard's own work."""

    def __init__(self, process: int, control: socket.socket, bound: float, beat: float) -> None:
        """process: of the rank. bound: seconds of its first phase. beat: seconds of silence."""
        found = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
        self.rank = int(found[0]) if found and found[0].isdecimal() else -1
        self.name = f"rank {self.rank}" if found else "a rank"
        self.process, self.control, self.heartbeat = process, control, beat
        self.phase, self.why, self.age = STARTING, "", 0.0
        self.bound: float | None = bound
        self.failure: tuple[int, str] | None = None
        self.killed = False
        self.halted = 0.0  # seconds since the rank was stopped
        self.links: dict[int, socket.socket] = {}  # peer -> connection to its guard
        self.silent: dict[int, float] = {}  # peer -> seconds since it was heard
        self.unread: dict[int, bytes] = {}  # peer -> start of a line
        self.handed_on: list[int] = []
        self.noted: set[str] = set()  # the rank's segments
        self.stderr = os.dup(2) if _is_open(2) else -1
        self.deputy, self.pipe = _stand_deputy(process)
        wake, self.waker = socket.socketpair()
        for end in (wake, self.waker, control):
            end.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(wake, selectors.EVENT_READ, wake)
        self.selector.register(control, selectors.EVENT_READ, control)

    def until_the_end(self) -> int:
        """Watch the rank until it ends; return its wait status."""
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in HANDED_ON:
            signal.signal(signum, self._hand_on)
        close_streams(self.stderr)
        looked = time.monotonic()
        while True:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self._read(self.control)  # what it said last
                return status
            pause = START_LOOK if self.phase == STARTING else self._pause()
            for key, _ in self.selector.select(max(looked + pause - time.monotonic(), 0.0)):
                self._read(key.data)
            now = time.monotonic()
            if now >= looked + pause:  # not at each beat of a peer, which would answer it at once
                self._look(min(now - looked, 2 * self._pause()))  # more if it was stopped itself
                looked = now

    def leave(self, status: int) -> NoReturn:
        """End as the rank did, once the others have heard of it."""
        for signum in HANDED_ON:
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # hydra without auto-cleanup tells ends by it
        for path in (*self.noted, _openmp_file(self.process)):
            _unlink(path)
        code = os.waitstatus_to_exitcode(status)
        lost = code < 0 and -code not in self.handed_on and not self.killed
        if lost:
            self._say(f"{self.name}: its process was ended by {signal.Signals(-code).name}")
        if self.phase != FINALIZED and (code > 0 or (code < 0 and self.phase >= CLOSING)):
            self._fail(self.rank, _end_of(code))
        if self.stderr >= 0:
            os.close(self.stderr)
        if self.pipe >= 0:
            self._tell_deputy("done")
            os.close(self.pipe)
            os.kill(self.deputy, signal.SIGKILL)  # it may be stopped
            os.waitpid(self.deputy, 0)
        if code != 0:
            told = (lost and self.phase != STARTING) or self.killed
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a supervisor's, soon
            signal.sigtimedwait({signal.SIGTERM}, LOST_SECONDS if told else LEFT_SECONDS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if code != 0 and self.phase == STARTING:
            # Hydra ends the others, who wait in MPI_Init, only for a signal: no status before that.
            own = -code if code < 0 else signal.SIGINT if code == 130 else signal.SIGKILL
            for ending in (own, signal.SIGKILL):  # a signal that is ignored ends nothing
                os.kill(os.getpid(), ending)
        os._exit(1 if self.killed else code if code >= 0 else 128 - code)  # as a shell says it

    def _pause(self) -> float:
        return min(self.heartbeat / LOOKS, LONGEST_LOOK)

    def _hand_on(self, signum: int, frame: FrameType | None) -> None:
        self.handed_on.append(signum)
        with suppress(ProcessLookupError):
            os.kill(self.process, signum)

    def _read(self, source: socket.socket | int) -> None:
        """Take in what the rank, or the guard of a peer, has said."""
        if source is self.control:
            with suppress(BlockingIOError, ConnectionResetError):
                while (said := socket.recv_fds(self.control, MESSAGE_BYTES, 1))[0]:
                    self._hear_rank(json.loads(said[0]), said[1])
        elif isinstance(source, int):
            self._hear_peer(source)
        else:
            source.recv(MESSAGE_BYTES)

    def _hear_rank(self, told: dict[str, Any], descriptors: list[int]) -> None:
        if "peer" in told:
            peer, link = told["peer"], socket.socket(fileno=descriptors[0])
            self.links[peer], self.silent[peer], self.unread[peer] = link, 0.0, b""
            self.selector.register(link, selectors.EVENT_READ, peer)
        elif self.phase != STOPPED:
            self.phase, self.bound, self.age = told["phase"], told["bound"], 0.0
            self.why = told.get("why", "")
            self.heartbeat = told.get("heartbeat", self.heartbeat)
            if "rank" in told:
                self.rank, self.name = told["rank"], f"rank {told['rank']}"
            if self.phase == STARTING:  # a further cluster
                self.failure = None
            elif self.noted:  # the rank has removed them
                self.noted.clear()
                self._tell_deputy("clear")

    def _hear_peer(self, peer: int) -> None:
        link = self.links[peer]
        data = b""
        with suppress(OSError):
            data = link.recv(MESSAGE_BYTES)
        if not data:  # that guard has ended: its rank had said goodbye, or the lifeline knows
            self.selector.unregister(link)
            link.close()
            del self.links[peer], self.silent[peer]
            return
        self.silent[peer] = 0.0
        *lines, self.unread[peer] = (self.unread[peer] + data).split(b"\n")
        for line in filter(None, lines):
            rank, text = json.loads(line)
            self._fail(rank, text, heard_from=peer)

    def _fail(self, rank: int, text: str, heard_from: int | None = None) -> None:
        """Tell the rank and the other guards of a failure; only the first counts."""
        if self.failure is None:
            self.failure = rank, text
            line = json.dumps(self.failure).encode()
            with suppress(OSError):
                self.control.send(line)
            self._tell_peers(line + b"\n", but=heard_from)

    def _tell_peers(self, line: bytes, but: int | None = None) -> None:
        for peer, link in self.links.items():
            if peer != but:
                with suppress(OSError):  # it has gone, or is silent: both are noticed
                    link.send(line)

    def _look(self, seconds: float) -> None:
        """Beat, count the seconds since the last look, and act if some are too many."""
        if self.phase == STARTING:
            self._note_segments()
        self._tell_peers(b"\n")
        self.age += seconds
        needed = self.process, *([os.getppid()] if self.phase == STARTING else [])
        self.halted = self.halted + seconds if any(map(_is_stopped, needed)) else 0.0
        for peer in self.silent:
            self.silent[peer] += seconds
            if self.silent[peer] > self.heartbeat:
                self._fail(peer, SILENT.format(seconds=self.heartbeat))
        if self.killed:
            return
        if self.phase == STOPPED:
            if self.age > STOPPED_SECONDS:
                self._kill("")
        elif self.halted > self.heartbeat:
            whose = HALTED if _is_stopped(self.process) else HALTED_LAUNCHER
            text = whose.format(seconds=self.heartbeat)
            self._say(f"{self.name}: {text}; it is killed")
            self._fail(self.rank, text)
            self.bound, self.age = None, STOPPED_SECONDS if self.phase == STARTING else 0.0
            self.phase = STOPPED
        elif self.failure is not None and self.phase == FINALIZING:
            rank, text = self.failure
            at = f"{self.name} stopped while waiting for all ranks to end"
            self._kill(f"{at}: rank {rank} failed: {text}")
        elif self.bound is not None and self.age > self.bound:
            self._kill(f"{self.name}: {OVERDUE[self.phase].format(bound=self.bound, why=self.why)}")

    def _note_segments(self) -> None:
        for path in _segments(self.process):
            if path not in self.noted:
                self.noted.add(path)
                self._tell_deputy(path)

    def _tell_deputy(self, word: str) -> None:
        if self.pipe >= 0:
            with suppress(OSError):  # somebody has killed it
                os.write(self.pipe, f"{word}\n".encode())

    def _kill(self, text: str) -> None:
        self.killed = True
        if text:
            self._say(text)
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)

    def _say(self, text: str) -> None:
        if self.stderr >= 0:
            with suppress(OSError):
                os.write(self.stderr, f"symgraph: error: {text}\n".encode())


def close_streams(spared: int) -> None:
    """Close stdin, stdout and stderr, and every duplicate of them but one (hydra leaks some)."""
    for stream in (2, 1, 0):
        with suppress(OSError):  # it is closed already
            wanted = os.fstat(stream)
            for name in os.listdir("/dev/fd"):
                with suppress(OSError):  # the descriptor of the listing itself
                    if int(name) != spared and os.path.samestat(os.fstat(int(name)), wanted):
                        os.close(int(name))


def _stand_deputy(rank: int) -> tuple[int, int]:
    """Fork a process that ends what a killed guard leaves; return it, and the pipe to it.

    When the rank has ended, it wakes a guard that is stopped, for which a launcher would wait. It
    has a session of its own and holds nothing open by which a launcher could know it.
    """
    if not hasattr(os, "pidfd_open"):
        return 0, -1
    handle = os.pidfd_open(rank)
    ours, theirs = os.pipe()
    guard = os.getpid()
    deputy = os.fork()
    if deputy:
        os.close(ours)
        os.close(handle)
        return deputy, theirs
    os.setsid()
    for name in os.listdir("/dev/fd"):
        if int(name) not in (ours, handle):
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    words = b""
    waits = [ours, handle]
    while True:
        ready = select.select(waits, [], [])[0]
        if handle in ready:
            waits = [ours]
            if os.getppid() == guard:
                os.kill(guard, signal.SIGCONT)
        elif more := os.read(ours, MESSAGE_BYTES):
            words += more
        else:
            break
    said = words.decode().split("\n")[:-1]
    if "done" not in said:
        _end_orphan(handle)
        last = max((at for at, word in enumerate(said) if word == "clear"), default=-1)
        for path in (*said[last + 1 :], _openmp_file(rank)):
            _unlink(path)
    os._exit(0)


def _end_orphan(handle: int) -> None:
    """Let a rank whose guard is gone leave, also if it is stopped; then kill it."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGCONT)
        if not select.select([handle], [], [], ORPHAN_SECONDS)[0]:
            signal.pidfd_send_signal(handle, signal.SIGKILL)


def _die_with_parent(signum: int) -> None:
    """Have the system send this signal when the parent ends (0: none), where it can do so."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, int(signum))


def _end_of(code: int) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


def _is_open(descriptor: int) -> bool:
    with suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


def _is_stopped(process: int) -> bool:
    with suppress(OSError), open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "tT"
    return False


def _segments(process: int | str) -> set[str]:
    """Return the segments of MPI's shared memory that a process has mapped."""
    with suppress(OSError), open(f"/proc/{process}/maps") as file:
        return {line.split()[5] for line in file if SEGMENTS in line and "(deleted)" not in line}
    return set()


def _openmp_file(process: int) -> str:
    """Return the file that a process leaves behind if it has used MKL and is killed."""
    return OPENMP.format(process=process, user=os.getuid())


def _unlink(path: str) -> None:
    with suppress(OSError):  # another rank of this host was quicker
        os.unlink(path)


if __name__ == "__main__":
    watch = Watch(
        int(sys.argv[1]),
        socket.socket(fileno=int(sys.argv[2])),
        float(sys.argv[3]),
        float(sys.argv[4]),
    )
    watch.leave(watch.until_the_end())
