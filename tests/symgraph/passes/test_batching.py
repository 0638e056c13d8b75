"""Micro-batches: outputs put together and gradients added up are those of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.batch_layout import PARTIAL, WHOLE, Split
from symgraph.core.errors import MicroBatchError
from symgraph.core.graph import Graph
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.batching import (
    Feed,
    assemble,
    batch_size,
    micro_batch,
    prologue,
    split_sizes,
)
from symgraph.passes.gradients import gradients
from tests.symgraph.running import random_feeds

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


class Result(NamedTuple):
    outputs: list[np.ndarray]
    grads: dict[str, np.ndarray]


class Network(NamedTuple):
    """A symbol, the whole batch's data, and where the batch lies in it."""

    symbol: sg.Symbol
    feeds: Mapping[str, np.ndarray]
    axes: Mapping[str, int]

    @property
    def batch(self) -> int:
        return next(self.feeds[name].shape[axis] for name, axis in self.axes.items())

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        return {
            n: a.take(range(start, stop), axis=self.axes[n]) if n in self.axes else a
            for n, a in self.feeds.items()
        }

    def lowered(self, feeds: Mapping[str, np.ndarray]) -> Graph:
        shapes = {n: a.shape for n, a in feeds.items()}
        return lower(self.symbol, shapes, {n: str(a.dtype) for n, a in feeds.items()})

    def parameters(self) -> dict[str, np.ndarray]:
        values = random_feeds(self.lowered(self.feeds))
        return {n: a for n, a in values.items() if n not in self.feeds}


def whole_batch(network: Network, env: Env | None = None) -> Result:
    """The judge: nothing of the graph is changed for micro-batches."""
    graph, parameters = network.lowered(network.feeds), network.parameters()
    both = gradients(graph, parameters, heads=False)
    values = evaluate(both.graph, {**network.feeds, **parameters}, env or Env())
    count = len(graph.outputs)
    return Result(values[:count], dict(zip(both.grads, values[count:], strict=True)))


def in_parts(network: Network, parts: int, env: Env | None = None) -> Result:
    """One micro-batch after the other."""
    env, parameters = env or Env(), network.parameters()
    early = prologue(network.lowered(network.feeds), network.axes)
    counted = evaluate(early, {n.name: network.feeds[n.name] for n in early.variables}, env)
    known = dict(zip([v.node for v in early.outputs], counted, strict=True))
    results, layouts, start = [], [], 0
    for size in split_sizes(network.batch, parts):
        feeds = network.part(start, start + size)
        part = micro_batch(network.lowered(feeds), network.axes, size, network.batch)
        layouts = [part.layouts[v] for v in part.graph.outputs]
        both = gradients(part.graph, parameters, heads=False)
        fed = {**feeds, **parameters, **known}
        fed = {n.name: fed[n.name] for n in both.graph.variables}
        results.append(evaluate(both.graph, fed, env._replace(sample=start)))
        start += size
    columns = [list(column) for column in zip(*results, strict=True)]
    outputs = [assemble(layout, column) for layout, column in zip(layouts, columns, strict=False)]
    return Result(outputs, dict(zip(parameters, map(sum, columns[len(layouts) :]), strict=True)))


def check(network: Network, env: Env | None = None) -> None:
    """Every number of micro-batches gives what the whole batch gives, to 1e-12."""
    want = whole_batch(network, env)
    assert any(np.abs(g).max() > 1e-3 for g in want.grads.values())
    for parts in range(1, network.batch + 1):
        got = in_parts(network, parts, env)
        for i, (ours, theirs) in enumerate(zip(got.outputs, want.outputs, strict=True)):
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-12, atol=1e-13, err_msg=f"output {i}, {parts} parts"
            )
        for name, theirs in want.grads.items():
            np.testing.assert_allclose(
                got.grads[name], theirs, rtol=1e-12, atol=1e-13, err_msg=f"{name}, {parts} parts"
            )


def mlp(data: sg.Symbol | None = None) -> sg.Symbol:
    data = sym.Variable("data") if data is None else data
    hidden = sym.tanh(sym.FullyConnected(data, num_hidden=6, name="fc1"))
    return sym.FullyConnected(hidden, num_hidden=4, name="fc2")


def with_labels(symbol: sg.Symbol, batch: int = 5) -> Network:
    labels = np.array([1.0, -1.0, 3.0, 0.0, -1.0, 2.0, 2.0])[:batch]
    feeds = {"data": RNG.standard_normal((batch, 3)), "softmax_label": labels}
    return Network(symbol, feeds, {"data": 0, "softmax_label": 0})


