"""Channel-parallel convolutions: equal to the serial ones that they are, on any placement."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.frontends.chainermn import ParallelConvolution2D, ShardedConvolution
from runtime.planning.options import Options
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError, ShapeError
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import Prefix
from symgraph.frontend.symbol import Symbol
from tests.helpers.pipelines import Case, Result, assert_close, judge, on_threads

X = (3, 10, 6, 5)
KERNEL = {"kernel": (3, 3), "pad": (1, 1)}
LAYERS = {"parallel": ParallelConvolution2D, "sharded": ShardedConvolution}


def groups(p: int) -> list[str]:
    return [f"rank{i}" for i in range(p)]


def loss_of(y: Symbol, name: str = "loss", scale: float = 1.0) -> Symbol:
    with AttrScope(ctx_group="rank0"):
        return sym.MakeLoss(sym.square(sym.tanh(y)), grad_scale=scale, name=name)


def case_of(symbol: Symbol, seed: int = 0) -> Case:
    """Data and weights for a symbol that reads `data`, in float64."""
    rng = np.random.default_rng(seed)
    names = symbol.list_arguments()
    shapes, _, _ = symbol.infer_shape(data=X)
    arrays = {n: rng.standard_normal(s) / 3 for n, s in zip(names, shapes, strict=True)}
    return Case(symbol, {"data": arrays.pop("data")}, arrays)


def pieces(p: int, what: str, arrays) -> list[np.ndarray]:
    return [arrays[f"conv_{i}_{what}"] for i in range(p)]


def of_pieces(want: Result, p: int, sizes: list[int]) -> Result:
    """A serial convolution's result with its parameters' gradients cut into the participants'."""
    ends = np.cumsum(sizes)[:-1]
    grads = {
        f"conv_{i}_{what}": part
        for what in ("weight", "bias")
        for i, part in enumerate(np.split(want.grads[f"conv_{what}"], ends))
    }
    return Result(want.outputs, grads)


