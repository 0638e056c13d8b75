"""Buckets compared with padding everything to the longest: examples/lstm_ptb on part of its text.

    python -m benchmarks.bucketing [--tokens 5000] [--rounds 3] [--text FILE] [key.path=value ...]

Epochs of the variants alternate, so other work on the machine affects all of them alike. The losses
of the first epoch are compared bit by bit between two devices and one. Memory is the size of a
process after a step of every bucket, or of the largest alone. A step has one batch and uses zb-h1;
two variants have steps of two batches, in micro-batches of equal rows or by predicted time. "pads"
is the share of all places whose label does not count, "cores" the processor time of an epoch over
its seconds. `key.path=value` changes all configs.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS

import numpy as np
from rich.console import Console
from rich.table import Table

from runtime import limit_blas, make_cluster
from runtime.training.data.table import load_data
from runtime.training.data.text import TextDataset
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from symgraph.app.config import load_config
from symgraph.command_line import OK, Parser, status_of
from symgraph.core.units import bytes_text
from symgraph.io import DataBatch, DataDesc

FOLDER = Path(__file__).parent.parent / "examples" / "lstm_ptb"
PLANNED, HAND, PADDED, ALONE = "planner's", "by hand", "padded to 60", "by hand, one device"
TWO, TIMED = "by hand, two batches", "by hand, two batches by time"
LONGEST = 60
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    PLANNED: ("bucketed.yaml", ()),
    HAND: ("hand.yaml", ()),
    PADDED: ("hand.yaml", (f"data.buckets=[{LONGEST}]",)),
    ALONE: ("hand.yaml", ("devices=[cpu(0)]",)),
    TWO: ("hand.yaml", ("data.batches_per_step=2",)),
    TIMED: ("hand.yaml", ("data.batches_per_step=2", "data.micro_batches=by_time")),
}


def make_trainer(name: str, options: argparse.Namespace, stack: ExitStack) -> Trainer:
    """Make a variant's trainer on the first tokens of the text."""
    file, own = VARIANTS[name]
    text = ("data.kind=text", f"data.path={options.text}") if options.text else ()
    given = ("data.batches_per_step=1", "pipeline.schedule=zb-h1", *text, *options.overrides, *own)
    config = load_config(str(FOLDER / file), given)
    data = load_data(config)
    assert isinstance(data, TextDataset)
    corpus = replace(data.corpus, train=data.corpus.train[: options.tokens])
    cluster = stack.enter_context(make_cluster("threads", len(config.devices)))
    return Trainer(prepare(config), cluster, TextDataset(corpus))


class Epoch(NamedTuple):
    """Seconds of an epoch, its processor time per second, its words and each step's loss."""

    seconds: float
    cores: float
    words: int
    losses: list[float]

    @property
    def rate(self) -> float:
        """Words per second."""
        return self.words / self.seconds

    @property
    def work(self) -> float:
        """Words per second of processor time."""
        return self.rate / self.cores


def epoch(trainer: Trainer) -> Epoch:
    begun, used = time.perf_counter(), time.process_time()
    losses = []
    for step in range(len(trainer.source)):
        figures = trainer.training.step_batches(trainer.source.batches(step))
        losses.append(figures["nll_nll"])
    seconds = time.perf_counter() - begun
    used = time.process_time() - used
    words = sum(trainer.source.count(step) for step in range(len(trainer.source)))
    return Epoch(seconds, used / seconds, words, losses)


def pads(trainer: Trainer) -> float:
    """Return the share of an epoch's places whose label does not count."""
    steps, source = range(len(trainer.source)), trainer.source
    places = sum(b.data[0].size for step in steps for b in source.batches(step))
    return 1 - sum(map(source.count, steps)) / places


def blank(trainer: Trainer, length: int) -> DataBatch:
    """Make a batch that repeats one word, for any length."""
    ids = np.full((length, trainer.job.config.data.batch_size), 2, np.int32)
    described = [DataDesc(n, ids.shape, "int32", "TN") for n in ("data", "label")]
    return DataBatch(
        [ids], [ids], bucket_key=length, provide_data=described[:1], provide_label=described[1:]
    )


