"""Prediction: simulated step times compared with measured ones.

    python -m benchmarks.prediction [--steps 9] [--plans 20] [--out docs]
    mpiexec -n 2 python -m benchmarks.prediction --series networks

There are two series: layers that sleep, whose costs are known, in threads; and plans of five
networks, drawn at random, which are predicted by the networks' kernels and measured in turns, as by
`symgraph compare`, in threads or over MPI. Prints each point, and of each network the mean and the
largest error, the rank correlation, and how many measurements lie in the predicted interval; draws
a scatter plot.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS

import numpy as np
from scipy.stats import spearmanr

import benchmarks.sleeping as sleeping
import symgraph as sg
from partitioner.base.types import BodyKey
from runtime import (
    Costs,
    Options,
    Plan,
    Session,
    ThreadCluster,
    initialize,
    limit_blas,
    plan,
    simulate,
)
from runtime.profiling.calibration.pricing import measure_links
from runtime.profiling.subjects import load
from runtime.transports import launched_by_mpi
from symgraph import Feed, Symbol, TensorType, cpu
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.init import Uniform

Feeds = dict[str, Array]
WARM_UP = 2


class Point(NamedTuple):
    """One way to run a network: label, placement and options."""

    label: str
    symbol: Symbol
    specs: dict[str, Feed]
    feeds: Feeds
    options: Options


class Found(NamedTuple):
    label: str
    predicted: float
    measured: float
    interval: tuple[float, float] | None = None
    """The least and the most seconds that are predicted."""

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)


def measure(made: Plan, feeds: Feeds, steps: int) -> float:
    """Run a few steps of a plan on threads; return the median seconds of a step."""
    spans = []
    with ThreadCluster(made.partition.ranks) as cluster:
        arrays = initialize(made, cluster, Uniform(0.1), seed=1)
        session = Session(made, cluster, arrays)
        for _ in range(WARM_UP + steps):
            session.step(feeds)
            spans.append(session.timeline.makespan)
    return median(spans[WARM_UP:])


def planned(point: Point) -> Plan:
    return plan(point.symbol, point.specs, point.options, wrt=None)


# -- layers that sleep ---------------------------------------------------------------------------


def sleeping_points() -> Iterator[tuple[Point, dict[str, float]]]:
    """Return points, and the seconds of each layer's phases: forward, input and weight."""
    costs = [
        (0.016, 0.020, 0.012),
        (0.024, 0.024, 0.024),
        (0.012, 0.018, 0.008),
        (0.020, 0.030, 0.016),
    ]
    symbol = sleeping.chain(costs)
    specs = {"x": Feed(TensorType((8, 4)))}
    feeds = {"x": np.zeros((8, 4), np.float32)}
    for ranks in ((0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 0, 1)):
        groups = {f"g{i}": cpu(r) for i, r in enumerate(ranks)}
        for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "wavefront"):
            for count in (2, 5):
                options = Options(groups, cpu(0), (), schedule, count)
                label = f"{''.join(map(str, ranks))} {schedule} m={count}"
                phases = {
                    f"{phase}{i}": c
                    for i, layer in enumerate(costs)
                    for phase, c in zip("FIW", layer, strict=True)
                }
                yield Point(label, symbol, specs, feeds, options), phases


def known_costs(made: Plan, phases: dict[str, float]) -> dict[BodyKey, float]:
    """Return the seconds of each body: the sleeps of its stage's layers.

    The gradient of the data, the first layer's input, is never computed.
    """
    stage_of = made.partition.placement.stage_of
    found = {}
    for key in made.partition.bodies:
        layers = [i for i in range(4) if stage_of[f"layer{i}"] == key.stage]
        parts = "IW" if key.phase == "B" else key.phase
        found[key] = sum(phases[f"{p}{i}"] for p in parts for i in layers if f"{p}{i}" != "I0")
    return found


def sleeping_series(steps: int) -> list[Found]:
    found = []
    link = measure_links((cpu(0),))["cpu", "cpu"]
    for point, phases in sleeping_points():
        made = planned(point)
        seconds = known_costs(made, phases)
        costs = Costs(seconds.__getitem__, link)
        predicted = simulate(made.schedule, made.partition, costs).makespan
        found.append(Found(point.label, predicted, measure(made, point.feeds, steps)))
        show(found[-1])
    return found


# -- networks ------------------------------------------------------------------------------------


class Space(NamedTuple):
    """The plans of a network among which some are drawn."""

    config: str
    """The config of the examples."""
    groups: tuple[str, ...]
    """The groups in their order, which are cut into two neighbouring parts."""
    changes: tuple[str, ...] = ()
    """Changes of the config."""
    sharded: str = ""
    """A group that may also be on both devices."""
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    segments: tuple[int, ...] = ()
    """Lengths of time segments."""


LAYERS = tuple([f"layer{i}" for i in range(8)])
TEXT = "data={{kind: stdlib_text, batch_size: {}, sequence_length: {}, vocab: 10000}}"
SPACES = {
    "lstm": Space(
        "examples/lstm_lm.yaml",
        ("embed", *LAYERS[:4], "decode"),
        (),
        "decode",
        segments=(4, 5, 10),
    ),
    "deep lstm": Space(
        "examples/lstm_ptb/hand.yaml",
        ("embed", *LAYERS, "decode"),
        (TEXT.format(32, 32),),
        "decode",
        (1, 2, 4),
        (4, 8),
    ),
    "transformer": Space(
        "examples/transformer_lm.yaml", ("embed", *LAYERS[:4], "decode"), (), "decode"
    ),
    "vgg": Space(
        "examples/vgg.yaml",
        ("block1", "block2", "block3", "block4", "head"),
        micro_batches=(1, 2, 4),
    ),
    "tagger": Space("examples/tagger.yaml", ("forward", "backward")),
}


