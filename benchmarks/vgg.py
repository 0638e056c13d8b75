"""The VGG-16 benchmark: channel-parallel on one and two ranks, compared with PyTorch.

    python -m benchmarks.vgg [--torch PYTHON] [--batch 64] [--rounds 3] [--steps 3]

A step is forward, backward and SGD with momentum on synthetic images of 32x32, in float32, without
dropout. Contenders are processes that work in turn, in alternating order, and are stopped
otherwise; see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.lstm_lm import QUIET_SECONDS, START_LIMIT, TURN_LIMIT, busy_share
from benchmarks.peers.contenders import Contender, Process, environment


def contenders(batch: int, torch: bool) -> list[Contender]:
    """List ours on one and two ranks, one BLAS thread each, and PyTorch on one and two threads."""
    found = [
        Contender(
            f"symgraph {kind}, {ranks} rank{'s' * (ranks > 1)}",
            "symgraph",
            ("benchmarks.peers.symgraph_vgg", str(ranks), kind, str(batch)),
            {"OPENBLAS_NUM_THREADS": "1"},
        )
        for kind, ranks in (("sharded", 1), ("sharded", 2), ("parallel", 2))
    ]
    if torch:
        found += [
            Contender(
                f"PyTorch, {n} thread{'s' * (n > 1)}",
                "torch",
                ("benchmarks.peers.torch_vgg", str(n), str(batch)),
            )
            for n in (1, 2)
        ]
    return found


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Measure the seconds of each contender's steps; print the load of other programs."""
    seconds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        processes = {}
        for number, one in enumerate(contenders(options.batch, options.torch is not None)):
            python = options.torch if one.interpreter == "torch" else sys.executable
            command = [python, "-m", *one.arguments]
            settings = environment(os.environ, one, (), None)
            process = stack.enter_context(Process(command, settings, folder / f"{number}.log"))
            said = process.ready(START_LIMIT)
            print(f"{one.title}: {said['versions']}, {', '.join(said['blas'])}", flush=True)
            processes[one.title] = process
        for number in range(options.rounds):
            print(f"round {number + 1}: others busy {busy_share(QUIET_SECONDS):.0%}", flush=True)
            names = list(processes)
            for name in names[::-1] if number % 2 else names:
                own = processes[name].run(1 + options.steps, TURN_LIMIT)["seconds"][1:]
                seconds.setdefault(name, []).extend(own)
                print(f"  {name}: {median(own):.3f} s", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vgg",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--torch", help="a Python that has PyTorch")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of a turn; one more is dropped")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(options, Path(folder))
    first = median(next(iter(seconds.values())))
    print(f"\n{'':28}median s   fastest s   images/s   speedup")
    for name, found in seconds.items():
        middle = median(found)
        print(
            f"{name:28}{middle:8.3f}{min(found):12.3f}{options.batch / middle:11.1f}"
            f"{first / middle:10.2f}"
        )


if __name__ == "__main__":
    main()
