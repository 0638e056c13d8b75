"""The module interface: training, scoring and predicting over data iterators (MXNet BaseModule)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet.store_module import RATE, Settings, StoreModule
from symgraph.core.batch_layout import Layout, Split
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array
from symgraph.frontend import metric
from symgraph.frontend.callback import BatchEnd, BatchEndParam
from symgraph.frontend.init import AnyInitializer, Uniform
from symgraph.frontend.io import DataBatch, DataIter
from symgraph.frontend.metric import EvalMetric
from symgraph.frontend.optimizer import Optimizer

Callbacks = Callable[..., None] | Sequence[Callable[..., None]] | None
Metrics = metric.Metric | list[metric.Metric]


class BaseModule(StoreModule):
    """Loops over the batches of data iterators, whatever the kind of module."""

    # -- training ------------------------------------------------------------------------------

    def fit(
        self,
        train_data: DataIter,
        eval_data: DataIter | None = None,
        eval_metric: Metrics = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: str | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: AnyInitializer | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Metrics | None = None,
    ) -> None:
        """Bind, initialize and train for epochs begin_epoch to num_epoch (MXNet's `fit`).

        After each epoch the metric is logged, callbacks are called, and eval_data is scored.
        """
        epochs = _epochs(begin_epoch, num_epoch)
        _require_iterators(train_data, eval_data)
        self.bind(train_data.provide_data, train_data.provide_label, force_rebind=force_rebind)
        self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        shown, callbacks = metric.create(eval_metric), _listed(batch_end_callback)
        for epoch in epochs:
            self._epoch(epoch, train_data, shown, callbacks)
            for callback in _listed(epoch_end_callback):
                callback(epoch, self.symbol, *self.get_params())
            if eval_data is not None:
                validation = self.score(
                    eval_data,
                    validation_metric or eval_metric,
                    epoch=epoch,
                    batch_end_callback=eval_batch_end_callback,
                    score_end_callback=eval_end_callback,
                )
                self._log(epoch, "Validation", validation)
            train_data.reset()

    def _log(self, epoch: int, what: str, figures: list[tuple[str, float]]) -> None:
        for name, value in figures:
            self.logger.info("Epoch[%d] %s-%s=%f", epoch, what, name, value)

    def _epoch(
        self,
        epoch: int,
        train_data: DataIter,
        shown: EvalMetric,
        callbacks: Sequence[BatchEnd],
    ) -> None:
        """Train for an epoch and log its metric and time."""
        start = time.perf_counter()
        shown.reset()
        nbatch = -1
        for nbatch, data_batch in enumerate(train_data):
            self.train_batch(data_batch)
            self.update_metric(shown, data_batch.label)
            for callback in callbacks:
                callback(BatchEndParam(epoch, nbatch, shown, locals()))
        if nbatch < 0:
            raise RunError(f"train_data gave no batch in epoch {epoch}: call its reset() before")
        self._log(epoch, "Train", shown.get_global_name_value())
        self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - start)

    def forward_backward(self, data_batch: DataBatch) -> None:
        """`forward` for training and `backward`."""
        self.forward(data_batch, is_train=True)
        self.backward()

    # -- using ---------------------------------------------------------------------------------

    def score(
        self,
        eval_data: DataIter,
        eval_metric: Metrics,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
    ) -> list[tuple[str, float]]:
        """Compute the metric over an epoch of eval_data; return (name, value) pairs.

        Samples that pad a batch are left out (MXNet counts them).
        """
        shown = metric.create(eval_metric)
        shown.reset()
        count = 0
        for nbatch, batch in self._batches(eval_data, num_batch, reset):
            self.forward(batch, is_train=False)
            self.update_metric(shown, batch.label, batch.pad)
            for callback in _listed(batch_end_callback):
                callback(BatchEndParam(epoch, nbatch, shown, locals()))
            count = nbatch + 1
        for callback in _listed(score_end_callback):
            callback(BatchEndParam(epoch, count, shown, locals()))
        return shown.get_global_name_value()

    def iter_predict(
        self, eval_data: DataIter, num_batch: int | None = None, reset: bool = True
    ) -> Iterator[tuple[list[Array], int, DataBatch]]:
        """Yield (outputs without padding, number, batch) for each batch."""
        for nbatch, batch in self._batches(eval_data, num_batch, reset):
            self.forward(batch, is_train=False)
            yield self._unpadded(batch.pad), nbatch, batch

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
    ) -> Any:
        """Compute the outputs for an array, or for all batches of an iterator, without padding.

        Args:
            eval_data: The array or iterator.
            num_batch: The largest number of batches; None: all.
            merge_batches: Whether to return one array per output (a single array for a single
                output), not a list of outputs per batch.
            reset: Whether to reset the iterator first.
            always_output_list: Whether a single output is returned in a list, too.
        """
        if not hasattr(eval_data, "reset"):
            self.forward(DataBatch([on_host(eval_data)]), is_train=False)
            return self.get_outputs()[0]
        batches = [outputs for outputs, *_ in self.iter_predict(eval_data, num_batch, reset)]
        if not merge_batches or not batches:
            return batches
        merged = [
            np.concatenate(parts, axis=layout.axis if isinstance(layout, Split) else 0)
            for parts, layout in zip(zip(*batches, strict=True), self.samples()[1], strict=True)
        ]
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    def update_metric(self, eval_metric: EvalMetric, labels: Sequence[Any], pad: int = 0) -> None:
        """Show the last batch's labels and outputs to a metric, without its last `pad` samples."""
        size, _, axes = self.samples()
        shown = {}
        for (name, axis), label in zip(axes.items(), map(on_host, labels), strict=False):
            if axis is not None:
                shown[name] = _without(label, Split(axis), size, pad) if pad else label
        outputs = dict(zip(self.output_names, self._unpadded(pad), strict=True))
        eval_metric.update_dict(shown, outputs)

    def _unpadded(self, pad: int) -> list[Array]:
        outputs = self.get_outputs()
        if not pad:
            return outputs
        size, layouts, _ = self.samples()
        return [_without(a, lay, size, pad) for a, lay in zip(outputs, layouts, strict=True)]

    @staticmethod
    def _batches(
        data: DataIter, num_batch: int | None, reset: bool
    ) -> Iterator[tuple[int, DataBatch]]:
        _require_iterators(data)
        if reset:
            data.reset()
        for nbatch, batch in enumerate(data):
            if nbatch == num_batch:
                return
            yield nbatch, batch


def _without(array: Array, layout: Layout, batch: int, pad: int) -> Array:
    """An array without the samples that pad a batch; as it is if it has no samples."""
    if not isinstance(layout, Split):
        return array
    before, after = array.shape[: layout.axis], array.shape[layout.axis + 1 :]
    view = array.reshape(*before, layout.outer, batch, layout.inner, *after)
    kept = view.take(np.arange(batch - pad), axis=layout.axis + 1)
    return kept.reshape(*before, -1, *after)


def _epochs(begin: int, end: int | None) -> range:
    """The numbers of the epochs to train; ConfigError if the last one is missing."""
    if not isinstance(end, int | np.integer):
        raise ConfigError(f"fit: num_epoch is {end!r}; say how many epochs to train")
    return range(begin, end)


def _require_iterators(*given: Any) -> None:
    """TypeError for data that is no iterator, such as an array; None is no data."""
    for data in given:
        if data is not None and not (hasattr(data, "reset") and hasattr(data, "__iter__")):
            raise TypeError(
                "data comes from an iterator, such as NDArrayIter(data, label, batch_size), not "
                f"from a {type(data).__name__}"
            )


def _listed(callbacks: Callbacks) -> Sequence[Callable[..., None]]:
    if callbacks is None:
        return []
    return [callbacks] if callable(callbacks) else callbacks
