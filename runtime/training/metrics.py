"""Metrics of held-out data: what the network's losses put out, beside the labels of each batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.training.job import Job
from runtime.training.loss import heads
from runtime.transports import Cluster
from symgraph.core.batch_layout import Layout, Split
from symgraph.core.errors import ConfigError, GraphError
from symgraph.core.types import Array
from symgraph.frontend import metric
from symgraph.frontend.io import DataBatch


class HeldOutMetrics:
    """The metrics of `evaluate.metrics`, over the samples that no padding has added."""

    def __init__(self, job: Job) -> None:
        """Create them; ConfigError for an unknown name, or a network that they do not fit."""
        if job.model is None:
            raise ConfigError("evaluate.metrics: not for a text in buckets; leave the key out")
        names = job.config.evaluate.metrics
        try:
            self._metric = metric.CompositeEvalMetric([metric.create(name) for name in names])
        except (GraphError, TypeError) as error:
            raise ConfigError(f"evaluate.metrics: {error}") from None
        self._feeds = job.model.feeds
        self._heads = heads(job.model)
        plan = job.evaluation
        self._layouts = [plan.layouts[plan.outputs[head.output]] for head in self._heads]
        if not self._heads:
            raise ConfigError("evaluate.metrics: the network has no loss whose output they measure")

    def update(self, batch: DataBatch, outputs: Sequence[Array]) -> None:
        """Add a batch and the network's outputs for it; empty in processes without rank 0."""
        if not outputs:
            return
        fed, labels, predictions = batch.feeds, {}, {}
        for head, layout in zip(self._heads, self._layouts, strict=True):
            output = outputs[head.output]
            predictions[f"output{head.output}"] = _without(output, layout, batch.pad)
            if head.label is not None:
                axis = Split(self._feeds[head.label].axis)
                labels[head.label] = _without(fed[head.label], axis, batch.pad)
        self._metric.update_dict(labels, predictions)

    def collect(self, cluster: Cluster) -> Mapping[str, float]:
        """Return the values since the last call, which are the same on all ranks."""
        mine = dict(self._metric.get_name_value())
        self._metric.reset()
        told: list[dict[str, Any]] = []

        def tell(transport: Any) -> None:
            transport.waiting_for("the metrics")
            finite = {n: v if math.isfinite(v) else None for n, v in mine.items()}
            told[:] = transport.exchange(finite)

        cluster.run(tell)
        return {n: math.nan if v is None else float(v) for n, v in told[0].items()}


def _without(array: Array, layout: Layout, pad: int) -> Array:
    """Return an array without the last samples of the batch."""
    if not pad or not isinstance(layout, Split):
        return array
    before, after = array.shape[: layout.axis], array.shape[layout.axis + 1 :]
    samples = array.reshape(*before, layout.outer, -1, layout.inner, *after)
    kept = samples[(slice(None),) * (layout.axis + 1) + (slice(None, -pad),)]
    return kept.reshape(*before, -1, *after)
