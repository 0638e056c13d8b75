"""Profiles in words: the tables and sentences of `--profile`, and its figures for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from runtime.planning.costs.prices import CostModel
from runtime.profiling.analysis.mixture import Mixture
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.analysis.waits import reasons
from runtime.profiling.report.result import Passage
from runtime.schedule.views.draw import chart, legend
from symgraph.core.units import bytes_text, count_text, seconds_text, si_text

Rows = list[tuple[str, ...]]  # of a table, its head first

MAX_ROWS = 16  # of a table in the terminal; files have all rows
SUM_OFF = 0.05  # largest relative gap between the operators' medians and the ranks' computing
SAME = 0.03  # relative change below which a second prediction counts as unchanged
SLOWER = 0.05  # share of a step; a body that misses its prediction by more is marked


def profile_passages(profile: Profile, change: str = "") -> list[Passage]:
    """Return what `--profile` says of the measured steps.

    Args:
        profile: The measured steps.
        change: The one thing to change next; see advice.py.
    """
    advised = [f"change next: {change}"] if change else []
    times = Passage(
        ["where the time of a step goes, in ms:"],
        parts_table(profile),
        [f"  {line}" for line in reasons(profile)],
    )
    operators = Passage(
        ["operators, all ranks, per step:"], operators_table(profile), [operators_sum(profile)]
    )
    return [
        Passage([*pace_lines(profile), how_long(profile), *again(profile), *advised]),
        Passage([f"products of matrices: {profile.products}"]),
        *([Passage(["steps by their buckets:"], mixtures_table(profile))] * several(profile)),
        times,
        operators,
        Passage(["bodies, measured beside predicted:"], bodies_table(profile)),
        *_timelines(profile.typical),
        *[Passage([f"warning: {line}"]) for line in warnings(profile)],
    ]


def warnings(profile: Profile) -> list[str]:
    """Return a line for each reason to doubt these figures."""
    found = list(profile.warnings)
    if abs(_sum_off(profile)) > SUM_OFF:
        found.append(
            f"{operators_sum(profile)}: steps differ much, as when other programs use the cores"
        )
    return found


def operators_sum(profile: Profile) -> str:
    """Return a line that compares the operators' medians with the ranks' computing."""
    total = sum(row.seconds for row in profile.operators)
    return (
        f"the operators' medians add up to {seconds_text(total)}, the ranks computed "
        f"{seconds_text(profile.compute)} ({_sum_off(profile):+.1%})"
    )


def _sum_off(profile: Profile) -> float:
    total = sum(row.seconds for row in profile.operators)
    return total / profile.compute - 1 if profile.compute else 0.0


def several(profile: Profile) -> bool:
    """Whether there are several mixtures of buckets."""
    return len(profile.mixtures) > 1


def how_long(profile: Profile) -> str:
    """Return a line with the step beside its prediction."""
    low, high = np.percentile(profile.every(), (25, 75))
    kinds = f" of {len(profile.mixtures)} mixtures of buckets" if several(profile) else ""
    if profile.pace is not None:
        kinds = f" of {count_text(len(profile.typical.record.keys), 'batch')}"
    return (
        f"{count_text(profile.steps, 'step')}{kinds}, {'mean' if several(profile) else 'median'} "
        f"{seconds_text(profile.step)} (half of them between "
        f"{seconds_text(float(low))} and {seconds_text(float(high))}), predicted "
        f"{seconds_text(profile.predicted_step)} ({profile.error:+.1%}"
        f"{interval_words(profile.prices, profile.predicted_step, '; ')}), bubble "
        f"{profile.bubble_fraction:.1%} of all ranks' time"
    )


def interval_words(prices: CostModel, seconds: float, mark: str = ", ") -> str:
    """Return words, after a mark, for where a predicted step is expected; "" if that is unknown."""
    found = prices.interval(seconds)
    return f"{mark}expected between {' and '.join(map(seconds_text, found))}" if found else ""


def pace_lines(profile: Profile) -> list[str]:
    """Return the throughput and latency of a network that runs forward only, in a line each."""
    pace = profile.pace
    if pace is None:
        return []
    stream, alone = pace.every, pace.latency
    return [
        f"forward only: {pace.throughput:,.0f} {profile.unit}/s, a batch of {pace.count:,.0f} "
        f"every {seconds_text(stream)} while batches stream, predicted "
        f"{seconds_text(pace.predicted_stream)} ({pace.predicted_stream / stream - 1:+.1%})",
        f"latency of a batch alone: {seconds_text(alone)}, predicted "
        f"{seconds_text(pace.predicted_alone)} ({pace.predicted_alone / alone - 1:+.1%})",
    ]


def again(profile: Profile) -> list[str]:
    """Return a line with the step predicted from costs that were measured again after the run."""
    if profile.predicted_again is None:
        return []
    typical = profile.typical
    change = profile.predicted_again / typical.predicted.makespan - 1
    slower = f"{abs(change):.0%} {'slower' if change > 0 else 'faster'} than"
    then = "when the plan was priced" if profile.prices.measured else "its machine file says"
    of = f" for buckets {typical.name}" if typical.name else ""
    return [
        f"kernels timed again after these steps predict "
        f"{seconds_text(profile.predicted_again)}{of} "
        f"({profile.predicted_again / typical.seconds - 1:+.1%}): this machine is "
        f"{slower if abs(change) > SAME else 'as fast as'} {then}"
    ]


def step_words(typical: Mixture) -> str:
    """Return words for the step whose timelines are shown."""
    batches = len(typical.record.keys)
    of = f"buckets {typical.name}" if typical.name else count_text(batches, "batch")
    return f"step of {of}" if typical.name or batches > 1 else "step"


def _timelines(typical: Mixture) -> list[Passage]:
    predicted = seconds_text(typical.predicted.makespan)
    shown = chart(typical.measured)
    return [
        Passage([f"measured {step_words(typical)}: {seconds_text(typical.seconds)}"], chart=shown),
        Passage(
            [f"predicted {step_words(typical)}: {predicted} ({typical.error:+.1%})"],
            chart=f"{chart(typical.predicted)}\n{legend(typical.predicted)}",
        ),
    ]


def mixtures_table(profile: Profile) -> Rows:
    """Return a table with a row per mixture of buckets, the most frequent first."""
    return [MIXTURES, *mixture_rows(profile)]


OPERATOR_HEAD = (
    "operator",
    "calls",
    "median",
    "spread",
    "a step",
    "share",
    "speed",
    "of roofline",
    "bytes",
)
MIXTURES = ("buckets", "steps", "words", "median", "predicted", "error", "bubble")


def mixture_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return the rows below MIXTURES."""
    return [
        (
            m.name,
            str(m.record.steps),
            f"{m.record.counts.mean():,.0f}",
            seconds_text(m.seconds),
            seconds_text(m.predicted.makespan),
            f"{m.error:+.1%}",
            f"{m.measured.bubble_fraction:.1%}",
        )
        for m in profile.mixtures
    ]