def with_data(symbol: sg.Symbol) -> Network:
    return Network(symbol, {"data": RNG.standard_normal((5, 3))}, {"data": 0})


# -- losses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", ["null", "batch", "valid"])
@pytest.mark.parametrize("use_ignore", [False, True])
def test_softmax_output(normalization, use_ignore):
    loss = sym.SoftmaxOutput(
        mlp(), name="softmax", normalization=normalization, use_ignore=use_ignore, grad_scale=0.5
    )
    network = with_labels(loss)
    if not use_ignore:
        network.feeds["softmax_label"][:] = [1, 0, 3, 0, 2]
    check(network)


@pytest.mark.parametrize(
    ("normalization", "total"), [("null", 4.5), ("batch", 1.125), ("valid", 1.5)]
)
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_normalization_uses_the_whole_batchs_count(normalization, total, parts):
    """Case N1: zero logits; in two halves, a mean per half would give -0.375 in row 2."""
    logits = sym.elemwise_mul(sym.Variable("data"), sym.Variable("one"))
    loss = sym.SoftmaxOutput(logits, name="softmax", normalization=normalization, use_ignore=True)
    feeds = {
        "data": np.zeros((4, 4)),
        "one": np.ones((4, 4)),
        "softmax_label": np.array([1.0, 2.0, 3.0, -1.0]),
    }
    network = Network(loss, feeds, dict.fromkeys(feeds, 0))
    rows = []
    start = 0
    valid = {"softmax_valid": np.array([3.0])}
    for size in split_sizes(4, parts):
        fed = network.part(start, start + size)
        part = micro_batch(network.lowered(fed), network.axes, size, 4)
        both = gradients(part.graph, ["data"])
        names = {n.name for n in both.graph.variables}
        fed = {n: a for n, a in {**fed, **valid}.items() if n in names}
        rows.append(evaluate(both.graph, fed)[-1])
        start += size
    grad = np.concatenate(rows)
    assert np.abs(grad).sum() == pytest.approx(total, abs=1e-14)
    assert not grad[3].any()
    if normalization == "valid":
        assert grad[2, 3] == pytest.approx(-0.25, abs=1e-14)


def test_the_count_of_valid_labels_is_made_before_the_first_micro_batch():
    loss = sym.SoftmaxOutput(
        mlp(),
        sym.Reshape(sym.Variable("label"), shape=(-1,)),
        normalization="valid",
        use_ignore=True,
        name="softmax",
    )
    network = Network(
        loss,
        {"data": np.ones((5, 3)), "label": np.array([[1.0], [-1.0], [3.0], [-1.0], [-1.0]])},
        {"data": 0, "label": 0},
    )
    early = prologue(network.lowered(network.feeds), network.axes)
    assert [n.name for n in early] == ["label", "reshape0", "softmax_valid"]
    assert evaluate(early, {"label": network.feeds["label"]})[0].tolist() == [2.0]
    part = micro_batch(network.lowered(network.part(0, 2)), network.axes, 2, 5)
    assert part.graph["softmax_valid"].is_variable
    check(network)
    assert len(prologue(network.lowered(network.feeds), ["data"])) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda x: sym.LinearRegressionOutput(x, sym.Variable("label"), name="loss"),
        lambda x: sym.MakeLoss(sym.mean(sym.square(x - sym.Variable("label"))), name="loss"),
        lambda x: sym.MakeLoss(sym.sum(sym.square(x - sym.Variable("label"))), grad_scale=0.1),
        lambda x: sym.MakeLoss(sym.sum(sym.square(x * sym.Variable("label")), axis=1)),
        lambda x: sym.MakeLoss(sym.square(x - sym.Variable("label")), normalization="batch"),
        lambda x: sym.MakeLoss(sym.mean(x * sym.Variable("label"), axis=0)),
    ],
    ids=["regression", "mean", "sum", "sum of each", "batch", "mean over the batch"],
)
def test_regression_and_make_loss(make):
    feeds = {"data": RNG.standard_normal((5, 3)), "label": RNG.standard_normal((5, 4))}
    check(Network(make(mlp()), feeds, {"data": 0, "label": 0}))


