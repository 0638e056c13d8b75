"""Networks trained by this project and its peers, in one run: LSTMs, transformers, seq2seq, VGG.

    python -m benchmarks.networks --torch PYTHON --jax PYTHON --mxnet PYTHON --chainer PYTHON

Every contender trains the same networks on the same random data in a process of its own. They work
in turn, round after round, never two at a time; with --gpu on a GPU, which several contexts share.
First, the gradients of symgraph's plans are compared with PyTorch's. docs/benchmarks.md describes
the networks and the environments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import (
    CONTENDERS,
    DEFAULT,
    DEFAULT_ON_GPU,
    DROPPED,
    OURS,
    ROOT,
    VARIANTS,
    Contender,
    LeftOut,
    Process,
    environment,
    make_shim,
    parse,
)
from benchmarks.peers.protocol import CONFIGS, ON_CPUS, ON_GPUS
from benchmarks.peers.results import (
    COLUMNS,
    Result,
    figures,
    notes,
    operations,
    peak_gflops,
    rate_text,
    rows,
)
from symgraph.app.console import Console
from symgraph.command_line import FAILED, Parser, say, status_of
from symgraph.core.units import bytes_text
from symgraph.errors import ConfigError, RunError

PEERS = ("torch", "jax", "mxnet", "chainer")
PEAK = "sgemm peak"  # measured in turn with the contenders
PEAK_MODULE = "benchmarks.peers.sgemm_peak"
PEAK_ON_CPUS = Contender(PEAK, "symgraph", (PEAK_MODULE,), {"OPENBLAS_NUM_THREADS": "1"})
PEAK_ON_GPU = Contender(PEAK, "symgraph", (PEAK_MODULE, "gpu"))
TOLERANCE = 1e-4  # of gradients, relative to the largest of the parameter
START_LIMIT, TURN_LIMIT = 900.0, 600.0  # seconds
TURN_SECONDS, FEWEST, MOST = 2.0, 3, 60  # steps per turn, without --steps
MEMORY_LEFT = 1 << 30  # bytes that must stay free with all contenders running
QUIET_SECONDS = 1.0  # spent watching for other programs, in each round
TRIED = 2  # steps to estimate the time of one


class Benchmark:
    """One run: the options, the files, and the contenders left out, with the reasons."""

    def __init__(self, options: argparse.Namespace, console: Console, folder: Path) -> None:
        self.options = options
        self.console = console
        self.folder = folder
        self.left_out: dict[str, str] = {}
        self._logs = 0
        self._begun: dict[tuple[str, str], Process] = {}

    def leave_out(self, config: str, name: str, reason: object) -> None:
        self.left_out[f"{config} {name}"] = str(reason)
        self.console.line(f"{config}: {name} is left out: {reason}")

    def python(self, interpreter: str) -> str:
        """Return a contender's interpreter; LeftOut if there is none."""
        given = sys.executable if interpreter == "symgraph" else self.options.__dict__[interpreter]
        if given is None:
            raise LeftOut(f"--{interpreter} PYTHON is not given")
        return given

    def process(
        self, config: str, contender: Contender, variants: Sequence[str], more: Sequence[str]
    ) -> Process:
        modes = []
        if "CONFIG" in contender.arguments:
            kind = CONFIGS[config].kind
            if kind not in ("lstm", *contender.others):
                raise LeftOut(f"it has no {kind} network")
            wanted = {"--bfloat16": "bf16" in variants, "--forward": self.options.forward}
            modes = [mode for mode, is_wanted in wanted.items() if is_wanted]
            if modes and not contender.modes:
                raise LeftOut(f"it has no {modes[0]}")
        if "avx512" in variants and "avx512f" not in Path("/proc/cpuinfo").read_text():
            raise LeftOut("this CPU has no AVX-512")
        arguments = [config if a == "CONFIG" else a for a in contender.arguments]
        command = [self.python(contender.interpreter), "-m", *arguments, *modes, *more]
        shim = self.shim if "mkl" in variants else None
        settings = environment(os.environ, contender, variants, shim)
        return Process(command, settings, self.log())

    def log(self) -> Path:
        """Open a new file for the stderr of a process."""
        self._logs += 1
        return self.folder / f"{self._logs}.log"

    @cached_property
    def shim(self) -> Path:
        return make_shim(self.folder)

    def begin(self, stack: ExitStack) -> None:
        """Start contenders on GPUs together, except those that measure kernels while they plan."""
        for config in self.options.configs:
            for name in self.options.contenders:
                contender, _ = self.contender(name)
                plans = contender.arguments[-1] != "1" and "--even" not in contender.arguments
                if contender.interpreter != "symgraph" or not plans:
                    with suppress(LeftOut):
                        self._begun[config, name] = stack.enter_context(self.launch(config, name))
        for process in self._begun.values():
            with suppress(LeftOut):  # `start` will say so
                process.wait(START_LIMIT)

    def launch(self, config: str, name: str) -> Process:
        """Start a contender's process, unless `begin` has."""
        if (config, name) in self._begun:
            return self._begun.pop((config, name))
        contender, variants = self.contender(name)
        more = []
        if self.is_checked(config, name):
            more += ["--gradients", str(self.gradients(config, name))]
        if contender is CONTENDERS["symgraph-2"]:
            more += self.options.plan
        return self.process(config, contender, variants, more)

    def contender(self, name: str) -> tuple[Contender, tuple[str, ...]]:
        """Return a contender and its variants, or the products that all are compared with."""
        if name == PEAK:
            return (PEAK_ON_GPU if self.options.gpu else PEAK_ON_CPUS), ()
        return parse(name)

    def is_checked(self, config: str, name: str) -> bool:
        """Tell whether a contender's gradients are compared with PyTorch's."""
        contender, variants = self.contender(name)
        wanted = self.options.torch is not None and not (
            self.options.unchecked or self.options.forward
        )
        exact = "bf16" not in variants and CONFIGS[config].kind != "vgg"
        return contender.arguments[0] == OURS and wanted and exact

    def gradients(self, config: str, name: str) -> Path:
        """Return the file of a contender's gradients."""
        return self.folder / f"{config} {name}.npz"

    def config(self, config: str) -> dict[str, Any]:
        """Start, check and measure all contenders on one configuration."""
        with ExitStack() as stack:
            processes: dict[str, Process] = {}
            results: dict[str, Result] = {}
            gradients: dict[str, dict[str, float]] = {}
            for name in [PEAK, *self.options.contenders]:
                try:
                    process, result, errors = self.start(config, name, stack)
                except LeftOut as reason:
                    if name == PEAK:
                        raise RunError(f"the sgemm peak cannot be measured: {reason}") from None
                    self.leave_out(config, name, reason)
                    continue
                processes[name], results[name] = process, result
                if errors:
                    gradients[name] = errors
            busy = self.measure(config, processes, results)
        peak = results.pop(PEAK)
        gflops = peak_gflops(peak, gpu=self.options.gpu)
        size = CONFIGS[config]
        return {
            **size._asdict(),
            "count": size.count,
            "flops": operations(config, forward=self.options.forward),
            "peak_gflops": gflops,
            "peak_blas": list(peak.blas),
            "gradient_errors": gradients,
            "others_busy": busy,
            "contenders": figures(config, results, gflops, forward=self.options.forward),
        }

    def start(
        self, config: str, name: str, stack: ExitStack
    ) -> tuple[Process, Result, dict[str, float]]:
        """Start a contender, and check symgraph's gradients; LeftOut if it does not start."""
        begun = time.monotonic()
        with ExitStack() as own:  # ends the process if it does not get ready
            process = own.enter_context(self.launch(config, name))
            said = process.ready(START_LIMIT)
            left = free_memory()
            if left < MEMORY_LEFT:
                raise LeftOut(
                    f"{bytes_text(left)} of memory are left with it; give fewer --contenders"
                )
            stack.push(own.pop_all())
        result = Result(start_seconds=time.monotonic() - begun, **said)
        self.console.line(f"{config}: {name} is ready after {result.start_seconds:.1f} s")
        checked = self.is_checked(config, name)
        errors = self.check(config, name, self.gradients(config, name)) if checked else {}
        return process, result, errors

    def check(self, config: str, name: str, path: Path) -> dict[str, float]:
        """Compare a plan's gradients with PyTorch's; RunError if they differ."""
        command = [self.options.torch, "-m", "benchmarks.peers.torch_gradients", config, str(path)]
        settings = environment(os.environ, CONTENDERS["torch"], (), None)
        try:
            with Process(command, settings, self.log()) as torch:
                errors = torch.ready(START_LIMIT)["errors"]
        except LeftOut as reason:
            raise RunError(f"--torch: gradients cannot be checked: {reason}") from None
        path.unlink()
        worst = max(errors, key=errors.__getitem__)
        if not errors[worst] <= TOLERANCE:
            raise RunError(
                f"{config}: {name}: the gradient of {worst} differs from PyTorch's by "
                f"{errors[worst]:.1e} of its largest element, more than {TOLERANCE:.0e}"
            )
        self.console.line(
            f"{config}: {name}: loss and gradients are PyTorch's, to {errors[worst]:.0e} ({worst})"
        )
        return errors

    def measure(
        self, config: str, processes: dict[str, Process], results: dict[str, Result]
    ) -> list[float]:
        """Run all contenders in turn, every second round backward, and fill in the results.

        A turn's first step is dropped: others have had the caches since. Gives the share of the
        CPUs that others used before each round, while all contenders stood still.
        """
        counts: dict[str, int] = {}
        busy = []
        for number in range(self.options.rounds):
            busy.append(busy_share(QUIET_SECONDS))
            names = list(processes)
            shown = []
            for name in names[::-1] if number % 2 else names:
                try:
                    if name not in counts:
                        counts[name] = self.steps(processes[name])
                    said = processes[name].run(1 + counts[name], TURN_LIMIT)
                except LeftOut as reason:
                    self.leave_out(config, name, reason)
                    processes.pop(name).close()
                    del results[name]
                    continue
                results[name].seconds.append(said["seconds"][1:])
                results[name].peak_bytes = said["peak_bytes"]
                if name != PEAK:
                    middle = sorted(said["seconds"][1:])[counts[name] // 2]
                    shown.append(f"{name} {rate_text(CONFIGS[config].count / middle)}")
            self.console.line(
                f"{config}: round {number + 1} of {self.options.rounds}, others busy "
                f"{busy[-1]:.0%}, {CONFIGS[config].unit}/s: {', '.join(shown)}"
            )
        return busy

    def steps(self, process: Process) -> int:
        """Return the number of steps of a turn."""
        spent = process.run(TRIED, TURN_LIMIT)["seconds"]
        if self.options.steps is not None:
            return self.options.steps
        return max(FEWEST, min(MOST, ceil(TURN_SECONDS / min(spent))))


# -- the machine -------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Describe the machine and the working tree, for the record."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    git = ["git", "--no-optional-locks", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": commit,
        "dropped": {n: v for n, v in os.environ.items() if n.startswith(DROPPED)},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv[1:],
    }


