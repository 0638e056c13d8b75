"""Pictures of a placement: as DOT, as SVG, and as a `group2ctx:` block of a config.

A box is what one stage holds of one ctx_group. Nodes without a group have a box each while they
are few, and one box a stage where they are many. Colours are devices; gradients flow against the
arrows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import yaml

from partitioner.base.types import Placement
from partitioner.views.drawing import (
    Arrow,
    colour,
    quoted,
    svg_arrow,
    svg_box,
    svg_document,
)
from partitioner.views.routes import HEIGHT, WIDTH, layout, path
from symgraph.core.context import Context
from symgraph.core.graph import Graph
from symgraph.core.tags import lookup
from symgraph.core.types import Value
from symgraph.core.units import bytes_text, count_text
from symgraph.passes.merge import home_of
from symgraph.passes.shards import place_of

MAX_SINGLE_NODES = 40  # nodes without a group that are drawn one by one


@dataclass(frozen=True)
class Box:
    """What one stage holds of one group."""

    stage: int
    label: str
    calls: int  #: the number of its operator calls
    nbytes: int  #: of its variables


def dot(graph: Graph, placement: Placement) -> str:
    """Draw the placement for Graphviz: a cluster for each stage."""
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
        bold = ", penwidth=2" if arrow.crosses else ", color=gray"
        lines.append(f"  b{arrow.source} -> b{arrow.target} [label={quoted(arrow.label)}{bold}];")
    return "\n".join([*lines, "}"]) + "\n"


def svg(graph: Graph, placement: Placement) -> str:
    """Draw the placement: a column for each stage, values that are sent in black."""
    boxes, arrows = _boxes(graph, placement)
    pairs = [(arrow.source, arrow.target) for arrow in arrows]
    found = layout([box.stage for box in boxes], pairs, placement.stages)
    parts = []
    for stage, (x, rank) in enumerate(zip(found.columns, placement.rank_of, strict=True)):
        title = escape(_title(stage, placement.devices[rank]))
        parts.append(
            f'<text x="{x:g}" y="28" font-weight="bold" fill="currentColor">{title}</text>'
        )
    for arrow, way in zip(arrows, found.ways, strict=True):
        about = f"<title>{escape(arrow.label)}</title>"
        parts.append(svg_arrow(path(way), crosses=arrow.crosses, width=2, content=about))
    for box, corner in zip(boxes, found.corners, strict=True):
        lines, fill = (_short(box.label), _figures(box)), _colour(placement, box.stage)
        parts.append(svg_box(corner, (WIDTH, HEIGHT), _text(box), lines, fill, text_at=(8, 17)))
    return svg_document(*found.size, parts, font_size=12, tip_size=7)


def group_block(graph: Graph, placement: Placement) -> str:
    """Write the placement as lines of a config: each ctx_group and its device.

    A group in pieces gets the list of their devices; any other group on several devices gets the
    one with most of it. What the block cannot express (groups that are cut, nodes without a group)
    is in comments.
    """
    return block(group_devices(graph, placement), _devices_of_pieces(graph, placement))


def block(where: dict[str, dict[Context, int]], pieces: Mapping[str, Sequence[str]]) -> str:
    """Write the lines of `group_block`.

    Args:
        where: what `counted` returned.
        pieces: group -> the devices of its pieces.
    """
    lost = sum(where.pop("", {}).values())
    lines = ["group2ctx:"] if where else ["group2ctx: {}"]
    for group, devices in where.items():
        on = sorted(devices.items())
        names = ", ".join(f"{count_text(count, 'node')} on {device}" for device, count in on)
        cut = len(devices) > 1 and group not in pieces
        note = f"  # split: {names}; use keep_groups" if cut else ""
        device = f"[{', '.join(pieces[group])}]" if group in pieces else next(iter(devices))
        text = f"{yaml.safe_dump(group).splitlines()[0]}: {device}"
        lines.append(f"  {text}{note}")
    if lost:
        lines.append(f"  # {count_text(lost, 'node')} in no group, placed by their inputs")
    return "\n".join(lines) + "\n"


def _devices_of_pieces(graph: Graph, placement: Placement) -> dict[str, list[str]]:
    """Find the devices of groups' shards or replicas, where each of those is on one device."""
    pieces_of: dict[str, dict[int, set[Context]]] = {}
    counts: dict[str, int] = {}
    for node in graph:
        place = place_of(node)
        if place and node.origin is None and not node.is_variable:
            group = lookup(node.tags, "ctx_group") or ""
            devices = pieces_of.setdefault(group, {}).setdefault(place[0], set())
            devices.add(placement.device_of(home_of(node)))
            counts[group] = place[1]
    return {
        group: [str(next(iter(pieces[i]))) for i in range(counts[group])]
        for group, pieces in pieces_of.items()
        if len(pieces) == counts[group] and all(len(on) == 1 for on in pieces.values())
    }


def group_devices(graph: Graph, placement: Placement) -> dict[str, dict[Context, int]]:
    """Count the nodes of each ctx_group on each device, the most first; "": without a group."""
    return counted(
        (lookup(node.tags, "ctx_group") or "", placement.device_of(home_of(node)))
        for node in graph
        if node.origin is None and not node.is_variable
    )


def counted(placed: Iterable[tuple[str, Context]]) -> dict[str, dict[Context, int]]:
    """Count nodes on each device, the most first, by their group, of which "" is none."""
    where: dict[str, Counter[Context]] = {}
    for group, device in placed:
        where.setdefault(group, Counter())[device] += 1
    return {
        group: dict(sorted(devices.items(), key=lambda item: (-item[1], item[0])))
        for group, devices in where.items()
    }


# -- boxes and arrows ------------------------------------------------------------------------------


def _boxes(graph: Graph, placement: Placement) -> tuple[list[Box], list[Arrow]]:
    """Gather what is drawn, in run order; variables are with their first readers on their stage."""
    calls = [n for n in graph if n.origin is None and not n.is_variable]
    group = {n.name: lookup(n.tags, "ctx_group") for n in calls}
    single = sum(g is None for g in group.values()) <= MAX_SINGLE_NODES
    number: dict[tuple[int, str], int] = {}
    box_of: dict[str, int] = {}
    counts, held = Counter[int](), Counter[int]()
    flow: dict[tuple[int, int], dict[Value, int]] = {}
    for node in calls:
        stage = placement.stage_of[home_of(node)]
        label = group[node.name] or (node.name if single else "without a group")
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
    rank_of = [placement.rank_of[box.stage] for box in boxes]
    arrows = [Arrow(a, b, _flow(v), rank_of[a] != rank_of[b]) for (a, b), v in flow.items()]
    return boxes, arrows


# -- words -----------------------------------------------------------------------------------------


def _title(stage: int, device: Context) -> str:
    return f"stage {stage} on {device}"


def _figures(box: Box) -> str:
    return f"{box.calls} node{'s' * (box.calls != 1)}, {bytes_text(box.nbytes)}"


def _text(box: Box) -> str:
    return f"{box.label}\n{_figures(box)}"


def _flow(values: Mapping[Value, int]) -> str:
    count = f"{len(values)} values, " if len(values) > 1 else ""
    return count + bytes_text(sum(values.values()))


def _colour(placement: Placement, stage: int) -> str:
    return colour(placement.rank_of[stage])


def _short(label: str, most: int = 26) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
