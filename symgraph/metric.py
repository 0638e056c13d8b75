"""Metrics of predictions: a sum and a count, which can be added up over batches and ranks.

Names, arguments and values are MXNet 1.9's. A value is always sum over count, never a mean of
means, so it does not depend on how the samples were cut into batches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from symgraph.errors import GraphError, ShapeError, nearest

Array = npt.NDArray[Any]


class EvalMetric(ABC):
    """A running average: `sum_metric` over `num_inst` (`mx.metric.EvalMetric`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.sum_metric = 0.0
        self.num_inst = 0

    def add(self, sum_metric: float, num_inst: int) -> None:
        """Take in a sum and a count from elsewhere: another rank's metric, or a loss node."""
        self.sum_metric += sum_metric
        self.num_inst += num_inst

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        """Take in a batch: one array, or as many arrays of labels as of predictions."""
        pairs = _listed(labels), _listed(preds)
        if len(pairs[0]) != len(pairs[1]):
            raise ShapeError(
                f"metric {self.name!r}: {len(pairs[0])} arrays of labels for {len(pairs[1])} of "
                f"predictions"
            )
        for label, pred in zip(*pairs, strict=True):
            self.add(*self.measure(label, pred))

    def get(self) -> tuple[str, float]:
        """(name, value); the value is nan while there is nothing counted."""
        return self.name, self.value(self.sum_metric / self.num_inst) if self.num_inst else math.nan

    def get_name_value(self) -> list[tuple[str, float]]:
        return [self.get()]

    def value(self, mean: float) -> float:
        """The metric, from the mean of what was measured."""
        return mean

    @abstractmethod
    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """(sum, count) of one batch."""


class Accuracy(EvalMetric):
    """The share of labels that are predicted (`mx.metric.Accuracy`).

    A prediction is a class, or a score for each class along `axis` of which the best is taken.
    """

    def __init__(self, axis: int = 1, name: str = "accuracy") -> None:
        super().__init__(name)
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        classes = pred if pred.shape == label.shape else pred.argmax(axis=self.axis)
        if classes.size != label.size:
            raise ShapeError(
                f"metric {self.name!r}: labels {label.shape} do not fit predictions {pred.shape}"
            )
        right = classes.reshape(-1).astype(np.int64) == label.reshape(-1).astype(np.int64)
        return float(np.count_nonzero(right)), label.size


class Perplexity(EvalMetric):
    """exp(sum of -log p(label) / number of labels) (`mx.metric.Perplexity`).

    Predictions are probabilities, with the classes along `axis`. Labels equal to `ignore_label`
    are left out of the sum and of the count; None counts all. As in MXNet, no probability is
    taken as less than 1e-10.
    """

    def __init__(self, ignore_label: int | None, axis: int = -1, name: str = "perplexity") -> None:
        super().__init__(name)
        self.ignore_label = ignore_label
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        p = _probabilities(self.name, label, pred, self.axis, self.ignore_label)
        return -float(np.log(np.maximum(p, 1e-10)).sum()), p.size

    def value(self, mean: float) -> float:
        return math.exp(mean) if mean < 709.0 else math.inf


class CrossEntropy(EvalMetric):
    """The mean of -log(p(label) + eps) (`mx.metric.CrossEntropy`), classes along the last axis."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy") -> None:
        super().__init__(name)
        self.eps = eps

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        p = _probabilities(self.name, label, pred, -1, None)
        return -float(np.log(p + self.eps).sum()), p.size


METRICS: dict[str, type[EvalMetric]] = {
    "accuracy": Accuracy,
    "acc": Accuracy,
    "perplexity": Perplexity,
    "crossentropy": CrossEntropy,
    "ce": CrossEntropy,
}


def create(metric: str | EvalMetric, **arguments: Any) -> EvalMetric:
    """The metric itself, or a new one of that name in any case; GraphError if unknown."""
    if isinstance(metric, EvalMetric):
        return metric
    known = METRICS.get(metric.lower())
    if known is None:
        raise GraphError(f"unknown metric {metric!r}: {nearest(metric.lower(), METRICS)}")
    return known(**arguments)


def _probabilities(name: str, label: Array, pred: Array, axis: int, ignore: int | None) -> Array:
    """What was predicted for each counted label, as float64."""
    rows = np.moveaxis(pred, axis, -1)
    classes = rows.shape[-1]
    if label.size * classes != pred.size:
        raise ShapeError(
            f"metric {name!r}: labels {label.shape} do not fit predictions {pred.shape} with "
            f"{classes} classes"
        )
    flat = label.reshape(-1).astype(np.int64)
    where = np.arange(flat.size) if ignore is None else np.flatnonzero(flat != ignore)
    wanted = flat[where]
    wrong = wanted[(wanted < 0) | (wanted >= classes)]
    if wrong.size:
        raise GraphError(
            f"metric {name!r}: label {wrong[0]} is not one of the classes 0 to {classes - 1}; "
            f"labels that only pad a batch are left out with ignore_label"
        )
    picked: Array = rows.reshape(-1, classes)[where, wanted].astype(np.float64)
    return picked


def _listed(arrays: Array | Sequence[Array]) -> list[Array]:
    listed = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [a.get() if hasattr(a, "get") else np.asarray(a) for a in listed]  # get(): from a GPU