def test_a_term_without_samples_counts_once():
    """Weight decay as a loss of its own: each micro-batch answers for its share of it."""
    decay = sym.MakeLoss(sym.sum(sym.square(sym.Variable("fc1_weight_"))), name="decay")
    weight = decay.get_internals()["fc1_weight_"]
    hidden = sym.FullyConnected(sym.Variable("data"), weight, num_hidden=4, name="fc1")
    loss = sym.SoftmaxOutput(hidden, name="softmax")
    network = with_labels(sym.Group([loss, decay]))
    network.feeds["softmax_label"][:] = [1, 0, 3, 0, 2]
    check(network)
    check(
        with_labels(sym.Group([loss, sym.MakeLoss(weight * 0.1, name="decay")]))._replace(
            feeds=network.feeds
        )
    )


def test_several_losses_on_parts_of_one_network():
    x = mlp()
    halves = sym.SliceChannel(x, num_outputs=2, axis=1)
    loss = sym.Group(
        [
            sym.MakeLoss(sym.mean(sym.square(halves[0]))),
            sym.SoftmaxOutput(x, name="softmax", normalization="valid", use_ignore=True),
            sym.MakeLoss(sym.sum(sym.Concat(halves[1], halves[0], dim=1), axis=0) * 0.1),
            sym.BlockGrad(sym.sum(halves[1])),
        ]
    )
    check(with_labels(loss))


# -- networks ----------------------------------------------------------------------------------


def language_model(steps: int, batch: int, dropout: float = 0.0, **loss) -> Network:
    """Time-major word ids; softmax over the merged (T*B) rows."""
    stack = sg.rnn.SequentialRNNCell()
    stack.add(sg.rnn.LSTMCell(3, prefix="l0_"))
    stack.add(sg.rnn.DropoutCell(dropout))
    stack.add(sg.rnn.ResidualCell(sg.rnn.GRUCell(3, prefix="l1_")))
    words = sym.Embedding(sym.Variable("data"), input_dim=7, output_dim=3, name="embed")
    outputs, states = stack.unroll(steps, words, layout="TNC", merge_outputs=True)
    rows = sym.Dropout(sym.Reshape(outputs, shape=(-1, 3)), p=dropout)
    label = sym.Reshape(sym.Variable("label"), shape=(-1,))
    scores = sym.FullyConnected(rows, num_hidden=7, name="decode")
    softmax = sym.SoftmaxOutput(scores, label, name="softmax", **loss)
    figures = sym.nll_stats(softmax, label, use_ignore=True)
    last = [sym.BlockGrad(state) for state in states]
    ids = RNG.integers(0, 7, (steps, batch)).astype("int32")
    label_ids = RNG.integers(0, 7, (steps, batch)).astype("int32")
    label_ids[1:3, 1:] = -1
    symbol = sym.Group([softmax, figures, *last])
    feeds = {"data": ids, "label": label_ids}
    network = Network(symbol, feeds, {"data": 1, "label": 1})
    return network._replace(symbol=in_float64(symbol))


def in_float64(symbol: sg.Symbol) -> sg.Symbol:
    """Word ids do not say it, so the embedding does."""
    return symbol(embed_weight=sym.Variable("embed_weight", dtype="float64"))


@pytest.mark.parametrize("normalization", ["null", "batch", "valid"])
def test_a_time_major_language_model(normalization):
    check(language_model(4, 5, normalization=normalization, use_ignore=True))


