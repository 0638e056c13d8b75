"""Sleeping layers: operators of known cost, to test predictions without noise.

`_sleep(data, weight)` returns its data after some seconds; so do its two gradients.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from symgraph import AttrScope, Symbol, sym
from symgraph.core.params import Param, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, register
from symgraph.core.types import Array


def same_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Infer an output like the first input; a weight has one element."""
    return [ins[0], (1,)], [ins[0]]


def like_weight(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return list(ins), [(1,)]


def wait(seconds: float) -> None:
    """Wait until a point in time; `time.sleep` alone is some 60 to 150 µs late."""
    end = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 2e-4))
    while time.perf_counter() < end:
        pass


def sleep(env: Env, attrs: Any, data: Array, *weight: Array) -> Array:
    wait(attrs["seconds"])
    return env.xp.array(data)


def sleep_weight(env: Env, attrs: Any, grad: Array) -> Array:
    wait(attrs["seconds"])
    return grad.reshape(-1)[:1] * 1.0


def sleep_grad(c: Call) -> Sequence[Ref | None]:
    data = apply("_sleep_data", c.gy, seconds=c.attrs["input"])
    return data, apply("_sleep_weight", c.gy, seconds=c.attrs["parameter"])


SECONDS = Param(float, 0.0, "float")
register(
    name="_sleep",
    inputs=("data", "weight"),
    shape=same_shape,
    compute=sleep,
    grad=sleep_grad,
    params={"seconds": SECONDS, "input": SECONDS, "parameter": SECONDS},
    doc="The data, after `seconds`; gradients after `input` and `parameter` seconds.",
)
register(
    name="_sleep_data",
    inputs=("data",),
    shape=lambda site, ins, outs: (ins, [ins[0]]),
    compute=sleep,
    params={"seconds": SECONDS},
    doc="The data, after `seconds`.",
)
register(
    name="_sleep_weight",
    inputs=("data",),
    shape=like_weight,
    compute=sleep_weight,
    params={"seconds": SECONDS},
    doc="One element of the data, after `seconds`.",
)


def chain(costs: Sequence[tuple[float, float, float]]) -> Symbol:
    """Build a chain of layers in groups `g<layer>`, from (F, I, W) seconds per micro-batch."""
    x = sym.Variable("x")
    for layer, (forward, back, weight) in enumerate(costs):
        with AttrScope(ctx_group=f"g{layer}"):
            x = sym._sleep(
                x,
                sym.Variable(f"layer{layer}_weight"),
                seconds=forward,
                input=back,
                parameter=weight,
                name=f"layer{layer}",
            )
    with AttrScope(ctx_group=f"g{len(costs) - 1}"):
        return sym.MakeLoss(x, name="loss")
