"""The base of all modules: training, scoring and predicting over data iterators (BaseModule)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet.arguments import as_batch, descriptions
from symgraph.core.batch_layout import Layout, Split
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array
from symgraph.frontend import metric
from symgraph.frontend.callback import BatchEnd, BatchEndParam
from symgraph.frontend.init import AnyInitializer, Uniform
from symgraph.frontend.io import DataBatch, DataDesc, DataIter
from symgraph.frontend.kvstore import KVStore
from symgraph.frontend.metric import EvalMetric
from symgraph.frontend.monitor import Monitor
from symgraph.frontend.ndarray import viewed
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import load_params, save_params
from symgraph.frontend.symbol import Symbol

Callbacks = Callable[..., None] | Sequence[Callable[..., None]] | None
Metrics = metric.Metric | list[metric.Metric]
Settings = Mapping[str, Any] | Iterable[tuple[str, Any]]
Params = dict[str, Array]
Store = str | KVStore | None
RATE: Settings = (("learning_rate", 0.01),)


def as_ndarrays(arrays: Mapping[str, Array]) -> Params:
    """Return arrays as `nd.NDArray`s on the same memory."""
    return {name: viewed(array) for name, array in arrays.items()}


def per_context(arrays: list[Any], merged: bool) -> list[Any]:
    """Return arrays as they are, or, as those of one context, each in a list of its own."""
    return arrays if merged else [[array] for array in arrays]


class BaseModule:
    """What modules of all kinds have: loops over the batches of data iterators (MXNet BaseModule).

    A kind of module says how it is bound, and how it computes a batch forward and backward.
    """

    if TYPE_CHECKING:

        @property
        def binded(self) -> bool:
            """Whether it is bound to shapes."""

        @property
        def for_training(self) -> bool:
            """Whether it is bound for training."""

    else:  # what a user's own module sets, as with MXNet
        binded = for_training = inputs_need_grad = False
        params_initialized = optimizer_initialized = False
    _symbol: Symbol | None = None

    def __init__(self, logger: Any = logging) -> None:
        """logger: where `fit` logs."""
        self.logger = logger

    def __repr__(self) -> str:
        of = "" if self.symbol is None else f" of {self.symbol!r}"
        return f"<{type(self).__name__}{of}, {self._state()}>"

    def _state(self) -> str:
        return "bound" if self.binded else "not bound"

    # -- what a kind of module has -------------------------------------------------------------

    @property
    def symbol(self) -> Symbol | None:
        """The network; None for a module that is not made of one."""
        return self._symbol

    @property
    def data_names(self) -> list[str]:
        """The names of the inputs."""
        raise _missing(self, "data_names")

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        raise _missing(self, "output_names")

    @property
    def output_shapes(self) -> list[tuple[str, Any]]:
        """(name, shape) of each output."""
        raise _missing(self, "output_shapes")

    def bind(
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str | Sequence[str] | Mapping[str, str] = "write",
    ) -> None:
        """Prepare for batches of these shapes."""
        raise _missing(self, "bind")

    def init_params(
        self,
        initializer: AnyInitializer | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set first values of parameters: the given ones, and the initializer's for the rest."""
        raise _missing(self, "init_params")

    def init_optimizer(
        self,
        kvstore: Store = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        force_init: bool = False,
    ) -> None:
        """Choose the optimizer, by name or as an object; one that is chosen stays."""
        raise _missing(self, "init_optimizer")

    def get_params(self) -> tuple[Params, Params]:
        """Copy (parameters, auxiliary states), by name."""
        raise _missing(self, "get_params")

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch."""
        raise _missing(self, "forward")

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last forward."""
        raise _missing(self, "backward")

    def update(self) -> None:
        """Change the parameters by the gradients."""
        raise _missing(self, "update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last batch."""
        raise _missing(self, "get_outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the inputs."""
        raise _missing(self, "get_input_grads")

    @property
    def data_shapes(self) -> list[DataDesc]:
        """The inputs as they were bound."""
        raise _missing(self, "data_shapes")

    @property
    def label_shapes(self) -> list[DataDesc]:
        """The labels as they were bound."""
        return []

    def samples(self) -> tuple[int, list[Layout], dict[str, int | None]]:
        """Tell where the samples of the last batch lie: by default, along all first axes.

        Returns:
            The batch's size; its layout in each output; its axis in each label, in the batch's
            order, or None for a label that is not read.
        """
        size = descriptions("data_shapes", self.data_shapes)[0].shape[0]
        layouts: list[Layout] = [Split(0) for _ in self.output_names]
        labels = descriptions("label_shapes", self.label_shapes)
        return size, layouts, {label.name: 0 for label in labels}

    def install_monitor(self, mon: Monitor) -> None:
        """Let a monitor see every pass."""
        raise _missing(self, "install_monitor")

    # -- parameters ----------------------------------------------------------------------------

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Give parameters and auxiliary states values; see `init_params`."""
        self.init_params(None, arg_params, aux_params or {}, allow_missing, force_init, allow_extra)

    def save_params(self, fname: str) -> None:
        """Write parameters and auxiliary states to a `.params` file."""
        save_params(fname, *self.get_params())

    def load_params(self, fname: str) -> None:
        """Read what `save_params` wrote."""
        self.set_params(*load_params(fname))

    # -- training ------------------------------------------------------------------------------

    def fit(
        self,
        train_data: DataIter,
        eval_data: DataIter | None = None,
        eval_metric: Metrics = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Store = "local",
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
        monitor: Monitor | None = None,
    ) -> None:
        """Bind, initialize and train for epochs begin_epoch to num_epoch (MXNet's `fit`).

        After each epoch the metric is logged, callbacks are called, and eval_data is scored. A
        monitor sees every batch.
        """
        epochs = _epochs(begin_epoch, num_epoch)
        _require_iterator("train_data", train_data)
        if eval_data is not None:
            _require_iterator("eval_data", eval_data)
        self.bind(train_data.provide_data, train_data.provide_label, force_rebind=force_rebind)
        if monitor is not None:
            self.install_monitor(monitor)
        self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        shown, callbacks = metric.create(eval_metric), _listed(batch_end_callback)
        for epoch in epochs:
            self._epoch(epoch, train_data, shown, callbacks, monitor)
            for callback in _listed(epoch_end_callback):
                callback(epoch, self.symbol, *self.get_params())
            if eval_data is not None:
                wanted, at_ends = validation_metric or eval_metric, eval_end_callback
                figures = self.score(
                    eval_data, wanted, None, eval_batch_end_callback, at_ends, epoch=epoch
                )
                self._log(epoch, "Validation", figures)
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
        monitor: Monitor | None,
    ) -> None:
        """Train for an epoch and log its metric and time."""
        start = time.perf_counter()
        shown.reset()
        nbatch = -1
        for nbatch, data_batch in enumerate(train_data):
            if monitor is not None:
                monitor.tic()
            self.train_batch(data_batch)
            self.update_metric(shown, getattr(data_batch, "label", None) or ())
            if monitor is not None:
                monitor.toc_print()
            for callback in callbacks:
                callback(BatchEndParam(epoch, nbatch, shown, locals()))
        if nbatch < 0:
            raise RunError(f"train_data gave no batch in epoch {epoch}: call its reset() before")
        self._log(epoch, "Train", shown.get_global_name_value())
        self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - start)

    def forward_backward(self, data_batch: Any) -> None:
        """`forward` for training and `backward`."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def train_batch(self, data_batch: Any) -> None:
        """Run forward, backward and update."""
        self.forward_backward(data_batch)
        self.update()

    def prepare(self, data_batch: Any) -> None:
        """Make ready for a batch; TypeError for what is none."""
        as_batch(data_batch)

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
            show_batch(self, shown, batch.label, batch.pad)
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
            np.concatenate(
                [*map(np.asarray, parts)], axis=layout.axis if isinstance(layout, Split) else 0
            )
            for parts, layout in zip(zip(*batches, strict=True), self.samples()[1], strict=True)
        ]
        wholes = [viewed(whole) for whole in merged]
        return wholes[0] if len(wholes) == 1 and not always_output_list else wholes

    def update_metric(self, eval_metric: EvalMetric, labels: Sequence[Any], pad: int = 0) -> None:
        """Show the last batch's labels and outputs to a metric, without its last `pad` samples."""
        size, _, axes = self.samples()
        shown = {}
        for (name, axis), label in zip(axes.items(), map(on_host, labels), strict=False):
            if axis is not None:
                shown[name] = _without(label, Split(axis), size, pad) if pad else viewed(label)
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
        _require_iterator("eval_data", data)
        if reset:
            data.reset()
        for nbatch, batch in enumerate(data):
            if nbatch == num_batch:
                return
            yield nbatch, as_batch(batch)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End the module's threads; it cannot run afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _missing(module: BaseModule, what: str) -> NotImplementedError:
    return NotImplementedError(f"{type(module).__name__} has no {what}")


def show_batch(module: BaseModule, shown: EvalMetric, labels: Sequence[Any], pad: int) -> None:
    """Show a module's last batch to a metric.

    A user's own `update_metric` has MXNet's arguments: it counts the samples that pad a batch.
    """
    if "pad" in signature(module.update_metric).parameters:
        module.update_metric(shown, labels, pad)
    else:
        module.update_metric(shown, labels)


def _without(array: Array, layout: Layout, batch: int, pad: int) -> Array:
    """An array without the samples that pad a batch; as it is if it has no samples."""
    if not isinstance(layout, Split):
        return viewed(array)
    plain = np.asarray(array)
    before, after = plain.shape[: layout.axis], plain.shape[layout.axis + 1 :]
    view = plain.reshape(*before, layout.outer, batch, layout.inner, *after)
    kept = view.take(np.arange(batch - pad), axis=layout.axis + 1)
    return viewed(kept.reshape(*before, -1, *after))


def _epochs(begin: int, end: int | None) -> range:
    """The numbers of the epochs to train; ConfigError if the last one is missing."""
    if not isinstance(end, int | np.integer):
        raise ConfigError(f"fit: num_epoch is {end!r}; say how many epochs to train")
    return range(begin, end)


def _require_iterator(what: str, data: Any) -> None:
    """TypeError for data that is no iterator, such as an array or None."""
    if not (hasattr(data, "reset") and hasattr(data, "__iter__")):
        raise TypeError(
            f"{what} is an iterator, such as io.NDArrayIter(data, label, batch_size), not "
            f"{'None' if data is None else 'a ' + type(data).__name__}"
        )


def _listed(callbacks: Callbacks) -> Sequence[Callable[..., None]]:
    if callbacks is None:
        return []
    return [callbacks] if callable(callbacks) else callbacks
