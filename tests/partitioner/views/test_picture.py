"""Pictures of placements: what is drawn is what is placed, and what is pasted gives it back."""

from __future__ import annotations

import re
from itertools import pairwise, product
from random import Random
from xml.etree import ElementTree

import pytest
import yaml

import symgraph as sg
from partitioner import Placement, group2ctx
from partitioner.base.stages import form_stages
from partitioner.views.picture import dot, group_block, svg
from partitioner.views.routes import HEIGHT, WIDTH, layout
from symgraph.core.context import Context, cpu
from symgraph.core.graph import Graph
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients

GROUPS = {"first": cpu(0), "no": cpu(1), 'a "b"': cpu(1)}


def network(groups: list[str | None]) -> Graph:
    """Three layers, each in a group of its own or in none."""
    x = sg.sym.Variable("data")
    for i, group in enumerate(groups):
        with sg.AttrScope(**({} if group is None else {"ctx_group": group})):
            x = sg.sym.FullyConnected(x, num_hidden=8, name=f"fc{i}")
            x = sg.sym.tanh(x, name=f"tanh{i}")
    graph = lower(x, {"data": (4, 8)})
    return gradients(graph, ["fc0_weight"]).graph


def placed(graph: Graph, groups: dict[str, Context]) -> Placement:
    return group2ctx(graph, groups, cpu(0))


def test_the_block_gives_the_placement_back():
    graph = network(list(GROUPS))
    placement = placed(graph, GROUPS)
    block = group_block(graph, placement)
    read = yaml.safe_load(block)["group2ctx"]
    again = placed(graph, {str(g): Context.parse(d) for g, d in read.items()})
    assert again == placement
    assert "#" not in block


def test_the_block_says_what_it_cannot_say():
    graph = network(["first", "first", None])
    ranks = {n.name: int("1" in n.name) for n in graph if n.origin is None}
    placement = Placement(*form_stages(graph, ranks), (cpu(0), cpu(1)))
    block = group_block(graph, placement)
    assert "first: cpu(0)  # split: 2 nodes on cpu(0), 2 nodes on cpu(1)" in block
    assert "# 2 nodes in no group" in block
    assert group_block(network([None]), placed(network([None]), {})).startswith("group2ctx: {}")


def test_dot_has_a_cluster_a_stage_and_bold_arrows_between_devices():
    graph = network(list(GROUPS))
    text = dot(graph, placed(graph, GROUPS))
    assert re.findall(r'label="(stage . on cpu...)"', text) == [
        "stage 0 on cpu(0)",
        "stage 1 on cpu(1)",
    ]
    assert r'b0 [label="first\n2 nodes, 416 B"' in text
    assert r"a \"b\"\n2 nodes" in text
    assert 'b0 -> b1 [label="128 B", penwidth=2];' in text
    assert 'b1 -> b2 [label="128 B", color=gray];' in text
    colours = re.findall(r'fillcolor="(#\w+)"', text)
    assert colours[0] != colours[1] == colours[2], "colours are devices"
    assert text.count("{") == text.count("}")


def test_svg_is_well_formed_and_draws_every_box_and_arrow():
    graph = network(list(GROUPS))
    placement = placed(graph, GROUPS)
    root = ElementTree.fromstring(svg(graph, placement))
    space = "{http://www.w3.org/2000/svg}"
    words = [t.text for t in root.iter(f"{space}text")]
    assert {"stage 0 on cpu(0)", "stage 1 on cpu(1)", "first", "no", 'a "b"'} <= set(words)
    boxes = list(root.iter(f"{space}rect"))
    assert len(boxes) == 3
    for box in boxes:  # inside the drawing, and none over another
        assert float(box.get("x", 0)) + float(box.get("width", 0)) <= float(root.get("width", 0))
        assert float(box.get("y", 0)) + float(box.get("height", 0)) <= float(root.get("height", 0))
    assert len({(b.get("x"), b.get("y")) for b in boxes}) == 3
    assert len([p for p in root.iter(f"{space}path") if p.get("marker-end")]) == 2


def test_no_arrow_runs_through_a_box_or_out_of_the_picture():
    """Arrows over several columns ran through the boxes between."""
    for seed in range(60):
        draw = Random(seed)
        stages, boxes = draw.randint(1, 6), range(draw.randint(1, 14))
        columns = [draw.randrange(stages) for _ in boxes]
        pairs = [(a, b) for a, b in product(boxes, boxes) if a != b and draw.random() < 0.2]
        found = layout(columns, pairs, stages)
        assert len(found.ways) == len(pairs)
        for (x, y), (to_x, to_y) in (line for way in found.ways for line in pairwise(way)):
            assert x == to_x or y == to_y
            assert 0 <= min(x, to_x) <= max(x, to_x) <= found.size[0]
            assert 0 <= min(y, to_y) <= max(y, to_y) <= found.size[1]
            for left, top in found.corners:
                beside = max(x, to_x) <= left or min(x, to_x) >= left + WIDTH
                assert beside or max(y, to_y) <= top or min(y, to_y) >= top + HEIGHT, seed


@pytest.mark.parametrize(("count", "boxes"), [(10, 20), (30, 1)])
def test_many_nodes_without_groups_share_a_box(count, boxes):
    graph = network([None] * count)
    assert dot(graph, placed(graph, {})).count("fillcolor") == boxes
