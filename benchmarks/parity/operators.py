"""Single operators, many in one network, in the style of networks.py."""

from __future__ import annotations

from typing import Any

SMOOTH = (
    "abs",
    "arctan",
    "arcsinh",
    "cbrt",
    "cos",
    "cosh",
    "degrees",
    "erf",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "negative",
    "radians",
    "rcbrt",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "softmax",
    "softsign",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "hard_sigmoid",
    "smooth_l1",
    "log_softmax",
)
STEPS_OF_X = ("ceil", "fix", "floor", "logical_not", "rint", "round", "sign", "trunc")
BELOW_ONE = ("arccos", "arcsin", "arctanh")


def functions(mx: Any) -> Any:
    """Every function of one value, on x + 1.2, x alone or 6 x."""
    x = mx.sym.Variable("x")
    above, wide = x + 1.2, x * 6
    found = [getattr(mx.sym, name)(above, name=f"of_{name}") for name in (*SMOOTH, "arccosh")]
    found[-1] = mx.sym.arccosh(x + 1.7, name="of_arccosh")
    found += [getattr(mx.sym, name)(wide, name=f"of_{name}") for name in STEPS_OF_X]
    found += [getattr(mx.sym, name)(x, name=f"of_{name}") for name in BELOW_ONE]
    return mx.sym.Group(found)


def operators(mx: Any) -> Any:
    """Operators on two values of 4 axes, most of them called as methods or by position."""
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    row = x.slice_axis(axis=1, begin=0, end=1)
    return mx.sym.Group(
        [
            x % (y + 0.7),
            (x + 3) % 2,
            2 % (x + 0.7),
            mx.sym.hypot(x, y),
            mx.sym.hypot(x, 0.3),
            mx.sym.maximum(x, y),
            mx.sym.maximum(0.1, x),
            mx.sym.minimum(x, 0.1),
            mx.sym.power(x + 1.5, y),
            mx.sym.power(2, x),
            (x + 1.5) ** 3,
            1 / (x + 2) - y / 3,
            mx.sym.broadcast_mod(row, y + 0.7),
            mx.sym.broadcast_hypot(row, y),
            mx.sym.tile(row, reps=(1, 2, 1, 2)),
            x.repeat(repeats=2, axis=2),
            x.flip(axis=(0, 3)),
            row.broadcast_like(y),
            mx.sym.L2Normalization(x),
            mx.sym.L2Normalization(x, mode="channel"),
            mx.sym.L2Normalization(x, mode="spatial", eps=1e-3),
            mx.sym.transpose(x, (0, 2, 3, 1)),
            x.reshape((0, -3, -1)),
            x.reshape(shape=(-4, 1, -1, -2)),
            x.swapaxes(1, 3),
            x.expand_dims(2).squeeze(2),
            x.sum(axis=(1, 2)),
            x.mean(axis=1, exclude=True),
            x.norm(),
            x.max(axis=2, keepdims=True),
            x.min(axis=3),
            x.argmax(axis=1),
            x.argmin(axis=1),
            mx.sym.dot(x, y, transpose_b=False).reshape((-1,)).slice_axis(axis=0, begin=0, end=9),
            mx.sym.where(x > 0, x, y),
            x > y,
            x == y,
            x <= 0.1,
            mx.sym.clip(x, -0.2, 0.3),
            x.one_hot(3),
            x.slice(begin=(0, 1), end=(2, 3)),
            mx.sym.LRN(x, nsize=3),
            abs(x),
            -x,
            mx.sym.Pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 0, 1)),
            mx.sym.UpSampling(x, scale=2, sample_type="nearest"),
            mx.sym.SequenceMask(x, value=0.5),
            mx.sym.SequenceLast(x),
            mx.sym.SequenceReverse(x),
            mx.sym.full((2, 3), 1.5) * mx.sym.arange(3).reshape((1, 3)).broadcast_to((2, 3)),
            mx.sym.LeakyReLU(x, act_type="elu"),
            mx.sym.LeakyReLU(x, act_type="leaky", slope=0.1),
            mx.sym.stack(x, y, axis=1),
            mx.sym.concat(x, y, dim=3),
            mx.sym.add_n(x, y, x),
        ]
    )


