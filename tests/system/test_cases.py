"""Numbered cases of the systems we compete with, run through plans and executors.

Other cases are tested next to the code that they are about:

    G4-G8                  tests/partitioner/placement/test_group2ctx.py
    G1, G2, G8, S4         tests/runtime/frontends/mxnet/test_executor.py
    G9, P2                 tests/partitioner/cutting/test_cut.py
    N3                     tests/runtime/schedule/test_timeline.py
    N5                     tests/runtime/engine/test_session.py
    X1-X3, X6, X7          tests/symgraph/chainermn/test_chain_list.py
    X4, X5, X16            tests/symgraph/chainermn/test_rank_view.py
    X8                     tests/symgraph/frontend/test_comm.py
    X9-X11, X14, X17       tests/runtime/frontends/chainermn/
    X18                    tests/examples/test_examples.py
"""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import symgraph as sg
from runtime.engine.session import Session
from runtime.frontends.mxnet.executor import bind, simple_bind
from runtime.planning.options import Options
from runtime.transports import ThreadCluster
from symgraph.core.context import Context, cpu
from symgraph.core.errors import MicroBatchError
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from symgraph.frontend.optimizer import SGD
from symgraph.frontend.symbol import Symbol
from tests.helpers import mazur
from tests.helpers.pipelines import (
    Case,
    assert_close,
    assert_same_bits,
    judge,
    make_plan,
    on_threads,
)
from tests.helpers.recurrent import lstm_case

SCHEDULES = ["gpipe", "1f1b"]
devices = pytest.mark.parametrize("devices", [1, 2, 3])


def group(number: int) -> AttrScope:
    return AttrScope(ctx_group=f"g{number}")


def spread(groups: int, devices: int) -> dict[str, Context]:
    """Groups `g0`, `g1`, ... on devices in order, the last ones together."""
    return {f"g{i}": cpu(min(i, devices - 1)) for i in range(groups)}


# -- graphs --------------------------------------------------------------------------------------


@pytest.mark.every(4)
@devices
@pytest.mark.parametrize("terms", range(1, 13))
def test_fan_out_over_devices(terms, devices):
    """G10 (mxnet#10455, which gave 15 times the gradient for eight terms): n (n + 1) / 2."""
    x = sym.Variable("x")
    branches = []
    for i in range(1, terms + 1):
        with group(i % devices):
            branches.append(x * i)
    y = branches[0]
    for branch in branches[1:]:
        y = y + branch
    groups = {f"g{i % devices}": cpu(i % devices) for i in range(1, terms + 1)}
    for net in (y, sym.add_n(*branches)):
        with simple_bind(net, cpu(0), group2ctx=groups, x=(2, 3)) as executor:
            (out,) = executor.forward(is_train=True, x=np.ones((2, 3)))
            executor.backward(np.ones((2, 3)))
            assert (out == terms * (terms + 1) / 2).all()
            assert (executor.grad_dict["x"] == terms * (terms + 1) / 2).all()


SHAPES = [(50,), (50, 20), (50, 20, 5), (50, 20, 5, 3), ()]


def there_and_back(dtype: str) -> Symbol:
    """x, cast on the first device, doubled on the second, back on the first."""
    with group(0):
        y = sym.Cast(sym.Variable("x"), dtype=dtype, name="cast")
    with group(1):
        y = sym.elemwise_add(y, y, name="double")
    with group(0):
        return sym.Cast(y, dtype="float64", name="back")


@devices
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_every_dtype_crosses_devices(dtype, shape, devices):
    """G14 (mxnet PR 16683, before which only float32 did), with gradients of floats."""
    x = np.random.default_rng(0).integers(-9, 9, shape).astype("float64")
    dx = np.zeros(shape)
    groups = {"g0": cpu(devices - 1), "g1": cpu(0)}
    with bind(there_and_back(dtype), cpu(0), {"x": x}, {"x": dx}, group2ctx=groups) as executor:
        types = {str(e.type.dtype) for e in executor.plan.partition.edges}
        assert types <= {dtype}
        (out,) = executor.forward(is_train=True)
        assert out.dtype == np.float64
        assert (out == 2 * x).all()
        executor.backward(np.ones(shape))
    assert (dx == (2 if dtype.startswith("float") else 0)).all()


@devices
def test_arguments_that_are_not_contiguous(devices):
    """G14: x[:, 1, :] of (3, 3, 2)."""
    x = np.arange(18.0).reshape(3, 3, 2)[:, 1, :]
    with group(0):
        y = sym.identity(sym.Variable("x"))
    with group(1):
        y = sym.dot(y, sym.transpose(y), name="y")
    with bind(y, cpu(0), {"x": x}, group2ctx=spread(2, devices)) as executor:
        assert (executor.forward()[0] == x @ x.T).all()


