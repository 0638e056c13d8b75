"""The mixed-integer solver HiGHS, from scipy, which is loaded when it is first used.

A plan that needs no search starts a tenth of a second sooner without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from symgraph.core.types import Array

Row = tuple[Any, Any, Any]  # a constraint: coefficients, lowest and highest value


def matrix(values: Array, rows: Array, columns: Array, shape: tuple[int, int]) -> Any:
    """Make a sparse matrix of coefficients; those at the same place are added."""
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
    """Minimise over variables from 0 to `upper`; return the result of scipy.optimize.milp."""
    optimize = importlib.import_module("scipy.optimize")
    return optimize.milp(
        costs,
        integrality=integrality,
        bounds=optimize.Bounds(0, upper),
        constraints=[optimize.LinearConstraint(*row) for row in rows],
        options=options,
    )
