"""Random values that do not depend on how the graph is cut: draws of distributions, and shuffles.

Each distribution makes three operators: `_random_<name>` with a given shape, `_random_<name>_like`
with that of its input, and `_sample_<name>` with inputs for parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split, not_along, refuse_mixing
from symgraph.core.params import Attrs, Param, Site, literal
from symgraph.core.rand import bits, key
from symgraph.core.registry import Env, Partial, Shapes, register
from symgraph.core.shapes import same, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops import distributions as of
from symgraph.ops.constants import SOURCE, given_dtype, given_shape, source_batch
from symgraph.ops.elementwise import DTypes, floats
from symgraph.ops.random import PLACE, counters

REST = (
    "The numbers are a function of seed, step, `stream` (the node's name) and the sample; "
    "axis, outer, inner and first as in Dropout. "
)
SEARCHING = 50  # `temporaries` of distributions that draw again what they reject
MAYBE_DTYPE = params.optional(params.dtype())


def stream_of(env: Env, a: Attrs, shape: Shape) -> of.Stream:
    stream = key(env.seed, a["stream"], env.step)
    return of.Stream(env.xp, stream, counters(env, a, shape))


def bounded(low: float, high: float = math.inf, *, closed: bool = False, default: Any) -> Param:
    """Declare a float above `low` (or from there on, if closed) and up to `high`."""

    def parse(raw: Any) -> float:
        value = float(literal(raw))
        if not (low <= value if closed else low < value) or not value <= high:
            raise ValueError
        return value

    words = f"{'of' if closed else 'above'} {low:g}" + (" or more" if closed else "")
    end = f" up to {high:g}" if high < 9e9 else ""
    return Param(parse, default, f"float {words}{end}", type="float")


def sampled_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """(...) of each parameter to (..., *shape)."""
    common: Partial = None
    for shape in ins:
        common = unify(site, common, shape, "shapes of parameters")
    if common is None:
        return ins, outs
    return [common] * len(ins), [unify(site, (*common, *site.attrs["shape"]), outs[0])]


def sampled_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if any(layout != ins[0] for layout in ins) or not (ins[0] is WHOLE or type(ins[0]) is Split):
        refuse_mixing(site, f"has parameters whose batch lies differently ({list(ins)})")
    return [ins[0]] * len(outs)


def sampled_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, outs = floats(site, ins)
    return known, [site.attrs["dtype"] or outs[0]]


def register_draw(name: str, draw: of.Draw, spec: dict[str, Param], doc: str) -> None:
    """Register the operators of a distribution whose parameters are numbers.

    Numbers are drawn in float64, so that other dtypes have the same numbers up to rounding.
    """

    def drawn(env: Env, a: Attrs, shape: Shape, dtype: Any) -> Any:
        return draw(stream_of(env, a, shape), a).astype(dtype)

    searched = name not in ("uniform", "normal", "exponential")
    register(
        name=f"_random_{name}",
        inputs=(),
        shape=given_shape,
        compute=lambda env, a: drawn(env, a, a["shape"], a["dtype"]),
        flops=lambda attrs, ins, outs: 20 * outs[0].size,
        dtype=given_dtype,
        batch=source_batch,
        params={**spec, **SOURCE, **PLACE},
        aliases=(f"random_{name}", *((name,) if name in ("uniform", "normal") else ())),
        random=True,
        reads_on_host=searched,
        temporaries=SEARCHING if searched else 3,
        doc=f"{doc}, of the given shape, in which one 0 may stand for the batch. {REST}MXNet "
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
        reads_on_host=searched,
        temporaries=SEARCHING if searched else 3,
        doc=f"{doc}, of the shape and dtype of data. {REST}MXNet _random_{name}_like.",
    )


def register_sample(name: str, draw: of.Draw, spec: dict[str, Param], doc: str) -> None:
    """Register the operator of a distribution whose parameters are inputs."""

    def sampled(env: Env, a: Attrs, *given: Array) -> Any:
        shape = (*given[0].shape, *a["shape"])
        rank = len(a["shape"])
        values = {
            n: x.astype("float64").reshape(*x.shape, *(1,) * rank)
            for n, x in zip(spec, given, strict=True)
        }
        for n, x in values.items():
            for end in (float(x.min()), float(x.max())):
                try:
                    spec[n].parse(end)
                except ValueError:
                    raise ValueError(f"{n} has {end:g}, not a valid {spec[n].kind}") from None
        return draw(stream_of(env, a, shape), values).astype(a["dtype"] or given[0].dtype)

    register(
        name=f"_sample_{name}",
        inputs=tuple(spec),
        shape=sampled_shape,
        compute=sampled,
        flops=lambda attrs, ins, outs: 20 * outs[0].size,
        dtype=sampled_dtype,
        batch=sampled_batch,
        params={"shape": params.integers(()), "dtype": MAYBE_DTYPE, **PLACE},
        aliases=(f"sample_{name}",),
        random=True,
        reads_on_host=True,
        temporaries=SEARCHING,
        doc=f"{doc}: `shape` numbers for each element of the parameters, which are inputs of one "
        f"shape. {REST}MXNet _sample_{name}.",
    )


for name, draw, spec, doc in (
    (
        "uniform",
        of.uniform_values,
        {"low": params.number(0.0), "high": params.number(1.0)},
        "Numbers evenly spread over [low, high)",
    ),
    (
        "normal",
        of.normal_values,
        {"loc": params.number(0.0), "scale": params.number(1.0)},
        "Numbers of the normal distribution with mean loc and standard deviation scale",
    ),
    (
        "gamma",
        of.gamma_values,
        {"alpha": bounded(0, closed=True, default=1.0), "beta": bounded(0, default=1.0)},
        "Numbers of the gamma distribution with shape alpha and scale beta",
    ),
    (
        "exponential",
        of.exponential_values,
        {"lam": bounded(0, default=1.0)},
        "Numbers of the exponential distribution with rate lam",
    ),
    (
        "poisson",
        of.poisson_values,
        {"lam": bounded(0, closed=True, default=1.0)},
        "Counts of the Poisson distribution with mean lam",
    ),
    (
        "negative_binomial",
        of.negative_binomial_values,
        {"k": bounded(0, default=1.0), "p": bounded(0, 1, default=1.0)},
        "Counts of the negative binomial distribution: failures before k successes of probability "
        "p",
    ),
    (
        "generalized_negative_binomial",
        of.generalized_values,
        {
            "mu": bounded(0, closed=True, default=1.0),
            "alpha": bounded(0, closed=True, default=1.0),
        },
        "Counts of the negative binomial distribution with mean mu and dispersion alpha (variance "
        "mu + alpha * mu * mu)",
    ),
):
    register_draw(name, draw, spec, doc)
    register_sample(name, draw, spec, doc)


# -- whole numbers, classes, orders ----------------------------------------------------------------


def whole_numbers(env: Env, a: Attrs) -> Any:
    found = stream_of(env, a, a["shape"])
    spread = bits(env.xp, found.key, found.numbers) % (a["high"] - a["low"])
    return (spread.astype("int64") + a["low"]).astype(a["dtype"])


def whole_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    if site.attrs["low"] >= site.attrs["high"]:
        site.fail(f"no whole number is in [{site.attrs['low']}, {site.attrs['high']})")
    return given_shape(site, ins, outs)


register(
    name="_random_randint",
    inputs=(),
    shape=whole_shape,
    compute=whole_numbers,
    flops=lambda attrs, ins, outs: 10 * outs[0].size,
    dtype=given_dtype,
    batch=source_batch,
    params={
        "low": params.integer(),
        "high": params.integer(),
        **SOURCE,
        "dtype": params.dtype("int32"),
        **PLACE,
    },
    aliases=("random_randint",),
    random=True,
    doc="Whole numbers from low to high - 1, of the given shape, in which one 0 may stand for the "
    f"batch. {REST}MXNet _random_randint.",
)


def classes_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """(..., K) to (..., *shape); (1,) for one class of a single distribution."""
    data = ins[0]
    if data is None:
        return ins, outs
    made = (*data[:-1], *site.attrs["shape"]) or (1,)
    return ins, [unify(site, made, out, "output shapes") for out in outs]


def classes_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, (dtype,) = floats(site, ins)
    return known, [site.attrs["dtype"], *([dtype] if site.attrs["get_prob"] else [])]


def classes(env: Env, a: Attrs, data: Array) -> tuple[Array, ...]:
    """Find where a number drawn lies among the sums of the probabilities."""
    xp, size = env.xp, math.prod(a["shape"])
    shape = (*data.shape[:-1], *a["shape"])
    drawn = stream_of(env, a, shape or (1,)).uniform().reshape(-1, size)
    share = data.reshape(-1, data.shape[-1]).astype("float64")
    ends = xp.cumsum(share, axis=1)
    found = xp.zeros(drawn.shape, "int64")
    for k in range(data.shape[-1] - 1):
        found += drawn >= ends[:, k : k + 1] / ends[:, -1:]
    made = found.reshape(shape or (1,))
    if not a["get_prob"]:
        return (made.astype(a["dtype"]),)
    chosen = xp.take_along_axis(share, found, 1).reshape(made.shape)
    return made.astype(a["dtype"]), xp.log(xp.maximum(chosen, of.TINY)).astype(data.dtype)


def last_axis(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return (rank - 1,)


register(
    name="_sample_multinomial",
    inputs=("data",),
    outputs=lambda attrs: ("output", "prob") if attrs["get_prob"] else ("output",),
    shape=classes_shape,
    compute=classes,
    flops=lambda attrs, ins, outs: ins[0].size + outs[0].size * ins[0].shape[-1],
    dtype=classes_dtype,
    batch=not_along(last_axis, sampled_batch),
    params={
        "shape": params.integers(()),
        "get_prob": params.boolean(False),
        "dtype": params.dtype("int32"),
        **PLACE,
    },
    aliases=("sample_multinomial",),
    random=True,
    doc="Classes drawn by their probabilities, which are the last axis of the data: `shape` for "
    "each row. Probabilities need not add up to 1. get_prob: a second output, the logarithms of "
    f"the probabilities of what was drawn, without a gradient. {REST}MXNet _sample_multinomial.",
)


def shuffled(env: Env, a: Attrs, x: Array) -> Array:
    stream = key(env.seed, a["stream"], env.step)
    found: Array = x[env.xp.argsort(bits(env.xp, stream, env.xp.arange(len(x))))]
    return found


register(
    name="_shuffle",
    inputs=("data",),
    shape=same,
    compute=shuffled,
    flops=lambda attrs, ins, outs: ins[0].shape[0] * 20,
    batch=not_along(lambda attrs, rank: (0,)),
    params=PLACE,
    aliases=("shuffle",),
    random=True,
    doc="The rows of the data, along axis 0, in random order: a function of seed, step and "
    "`stream` (the node's name). MXNet _shuffle.",
)
