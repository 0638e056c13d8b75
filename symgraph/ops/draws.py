"""Random values: uniform and normal numbers that do not depend on how the graph is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symgraph.core import params
from symgraph.core.params import Attrs, Param
from symgraph.core.rand import key, normal, uniform
from symgraph.core.registry import Env, register
from symgraph.core.shapes import same
from symgraph.core.types import Shape
from symgraph.ops.constants import SOURCE, given_dtype, given_shape, source_batch
from symgraph.ops.elementwise import floats
from symgraph.ops.random import PLACE, counters

Draw = Callable[[Any, int, Any, Attrs], Any]  # (array module, stream, counters, parameters)


def uniform_numbers(xp: Any, stream: int, numbers: Any, a: Attrs) -> Any:
    return uniform(xp, stream, numbers, "float64") * (a["high"] - a["low"]) + a["low"]


def normal_numbers(xp: Any, stream: int, numbers: Any, a: Attrs) -> Any:
    return normal(xp, stream, numbers, "float64") * a["scale"] + a["loc"]


def register_draw(name: str, draw: Draw, spec: dict[str, Param], doc: str) -> None:
    """Register an operator with a given shape, and `_<name>_like` with the shape of its input.

    Numbers are drawn in float64, so that other dtypes have the same numbers up to rounding.
    """

    def drawn(env: Env, a: Attrs, shape: Shape, dtype: Any) -> Any:
        stream = key(env.seed, a["stream"], env.step)
        return draw(env.xp, stream, counters(env, a, shape), a).astype(dtype)

    rest = (
        "The numbers are a function of seed, step, `stream` (the node's name) and the sample; "
        "axis, outer, inner and first as in Dropout. "
    )
    register(
        name=f"_random_{name}",
        inputs=(),
        shape=given_shape,
        compute=lambda env, a: drawn(env, a, a["shape"], a["dtype"]),
        flops=lambda attrs, ins, outs: 20 * outs[0].size,
        dtype=given_dtype,
        batch=source_batch,
        params={**spec, **SOURCE, **PLACE},
        aliases=(f"random_{name}", name),
        random=True,
        doc=f"{doc} of the given shape, in which one 0 may stand for the batch. {rest}MXNet "
        f"_random_{name}.",
    )
    register(
        name=f"_random_{name}_like",
        inputs=("data",),
        shape=same,
        compute=lambda env, a, x: drawn(env, a, x.shape, x.dtype),
        flops=lambda attrs, ins, outs: 20 * outs[0].size,
        dtype=floats,
        params={**spec, **PLACE},
        random=True,
        doc=f"{doc} of the shape and dtype of data. {rest}MXNet _random_{name}_like.",
    )


register_draw(
    "uniform",
    uniform_numbers,
    {"low": params.number(0.0), "high": params.number(1.0)},
    "Numbers evenly spread over [low, high)",
)
register_draw(
    "normal",
    normal_numbers,
    {"loc": params.number(0.0), "scale": params.number(1.0)},
    "Numbers of the normal distribution with mean loc and standard deviation scale",
)
