"""Custom: operators that users write with arrays, as classes (MXNet's CustomOp and CustomOpProp).

A CustomOpProp states names, shapes and dtypes, and makes a CustomOp, which computes. A call makes
new objects of both, forward and backward apart: a pipeline runs several micro-batches forward
before the first one backward, so an attribute that `forward` sets would be another micro-batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from symgraph.core.batch_layout import PARTIAL, WHOLE, Layout, Layouts, Split, refuse_mixing
from symgraph.core.context import Context, cpu
from symgraph.core.errors import GraphError, nearest
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import Call, Env, Names, Shapes, complete, forget_types, register
from symgraph.core.types import Array, Types, is_float
from symgraph.frontend.ndarray import NDArray
from symgraph.ops.elementwise import DTypes


class CustomOp:
    """The computation of a custom operator, to be derived from (`mx.operator.CustomOp`).

    Arrays are on the host, on GPUs too; those that hold inputs are read only.
    """

    def forward(
        self,
        is_train: bool,
        req: Sequence[str],
        in_data: Sequence[NDArray],
        out_data: Sequence[NDArray],
        aux: Sequence[NDArray],
    ) -> None:
        """Compute the outputs, and `assign` them to out_data.

        Args:
            is_train: whether this is a training step.
            req: "write" for each output.
            in_data: the inputs.
            out_data: arrays for the outputs.
            aux: an empty list.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method forward")

    def backward(
        self,
        req: Sequence[str],
        out_grad: Sequence[NDArray],
        in_data: Sequence[NDArray],
        out_data: Sequence[NDArray],
        in_grad: Sequence[NDArray],
        aux: Sequence[NDArray],
    ) -> None:
        """Compute the gradients of the inputs, and `assign` them to in_grad.

        Args:
            req: "write" for each input.
            out_grad: the gradients of the outputs; empty with need_top_grad=False.
            in_data: the inputs.
            out_data: the outputs.
            in_grad: arrays for the gradients, which hold zeros.
            aux: an empty list.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method backward")

    def assign(self, dst: Array, req: str, src: Any) -> None:
        """Store src in dst (req "write", "inplace"), add it ("add"), or do nothing ("null")."""
        if req in ("write", "inplace"):
            dst[...] = src
        elif req == "add":
            dst[...] += src


class CustomOpProp:
    """The properties of a custom operator, to be derived from (`mx.operator.CustomOpProp`).

    Arguments of `sym.Custom` other than symbols, name and op_type are passed to the constructor, as
    strings.

    Args:
        need_top_grad: whether `backward` needs the gradients of the outputs; without them the
            operator is a loss, which starts the backward pass.
    """

    #: Whether each row of the outputs, along axis 0, depends on the same row of the inputs alone,
    #: in both passes, besides inputs that do not depend on the batch. Only then can it run in
    #: micro-batches. Not in MXNet.
    per_sample = False

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Return the names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Return no names: auxiliary states of custom operators are not supported."""
        return []

    def infer_shape(self, in_shape: list[list[int]]) -> Sequence[Any]:
        """Return the shapes of inputs and outputs, given those of the inputs ([] if unknown)."""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any]) -> Sequence[Any]:
        """Return the numpy dtypes of inputs and outputs, given those of the inputs."""
        return in_type, [in_type[0]] * len(self.list_outputs()), []

    def declare_backward_dependency(
        self, out_grad: list[int], in_data: list[int], out_data: list[int]
    ) -> list[int]:
        """Return the arrays that `backward` reads; the answer changes nothing here."""
        return [*(out_grad if self.need_top_grad_ else []), *in_data, *out_data]

    def create_operator(
        self, ctx: Context, in_shapes: list[list[int]], in_dtypes: list[Any]
    ) -> CustomOp:
        """Return the computation for inputs of these shapes and dtypes."""
        return CustomOp()


Prop = TypeVar("Prop", bound=type[CustomOpProp])
PROPS: dict[str, type[CustomOpProp]] = {}


def register_custom(reg_name: str) -> Callable[[Prop], Prop]:
    """Return a decorator that registers a CustomOpProp as `op_type` (`mx.operator.register`).

    As in MXNet, a later class of one name takes the earlier one's place. Raises TypeError for
    anything else.
    """

    def decorate(prop: Prop) -> Prop:
        if not (isinstance(prop, type) and issubclass(prop, CustomOpProp)):
            raise TypeError(f"custom operator {reg_name!r}: {prop!r} is not a CustomOpProp")
        PROPS[reg_name] = prop
        _facts.cache_clear()
        forget_types()
        return prop

    return decorate


