"""The flight record of a rank: its last instructions and what it does, written when a run fails.

Workers note references to what they measure anyway, so a step costs nothing more; a file is made of
them only when it is written. The recorder of a process writes the files of its ranks,

    FOLDER/rank-0.json, FOLDER/rank-1.json, ...

as soon as the first failure of the run is heard of, on whatever thread hears of it: what the ranks
wait for is then still to be seen. SIGQUIT asks for the files without ending the run, also of a
process whose main thread is inside C code. `python -m runtime postmortem FOLDER` reads them.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self
from weakref import ReferenceType, ref

from runtime.backends.device.clocks import Stamps
from runtime.planning.step import StepBatches
from runtime.schedule.instructions import Instruction, Recv, Send
from runtime.schedule.program import Program
from runtime.schedule.timeline import Track
from runtime.transports import Cluster, Failure
from runtime.transports.base import error_text
from symgraph.app.command_line import FAILED, exit_status, say

KEPT = 1000  # instructions
FORMAT = 1
RECORD = "rank-{}.json"


class Noted(NamedTuple):
    """A run of a program: what its worker knows of it."""

    #: The number of its step.
    step: int
    program: Program
    parts: StepBatches
    #: The stamps of instructions that have begun, and of those that have ended.
    starts: list[Any]
    ends: list[Any]
    #: Tells the times of stamps.
    stamps: Stamps


class FlightRecord:
    """The last instructions of one rank, noted by its workers."""

    def __init__(self) -> None:
        # A network that is bound no more is not kept for what its messages carried.
        self._over: deque[tuple[int, ReferenceType[StepBatches], Track]] = deque()
        self._kept = 0  # instructions in it
        self._current: Noted | None = None

    def begin(self, noted: Noted) -> None:
        """Note a run that begins; its lists grow while it runs."""
        self._current = noted

    def end(self, track: Track) -> None:
        """Note that the current run is over."""
        current, self._current = self._current, None
        assert current is not None
        if not len(track.program):  # else those of an idle rank were kept for ever
            return
        self._over.append((current.step, ref(current.parts), track))
        self._kept += len(track.program)
        while self._kept - len(self._over[0][2].program) >= KEPT:
            self._kept -= len(self._over.popleft()[2].program)

    def facts(self) -> dict[str, Any]:
        """Return the record as JSON-able values, with times in ns of `time.perf_counter_ns`.

        May be called by any thread, while the rank runs.
        """
        current = self._current
        rows: list[list[Any]] = []
        tags: dict[str, Any] = {}
        over = list(self._over)
        runs = [
            (step, parts(), t.program, t.start.tolist(), t.end.tolist()) for step, parts, t in over
        ]
        doing: dict[str, Any] | None = None
        if current is not None:
            step, program, parts = current[:3]
            begun = len(current.starts)
            ended = min(len(current.ends), begun)
            starts = _reached(current.stamps, current.starts[:begun])
            ends = _reached(current.stamps, current.ends[:ended])
            runs.append((step, parts, program, starts, ends))
            if ended < begun <= len(program):
                since = starts[ended] if ended < len(starts) else None
                doing = {"instruction": str(program[ended]), "step": step, "since": since}
                tags |= _tags([program[ended]], parts)
        for step, bound, program, starts, ends in runs:
            shown = [program[at] for at in range(min(len(program), len(ends)))]
            tags |= _tags(shown, bound)
            rows += [
                [str(instruction), step, start, end]
                for instruction, start, end in zip(shown, starts, ends, strict=False)
            ]
        return {"doing": doing, "instructions": rows[-KEPT:], "tags": tags}

    @property
    def step(self) -> int | None:
        """The number of the current step, or of the last one; None before the first."""
        current, over = self._current, list(self._over)
        return current.step if current is not None else over[-1][0] if over else None


def _reached(stamps: Stamps, marks: Sequence[Any]) -> list[int]:
    """Return the times of those first marks that a device has reached, without waiting for it."""
    with suppress(Exception):  # a GPU that has failed tells no times
        times: list[int] = stamps.reached(marks).tolist()
        return times
    return []


def _tags(instructions: Iterable[Instruction], parts: StepBatches | None) -> dict[str, Any]:
    """Return what messages carry, by tag: the value, and the ranks that send and receive it."""
    tags: dict[str, Any] = {}
    if parts is None:  # its network is bound no more
        return tags
    for instruction in instructions:
        if isinstance(instruction, Send | Recv) and str(instruction.tag) not in tags:
            partition = parts.partitions[parts.kinds[instruction.mb]]
            edge = next((e for e in partition.edges if e.tag == instruction.tag), None)
            if edge is not None:
                tags[str(edge.tag)] = {
                    "value": str(edge.value),
                    "from": partition.rank(edge.src),
                    "to": partition.rank(edge.dst),
                    "bytes": edge.type.nbytes,
                }
    return tags


class RecordedRank(Protocol):
    """What workers of one rank share: runtime.engine.rank.RankResources."""

    flight: FlightRecord


class Recorded(Protocol):
    """A session."""

    @property
    def resources(self) -> Mapping[int, RecordedRank]: ...


class FlightRecorder:
    """Writes the flight records of a process's ranks; a context manager around a run.

    An error that leaves the block gets the attribute `flight_records`, the folder of the files, on
    one of the ranks, so that it is named once per run.
    """

    def __init__(self, cluster: Cluster, folder: Path, facts: Mapping[str, Any]) -> None:
        """Record the ranks of a cluster that live in this process.

        Args:
            cluster: The ranks; every process passes its own.
            folder: Takes the files; it is made when the first one is written.
            facts: JSON-able facts about the run for all files, such as `devices` and `versions`.
        """
        self.folder, self.cluster, self._facts = folder, cluster, facts
        self._records: dict[int, list[FlightRecord]] = {rank: [] for rank in cluster.ranks}
        self._lock = threading.Lock()
        self._failure: Failure | None = None  # the one that the files tell of
        self._written = False  # whether there are files of it
        self._quit: _QuitListener | None = None
        cluster.alarm(self.failed)

    def follow(self, *sessions: Recorded) -> None:
        """Add what the ranks of these sessions do."""
        for session in sessions:
            for rank, resources in session.resources.items():
                if resources.flight not in self._records[rank]:
                    self._records[rank].append(resources.flight)

    def failed(self, failure: Failure) -> None:
        """Write the files, unless the failure is no abnormal end or they are written already."""
        with self._lock:
            if failure.status == FAILED and self._failure is None:
                self._failure = failure
                self._written = self._write(failure)

    def asked(self) -> None:
        """Write the files of a run that goes on, and say so."""
        with self._lock:
            if self._failure is None and self._write(None) and 0 in self._records:
                say(f"flight records: {self.folder}")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._quit = _QuitListener(self.asked)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._quit is not None:
            self._quit.close()
        if error is None:
            return
        if exit_status(error) == FAILED:
            self.failed(Failure(-1, "", error_text(error)))
        with self._lock:
            if self._failure and self._written and _speaker(self._failure) in self._records:
                error.flight_records = str(self.folder)  # type: ignore[attr-defined]

    def _write(self, failure: Failure | None) -> bool:
        """Write the files of all local ranks; return whether that was possible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for rank in self._records:
                path = self.folder / RECORD.format(rank)
                partial = path.with_suffix(".partial")
                text = json.dumps(self._facts_of(rank, failure))
                try:
                    partial.write_text(text, encoding="utf-8")
                    os.replace(partial, path)
                finally:
                    partial.unlink(missing_ok=True)
        except OSError as error:  # the failure itself matters more
            say(f"cannot write flight records into {self.folder}: {error.strerror}")
            return False
        return True

    def _facts_of(self, rank: int, failure: Failure | None) -> dict[str, Any]:
        doing = self.cluster.doing(rank)
        parts = [record.facts() for record in self._records[rank]]
        rows = [row for part in parts for row in part["instructions"]]
        rows.sort(key=lambda row: row[2])
        steps = [record.step for record in self._records[rank]]
        devices = self._facts.get("devices", [])
        return {
            "format": FORMAT,
            **self._facts,
            "rank": rank,
            "ranks": self.cluster.size,
            "device": devices[rank] if rank < len(devices) else None,
            "host": platform.node(),
            "pid": os.getpid(),
            "clock": {"now": time.perf_counter_ns(), "unix": time.time_ns()},
            "failure": None if failure is None else failure.as_json(),
            "step": next((step for step in steps if step is not None), None),
            "doing": next((part["doing"] for part in parts if part["doing"]), None),
            "at": doing.what,
            "wait": doing.wait and {"for": doing.wait, "needs": doing.needs, "since": doing.since},
            "tags": {tag: said for part in parts for tag, said in part["tags"].items()},
            "instructions": rows[-KEPT:],
        }


def _speaker(failure: Failure) -> int:
    """Return the rank that names the folder: rank 0, unless its process is what was lost."""
    return 1 if failure.rank == 0 and not failure.where else 0


class _QuitListener:
    """Calls a function whenever SIGQUIT arrives, on a thread of its own.

    Python's own handlers wait until the main thread is back from C code. What the C handler writes
    into a pipe does not.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._handler = signal.signal(signal.SIGQUIT, lambda number, frame: None)
        self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="symgraph-flight", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        signal.set_wakeup_fd(self._descriptor)
        signal.signal(signal.SIGQUIT, self._handler)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _listen(self) -> None:
        while numbers := os.read(self._reader, 64):
            if signal.SIGQUIT in numbers:
                with suppress(Exception):
                    self._call()
