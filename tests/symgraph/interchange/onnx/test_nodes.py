"""ONNX's own tests of operators: those that are stored as passing pass, and no number is wrong.

data/onnx_nodes.txt is made by `python -m benchmarks.parity.onnx_nodes --write`.
"""

from __future__ import annotations

import pytest

from benchmarks.parity.onnx_nodes import cases, outcome, stored, table


def check(found):
    names = set(stored())
    assert [(o.name, o.reason) for o in found if o.kind == "wrong"] == []
    assert [(o.name, o.reason) for o in found if o.kind != "passed" and o.name in names] == []
    assert [o.name for o in found if o.kind == "passed" and o.name not in names] == []


def test_some_operators_on_executors_of_one_and_two_devices():
    found = [
        outcome(case) for case in cases(["gemm", "lstm", "where", "if_", "layernormalization"])
    ]
    assert len(found) > 40
    check(found)


@pytest.mark.slow
def test_all_operators_on_the_reference_interpreter():
    found = [outcome(case, executors=False) for case in cases()]
    assert len(found) >= 1400
    assert sum(o.kind == "passed" for o in found) >= 1000
    check(found)


def test_the_table_names_what_is_refused():
    found = [outcome(case, executors=False) for case in cases(["relu", "unique", "sequence_map"])]
    rows = list(table(found))
    assert "| Unique | 7 | 0 | not supported (7) |" in rows
    assert "| Relu | 1 | 1 |  |" in rows
    assert any("sequence_type" in row for row in rows)
