"""The text of programs, and PyTorch's CSV files of schedules: read and written.

A program is one line, its instructions in the form of runtime/schedule/instructions.py, with or
without the rank before it:

    # 1F1B of two stages and two micro-batches
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1

Lines of runs alone are compute lists, from which `lower` makes programs; lines with sends, receives
or frees are whole programs and stay as they are.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from partitioner.base.types import BACKWARD, INPUT, PHASES, WEIGHT
from runtime.schedule.instructions import (
    COLLECTIVE,
    FREE,
    RECV,
    RUN,
    SEND,
    UPDATE,
    Instruction,
    Row,
    Run,
)
from runtime.schedule.program import Columns, Program, Schedule
from symgraph.core.errors import ScheduleError
from symgraph.core.reading import read_text, reading
from symgraph.core.writing import writing

FORMS = "runs look like 2F0 or 2F0.3 (phases F, B, I, W), others like S3.0, R3.0, D2F0, C, U2"
N = "[0-9]{1,9}"  # fits the columns' int32
TOKEN = re.compile(
    rf"(?P<free>D?)(?P<stage>{N})(?P<phase>[FBIW])(?P<mb>{N})(?:\.(?P<segment>{N}))?"
    rf"|(?P<message>[SR])(?P<tag>{N})\.(?P<message_mb>{N})"
    rf"|C(?P<reduction>(?:{N})?)|U(?P<update>{N})"
)
RANK = re.compile(rf"\s*rank\s+({N})\s*:", re.IGNORECASE)

# What cells of PyTorch's files hold besides runs. "BW" is what older files call B.
DERIVED = re.compile(r"[0-9]+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")
COMPOSITE = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
OLD_BACKWARD = re.compile(rf"({N})BW({N})")


def text(program: Iterable[Instruction]) -> str:
    """Return the program as one line, which `parse` reads back."""
    return " ".join(map(str, program))


def parse(lines: str | Iterable[str], *, file: str = "") -> Schedule:
    """Read programs, one per line; blank lines and # comments are skipped.

    A line without "rank 2:" before it belongs to the next rank, so only a line with it can be an
    empty program.

    Args:
        lines: The text, or its lines.
        file: A file name for error messages.

    Raises:
        ScheduleError: A line cannot be read; names file, line, rank and token.
    """
    programs: dict[int, Program] = {}
    rank = -1
    for number, line in enumerate(lines.splitlines() if isinstance(lines, str) else lines, 1):
        line = line.partition("#")[0]
        prefix = RANK.match(line)
        if prefix is None and not line.strip():
            continue
        rank = int(prefix[1]) if prefix else rank + 1
        where = f"{file}, line {number}, rank {rank}" if file else f"line {number}, rank {rank}"
        if rank in programs:
            raise ScheduleError(f"{where}: an earlier line is this rank's program")
        tokens = line[prefix.end() :] if prefix else line
        programs[rank] = _program(_read(token, where) for token in tokens.split())
    missing = next((r for r in range(len(programs)) if r not in programs), None)
    if missing is not None:
        before = f"{file}: " if file else ""
        raise ScheduleError(f"{before}rank {missing} has no program, but rank {max(programs)} has")
    return Schedule(tuple(programs[r] for r in range(len(programs))))


def load_csv(path: str | Path) -> list[Program]:
    """Read compute lists from a file of PyTorch's `_dump_csv`: a row per rank, empty cells idle.

    The parts of an `OVERLAP_F_B` cell run in order. Cells of PyTorch's own lowering (SEND_F,
    RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD) are skipped: `lower` derives the
    messages from the graph, and no parameters are sharded here. In older files, which have no I,
    a B that has a W means the input gradients and BW the whole backward; they are read that way.
    Our files may have time segments (2F0.3), which PyTorch cannot read.

    Raises:
        ScheduleError: A cell cannot be read, or there are no runs; names file, line and column.
        ConfigError: The file cannot be opened or decoded.
    """
    ranks: list[list[_Cell]] = []
    with reading(path, "schedule file", ScheduleError):
        reader = csv.reader(read_text(path, "schedule file", ScheduleError).splitlines())
        for row in reader:
            cells: list[_Cell] = []
            for column, cell in enumerate(row, 1):
                where = f"{path}, line {reader.line_num}, column {column}, rank {len(ranks)}"
                cells += _cell(cell.strip(), where)
            if row:
                ranks.append(cells)
    if not any(ranks):
        raise ScheduleError(f"{path} holds no runs; expected a row per rank, such as 0F0,0B0")
    return [_program(rows) for rows in _in_current_phases(ranks)]


def dump_csv(lists: Iterable[Iterable[Instruction]], path: str | Path) -> None:
    """Write compute lists to a file that PyTorch's `_load_csv` and `load_csv` read."""
    with _written(path) as file:
        writer = csv.writer(file)
        for rank, runs in enumerate(lists):
            cells = []
            for run in runs:
                if not isinstance(run, Run):
                    raise ScheduleError(
                        f"{path}: rank {rank} has {run}, but a CSV file holds only runs"
                    )
                cells.append(str(run))
            writer.writerow(cells or [""])  # a row of nothing would be a blank line


