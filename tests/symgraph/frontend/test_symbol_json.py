"""Attributes of symbols, and symbols as text: JSON, pickle, files of MXNet 1.x, listings."""

from __future__ import annotations

import copy
import json
import pickle
import random

import pytest

import symgraph as sg
from symgraph.core.errors import ConfigError, GraphError
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


# -- attributes --------------------------------------------------------------------------------


def test_a_variables_own_attribute_wins_over_the_scope():
    with sg.AttrScope(group="4", data="great"):
        data = sym.Variable("data", attr={"group": "1", "force_mirroring": "True"}, lr_mult=1)
        other = sym.Variable("other")
    assert (data.attr("group"), data.attr("data"), other.attr("group")) == ("1", "great", "4")
    assert data.attr("lr_mult") == data.attr("__lr_mult__") == "1"
    assert data.attr("force_mirroring") == "True"
    assert data.attr("mood") is None


def test_nested_scopes_add_and_the_inner_one_wins():
    with sg.AttrScope(__group__="4", __data__="great"):
        outer = sym.tanh(sym.Variable("data"), name="outer")
        with sg.AttrScope(__init_bias__="0.0", __group__="5"):
            inner = sym.FullyConnected(outer, num_hidden=10, name="fc")
    after = sym.tanh(inner)
    assert outer.list_attr() == {"__group__": "4", "__data__": "great"}
    assert inner.list_attr() == {
        "num_hidden": "10",
        "__group__": "5",
        "__data__": "great",
        "__init_bias__": "0.0",
    }
    assert inner.attr("num_hidden") == "10"
    assert after.list_attr() == {}


def test_made_variables_inherit_hidden_attributes():
    with sg.AttrScope(ctx_group="stage1"):
        net = sym.FullyConnected(
            sym.Variable("data", attr={"mood": "angry"}),
            num_hidden=1,
            name="fc",
            attr={"__mood__": "so so"},
            __layout__="NC",
        )
    group = {"__ctx_group__": "stage1", "ctx_group": "stage1"}
    hidden = {**group, "__mood__": "so so", "__layout__": "NC"}
    assert net.attr_dict() == {
        "data": {**group, "mood": "angry"},
        "fc_weight": hidden,
        "fc_bias": hidden,
        "fc": {"num_hidden": "1", **hidden},
    }


def test_attr_of_a_group_asks_for_one():
    with pytest.raises(GraphError, match="attr takes one output"):
        sym.Group([sym.Variable("a"), sym.Variable("b")]).attr("x")


# -- JSON and pickle ---------------------------------------------------------------------------


def annotated() -> sg.Symbol:
    data = sym.Variable(
        "data", lr_mult=0.5, attr={"mood": "angry", "x_ctx_group": "a"}, shape=(0, 8)
    )
    with sg.AttrScope(ctx_group="stage1", __note__="a"):
        parts = sym.SliceChannel(data, num_outputs=2, axis=1, name="cut")
        both = sym.Concat(parts[1], parts[0], sym.sum(parts[0], axis=(1,), keepdims=True), dim=1)
    with sg.AttrScope(ctx_group="stage2"):
        both = sym.BatchNorm(sym.Dropout(both, p=0.25) * 0.1, name="bn")
        net = sym.FullyConnected(both, num_hidden=3, name="fc", attr={"lr_mult": "2"})
        loss = sym.SoftmaxOutput(net, use_ignore=True, normalization="valid", name="softmax")
    return sym.Group([loss, sym.BlockGrad(parts[1], name="last")])


