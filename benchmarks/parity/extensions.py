"""Networks around loops, losses, matrices and boxes, and one of an operator of one's own.

As in networks.py, `mx` is either mxnet or symgraph.
"""

from __future__ import annotations

from typing import Any

HIDDEN = 6


def ctc(mx: Any) -> Any:
    """The losses of connectionist temporal classification, with lengths and without."""
    data, label, length = (mx.sym.Variable(name) for name in ("data", "label", "length"))
    return mx.sym.Group(
        [
            mx.sym.CTCLoss(data, label, name="plain"),
            mx.sym.ctc_loss(data, label, length, use_data_lengths=True, name="timed"),
            mx.sym.contrib.ctc_loss(data, label - 1, blank_label="last", name="last"),
        ]
    )


def loop(mx: Any) -> Any:
    """A recurrent layer by foreach, with a value from outside and parameters from inside."""
    scale = mx.sym.exp(mx.sym.Variable("scale"))

    def body(data: Any, states: Any) -> Any:
        i2h = mx.sym.FullyConnected(data, num_hidden=HIDDEN, name="i2h")
        h2h = mx.sym.FullyConnected(states[0] * scale, num_hidden=HIDDEN, name="h2h")
        hidden = mx.sym.Activation(i2h + h2h, act_type="tanh")
        return [hidden, mx.sym.square(hidden)], [hidden]

    outs, (last,) = mx.sym.contrib.foreach(body, mx.sym.Variable("x"), [mx.sym.Variable("begin")])
    return mx.sym.Group([*outs, last])


def matrices(mx: Any) -> Any:
    """The operators of linalg."""
    a, b, c = (mx.sym.Variable(name) for name in "abc")
    wide = mx.sym.linalg.makediag(mx.sym.ones((2, 3)) * 2)
    lower, definite = a + wide, mx.sym.linalg.syrk(a, alpha=0.5) + wide
    right = {"rightside": True, "transpose": True, "alpha": 0.7}
    return mx.sym.Group(
        [
            mx.sym.linalg.gemm(a, b, c, alpha=0.5, beta=2),
            mx.sym.linalg.gemm2(b, a, transpose_a=True, name="product"),
            mx.sym.linalg_gemm2(b, c, transpose_b=True),
            mx.sym.linalg.syrk(b, transpose=True),
            mx.sym.linalg.trmm(lower, b),
            mx.sym.linalg.trmm(lower, b.transpose((0, 2, 1)), lower=False, **right),
            mx.sym.linalg.trsm(lower, b, lower=False),
            mx.sym.linalg.trsm(lower, b.transpose((0, 2, 1)), **right),
            mx.sym.linalg.potrf(definite),
            mx.sym.linalg.potri(lower),
            mx.sym.linalg.sumlogdiag(lower),
            mx.sym.linalg.extractdiag(a, offset=1),
        ]
    )


def places(mx: Any) -> Any:
    """Spatial transformers, correlation and pooling of regions."""
    x, y, theta, flow = (mx.sym.Variable(name) for name in ("x", "y", "theta", "flow"))
    affine = {"transform_type": "affine", "target_shape": (4, 3)}
    rois = mx.sym.concat(mx.sym.Variable("image"), mx.sym.Variable("corners"), dim=1)
    grid = mx.sym.GridGenerator(flow, transform_type="warp")
    patches = {"kernel_size": 3, "max_displacement": 2, "stride2": 2, "pad_size": 3}
    return mx.sym.Group(
        [
            mx.sym.SpatialTransformer(x, theta, sampler_type="bilinear", **affine),
            mx.sym.GridGenerator(theta, **affine),
            mx.sym.BilinearSampler(x, grid),
            mx.sym.Correlation(x, y, **patches),
            mx.sym.Correlation(x, y, stride1=2, pad_size=1, is_multiply=False),
            mx.sym.ROIPooling(x, rois, pooled_size=(2, 3), spatial_scale=0.7),
        ]
    )


def detector(mx: Any) -> Any:
    """The heads of a single-shot detector: anchors, targets and detections."""
    x = mx.sym.Variable("x")
    anchors = mx.sym.contrib.MultiBoxPrior(x, sizes=(0.6, 0.3), ratios=(1, 2), name="anchors")
    low, size = mx.sym.Variable("low") * 0.13, mx.sym.Variable("size") * 0.11 + 0.2
    label = mx.sym.concat(mx.sym.Variable("classes"), low, low + size, dim=2)
    scores = mx.sym.transpose(mx.sym.Variable("scores") * 4, axes=(0, 2, 1))
    mining = {"negative_mining_ratio": 2, "negative_mining_thresh": 0.6}
    plain = mx.sym.contrib.MultiBoxTarget(anchors, label, scores, overlap_threshold=0.3)
    mined = mx.sym.contrib.MultiBoxTarget(anchors, label, scores, name="mined", **mining)
    prob = mx.sym.softmax(scores, axis=1)
    shift = mx.sym.Variable("shift")
    found = mx.sym.contrib.MultiBoxDetection(prob, shift, anchors, nms_threshold=0.4, nms_topk=9)
    return mx.sym.Group([anchors, *plain, *mined, found, mx.sym.square(prob), x * 2])


def custom(mx: Any) -> Any:
    """An operator of one's own with two inputs, and a loss."""

    class Product(mx.operator.CustomOp):  # type: ignore[misc,name-defined]
        def forward(self, is_train, req, in_data, out_data, aux):  # type: ignore[no-untyped-def]
            self.assign(out_data[0], req[0], in_data[0] * in_data[1].asnumpy().mean())

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):  # type: ignore[no-untyped-def]
            x, y = (a.asnumpy() for a in in_data)
            self.assign(in_grad[0], req[0], out_grad[0] * y.mean())
            slope = (out_grad[0].asnumpy() * x).sum() / y.size
            self.assign(in_grad[1], req[1], mx.nd.ones(y.shape) * slope)

    @mx.operator.register("parity_product")
    class ProductProp(mx.operator.CustomOpProp):  # type: ignore[misc,name-defined]
        def list_arguments(self):  # type: ignore[no-untyped-def]
            return ["data", "other"]

        def infer_shape(self, in_shape):  # type: ignore[no-untyped-def]
            return in_shape, [in_shape[0]], []

        def create_operator(self, ctx, shapes, dtypes):  # type: ignore[no-untyped-def]
            return Product()

    x = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=3, name="fc")
    return mx.sym.Custom(x, mx.sym.Variable("y"), op_type="parity_product", name="product")
