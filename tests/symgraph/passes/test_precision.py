"""The rewrite for mixed precision: what is stored in 16 bits, and what stays."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import ConfigError, DTypeError, RunError
from symgraph.core.reference import evaluate
from symgraph.core.registry import FOLLOWS, FULL, INSIDE, LOW, OPS
from symgraph.core.tags import lookup
from symgraph.core.types import HALVES, Value, dtype_name
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.loss_scale import FIRST, LARGEST, PATIENCE, LossScale
from symgraph.passes.precision import is_parameter_cast, reduced

NEAR = {"float16": 4e-3, "bfloat16": 3e-2}


def types(graph):
    return {n.name: n.types[0].dtype for n in graph}


def language_model(steps=3):
    with AttrScope(ctx_group="embed"):
        words = sym.Embedding(sym.Variable("data"), input_dim=7, output_dim=4, name="embed")
        x = list(sym.SliceChannel(words, num_outputs=steps, axis=1, squeeze_axis=True))
    with AttrScope(ctx_group="layer"):
        x, (_, state) = sg.rnn.LSTMCell(4, prefix="lstm_").unroll(steps, x, merge_outputs=False)
    with AttrScope(ctx_group="decode"):
        rows = sym.Reshape(sym.stack(*x, axis=1), shape=(-1, 4))
        scores = sym.FullyConnected(rows, num_hidden=7, name="decode")
        label = sym.Reshape(sym.Variable("label"), shape=(-1,))
        loss = sym.SoftmaxOutput(scores, label, normalization="batch", name="softmax")
        nll = sym.nll_stats(loss, label, name="nll")
    shapes = {"data": (2, steps), "label": (2, steps)}
    ids = dict.fromkeys(shapes, "int32")
    return lower(sym.Group([loss, nll, sym.BlockGrad(state, name="last")]), shapes, ids)


@pytest.mark.parametrize("low", HALVES)
def test_a_language_model(low):
    before = language_model()
    graph = reduced(before, low, ["data", "label"])
    found = types(graph)
    assert all(n.types[0].dtype != low for n in graph.variables)
    assert (found["embed"], found[f"embed[{low}]"], found["decode"]) == ("float32", low, low)
    assert {
        found[n.name]
        for n in graph
        if n.op in ("SliceChannel", "stack", "Reshape") and "float" in found[n.name]
    } == {low}
    assert found["softmax"] == "float32"
    gates = [n for n in graph if n.op == "_lstm_gates"]
    assert {tuple(t.dtype for t in n.types) for n in gates} == {(low, "float32", low)}
    assert graph.types_of(graph.outputs) == before.types_of(before.outputs)


def test_a_parameter_is_cast_once_and_stands_where_it_is():
    graph = reduced(language_model(), "float16", ["data", "label"])
    casts = [n for n in graph if is_parameter_cast(graph, n.name)]
    read = [n.inputs[0].node for n in casts]
    assert sorted(read) == sorted(
        f"{layer}_{kind}"
        for layer in ("lstm_i2h", "lstm_h2h", "decode")
        for kind in ("weight", "bias")
    )
    for cast in casts:
        tags = graph[cast.inputs[0].node].tags
        assert lookup(cast.tags, "ctx_group") == lookup(tags, "ctx_group")
        assert lookup(cast.tags, "time_step") is None


def test_what_is_sent_is_cast_before():
    graph = reduced(language_model(), "float16", ["data", "label"])
    assert lookup(graph["embed[float16]"].tags, "ctx_group") == "embed"
    assert lookup(graph["decode[float32]"].tags, "ctx_group") == "decode"


@pytest.mark.parametrize("low", HALVES)
def test_values_and_gradients_are_near_those_of_float32(low):
    rng = np.random.default_rng(0)
    before = language_model()
    feeds = {
        n.name: rng.integers(0, 7, n.types[0].shape).astype("int32")
        if n.types[0].dtype == "int32"
        else rng.standard_normal(n.types[0].shape).astype("float32") / 2
        for n in before.variables
    }
    wrt = [n.name for n in before.variables if n.types[0].dtype == "float32"]
    full = gradients(before, wrt, heads=False)
    both = gradients(reduced(before, low, ["data", "label"]), wrt, heads=False)
    assert {both.graph.type_of(v).dtype for v in both.grads.values()} == {"float32"}
    for got, want in zip(evaluate(both.graph, feeds), evaluate(full.graph, feeds), strict=True):
        np.testing.assert_allclose(got, want, NEAR[low], NEAR[low])


def test_float32_is_the_graph_itself():
    graph = language_model()
    assert reduced(graph, "float32", ["data"]) is graph


def one_layer(made, shapes, fed=("data",)):
    """The types of the nodes of a product, an operator behind it, and a sum."""
    graph = lower(sym.Group([sym.sum(made, name="sum")]), shapes)
    return reduced(graph, "float16", [*fed]), types(reduced(graph, "float16", [*fed]))


def product():
    return sym.FullyConnected(sym.Variable("data"), num_hidden=6, no_bias=True, name="fc")


def test_what_follows_is_low_and_takes_parameters_along():
    graph, found = one_layer(
        sym.broadcast_add(
            sym.tanh(product(), name="tanh"), sym.Variable("b", shape=(1, 6)), name="add"
        ),
        {"data": (2, 3)},
    )
    assert (found["tanh"], found["add"], found["b[float16]"]) == ("float16",) * 3
    assert (found["add[float32]"], found["sum"]) == ("float32", "float32")
    assert graph["sum"].inputs == (Value("add[float32]"),)


def test_what_follows_two_types_takes_the_wider():
    _, found = one_layer(
        sym.elemwise_add(product(), sym.Variable("mask", shape=(2, 6)), name="add"),
        {"data": (2, 3)},
        ["data", "mask"],
    )
    assert (found["fc"], found["fc[float32]"], found["add"]) == ("float16", "float32", "float32")


def test_norms_keep_their_parameters_and_give_the_low_type():
    for norm in (sym.BatchNorm, sym.LayerNorm):
        graph, found = one_layer(norm(product(), name="norm"), {"data": (2, 3)})
        (total,) = graph["sum"].inputs
        (last,) = graph[total.node].inputs  # what is cast back for the sum
        assert graph.type_of(last).dtype == "float16"
        assert {n.types[0].dtype for n in graph.variables} == {"float32"}
        assert not any(
            name.startswith(("norm_gamma[", "norm_moving")) and kind == "float16"
            for name, kind in found.items()
        )


def test_ids_and_lengths_are_never_cast():
    """float16 has no odd numbers above 2048, bfloat16 none above 256."""
    index = sym.Variable("index")
    for made in (sym.pick(product(), index), sym.take(product(), index)):
        graph, found = one_layer(made, {"data": (2, 3), "index": (2,)}, ["data", "index"])
        assert "index[float16]" not in found
        assert "fc" in {v.node for n in graph if n.op in ("pick", "take") for v in n.inputs}


def test_casts_of_the_user_stay():
    _, found = one_layer(sym.Cast(product(), dtype="float32", name="own"), {"data": (2, 3)})
    assert (found["fc"], found["own"]) == ("float16", "float32")
    assert "own[float16]" not in found


def test_float64_is_left_alone():
    graph = lower(sym.sum(product()), {"data": (2, 3)}, {"data": "float64", "fc_weight": "float64"})
    assert types(reduced(graph, "float16", ["data"])) == types(graph)


def test_what_operators_say():
    for op in OPS.values():
        assert op.precision in (LOW, INSIDE, FULL, FOLLOWS), op.name
        if not callable(op.inputs):
            assert set(op.full_inputs) <= set(op.inputs), op.name


# -- dtypes ----------------------------------------------------------------------------------------


def test_bfloat16_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(DTypeError, match="bfloat16 needs the package ml_dtypes"):
        dtype_name("bfloat16")


def test_operators_compute_halves_in_float32():
    """300 * 300 is beyond float16, 1 / 300 of it is not; a sum of 4096 ones would stop at 2048."""
    x = np.full((4096, 1), 300, "float16")
    ones = np.ones((1, 4096), "float16")
    graph = lower(
        sym.dot(sym.Variable("x"), sym.Variable("y")),
        {"x": (1, 4096), "y": (4096, 1)},
        {"x": "float16", "y": "float16"},
    )
    (found,) = evaluate(graph, {"x": ones / 300, "y": x})
    assert found.dtype == "float16"
    assert found == pytest.approx(4096, rel=1e-3)


# -- the loss scale --------------------------------------------------------------------------------


def test_a_dynamic_scale_goes_down_at_once_and_up_after_many_good_steps():
    scale = LossScale.of("float16", "auto")
    assert scale == LossScale(FIRST, dynamic=True)
    scale = scale.after(False).after(False)
    assert scale.value == FIRST / 4
    for _ in range(PATIENCE - 1):
        scale = scale.after(True)
    assert (scale.value, scale.good) == (FIRST / 4, PATIENCE - 1)
    assert scale.after(False) == LossScale(FIRST / 8, dynamic=True)
    assert scale.after(True) == LossScale(FIRST / 2, dynamic=True)
    last = LossScale(LARGEST, dynamic=True, good=PATIENCE - 1)
    assert last.after(True).value == LARGEST


def test_fixed_scales():
    assert LossScale.of("bfloat16", "auto") == LossScale.of("float32", "auto") == LossScale(1.0)
    assert not LossScale.of("bfloat16", "auto").scales
    fixed = LossScale.of("float16", 128)
    assert fixed.scales
    assert fixed.after(False) == fixed.after(True) == fixed


def test_a_dynamic_scale_goes_on_from_where_one_was():
    first, later = LossScale.of("float16", "auto"), LossScale(2.0**10, dynamic=True, good=7)
    assert first.resumed(later.progress) == later
    for fixed in (LossScale(), LossScale(128.0)):
        assert first.resumed(fixed.progress) == first
        assert fixed.resumed(later.progress) == fixed


def test_a_scale_that_nothing_is_gained_by():
    with pytest.raises(RunError, match="come down to 1: training has diverged"):
        LossScale(1.0, dynamic=True).after(False)


@pytest.mark.parametrize("given", [0, -1, float("inf"), "much", None])
def test_a_scale_that_is_none(given):
    with pytest.raises(ConfigError, match="loss_scale is"):
        LossScale.of("float16", given)


def test_each_loss_has_a_scale_of_its_own():
    data = sym.Variable("data")
    outs = [
        sym.MakeLoss(sym.sum(sym.square(data), axis=1), name="one"),
        sym.LinearRegressionOutput(data, sym.Variable("label"), name="two"),
    ]
    graph = lower(sym.Group(outs), {"data": (2, 3), "label": (2, 3)})
    both = gradients(graph, ["data"], heads=False, scaled=True)
    plain = gradients(graph, ["data"], heads=False)
    assert (set(both.scales), plain.scales) == ({"one_loss_scale", "two_loss_scale"}, ())
    feeds = {
        n: np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
        for n in ("data", "label")
    }
    scales = {n: np.full(both.graph[n].types[0].shape, 8, "float32") for n in both.scales}
    want = evaluate(plain.graph, feeds)[-1]
    np.testing.assert_array_equal(evaluate(both.graph, feeds | scales)[-1], 8 * want)
