"""Costs of bodies before anything has run."""

from __future__ import annotations

import pytest

from partitioner import cut, group2ctx
from partitioner.cost import Speed
from runtime.calibrate import measure_speed
from symgraph import cpu, sym
from symgraph.lower import lower


def test_a_body_costs_its_operations_and_its_calls():
    net = sym.tanh(sym.FullyConnected(sym.Variable("x"), num_hidden=3, no_bias=True, name="fc"))
    graph = lower(net, {"x": (5, 4)})
    (body,) = cut(graph, group2ctx(graph, None, cpu(0))).bodies.values()
    flops = 2 * 5 * 4 * 3 + 5 * 3
    assert Speed(flops=1000.0, call=2.0).seconds(body) == pytest.approx(flops / 1000 + 2 * 2)


def test_measured_speed_is_positive():
    speed = measure_speed()
    assert speed.flops > 0
    assert speed.call > 0
