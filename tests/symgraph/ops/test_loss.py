"""Loss heads against their documented gradients, whole and in micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_dtypes, infer_shapes
from symgraph.frontend.lower import lower
from symgraph.passes.batching import micro_batch, prologue, split_sizes
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(9)


def normal(*shape):
    return RNG.standard_normal(shape)


def labels(classes, *shape, dtype="float64", low=0):
    return RNG.integers(low, classes, shape).astype(dtype)


def softmax(x, axis=-1):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def head(op, *arrays, **attrs):
    """The output of a loss head and the gradient of its data."""
    graph = op_graph(op, arrays, **attrs)
    both = gradients(graph, ["x0"])
    assert not both.heads, "a loss starts the backward pass itself"
    return evaluate(both.graph, {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)})


def expected(x, label, *, keep=None, scale=1.0, alpha=0.0):
    """(p - target) * scale for classes on the last axis."""
    hot = label.astype(int)[..., None] == np.arange(x.shape[-1])
    target = np.where(hot, 1 - alpha, alpha / (x.shape[-1] - 1))
    grad = (softmax(x) - target) * scale
    return grad if keep is None else grad * keep[..., None]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "int64", "uint8"])
def test_softmax_output_with_labels_of_any_dtype(dtype):
    x, label = normal(6, 5), labels(5, 6, dtype=dtype)
    out, grad = head("SoftmaxOutput", x, label, grad_scale=3)
    np.testing.assert_allclose(out, softmax(x), rtol=1e-12)
    np.testing.assert_allclose(grad, expected(x, label, scale=3), atol=1e-12)


@pytest.mark.parametrize("use_ignore", [False, True])
@pytest.mark.parametrize(
    ("normalization", "divisor"), [("null", (1, 1)), ("batch", (6, 6)), ("valid", (6, 4))]
)
def test_softmax_output_normalization(normalization, use_ignore, divisor):
    """'valid' leaves ignored labels out of the count, if they are ignored."""
    x, label = normal(6, 5), np.array([1, 3, 2, 3, 0, 4])
    _, grad = head(
        "SoftmaxOutput",
        x,
        label,
        normalization=normalization,
        use_ignore=use_ignore,
        ignore_label=3,
    )
    keep = label != 3 if use_ignore else None
    want = expected(x, label, keep=keep, scale=1 / divisor[use_ignore])
    np.testing.assert_allclose(grad, want, atol=1e-12)


def test_softmax_output_with_no_valid_label_has_no_gradient():
    _, grad = head(
        "SoftmaxOutput", normal(2, 3), np.array([-1, -1]), use_ignore=True, normalization="valid"
    )
    np.testing.assert_array_equal(grad, np.zeros((2, 3)))


def test_softmax_output_smooths_labels():
    x, label = normal(4, 5), labels(5, 4)
    _, grad = head("SoftmaxOutput", x, label, smooth_alpha=0.1)
    np.testing.assert_allclose(grad, expected(x, label, alpha=0.1), atol=1e-12)


@pytest.mark.parametrize("normalization", ["null", "batch", "valid"])
def test_softmax_output_keeps_its_shape(normalization):
    """Time-major (T, B, V): the divisor of 'batch' is the number of labels (MXNet)."""
    x, label = normal(3, 2, 5), labels(5, 3, 2)
    attrs = {"preserve_shape": True, "normalization": normalization}
    _, grad = head("SoftmaxOutput", x, label, **attrs)
    divisor = 1 if normalization == "null" else 6
    np.testing.assert_allclose(grad, expected(x, label, scale=1 / divisor), atol=1e-12)


@pytest.mark.parametrize(("normalization", "divisor"), [("null", 6), ("batch", 12), ("valid", 12)])
def test_softmax_output_for_many_positions(normalization, divisor):
    """Classes on axis 1; without a normalization MXNet divides by the number of positions."""
    x, label = normal(2, 5, 3, 2), labels(5, 2, 3, 2)
    for given in (label, label.reshape(2, 6), label[:, None]):
        out, grad = head("SoftmaxOutput", x, given, multi_output=True, normalization=normalization)
        want = expected(np.moveaxis(x, 1, -1), label, scale=1 / divisor)
        np.testing.assert_allclose(np.moveaxis(grad, 1, -1), want, atol=1e-12)
    np.testing.assert_allclose(out, softmax(x, 1), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_softmax_output_keeps_the_dtype_of_the_data(dtype):
    x, label = normal(6, 5).astype(dtype), labels(5, 6, dtype="int32")
    for normalization in ("null", "batch", "valid"):
        out, grad = head("SoftmaxOutput", x, label, normalization=normalization)
        assert out.dtype == grad.dtype == dtype


def test_softmax_output_is_cross_entropy():
    """The head's gradient is that of softmax_cross_entropy."""
    x, label = normal(6, 5), labels(5, 6)
    both = gradients(op_graph("softmax_cross_entropy", [x, label]), ["x0"])
    feeds = {"x0": x, "x1": label, both.heads[0]: np.ones(1)}
    _, grad = evaluate(both.graph, feeds)
    np.testing.assert_allclose(head("SoftmaxOutput", x, label)[1], grad, atol=1e-12)