def held(options: argparse.Namespace, lengths: Sequence[int]) -> tuple[int, int]:
    """Measure the bytes of the pools and of the process after steps of these buckets."""
    with ExitStack() as stack, limit_blas(1):
        trainer = make_trainer(HAND, options, stack)
        for length in [*lengths, *lengths]:
            trainer.training.step_batches([blank(trainer, length)])
        pools = sum(trainer.training.held.values())
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pools, pages * os.sysconf("SC_PAGE_SIZE")


def further(options: argparse.Namespace) -> tuple[float, float]:
    """Measure the seconds to plan a bucket of 60 steps after one of 61, and to bind it."""
    options = argparse.Namespace(**vars(options))
    options.overrides = [*options.overrides, f"data.buckets=[{LONGEST}, {LONGEST + 1}]"]
    with ExitStack() as stack, limit_blas(1):
        trainer = make_trainer(HAND, options, stack)
        batch, buckets = blank(trainer, LONGEST), trainer.job.buckets
        assert buckets is not None
        trainer.training.step_batches([blank(trainer, LONGEST + 1)])
        begun = time.perf_counter()
        buckets.plan(LONGEST, batch.descriptions)
        planned = time.perf_counter() - begun
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            trainer.training.step_batches([batch])
            seconds.append(time.perf_counter() - begun)
        return planned, seconds[0] - min(seconds[1:])


def apart(function: Any, *arguments: Any) -> Any:
    """Call a function in a new process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def compare_epochs(options: argparse.Namespace, console: Console) -> None:
    """Print the seconds of an epoch of each variant, and whether their losses are equal."""
    with ExitStack() as stack, limit_blas(1):
        trainers = {name: make_trainer(name, options, stack) for name in VARIANTS}
        first = {name: epoch(trainer).losses for name, trainer in trainers.items()}
        epochs: dict[str, list[Epoch]] = {name: [] for name in VARIANTS}
        for _ in range(options.rounds):
            for name, trainer in trainers.items():
                epochs[name].append(epoch(trainer))
        shares = {name: pads(trainer) for name, trainer in trainers.items()}
    table = Table(title=f"an epoch of {epochs[HAND][0].words} words, median of {options.rounds}")
    for heading in ("", "steps", "pads", "seconds", "cores", "words/s", f"times {PADDED}"):
        table.add_column(heading, justify="right")
    for name, own in epochs.items():
        seconds, cores = median(e.seconds for e in own), median(e.cores for e in own)
        ratio = median(a.rate / b.rate for a, b in zip(own, epochs[PADDED], strict=True))
        rate = median(e.rate for e in own)
        figures = f"{seconds:.2f}", f"{cores:.2f}", f"{rate:.0f}", f"{ratio:.2f}"
        table.add_row(name, str(len(first[name])), f"{shares[name]:.0%}", *figures)
    console.print(table)
    pairs = [*zip(epochs[TIMED], epochs[TWO], strict=True)]
    for unit, ratios in (
        ("second", [a.rate / b.rate for a, b in pairs]),
        ("second of processor time", [a.work / b.work for a, b in pairs]),
    ):
        console.print(
            f"{TIMED}, words a {unit}: {median(ratios):.2f} times {TWO} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    for name in (PLANNED, HAND):
        equal = "equal bits" if first[name] == first[ALONE] else "DIFFERENT"
        console.print(f"losses of {len(first[name])} steps, {name} and {ALONE}: {equal}")


def run() -> int:
    """Run the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m benchmarks.bucketing", description=__doc__, formatter_class=form
    )
    parser.add_argument("--tokens", type=int, default=5000, help="of the text, for an epoch")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each variant")
    parser.add_argument("--text", type=Path, help="a text of one sentence a line")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    options = parser.parse_args()
    console = Console(width=100)
    planned, bound = apart(further, options)
    console.print(
        f"a further bucket of {LONGEST} steps: {planned:.2f} s to plan, {bound:.2f} s to bind"
    )
    lengths = load_config(str(FOLDER / "hand.yaml"), options.overrides).data.buckets
    every, largest = apart(held, options, lengths), apart(held, options, [max(lengths or ())])
    for what, a, b in zip(("pools", "the process"), every, largest, strict=True):
        console.print(
            f"memory of {what}: {bytes_text(a)} with all buckets, {bytes_text(b)} with the largest "
            f"alone ({a / b - 1:+.1%})"
        )
    compare_epochs(options, console)
    return OK


if __name__ == "__main__":
    sys.exit(status_of(run))
