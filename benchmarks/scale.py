"""Scale: 1F1B with many ranks and micro-batches, generated, lowered, checked and simulated.

    python -m benchmarks.scale [--ranks 64 1024] [--micro-batches 4096]

Prints the seconds of each step, nanoseconds per instruction, and the peak memory of a process that
does nothing else; a small case loads the compiled loops first.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from partitioner.base.chain import chain
from runtime import SCHEDULES, Costs, check, simulate
from runtime.schedule.lowering.lower import lower


def timed(work: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def run(ranks: int, mbs: int) -> tuple[dict[str, float], int, float]:
    """Return the seconds of each step, the number of instructions and the makespan."""
    topology = chain(range(ranks))
    costs = Costs(lambda key: 1 if key.phase == "F" else 2)
    seconds: dict[str, float] = {}
    seconds["generate"], lists = timed(lambda: SCHEDULES["1f1b"](range(ranks), mbs))
    seconds["lower"], schedule = timed(lambda: lower(topology, lists))
    seconds["check"], _ = timed(lambda: check(schedule, topology, mbs))
    seconds["simulate"], timeline = timed(lambda: simulate(schedule, topology, costs))
    return seconds, sum(map(len, schedule.programs)), timeline.makespan


def report(ranks: int, mbs: int) -> None:
    """Print one line for one size, measured in this process."""
    run(4, 8)
    seconds, count, makespan = run(ranks, mbs)
    assert makespan == 3 * (mbs + ranks - 1)
    total = sum(seconds.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    steps = "  ".join(f"{name} {s:5.1f} s" for name, s in seconds.items())
    print(
        f"{ranks:5} ranks x {mbs} micro-batches: {count / 1e6:6.1f} M instructions  {steps}  "
        f"total {total:5.1f} s  {total / count * 1e9:5.0f} ns an instruction  {peak:.2f} GiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="1F1B of many ranks and micro-batches.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--micro-batches", type=int, default=4096)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for ranks in options.ranks:
        if options.here:
            report(ranks, options.micro_batches)
        else:
            command = [sys.executable, "-m", "benchmarks.scale", "--here", "--ranks", str(ranks)]
            subprocess.run([*command, "--micro-batches", str(options.micro_batches)], check=True)


if __name__ == "__main__":
    main()
