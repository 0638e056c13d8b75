"""A file of costs beside the run that it is read for: another machine, or other kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

import numpy as np

from partitioner.costs.cost import CostTable, is_free, signature
from runtime.backends.cpu.choice import chosen
from runtime.backends.device.processor import processor_name
from runtime.planning.costs.prices import CostModel
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph

AGAIN = "measure again with `symgraph profile CONFIG --save-costs FILE`"


def check_costs(path: str, costs: CostModel, graph: Graph) -> None:
    """Warn of costs that were measured elsewhere, or without some of a graph's kernels.

    path: the file. costs: what it holds. graph: of the first micro-batch, as it is planned.

    Raises:
        ConfigError: they are another network's, with none of its operators.
    """
    known: dict[str, str] = {}  # signature -> operator
    for kind, table in costs.kinds.items():
        if isinstance(table, CostTable):
            known |= {name: name.partition("(")[0] for name in (*table.measured, *table.failed)}
            if kind == "cpu" and (other := _differences(table.machine)):
                warnings.warn(f"partition.costs {path}: of another machine: {other}", stacklevel=2)
    calls = [node for node in graph if not (node.is_variable or is_free(node, graph))]
    asked = {signature(node, graph): node.op for node in calls}
    if not known or known.keys() >= asked.keys():
        return
    if not {*known.values()} & {*asked.values()}:
        raise ConfigError(
            f"partition.costs: {path} has none of this network's operators; {AGAIN}, or leave out "
            "this key"
        )
    warnings.warn(
        f"partition.costs {path}: kernels of this network are not in it, as those of another "
        f"network or batch, and count by their operations; {AGAIN}",
        stacklevel=2,
    )


def _differences(machine: Mapping[str, str]) -> str:
    """Say in what a machine, as it was described, is not this one; "" if in nothing."""
    here = {
        "processor": processor_name(),
        "cores": str(os.cpu_count()),
        "products": str(chosen()),
        "numpy": np.__version__,
    }
    return "; ".join(
        f"{key} {machine[key]}, here {value}"
        for key, value in here.items()
        if machine.get(key, value) != value
    )
