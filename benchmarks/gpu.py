"""Work for a GPU that is available for a short time: checks, then benchmarks, with time limits.

    python -m benchmarks.gpu FOLDER [--only NAME ...] [--seconds 560]

Each step is a process, which is ended when its time is over. Its output goes to FOLDER/NAME.log
while it runs, and its result to FOLDER/report.json when it ends, so results survive if all is
stopped. A failed step does not stop the next ones; steps whose failure explains others come first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FACTS = """
import numpy, numba, cupy
from runtime.profiling.calibration.bench import describe_card
from runtime.profiling.calibration.rates import measure_speed
from symgraph import gpu
from runtime.backends.device.arrays import device
here = device(gpu(0))
print("numpy", numpy.__version__, "numba", numba.__version__)
with here.use():
    print(*describe_card(here).items(), measure_speed(here), sep="\\n")
cupy.show_config()
"""
TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10")


class Step(NamedTuple):
    """A process to run: arguments of Python, environment variables, and limit of seconds."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    variables: Mapping[str, str] = {}


STEPS = (
    Step("facts", ("-c", FACTS), 60),
    Step(
        "kernels",
        (*TESTS, "-m", "gpu", "tests/runtime/backends/cuda", "tests/fakes/test_fake_cupy.py"),
        120,
    ),
    Step("runs", (*TESTS, "-m", "gpu", "tests/system/test_gpus.py", "tests/runtime"), 240),
    Step(
        "bench-small",
        (
            "-m",
            "benchmarks.networks",
            "--gpu",
            "--torch",
            sys.executable,
            "--quick",
        ),
        120,
    ),
    Step("marked", (*TESTS, "-m", "gpu", "-n", "4", "tests"), 300),
    Step("operators", (*TESTS, "-n", "8", "tests/symgraph"), 300, {"SYMGRAPH_TEST_GPU": "1"}),
    Step(
        "bench",
        (
            "-m",
            "benchmarks.networks",
            "--gpu",
            "--torch",
            sys.executable,
            "--unchecked",
            "--rounds",
            "2",
            "--steps",
            "12",
        ),
        300,
    ),
    Step(
        "contexts",
        (
            "-m",
            "benchmarks.networks",
            "--gpu",
            "--unchecked",
            "--contenders",
            "symgraph-gpu",
            "symgraph-gpu-2-even",
            "symgraph-gpu-4-even",
            "--configs",
            "small",
            "large@64",
            "deep@128",
            "--rounds",
            "3",
            "--steps",
            "20",
        ),
        180,
    ),
)


def run(step: Step, folder: Path, seconds: float) -> dict[str, object]:
    """Run a step within the seconds left; return its record."""
    limit, begun = min(step.seconds, seconds), time.monotonic()
    with (folder / f"{step.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            (sys.executable, *step.arguments),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **step.variables},
            start_new_session=True,
        )
        status: int | None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with all its children
                process.wait()
    return {
        "step": step.name,
        "status": status,
        "limit": limit,
        "seconds": round(time.monotonic() - begun, 1),
        "last": last_line(folder, step.name),
    }


def last_line(folder: Path, name: str) -> str:
    """Return the last line of a step's log."""
    text = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run_all(steps: Sequence[Step], folder: Path, seconds: float) -> list[dict[str, object]]:
    """Run the steps while there is time; write and return their records."""
    folder.mkdir(parents=True, exist_ok=True)
    end, found = time.monotonic() + seconds, list[dict[str, object]]()
    for step in steps:
        left = end - time.monotonic()
        if left < 1:
            found.append({"step": step.name, "status": None, "limit": 0, "last": "no time left"})
        else:
            found.append(run(step, folder, left))
        (folder / "report.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
        print(*found[-1].values(), sep="  ", flush=True)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0 if all steps passed."""
    names = [step.name for step in STEPS]
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("folder", type=Path, help="where logs and report.json go")
    made.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="NAME",
        default=names,
        help=f"of {', '.join(names)}",
    )
    made.add_argument("--seconds", type=float, default=560, help="for all together (default: 560)")
    given = made.parse_args(arguments)
    found = run_all([s for s in STEPS if s.name in given.only], given.folder, given.seconds)
    return int(any(row["status"] != 0 for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
