"""Shape rules shared by operators: bidirectional, over partly known shapes."""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core.params import Site
from symgraph.core.registry import Partial, Shapes
from symgraph.core.types import Shape


def unify(site: Site, a: Partial, b: Partial, what: str = "shapes") -> Partial:
    """Combine what two partly known shapes say of one value; ShapeError for a contradiction."""
    if a is None or a == b:
        return b
    if b is None:
        return a
    if len(a) != len(b) or any(x != y and x and y for x, y in zip(a, b, strict=True)):
        site.fail(f"{what} differ: {a} and {b}")
    return tuple(x or y for x, y in zip(a, b, strict=True))


def expect(site: Site, what: str, known: Partial, wanted: Partial, because: str = "") -> Partial:
    """Combine an input's shape with what follows from the others; its errors name the input."""
    if known is not None and wanted is not None and known != wanted:
        differs = any(x != y and x and y for x, y in zip(known, wanted, strict=False))
        if len(known) != len(wanted) or differs:
            reason = f" {because}" if because else ""
            site.fail(f"{what} of shape {known} does not fit {wanted}{reason}")
    return unify(site, known, wanted)


def same(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Give all inputs and outputs one shape."""
    shape: Partial = None
    for other in (*ins, *outs):
        shape = unify(site, shape, other, "shapes of inputs")
    return [shape] * len(ins), [shape] * len(outs)


def broadcast(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Broadcast as numpy does; nothing is inferred backwards."""
    if any(s is None for s in ins):
        return ins, outs
    shapes = [s for s in ins if s is not None]
    rank = max(map(len, shapes))
    out: list[int] = []
    for axis in range(-rank, 0):
        dims = {s[axis] for s in shapes if len(s) >= -axis}
        wide = dims - {1}
        if len(wide - {0}) > 1:
            site.fail(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        out.append(max(wide - {0}, default=0) if 0 in dims else max(wide, default=1))
    return ins, [unify(site, tuple(out), outs[0], "output shapes")]


def axes_of(site: Site, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return sorted axes, 0 or more; None or () means all; ShapeError if one is out of range."""
    if axis is None or axis == ():
        return tuple(range(rank))
    wanted = (axis,) if isinstance(axis, int) else tuple(axis)
    for a in wanted:
        if not -rank <= a < rank:
            site.fail(f"axis {a} is out of range for {rank} dimensions")
    return tuple(sorted({a % rank for a in wanted}))


def axis_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Give all inputs and outputs one shape, which has the operator's axis."""
    ins, outs = same(site, ins, outs)
    if ins[0] is not None:
        axes_of(site, site.attrs["axis"], len(ins[0]))
    return ins, outs


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return the shape after a reduction over `axes` (0 or more): MXNet's (1,) for a full one."""
    kept = tuple(1 if a in axes else d for a, d in enumerate(shape) if keepdims or a not in axes)
    return kept or (1,)
