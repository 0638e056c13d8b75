"""Output that fits the terminal: tables are folded, lines wrapped, files left as they are."""

from __future__ import annotations

import io

import pytest

from symgraph.core.columns import aligned_columns, columns, fitting, wrapped

ROWS = [("stage", "a" * 20, "b" * 20), ("0", "1", "2")]


def test_nothing_is_folded_in_a_file():
    with fitting(io.StringIO(), {}):
        assert columns() is None
        assert len(aligned_columns(ROWS)) == 2
        assert wrapped("x " * 200) == "x " * 200


def test_a_table_goes_on_below_with_its_first_column(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with fitting(io.StringIO(), {"COLUMNS": "40"}):
        assert aligned_columns(ROWS) == [
            "stage  aaaaaaaaaaaaaaaaaaaa",
            "    0                     1",
            "",
            "stage  bbbbbbbbbbbbbbbbbbbb",
            "    0                     2",
        ]
    assert columns() is None


@pytest.mark.parametrize("line", ["word " * 40, "  an indented " + "word " * 30, "x" * 300])
def test_long_lines_go_on_below(line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with fitting(io.StringIO(), {"COLUMNS": "60"}):
        text = wrapped(line)
    assert max(map(len, text.split("\n"))) <= 60
    assert "".join(text.split()) == "".join(line.split())
    assert all(part.startswith("    ") for part in text.split("\n")[1:])
