"""Partition: every strategy on published problems, on MXNet's example, and on large graphs.

    python -m benchmarks.partition --workloads ../shared/workloads --json partition.json

Published problems are those of dnn-partitioning (Tarnawski et al., NeurIPS 2020); `published.csv`
has the results of its authors and of other planners for comparison. Each of our results is computed
by a new process, whose processor time and memory are shown.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from examples.lstm_lm import build
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Machine
from partitioner.cutting.cut import cut
from partitioner.memory.memory_plan import plan_memory
from partitioner.solve import solve
from partitioner.solve.workload_files import read_workload
from partitioner.strategies import STRATEGIES, Constraints
from runtime import SCHEDULES
from runtime.schedule.lowering.lower import lower as lower_schedule
from symgraph import cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.shard import shard

PUBLISHED = Path(__file__).with_name("published.csv")
OURS = {"chain": "one order", "downsets": "contiguous", "noncontiguous": "any order"}
THEIRS = {
    "one order": "DP, one order",
    "expert": "expert",
    "pipedream": "PipeDream",
    "scotch": "Scotch",
}
SPEED = Speed(1e11, 1e-6, 1e10)
SECONDS = 120.0  # limit of the strategy that accepts one

Row = dict[str, Any]


# -- published problems --------------------------------------------------------------------------


def solve_one(file: str, strategy: str, cpus: int) -> Row:
    """Compute one placement in this process."""
    workload = read_workload(file, cpus=cpus)
    limit = {"time_limit": SECONDS} if strategy == "noncontiguous" else {}
    found = solve(workload.problem, strategy, **limit)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "load": found.max_load,
        "bound": found.lower_bound,
        "optimal": found.optimal,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "mebibytes": used.ru_maxrss / 2**10,
    }


def in_process(*arguments: object) -> Row:
    """Return the JSON that a new process prints for these arguments."""
    command = [sys.executable, "-m", "benchmarks.partition", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def published(folder: Path) -> Iterator[Row]:
    """Compute a row per published problem, for l = 0 and 1 where both are published."""
    with PUBLISHED.open(encoding="utf-8") as lines:
        known = list(csv.DictReader(lines))
    for line in track(known, "published problems", console=Console(stderr=True)):
        for cpus in (1, 0):
            optimum = line[f"optimum l={cpus}"]
            if optimum:
                file = folder / f"{line['file']}.json"
                ours = {s: in_process("--solve", file, s, cpus) for s in OURS}
                more = dict(line) if cpus or not line["optimum l=1"] else {}
                yield {
                    "file": line["file"],
                    "cpus": cpus,
                    "optimum": float(optimum),
                    "ours": ours,
                    "best any order": _number(line["noncontiguous"]) if cpus else None,
                    "theirs": {k: _number(more.get(k, "")) for k in THEIRS},
                }


def _number(text: str) -> float | None:
    return float(text) if text else None


def published_table(rows: list[Row]) -> Table:
    """Print all strategies side by side: milliseconds per sample of the slowest device."""
    table = Table(title="Slowest device, ms (dnn-partitioning's problems); ours | published")
    for name in ("problem", "l", *OURS.values(), "CPU s", "MiB"):
        table.add_column(name, justify="left" if name == "problem" else "right")
    for name in ("optimum", "any order", *THEIRS.values()):
        table.add_column(name, justify="right", style="dim")
    for row in rows:
        cells = [_cell(row["ours"][s]) for s in OURS]
        exact = row["ours"]["downsets"]
        theirs = [row["theirs"][k] for k in THEIRS]
        table.add_row(
            row["file"],
            str(row["cpus"]),
            *cells,
            f"{exact['cpu_seconds']:.1f}",
            f"{exact['mebibytes']:.0f}",
            f"{row['optimum']:.3f}",
            *("" if x is None else f"{x:.3f}" for x in (row["best any order"], *theirs)),
        )
    return table


def _cell(found: Row) -> str:
    gap = 1 - found["bound"] / found["load"]
    return f"{found['load']:.3f}" + ("" if found["optimal"] else f" (gap {gap:.1%})")


# -- MXNet's example -----------------------------------------------------------------------------


class Macs:
    """Multiply-accumulates of forward products, per token (case P1)."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def seconds_of(self, node: Node, graph: Graph) -> float:
        if node.origin is not None or node.op != "FullyConnected":
            return 0.0
        operations = find(node.op).flops(node.attrs, graph.types_of(node.inputs), node.types)
        return operations / 2 / self.tokens


def example(decode_shards: int | str) -> tuple[Graph, Constraints]:
    """Build lstm_ptb: 8 layers of 400, embedding of 200, 10,000 words, with gradients."""
    batch, steps = 2, 3
    model = build(batch, steps, 10_000, 8, 400, 200, residual=False, decode_shards=decode_shards)
    shapes = {n: f.type.shape for n, f in model.feeds.items()}
    whole = lower(model.symbol, shapes, {n: f.type.dtype for n, f in model.feeds.items()})
    graph = shard(whole, model.symbol.list_outputs(), set(model.feeds), whole=False).graph
    wrt = [n.name for n in graph.variables if n.name not in model.feeds]
    both = gradients(graph, wrt)
    return both.graph, Constraints(parameters=frozenset(wrt), grads=both.grads)


