"""The columns that output may take: tables are folded and lines wrapped to fit a terminal.

In a file or a pipe nothing is folded.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from symgraph.core.glossary import column_note

LEAST = 40  # columns of a terminal; text for narrower ones is cut by them
INDENT = 4  # columns, of the rest of a line
_COLUMNS: ContextVar[int | None] = ContextVar("columns", default=None)


def columns() -> int | None:
    """Return the columns that a line may take; None: any number."""
    return _COLUMNS.get()


@contextmanager
def fitting(stream: TextIO, environ: Mapping[str, str]) -> Iterator[None]:
    """Let output fit the terminal that a stream is, or the columns of $COLUMNS."""
    wide = stream.isatty() or environ.get("COLUMNS", "").isdecimal()
    token = _COLUMNS.set(max(LEAST, shutil.get_terminal_size().columns) if wide else None)
    try:
        yield
    finally:
        _COLUMNS.reset(token)


def aligned_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format rows of cells as lines whose columns are aligned to the right.

    What does not fit beside the others is a further table below, with the first column again. Last
    comes what the columns mean.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    most = columns()
    blocks: list[list[int]] = [[]]
    for number in range(len(widths)):
        wanted = [*blocks[-1], number]
        if len(wanted) > 2 and most is not None and _width(widths, wanted) > most:
            blocks.append([0, number])
        else:
            blocks[-1] = wanted
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += ["  ".join(row[n].rjust(widths[n]) for n in block) for row in rows]
    note = column_note(rows[0])
    return [*lines, *wrapped(f"  {note}").split("\n")] if note else lines


def _width(widths: Sequence[int], numbers: Sequence[int]) -> int:
    return sum(widths[n] for n in numbers) + 2 * (len(numbers) - 1)


def wrapped(text: str) -> str:
    """Return a text whose lines go on below, indented, where they are too long."""
    most = columns()
    if most is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _parts(line, most))


def _parts(line: str, most: int) -> list[str]:
    if len(line) <= most:
        return [line]
    indent = len(line) - len(line.lstrip()) + INDENT
    more = " " * min(indent, most // 2)
    return textwrap.wrap(line, most, subsequent_indent=more, break_on_hyphens=False)