def as_strings(given: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in dict(given).items()))


CUSTOM: Mapping[str, Param] = {
    "op_type": Param(str, kind="name of a registered CustomOpProp", type="str"),
    "kwargs": Param(as_strings, (), "further arguments of the CustomOpProp", gathers=True),
}


def prop_of(a: Attrs) -> CustomOpProp:
    return PROPS[a["op_type"]](**dict(a["kwargs"]))


class _Facts:
    """What a CustomOpProp says that does not depend on shapes."""

    def __init__(self, a: Attrs) -> None:
        prop = prop_of(a)
        self.arguments = tuple(prop.list_arguments())
        self.outputs = tuple(prop.list_outputs())
        self.needs_grad = prop.need_top_grad_
        self.per_sample = prop.per_sample
        if prop.list_auxiliary_states():
            raise GraphError(
                f"custom operator {a['op_type']!r} has auxiliary states "
                f"{prop.list_auxiliary_states()}, which are not supported"
            )


@lru_cache(maxsize=1 << 10)
def _facts(op_type: str, kwargs: tuple[tuple[str, str], ...]) -> _Facts:
    return _Facts({"op_type": op_type, "kwargs": kwargs})


def facts(a: Attrs) -> _Facts:
    if a["op_type"] not in PROPS:
        known = nearest(a["op_type"], PROPS)
        raise GraphError(f"no CustomOpProp is registered as {a['op_type']!r}; {known}")
    return _facts(a["op_type"], a["kwargs"])


