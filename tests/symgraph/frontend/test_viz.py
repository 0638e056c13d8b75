"""The summary of a network against MXNet's, and its pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import symgraph as mx
from runtime import Options, plan
from symgraph.core.errors import ConfigError, GraphError, PlacementError
from symgraph.frontend.name import NameManager
from symgraph.frontend.viz import summary

# What MXNet 1.9.1 prints for `mlp` with data of (4, 5).
MXNET = """\
________________________________________________________________________________
Layer (type)                       Output Shape    Param # Previous Layer       
================================================================================
data(null)                         5               0       
________________________________________________________________________________
fc1(FullyConnected)                8               48      data                 
________________________________________________________________________________
relu1(Activation)                  8               0       fc1                  
________________________________________________________________________________
fc2(FullyConnected)                3               27      relu1                
________________________________________________________________________________
softmax(SoftmaxOutput)             3               0       fc2                  
================================================================================
Total params: 75
________________________________________________________________________________
"""  # noqa: W291
GROUPS = {"a": mx.cpu(0), "b": mx.cpu(1)}
SHAPE = {"data": (4, 5)}


def mlp() -> mx.Symbol:
    with NameManager():
        with mx.AttrScope(ctx_group="a"):
            x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
            x = mx.sym.Activation(x, act_type="relu", name="relu1")
        with mx.AttrScope(ctx_group="b"):
            x = mx.sym.FullyConnected(x, num_hidden=3, name="fc2")
            return mx.sym.SoftmaxOutput(x, name="softmax")


def language_model(steps: int) -> mx.Symbol:
    with NameManager():
        x = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=100, output_dim=20, name="embed")
        x, _ = mx.rnn.LSTMCell(30).unroll(steps, x, merge_outputs=True)
        x = mx.sym.Reshape(x, shape=(-1, 30))
        x = mx.sym.FullyConnected(x, num_hidden=100, name="decode")
        return mx.sym.SoftmaxOutput(x, name="softmax")


def test_a_summary_is_mxnets(capsys):
    mx.viz.print_summary(mlp(), SHAPE, line_length=80)
    printed = capsys.readouterr().out
    assert [line.rstrip() for line in printed.splitlines()] == [
        line.rstrip() for line in MXNET.splitlines()
    ]


@pytest.mark.parametrize("steps", [1, 20])
def test_shared_parameters_count_once(steps):
    """Case P8: the same number however far the network is unrolled."""
    text = summary(language_model(steps), {"data": (4, steps)})
    assert f"Total params: {100 * 20 + 4 * 30 * (20 + 30 + 2) + 100 * 30 + 100}\n" in text
    counted = [line for line in text.splitlines() if re.search(r"_i2h\(.* 2520 ", line)]
    assert len(counted) == 1


def test_a_summary_without_shapes_says_what_it_lacks():
    text = summary(mlp())
    assert "Total params: 11 and 3 inputs of unknown shape: pass shape\n" in text
    with pytest.raises(GraphError, match="shape: no input 'dat'; known: data, fc1_weight"):
        summary(mlp(), {"dat": (4, 5)})


def test_columns_cut_what_does_not_fit():
    lines = summary(mlp(), SHAPE, positions=[10, 20, 30, 60]).splitlines()
    assert lines[5] == "fc1(FullyC8         48        data".ljust(60)


# -- pictures ------------------------------------------------------------------------------------


def test_a_network_in_dot():
    made = mx.viz.plot_network(mlp(), "net", shape=SHAPE, dtype={"data": "float32"})
    text = made.source
    assert text.startswith('digraph "net" {\n  node [shape="box", style="filled"];\n')
    assert 'label="fc1\\nFullyConnected 8"' in text
    assert 'label="relu1\\nActivation relu"' in text
    assert "fc1_weight" not in text
    assert '  n0 -> n1 [label="5(float32)"];' in text
    assert text.count("->") == 5
    whole = mx.viz.plot_network(mlp(), hide_weights=False, node_attrs={"shape": "oval"}).source
    assert 'node [shape="oval"' in whole
    assert whole.count("->") == 9
    assert 'label="5' not in whole


def test_colours_are_devices_when_they_are_known():
    made = mx.viz.plot_network(mlp(), shape=SHAPE, group2ctx=GROUPS)
    assert made.devices == ("cpu(0)", "cpu(1)")
    place = {box.name: box.place for box in made.boxes}
    assert place == {
        "data": 0,
        "fc1": 0,
        "relu1": 0,
        "fc2": 1,
        "softmax": 1,
        "softmax_label": 1,
    }
    sent = [
        (made.boxes[a.source].name, made.boxes[a.target].name) for a in made.arrows if a.crosses
    ]
    assert sent == [("relu1", "fc2")]
    assert made.source.count("penwidth=3") == 1
    feeds = {n: mx.Feed(mx.TensorType(s)) for n, s in (("data", (4, 5)), ("softmax_label", (4,)))}
    options = Options(GROUPS, mx.cpu(0), tuple(GROUPS.values()))
    planned = mx.viz.plot_network(mlp(), plan=plan(mlp(), feeds, options, wrt=None))
    assert {box.name: box.place for box in planned.boxes} == place
    with pytest.raises(GraphError, match="group2ctx needs shape"):
        mx.viz.plot_network(mlp(), group2ctx=GROUPS)
    with pytest.raises(PlacementError, match="'b', which group2ctx does not map"):
        mx.viz.plot_network(mlp(), shape=SHAPE, group2ctx={"a": mx.cpu(0)})


def test_a_drawing_has_a_box_for_every_operator_below_what_it_reads():
    made = mx.viz.plot_network(language_model(3), shape={"data": (4, 3)}, group2ctx=None)
    root = ElementTree.fromstring(made.svg())
    space = "{http://www.w3.org/2000/svg}"
    titles = [g.find(f"{space}title").text for g in root.iter(f"{space}g")]
    assert titles == [box.label for box in made.boxes]
    tops = [float(g.find(f"{space}rect").get("y")) for g in root.iter(f"{space}g")]
    assert all(tops[a.source] < tops[a.target] for a in made.arrows)
    lefts = [float(g.find(f"{space}rect").get("x")) for g in root.iter(f"{space}g")]
    assert len(set(zip(lefts, tops, strict=True))) == len(made.boxes)
    paths = [p for p in root.iter(f"{space}path") if p.get("marker-end")]
    assert len(paths) == len(made.arrows)
    assert made._repr_svg_() == made.svg()


def along(path):
    """Points of a path of moves, lines and curves."""
    at = None
    for text in re.findall(r"[MLC]([^MLC]+)", path):
        numbers = [float(n) for n in text.split()]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        ends = [at, *points] if at else points
        if len(ends) == 2:  # a line is a curve, too
            ends = [ends[0], *ends, ends[1]]
        for step in range(33):
            t = step / 32
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            if len(ends) == 4:
                yield tuple(
                    sum(w * p[i] for w, p in zip(weights, ends, strict=True)) for i in (0, 1)
                )
        at = points[-1]


def test_arrows_that_pass_layers_cross_no_box():
    """Those of residual connections ran through the boxes of the layers between."""
    x = sums = mx.sym.Variable("data")
    for number in range(4):
        y = mx.sym.FullyConnected(x, num_hidden=8, name=f"fc{number}")
        z = mx.sym.FullyConnected(x, num_hidden=8, name=f"side{number}")
        x, sums = x + y + z, sums + y
    root = ElementTree.fromstring(mx.viz.plot_network(mx.sym.Group([x, sums])).svg())
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        [float(g.find(f"{space}rect").get(key)) for key in ("x", "y", "width", "height")]
        for g in root.iter(f"{space}g")
    ]
    paths = [p.get("d") for p in root.iter(f"{space}path") if p.get("marker-end")]
    for path in paths:
        for across, down in along(path):
            for left, top, wide, high in boxes:
                inside = left < across < left + wide and top + 0.5 < down < top + high - 0.5
                assert not inside, path
            assert across < float(root.get("width"))


def test_pictures_are_written(tmp_path, monkeypatch):
    path = mx.viz.plot_network(mlp()).render(str(tmp_path / "net"))
    assert path == str(tmp_path / "net.svg")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    made = mx.viz.plot_network(mlp(), save_format="dot")
    made.render(str(tmp_path / "net"))
    assert (tmp_path / "net.dot").read_text() == made.source
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="save_format='pdf' needs Graphviz's program dot"):
        mx.viz.plot_network(mlp(), save_format="pdf").render(str(tmp_path / "net"))