def selection(mx: Any) -> Any:
    """Elements by index and by order."""
    x, y, places = (mx.sym.Variable(name) for name in ("x", "y", "places"))
    first = mx.sym.slice_axis(places, axis=0, begin=0, end=1)
    index = mx.sym.slice_axis(mx.sym.reshape(first, shape=(-1,)), axis=0, begin=0, end=3)
    return mx.sym.Group(
        [
            mx.sym.gather_nd(x, places),
            mx.sym.gather_nd(y, places),
            mx.sym.gather_nd(y, first),
            mx.sym.scatter_nd(x, mx.sym.arange(3).reshape((1, 3)) + 1, shape=(5, 4)),
            mx.sym.choose_element_0index(x, index),
            mx.sym.pick(x, index, mode="wrap"),
            mx.sym.take(x, index, axis=1, mode="wrap"),
            mx.sym.where(index, x, x * 2),
            mx.sym.sort(y, axis=0, is_ascend=False),
            y.sort(axis=-1),  # by its default axis MXNet finds no gradient
            y.argsort(axis=1),
            mx.sym.argsort(x, axis=None, is_ascend=False, dtype="int32"),
            x.topk(),
            mx.sym.topk(x, k=2, ret_typ="value", is_ascend=True),
            mx.sym.topk(y, k=3, axis=0, ret_typ="both"),
            mx.sym.topk(y, k=2, axis=1, ret_typ="mask"),
            mx.sym.topk(x, k=5, axis=None),
            mx.sym.topk(x, k=0, ret_typ="value"),
            x.slice_like(mx.sym.zeros((2, 3))),
            mx.sym.slice_like(y, mx.sym.zeros((9, 2)), axes=(-2,)),
            mx.sym.crop(y, begin=(1, 0), end=(3, 2)),
            mx.sym.tile(x, reps=()),
        ]
    )


def reductions(mx: Any) -> Any:
    """Products, running sums, logic, whole numbers, and products of arrays of three axes."""
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    some = mx.sym.where(x > 0, x, mx.sym.full((2, 3, 4), float("nan")))
    turned, whole = x.transpose((2, 0, 1)), mx.sym.Cast(x * 20, dtype="int32")
    return mx.sym.Group(
        [
            x.prod(),
            mx.sym.prod(x, axis=(0, 2), keepdims=True),
            mx.sym.prod(x, axis=1, exclude=True),
            x.nansum(axis=1),
            mx.sym.nansum(some, axis=2),
            x.nanprod(axis=2),
            mx.sym.nanprod(some, axis=0),
            mx.sym.cumsum(x, axis=1),
            mx.sym.cumsum(x),
            mx.sym.dot(turned, y.swapaxes(1, 2), transpose_a=True, transpose_b=True).sum(axis=0),
            mx.sym.dot(turned, y.swapaxes(0, 1), transpose_a=True).sum(axis=0),
            whole % 3,
            7 % (whole * whole + 1),
            mx.sym.broadcast_logical_and(x > 0, mx.sym.slice_axis(x, axis=0, begin=0, end=1)),
            mx.sym.broadcast_logical_or(x > 0, x > 0.2),
            mx.sym.broadcast_logical_xor(x > 0, x > 0.2),
            mx.sym.gamma(x + 1.5),
            mx.sym.gammaln(x + 1.5),
            mx.sym.erfinv(x),
        ]
    )


def images(mx: Any) -> Any:
    """Normalisation by sample, and larger images."""
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    up = {"scale": 2, "sample_type": "nearest"}
    return mx.sym.Group(
        [
            mx.sym.InstanceNorm(x, name="instance"),
            mx.sym.InstanceNorm(x, eps=0.1, name="other"),
            mx.sym.GroupNorm(x, num_groups=2, eps=0.01, name="group"),
            mx.sym.UpSampling(x, y, num_args=2, name="joined", **up),
            mx.sym.UpSampling(x, y, num_args=2, multi_input_mode="sum", name="added", **up),
            mx.sym.UpSampling(x, scale=2, sample_type="bilinear", num_filter=4, name="up"),
            mx.sym.UpSampling(x, scale=3, sample_type="bilinear", num_filter=4, name="more"),
            mx.sym.Reshape(x, shape=(-1, 0, 2), reverse=True),
            mx.sym.depth_to_space(x, block_size=2),
            y.space_to_depth(block_size=2),
            mx.sym.reshape_like(y, mx.sym.zeros((8, 1, 6)), lhs_end=2, rhs_end=2),
            x.softmin(axis=1),
        ]
    )


def soft_labels(mx: Any) -> Any:
    """SoftmaxOutput with a probability for each class."""
    x, y, p, q = (mx.sym.Variable(name) for name in "xypq")
    soft = mx.sym.SoftmaxOutput
    return mx.sym.Group(
        [
            soft(x, p, grad_scale=2.0, normalization="batch", name="plain"),
            soft(y, q, preserve_shape=True, smooth_alpha=0.1, name="last"),
            soft(y * 2, q, multi_output=True, use_ignore=True, ignore_label=0, name="second"),
        ]
    )


def svm(mx: Any) -> Any:
    """Both hinge losses, with rates for the parameters of an operator."""
    fc = mx.sym.FullyConnected(
        mx.sym.Variable("x"), num_hidden=4, lr_mult=2.0, wd_mult=0, name="fc"
    )
    return mx.sym.Group(
        [
            mx.sym.SVMOutput(fc, margin=0.3, name="squared"),
            mx.sym.SVMOutput(fc * 2, use_linear=True, regularization_coefficient=0.5, name="hinge"),
        ]
    )
