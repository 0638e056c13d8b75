"""Training for long: do memory, threads, descriptors or files grow?

    python -m benchmarks.soak [--minutes 30] [--sessions 500]

Three parts: a run of threads and one of two ranks over MPI, each for half of the minutes, with a
checkpoint every five steps and evaluations, watched from outside; and, in this process, so many
sessions planned, opened, trained, saved and closed. Each part prints its growth: the trend of the
resident memory of its largest process after a warm-up, in all, and threads, descriptors and files
at the end beside those after the warm-up. Status 1 if any of them grows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.runs import Run, write_config
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config

WARM_UP = 0.25  # share of the samples before anything counts
MEMORY = 2 * 2**20  # bytes; what the allocator and the interpreter may take more
SECONDS = 1.0  # between two samples, at least
SAMPLES = 600  # at most, about
SAVING = 5  # steps between two checkpoints
END_SECONDS = 120.0  # for a run to start and to end
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """What processes hold at one time."""

    #: Resident memory of the largest, in bytes.
    memory: int
    #: Threads, and open descriptors, of all together.
    threads: int
    descriptors: int
    #: Files in the run's folder.
    files: int


def sample(processes: Sequence[int], folder: Path) -> Sample:
    """Look at processes, and at the folder that they write to."""
    places = [Path("/proc", str(pid)) for pid in processes]
    return Sample(
        max(int((p / "statm").read_text().split()[1]) * PAGE for p in places),
        sum(len(os.listdir(p / "task")) for p in places),
        sum(len(os.listdir(p / "fd")) for p in places),
        sum(len(files) for _, _, files in os.walk(folder)),
    )


def growth(samples: Sequence[Sample]) -> tuple[str, list[str]]:
    """How much was held after the warm-up and what came on top, in words; and what has grown.

    Memory counts by its trend, the others by the least in their last third beside the least in
    their first, so that a checkpoint which is just being written does no harm.
    """
    counted = samples[int(len(samples) * WARM_UP) :]
    memory = np.array([s.memory for s in counted], float)
    slope = float(np.polyfit(np.arange(len(memory)), memory, 1)[0]) if len(memory) > 1 else 0.0
    added = slope * len(memory)
    grown = ["memory"] if added > MEMORY else []
    words = [f"memory {memory[0] / 2**20:.1f} MiB {added / 2**20:+.2f}"]
    third = max(1, len(counted) // 3)
    for name in ("threads", "descriptors", "files"):
        first, last = (
            min(getattr(s, name) for s in part) for part in (counted[:third], counted[-third:])
        )
        words.append(f"{name} {first} {last - first:+d}")
        if last > first:
            grown.append(name)
    return ", ".join(words), grown


def watch(folder: Path, ranks: int | None, minutes: float) -> tuple[str, list[str]]:
    """Train from another process for some minutes; see `growth`."""
    folder.mkdir()
    config = write_config(folder, 2, 0, SAVING, evaluate={"every": 100, "tokens": 500})
    limits = ["train.steps=null", f"train.seconds={minutes * 60}"]
    run = Run(folder, "run", [str(config), *limits], ranks)
    run.has_done(1, END_SECONDS)
    samples = []
    while run.status is None:
        time.sleep(max(SECONDS, minutes * 60 / SAMPLES))
        here = [p.pid for p in run.processes() if p.role.startswith(("rank", "process"))]
        if len(here) < (ranks or 1):
            break
        with suppress(OSError):  # one has ended
            samples.append(sample(here, folder))
    if run.left(END_SECONDS) or run.status != 0:
        run.end()
        return f"status {run.status}: {run.said[-300:]}", ["status"]
    words, grown = growth(samples[:-2])  # without those of a run that is ending
    steps = max(run.steps())
    if segments := run.shared_memory_left():
        grown.append(f"shared memory ({', '.join(segments)})")
    return f"{steps:,} steps, {steps // SAVING:,} checkpoints: {words}", grown


def open_and_close(folder: Path, sessions: int) -> tuple[str, list[str]]:
    """Plan, open, train, save and close sessions in this process; see `growth`."""
    folder.mkdir()
    path = write_config(folder, 2, 4, 2, evaluate={"tokens": 500})
    config = load_config(str(path), ["checkpoint.resume=never"])
    samples = []
    for _ in range(sessions):
        with make_cluster("threads", len(config.devices)) as cluster:
            Trainer(prepare(config), cluster, load_data(config)).fit()
        gc.collect()  # what the allocator holds back is no growth, but would hide one
        ctypes.CDLL(None).malloc_trim(0)
        samples.append(sample([os.getpid()], folder))
    words, grown = growth(samples)
    return f"{sessions} sessions: {words}", grown


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of training, in all")
    parser.add_argument("--sessions", type=int, default=500, help="to open and close")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "group2ctx maps groups")
    grown = []
    with TemporaryDirectory(prefix="soak-") as name:
        for part, work in {
            "threads": lambda folder: watch(folder, None, options.minutes / 2),
            "mpi": lambda folder: watch(folder, 2, options.minutes / 2),
            "sessions": lambda folder: open_and_close(folder, options.sessions),
        }.items():
            words, more = work(Path(name, part))
            print(f"{part}: {words}", flush=True)
            grown += [f"{what} of {part}" for what in more]
    print(f"grown: {', '.join(grown) or 'nothing'}")
    sys.exit(bool(grown))


if __name__ == "__main__":
    main()