def parts_table(profile: Profile) -> Rows:
    """Return a table with a row per rank, whose parts add up to the step."""
    head = (
        "rank",
        "device",
        "compute",
        "communication",
        "warm-up",
        "drain",
        "imbalance",
        "dispatch",
        "between steps",
        "step",
    )
    rows: Rows = [head]
    devices = profile.typical.record.plan.devices
    for rank, own in enumerate(profile.parts):
        t = own.time
        parts = (
            t.compute,
            t.communication,
            t.warm_up,
            t.drain,
            t.imbalance,
            t.dispatch,
            own.between,
            own.total,
        )
        rows.append((str(rank), str(devices[rank]), *(_ms(seconds) for seconds in parts)))
    return rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def operators_table(profile: Profile) -> Rows:
    """Return a table of the slowest operators; the others share a row."""
    rows: Rows = [OPERATOR_HEAD]
    for row in profile.operators[:MAX_ROWS]:
        speed = si_text(row.flops_per_second, "FLOP/s") if row.flops else "-"
        rows.append(
            (
                row.name,
                f"{row.calls:,.0f}",
                seconds_text(row.median),
                seconds_text(row.spread),
                seconds_text(row.seconds),
                f"{row.share:.1%}",
                speed,
                f"{row.roofline:.0%}" if row.nbytes else "-",
                bytes_text(row.nbytes) if row.nbytes else "-",
            )
        )
    rest = profile.operators[MAX_ROWS:]
    if rest:
        seconds = seconds_text(sum(row.seconds for row in rest))
        share = f"{sum(row.share for row in rest):.1%}"
        calls = f"{sum(row.calls for row in rest):,.0f}"
        rows.append((f"({len(rest)} others)", calls, "", "", seconds, share, "", "", ""))
    return rows


