"""Bidirectional and zoneout cells and loops in pipelines: devices, micro-batches, time segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgraph as sg
from runtime.planning.options import Options
from symgraph.core.context import cpu
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from tests.helpers.pipelines import (
    Case,
    assert_close,
    assert_same_bits,
    judge,
    on_devices,
    on_threads,
)

HIDDEN, STEPS, BATCH = 3, 4, 4


def two_layers(make: Any) -> Case:
    """Two cells, each in a group of its own, over (batch, steps, hidden) in float64."""
    rng = np.random.default_rng(0)
    with NameManager():
        with AttrScope(ctx_group="g0"):
            x: Any = sym.Variable("data")
        for layer in range(2):
            with AttrScope(ctx_group=f"g{layer}"):
                x, _ = make(layer).unroll(STEPS, x, merge_outputs=False)
        with AttrScope(ctx_group="g1"):
            out = sym.LinearRegressionOutput(sym.add_n(*x), sym.Variable("label"), name="loss")
    wide = out.infer_shape(data=(BATCH, STEPS, HIDDEN))[1][0]
    feeds = {
        "data": rng.standard_normal((BATCH, STEPS, HIDDEN)),
        "label": rng.standard_normal(wide),
    }
    shapes = out.infer_shape(**{n: a.shape for n, a in feeds.items()})[0]
    arrays = {
        name: rng.standard_normal(shape) / 2
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
        if name not in feeds
    }
    return Case(out, feeds, arrays)


def bidirectional(layer: int) -> Any:
    cells = (sg.rnn.LSTMCell(HIDDEN, prefix=f"{d}{layer}_") for d in "lr")
    return sg.rnn.BidirectionalCell(*cells, f"bi{layer}_")


def zoneout(layer: int) -> Any:
    return sg.rnn.ZoneoutCell(sg.rnn.LSTMCell(HIDDEN, prefix=f"l{layer}_"), 0.3, 0.4)


def loops() -> Case:
    """Two loops, each in a group of its own."""
    rng = np.random.default_rng(1)

    def body(data: Any, states: Any) -> Any:
        hidden = sym.FullyConnected(data, num_hidden=HIDDEN) + states[0]
        return hidden, [sym.tanh(hidden)]

    with NameManager():
        with AttrScope(ctx_group="g0"):
            x: Any = sym.transpose(sym.Variable("data"), axes=(1, 0, 2))
            x, ends = sym.contrib.foreach(body, x, [sym.zeros((0, HIDDEN), dtype="float64")])
        with AttrScope(ctx_group="g1"):
            x, _ = sym.contrib.foreach(body, x, ends)
            x = sym.transpose(x, axes=(1, 0, 2))
            out = sym.LinearRegressionOutput(x, sym.Variable("label"), name="loss")
    shapes = out.infer_shape(data=(BATCH, STEPS, HIDDEN))[0]
    arrays = {
        name: rng.standard_normal(shape) / 2
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
    }
    feeds = {name: arrays.pop(name) for name in ("data", "label")}
    return Case(out, feeds, arrays)


def options(devices: int, **more: Any) -> Options:
    groups = {"g0": cpu(0), "g1": cpu(devices - 1)}
    return on_devices(devices, groups, **more)


@pytest.mark.every(9)
@pytest.mark.parametrize("make", [bidirectional, zoneout, None], ids=["both", "zoneout", "loops"])
@pytest.mark.parametrize("segment", [None, 1, 2])
@pytest.mark.parametrize(("schedule", "micro_batches"), [("gpipe", 1), ("1f1b", 3)])
def test_cells_on_two_devices_are_the_reference(make, segment, schedule, micro_batches):
    case = loops() if make is None else two_layers(make)
    how = {"schedule": schedule, "micro_batches": micro_batches, "time_segment": segment}
    got = on_threads(case, options(2, **how))
    assert_close(got, judge(case, Env(train=True)))
    assert_same_bits(got, on_threads(case, options(1, **how)))
