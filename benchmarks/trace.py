"""Trace training steps of symgraph and PyTorch on a GPU: the time of each kernel, and the gaps.

    python -m benchmarks.trace CONFIG ... [--contenders symgraph-gpu torch-gpu] [--steps 5]

Traced by CUPTI, so both contenders' interpreter must have PyTorch with CUDA. The card is busy while
at least one kernel runs on it; kernels that run at the same time add up to more.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.peers.contenders import Process, environment, parse
from benchmarks.peers.protocol import CONFIGS, Work

START_LIMIT, RUN_LIMIT = 600.0, 120.0  # seconds
WARM_STEPS = 10
WIDTH = 60  # characters of a kernel's name


def busy(work: Sequence[Work]) -> float:
    """Return the microseconds in which at least one kernel runs."""
    total = until = 0.0
    for _, _, begin, end in sorted(work, key=lambda w: w[2]):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def short(name: str) -> str:
    """Shorten a kernel's name to what tells it from others."""
    plain = re.sub(r"^(void )?(at::native::|\(anonymous namespace\)::)*", "", name)
    return plain if len(plain) <= WIDTH else plain[: WIDTH - 20] + " .. " + plain[-16:]


def table(work: Sequence[Work], steps: int, most: int) -> list[str]:
    """Return a line for each kernel: milliseconds and calls a step, microseconds a call."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, _, begin, end in work:
        by_name[short(name)].append(end - begin)
    ranked = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    return [
        f"{sum(times) / steps / 1e3:8.3f} ms {len(times) / steps:7.1f} x "
        f"{median(times):8.1f} us  {name}"
        for name, times in ranked[:most]
    ]


def report(config: str, name: str, steps: int, most: int, folder: Path) -> None:
    """Trace a contender and print what it did."""
    contender, variants = parse(name)
    arguments = [config if a == "CONFIG" else a for a in contender.arguments]
    arguments += ["--predict"] if contender.interpreter == "symgraph" else []
    settings = environment(os.environ, contender, variants, None)
    with Process([sys.executable, "-m", *arguments], settings, folder / "log") as process:
        said = process.ready(START_LIMIT)["choice"]
        plain = median(process.run(WARM_STEPS, RUN_LIMIT)["seconds"]) * 1e3
        found = process.run(steps, RUN_LIMIT, "trace")
    work = [(str(n), int(s), float(b), float(e)) for n, s, b, e in found["work"]]
    total = sum(end - begin for *_, begin, end in work) / steps / 1e3
    streams = len({stream for _, stream, *_ in work})
    print(
        f"{config}, {name}: {plain:.2f} ms a step ({median(found['seconds']) * 1e3:.2f} traced); "
        f"the card is busy for {busy(work) / steps / 1e3:.2f} ms with {total:.2f} ms of kernels, "
        f"{len(work) / steps:.0f} on {streams} streams"
    )
    if said:
        print(said)
    print(*table(work, steps, most), sep="\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="+", choices=CONFIGS, metavar="CONFIG")
    parser.add_argument("--contenders", nargs="+", default=["symgraph-gpu", "torch-gpu"])
    parser.add_argument("--steps", type=int, default=5, help="traced steps")
    parser.add_argument("--kernels", type=int, default=16, help="kernels to print")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for config in options.configs:
            for name in options.contenders:
                report(config, name, options.steps, options.kernels, Path(folder))


if __name__ == "__main__":
    main()
