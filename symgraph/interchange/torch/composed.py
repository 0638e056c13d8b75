"""Converters of functions that are composed of arithmetic: thresholds, distances, divergences."""

from __future__ import annotations

import math
from typing import Any

from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.arithmetic import floats, root
from symgraph.interchange.torch.call import Call, converts
from symgraph.interchange.torch.losses import reduced


@converts("threshold")
def threshold(c: Call) -> Symbol:
    x = c.x()
    return sym.where(x > c.number("threshold"), x, sym.zeros_like(x) + c.number("value"))


@converts("softshrink hardshrink")
def shrink(c: Call) -> Symbol:
    """Set what is near 0 to 0; the soft kind moves the rest towards it."""
    x, bound = floats(c), c.number("lambd", 0.5)
    far = x - sym.sign(x) * bound if "soft" in c.node.target else x
    return sym.where(sym.abs(x) > bound, far, sym.zeros_like(x))


@converts("celu")
def celu(c: Call) -> Symbol:
    alpha = c.number("alpha", 1)
    return sym.LeakyReLU(floats(c) * (1 / alpha), act_type="elu", slope=1.0) * alpha


@converts("exp2")
def exp2(c: Call) -> Symbol:
    made: Symbol = sym.exp(floats(c) * math.log(2))
    return made


@converts("lerp")
def lerp(c: Call) -> Symbol:
    step = sym.broadcast_sub(c.x("end"), c.x())
    step = sym.broadcast_mul(step, c.x("weight")) if c.has("weight") else step * c.number("weight")
    return sym.broadcast_add(c.x(), step)


@converts("isnan")
def isnan(c: Call) -> Symbol:
    x = c.x()
    return sym.Cast(x != x, dtype="int32")


@converts("randn_like rand_like")
def random_like(c: Call) -> Symbol:
    """Return fresh numbers at each step; no seed of PyTorch gives the same."""
    make = sym._random_normal_like if "randn" in c.node.target else sym._random_uniform_like
    return make(c.x(dtype=c.out.dtype))


@converts("cosine_similarity")
def cosine_similarity(c: Call) -> Symbol:
    """Divide products by norms, each of which is bounded from below."""
    rank = max(len(c.meta(name).shape) for name in ("x1", "x2"))
    axis, eps = c.integer("dim", 1) % rank, c.number("eps", 1e-8)
    parts = []
    for name in ("x1", "x2"):
        shape = c.meta(name).shape
        x = c.x(name, c.out.dtype)
        x = x if len(shape) == rank else c.reshape(x, (1,) * (rank - len(shape)) + tuple(shape))
        norm = root(sym.sum(sym.square(x), axis=axis, keepdims=True))
        parts.append(sym.broadcast_div(x, sym.maximum(norm, eps)))
    return sym.sum(sym.broadcast_mul(*parts), axis=axis)


@converts("pairwise_distance")
def pairwise_distance(c: Call) -> Symbol:
    if c.number("p", 2) not in (1, 2):
        c.fail("only the norms of order 1 and 2 are supported")
    spread = sym.broadcast_sub(c.x("x1"), c.x("x2")) + c.number("eps", 1e-6)
    options: dict[str, Any] = {"axis": -1, "keepdims": bool(c.get("keepdim", False))}
    if c.number("p", 2) == 1:
        return sym.sum(sym.abs(spread), **options)
    return root(sym.sum(sym.square(spread), **options))


@converts("kl_div")
def kl_div(c: Call) -> Symbol:
    """A target of 0 adds nothing."""
    target, log = c.x("target"), bool(c.get("log_target", False))
    if log:
        return reduced(c, sym.exp(target) * (target - c.x()))
    zero = target == 0
    return reduced(c, target * (sym.log(target + zero) - c.x()))


@converts("_weight_norm _weight_norm_interface")
def weight_norm(c: Call) -> Any:
    """Return a weight of given norms, one for each place along an axis."""
    rank, axis = len(c.meta("v").shape), c.integer("dim", 0)
    axes = tuple(a for a in range(rank) if a != axis % rank) if axis != -1 else tuple(range(rank))
    v = c.x("v")
    norm = sym.sqrt(sym.sum(sym.square(v), axis=axes, keepdims=True))
    made = sym.broadcast_mul(v, sym.broadcast_div(c.x("g"), norm))
    return [made, None] if "interface" in c.node.target else made