@pytest.mark.parametrize(
    "copy",
    [lambda s: sym.load_json(s.tojson()), lambda s: pickle.loads(pickle.dumps(s))],
    ids=["json", "pickle"],
)
def test_a_round_trip_keeps_everything(copy):
    net = annotated()
    again = copy(net)
    assert again.tojson() == net.tojson()
    assert again.attr_dict() == net.attr_dict()
    assert again.list_outputs() == net.list_outputs()
    assert again.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert again.get_internals()["data"].attr("x_ctx_group") == "a"
    assert again["softmax_output"].attr("ctx_group") == "stage2"
    assert again.get_internals()["data"].attr("lr_mult") == "0.5"
    assert again.get_internals()["fc_weight"].attr("lr_mult") == "2"
    shapes = {"data": (4, 8)}
    assert lower(again, shapes).digest == lower(net, shapes).digest


def test_the_cut_of_a_loaded_symbol_is_the_same():
    """G15: placement, messages and order of nodes to the letter."""
    net = annotated()
    groups = {"stage1": sg.cpu(0), "stage2": sg.cpu(1)}
    texts = set()
    for again in (net, sym.load_json(net.tojson()), pickle.loads(pickle.dumps(net))):
        with again.simple_bind(sg.cpu(), group2ctx=groups, data=(4, 8)) as executor:
            texts.add(executor.debug_str())
    assert len(texts) == 1
    assert "send" in texts.pop()


def test_save_and_load(tmp_path):
    net, path = annotated(), str(tmp_path / "net-symbol.json")
    net.save(path)
    assert sym.load(path).tojson() == net.tojson()
    with pytest.raises(ConfigError, match=r"nothing\.json: no such symbol file$"):
        sym.load(str(tmp_path / "nothing.json"))


MXNET_FILE = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {
            "op": "null",
            "name": "fc1_weight",
            "attrs": {"num_hidden": "4", "__lr_mult__": "2.0"},
            "inputs": [],
        },
        {"op": "null", "name": "fc1_bias", "attrs": {"num_hidden": "4"}, "inputs": []},
        {
            "op": "FullyConnected",
            "name": "fc1",
            "attrs": {"num_hidden": "4", "no_bias": "False", "__ctx_group__": "dev1"},
            "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]],
        },
        {
            "op": "SliceChannel",
            "name": "cut",
            "attrs": {"num_outputs": "2", "squeeze_axis": "false"},
            "inputs": [[3, 0, 0]],
        },
        {"op": "_Plus", "name": "plus", "inputs": [[4, 0, 0], [4, 1, 0]]},
        {"op": "null", "name": "softmax_label", "inputs": []},
        {
            "op": "SoftmaxOutput",
            "name": "softmax",
            "attrs": {"grad_scale": "1"},
            "inputs": [[5, 0, 0], [6, 0, 0]],
        },
    ],
    "arg_nodes": [0, 1, 2, 6],
    "node_row_ptr": [0, 1, 2, 3, 4, 6, 7, 8, 9],
    "heads": [[7, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10500]},
}


def test_a_symbol_file_of_mxnet_1_loads():
    net = sym.load_json(json.dumps(MXNET_FILE))
    assert net.list_arguments() == ["data", "fc1_weight", "fc1_bias", "softmax_label"]
    assert net.list_outputs() == ["softmax_output"]
    internals = net.get_internals()
    assert internals["fc1_output"].attr("ctx_group") == "dev1"
    assert internals["fc1_weight"].attr("lr_mult") == "2.0"
    assert net.infer_shape(data=(5, 3))[0] == [(5, 3), (4, 3), (4,), (5,)]


def test_older_spellings_of_attributes_load():
    text = json.dumps(MXNET_FILE).replace("__ctx_group__", "ctx_group").replace('"attrs"', '"attr"')
    net = sym.load_json(text)
    assert net.get_internals()["fc1_output"].attr("ctx_group") == "dev1"
    assert net.infer_shape(data=(5, 3))[1] == [(5, 2)]


