"""The planner beside plans by hand, for networks that a cut of one row of layers does not suit.

    python -m benchmarks.planner_by_hand --json hand.json

Each case has the placements that people would write for it; the best of them, with the best
schedule that is found for it, is compared with `strategy: auto, schedule: auto`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import symgraph as sg
from partitioner.costs.machine import Device, Level, Machine
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.options import Options
from runtime.planning.planner import plan
from symgraph.command_line import OK, Parser, status_of
from symgraph.core.context import cpu
from symgraph.core.errors import LimitError
from symgraph.core.types import TensorType
from symgraph.core.units import seconds_text
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

GOOD = 1.02  # times the best plan by hand
ROWS, WIDTH = 64, 128

By = Callable[[str], int]  # ctx_group -> the number of its device


class HandCase(NamedTuple):
    """A network, a machine and plans by hand."""

    name: str
    symbol: Symbol
    groups: Sequence[str]
    flops: Sequence[float]
    micro_batches: int
    plans: Sequence[By]
    memory: int | None = None
    shape: tuple[int, ...] = (WIDTH,)
    schedule: str = "auto"
    rows: int = ROWS  # samples of a micro-batch


def layer(x: Symbol, group: str, width: int = WIDTH) -> Symbol:
    with sg.AttrScope(ctx_group=group):
        return sg.sym.FullyConnected(x, num_hidden=width, name=f"{group}_fc")


def loss(x: Symbol, group: str) -> Symbol:
    with sg.AttrScope(ctx_group=group):
        return sg.sym.MakeLoss(x, name="loss")


def chain(depth: int, width: int = WIDTH) -> tuple[Symbol, list[str]]:
    x, groups = sg.sym.Variable("data"), [f"l{i}" for i in range(depth)]
    for group in groups:
        x = layer(x, group, width)
    return loss(x, groups[-1]), groups


def even(count: int, devices: int) -> By:
    """Cut layers l0, l1, ... evenly."""
    return lambda group: int(group[1:]) * devices // count


def towers(depth: int) -> tuple[Symbol, list[str]]:
    data, ends, groups = sg.sym.Variable("data"), [], []
    for tower in "ab":
        x = data
        for i in range(depth):
            groups.append(f"{tower}{i}")
            x = layer(x, groups[-1])
        ends.append(x)
    with sg.AttrScope(ctx_group=groups[-1]):
        both = sg.sym.elemwise_add(*ends, name="both")
    return loss(both, groups[-1]), groups


def unet(depth: int) -> tuple[Symbol, list[str]]:
    """Levels down and up again, whose inputs are also those of the level on the other side."""
    x, skips, groups = sg.sym.Variable("data"), [], []
    for i in range(depth):
        groups.append(f"d{i}")
        x = layer(x, groups[-1])
        skips.append(x)
    for i in reversed(range(depth)):
        groups.append(f"u{i}")
        with sg.AttrScope(ctx_group=groups[-1]):
            x = sg.sym.Concat(x, skips[i], dim=1, name=f"u{i}_cat")
        x = layer(x, groups[-1])
    return loss(x, groups[-1]), groups


def inception(blocks: int) -> tuple[Symbol, list[str]]:
    x, groups = sg.sym.Variable("data"), []
    for block in range(blocks):
        ends = []
        for branch, widths in enumerate(((128,), (64, 128), (64, 64, 64), (64,))):
            group = f"b{block}{branch}"
            groups.append(group)
            y = x
            with sg.AttrScope(ctx_group=group):
                for i, width in enumerate(widths):
                    y = sg.sym.FullyConnected(y, num_hidden=width, name=f"{group}_fc{i}")
            ends.append(y)
        with sg.AttrScope(ctx_group=groups[-4]):
            x = sg.sym.Concat(*ends, dim=1, name=f"cat{block}")
    return loss(x, groups[-1]), groups


def language(vocab: int, layers: int, *, tied: bool) -> tuple[Symbol, list[str]]:
    data, groups = sg.sym.Variable("data"), ["embed"]
    weight = sg.sym.Variable("embed_weight", shape=(vocab, WIDTH))
    with sg.AttrScope(ctx_group="embed"):
        x = sg.sym.Embedding(data, weight, input_dim=vocab, output_dim=WIDTH, name="embed")
    for i in range(layers):
        groups.append(f"l{i}")
        x = layer(x, groups[-1])
    if tied:
        groups.append("decode")
        with sg.AttrScope(ctx_group="decode"):
            x = sg.sym.FullyConnected(
                x, weight, num_hidden=vocab, no_bias=True, flatten=False, name="decode"
            )
    return loss(x, groups[-1]), groups


def heads(count: int, trunk: int) -> tuple[Symbol, list[str]]:
    x, groups = sg.sym.Variable("data"), [f"l{i}" for i in range(trunk)]
    for group in groups[:trunk]:
        x = layer(x, group)
    outputs = []
    for head in range(count):
        groups.append(f"h{head}")
        with sg.AttrScope(ctx_group=groups[-1]):
            y = sg.sym.FullyConnected(x, num_hidden=4 * WIDTH, name=f"h{head}_fc")
            outputs.append(sg.sym.MakeLoss(y, name=f"h{head}_loss"))
    return sg.sym.Group(outputs), groups


def cases() -> Iterator[HandCase]:
    equal, mixed = (2e9, 2e9), (2e9, 6e9)
    for mbs in (1, 4):
        plans = [lambda g: int(g[0] == "b"), lambda g: int(int(g[1:]) >= 2), lambda g: 0]
        yield HandCase(f"two towers, M={mbs}", *towers(4), equal, mbs, plans)
    alone = [lambda g: 1, lambda g: 0, lambda g: int(int(g[1:]) >= 2)]
    yield HandCase("one micro-batch, 1:3", *chain(8), mixed, 1, alone)
    inner = [lambda g: int(int(g[1:]) >= 2), lambda g: int(g[0] == "u"), lambda g: 0]
    for mbs in (1, 4):
        yield HandCase(f"U-Net, M={mbs}", *unet(4), equal, mbs, inner)
    branches = [lambda g: int(g[2] in "12"), lambda g: int(g[2] in "02"), lambda g: int(g[1] > "0")]
    for mbs in (1, 4):
        yield HandCase(f"Inception, M={mbs}", *inception(2), equal, mbs, branches)
    ends = [lambda g: int(g[0] == "l"), lambda g: int(g != "embed"), lambda g: 0]
    yield HandCase("tied embedding", *language(2000, 6, tied=True), equal, 4, ends, shape=())
    table = [lambda g: int(g != "embed"), lambda g: int(g in ("l2", "l3")), lambda g: 0]
    big = language(50_000, 4, tied=False)
    yield HandCase("giant embedding", *big, equal, 4, table, shape=())
    split = [lambda g: int(g[0] == "h"), lambda g: int(g in ("h2", "h3")), lambda g: 0]
    for mbs in (1, 4):
        yield HandCase(f"four heads, M={mbs}", *heads(4, 4), equal, mbs, split)
    yield HandCase("1,000 layers", *chain(1000, 32), equal, 4, [even(1000, 2)], schedule="1f1b")
    for devices in (2, 4):
        cuts = [even(12, devices)]
        yield HandCase(f"12 layers on {devices}", *chain(12, 64), equal * (devices // 2), 8, cuts)
    for devices, memory in ((2, 18_300_000), (2, 12_900_000), (4, 20_100_000), (4, 11_700_000)):
        name, cuts = f"12 layers on {devices}, {memory / 1e6:.1f} MB", [even(12, devices)]
        flops = equal * (devices // 2)
        yield HandCase(name, *chain(12, 64), flops, 8, cuts, memory, (64,), rows=4096)


def options_of(case: HandCase) -> Options:
    devices = tuple(Device(cpu(i), f, 5e-6, 2e10) for i, f in enumerate(case.flops))
    machine = Machine(devices, {"network": Level(2e-5, 1e9)})
    return Options(
        default=cpu(0),
        devices=machine.contexts,
        micro_batches=case.micro_batches,
        schedule=case.schedule,
        memory=case.memory,
        recompute="auto" if case.memory else (),
        machine=machine,
        splits=False,
        update=True,
        pricing=always(CostModel.of_machine(machine)),
    )


def compare(case: HandCase) -> dict[str, Any]:
    """Plan a case by itself and by hand."""
    feeds = {"data": Feed(TensorType((case.rows * case.micro_batches, *case.shape), "float32"))}
    options = options_of(case)
    by_hand = []
    for by in case.plans:
        groups = {group: cpu(by(group)) for group in case.groups}
        made = plan(
            case.symbol, feeds, replace(options, groups=groups, strategy="group2ctx"), wrt=None
        )
        by_hand.append(made.choice.seconds)
    begun = time.process_time()
    try:
        auto = plan(case.symbol, feeds, replace(options, strategy="auto"), wrt=None).choice.seconds
    except LimitError as error:
        print(f"{case.name}: {error}", file=sys.stderr)
        auto = None
    return {
        "case": case.name,
        "by_hand": by_hand,
        "auto": auto,
        "ratio": float("inf") if auto is None else auto / min(by_hand),
        "planning_seconds": time.process_time() - begun,
    }


def run() -> int:
    """Run the command line."""
    form = argparse.RawDescriptionHelpFormatter
    prog = "python -m benchmarks.planner_by_hand"
    parser = Parser(prog=prog, description=__doc__, formatter_class=form)
    parser.add_argument("--cases", nargs="+", default=[""], help="starts of their names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    rows = []
    for case in cases():
        if not case.name.startswith(tuple(options.cases)):
            continue
        rows.append(row := compare(case))
        print(
            f"{row['case']:22} auto / best by hand {row['ratio']:.3f}, by hand "
            f"{', '.join(map(seconds_text, row['by_hand']))}, planned in "
            f"{seconds_text(row['planning_seconds'])}",
            flush=True,
        )
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return OK if all(row["ratio"] <= GOOD for row in rows) else 1


if __name__ == "__main__":
    sys.exit(status_of(run))