def full(p: int, filters: int = 10) -> Case:
    """The case of p participants' sharded layer, whose parameters are those of one convolution."""
    data = sym.Variable("data")
    ys = ShardedConvolution(data, num_filter=filters, groups=groups(p), name="conv", **KERNEL)
    return case_of(loss_of(ys[0]))


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_sharded_is_the_full_convolution(p):
    case = full(p)
    whole = sym.Convolution(sym.Variable("data"), num_filter=10, name="conv", **KERNEL)
    joined = {f"conv_{w}": np.concatenate(pieces(p, w, case.arrays)) for w in ("weight", "bias")}
    want = judge(Case(loss_of(whole), case.feeds, joined))
    sizes = [len(w) for w in pieces(p, "weight", case.arrays)]
    assert_close(judge(case), of_pieces(want, p, sizes), 1e-11)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_parallel_is_a_grouped_convolution(p):
    """Of the channels in the order 0, p, 2p, ..., 1, p + 1, ...; and no full one."""
    data = sym.Variable("data")
    ys = ParallelConvolution2D(data, num_filter=10, groups=groups(p), name="conv", **KERNEL)
    case = case_of(loss_of(ys[0]))
    order = np.concatenate([np.arange(i, X[1], p) for i in range(p)])
    grouped = sym.Convolution(data, num_filter=10, num_group=p, name="conv", **KERNEL)
    joined = {f"conv_{w}": np.concatenate(pieces(p, w, case.arrays)) for w in ("weight", "bias")}
    feeds = {"data": np.ascontiguousarray(case.feeds["data"][:, order])}
    want = judge(Case(loss_of(grouped), feeds, joined))
    assert_close(judge(case), of_pieces(want, p, [10 // p] * p), 1e-11)
    weights = sum(w.size for w in pieces(p, "weight", case.arrays))
    assert weights == 10 * 10 * 9 // p


def test_ten_channels_on_four_ranks():
    """X15: 3, 3, 2 and 2 channels; rank 1 has 1, 5 and 9."""
    data = sym.Variable("data")
    own = ParallelConvolution2D(
        data, num_filter=10, groups=groups(4), joined=False, name="conv", **KERNEL
    )
    case = case_of(sym.Group([loss_of(y, f"loss{i}") for i, y in enumerate(own)]))
    shapes = [w.shape for w in pieces(4, "weight", case.arrays)]
    assert shapes == [(3, 3, 3, 3), (3, 3, 3, 3), (2, 2, 3, 3), (2, 2, 3, 3)]
    assert [y.attr("ctx_group") for y in own] == groups(4)
    for channel in range(10):
        moved = dict(case.feeds)
        moved["data"] = moved["data"].copy()
        moved["data"][:, channel] += 1
        before, after = judge(case).outputs, judge(case._replace(feeds=moved)).outputs
        changed = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
        assert changed == [i == channel % 4 for i in range(4)]


def network(layer, p: int) -> Case:
    """Two layers; between them, what works on each channel is done on each participant's own."""
    kinds = {"num_filter": 6, "no_bias": True, **KERNEL}
    own = layer(sym.Variable("data"), groups=groups(p), joined=False, name="first", **kinds)
    for i, group in enumerate(groups(p)):
        with AttrScope(ctx_group=group):
            x = sym.BatchNorm(own[i], fix_gamma=False, name=f"norm_{i}")
            x = sym.Activation(x, act_type="relu", name=f"relu_{i}")
            own[i] = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name=f"pool_{i}")
    ys = layer(sym.comm.allgather(own, axis=1), name="second", **kinds)
    losses = [loss_of(y, f"loss{i}", 1 / p) for i, y in enumerate(ys)]
    case = case_of(sym.Group(losses))
    states = sym.Group(losses).list_auxiliary_states()
    shapes = sym.Group(losses).infer_shape(data=X)[2]
    ones = {n: np.ones(s) for n, s in zip(states, shapes, strict=True)}
    return case._replace(arrays=case.arrays | ones)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("layer", LAYERS)
def test_any_placement_gives_the_numbers_of_one_device(layer, p):
    case = network(LAYERS[layer], p)
    want = judge(case)
    for devices in (range(p), [0] * p, range(p)[::-1]):
        place = {g: cpu(d) for g, d in zip(groups(p), devices, strict=True)}
        assert_close(on_threads(case, Options(place, cpu(0))), want)


@pytest.mark.parametrize("p", [2, 3])
def test_normalised_pieces_are_the_normalised_whole(p):
    """What a network on one device gives, whose parameters are the pieces joined."""
    case = network(ShardedConvolution, p)
    x = sym.Convolution(sym.Variable("data"), num_filter=6, no_bias=True, name="first", **KERNEL)
    x = sym.Activation(sym.BatchNorm(x, fix_gamma=False, name="norm"), act_type="relu")
    x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2))
    y = sym.Convolution(x, num_filter=6, no_bias=True, name="second", **KERNEL)
    names = {n.replace("_0", "") for n in case.arrays if "_0_" in n}
    joined = {
        n: np.concatenate([case.arrays[n.replace("_", f"_{i}_", 1)] for i in range(p)])
        for n in names
    }
    want = judge(Case(loss_of(y), case.feeds, joined))
    got = judge(case)
    np.testing.assert_allclose(got.outputs[0], want.outputs[0], rtol=1e-11)
    for name, grad in want.grads.items():
        parts = [got.grads[name.replace("_", f"_{i}_", 1)] for i in range(p)]
        np.testing.assert_allclose(np.concatenate(parts), grad, rtol=1e-9, atol=1e-11)


def test_names_have_their_prefix_once():
    with Prefix("net_"):
        ys = ShardedConvolution(
            sym.Variable("data"), num_filter=2, groups=groups(2), kernel=(1, 1), no_bias=True
        )
    arguments = ys[1].list_arguments()
    assert arguments == ["data", *[f"net_shardedconvolution0_{i}_weight" for i in range(2)]]
    assert [y.attr("ctx_group") for y in ys] == groups(2)


@pytest.mark.parametrize("layer", LAYERS.values())
def test_wrong_calls_say_what_is_wrong(layer):
    data = sym.Variable("data")
    with pytest.raises(GraphError, match=r"'c' has one symbol for all participants; pass groups="):
        layer(data, num_filter=4, kernel=(3, 3), name="c")
    with pytest.raises(
        GraphError, match=r"'c': num_filter=2 is less than one per participant \(3\)"
    ):
        layer(data, num_filter=2, groups=groups(3), kernel=(3, 3), name="c")
    with pytest.raises(
        GraphError, match=r"'c': num_group=2 is given, but the participants are the gr"
    ):
        layer(data, num_filter=4, groups=groups(2), kernel=(3, 3), num_group=2, name="c")
    with pytest.raises(TypeError, match="'c': groups is a list of groups, not the name 'rank0'"):
        layer(data, num_filter=5, groups="rank0", kernel=(3, 3), name="c")  # r, a, n, k and 0


def test_fewer_channels_than_participants():
    ys = ParallelConvolution2D(
        sym.Variable("data"), num_filter=4, groups=groups(4), kernel=(1, 1), name="c"
    )
    with pytest.raises(ShapeError, match=r"'c_3_channels': .* selects nothing of an axis of le"):
        ys[0].infer_shape(data=(1, 3, 2, 2))
