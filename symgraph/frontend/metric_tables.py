"""Metrics of counts and sums over all samples: F1, correlations, confusion of classes.

MXNet averages most of them over batches ("macro") unless told otherwise. Here they are of all
samples together ("micro"), as everywhere in this package: a value does not depend on how the
samples are split into batches.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.types import Array
from symgraph.frontend.metric_base import EvalMetric, Names, host_arrays

AVERAGES = ("micro", "macro")


class _Table(EvalMetric):
    """A figure of sums over samples, of which all multiples have the same figure.

    `sum_metric` is an array of sums; with average="macro" it is the sum of the figures of batches.
    """

    def __init__(self, name: str, average: str, output_names: Names, label_names: Names) -> None:
        if average not in AVERAGES:
            raise GraphError(f"metric {name!r}: average={average!r}; {nearest(average, AVERAGES)}")
        super().__init__(name, output_names, label_names, average=average)
        self.average = average

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        if self.average == "micro":
            super().update(labels, preds)
            return
        measured = [sums for sums, _ in self._measured(labels, preds)]
        if measured:
            self.accumulate(self.figure(numpy.sum(measured, axis=0)), 1)

    def value(self, mean: Any) -> float:
        return self.figure(mean) if isinstance(mean, numpy.ndarray) else float(mean)

    @abstractmethod
    def figure(self, sums: Array) -> float:
        """Compute the metric from the sums, or from the sums divided by a number."""


class _TwoClasses(_Table):
    """A figure of counts by predicted and true class, of the classes 0 and 1."""

    def measure(self, label: Array, pred: Array) -> tuple[Any, int]:
        truth = label.reshape(-1).astype(numpy.int64)
        if pred.shape != (truth.size, 2) or not numpy.isin(truth, (0, 1)).all():
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} must be 0 or 1, and predictions "
                f"scores of two classes, not {pred.shape}"
            )
        return _confusion(truth, pred.argmax(axis=1), 2), truth.size


class F1(_TwoClasses):
    """The F1 score of class 1 of two classes (`mx.metric.F1`).

    It is 2 / (1 / precision + 1 / recall), of all samples, or the mean over batches for
    average="macro", which is MXNet 1.x's default. Predictions are scores of shape (N, 2); labels
    are 0 or 1.
    """

    def __init__(
        self,
        name: str = "f1",
        average: str = "micro",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, average, output_names, label_names)

    def figure(self, sums: Array) -> float:
        (_, missed), (wrong, found) = sums
        return float(2 * found / (2 * found + missed + wrong)) if found else 0.0


class MCC(_TwoClasses):
    """Matthews' correlation coefficient of two classes (`mx.metric.MCC`).

    Arguments are those of `F1`. Factors of the denominator that are 0 count as 1.
    """

    def __init__(
        self,
        name: str = "mcc",
        average: str = "micro",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, average, output_names, label_names)

    def figure(self, sums: Array) -> float:
        (no, missed), (wrong, yes) = sums / sums.sum()
        terms = [yes + wrong, yes + missed, no + wrong, no + missed]
        return float((yes * no - wrong * missed) / math.sqrt(math.prod(t for t in terms if t)))


class PCC(_Table):
    """Matthews' correlation coefficient for any number of classes (`mx.metric.PCC`).

    Predictions are classes, in the shape of the labels, or scores of shape (N, classes). It is nan
    while all labels, or all predictions, are of one class.
    """

    def __init__(
        self, name: str = "pcc", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(name, "micro", output_names, label_names)
        del self._settings["average"]

    def measure(self, label: Array, pred: Array) -> tuple[Any, int]:
        found = pred if pred.shape == label.shape else pred.argmax(axis=1)
        truth, found = (a.reshape(-1).astype(numpy.int64) for a in (label, found))
        if truth.size != found.size or not truth.size:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        return _confusion(truth, found, 1 + int(max(truth.max(), found.max()))), truth.size

    def accumulate(self, sum_metric: Any, num_inst: int) -> None:
        """Add counts of perhaps more classes than before."""
        so_far = (self.sum_metric, self.global_sum_metric)
        classes = max(len(a) for a in (*so_far, sum_metric) if isinstance(a, numpy.ndarray))
        self.sum_metric, self.global_sum_metric = (_widened(a, classes) for a in so_far)
        super().accumulate(_widened(sum_metric, classes), num_inst)

    def figure(self, sums: Array) -> float:
        shares = sums / sums.sum()
        found, truth = shares.sum(axis=1), shares.sum(axis=0)
        spread = float((found * (1 - found)).sum() * (truth * (1 - truth)).sum())
        if not spread:
            return math.nan
        return float((shares.diagonal() - found * truth).sum() / math.sqrt(spread))


class PearsonCorrelation(_Table):
    """Pearson's correlation of labels and predictions (`mx.metric.PearsonCorrelation`).

    It is of all elements, or the mean over arrays for average="macro", MXNet 1.x's default.
    """

    def __init__(
        self,
        name: str = "pearsonr",
        average: str = "micro",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, average, output_names, label_names)

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        labels, preds = host_arrays(labels), host_arrays(preds)
        if self.average == "micro" or len(labels) != len(preds):
            super().update(labels, preds)
            return
        for pair in zip(labels, preds, strict=True):
            super().update(*pair)

    def measure(self, label: Array, pred: Array) -> tuple[Any, int]:
        if label.shape != pred.shape:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        x, y = (a.reshape(-1).astype(numpy.float64) for a in (label, pred))
        return numpy.array([x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y]), 1

    def figure(self, sums: Array) -> float:
        n, x, y, xx, yy, xy = sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return float((n * xy - x * y) / math.sqrt(spread)) if spread > 0 else math.nan


def _confusion(truth: Array, found: Array, classes: int) -> Array:
    """Count samples by predicted class and true class."""
    flat = numpy.bincount(found * classes + truth, minlength=classes * classes)
    return flat.reshape(classes, classes).astype(numpy.float64)


def _widened(counts: Any, classes: int) -> Any:
    """Return counts of this many classes; a 0 stands for no counts."""
    if not isinstance(counts, numpy.ndarray):
        return numpy.zeros((classes, classes))
    return numpy.pad(counts, (0, classes - len(counts)))