def custom_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Ask the property, which need not cope with shapes that are unknown so far."""
    try:
        found = prop_of(site.attrs).infer_shape([list(s or ()) for s in ins])
    except Exception as error:
        if not all(map(complete, ins)):
            return ins, outs
        site.fail(f"infer_shape of {site.attrs['op_type']!r} fails for {list(ins)}: {error!r}")
    if len(found) < 2 or (len(found[0]), len(found[1])) != (len(ins), len(outs)):
        site.fail(
            f"infer_shape of {site.attrs['op_type']!r} must return shapes of {len(ins)} inputs "
            f"and of {len(outs)} outputs, not {found}"
        )
    before = [s or None for s in ins]
    given, made = ([tuple(s) or None for s in shapes] for shapes in found[:2])
    for name, old, new in zip(facts(site.attrs).arguments, before, given, strict=True):
        if old is not None and new is not None and complete(old) and complete(new) and old != new:
            site.fail(f"{name} of shape {old} does not fit {new}")
    inputs = [
        old if new is None or (old and complete(old)) else new
        for old, new in zip(ins, given, strict=True)
    ]
    return inputs, made


def custom_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """Ask the property; inputs of unknown dtype have that of the first known one."""
    default = next((d for d in ins if d is not None), "float32")
    given, made, *_ = prop_of(site.attrs).infer_type([np.dtype(d or default).type for d in ins])
    inputs: list[str | None] = [np.dtype(d).name for d in given]
    return inputs, [np.dtype(d).name for d in made]


def custom_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    rows = rows_of(site, ins)
    if rows is WHOLE:
        return [WHOLE] * len(outs)
    length = next(t.shape[0] for t, at in zip(in_types, ins, strict=True) if at == rows)
    for out in outs:
        if out.shape[:1] != (length,):
            refuse_mixing(site, f"has an output of shape {out.shape} for {length} samples")
    return [rows] * len(outs)


def rows_of(site: Site, ins: Layouts) -> Layout:
    """Return how the samples lie along axis 0, or WHOLE without any."""
    split = [layout for layout in ins if layout is not WHOLE]
    if not split:
        return WHOLE
    if not facts(site.attrs).per_sample:
        refuse_mixing(site, "may mix samples, unless its CustomOpProp says per_sample = True")
    rows = split[0]
    if not isinstance(rows, Split) or rows.axis != 0 or any(s != rows for s in split):
        refuse_mixing(site, "takes samples along axis 0 of its inputs only")
    return rows


def operator_for(a: Attrs, arrays: Sequence[Array]) -> CustomOp:
    """Return a new operator for inputs of these shapes and dtypes."""
    prop, shapes = prop_of(a), [list(x.shape) for x in arrays]
    prop.infer_shape([list(s) for s in shapes])
    return prop.create_operator(cpu(0), shapes, [x.dtype.type for x in arrays])


def on_host(env: Env, arrays: Sequence[Any]) -> list[NDArray]:
    """Return the arrays as read-only views, or as copies of those on a GPU."""
    views = [(x if env.xp is np else env.xp.asnumpy(x)).view(NDArray) for x in arrays]
    for view in views:
        view.flags.writeable = False
    return views


def custom(env: Env, a: Attrs, *arrays: Array) -> tuple[Any, ...]:
    site, count = Site("Custom", a["op_type"], a), len(facts(a).outputs)
    _, shapes = custom_shape(site, [x.shape for x in arrays], [None] * count)
    _, dtypes = custom_dtype(site, [x.dtype.name for x in arrays])
    outs = [
        np.zeros(shape or (), dtype).view(NDArray)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    operator_for(a, arrays).forward(env.train, ["write"] * count, on_host(env, arrays), outs, [])
    return tuple([env.xp.asarray(np.asarray(out)) for out in outs])


def custom_grad(c: Call) -> Sequence[Ref | None]:
    tops: list[Ref] = []
    if facts(c.attrs).needs_grad:
        if all(g is None for g in c.g):
            return [None] * len(c.x)
        tops = [g or apply("zeros_like", y) for g, y in zip(c.g, c.y, strict=True)]
    grads = apply_all("_custom_backward", *tops, *c.x, *c.y, **c.attrs)
    return [g if is_float(x.dtype) else None for g, x in zip(grads, c.x, strict=True)]


register(
    name="Custom",
    inputs=lambda attrs: facts(attrs).arguments,
    outputs=lambda attrs: facts(attrs).outputs,
    shape=custom_shape,
    compute=custom,
    grad=custom_grad,
    dtype=custom_dtype,
    batch=custom_batch,
    params=CUSTOM,
    loss=lambda attrs: not facts(attrs).needs_grad,
    reads_on_host=True,
    caption=lambda attrs: str(attrs["op_type"]),
    doc="The operator that a CustomOpProp registered as op_type describes; see "
    "symgraph.operator.CustomOp. Further arguments are passed to the CustomOpProp, as strings. "
    "MXNet Custom.",
)


def parts(a: Attrs, items: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Divide what belongs to the inputs of `_custom_backward` into gradients, inputs, outputs."""
    inputs, outputs = len(facts(a).arguments), len(facts(a).outputs)
    tops = len(items) - inputs - outputs
    return items[:tops], items[tops : tops + inputs], items[tops + inputs :]


def backward_inputs(a: Attrs) -> Names:
    outputs = facts(a).outputs
    tops = outputs if facts(a).needs_grad else ()
    return (*(f"grad_{name}" for name in tops), *facts(a).arguments, *outputs)


def backward_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    return [*ins], [d or "float32" for d in parts(site.attrs, ins)[1]]


def backward_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    rows = rows_of(site, ins)
    data = parts(site.attrs, ins)[1]
    return [PARTIAL if at is WHOLE and rows is not WHOLE else at for at in data]


def custom_backward(env: Env, a: Attrs, *arrays: Array) -> tuple[Any, ...]:
    tops, ins, outs = parts(a, on_host(env, arrays))
    grads = [np.zeros(x.shape, x.dtype).view(NDArray) for x in ins]
    operator_for(a, ins).backward(["write"] * len(ins), tops, ins, outs, grads, [])
    return tuple([env.xp.asarray(np.asarray(grad)) for grad in grads])


register(
    name="_custom_backward",
    inputs=backward_inputs,
    outputs=lambda attrs: tuple(f"grad_{name}" for name in facts(attrs).arguments),
    shape=lambda site, ins, outs: (ins, parts(site.attrs, ins)[1]),
    compute=custom_backward,
    dtype=backward_dtype,
    batch=backward_batch,
    params=CUSTOM,
    reads_on_host=True,
    caption=lambda attrs: str(attrs["op_type"]),
    doc="Gradients of the inputs of Custom: by the method backward of its CustomOp.",
)
