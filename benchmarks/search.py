"""Search: the config that `--search` writes, compared with an exhaustive measured sweep.

    python -m benchmarks.search [--configs small medium deep] [--points 36] [--rounds 2]
        [--finals 7] [--steps 5]

The LSTMs are those of benchmarks.networks, on two devices. The points of the sweep are placements
(layers before the cut; the decoder whole or in shards) x schedules x micro-batches x time segments,
an even selection if there are more than requested. They and the winner run in turn, round after
round, every second round backward; each session is made anew, so memory holds one at a time. The
minimum of many noisy times is biased, so the winner and the fastest points then run in separate
rounds, and only these are compared. `key.path=value` changes all configs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS

import numpy as np

from benchmarks.peers.protocol import CONFIGS, RATE, VOCAB
from runtime.frontends.cli.commands import search_best
from runtime.profiling.trials.trial import Shared, Trial
from runtime.training.clusters import Clusters
from symgraph.app.config import Config, load_config
from symgraph.app.console import Console
from symgraph.command_line import OK, Parser, status_of
from symgraph.core.units import seconds_text

BASE = Path(__file__).parent.parent / "examples" / "lstm_lm.yaml"
WINNER = "winner"
SCHEDULES, MICRO_BATCHES, PARTS = ("1f1b", "zb-h1"), (1, 2, 4), (1, 4)  # parts: time segments
FINALISTS = 5  # points to measure again
ENOUGH, LONGEST = 1.03, 120.0  # times the sweep's best; seconds of a search


def base(name: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides common to all configs of a network."""
    size = CONFIGS[name]
    model = (
        f"{{layers: {size.layers}, hidden: {size.hidden}, embed: {size.hidden}, residual: false}}"
    )
    return [
        f"args={model}",
        f"data.batch_size={size.batch}",
        f"data.sequence_length={size.steps}",
        f"data.vocab={VOCAB}",
        "train.optimizer=sgd",
        f"train.learning_rate={RATE}",
        "blas_threads=1",
        *overrides,
    ]


