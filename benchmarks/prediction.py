"""Prediction: simulated step times compared with measured ones.

    python -m benchmarks.prediction [--steps 9] [--out docs/prediction]

There are two series on threads: layers that sleep, whose costs are known, and an LSTM language
model. The model's bodies are timed under one schedule (gpipe, or zb-h1 if the backward phase is
split) to predict the others. Prints a table, the mean error and the rank correlation of each
series, and writes a scatter plot.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS

import numpy as np
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

import benchmarks.sleeping as sleeping
from examples.lstm_lm import build
from partitioner.base.types import BodyKey
from runtime import Costs, Options, Plan, Session, ThreadCluster, initialize, plan, simulate
from runtime.profiling.calibration.pricing import measure_link
from symgraph import Context, Feed, Symbol, TensorType, cpu
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

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)


class Measured(NamedTuple):
    """Medians over a session's steps: the step, its bodies, and an instruction besides runs."""

    step: float
    bodies: dict[BodyKey, float]
    overhead: float


def measure(made: Plan, feeds: Feeds, steps: int) -> Measured:
    """Run a few steps of a plan on threads and measure them."""
    with ThreadCluster(made.partition.ranks) as cluster:
        arrays = initialize(made, cluster, Uniform(0.1), seed=1)
        session = Session(made, cluster, arrays)
        spans, gaps = [], []
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                session.body_seconds.clear()
            session.step(feeds)
            if step >= WARM_UP:
                timeline = session.timeline
                spans.append(timeline.makespan)
                gaps += [
                    float(((t.start[1:] - t.end[:-1]).mean()) * timeline.unit)
                    for t in timeline.tracks
                ]
        bodies = {key: median(seconds) for key, seconds in session.body_seconds.items()}
    return Measured(median(spans), bodies, median(gaps))


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
    link = measure_link()
    for point, phases in sleeping_points():
        made = planned(point)
        seconds = known_costs(made, phases)
        costs = Costs(seconds.__getitem__, link)
        predicted = simulate(made.schedule, made.partition, costs).makespan
        found.append(Found(point.label, predicted, measure(made, point.feeds, steps).step))
        show(found[-1])
    return found


# -- an LSTM language model ----------------------------------------------------------------------

VOCAB, STEPS, BATCH, HIDDEN, LAYERS = 4000, 16, 64, 384, 4


def lstm_points() -> Iterator[list[Point]]:
    """Return points with common bodies, which are timed with the first point."""
    model = build(BATCH, STEPS, VOCAB, LAYERS, HIDDEN, HIDDEN)
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.integers(0, VOCAB, feed.type.shape).astype(feed.type.dtype)
        if name in ("data", "label")
        else np.zeros(feed.type.shape, feed.type.dtype)
        for name, feed in model.feeds.items()
    }
    names = ["embed", *(f"layer{i}" for i in range(LAYERS)), "decode"]
    places = {
        "2|2+dec": (0, 0, 0, 1, 1, 1),
        "3|1+dec": (0, 0, 0, 0, 1, 1),
        "4|dec": (0, 0, 0, 0, 0, 1),
        "1|3+dec": (0, 0, 1, 1, 1, 1),
    }
    for place, ranks in places.items():
        groups: dict[str, Context] = {n: cpu(r) for n, r in zip(names, ranks, strict=True)}
        for count in (1, 4):
            for steps in (None, 4):
                for schedules in (("gpipe", "1f1b", "wavefront"), ("zb-h1", "zb-h2")):
                    yield [
                        Point(
                            f"{place} {s} m={count} k={steps or STEPS}",
                            model.symbol,
                            model.feeds,
                            feeds,
                            Options(groups, cpu(0), (), s, count, time_segment=steps),
                        )
                        for s in schedules
                    ]


def lstm_series(steps: int) -> list[Found]:
    found = []
    link = measure_link()
    for first, *others in lstm_points():
        timed = measure(planned(first), first.feeds, steps)
        for point in others:
            made = planned(point)
            costs = Costs(timed.bodies.__getitem__, link, overhead=timed.overhead)
            predicted = simulate(made.schedule, made.partition, costs).makespan
            found.append(Found(point.label, predicted, measure(made, point.feeds, steps).step))
            show(found[-1])
    return found


# -- results -------------------------------------------------------------------------------------


def show(found: Found) -> None:
    print(
        f"{found.label:32} predicted {found.predicted * 1e3:8.1f} ms   measured "
        f"{found.measured * 1e3:8.1f} ms   error {found.error:6.2%}",
        flush=True,
    )


def conclude(name: str, series: list[Found]) -> str:
    errors = [f.error for f in series]
    rank = spearmanr([f.predicted for f in series], [f.measured for f in series]).statistic
    return (
        f"{name}: {len(series)} points, mean error {np.mean(errors):.2%}, largest "
        f"{max(errors):.2%}, rank correlation {rank:.3f}"
    )


def picture(series: dict[str, list[Found]], path: Path) -> None:
    """Draw a scatter plot of predicted over measured step times."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(series), figsize=(6 * len(series), 5.5))
    for axis, (name, found) in zip(np.atleast_1d(axes), series.items(), strict=True):
        measured = [f.measured * 1e3 for f in found]
        axis.plot(measured, [f.predicted * 1e3 for f in found], "o", alpha=0.7)
        ends = [min(measured) * 0.9, max(measured) * 1.1]
        axis.plot(ends, ends, "k-", linewidth=0.8)
        axis.set(
            title=conclude(name, found).replace(", mean", "\nmean"),
            xlabel="measured step (ms)",
            ylabel="predicted step (ms)",
        )
    figure.tight_layout()
    figure.savefig(path)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated step times beside measured ones.")
    parser.add_argument("--steps", type=int, default=9, help="measured steps a point (median)")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the picture")
    parser.add_argument("--series", choices=("sleeping", "lstm"), help="only this series")
    options = parser.parse_args()
    makers = {"sleeping": sleeping_series, "lstm": lstm_series}
    series: dict[str, list[Found]] = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for name, make in makers.items():
            if options.series in (None, name):
                series[name] = make(options.steps)
    for name, found in series.items():
        print(conclude(name, found))
    options.out.mkdir(parents=True, exist_ok=True)
    picture(series, options.out / "prediction.svg")


if __name__ == "__main__":
    main()
