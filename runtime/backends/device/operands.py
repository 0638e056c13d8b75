"""Operands: what kernels of every device kind derive from a call before they bind it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runtime.backends.device.table import KernelCall
from symgraph.core.params import Attrs
from symgraph.core.types import Array, wide

ID_DTYPES = ("float32", "float64", "int32", "int64")  # of ids and labels that have kernels


def is_id_array(ids: Array) -> bool:
    """Return whether there are kernels for ids or labels of this dtype."""
    return ids.dtype.name in ID_DTYPES


def class_count(call: KernelCall) -> int:
    """Return the number of rows of an embedding, of all shards together."""
    return int(call.attrs["classes"] or call.attrs["input_dim"])


def ignored_label(attrs: Attrs, label: Array) -> float:
    """Return the label to leave out, rounded as labels of this dtype are; NaN for none."""
    if not attrs.get("use_ignore"):
        return math.nan
    ignore = attrs["ignore_label"]
    return float(label.dtype.type(ignore) if label.dtype.kind == "f" else ignore)


def lowest(x: Array) -> Any:
    """Return the least finite number, which stands for the maximum of a row of -inf."""
    calc = np.dtype(wide(x.dtype.name))
    return calc.type(np.finfo(calc).min)


def by_channel(x: Array, axis: int) -> Array:
    """View an array with channels along `axis` as (before, channels, after)."""
    axis %= x.ndim
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], -1)
