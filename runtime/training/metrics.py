"""Metrics of held-out data: what the network's losses put out, beside the labels of each batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.planning.plan import Plan
from runtime.training.loss import heads
from runtime.transports import Cluster
from symgraph.core.batch_layout import Layout, Split
from symgraph.core.errors import ConfigError, GraphError, SymgraphError
from symgraph.core.types import Array, Shape
from symgraph.frontend import metric
from symgraph.frontend.io import DataBatch
from symgraph.frontend.model import Model


def create_metrics(names: Sequence[str]) -> metric.CompositeEvalMetric:
    """Create the metrics of `evaluate.metrics`; ConfigError for an unknown name."""
    try:
        return metric.CompositeEvalMetric([metric.create(name) for name in names])
    except (GraphError, TypeError) as error:
        raise ConfigError(f"evaluate.metrics: {error}") from None


class HeldOutMetrics:
    """The metrics of `evaluate.metrics`, over the samples that no padding has added."""

    def __init__(self, names: Sequence[str], model: Model | None, plan: Plan) -> None:
        """Create them; ConfigError for an unknown name, or a network that they do not fit.

        Args:
            names: The names of the metrics.
            model: The network; None where there is one for each bucket.
            plan: The plan of its evaluation.
        """
        if model is None:
            raise ConfigError("evaluate.metrics: not for a text in buckets; leave the key out")
        self._names, self._model = names, model
        self._metric = create_metrics(names)
        self._heads = heads(model)
        self._layouts = [plan.layouts[plan.outputs[head.output]] for head in self._heads]
        if not self._heads:
            raise ConfigError("evaluate.metrics: the network has no loss whose output they measure")

    def require(self, batch: DataBatch) -> None:
        """Raise ConfigError unless the metrics can measure outputs beside the labels of a batch.

        Nothing runs: random shares of one, over the classes, take the place of outputs.
        """
        shapes = {name: feed.type.shape for name, feed in self._model.feeds.items()}
        found = self._model.symbol.infer_shape(**shapes)[1]
        outputs = {head.output: _shares(found[head.output]) for head in self._heads}
        try:
            with np.errstate(all="ignore"):
                create_metrics(self._names).update_dict(*self._pairs(batch, outputs))
        except SymgraphError as error:
            raise ConfigError(f"evaluate.metrics, of the first held-out batch: {error}") from None

    def update(self, batch: DataBatch, outputs: Sequence[Array]) -> None:
        """Add a batch and the network's outputs for it; empty in processes without rank 0."""
        if outputs:
            self._metric.update_dict(*self._pairs(batch, outputs))

    def _pairs(
        self, batch: DataBatch, outputs: Sequence[Array] | Mapping[int, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the labels and the predictions of a batch, without the samples that fill it up."""
        fed, labels, predictions = batch.feeds, {}, {}
        for head, layout in zip(self._heads, self._layouts, strict=True):
            output = outputs[head.output]
            predictions[f"output{head.output}"] = _without(output, layout, batch.pad)
            if head.label is not None:
                axis = Split(self._model.feeds[head.label].axis)
                labels[head.label] = _without(fed[head.label], axis, batch.pad)
        return labels, predictions

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


def _shares(shape: Shape) -> Array:
    """Return random numbers between 0 and 1, which add up to 1 along axis 1 if that is longer."""
    found = np.random.default_rng(0).random(shape, "float32")
    several = len(shape) > 1 and shape[1] > 1
    return found / found.sum(axis=1, keepdims=True) if several else found


def _without(array: Array, layout: Layout, pad: int) -> Array:
    """Return an array without the last samples of the batch."""
    if not pad or not isinstance(layout, Split):
        return array
    before, after = array.shape[: layout.axis], array.shape[layout.axis + 1 :]
    samples = array.reshape(*before, layout.outer, -1, layout.inner, *after)
    kept = samples[(slice(None),) * (layout.axis + 1) + (slice(None, -pad),)]
    return kept.reshape(*before, -1, *after)
