"""The kernel table of the CPU, which the other files of this folder fill."""

from __future__ import annotations

from functools import partial

from runtime.backends.device import table
from runtime.backends.device.table import Maker

KERNELS: dict[str, Maker] = {}
kernel = partial(table.kernel, table=KERNELS)
