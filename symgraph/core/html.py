"""Fragments of HTML in which objects show themselves in notebooks; text of others is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from symgraph.core.glossary import column_note
from symgraph.core.visible import visible, visible_lines

CELL = "padding:2px 8px;text-align:right"
MOST = 40  # rows or lines that are shown


def paragraph(lines: Sequence[str]) -> str:
    """Return lines of text as one paragraph; "" without any."""
    text = escape(visible_lines("\n".join(lines))).replace("\n", "<br/>")
    return f"<p>{text}</p>" if lines else ""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first row is its head, and what its columns mean; "" without any."""
    if not rows:
        return ""
    marked = [
        "".join(f'<{tag} style="{CELL}">{escape(visible(cell))}</{tag}>' for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    ]
    note = column_note(rows[0])
    lines = f"<table>{''.join(f'<tr>{cells}</tr>' for cells in marked)}</table>"
    return lines + paragraph([note] if note else [])


def listing(text: str) -> str:
    """Return the first lines of a text as they are, and how many more there are."""
    lines = text.splitlines()
    more = [f"... {len(lines) - MOST} more lines"] if len(lines) > MOST else []
    shown = escape(visible_lines("\n".join([*lines[:MOST], *more])))
    return f"<pre>{shown}</pre>"


def together(*parts: str) -> str:
    """Return parts as one element."""
    return "\n".join(["<div>", *filter(None, parts), "</div>"])