@pytest.mark.parametrize("devices", [1, 2])
def test_published_numbers_of_a_small_net(devices):
    """G18: Mazur's worked example, fc_0 and fc_1 on a device each."""
    with NameManager():
        with group(0):
            x = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc_0")
            x = sym.Activation(x, act_type="sigmoid")
        with group(1):
            x = sym.FullyConnected(x, num_hidden=2, name="fc_1")
            out = sym.Activation(x, act_type="sigmoid", name="out")
            error = sym.sum(sym.square(out - sym.Variable("label"))) * 0.5
            loss = sym.MakeLoss(error, name="loss")
    arrays = {n: np.array(a) for n, a in mazur.INPUTS.items()}
    grads = {n: np.zeros_like(a) for n, a in arrays.items() if n != "label"}
    both = sym.Group([sym.BlockGrad(out), loss])
    with bind(both, cpu(0), arrays, grads, group2ctx=spread(2, devices)) as executor:
        assert executor.plan.partition.placement.rank_of == tuple(range(devices))
        found = executor.forward(is_train=True)
        executor.backward()
    np.testing.assert_allclose(found[0], mazur.OUTPUT, atol=5e-9)
    np.testing.assert_allclose(found[1], mazur.LOSS, atol=5e-10)
    for name, value in mazur.GRADIENTS.items():
        np.testing.assert_allclose(grads[name], value, atol=5e-9, err_msg=name)


# -- micro-batches -------------------------------------------------------------------------------


def ignoring_case(normalization: str) -> Case:
    """Zero logits of four samples and classes; the weight's gradient is the logits', transposed."""
    with group(0):
        x = sym.FullyConnected(sym.Variable("data"), num_hidden=4, no_bias=True, name="fc")
    with group(1):
        x = sym.SoftmaxOutput(
            x, sym.Variable("label"), use_ignore=True, normalization=normalization, name="softmax"
        )
    feeds = {"data": np.eye(4), "label": np.array([1.0, 2, 3, -1])}
    return Case(x, feeds, {"fc_weight": np.zeros((4, 4))})


SIZES = {"null": 4.5, "batch": 1.125, "valid": 1.5}


@pytest.mark.parametrize(("normalization", "size"), SIZES.items())
@pytest.mark.parametrize("devices", [1, 2])
def test_normalization_counts_the_whole_batch(normalization, size, devices):
    """N1: the same, bit for bit, whole and in micro-batches [1, 2] and [3, ignored]."""
    case = ignoring_case(normalization)
    found = [
        on_threads(case, Options(spread(2, devices), cpu(0), (), schedule, parts))
        for parts in (1, 2, 4)
        for schedule in SCHEDULES
    ]
    gradient = found[0].grads["fc_weight"].T
    assert np.abs(gradient).sum() == pytest.approx(size)
    if normalization == "valid":
        assert gradient[2, 3] == pytest.approx(-0.25)  # not -0.375, the mean of two means
    for other in found[1:]:
        assert_same_bits(other, found[0])


def time_major_case() -> Case:
    """A classifier of words, (T, B): the batch lies along axis 1."""
    rng = np.random.default_rng(0)
    with NameManager():
        with group(0):
            x = sym.Embedding(sym.Variable("data"), input_dim=7, output_dim=3, name="embed")
        with group(1):
            x = sym.FullyConnected(x, num_hidden=5, flatten=False, name="fc")
            x = sym.Reshape(sym.tanh(x), shape=(-1, 5))
        with group(2):
            x = sym.FullyConnected(x, num_hidden=7, name="scores")
            label = sym.Reshape(sym.Variable("label"), shape=(-1,))
            out = sym.SoftmaxOutput(
                x, label, use_ignore=True, normalization="valid", name="softmax"
            )
    feeds = {
        "data": rng.integers(0, 7, (6, 8)).astype("float64"),
        "label": rng.integers(-1, 7, (6, 8)).astype("float64"),
    }
    shapes, _, _ = out.infer_shape(data=(6, 8), label=(6, 8))
    names = zip(out.list_arguments(), shapes, strict=True)
    arrays = {n: rng.standard_normal(s) for n, s in names if n not in feeds}
    return Case(out, feeds, arrays, {"data": 1, "label": 1})


@devices
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 8])
def test_micro_batches_change_rounding_only(micro_batches, schedule, devices):
    """N2 and pipelines 10: time-major, with ignored labels, eight samples also as 3, 3, 2."""
    case = time_major_case()
    options = Options(spread(3, devices), cpu(0), (), schedule, micro_batches)
    if micro_batches == 3:
        assert make_plan(case, options).sizes == (3, 3, 2)
    assert_close(on_threads(case, options), judge(case))


