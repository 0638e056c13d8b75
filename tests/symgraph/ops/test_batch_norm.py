"""Convolutional networks with BatchNorm: on several devices, by micro-batches, and learning."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from symgraph.core.context import cpu
from symgraph.core.errors import MicroBatchError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from tests.helpers.pipelines import Case, assert_close, judge, make_plan, on_threads

BATCH, CLASSES = 6, 3
PLACE = {"body": cpu(0), "head": cpu(1)}


def block(x, number, filters, *, norm, **conv):
    """Convolution, norm and activation, as VGG and ResNet have them."""
    x = sym.Convolution(
        x, num_filter=filters, kernel=(3, 3), pad=(1, 1), no_bias=True, name=f"conv{number}", **conv
    )
    if norm:
        x = sym.BatchNorm(
            x,
            fix_gamma=False,
            momentum=0.75,
            name=f"norm{number}",
            use_global_stats=norm == "global",
        )
    return sym.LeakyReLU(x, act_type="leaky", slope=0.1, name=f"act{number}")


def network(norm):
    with AttrScope(ctx_group="body"):
        x = block(sym.Variable("data"), 1, 4, norm=norm)
        x = sym.LRN(x, nsize=3, alpha=0.1, name="lrn")
        x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name="pool1")
        skip = x
    with AttrScope(ctx_group="head"):
        x = block(x, 2, 6, norm=norm, num_group=2)
        x = block(x, 3, 4, norm=norm) + skip
        x = sym.Pooling(
            x,
            kernel=(3, 3),
            stride=(2, 2),
            pool_type="avg",
            pooling_convention="full",
            name="pool2",
        )
        x = sym.FullyConnected(sym.Flatten(x), num_hidden=CLASSES, name="fc")
        return sym.SoftmaxOutput(x, sym.Variable("label"), normalization="batch", name="softmax")


def case_of(norm, seed=0):
    symbol, rng = network(norm), np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, BATCH)
    data = rng.standard_normal((BATCH, 2, 8, 6)) + label[:, None, None, None]
    feeds = {"data": data, "label": label.astype("float64")}
    shapes, _, states = symbol.infer_shape(**{n: a.shape for n, a in feeds.items()})
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    arrays = {
        name: np.abs(rng.standard_normal(shape)) / 2 + 0.5
        if name.endswith(("gamma", "var"))
        else rng.standard_normal(shape) / 2
        for name, shape in zip(names, [*shapes, *states], strict=True)
        if name not in feeds
    }
    return Case(symbol, feeds, arrays)


def options(schedule="gpipe", micro_batches=1):
    return Options(PLACE, cpu(0), (cpu(0), cpu(1)), schedule, micro_batches)


@pytest.mark.parametrize("norm", [None, "global", "batch"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_devices_equal_the_reference(schedule, norm):
    case = case_of(norm)
    assert_close(on_threads(case, options(schedule)), judge(case))


@pytest.mark.parametrize("micro_batches", [2, 4])
@pytest.mark.parametrize("norm", [None, "global"])
def test_micro_batches_equal_the_reference(norm, micro_batches):
    case = case_of(norm)
    assert_close(on_threads(case, options("1f1b", micro_batches)), judge(case))


def test_statistics_of_the_batch_need_the_whole_batch():
    case = case_of("batch")
    make_plan(case, options("1f1b", 1))
    with pytest.raises(MicroBatchError, match="BatchNorm 'norm1' normalises by statistics of the"):
        make_plan(case, options("1f1b", 2))


def bound(case):
    shapes = {n: a.shape for n, a in case.feeds.items()}
    kinds = dict.fromkeys([*case.arrays, *case.feeds], "float64")
    made = case.symbol.simple_bind(cpu(0), type_dict=kinds, group2ctx=PLACE, **shapes)
    for name, array in case.arrays.items():
        (made.aux_dict if name in made.aux_dict else made.arg_dict)[name][:] = array
    return made


def test_moving_statistics_follow_those_of_the_batch_in_training_alone():
    """Through bind on two devices; the first norm reads the first convolution's output."""
    case = case_of("batch")
    shapes = {n: a.shape for n, a in (case.feeds | case.arrays).items()}
    inner = case.symbol.get_internals()["conv1_output"]
    read = {n: s for n, s in shapes.items() if n in inner.list_inputs()}
    graph = lower(inner, read, dict.fromkeys(read, "float64"))
    (x,) = evaluate(graph, {n: (case.feeds | case.arrays)[n] for n in read}, Env())
    rows = np.moveaxis(x, 1, -1).reshape(-1, 4)
    old_mean, old_var = case.arrays["norm1_moving_mean"], case.arrays["norm1_moving_var"]
    with bound(case) as executor:
        before = executor.forward(is_train=False, **case.feeds)[0].copy()
        np.testing.assert_array_equal(executor.aux_dict["norm1_moving_mean"], old_mean)
        for name, array in case.feeds.items():
            executor.arg_dict[name][:] = array
        executor.forward(is_train=True)
        executor.backward()
        mean, var = (executor.aux_dict[f"norm1_moving_{n}"] for n in ("mean", "var"))
        np.testing.assert_allclose(mean, 0.75 * old_mean + 0.25 * rows.mean(0), rtol=1e-10)
        np.testing.assert_allclose(var, 0.75 * old_var + 0.25 * rows.var(0), rtol=1e-10)
        assert np.abs(executor.forward(is_train=False)[0] - before).max() > 1e-6


def test_a_network_of_them_learns():
    """Gradient descent on six images whose mean tells their class."""
    case = case_of("batch")
    label = case.feeds["label"].astype(int)
    found = []
    with bound(case) as executor:
        for _ in range(100):
            probability = executor.forward(is_train=True, **case.feeds)[0]
            found.append(-np.log(probability[range(BATCH), label]).mean())
            executor.backward()
            for name in case.arrays:
                if name in executor.grad_dict:
                    executor.arg_dict[name][:] -= 0.2 * executor.grad_dict[name]
    assert found[-1] < 0.1 * found[0]
