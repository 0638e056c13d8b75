"""The kernel table of the CPU, which the other files of this folder fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from runtime.backends.device import table
from runtime.backends.device.table import Maker
from symgraph.core.types import TensorType

KERNELS: dict[str, Maker] = {}
# Operators whose kernels also take an output of the dtype to which it is cast, float32 instead of
# bfloat16 or the reverse: they write what the cast would, rounded to bfloat16 in either case.
CASTING: set[str] = set()
# Operators whose kernels take bfloat16 as it is, by the parameters and the types of all arrays.
TAKES_LOW: dict[str, Callable[[Mapping[str, Any], Sequence[TensorType]], bool]] = {}
kernel = partial(table.kernel, table=KERNELS)
