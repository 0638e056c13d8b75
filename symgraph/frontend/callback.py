"""Callbacks that `Module.fit` calls after batches and epochs (MXNet's `mx.callback`).

A batch callback is called with a BatchEndParam, an epoch callback with (epoch, symbol, arg_params,
aux_params). As in MXNet, messages go to the root logger at level INFO; to see them, call
`logging.basicConfig(level=logging.INFO)`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from symgraph.frontend.metric import EvalMetric
from symgraph.frontend.params_file import save_checkpoint
from symgraph.frontend.symbol import Symbol

EpochEnd = Callable[[int, Symbol, Mapping[str, Any], Mapping[str, Any]], None]


class BatchEndParam(NamedTuple):
    """The argument of a batch callback (`mx.model.BatchEndParam`)."""

    #: Number of the epoch, from 0.
    epoch: int
    #: Number of the batch within the epoch, from 0.
    nbatch: int
    #: The training metric so far, or None.
    eval_metric: EvalMetric | None
    #: Local variables of the training loop.
    locals: Mapping[str, Any] | None


BatchEnd = Callable[[BatchEndParam], None]


class _Saves(Protocol):
    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False
    ) -> None: ...


def do_checkpoint(prefix: str, period: int = 1) -> EpochEnd:
    """Return an epoch callback that saves a checkpoint every `period` epochs.

    It writes `<prefix>-symbol.json` and `<prefix>-<epoch>.params` (`mx.callback.do_checkpoint`).
    """

    def save(
        epoch: int, symbol: Symbol, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
    ) -> None:
        if (epoch + 1) % max(1, period) == 0:
            save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return save


def module_checkpoint(
    mod: _Saves, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """Return an epoch callback that saves a checkpoint of a module every `period` epochs.

    As `do_checkpoint`, and with `save_optimizer_states` the optimizer's states are saved too
    (`mx.callback.module_checkpoint`).
    """

    def save(epoch: int, *_: Any) -> None:
        if (epoch + 1) % max(1, period) == 0:
            mod.save_checkpoint(prefix, epoch + 1, save_optimizer_states)

    return save


def log_train_metric(period: int, auto_reset: bool = False) -> BatchEnd:
    """Return a batch callback that logs the metric every `period` batches.

    With `auto_reset` the metric starts anew after each message (`mx.callback.log_train_metric`).
    """

    def log(param: BatchEndParam) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info(
                    "Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value
                )
            if auto_reset:
                param.eval_metric.reset_local()

    return log


class Speedometer:
    """A batch callback that logs speed and metric (`mx.callback.Speedometer`).

    Args:
        batch_size: samples per batch.
        frequent: batches between two messages.
        auto_reset: if true, each message shows the metric of the batches since the last one;
            otherwise that of the epoch so far.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self._start = 0.0
        self._last = -1  # the previous call's batch; -1: no call in this epoch yet

    def __call__(self, param: BatchEndParam) -> None:
        count = param.nbatch
        first, self._last = self._last < 0 or count < self._last, count
        if first:
            self._start = time.perf_counter()
        elif count % self.frequent == 0:
            seconds = time.perf_counter() - self._start
            speed = self.frequent * self.batch_size / seconds if seconds else math.inf
            metric = param.eval_metric
            pairs = [] if metric is None else metric.get_name_value()
            begin = count - self.frequent if self.auto_reset else 0
            figures = "".join(f"\t{name}={value:f}" for name, value in pairs)
            logging.info(
                "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s",
                param.epoch,
                begin,
                count,
                speed,
                figures,
            )
            if metric is not None and self.auto_reset:
                metric.reset_local()
            self._start = time.perf_counter()


class ProgressBar:
    """A batch callback that logs a progress bar (`mx.callback.ProgressBar`).

    Args:
        total: batches after which the bar is full.
        length: characters of the full bar.
    """

    def __init__(self, total: int, length: int = 80) -> None:
        self.total = total
        self.length = length

    def __call__(self, param: BatchEndParam) -> None:
        share = min(1.0, (param.nbatch + 1) / self.total)
        filled = round(self.length * share)
        bar = "=" * filled + "-" * (self.length - filled)
        logging.info("[%s] %d%%", bar, math.ceil(100 * share))


class LogValidationMetricsCallback:
    """An evaluation-end callback that logs the metric (MXNet: LogValidationMetricsCallback)."""

    def __call__(self, param: BatchEndParam) -> None:
        if param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
