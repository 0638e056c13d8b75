"""The kernel table of the CPU, which the other files of this folder fill."""

from __future__ import annotations

from functools import partial

from runtime.backends.device import table
from runtime.backends.device.table import Maker

KERNELS: dict[str, Maker] = {}
# Operators whose kernels also take an output of the dtype to which it is cast, float32 instead of
# bfloat16 or the reverse: they write what the cast would, rounded to bfloat16 in either case.
CASTING: set[str] = set()
kernel = partial(table.kernel, table=KERNELS)
