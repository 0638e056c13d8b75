"""The `solve` command: a workload file in, its best placement out, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable

from partitioner.solve import Solution, solve
from partitioner.solve.workload_files import Workload, read_workload
from symgraph.app.console import Console
from symgraph.core.units import parse_bytes

DESCRIPTION = """\
Place the nodes of a workload file on accelerators and CPU cores so that the
slowest device, including its communication, is as fast as possible. FILE is a
dnn-partitioning workload (JSON) or a PipeDream profile (graph.txt). All times
are in milliseconds.

--contiguous (the default) keeps the forward part in a row: values only flow
from a device to later ones, so a pipeline can run it. The result is optimal for
any graph and any order of its nodes, unless the graph is too wide or the time
limit passes; then a lower bound shows how far from optimal it can be.
--noncontiguous allows every node on any device."""
EPILOG = """\
examples:
  symgraph solve bert24_inference.json --cpus 0
  symgraph solve gnmt/graph.txt --accelerators 4 --bandwidth 1.25e10 --json

exit status: 0 done, 2 bad input, 3 no placement keeps the limits (the error
names the smallest memory limit that works)"""
NONCONTIGUOUS_SECONDS = 60.0


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number > 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number >= 0")
    return value


def _bytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float(parse_bytes(text))
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes")
    return value


_count.__name__, _positive.__name__, _bytes.__name__ = "number", "number", "number of bytes"


def add_solve(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a command line by the `add_parser` of its subparsers."""
    parser = add_parser(
        "solve",
        help="place the nodes of a workload file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="a JSON workload or a PipeDream profile")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--contiguous", action="store_true", help="keep the forward part in a row (the default)"
    )
    kind.add_argument("--noncontiguous", action="store_true", help="allow every node on any device")
    parser.add_argument(
        "--accelerators",
        type=_count,
        metavar="K",
        help="number of accelerators, instead of the file's",
    )
    parser.add_argument(
        "--cpus", type=_count, metavar="L", help="number of CPU cores, instead of the file's"
    )
    parser.add_argument(
        "--memory",
        type=_bytes,
        metavar="BYTES",
        help="memory limit of each accelerator, such as 16GiB, instead of the file's",
    )
    parser.add_argument(
        "--bandwidth",
        type=_positive,
        metavar="BYTES",
        help="bytes per second between devices, for profiles (default: communication is free)",
    )
    parser.add_argument(
        "--time-limit",
        type=_positive,
        metavar="S",
        help=f"seconds (default: no limit; with --noncontiguous {NONCONTIGUOUS_SECONDS:.0f})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run_solve(options: argparse.Namespace) -> None:
    """Read a workload, solve it and print the placement. Raises ConfigError or InfeasibleError."""
    start = time.perf_counter()
    workload = read_workload(
        options.file,
        accelerators=options.accelerators,
        cpus=options.cpus,
        memory_limit=options.memory,
        bandwidth=options.bandwidth,
    )
    strategy = "noncontiguous" if options.noncontiguous else "downsets"
    default = NONCONTIGUOUS_SECONDS if options.noncontiguous else math.inf
    solution = solve(workload.problem, strategy, time_limit=options.time_limit or default)
    seconds = time.perf_counter() - start
    if options.json:
        print(json.dumps(_json(workload, solution, seconds)))
    else:
        _show(workload, solution, seconds)


def _json(workload: Workload, solution: Solution, seconds: float) -> dict[str, object]:
    problem = workload.problem
    return {
        "max_load": solution.max_load,
        "lower_bound": solution.lower_bound,
        "optimal": solution.optimal,
        "gap": solution.gap,
        "assignment": {
            name: problem.device_name(d)
            for name, d in zip(problem.names, solution.assignment, strict=True)
        },
        "devices": {
            load.device: {
                "load": load.total,
                "compute": load.compute,
                "communication_in": load.incoming,
                "communication_out": load.outgoing,
                "memory": load.memory,
                "nodes": load.nodes,
            }
            for load in solution.loads
        },
        "strategy": solution.strategy,
        "notes": list(workload.notes),
        "seconds": round(seconds, 3),
    }


def _show(workload: Workload, solution: Solution, seconds: float) -> None:
    console = Console(sys.stdout)
    proven = "optimal"
    if not solution.optimal:
        proven = f"at least {solution.lower_bound:.6f} ms (gap {solution.gap:.2%})"
    rows = [
        (
            load.device,
            load.nodes,
            f"{load.total:.6f}",
            f"{load.compute:.6f}",
            f"{load.incoming:.6f}",
            f"{load.outgoing:.6f}",
            f"{load.memory / 2**20:.1f}",
            f"{load.total / solution.max_load:.1%}" if solution.max_load else "-",
        )
        for load in solution.loads
    ]
    console.table(
        f"slowest device: {solution.max_load:.6f} ms, {proven}, found by {solution.strategy} in "
        f"{seconds:.1f} s",
        (
            "device",
            "nodes",
            "load ms",
            "compute ms",
            "in ms",
            "out ms",
            "memory MiB",
            "of bottleneck",
        ),
        rows,
    )
    for load in solution.loads:
        held = [
            name
            for name, d in zip(workload.problem.names, solution.assignment, strict=True)
            if workload.problem.device_name(d) == load.device
        ]
        console.line(f"{load.device}: {', '.join(held) if held else '-'}")
    for note in workload.notes:
        console.line(f"note: {note}")
