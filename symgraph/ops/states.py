"""Begin states: the zeros that a recurrent network starts from, one row per sample.

Only a network's data has the batch size of a state, so the operator reads it from the first input
of the sequence. Shapes, micro-batches and placement then follow from that input.
"""

from __future__ import annotations

from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split
from symgraph.core.params import Attrs, Site
from symgraph.core.registry import Env, Shapes, no_flops, register
from symgraph.core.shapes import unify
from symgraph.core.types import Array, Types


def begin_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    like, wanted = ins[0], site.attrs["shape"]
    if not wanted or wanted[0] or 0 in wanted[1:]:
        site.fail(f"shape={wanted} must have 0, the batch, as its first dimension and no other")
    rows = like[0] if like else 0
    out = unify(site, (rows, *wanted[1:]), outs[0], "output shapes")
    assert out is not None
    return [(out[0], *like[1:]) if like else like], [out]


def begin_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """The batch lies as in the rows of `like`, of which only the number is read."""
    layout = ins[0]
    return [layout if isinstance(layout, Split) and layout.axis == 0 else WHOLE]


def begin_state(env: Env, a: Attrs, like: Array) -> Any:
    return env.xp.zeros((like.shape[0], *a["shape"][1:]), like.dtype)


register(
    name="_begin_state",
    inputs=("like",),
    shape=begin_shape,
    compute=begin_state,
    flops=no_flops,
    batch=begin_batch,
    params={"shape": params.integers()},
    doc="Zeros of `shape`, whose first dimension is 0 and stands for that of `like`, in the dtype "
    "of `like`.",
)
