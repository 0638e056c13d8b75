"""The table that a partition prints itself as."""

from __future__ import annotations

import symgraph as sg
import symgraph.frontend.sym as sym
from partitioner import Partition, group2ctx
from partitioner.cutting.cut import cut
from partitioner.views.report import body_flops, parameter_bytes, table
from symgraph.core.columns import aligned_columns
from symgraph.core.context import Context, cpu
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.gradients import gradients

PARAMETERS = {"fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"}


def mlp(groups: dict[str, Context] | None, train: bool = True) -> Partition:
    with NameManager():
        with AttrScope(ctx_group="a"):
            h = sym.FullyConnected(sym.Variable("x"), name="fc1", num_hidden=1000)
            h = sym.tanh(h, name="act")
        with AttrScope(ctx_group="b"):
            h = sym.FullyConnected(h, name="fc2", num_hidden=10)
            out = sym.SoftmaxOutput(h, name="softmax")
    graph = lower(out, {"x": (32, 784)})
    if train:
        graph = gradients(graph, sorted(PARAMETERS)).graph
    return cut(graph, group2ctx(graph, groups, cpu(0)))


def test_two_stages():
    lines = str(mlp({"a": cpu(0), "b": cpu(1)})).splitlines()
    assert lines.pop(3).startswith("  nodes F: forward operators; nodes B: backward operators; ")
    assert lines == [
        "stage  rank  device  nodes F  nodes B       flops  parameters  activations  sends  "
        "bytes sent",
        "    0     0  cpu(0)        2        5   101 MFLOP    3.09 MiB      125 KiB      1     "
        "125 KiB",
        "    1     1  cpu(1)        2        6  1.93 MFLOP    39.2 KiB      126 KiB      1     "
        "125 KiB",
        "",
        "2 messages a micro-batch, 250 KiB (0F: stage 0, forward):",
        "     0  0F -> 1F  rank 0 -> 1  act  float32[32,1000]",
        "     1  1B -> 0B  rank 1 -> 0  fc2_grad0  float32[32,1000]",
    ]


def test_only_parameters_count_where_they_are_named():
    partition = mlp({"a": cpu(0), "b": cpu(1)})
    assert parameter_bytes(partition, 0, PARAMETERS) == 4 * (784 * 1000 + 1000)
    assert parameter_bytes(partition, 0) == 4 * (784 * 1000 + 1000 + 32 * 784)
    assert "2.99 MiB" in table(partition, PARAMETERS)


def test_flops_of_a_body_are_those_of_its_nodes():
    forward = next(iter(mlp(None, train=False).bodies.values()))
    fc1, fc2 = 2 * 32 * 784 * 1000, 2 * 32 * 1000 * 10
    tanh, softmax = 32 * 1000, 4 * 32 * 10
    assert body_flops(forward) == fc1 + tanh + fc2 + softmax


def test_one_rank_sends_nothing():
    assert str(mlp(None)).endswith("\n\nno messages: everything is on one rank")


def test_forward_alone_keeps_nothing():
    row = str(mlp(None, train=False)).splitlines()[1].split()
    assert row[:4] == ["0", "0", "cpu(0)", "4"]
    assert row[-5:] == ["0", "B", "0", "0", "B"]


def test_time_segments_and_phases_have_columns():
    with NameManager():
        outs, _ = sg.rnn.RNNCell(3, prefix="l_").unroll(4, sym.Variable("x"))
        loss = sym.MakeLoss(sym.add_n(*outs), name="loss")
    both = gradients(lower(loss, {"x": (2, 4, 3)}), ["l_h2h_weight"])
    place = group2ctx(both.graph, None, cpu(0))
    head, row, *_ = str(cut(both.graph, place, split=True, time_segment=2)).splitlines()
    assert head.split()[:10] == [
        "stage",
        "rank",
        "device",
        "segments",
        "nodes",
        "F",
        "nodes",
        "I",
        "nodes",
        "W",
    ]
    nodes = [n for n in both.graph if not n.is_variable]
    forward = sum(n.origin is None for n in nodes)
    assert row.split()[:5] == ["0", "0", "cpu(0)", "2", str(forward)]
    assert sum(map(int, row.split()[4:7])) == len(nodes)


def test_many_messages_are_cut_short():
    with AttrScope(ctx_group="a"):
        parts = sym.SliceChannel(sym.Variable("x"), num_outputs=15, name="parts")
    with AttrScope(ctx_group="b"):
        out = sym.add_n(*parts, name="sum")
    graph = lower(out, {"x": (2, 15)})
    lines = str(cut(graph, group2ctx(graph, {"a": cpu(0), "b": cpu(1)}, cpu(0)))).splitlines()
    assert lines[-14] == "15 messages a micro-batch, 120 B (0F: stage 0, forward):"
    assert lines[-2].endswith("parts[11]  float32[2,1]")
    assert lines[-1] == "  ... and 3 more"


def test_columns_are_aligned_to_the_right():
    assert aligned_columns([("a", "bcd"), ("efg", "h")]) == ["  a  bcd", "efg    h"]
