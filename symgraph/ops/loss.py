"""Heads of the backward pass: SoftmaxOutput, SVMOutput, the regression outputs and MakeLoss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.errors import DTypeError, GraphError
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import (
    FULL,
    Call,
    Env,
    HiddenInput,
    Shapes,
    complete,
    no_flops,
    register,
    same_memory,
)
from symgraph.core.shapes import expect, same, unify
from symgraph.core.types import Array, Shape, TensorType, Types, is_float
from symgraph.ops.elementwise import DTypes, floats
from symgraph.ops.formulas import sigmoid
from symgraph.ops.index import SHARD, checked, inside
from symgraph.ops.softmax import flops_per_element, softmax

NORMALIZATION = params.choice("null", "batch", "valid", default="null")
IGNORE = {"ignore_label": params.number(-1.0), "use_ignore": params.boolean(False)}


def valid_input(attrs: Attrs) -> Sequence[HiddenInput]:
    """Return the count that a SoftmaxOutput with normalization="valid" divides by.

    It is a node of its own, which a run in micro-batches computes once, from the labels of the
    whole batch.
    """
    if attrs["normalization"] != "valid":
        return ()
    return (HiddenInput("valid", "_valid_count", {k: attrs[k] for k in IGNORE}, ("label",)),)


def labelled(site: Site, ins: Sequence[str | None]) -> list[str | None]:
    """Data of floats; an unknown dtype of the label defaults to the data's."""
    data, label, *rest = ins
    data = data or "float32"
    if not is_float(data):
        raise DTypeError(f"{site.op} {site.name!r}: data is of floats, not {data}; add a Cast")
    return [data, label or data, *(r or "float64" for r in rest)]


def labelled_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known = labelled(site, ins)
    return known, [str(known[0])]


def ignored(a: Attrs, label: Array) -> Any:
    return label == a["ignore_label"]


def targets(xp: Any, a: Attrs, label: Array, classes: int) -> Array:
    """Return labels as class numbers, 0 for ignored ones; one out of range raises IndexError."""
    if a["use_ignore"]:
        label = xp.where(ignored(a, label), 0, label)
    return checked(label, classes, "label")


def valid_count(env: Env, a: Attrs, label: Array) -> Any:
    if not a["use_ignore"]:
        return env.xp.full(1, max(label.size, 1), "float64")
    count = (~ignored(a, label)).sum(keepdims=True).reshape(1)
    return env.xp.maximum(count.astype("float64"), 1)


