"""The plan report: its tables mark what was chosen."""

from __future__ import annotations

import pytest

from runtime.frontends.cli.plan_report import candidates_table
from runtime.planning.costs.prices import NOMINAL, always
from runtime.planning.options import Options
from symgraph.core.context import cpu
from tests.helpers.pipelines import make_plan
from tests.helpers.recurrent import lstm_case


@pytest.mark.slow
def test_the_chosen_candidate_is_marked_without_a_memory_limit():
    """None was: peaks before packing, of candidates, were compared with the plan's after it."""
    groups = {"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}
    how = {"schedule": "auto", "micro_batches": 2, "pricing": always(NOMINAL)}
    made = make_plan(lstm_case(2, 4), Options(groups, cpu(0), **how))
    marked = [line for line in candidates_table(made).splitlines() if line.startswith("->")]
    assert len(marked) == 1
    assert f" {made.choice.schedule} " in marked[0]
