"""Pictures of a network, one box per operator: as DOT, as SVG, or drawn by the program dot."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Protocol

from partitioner.base.types import Partition, Placement
from partitioner.placement.group2ctx import Groups, group2ctx
from partitioner.views.drawing import (
    Arrow,
    colour,
    quoted,
    svg_arrow,
    svg_box,
    svg_document,
)
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError, GraphError
from symgraph.core.types import Shape
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import SymNode, walk

WEIGHT_SUFFIXES = (
    "_weight",
    "_bias",
    "_beta",
    "_gamma",
    "_moving_var",
    "_moving_mean",
    "_running_var",
    "_running_mean",
)
OPERATOR_COLOURS = {  # operator -> which colour, as in MXNet's pictures
    "null": 0,
    "Convolution": 3,
    "FullyConnected": 3,
    "BatchNorm": 2,
    "Activation": 7,
    "LeakyReLU": 7,
    "Pooling": 4,
    "Concat": 1,
    "Flatten": 1,
    "Reshape": 1,
    "SoftmaxOutput": 5,
}
OTHER_COLOUR = 6
WIDTH, HEIGHT, GAP, STEP = 150, 40, 20, 90  # of boxes in an SVG; between neighbours and layers
LANE = 12  # between arrows that pass layers

Corner = tuple[int, int]


class Planned(Protocol):
    """The part of a plan that is drawn."""

    @property
    def partition(self) -> Partition: ...


@dataclass(frozen=True)
class Box:
    """An operator or an input."""

    name: str
    kind: str  #: the operator; "null": an input
    label: str
    place: int | None  #: the number of its device, if that is known


@dataclass(frozen=True)
class NetworkPicture:
    """A drawn network."""

    title: str
    save_format: str  #: the extension of the rendered file
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    devices: tuple[str, ...]  #: what the colours stand for; without any, kinds of operators
    node_attrs: Mapping[str, str]  #: Graphviz attributes of all boxes

    @property
    def source(self) -> str:
        """The text for Graphviz."""
        common = {"shape": "box", "style": "filled", **self.node_attrs}
        shown = ", ".join(f"{key}={quoted(value)}" for key, value in common.items())
        lines = [f"digraph {quoted(self.title)} {{", f"  node [{shown}];"]
        for i, device in enumerate(self.devices):
            lines.append(
                f"  d{i} [label={quoted(device)}, shape=note, fillcolor={quoted(_fill(i))}];"
            )
        for i, box in enumerate(self.boxes):
            shape = "shape=oval, " if box.kind == "null" else ""
            fill = quoted(_fill(self._colour(box)))
            lines.append(f"  n{i} [label={quoted(box.label)}, {shape}fillcolor={fill}];")
        for arrow in self.arrows:
            label = f"label={quoted(arrow.label)}" + (", penwidth=3" if arrow.crosses else "")
            lines.append(f"  n{arrow.source} -> n{arrow.target} [{label}];")
        return "\n".join([*lines, "}"]) + "\n"

    def svg(self) -> str:
        """Draw the network in layers, the outputs lowest; what devices send each other is black."""
        corners = self._layers()
        lanes = _lanes(self.arrows, corners)
        right = max((x + WIDTH for x, _ in corners), default=0)
        right = max([right, *lanes.values()]) + GAP
        low = max((y for _, y in corners), default=0) + HEIGHT + GAP
        parts = [f"<title>{escape(self.title)}</title>"]
        for i, device in enumerate(self.devices):
            x = GAP + i * 90
            parts.append(
                f'<rect x="{x}" y="6" width="12" height="12" fill="{_fill(i)}"/>'
                f'<text x="{x + 16}" y="16" fill="currentColor">{escape(device)}</text>'
            )
        parts += [_line(arrow, corners, lanes.get(n)) for n, arrow in enumerate(self.arrows)]
        parts += [
            _rect(box, _fill(self._colour(box)), corner)
            for box, corner in zip(self.boxes, corners, strict=True)
        ]
        return svg_document(right, low, parts, font_size=11, tip_size=6)

    def render(self, filename: str | None = None) -> str:
        """Write `<filename or title>.<save_format>` and return the path.

        Raises:
            ConfigError: if the format needs the program dot, and that is not installed.
        """
        path = Path(f"{filename or self.title}.{self.save_format}")
        if self.save_format == "dot":
            path.write_text(self.source, encoding="utf-8")
        elif self.save_format == "svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            program = shutil.which("dot")
            if program is None:
                raise ConfigError(
                    f"save_format={self.save_format!r} needs Graphviz's program dot, which is not "
                    "installed; use save_format='svg' or 'dot'"
                )
            command = [program, f"-T{self.save_format}", "-o", str(path)]
            subprocess.run(command, input=self.source, text=True, check=True)
        return str(path)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _colour(self, box: Box) -> int | None:
        return box.place if self.devices else OPERATOR_COLOURS.get(box.kind, OTHER_COLOUR)

    def _layers(self) -> list[Corner]:
        """Find the corner of each box: just above its readers, in the order of the network."""
        height = [0] * len(self.boxes)  # above the lowest layer
        for arrow in reversed(self.arrows):  # in run order, so readers come before what they read
            height[arrow.source] = max(height[arrow.source], height[arrow.target] + 1)
        top = max(height, default=0)
        depth = [top - h for h in height]
        filled = Counter[int]()
        corners = []
        for layer in depth:
            corners.append((GAP + filled[layer] * (WIDTH + GAP), GAP + 16 + layer * STEP))
            filled[layer] += 1
        return corners


def picture(
    symbol: Symbol,
    title: str,
    save_format: str,
    shape: Mapping[str, Shape] | None,
    dtype: Mapping[str, Any] | None,
    node_attrs: Mapping[str, str],
    hide_weights: bool,
    groups: Groups | None,
    plan: Planned | None,
) -> NetworkPicture:
    """Make the picture of a symbol; see symgraph.frontend.viz.plot_network."""
    placement = _placement(symbol, shape, dtype, groups, plan)
    nodes = [
        n
        for n in walk(symbol.entries)
        if not (hide_weights and n.op is None and n.name.endswith(WEIGHT_SUFFIXES))
    ]
    sizes = _sizes(symbol, shape, dtype)
    ranks = (
        {}
        if placement is None
        else {name: placement.rank_of[stage] for name, stage in placement.stage_of.items()}
    )
    boxes = tuple([_box(n, ranks.get(n.name)) for n in nodes])
    number = {id(n): i for i, n in enumerate(nodes)}
    arrows = []
    for node in nodes:
        for entry in node.inputs:
            if id(entry.node) in number:
                here, there = ranks.get(entry.node.name), ranks.get(node.name)
                label = sizes.get(entry.node.outputs[entry.port], "")
                pair = number[id(entry.node)], number[id(node)]
                arrows.append(Arrow(*pair, label, here != there and None not in (here, there)))
    devices = () if placement is None else tuple(map(str, placement.devices))
    return NetworkPicture(title, save_format, boxes, tuple(arrows), devices, node_attrs)


def _placement(
    symbol: Symbol,
    shape: Mapping[str, Shape] | None,
    dtype: Mapping[str, Any] | None,
    groups: Groups | None,
    plan: Planned | None,
) -> Placement | None:
    if plan is not None:
        return plan.partition.placement
    if groups is None:
        return None
    if shape is None:
        raise GraphError("plot_network: group2ctx needs shape, the shapes of the inputs")
    return group2ctx(lower(symbol, shape, dtype), groups, cpu())


def _sizes(
    symbol: Symbol, shape: Mapping[str, Shape] | None, dtype: Mapping[str, Any] | None
) -> dict[str, str]:
    """Write the label of each value's arrow, by its name: the shape without the batch."""
    internals = symbol.get_internals()
    names = internals.list_outputs()
    sizes = dict.fromkeys(names, "")
    if shape is not None:
        shapes = zip(names, internals.infer_shape(**shape)[1], strict=True)
        sizes = {name: "x".join(map(str, s[1:])) for name, s in shapes}
    if dtype is not None:
        kinds = zip(names, internals.infer_type(**dtype)[1], strict=True)
        sizes = {name: f"{sizes[name]}({kind})" for name, kind in kinds}
    return sizes


