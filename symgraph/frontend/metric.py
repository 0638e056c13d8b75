"""Evaluation metrics: a sum and a count, added up over batches and ranks (MXNet's `mx.metric`).

Names, arguments and values are MXNet 1.9's. A value is always a sum divided by a count, never a
mean of means, so it does not depend on how the samples are split into batches.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.types import Array
from symgraph.frontend.metric_base import EvalMetric as EvalMetric
from symgraph.frontend.metric_base import Names, host_arrays
from symgraph.frontend.metric_tables import F1, MCC, PCC, PearsonCorrelation


class Accuracy(EvalMetric):
    """The share of samples whose predicted class is the label (`mx.metric.Accuracy`).

    Predictions are classes, in the shape of the labels, or scores with the classes along `axis`.
    """

    def __init__(
        self,
        axis: int = 1,
        name: str = "accuracy",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, output_names, label_names, axis=axis)
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        classes = pred if pred.shape == label.shape else pred.argmax(axis=self.axis)
        if classes.size != label.size:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        right = classes.reshape(-1).astype(numpy.int64) == label.reshape(-1).astype(numpy.int64)
        return float(numpy.count_nonzero(right)), label.size


class Perplexity(EvalMetric):
    """exp(sum of -log p(label) / number of labels) (`mx.metric.Perplexity`).

    Predictions are probabilities, with the classes along `axis`. Labels equal to `ignore_label`
    are left out of sum and count; None leaves out none. As in MXNet, probabilities are raised to at
    least 1e-10.
    """

    def __init__(
        self,
        ignore_label: int | None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, output_names, label_names, ignore_label=ignore_label, axis=axis)
        self.ignore_label = ignore_label
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        p = _probabilities(self.name, label, pred, self.axis, self.ignore_label)
        return -float(numpy.log(numpy.maximum(p, 1e-10)).sum()), p.size

    def value(self, mean: float) -> float:
        return math.exp(mean) if mean < 709.0 else math.inf


class CrossEntropy(EvalMetric):
    """The mean of -log(p(label) + eps) (`mx.metric.CrossEntropy`), classes along the last axis."""

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "cross-entropy",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, output_names, label_names, eps=eps)
        self.eps = eps

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        p = _probabilities(self.name, label, pred, -1, None)
        return -float(numpy.log(p + self.eps).sum()), p.size


class NegativeLogLikelihood(CrossEntropy):
    """`CrossEntropy` under another name (`mx.metric.NegativeLogLikelihood`)."""

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "nll-loss",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(eps, name, output_names, label_names)


class TopKAccuracy(EvalMetric):
    """The share of labels among the `top_k` best scores (`mx.metric.TopKAccuracy`).

    Predictions have the shape (N, classes); of equal scores, the higher class ranks first. Raises
    GraphError for a top_k below 2.
    """

    def __init__(
        self,
        top_k: int = 1,
        name: str = "top_k_accuracy",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        ending = f"_{top_k}"  # `get_config` has it already
        super().__init__(name.removesuffix(ending) + ending, output_names, label_names, top_k=top_k)
        if top_k < 2:
            raise GraphError(f"TopKAccuracy: top_k is {top_k}; use Accuracy for less than 2")
        self.top_k = top_k

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        if pred.ndim != 2 or len(pred) != label.size:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        best = numpy.argsort(pred, axis=1, kind="stable")[:, -self.top_k :]
        right = best == label.reshape(-1, 1).astype(numpy.int64)
        return float(numpy.count_nonzero(right)), label.size


class _Difference(EvalMetric):
    """The mean over elements of a function of (label - prediction)."""

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        if label.size != pred.size:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        difference = label.reshape(-1).astype(numpy.float64) - pred.reshape(-1)
        return float(self.error(difference).sum()), label.size

    @abstractmethod
    def error(self, difference: Array) -> Array:
        """Return the quantity to average, element by element."""


class MAE(_Difference):
    """The mean absolute error over all elements (`mx.metric.MAE`)."""

    def __init__(
        self, name: str = "mae", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(name, output_names, label_names)

    def error(self, difference: Array) -> Array:
        return numpy.abs(difference)


class MSE(_Difference):
    """The mean squared error over all elements (`mx.metric.MSE`)."""

    def __init__(
        self, name: str = "mse", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(name, output_names, label_names)

    def error(self, difference: Array) -> Array:
        return numpy.square(difference)


class RMSE(MSE):
    """The root of the mean squared error over all elements (`mx.metric.RMSE`).

    MXNet averages the roots of batches instead.
    """

    def __init__(
        self, name: str = "rmse", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(name, output_names, label_names)

    def value(self, mean: float) -> float:
        return math.sqrt(mean)


class Loss(EvalMetric):
    """The mean of all elements of the outputs; labels are ignored (`mx.metric.Loss`)."""

    def __init__(
        self, name: str = "loss", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(name, output_names, label_names)

    def update(self, labels: Any, preds: Array | Sequence[Array]) -> None:
        for pred in host_arrays(preds):
            self.accumulate(*self.measure(pred, pred))

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        return float(pred.sum(dtype=numpy.float64)), pred.size


Feval = Callable[[Array, Array], float | tuple[float, int]]


class CustomMetric(EvalMetric):
    """The mean of a function of numpy arrays (`mx.metric.CustomMetric`).

    Args:
        feval: called as feval(label, pred); returns a value per batch, or (sum, count).
        name: the metric's name; by default the function's.
        allow_extra_outputs: whether the numbers of labels and predictions may differ; surplus
            arrays are ignored.
        output_names, label_names: as of EvalMetric.
    """

    def __init__(
        self,
        feval: Feval,
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        function = str(getattr(feval, "__name__", type(feval).__name__))
        default = f"custom({function})" if "<" in function else function
        super().__init__(
            name or default, output_names, label_names, allow_extra_outputs=allow_extra_outputs
        )
        self._feval = feval
        self._extra = allow_extra_outputs

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        labels, preds = host_arrays(labels), host_arrays(preds)
        count = min(len(labels), len(preds)) if self._extra else None
        super().update(labels[:count], preds[:count])

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        value = self._feval(label, pred)
        return value if isinstance(value, tuple) else (float(value), 1)


class CompositeEvalMetric(EvalMetric):
    """Several metrics of the same batches (`mx.metric.CompositeEvalMetric`).

    metrics: instances, names or functions, as for `create`.
    """

    def __init__(
        self,
        metrics: Iterable[Metric] | None = (),
        name: str = "composite",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, output_names, label_names)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metrics": [m.get_config() for m in self.metrics]}

    def get_metric(self, index: int) -> EvalMetric:
        """Return one of the metrics; ValueError if there is none of this number (MXNet)."""
        try:
            return self.metrics[index]
        except IndexError:
            raise ValueError(
                f"metric {index} is out of range: there are {len(self.metrics)}"
            ) from None

    def add(self, metric: Metric) -> None:
        """Append a metric, given as for `create`."""
        self.metrics.append(create(metric))

    @property
    def parts(self) -> list[EvalMetric]:
        """Those of all its metrics."""
        return [part for metric in self.metrics for part in metric.parts]

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def update_dict(self, labels: Mapping[str, Array], preds: Mapping[str, Array]) -> None:
        for metric in self.metrics:
            metric.update_dict(labels, preds)

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def get(self) -> tuple[list[str], list[float]]:
        """Return (names, values) of all metrics."""
        return _columns([pair for metric in self.metrics for pair in metric.get_name_value()])

    def get_global(self) -> tuple[list[str], list[float]]:
        return _columns([p for metric in self.metrics for p in metric.get_global_name_value()])


METRICS: dict[str, type[EvalMetric]] = {
    "accuracy": Accuracy,
    "acc": Accuracy,
    "perplexity": Perplexity,
    "crossentropy": CrossEntropy,
    "cross-entropy": CrossEntropy,
    "ce": CrossEntropy,
    "negativeloglikelihood": NegativeLogLikelihood,
    "nll_loss": NegativeLogLikelihood,
    "topkaccuracy": TopKAccuracy,
    "top_k_accuracy": TopKAccuracy,
    "top_k_acc": TopKAccuracy,
    "f1": F1,
    "mcc": MCC,
    "pcc": PCC,
    "pearsoncorrelation": PearsonCorrelation,
    "pearsonr": PearsonCorrelation,
    "composite": CompositeEvalMetric,
    "compositeevalmetric": CompositeEvalMetric,
    "mae": MAE,
    "mse": MSE,
    "rmse": RMSE,
    "loss": Loss,
}
Metric = str | EvalMetric | Callable[[Array, Array], Any] | dict[str, Any]


def register(kind: type[EvalMetric]) -> type[EvalMetric]:
    """Register a metric under its class's name, for `create` (`mx.metric.register`)."""
    METRICS[kind.__name__.lower()] = kind
    return kind


