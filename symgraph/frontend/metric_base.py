"""The evaluation metric: a sum and a count, added up over batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
    return [a.get() if hasattr(a, "get") else np.asarray(a) for a in listed]  # get(): from a GPU