@devices
@pytest.mark.parametrize("micro_batches", [2, 3, 5])
def test_a_loss_of_the_weights_alone_counts_once(micro_batches, devices):
    """N2: each micro-batch answers for its share of a penalty that no sample is in."""
    with group(0):
        w = sym.Variable("fc_weight")
        x = sym.FullyConnected(sym.Variable("x"), w, num_hidden=2, no_bias=True, name="fc")
    with group(1):
        fit = sym.MakeLoss(sym.square(x), name="fit")
    with group(2):
        penalty = sym.MakeLoss(sym.sum(sym.square(w)), grad_scale=0.1, name="penalty")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5, 3))}
    case = Case(sym.Group([fit, penalty]), feeds, {"fc_weight": rng.standard_normal((2, 3))})
    assert_close(
        on_threads(case, Options(spread(3, devices), cpu(0), (), "1f1b", micro_batches)),
        judge(case),
    )


def test_a_net_that_mixes_samples_is_refused_in_micro_batches():
    """N2: or else a clear error."""
    x = sym.BatchNorm(sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc"), name="norm")
    case = Case(sym.MakeLoss(x), {"x": np.ones((4, 3))}, {"fc_weight": np.ones((2, 3))})
    with pytest.raises(MicroBatchError, match="BatchNorm 'norm' normalises by statistics of the b"):
        make_plan(case, Options(micro_batches=2))


def dropout_case() -> Case:
    rng = np.random.default_rng(0)
    with NameManager():
        x = sym.Variable("data")
        for layer in range(3):
            with group(layer):
                x = sym.Dropout(x, p=0.5, name=f"drop{layer}")
                x = sym.FullyConnected(x, num_hidden=6, no_bias=True, name=f"fc{layer}")
        with group(2):
            x = sym.MakeLoss(sym.square(x), name="loss")
    arrays = {f"fc{i}_weight": rng.standard_normal((6, 6)) for i in range(3)}
    return Case(x, {"data": rng.standard_normal((5, 6))}, arrays)


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_dropout_depends_on_step_node_and_sample_alone(micro_batches):
    """N4 and pipelines 12: no placement or schedule changes a bit, nor micro-batches the masks."""
    case = dropout_case()
    found = [
        on_threads(case, Options(spread(3, d), cpu(0), (), schedule, micro_batches))
        for d in (1, 2, 3)
        for schedule in SCHEDULES
    ]
    for other in found[1:]:
        assert_same_bits(other, found[0])
    assert_close(found[0], judge(case))
    other_step = judge(case, Env(train=True, step=1))
    assert (other_step.outputs[0] != found[0].outputs[0]).any()


# -- recurrent networks --------------------------------------------------------------------------


@devices
@pytest.mark.parametrize(
    ("forget", "cells", "outputs"),
    [
        (0.0, [0.108523661, 0.175393138, 0.216920155], [0.059436845, 0.095970766, 0.118447596]),
        (1.0, [0.108523661, 0.199035906, 0.274849116], [0.059436845, 0.108591789, 0.148867388]),
    ],
)
def test_numbers_of_an_lstm(forget, cells, outputs, devices):
    """R4: all weights 0.1, ones as input, states of zeros; each time step in another group."""
    cell = sg.rnn.LSTMCell(2, prefix="")
    states = [sym.Variable("h"), sym.Variable("c")]
    found = []
    for step in range(3):
        with group(step):
            h, states = cell(sym.Variable(f"x{step}"), states)
            found += [h, states[1]]
    net = sym.Group(found)
    shapes = {"h": (1, 2), "c": (1, 2)} | {f"x{t}": (1, 2) for t in range(3)}
    types = dict.fromkeys(net.list_arguments(), "float64")
    with simple_bind(
        net, cpu(0), "null", types, group2ctx=spread(3, devices), **shapes
    ) as executor:
        for name, array in executor.arg_dict.items():
            array[:] = 0.1 if "weight" in name else float(name.startswith("x"))
        executor.arg_dict["i2h_bias"][2:4] = forget
        values = executor.forward()
    for step in range(3):
        np.testing.assert_allclose(values[2 * step], [[outputs[step]] * 2], atol=5e-10)
        np.testing.assert_allclose(values[2 * step + 1], [[cells[step]] * 2], atol=5e-10)


def slope(case: Case, direction: dict[str, np.ndarray], eps: float = 1e-6) -> float:
    """Of the regression's loss along a direction in the space of weights."""

    def loss(shift: float) -> float:
        moved = {n: a + shift * direction[n] for n, a in case.arrays.items()}
        (out,) = judge(Case(case.symbol, case.feeds, moved)).outputs
        error = out - case.feeds["label"]
        return float((error**2).sum() / 2 / error.shape[1])

    return (loss(eps) - loss(-eps)) / (2 * eps)


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_weights_tied_over_time(steps):
    """R5, pipelines 9 and 17: any cut gives the serial gradient, which is the slope."""
    case = lstm_case(2, steps, batch=5)
    want = judge(case)
    rng = np.random.default_rng(1)
    direction = {n: rng.standard_normal(a.shape) for n, a in case.arrays.items()}
    along = sum(float((want.grads[n] * d).sum()) for n, d in direction.items())
    assert slope(case, direction) == pytest.approx(along, rel=1e-6)
    homes = {1: (0, 0, 0), 2: (0, 1, 1), 3: (0, 1, 2)}
    for count, home in homes.items():
        groups = {g: cpu(i) for g, i in zip(("layer0", "layer1", "head"), home, strict=True)}
        for schedule in SCHEDULES:
            found = on_threads(case, Options(groups, cpu(0), (), schedule, min(count, 3)))
            assert_close(found, want)


def cut_in_time(steps: int) -> Case:
    """One cell whose weights every device uses: steps go round three groups."""
    rng = np.random.default_rng(0)
    with NameManager():
        cell = sg.rnn.LSTMCell(3, prefix="l0_")
        states = [sym.Variable("h"), sym.Variable("c")]
        for step in range(steps):
            with group(step % 3):
                x, states = cell(sym.Variable(f"x{step}"), states)
        out = sym.LinearRegressionOutput(x, sym.Variable("label"), name="loss")
    names = ["h", "c", "label", *(f"x{t}" for t in range(steps))]
    feeds = {n: rng.standard_normal((4, 3)) for n in names}
    shapes, _, _ = out.infer_shape(**{n: (4, 3) for n in names})
    given = zip(out.list_arguments(), shapes, strict=True)
    return Case(out, feeds, {n: rng.standard_normal(s) / 2 for n, s in given if n not in feeds})


@devices
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_a_cell_whose_steps_are_on_different_devices(steps, devices):
    """R5: there and back between devices many times, one set of weights."""
    case = cut_in_time(steps)
    groups = {f"g{i}": cpu(i % devices) for i in range(min(steps, 3))}
    for schedule in SCHEDULES:
        for micro_batches in (1, 2):
            options = Options(groups, cpu(0), (), schedule, micro_batches)
            assert_close(on_threads(case, options), judge(case))


# -- the model-parallel MLP ------------------------------------------------------------------------


def mnist_losses(devices: int, micro_batches: int = 1, steps: int = 5) -> list[float]:
    """Of 784-1000 | 1000-1000-10 on random pictures, batch 100."""
    rng = np.random.default_rng(0)
    with NameManager():
        with group(0):
            x = sym.FullyConnected(sym.Variable("data"), num_hidden=1000, name="fc1")
            x = sym.relu(x)
        with group(1):
            x = sym.relu(sym.FullyConnected(x, num_hidden=1000, name="fc2"))
            x = sym.FullyConnected(x, num_hidden=10, name="fc3")
            label = sym.Variable("label")
            out = sym.SoftmaxOutput(x, label, normalization="batch", name="softmax")
            nll = sym.nll_stats(out, label, name="nll")
    feeds = {
        "data": rng.random((100, 784), "float32"),
        "label": rng.integers(0, 10, 100).astype("float32"),
    }
    shapes, _, _ = out.infer_shape(data=(100, 784))
    names = zip(out.list_arguments(), shapes, strict=True)
    arrays = {
        n: rng.standard_normal(s, "float32") / np.float32(30) for n, s in names if n not in feeds
    }
    case = Case(sym.Group([out, nll]), feeds, arrays)
    groups = spread(2, devices)
    made = make_plan(case, Options(groups, cpu(0), (), "1f1b", micro_batches, update=True))
    with threadpool_limits(1, "blas"), ThreadCluster(devices) as cluster:
        own = {r: {n: a for n, a in arrays.items() if made.rank_of(n) == r} for r in range(devices)}
        session = Session(made, cluster, own, optimizer=SGD(0.1, momentum=0.9))
        return [session.step(feeds)["nll_nll"] for _ in range(steps)]


def test_model_parallel_mlp_has_the_losses_of_one_device():
    """X18: each step's loss, to the bit."""
    alone = mnist_losses(1)
    assert alone == mnist_losses(2)
    assert alone == sorted(alone, reverse=True)
    assert mnist_losses(1, 4, 2) == mnist_losses(2, 4, 2)