def alias(*aliases: str) -> Callable[[type[EvalMetric]], type[EvalMetric]]:
    """Register a metric under its class's name and others (`mx.metric.alias`)."""

    def with_aliases(kind: type[EvalMetric]) -> type[EvalMetric]:
        METRICS.update({name.lower(): kind for name in aliases})
        return register(kind)

    return with_aliases


def create(metric: Metric | list[Metric], *values: Any, **arguments: Any) -> EvalMetric:
    """Make a metric; return an existing one unchanged (`mx.metric.create`).

    Args:
        metric: a name in any case, a function of a label and a prediction, a metric, a list of
            these, or what `get_config` returned, perhaps as JSON.
        *values: arguments of the metric's class by position.
        **arguments: arguments of the metric's class by name.

    Raises:
        GraphError: for an unknown name or argument, or anything else.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric(metric, *values, **arguments)
    if isinstance(metric, str) and metric.startswith("{"):
        metric = json.loads(metric)
    if isinstance(metric, dict):
        arguments = {key: value for key, value in metric.items() if key != "metric"}
        metric = str(metric["metric"])
    if isinstance(metric, type) or not (isinstance(metric, str) or callable(metric)):
        raise GraphError(
            f"{metric!r} is not a metric: pass one such as Accuracy(), a name, a function of a "
            "label and a prediction, or a list of these"
        )
    if not isinstance(metric, str):
        return CustomMetric(metric, *values, **arguments)
    metric_class = METRICS.get(metric.lower())
    if metric_class is None:
        raise GraphError(f"unknown metric {metric!r}: {nearest(metric.lower(), METRICS)}")
    try:
        signature(metric_class).bind(*values, **arguments)
    except TypeError as error:
        raise GraphError(f"metric {metric!r}: {error}") from None
    return metric_class(*values, **arguments)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> Any:
    """Return labels and predictions as they are, or each in a list if `wrap` (MXNet).

    Raises ShapeError unless they have one length, or with `shape` one shape.
    """
    found = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if found[0] != found[1]:
        raise ShapeError(f"labels of {found[0]} do not fit predictions of {found[1]}")
    if wrap:
        return tuple(x if isinstance(x, (list, tuple)) else [x] for x in (labels, preds))
    return labels, preds


def np(
    numpy_feval: Feval, name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """Make a metric of a function of numpy arrays (`mx.metric.np`); see CustomMetric."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


def _columns(pairs: list[tuple[str, float]]) -> tuple[list[str], list[float]]:
    return [name for name, _ in pairs], [value for _, value in pairs]


def _probabilities(name: str, label: Array, pred: Array, axis: int, ignore: int | None) -> Array:
    """Return the probability predicted for each counted label, as float64."""
    rows = numpy.moveaxis(pred, axis, -1)
    classes = rows.shape[-1]
    if label.size * classes != pred.size:
        raise ShapeError(
            f"metric {name!r}: labels {label.shape} do not fit predictions {pred.shape} with "
            f"{classes} classes"
        )
    flat = label.reshape(-1).astype(numpy.int64)
    counted = numpy.arange(flat.size) if ignore is None else numpy.flatnonzero(flat != ignore)
    labels = flat[counted]
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.size:
        raise GraphError(
            f"metric {name!r}: label {outside[0]} is not one of the classes 0 to {classes - 1}; "
            f"use ignore_label for labels that only pad a batch"
        )
    probabilities: Array = rows.reshape(-1, classes)[counted, labels].astype(numpy.float64)
    return probabilities
