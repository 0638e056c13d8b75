"""Devices: writing, reading and ordering them."""

from __future__ import annotations

import pytest

from symgraph.core.context import Context, cpu, cpu_pinned, current_context, gpu
from symgraph.core.errors import ConfigError


@pytest.mark.parametrize("context", [cpu(), cpu(3), gpu(), gpu(12)])
def test_text_round_trip(context):
    assert Context.parse(str(context)) == context
    assert Context.parse(f" {context!r} ") == context


def test_looks_like_mxnets():
    assert str(cpu()) == "cpu(0)"
    assert (gpu(2).device_type, gpu(2).device_id) == ("gpu", 2)
    assert Context("cpu") == cpu(0) != gpu(0)
    assert {cpu(0): "a", cpu(device_id=0): "b"} == {cpu(): "b"}


def test_order_is_kind_then_index():
    assert sorted([gpu(0), cpu(10), gpu(1), cpu(2)]) == [cpu(2), cpu(10), gpu(0), gpu(1)]


@pytest.mark.parametrize("text", ["cpu", "cpu(-1)", "cpu(a)", "tpu(0)", "cpu(0)x", "gpu()", ""])
def test_refuses_what_is_not_a_device(text):
    with pytest.raises(ConfigError, match=r"is not a device: write cpu\(N\) or gpu\(N\)"):
        Context.parse(text)


@pytest.mark.parametrize(("kind", "index"), [("tpu", 0), ("cpu", -1)])
def test_refuses_to_be_made_wrong(kind, index):
    with pytest.raises(ConfigError, match=rf"'{kind}\({index}\)' is not a device"):
        Context(kind, index)


def test_the_current_context_is_that_of_the_innermost_with():
    assert current_context() == cpu(0)
    with cpu(1) as outer, gpu(0):
        assert (outer, current_context()) == (cpu(1), gpu(0))
    with Context(outer):
        assert current_context() == cpu(1) == Context("cpu", 1)
    assert current_context() == cpu(0) == cpu_pinned() == Context("cpu_pinned")
