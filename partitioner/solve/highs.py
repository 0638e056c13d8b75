"""The mixed-integer solver HiGHS, from scipy, which is loaded when it is first asked.

A plan that needs no search starts a tenth of a second sooner without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Row = tuple[Any, Any, Any]  # coefficients, lowest and highest value


def matrix(values: Array, rows: Array, columns: Array, shape: tuple[int, int]) -> Any:
    """A sparse matrix of rows' coefficients; those at the same place are added."""
    sparse = importlib.import_module("scipy.sparse")
    return sparse.coo_matrix((values, (rows, columns)), shape=shape).tocsr()


def minimise(
    costs: Array,
    rows: Sequence[Row],
    upper: Any,
    *,
    integrality: Array | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """scipy.optimize.milp's result for variables from 0 to `upper`."""
    optimize = importlib.import_module("scipy.optimize")
    return optimize.milp(
        costs,
        integrality=integrality,
        bounds=optimize.Bounds(0, upper),
        constraints=[optimize.LinearConstraint(*row) for row in rows],
        options=options,
    )
