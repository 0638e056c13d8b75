"""Evaluation metrics: a sum and a count, added up over batches and ranks (MXNet's `mx.metric`).

Names, arguments and values are MXNet 1.9's. A value is always a sum divided by a count, never a
mean of means, so it does not depend on how the samples are split into batches.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.types import Array

Names = Sequence[str] | None


class EvalMetric:
    """A running average: `sum_metric` divided by `num_inst` (`mx.metric.EvalMetric`).

    There are two averages: one since `reset_local`, and one (`global_sum_metric`,
    `global_num_inst`) since `reset`. A subclass implements `measure`, or an `update` that adds to
    `sum_metric` and `num_inst`.

    Args:
        name: the metric's name in messages.
        output_names: the module's outputs to use; None: all.
        label_names: the module's labels to use; None: all.
    """

    global_sum_metric = 0.0  # for subclasses whose `reset` does not set them
    global_num_inst = 0

    def __init__(self, name: str, output_names: Names = None, label_names: Names = None) -> None:
        self.name = name
        self.output_names = output_names
        self.label_names = label_names
        self.reset()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {dict(self.get_name_value())}>"

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def reset(self) -> None:
        """Reset both averages."""
        self.global_sum_metric = 0.0
        self.global_num_inst = 0
        self.reset_local()

    def reset_local(self) -> None:
        """Reset the local average, but not the one that `get_global` returns."""
        self.sum_metric = 0.0
        self.num_inst = 0

    def accumulate(self, sum_metric: float, num_inst: int) -> None:
        """Add a sum and a count from elsewhere, such as another rank's metric or a loss node."""
        self.sum_metric += sum_metric
        self.num_inst += num_inst
        self.global_sum_metric += sum_metric
        self.global_num_inst += num_inst

    def update_dict(self, labels: Mapping[str, Array], preds: Mapping[str, Array]) -> None:
        """Add a batch of a module's labels and outputs, by name.

        Raises GraphError if one of `output_names` or `label_names` is missing.
        """
        self.update(
            _select(self.name, "label", labels, self.label_names),
            _select(self.name, "output", preds, self.output_names),
        )

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        """Add a batch: one array each, or lists of equally many arrays.

        Raises ShapeError if the numbers of arrays differ.
        """
        pairs = _host_arrays(labels), _host_arrays(preds)
        if len(pairs[0]) != len(pairs[1]):
            raise ShapeError(
                f"metric {self.name!r}: {len(pairs[0])} arrays of labels for {len(pairs[1])} of "
                f"predictions; choose with output_names= and label_names="
            )
        for label, pred in zip(*pairs, strict=True):
            self.accumulate(*self.measure(label, pred))

    def get(self) -> tuple[Any, Any]:
        """Return (name, value), or two lists; the value is nan while the count is 0."""
        return self.name, self.value(self.sum_metric / self.num_inst) if self.num_inst else math.nan

    def get_global(self) -> tuple[Any, Any]:
        """Return what `get` does, since `reset`; needs an `update` that calls `accumulate`."""
        total, count = self.global_sum_metric, self.global_num_inst
        return (self.name, self.value(total / count)) if count else self.get()

    def get_name_value(self) -> list[tuple[str, float]]:
        """Return `get` as a list of (name, value)."""
        return _pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Return `get_global` as a list of (name, value)."""
        return _pairs(*self.get_global())

    @property
    def parts(self) -> list[EvalMetric]:
        """The metrics with a sum and a count of their own: this one."""
        return [self]

    def value(self, mean: float) -> float:
        """Compute the metric from the average."""
        return mean

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Return (sum, count) of one pair of arrays."""
        raise NotImplementedError(
            f"metric {self.name!r}: {type(self).__name__} implements neither measure(label, pred) "
            "nor update(labels, preds)"
        )


class Accuracy(EvalMetric):
    """The share of samples whose predicted class is the label (`mx.metric.Accuracy`).

    Predictions are classes, in the shape of the labels, or scores with the classes along `axis`.
    """

    def __init__(self, axis: int = 1, name: str = "accuracy", **names: Names) -> None:
        super().__init__(name, **names)
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
        self, ignore_label: int | None, axis: int = -1, name: str = "perplexity", **names: Names
    ) -> None:
        super().__init__(name, **names)
        self.ignore_label = ignore_label
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        p = _probabilities(self.name, label, pred, self.axis, self.ignore_label)
        return -float(numpy.log(numpy.maximum(p, 1e-10)).sum()), p.size

    def value(self, mean: float) -> float:
        return math.exp(mean) if mean < 709.0 else math.inf


