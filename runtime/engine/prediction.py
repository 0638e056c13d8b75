"""Predictions: the outputs of a forward-only session for every sample of some batches, in order.

Batches stream: several of them are one step (see runtime.planning.mixed_step.stream), as a step
ends only when all ranks have ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from runtime.planning.mixed_step import stream_batches
from runtime.planning.plan import Plan
from symgraph.core.batch_layout import Split
from symgraph.core.errors import GraphError, nearest
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.passes.batching import Feed

STREAM = 8  # batches of a step


def predicted(plan: Plan) -> dict[str, Split]:
    """Return the outputs that have a batch axis and are no next states, with their layouts."""
    states = set(plan.states.values())
    layouts = {
        name: plan.layouts[value]
        for name, value in zip(plan.output_names, plan.outputs, strict=True)
        if value not in states
    }
    return {name: layout for name, layout in layouts.items() if isinstance(layout, Split)}


def streamed(
    plan: Plan, step: Callable[[Sequence[DataBatch]], list[Array]], batches: Iterable[DataBatch]
) -> Iterator[dict[str, Array]]:
    """Yield the outputs of the next few batches, without padding, with samples as the first axis.

    Args:
        plan: A plan that runs forward only.
        step: Runs some batches as one step; returns the plan's outputs, or none without rank 0.
        batches: The batches.

    Raises:
        GraphError: No output has a batch axis.
    """
    layouts = predicted(plan)
    if not layouts:
        raise GraphError(
            f"nothing to predict: none of the outputs {', '.join(plan.output_names)} has a batch "
            "axis (they are sums over the batch, constants or next states)"
        )
    size, source = sum(plan.sizes), iter(batches)
    count = stream_batches(plan, STREAM)
    while some := list(islice(source, count)):
        outputs = dict(zip(plan.output_names, step(some), strict=False))
        kept = np.concatenate(
            [np.arange(n * size, (n + 1) * size - batch.pad) for n, batch in enumerate(some)]
        )
        yield {
            name: by_sample(outputs[name], layout)[kept]
            for name, layout in layouts.items()
            if name in outputs
        }


def by_sample(array: Array, layout: Split) -> Array:
    """Return an output with its samples as the first axis, of those that its batch axis has."""
    axis, shape = layout.axis, array.shape
    before, after = shape[:axis], shape[axis + 1 :]
    view = array.reshape(*before, layout.outer, -1, layout.inner, *after)
    return np.moveaxis(view, axis + 1, 0)


def as_output(rows: Array, layout: Split) -> Array:
    """Return what `by_sample` takes apart, with any number of samples."""
    axis = layout.axis
    view = np.moveaxis(rows, 0, axis + 1)
    shape = view.shape
    if layout.outer == layout.inner == 1:
        return view.reshape(*shape[:axis], shape[axis + 1], *shape[axis + 3 :])
    return view.reshape(*shape[:axis], -1, *shape[axis + 3 :])


def whole_batches(
    source: Iterable[Mapping[str, Any] | DataBatch], feeds: Mapping[str, Feed]
) -> Iterator[DataBatch]:
    """Yield batches of as many samples as the network takes: smaller ones are filled up.

    Args:
        source: Batches, or dicts from inputs to arrays.
        feeds: The inputs.

    Raises:
        GraphError: A batch lacks an input, or has more samples than the network takes.
    """
    described = [
        DataDesc(name, feed.type.shape, feed.type.dtype, "." * feed.axis + "N")
        for name, feed in feeds.items()
    ]
    for batch in source:
        if isinstance(batch, DataBatch):
            yield batch
            continue
        for name in batch:
            if name not in feeds:
                raise GraphError(f"the network has no input {name!r}; {nearest(name, feeds)}")
        arrays, pads = [], set()
        for name, feed in feeds.items():
            if name not in batch:
                raise GraphError(f"no value is given for {name!r} of {feed.type}")
            array = np.asarray(batch[name])
            array = (
                array.astype(feed.type.dtype, copy=False) if array.dtype.kind in "biuf" else array
            )
            missing = (
                feed.type.shape[feed.axis] - array.shape[feed.axis] if array.ndim > feed.axis else 0
            )
            if missing > 0 and array.shape[feed.axis]:
                first = array.take([0] * missing, feed.axis)
                array = np.concatenate([array, first], feed.axis)
            arrays.append(array)
            pads.add(max(0, missing))
        if len(pads) > 1:
            raise GraphError(f"the inputs {', '.join(feeds)} have different numbers of samples")
        yield DataBatch(arrays, pad=pads.pop(), provide_data=described)
