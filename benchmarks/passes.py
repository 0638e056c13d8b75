"""The effect of each optimization: a training step with one of them disabled at a time.

    python -m benchmarks.passes --config small

Variants alternate in one process. The table shows median step times and their ratio to that of
everything on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.lstm_lm import build
from partitioner.cutting import merging
from partitioner.memory import memory_layout
from runtime import Options, Session, ThreadCluster, initialize, limit_blas, plan
from runtime.backends import bodies
from runtime.backends.cpu import gemm
from symgraph import cpu, init, optimizer
from symgraph.core.registry import find

CONFIGS = {  # layers, hidden, batch, steps
    "small": (2, 200, 20, 20),
    "medium": (2, 650, 20, 35),
    "large": (2, 1500, 20, 35),
    "deep": (8, 512, 32, 32),
    "mxnet-example": (8, 400, 64, 60),
}
VOCAB = 10_000


def same(graph: Any, *_: Any) -> Any:
    return graph


def find_without_in_place(name: str) -> Any:
    return replace(find(name), in_place=())


# What is disabled -> the names that are replaced while a session is made.
VARIANTS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "everything on": (),
    "products over time not merged": ((merging, "merge_products", same),),
    "weight gradients not one product": ((merging, "sum_products", same),),
    "equal calls not shared": ((merging, "share", same),),
    "joins copied": ((memory_layout, "is_join", lambda node: False),),
    "nothing written in place": ((memory_layout, "find", find_without_in_place),),
    "weights not packed": ((gemm, "available", lambda: False),),
    "numpy instead of kernels": ((bodies, "KERNELS", {}),),
}


@contextmanager
def session(name: str, config: str) -> Iterator[Callable[[], float]]:
    """Make a session on one device with a variant's changes; yield a function that times a step."""
    layers, hidden, batch, steps = CONFIGS[config]
    with ExitStack() as stack:
        for where, what, instead in VARIANTS[name]:
            stack.enter_context(mock.patch.object(where, what, instead))
        model = build(batch, steps, VOCAB, layers, hidden, hidden, residual=False)
        options = Options(None, cpu(0), (cpu(0),), states=model.states, update=True, whole=False)
        made = plan(model.symbol, model.feeds, options, wrt=None)
        with ThreadCluster(1) as cluster:
            arrays = initialize(made, cluster, init.Uniform(0.1), 1)
            sgd = optimizer.create("sgd", learning_rate=0.1)
            running = Session(made, cluster, arrays, optimizer=sgd, clip=5.0)
            rng = np.random.default_rng(0)
            words = [rng.integers(0, VOCAB, (steps, batch)).astype("int32") for _ in range(2)]
            feeds = dict(zip(("data", "label"), words, strict=True))

            def step() -> float:
                start = time.perf_counter()
                running.step(feeds)
                return time.perf_counter() - start

            yield step


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.passes", description=__doc__, formatter_class=form
    )
    parser.add_argument("--config", default="small", choices=CONFIGS)
    parser.add_argument("--rounds", type=int, default=15, help="steps of each variant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    chosen = parser.parse_args()
    console = Console(stderr=True)
    with limit_blas(1), ExitStack() as stack:
        steps = {}
        for name in VARIANTS:
            console.print(f"making: {name}")
            steps[name] = stack.enter_context(session(name, chosen.config))
            steps[name]()  # compiles
        times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(chosen.rounds):
            for name, step in steps.items():
                times[name].append(step())
    medians = {name: float(np.median(t)) for name, t in times.items()}
    base = medians["everything on"]
    table = Table(title=f"{chosen.config}, one device, one thread")
    for column in ("disabled", "step", "spread", "times as long"):
        table.add_column(column, justify="left" if column == "disabled" else "right")
    for name, seconds in medians.items():
        low, high = np.percentile(times[name], (25, 75))
        table.add_row(
            name, f"{seconds * 1e3:.1f} ms", f"{(high - low) * 1e3:.1f} ms", f"{seconds / base:.2f}"
        )
    Console().print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"config": chosen.config, "seconds": times}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
