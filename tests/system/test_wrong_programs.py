"""Two hundred wrong programs on threads: each ends at once, with an error that says what is wrong.

tests/mpi/test_mpi_wrong_programs.py runs the same ones over MPI.
"""

from __future__ import annotations

import pytest

from runtime.frontends.chainermn import create_communicator
from runtime.transports import ThreadCluster
from symgraph.core.errors import SymgraphError, TransportTimeout
from tests.helpers.wrong_programs import COUNT, name_of, wrong_program

PATIENT = 60.0  # seconds that a wait may take before it ends in a TransportTimeout


@pytest.mark.every(4)
@pytest.mark.parametrize("number", range(COUNT), ids=name_of)
def test_a_wrong_program_is_an_error_at_once(number):
    program = wrong_program(number)
    with (
        ThreadCluster(program.ranks, PATIENT) as cluster,
        pytest.raises(SymgraphError, match=r"rank ?\d|channel \d|rank\d_|tag \d") as caught,
    ):
        cluster.run(lambda end: program.work(end, create_communicator("naive", end)))
    assert not isinstance(caught.value, TransportTimeout)