def bodies_table(profile: Profile) -> Rows:
    """Return a table of the slowest bodies with the errors of their predictions."""
    head = (
        "body",
        "rank",
        "runs",
        "median",
        "spread",
        "predicted",
        "error a step",
        "share",
        "speed",
    )
    rows: Rows = [head]
    for row in profile.bodies[:MAX_ROWS]:
        error = row.calls * (row.predicted - row.median)
        mark = " <-" if abs(error) > SLOWER * profile.step else ""
        speed = si_text(row.flops / row.median, "FLOP/s") if row.flops and row.median else "-"
        rows.append(
            (
                row.name,
                str(row.rank),
                f"{row.calls:.3g}",
                seconds_text(row.median),
                seconds_text(row.spread),
                seconds_text(row.predicted),
                f"{error * 1e3:+.2f} ms{mark}",
                f"{row.share:.1%}",
                speed,
            )
        )
    if len(profile.bodies) > MAX_ROWS:
        rest = profile.bodies[MAX_ROWS:]
        error = sum(row.calls * (row.predicted - row.median) for row in rest)
        runs, share = sum(row.calls for row in rest), sum(row.share for row in rest)
        rows.append(
            (
                f"({len(rest)} others)",
                "",
                f"{runs:.3g}",
                "",
                "",
                "",
                f"{error * 1e3:+.2f} ms",
                f"{share:.1%}",
                "",
            )
        )
    return rows


def memory_table(stages: Sequence[dict[str, Any]]) -> Rows:
    """Return a table of each rank's bytes, predicted and measured."""
    rows: Rows = [("rank", "device", "predicted", "measured", "error")]
    ranks = {row["rank"]: row for row in stages}
    for rank, row in sorted(ranks.items()):
        want, held = row["peak_bytes_predicted"], row["peak_bytes_measured"]
        error = f"{want / held - 1:+.1%}" if held else "-"
        rows.append((str(rank), row["device"], bytes_text(want), bytes_text(held), error))
    return rows


def figures(profile: Profile) -> dict[str, Any]:
    """Return the keys that `--profile --json` adds to those of a run."""
    pace = profile.pace
    of_pace = (
        {}
        if pace is None
        else {
            f"{profile.unit}_per_second": pace.throughput,
            "batch_seconds": pace.count / pace.throughput,
            "batch_seconds_all": pace.stream.tolist(),
            "predicted_batch_seconds": pace.predicted_stream,
            "latency_seconds": pace.latency,
            "latency_seconds_all": pace.alone.tolist(),
            "predicted_latency_seconds": pace.predicted_alone,
        }
    )
    return of_pace | {
        "step_seconds": profile.step,
        "step_seconds_all": profile.every().tolist(),
        "predicted_step_seconds": profile.predicted_step,
        "predicted_step_interval": profile.prices.interval(profile.predicted_step),
        "predicted_again_seconds": profile.predicted_again,
        "predicted_step_seconds_all": profile.every(predicted=True).tolist(),
        "bubble_fraction": profile.bubble_fraction,
        "mixtures": [
            {
                "buckets": list(m.record.keys),
                "steps": m.record.steps,
                "step_seconds": m.seconds,
                "predicted_step_seconds": m.predicted.makespan,
            }
            for m in profile.mixtures
        ],
        "ranks": [asdict(p.time) | {"between": p.between, "total": p.total} for p in profile.parts],
        "operators": [row._asdict() for row in profile.operators],
        "bodies": [row._asdict() | {"key": str(row.key)} for row in profile.bodies],
        "reasons": reasons(profile),
        "warnings": warnings(profile),
    }
