"""Messages: copies between groups, sends and receives of programs that describe one rank each."""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core import params
from symgraph.core.batch_layout import kept
from symgraph.core.errors import DTypeError
from symgraph.core.params import Param, Site
from symgraph.core.ref import apply
from symgraph.core.registry import COPY, FULL, Shapes, no_flops, register, same_dtype, same_memory
from symgraph.core.shapes import expect, same


def receive_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """The shape that is sent and the expected one determine each other."""
    because = f"which the receiver expects (sent by {site.attrs['source']!r})"
    known = expect(site, "a message", ins[0], site.attrs["shape"], because)
    known = expect(site, "a message", known, outs[0])
    return [known], [known]


def receive_dtype(site: Site, ins: Sequence[str | None]) -> tuple[list[str | None], list[str]]:
    wanted = site.attrs["dtype"]
    if ins[0] not in (None, wanted):
        raise DTypeError(
            f"{site.op} {site.name!r}: a message of {ins[0]} (sent by {site.attrs['source']!r}) is "
            f"no {wanted}, which the receiver expects; add a Cast"
        )
    return [wanted], [wanted]


# Its gradient is a copy too, so that a backward message is known by its forward copy.
register(
    name=COPY,
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: x,
    grad=lambda c: (apply(COPY, c.gy),),
    flops=no_flops,
    dtype=same_dtype,
    batch=kept,
    view=same_memory,
    doc="The same value, copied for another group. MXNet _CrossDeviceCopy.",
)


register(
    name="_receive",
    inputs=("data",),
    shape=receive_shape,
    compute=lambda env, a, x: x,
    grad=lambda c: (c.gy,),
    flops=no_flops,
    dtype=receive_dtype,
    batch=kept,
    params={
        "shape": params.integers(),
        "dtype": params.dtype(),
        "source": Param(str, kind="name"),
    },
    precision=FULL,
    doc="Data, which must have this shape (0: any length) and dtype. source: the node that sends "
    "it, for error messages.",
)


def connect_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    known = expect(site, "data", ins[0], outs[0])
    return [known, ins[1]], [known]


def connect_dtype(
    site: Site, ins: Sequence[str | None]
) -> tuple[list[str | None], list[str]]:  # the token's dtype does not matter
    data = ins[0] or "float32"
    return [data, ins[1]], [data]


register(
    name="_pseudo_connect",
    inputs=("data", "token"),
    shape=connect_shape,
    compute=lambda env, a, x, token: x,
    grad=lambda c: (c.gy, None),
    flops=no_flops,
    dtype=connect_dtype,
    batch=kept,
    doc="Data; what the token stands for becomes part of the network too.",
)
