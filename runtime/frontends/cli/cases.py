"""Cases: a schedule on a chain of stages at given costs, as command-line options say it.

A chain has no network: each stage passes one message on to the next, and one back. The options are
those of `python -m runtime simulate`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partitioner.base.chain import Chain, chain
from partitioner.base.types import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT, BodyKey
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.table import SCHEDULES, expand, find_schedule
from runtime.schedule.instructions import FREE
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import Costs, Link
from runtime.schedule.search.list_scheduler import list_schedule
from runtime.schedule.text import load_schedule_file, rank_of
from symgraph.core.errors import ConfigError
from symgraph.core.units import count_text

AUTO = "auto"  # a schedule made to measure, with bodies like 1f1b's
V_SHAPED = ("zb-v", "dualpipe-v")
CHUNKED = (*V_SHAPED, "interleaved", "looped-bfs")  # made for several stages a rank
LISTED = 24  # the most items of a list that are written out
STAGES, MICRO_BATCHES, RUNS = 20_000, 200_000, 10_000_000  # the most: a minute or so


class Given(NamedTuple):
    """A schedule as a name or a file gives it: runs, or with `whole` all instructions."""

    programs: Sequence[Program]
    rank_of: tuple[int, ...]
    mbs: int
    whole: bool = False


@dataclass(frozen=True)
class Case:
    """What is simulated.

    segments: time segments of every stage. heading: what it is, in words. notes: how the options
    were understood, where that is not plain.
    """

    schedule: Schedule
    topology: Chain
    costs: Costs
    mbs: int
    segments: int
    heading: str
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of runs."""
        return sum(int((p.columns.code < FREE).sum()) for p in self.schedule.programs)


def make_case(options: Namespace) -> Case:
    """The schedule, its topology and its costs, as the options say.

    Raises ConfigError or ScheduleError for options that do not fit together and files that cannot
    be read; the schedule itself is not checked.
    """
    given = _from_file(options) if _is_file(options.schedule) else _from_name(options)
    phases = _phases(given.programs)
    train = not options.forward_only and phases != {FORWARD}
    split = train and (options.weight is not None or bool(phases & {INPUT, WEIGHT}))
    other = phases - {FORWARD} if not train else phases & {BACKWARD} if split else set()
    if given.whole and other:
        raise ConfigError(
            f"{options.schedule} holds messages, so --forward-only and --weight cannot change it"
        )
    if (options.bandwidth is None) != (options.message_bytes is None):
        raise ConfigError("--bandwidth and --message-bytes go together: give both or neither")
    segments = _segments(options, given)
    topology = chain(
        given.rank_of,
        split=split,
        segments=segments,
        nbytes=options.message_bytes or 0,
        train=train,
    )
    costs, times, notes = _costs(options, given.rank_of, segments, split)
    programs = given.programs
    if options.schedule == AUTO:
        found = list_schedule(topology, given.mbs, costs)
        programs = lower(topology, found.compute).programs
        end = ", and this one is not longer" if found.optimal else ""
        notes.append(f"no order of these runs takes less than {figure(found.lower_bound)}{end}")
    elif not given.whole:
        runs = programs if _has_segments(programs) else expand(programs, segments)
        programs = lower(topology, runs).programs
    stages, ranks = len(given.rank_of), topology.ranks
    heading = (
        f"{options.schedule}: {count_text(given.mbs, 'micro-batch')}, "
        f"{count_text(stages, 'stage')} on {count_text(ranks, 'rank')}"
        f"{f', {segments} time segments' * (segments > 1)}"
        f"{'' if train else ', forward only'}; {times}"
    )
    if stages > ranks:
        notes.insert(0, "ranks of the stages: " + some(given.rank_of))
    return Case(Schedule.of(programs), topology, costs, given.mbs, segments, heading, tuple(notes))


def _is_file(name: str) -> bool:
    if name in SCHEDULES or name == AUTO:
        return False
    return bool(Path(name).suffix) or Path(name).is_file() or len(Path(name).parts) > 1


def _from_file(options: Namespace) -> Given:
    loaded = load_schedule_file(options.schedule)
    whole = isinstance(loaded, Schedule)
    programs = loaded.programs if isinstance(loaded, Schedule) else loaded
    stages = rank_of(programs)
    mbs = 1 + max(int(p.columns.mb.max()) for p in programs if len(p))
    ranks = max(stages) + 1
    told = {
        "--stages": (options.stages, ranks, "ranks"),
        "--micro-batches": (options.micro_batches, mbs, "micro-batches"),
        "--chunks": (options.chunks, Fraction(len(stages), ranks), "stages a rank"),
        "--placement": (options.placement, stages, "as the ranks of its stages"),
    }
    for option, (said, found, what) in told.items():
        if said not in (None, found):
            raise ConfigError(
                f"{option} {some(said)}, but {options.schedule} has "
                f"{some(found)} {what}; leave the option out"
            )
    if options.order:
        raise ConfigError(f"--order is gpipe's; {options.schedule} has its own")
    idle = len(programs) - ranks  # of the last ranks, which no stage is on
    return Given(programs[: len(programs) - idle], stages, mbs, whole)


def _from_name(options: Namespace) -> Given:
    make = find_schedule("1f1b" if options.schedule == AUTO else options.schedule)
    if options.micro_batches is None:
        raise ConfigError("--micro-batches is missing: how many has a step?")
    _check_size(options)
    stages, mbs = _place(options), options.micro_batches
    if options.order and options.schedule != "gpipe":
        raise ConfigError(f"--order is gpipe's; {options.schedule} has none")
    lists = gpipe(stages, mbs, order=options.order) if options.order else make(stages, mbs)
    return Given([Program.of(runs) for runs in lists], stages, mbs)


