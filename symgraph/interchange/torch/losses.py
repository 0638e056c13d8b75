"""Converters of losses. A mean over the batch is one that micro-batches can share out."""

from __future__ import annotations

from typing import Any

import numpy as np

from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.call import Call, converts, stored

NONE, MEAN, SUM = 0, 1, 2


def reduced(c: Call, loss: Symbol) -> Symbol:
    """Return a loss of each element after the call's reduction."""
    reduction = c.get("reduction", MEAN)
    if reduction == NONE:
        return loss
    return sym.mean(loss) if reduction == MEAN else sym.sum(loss)


def of_classes(c: Call, scores: Symbol, target: str) -> Symbol:
    """Return the negative of the picked log probabilities, averaged over labels that count."""
    rank = len(c.meta("self").shape)
    ignored = c.integer("ignore_index", -100)
    labels = c.x(target)
    if rank == 1:
        scores, labels = sym.expand_dims(scores, axis=0), sym.Reshape(labels, shape=(1,))
    dtype = stored(c.meta("self").dtype)
    picked = sym.pick(scores, labels, axis=min(1, rank))
    counts = sym.Cast(labels != float(ignored), dtype=dtype)
    if c.has("weight"):
        counts = counts * sym.take(c.x("weight"), labels * (labels != float(ignored)))
    loss = picked * counts * -1.0
    smoothing, classes = c.number("label_smoothing", 0), c.meta("self").shape[min(1, rank - 1)]
    if smoothing:
        if c.has("weight"):
            c.fail("weights of classes with label_smoothing are not supported")
        every = sym.sum(scores, axis=min(1, rank)) * counts
        loss = loss * (1 - smoothing) - every * (smoothing / classes)
    reduction = c.get("reduction", MEAN)
    if reduction == NONE:
        return c.reshape(loss, c.out.shape) if rank == 1 else loss
    total = sym.sum(loss)
    if reduction == SUM:
        return total
    if c.has("weight"):
        return total / sym.sum(counts)
    valid = sym._valid_count(labels, ignore_label=ignored, use_ignore=True)
    return total / sym.Cast(valid, dtype=dtype)


@converts("cross_entropy_loss")
def cross_entropy(c: Call) -> Symbol:
    shape = c.meta("self").shape
    log = sym.log_softmax(c.x(), axis=min(1, len(shape) - 1))
    if c.meta("target").dtype.startswith("float"):
        if c.has("weight"):
            c.fail("weights of classes are not supported where targets are shares")
        axis, smoothing = min(1, len(shape) - 1), c.number("label_smoothing", 0)
        share = c.x("target")
        share = share * (1 - smoothing) + smoothing / shape[axis] if smoothing else share
        loss = sym.sum(log * share, axis=axis) * -1.0
        return reduced(c, loss)
    return of_classes(c, log, "target")


@converts("nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward")
def nll_loss(c: Call) -> Any:
    loss = of_classes(c, c.x(), "target")
    return [loss, None] if "forward" in c.node.target else loss


def difference(c: Call) -> Symbol:
    return sym.broadcast_sub(c.x(), c.x("target"))


@converts("mse_loss")
def mse_loss(c: Call) -> Symbol:
    return reduced(c, sym.square(difference(c)))


@converts("l1_loss")
def l1_loss(c: Call) -> Symbol:
    return reduced(c, sym.abs(difference(c)))


@converts("smooth_l1_loss huber_loss")
def smooth_l1(c: Call) -> Symbol:
    """Both are a parabola up to a bound and a line beyond; their scales differ."""
    huber = "huber" in c.node.target
    bound = c.number("delta" if huber else "beta", 1)
    if bound <= 0:
        return reduced(c, sym.abs(difference(c)))
    near = sym.smooth_l1(difference(c), scalar=bound**-0.5)
    return reduced(c, near * bound if huber else near)


@converts("binary_cross_entropy_with_logits")
def of_logits(c: Call) -> Symbol:
    x, y = c.x(), c.x("target")
    if not c.has("pos_weight"):
        return reduced(c, weighted(c, sym.Activation(x, act_type="softrelu") - x * y))
    factor = sym.broadcast_mul(y, c.x("pos_weight") - 1) + 1
    loss = (1 - y) * x + factor * sym.Activation(x * -1, act_type="softrelu")
    return reduced(c, weighted(c, loss))


def weighted(c: Call, loss: Symbol) -> Symbol:
    """Return the loss of each element times its weight, if there are weights."""
    return sym.broadcast_mul(loss, c.x("weight")) if c.has("weight") else loss


@converts("binary_cross_entropy")
def of_shares(c: Call) -> Symbol:
    """PyTorch bounds logarithms at -100, and what divides the gradient at 1e-12."""
    x, y = c.x(), c.x("target")
    fixed = sym.BlockGrad(x)
    logs = [sym.maximum(sym.log(p + (p == 0)) - (p == 0) * 100, -100) for p in (fixed, 1 - fixed)]
    least = max(1e-12, float(np.finfo(c.meta("self").dtype).tiny))
    slope = sym.BlockGrad((x - y) / sym.maximum((1 - x) * x, least))
    loss = (y * logs[0] + (1 - y) * logs[1]) * -1
    return reduced(c, weighted(c, loss + (x - fixed) * slope))