def whole_only(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if ins[0] is not WHOLE:
        refuse_mixing(site, "counts the valid labels of the batch")
    return [WHOLE]


register(
    name="_valid_count",
    inputs=("label",),
    shape=lambda site, ins, outs: (ins, [(1,)]),
    compute=valid_count,
    flops=no_flops,
    dtype=lambda site, ins: ([ins[0] or "float32"], ["float64"]),
    batch=whole_only,
    whole_batch=True,
    params=IGNORE,
    doc="The number of labels that are not ignored, at least 1: shape (1,), float64.",
)


def class_axis(a: Attrs) -> int:
    return 1 if a.get("multi_output") else -1


def classes_of(attrs: Attrs, ins: Types) -> int:
    """Return the number of classes that a label may name."""
    return int(attrs.get("classes") or ins[0].shape[class_axis(attrs)])


def without_classes(a: Attrs, data: Shape) -> Shape:
    return data[:1] + data[2:] if a["multi_output"] else data[:-1]


def with_classes(a: Attrs, label: Shape, classes: int) -> Shape:
    at = 1 if a["multi_output"] else len(label)
    return (*label[:at], classes, *label[at:])


def head_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, label, *valid = ins
    a = site.attrs
    data = unify(site, data, outs[0], "shapes of data and output")
    if data is None and label is not None and not a["multi_output"]:
        data = with_classes(a, label, 0)
    if data is None:
        return ins, outs
    if len(data) < 2 or (len(data) > 2 and not (a["multi_output"] or a["preserve_shape"])):
        site.fail(
            f"data of shape {data} is not (samples, classes); give preserve_shape=True for "
            "classes on the last axis or multi_output=True for classes on axis 1"
        )
    if label is not None and is_soft(data, label, a["multi_output"]):
        label = data = unify(site, data, label, "shapes of data and label")
        return [data, label, *valid], [data]
    if label is None and a["multi_output"] and complete(data):
        label = flat_label(data)
    if label is not None and a["multi_output"] and len(label) != len(data) - 1:
        check_flat_label(site, data, label)
    else:
        wanted = without_classes(a, data)
        label = expect(site, "label", label, wanted, f"(data of shape {data})")
        assert label is not None
        data = with_classes(a, label, data[class_axis(a)])
    return [data, label, *(expect(site, "valid", v, (1,)) for v in valid)], [data]


def is_soft(data: Shape, label: Shape, multi_output: bool) -> bool:
    """Tell whether the label has a probability for each class: it has the data's shape (MXNet)."""
    return data == label if multi_output else len(data) == len(label)


def flat_label(data: Shape) -> Shape:
    """Return MXNet's shape (B, d*...) for an unknown label of data (B, C, d, ...)."""
    return data[0], math.prod(data[2:])


def check_flat_label(site: Site, data: Shape, label: Shape) -> None:
    """Accept the label shapes (B, d*...) and (B, 1, d, ...) for data (B, C, d, ...) (MXNet)."""
    forms = flat_label(data), (data[0], 1, *data[2:])
    if complete(data) and complete(label) and label not in forms:
        site.fail(f"label of shape {label} does not fit data of shape {data}")


def head_grad(c: Call) -> Sequence[Ref | None]:
    """Return the gradient of SoftmaxOutput, whole or in a shard."""
    label, *more = c.x[1:]
    attrs = dict(c.attrs)
    valid = more[1:] if "begin" in attrs else more  # a shard has figures before it
    if attrs.pop("out_grad") and c.g[0] is None:
        raise GraphError(
            f"SoftmaxOutput {c.y[0].value.node!r} has out_grad=True, but neither an operator that "
            "reads its output nor backward's out_grads give it a gradient; leave out_grad away"
        )
    if label.shape == c.y[0].shape:
        grad = soft_grad(c.y[0], label) * attrs["grad_scale"]
    else:
        if attrs["normalization"] == "valid" and not valid:
            valid = [apply("_valid_count", label, **{k: attrs[k] for k in IGNORE})]
        grad = apply("_softmax_output_grad", c.y[0], label, *valid, **attrs)
    if c.attrs["out_grad"]:
        grad = grad * c.gy
    return [grad, *[None] * (len(c.x) - 1)]


def soft_grad(prob: Ref, label: Ref) -> Ref:
    """Return the gradient for a probability of each class, which nothing divides (MXNet)."""
    return prob - (label if label.dtype == prob.dtype else apply("Cast", label, dtype=prob.dtype))


def head_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, label, *valid = ins
    a = site.attrs
    if data is WHOLE and label is WHOLE:
        return [WHOLE]
    if not isinstance(data, Split) or not isinstance(label, Split):
        refuse_mixing(site, "needs data and labels that both lie along the batch")
    if a["normalization"] == "valid" and valid != [WHOLE]:
        refuse_mixing(site, "divides by a count of labels that is not the whole batch's")
    classes = class_axis(a) % len(in_types[0].shape)
    if data.axis == classes:
        refuse_mixing(site, f"works along axis {classes}, where the batch lies")
    soft = in_types[0].shape == in_types[1].shape
    if a["multi_output"] and a["normalization"] == "null" and data.axis and not soft:
        refuse_mixing(site, "divides by the number of positions, along which the batch lies")
    if (
        label != data
        if soft
        else label != Split(data.axis - (data.axis > classes), data.outer, data.inner)
    ):
        refuse_mixing(
            site, f"has data and labels whose batch lies differently ({data} and {label})"
        )
    return [data]


HEAD = {
    "grad_scale": params.number(1.0),
    "ignore_label": IGNORE["ignore_label"],
    "multi_output": params.boolean(False),
    "use_ignore": IGNORE["use_ignore"],
    "preserve_shape": params.boolean(False),
    "normalization": NORMALIZATION,
}
SMOOTH = {"smooth_alpha": params.number(0.0), "count": params.integer(0)}

register(
    name="SoftmaxOutput",
    inputs=("data", "label"),
    shape=head_shape,
    compute=lambda env, a, x, *_: softmax(env.xp, x, class_axis(a)),
    grad=head_grad,
    flops=flops_per_element(4),
    dtype=labelled_dtype,
    batch=head_batch,
    params={**HEAD, "out_grad": params.boolean(False), **SMOOTH},
    divisor=lambda attrs, ins: ins[1].size,
    loss=True,
    aliases=("Softmax",),
    precision=FULL,
    in_place=((0, 0),),
    ids={"label": classes_of},
    hidden=valid_input,
    doc="Softmax over the last axis (axis 1 with multi_output), and a head of the backward pass: "
    "its gradient is that of cross entropy with the label, see `_softmax_output_grad`. label: "
    "class numbers of any dtype, shaped like the data without the class axis; or a probability for "
    "each class, shaped like the data: the gradient is (softmax - label) * grad_scale then. Data "
    "of more than 2 dimensions needs preserve_shape or multi_output. out_grad: multiply by the "
    "gradient that comes from operators behind it or from out_grads, which is ignored "
    "otherwise. A third, hidden input holds the count of valid labels (`valid_input`). MXNet "
    "SoftmaxOutput.",
)


def head_divisor(a: Attrs, label: Array) -> int:
    """Return MXNet's divisor, except for the count of valid labels."""
    if a["normalization"] == "batch":
        return int(a["count"]) or label.size
    return label.size // label.shape[0] if a["multi_output"] else 1


def softmax_output_grad(
    env: Env, a: Attrs, prob: Array, label: Array, valid: Array | None = None
) -> Array:
    xp, grad = env.xp, prob.copy()
    rows = xp.moveaxis(grad, class_axis(a), -1)  # a view: the classes of each label
    classes, label = classes_of(a, [TensorType(prob.shape)]), label.reshape(rows.shape[:-1])
    others = a["smooth_alpha"] / max(1, classes - 1)
    if others:
        rows -= others
    places, at = inside(xp, a, targets(xp, a, label, classes), rows.shape[-1])
    rows[(*places, at)] -= 1 - a["smooth_alpha"] - others
    if a["use_ignore"]:
        rows[ignored(a, label)] = 0
    if valid is not None:
        grad *= (a["grad_scale"] / valid).astype(grad.dtype)
    else:
        scale = a["grad_scale"] / head_divisor(a, label)
        if scale != 1:
            grad *= scale
    return grad


register(
    name="_softmax_output_grad",
    inputs=("prob", "label"),
    shape=head_shape,
    compute=softmax_output_grad,
    dtype=labelled_dtype,
    params={**HEAD, **SMOOTH, **SHARD},
    reads_on_host=True,
    in_place=((0, 0),),
    ids={"label": classes_of},
    doc="(prob - onehot(label)) * grad_scale / divisor; zero where the label is ignored. divisor: "
    "1 (or the number of positions with multi_output) for normalization 'null', the number of "
    "labels (or `count`, that of the whole batch) for 'batch', the third input for 'valid'. "
    "smooth_alpha moves that share from the label's 1 to the other classes. A label that is "
    "neither a class nor ignored raises IndexError. begin, classes: for a shard, which has "
    "the classes from `begin` on of `classes`; 0 means all.",
)


# -- SVMOutput ---------------------------------------------------------------------------------

PER_ROW = {"multi_output": False, "preserve_shape": True, "normalization": "null"}
SVM = {
    "margin": params.number(1.0),
    "regularization_coefficient": params.number(1.0),
    "use_linear": params.boolean(False),
}


def svm_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, label = ins
    if data is not None and label is not None and len(label) != len(data) - 1:
        site.fail(f"label of shape {label} does not fit data of shape {data}")
    return head_shape(site._replace(attrs=PER_ROW), ins, outs)


def svm_grad(env: Env, a: Attrs, x: Array, label: Array) -> Any:
    ids = checked(label, x.shape[-1], "label")
    sign = env.xp.where(ids[..., None] == env.xp.arange(x.shape[-1]), -1, 1).astype(x.dtype)
    excess = a["margin"] + sign * x  # of a wrong class above -margin, of the right one below it
    slope = excess > 0 if a["use_linear"] else 2 * env.xp.maximum(excess, 0)
    return sign * slope * x.dtype.type(a["regularization_coefficient"])


register(
    name="_svm_grad",
    inputs=("data", "label"),
    shape=svm_shape,
    compute=svm_grad,
    flops=flops_per_element(4),
    dtype=labelled_dtype,
    params=SVM,
    reads_on_host=True,
    ids={"label": classes_of},
    doc="Gradient of the hinge losses of all classes: max(0, margin - data) of the label and "
    "max(0, margin + data) of the others, each squared unless use_linear, times "
    "regularization_coefficient. A label that is not a class raises IndexError.",
)

register(
    name="SVMOutput",
    inputs=("data", "label"),
    shape=svm_shape,
    compute=lambda env, a, x, label: x,
    grad=lambda c: (apply("_svm_grad", *c.x, **c.attrs), None),
    flops=no_flops,
    dtype=labelled_dtype,
    batch=lambda site, ins, in_types, outs: head_batch(
        site._replace(attrs=PER_ROW), ins, in_types, outs
    ),
    params=SVM,
    loss=True,
    precision=FULL,
    view=same_memory,
    ids={"label": classes_of},
    doc="The data, and the head of the backward pass: the gradient is that of a support vector "
    "machine with one class against the others, see `_svm_grad`. label: class numbers of any "
    "dtype, shaped like the data without the last axis. MXNet SVMOutput.",
)


# -- regression --------------------------------------------------------------------------------


def regression_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """The label may have any shape with the data's size and first dimension (MXNet)."""
    data, label = unify(site, ins[0], outs[0], "shapes of data and output"), ins[1]
    if data is None:
        return ins, outs
    if label is None:
        label = data[:1] if len(data) == 2 and data[1] == 1 else data
    elif not complete(data) or not complete(label):
        data = label = expect(site, "label", label, data, f"(data of shape {data})")
    elif label[:1] != data[:1] or math.prod(label) != math.prod(data):
        site.fail(f"label of shape {label} does not fit data of shape {data}")
    return [data, label], [data]


def regression_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, label = ins
    if data is WHOLE and label is WHOLE:
        return [WHOLE]
    if not isinstance(data, Split) or data != label:
        refuse_mixing(site, "needs data and labels whose batch lies alike")
    if data.axis != 0:
        refuse_mixing(
            site, "divides by the number of elements behind axis 0, where the batch lies too"
        )
    return [data]


def regression_grad(env: Env, a: Attrs, y: Array, label: Array) -> Any:
    grad = y - label.reshape(y.shape).astype(y.dtype, copy=False)
    if a["sign"]:
        env.xp.sign(grad, out=grad)
    grad *= a["grad_scale"] / (label.size // label.shape[0])
    return grad


register(
    name="_regression_grad",
    inputs=("output", "label"),
    shape=regression_shape,
    compute=regression_grad,
    dtype=labelled_dtype,
    params={"grad_scale": params.number(1.0), "sign": params.boolean(False)},
    doc="(output - label), or its sign, times grad_scale / the number of elements per row of axis "
    "0.",
)


def register_regression(name: str, formula: str, loss: str, *, sign: bool = False) -> None:
    logistic = name == "LogisticRegressionOutput"
    register(
        name=name,
        inputs=("data", "label"),
        shape=regression_shape,
        compute=lambda env, a, x, label: sigmoid(env.xp, x) if logistic else x,
        grad=lambda c: (
            apply("_regression_grad", c.y[0], c.x[1], grad_scale=c.attrs["grad_scale"], sign=sign),
            None,
        ),
        flops=flops_per_element(4) if logistic else no_flops,
        dtype=labelled_dtype,
        batch=regression_batch,
        params={"grad_scale": params.number(1.0)},
        loss=True,
        precision=FULL,
        view=None if logistic else same_memory,
        doc=f"{formula}, and the head of the backward pass: the gradient of {loss}, summed "
        f"over "
        "samples and averaged over the elements of a sample, times grad_scale. label: any "
        "dtype, "
        f"as many elements a row of axis 0 as the data. MXNet {name}.",
    )


register_regression("LinearRegressionOutput", "The data", "(data - label) ** 2 / 2")
register_regression("MAERegressionOutput", "The data", "|data - label|", sign=True)
register_regression("LogisticRegressionOutput", "sigmoid(data)", "the cross entropy with the label")


def make_loss_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, normalization = ins[0], site.attrs["normalization"]
    if data is not WHOLE and normalization == "valid":
        refuse_mixing(site, "divides by a count of valid elements of the batch")
    if isinstance(data, Split) and data.axis and normalization == "batch":
        refuse_mixing(
            site, f"divides by the length of axis 0, but the batch lies along axis {data.axis}"
        )
    return [data]


def make_loss_grad(env: Env, a: Attrs, x: Array) -> Any:
    scale = a["grad_scale"] * a["share"]
    if a["normalization"] == "batch":
        scale /= a["count"] or x.shape[0]
    elif a["normalization"] == "valid":
        scale = scale / env.xp.maximum((x > a["valid_thresh"]).sum(), 1)
    return env.xp.full_like(x, scale)


MAKE_LOSS = {
    "grad_scale": params.number(1.0),
    "valid_thresh": params.number(0.0),
    "normalization": NORMALIZATION,
    "count": params.integer(0),
    "share": params.number(1.0),
}

register(
    name="_make_loss_grad",
    inputs=("data",),
    shape=same,
    compute=make_loss_grad,
    dtype=floats,
    params=MAKE_LOSS,
    doc="grad_scale * share / divisor in every element; the divisor is 1, the length of axis 0 "
    "(or `count`), or the number of elements above valid_thresh, at least 1.",
)

register(
    name="MakeLoss",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: x,
    grad=lambda c: (apply("_make_loss_grad", c.x[0], **c.attrs),),
    flops=no_flops,
    dtype=floats,
    batch=make_loss_batch,
    params=MAKE_LOSS,
    divisor=lambda attrs, ins: ins[0].shape[0],
    loss=True,
    aliases=("make_loss",),
    precision=FULL,
    view=same_memory,
    doc="The data as a loss: a head of the backward pass whose gradient is grad_scale, divided by "
    "the length of axis 0 (normalization 'batch') or by the number of elements above "
    "valid_thresh ('valid'). share: the part of a loss without samples that each micro-batch "
    "contributes. MXNet MakeLoss.",
)
