"""Metrics of predictions: a sum and a count, which can be added up over batches and ranks.

Names, arguments and values are MXNet 1.9's. A value is always sum over count, never a mean of
means, so it does not depend on how the samples were cut into batches.
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
    """A running average: `sum_metric` over `num_inst` (`mx.metric.EvalMetric`).

    Two are kept: one since `reset_local`, one (`global_...`) since `reset`. output_names,
    label_names: which of a module's outputs and labels to look at, by default all. A metric of
    one's own has a method `measure`, or one `update` that adds to `sum_metric` and `num_inst`.
    """

    global_sum_metric = 0.0  # for a `reset` of one's own that does not set them
    global_num_inst = 0

    def __init__(self, name: str, output_names: Names = None, label_names: Names = None) -> None:
        self.name = name
        self.output_names = output_names
        self.label_names = label_names
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.global_sum_metric = 0.0
        self.global_num_inst = 0
        self.reset_local()

    def reset_local(self) -> None:
        """Begin anew, but for what `get_global` tells."""
        self.sum_metric = 0.0
        self.num_inst = 0

    def accumulate(self, sum_metric: float, num_inst: int) -> None:
        """Take in a sum and a count from elsewhere: another rank's metric, or a loss node."""
        self.sum_metric += sum_metric
        self.num_inst += num_inst
        self.global_sum_metric += sum_metric
        self.global_num_inst += num_inst

    def update_dict(self, labels: Mapping[str, Array], preds: Mapping[str, Array]) -> None:
        """Take in those of a module's labels and outputs that it looks at, by name."""
        self.update(
            _chosen(self.name, "label", labels, self.label_names),
            _chosen(self.name, "output", preds, self.output_names),
        )

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        """Take in a batch: one array, or as many arrays of labels as of predictions."""
        pairs = listed(labels), listed(preds)
        if len(pairs[0]) != len(pairs[1]):
            raise ShapeError(
                f"metric {self.name!r}: {len(pairs[0])} arrays of labels for {len(pairs[1])} of "
                f"predictions; choose with output_names= and label_names="
            )
        for label, pred in zip(*pairs, strict=True):
            self.accumulate(*self.measure(label, pred))

    def get(self) -> tuple[Any, Any]:
        """(name, value), or two lists; the value is nan while there is nothing counted."""
        return self.name, self.value(self.sum_metric / self.num_inst) if self.num_inst else math.nan

    def get_global(self) -> tuple[Any, Any]:
        """`get` of everything since `reset`, if what there was went through `accumulate`."""
        total, count = self.global_sum_metric, self.global_num_inst
        return (self.name, self.value(total / count)) if count else self.get()

    def get_name_value(self) -> list[tuple[str, float]]:
        """(name, value) of each value that `get` tells."""
        return _pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """(name, value) of each value that `get_global` tells."""
        return _pairs(*self.get_global())

    @property
    def parts(self) -> list[EvalMetric]:
        """The metrics with a sum and a count of their own that it is made of: itself."""
        return [self]

    def value(self, mean: float) -> float:
        """The metric, from the mean of what was measured."""
        return mean

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """(sum, count) of one batch."""
        raise NotImplementedError(
            f"metric {self.name!r}: {type(self).__name__} has neither a method measure(label, pred)"
            " nor one update(labels, preds)"
        )


class Accuracy(EvalMetric):
    """The share of labels that are predicted (`mx.metric.Accuracy`).

    A prediction is a class, or a score for each class along `axis` of which the best is taken.
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
    are left out of the sum and of the count; None counts all. As in MXNet, no probability is
    taken as less than 1e-10.
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

    Predictions are (N, classes); between equal scores the last class counts as the better one.
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
    """2 / (1 / precision + 1 / recall) of class 1 of two, over all samples (`mx.metric.F1`).

    As MXNet's with average="micro". Predictions are (N, 2) scores.
    """

    def __init__(self, name: str = "f1", **names: Names) -> None:
        super().__init__(name, **names)

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Twice the true positives, over all that are positive or predicted so."""
        truth = label.reshape(-1).astype(numpy.int64)
        if pred.shape != (truth.size, 2) or not numpy.isin(truth, (0, 1)).all():
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} of 0 and 1 are wanted with scores of "
                f"two classes, not {pred.shape}"
            )
        found = pred.argmax(axis=1)
        right = numpy.count_nonzero(truth & found)
        return 2.0 * right, int(truth.sum() + found.sum())


class _Difference(EvalMetric):
    """Something of the differences between labels and predictions, averaged over elements."""

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        if label.size != pred.size:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        difference = label.reshape(-1).astype(numpy.float64) - pred.reshape(-1)
        return float(self.error(difference).sum()), label.size

    @abstractmethod
    def error(self, difference: Array) -> Array:
        """What is averaged."""


class MAE(_Difference):
    """The mean absolute error, over elements (`mx.metric.MAE`)."""

    def __init__(self, name: str = "mae", **names: Names) -> None:
        super().__init__(name, **names)

    def error(self, difference: Array) -> Array:
        return numpy.abs(difference)


