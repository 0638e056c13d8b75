"""The result of a measurement: the same passages as text and as HTML, figures, and columns."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.columns import aligned_columns
from symgraph.core.errors import ConfigError, nearest
from symgraph.core.html import listing, paragraph, table, together
from symgraph.core.visible import visible_lines

# The names of the columns, and the rows.
Table = tuple[Sequence[str], Iterable[Sequence[Any]]]


class Passage(NamedTuple):
    """A part of a text, set off by blank lines."""

    lines: Sequence[str] = ()
    #: The rows of a table below the lines, its head first.
    table: Sequence[Sequence[str]] = ()
    #: Lines below the table.
    notes: Sequence[str] = ()
    #: A picture of characters.
    chart: str = ""

    @property
    def text(self) -> str:
        """The passage as lines of text, with aligned columns."""
        table = aligned_columns([tuple(row) for row in self.table]) if self.table else ()
        return "\n".join([*self.lines, *table, *self.notes, *filter(None, [self.chart])])

    @property
    def html(self) -> str:
        """The passage as HTML; text of others is escaped."""
        parts = [paragraph(self.lines), table(self.table), paragraph(self.notes)]
        return "\n".join(filter(None, [*parts, listing(self.chart) if self.chart else ""]))


class Result(ABC):
    """What a profile, a comparison or a search has found.

    `print` shows what the command line does, and a notebook shows the same as HTML.
    """

    @abstractmethod
    def passages(self) -> Sequence[Passage]:
        """Return what is said, part by part."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """Return the keys of the command line's `--json`."""

    @abstractmethod
    def tables(self) -> Mapping[str, Table]:
        """Return the tables by name, the most important first."""

    @abstractmethod
    def report(self, folder: str) -> Path:
        """Write the page that `--report` writes, with its files; return the page's path.

        Raises:
            ConfigError: The folder is not writable, or the extra `report` is not installed.
            RunError: The system refuses a write, such as on a full disk.
        """

    def __str__(self) -> str:
        return visible_lines("\n\n".join(passage.text for passage in self.passages()))

    def __repr__(self) -> str:
        first = next(line for line in str(self).splitlines() if line)
        return f"<{type(self).__name__}: {first}>"

    def _repr_html_(self) -> str:
        """Return the same as HTML, for notebooks."""
        return together(*(passage.html for passage in self.passages()))

    def to_json(self) -> str:
        """Return `figures` as JSON."""
        return json.dumps(self.figures())

    def columns(self, table: str = "") -> dict[str, list[Any]]:
        """Return a table as name of column -> values, such as `pandas.DataFrame` takes.

        Args:
            table: One of `tables()`; by default the first.

        Raises:
            ConfigError: There is no such table.
        """
        known = self.tables()
        if table and table not in known:
            raise ConfigError(f"no table {table!r}; {nearest(table, known)}")
        head, rows = known[table or next(iter(known))]
        values = [[_plain(cell) for cell in row] for row in rows]
        return {name: [row[at] for row in values] for at, name in enumerate(head)}


def _plain(cell: Any) -> Any:
    """Return a cell as a number or a text."""
    if isinstance(cell, np.generic):
        return cell.item()
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)
