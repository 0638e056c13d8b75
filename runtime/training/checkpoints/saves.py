"""Saving while training goes on, and the choice of the checkpoint to resume from.

At a step's end every rank copies its state (that is all that training waits for), and a thread of
each process writes the copy. Each step's sum over ranks carries one more number, so that all ranks
learn in the same step that all have written; then the process of rank 0 publishes the checkpoint:

    step 4 | copy | step 5      | step 6              | step 7
                    ─ write ────────┤1 of all ranks: publish ─┤and 1 more of rank 0: done
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from runtime.engine.session import Session
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.state import Snapshot, collect
from runtime.transports import Cluster, Transport
from runtime.transports.agreement import agree_on_settings
from runtime.transports.base import GRACE_SECONDS
from symgraph.core.errors import ConfigError, RunError


class _Abandoned(Exception):
    """The save is not wanted any more."""


class _Task:
    """Work for the writer's thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._ended = threading.Event()

    def run(self) -> None:
        """Do the work; an error of it is kept."""
        try:
            self._work()
        except BaseException as error:
            self.error = error
        self._ended.set()

    @property
    def done(self) -> bool:
        """Whether it has ended without an error."""
        return self._ended.is_set() and self.error is None

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""
        return self._ended.wait(seconds)


class _Writer:
    """A thread that does one task after the other; it does not keep the process from ending.

    All saves share it: each thread that comes and goes leaves some 300 bytes behind in a rank of
    MPI.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] | None = None

    def start(self, work: Callable[[], object]) -> _Task:
        """Have the thread do this once it has done what came before."""
        if self._tasks is None:
            self._tasks = SimpleQueue()
            threading.Thread(
                target=self._run, args=(self._tasks,), name="symgraph-save", daemon=True
            ).start()
        task = _Task(work)
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """End the thread once it has done all tasks."""
        if self._tasks is not None:
            self._tasks.put(None)
        self._tasks = None

    @staticmethod
    def _run(tasks: SimpleQueue[_Task | None]) -> None:
        while (task := tasks.get()) is not None:
            task.run()


class Saves:
    """The checkpoints that a session saves; every process calls the same methods in one order."""

    def __init__(
        self, session: Session, folder: CheckpointFolder, keep: int, *, asynchronous: bool
    ) -> None:
        """Prepare; nothing is written yet.

        Args:
            session: The training session.
            folder: The folder of all checkpoints.
            keep: How many of them remain.
            asynchronous: Whether training goes on while files are written.
        """
        self.session, self.folder, self.keep = session, folder, keep
        self.asynchronous = asynchronous
        self._snapshot = Snapshot()
        self._writer = _Writer()
        self._path: Path | None = None  # of the save under way
        self._write: _Task | None = None
        self._publish: _Task | None = None  # in the process of rank 0
        self._abandoned = False

    def begin(self, about: Mapping[str, Any]) -> float:
        """Save the session's state, with further facts; return the seconds that this has taken.

        Waits for an earlier save that is still under way, and unless saves are asynchronous, also
        for this one. Raises as `finish` does.
        """
        start = time.perf_counter()
        self.finish()
        folder, snapshot = self.folder, self._snapshot
        snapshot.take(self.session, about)
        partial = folder.partial(snapshot.steps)
        self._path = folder.named(snapshot.steps)
        self._publish, self._abandoned = None, False

        def write() -> None:
            folder.disk.make(partial)
            snapshot.write(folder.disk, partial, self._proceed())

        self._write = self._writer.start(write)
        if not self.asynchronous:
            self.finish()
        return time.perf_counter() - start

    def tell(self) -> None:
        """Put how far this process is into the next step's sum over ranks."""
        for rank, updater in self.session.updaters.items():
            written = self._write is not None and self._write.done
            published = rank == 0 and self._publish is not None and self._publish.done
            updater.saved = float(written) + float(published)

    def hear(self) -> None:
        """Read from the step's sum how far all ranks are; RunError if a local write failed."""
        if self._path is None:
            return
        self._raise_errors()
        size = self.session.cluster.size
        (saved, *_) = [updater.saved_sum for updater in self.session.updaters.values()]
        if saved > size:
            self._path = None
        elif saved == size:
            self._start_publishing()

    def finish(self) -> None:
        """Wait until the save under way, if there is one, has its name.

        Raises:
            RunError: On all ranks: a file cannot be written; the older checkpoints are complete.
        """
        if self._path is None:
            return

        def work(transport: Transport) -> None:
            transport.waiting_for("the writing of a checkpoint")
            self._wait(self._write, transport)
            transport.exchange("written")
            if transport.rank == 0:
                self._start_publishing()
                self._wait(self._publish, transport)
            transport.exchange("published")

        try:
            self.session.cluster.run(work)
        except BaseException:
            self.close()
            raise
        self._path = None

    def close(self) -> None:
        """End what is under way within a few seconds: what is being published gets its name."""
        self._abandoned = True
        if self._publish is not None:
            self._publish.wait(GRACE_SECONDS)
        if self._write is not None:
            self._write.wait(GRACE_SECONDS)
        self._writer.close()
        if self._path is not None and 0 in self.session.cluster.ranks:
            self.folder.discard(self._snapshot.steps)
        self._path = None

    def _proceed(self) -> Iterator[None]:
        while not self._abandoned:
            yield
        raise _Abandoned

    def _start_publishing(self) -> None:
        if 0 not in self.session.cluster.ranks or self._publish is not None:
            return
        folder, snapshot = self.folder, self._snapshot

        def publish() -> None:
            files = collect(self.session, folder.disk, folder.partial(snapshot.steps))
            folder.publish(snapshot.steps, files, snapshot.facts)
            folder.prune(self.keep)

        self._publish = self._writer.start(publish)

    def _wait(self, task: _Task | None, transport: Transport) -> None:
        assert task is not None
        if not task.wait(transport.timeout):
            raise RunError(f"{self._path} is not written after {transport.timeout:g} s")
        self._raise_error(task)

    def _raise_errors(self) -> None:
        """Raise the errors of this process's tasks on all ranks."""
        if any(task is not None and task.error for task in (self._write, self._publish)):
            self.session.cluster.run(self._raise_first)

    def _raise_first(self, transport: Transport) -> None:
        for task in (self._write, self._publish):
            if task is not None:
                self._raise_error(task)

    def _raise_error(self, task: _Task) -> None:
        if task.error is None:
            return
        text = f"cannot write the checkpoint {self._path}: {task.error}"
        raise RunError(text) from task.error