def grid(layers: int, steps: int) -> Iterator[tuple[str, list[str]]]:
    """Return the overrides of all points by name."""
    middle = layers // 2
    cuts = range(max(1, middle), min(layers, middle + 2) + 1)
    for cut, whole, schedule, count, parts in product(
        cuts, (True, False), SCHEDULES, MICRO_BATCHES, PARTS
    ):
        places = {"embed": "cpu(0)"}
        places |= {f"layer{i}": f"cpu({int(i >= cut)})" for i in range(layers)}
        places["decode"] = "cpu(1)" if whole else "[cpu(0), cpu(1)]"
        groups = ", ".join(f"{group}: {device}" for group, device in places.items())
        segment = "null" if parts == 1 else str(-(-steps // parts))
        name = (
            f"{cut} layers | {layers - cut}, decoder {'whole' if whole else 'in shards'}, "
            f"{schedule}, {count} micro-batches, segments {segment}"
        )
        yield (
            name,
            [
                f"group2ctx={{{groups}}}",
                f"pipeline.schedule={schedule}",
                f"pipeline.micro_batches={count}",
                f"pipeline.time_segment={segment}",
            ],
        )


def picked(name: str, most: int, overrides: Sequence[str]) -> dict[str, Config]:
    """Select the configs of the sweep."""
    every = list(grid(CONFIGS[name].layers, CONFIGS[name].steps))
    chosen = np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int)
    shared = base(name, overrides)
    return {
        every[at][0]: load_config(str(BASE), [*shared, *every[at][1]]) for at in chosen.tolist()
    }


def searched(
    name: str, overrides: Sequence[str], clusters: Clusters, steps: int, folder: Path
) -> tuple[Config, dict[str, Any]]:
    """Run the search; return the winner's config and the figures."""
    open_ = [
        "group2ctx={}",
        "partition.strategy=auto",
        "pipeline.schedule=auto",
        "pipeline.time_segment=auto",
    ]
    config = load_config(str(BASE), [*base(name, overrides), *open_])
    winner = str(folder / f"{name}.yaml")
    begun = time.perf_counter()
    found = search_best(
        config, clusters, Console(sys.stderr), steps=steps, winner=winner, baseline=False
    )
    found["seconds"] = time.perf_counter() - begun
    return load_config(winner, ()), found


def measured(config: Config, clusters: Clusters, shared: Shared, steps: int) -> float:
    """Measure the median of some steps of a new session."""
    trial = Trial.of(config, clusters.of(config), steps=steps, shared=shared)
    trial.run(1, keep=False)
    trial.run(steps)
    seconds = np.concatenate([record.seconds for record in trial.recorder.records()])
    return float(np.median(seconds))


def sweep(
    configs: Mapping[str, Config], clusters: Clusters, shared: Shared, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Measure the median step of every config in every round."""
    found: dict[str, list[float]] = {name: [] for name in configs}
    for number in range(rounds):
        names = list(configs)
        for place, name in enumerate(names[::-1] if number % 2 else names, 1):
            found[name].append(measured(configs[name], clusters, shared, steps))
            gc.collect()
            print(
                f"round {number + 1} of {rounds}, {place} of {len(names)}: {name}: "
                f"{seconds_text(found[name][-1])}",
                file=sys.stderr,
                flush=True,
            )
    return found


def benchmark(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the search and the sweep of one network."""
    clusters = Clusters({})
    try:
        with TemporaryDirectory() as folder:
            winner, found = searched(name, options.overrides, clusters, options.steps, Path(folder))
            configs = picked(name, options.points, options.overrides)
            shared, configs[WINNER] = Shared(), winner
            every = sweep(configs, clusters, shared, options.rounds, options.steps)
            ranked = sorted(every, key=lambda point: median(every[point]))
            chosen = [*[point for point in ranked if point != WINNER][:FINALISTS], WINNER]
            final = {point: configs[point] for point in chosen}
            finals = sweep(final, clusters, shared, options.finals, options.steps)
    finally:
        clusters.close()
    steps = {point: median(seconds) for point, seconds in finals.items()}
    best = min(chosen[:-1], key=steps.__getitem__)
    against = [w / b for w, b in zip(finals[WINNER], finals[best], strict=True)]
    return {
        "search_seconds": found["seconds"],
        "simulating_seconds": found["search_seconds"],
        "simulated": found["simulated"],
        "winner": found["best"],
        "predicted_step_seconds": found["predicted_step_seconds"],
        "winner_step_seconds": steps[WINNER],
        "best": best,
        "best_step_seconds": steps[best],
        "winner_to_best": median(against),
        "points": len(configs) - 1,
        "rounds": every,
        "finals": finals,
    }


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table of all networks, and the fastest points of each."""
    console = Console(sys.stdout)
    head = ("", "search", "simulated", "winner's step", "best of the sweep", "winner / best", "")
    rows = [
        (
            name,
            seconds_text(f["search_seconds"]),
            f["simulated"],
            seconds_text(f["winner_step_seconds"]),
            seconds_text(f["best_step_seconds"]),
            f"{f['winner_to_best']:.3f}",
            "ok" if _enough(f) else "MISSED",
        )
        for name, f in found.items()
    ]
    console.table("--search beside a sweep", head, rows)
    for name, f in found.items():
        console.line(f"{name}: winner: {f['winner']}")
        console.line(f"{name}: best of {f['points']} points: {f['best']}")


def _enough(found: Mapping[str, Any]) -> bool:
    return found["winner_to_best"] <= ENOUGH and found["search_seconds"] <= LONGEST


def run() -> int:
    """Run the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m benchmarks.search", description=__doc__, formatter_class=form)
    parser.add_argument(
        "--configs", nargs="+", choices=CONFIGS, default=["small", "medium", "deep"]
    )
    parser.add_argument("--points", type=int, default=36, help="of the sweep, at most")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each point")
    parser.add_argument(
        "--finals", type=int, default=7, help=f"turns of the winner and the {FINALISTS} fastest"
    )
    parser.add_argument("--steps", type=int, default=5, help="measured in a turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    options = parser.parse_intermixed_args()
    found: dict[str, Any] = {}
    for name in options.configs:
        found[name] = benchmark(name, options)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return OK


if __name__ == "__main__":
    sys.exit(status_of(run))
