"""Pictures of a placement: as DOT, as SVG, and as a `group2ctx:` block of a config.

A box is what one stage holds of one ctx_group. Nodes without a group have a box each while they
are few, and one box a stage where they are many. Colours are devices; gradients flow against the
arrows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape

import yaml

from partitioner.base.types import Placement
from symgraph.core.context import Context
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.core.types import Value
from symgraph.core.units import bytes_text
from symgraph.passes.merge import home_of
from symgraph.passes.shards import place_of

FEW = 40  # nodes without a group that are drawn one by one
COLOURS = (
    "#8dd3c7",
    "#fdb462",
    "#bebada",
    "#fb8072",
    "#80b1d3",
    "#b3de69",
    "#fccde5",
    "#ffed6f",
    "#bc80bd",
    "#d9d9d9",
)
WIDTH, HEIGHT, GAP, MARGIN = 190, 40, 26, 70  # of boxes in an SVG, and between them


@dataclass(frozen=True)
class Box:
    """What one stage holds of one group: calls and bytes of its variables."""

    stage: int
    label: str
    calls: int
    variables: int


@dataclass(frozen=True)
class Arrow:
    """Values from one box to another, by number; bytes: of each value once."""

    source: int
    target: int
    values: int
    nbytes: int


def dot(graph: Graph, placement: Placement) -> str:
    """The placement for Graphviz: a cluster for each stage."""
    boxes, arrows = _boxes(graph, placement)
    lines = ["digraph placement {", "  rankdir=LR; node [shape=box, style=filled];"]
    for stage in range(placement.stages):
        device = placement.devices[placement.rank_of[stage]]
        lines += [f"  subgraph cluster_{stage} {{", f"    label={quoted(_title(stage, device))};"]
        lines += [
            f'    b{i} [label={quoted(_text(box))}, fillcolor="{_colour(placement, stage)}"];'
            for i, box in enumerate(boxes)
            if box.stage == stage
        ]
        lines.append("  }")
    for arrow in arrows:
        bold = ", penwidth=2" if _crosses(arrow, boxes, placement) else ", color=gray"
        lines.append(f"  b{arrow.source} -> b{arrow.target} [label={quoted(_flow(arrow))}{bold}];")
    return "\n".join([*lines, "}"]) + "\n"


def svg(graph: Graph, placement: Placement) -> str:
    """The placement as a drawing: a column for each stage, values that are sent in black."""
    boxes, arrows = _boxes(graph, placement)
    rows = Counter[int]()
    corners = []
    for box in boxes:
        x = MARGIN + box.stage * (WIDTH + 2 * MARGIN)
        corners.append((x, MARGIN + rows[box.stage] * (HEIGHT + GAP)))
        rows[box.stage] += 1
    wide = placement.stages * (WIDTH + 2 * MARGIN)
    high = 2 * MARGIN + max(rows.values(), default=1) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for stage, rank in enumerate(placement.rank_of):
        x = MARGIN + stage * (WIDTH + 2 * MARGIN)
        title = escape(_title(stage, placement.devices[rank]))
        parts.append(f'<text x="{x}" y="{MARGIN // 2}" font-weight="bold">{title}</text>')
    parts += [_line(arrow, corners, _crosses(arrow, boxes, placement)) for arrow in arrows]
    for box, (x, y) in zip(boxes, corners, strict=True):
        parts.append(
            f'<g><title>{escape(_text(box))}</title><rect x="{x}" y="{y}" width="{WIDTH}" '
            f'height="{HEIGHT}" rx="4" stroke="black" fill="{_colour(placement, box.stage)}"/>'
            f'<text x="{x + 8}" y="{y + 17}">{escape(_short(box.label))}</text>'
            f'<text x="{x + 8}" y="{y + 32}" fill="#444">{escape(_figures(box))}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def group_block(graph: Graph, placement: Placement) -> str:
    """The placement as lines of a config: each ctx_group and its device.

    A group in pieces gets the list of their devices, another one on several devices the one that
    has most of it; what the block cannot say (groups that are cut, nodes without a group) is said
    in comments.
    """
    where = group_devices(graph, placement)
    pieces = _devices_of_pieces(graph, placement)
    lost = sum(where.pop("", {}).values())
    lines = ["group2ctx:"] if where else ["group2ctx: {}"]
    for group, devices in where.items():
        names = ", ".join(f"{count} nodes on {d}" for d, count in sorted(devices.items()))
        cut = len(devices) > 1 and group not in pieces
        note = f"  # split: {names}; use keep_groups" if cut else ""
        device = f"[{', '.join(pieces[group])}]" if group in pieces else next(iter(devices))
        text = f"{yaml.safe_dump(group).splitlines()[0]}: {device}"
        lines.append(f"  {text}{note}")
    if lost:
        lines.append(f"  # {lost} nodes are in no group and follow their inputs")
    return "\n".join(lines) + "\n"


def _devices_of_pieces(graph: Graph, placement: Placement) -> dict[str, list[str]]:
    """The devices of each group's shards or replicas, where each of those is on one device."""
    found: dict[str, dict[int, set[Context]]] = {}
    counts: dict[str, int] = {}
    for node in graph:
        place = place_of(node)
        if place and node.origin is None and not node.is_variable:
            group = lookup(node.tags, "ctx_group") or ""
            devices = found.setdefault(group, {}).setdefault(place[0], set())
            devices.add(placement.device_of(home_of(node)))
            counts[group] = place[1]
    return {
        group: [str(next(iter(pieces[i]))) for i in range(counts[group])]
        for group, pieces in found.items()
        if len(pieces) == counts[group] and all(len(on) == 1 for on in pieces.values())
    }


