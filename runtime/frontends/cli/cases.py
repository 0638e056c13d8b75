"""Cases for `python -m runtime simulate`: a schedule on a chain of stages, with costs.

A chain has no network: each stage sends one message to the next, and one back.
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
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES, find_schedule
from runtime.schedule.instructions import FREE
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import Costs, Link
from runtime.schedule.search.list_scheduler import list_schedule
from runtime.schedule.text import load_schedule_file, rank_of
from symgraph.core.errors import ConfigError
from symgraph.core.units import count_text

AUTO = "auto"  # the schedule of the list scheduler, with bodies like 1f1b's
V_SHAPED = ("zb-v", "dualpipe-v")
CHUNKED = (*V_SHAPED, "interleaved", "looped-bfs")  # schedules for several stages per rank
MAX_LISTED = 24  # longer lists are abbreviated
MAX_STAGES, MAX_MICRO_BATCHES, MAX_RUNS = 20_000, 200_000, 10_000_000  # simulated in about a minute


class Loaded(NamedTuple):
    """A schedule that a name or a file stands for."""

    #: The program of each rank.
    programs: Sequence[Program]
    #: Stage -> rank.
    rank_of: tuple[int, ...]
    #: The number of micro-batches.
    mbs: int
    #: Whether the programs also hold messages and frees, not just runs.
    complete: bool = False


@dataclass(frozen=True)
class Case:
    """A schedule to simulate."""

    #: The schedule.
    schedule: Schedule
    #: The chain of stages.
    topology: Chain
    #: The costs of runs, messages and dispatch.
    costs: Costs
    #: The number of micro-batches.
    mbs: int
    #: The number of time segments of every stage.
    segments: int
    #: A line that describes the case.
    heading: str
    #: Notes on how options were interpreted.
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of runs."""
        return sum(int((p.columns.code < FREE).sum()) for p in self.schedule.programs)


def make_case(options: Namespace) -> Case:
    """Return the schedule that the options describe, which is not checked yet, and its costs.

    Raises:
        ConfigError: Options contradict each other, or a file cannot be read.
        ScheduleError: A file is not a schedule.
    """
    loaded = _from_file(options) if _is_file(options.schedule) else _from_name(options)
    phases = _phases(loaded.programs)
    train = not options.forward_only and phases != {FORWARD}
    split = train and (options.weight is not None or bool(phases & {INPUT, WEIGHT}))
    other = phases - {FORWARD} if not train else phases & {BACKWARD} if split else set()
    if loaded.complete and other:
        raise ConfigError(
            f"{options.schedule} holds messages, so --forward-only and --weight cannot change it"
        )
    if options.forward_only and (options.backward, options.weight) != (None, None):
        raise ConfigError("--backward and --weight are no times of --forward-only: leave them out")
    if (options.bandwidth is None) != (options.message_bytes is None):
        raise ConfigError("--bandwidth and --message-bytes go together: give both or neither")
    segments = _segments(options, loaded)
    topology = chain(
        loaded.rank_of,
        split=split,
        segments=segments,
        nbytes=options.message_bytes or 0,
        train=train,
    )
    costs, times, notes = _costs(options, loaded.rank_of, segments, split)
    programs = loaded.programs
    if options.schedule == AUTO:
        listed = list_schedule(topology, loaded.mbs, costs)
        programs = lower(topology, listed.compute).programs
        end = ", and this one is not longer" if listed.optimal else ""
        notes.append(f"no order of these runs takes less than {figure(listed.lower_bound)}{end}")
    elif not loaded.complete:
        runs = programs if _has_segments(programs) else expand(programs, segments)
        programs = lower(topology, runs).programs
    stages, ranks = len(loaded.rank_of), topology.ranks
    heading = (
        f"{options.schedule}: {count_text(loaded.mbs, 'micro-batch')}, "
        f"{count_text(stages, 'stage')} on {count_text(ranks, 'rank')}"
        f"{f', {segments} time segments' * (segments > 1)}"
        f"{'' if train else ', forward only'}; {times}"
    )
    if stages > ranks:
        notes.insert(0, "ranks of the stages: " + some(loaded.rank_of))
    return Case(Schedule.of(programs), topology, costs, loaded.mbs, segments, heading, tuple(notes))


def _is_file(name: str) -> bool:
    if name in SCHEDULES or name == AUTO:
        return False
    return bool(Path(name).suffix) or Path(name).is_file() or len(Path(name).parts) > 1


