"""Guard process between an MPI launcher and a rank, so that the survivors of a lost rank can speak.

Why: when a rank dies of a signal, MPICH's hydra kills every other rank with SIGKILL, which none
can catch, within milliseconds; `-disable-auto-cleanup` does not help, since the proxy's wait loop
kills all the same. Hydra learns of a death from two things: the process it started, and the end of
its PMI connection. So the process it started becomes a guard, the rank goes on as the guard's
child, and both hold the connection, as below a shell script that mpiexec starts:

    hydra_pmi_proxy ── guard (this file, started by exec) ── rank (the user's program)

The guard ends with its rank's status. If a signal ended the rank that did not come through the
guard, it first waits `LOST_SECONDS`, in which the other ranks hear of the loss on the lifeline,
print what they waited for, and leave. After any other failure it waits `LEFT_SECONDS`: ranks that
fail leave together, and hydra's killing of the last guards no longer counts as their exit status
once nobody holds an output open. So guards close theirs, and mpiexec ends with the ranks' status.

The rank has a process group of its own. Hydra signals the guard's group: what can be caught is
handed on, and a rank whose guard was killed sees that its parent changed (`lifeline.py`) and ends.

Run with `python -I -S`: imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

__all__: list[str] = []

LOST_SECONDS = 4.0  # more than the survivors' own grace
LEFT_SECONDS = 0.25
HANDED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
)


def stand_guard() -> int:
    """Fork: this process becomes the guard, its child goes on; returns the guard's process id.

    `RuntimeError` if other Python threads run: they would not live on in the child.
    """
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"the process has several threads ({names})")
    guard = os.getpid()
    rank = os.fork()
    if rank:
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(rank)])
    os.setpgid(0, 0)
    return guard


def watch(rank: int) -> NoReturn:
    """Be the guard of process `rank`: hand signals on, and end with its status once it ends."""
    handed_on: list[int] = []

    def hand_on(signum: int, frame: FrameType | None) -> None:
        handed_on.append(signum)
        os.kill(rank, signum)

    for signum in HANDED_ON:
        signal.signal(signum, hand_on)
    close_streams()
    _, status = os.waitpid(rank, 0)
    for signum in HANDED_ON:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # hydra without auto-cleanup tells ends by it
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        lost = code < 0 and -code not in handed_on
        time.sleep(LOST_SECONDS if lost else LEFT_SECONDS)
    os._exit(code if code >= 0 else 128 - code)  # as a shell says it


def close_streams() -> None:
    """Close stdin, stdout and stderr, and every duplicate of them (hydra leaks some)."""
    for stream in (2, 1, 0):
        with suppress(OSError):  # it is closed already
            wanted = os.fstat(stream)
            for name in os.listdir("/dev/fd"):
                with suppress(OSError):  # the descriptor of the listing itself
                    if os.path.samestat(os.fstat(int(name)), wanted):
                        os.close(int(name))


if __name__ == "__main__":
    watch(int(sys.argv[1]))
