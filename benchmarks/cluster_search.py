"""Search: a cluster that we do not have, `--search` beside one device and a sweep by hand.

    python -m benchmarks.cluster_search [--hosts 8] [--devices 8] [--points 200] [key=value ...]

The network is the 8-layer LSTM of 400 units on batches of 64 x 35 words; devices have 15 TFLOP/s,
25 GB/s within a host and 10 Gbit/s between hosts. Points of the sweep put layers on the first 1, 2,
4, 8 or 10 devices evenly, with one of the schedules, micro-batches and time segments; an even
selection if there are more than requested. All steps are predicted. `key.path=value` changes all
configs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from runtime.profiling.public import search
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.epoch import alike
from runtime.training.job import training_plan
from symgraph.app.config import load_config
from symgraph.core.units import seconds_text

BASE = Path(__file__).parent.parent / "examples" / "lstm_lm.yaml"
LAYERS, STEPS = 8, 35
COUNTS, SCHEDULES, MICRO_BATCHES = (1, 2, 4, 8, 10), ("1f1b", "zb-h1", "gpipe"), (1, 2, 4, 8)
PARTS = (1, 4, 9, 18)  # time segments
OPEN = ("partition.strategy", "pipeline.schedule", "pipeline.time_segment")
DEVICE = "{flops: 15 TFLOP/s, bandwidth: 900 GB/s, call: 10 us, memory: 16 GiB, node: %d}"


def machine(hosts: int, devices: int) -> str:
    """Return the text of the machine file."""
    lines = [f"  gpu({i}): {DEVICE % (i // devices)}" for i in range(hosts * devices)]
    inside = "  node: {latency: 5 us, bandwidth: 25 GB/s}"
    between = "  network: {latency: 30 us, bandwidth: 10 Gbit/s, shared: true}"
    return "\n".join(["devices:", *lines, "links:", inside, between, ""])


def base(hosts: int, devices: int, file: Path, overrides: Sequence[str]) -> list[str]:
    """Return the overrides common to all configs."""
    every = ", ".join(f"gpu({i})" for i in range(hosts * devices))
    return [
        f"args={{layers: {LAYERS}, hidden: 400, embed: 400}}",
        "data.batch_size=64",
        f"data.sequence_length={STEPS}",
        f"machine={file}",
        f"devices=[{every}]",
        *overrides,
    ]


def points(devices: int) -> Iterator[list[str]]:
    """Yield the overrides of all points."""
    counts = [count for count in COUNTS if count <= devices]
    for count, schedule, batches, parts in product(counts, SCHEDULES, MICRO_BATCHES, PARTS):
        inner = max(count - 2, 1) if count > LAYERS else count
        first = int(count > LAYERS)
        groups = [f"layer{i}: gpu({first + i * inner // LAYERS})" for i in range(LAYERS)]
        groups += ["embed: gpu(0)", f"decode: gpu({count - 1})"]
        if count > 1 or (parts == 1 and schedule == SCHEDULES[0]):
            yield [
                f"group2ctx={{{', '.join(groups)}}}",
                f"pipeline.schedule={schedule}",
                f"pipeline.micro_batches={batches}",
                f"pipeline.time_segment={'null' if parts == 1 else -(-STEPS // parts)}",
            ]


def swept(shared: Sequence[str], devices: int, most: int) -> tuple[int, float, list[str]]:
    """Predict the steps of the sweep; return the number of points, the best and its overrides."""
    every = list(points(devices))
    chosen = np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int)
    best, at = float("inf"), [""]
    for number in chosen.tolist():
        config = load_config(str(BASE), [*shared, *every[number], "partition.strategy=null"])
        planned = training_plan(config)
        seconds = Candidate.of(config, (), planned, alike(planned)).seconds
        if seconds < best:
            best, at = seconds, every[number]
    return len(chosen), best, at


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster_search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--devices", type=int, default=8, help="of each host")
    parser.add_argument("--points", type=int, default=200, help="of the sweep, at most; 0: none")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    options = parser.parse_intermixed_args()
    count = options.hosts * options.devices
    with TemporaryDirectory() as folder:
        file = Path(folder) / "machine.yaml"
        file.write_text(machine(options.hosts, options.devices))
        shared = base(options.hosts, options.devices, file, options.overrides)
        choices = ["group2ctx={}", *(f"{key}=auto" for key in OPEN)]
        begun = time.process_time()
        found = search(
            load_config(str(BASE), [*shared, *choices]),
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        took = time.process_time() - begun
        one = found.found.baseline
        best = seconds_text(found.best.seconds)
        print(f"{count} devices: {best} found in {took:.0f} CPU s: {found.best.name}")
        if one is not None:
            print(f"one device: {seconds_text(one.seconds)}")
        if options.points:
            number, seconds, point = swept(shared, count, options.points)
            print(f"best of {number} points: {seconds_text(seconds)}: {' '.join(point)}")
            print(f"search / sweep: {found.best.seconds / seconds:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
