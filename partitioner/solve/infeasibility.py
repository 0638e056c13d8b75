"""Why a problem has no placement, and the smallest memory limit under which it has one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partitioner.solve.bounds import memory_problem
from partitioner.solve.budget import Budget
from partitioner.solve.contiguous import place_downsets
from partitioner.solve.elements import elements
from partitioner.solve.noncontiguous import place_noncontiguous
from partitioner.solve.problem import ACCELERATOR, CORE, InfeasibleError, Problem

SEARCH_SECONDS = 60.0  # time limit of the search for the smallest memory limit
KIND_NAMES = {ACCELERATOR: "accelerators", CORE: "CPU cores"}


def infeasible(problem: Problem, *, contiguous: bool) -> InfeasibleError:
    """Explain why a problem has no placement, with the smallest memory limit that works."""
    devices = " and ".join(f"{k.count} {KIND_NAMES.get(k.name, k.name)}" for k in problem.kinds)
    if not problem.devices:
        return InfeasibleError(f"there is no device: {devices}")
    kinds = tuple(replace(kind, memory_limit=math.inf) for kind in problem.kinds)
    unlimited = elements(replace(problem, kinds=kinds), contiguous=contiguous)
    nowhere = ~np.isfinite(unlimited.times).any(axis=0)
    if nowhere.any():
        held = np.flatnonzero(unlimited.of == int(np.argmax(nowhere)))
        names = ", ".join(problem.names[v] for v in held[:3]) + (", ..." if len(held) > 3 else "")
        return InfeasibleError(
            f"node {names} can run on none of {devices} (nodes that must stay together count as "
            "one)"
        )
    search = place_downsets if contiguous else place_noncontiguous
    smallest = search(memory_problem(problem), Budget(seconds=SEARCH_SECONDS))
    if smallest is None:
        return InfeasibleError(
            f"{devices} do not suffice at any memory limit for the nodes that only one kind of "
            "device can run; add devices"
        )
    integral = bool((problem.memory == np.floor(problem.memory)).all())
    limit = math.ceil(smallest.max_load if integral else smallest.max_load * (1 + 1e-11))
    smallest_limit = min(kind.memory_limit for kind in problem.kinds if kind.count)
    return InfeasibleError(
        f"a memory limit of {smallest_limit:.0f} bytes per accelerator is too small for {devices}; "
        f"{'the smallest limit that works is' if smallest.optimal else 'a limit that works is'} "
        f"{limit} bytes"
    )
