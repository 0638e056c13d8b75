"""Convolutions in shards: the same numbers as whole ones, alone and in pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.sym import Convolution, Variable
from symgraph.passes.shard import shard
from symgraph.passes.shards import join, place_of
from tests.helpers.pipelines import (
    Case,
    Result,
    assert_close,
    assert_same_bits,
    in_pieces,
    judge,
    make_plan,
    on_devices,
)
from tests.symgraph.passes.test_shard import CLASSES, check_equal, lowered

X = (3, 4, 6, 5)
WRT = ["x", "conv_weight", "conv_bias"]
KERNEL = {"kernel": (3, 3), "pad": (1, 1)}


def conv(filters=8, data=None, **more):
    x = Variable("x") if data is None else data
    return Convolution(x, num_filter=filters, name="conv", **{**KERNEL, **more})


def ops_of(graph, stem):
    """The operators of a node and of its pieces, in order."""
    return {n.name: n.op for n in graph if n.name == stem or n.name.startswith(f"{stem}[")}


@pytest.mark.parametrize("parts", ["2", "3", "5:3"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stride": (2, 1)},
        {"kernel": (1, 1), "pad": ()},
        {"dilate": (2, 2), "pad": (2, 2)},
    ],
)
def test_a_convolution_in_shards_is_the_convolution(parts, more):
    with AttrScope(shard=parts):
        symbol = conv(**more)
    made = check_equal(symbol, {"x": X}, WRT)
    assert {s.parameter for s in made.shards.values()} == {"conv_weight", "conv_bias"}
    pieces = [n for n in made.graph if n.op == "Convolution"]
    assert sum(n.types[0].shape[1] for n in pieces) == 8
    count = len(pieces)
    assert [place_of(n) for n in pieces] == [(i, count) for i in range(count)]
    assert made.graph["conv"].op == "Concat"


def test_one_spatial_axis_and_no_bias():
    with AttrScope(shard="2"):
        symbol = conv(3, kernel=(3,), pad=(1,), no_bias=True)
    check_equal(symbol, {"x": (2, 4, 7)}, ["x", "conv_weight"])


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_readers_that_work_on_channels_follow(kind):
    with AttrScope(shard="2"):
        x = sym.Activation(conv(), act_type="relu", name="relu")
        x = sym.LeakyReLU(x, act_type="elu", name="elu")
        x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type=kind, name="pool")
    made = check_equal(sym.tanh(x), {"x": X}, WRT)
    ends = ("[0:4]", "[4:8]")
    assert ops_of(made.graph, "conv") == {f"conv{e}": "Convolution" for e in ends}
    assert ops_of(made.graph, "relu") == {f"relu{e}": "Activation" for e in ends}
    assert ops_of(made.graph, "elu") == {f"elu{e}": "LeakyReLU" for e in ends}
    assert ops_of(made.graph, "pool") == {
        **{f"pool{e}": "Pooling" for e in ends},
        "pool": "Concat",
    }


@pytest.mark.parametrize("parts", [None, "3", "1:3"])
def test_readers_that_are_split_in_another_way_read_the_pieces_joined(parts):
    with AttrScope(shard="2"):
        x = conv()
    with AttrScope(**({"shard": parts} if parts else {})):
        x = sym.Activation(x, act_type="relu", name="relu")
    made = check_equal(x, {"x": X}, WRT)
    assert ops_of(made.graph, "relu") == {"relu": "Activation"}


def test_slopes_and_norms_read_the_pieces_joined():
    with AttrScope(shard="2"):
        x = sym.LeakyReLU(conv(), act_type="prelu", name="act")
        x = sym.BatchNorm(x, eps=10.0, name="norm")
    made = check_equal(x, {"x": X}, [*WRT, "act_gamma", "norm_beta"], rtol=1e-10)
    assert ops_of(made.graph, "act") == {"act": "LeakyReLU"}
    assert "norm_beta" in made.graph.nodes


def test_a_row_of_scores_is_not_taken_for_channels():
    """As wide as it has channels: softmax over the last axis must not run on pieces of axis 1."""
    with AttrScope(shard="2"):
        x = conv(CLASSES)
        out = sym.SoftmaxOutput(x, Variable("label"), preserve_shape=True, name="softmax")
    made = check_equal(out, {"x": (3, 4, 6, CLASSES), "label": (3, CLASSES, 6)}, WRT)
    assert made.graph["softmax"].op == "SoftmaxOutput"


@pytest.mark.parametrize(
    ("filters", "groups", "parts"),
    [
        (8, 4, "2"),
        (8, 2, "2"),
        (4, 4, "4"),
        (8, 4, "3:1"),
        (12, 4, "1:3"),
    ],
)
def test_pieces_of_groups_read_their_channels_alone(filters, groups, parts):
    with AttrScope(shard=parts):
        symbol = conv(filters, num_group=groups)
    made = check_equal(symbol, {"x": X}, WRT)
    pieces = [n for n in made.graph if n.op == "Convolution"]
    assert sum(n.attrs["num_group"] for n in pieces) == groups
    read = [made.graph.type_of(n.inputs[0]).shape[1] for n in pieces]
    assert sum(read) == 4
    assert all(made.graph[n.inputs[0].node].op == "slice_axis" for n in pieces)


def test_groups_stay_whole():
    with AttrScope(shard="3"):
        symbol = conv(num_group=2)
    message = (
        r"num_filter=8, num_group=2 .* at filters \[3, 5\]: a piece has whole groups, of 4 fil"
    )
    with pytest.raises(GraphError, match=f"Convolution 'conv' with {message}"):
        shard(lowered(symbol, {"x": X}), symbol.list_outputs(), ("x",))


def test_a_weight_that_is_computed_is_sliced():
    with AttrScope(shard="2"):
        symbol = conv(weight=sym.tanh(Variable("w")))
    made = check_equal(symbol, {"x": X}, ["x", "w", "conv_bias"])
    assert set(made.shards) == {"conv_bias[0:4]", "conv_bias[4:8]"}


def test_more_pieces_than_filters():
    with AttrScope(shard="9"):
        symbol = conv()
    with pytest.raises(GraphError, match="'conv' has shard='9', but only 8 rows"):
        shard(lowered(symbol, {"x": X}), symbol.list_outputs(), ("x",))


# -- in pipelines --------------------------------------------------------------------------------


def network(shards: str, groups: int = 1) -> Case:
    """Two convolutions in shards with what follows them, and a classifier on one device."""
    rng = np.random.default_rng(9)
    with AttrScope(ctx_group="first", shard=shards):
        x = Convolution(Variable("data"), num_filter=6, name="conv1", **KERNEL)
        x = sym.Activation(x, act_type="relu", name="relu1")
        x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name="pool1")
    with AttrScope(ctx_group="second", shard=shards):
        x = Convolution(x, num_filter=12, num_group=groups, name="conv2", **KERNEL)
        x = sym.Activation(x, act_type="tanh", name="tanh2")
    with AttrScope(ctx_group="head"):
        x = sym.Pooling(x, global_pool=True, pool_type="avg", name="pool2")
        x = sym.FullyConnected(x, num_hidden=3, name="fc")
        out = sym.SoftmaxOutput(x, Variable("label"), normalization="batch", name="loss")
    feeds = {
        "data": rng.standard_normal((5, 2, 6, 8)),
        "label": rng.integers(0, 3, 5).astype("float64"),
    }
    shapes, _, _ = out.infer_shape(**{n: a.shape for n, a in feeds.items()})
    arrays = {
        name: rng.standard_normal(shape) / 2
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
        if name not in feeds
    }
    return Case(out, feeds, arrays)


def in_pipeline(case: Case, options: Options) -> Result:
    found, shards = in_pieces(case, options)
    return Result(found.outputs, join(shards, found.grads))


def placed(schedule: str, micro_batches: int, *devices: int) -> Options:
    contexts = [cpu(i) for i in devices]
    groups = {"first": contexts, "second": contexts[::-1], "head": contexts[-1]}
    return on_devices(max(devices) + 1, groups, schedule, micro_batches)


@pytest.mark.every(4)
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_equals_the_unsharded_reference(schedule, micro_batches, groups):
    case = network("2", groups)
    assert_close(in_pipeline(case, placed(schedule, micro_batches, 0, 1)), judge(case))


def test_the_place_of_shards_changes_no_bit():
    case = network("3")
    alone = in_pipeline(case, placed("gpipe", 2, 0, 0, 0))
    assert_close(alone, judge(case))
    for devices in ((0, 1, 2), (1, 0, 1), (2, 2, 0)):
        assert_same_bits(in_pipeline(case, placed("1f1b", 2, *devices)), alone)


def test_each_device_holds_its_filters_alone():
    made = make_plan(network("2"), placed("gpipe", 1, 0, 1))
    place = made.partition.placement
    for name in ("conv1_weight[0:3]", "conv1_bias[0:3]", "conv1[0:3]", "pool1[0:3]"):
        assert place.device_of(name) == cpu(0)
    for name in ("conv1_weight[3:6]", "relu1[3:6]", "conv2_weight[0:6]"):
        assert place.device_of(name) == cpu(1)
    assert "conv1_weight" not in made.parameters
