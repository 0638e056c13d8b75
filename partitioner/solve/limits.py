"""Why a problem has no placement, and the smallest memory limit under which it has one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partitioner.solve.bounds import memory_problem
from partitioner.solve.downsets import place_downsets
from partitioner.solve.elements import elements
from partitioner.solve.noncontiguous import place_noncontiguous
from partitioner.solve.problem import InfeasibleError, Problem

SECONDS = 60.0  # for the search of the smallest limit


def infeasible(problem: Problem, *, contiguous: bool) -> InfeasibleError:
    """The error for a problem without a placement."""
    if not problem.devices:
        return InfeasibleError("there is no device: 0 accelerators and 0 CPU cores")
    core = elements(problem, contiguous=contiguous)
    unlimited = elements(replace(problem, memory_limit=math.inf), contiguous=contiguous)
    acc = np.isfinite(unlimited.accelerator) & (problem.accelerators > 0)
    nowhere = ~acc & ~(np.isfinite(unlimited.cpu) & (problem.cpus > 0))
    if nowhere.any():
        held = np.flatnonzero(core.of == int(np.argmax(nowhere)))
        names = ", ".join(problem.names[v] for v in held[:3]) + (", ..." if len(held) > 3 else "")
        return InfeasibleError(
            f"node {names} can run on none of {problem.accelerators} accelerators and "
            f"{problem.cpus} CPU cores (what must stay together counts as one)"
        )
    search = place_downsets if contiguous else place_noncontiguous
    found = search(memory_problem(problem), SECONDS)
    if found is None:
        return InfeasibleError(
            f"at no memory limit do {problem.accelerators} accelerators and {problem.cpus} CPU "
            "cores suffice for the nodes that only one kind of device can run; give it more devices"
        )
    whole = bool((problem.memory == np.floor(problem.memory)).all())
    limit = math.ceil(found.max_load if whole else found.max_load * (1 + 1e-11))
    return InfeasibleError(
        f"a memory limit of {problem.memory_limit:.0f} bytes an accelerator is too small for "
        f"{problem.accelerators} accelerators and {problem.cpus} CPU cores; "
        f"{'the smallest limit that works is' if found.optimal else 'a limit that works is'} "
        f"{limit} bytes"
    )