def group_devices(graph: Graph, placement: Placement) -> dict[str, dict[Context, int]]:
    """How many nodes of each ctx_group are on which device, the most first; "": of no group."""
    where: dict[str, Counter[Context]] = {}
    for node in graph:
        if node.origin is None and not node.is_variable:
            group = lookup(node.tags, "ctx_group") or ""
            where.setdefault(group, Counter())[placement.device_of(home_of(node))] += 1
    return {
        group: dict(sorted(devices.items(), key=lambda item: (-item[1], item[0])))
        for group, devices in where.items()
    }


# -- boxes and arrows ------------------------------------------------------------------------------


def _boxes(graph: Graph, placement: Placement) -> tuple[list[Box], list[Arrow]]:
    """What is drawn, in run order. A variable is in the box of its first reader on its stage."""
    calls = [n for n in graph if n.origin is None and not n.is_variable]
    group = {n.name: lookup(n.tags, "ctx_group") for n in calls}
    few = sum(g is None for g in group.values()) <= FEW
    number: dict[tuple[int, str], int] = {}
    box_of: dict[str, int] = {}
    counts, held = Counter[int](), Counter[int]()
    flow: dict[tuple[int, int], dict[Value, int]] = {}
    for node in calls:
        stage = placement.stage_of[home_of(node)]
        label = group[node.name] or (node.name if few else "without a group")
        box = number.setdefault((stage, label), len(number))
        box_of[node.name] = box
        counts[box] += 1
        for value in node.inputs:
            nbytes = graph.type_of(value).nbytes
            fresh = graph[value.node].is_variable and value.node not in box_of
            if fresh and placement.stage_of[value.node] == stage:
                box_of[value.node] = box
                held[box] += nbytes
            source = box_of.get(value.node, box)
            if source != box:
                flow.setdefault((source, box), {})[value] = nbytes
    boxes = [Box(stage, label, counts[i], held[i]) for (stage, label), i in number.items()]
    arrows = [Arrow(a, b, len(v), sum(v.values())) for (a, b), v in flow.items()]
    return boxes, arrows


def _crosses(arrow: Arrow, boxes: list[Box], placement: Placement) -> bool:
    """Whether the arrow's values are sent from one device to another."""
    a, b = (placement.rank_of[boxes[i].stage] for i in (arrow.source, arrow.target))
    return a != b


def _line(arrow: Arrow, corners: list[tuple[int, int]], crosses: bool) -> str:
    """An arrow: down within a column, else from side to side."""
    (x, y), (to_x, to_y) = corners[arrow.source], corners[arrow.target]
    level, to_level = y + HEIGHT // 2, to_y + HEIGHT // 2
    if x == to_x and to_y - y == HEIGHT + GAP:
        path = f"M{x + WIDTH // 2} {y + HEIGHT}L{x + WIDTH // 2} {to_y}"
    elif x == to_x:  # past other boxes
        path = f"M{x} {level}C{x - 40} {level} {x - 40} {to_level} {x} {to_level}"
    else:
        start, end = (x + WIDTH, to_x) if to_x > x else (x, to_x + WIDTH)
        middle = (start + end) // 2
        path = f"M{start} {level}C{middle} {level} {middle} {to_level} {end} {to_level}"
    look = 'stroke="black" stroke-width="2"' if crosses else 'stroke="#999"'
    return (
        f'<path d="{path}" fill="none" {look} marker-end="url(#tip)">'
        f"<title>{escape(_flow(arrow))}</title></path>"
    )


# -- words -----------------------------------------------------------------------------------------


def _title(stage: int, device: Context) -> str:
    return f"stage {stage} on {device}"


def _figures(box: Box) -> str:
    return f"{box.calls} node{'s' * (box.calls != 1)}, {bytes_text(box.variables)}"


def _text(box: Box) -> str:
    return f"{box.label}\n{_figures(box)}"


def _flow(arrow: Arrow) -> str:
    count = f"{arrow.values} values, " if arrow.values > 1 else ""
    return count + bytes_text(arrow.nbytes)


def _colour(placement: Placement, stage: int) -> str:
    return COLOURS[placement.rank_of[stage] % len(COLOURS)]


def _short(label: str, most: int = 26) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def quoted(text: str) -> str:
    """A string of the DOT language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
