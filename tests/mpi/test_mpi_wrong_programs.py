"""Wrong programs over MPI: some of the two hundred that tests/system/test_wrong_programs.py has."""

from __future__ import annotations

import json
import re

import pytest

from tests.helpers.wrong_programs import COUNT, name_of, wrong_program
from tests.mpi.launch import launch, needs_mpi

pytestmark = needs_mpi

EVERY = 17  # which has no factor in common with the number of kinds
CLEAR = r"rank ?\d|rank\d_|ranks that wait for ever:\n"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_wrong_programs_end_at_once_with_an_error(ranks):
    """All ranks end, some with an error; those without have come to their ends."""
    ended = launch(ranks, "tests.mpi.wrong", str(EVERY))
    assert ended.status == 0, ended
    found: dict[str, list[dict]] = {}
    for line in ended.lines("^{"):
        told = json.loads(line)
        found.setdefault(told["program"], []).append(told)
    wanted = [n for n in range(0, COUNT, EVERY) if wrong_program(n).ranks == ranks]
    assert [*found] == sorted(map(name_of, wanted))
    for name, heard in found.items():
        assert len(heard) == ranks, name
        errors = {told["kind"]: told["error"] for told in heard if told["kind"]}
        assert errors, name
        assert "TransportTimeout" not in errors, name
        assert all(re.search(CLEAR, text) for text in errors.values()), errors
        assert max(told["seconds"] for told in heard) < 5, heard