def test_long_integers_of_python_2_load():
    """As str((3L, 3L)) wrote them; MXNet reads over the letter."""
    data = sym.Variable("data")
    net = sym.Convolution(data, kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
    text = net.tojson().replace('"(3, 3)"', '"(3L, 3L)"').replace('"4"', '"4L"')
    assert text != net.tojson()
    assert sym.load_json(text).tojson() == net.tojson()


def test_an_unsupported_operator_is_named_with_its_node():
    text = json.dumps(MXNET_FILE).replace('"SliceChannel"', '"SliceChanel"')
    with pytest.raises(
        GraphError, match="node 'cut' is a 'SliceChanel', which is not supported; did you mean "
    ):
        sym.load_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": [{}], "heads": []}', "[" * 200_000])
def test_text_that_is_no_symbol(text):
    with pytest.raises(GraphError, match="not a symbol in JSON"):
        sym.load_json(text)


def places(value, path=()):
    """The paths of all values inside lists and tables."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


def test_damaged_files_are_a_graph_error_or_a_symbol():
    """Some mutations ended in an AttributeError, TypeError, RecursionError or MemoryError."""
    rng = random.Random(0)
    strange = [
        None,
        True,
        -1,
        1.5,
        "",
        "x",
        "-" * 100_000 + "1",
        "(" * 500,
        "1e999",
        [],
        [0, 0],
        {},
    ]
    errors = 0
    for _ in range(300):
        layout = copy.deepcopy(MXNET_FILE)
        *path, last = rng.choice(list(places(layout)))
        parent = layout
        for key in path:
            parent = parent[key]
        parent[last] = rng.choice(strange)
        try:
            sym.load_json(json.dumps(layout)).tojson()
        except GraphError:
            errors += 1
    assert 50 < errors < 300


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("nodes", 0, "name"), 3, "a node's name must be a string, not 3"),
        (("heads",), [[False, 0, 0]], "'heads' reads node False, but"),
        (
            ("nodes", 3, "attrs"),
            {"num_args": "100000000"},
            "'c': num_args='100000000' is not a valid int of 1 to",
        ),
        (("nodes", 1, "name"), "x", "two variables are named 'x'; use one variable in both places"),
    ],
)
def test_files_that_were_accepted(path, value, words):
    """They failed later, or (num_args) did not end."""
    x, y = sym.Variable("x"), sym.Variable("y")
    layout = json.loads(sym.Concat(x, sym.exp(y, name="e"), dim=1, name="c").tojson())
    parent = layout
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(GraphError, match=words):
        sym.load_json(json.dumps(layout))


def test_files_that_are_no_symbols(tmp_path):
    """These were the errors of Python's own reader."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 9)
    with pytest.raises(GraphError, match=r"binary:1: not a symbol file: not UTF-8 text at byte 0$"):
        sym.load(str(tmp_path / "binary"))
    (tmp_path / "cut.json").write_text('{"nodes": [')
    with pytest.raises(GraphError, match=r"cut\.json: line \d+: not a symbol in JSON: .*Expecting"):
        sym.load(str(tmp_path / "cut.json"))
    with pytest.raises(ConfigError, match=r"cannot read this symbol file: Is a directory"):
        sym.load(str(tmp_path))


@pytest.mark.parametrize(
    ("node", "port", "words"),
    [(7, 0, "'y' reads node 7, but 1 nodes come"), (-1, 0, "node -1"), (0, 1, "'x', which has 1")],
)
def test_inputs_that_are_not_there(node, port, words):
    """Node -1 was the last one, and output 1 of a variable had no shape."""
    layout = json.loads(sym.exp(sym.Variable("x"), name="y").tojson())
    layout["nodes"][1]["inputs"] = [[node, port, 0]]
    with pytest.raises(GraphError, match=words):
        sym.load_json(json.dumps(layout))


def test_debug_str_lists_nodes_with_inputs_and_attributes():
    net = sym.FullyConnected(sym.Variable("data", lr_mult=2), num_hidden=1000, name="fc1")
    assert net.debug_str().splitlines() == [
        "outputs: fc1_output",
        "variable data  [lr_mult=2]",
        "variable fc1_weight",
        "variable fc1_bias",
        "FullyConnected fc1(data, fc1_weight, fc1_bias)  [num_hidden=1000]",
    ]