def _box(node: SymNode, place: int | None) -> Box:
    kind = node.op.name if node.op else "null"
    label = node.name if node.op is None else f"{node.name}\n{kind}"
    if node.op is not None and node.op.caption is not None:
        label = f"{label} {node.op.caption(node.params)}"
    return Box(node.name, kind, label, place)


def _fill(number: int | None) -> str:
    return "#ffffff" if number is None else colour(number)


def _rect(box: Box, fill: str, corner: Corner) -> str:
    first, _, second = box.label.partition("\n")
    lines, radius = (first[:22], second[:24]), HEIGHT // 2 if box.kind == "null" else 4
    size = WIDTH, HEIGHT
    return svg_box(corner, size, box.label, lines, fill, text_at=(10, 16), radius=radius)


def _lanes(arrows: Sequence[Arrow], corners: Sequence[Corner]) -> dict[int, int]:
    """Find a lane beside the boxes for each arrow that passes layers: its number -> x.

    [ a ]──┐         The arrow from a to c runs down beside b, to the right of
    [ b ]  │ lane    all boxes and lanes of the layers that it passes.
    [ c ]◀─┘
    """
    right: dict[int, int] = {}  # y of a layer -> where it ends
    for x, y in corners:
        right[y] = max(right.get(y, 0), x + WIDTH)
    lanes = {}
    for number, arrow in enumerate(arrows):
        above, below = corners[arrow.source][1], corners[arrow.target][1]
        passed = range(above + STEP, below, STEP)
        if passed:
            lanes[number] = max(right[y] for y in passed) + LANE
            right |= dict.fromkeys(passed, lanes[number])
    return lanes


def _line(arrow: Arrow, corners: Sequence[Corner], lane: int | None) -> str:
    (x, y), (to_x, to_y) = corners[arrow.source], corners[arrow.target]
    x, to_x, y = x + WIDTH // 2, to_x + WIDTH // 2, y + HEIGHT
    half = (STEP - HEIGHT) // 2  # of the room between two layers
    if lane is None:
        curve = f"M{x} {y}{_curve((x, y), (to_x, to_y), half)}"
        at = (x + to_x) // 2 + 4, y + half
    else:
        down, up = y + 2 * half, to_y - 2 * half
        curve = f"M{x} {y}{_curve((x, y), (lane, down), half)}L{lane} {up}"
        curve += _curve((lane, up), (to_x, to_y), half)
        at = lane + 4, (y + to_y) // 2
    text = ""
    if arrow.label:
        words = escape(arrow.label)
        text = f'<text x="{at[0]}" y="{at[1]}" fill="currentColor">{words}</text>'
    return svg_arrow(curve, crosses=arrow.crosses, width=2.5) + text


def _curve(begin: Corner, end: Corner, half: int) -> str:
    """Go on with a path, from the bottom of a layer to the top of the next one."""
    (x, y), (to_x, to_y) = begin, end
    return f"C{x} {y + half} {to_x} {to_y - half} {to_x} {to_y}"