def _check_size(options: Namespace) -> None:
    """ConfigError for what takes minutes, before it is begun."""
    chunks = options.chunks or (2 if options.schedule in CHUNKED else 1)
    stages = len(options.placement or ()) or (options.stages or 0) * chunks
    cuts = _segment_count(options)
    parts = f", of {count_text(cuts, 'time segment')} each" if cuts > 1 else ""
    for count, most, what in (
        (stages, STAGES, "stage"),
        (options.micro_batches, MICRO_BATCHES, "micro-batch"),
        (stages * options.micro_batches, RUNS, "forward run"),
    ):
        if count * cuts > most:
            raise ConfigError(
                f"{count_text(count, what)}{parts}: too many to simulate (at most {most:,})"
            )


def _place(options: Namespace) -> tuple[int, ...]:
    """The rank of every stage of a schedule that a name gives."""
    if options.placement is not None:
        if options.stages or options.chunks:
            raise ConfigError("--placement tells all of --stages and --chunks; leave them out")
        ranks = set(options.placement)
        idle = next((r for r in range(len(ranks)) if r not in ranks), None)
        if idle is not None:
            raise ConfigError(f"--placement: rank {idle} has no stage, but rank {max(ranks)} has")
        return tuple(options.placement)
    if options.stages is None:
        raise ConfigError("--stages is missing: how many ranks are there?")
    ranks, name = options.stages, options.schedule
    rows = [list(range(ranks))] * (options.chunks or (2 if name in CHUNKED else 1))
    if name in V_SHAPED:
        rows = [row[::-1] if at % 2 else row for at, row in enumerate(rows)]
    return tuple(rank for row in rows for rank in row)


def _phases(programs: Sequence[Program]) -> set[str]:
    codes = {code for p in programs for code in np.unique(p.columns.code).tolist()}
    return {PHASES[code] for code in codes if code < FREE}


def _has_segments(programs: Sequence[Program]) -> bool:
    return any((p.columns.segment > 0).any() for p in programs)


def _segment_count(options: Namespace) -> int:
    """The time segments that the options ask for."""
    steps, length = options.time_steps, options.time_segment
    return 1 if steps is None else ceil(steps / (length or steps))


def _segments(options: Namespace, given: Given) -> int:
    """How many time segments there are; ConfigError if options and file do not agree."""
    steps, length = options.time_steps, options.time_segment
    if length is not None and (steps is None or length > steps):
        raise ConfigError(
            f"--time-segment {length} is one of how many --time-steps? "
            f"{'say it' if steps is None else f'{steps} are fewer'}"
        )
    wanted = _segment_count(options)
    if not (given.whole or _has_segments(given.programs)):
        return wanted
    found = 1 + max(int(p.columns.segment.max(initial=0)) for p in given.programs)
    if steps is not None and wanted != found:
        raise ConfigError(
            f"--time-steps {steps} with --time-segment {length or steps} makes "
            f"{wanted} segments, but {options.schedule} has {found}"
        )
    return found


def _costs(
    options: Namespace, ranks: tuple[int, ...], segments: int, split: bool
) -> tuple[Costs, str, list[str]]:
    """The costs, the times in words, and notes on what the options leave open."""
    notes = []
    forward, backward, weight = options.forward, options.backward, options.weight
    if backward is None:
        backward = 2 * forward if weight is None else forward
    seconds: dict[str, Fraction] = {
        FORWARD: forward,
        BACKWARD: backward,
        INPUT: backward,
        WEIGHT: weight,
    }
    if split and weight is None:
        seconds[INPUT] = seconds[WEIGHT] = backward / 2
        notes.append("without --weight, I and W take half of the backward each")
    steps, length = options.time_steps, options.time_segment or options.time_steps
    if steps:
        shares = [Fraction(min(length, steps - k * length)) for k in range(segments)]
    else:
        shares = [Fraction(1, segments)] * segments
    own: list[int] = np.bincount(ranks).tolist()
    overhead: Fraction = options.overhead

    def run(key: BodyKey) -> Fraction:
        share = shares[key.segment] / own[ranks[key.stage]]
        return seconds[key.phase] * share + overhead

    bandwidth = options.bandwidth or inf
    last = (INPUT, WEIGHT) if split else () if options.forward_only else (BACKWARD,)
    said = [f"{phase} {figure(seconds[phase])}" for phase in (FORWARD, *last)]
    per = "time step and micro-batch" if steps else "micro-batch"
    extras = {"overhead": overhead, "latency": options.latency}
    said += [f"{name} {figure(value)}" for name, value in extras.items() if value]
    fixed = overhead + options.latency
    if steps and fixed and forward and len(own) > 1:
        best = sqrt(steps * fixed / ((len(own) - 1) * forward))
        notes.append(f"best for one pass: segments of sqrt(T a / ((p - 1) c)) = {best:.3g} steps")
    return Costs(run, Link(options.latency, bandwidth)), f"a {per}: {', '.join(said)}", notes


def figure(value: float | Fraction) -> str:
    """A number to eight digits."""
    return f"{float(value):.8g}"


def some(value: object, comma: str = ", ") -> str:
    """A value in words; of a long list, its ends."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    items = [str(item) for item in value]
    if len(items) > LISTED:
        items = [*items[: LISTED // 2], "...", *items[-LISTED // 2 :]]
    return comma.join(items)