def drawn(space: Space, count: int) -> dict[str, Config]:
    """Draw configs of plans, by name; on every machine the same."""
    rng, found = random.Random(0), dict[str, Config]()
    for _ in range(50 * count):
        name, changes = _draw(space, rng)
        with suppress(ConfigError):
            found[name] = found.get(name) or load(space.config, [*space.changes, *changes])
        if len(found) == count:
            break
    return found


def _draw(space: Space, rng: random.Random) -> tuple[str, list[str]]:
    at = rng.randrange(1, len(space.groups))
    where = {group: f"cpu({int(i >= at)})" for i, group in enumerate(space.groups)}
    shards = space.sharded and rng.random() < 0.4
    if shards:
        where[space.sharded] = "[cpu(0), cpu(1)]"
    segment = rng.choice([None, *space.segments])
    count = rng.choice(space.micro_batches)
    schedules = ("gpipe", "1f1b", "wavefront") + (("zb-h1",) if segment is None else ())
    schedule, again = rng.choice(schedules), rng.random() < 0.15
    changes = [
        f"group2ctx={{{', '.join(f'{group}: {device}' for group, device in where.items())}}}",
        f"pipeline={{schedule: {schedule}, micro_batches: {count}}}",
        *([f"pipeline.time_segment={segment}"] if segment else ()),
        *(["pipeline.recompute=all"] if again else ()),
    ]
    name = f"{at}{'+' if shards else ''} {schedule} m={count}"
    return name + (f" k={segment}" if segment else "") + (" recompute" if again else ""), changes


def network_series(name: str, plans: int, steps: int) -> list[Found]:
    """Predict drawn plans of a network by its kernels, which are timed before, and measure them."""
    compared = sg.compare(drawn(SPACES[name], plans), steps=steps, baseline=False)
    found = []
    for candidate in compared.ranking:
        figures, prices = candidate.figures, candidate.outcome.profile.prices
        label = f"{name} {candidate.name}"
        found.append(
            Found(label, figures.predicted, figures.step, prices.interval(figures.predicted))
        )
        show(found[-1])
    return found


# -- results -------------------------------------------------------------------------------------


def is_first() -> bool:
    """Return whether this process prints: it is alone, or rank 0 of MPI."""
    if not launched_by_mpi(os.environ):
        return True
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank == 0


def show(found: Found) -> None:
    if not is_first():
        return
    interval = ""
    if found.interval:
        interval = " ({:.1f} to {:.1f})".format(*(1e3 * end for end in found.interval))
    print(
        f"{found.label:36} predicted {found.predicted * 1e3:8.1f} ms{interval}   measured "
        f"{found.measured * 1e3:8.1f} ms   error {found.predicted / found.measured - 1:+6.1%}",
        flush=True,
    )


def conclude(name: str, series: list[Found]) -> str:
    errors = [f.error for f in series]
    rank = spearmanr([f.predicted for f in series], [f.measured for f in series]).statistic
    inside = [f.interval[0] <= f.measured <= f.interval[1] for f in series if f.interval]
    return (
        f"{name}: {len(series)} points, mean error {np.mean(errors):.2%}, largest "
        f"{max(errors):.2%}, rank correlation {rank:.3f}"
        + (f", {np.mean(inside):.0%} within the interval" if inside else "")
    )


def picture(series: dict[str, list[Found]], path: Path) -> None:
    """Draw a scatter plot of predicted over measured step times."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(series), figsize=(6 * len(series), 5.5))
    for axis, (name, found) in zip(np.atleast_1d(axes), series.items(), strict=True):
        measured = [f.measured * 1e3 for f in found]
        axis.loglog(measured, [f.predicted * 1e3 for f in found], "o", alpha=0.7)
        ends = [min(measured) * 0.9, max(measured) * 1.1]
        axis.plot(ends, ends, "k-", linewidth=0.8)
        axis.set(
            title=conclude(name, found).replace(", mean", "\nmean").replace(", rank", "\nrank"),
            xlabel="measured step (ms)",
            ylabel="predicted step (ms)",
        )
    figure.tight_layout()
    figure.savefig(path)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated step times beside measured ones.")
    parser.add_argument("--steps", type=int, default=9, help="measured steps a point (median)")
    parser.add_argument("--plans", type=int, default=20, help="plans of each network")
    parser.add_argument("--networks", nargs="+", choices=SPACES, default=[*SPACES])
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the picture")
    parser.add_argument("--series", choices=("sleeping", "networks"), help="only this series")
    options = parser.parse_args()
    series: dict[str, list[Found]] = {}
    if options.series in (None, "sleeping") and is_first():
        with limit_blas(1):
            series["sleeping"] = sleeping_series(options.steps)
    if options.series in (None, "networks"):
        of = {n: network_series(n, options.plans, options.steps) for n in options.networks}
        if not is_first():
            return
        for name, found in of.items():
            print(conclude(name, found))
        series["networks"] = [point for found in of.values() for point in found]
    for name, found in series.items():
        print(conclude(name, found))
    options.out.mkdir(parents=True, exist_ok=True)
    picture(series, options.out / "prediction.svg")


if __name__ == "__main__":
    main()
