"""Scale: schedules of many ranks and micro-batches, and whole plans of graphs of many nodes.

    python -m benchmarks.scale [--ranks 64 1024] [--micro-batches 4096]
    python -m benchmarks.scale --plan chain lstm wide transformer [--nodes 300000]

The first generates, lowers, checks and simulates 1F1B; it prints the seconds of each step and
nanoseconds per instruction. The second plans networks on 8 devices with strategy and schedule
`auto`, from the symbol to checked programs; it prints processor seconds and the plan. Both print
the peak memory of a process that does nothing else; a small case loads the compiled loops first.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import symgraph as sg
from examples.transformer_lm import build
from partitioner.base.chain import chain
from partitioner.costs.machine import Device, Level, Machine
from runtime import SCHEDULES, Costs, check, simulate
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan_model
from runtime.schedule.lowering.lower import lower
from symgraph.core.context import cpu
from symgraph.core.types import TensorType
from symgraph.frontend.model import Model
from symgraph.passes.batching import Feed

DEVICES, MICRO_BATCHES, ROWS, WIDTH = 8, 4, 64, 256
SMALL = 1000  # nodes of the plan that loads the compiled loops


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


def peak() -> float:
    """Return the peak memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report(ranks: int, mbs: int) -> None:
    """Print one line for one size, measured in this process."""
    run(4, 8)
    seconds, count, makespan = run(ranks, mbs)
    assert makespan == 3 * (mbs + ranks - 1)
    total = sum(seconds.values())
    steps = "  ".join(f"{name} {s:5.1f} s" for name, s in seconds.items())
    print(
        f"{ranks:5} ranks x {mbs} micro-batches: {count / 1e6:6.1f} M instructions  {steps}  "
        f"total {total:5.1f} s  {total / count * 1e9:5.0f} ns an instruction  {peak():.2f} GiB",
        flush=True,
    )


# -- networks --------------------------------------------------------------------------------------


def layers(x: sg.Symbol, count: int, name: str) -> sg.Symbol:
    for i in range(count):
        x = sg.sym.FullyConnected(x, num_hidden=WIDTH, name=f"{name}{i}")
    return x


def fed(loss: sg.Symbol) -> Model:
    """Return the model of a loss over rows of WIDTH numbers."""
    rows = TensorType((ROWS * MICRO_BATCHES, WIDTH))
    return Model(sg.sym.MakeLoss(loss, name="loss"), {"data": Feed(rows)})


def row_of_layers(nodes: int) -> Model:
    """Build a row of layers, of 8 nodes each."""
    return fed(layers(sg.sym.Variable("data"), nodes // 8, "layer"))


def towers(nodes: int) -> Model:
    """Rows of 20 layers side by side, whose ends are added up in a tree."""
    data = sg.sym.Variable("data")
    ends = [layers(data, 20, f"tower{i}_") for i in range(nodes // 163)]
    while len(ends) > 1:
        pairs = zip(ends[::2], ends[1::2], strict=False)
        ends = [a + b for a, b in pairs] + ends[len(ends) - len(ends) % 2 :]
    return fed(ends[0])


def unrolled_lstm(nodes: int) -> Model:
    """Four LSTM layers, unrolled over as many time steps as it takes."""
    steps = max(1, nodes // LSTM_STEP)
    stack = sg.rnn.SequentialRNNCell()
    for i in range(4):
        stack.add(sg.rnn.LSTMCell(WIDTH, prefix=f"lstm{i}_"))
    outputs, _ = stack.unroll(steps, sg.sym.Variable("data"), layout="NTC", merge_outputs=True)
    rows = TensorType((8 * MICRO_BATCHES, steps, WIDTH))
    return Model(sg.sym.MakeLoss(outputs, name="loss"), {"data": Feed(rows)})


LSTM_STEP = 61  # nodes of a time step, about


def transformer(nodes: int) -> Model:
    """The transformer of the examples with `nodes` layers."""
    return build(8 * MICRO_BATCHES, 64, layers=nodes, hidden=192, heads=4)


MODELS: dict[str, Callable[[int], Model]] = {
    "chain": row_of_layers,
    "wide": towers,
    "lstm": unrolled_lstm,
    "transformer": transformer,
}


def report_plan(name: str, nodes: int) -> None:
    """Print one line for the plan of one network, made in this process."""
    machine = machine_of(DEVICES)
    planned(MODELS[name](SMALL if name != "transformer" else 2), machine)
    begun = time.process_time()
    model = MODELS[name](nodes)
    built = time.process_time()
    best = planned(model, machine)
    seconds = time.process_time() - built
    print(
        f"{name:12} {len(best.network.first):7} nodes: network {built - begun:5.1f}, plan "
        f"{seconds:6.1f} processor seconds, {peak():.2f} GiB; {best!r}; {len(best.placements)} "
        f"placements "
        f"and {len(best.splits)} grids compared",
        flush=True,
    )


def machine_of(devices: int) -> Machine:
    """Return devices of 2 TFLOP/s with links of 10 GB/s."""
    every = tuple(Device(cpu(i), 2e12, 5e-6, 2e11) for i in range(devices))
    return Machine(every, {"network": Level(2e-5, 1e10)})


def planned(model: Model, machine: Machine) -> Plan:
    """Plan a model with strategy and schedule `auto`."""
    options = Options(
        default=cpu(0),
        devices=machine.contexts,
        micro_batches=MICRO_BATCHES,
        strategy="auto",
        schedule="auto",
        machine=machine,
        update=True,
        pricing=always(CostModel.of_machine(machine)),
    )
    return plan_model(model, options, "float32", train=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--micro-batches", type=int, default=4096)
    parser.add_argument("--plan", nargs="+", choices=MODELS, metavar="NETWORK")
    parser.add_argument("--nodes", type=int, default=300_000, help="layers of the transformer")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.plan or ():
        if options.here:
            report_plan(name, options.nodes)
        else:
            alone("--plan", name, "--nodes", str(options.nodes))
    for ranks in () if options.plan else options.ranks:
        if options.here:
            report(ranks, options.micro_batches)
        else:
            alone("--ranks", str(ranks), "--micro-batches", str(options.micro_batches))


def alone(*arguments: str) -> None:
    """Run this benchmark in a process of its own, so that its peak memory counts nothing else."""
    subprocess.run([sys.executable, "-m", "benchmarks.scale", "--here", *arguments], check=True)


if __name__ == "__main__":
    main()