def test_a_label_that_is_no_class_and_not_ignored_is_an_error():
    x = normal(2, 3)
    for label in ([0, 3], [0, -1]):
        with pytest.raises(IndexError, match=rf"label {label[1]} is outside 0\.\.2"):
            head("SoftmaxOutput", x, np.array(label))
    with pytest.raises(IndexError, match="label -2 is outside"):
        head("SoftmaxOutput", x, np.array([-1, -2]), use_ignore=True)


def test_the_gradient_of_a_head_output_counts_only_with_out_grad():
    x, label, weight = normal(2, 3), labels(3, 2), normal(2, 3)
    data, w = sym.Variable("x"), sym.Variable("w")
    for out_grad in (False, True):
        s = sym.SoftmaxOutput(data, name="s", out_grad=out_grad)
        graph = lower(sym.MakeLoss(s * w), {"x": (2, 3)}, {"x": "float64"})
        both = gradients(graph, ["x"])
        _, grad = evaluate(both.graph, {"x": x, "s_label": label, "w": weight})
        want = expected(x, label) * (weight if out_grad else 1)
        np.testing.assert_allclose(grad, want, atol=1e-12)
    graph = op_graph("SoftmaxOutput", [x, label], out_grad=True)
    with pytest.raises(GraphError, match="'op' has out_grad=True, but neither an operator that re"):
        gradients(graph, ["x0"], heads=False)


def test_a_head_that_is_an_output_waits_for_its_gradient_with_out_grad():
    """It was refused: only operators behind it could give it one."""
    x, label, weight = normal(2, 3), labels(3, 2), normal(2, 3)
    both = gradients(op_graph("SoftmaxOutput", [x, label], out_grad=True), ["x0"])
    _, grad = evaluate(both.graph, {"x0": x, "x1": label, both.heads[0]: weight})
    np.testing.assert_allclose(grad, expected(x, label) * weight, atol=1e-12)
    assert gradients(op_graph("SoftmaxOutput", [x, label]), ["x0"]).heads == {}


def test_softmax_output_infers_labels_and_data():
    data = sym.Variable("x")
    for shape, attrs, want in (
        ((6, 5), {}, (6,)),
        ((3, 2, 5), {"preserve_shape": True}, (3, 2)),
        ((2, 5, 3, 4), {"multi_output": True}, (2, 12)),
    ):
        symbol = sym.SoftmaxOutput(data, name="s", **attrs)
        assert infer_shapes(symbol, {"x": shape}).variables["s_label"] == want
    symbol = sym.SoftmaxOutput(data, name="s")
    found = infer_shapes(symbol, {"x": (0, 5), "s_label": (6,)})
    assert found.variables["x"] == (6, 5)
    assert infer_dtypes(symbol, {"x": "float64"}).variables["s_label"] == "float64"
    assert infer_dtypes(symbol, {"s_label": "int32"}).variables["x"] == "float32"


