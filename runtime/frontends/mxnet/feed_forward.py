"""The feed-forward model: MXNet's interface before modules, as a Module on arrays or iterators."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.frontends.mxnet.base_module import BaseModule, Callbacks, Metrics, Params, Store
from runtime.frontends.mxnet.bucketing_module import BucketingModule
from runtime.frontends.mxnet.module import Module
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, RunError, ShapeError
from symgraph.core.types import Array
from symgraph.frontend.init import AnyInitializer, Uniform
from symgraph.frontend.io import DataIter, NDArrayIter, ResizeIter, describe
from symgraph.frontend.monitor import Monitor
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import load_checkpoint, save_checkpoint
from symgraph.frontend.symbol import Symbol


class FeedForward:
    """A network that is trained and used on arrays (MXNet FeedForward, which `Module` replaces).

    Attributes:
        symbol: The network.
        arg_params: The parameters by name, once there are any.
        aux_params: The auxiliary states likewise.
    """

    def __init__(
        self,
        symbol: Any,
        ctx: Context | Sequence[Context] | None = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: str | Optimizer = "sgd",
        initializer: AnyInitializer = Uniform(0.01),  # noqa: B008
        numpy_batch_size: int = 128,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
        begin_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        """Make a model.

        Args:
            symbol: The network, or a function of a bucket's key that makes it.
            ctx: The device or devices.
            num_epoch: The number of the epoch to stop before.
            epoch_size: Batches in an epoch; None: those of the data.
            optimizer: The optimizer, by name or as an object.
            initializer: Gives parameters that are not given their first values.
            numpy_batch_size: Samples in a batch of arrays.
            arg_params: First values of parameters.
            aux_params: First values of auxiliary states.
            allow_extra_params: Whether there may be others among them.
            begin_epoch: The number of the first epoch.
            kwargs: The settings of an optimizer by name.
        """
        self.symbol: Symbol | None = symbol if isinstance(symbol, Symbol) else None
        if self.symbol is None and not callable(symbol):
            raise TypeError(f"a model is made of a symbol, or of a function, not {symbol!r}")
        self._network, self.ctx = symbol, ctx
        self.num_epoch, self.epoch_size, self.begin_epoch = num_epoch, epoch_size, begin_epoch
        self.optimizer, self.initializer, self.kwargs = optimizer, initializer, kwargs
        self.numpy_batch_size, self.allow_extra_params = numpy_batch_size, allow_extra_params
        self.arg_params, self.aux_params = arg_params, aux_params

    # -- using ---------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        eval_data: Any = None,
        eval_metric: Metrics = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Store = "local",
        logger: Any = None,
        work_load_list: Sequence[float] | None = None,
        monitor: Monitor | None = None,
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
    ) -> None:
        """Train on an iterator, or on arrays X and y; eval_data: an iterator or a pair of arrays.

        work_load_list is accepted without effect.
        """
        train = self._iterator(X, y, shuffle=True)
        if isinstance(eval_data, tuple | list):
            eval_data = self._iterator(*eval_data, shuffle=False)
        size = self.epoch_size
        with self._module(train, logger or logging) as module:
            module.fit(
                train if size is None else ResizeIter(train, size, reset_internal=False),
                eval_data,
                eval_metric,
                epoch_end_callback,
                batch_end_callback,
                kvstore,
                self.optimizer,
                self.kwargs,
                eval_end_callback,
                eval_batch_end_callback,
                self.initializer,
                *self._known(module),
                allow_missing=True,
                begin_epoch=self.begin_epoch,
                num_epoch=self.num_epoch,
                monitor=monitor,
            )
            self.symbol = module.symbol
            self.arg_params, self.aux_params = module.get_params()

    def predict(
        self, X: Any, num_batch: int | None = None, return_data: bool = False, reset: bool = True
    ) -> Any:
        """Compute the outputs, as numpy arrays, for an array or an iterator.

        Returns:
            The output, or a list if there are several; with return_data, also the data and the
            labels.
        """
        data = self._iterator(X, None, shuffle=False)
        shown: list[list[list[Array]]] = []
        with self._ready_module(data) as module:
            for outputs, _, batch in module.iter_predict(data, num_batch, reset):
                kept = len(outputs[0])
                given = [
                    [np.asarray(a)[:kept] for a in table] for table in (batch.data, batch.label)
                ]
                shown.append([[*map(np.asarray, outputs)], *given])
        tables = [
            [np.concatenate(parts) for parts in zip(*table, strict=True)]
            for table in zip(*shown, strict=True)
        ]
        wholes = [table[0] if len(table) == 1 else table for table in tables]
        return tuple(wholes) if return_data else wholes[0]

    def score(
        self,
        X: Any,
        eval_metric: Metrics = "acc",
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        reset: bool = True,
        y: Any = None,
    ) -> float:
        """Compute a metric over an iterator, or over arrays X and y; return its value."""
        data = self._iterator(X, y, shuffle=False)
        with self._ready_module(data) as module:
            found = module.score(data, eval_metric, num_batch, batch_end_callback, reset=reset)
        return found[0][1]

    # -- files ---------------------------------------------------------------------------------

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write a checkpoint; epoch: its number, by default num_epoch."""
        number = self.num_epoch if epoch is None else epoch
        if number is None or self.symbol is None:
            raise ConfigError("save: say which epoch it is")
        args, aux = self._require_params()
        save_checkpoint(prefix, number, self.symbol, args, aux)

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Any = None, **kwargs: Any) -> FeedForward:
        """Read a checkpoint; keywords as for FeedForward."""
        symbol, args, aux = load_checkpoint(prefix, epoch)
        given: dict[str, Any] = {"arg_params": args, "aux_params": aux, "begin_epoch": epoch}
        return FeedForward(symbol, ctx, **given | kwargs)

    @staticmethod
    def create(
        symbol: Any,
        X: Any,
        y: Any = None,
        ctx: Any = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: str | Optimizer = "sgd",
        initializer: AnyInitializer = Uniform(0.01),  # noqa: B008
        eval_data: Any = None,
        eval_metric: Metrics = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Store = "local",
        logger: Any = None,
        work_load_list: Sequence[float] | None = None,
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        **kwargs: Any,
    ) -> FeedForward:
        """Make a model and train it; arguments as for FeedForward and `fit`."""
        model = FeedForward(symbol, ctx, num_epoch, epoch_size, optimizer, initializer, **kwargs)
        model.fit(
            X,
            y,
            eval_data,
            eval_metric,
            epoch_end_callback,
            batch_end_callback,
            kvstore,
            logger,
            eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback,
        )
        return model

    # -- modules -------------------------------------------------------------------------------

    def _iterator(self, X: Any, y: Any, *, shuffle: bool) -> DataIter:
        """Return an iterator unchanged, or make one of arrays."""
        if hasattr(X, "reset"):
            iterator: DataIter = X
            return iterator
        data = np.asarray(X)
        if y is None and shuffle:
            raise ConfigError("fit: y is missing, the labels of the array X")
        label: Array = np.zeros(len(data)) if y is None else np.asarray(y)
        if label.ndim == 2 and label.shape[1] == 1:
            label = label[:, 0]
        if label.shape != (len(data),):
            raise ShapeError(f"{len(data)} samples with labels of shape {label.shape}")
        size = min(len(data), self.numpy_batch_size)
        return NDArrayIter(data, label, size, shuffle, "roll_over" if shuffle else "pad")

    def _module(self, data: DataIter, logger: Any = logging) -> BaseModule:
        """A module for the inputs of an iterator."""
        inputs = [describe(d).name for d in data.provide_data]
        labels = [describe(d).name for d in data.provide_label]
        if isinstance(self._network, Symbol):
            known = self._network.list_arguments()
            labels = [name for name in labels if name in known]
            return Module(self._network, inputs, labels, logger, self.ctx)
        network, key = self._network, getattr(data, "default_bucket_key", None)
        return BucketingModule(lambda key: (network(key), inputs, labels), key, context=self.ctx)

    def _ready_module(self, data: DataIter) -> BaseModule:
        """A module with the parameters, bound to the inputs of an iterator."""
        self._require_params()
        module = self._module(data)
        module.bind(data.provide_data, data.provide_label, for_training=False)
        module.set_params(*self._known(module))
        return module

    def _known(self, module: BaseModule) -> tuple[Any, Any]:
        """The parameters, with allow_extra_params without those that the network does not have."""
        args, aux = self.arg_params, self.aux_params
        if self.allow_extra_params and module.symbol is not None:
            inputs = module.symbol.list_inputs()
            args = {name: value for name, value in (args or {}).items() if name in inputs}
            aux = {name: value for name, value in (aux or {}).items() if name in inputs}
        return args, aux

    def _require_params(self) -> tuple[Params, Params]:
        if self.arg_params is None:
            raise RunError("the model has no parameters yet: call fit, or give arg_params")
        return dict(self.arg_params), dict(self.aux_params or {})