def lstm_ptb() -> list[Row]:
    """Compute every strategy's slower device of two, in multiply-accumulates per token."""
    groups = {f"layer{i}": cpu(i * 2 // 8) for i in range(8)} | {"embed": cpu(0), "decode": cpu(1)}
    machine = Machine.uniform([cpu(0), cpu(1)], SPEED, 0.0, 1e30)
    rows = []
    for decoder, shards in (("whole", "1"), ("split 54:46", "54:46")):
        graph, free = example(shards)
        for keep in (True, False):
            for name, strategy in STRATEGIES.items():
                given = {"groups": groups} if name == "group2ctx" else {"keep_groups": keep}
                if (name == "group2ctx" and not keep) or (keep and shards != "1"):
                    continue
                start = time.perf_counter()
                placed = strategy(graph, Macs(6), machine, replace(free, **given))
                rows.append(
                    {
                        "decoder": decoder,
                        "layers": "whole" if keep else "free",
                        "strategy": name,
                        "macs": placed.load,
                        "bound": placed.lower_bound,
                        "seconds": time.perf_counter() - start,
                    }
                )
    return rows


def lstm_ptb_table(rows: list[Row]) -> Table:
    """Print case P1: the hand-written plan has 9.12 M, the best cut between layers 7.36 M."""
    table = Table(title="MXNet's lstm_ptb on 2 devices, million multiply-accumulates a token")
    for name in ("decoder", "layers", "strategy", "slowest device", "bound", "s"):
        table.add_column(
            name, justify="left" if name in ("decoder", "layers", "strategy") else "right"
        )
    for row in rows:
        table.add_row(
            row["decoder"],
            row["layers"],
            row["strategy"],
            f"{row['macs'] / 1e6:.3f}",
            f"{row['bound'] / 1e6:.3f}",
            f"{row['seconds']:.2f}",
        )
    return table


# -- large graphs --------------------------------------------------------------------------------


def grown(steps: int) -> Row:
    """Measure processor seconds of each planning step for an unrolled 8-layer LSTM."""
    model = build(4, steps, 50, 8, 8, 8, residual=False, decode_shards=1)
    shapes = {n: f.type.shape for n, f in model.feeds.items()}
    dtypes = {n: f.type.dtype for n, f in model.feeds.items()}
    machine = Machine.uniform([cpu(i) for i in range(4)], SPEED, 1e-5, 1e10)
    seconds: dict[str, float] = {}
    last = time.process_time()

    def lap(name: str) -> None:
        nonlocal last
        now = time.process_time()
        seconds[name], last = now - last, now

    graph = lower(model.symbol, shapes, dtypes)
    lap("lower")
    wrt = [n.name for n in graph.variables if n.name not in model.feeds]
    both = gradients(graph, wrt)
    lap("gradients")
    asked = Constraints(parameters=frozenset(wrt), grads=both.grads)
    placement = STRATEGIES["optimal"](both.graph, SPEED, machine, asked).placement
    lap("place")
    partition = cut(both.graph, placement)
    lap("cut")
    plan_memory(partition, grads=both.grads, parameters=frozenset(wrt))
    lap("memory plan")
    lower_schedule(partition, SCHEDULES["1f1b"](placement.rank_of, 4), update=True)
    lap("schedule")
    return {"steps": steps, "nodes": len(both.graph), "seconds": seconds}


def large_table(rows: list[Row]) -> Table:
    """Print the seconds of each planning step, and their ratio to the graph of half the size."""
    table = Table(title="Large graphs, processor seconds (8 LSTM layers on 4 devices, optimal)")
    for name in ("nodes", *rows[0]["seconds"], "total", "to half the nodes"):
        table.add_column(name, justify="right")
    before = 0.0
    for row in rows:
        total = sum(row["seconds"].values())
        table.add_row(
            f"{row['nodes']:,}",
            *(f"{s:.1f}" for s in row["seconds"].values()),
            f"{total:.1f}",
            f"{total / before:.2f}x" if before else "",
        )
        before = total
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--workloads", type=Path, help="folder of the published problems")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        default=[210, 420, 840],
        help="time steps of the large graphs",
    )
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--solve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--grow", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.solve:
        file, strategy, cpus = options.solve
        print(json.dumps(solve_one(file, strategy, int(cpus))))
        return
    if options.grow:
        print(json.dumps(grown(options.grow)))
        return
    console = Console(width=None if sys.stdout.isatty() else 180)
    found: dict[str, list[Row]] = {"lstm_ptb": lstm_ptb()}
    console.print(lstm_ptb_table(found["lstm_ptb"]))
    found["large"] = [in_process("--grow", n) for n in options.steps]
    console.print(large_table(found["large"]))
    if options.workloads is None:
        console.print("no --workloads: the published problems are left out")
    else:
        found["published"] = list(published(options.workloads))
        console.print(published_table(found["published"]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
