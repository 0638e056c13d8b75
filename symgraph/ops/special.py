"""Special functions: the module that is scipy.special for arrays of numpy or CuPy."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from symgraph.core.types import Array


def special_functions(array: Array) -> Any:
    """The module that is scipy.special for such an array; loaded when it is asked for."""
    on_cpu = isinstance(array, np.ndarray)
    return importlib.import_module("scipy.special" if on_cpu else "cupyx.scipy.special")