def test_softmax_output_names_wrong_shapes_and_dtypes():
    with pytest.raises(ShapeError, match=r"label of shape \(5,\) does not fit \(6,\) \(data of"):
        head("SoftmaxOutput", normal(6, 4), labels(4, 5))
    with pytest.raises(ShapeError, match=r"give preserve_shape=True .* or multi_output=True"):
        head("SoftmaxOutput", normal(3, 2, 4), labels(4, 3, 2))
    with pytest.raises(ShapeError, match=r"label of shape \(2, 5\) does not fit data of shape"):
        head("SoftmaxOutput", normal(2, 5, 3, 2), labels(5, 2, 5), multi_output=True)
    with pytest.raises(DTypeError, match="SoftmaxOutput 'op': data is of floats, not int32"):
        run_op("SoftmaxOutput", np.zeros((2, 3), "int32"), np.zeros(2))


def test_softmax_output_layouts():
    x, label = normal(6, 4), labels(4, 6)
    assert check_layout("SoftmaxOutput", [x, label], [Split(0)] * 2, 6, (4, 2)) == [Split(0)]
    x, label = normal(3, 6, 4), labels(4, 3, 6)
    both = [Split(1), Split(1)]
    found = check_layout("SoftmaxOutput", [x, label], both, 6, (4, 2), preserve_shape=True)
    assert found == [Split(1)]
    multi = {"multi_output": True, "normalization": "batch"}
    x, label = normal(3, 4, 6), labels(4, 3, 6)
    found = check_layout("SoftmaxOutput", [x, label], [Split(2), Split(1)], 6, (4, 2), **multi)
    assert found == [Split(2)]
    for layouts, attrs, message in (
        ([Split(2), Split(1)], {"multi_output": True}, "divides by the number of positions"),
        ([Split(1), Split(1)], multi, "works along axis 1"),
        ([Split(0), Split(1)], multi, "whose batch lies differently"),
        ([Split(0), WHOLE], multi, "both lie along the batch"),
        ([PARTIAL, Split(0)], multi, "both lie along the batch"),
        ([Split(0)] * 2, {**multi, "normalization": "valid"}, "count .* not the whole batch's"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("SoftmaxOutput", [x, label], layouts, 1, (1,), **attrs)


def test_the_count_of_valid_labels_is_a_node_of_its_own():
    symbol = sym.SoftmaxOutput(sym.Variable("x"), name="s", normalization="valid", use_ignore=True)
    assert symbol.list_arguments() == ["x", "s_label"]
    graph = lower(symbol, {"x": (4, 3)}, {"s_label": "int64"})
    assert [str(v) for v in graph["s"].inputs] == ["x", "s_label", "s_valid"]
    assert str(graph["s_valid"].types[0]) == "float64[1]"
    assert run_op("_valid_count", np.array([1, -1, 2]), use_ignore=True).tolist() == [2.0]
    assert run_op("_valid_count", np.array([1, -1, 2])).tolist() == [3.0]
    assert run_op("_valid_count", np.array([-1.0]), use_ignore=True).tolist() == [1.0]
    op, site = find("_valid_count"), Site("_valid_count", "s_valid", {})
    assert op.batch(site, [WHOLE], [], []) == [WHOLE]
    with pytest.raises(MicroBatchError, match="'s_valid' counts the valid labels of the batch"):
        op.batch(site, [Split(0)], [], [])


@pytest.mark.parametrize("op", ["SoftmaxOutput", "MakeLoss", "FullyConnected"])
def test_nothing_else_has_hidden_inputs(op):
    hidden = find(op).hidden or (lambda attrs: ())
    assert hidden({"normalization": "batch"}) == ()
    given = {"normalization": "valid", "ignore_label": 0.0, "use_ignore": True}
    assert bool(hidden(given)) == (op == "SoftmaxOutput")


def micro_batched_gradients(symbol, feeds, sizes, wrt):
    """d(loss)/d(wrt) of each micro-batch, with what the whole batch's labels say."""
    batch = sum(sizes)
    counts = prologue(whole_graph(symbol, feeds), feeds)
    known = zip(counts.outputs, evaluate(counts, feeds), strict=True)
    early = {value.node: array for value, array in known}
    found, start = [], 0
    for size in sizes:
        part = {n: a[start : start + size] for n, a in feeds.items()}
        ready = micro_batch(whole_graph(symbol, part), dict.fromkeys(feeds, 0), size, batch)
        both = gradients(ready.graph, [wrt])
        found.append(evaluate(both.graph, {**part, **early})[-1])
        start += size
    return found


def whole_graph(symbol, feeds):
    shapes = {n: a.shape for n, a in feeds.items()}
    return lower(symbol, shapes, {n: str(a.dtype) for n, a in feeds.items()})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (3, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize(
    ("normalization", "total", "label_logit"),
    [("null", 4.5, -0.75), ("batch", 1.125, -0.1875), ("valid", 1.5, -0.25)],
)
def test_micro_batches_normalize_by_the_whole_batch(
    normalization, total, label_logit, sizes, dtype
):
    """N1: zero logits, labels [1, 2, 3, -1]; averaging the parts' means would give -0.375."""
    symbol = sym.SoftmaxOutput(
        sym.Variable("x"), name="s", use_ignore=True, normalization=normalization
    )
    feeds = {"x": np.zeros((4, 4), dtype), "s_label": np.array([1, 2, 3, -1], "int32")}
    (whole,) = micro_batched_gradients(symbol, feeds, (4,), "x")
    parts = np.concatenate(micro_batched_gradients(symbol, feeds, sizes, "x"))
    np.testing.assert_array_equal(parts, whole)
    assert np.abs(parts).sum() == pytest.approx(total, rel=1e-6)
    assert parts[2, 3] == pytest.approx(label_logit, rel=1e-6)
    np.testing.assert_array_equal(parts[3], 0)


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 3])
@pytest.mark.parametrize("normalization", ["null", "batch", "valid"])
def test_any_number_of_micro_batches_gives_the_same_gradient(parts, normalization):
    """N2, on a batch of 8, in 3 parts as well."""
    symbol = sym.SoftmaxOutput(
        sym.Variable("x"), name="s", use_ignore=True, normalization=normalization
    )
    feeds = {"x": normal(8, 5), "s_label": labels(5, 8, low=-1)}
    want = head("SoftmaxOutput", *feeds.values(), use_ignore=True, normalization=normalization)[1]
    got = micro_batched_gradients(symbol, feeds, split_sizes(8, parts), "x")
    np.testing.assert_allclose(np.concatenate(got), want, atol=1e-15)


@pytest.mark.parametrize(("normalization", "divisor"), [("null", 1), ("batch", 4), ("valid", 5)])
def test_make_loss(normalization, divisor):
    x = np.array([[1.0, -2.0], [3.0, 0.5], [0.2, -1.0], [0.6, 0.7]])
    out, grad = head(
        "MakeLoss", x, grad_scale=3, normalization=normalization, valid_thresh=0.3, share=0.5
    )
    np.testing.assert_array_equal(out, x)
    np.testing.assert_allclose(grad, np.full((4, 2), 1.5 / divisor), rtol=1e-15)
    with pytest.raises(DTypeError, match="MakeLoss 'op': works on floats"):
        run_op("MakeLoss", np.arange(3))


def test_make_loss_counts_at_least_one_valid_element():
    _, grad = head("make_loss", -np.ones(3), normalization="valid")
    np.testing.assert_array_equal(grad, np.ones(3))


@pytest.mark.parametrize(
    ("layout", "sizes", "normalization"),
    [(Split(0), (3, 1), "batch"), (Split(1, 1, 2), (1, 2), "null"), (PARTIAL, (3, 1), "null")],
)
def test_make_loss_layouts(layout, sizes, normalization):
    x = normal(4, 6)
    found = check_layout("MakeLoss", [x], [layout], sum(sizes), sizes, normalization=normalization)
    assert found == [layout]


def test_make_loss_refuses_counts_of_a_part_of_the_batch():
    for layout, attrs, message in (
        (Split(0), {"normalization": "valid"}, "count of valid elements of the batch"),
        (PARTIAL, {"normalization": "valid"}, "count of valid elements of the batch"),
        (Split(1), {"normalization": "batch"}, "but the batch lies along axis 1"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("MakeLoss", [normal(4, 6)], [layout], 1, (1,), **attrs)


@pytest.mark.parametrize("sizes", [(6,), (4, 2), (1, 2, 3)])
def test_make_loss_of_a_penalty_counts_it_once(sizes):
    """A loss that no sample is in is the same in each micro-batch, which answers for its share."""
    x, w = sym.Variable("x"), sym.Variable("w")
    fit = sym.MakeLoss(sym.square(sym.broadcast_mul(x, w)), normalization="batch")
    group = sym.Group([fit, sym.MakeLoss(sym.square(w), grad_scale=0.3)])
    data, weight = normal(6, 3), normal(1, 3)
    total, start = np.zeros((1, 3)), 0
    for size in sizes:
        part = data[start : start + size]
        graph = whole_graph(group, {"x": part, "w": weight})
        both = gradients(micro_batch(graph, {"x": 0}, size, 6).graph, ["w"])
        total += evaluate(both.graph, {"x": part, "w": weight})[-1]
        start += size
    want = 2 * weight * (data**2).sum(0) / 6 + 0.6 * weight
    np.testing.assert_allclose(total, want, rtol=1e-12)


# -- a probability for each class ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis", "attrs"),
    [
        ((4, 5), -1, {"normalization": "batch", "use_ignore": True, "ignore_label": 0.25}),
        ((4, 5), -1, {"normalization": "valid", "smooth_alpha": 0.1}),
        ((2, 3, 5), -1, {"preserve_shape": True}),
        ((2, 5, 3), 1, {"multi_output": True}),
    ],
)
def test_labels_of_the_datas_shape_are_probabilities(shape, axis, attrs):
    """As in MXNet, nothing divides the gradient, and no label is ignored or smoothed."""
    x, label = normal(*shape), RNG.uniform(size=shape).astype("float32")
    out, grad = head("SoftmaxOutput", x, label, grad_scale=3, **attrs)
    np.testing.assert_allclose(out, softmax(x, axis), rtol=1e-12)
    np.testing.assert_allclose(grad, (softmax(x, axis) - label) * 3, rtol=1e-12)
    batch = shape[0]
    given = {k: v for k, v in attrs.items() if k != "normalization"}
    layouts = [Split(0), Split(0)]
    found = check_layout("SoftmaxOutput", [x, label], layouts, batch, (1, batch - 1), **given)
    assert found == [Split(0)]


def test_probabilities_and_data_lie_alike():
    x, label = normal(2, 5, 3), RNG.uniform(size=(2, 5, 3))
    with pytest.raises(MicroBatchError, match="whose batch lies differently"):
        check_layout(
            "SoftmaxOutput", [x, label], [Split(0), Split(1)], 1, (1,), preserve_shape=True
        )
    with pytest.raises(ShapeError, match="shapes of data and label differ"):
        run_op("SoftmaxOutput", normal(4, 5), normal(4, 6))


# -- SVMOutput -----------------------------------------------------------------------------------


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
def test_svm_output_has_the_gradient_of_hinge_losses(shape, linear):
    x, label = normal(*shape), labels(4, *shape[:-1])
    attrs = {"margin": 0.7, "regularization_coefficient": 0.5, "use_linear": linear}
    out, grad = head("SVMOutput", x, label, **attrs)
    np.testing.assert_array_equal(out, x)

    def loss(at):
        right = label.astype(int)[..., None] == np.arange(4)
        hinge = np.maximum(0, 0.7 + np.where(right, -at, at))
        return 0.5 * (hinge if linear else hinge**2).sum()

    slopes = np.zeros_like(x)
    for place in np.ndindex(*shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        slopes[place] = (loss(x + step) - loss(x - step)) / 2e-6
    np.testing.assert_allclose(grad, slopes, atol=1e-6)


def test_svm_output_labels_and_layouts():
    x = normal(4, 3)
    with pytest.raises(IndexError, match=r"label 3\.0 is outside 0\.\.2"):
        head("SVMOutput", x, np.array([0.0, 1, 3, 2]))
    with pytest.raises(ShapeError, match=r"label of shape \(4, 3\) does not fit data of shape"):
        run_op("SVMOutput", x, x)
    net = sym.SVMOutput(sym.Variable("x"), name="svm")
    assert infer_shapes(net, {"x": (2, 4, 3)}).variables["svm_label"] == (2, 4)
    label = labels(3, 4)
    assert check_layout("SVMOutput", [x, label], [Split(0)] * 2, 4, (1, 3)) == [Split(0)]
    with pytest.raises(MicroBatchError, match="works along axis 1, where the batch lies"):
        check_layout("SVMOutput", [x, label], [Split(1), Split(0)], 1, (1,))