def test_dropout_masks_are_those_of_the_whole_batch():
    env = Env(train=True, seed=3, step=2)
    network = language_model(3, 4, dropout=0.4, normalization="batch", use_ignore=True)
    size = network.batch
    whole = in_parts(network, 1, env)
    for parts in range(2, size + 1):
        got = in_parts(network, parts, env)
        for ours, theirs in zip(got.outputs, whole.outputs, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
        for name, theirs in whole.grads.items():
            np.testing.assert_allclose(got.grads[name], theirs, rtol=1e-12, atol=1e-13)
    other = in_parts(network, 2, env._replace(step=3))
    assert np.abs(other.outputs[0] - whole.outputs[0]).max() > 1e-3


def test_an_embedding_alone():
    words = sym.Embedding(sym.Variable("data"), input_dim=4, output_dim=2, name="embed")
    loss = in_float64(sym.MakeLoss(sym.mean(sym.square(words))))
    ids = np.array([[0, 1, 1], [1, 3, 3], [0, 0, 0], [3, 1, 0]], "int32")
    check(Network(loss, {"data": ids}, {"data": 0}))


def test_states_that_are_fed_and_carried():
    cell = sg.rnn.LSTMCell(3)
    begin = cell.begin_state(func=sym.Variable)
    outputs, states = cell.unroll(2, sym.Variable("data"), begin, merge_outputs=True)
    symbol = sym.Group([sym.MakeLoss(sym.sum(outputs)), *map(sym.BlockGrad, states)])
    feeds = {"data": RNG.standard_normal((4, 2, 3))}
    feeds |= {f"lstm_begin_state_{i}": RNG.standard_normal((4, 3)) for i in range(2)}
    check(Network(symbol, feeds, dict.fromkeys(feeds, 0)))


# -- networks that mix samples -----------------------------------------------------------------


MIXING = [
    (lambda x: sym.BatchNorm(x, name="bn"), "BatchNorm 'bn' normalises by statistics"),
    (lambda x: sym.softmax(x, axis=0, name="over"), "softmax 'over' works along axis 0"),
    (
        lambda x: sym.broadcast_sub(x, sym.mean(x, axis=0, keepdims=True), name="centre"),
        "broadcast_sub 'centre'",
    ),
    (lambda x: sym.dot(x, x, transpose_b=True, name="gram"), "dot 'gram' multiplies samples"),
    (lambda x: sym.exp(sym.sum(x), name="e"), "exp 'e' applies a nonlinear function to a sum"),
    (lambda x: sym.sum(x) + 1.0, "_plus_scalar '_plusscalar0' adds a constant to a sum"),
    (
        lambda x: sym.transpose(x, name="t") + sym.slice_axis(x, axis=1, begin=0, end=2),
        "'_plus0' joins values whose batch lies differently",
    ),
    (
        lambda x: sym.FullyConnected(sym.transpose(x), num_hidden=2, name="fc"),
        "FullyConnected 'fc' sums over the batch axis",
    ),
]


@pytest.mark.parametrize(("make", "words"), MIXING, ids=[words.split()[0] for _, words in MIXING])
def test_networks_that_mix_samples_are_refused(make, words):
    symbol = make(sym.Variable("data"))
    graph = lower(symbol, {"data": (2, 2)})
    with pytest.raises(MicroBatchError, match=rf"{words}.*use micro_batches: 1"):
        micro_batch(graph, {"data": 0}, 2, 4)
    whole = micro_batch(graph, {"data": 0}, 2, 2)  # alone, it is the whole batch
    assert [n.name for n in whole.graph] == [n.name for n in graph]


def test_a_loss_that_knows_no_share_is_refused():
    """Its gradient would be added once a micro-batch."""
    net = sym.LinearRegressionOutput(sym.Variable("a"), sym.Variable("b"), name="loss")
    graph = lower(sym.Group([net, sym.tanh(sym.Variable("data"))]), {"a": (3, 2), "data": (2,)})
    with pytest.raises(MicroBatchError, match="'loss' is a loss that does not depend on the sam"):
        micro_batch(graph, {"data": 0}, 2, 4)


# -- pieces ------------------------------------------------------------------------------------


def test_split_sizes_are_as_equal_as_can_be():
    assert split_sizes(8, 3) == (3, 3, 2)
    assert split_sizes(8, 4) == (2, 2, 2, 2)
    assert split_sizes(5, 5) == (1,) * 5
    assert split_sizes(7, 1) == (7,)
    for batch in range(1, 20):
        for parts in range(1, batch + 1):
            sizes = split_sizes(batch, parts)
            assert (sum(sizes), len(sizes)) == (batch, parts)
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parts", [0, -1, 9])
def test_a_batch_that_cannot_be_split(parts):
    with pytest.raises(MicroBatchError, match=f"8 samples cannot be split into {parts} micro"):
        split_sizes(8, parts)


def test_feeds_agree_on_the_batch():
    data = Feed(TensorType((4, 8), "int32"), 1)
    assert data.part(3) == TensorType((4, 3), "int32")
    assert batch_size({"data": data, "state": Feed(TensorType((8, 2)))}) == 8
    with pytest.raises(MicroBatchError, match=r"differ: \{'data': 8, 'state': 7\}"):
        batch_size({"data": data, "state": Feed(TensorType((7, 2)))})


def test_assemble():
    whole = np.arange(24.0).reshape(2, 12)  # axis 1: 3 outer, 2 samples, 2 inner
    nested = whole.reshape(2, 3, 2, 2)
    parts = [nested[:, :, i : i + 1].reshape(2, 6) for i in range(2)]
    np.testing.assert_array_equal(assemble(Split(1, 3, 2), parts), whole)
    np.testing.assert_array_equal(assemble(PARTIAL, parts), parts[0] + parts[1])
    assert assemble(WHOLE, parts) is parts[0]
