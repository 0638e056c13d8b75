"""Sharding as a rewrite: the graph in pieces computes what the whole graph computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgraph as sg
from examples.lstm_lm import build
from symgraph.core.errors import GraphError
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.shard import shard
from symgraph.passes.shards import Shard, join, place_of
from symgraph.passes.testing import check_grads

RNG = np.random.default_rng(23)
ROWS, INPUTS, CLASSES = 6, 4, 7
FED = ("x", "label")


def var(name: str, **more: Any) -> sg.Symbol:
    return sym.Variable(name, **more)


def lowered(symbol: sg.Symbol, shapes: dict[str, Any]) -> Any:
    kinds = dict.fromkeys(symbol.list_arguments(), "float64")
    return lower(symbol, shapes, kinds)


def values_of(graph: Any, classes: int = CLASSES) -> dict[str, np.ndarray]:
    """Random values of all variables; ids for what is called a label or ids."""
    return {
        n.name: RNG.integers(0, classes, n.types[0].shape).astype("float64")
        if n.name in ("label", "ids")
        else RNG.standard_normal(n.types[0].shape)
        for n in graph.variables
    }


def cut_values(values: dict[str, np.ndarray], shards: dict[str, Shard]) -> dict[str, np.ndarray]:
    return values | {name: s.of(values[s.parameter]) for name, s in shards.items()}


def check_equal(
    symbol: sg.Symbol,
    shapes: dict[str, Any],
    wrt: list[str],
    *,
    rtol: float = 1e-12,
    fed: tuple[str, ...] = FED,
) -> Any:
    """Outputs and gradients of the rewritten graph are those of the graph; the rewritten one."""
    graph = lowered(symbol, shapes)
    values = values_of(graph)
    made = shard(graph, symbol.list_outputs(), fed)
    assert made.names == tuple(symbol.list_outputs())
    results = []
    for this, names in ((graph, wrt), (made.graph, made.variables(wrt))):
        both = gradients(this, names)
        types = {h: both.graph[h].types[0] for h in both.heads.values()}
        heads = {h: np.cos(np.arange(t.size)).reshape(t.shape) for h, t in types.items()}
        results.append((both, evaluate(both.graph, cut_values(values, made.shards) | heads)))
    (whole, wanted), (split, got) = results
    assert whole.heads.keys() == split.heads.keys()
    outputs = len(graph.outputs)
    for a, b in zip(got[:outputs], wanted[:outputs], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    joined = join(made.shards, dict(zip(split.grads, got[outputs:], strict=True)))
    assert set(joined) == set(wrt)
    for name, want in zip(whole.grads, wanted[outputs:], strict=True):
        np.testing.assert_allclose(joined[name], want, rtol=rtol, atol=rtol, err_msg=name)
    return made


def label_case(parts: str | None, **head: Any) -> sg.Symbol:
    """Scores, their softmax loss and its figures, all in one scope."""
    with AttrScope(**({"shard": parts} if parts else {})):
        label = var("label")
        scores = sym.FullyConnected(var("x"), num_hidden=CLASSES, name="decode")
        loss = sym.SoftmaxOutput(scores, label, name="softmax", **head)
        ignore = {k: head[k] for k in ("use_ignore", "ignore_label") if k in head}
        return sym.Group([loss, sym.nll_stats(loss, label, name="nll", **ignore)])


SHAPES = {"x": (ROWS, INPUTS), "label": (ROWS,)}
WRT = ["x", "decode_weight", "decode_bias"]


@pytest.mark.parametrize("parts", ["2", "3", "5:2", "7"])
@pytest.mark.parametrize(
    "head",
    [
        {},
        {"normalization": "batch", "grad_scale": 3.0},
        {"smooth_alpha": 0.1},
        {"normalization": "valid", "use_ignore": True, "ignore_label": 2},
    ],
)
def test_a_decoder_in_shards_is_the_decoder(parts, head):
    made = check_equal(label_case(parts, **head), SHAPES, WRT)
    assert {s.parameter for s in made.shards.values()} == {"decode_weight", "decode_bias"}


def test_names_shards_and_places():
    symbol = label_case("5:2")
    made = shard(lowered(symbol, SHAPES), symbol.list_outputs(), FED)
    assert dict(made.shards) == {
        "decode_weight[0:5]": Shard("decode_weight", 0, 5, 7),
        "decode_weight[5:7]": Shard("decode_weight", 5, 7, 7),
        "decode_bias[0:5]": Shard("decode_bias", 0, 5, 7),
        "decode_bias[5:7]": Shard("decode_bias", 5, 7, 7),
    }
    assert made.variables(["x", "decode_bias"]) == ["x", "decode_bias[0:5]", "decode_bias[5:7]"]
    place = {n.name: place_of(n) for n in made.graph if place_of(n)}
    assert place["softmax[0:5]"] == place["decode_weight[0:5]"] == (0, 2)
    assert place["softmax[5:7]"] == place["nll[5:7]"] == (1, 2)
    assert "softmax" not in place
    assert made.graph["decode[5:7]"].types[0].shape == (ROWS, 2)


def test_the_row_is_nowhere_whole_unless_it_is_asked_for():
    symbol = label_case("2")
    graph = lowered(symbol, SHAPES)
    pieces = shard(graph, symbol.list_outputs(), FED, whole=False)
    assert pieces.names == (
        "softmax_output[0:4]",
        "softmax_output[4:7]",
        "nll_nll",
        "nll_count",
    )
    both = gradients(pieces.graph, pieces.variables(WRT))
    assert not both.heads
    widths = {t.shape[-1] for n in both.graph for t in n.types if t.shape[:1] == (ROWS,)}
    assert CLASSES not in widths
    asked = shard(graph, symbol.list_outputs(), FED).graph
    assert asked["softmax"].types[0].shape == (ROWS, CLASSES)


def test_softmax_cross_entropy_and_its_gradient():
    def make(parts):
        with AttrScope(shard=parts):
            scores = sym.FullyConnected(var("x"), num_hidden=CLASSES, name="decode")
            return sym.softmax_cross_entropy(scores, var("label"), name="loss")

    check_equal(make("3"), SHAPES, WRT)
    symbol = make("2")
    graph = lowered(symbol, SHAPES)
    values = values_of(graph)
    made = shard(graph, symbol.list_outputs(), FED)
    floats = ["x", *made.shards]
    check_grads(made.graph, cut_values(values, made.shards), floats)


@pytest.mark.parametrize("no_bias", [False, True])
@pytest.mark.parametrize("flatten", [False, True])
def test_readers_that_cannot_be_split_read_the_pieces_joined(no_bias, flatten):
    with AttrScope(shard="2"):
        scores = sym.FullyConnected(
            var("x"), num_hidden=CLASSES, no_bias=no_bias, flatten=flatten, name="decode"
        )
    out = sym.Group([sym.tanh(scores), scores])
    wrt = ["x", "decode_weight", *(["decode_bias"] if not no_bias else [])]
    made = check_equal(out, {"x": (ROWS, 2, INPUTS)}, wrt)
    assert "decode" in made.graph.nodes


def test_a_loss_outside_of_the_scope_and_another_split_read_the_pieces_joined():
    for parts in (None, "3"):
        with AttrScope(shard="2"):
            scores = sym.FullyConnected(var("x"), num_hidden=CLASSES, name="decode")
        with AttrScope(**({"shard": parts} if parts else {})):
            loss = sym.SoftmaxOutput(scores, var("label"), name="softmax")
        made = check_equal(loss, SHAPES, WRT)
        assert made.graph["softmax"].op == "SoftmaxOutput"


def test_multi_output_and_sequences():
    with AttrScope(shard="2"):
        scores = sym.FullyConnected(var("x"), num_hidden=CLASSES, flatten=False, name="decode")
        kept = sym.SoftmaxOutput(scores, var("label"), preserve_shape=True, name="softmax")
        turned = sym.transpose(scores, axes=(0, 2, 1))
        multi = sym.SoftmaxOutput(turned, var("ids"), multi_output=True, name="multi")
    shapes = {"x": (3, 2, INPUTS), "label": (3, 2), "ids": (3, 2)}
    fed = ("x", "label", "ids")
    made = check_equal(sym.Group([kept, multi]), shapes, WRT, fed=fed)
    assert made.graph["multi"].op == "SoftmaxOutput"
    assert made.graph["softmax"].op == "_shard_join"


def test_out_grad_multiplies_the_gradient_that_comes_back():
    with AttrScope(shard="2"):
        scores = sym.FullyConnected(var("x"), num_hidden=CLASSES, name="decode")
        loss = sym.SoftmaxOutput(scores, var("label"), out_grad=True, name="softmax")
    made = check_equal(sym.sin(loss), SHAPES, WRT)
    assert made.graph["softmax"].op == "_shard_join"


@pytest.mark.parametrize("parts", ["2", "4:3"])
def test_embedding(parts):
    with AttrScope(shard=parts):
        out = sym.Embedding(var("ids"), input_dim=CLASSES, output_dim=3, name="embed")
    made = check_equal(out, {"ids": (ROWS, 2)}, ["embed_weight"], fed=("ids",))
    assert [n.op for n in made.graph if n.name.startswith("embed[")] == ["Embedding"] * 2


@pytest.mark.parametrize("tied_part", ["2", None])
def test_a_tied_weight_is_split_once_and_joined_for_readers_of_the_whole(tied_part):
    weight = var("tied")
    with AttrScope(**({"shard": tied_part} if tied_part else {})):
        x = sym.Embedding(var("ids"), weight=weight, input_dim=CLASSES, output_dim=3, name="embed")
    with AttrScope(shard="2"):
        scores = sym.FullyConnected(x, weight=weight, num_hidden=CLASSES, name="decode")
        out = sym.SoftmaxOutput(scores, var("label"), name="softmax")
    shapes, fed = {"ids": (ROWS,), "label": (ROWS,)}, ("ids", "label")
    made = check_equal(out, shapes, ["tied", "decode_bias"], fed=fed)
    assert len([s for s in made.shards.values() if s.parameter == "tied"]) == 2
    assert ("tied" in made.graph.nodes) == (tied_part is None)


def test_weights_that_are_computed_or_fed_are_sliced():
    with AttrScope(shard="2"):
        out = sym.FullyConnected(
            var("x"), weight=sym.tanh(var("w")), bias=var("b"), num_hidden=CLASSES, name="decode"
        )
    made = check_equal(out, {"x": (ROWS, INPUTS)}, ["x", "w", "b"], fed=("x", "b"))
    assert not made.shards
    assert made.graph["b[rows 0:4]"].op == "slice_axis"


def test_nothing_is_done_without_the_attribute_or_with_one_piece():
    for parts in (None, "1"):
        symbol = label_case(parts)
        graph = lowered(symbol, SHAPES)
        made = shard(graph, symbol.list_outputs(), FED, whole=False)
        assert made.graph is graph
        assert made.names == tuple(symbol.list_outputs())
        assert made.variables(WRT) == WRT


def test_as_many_pieces_as_the_group_has_devices():
    with AttrScope(ctx_group="decode"):
        symbol = label_case("devices")
    graph = lowered(symbol, SHAPES)
    for devices, count in (({}, 0), ({"decode": 1}, 0), ({"decode": 3, "other": 2}, 3)):
        made = shard(graph, symbol.list_outputs(), FED, devices=devices)
        assert len(made.variables(["decode_weight"])) == max(1, count)
        assert len(made.shards) == 2 * count


@pytest.mark.parametrize("parts", ["", "0", "two", "2:0", "-1", "1:2:"])
def test_an_attribute_that_says_nothing(parts):
    with AttrScope(shard=parts):
        symbol = sym.FullyConnected(var("x"), num_hidden=CLASSES, name="decode")
    with pytest.raises(GraphError, match=f"'decode' has shard='{parts}'; write a number of pieces"):
        shard(lowered(symbol, {"x": (2, 3)}), symbol.list_outputs(), FED)


def test_mistakes():
    with AttrScope(shard="8"):
        symbol = sym.FullyConnected(var("x"), num_hidden=CLASSES, name="decode")
    with pytest.raises(GraphError, match="'decode' has shard='8', but only 7 rows"):
        shard(lowered(symbol, {"x": (2, 3)}), symbol.list_outputs(), FED)
    with AttrScope(shard="2"):
        symbol = sym.tanh(var("x"), name="gate")
    with pytest.raises(GraphError, match=r"'gate' is marked with shard='2', but no operator"):
        shard(lowered(symbol, {"x": (2, 3)}), symbol.list_outputs(), FED)
    weight = var("w")
    with AttrScope(shard="2"):
        a = sym.FullyConnected(var("x"), weight=weight, num_hidden=CLASSES, name="a")
    with AttrScope(shard="3"):
        b = sym.FullyConnected(var("y"), weight=weight, num_hidden=CLASSES, name="b")
    symbol = sym.Group([a, b])
    with pytest.raises(GraphError, match="'w' is split into 2 for 'a' and into 3 for 'b'"):
        shard(lowered(symbol, {"x": (2, 3), "y": (2, 3)}), symbol.list_outputs(), ("x", "y"))
    with AttrScope(shard="2"):
        a = sym.FullyConnected(var("x"), num_hidden=4, name="a")
    symbol = sym.Group([sym.tanh(var("x2"), name="a[0:2]"), a])
    with pytest.raises(GraphError, match=r"node name 'a\[0:2\]' is reserved for a shard"):
        shard(lowered(symbol, {"x": (2, 3), "x2": (2,)}), symbol.list_outputs(), ("x", "x2"))


def test_the_attribute_goes_to_the_parameters_and_through_json():
    symbol = label_case("2")
    assert symbol["softmax_output"].attr("shard") == "2"
    assert symbol.attr_dict()["decode_weight"]["__shard__"] == "2"
    again = sym.load_json(symbol.tojson())
    graphs = [lowered(s, SHAPES) for s in (symbol, again)]
    made = [shard(g, symbol.list_outputs(), FED).graph.digest for g in graphs]
    assert made[0] == made[1]


@pytest.mark.parametrize(("parts", "limit"), [("1", 7.36), ("54:46", 7.0)])
def test_case_p1_a_decoder_in_shards_balances_the_language_model(parts, limit):
    """P1: multiply-adds a token of the 8-layer network on 2 devices, without shards 7.36M at best.

    The first 6 (in shards: 4) layers are on one device, the others on the other; the decoder is on
    the second, or in shards on both.
    """
    model = build(1, 1, vocab=10_000, layers=8, hidden=400, embed=200, decode_shards=parts)
    shapes = {n: f.type.shape for n, f in model.feeds.items()}
    graph = lower(model.symbol, shapes, {n: f.type.dtype for n, f in model.feeds.items()})
    made = shard(graph, model.symbol.list_outputs(), model.feeds).graph
    first = 6 if parts == "1" else 4
    load = [0.0, 0.0]
    for node in made:
        if node.op == "FullyConnected":
            index, _ = place_of(node) or (1, 1)
            layer = node.name.startswith("layer")
            rank = int(int(node.name[5]) >= first) if layer else index
            ins = made.types_of(node.inputs)
            load[rank] += find(node.op).flops(node.attrs, ins, node.types) / 2 / 1e6
    assert sum(load) == pytest.approx(13.92)
    assert max(load) <= limit
    assert max(load) == pytest.approx(7.36 if parts == "1" else 6.96)
