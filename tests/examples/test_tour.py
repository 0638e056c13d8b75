"""The tour: the notebook runs from top to bottom, and shows what it was checked in with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.notebook import execute

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def shown(notebook):
    """The media types of each cell's outputs, or "stdout", in order: Jupyter sorts them."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        [name for out in cell["outputs"] for name in sorted(out.get("data") or ["stdout"])]
        for cell in cells
    ]


@pytest.mark.slow  # measures, compares and searches
def test_the_cells_of_the_tour_run_and_show_what_they_did():
    before = json.loads(TOUR.read_text(encoding="utf-8"))
    assert TOUR.stat().st_size < 100_000
    after = execute(TOUR)
    assert shown(after) == shown(before)
    verdict = "".join(after["cells"][-2]["outputs"][0]["text"])
    assert "one device" in verdict