class MSE(_Difference):
    """The mean squared error, over elements (`mx.metric.MSE`)."""

    def __init__(self, name: str = "mse", **names: Names) -> None:
        super().__init__(name, **names)

    def error(self, difference: Array) -> Array:
        return numpy.square(difference)


class RMSE(MSE):
    """The root of the mean squared error of all elements, whatever the batches (MXNet: RMSE)."""

    def __init__(self, name: str = "rmse", **names: Names) -> None:
        super().__init__(name, **names)

    def value(self, mean: float) -> float:
        return math.sqrt(mean)


class Loss(EvalMetric):
    """The mean of the outputs' elements, without labels (`mx.metric.Loss`)."""

    def __init__(self, name: str = "loss", **names: Names) -> None:
        super().__init__(name, **names)

    def update(self, labels: Any, preds: Array | Sequence[Array]) -> None:
        for pred in listed(preds):
            self.accumulate(*self.measure(pred, pred))

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        return float(pred.sum(dtype=numpy.float64)), pred.size


Feval = Callable[[Array, Array], float | tuple[float, int]]


class CustomMetric(EvalMetric):
    """The mean of `feval(label, pred)`, a value a batch or (sum, count) (`mx.metric.CustomMetric`).

    allow_extra_outputs: whether there may be more predictions than labels, or fewer.
    """

    def __init__(
        self,
        feval: Feval,
        name: str | None = None,
        allow_extra_outputs: bool = False,
        **names: Names,
    ) -> None:
        own = str(getattr(feval, "__name__", type(feval).__name__))
        super().__init__(name or (f"custom({own})" if "<" in own else own), **names)
        self._feval = feval
        self._extra = allow_extra_outputs

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        labels, preds = listed(labels), listed(preds)
        count = min(len(labels), len(preds)) if self._extra else None
        super().update(labels[:count], preds[:count])

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        found = self._feval(label, pred)
        return found if isinstance(found, tuple) else (float(found), 1)


class CompositeEvalMetric(EvalMetric):
    """Several metrics of the same batches (`mx.metric.CompositeEvalMetric`)."""

    def __init__(
        self, metrics: Iterable[Metric] | None = (), name: str = "composite", **names: Names
    ) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, **names)

    def add(self, metric: Metric) -> None:
        """Put a metric behind the others."""
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
        """(names, values) of all its metrics."""
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
    """The metric itself, or a new one (`mx.metric.create`).

    metric: a name in any case, a function of a label and a prediction, or a list of metrics.
    Raises GraphError for an unknown name, or something else.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric(metric, **arguments)
    if isinstance(metric, type) or not (isinstance(metric, str) or callable(metric)):
        raise GraphError(
            f"{metric!r} is no metric: give one like Accuracy(), a name, a function of a label and "
            "a prediction, or a list of these"
        )
    if not isinstance(metric, str):
        return CustomMetric(metric, **arguments)
    known = METRICS.get(metric.lower())
    if known is None:
        raise GraphError(f"unknown metric {metric!r}: {nearest(metric.lower(), METRICS)}")
    return known(**arguments)


def np(
    numpy_feval: Feval, name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """A function of numpy arrays as a metric (`mx.metric.np`); see CustomMetric."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


def _columns(pairs: list[tuple[str, float]]) -> tuple[list[str], list[float]]:
    return [name for name, _ in pairs], [value for _, value in pairs]


def _probabilities(name: str, label: Array, pred: Array, axis: int, ignore: int | None) -> Array:
    """What was predicted for each counted label, as float64."""
    rows = numpy.moveaxis(pred, axis, -1)
    classes = rows.shape[-1]
    if label.size * classes != pred.size:
        raise ShapeError(
            f"metric {name!r}: labels {label.shape} do not fit predictions {pred.shape} with "
            f"{classes} classes"
        )
    flat = label.reshape(-1).astype(numpy.int64)
    where = numpy.arange(flat.size) if ignore is None else numpy.flatnonzero(flat != ignore)
    wanted = flat[where]
    wrong = wanted[(wanted < 0) | (wanted >= classes)]
    if wrong.size:
        raise GraphError(
            f"metric {name!r}: label {wrong[0]} is not one of the classes 0 to {classes - 1}; "
            f"labels that only pad a batch are left out with ignore_label"
        )
    picked: Array = rows.reshape(-1, classes)[where, wanted].astype(numpy.float64)
    return picked


def _pairs(names: Any, values: Any) -> list[tuple[str, float]]:
    if not isinstance(names, list):
        names, values = [names], [values]
    return list(zip(names, values, strict=True))


def _chosen(metric: str, what: str, arrays: Mapping[str, Array], names: Names) -> list[Array]:
    """The arrays of these names; all of them without names."""
    if names is None:
        return list(arrays.values())
    for name in names:
        if name not in arrays:
            raise GraphError(f"metric {metric!r}: no {what} {name!r}; {nearest(name, arrays)}")
    return [arrays[name] for name in names]


def listed(arrays: Array | Sequence[Array]) -> list[Array]:
    listed = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [a.get() if hasattr(a, "get") else numpy.asarray(a) for a in listed]  # get(): from a GPU
