"""The base of all metrics: a sum and a count, added up over batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.html import table
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
        **settings: further arguments of the class, for `get_config`.
    """

    global_sum_metric = 0.0  # for subclasses whose `reset` does not set them
    global_num_inst = 0

    def __init__(
        self,
        name: str,
        output_names: Names = None,
        label_names: Names = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self._settings = settings
        self.output_names = output_names
        self.label_names = label_names
        self.reset()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {dict(self.get_name_value())}>"

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def _repr_html_(self) -> str:
        """Return the values as a table, for notebooks."""
        rows = [(name, f"{value:.6g}") for name, value in self.get_name_value()]
        return table([("metric", "value"), *rows])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `create` that make such a metric (MXNet)."""
        return {
            **self._settings,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def reset(self) -> None:
        """Reset both averages."""
        self.global_sum_metric = self.sum_metric = 0.0
        self.global_num_inst = self.num_inst = 0

    def reset_local(self) -> None:
        """Reset the local average, but not the one that `get_global` returns.

        A class with a `reset` of its own alone, as before MXNet 1.4, has one average: that one.
        """
        kind = type(self)
        if kind.reset is not EvalMetric.reset and kind.reset_local is EvalMetric.reset_local:
            self.reset()
        else:
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
            select(self.name, "label", labels, self.label_names),
            select(self.name, "output", preds, self.output_names),
        )

    def update(self, labels: Array | Sequence[Array], preds: Array | Sequence[Array]) -> None:
        """Add a batch: one array each, or lists of equally many arrays.

        Raises ShapeError if the numbers of arrays differ.
        """
        for total, count in self._measured(labels, preds):
            self.accumulate(total, count)

    def _measured(self, labels: Any, preds: Any) -> Iterator[tuple[Any, int]]:
        """Yield `measure` of each pair of arrays."""
        both = host_arrays(labels), host_arrays(preds)
        if len(both[0]) != len(both[1]):
            raise ShapeError(
                f"metric {self.name!r}: {len(both[0])} arrays of labels for {len(both[1])} of "
                f"predictions; choose with output_names= and label_names="
            )
        for label, pred in zip(*both, strict=True):
            yield self.measure(label, pred)

    def get(self) -> tuple[Any, Any]:
        """Return (name, value), or two lists; the value is nan while the count is 0."""
        return self.name, self.value(self.sum_metric / self.num_inst) if self.num_inst else math.nan

    def get_global(self) -> tuple[Any, Any]:
        """Return what `get` does, since `reset`; needs an `update` that calls `accumulate`."""
        total, count = self.global_sum_metric, self.global_num_inst
        return (self.name, self.value(total / count)) if count else self.get()

    def get_name_value(self) -> list[tuple[str, float]]:
        """Return `get` as a list of (name, value)."""
        return pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Return `get_global` as a list of (name, value)."""
        return pairs(*self.get_global())

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


def pairs(names: Any, values: Any) -> list[tuple[str, float]]:
    """Return what `get` does as a list of (name, value)."""
    if not isinstance(names, list | tuple):
        names, values = [names], [values]
    return list(zip(names, values, strict=True))


def select(metric: str, what: str, arrays: Mapping[str, Array], names: Names) -> list[Array]:
    """Return the arrays of these names; all arrays for None."""
    if names is None:
        return list(arrays.values())
    for name in names:
        if name not in arrays:
            raise GraphError(f"metric {metric!r}: no {what} {name!r}; {nearest(name, arrays)}")
    return [arrays[name] for name in names]


def host_arrays(arrays: Array | Sequence[Array]) -> list[Array]:
    """Return one array or several as a list of numpy's."""
    sequence = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [_host_array(array) for array in sequence]


def _host_array(array: Any) -> Array:
    for method in ("asnumpy", "get"):  # mx.nd's and CuPy's
        if hasattr(array, method):
            return numpy.asarray(getattr(array, method)())
    return numpy.asarray(array)
