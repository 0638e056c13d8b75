"""Every operator with a converter, against the reference: ONNX Runtime runs what is exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import GraphError
from symgraph.core.registry import OPS, by_its_parts
from symgraph.frontend.name import NameManager
from symgraph.interchange.onnx.writing.graph import CONVERTERS
from tests.helpers.onnx_runtime import check_export
from tests.helpers.operators import Maker, drawable

RANDOM = [op for op in OPS if OPS[op].random and op != "Dropout"]


# ONNX has no such functions, or nobody has asked for them: ROIPooling is MaxRoiPool there.
MISSING = {
    "BilinearSampler",
    "CTCLoss",
    "Correlation",
    "GridGenerator",
    "ROIPooling",
    "SpatialTransformer",
    "erfinv",
    "gamma",
    "gammaln",
}


@pytest.mark.every(5)
@pytest.mark.parametrize("op", [op for op in drawable() if op not in (*RANDOM, *MISSING)])
def test_what_runs_elsewhere_is_what_the_reference_computes(op, tmp_path):
    """With parameters, shapes and ids drawn as for random networks; samples kept apart or not."""
    cases = 0
    for seed in range(3):
        maker = Maker(np.random.default_rng(seed), "float32", apart=seed % 2 == 0)
        try:
            with NameManager():
                made = maker.call(op)
                maker.results(made)
        except GraphError:  # the values at hand do not suit it
            continue
        case = maker.case(made)
        cases += 1
        check_export(made, case.feeds, tmp_path, case.arrays, dynamic=maker.apart)
    assert cases


def test_every_operator_that_users_reach_has_a_converter():
    composite = {op for op in drawable() if OPS[op].compute is by_its_parts}
    assert {*drawable()} - {*CONVERTERS} - composite == MISSING
    assert [op for op in CONVERTERS if op not in OPS] == []


def data(*shape: int, low: float = -1.0) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, 1.0, shape).astype("float32")


X, W = sym.Variable("x"), sym.Variable("w")
IMAGE, ROWS, CUBE = data(2, 3, 9, 8), data(4, 6), data(4, 3, 5)
POOLED: list[dict[str, Any]] = [
    {"kernel": kernel, "stride": stride, "pad": pad, "pooling_convention": convention}
    for kernel, stride, pad in (((3, 3), (2, 2), (1, 1)), ((2, 3), (2, 2), (0, 0)))
    for convention in ("valid", "full", "same")
    if convention != "same" or not any(pad)
] + [{"kernel": (2, 2), "global_pool": True}]
KINDS: list[dict[str, Any]] = [
    {"pool_type": "max"},
    {"pool_type": "avg"},
    {"pool_type": "avg", "count_include_pad": False},
    {"pool_type": "sum"},
    *({"pool_type": "lp", "p_value": p} for p in (1, 2, 3)),
]


@pytest.mark.every(8)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("windows", POOLED, ids=str)
def test_pooling_in_every_form(windows, kind, tmp_path):
    check_export(sym.Pooling(X, **windows, **kind), {"x": IMAGE}, tmp_path, dynamic=True)


LABELS = np.array([1, -1, 3, 5], "float32")
LENGTHS = np.array([2, 1, 3, 3], "int32")
L, TIMED = sym.Variable("lengths"), {"use_sequence_length": True}
CASES: dict[str, tuple[Any, dict[str, np.ndarray]]] = {
    "activations": (
        sym.Group([sym.Activation(X, act_type=a) for a in ("sigmoid", "tanh", "softrelu")]),
        {"x": 5 * ROWS},
    ),
    "leaky relus": (
        sym.Group([sym.LeakyReLU(X, act_type=a) for a in ("elu", "selu", "gelu", "leaky")]),
        {"x": 3 * ROWS},
    ),
    "prelu, one slope for each channel": (sym.LeakyReLU(X, act_type="prelu"), {"x": IMAGE}),
    "steps of integers": (
        sym.Group([sym.floor(X), sym.round(X), sym.relu(X)]),
        {"x": (9 * ROWS).astype("int32")},
    ),
    "integers compared with a fraction": (X > 0.5, {"x": (2 * ROWS).astype("int32")}),
    "remainders of negative numbers": (sym.Group([X % 0.3, 0.3 % X]), {"x": ROWS}),
    "small differences": (sym.Group([sym.expm1(X), sym.log1p(X)]), {"x": 1e-4 * ROWS}),
    "sums of integers": (sym.add_n(X, X, X), {"x": (9 * ROWS).astype("int64")}),
    "softmax with a temperature": (sym.softmax(X, axis=0, temperature=0.5), {"x": ROWS}),
    "softmax over channels": (sym.SoftmaxActivation(X, mode="channel"), {"x": IMAGE}),
    "a loss over channels": (
        sym.SoftmaxOutput(X, multi_output=True),
        {"x": CUBE, "softmaxoutput0_label": np.zeros((4, 5), "float32")},
    ),
    "a logistic loss": (
        sym.LogisticRegressionOutput(X, sym.Variable("label")),
        {"x": ROWS, "label": ROWS},
    ),
    "sums for a perplexity": (
        sym.Group(sym.nll_stats(sym.softmax(X), L, use_ignore=True, ignore_label=-1)),
        {"x": ROWS, "lengths": LABELS},
    ),
    "full reductions": (
        sym.Group([sym.sum(X), sym.mean(X, keepdims=True), sym.max(X, axis=(0, 1)), sym.norm(X)]),
        {"x": ROWS},
    ),
    "reductions of other axes": (
        sym.Group([sym.sum(X, axis=1, exclude=True), sym.min(X, axis=(0, 1, 2), exclude=True)]),
        {"x": CUBE},
    ),
    "sums of magnitudes": (sym.norm(X, ord=1, axis=1), {"x": ROWS}),
    "the place of the largest": (
        sym.Group([sym.argmax(X), sym.argmin(X, axis=0), sym.argmax(X, axis=1, keepdims=True)]),
        {"x": ROWS},
    ),
    "the place in a vector": (sym.argmax(X, axis=0), {"x": data(5)}),
    "a norm along the last axis": (sym.BatchNorm(X, axis=-1, fix_gamma=False), {"x": CUBE}),
    "a norm of few axes": (sym.LayerNorm(X, axis=1), {"x": CUBE}),
    "neighbours of vectors": (sym.LRN(X, nsize=3, alpha=0.1), {"x": CUBE}),
    "a dense layer of each step": (sym.FullyConnected(X, num_hidden=2, flatten=False), {"x": CUBE}),
    "a dense layer of images": (sym.FullyConnected(X, num_hidden=2, no_bias=True), {"x": IMAGE}),
    "inner products": (sym.dot(X, W), {"x": data(5), "w": data(5)}),
    "products with a cube": (sym.dot(X, W), {"x": CUBE, "w": data(5, 2, 3)}),
    "products of turned matrices": (
        sym.dot(X, W, transpose_a=True, transpose_b=True),
        {"x": data(3, 2), "w": data(4, 3)},
    ),
    "many turned matrices": (
        sym.batch_dot(X, W, transpose_a=True),
        {"x": data(2, 3, 4), "w": data(2, 3, 5)},
    ),
    "attention": (
        sym.scaled_dot_product_attention(X, W, W, causal=True),
        {"x": data(2, 3, 4), "w": data(2, 5, 4)},
    ),
    "attention with a mask": (
        sym.scaled_dot_product_attention(X, X, X, W, use_mask=True, scale=0.7),
        {"x": data(2, 3, 4), "w": data(1, 3, 3)},
    ),
    "a convolution in groups": (
        sym.Convolution(X, kernel=(3, 2), stride=(2, 1), dilate=(1, 2), num_filter=6, num_group=3),
        {"x": IMAGE},
    ),
    "a deconvolution to a shape": (
        sym.Deconvolution(X, kernel=(3, 3), stride=(2, 2), target_shape=(18, 15), num_filter=2),
        {"x": IMAGE},
    ),
    "a deconvolution with more at the end": (
        sym.Deconvolution(X, kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 0), num_filter=2),
        {"x": IMAGE},
    ),
    "a deconvolution that is cut at one end": (
        sym.Deconvolution(X, kernel=(2, 2), target_shape=(9, 8), num_filter=2),
        {"x": IMAGE},
    ),
    "a crop from the middle": (sym.Crop(X, h_w=(4, 5), center_crop=True), {"x": IMAGE}),
    "mirrored borders": (
        sym.Pad(X, mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
        {"x": IMAGE},
    ),
    "every element twice": (sym.repeat(X, repeats=2), {"x": ROWS}),
    "tiles on new axes": (sym.tile(X, reps=(2, 1, 3)), {"x": ROWS}),
    "a slice backwards": (
        sym.slice(X, begin=(None, 4), end=(None, 0), step=(-1, -2)),
        {"x": ROWS},
    ),
    "a slice from the end": (sym.slice_axis(X, axis=1, begin=-3, end=-1), {"x": ROWS}),
    "pieces of different sizes": (sym._cut(X, sizes=(1, 5), axis=1), {"x": ROWS}),
    "one piece": (sym.SliceChannel(X, num_outputs=1, axis=1), {"x": ROWS}),
    "all axes of length 1": (sym.squeeze(X), {"x": data(1, 1)}),
    "a class that is none": (sym.one_hot(X, depth=3, on_value=2, off_value=-1), {"x": LABELS}),
    "ids outside": (
        sym.Group([sym.take(W, X, mode=m) for m in ("clip", "wrap")]),
        {"x": np.array([-2, 1, 7], "int32"), "w": data(4, 2)},
    ),
    "picked and kept": (
        sym.pick(X, sym.Variable("at"), axis=1, keepdims=True, mode="wrap"),
        {"x": CUBE, "at": np.full((4, 5), -1, "int32")},
    ),
    "picked from a vector": (
        sym.pick(X, sym.Variable("at"), axis=0),
        {"x": data(5), "at": np.array([2], "int32")},
    ),
    "rows by a condition": (
        sym.where(sym.Variable("rows"), X, -X),
        {"rows": np.array([0, 1, 2, 0], "float32"), "x": CUBE},
    ),
    "sequences without lengths": (
        sym.Group([sym.SequenceMask(X), sym.SequenceLast(X, axis=1), sym.SequenceReverse(X)]),
        {"x": CUBE},
    ),
    "sequences with time first": (
        sym.Group(
            [
                sym.SequenceMask(sym.SwapAxis(X, dim1=0, dim2=1), L, value=7, **TIMED),
                sym.SequenceLast(sym.SwapAxis(X, dim1=0, dim2=1), L, **TIMED),
                sym.SequenceReverse(sym.SwapAxis(X, dim1=0, dim2=1), L, **TIMED),
            ]
        ),
        {"x": CUBE, "lengths": LENGTHS},
    ),
    "constants of the batch's length": (
        X + sym.zeros((0, 6)) + sym.full((0, 6), val=3),
        {"x": ROWS},
    ),
    "dropout outside training": (sym.Dropout(X, p=0.9), {"x": ROWS}),
    "other dtypes": (
        sym.Group([sym.Cast(X, dtype="int32"), sym.Cast(X, dtype="bool")]),
        {"x": 3 * ROWS},
    ),
}


@pytest.mark.every(6)
@pytest.mark.parametrize("case", CASES)
def test_forms_that_random_networks_do_not_have(case, tmp_path):
    net, inputs = CASES[case]
    check_export(net, inputs, tmp_path)
