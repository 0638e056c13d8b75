"""MultiBoxPrior, -Target and -Detection; tests/system/test_parity.py has records of MXNet."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.passes.testing import run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(35)
PRIOR, TARGET, DETECTION = (f"_contrib_MultiBox{n}" for n in ("Prior", "Target", "Detection"))


def some_boxes(*shape):
    low = RNG.uniform(0, 0.6, (*shape, 2))
    return np.concatenate([low, low + RNG.uniform(0.1, 0.4, (*shape, 2))], -1)


ANCHORS, SCORES = some_boxes(1, 20), RNG.standard_normal((4, 3, 20))
LABELS = np.concatenate([RNG.integers(0, 2, (4, 3, 1)), some_boxes(4, 3)], 2)
LABELS[1, 1:] = LABELS[3] = -1
PROB = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
SHIFTS = RNG.standard_normal((4, 80)) / 3


def test_anchors():
    """One size at a pixel has the others' middle; ratios change the width by their root."""
    boxes = run_op(PRIOR, np.zeros((2, 3, 4, 8)), sizes=(0.5, 0.2), ratios=(1, 4))
    assert boxes.shape == (1, 4 * 8 * 3, 4)
    large, small, broad = boxes.reshape(4, 8, 3, 4)[1, 2]
    middle = [2.5 / 8, 1.5 / 4]
    for box, size in ((large, (0.25, 0.5)), (small, (0.1, 0.2)), (broad, (0.5, 0.25))):
        np.testing.assert_allclose((box[:2] + box[2:]) / 2, middle)
        np.testing.assert_allclose(box[2:] - box[:2], size)
    cut = run_op(PRIOR, np.zeros((2, 3, 4, 8)), sizes=0.5, clip=True)
    assert (cut.min(), cut.max()) == (0, 1)
    shifted = run_op(PRIOR, np.zeros((1, 1, 1, 2)), sizes=0.0, steps=(0.3, 0.2), offsets=(0, 1))
    np.testing.assert_allclose(shifted[0], [[0.2, 0, 0.2, 0], [0.4, 0, 0.4, 0]])
    found = check_layout(PRIOR, [np.zeros((4, 1, 2, 2))], [Split(0)], 4, (3, 1), sizes=0.5)
    assert found == [WHOLE]


def test_targets_as_in_mxnets_own_test():
    anchors = np.array([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]])
    scores, label = np.arange(10.0).reshape(1, 5, 2), np.array([[[1, 0.1, 0.1, 0.5, 0.6]]])
    given = {"overlap_threshold": 0.5, "negative_mining_ratio": 3, "negative_mining_thresh": 0.4}
    places, masks, classes = run_op(TARGET, anchors, label, scores, **given)
    np.testing.assert_allclose(places[0, :4], [5, 2.5, 3.4657359, 4.5814537], rtol=1e-6)
    np.testing.assert_array_equal(masks, [[1, 1, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(classes, [[2, 0]])


def test_targets_are_what_detections_undo():
    """From the targets and the right classes come the boxes of the labels."""
    places, masks, classes = run_op(TARGET, ANCHORS, LABELS, SCORES, overlap_threshold=0.0)
    assert masks.sum() == 4 * (classes > 0).sum() == 4 * (3 + 1 + 3)
    assert (classes[3] == -1).all()
    certain = np.stack([classes == k for k in (0, 1, 2)], 1).astype(float)
    found = run_op(DETECTION, certain, places, ANCHORS, nms_threshold=1.0, clip=False)
    for rows, label in zip(found, LABELS, strict=True):
        boxes = rows[rows[:, 0] >= 0]
        label = label[label[:, 0] >= 0]
        order, wanted = (np.lexsort(b.T) for b in (boxes[:, 2:], label[:, 1:]))
        np.testing.assert_allclose(boxes[order][:, [0, 2, 3, 4, 5]], label[wanted])


def test_what_overlaps_a_better_box_is_suppressed():
    anchors = np.array([[[0.1, 0.1, 0.5, 0.5], [0.1, 0.1, 0.5, 0.6], [0.6, 0.6, 0.9, 0.9]]])
    prob = np.array([[[0.2, 0.1, 0.3], [0.8, 0.1, 0.7], [0.0, 0.8, 0.0]]])
    given = {"nms_threshold": 0.6, "threshold": 0.1}
    apart = run_op(DETECTION, prob, np.zeros((1, 12)), anchors, **given)
    np.testing.assert_array_equal(apart[0, :, 0], [0, 1, 0])
    np.testing.assert_allclose(apart[0, :, 1], [0.8, 0.8, 0.7])
    one = run_op(DETECTION, prob, np.zeros((1, 12)), anchors, force_suppress=True, **given)
    np.testing.assert_array_equal(one[0, :, 0], [0, -1, 0])
    few = run_op(DETECTION, prob, np.zeros((1, 12)), anchors, nms_topk=1, **given)
    np.testing.assert_array_equal(few[0, :, 0], [0, -1, -1])


def test_samples_keep_apart_in_micro_batches():
    layouts = [WHOLE, Split(0), Split(0)]
    mining = {"negative_mining_ratio": 2.0, "negative_mining_thresh": 0.6}
    assert check_layout(TARGET, [ANCHORS, LABELS, SCORES], layouts, 4, (1, 3), **mining) == (
        [Split(0)] * 3
    )
    layouts = [Split(0), Split(0), WHOLE]
    assert check_layout(DETECTION, [PROB, SHIFTS, ANCHORS], layouts, 4, (2, 2)) == [Split(0)]
    with pytest.raises(MicroBatchError, match="whose batch lies differently"):
        check_layout(DETECTION, [PROB, SHIFTS, ANCHORS], [Split(0), WHOLE, WHOLE], 4, (2, 2))


def test_shapes_and_errors():
    x, y, z = map(sym.Variable, "xyz")
    found = sym.contrib.MultiBoxTarget(x, y, z, name="t")
    assert found.list_outputs() == ["t_loc_target", "t_loc_mask", "t_cls_target"]
    assert found.infer_shape(y=(2, 3, 5), z=(0, 4, 6)) == (
        [(1, 6, 4), (2, 3, 5), (2, 4, 6)],
        [(2, 24), (2, 24), (2, 6)],
        [],
    )
    with pytest.raises(ShapeError, match="no class and corners in its last axis"):
        found.infer_shape(y=(2, 3, 4), z=(2, 4, 6))
    with pytest.raises(GraphError, match=r"variances='\(1, 2\)' is not a valid tuple of 4 floats"):
        sym.contrib.MultiBoxDetection(x, y, z, variances="(1, 2)")