def locked(cluster: Cluster, folder: CheckpointFolder) -> ExitStack:
    """Lock a folder, if it is there, until the result is closed, and clean it.

    Raises ConfigError, on all ranks, if another run uses it.
    """

    def work(transport: Transport) -> None:
        transport.waiting_for("the lock of the folder of checkpoints")
        if transport.rank == 0 and folder.path.is_dir():
            lock.enter_context(folder.alone())
            folder.clean()
        transport.exchange("locked")

    with ExitStack() as lock:
        cluster.run(work)
        return lock.pop_all()


class Choice(NamedTuple):
    """The checkpoint to resume from."""

    #: None if there is none.
    path: Path | None
    #: The newer ones that are damaged, and how.
    damaged: list[tuple[Path, str]]


def newest_whole(cluster: Cluster, folder: CheckpointFolder, *, fallback: bool) -> Path | None:
    """Find the newest checkpoint, after comparing all of its files with its manifest.

    Args:
        cluster: The ranks, which share the work and find the same.
        folder: The folder.
        fallback: Whether to take an older one if the newest is damaged, which is then set aside.

    Returns:
        Its path; None if there is none.

    Raises:
        ConfigError: On all ranks: the newest is damaged.
    """
    (choice, *_) = cluster.run(lambda transport: _choose(transport, folder))
    if not choice.damaged:
        return choice.path
    path, what = choice.damaged[0]
    message = f"the newest checkpoint {path} is damaged: {what}"
    if choice.path is None:
        raise ConfigError(
            f"{message}; there is no older one that is whole: start anew with "
            "checkpoint.resume=never, or with another checkpoint.directory"
        )
    if not fallback:
        raise ConfigError(
            f"{message}; the newest whole one is {choice.path}: checkpoint.fallback=true resumes "
            "from that"
        )

    def set_aside(transport: Transport) -> None:
        if transport.rank == 0:
            for damaged, _ in choice.damaged:
                folder.set_aside(damaged)
        transport.exchange("set aside")

    cluster.run(set_aside)
    if 0 in cluster.ranks:
        warnings.warn(f"{message}; it is set aside, and {choice.path} taken", stacklevel=2)
    return choice.path


def _choose(transport: Transport, folder: CheckpointFolder) -> Choice:
    transport.waiting_for("the comparison of checkpoints with their checksums")
    entries = folder.entries()
    names = [f"{e.path.name} {e.manifest.checksum if e.manifest else 'damaged'}" for e in entries]
    agree_on_settings(transport, {"checkpoint": names[0] if names else None, "all": names})
    damaged = []
    for entry in entries:
        if entry.manifest is None:
            damaged.append((entry.path, str(entry.damage)))
            continue
        mine = sorted(entry.manifest.files)[transport.rank :: transport.size]
        found = transport.exchange(entry.manifest.damage(entry.path, mine))
        wrong = next(filter(None, found), None)
        if wrong is None:
            return Choice(entry.path, damaged)
        damaged.append((entry.path, wrong))
    return Choice(None, damaged)