def _from_file(options: Namespace) -> Loaded:
    content = load_schedule_file(options.schedule)
    complete = isinstance(content, Schedule)
    programs = content.programs if isinstance(content, Schedule) else content
    stages = rank_of(programs)
    mbs = 1 + max(int(p.columns.mb.max()) for p in programs if len(p))
    ranks = max(stages) + 1
    facts = {
        "--stages": (options.stages, ranks, "ranks"),
        "--micro-batches": (options.micro_batches, mbs, "micro-batches"),
        "--chunks": (options.chunks, Fraction(len(stages), ranks), "stages per rank"),
        "--placement": (options.placement, stages, "as the ranks of its stages"),
    }
    for option, (value, fact, what) in facts.items():
        if value not in (None, fact):
            raise ConfigError(
                f"{option} {some(value)}, but {options.schedule} has "
                f"{some(fact)} {what}; leave the option out"
            )
    if options.order:
        raise ConfigError(f"--order is for gpipe only; {options.schedule} has its own order")
    idle = len(programs) - ranks  # of the last ranks, which no stage is on
    return Loaded(programs[: len(programs) - idle], stages, mbs, complete)


def _from_name(options: Namespace) -> Loaded:
    make = find_schedule("1f1b" if options.schedule == AUTO else options.schedule, AUTO)
    if options.micro_batches is None:
        raise ConfigError("--micro-batches is missing: how many does a step have?")
    _check_size(options)
    stages, mbs = _place(options), options.micro_batches
    if options.order and options.schedule != "gpipe":
        raise ConfigError(f"--order is for gpipe only, not for {options.schedule}")
    lists = gpipe(stages, mbs, order=options.order) if options.order else make(stages, mbs)
    return Loaded([Program.of(runs) for runs in lists], stages, mbs)


def _check_size(options: Namespace) -> None:
    """Raise ConfigError for cases that would take minutes."""
    chunks = options.chunks or (2 if options.schedule in CHUNKED else 1)
    stages = len(options.placement or ()) or (options.stages or 0) * chunks
    cuts = _segment_count(options)
    parts = f" of {count_text(cuts, 'time segment')} each" if cuts > 1 else ""
    for count, most, what in (
        (stages, MAX_STAGES, "stage"),
        (options.micro_batches, MAX_MICRO_BATCHES, "micro-batch"),
        (stages * options.micro_batches, MAX_RUNS, "forward run"),
    ):
        if count * cuts > most:
            raise ConfigError(
                f"{count_text(count, what)}{parts}: too many to simulate (at most {most:,})"
            )


def _place(options: Namespace) -> tuple[int, ...]:
    """Return the rank of every stage of a named schedule."""
    if options.placement is not None:
        if options.stages or options.chunks:
            raise ConfigError("--placement already implies --stages and --chunks; leave them out")
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
    """Return the number of time segments that the options ask for."""
    steps, length = options.time_steps, options.time_segment
    return 1 if steps is None else ceil(steps / (length or steps))


def _segments(options: Namespace, loaded: Loaded) -> int:
    """Return the number of time segments; raise ConfigError if options and file do not agree."""
    steps, length = options.time_steps, options.time_segment
    if length is not None and (steps is None or length > steps):
        raise ConfigError(
            f"--time-segment {length} needs --time-steps"
            f"{'' if steps is None else f' of {length} or more, not {steps}'}"
        )
    wanted = _segment_count(options)
    if not (loaded.complete or _has_segments(loaded.programs)):
        return wanted
    found = 1 + max(int(p.columns.segment.max(initial=0)) for p in loaded.programs)
    if steps is not None and wanted != found:
        raise ConfigError(
            f"--time-steps {steps} with --time-segment {length or steps} makes "
            f"{wanted} segments, but {options.schedule} has {found}"
        )
    return found


def _costs(
    options: Namespace, ranks: tuple[int, ...], segments: int, split: bool
) -> tuple[Costs, str, list[str]]:
    """Return the costs, the times in words, and notes on what the options leave open."""
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
    chunks: list[int] = np.bincount(ranks).tolist()  # by rank
    overhead: Fraction = options.overhead

    def run(key: BodyKey) -> Fraction:
        share = shares[key.segment] / chunks[ranks[key.stage]]
        return seconds[key.phase] * share + overhead

    bandwidth = options.bandwidth or inf
    last = (INPUT, WEIGHT) if split else () if options.forward_only else (BACKWARD,)
    words = [f"{phase} {figure(seconds[phase])}" for phase in (FORWARD, *last)]
    per = "time step and micro-batch" if steps else "micro-batch"
    extras = {"overhead": overhead, "latency": options.latency}
    words += [f"{name} {figure(value)}" for name, value in extras.items() if value]
    fixed = overhead + options.latency
    if steps and fixed and forward and len(chunks) > 1:
        best = sqrt(steps * fixed / ((len(chunks) - 1) * forward))
        notes.append(f"best for one pass: segments of sqrt(T a / ((p - 1) c)) = {best:.3g} steps")
    return Costs(run, Link(options.latency, bandwidth)), f"per {per}: {', '.join(words)}", notes


def figure(value: float | Fraction) -> str:
    """Return a number with eight digits."""
    return f"{float(value):.8g}"


def some(value: object, comma: str = ", ") -> str:
    """Return a value as text; of a long list, only both ends."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    items = [str(item) for item in value]
    if len(items) > MAX_LISTED:
        items = [*items[: MAX_LISTED // 2], "...", *items[-MAX_LISTED // 2 :]]
    return comma.join(items)