def load_schedule_file(path: str | Path) -> list[Program] | Schedule:
    """Read a schedule file: compute lists, or a Schedule if it holds more than runs.

    A file whose name ends in .csv is read by `load_csv`, others by `parse`. Errors name the file.
    """
    if Path(path).suffix.lower() == ".csv":
        return load_csv(path)
    with reading(path, "schedule file", ScheduleError):
        schedule = parse(read_text(path, "schedule file", ScheduleError), file=str(path))
    if not any(len(p) for p in schedule.programs):
        raise ScheduleError(
            f"{path} holds no instructions; expected a line per rank, such as 0F0 0B0"
        )
    if all((p.columns.code < FREE).all() for p in schedule.programs):
        return list(schedule.programs)
    return schedule


def rank_of(lists: Sequence[Iterable[Instruction]]) -> tuple[int, ...]:
    """Return the rank of every stage, as the runs of these compute lists or programs show.

    Raises:
        ScheduleError: A stage runs on two ranks or on none.
    """
    ranks: dict[int, int] = {}
    for rank, runs in enumerate(lists):
        code, at, *_ = Program.of(runs).columns
        for stage in np.unique(at[code < FREE]).tolist():
            if stage in ranks:
                raise ScheduleError(
                    f"stage {stage} runs on rank {ranks[stage]} and on rank {rank}; "
                    "all runs of a stage must be on one rank"
                )
            ranks[stage] = rank
    stages = 1 + max(ranks, default=-1)
    missing = next((s for s in range(stages) if s not in ranks), None)
    if missing is not None or not stages:
        last = f", but stage {stages - 1} does" if stages else ""
        raise ScheduleError(f"stage {missing or 0} runs on no rank{last}")
    return tuple(ranks[s] for s in range(stages))


def _program(rows: Iterable[Row]) -> Program:
    columns = np.array(list(rows), np.int32).reshape(-1, 4).T
    code, at, mb, segment = (np.ascontiguousarray(column) for column in columns)
    return Program(Columns(code.astype(np.uint8), at, mb, segment))


def _row(token: str) -> Row | None:
    """Return the columns' entries that a token stands for, or None."""
    match = TOKEN.fullmatch(token)
    if match is None:
        return None
    if match["phase"]:
        code = (FREE if match["free"] else RUN) + PHASES.index(match["phase"])
        return code, int(match["stage"]), int(match["mb"]), int(match["segment"] or 0)
    if match["message"]:
        code = SEND if match["message"] == "S" else RECV
        return code, int(match["tag"]), int(match["message_mb"]), 0
    if match["update"]:
        return UPDATE, int(match["update"]), 0, 0
    return COLLECTIVE, int(match["reduction"] or 0), 0, 0


def _read(token: str, where: str) -> Row:
    row = _row(token)
    if row is None:
        raise ScheduleError(f"{where}: unknown instruction {token!r}; {_hint(token)}")
    return row


def _hint(token: str) -> str:
    """Suggest the valid form with the token's first letter and its numbers."""
    letters = "".join(re.findall("[A-Z]", token.upper()))
    first, second, *more = [*re.findall("[0-9]+", token), "0", "0"]
    segment = f".{more[0]}" if len(more) > 2 else ""
    form = {
        "S": f"S{first}.{second}",
        "R": f"R{first}.{second}",
        "C": "C",
        "U": f"U{first}",
        "D": f"D{first}{letters[1:2]}{second}{segment}",
    }.get(letters[:1], f"{first}{letters[:1]}{second}{segment}")
    return (f"did you mean {form!r}? " if _row(form) else "") + FORMS


class _Cell(NamedTuple):
    """A run in a CSV file, with the phase as the file has it."""

    stage: int
    phase: str
    mb: int
    segment: int


def _cell(cell: str, where: str) -> Iterator[_Cell]:
    """Yield the runs of a cell."""
    if composite := COMPOSITE.fullmatch(cell):
        for part in composite[1].split(";"):
            yield from _cell(part.strip(), where)
    elif old := OLD_BACKWARD.fullmatch(cell):
        yield _Cell(int(old[1]), "BW", int(old[2]), 0)
    elif cell and not DERIVED.fullmatch(cell):
        code, stage, mb, segment = _read(cell, where)
        if code >= FREE:
            raise ScheduleError(f"{where}: {cell!r} is not a run; a CSV file holds only runs")
        yield _Cell(stage, PHASES[code - RUN], mb, segment)


def _in_current_phases(ranks: list[list[_Cell]]) -> Iterator[list[Row]]:
    """Yield the rows of every rank; see `load_csv` on older files."""
    present = {cell for cells in ranks for cell in cells}
    old = any(
        phase == "BW"
        or (
            phase == WEIGHT
            and (stage, BACKWARD, mb, segment) in present
            and (stage, INPUT, mb, segment) not in present
        )
        for stage, phase, mb, segment in present
    )
    phase_of = {"BW": BACKWARD, BACKWARD: INPUT} if old else {}
    for cells in ranks:
        yield [
            (RUN + PHASES.index(phase_of.get(c.phase, c.phase)), c.stage, c.mb, c.segment)
            for c in cells
        ]


@contextmanager
def _written(path: str | Path) -> Iterator[IO[str]]:
    """Open a file to write; errors of the system are those of `writing`."""
    with writing(repr(str(path))), open(path, "w", encoding="utf-8", newline="") as file:
        yield file