class CrossEntropy(EvalMetric):
    """The mean of -log(p(label) + eps) (`mx.metric.CrossEntropy`), classes along the last axis."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", **names: Names) -> None:
        super().__init__(name, **names)
        self.eps = eps

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        p = _probabilities(self.name, label, pred, -1, None)
        return -float(numpy.log(p + self.eps).sum()), p.size


class NegativeLogLikelihood(CrossEntropy):
    """`CrossEntropy` under another name (`mx.metric.NegativeLogLikelihood`)."""

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", **names: Names) -> None:
        super().__init__(eps, name, **names)


class TopKAccuracy(EvalMetric):
    """The share of labels among the `top_k` best scores (`mx.metric.TopKAccuracy`).

    Predictions have the shape (N, classes); of equal scores, the higher class ranks first. Raises
    GraphError for a top_k below 2.
    """

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", **names: Names) -> None:
        super().__init__(f"{name}_{top_k}", **names)
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


class F1(EvalMetric):
    """The F1 score of class 1 of two classes, over all samples (`mx.metric.F1`).

    It is 2 / (1 / precision + 1 / recall), as MXNet's with average="micro". Predictions are scores
    of shape (N, 2); labels are 0 or 1.
    """

    def __init__(self, name: str = "f1", **names: Names) -> None:
        super().__init__(name, **names)

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Return twice the true positives, and the positives plus the predicted positives."""
        truth = label.reshape(-1).astype(numpy.int64)
        if pred.shape != (truth.size, 2) or not numpy.isin(truth, (0, 1)).all():
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} must be 0 or 1, and predictions "
                f"scores of two classes, not {pred.shape}"
            )
        predicted = pred.argmax(axis=1)
        true_positives = numpy.count_nonzero(truth & predicted)
        return 2.0 * true_positives, int(truth.sum() + predicted.sum())


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

    def __init__(self, name: str = "mae", **names: Names) -> None:
        super().__init__(name, **names)

    def error(self, difference: Array) -> Array:
        return numpy.abs(difference)


class MSE(_Difference):
    """The mean squared error over all elements (`mx.metric.MSE`)."""

    def __init__(self, name: str = "mse", **names: Names) -> None:
        super().__init__(name, **names)

    def error(self, difference: Array) -> Array:
        return numpy.square(difference)


class RMSE(MSE):
    """The root of the mean squared error over all elements (`mx.metric.RMSE`).

    MXNet averages the roots of batches instead.
    """

    def __init__(self, name: str = "rmse", **names: Names) -> None:
        super().__init__(name, **names)

    def value(self, mean: float) -> float:
        return math.sqrt(mean)


class Loss(EvalMetric):
    """The mean of all elements of the outputs; labels are ignored (`mx.metric.Loss`)."""

    def __init__(self, name: str = "loss", **names: Names) -> None:
        super().__init__(name, **names)

    def update(self, labels: Any, preds: Array | Sequence[Array]) -> None:
        for pred in _host_arrays(preds):
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
        **names: `output_names` and `label_names`, as of EvalMetric.
    """

    def __init__(
        self,
        feval: Feval,
        name: str | None = None,
        allow_extra_outputs: bool = False,
        **names: Names,
    ) -> None:
        function = str(getattr(feval, "__name__", type(feval).__name__))
        default = f"custom({function})" if "<" in function else function
        super().__init__(name or default, **names)
        self._feval = feval
        self._extra = allow_extra_outputs

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        labels, preds = _host_arrays(labels), _host_arrays(preds)
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
        self, metrics: Iterable[Metric] | None = (), name: str = "composite", **names: Names
    ) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, **names)

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
    "mae": MAE,
    "mse": MSE,
    "rmse": RMSE,
    "loss": Loss,
}
Metric = str | EvalMetric | Callable[[Array, Array], Any]


def create(metric: Metric | list[Metric], **arguments: Any) -> EvalMetric:
    """Make a metric; return an existing one unchanged (`mx.metric.create`).

    Args:
        metric: a name in any case, a function of a label and a prediction, a metric, or a list of
            these.
        **arguments: arguments of the metric's class.

    Raises:
        GraphError: for an unknown name, or anything else.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric(metric, **arguments)
    if isinstance(metric, type) or not (isinstance(metric, str) or callable(metric)):
        raise GraphError(
            f"{metric!r} is not a metric: pass one such as Accuracy(), a name, a function of a "
            "label and a prediction, or a list of these"
        )
    if not isinstance(metric, str):
        return CustomMetric(metric, **arguments)
    metric_class = METRICS.get(metric.lower())
    if metric_class is None:
        raise GraphError(f"unknown metric {metric!r}: {nearest(metric.lower(), METRICS)}")
    return metric_class(**arguments)


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


def _pairs(names: Any, values: Any) -> list[tuple[str, float]]:
    if not isinstance(names, list):
        names, values = [names], [values]
    return list(zip(names, values, strict=True))


def _select(metric: str, what: str, arrays: Mapping[str, Array], names: Names) -> list[Array]:
    """Return the arrays of these names; all arrays for None."""
    if names is None:
        return list(arrays.values())
    for name in names:
        if name not in arrays:
            raise GraphError(f"metric {metric!r}: no {what} {name!r}; {nearest(name, arrays)}")
    return [arrays[name] for name in names]


def _host_arrays(arrays: Array | Sequence[Array]) -> list[Array]:
    sequence = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [a.get() if hasattr(a, "get") else numpy.asarray(a) for a in sequence]  # CuPy has get()
