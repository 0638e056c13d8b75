"""Boxes of single-shot detectors (Liu et al. 2016): MultiBoxPrior, MultiBoxTarget, ...Detection.

A box is (left, top, right, bottom) in parts of the image, from 0 to 1. Matching and suppression go
box by box, so they are computed on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split, refuse_mixing, spatial_axes
from symgraph.core.params import Attrs, Param, Site, literal
from symgraph.core.registry import Env, Shapes, complete, no_flops, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import floats

LEAST_OVERLAP = 1e-6  # of a box and its best anchor


def numbers(default: tuple[float, ...], count: int | None = None) -> Param:
    """Declare a tuple of floats, as many as `count` says; a single float counts as a tuple."""

    def parse(raw: Any) -> tuple[float, ...]:
        value = literal(raw)
        found = tuple(map(float, value if isinstance(value, (list, tuple)) else (value,)))
        if not found or count not in (None, len(found)):
            raise ValueError
        return found

    words = "tuple of floats" if count is None else f"tuple of {count} floats"
    return Param(parse, default, words, type="float | Sequence[float]")


VARIANCES = {"variances": numbers((0.1, 0.1, 0.2, 0.2), 4)}


def by_sample(anchor: int) -> Callable[..., Layouts]:
    """The batch lies along axis 0 of all inputs but the anchors, which are all samples'."""

    def rule(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        others = [layout for i, layout in enumerate(ins) if i != anchor]
        rows = others[0]
        if ins[anchor] is not WHOLE or any(layout != rows for layout in others):
            refuse_mixing(site, f"has inputs whose batch lies differently ({list(ins)})")
        if rows is not WHOLE and rows != Split(0):
            refuse_mixing(site, f"needs samples along axis 0, not {rows}")
        return [rows] * len(outs)

    return rule


def on_host(compute: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Return a computation on numpy's arrays as one on those of either kind."""

    def computed(env: Env, a: Attrs, *arrays: Any) -> tuple[Any, ...]:
        given = arrays if env.xp is np else [env.xp.asnumpy(x) for x in arrays]
        return tuple([env.xp.asarray(found) for found in compute(a, *given)])

    return computed


# -- anchors ---------------------------------------------------------------------------------------


def prior_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = expect(site, "data", ins[0], (0, 0, 0, 0), "(batch, channels, height, width)")
    assert data is not None
    each = len(site.attrs["sizes"]) + len(site.attrs["ratios"]) - 1
    count = math.prod(data[2:]) * each if complete(data[2:]) else 0
    return [data], [unify(site, (1, count, 4), outs[0], "output shapes")]


def priors(a: Attrs, data: Array) -> tuple[Array, ...]:
    """Every size with the first ratio, then the first size with every other ratio."""
    height, width = data.shape[2:]
    steps = [s if s > 0 else 1 / n for s, n in zip(a["steps"], (height, width), strict=True)]
    (y, x) = (
        (np.arange(n) + offset) * step
        for n, offset, step in zip((height, width), a["offsets"], steps, strict=True)
    )
    first = math.sqrt(a["ratios"][0])
    shapes = [(size * height / width * first / 2, size / first / 2) for size in a["sizes"]]
    for ratio in map(math.sqrt, a["ratios"][1:]):
        size = a["sizes"][0]
        shapes.append((size * height / width * ratio / 2, size / ratio / 2))
    made = np.empty((height, width, len(shapes), 4))
    for at, (across, down) in enumerate(shapes):
        made[:, :, at, 0], made[:, :, at, 2] = x - across, x + across
        made[:, :, at, 1], made[:, :, at, 3] = y[:, None] - down, y[:, None] + down
    if a["clip"]:
        made = made.clip(0, 1)
    return (made.reshape(1, -1, 4).astype(data.dtype),)


def prior_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    (layout,) = ins
    if isinstance(layout, Split) and layout.axis in spatial_axes(site.attrs, 4):
        refuse_mixing(site, f"has boxes along axis {layout.axis}, where the batch lies")
    return [WHOLE]


register(
    name="_contrib_MultiBoxPrior",
    inputs=("data",),
    shape=prior_shape,
    compute=on_host(priors),
    flops=no_flops,
    dtype=floats,
    batch=prior_batch,
    params={
        "sizes": numbers((1.0,)),
        "ratios": numbers((1.0,)),
        "clip": params.boolean(False),
        "steps": numbers((-1.0, -1.0), 2),
        "offsets": numbers((0.5, 0.5), 2),
    },
    reads_on_host=True,
    doc="Anchor boxes around each pixel of data (N, C, H, W): (1, H * W * (sizes + ratios - 1), "
    "4). At each pixel, boxes of all sizes with the first ratio of width to height, then of the "
    "first size with the other ratios. steps: distances of pixels down and across (-1: 1 / H and "
    "1 / W); offsets: of the middles in a pixel; clip: cut at the image's border. MXNet "
    "_contrib_MultiBoxPrior.",
)


def overlaps(boxes: Array, others: Array) -> Array:
    """Return intersection over union of all pairs: (boxes, others)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = (high - low).clip(0).prod(-1)
    sizes = [(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (boxes, others)]
    union = sizes[0][:, None] + sizes[1] - common
    found: Array = np.where(union > 0, common / np.where(union > 0, union, 1), 0)
    return found


# -- training targets ------------------------------------------------------------------------------


def target_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    anchor, label, scores = ins
    anchor = expect(site, "anchor", anchor, (1, 0, 4), "(1, anchors, corners)")
    scores = expect(site, "cls_pred", scores, (0, 0, 0), "(batch, classes, anchors)")
    label = expect(site, "label", label, (0, 0, 0), "(batch, boxes, class and corners)")
    assert anchor is not None
    assert scores is not None
    assert label is not None
    if 0 < label[2] < 5:
        site.fail(f"label of shape {label} has no class and corners in its last axis")
    (count,) = unify(site, anchor[1:2], scores[2:], "numbers of anchors") or (0,)
    (batch,) = unify(site, label[:1], scores[:1], "batches of label and cls_pred") or (0,)
    shapes = [(1, count, 4), (batch, *label[1:]), (batch, scores[1], count)]
    return shapes, [(batch, 4 * count)] * 2 + [(batch, count)]


def matched(a: Attrs, shared: Array) -> tuple[Array, Array, Array]:
    """Give each box its best anchor, one by one, then each anchor left over its best box.

    Returns by anchor whether it is positive, the number of its box, and its overlap with it.
    """
    anchors, boxes = shared.shape
    box, most = shared.argmax(1), shared.max(1)
    positive = np.zeros(anchors, bool)
    left = shared.copy()
    for _ in range(boxes):
        anchor, best = np.unravel_index(left.argmax(), left.shape)
        if left[anchor, best] <= LEAST_OVERLAP:
            break
        positive[anchor], box[anchor], most[anchor] = True, best, left[anchor, best]
        left[anchor], left[:, best] = -1, -1
    if a["overlap_threshold"] > 0:
        positive |= most > a["overlap_threshold"]
    return positive, box, most


def negatives(a: Attrs, positive: Array, most: Array, scores: Array) -> Array:
    """Return which anchors are background: all, or those of little background in the scores."""
    if a["negative_mining_ratio"] <= 0:
        return ~positive
    wanted = min(int(positive.sum() * a["negative_mining_ratio"]), int((~positive).sum()))
    free = np.flatnonzero(~positive & (most < a["negative_mining_thresh"]))
    shifted = np.exp(scores[:, free] - scores[:, free].max(0))
    hardest = free[np.argsort(shifted[0] / shifted.sum(0), kind="stable")[: max(wanted, 0)]]
    chosen = np.zeros(len(positive), bool)
    chosen[hardest] = True
    return chosen


def encoded(a: Attrs, anchors: Array, boxes: Array) -> Array:
    """Return how boxes lie to anchors: their middles' distances, and the logarithms of sizes."""
    size, wanted = anchors[:, 2:] - anchors[:, :2], boxes[:, 2:] - boxes[:, :2]
    middle, goal = ((b[:, :2] + b[:, 2:]) / 2 for b in (anchors, boxes))
    shift = (goal - middle) / size / np.array(a["variances"][:2])
    return np.concatenate([shift, np.log(wanted / size) / np.array(a["variances"][2:])], 1)


def targets(a: Attrs, anchor: Array, label: Array, scores: Array) -> tuple[Array, ...]:
    count = anchor.shape[1]
    places, masks = np.zeros((2, len(label), count, 4), anchor.dtype)
    classes = np.full((len(label), count), a["ignore_label"], anchor.dtype)
    for n, rows in enumerate(label):
        boxes = rows[: np.append(rows[:, 0] == -1, True).argmax()]
        if not len(boxes):
            continue
        positive, box, most = matched(a, overlaps(anchor[0], boxes[:, 1:5]))
        classes[n][negatives(a, positive, most, scores[n])] = 0
        mine = boxes[box[positive]]
        classes[n][positive] = mine[:, 0] + 1
        masks[n][positive] = 1
        places[n][positive] = encoded(a, anchor[0][positive], mine[:, 1:5])
    return places.reshape(len(label), -1), masks.reshape(len(label), -1), classes


register(
    name="_contrib_MultiBoxTarget",
    inputs=("anchor", "label", "cls_pred"),
    outputs=("loc_target", "loc_mask", "cls_target"),
    shape=target_shape,
    compute=on_host(targets),
    flops=lambda attrs, ins, outs: 20 * ins[0].size * ins[1].size // 5,
    dtype=floats,
    batch=by_sample(anchor=0),
    params={
        "overlap_threshold": params.number(0.5),
        "ignore_label": params.number(-1.0),
        "negative_mining_ratio": params.number(-1.0),
        "negative_mining_thresh": params.number(0.5),
        "minimum_negative_samples": params.ignored(),
        **VARIANCES,
    },
    full_inputs=("anchor", "label"),
    reads_on_host=True,
    doc="What to train for, by anchor (1, A, 4): places of boxes (B, 4 A), a mask that is 1 for "
    "anchors with a box (B, 4 A), and classes, 0 for the background (B, A). label (B, L, 5 or "
    "more): class and corners of boxes, -1 behind the last one; cls_pred (B, C, A). Each box gets "
    "its best anchor, and every anchor that overlaps more than overlap_threshold its best box. "
    "With negative_mining_ratio, so many anchors for each positive one are background, of those "
    "below negative_mining_thresh the hardest; the others, and all of a sample without boxes, "
    "have the class ignore_label. There is no gradient. MXNet _contrib_MultiBoxTarget, which does "
    "not use minimum_negative_samples on CPUs.",
)


# -- detections ------------------------------------------------------------------------------------


def detection_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    scores, places, anchor = ins
    scores = expect(site, "cls_prob", scores, (0, 0, 0), "(batch, classes, anchors)")
    anchor = expect(site, "anchor", anchor, (1, 0, 4), "(1, anchors, corners)")
    assert anchor is not None
    assert scores is not None
    (count,) = unify(site, anchor[1:2], scores[2:], "numbers of anchors") or (0,)
    places = expect(site, "loc_pred", places, (scores[0], 4 * count), f"({count} anchors)")
    assert places is not None
    shapes = [(places[0], scores[1], count), places, (1, count, 4)]
    return shapes, [unify(site, (places[0], count, 6), outs[0], "output shapes")]


def decoded(a: Attrs, anchors: Array, places: Array) -> Array:
    variances = np.array(a["variances"], anchors.dtype)
    size, middle = anchors[:, 2:] - anchors[:, :2], (anchors[:, :2] + anchors[:, 2:]) / 2
    goal = places[:, :2] * variances[:2] * size + middle
    half = np.exp(places[:, 2:] * variances[2:]) * size / 2
    boxes = np.concatenate([goal - half, goal + half], 1)
    return boxes.clip(0, 1) if a["clip"] else boxes


def suppressed(a: Attrs, rows: Array) -> None:
    """Set the class of rows (class, score, box) to -1 that overlap a better one of their class."""
    for i in range(len(rows)):
        if rows[i, 0] < 0:
            continue
        later = rows[i + 1 :]
        alike = later[:, 0] >= 0
        if not a["force_suppress"]:
            alike &= later[:, 0] == rows[i, 0]
        shared = overlaps(rows[i : i + 1, 2:], later[:, 2:])[0]
        later[alike & (shared >= a["nms_threshold"]), 0] = -1


def detections(a: Attrs, scores: Array, places: Array, anchor: Array) -> tuple[Array, ...]:
    made = np.full((len(scores), anchor.shape[1], 6), -1, scores.dtype)
    for n, (of_class, near) in enumerate(zip(scores, places, strict=True)):
        best, score = of_class[1:].argmax(0), of_class[1:].max(0)
        kept = np.flatnonzero(score >= a["threshold"])
        boxes = decoded(a, anchor[0], near.reshape(-1, 4))
        rows = np.concatenate([best[:, None], score[:, None], boxes], 1)[kept]
        if 0 < a["nms_threshold"] <= 1:
            order = np.argsort(-rows[:, 1], kind="stable")
            top = a["nms_topk"] if 0 < a["nms_topk"] < len(rows) else len(rows)
            rows[:top] = rows[order[:top]]
            rows[top:, 0] = -1
            suppressed(a, rows)
        made[n, : len(rows)] = rows
    return (made,)


register(
    name="_contrib_MultiBoxDetection",
    inputs=("cls_prob", "loc_pred", "anchor"),
    shape=detection_shape,
    compute=on_host(detections),
    flops=lambda attrs, ins, outs: 20 * outs[0].size,
    dtype=floats,
    batch=by_sample(anchor=2),
    params={
        "clip": params.boolean(True),
        "threshold": params.number(0.01),
        "background_id": params.only(0),
        "nms_threshold": params.number(0.5),
        "force_suppress": params.boolean(False),
        **VARIANCES,
        "nms_topk": params.integer(-1),
    },
    full_inputs=("anchor",),
    reads_on_host=True,
    doc="Boxes found, best first: (B, A, 6) of class, score and corners. The class is -1 for those "
    "that overlap a better one of their class (with force_suppress: any better one) by "
    "nms_threshold, for all but the nms_topk best, and behind the last one. cls_prob (B, C, A) "
    "with the background as class 0, loc_pred (B, 4 A), anchor (1, A, 4). There is no gradient. "
    "MXNet _contrib_MultiBoxDetection.",
)