def free_memory() -> int:
    """Return the bytes available without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def busy_share(seconds: float) -> float:
    """Return the share of CPU time that others use for a while, the machine's host included."""

    def ticks() -> tuple[int, int]:
        idle = total = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *counts = line.split()
            if name in names:
                idle += int(counts[3]) + int(counts[4])  # idle and waiting for a disk
                total += sum(map(int, counts[:8]))
        return idle, total

    names = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    idle, total = ticks()
    time.sleep(seconds)
    idle_after, total_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m benchmarks.networks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="contenders by default: "
        + " ".join(DEFAULT)
        + "\n  "
        + "; ".join(f"+{name}: {meaning}" for name, meaning in VARIANTS.items()),
    )
    for name in PEERS:
        made.add_argument(
            f"--{name}",
            metavar="PYTHON",
            help=f"interpreter of an environment with {name}; without it {name} is left out",
        )
    made.add_argument(
        "--configs",
        nargs="+",
        choices=CONFIGS,
        metavar="NAME",
        help=f"of {', '.join(CONFIGS)} (default: {', '.join(ON_CPUS)}; with --gpu those with a "
        "batch, small and transformers)",
    )
    made.add_argument(
        "--contenders",
        nargs="+",
        metavar="NAME",
        help=f"who takes part; may have {', '.join('+' + v for v in VARIANTS)} behind the name",
    )
    made.add_argument(
        "--gpu",
        action="store_true",
        help=f"on gpu(0), with {' '.join(DEFAULT_ON_GPU)}; --torch: one with CUDA",
    )
    made.add_argument(
        "--forward", action="store_true", help="forward only, without gradients and updates"
    )
    made.add_argument(
        "--unchecked", action="store_true", help="leave out the comparison with PyTorch's gradients"
    )
    made.add_argument("--rounds", type=int, default=5, help="turns of each contender (default: 5)")
    made.add_argument(
        "--steps",
        type=int,
        help=f"measured steps a turn (default: {TURN_SECONDS:.0f} seconds of them, "
        f"{FEWEST} to {MOST})",
    )
    made.add_argument(
        "--quick", action="store_true", help="only to see that it works: small, 2 rounds of 5 steps"
    )
    made.add_argument(
        "--plan",
        nargs="+",
        metavar="KEY=VALUE",
        default=[],
        help="fields of runtime.Options for symgraph on two devices, e.g. micro_batches=2",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    return made


def run(argv: Sequence[str] | None) -> int:
    """Run the benchmark; return the exit status."""
    options = parser().parse_args(argv)
    options.configs = options.configs or (ON_GPUS if options.gpu else ON_CPUS)
    options.contenders = options.contenders or (DEFAULT_ON_GPU if options.gpu else DEFAULT)
    if options.quick:
        options.configs, options.rounds, options.steps = ["small"], 2, 5
    for name, least in (("rounds", options.rounds), ("steps", options.steps)):
        if least is not None and least < 1:
            raise ConfigError(f"--{name} {least}: at least 1")
    try:
        for name in options.contenders:
            parse(name)
    except ValueError as error:
        raise ConfigError(f"--contenders: {error}") from None
    progress = Console(sys.stderr)
    found: dict[str, Any] = {"machine": machine(), "configs": {}, "left_out": {}}
    if found["machine"]["cpus"] != 2 and not options.gpu:
        say("every contender is made for two CPUs; give it two with taskset -c")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        benchmark = Benchmark(options, progress, Path(folder))
        if options.gpu:
            benchmark.begin(stack)
        for config in options.configs:
            found["configs"][config] = benchmark.config(config)
            found["left_out"] = benchmark.left_out
            if options.json is not None:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    show(found, forward=options.forward)
    return 0


def show(found: Mapping[str, Any], *, forward: bool) -> None:
    console = Console(sys.stdout)
    table = [
        row
        for config, facts in found["configs"].items()
        for row in rows(config, facts["contenders"], facts["peak_gflops"], forward=forward)
    ]
    console.table("Forward only" if forward else "Training", COLUMNS, table)
    for note in notes(found):
        console.line(note)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""

    def work() -> int:
        try:
            return run(argv)
        except RunError as error:
            say(f"error: {error}")
            return FAILED

    return status_of(work)


if __name__ == "__main__":
    sys.exit(main())
