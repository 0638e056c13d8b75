"""Routes: the ways of arrows between boxes that stand in columns, around all other boxes.

    channel 0   column 0   channel 1   column 1   channel 2   column 2
                 [ a ]────────┐         [ c ]                  [ e ]
                 [ b ]──┐     └─────────[ d ]        ┌─────────[ f ]
                        └────────── lane 0 ──────────┘

An arrow runs up and down only in the channels beside columns, and from channel to channel only in
lanes below all boxes, unless the columns are neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
WIDTH, HEIGHT, GAP = 190, 40, 18  # of boxes, and between those of a column
TOP, SIDE, APART = 44, 16, 8  # room above the boxes, beside the lines of a channel, between lines
NARROWEST = 48  # channel
BEND = 6  # radius


@dataclass(frozen=True)
class Layout:
    """The places of boxes and the ways of arrows, in pixels."""

    corners: tuple[Point, ...]
    """The upper left corner of each box."""
    ways: tuple[tuple[Point, ...], ...]
    """The points of each arrow, with level or upright lines between them."""
    columns: tuple[float, ...]
    """The left side of each column."""
    size: tuple[float, float]
    """Width and height of the picture."""


class _Lines:
    """The places that arrows have taken in channels and lanes."""

    def __init__(self) -> None:
        self.channels = Counter[int]()
        self.lanes: list[list[tuple[int, int]]] = []

    def in_channel(self, channel: int) -> tuple[int, int]:
        self.channels[channel] += 1
        return channel, self.channels[channel] - 1

    def in_lane(self, first: int, last: int) -> int:
        """Return the highest lane that is free between two channels."""
        for number, taken in enumerate(self.lanes):
            if all(last < a or b < first for a, b in taken):
                taken.append((first, last))
                return number
        self.lanes.append([(first, last)])
        return len(self.lanes) - 1


def layout(columns: Sequence[int], arrows: Sequence[tuple[int, int]], count: int) -> Layout:
    """Lay out boxes, from top to bottom of their columns, and arrows between them.

    Args:
        columns: The column of each box.
        arrows: The numbers of the boxes where arrows begin and end.
        count: The number of columns.
    """
    rows, lines = Counter[int](), _Lines()
    row = []
    for column in columns:
        row.append(rows[column])
        rows[column] += 1
    plans = [_plan(columns[a], columns[b], row[b] - row[a], lines) for a, b in arrows]
    widths = [max(NARROWEST, 2 * SIDE + APART * lines.channels[c]) for c in range(count + 1)]
    lefts = [sum(widths[:c]) + c * WIDTH for c in range(count + 1)]  # of channels
    at = [lefts[c] + widths[c] for c in range(count)]  # of columns
    low = TOP + max(rows.values(), default=1) * (HEIGHT + GAP)
    corners = [(at[c], TOP + r * (HEIGHT + GAP)) for c, r in zip(columns, row, strict=True)]

    def x_of(line: tuple[int, int]) -> float:
        channel, number = line
        slack = widths[channel] - APART * (lines.channels[channel] - 1)
        return lefts[channel] + slack / 2 + APART * number

    ways = []
    for (a, b), plan in zip(arrows, plans, strict=True):
        lane = None if plan.lane is None else low + APART * plan.lane
        ways.append(tuple(_way(corners[a], corners[b], [x_of(line) for line in plan.lines], lane)))
    size = (lefts[-1] + widths[-1], low + APART * len(lines.lanes) + SIDE)
    return Layout(tuple(corners), tuple(ways), tuple(at), size)


@dataclass(frozen=True)
class _Plan:
    """The lines of channels that an arrow takes, and its lane."""

    lines: tuple[tuple[int, int], ...] = ()
    lane: int | None = None


def _plan(source: int, target: int, down: int, lines: _Lines) -> _Plan:
    """Return the plan of an arrow from one column to another; `down`: by how many rows."""
    if source == target:
        return _Plan() if down == 1 else _Plan((lines.in_channel(source),))
    leaves, comes = (source + 1, target) if target > source else (source, target + 1)
    if leaves == comes:
        return _Plan((lines.in_channel(leaves),))
    lane = lines.in_lane(min(leaves, comes), max(leaves, comes))
    return _Plan((lines.in_channel(leaves), lines.in_channel(comes)), lane)


def _way(begin: Point, end: Point, upright: Sequence[float], lane: float | None) -> Iterator[Point]:
    """Yield the points of an arrow, which leaves and enters boxes on the sides of its lines."""
    (x, y), (to_x, to_y) = begin, end
    if not upright:  # to the box below
        yield x + WIDTH / 2, y + HEIGHT
        yield x + WIDTH / 2, to_y
        return
    level, to_level = y + HEIGHT / 2, to_y + HEIGHT / 2
    first, last = upright[0], upright[-1]
    yield x if first < x else x + WIDTH, level
    if lane is not None or level != to_level:
        yield first, level
        if lane is not None:
            yield first, lane
            yield last, lane
        yield last, to_level
    yield to_x if last < to_x else to_x + WIDTH, to_level


def path(way: Sequence[Point]) -> str:
    """Return the points as an SVG path with round corners."""
    parts = [f"M{way[0][0]:g} {way[0][1]:g}"]
    for a, b, c in zip(way, way[1:], way[2:], strict=False):
        before, after = _toward(b, a), _toward(b, c)
        parts.append(f"L{before[0]:g} {before[1]:g}Q{b[0]:g} {b[1]:g} {after[0]:g} {after[1]:g}")
    return f"{''.join(parts)}L{way[-1][0]:g} {way[-1][1]:g}"


def _toward(corner: Point, other: Point) -> Point:
    """Return the point at which the bend of a corner begins."""
    (x, y), (to_x, to_y) = corner, other
    length = abs(to_x - x) + abs(to_y - y)
    share = min(BEND, length / 2) / length if length else 0.0
    return x + (to_x - x) * share, y + (to_y - y) * share
